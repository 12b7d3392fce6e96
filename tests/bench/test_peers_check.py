"""What two right systems may differ by: ours beside NumPy, PyTorch and JAX, and what is wrong."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.peers import loss_check
from rawnn.bench.peers.loss_check import EnsembleReference, Reference, reference, windows
from rawnn.bench.peers.numpy_system import Loop, unchanged
from rawnn.bench.peers.process import SystemProcess, missing
from rawnn.bench.peers.rawnn_system import Training, dataset
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import TRUTH, WINDOW, Prepare, Program, first_losses
from rawnn.engine.machine import open_device
from tests.bench.measuring import made_of, tiny


def share(losses: Any, right: Any, precision: str) -> float:
    """Of the tolerance, where nobody knows what float32 costs."""
    return Reference(np.asarray(right), np.zeros(len(right))).share(list(losses), precision)


def losses_of(program: Program, problem: Problem) -> np.ndarray:
    return np.asarray(first_losses(program, problem))


def ours(problem: Problem) -> np.ndarray:
    opened = open_device("host", lambda message: None)
    return losses_of(Training(problem.config("best", "host"), dataset(problem), opened), problem)


def work_of(problem: Problem) -> float:
    """Operations of the steps that are checked, with two roundings of each weight and four of each
    unit of an example."""
    rounded = 2 * problem.weights + 4 * problem.batch * sum(problem.layers)
    return (problem.flops + 300 * rounded) * loss_check.CHECKED_EPOCHS * problem.steps


by_tf32 = loss_check.stochastically_rounded(10, 30)


class NoLastBias(Loop):
    def step(self, rows: Any) -> float:
        self.parameters[-1][:] = 0
        return super().step(rows)


class OtherBatches(Loop):
    def step(self, rows: Any) -> float:
        return super().step((rows + self._problem.batch) % self._problem.examples)


class OtherBeta(Loop):
    """Adam whose second moments forget ten times as fast."""

    def _update(self, gradients: Any) -> None:
        before = [v.copy() for _, v in self._moments]
        super()._update(gradients)
        for (_, v), old, g in zip(self._moments, before, gradients, strict=True):
            v[:] = old + np.float32(0.01) * (g * g - old)


PROBLEMS = [tiny(loss=loss, optimizer=optimizer, lr=lr, layers=layers) for loss, layers in
            (("cross_entropy", (12, 17, 5)), ("mse", (12, 5)), ("bce", (12, 9, 8, 5)))
            for optimizer, lr in (("sgd", 0.05), ("adam", 1e-3))]


@pytest.mark.parametrize("problem", [*PROBLEMS, tiny(bias=False), tiny(shuffle=False)], ids=str)
def test_numpy_and_rawnn_see_the_same_losses(problem: Problem) -> None:
    mine, theirs = ours(problem), losses_of(Loop(problem), problem)
    assert len(mine) == 64
    assert share(list(mine), theirs, "float32") < 0.05


@pytest.mark.parametrize("system", ["torch", "jax"])
def test_a_peer_sees_the_same_losses(system: str) -> None:
    if missing(system):
        pytest.skip(missing(system))
    for problem in PROBLEMS:
        process = SystemProcess(system)
        try:
            programs = process.prepare(Prepare(problem, "host", [], 60), 60)
            assert [m.reason for m in programs] == [""] * len(programs), process.lost
            for made in programs:
                if made.precision == TRUTH:
                    continue
                assert share(made.losses, ours(problem), made.precision) < 0.1
        finally:
            process.close()


def test_a_coarse_class_may_be_as_far_away_as_rounding_explains() -> None:
    chaotic = tiny(loss="mse", optimizer="adam", lr=3e-3, layers=(60, 120, 80, 20, 12), batch=2,
                   steps=64)
    truth = loss_check.losses(chaotic, unchanged)
    right = Reference(truth, np.zeros(len(windows(truth))))

    def used(losses: Any, precision: str = "tf32", problem: Problem = chaotic) -> float:
        return loss_check.share(right, problem, made_of(losses, precision))

    others = [loss_check.losses(chaotic, loss_check.stochastically_rounded(10, seed))
              for seed in (20, 21, 22)]
    assert all(right.share(list(other), "tf32") > 1 for other in others)
    assert all(used(other) < 0.75 for other in others)
    assert used(others[0], "float32") > 1
    # a network too large to be trained here is allowed what its precision costs the systems
    large = msgspec.structs.replace(chaotic, batch=10**9)
    assert used(others[0], problem=large) > 1
    made = [("torch", made_of(truth, loss_check.TRUTH)),
            *((name, made_of(truth, "float32")) for name in ("rawnn", "torch")),
            *((name, made_of(other, "tf32"))
              for name, other in zip(("rawnn", "torch", "jax"), others, strict=True))]
    known = loss_check.reference(made)
    assert known is not None
    assert list(known.coarse) == ["tf32"]
    assert all(loss_check.share(known, large, made_of(other, "tf32")) < 0.5 for other in others)
    assert loss_check.share(known, large, made_of(truth + 9 * (others[0] - truth), "tf32")) > 1
    assert loss_check.share(known, large, made_of(others[0], "bf16")) == right.share(
        list(others[0]), "bf16")
    # systems that multiply in float32 where tf32 is allowed do not make tf32 wrong, where bf16 is
    # as far away
    exact = [(name, made_of(truth, "tf32")) for name in ("torch", "jax")]
    assert loss_check.share(loss_check.reference(made[:3] + exact), large,
                            made_of(others[0], "tf32")) > 1
    rough = [(name, made_of(others[0], "bf16")) for name in ("torch", "jax")]
    assert loss_check.share(loss_check.reference(made[:3] + exact + rough), large,
                            made_of(others[0], "tf32")) < 0.5
    # tensor cores cut tf32 off, which is one more way, and that of larger networks; bf16 has none
    cut = loss_check.losses(chaotic, loss_check.cut_off(10))
    assert right.share(list(cut), "tf32") > 1
    for most, precision, most_used in ((1e11, "tf32", 0.75), (work_of(chaotic) / 2, "tf32", 0.51),
                                       (work_of(chaotic) / 9, "tf32", math.inf),
                                       (work_of(chaotic) / 2, "bf16", math.inf)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loss_check, "MOST_WORK", most)
            apart = right.share(list(cut), precision)
            found = used(cut, precision)
            assert (found == apart) if most_used == math.inf else (found < most_used), (most, found)
    for plant in (NoLastBias, OtherBatches):
        assert used(loss_check.losses(chaotic, by_tf32, plant)) > 2
    for change in ({"optimizer": "sgd"}, {"seed": 4}):
        other = msgspec.structs.replace(chaotic, **change)
        assert used(loss_check.losses(other, by_tf32)) > 2


def test_runs_may_part_from_the_truth_a_window_apart() -> None:
    truth = np.linspace(3, 1, 5 * WINDOW)

    def parting(step: int, distance: float = 1.0) -> Any:
        return made_of([*truth[:step], *(truth[step:] + distance)], "float32")

    made = [("torch", made_of(truth, loss_check.TRUTH)), ("torch", parting(3 * WINDOW)),
            ("jax", parting(3 * WINDOW)), ("rawnn", parting(2 * WINDOW))]
    right = loss_check.reference(made)
    assert right is not None
    assert right.cost.tolist() == [0, 0, 1, 1, 1]
    assert right.share(parting(2 * WINDOW, 7.0).losses, "float32") < 1
    assert right.share(parting(2 * WINDOW, 9.0).losses, "float32") > 1
    assert right.share(parting(WINDOW, 0.1).losses, "float32") > 1


def test_what_rounding_hardly_moves_is_forgiven_nothing() -> None:
    calm = tiny(loss="mse")
    truth = loss_check.losses(calm, unchanged)
    right = Reference(truth, np.zeros(len(windows(truth))))
    distant = truth + 1.5 * 0.03 * (truth - truth[0]) + 1.5e-3 * truth[0]
    assert 1 < loss_check.share(right, calm, made_of(distant, "tf32")) < 2
    assert loss_check.share(right, calm, made_of([*truth[:3], math.nan, *truth[4:]], "tf32")) \
        == math.inf


def test_operands_are_rounded_to_their_bits_and_in_the_mean_to_what_they_were() -> None:
    value = np.full(40_000, 1 + 2.0**-10 * 0.25, np.float32)
    found = by_tf32(value)
    assert set(np.unique(found)) == {1.0, np.float32(1 + 2.0**-10)}
    assert float(found.mean() - 1) == pytest.approx(2.0**-12, rel=0.05)
    assert float(loss_check.stochastically_rounded(7, 1)(np.array([[-3.0, 1.5]]))[0, 0]) == -3.0
    below = np.array([1 + 2.0**-10 * 0.99, -(1 + 2.0**-10 * 0.99), 1 + 2.0**-10, 3.0], np.float32)
    assert loss_check.cut_off(10)(below).tolist() == [1.0, -1.0, 1 + 2.0**-10, 3.0]


@pytest.mark.parametrize("change", [{"lr": 0.0525}, {"lr": 0.0}, {"optimizer": "adam"},
                                    {"seed": 4}, {"shuffle": False}, {"loss": "bce"}], ids=str)
def test_other_work_is_found_to_be_wrong(change: dict[str, Any]) -> None:
    values = {"loss": "mse", **change}
    wrong = losses_of(Loop(tiny(**values)), tiny(**values))
    right = losses_of(Loop(tiny(loss="mse")), tiny(loss="mse"))
    assert share(list(wrong), right, "float32") > 1


def test_another_beta_is_found_to_be_wrong() -> None:
    adam = tiny(loss="mse", optimizer="adam", lr=1e-2, steps=64)
    right, wrong = (losses_of(system(adam), adam) for system in (Loop, OtherBeta))
    assert share(list(wrong), right, "float32") > 1


def test_losses_that_are_not_finite_are_wrong() -> None:
    right = losses_of(Loop(tiny()), tiny())
    assert share([*right[:5], None, *right[6:]], right, "bf16") == float("inf")
    assert share([], right, "bf16") == float("inf")


def test_the_reference_is_not_moved_by_one_system_that_is_wrong() -> None:
    right = np.linspace(2, 1, 64)
    found = reference([("a", made_of(right)), ("b", made_of(right * 3)), ("c", made_of(right)),
                       ("c", made_of(right * 9, "bf16"))])
    assert found is not None
    assert np.array_equal(found.losses, right)
    assert reference([("a", made_of(right)), ("a", made_of(right))]) is None
    assert reference([("a", made_of(right)), ("b", made_of([], reason="no memory"))]) is None


def test_a_loop_that_was_broken_off_is_compared_as_far_as_it_got() -> None:
    right = np.linspace(2, 1, 64)
    found = reference([("a", made_of(right)), ("b", made_of(right[:20] * 2))])
    assert found is not None
    assert np.array_equal(found.losses, right)
    assert found.share(list(right[:20]), "float32") == 0
    assert found.share(list(right[:20] * 1.1), "float32") > 1


def test_what_float32_costs_a_run_is_allowed_and_one_that_is_wrong_does_not_widen_it() -> None:
    truth = np.linspace(2, 1, 64)
    away = np.linspace(0, 0.02, 64)  # 2 % of the movement: more than float32's fixed share
    strict = [("torch", made_of(truth, "float64")), ("a", made_of(truth)), ("b", made_of(truth)),
              ("c", made_of(truth + away))]
    found = reference(strict)
    assert found is not None
    assert found.share(list(truth + away), "float32") > 1
    two = reference([strict[0], ("a", made_of(truth)), ("b", made_of(truth * 2))])
    assert two is not None
    assert two.share(list(truth * 2), "float32") > 1
    assert two.share(list(truth), "float32") == 0
    two = reference([strict[0], ("a", made_of(truth + away)), ("b", made_of(truth - away / 3))])
    assert two is not None
    assert two.share(list(truth + away), "float32") < 1
    chaotic = [strict[0], ("a", made_of(truth - away)), ("b", made_of(truth + away / 2)),
               ("c", made_of(truth * 2))]
    found = reference(chaotic)
    assert found is not None
    assert found.share(list(truth + away), "float32") < 1
    assert found.share(list(truth * 2), "float32") > 1


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16", "fp8"])
@pytest.mark.parametrize(("cost", "more"), [(0.0, 0.0), (0.001, 0.0), (0.001, 0.05), (0.02, 0.05)])
def test_a_share_is_of_movement_loss_and_the_larger_cost(precision: str, cost: float, more: float
                                                         ) -> None:
    """By hand: at each window, or epoch of a member, the distance over what is allowed there."""
    moved, own = {"float32": (0.01, 1e-4), "tf32": (0.03, 1e-3)}.get(precision, (0.1, 1e-2))
    generator = np.random.default_rng(3)
    right = np.linspace(3, 1, 40) + generator.normal(0, 0.2, 40)
    mine = right + generator.normal(0, 0.05, 40)
    means = [(right[i:i + 16].mean(), mine[i:i + 16].mean()) for i in (0, 16, 32)]
    allowed, far, shares = max(8 * cost, more), 0.0, []
    for truth, found in means:
        far = max(far, abs(truth - right[0]))
        shares.append(abs(found - truth) / (moved * far + own * abs(right[0]) + allowed))
    one = Reference(right, np.full(3, cost))
    assert one.share(mine.tolist(), precision, np.full(3, more)) == pytest.approx(max(shares))
    # Two epochs of two members, each by its own first loss.
    first, epochs = np.array([2.0, 5.0]), np.array([[1.5, 4.9], [1.7, 4.0]])
    there, shares = epochs + np.array([[0.01, -0.2], [0.1, 0.02]]), []
    for member in (0, 1):
        far = 0.0
        for epoch in (0, 1):
            far = max(far, abs(epochs[epoch, member] - first[member]))
            shares.append(abs(there[epoch, member] - epochs[epoch, member])
                          / (moved * far + own * first[member] + allowed))
    several = EnsembleReference(first, epochs, np.full((2, 2), cost))
    assert several.share(there.ravel().tolist(), precision, np.full((2, 2), more)) \
        == pytest.approx(max(shares))
    assert several.share(there.ravel()[:3].tolist(), precision) == math.inf
