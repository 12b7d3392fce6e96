"""Ensembles that every system is given alike: the same members each time, right in every peer."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.bench.peers import rawnn_many
from rawnn.bench.peers.ensemble import (
    ENSEMBLE_VERSION,
    Ensemble,
    ensemble,
    is_large,
    reduced,
    sampled_ensemble,
)
from rawnn.bench.peers.loss_check import by_epoch, checker, losses
from rawnn.bench.peers.loss_check import ensemble_reference as reference
from rawnn.bench.peers.numpy_many import Stacked
from rawnn.bench.peers.numpy_system import Loop
from rawnn.bench.peers.training_problem import Array, Problem
from rawnn.bench.peers.worker import (
    CHECKED_EPOCHS,
    Offer,
    Prepare,
    ReadyProgram,
    first_losses,
    system_of,
)
from rawnn.cuda.device import Device
from rawnn.engine.machine import Opened, machine_of, open_device
from rawnn.sim import Simulation
from tests import requires

KINDS = [(loss, rule) for loss in ("cross_entropy", "mse", "bce") for rule in ("sgd", "adam")]


def tiny(loss: Any = "cross_entropy", optimizer: Any = "adam", members: int = 5,
         **more: Any) -> Ensemble:
    return msgspec.structs.replace(
        ensemble("tiny", (5, 7, 9, 3), 6, members, loss, optimizer, 11), steps=8, **more)


class Member(Problem, frozen=True, kw_only=True):
    """A member of an ensemble as a problem of its own, on the ensemble's data."""

    whole: Ensemble

    def arrays(self) -> tuple[Array, NDArray[np.int32] | Array]:
        return self.whole.arrays()


def member(whole: Ensemble, index: int) -> Member:
    shared = {name: getattr(whole, name) for name in Problem.__struct_fields__}
    return Member(**{**shared, "seed": whole.seed + index}, whole=whole)


def losses_of_each(whole: Ensemble) -> NDArray[np.float64]:
    """[epochs, members], each member trained by itself in float64 by the loop of one network."""
    found = []
    for index in range(whole.members):
        problem = member(whole, index)
        loop = Loop(problem)
        loop._x = loop._x.astype(np.float64)
        loop.parameters = [a.astype(np.float64) for a in loop.parameters]
        loop._moments = [(m.astype(np.float64), v.astype(np.float64)) for m, v in loop._moments]
        found.append([np.mean([loop.step(order[i * whole.batch:(i + 1) * whole.batch])
                               for i in range(whole.steps)])
                      for order in map(problem.order, range(CHECKED_EPOCHS))])
    return np.array(found).T


def made(losses: Sequence[float | None] | NDArray[np.float64],
         precision: str = "float32") -> ReadyProgram:
    return ReadyProgram(precision=precision, form="f", clock="wall", losses=list(losses))


def share(whole: Ensemble, program: ReadyProgram) -> float:
    share_of = checker(whole, [])
    assert share_of is not None
    return share_of(program)


def test_a_version_of_the_sample_never_has_other_ensembles() -> None:
    text = "\n".join(f"{p} lr {p.lr} steps {p.steps}" for p in
                     (sampled_ensemble(seed, "") for seed in range(200)))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert (ENSEMBLE_VERSION, digest[:16]) == (1, "48a60db92dc52a66")


def test_the_sample_covers_what_it_says() -> None:
    some = [sampled_ensemble(seed, "") for seed in range(1000)]
    assert {len(p.layers) - 1 for p in some} == {1, 2, 3, 4}
    widths = [n for p in some for n in p.layers]
    assert (min(widths), max(widths)) == (4, 128)
    assert np.median(widths) == pytest.approx((4 * 128) ** 0.5, rel=0.15)
    assert np.median([p.members for p in some]) == pytest.approx((16 * 4096) ** 0.5, rel=0.15)
    assert all(16 <= p.members <= 4096 and 8 <= p.batch <= 256 and p.shuffle for p in some)
    assert {(p.loss, p.optimizer) for p in some} == {
        (a, b) for a in ("cross_entropy", "mse") for b in ("sgd", "adam")}
    assert all(32 <= p.steps <= 256 for p in some)


