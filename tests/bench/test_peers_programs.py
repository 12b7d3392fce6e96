"""Whole programs of PyTorch and JAX, with small stand-ins for both (small_torch.py, small_jax.py):
each form trains as NumPy does, from the same parameters on the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.peers.ensemble import Ensemble, ensemble
from rawnn.bench.peers.numpy_many import Stacked
from rawnn.bench.peers.numpy_system import Loop
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import first_losses
from rawnn.bench.ranked import Answer, Request
from rawnn.data import from_arrays
from rawnn.engine.config import Config
from tests.bench import small_jax, small_torch
from tests.bench.measuring import tiny
from tests.bench.test_peers_without_gpu import replaced

SMALL: dict[str, Any] = {"layers": (3, 2, 2), "batch": 2, "steps": 3, "lr": 0.1}
PROBLEMS = {
    "all": tiny(**SMALL, optimizer="adam"),
    "values": tiny(**SMALL, loss="mse", bias=False),
    "bits": tiny(**{**SMALL, "layers": (3, 2)}, loss="bce", shuffle=False)}


def several(name: str) -> Ensemble:
    one = PROBLEMS[name]
    return msgspec.structs.replace(
        ensemble("e", one.layers, one.batch, 3, one.loss, one.optimizer, 5), steps=3, lr=0.1,
        bias=one.bias, shuffle=one.shuffle)


def check(offer: Any, problem: Problem) -> None:
    """Two epochs in their orders as NumPy trains them in float64; in bfloat16 nearly so."""
    exact: Any = Stacked(problem, kind=np.float64) if isinstance(problem, Ensemble) \
        else Loop(problem, kind=np.float64)
    found, right = first_losses(offer.make(), problem), first_losses(exact, problem)
    assert np.ptp(right) > 0.02
    assert found.shape == right.shape
    assert bool(small_torch.COMPILED) == ("compiled" in offer.form)
    small_torch.COMPILED.clear()
    off = np.abs(found - right).max()
    assert (1e-5 < off < 0.02) if offer.precision == "bf16" else off < 1e-5, offer


# -- PyTorch ---------------------------------------------------------------------------------------

GRAPHS = ["graph", "graph, gathered first", "graph, compiled"]
EVENTS = [(p, form, "events") for form in GRAPHS for p in ("float32", "tf32", "bf16")]
TRUTH = ("float64", "plain loop", "wall")
MANY = ["graph", "graph, compiled", "graph, vmap, compiled"]


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    yield from replaced(monkeypatch, small_torch.small_torch(), "torch_system", "torch_many", "ddp")


def named(offers: Any) -> list[tuple[str, str, str]]:
    return [(offer.precision, offer.form, offer.clock) for offer in offers]


def test_the_programs_of_pytorch_by_device_and_form(torch: list[ModuleType],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    system, many, _ = torch
    one, all_of = PROBLEMS["all"], several("all")
    plain, tuned = ("float32", "plain loop", "wall"), ("bf16", "compiled loop", "wall")
    for device, forms, wanted in (
            ("host", [], [TRUTH, plain]), ("host", ["graph"], [TRUTH, plain]),
            ("gpu", [], [TRUTH, *EVENTS[:6]]), ("gpu", ["graph, compiled"], [TRUTH, *EVENTS[6:]]),
            ("gpu", ["plain loop", "compiled loop"], [TRUTH, plain, tuned])):
        assert named(system.offers(one, device, forms)) == wanted
    graphs = [(p, form, "events") for p in ("float32", "tf32", "bf16") for form in MANY]
    for device, forms, wanted in (
            ("host", [], [("float32", "loop", "wall"), ("float32", "loop, vmap", "wall")]),
            ("gpu", [], graphs), ("gpu", ["tf32:graph", "bf16:graph, compiled"],
                                  [graphs[3], graphs[7]])):
        assert named(many.offers(all_of, device, forms)) == wanted
    for room, count in ((4 * 3 * 6, 7), (4 * 3 * 6 - 1, 4)):
        monkeypatch.setattr(system, "GATHERED_BYTES", room)
        assert len(named(system.offers(one, "gpu", []))) == count


@pytest.mark.parametrize(("name", "forms"), [
    ("all", [*GRAPHS, "plain loop", "compiled loop"]), ("values", ["graph"]), ("bits", ["graph"])])
def test_programs_of_pytorch_train_as_numpy_does(torch: list[ModuleType], name: str,
                                                 forms: list[str]) -> None:
    allowed = import_torch().backends.cuda.matmul
    for device in ("host", "gpu"):
        for offer in torch[0].offers(PROBLEMS[name], device, forms):
            check(offer, PROBLEMS[name])
            assert allowed.allow_tf32 is (offer.precision == "tf32")


@pytest.mark.parametrize("name", PROBLEMS)
def test_ensembles_of_pytorch_train_as_numpy_does(torch: list[ModuleType], name: str) -> None:
    allowed, problem = import_torch().backends.cuda.matmul, several(name)
    for device, forms in (("host", []), ("gpu", [
            "float32:graph", "tf32:graph, vmap, compiled", "bf16:graph, compiled"])):
        for offer in torch[1].offers(problem, device, forms):
            check(offer, problem)
            assert allowed.allow_tf32 is (offer.precision == "tf32")


def import_torch() -> Any:
    import torch

    return torch


# -- PyTorch on several GPUs -----------------------------------------------------------------------

DDP: dict[str, Any] = {"layers": (3, 2, 2), "batch": 4, "lr": 0.5, "seed": 7, "shuffle": True,
                       "epochs": 5, "opt": "best"}
ROWS = 14


@pytest.fixture
def examples(torch: list[ModuleType], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Fourteen, of which two are in no batch of four; the clock goes by a second a look."""
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 3)).astype(np.uint8)
    y = (x[:, 0] > 127).astype(np.int64)
    data, asked = from_arrays((x, y), (x[:2], y[:2])), []

    def load(*given: Any, **how: Any) -> Any:
        asked.append((*given, how["stand_in"]))
        return data

    seconds = iter(range(1000))
    monkeypatch.setattr(torch[2], "load_dataset", load)
    monkeypatch.setattr(torch[2], "perf_counter", lambda: next(seconds))
    return data, asked


