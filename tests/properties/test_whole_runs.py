"""Runs from the first epoch to the result, stopped and continued, against float64 NumPy that shares
no code with them: what is reported, what is kept behind which epoch, and where training ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rawnn.common import random
from rawnn.engine.checkpoint import listed, read
from rawnn.engine.result import Report, Result
from rawnn.engine.runners.prepared_run import prepare
from rawnn.engine.training import train
from rawnn.model.layers import Network
from tests.engine import random_dataset
from tests.properties.profile import examples
from tests.runners import torch_formulas as torch
from tests.test_callbacks import Stopper

LAYERS, LR = (12, 5, 4), 0.05
CLOSE = 2e-4
"""Relative, of losses, and absolute, of parameters: some hundred steps in float32."""
TIE = 1e-3
"""Logits that lie nearer may come out in either order."""
OPTIMIZERS: dict[str, dict[str, float]] = {
    "sgd": {}, "momentum": {"momentum": 0.9}, "adam": {}, "adamw": {"decay": 0.1}}
OPTIONS = {"momentum": {"momentum": 0.9}, "adamw": {"weight_decay": 0.1}}
SCHEDULES = ("constant", "step:1:0.5", "step:2:0.4", "cosine", "cosine:0.01", "warmup:1,cosine",
             "warmup:0.5", "warmup:0.1,cosine")
HOSTS = ("none", "report=2", "report=3", "fuse,preload", "fuse,preload,report=2")
GPUS = ("none", "preload,graphs=epoch", "arena,nosync,streams", "preload,graphs=3,report=2",
        "preload,fuse,graphs=step,report=3", "persistent,graphs=epoch", "preload,arena,nosync,fuse")


def rate_of(schedule: str, updates: int, epochs: int) -> torch.Rate:
    """The rate of each step, from what the schedule's words say."""
    whole = updates * epochs
    return {
        "constant": torch.constant(LR), "step:1:0.5": torch.step_lr(LR, 0.5, updates),
        "step:2:0.4": torch.step_lr(LR, 0.4, 2 * updates), "cosine": torch.cosine(LR, 0.0, whole),
        "cosine:0.01": torch.cosine(LR, 0.01, whole),
        "warmup:1,cosine": torch.warmed_up(torch.cosine(LR, 0.0, whole - updates), LR, updates),
        "warmup:0.1,cosine": torch.warmed_up(
            torch.cosine(LR, 0.0, whole - max(round(updates / 10), 1)), LR,
            max(round(updates / 10), 1)),
        "warmup:0.5": torch.warmed_up(torch.constant(LR), LR, max(round(updates / 2), 1)),
    }[schedule]


@dataclass
class Case:
    """A run of `epochs`, stopped behind `stop` of them (0: never) and continued. Without a `clock`
    the run that is stopped has neither a schedule nor an order, which the other one then has."""

    opt: str
    optimizer: str
    schedule: str
    shuffle: bool
    partial: bool
    batch: int
    count: int
    epochs: int
    stop: int
    clock: bool
    save_every: int
    keep: int | None
    seed: int

    @property
    def updates(self) -> int:
        whole, rest = divmod(self.count, self.batch)
        return whole + bool(rest and self.partial)

    @property
    def interval(self) -> int:
        return next((int(w[7:]) for w in self.opt.split(",") if w.startswith("report=")), 1)

    def options(self, plain: bool = False) -> dict[str, Any]:
        name = "sgd" if self.optimizer == "momentum" else self.optimizer
        return {"layers": LAYERS, "opt": f"none,{self.opt}", "optimizer": name,
                **OPTIONS.get(self.optimizer, {}), "lr": LR, "batch": self.batch, "seed": self.seed,
                "schedule": "constant" if plain else self.schedule,
                "shuffle": self.shuffle and not plain, "partial": self.partial,
                "epochs": self.epochs}


@st.composite
def cases(draw: Any, opts: tuple[str, ...]) -> Case:
    optimizer = draw(st.sampled_from([*OPTIMIZERS]))
    epochs = draw(st.integers(2, 6))
    batch = draw(st.integers(3, 9))
    return Case(
        draw(st.sampled_from(opts)), optimizer, draw(st.sampled_from(SCHEDULES)),
        draw(st.booleans()), draw(st.booleans()), batch, draw(st.integers(batch, 40)), epochs,
        draw(st.integers(0, epochs - 1)), draw(st.booleans()) or optimizer.startswith("adam"),
        draw(st.integers(1, 4)), draw(st.none() | st.integers(1, 3)), draw(st.integers(0, 9)))


@dataclass
class Epoch:
    """What is true behind an epoch; counts as the least and most that may be right."""

    parameters: dict[str, np.ndarray]
    train_loss: float
    train_right: tuple[int, int]
    seen: int
    test_loss: float
    test_right: tuple[int, int]


@dataclass
class Counted:
    """Losses and answers of batches, each counted by its examples."""

    loss: float = 0.0
    seen: int = 0
    right: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, w: dict[str, np.ndarray], x: np.ndarray, labels: np.ndarray) -> None:
        hidden = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
        z = hidden @ w["fc2.weight"].T + w["fc2.bias"]
        rows = np.arange(len(x))
        others = z.copy()
        others[rows, labels] = -np.inf
        margin = z[rows, labels] - others.max(axis=1)
        self.loss += torch.cross_entropy(z, labels)[0] * len(x)
        self.seen += len(x)
        self.right = [self.right[0] + int((margin > TIE).sum()),
                      self.right[1] + int((margin > -TIE).sum())]


