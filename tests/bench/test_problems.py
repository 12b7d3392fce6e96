"""Networks that every system is given alike: random ones by seed, the same arrays each time."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.bench.cases.peers import of_workloads
from rawnn.bench.cases.sample import forms_of, random_networks
from rawnn.bench.peers import numpy_system
from rawnn.bench.peers.ensemble import ROWS, STEPS, ensemble, reduced, steps_of
from rawnn.bench.peers.process import missing
from rawnn.bench.peers.training_problem import SAMPLE_VERSION, sampled, smaller
from rawnn.common.errors import ConfigError
from tests.bench.measuring import tiny


def test_a_version_of_the_sample_never_has_other_networks() -> None:
    text = "\n".join(f"{p} lr {p.lr} steps {p.steps}" for p in map(sampled, range(200)))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert (SAMPLE_VERSION, digest[:16]) == (1, "97b13949476667fc")


def test_the_sample_covers_what_it_says() -> None:
    problems = [sampled(seed) for seed in range(1000)]
    depths = {len(p.layers) - 1 for p in problems}
    widths = [n for p in problems for n in p.layers[:-1]]
    assert depths == {1, 2, 3, 4, 5, 6}
    assert min(widths) == 16
    assert 1000 < max(widths) <= 1024
    assert np.median(widths) == pytest.approx(128, rel=0.15)  # log-uniform: the geometric middle
    assert min(p.batch for p in problems) == 1
    assert max(p.batch for p in problems) > 3500
    assert {(p.loss, p.optimizer) for p in problems} == {
        (a, b) for a in ("cross_entropy", "mse", "bce") for b in ("sgd", "adam")}
    assert all(p.shuffle and p.steps == 64 for p in problems)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
def test_a_problems_arrays_are_the_same_each_time(loss: Any) -> None:
    problem = tiny(loss=loss)
    x, y = problem.arrays()
    again = problem.arrays()
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    assert (x.shape, x.dtype) == ((192, 12), np.float32)
    assert y.shape == ((192,) if loss == "cross_entropy" else (192, 5))
    assert sorted(problem.order(1)) == list(range(192))
    assert not np.array_equal(problem.order(0), problem.order(1))


def test_what_is_slow_to_make_is_made_for_five_networks_of_each_sample() -> None:
    asked = random_networks((10, 110), 30, "gpu")
    forms = forms_of(asked)
    wanted = [first + n for first in (10, 110) for n in (0, 6, 12, 18, 24)]
    assert [p.seed for p in asked if "graph, compiled" in forms(p, "torch")] == wanted
    assert [p.seed for p in asked if forms(p, "jax") != ["tf32", "bf16"]] == wanted
    assert not any(forms(p, "jax") for p in asked if p.seed in wanted)


@pytest.mark.parametrize(("forms", "wanted"), [
    ([], 6), (["tf32", "bf16"], 4), (["scan"], 3), (["tf32", "scan"], 1)])
def test_forms_of_jax_are_chosen_by_numbers_and_by_unrolling(forms: list[str],
                                                             wanted: int) -> None:
    if missing("jax"):
        pytest.skip(missing("jax"))
    import jax

    from rawnn.bench.peers import jax_system

    host = jax.devices("cpu")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jax, "devices", lambda kind: host)
        assert len(list(jax_system.offers(tiny(), "gpu", forms))) == wanted


def test_samples_that_touch_are_refused() -> None:
    assert len(random_networks((40, 7), 30, "gpu")) == 60
    with pytest.raises(ConfigError, match="seeds 7 and 37 on are not apart: take seeds 31 or more"):
        random_networks((37, 7), 30, "gpu")


def test_operations_of_a_step() -> None:
    assert tiny(layers=(2, 3, 5), batch=7).flops == 2 * 7 * (3 * (6 + 15) - 6)


def test_workloads_become_problems() -> None:
    linear, mlp4 = of_workloads(["linear", "mlp4"], "mnist", 256)
    assert (linear.layers, linear.bias, linear.shuffle, linear.steps) == ((784, 10), True, False,
                                                                          256)
    assert (mlp4.bias, mlp4.shuffle, mlp4.batch) == (False, True, 64)
    for generated in of_workloads(["linear", "mlp4"], "synthetic", 256):  # of 6,000 examples
        assert generated.arrays()[0].shape == (generated.examples, 784)


def test_all_programs_begin_with_the_same_weights_which_nobody_writes_to() -> None:
    one, other = tiny(seed=5), tiny(seed=6)
    for problem in (one, other, one):
        drawn = problem.config("best", "host").network().initial(problem.seed)
        for array, wanted in zip(problem.initial(), drawn.values(), strict=True):
            np.testing.assert_array_equal(array, wanted)
            assert not array.flags.writeable
    assert all(a is b for a, b in zip(one.initial(), one.initial(), strict=True))


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 0), ("adam", 2)])
@pytest.mark.parametrize("is_biased", [False, True])
def test_bytes_and_operations_are_those_of_the_arrays_and_products(
        optimizer: Any, moments: int, is_biased: bool) -> None:
    """Array by array: parameters, their gradients and moments, what a batch is between layers, and
    the examples. Product by product: forward, weight gradients, input gradients but the first."""
    layers, batch, steps, members = (12, 17, 9, 5), 6, 32, 3
    sizes = list(pairwise(layers))
    weights = [np.zeros((out, given), np.float32) for given, out in sizes]
    biases = [np.zeros(out, np.float32) for _, out in sizes] if is_biased else []
    batches = [np.zeros((batch, n), np.float32) for n in layers for _ in range(3)]
    examples = np.zeros((steps * batch, layers[0]), np.float32)
    network = tiny(layers=layers, batch=batch, steps=steps, optimizer=optimizer, bias=is_biased)

    def nbytes(*arrays: NDArray[Any]) -> int:
        return sum(array.nbytes for array in arrays)

    assert network.program_bytes == (2 + moments) * nbytes(*weights) + nbytes(*batches, examples)
    several = msgspec.structs.replace(
        ensemble("several", layers, batch, members, "mse", optimizer), steps=steps, bias=is_biased)
    order = np.zeros(steps * batch, np.int32)
    assert several.program_bytes == members * (
        (2 + moments) * nbytes(*weights, *biases) + nbytes(*batches, order))
    assert several.parameters == sum(a.size for a in (*weights, *biases))
    products = [(batch, given, out) for given, out in sizes for _ in range(2)]
    products += [(batch, out, given) for given, out in sizes[1:]]
    assert network.flops == several.flops == sum(2 * m * k * n for m, k, n in products)


def test_a_smaller_problem_has_nothing_larger_and_is_otherwise_the_same() -> None:
    problem = tiny(layers=(12, 50, 5), batch=40, steps=32, seed=7)
    found = smaller(problem, 20, 8, 4)
    assert (found.layers, found.batch, found.steps) == ((12, 20, 5), 8, 4)
    same = {"layers": problem.layers, "batch": problem.batch, "steps": problem.steps}
    assert msgspec.structs.replace(found, **same) == problem
    assert smaller(problem, 100, 100, 32) == problem
    several = ensemble("several", (50, 9), 40, 16, "mse", "sgd")
    less = reduced(several)
    assert (less.layers, less.batch, less.members, less.steps) == ((12, 9), 8, 5, 4)


def test_the_members_whose_losses_are_compared_are_spread_evenly() -> None:
    for members in (*range(1, 40), 129, 4096):
        checked = ensemble("", (4, 2), 8, members, "mse", "sgd").checked
        assert len(checked) == min(members, 8)
        assert (checked[0], checked[-1]) == (0, members - 1)
        gaps = np.diff(checked)
        assert gaps.max(initial=1) - gaps.min(initial=gaps.max(initial=1)) <= 1


@pytest.mark.parametrize("batch", [1, 8, 100, 256, 1000, 4096, 10**6])
def test_an_ensembles_epoch_has_about_as_many_examples(batch: int) -> None:
    least, most = STEPS
    steps = steps_of(batch)
    assert least <= steps <= most
    if least < steps < most:
        assert ROWS - batch < steps * batch <= ROWS


@pytest.mark.parametrize(("seconds", "blocks"), [
    (1.0, [16, 16, 2, 2]), (0.2, [16, 16, 3, 3]), (0.001, [32, 32, 32, 32])])
def test_a_slow_loop_is_broken_off_behind_the_steps_that_are_compared(
        monkeypatch: pytest.MonkeyPatch, seconds: float, blocks: list[int]) -> None:
    """Half a second, but a window of steps at least while losses are checked, and two after it.
    The time of an epoch follows from the steps that were done."""
    done: list[int] = []
    loop = numpy_system.Loop(tiny(steps=32))
    monkeypatch.setattr(loop, "step", lambda rows: done.append(len(rows)) or 1.0)
    monkeypatch.setattr(numpy_system, "perf_counter", lambda: seconds * len(done))
    for steps in blocks:
        done.clear()
        assert loop.block(1) == pytest.approx(32 * seconds * 1e3)
        assert (len(done), len(loop.losses())) == (steps, steps)
