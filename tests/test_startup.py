"""What every start costs: `import rawnn` and `--help` load nothing that they do not need."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import rawnn
from rawnn.__main__ import takes_the_first_gpu
from rawnn.cuda import driver_start
from rawnn.cuda.device import Device
from rawnn.cuda.driver_start import start_driver
from rawnn.engine.machine import start_opening
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.sim import Simulation
from tests import requires
from tests.engine import make_work, random_dataset

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("numpy", "ml_dtypes", "cuda.bindings", "nvmath", "rich", "platformdirs", "safetensors",
         "onnx")
MODULES = 10
"""Of rawnn's own: as few as a command's name and the public names need."""


@pytest.mark.parametrize(("code", "also"), [
    ("import rawnn", ("click", "msgspec")),
    ("import runpy, sys; sys.argv = ['rawnn', '--help']\n"
     "try: runpy.run_module('rawnn', run_name='__main__')\n"
     "except SystemExit: pass", ("msgspec",)),
])
def test_a_start_loads_little(code: str, also: tuple[str, ...]) -> None:
    loaded = (f"import sys\n{code}\n"
              "print(sum(m.startswith('rawnn') for m in sys.modules), file=sys.stderr)\n"
              f"print([m for m in {(*HEAVY, *also)!r} if m in sys.modules], file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True,
                          timeout=60, check=True, cwd="/",
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    own, heavy = done.stderr.splitlines()[-2:]
    assert heavy == "[]"
    assert int(own) < MODULES


def test_all_public_names_are_completed_and_exist() -> None:
    names = set(dir(rawnn))
    assert {"train", "Kernel", "lab", "sim", "errors", "export"} <= names
    assert not [name for name in names if not hasattr(rawnn, name)]
    done = subprocess.run([sys.executable, "-c",
                           "import rawnn; print(rawnn.errors.RawnnError)"],
                          capture_output=True, text=True, timeout=60, check=True, cwd="/",
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert "RawnnError" in done.stdout


def test_a_type_checker_knows_which_names_there_are(tmp_path: Path) -> None:
    api = requires.module("mypy.api")
    (tmp_path / "user.py").write_text("import rawnn\nrawnn.train\nrawnn.trian\n")
    report, _, _ = api.run(["--follow-imports=skip", "--strict", "--config-file=", "--cache-dir",
                          str(tmp_path / "cache"), str(ROOT / "rawnn" / "__init__.py"),
                          str(tmp_path / "user.py")])
    about_user = [line for line in report.splitlines() if "user.py" in line]
    assert len(about_user) == 1, report
    assert "trian" in about_user[0]


@pytest.mark.parametrize(("arguments", "environ", "wakes"), [
    ([], {}, True), (["--opt", "graphs"], {}, True), (["train", "--epochs", "2"], {}, True),
    (["--device", "host"], {}, False), (["--device=gpu:1"], {}, False),
    (["train", "--config", "a.toml"], {}, False), (["--help"], {}, False), (["toggles"], {}, False),
    (["--resume", "runs/a"], {}, False), (["train", "-h"], {}, False),
    (["--opt", "graphs"], {"LOCAL_RANK": "1"}, False), ([], {"SLURM_PROCID": "3"}, False)])
def test_the_driver_is_woken_for_runs_on_the_first_gpu_alone(
        arguments: list[str], environ: dict[str, str], wakes: bool,
        monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("RANK", "PROCID"))]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert takes_the_first_gpu(arguments) == wakes


@pytest.fixture
def no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that keeps no context yet."""
    monkeypatch.setattr(driver_start, "_RETAINED", {})


@pytest.mark.usefixtures("no_contexts")
def test_waking_starts_the_driver_and_makes_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    called, done = [], threading.Event()

    class Driver:
        def cuInit(self, flags: int) -> int:
            called.append(("cuInit", flags))
            return 0

        def cuDevicePrimaryCtxRetain(self, context: object, device: int) -> int:
            called.append(("cuDevicePrimaryCtxRetain", device))
            done.set()
            return 0

    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver())
    start_driver()
    assert done.wait(20)
    assert called == [("cuInit", 0), ("cuDevicePrimaryCtxRetain", 0)]


class Contexts:
    """A driver of three GPUs. Creating a context waits until so many are being created."""

    def __init__(self, at_once: int, code: int = 0) -> None:
        self.retained: list[int] = []
        self.released: list[int] = []
        self._barrier, self._code = threading.Barrier(at_once), code
        self.done = threading.Semaphore(0)

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 3
        return 0

    def cuDevicePrimaryCtxRetain(self, context: object, device: int) -> int:
        self._barrier.wait(20)
        self.retained.append(device)
        self.done.release()
        return self._code

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:
        self.released.append(device)
        return 0


def settle() -> None:
    """Wait for the threads of `start_driver`."""
    for thread in threading.enumerate():
        if thread.name == "rawnn driver":
            thread.join(20)


@pytest.mark.usefixtures("no_contexts")
@pytest.mark.parametrize(("device", "ordinals"), [
    ("gpu:all", [0, 1, 2]), ("gpu:2,0", [0, 2]), ("gpu:1", [1]), ("gpu", [0]), ("auto", [0]),
    ("host", []), ("sim:0,1", [])])
def test_contexts_are_created_side_by_side_and_kept(
        device: str, ordinals: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Contexts(max(len(ordinals), 1))
    monkeypatch.setattr("ctypes.CDLL", lambda name: driver)
    for _ in range(2):  # the second time they are there
        start_opening(device)
        for _ in ordinals if not driver.retained else ():
            assert driver.done.acquire(timeout=20)
        settle()
        assert sorted(driver.retained) == ordinals
    for ordinal in (*ordinals, *ordinals, 7):
        driver_start.release_context(ordinal)
    assert sorted(driver.released) == ordinals


@pytest.mark.usefixtures("no_contexts")
def test_a_context_that_cannot_be_created_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Contexts(1, code=2)
    monkeypatch.setattr("ctypes.CDLL", lambda name: driver)
    for tries in (1, 2):
        start_driver()
        assert driver.done.acquire(timeout=20)
        settle()
        assert driver.retained == [0] * tries
    driver_start.release_context(0)
    assert driver.released == []


def test_the_process_ends_as_python_does(tmp_path: Path) -> None:
    """With its status, all output, atexit's functions and threads that are still at work."""
    code = ("import atexit, sys, threading, time, rawnn.__main__ as m\n"
            f"atexit.register(lambda: open({str(tmp_path / 'end')!r}, 'w').write('called'))\n"
            f"late = lambda: (time.sleep(0.5), open({str(tmp_path / 'late')!r}, 'w').close())\n"
            "threading.Thread(target=late).start()\n"
            "sys.argv = ['rawnn', 'plan', '--lr', 'nan']\nm.command()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rawnn: error: lr = nan: the learning rate must be a finite number >= 0\n"
    assert (tmp_path / "end").read_text() == "called"
    assert (tmp_path / "late").exists()


def test_a_profiler_has_the_last_word() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-m", "rawnn", "plan", "--layers", "784-10"],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "function calls" in done.stdout


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
