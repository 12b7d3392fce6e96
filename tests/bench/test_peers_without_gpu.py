"""What the peers' programs compute and time, with NumPy in JAX's place and a recorder in
PyTorch's: neither need be installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from rawnn.bench.peers.ensemble import ensemble
from rawnn.bench.peers.numpy_system import Loop, loss_and_gradient
from tests.bench.measuring import tiny

PEERS = "rawnn.bench.peers"


def replaced(monkeypatch: pytest.MonkeyPatch, stand_ins: dict[str, Any], *modules: str
             ) -> Iterator[list[ModuleType]]:
    """Modules of peers imported with stand-ins, and forgotten afterwards."""
    names = [f"{PEERS}.{name}" for name in modules]
    before = {name: sys.modules.pop(name, None) for name in names}
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    try:
        yield [import_module(name) for name in names]
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


# -- JAX -------------------------------------------------------------------------------------------


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    numpy: Any = ModuleType("jax.numpy")
    vars(numpy).update({name: getattr(np, name) for name in np.__all__ if hasattr(np, name)},
                       bfloat16=np.float16)
    package: Any = ModuleType("jax")
    package.numpy, package.lax, package.Array = numpy, SimpleNamespace(), np.ndarray
    package.nn = SimpleNamespace(
        relu=lambda x: np.maximum(x, 0),
        logsumexp=lambda z, axis: np.log(np.exp(z).sum(axis=axis)))
    package.device_put = lambda value, target: value
    yield from replaced(monkeypatch, {"jax": package, "jax.numpy": numpy}, "jax_system",
                        "jax_many")


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_losses_of_jax_are_those_of_numpy(jax: list[ModuleType], loss: str, bias: bool,
                                          precision: str) -> None:
    """A forward pass with all activations kept, in float32; roughly that in fewer bits."""
    problem = tiny(loss=loss, bias=bias)
    x, y = problem.arrays()
    h, each = x[:6], 2 if bias else 1
    parameters = problem.initial()
    for layer in range(2):
        h = h @ parameters[each * layer].T + (parameters[each * layer + 1] if bias else 0)
        h = np.maximum(h, 0) if layer == 0 else h
    wanted, _ = loss_and_gradient(loss, h, y[:6])
    found = jax[0].loss_of(problem, precision, parameters, x[:6], y[:6])
    assert found == pytest.approx(wanted, rel=1e-5 if precision == "float32" else 0.02)
    wider = [np.pad(a, [(0, 3), *((0, 0),) * (a.ndim - 1)]) if n >= len(parameters) - each else a
             for n, a in enumerate(parameters)]
    assert jax[0].loss_of(problem, precision, wider, x[:6], y[:6], 5) == pytest.approx(found)


def test_a_loss_of_numpy_has_no_bound() -> None:
    """Where float32 has no probability of a class, it has its logarithm."""
    z = np.array([[[300.0, -200.0, 0.0], [0.0, 1.0, 0.0]]], np.float32)
    found, slope = loss_and_gradient("cross_entropy", z, np.array([[1, 1]]))
    np.testing.assert_allclose(found, [(500 + np.log(1 + 2 / np.e)) / 2], rtol=1e-6)
    np.testing.assert_allclose(slope[0, 0], [0.5, -0.5, 0])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_of_jax_are_those_of_numpy(jax: list[ModuleType], optimizer: str) -> None:
    """Three updates by the same gradients: momentum and its correction show from the second on."""
    problem = tiny(optimizer=optimizer, lr=0.03)
    loop = Loop(problem)
    parameters: list[Any] = problem.initial()
    moments: Any = tuple([np.zeros_like(a) for a in parameters] for _ in "mv") \
        if optimizer == "adam" else ()
    generator = np.random.default_rng(0)
    for count in range(1, 4):
        gradients = [generator.normal(size=a.shape).astype(np.float32) for a in parameters]
        parameters, moments, done = jax[0].updated(problem, parameters, moments, count, gradients)
        loop._update(gradients)
        assert done == count
        for mine, other in zip(parameters, loop.parameters, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("size", "rounded"), [(1, 8), (8, 8), (9, 16), (17, 24)])
def test_padded_sizes_are_what_tensor_cores_take(jax: list[ModuleType], size: int, rounded: int
                                                 ) -> None:
    form = jax[1].Form(is_padded=True)
    array = np.arange(3 * size * 5, dtype=np.float32).reshape(3, size, 5)
    found = jax[1]._placed(array, form)
    assert found.shape == (3, rounded, 8)
    np.testing.assert_array_equal(found[:, :size, :5], array)
    assert found.sum() == array.sum()
    last = jax[1]._placed(array, jax[1].Form(axis=-1))
    np.testing.assert_array_equal(last, np.moveaxis(array, 0, -1))
    assert last.flags.c_contiguous
    assert last.flags.writeable


def test_a_form_of_jax_is_what_its_name_says(jax: list[ModuleType]) -> None:
    for forms, unroll_of in ((jax[0].FORMS, int), (jax[1].FORMS, lambda form: form.unroll)):
        for name, form in forms.items():
            unrolled = re.search(r"unrolled (\d+)", name)
            assert unroll_of(form) == (int(unrolled[1]) if unrolled else 1)
    for name, form in jax[1].FORMS.items():
        assert (form.is_padded, form.axis) == ("padded" in name, -1 if "last" in name else 0)


def test_an_epoch_of_jax_is_run_from_the_state_that_the_one_before_left(
        jax: list[ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    problem, seen = tiny(optimizer="adam", steps=4), []
    now = iter([10.0, 16.0])
    monkeypatch.setattr(jax[0], "perf_counter", lambda: next(now))

    def run(state: Any, x: Any, y: Any, order: Any) -> tuple[Any, Any]:
        seen.append((state, order.copy()))
        return len(seen), SimpleNamespace(block_until_ready=lambda: seen.append("done"))

    scan = jax[0].Scan(problem, run, problem.initial(), "x", "y", None)
    scan.reorder(problem.order(3))
    assert scan.block(3) == 2000.0  # milliseconds an epoch
    (first, order), (second, _), (third, _), done = seen
    parameters, (m, v), count = first
    assert (second, third, done, count) == (1, 2, "done", 0)
    assert [a.shape for a in parameters] == [a.shape for a in m] == [a.shape for a in v]
    assert not any(a.any() for a in (*m, *v))
    np.testing.assert_array_equal(order, problem.order(3).reshape(4, problem.batch))


@pytest.mark.parametrize(("forms", "wanted"), [
    ([], {"float32:scan", "tf32:scan", "bf16:scan"}), (["tf32:scan"], {"tf32:scan"}),
    (["tf32", "bf16"], {"tf32:scan", "bf16:scan"}), (["other"], set()),
    (["tf32", "bf16:scan"], {"tf32:scan", "bf16:scan"}), (["tf32", "other"], set())])
def test_forms_are_asked_for_by_either_name_or_both(jax: list[ModuleType], forms: list[str],
                                                    wanted: set[str]) -> None:
    known = ("scan", "other")
    assert {f"{p}:scan" for p in jax[0].PRECISION
            if jax[0].is_wanted(p, "scan", forms, known)} == wanted


# -- PyTorch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType, list[str]]]:
    """torch_system, torch_many, and what is asked of the GPU, in order: its clock goes by 6 ms a
    replay."""
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = 6.0 * calls.count("replay")
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("wait for an event")

        def elapsed_time(self, end: Any) -> float:
            return float(end.at - self.at)

    package = MagicMock()
    package.cuda.Event = Event
    package.cuda.synchronize = lambda: calls.append("wait")
    modules = dict.fromkeys(("torch", "torch.nn", "torch.nn.functional"), package)
    for system, many in replaced(monkeypatch, modules, "torch_system", "torch_many"):
        yield system, many, calls


@pytest.mark.parametrize("epochs", [1, 4])
def test_replays_are_timed_by_events_when_the_gpu_is_idle(
        torch: tuple[ModuleType, ModuleType, list[str]], epochs: int) -> None:
    system, many, calls = torch
    for program in (system.Graph.__new__(system.Graph), many.Trainer.__new__(many.Trainer)):
        calls.clear()
        program._graph = SimpleNamespace(replay=lambda: calls.append("replay"))
        assert program.block(epochs) == 6.0
        assert calls == ["wait", "record", *["replay"] * epochs, "record", "wait for an event"]


def test_a_loop_of_pytorch_ends_in_time_and_counts_its_steps(
        torch: tuple[ModuleType, ModuleType, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A second goes by with every step: of 32 a block does three, and more than an epoch where
    they are fast. The losses are those of the last epoch."""
    system, _, calls = torch
    loop = system.Loop.__new__(system.Loop)
    loop._problem, loop._place, loop._tuned = tiny(), SimpleNamespace(type="cuda"), True
    loop._batch = lambda step: [step]
    loop._state = SimpleNamespace(precision="bf16", step=stepped)
    for seconds, steps, left in ((1.0, 3, [0, 1, 2]), (1 / 64, 64, list(range(32)))):
        calls.clear()
        DONE.clear()
        monkeypatch.setattr(system, "perf_counter", lambda seconds=seconds: seconds * len(DONE))
        assert loop.block(2) == pytest.approx(32 * 1e3 * seconds)
        assert (len(DONE), loop._losses, calls) == (steps, left, ["wait"])


