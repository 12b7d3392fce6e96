"""Where the machine's own libraries, headers and tools come from, and when they are loaded."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda import backend, library_folders
from rawnn.cuda.compiling import headers
from rawnn.cuda.driver import Driver
from rawnn.cuda.driver_start import release_context
from rawnn.cuda.libs import cublaslt, cudnn, locate, nccl
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.lab import inspection


def test_a_library_is_made_when_it_is_asked_for(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []
    for module, name in ((cublaslt, "CublasLt"), (cudnn, "Cudnn"), (nccl, "Nccl")):
        monkeypatch.setattr(module, name, lambda name=name: made.append(name) or name)
    archive = tmp_path / "libcudadevrt.a"
    archive.write_bytes(b"!<arch>")
    monkeypatch.setattr(backend, "cudadevrt_library", lambda: archive)
    found = backend.real_backend()
    assert made == []
    assert (found.cublaslt(), found.cudnn(), found.nccl()) == ("CublasLt", "Cudnn", "Nccl")
    assert made == ["CublasLt", "Cudnn", "Nccl"]
    assert (found.name, found.driver, found.nvrtc) == ("cuda", Driver, Nvrtc)
    assert found.device_runtime() == b"!<arch>"
    assert (found.cache, found.parallel, found.caution) == (True, True, "")
    assert (found.provides, found.release_context) == (backend.provides, release_context)


def test_a_package_is_found_without_being_imported_and_cublaslt_by_its_file(
        monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.provides("numpy")
    assert not backend.provides("no_such_package")
    assert not backend.provides("no_such_package.inner")
    asked: list[Any] = []
    files: list[Path | None] = [Path("libcublasLt.so.12"), None]
    monkeypatch.setattr(locate, "find", lambda *words: asked.append(words) or files.pop(0))
    assert backend.provides("cublasLt")
    assert not backend.provides("cublasLt")
    assert asked == [(cublaslt.FILE_NAMES, cublaslt.WHEEL_FOLDERS)] * 2


def test_folders_of_wheels_conda_the_loader_and_toolkits(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert (library_folders.conda(), library_folders.loader()) == ([], [])
    assert list(library_folders.toolkits()) == [Path("/usr/local/cuda")]
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/a::/b")
    monkeypatch.setenv("CUDA_PATH", "/second")
    monkeypatch.setenv("CUDA_HOME", "/first")
    assert library_folders.conda() == [Path("/conda")]
    assert library_folders.loader() == [Path("/a"), Path("/b")]
    assert list(library_folders.toolkits()) == list(map(Path, (
        "/first", "/second", "/usr/local/cuda")))
    several = [tmp_path / site / "shared_by_wheels" for site in ("one", "two")]
    for folder in several:
        folder.mkdir(parents=True)
    (several[1] / "__init__.py").write_text("")  # the only one that Python knows then
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "one"), str(tmp_path / "two")])
    assert library_folders.wheels("shared_by_wheels") == several[::-1]
    assert library_folders.wheels("no_such_package") == []
    assert library_folders.wheels("numpy.no.such") == []


def test_headers_that_pathfinder_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(component: str) -> str | None:
        if component == "cudart":
            raise error
        return "/conda/include/cccl"

    error: Exception = ValueError("unknown")
    monkeypatch.setitem(sys.modules, "cuda.pathfinder",
                        SimpleNamespace(find_nvidia_header_directory=find))
    assert list(headers._pathfinder_headers()) == [Path("/conda/include/cccl")]
    error = RuntimeError("not found")
    assert list(headers._pathfinder_headers()) == [Path("/conda/include/cccl")]
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", SimpleNamespace(
        find_nvidia_header_directory={"cudart": "/include", "cccl": None}.get))
    assert list(headers._pathfinder_headers()) == [Path("/include")]
    for absent in (SimpleNamespace(), None):
        monkeypatch.setitem(sys.modules, "cuda.pathfinder", absent)
        assert list(headers._pathfinder_headers()) == []


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Every folder that may have a tool, PATH first."""
    monkeypatch.setattr(library_folders, "wheels", lambda package: [tmp_path / package])
    monkeypatch.setattr(library_folders, "conda", lambda: [tmp_path / "conda"])
    monkeypatch.setattr(library_folders, "toolkits", lambda: [tmp_path / "toolkit"])
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return [tmp_path / folder for folder in (
        "path", "nvidia/cu13/bin", "nvidia/cuda_nvdisasm/bin", "nvidia/cuda_nvcc/bin", "conda/bin",
        "toolkit/bin", "toolkit/compute-sanitizer")]


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_tool_is_taken_from_the_first_folder_that_has_it(tools: list[Path]) -> None:
    assert headers.tool_folders() == tuple(tools[1:])
    assert headers.tool("nvdisasm") is None
    for folder in reversed(tools):
        assert headers.tool("nvdisasm") != folder / "nvdisasm"
        found = program(folder / "nvdisasm")
        assert headers.tool("nvdisasm") == found


def test_machine_code_is_what_nvdisasm_prints_of_the_cubin(
        tools: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    source: Any = SimpleNamespace(compiled=lambda *words: asked.append(words) or SimpleNamespace(
        cubin=b"the cubin"))
    program(tools[0] / "nvdisasm", "import sys\nprint(*sys.argv[1:-1], "
                                   "open(sys.argv[-1]).read(), sys.argv[-1][-6:])")
    said = inspection.sass(source, ("k",), "compute_90")
    assert said == "--print-line-info --print-code the cubin .cubin\n"
    assert asked == [(("k",), "sm_90", ("-lineinfo",))]
    path = program(tools[0] / "nvdisasm", "import sys\nprint(' no ', file=sys.stderr)\nsys.exit(2)")
    with pytest.raises(ConfigError, match=f"{path} failed: no$"):
        inspection.sass(source, ("k",), "sm_90")
