"""The process of a peer, without the process: what it makes ready, times and gives back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.bench.peers import numpy_many, numpy_system, rawnn_many, rawnn_system, worker
from rawnn.bench.peers.ensemble import ensemble
from rawnn.bench.peers.worker import Offer, Prepare, Worker, first_losses, timed
from tests.bench.measuring import tiny


class Clock:
    """Time that passes only where a program lets it, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(worker, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Program:
    """Takes so many milliseconds an epoch; its losses count the epochs."""

    def __init__(self, clock: Clock, ms: float, breaks_at: int = -1) -> None:
        self.clock, self.ms, self.breaks_at = clock, ms, breaks_at
        self.blocks: list[int] = []
        self.orders: list[Any] = []
        self.footprint = {"launches": 3.0}

    def block(self, epochs: int) -> float:
        if len(self.blocks) == self.breaks_at:
            raise RuntimeError("the device is gone\nand more")
        self.blocks.append(epochs)
        self.clock.now += epochs * self.ms / 1e3
        return self.ms

    def reorder(self, order: Any) -> None:
        self.orders.append(order)

    def losses(self) -> Any:
        return np.full(32, 1.0 / len(self.blocks))


# -- timing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ms", "count", "samples"), [
    (0.01, 200, 4), (0.05, 200, 4), (0.06, 167, 4), (2.0, 5, 4), (4.1, 2, 4), (6.9, 1, 4),
    (240.0, 1, 4), (260.0, 1, 2)])
def test_a_sample_has_as_many_epochs_as_take_ten_milliseconds(clock: Clock, ms: float, count: int,
                                                              samples: int) -> None:
    """200 at most; samples of more than a quarter of a second are two, the others four."""
    program = Program(clock, ms)
    found = timed(program)
    assert found.milliseconds == [ms] * samples
    assert found.epochs == count * samples
    assert program.blocks[-samples:] == [count] * samples
    assert program.blocks[0] == 1


@pytest.mark.parametrize(("times", "steady"), [
    ([3.0] * 40, True), ([9.0, 5.0, *[3.0] * 40], True), ([3.0, 3.1] * 100, False),
    ([3.0, 3.05] * 100, True)])
def test_warm_up_ends_when_three_samples_agree_or_patience_does(
        clock: Clock, times: list[float], steady: bool) -> None:
    """Within 2 %, and not before a twentieth of a second; never after four tenths."""
    class Varying(Program):
        def block(self, epochs: int) -> float:
            self.ms = times[len(self.blocks)]
            return super().block(epochs)

    program, begun = Varying(clock, 0.0), clock.now
    found = timed(program)
    assert found.steady is steady
    seconds = clock.now - begun - sum(found.milliseconds) * found.epochs / len(
        found.milliseconds) / 1e3
    assert 0.05 <= seconds < (0.1 if steady else 0.45)
    if not steady:
        assert seconds >= 0.4


def test_an_epoch_that_waits_on_the_host_counts_by_the_wall(clock: Clock) -> None:
    """A millisecond on the device, five by the wall: two epochs are a sample, not ten."""
    class Waiting(Program):
        def block(self, epochs: int) -> float:
            super().block(epochs)
            return 1.0

    program = Waiting(clock, 5.0)
    found = timed(program)
    assert found.milliseconds == [1.0] * 4
    assert program.blocks[-4:] == [2] * 4


# -- a system's programs ---------------------------------------------------------------------------


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> SimpleNamespace:
    """A system with four programs: one is right, one cannot be made, one breaks behind its losses,
    and making the one before the last takes a minute."""
    made: list[str] = []

    def offers(problem: Any, device: str, forms: list[str]) -> Iterator[Offer]:
        def make(name: str) -> Any:
            made.append(name)
            if name == "none":
                raise ValueError("no such kernel\nat all")
            if name == "slow":
                clock.now += 60.0
            return Program(clock, 1.0, breaks_at=2 if name == "breaks" else -1)

        for name in ("right", "none", "breaks", "slow", "late"):
            yield Offer("tf32", name, "events", lambda name=name: make(name))

    found = SimpleNamespace(offers=offers, versions=lambda: {"it": "1"}, made=made, freed=0)

    def free() -> None:
        found.freed += 1

    monkeypatch.setattr(worker, "system_of", lambda name, problem: found)
    monkeypatch.setattr(worker, "free_memory", free)
    return found