def means(data: Any, **more: Any) -> list[float]:
    """The mean loss of each epoch, by NumPy on whole batches."""
    config = Config(**{**DDP, **more})

    class Other(Loop):
        def __init__(self) -> None:
            problem = Problem(name="", seed=7, layers=config.layers, batch=4, steps=3,
                              loss="cross_entropy", optimizer="sgd", lr=config.lr,
                              bias=config.bias, shuffle=config.shuffle)
            super().__init__(problem, kind=np.float64)
            self._x = data.train_images * np.float64(data.normalisation.scale)
            self._y = data.train_labels.astype(np.int32)

    from rawnn.common.random import permutation

    loop, found = Other(), []
    for epoch in range(config.epochs):
        order = permutation(7, epoch, ROWS) if config.shuffle else np.arange(ROWS, dtype=np.int32)
        found.append(float(np.mean([loop.step(rows) for rows in loop.batches(order)])))
    return found


@pytest.mark.parametrize(("more", "note"), [
    ({"device": "host"}, "eager: the host has no graphs"), ({"device": "gpu"}, "captured"),
    ({"device": "gpu", "bias": False, "shuffle": False}, "captured"),
    ({"device": "gpu", "opt": "best,sr"}, "captured")])
def test_ddp_trains_as_numpy_does(torch: list[ModuleType], examples: tuple[Any, Any],
                                  monkeypatch: pytest.MonkeyPatch, more: dict[str, Any],
                                  note: str) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                 "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        monkeypatch.delenv(name, raising=False)
    data, asked = examples
    calls: list[Any] = []
    distributed: Any = import_torch().distributed
    distributed.init_process_group = lambda kind, rank, world_size: calls.append(
        (kind, rank, world_size))
    distributed.destroy_process_group = lambda: calls.append("destroyed")
    distributed.all_reduce = lambda total: None
    stored: list[Answer] = []
    found = torch[2].measure(Request({**DDP, **more}, "", True), stored.append)
    on_gpu = more["device"] == "gpu"
    assert calls == [("nccl", 0, 1)] if on_gpu else [("gloo", 0, 1), "destroyed"]
    assert asked == [("mnist", None, True)]
    assert stored == [found]
    assert (found.note, found.libraries) == (note, {"torch": "2.9"})
    assert found.step_us == [pytest.approx(1e6 / 3)] * 3  # of five epochs the last three
    right = means(data, **more)
    off = np.abs(np.array(found.losses) - right).max()
    assert len(found.losses) == 5
    assert (1e-5 < off < 0.02) if "opt" in more else off < 1e-5