def test_members_are_the_networks_of_their_seeds() -> None:
    whole = tiny()
    for index in (0, 4):
        alone = member(whole, index)
        for stacked, own in zip(whole.initial(), alone.initial(), strict=True):
            assert np.array_equal(stacked[index], own)
        assert np.array_equal(whole.order(1)[index], alone.order(1))
    assert not np.array_equal(whole.order(0)[0], whole.order(0)[1])
    assert tiny(members=100).checked == (0, 14, 28, 42, 57, 71, 85, 99)
    assert tiny(members=3).checked == (0, 1, 2)
    assert tiny(members=1).checked == (0,)


def test_what_an_ensemble_holds_and_how_its_epochs_lie() -> None:
    """5-7-9-3: 125 weights and 19 biases a member, batches of 6 in 8 steps."""
    for whole, copies in ((tiny(), 4), (tiny(optimizer="sgd"), 2)):
        assert whole.parameters == 5 * 7 + 7 * 9 + 9 * 3 + 7 + 9 + 3
        assert whole.program_bytes == 4 * 5 * (copies * 144 + 3 * 6 * 24 + 48)
    assert tiny(bias=False).parameters == 125
    assert str(whole) == "5 of 5-7-9-3, batch 6, cross_entropy, sgd"
    order = whole.by_step(whole.order(1))
    assert (order.shape, order.flags.c_contiguous) == ((8, 5, 6), True)
    for step in range(8):
        np.testing.assert_array_equal(order[step], whole.order(1)[:, 6 * step:6 * step + 6])
    some = whole.order_of(1, (3, 1))
    np.testing.assert_array_equal(some, whole.order(1)[[3, 1]])
    straight = tiny(shuffle=False).order(1)
    np.testing.assert_array_equal(straight, [list(range(48))] * 5)
    losses = np.arange(100.0)
    many = tiny(members=100)
    assert many.compared(losses).tolist() == [*map(float, many.checked)]
    losses[3] = np.inf
    assert np.isnan(many.compared(losses)).tolist() == [True] * 8
    assert many.is_complete(losses[:1])


@pytest.mark.parametrize(("batch", "steps"), [(8, 256), (32, 256), (64, 128), (200, 40), (256, 32)])
def test_an_epoch_has_eight_thousand_examples_but_for_its_bounds(batch: int, steps: int) -> None:
    made = ensemble("e", (4, 2), batch, 3, "mse", "adam", 9)
    assert (made.steps, made.lr, made.seed, made.layers) == (steps, 1e-3, 9, (4, 2))


def test_an_ensemble_is_handed_to_a_process_whole() -> None:
    command = Prepare(tiny(), "host", ["float32:scan"], 1.0, True)
    assert pickle.loads(pickle.dumps(command)) == command
    plain = Prepare(Problem(name="n", seed=0, layers=(2, 2), batch=1, loss="mse",
                            optimizer="sgd", lr=0.1), "host", [], 1.0)
    assert type(pickle.loads(pickle.dumps(plain)).problem) is Problem
    assert system_of("numpy", tiny()).__name__ == "rawnn.bench.peers.numpy_many"  # type: ignore
    assert system_of("numpy", plain.problem).__name__.endswith("numpy_system")  # type: ignore


@pytest.mark.parametrize(("loss", "optimizer"), KINDS)
def test_members_stacked_are_members_trained_alone(loss: Any, optimizer: Any) -> None:
    whole = tiny(loss, optimizer)
    stacked = first_losses(Stacked(whole, None, np.float64), whole).reshape(CHECKED_EPOCHS, -1)
    np.testing.assert_allclose(stacked, losses_of_each(whole), rtol=1e-6)
    assert np.ptp(stacked, axis=1).min() > 1e-3  # members differ


def right(offer: Offer, whole: Ensemble) -> None:
    """A program's losses are those of float64 NumPy to float32's rounding."""
    wanted = first_losses(Stacked(whole, None, np.float64), whole)
    np.testing.assert_allclose(first_losses(offer.make(), whole), wanted, rtol=2e-6)


