"""A kernel in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import DeviceError
from rawnn.cuda.device import Device
from rawnn.lab import Work, simulated, worker
from rawnn.lab.kernel import Recipe
from rawnn.lab.kernel_problem import Launching
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.red_zones import Image
from rawnn.lab.subprocess_runner import ProcessEnded, SeparateProcess, runner_for, serve
from rawnn.lab.watchdog import Watchdog
from rawnn.sim import register
from tests.lab.cheats import WRITE, Cheat, doubled, plain

HONEST = Cheat("lab_honest", WRITE, plain(doubled), ())
PARAMETERS = ("x", "y", "n")


def test_the_worker_makes_the_kernel_and_launches_it(device: Device,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = HONEST.simulated(device)
    monkeypatch.setattr(worker, "open_gpu", lambda ordinal, notify: simulated())
    ours, theirs = Pipe()
    served = threading.Thread(target=worker.main, args=(os.dup(theirs.fileno()),), daemon=True)
    served.start()
    ours.send((kernel.recipe, 0, PARAMETERS))
    assert ours.recv() == ("ready", None)
    generator = np.random.default_rng(0)
    x = np.arange(100, dtype=np.float32)
    images = {"x": Image.of(x, generator), "y": Image.of(np.zeros_like(x), generator)}
    launching = Launching((1, 1, 1), (256, 1, 1))
    ours.send(("run", (launching, images, {"n": 100})))
    kind, contents = ours.recv()
    assert kind == "done"
    assert (images["y"].values(contents["y"]) == 2 * x).all()
    ours.send(("measure", (launching, [(images, {"n": 100}, ["x"])], True)))
    kind, (times, _) = ours.recv()
    assert (kind, len(times)) == ("done", 1)
    ours.send(("run", (launching, images, {"n": 200_000})))
    kind, error = ours.recv()
    assert kind == "error"
    assert "past the end" in str(error)
    ours.close()
    theirs.close()
    served.join(10)
    assert not served.is_alive()


def elsewhere(recipe: Recipe) -> Any:
    """What Apart takes for a kernel on a GPU, whose process cannot make it."""
    return SimpleNamespace(expression="lab_honest", recipe=recipe, device=SimpleNamespace(
        backend=SimpleNamespace(name="cuda"), info=SimpleNamespace(ordinal=97)))


def test_a_process_that_finds_no_gpu_says_so() -> None:
    apart = SeparateProcess(elsewhere(Recipe(HONEST.source, "lab_honest", {}, (), (), None)),
                            PARAMETERS, 5.0)
    with pytest.raises(ProcessEnded, match=r"(?i)gpu|driver|cuda"):
        apart.run(None, {}, {})
    apart.close()


def test_what_is_asked_reaches_the_process(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = SeparateProcess(HONEST.simulated(device), PARAMETERS, 0.5)
    asked: list[Any] = []
    monkeypatch.setattr(apart, "call", lambda *given: asked.append(given) or len(asked))
    launch = Launching((1, 1, 1), (256, 1, 1))
    image = Image.of(np.zeros(3), np.random.default_rng(0))
    sample: Any = ({"x": image}, {"n": 3}, ("x",))
    assert [apart.run(launch, {"x": image}, {"n": 3}), apart.measure(launch, [sample], True),
            apart.measure(None, [], False), apart.empty(4), apart.free()] == [1, 2, 3, 4, 5]
    assert asked == [("run", launch, {"x": image}, {"n": 3}), ("measure", launch, [sample], True),
                     ("measure", None, [], False), ("empty", 4), ("free",)]


@pytest.mark.parametrize(("error", "said"), [
    (DeviceError("it is gone"), "it is gone"), (KeyError("x"), "KeyError: 'x'"),
    (SystemExit(3), "SystemExit: 3")])
def test_what_fails_in_a_process_is_said_as_it_was(error: BaseException, said: str) -> None:
    def fails(*given: Any) -> None:
        raise error

    here: Any = SimpleNamespace(free=lambda: 5, run=fails)
    ours, theirs = Pipe()
    for name in ("run", "free", "none"):
        ours.send((name, ()))
    thread = threading.Thread(target=serve, args=(theirs, here), daemon=True)
    thread.start()
    kind, value = ours.recv()
    assert (kind, type(value), str(value)) == ("error", ProcessEnded, said)
    assert ours.recv() == ("done", 5)
    assert "has no attribute 'none'" in str(ours.recv()[1])
    ours.close()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize(("has_reference", "limit"), [(False, None), (True, None), (True, 0.5)])
def test_nothing_is_launched_on_a_gpu_that_is_gone(device: Device, monkeypatch: pytest.MonkeyPatch,
                                                   has_reference: bool, limit: float | None
                                                   ) -> None:
    def gone() -> None:
        raise DeviceError("CUDA_ERROR_ILLEGAL_ADDRESS")

    kernel = HONEST.simulated(device) if has_reference else \
        Cheat("lab_none", WRITE, plain(doubled), ()).kernel(device)
    problem = problem_of(kernel, Work(lambda x: 2 * x, grid=1, block=32))
    runner_for(problem, limit).close()
    monkeypatch.setattr(device, "require_usable", gone)
    with pytest.raises(DeviceError, match="simulated GPU is gone, and nothing can be launched on "
                                          "it: CUDA_ERROR_ILLEGAL_ADDRESS"):
        runner_for(problem, limit)


def test_a_process_is_used_again_only_behind_a_launch_that_succeeded(device: Device) -> None:
    """One that hangs would answer the next call with the last one's result, and one that failed may
    have lost its context. Elements of y are the number of the process and of the launch."""
    launches = [0]

    def meaning(t: Any, a: Any) -> None:
        launches[0] += 1
        if a["n"] == 10:
            time.sleep(600)
        if a["n"] == 20:
            raise ValueError("CUDA_ERROR_ILLEGAL_ADDRESS")
        t.y[...] = os.getpid(), launches[0], a["n"]

    kernel = Cheat("lab_tells", WRITE, plain(meaning), ()).simulated(device)
    register("lab_tells", meaning, {"x": ("3",), "y": ("3",)}, reads=("x",), writes=("y",))
    apart, generator = SeparateProcess(kernel, PARAMETERS, 0.5), np.random.default_rng(0)
    x = np.zeros(3, np.float32)

    def run(n: int) -> list[float]:
        images = {"x": Image.of(x, generator), "y": Image.of(x.astype(np.float32), generator)}
        contents = apart.run(Launching((1, 1, 1), (256, 1, 1)), images, {"n": n})
        return [*map(float, images["y"].values(contents["y"]))]

    first, second = run(1), run(2)
    assert first[1:] == [1, 1]
    assert second == [first[0], 2, 2]
    found = [first[0]]
    for broken, words in ((10, "did not end within 0.5 s"), (20, "ILLEGAL_ADDRESS")):
        with pytest.raises(ProcessEnded, match=words):
            run(broken)
        fresh = run(3)
        assert fresh[1:] == [1, 3]  # the first launch of a process of its own
        found.append(fresh[0])
        assert run(4) == [fresh[0], 2, 4]
    assert len(set(found)) == 3
    assert os.getpid() not in found
    for number in found[:2]:
        with pytest.raises(ProcessLookupError):  # it was ended, and waited for
            os.kill(int(number), 0)
    os.kill(int(found[2]), 0)
    apart.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(found[2]), 0)
    apart.close()


def test_sizes_behind_a_hanging_one_are_judged_by_themselves(device: Device) -> None:
    def meaning(t: Any, a: Any) -> None:
        if a["n"] == 20:
            time.sleep(600)
        doubled(t, a)

    cheat = Cheat("lab_hangs", WRITE, plain(meaning), ())
    found = rawnn.check(cheat.simulated(device), **{**cheat.given, "sizes": {"n": [10, 20, 30]}},
                        limit=0.5)
    assert [[f.what for f in t.findings] for t in found.tried] == [[], ["failed"], []]
    assert "lab_hangs did not end within 0.5 s, and its process was ended" in str(found)


def test_a_process_that_dies_is_a_finding(device: Device) -> None:
    cheat = Cheat("lab_dies", WRITE, plain(lambda t, a: os._exit(3)), ())
    found = rawnn.check(cheat.simulated(device), **{**cheat.given, "sizes": {"n": [10, 20]}},
                        limit=20.0)
    assert [t.findings[0].what for t in found.tried] == ["failed", "failed"]
    assert "the process of lab_dies died" in str(found)


ORPHAN = """
import os, signal
import rawnn
from rawnn.lab import simulated
from rawnn.lab.subprocess_runner import SeparateProcess
from tests.lab.cheats import Cheat, WRITE, doubled, plain
kernel = Cheat("lab_orphan", WRITE, plain(doubled), ()).simulated(simulated())
SeparateProcess(kernel, ("x", "y", "n"), 5.0)._start()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_ends_with_its_parent() -> None:
    """It would else hold the parent's output open, for which `run` waits."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], timeout=60, capture_output=True,
                          cwd=Path(rawnn.__file__).parents[1])
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_watchdog_speaks_once_of_what_takes_longer(capfd: pytest.CaptureFixture[str]) -> None:
    dog = Watchdog(kills=False)
    said = ""
    with dog.watching(600.0, "never"):
        pass
    with dog.watching(0.01, "too slow"):
        begin = time.monotonic()
        while "\n" not in said and time.monotonic() < begin + 20:
            time.sleep(0.02)
            said += capfd.readouterr().err
        time.sleep(0.1)
    with dog.watching(600.0, "never"):
        time.sleep(0.1)
    assert dog._process is not None
    assert dog._process.poll() is None
    dog.close()
    assert dog._process is None
    dog.close()
    assert said + capfd.readouterr().err == "too slow\n"
