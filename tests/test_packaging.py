"""What a wheel of rawnn holds and says, without building one."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import rawnn
from rawnn import ptx
from tests import requires

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_without_cuda(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python with every CUDA package and its wheels' libraries out of reach."""
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('cuda', 'nvidia', 'nvmath'):\n"
        "            raise ModuleNotFoundError(f\"No module named '{name}'\", name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True,
                          timeout=120, env=environment, check=False)


def test_every_file_that_is_not_python_is_package_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["rawnn"]
    package = ROOT / "rawnn"
    others = [str(path.relative_to(package)) for path in package.rglob("*")
              if path.is_file() and path.suffix not in (".py", ".pyc")]
    assert "py.typed" in others
    assert any(name.endswith(".cu") for name in others)
    for name in others:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name


def test_every_folder_with_python_is_a_package() -> None:
    for path in (ROOT / "rawnn").rglob("*.py"):
        assert (path.parent / "__init__.py").is_file(), path.parent


def test_kernel_sources_are_found_beside_the_package() -> None:
    assert ptx.source_path("gemm/matmul.cu").is_file()


def test_the_version_is_one_and_the_command_prints_it() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", rawnn.__version__)
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "rawnn.version.__version__"}
    shown = subprocess.run([sys.executable, "-m", "rawnn", "--version"], capture_output=True,
                           text=True, cwd=ROOT, timeout=60, check=True)
    assert rawnn.__version__ in shown.stdout


def needs_setuptools() -> None:
    # Not importorskip: setuptools cannot be imported once a test has imported distutils.
    try:
        installed_version = int(version("setuptools").split(".")[0])
    except PackageNotFoundError:
        installed_version = 0
    if installed_version < 77:
        pytest.skip(f"needs setuptools >= 77: {requires.command('setuptools')}")


def test_a_source_archive_holds_the_tests_whole_and_what_they_read(tmp_path: Path) -> None:
    needs_setuptools()
    subprocess.run([sys.executable, "-c", "from setuptools import setup; setup()", "-q", "egg_info",
                    "--egg-base", str(tmp_path)], cwd=ROOT, check=True, capture_output=True,
                   timeout=120)
    (listed,) = tmp_path.glob("*.egg-info/SOURCES.txt")
    held = {name.removeprefix("./") for name in listed.read_text().splitlines()}
    for folder in ("rawnn", "tests", "docs", "tools", "examples", "results"):
        there = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*")
                 if path.is_file() and not any(part.startswith((".", "__pycache__"))
                                               for part in path.relative_to(ROOT).parts)}
        assert there
        assert there <= held
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "mkdocs.yml",
            "pyproject.toml", "bench.toml"} <= held
    assert not [name for name in held if name.endswith((".pyc", ".pyo"))]


def clone_and_install(tmp_path: Path, hook: str) -> tuple[Path, Path]:
    """A copy of the project named as the package is, and what its wheel holds, unpacked; `hook` of
    setuptools.build_meta builds it."""
    needs_setuptools()
    clone, built, installed = (tmp_path / name for name in ("rawnn", "built", "installed"))
    for folder in (clone, built, installed):
        folder.mkdir()
    for name in ("rawnn", "bench.toml", "pyproject.toml", "README.md", "LICENSE"):
        (clone / name).symlink_to(ROOT / name)
    build = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(built)], cwd=clone, check=True,
                   capture_output=True, timeout=120)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(installed)
    return clone, installed