@pytest.mark.parametrize("is_large", [False, True])
def test_a_worker_keeps_what_is_ready_and_says_why_the_rest_is_not(
        system: SimpleNamespace, is_large: bool) -> None:
    served, problem = Worker("it"), tiny()
    ready, versions = served.prepare(Prepare(problem, "gpu", [], 30.0, is_large))
    assert versions == {"it": "1"}
    assert [(r.precision, r.form, r.clock, r.reason) for r in ready] == [
        ("tf32", "right", "events", ""), ("tf32", "none", "events", "ValueError: no such kernel"),
        ("tf32", "breaks", "events", ""), ("tf32", "slow", "events", ""),
        ("tf32", "late", "events", "not made ready within 30 s")]
    assert [r.footprint for r in ready] == [{"launches": 3.0}, {}, *[{"launches": 3.0}] * 2, {}]
    assert ready[0].losses == [1.0] * 32 + [0.5] * 32
    assert [round(r.seconds) for r in ready] == [0, 0, 0, 60, 0]
    assert system.made == ["right", "none", "breaks", "slow"]
    assert system.freed == (5 if is_large else 0)
    # Of a large problem each program is made again, so that nothing has broken it yet.
    answers = [served.time("tiny", place) for place in range(5)]
    broken = "RuntimeError: the device is gone"
    assert [a.reason for a in answers] == ["", "the program was never ready", broken, "",
                                           "the program was never ready"]
    assert answers[0].milliseconds == [1.0] * 4
    assert system.made[4:] == (["right", "breaks", "slow"] if is_large else [])
    assert served.time("tiny", 2).reason == "the program was never ready"
    before = system.freed
    served.forget("tiny")
    assert system.freed == before + 1
    with pytest.raises(KeyError):
        served.time("tiny", 0)


def test_losses_are_of_two_epochs_in_their_orders_and_no_more_than_there_are(clock: Clock) -> None:
    problem, program = tiny(), Program(clock, 1.0)
    assert first_losses(program, problem).tolist() == [1.0] * 32 + [0.5] * 32
    for epoch, order in enumerate(program.orders):
        np.testing.assert_array_equal(order, problem.order(epoch))
    assert program.blocks == [1, 1]

    class Short(Program):
        def losses(self) -> Any:
            return np.array([3.0, np.inf])

    assert first_losses(Short(clock, 1.0), problem).tolist() == [3.0, np.inf]
    several = ensemble("e", (6, 4, 3), 64, 20, "mse", "sgd")

    class Members(Program):
        def losses(self) -> Any:
            return np.arange(20.0) + 100 * len(self.blocks)

    found = first_losses(Members(clock, 1.0), several).reshape(2, -1)
    assert (found - [[100], [200]] == several.checked).all()
    assert (several.checked[0], several.checked[-1], len(several.checked)) == (0, 19, 8)


