"""`rawnn doctor`, also where there is nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rawnn
from rawnn import doctor
from rawnn.cli import run
from rawnn.common.errors import MissingLibrary
from rawnn.cuda.compiling import headers
from rawnn.engine.machine import Opened, open_device

ROOT = Path(rawnn.__file__).parents[1]


def test_with_a_gpu_the_status_is_0(monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "open_device", lambda wanted, say: open_device("sim", say))
    monkeypatch.setattr(doctor, "_libraries", lambda: [
        doctor.Finding("NVRTC", "/lib/libnvrtc.so.13", "13.0", required=True),
        doctor.Finding("cuDNN", looked=("/here", "/there"), fix="pip install it")])
    assert run(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "simulated GPU" in printed
    assert "NVRTC: 13.0 (/lib/libnvrtc.so.13)" in printed
    assert "cuDNN: not found; looked at: /here, /there\n    fix: pip install it" in printed
    assert "Training on the GPU works here." in printed


def test_a_toggle_that_lacks_something_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(wanted: str, say: object) -> Opened:
        machine = doctor.Machine(None, (7, 5), 12040, lambda package: False)
        return Opened(None, machine, 0.0)

    monkeypatch.setattr(doctor, "open_device", old)
    lacks = {each.toggle: each for each in doctor.diagnose().lacks}
    assert "pip install 'rawnn[cu1" in lacks["cudnn"].fix
    assert lacks["pdl"].fix == "a newer GPU"


@pytest.mark.parametrize(("bindings", "driver", "extra"), [
    (12, 13000, "cu12"), (13, 12040, "cu13"), (None, 12040, "cu12"), (None, 13010, "cu13"),
    (None, 0, "cu13")])
def test_the_extra_is_that_of_the_bindings_or_else_of_the_driver(
        bindings: int | None, driver: int, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.headers, "cuda_major", lambda: bindings)
    monkeypatch.setattr(doctor, "_driver_version", lambda: driver)
    monkeypatch.setattr(doctor, "has_package", lambda name: False)
    found = {each.name: each for each in doctor.diagnose().findings}
    assert found["nvmath-python"].fix == f"pip install 'rawnn[{extra}]'"


@pytest.mark.parametrize(("bindings", "driver", "expected"), [
    (13, 12040, "update the NVIDIA driver, or pip install 'rawnn[cu12]'"),
    (13, 12020, "update the NVIDIA driver"), (12, 12020, "update the NVIDIA driver")])
def test_a_driver_too_old_for_the_bindings_has_a_fix(
        bindings: int, driver: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(wanted: str, say: object) -> Opened:
        raise MissingLibrary("the NVIDIA driver supports CUDA 12.x, but rawnn needs more")

    monkeypatch.setattr(doctor, "open_device", old)
    monkeypatch.setattr(doctor.headers, "cuda_major", lambda: bindings)
    monkeypatch.setattr(doctor, "_driver_version", lambda: driver)
    found = {each.name: each for each in doctor.diagnose().findings}
    assert found["driver and GPU"].fix == expected


def test_the_driver_is_asked_without_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(version: Any) -> int:
        version._obj.value = 12040
        return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=get))
    assert doctor._driver_version() == 12040

    def none(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", none)
    assert doctor._driver_version() == 0


def test_without_any_cuda_it_says_so() -> None:
    code = """
import sys
class None_:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cuda", "nvidia", "nvmath", "pynvml"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, None_())
from rawnn.cuda import library_folders
from rawnn.cuda.compiling import headers
library_folders.toolkits = lambda: iter(())
from rawnn.cli import run
from rawnn.cuda.compiling import headers
sys.exit(run(["doctor"]))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "CONDA"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
                          check=False, env={**environment, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1, done.stderr
    assert "cuda-bindings: MISSING" in done.stdout
    assert "pip install 'rawnn[cu1" in done.stdout
    assert "NVRTC: MISSING" in done.stdout
    assert "Training on the GPU does not work here" in done.stdout
    assert not done.stderr


def test_a_tool_is_looked_for_on_the_path_and_then_where_nvidia_puts_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("first", "toolkit/bin", "toolkit/compute-sanitizer"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path / "first"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(headers.library_folders, "wheels", lambda package: [])
    assert headers.tool("made-up-tool") is None
    for folder in ("toolkit/compute-sanitizer", "toolkit/bin", "first"):
        place = tmp_path / folder / "made-up-tool"
        place.touch(0o755)
        assert headers.tool("made-up-tool") == place