def by_numpy(case: Case, data: Any) -> Iterator[Epoch]:
    """Epoch by epoch, without a stop in between."""
    x, tests = (images / 255.0 for images in (data.train_images, data.test_images))
    w = {name: a.astype(np.float64) for name, a in Network(LAYERS).initial(case.seed).items()}
    state: dict[str, Any] = {}
    step = 0
    update = "sgd" if case.optimizer == "momentum" else case.optimizer
    for epoch in range(case.epochs):
        plain = not case.clock and epoch < case.stop
        rate = torch.constant(LR) if plain else rate_of(case.schedule, case.updates, case.epochs)
        order = random.permutation(case.seed, epoch, len(x)) if case.shuffle and not plain \
            else np.arange(len(x))
        trained, tested = Counted(), Counted()
        for number in range(case.updates):
            rows = order[number * case.batch : (number + 1) * case.batch]
            trained.add(w, x[rows], data.train_labels[rows])
            _, gradient = torch.gradients(w, 2, "relu", "cross_entropy", x[rows],
                                          data.train_labels[rows])
            torch.UPDATES[update][0](w, gradient, state, rate(step), step + 1,
                                  **OPTIMIZERS[case.optimizer])
            step += 1
        tested.add(w, tests, data.test_labels)
        yield Epoch({name: a.copy() for name, a in w.items()}, trained.loss / trained.seen,
                    tuple(trained.right), trained.seen, tested.loss / tested.seen,
                    tuple(tested.right))


def check_report(report: Report, wanted: Epoch, tests: int) -> None:
    np.testing.assert_allclose(report.train_loss, wanted.train_loss, rtol=CLOSE)
    np.testing.assert_allclose(report.test_loss, wanted.test_loss, rtol=CLOSE)
    assert wanted.train_right[0] <= report.train_accuracy * wanted.seen + 1e-6
    assert wanted.train_right[1] >= report.train_accuracy * wanted.seen - 1e-6
    assert wanted.test_right[0] <= report.test_accuracy * tests + 1e-6
    assert wanted.test_right[1] >= report.test_accuracy * tests - 1e-6


def check_result(result: Result, wanted: list[Epoch], first: int, last: int, case: Case) -> None:
    """Of a run from behind epoch `first` to behind `last`."""
    tests = 13
    due = [e for e in range(first + 1, last + 1) if e % case.interval == 0 or e == case.epochs]
    assert [report.epoch for report in result.history] == due
    for report in result.history:
        check_report(report, wanted[report.epoch - 1], tests)
    end = wanted[last - 1]
    for name, array in end.parameters.items():
        np.testing.assert_allclose(result.parameters[name], array, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(result.test_loss, end.test_loss, rtol=CLOSE)
    assert end.test_right[0] <= result.test_accuracy * tests + 1e-6 <= end.test_right[1] + 2e-6
    assert (result.resumed_epochs, len(result.epoch_ms)) == (first, last - first)


def check_kept(directory: Path, wanted: list[Epoch], case: Case) -> None:
    """Behind every `save_every`th epoch of training, whoever counts from where, and at the ends."""
    due = {e for e in range(1, case.epochs + 1) if e % case.save_every == 0}
    due |= {case.epochs, case.stop} - {0}
    assert [epoch for epoch, _ in listed(directory)] == sorted(due)[-(case.keep or len(due)):]
    for epoch, path in listed(directory):
        kept = read(path)
        assert kept.epoch == epoch
        for name, array in wanted[epoch - 1].parameters.items():
            np.testing.assert_allclose(kept.parameters[name], array, rtol=0, atol=CLOSE)
        if "clock" in kept.state:
            assert kept.state["clock"].tolist() == [epoch, epoch * case.updates]


def check(case: Case, device: str) -> None:
    data = random_dataset(12, 4, train=case.count, test=13, seed=case.seed)
    wanted = list(by_numpy(case, data))
    small_parts = mock.patch("rawnn.engine.run_planner.prepare",
                             partial(prepare, evaluation_batch=5))
    with tempfile.TemporaryDirectory() as folder, small_parts:
        kept = {"save": folder, "save_every": case.save_every, "keep": case.keep}
        if case.stop:
            part = train(data=data, device=device, listener=Stopper(case.stop), **kept,
                         **case.options(plain=not case.clock))
            check_result(part, wanted, 0, case.stop, case)
            kept["resume"] = folder
        whole = train(data=data, device=device, **kept, **case.options())
        check_result(whole, wanted, case.stop, case.epochs, case)
        check_kept(Path(folder), wanted, case)


@examples(80)
@example(Case("none", "sgd", "cosine", True, True, 4, 18, 5, 2, False, 2, 2, 1))
@given(case=cases(HOSTS))
def test_a_run_on_the_host_is_numpys(case: Case) -> None:
    check(case, "host")


@examples(25)
@example(Case("none", "sgd", "cosine", True, True, 4, 18, 5, 2, True, 2, 2, 1))
@given(case=cases(GPUS))
def test_a_run_on_the_simulated_gpu_is_numpys(case: Case) -> None:
    check(case, "sim")