@pytest.mark.parametrize("device", ["host", "sim"])
def test_the_programs_of_rawnn_and_numpy_by_device_and_form(device: str,
                                                            monkeypatch: pytest.MonkeyPatch
                                                            ) -> None:
    """Ours on a GPU in each precision, or as the forms say; on the host float32 alone."""
    on_gpu, made = device == "sim", []
    monkeypatch.setattr(rawnn_system, "Training", lambda *given: made.append(given))
    monkeypatch.setattr(rawnn_many, "Members", lambda *given: made.append(given))
    one, several = tiny(), ensemble("e", (6, 4, 3), 64, 20, "mse", "sgd")
    usual = [("float32", "best"), ("tf32", "best,tf32"), ("bf16", "best,bf16")]
    forms = [("bf16", "best,sr"), ("float32", "preload")]
    for problem in (one, several):
        ours = rawnn_many if problem is several else rawnn_system
        clock = "events" if on_gpu and problem is one else "wall"
        for asked, wanted in (([], usual), ([":".join(form) for form in forms], forms)):
            offers = list(ours.offers(problem, device, asked))  # type: ignore[arg-type]
            left = [form for form in wanted if on_gpu or form[0] == "float32"]
            assert [(o.precision, o.form, o.clock) for o in offers] == [
                (*form, clock) for form in left]
            made.clear()
            for offer in offers:
                offer.make()
            if problem is one:
                assert [config for config, _, _ in made] == [
                    one.config(opt, device) for _, opt in left]
            else:
                assert [given[:3] for given in made] == [(several, opt, device) for _, opt in left]
    [plain] = numpy_system.offers(one, "host", [])
    [stacked] = numpy_many.offers(several, "host", [])
    assert (plain.precision, plain.form, plain.clock) == ("float32", "arrays", "wall")
    assert (stacked.precision, stacked.form, stacked.clock) == ("float32", "stacked", "wall")
    assert type(plain.make()) is numpy_system.Loop
    assert isinstance(stacked.make(), numpy_many.Stacked)
    assert numpy_system.versions() == {"numpy": np.__version__}
    assert rawnn_system.versions() == {"rawnn": rawnn.__version__}


def test_the_examples_of_ours_are_the_problems_and_256_to_be_tested_on() -> None:
    for problem, count in ((tiny(batch=10), 256), (tiny(loss="bce"), 192)):
        data, (x, y) = rawnn_system.dataset(problem), problem.arrays()
        np.testing.assert_array_equal(data.train_images, x)
        answers = data.train_labels if problem.loss == "cross_entropy" else data.train_targets
        np.testing.assert_array_equal(answers, y)
        assert len(data.test_images) == count
        np.testing.assert_array_equal(data.test_images, x[:count])
    for loss in ("mse", "bce", "cross_entropy"):
        whole = ensemble("e", (6, 4, 3), 64, 20, loss, "sgd")
        found, (x, y) = rawnn_many.dataset(whole), whole.arrays()
        answers = found.train_labels if loss == "cross_entropy" else found.train_targets
        np.testing.assert_array_equal(answers, y)
        assert (len(found.train_images), found.test_images.tolist()) == (len(x), x[:1].tolist())


def test_memory_is_given_back_where_the_system_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    for there in (True, False):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(
            is_available=lambda there=there: there, empty_cache=lambda: emptied.append("once"))))
        worker.free_memory()
    assert emptied == ["once"]
    monkeypatch.delitem(sys.modules, "torch")
    worker.free_memory()


def test_a_worker_serves_the_pipe_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(worker, "Connection", lambda number: ("pipe", number))
    monkeypatch.setattr(Worker, "serve", lambda self, pipe: served.append((self._name, pipe)))
    worker.main("numpy", "7")
    assert served == [("numpy", ("pipe", 7))]
    with pytest.raises(ModuleNotFoundError, match="nosuch_system"):
        worker.main("nosuch", "7")


def test_a_worker_answers_until_nobody_asks(system: SimpleNamespace) -> None:
    asked: list[Any] = [("prepare", Prepare(tiny(), "gpu", [], 30.0)), ("time", "tiny", 0),
                        ("forget", "tiny")]
    sent: list[Any] = []

    def receive() -> Any:
        if not asked:
            raise EOFError
        return asked.pop(0)

    pipe: Any = SimpleNamespace(recv=receive, send=sent.append)
    Worker("it").serve(pipe)
    assert [len(sent), sent[0][1], sent[1].milliseconds, sent[2]] == [3, {"it": "1"}, [1.0] * 4,
                                                                      None]
