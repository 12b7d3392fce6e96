"""What every start costs: `import rawnn` and `--help` load nothing that they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rawnn.device.cuda.device import Device
from rawnn.device.sim import Simulation
from rawnn.runners.gpu import GpuRunner
from tests.engine import make_work, random_dataset

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("numpy", "ml_dtypes", "cuda.bindings", "nvmath", "rich", "platformdirs", "safetensors",
         "onnx")
SECONDS = 0.15
"""Of processor time, to which other programs on the machine do not add; a third of it is used."""


@pytest.mark.parametrize(("code", "also"), [
    ("import rawnn", ("click", "msgspec")),
    ("import runpy, sys; sys.argv = ['rawnn', '--help']\n"
     "try: runpy.run_module('rawnn', run_name='__main__')\n"
     "except SystemExit: pass", ("msgspec",)),
])
def test_a_start_is_quick(code: str, also: tuple[str, ...]) -> None:
    loaded = f"print([m for m in {(*HEAVY, *also)!r} if m in sys.modules], file=sys.stderr)"
    timed = (f"import sys, time\nbegun = time.process_time()\n{code}\n"
             f"print(time.process_time() - begun, file=sys.stderr)\n{loaded}")
    done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True,
                          timeout=60, check=True, cwd="/",
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    seconds, modules = done.stderr.splitlines()[-2:]
    assert modules == "[]"
    assert float(seconds) < SECONDS


def test_libraries_are_loaded_while_kernels_compile() -> None:
    """What was begun is waited for last."""
    simulation = Simulation()
    device = Device(simulation.backend())
    GpuRunner(device, make_work("preload,arena,cublas,cudnn", (29, 7), random_dataset())).close()
    calls = simulation.calls
    compiled = calls.index("nvrtcCompileProgram")
    assert 0 < calls.index("cublasLtMatmulAlgoGetHeuristic") < compiled
    assert 0 < calls.index("cudnnCreate") < compiled
    device.close()
    simulation.assert_clean()
