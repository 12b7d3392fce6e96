"""Steps of one layer whose blocks split the examples of the softmax: right against NumPy, on the
CPU emulator and by the interpreter of the schedule; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.model.optimizers import Optimizer
from rawnn.persistent.choose import candidates_by_examples, choose
from rawnn.persistent.phases.by_examples import GatherGradients, OwnSoftmax, UpdateOfBytes
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.schedule import Schedule, build
from rawnn.persistent.sharding import Sharding
from rawnn.persistent.spelling import exactly, parse_sharding
from tests import requires
from tests.persistent.hazards import hazards
from tests.persistent.problems import AMPERE, HOPPER, VARIETY, problem
from tests.persistent.test_emulator import Launch, check
from tests.persistent.test_interpreter import interpreted, worst

CASES: dict[str, dict[str, Any]] = {
    "ten outputs": {"layers": (100, 10), "batch": 40},
    "an order": {"layers": (70, 7), "batch": 27, "shuffle": True, "schedule": "cosine",
                 "optimizer": Optimizer("sgd", 0.1, {"decay": 0.01, "momentum": 0.9})},
    "sixteen outputs, no bias": {"layers": (49, 16), "batch": 64, "network": {"bias": False}},
    "thirteen outputs": {"layers": (40, 13), "batch": 24, "optimizer": Optimizer("adam", 1e-3)},
    "tf32, two outputs": {"layers": (33, 2), "batch": 11, "numbers": "tf32",
                          "optimizer": Optimizer("adam", 1e-3), "shuffle": True},
}


BLOCKS: list[tuple[str, int, dict[str, Any]]] = [
    ("ten outputs", 4, {}), ("an order", 2, {"left": 5, "turning": True}),
    ("sixteen outputs, no bias", 8, {"left": 20}), ("tf32, two outputs", 2, {"turning": True}),
    ("thirteen outputs", 4, {})]
"""Cases, and how many blocks share them."""


@pytest.fixture(autouse=True)
def cases(monkeypatch: pytest.MonkeyPatch) -> None:
    let_launches_know(monkeypatch)


def let_launches_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Launch` knows the problems."""
    for name, case in CASES.items():
        monkeypatch.setitem(VARIETY, name, case)


@requires.GXX
@pytest.mark.parametrize(("name", "blocks", "options"), BLOCKS)
def test_blocks_train_as_numpy_does(tmp_path: Path, name: str, blocks: int,
                                    options: dict[str, Any]) -> None:
    check(Launch(name, blocks, 1, "SE", **options), tmp_path, 1)


@requires.GXX
def test_errors_are_those_of_float32(tmp_path: Path) -> None:
    """Weights and gradients count with all of their bits: three bfloat16 each. Where two are left,
    the error is two to five times that."""
    launch = Launch("ten outputs", 4, 1, "SE")
    found, wanted = launch.on_emulator(tmp_path, 1), launch.by_reference()
    for role in ("w1", "b1"):
        change = np.linalg.norm(wanted[role] - launch.arrays[role])
        assert np.linalg.norm(found[role] - wanted[role]) < 1.5e-6 * change, role


@pytest.mark.parametrize("name", CASES)
def test_the_schedule_trains_as_the_plan_does(name: str) -> None:
    launch = Launch(name, 4, 1, "SE")
    assert worst(launch, interpreted(launch)) < 1e-9


@pytest.mark.parametrize("kind", [OwnSoftmax, GatherGradients, UpdateOfBytes])
def test_the_interpreter_misses_a_phase(kind: type) -> None:
    launch = Launch("ten outputs", 4, 1, "SE")

    def without(schedule: Schedule) -> Schedule:
        return replace(schedule, micro_batch=tuple(
            each for each in schedule.micro_batch if not isinstance(each, kind)))

    try:
        found = worst(launch, interpreted(launch, without))
    except KeyError:
        return
    assert found > 1e-3


def test_no_barrier_is_missing() -> None:
    assert not hazards(build(Sharding(problem((784, 10), 128), 16, 1, 512, "SE")))


@pytest.mark.parametrize(("changed", "reason"), [
    ({"layers": (784, 17)}, "outputs must be at most 16"),
    ({"layers": (784, 32, 10)}, "a network of one layer"),
    ({"network": {"loss": "mse"}}, "cross-entropy with labels"),
    ({"numbers": "bf16"}, "float32 or tf32"),
    ({"form": {"inputs": "float32", "scale": 1.0}}, "bytes that are not normalised"),
    ({"form": {"inputs": "uint8", "scale": 1 / 255, "normalised": True}},
     "bytes that are not normalised")])
def test_what_no_kernel_has_is_refused(changed: dict[str, Any], reason: str) -> None:
    given = {"layers": (784, 10), "batch": 128, **changed}
    p = problem(given.pop("layers"), given.pop("batch"), **given)
    assert not list(candidates_by_examples(p, HOPPER, 0, 0))
    with pytest.raises(Unsupported, match=reason):
        exactly(p, HOPPER, 16, 1, 512, "S" * p.depth + "E")


@pytest.mark.parametrize(("text", "reason"), [
    ("16x2:512:SE", "one cluster"), ("32x1@l2:512:SE", "one cluster"),
    ("16x1:512:SE:2", "no micro-batches"), ("2x1:256:SE", "half of the warps")])
def test_another_way_to_share_is_refused(text: str, reason: str) -> None:
    p = problem((784, 10), 128)
    with pytest.raises(Unsupported, match=reason):
        exactly(p, HOPPER, *parse_sharding(text) or ())


def test_a_gpu_without_clusters_has_none() -> None:
    p = problem((784, 10), 128)
    assert not list(candidates_by_examples(p, AMPERE, 0, 0))
    assert choose(p, AMPERE).sharding.boundaries[-1] != "E"


@pytest.mark.parametrize(("tp_size", "dp_size", "found"), [
    (0, 0, {2, 4, 8, 16}), (0, 1, {2, 4, 8, 16}), (16, 0, {16}), (8, 1, {8}), (0, 2, set()),
    (16, 2, set()), (3, 0, set())])
def test_only_what_is_asked_for_is_tried(tp_size: int, dp_size: int, found: set[int]) -> None:
    tried = list(candidates_by_examples(problem((784, 10), 128), HOPPER, tp_size, dp_size))
    assert {d.tp_size for d in tried} == found
    assert all(d.dp_size == 1 for d in tried)


def test_bytes_of_one_layer_are_shared_so_on_a_gpu_with_clusters() -> None:
    assert choose(problem((784, 10), 128), HOPPER).sharding.text == "16x1:512:SE"