def test_no_program_writes_into_what_others_start_from() -> None:
    whole = tiny("mse", "sgd", layers=(5, 1))  # [members, 1, in] transposed is the same memory
    assert not any(a.flags.writeable for a in (*whole.initial(), whole.order(0)))
    requires.module("torch")
    from rawnn.bench.peers import torch_many

    before = [a.copy() for a in whole.initial()]
    for offer in torch_many.offers(whole, "host", []):
        right(offer, whole)
    assert all(np.array_equal(a, b) for a, b in zip(before, whole.initial(), strict=True))


@pytest.mark.parametrize(("loss", "optimizer"), KINDS[:4])
def test_torch_trains_the_same_members(loss: Any, optimizer: Any) -> None:
    requires.module("torch")
    from rawnn.bench.peers import torch_many

    whole = tiny(loss, optimizer)
    offers = list(torch_many.offers(whole, "host", []))
    assert [o.form for o in offers] == ["loop", "loop, vmap"]
    for offer in offers:
        right(offer, whole)


@pytest.mark.parametrize(("loss", "optimizer"), KINDS[1:3])
def test_every_form_of_jax_trains_the_same_members(loss: Any, optimizer: Any) -> None:
    requires.module("jax")
    from rawnn.bench.peers import jax_many

    whole = tiny(loss, optimizer)
    offers = list(jax_many.offers(whole, "host", []))
    assert [o.form for o in offers] == list(jax_many.FORMS)
    for offer in offers:
        right(offer, whole)
    padded = offers[[o.form for o in offers].index("scan, padded")].make()
    padded.block(2)
    weights, bias = map(np.asarray, padded._state[0][:2])  # type: ignore[attr-defined]
    assert weights.shape == (5, 8, 8)
    assert not weights[:, 7:, :].any()
    assert not weights[:, :, 5:].any()
    assert not bias[:, 7:].any()


def test_forms_of_an_ensemble_are_asked_for_with_their_precision() -> None:
    requires.module("jax")
    from rawnn.bench.peers import jax_many

    offers = jax_many.offers(tiny(), "host", ["float32:scan", "tf32:scan, padded"])
    assert [(o.precision, o.form) for o in offers] == [("float32", "scan")]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_check_takes_float32_and_coarse_operands(optimizer: Any) -> None:
    whole = tiny("mse", optimizer, 12)

    def truncated(array: NDArray[Any]) -> NDArray[Any]:
        words = np.ascontiguousarray(array, np.float32).view(np.uint32)
        return (words + 0x1000 & 0xFFFFE000).view(np.float32)

    plain = first_losses(Stacked(whole), whole)
    coarse = first_losses(Stacked(whole, operand=truncated), whole)
    assert share(whole, made(plain)) < 0.1
    assert share(whole, made(coarse, "tf32")) < 1
    assert np.abs(coarse - plain).max() > 1e-6