def test_a_source_archive_has_bench_toml_as_a_file_of_the_package(tmp_path: Path) -> None:
    needs_setuptools()
    clone = tmp_path / "rawnn"
    clone.mkdir()
    for name in ("rawnn", "bench.toml", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        (clone / name).symlink_to(ROOT / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=clone, check=True,
                   capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        for name in ("bench.toml", "rawnn/bench/bench.toml"):
            file = content.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{name}")
            assert file
            assert file.read() == (ROOT / "bench.toml").read_bytes()


RUN = """
import os, runpy, site, sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
others = [p for p in sys.path if os.path.exists(f"{p}/rawnn")]  # ours installed, dependencies
sys.path[:] = ["", *(p for p in sys.path if p and p not in others)]
site.addsitedir(sys.argv[1])
sys.path += [p for p in others if p != sys.argv[2]]
import rawnn
assert rawnn.__file__.startswith(sys.argv[3]), rawnn.__file__
sys.argv = ["rawnn", "--device", "host", "--dataset", "synthetic", "--epochs", "1"]
runpy.run_module("rawnn", run_name="__main__")
"""


def test_an_editable_install_runs_from_the_folder_that_holds_the_clone(tmp_path: Path) -> None:
    clone, installed = clone_and_install(tmp_path, "build_editable")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for folder in (tmp_path, clone, clone / "rawnn", Path("/")):
        done = subprocess.run([sys.executable, "-c", RUN, str(installed), str(ROOT), str(clone)],
                              cwd=folder, text=True, capture_output=True, timeout=120,
                              check=False, env=environment)
        assert done.returncode == 0, f"{folder}: {done.stderr}"
        assert "test accuracy" in done.stdout


INSTALLED = """
import os, runpy, sys
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
sys.path[:] = [sys.argv[1], *(p for p in sys.path if p)]
import rawnn
assert rawnn.__file__.startswith(sys.argv[1]), rawnn.__file__
sys.argv[:] = ["rawnn", *sys.argv[2:]]
"""
KERNELS = """
from rawnn.ptx import SOURCES
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.nvrtc import Nvrtc
text = (SOURCES / "fused/linear.cu").read_text()
compile_source(Nvrtc(), text, name="fused/linear.cu", arch="sm_90",
expressions=["linear_update<10>"])
"""


def test_a_wheel_without_the_repository_trains_and_tests_itself(tmp_path: Path) -> None:
    _, installed = clone_and_install(tmp_path, "build_wheel")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    package = ROOT / "rawnn"
    kept = {str(path.relative_to(package)) for path in package.rglob("*")
            if path.is_file() and path.suffix != ".pyc"}
    found = {str(path.relative_to(installed / "rawnn"))
             for path in (installed / "rawnn").rglob("*") if path.is_file()}
    assert found == kept  # every kernel and table, and nothing but the package
    packaged = installed / "rawnn" / "bench" / "bench.toml"
    assert not packaged.is_symlink()
    assert packaged.read_text() == (ROOT / "bench.toml").read_text()
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAWNN_DATA")}
    environment["RAWNN_CACHE"] = str(tmp_path / "cache")
    runs = "runpy.run_module('rawnn', run_name='__main__')"
    for arguments, message in (
        (("--device", "host", "--dataset", "synthetic", "--epochs", "1"), "test accuracy"),
        (("--device", "sim", "--dataset", "synthetic", "--epochs", "1", "--opt", "best"),
         "SIMULATED"),
        (("bench", "check", "--device", "sim", "--n", "2"), "right"),
        (("toggles",), "graphs"),
    ):
        done = subprocess.run([sys.executable, "-c", INSTALLED + runs, str(installed), *arguments],
                              cwd=elsewhere, capture_output=True, text=True, timeout=200,
                              check=False, env=environment)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        assert message in done.stdout
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("nvidia"):
        subprocess.run([sys.executable, "-c", INSTALLED + KERNELS, str(installed)], cwd=elsewhere,
                       check=True, timeout=200, env=environment)


def test_a_zip_archive_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rawnn.zip", "w") as archive:
        for path in (ROOT / "rawnn").glob("*.py"):
            archive.write(path, f"rawnn/{path.name}")
    done = subprocess.run([sys.executable, "-c", "import rawnn"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "rawnn.zip")},
                          cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 1
    assert "zip archive has not: install the wheel with pip" in done.stderr


def test_extras_are_named_within_quotes() -> None:
    """Some shells take the brackets for a pattern."""
    pages = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    for path in (*(ROOT / "rawnn").rglob("*.py"), *pages):
        for line in path.read_text().splitlines():
            assert not re.search(r"pip install (-\w )?[\w.]+\[", line), f"{path}: {line}"


def test_messages_name_only_extras_that_exist() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [path.read_text() for path in (ROOT / "rawnn").rglob("*.py")]
    named = {extra for text in texts for extra in re.findall(r"rawnn\[(\w+)\]", text)}
    assert named >= {"cu12", "cu13"}
    assert named <= set(extras)


def test_the_base_install_imports_and_trains_without_cuda_packages() -> None:
    done = run_without_cuda(
        "import rawnn\n"
        "r = rawnn.train(rawnn.Config(dataset='synthetic', epochs=1, batch=500))\n"
        "print(r.test_accuracy, [m for m in sys.modules if m.startswith("
        "('cuda.', 'nvmath'))])")
    assert done.returncode == 0, done.stderr
    accuracy, loaded = done.stdout.split()
    assert float(accuracy) > 0.5
    assert loaded == "[]"


def test_a_gpu_asked_for_without_cuda_packages_names_the_extra() -> None:
    done = run_without_cuda(
        "from rawnn.cli import run\nsys.exit(run(['--device', 'gpu', '--dataset', 'synthetic']))")
    assert done.returncode == 1
    assert "pip install 'rawnn[cu12]'" in done.stderr
    assert "Traceback" not in done.stderr