def test_two_ranks_of_ddp_share_each_batch(torch: list[ModuleType], examples: tuple[Any, Any],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are their mean, losses of both are counted, and the first one answers."""
    both, slots = Barrier(2, timeout=30), {}
    config, found = Config(**DDP, device="host"), {}

    def reduced(rank: int, tensor: Any) -> None:
        slots[rank] = tensor.data.copy()
        both.wait()
        total = slots[0] + slots[1]
        both.wait()
        tensor.data[...] = total

    def wrapped(rank: int, model: Any) -> Any:
        for parameter in model.parameters():
            def mean(gradient: Any) -> None:
                reduced(rank, gradient)
                gradient.data /= 2
            parameter.reduce = mean
        return model

    def run(rank: int) -> None:
        own: Any = SimpleNamespace(**vars(import_torch()))
        own.distributed = SimpleNamespace(all_reduce=lambda total: reduced(rank, total))
        own.nn = SimpleNamespace(**{**vars(own.nn), "parallel": SimpleNamespace(
            DistributedDataParallel=lambda model, **how: wrapped(rank, model))})
        found[rank] = torch[2]._trained(own, config, rank, 2, own.device("cpu"), False)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[1] is None
    np.testing.assert_allclose(found[0].losses, means(examples[0]), atol=1e-5)


# -- JAX -------------------------------------------------------------------------------------------

SCANS = ["scan", "scan, unrolled 8", "scan, unrolled 4", "scan, padded", "scan, padded, unrolled 4",
         "scan, members last"]
PRODUCTS = {"float32": "float32", "tf32": "tensorfloat32", "bf16": "tensorfloat32"}


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    small_jax.ASKED.clear()
    yield from replaced(monkeypatch, small_jax.small_jax(), "jax_system", "jax_many")


def test_the_programs_of_jax_by_device_and_form(jax: list[ModuleType]) -> None:
    one, all_of = PROBLEMS["all"], several("all")
    assert jax[0].versions() == {"jax": "0.7"}
    wanted = [(p, form, "wall") for form in ("scan, unrolled 8", "scan") for p in PRODUCTS]
    assert named(jax[0].offers(one, "gpu", [])) == wanted
    assert named(jax[0].offers(one, "host", [])) == [wanted[0], wanted[3]]
    assert named(jax[0].offers(one, "gpu", ["scan"])) == wanted[3:]
    wanted = [(p, form, "wall") for p in PRODUCTS for form in SCANS]
    assert named(jax[1].offers(all_of, "gpu", [])) == wanted
    assert named(jax[1].offers(all_of, "host", ["scan"])) == wanted[:1]
    assert named(jax[1].offers(all_of, "gpu", ["bf16:scan", "tf32:scan, padded"])) == [
        wanted[9], wanted[12]]


@pytest.mark.parametrize(("name", "forms"), [
    ("all", []), ("values", ["tf32:scan"]), ("bits", ["float32:scan, unrolled 8"])])
def test_programs_of_jax_train_as_numpy_does(jax: list[ModuleType], name: str, forms: list[str]
                                             ) -> None:
    for offer in jax[0].offers(PROBLEMS[name], "gpu", forms):
        small_jax.ASKED.clear()
        check(offer, PROBLEMS[name])
        unrolled = 8 if offer.form.endswith("8") else 1
        assert [PRODUCTS[offer.precision], unrolled] * 2 == small_jax.ASKED


@pytest.mark.parametrize(("name", "forms"), [
    ("all", ["float32:scan", "tf32:scan, unrolled 4", "bf16:scan", "tf32:scan, members last",
             "float32:scan, padded", "tf32:scan, unrolled 8"]),
    ("values", ["tf32:scan, members last"]), ("bits", ["float32:scan, padded, unrolled 4"])])
def test_ensembles_of_jax_train_as_numpy_does(jax: list[ModuleType], name: str, forms: list[str]
                                              ) -> None:
    problem = several(name)
    offers = list(jax[1].offers(problem, "gpu", forms))
    assert len(offers) == len(forms)
    for offer in offers:
        small_jax.ASKED.clear()
        check(offer, problem)
        unrolled = int(offer.form[-1]) if offer.form[-1].isdigit() else 1
        assert [PRODUCTS[offer.precision], unrolled] * 2 == small_jax.ASKED