DONE: list[int] = []


def stepped(step: int) -> int:
    DONE.append(step)
    return step


def test_a_batch_is_the_rows_of_its_step_in_the_kinds_that_losses_take(
        torch: tuple[ModuleType, ModuleType, list[str]]) -> None:
    class Rows(np.ndarray[Any, Any]):
        device = "cpu"

        def to(self, kind: Any) -> Any:
            return self if kind == "cpu" else self.astype(kind).view(Rows)

        def index_select(self, axis: int, rows: Any) -> Any:
            return np.take(self, rows, axis).view(Rows)

        def long(self) -> Any:
            return self.astype(np.int64).view(Rows)

    for loss, kind in (("cross_entropy", np.int64), ("mse", np.float32)):
        problem = tiny(loss=loss)
        loop = torch[0].Loop.__new__(torch[0].Loop)
        x, y = problem.arrays()
        loop._problem, loop._place, loop._data = problem, "cpu", [x.view(Rows), y.view(Rows)]
        loop._order = problem.order(0).view(Rows)
        loop._state = SimpleNamespace(start=[np.zeros(1, np.float32)])
        found = loop._batch(5)
        rows = problem.order(0)[30:36]
        np.testing.assert_array_equal(found[0], x[rows])
        np.testing.assert_array_equal(found[1], y[rows])
        assert (found[0].dtype, found[1].dtype) == (np.float32, kind)


def test_an_ensemble_is_timed_over_all_steps_of_its_epochs(
        torch: tuple[ModuleType, ModuleType, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host by the wall clock, the steps of each epoch in their order."""
    _, many, _ = torch
    problem = ensemble("e", (6, 4, 3), 4096, 5, "mse", "sgd")
    trainer = many.Trainer.__new__(many.Trainer)
    trainer._problem, trainer._graph, steps = problem, None, []
    trainer._step = steps.append
    now = iter([1.0, 3.0])
    monkeypatch.setattr(many, "perf_counter", lambda: next(now))
    assert trainer.block(4) == 500.0
    assert steps == list(range(problem.steps)) * 4