FAULTS = ["rate", "one member's order", "two members' weights", "decay", "a member that is not run",
          "not finite"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_the_check_finds_what_is_wrong(fault: str, precision: str) -> None:
    whole = tiny("cross_entropy", "adam", 8, lr=0.01)
    wrong = Stacked(msgspec.structs.replace(whole, lr=0.012) if fault == "rate" else whole)
    if fault == "two members' weights":
        wrong.parameters = [a[[1, 0, *range(2, 8)]].copy() for a in wrong.parameters]
    orders = [whole.order(epoch).copy() for epoch in range(CHECKED_EPOCHS)]
    if fault == "one member's order":
        for order in orders:
            order[3] = order[4]
    if fault == "decay":
        wrong._moments = [(m, v + np.float32(1e-4)) for m, v in wrong._moments]
    losses = []
    for order in orders:
        wrong.reorder(order)
        wrong.block(1)
        found = wrong.losses().copy()
        if fault == "a member that is not run":
            found[5] = reference(whole).first[5]
        if fault == "not finite":
            found[2] = np.nan
        losses.append(whole.compared(np.asarray(found, np.float64)))
    flat = [float(v) if np.isfinite(v) else None for v in np.concatenate(losses)]
    assert share(whole, made(flat, precision)) > 1


def test_losses_of_too_few_epochs_are_wrong() -> None:
    whole = tiny()
    assert share(whole, made(reference(whole).epochs[0])) == float("inf")
    assert share(whole, made(reference(whole).epochs.ravel())) == 0


def test_a_large_ensemble_is_known_by_what_its_programs_hold() -> None:
    assert not is_large(ensemble("", (20, 64, 64, 3), 32, 132, "cross_entropy", "adam"))
    assert is_large(ensemble("", (784, 128, 10), 128, 1056, "cross_entropy", "sgd"))
    small = reduced(ensemble("", (784, 128, 10), 128, 1056, "cross_entropy", "sgd"))
    assert (small.layers, small.batch, small.members) == ((12, 12, 10), 8, 5)


def test_a_call_is_timed_with_an_empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path
                                             ) -> None:
    """Of all members, with an order of its own each, over twenty epochs."""
    whole, called, now = tiny("mse", "sgd"), [], iter([10.0, 12.5])
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    monkeypatch.setattr(rawnn_many, "perf_counter", lambda: next(now))

    def train_many(configs: Any, **more: Any) -> None:
        folder = Path(os.environ["RAWNN_CACHE"])
        assert folder != tmp_path
        assert list(folder.iterdir()) == []
        called.append((configs, more))

    monkeypatch.setattr(rawnn_many.rawnn, "train_many", train_many)
    assert rawnn_many.called(whole, "preload", "host") == 2.5
    assert os.environ["RAWNN_CACHE"] == str(tmp_path)
    [(configs, more)] = called
    assert [(c.seed, c.epochs, c.opt, c.device, c.partial) for c in configs] == [
        (11 + i, 20, "preload", "host", False) for i in range(5)]
    x, y = whole.arrays()
    for given, wanted in zip((*more["data"], *more["validation"]), (x, y, x[:1], y[:1]),
                             strict=True):
        np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("opt", ["preload", "preload,batch=6"], ids=["kernel", "sessions"])
def test_a_block_ends_when_the_device_is_done(opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members train on streams of their own, or once they are waited for."""
    monkeypatch.setattr(rawnn_many, "called", lambda *arguments: 0.0)
    monkeypatch.setattr(rawnn_many, "EPOCHS", 4)
    simulation = Simulation(1)
    device = Device(simulation.backend())
    members = rawnn_many.Members(tiny(), opt, "sim", Opened(device, machine_of(device), 0.0))
    assert members._is_kernel == (opt == "preload")
    assert members.block(3) > 0
    assert not simulation.scheduler.pending
    calls = len(simulation.calls)
    assert np.isfinite(members.losses()).all()
    assert sum("Launch" in call for call in simulation.calls[calls:]) == 0
    members.close()
    device.close()
    simulation.assert_clean()


def test_rounded_runs_are_of_the_members_that_are_checked() -> None:
    whole = tiny(members=20)
    found = by_epoch(losses(whole, lambda values: values))
    np.testing.assert_allclose(found, reference(whole).epochs, rtol=1e-5)
    np.testing.assert_allclose(found, losses_of_each(whole)[:, whole.checked], rtol=1e-5)


def test_a_trainer_with_too_few_epochs_left_makes_room_for_another(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample's time is that of one epoch, up to the scores of all."""
    did: list[Any] = []
    clock = iter([1.0, 1.5] * 5)

    class Trainer:
        sharding = ""

        def __init__(self, *given: object) -> None:
            did.append("made")

        def run(self, members: Any, epochs: int) -> None:
            did.append((len(members), epochs))

        def scores(self, epochs: int) -> None:
            did.append(epochs)

        def close(self) -> None:
            did.append("closed")

    monkeypatch.setattr(rawnn_many, "called", lambda *arguments: 2.5)
    monkeypatch.setattr(rawnn_many, "EPOCHS", 6)
    monkeypatch.setattr(rawnn_many, "trainer_of", Trainer)
    monkeypatch.setattr(rawnn_many, "perf_counter", lambda: next(clock))
    members = rawnn_many.Members(tiny(), "none", "host", open_device("host", print))
    assert members.footprint == {"call_s": 2.5}
    assert [members.block(n) for n in (2, 2, 4, 2, 5)] == [250.0, 250.0, 125.0, 250.0, 100.0]
    assert did == ["made", (5, 2), 6, (5, 2), 6, "closed", "made", (5, 4), 6, (5, 2), 6, "closed",
                   "made", (5, 5), 6]
