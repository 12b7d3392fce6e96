"""Kernels of one's own where there is no GPU: one clear sentence, and a way on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CompileError, DeviceError, MissingLibrary
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.engine.machine import open_device
from rawnn.lab import arrays, kernel_source, simulated
from rawnn.sim import register
from tests import requires

HALVE = "__global__ void lab_halve(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] /= 2; }"


def reference(t: Any, a: Any) -> None:
    t.x[...] /= 2


register("lab_halve", reference, {"x": ("n",)}, reads=("x",), writes=("x",))


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: Any) -> Any:
        try:
            raise RuntimeError("libcuda.so.1 is not there")
        except RuntimeError as error:
            raise DeviceError("no NVIDIA driver can be loaded") from error

    monkeypatch.setattr(arrays, "open_gpu", none)
    monkeypatch.setattr("rawnn.engine.machine.open_gpu", none)
    arrays.default_device.cache_clear()


@pytest.mark.usefixtures("no_gpu")
def test_the_error_names_the_way_on_and_carries_no_chain() -> None:
    with pytest.raises(DeviceError, match=r"no NVIDIA driver.*device=rawnn\.lab\.simulated"
                       ) as caught:
        rawnn.array([1.0])
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
    with pytest.raises(DeviceError, match="--device host trains on the CPU"):
        open_device("gpu", print)


def test_what_it_names_works(capsys: pytest.CaptureFixture[str]) -> None:
    device = simulated()
    x = rawnn.array(np.arange(8), "float32", device=device)
    halve = rawnn.Kernel(HALVE, "lab_halve", device=device)
    halve[1, 32](x, 8)
    halve.synchronize()
    np.testing.assert_array_equal(x.numpy(), np.arange(8) / 2)
    device.close()
    assert "caution" not in capsys.readouterr().out


def test_broken_cuda_is_refused_where_nvrtc_is_installed() -> None:
    requires.module("cuda.bindings.nvrtc")
    with pytest.raises(CompileError, match="undefined_name"):
        rawnn.Kernel(HALVE.replace("/= 2", "= undefined_name"), "lab_halve", device=simulated())


def test_without_nvrtc_it_is_said_that_the_body_is_not_checked(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(self: Nvrtc) -> None:
        raise MissingLibrary("cuda-bindings is needed")

    monkeypatch.setattr(Nvrtc, "__init__", missing)
    monkeypatch.setattr(kernel_source, "CubinCache", lambda notify: None)
    rawnn.Kernel(HALVE, "lab_halve", device=simulated())
    assert "the kernel's body is not checked" in capsys.readouterr().out


def test_the_example_ends_in_one_sentence() -> None:
    example = Path(rawnn.__file__).parents[1] / "examples" / "own_kernel.py"
    code = ("import rawnn.lab.arrays as a\n"
            "def none(*_): raise a.DeviceError('no GPU here')\n"
            "a.open_gpu = none\n"
            f"import runpy; runpy.run_path({str(example)!r})")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=100, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("this example needs an NVIDIA GPU: no GPU here; ")
    assert len(done.stderr.splitlines()) == 1
    assert "simulated()" in done.stderr
