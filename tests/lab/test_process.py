"""A kernel in a process of its own."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.device.cuda.device import Device
from rawnn.lab import simulated, worker
from rawnn.lab.guarded import Image
from rawnn.lab.kernel import Recipe
from rawnn.lab.problem import Launching
from rawnn.lab.process import Apart, Ended
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
    apart = Apart(elsewhere(Recipe(HONEST.source, "lab_honest", {}, (), (), None)), PARAMETERS, 5.0)
    with pytest.raises(Ended, match=r"(?i)gpu|driver|cuda"):
        apart.run(None, {}, {})
    apart.close()


def test_a_process_that_dies_is_a_finding(device: Device) -> None:
    cheat = Cheat("lab_dies", WRITE, plain(lambda t, a: os._exit(3)), ())
    found = rawnn.check(cheat.simulated(device), **{**cheat.given, "sizes": {"n": [10, 20]}},
                        limit=20.0)
    assert [t.findings[0].what for t in found.tried] == ["failed", "failed"]
    assert "the process of lab_dies died" in str(found)
