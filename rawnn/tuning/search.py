"""The search for the fastest toggles of a network on this GPU; each set is measured in real
training.

It starts from the rules of `best` and measures every way of computing GEMMs with every way of
launching an op after its predecessor. From the fastest set, one choice at a time is varied (those
two, whether ops are fused, every other kernel toggle) and the fastest is kept, until nothing is
faster. Beside `mma`, the large GEMMs of each shape are then tried with cuBLASLt. The fastest sets
are measured again, alternately, so that changes of the GPU's clock affect all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rawnn.common.errors import RawnnError
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.data import Dataset
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.prepared_run import PreparedRun, prepare
from rawnn.model.layers import Network
from rawnn.opts import TOGGLES, presets, select
from rawnn.opts.cublas import library_gemms
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import Recipe

GEMM_TOGGLES = ("mma", "mma,cublas=auto", "cublas", "mma=sync", "tiled", "")
OVERLAP_TOGGLES = ("", "streams", "pdl", "streams,pdl")
FUSION = ("", "fuse")

MEASURED_MS = 60.0
"""Least device time of a measurement: in less time a GPU may not reach its clocks."""
MIN_EPOCHS = 5
MAX_EPOCHS = 400
STEPS = 100
"""Most steps of a measured epoch, all in one graph."""
STEP_WORK = 5e12
"""Floating-point operations of an epoch above which it has fewer steps."""
SLOWDOWN_LIMIT = 3.0
"""A set that takes this many times as long as the fastest in a first epoch is not measured
again."""
LARGE_GEMM = 1 << 26
"""Multiplications from which a GEMM is tried with cuBLASLt by itself."""
FINALISTS = 4
ROUNDS = 3
"""How many of the fastest sets are measured again, and how often."""


@dataclass(frozen=True)
class Measured:
    """A set of toggles and its result: microseconds a step, of the median epoch, the fastest and
    the slowest; or why it cannot run; or which set gives the same plan."""

    toggles: str
    us: float = 0.0
    low: float = 0.0
    high: float = 0.0
    refusal: str = ""
    same_as: str | None = None


@dataclass(frozen=True)
class Task:
    """What is tuned: a network with a batch size, an optimizer and a precision ("" for float32), on
    data of its spec."""

    network: Network
    recipe: Recipe
    precision: str
    data: Dataset
    machine: Machine

    @classmethod
    def of(cls, network: Network, recipe: Recipe, precision: str, data: Dataset | None,
           machine: Machine) -> Task:
        """A task with enough steps to be measured, on `data` or else on random data."""
        weights = sum(t.shape[0] * t.shape[-1] for t in network.parameters())
        steps = int(min(max(STEP_WORK / (6.0 * weights * recipe.batch), 5), STEPS))
        count = steps * recipe.batch
        data = shortened(data, count) if data is not None else random_data(network, count)
        return cls(network, replace(recipe, partial=False), precision, data, machine)

    def prepare(self, toggles: str) -> PreparedRun:
        """A run with these toggles, prepared. Raises ConfigError if they do not fit together."""
        graphs = ["graphs=epoch"] if TOGGLES["graphs"].needs(self.machine) is None else []
        words = ["preload", "arena", "nosync", *toggles.split(","), self.precision, *graphs]
        steps = self.recipe.steps(len(self.data.train_images))
        selection = select(",".join(filter(None, words)), self.network, steps, self.machine,
                           batch=self.recipe.batch)
        return prepare(self.network, self.data, selection, self.recipe, evaluation_batch=16)


def shortened(data: Dataset, count: int) -> Dataset:
    """The first `count` examples, repeated if there are fewer, and a few to test with."""
    places = np.arange(count) % len(data.train_images)

    def some(part: str) -> dict[str, Any]:
        arrays = {f"{kind}_{part}": getattr(data, f"{kind}_{part}") for kind in ("train", "test")}
        return {name: array if array is None else array[places if "train" in name else slice(16)]
                for name, array in arrays.items()}

    return replace(data, resident={}, notes=(), **some("images"), **some("labels"),
                   **some("targets"))


def random_data(network: Network, count: int) -> Dataset:
    """Random inputs, with the kind of answers that the network's loss compares with."""
    generator = np.random.default_rng(0)
    features, outputs = network.layers[0], network.outputs
    x = generator.integers(0, 256, (count + 16, features), np.uint8)
    dataset = Dataset("noise", x[:count], None, x[count:], None, 0, (features,), "a generator",
                      True)
    if network.loss_spec.labelled:
        y = generator.integers(0, outputs, count + 16, np.int32)
        return replace(dataset, train_labels=y[:count], test_labels=y[count:], classes=outputs)
    t = generator.integers(0, 2, (count + 16, outputs)).astype(np.float32)
    return replace(dataset, train_targets=t[:count], test_targets=t[count:])


class Search:
    """Measures sets of toggles, each once; `found` has all of them in order."""

    def __init__(self, device: Device, task: Task,
                 notify: Callable[[Measured], None] = lambda found: None) -> None:
        self._device, self._task, self._notify = device, task, notify
        self.found: dict[str, Measured] = {}
        self._plans: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        """Search, then measure the fastest again. An interruption keeps what was found."""
        machine, recipe = self._task.machine, self._task.recipe
        setting = presets.Setting(self._task.network, recipe.batch, STEPS, machine)
        rule, _ = presets.by_rule(setting, self._task.precision)
        start = format_toggles(name if value in (None, TOGGLES[name].parse(None))
                               else f"{name}={value}" for name, value in rule.items())
        self.measure(start)
        varied = axes(machine)
        for products in varied[0]:
            for following in varied[1]:
                self.measure(changed(changed(start, OVERLAP_TOGGLES, following), GEMM_TOGGLES,
                                     products))
        now = self.fastest()[0].toggles if self.fastest() else start
        before = None
        while before != now:
            before = now
            for choices in varied:
                for choice in choices:
                    self.measure(changed(now, choices, choice))
                now = self.fastest()[0].toggles if self.fastest() else now
        if "mma" in now.split(",") and not TOGGLES["cublas"].needs(machine):
            self._vary_gemms(now)
        self._finish()

    def _vary_gemms(self, now: str) -> None:
        """Move the large GEMMs of one shape after the other between `mma` and cuBLASLt, and keep
        what is faster than `now`."""
        gemms = self._task.prepare("").train.find(kind="matmul")
        shapes: dict[tuple[object, ...], list[str]] = {}
        for op in gemms:
            layout, m, n, k = (op.attributes[name] for name in ("layout", "m", "n", "k"))
            if m * n * k >= LARGE_GEMM:
                shapes.setdefault((layout, m, n, k), []).append(op.name)
        chosen = set(library_gemms(self._task.prepare(now).train))
        for names in shapes.values():
            moved = chosen.symmetric_difference(names)
            words = "+".join(op.name for op in gemms if op.name in moved)
            toggles = changed(now, ("cublas",), f"cublas={words}" if words else "")
            self.measure(toggles)
            if 0.0 < self.found[toggles].us < self.found[now].us:
                now, chosen = toggles, moved

    def measure(self, toggles: str) -> None:
        """Measure a set, unless it or another set with its plan was measured before."""
        if toggles in self.found:
            return
        self.found[toggles] = self._measured(toggles)
        self._notify(self.found[toggles])

    def _measured(self, toggles: str) -> Measured:
        try:
            prepared = self._task.prepare(toggles)
            key = (str(prepared.train), str(prepared.policy))
            if key in self._plans:
                return Measured(toggles, same_as=self._plans[key])
            self._plans[key] = toggles
            times = self._times(prepared)
        except CallFailed:
            raise  # the device may be unusable after it
        except RawnnError as error:
            return Measured(toggles, refusal=str(error))
        return Measured(toggles, statistics.median(times), min(times), max(times))

    def _times(self, prepared: PreparedRun) -> list[float]:
        """Microseconds of a step in each of several epochs, after one to warm up."""
        runner = GpuRunner(self._device, prepared)
        try:
            runner.time_each_epoch()
            runner.epoch(True)
            first = runner.epoch_milliseconds()[-1]
            fastest = min((m.us for m in self.fastest()), default=0.0)
            if fastest and first * 1e3 / prepared.steps > SLOWDOWN_LIMIT * fastest:
                return [first * 1e3 / prepared.steps]
            epochs = int(min(max(MEASURED_MS / max(first, 1e-3), MIN_EPOCHS), MAX_EPOCHS))
            for _ in range(epochs):
                runner.epoch(True)
            return [ms * 1e3 / prepared.steps for ms in runner.epoch_milliseconds()[1:]]
        finally:
            runner.close()

    def fastest(self) -> list[Measured]:
        """The measured sets, the fastest first."""
        return sorted((m for m in self.found.values() if m.us), key=lambda m: m.us)

    def _finish(self) -> None:
        """Measure the fastest sets again, alternately: the median of each counts."""
        best = self.fastest()[:FINALISTS]
        times: dict[str, list[float]] = {m.toggles: [] for m in best}
        for _ in range(ROUNDS):
            for toggles, found in times.items():
                found.append(statistics.median(self._times(self._task.prepare(toggles))))
        for m in best:
            low, high = min(times[m.toggles]), max(times[m.toggles])
            self.found[m.toggles] = replace(m, us=statistics.median(times[m.toggles]), low=low,
                                            high=high)
            self._shorten(m.toggles)

    def _shorten(self, toggles: str) -> None:
        """If a shorter set gives the same plan as a measured one, replace it by the shorter."""
        alike = [name for name, m in self.found.items() if m.same_as == toggles]
        shortest = min([toggles, *alike], key=lambda name: len(name.split(",")))
        if shortest != toggles:
            self.found[shortest] = replace(self.found[toggles], toggles=shortest)
            for name in {toggles, *alike} - {shortest}:
                self.found[name] = Measured(name, same_as=shortest)

    def others(self) -> dict[str, float]:
        """For every other way of computing GEMMs than the fastest set's, its fastest set."""
        best, *rest = self.fastest()
        others: dict[str, Measured] = {}
        for m in rest:
            way = gemm_toggle(m.toggles)
            if way != gemm_toggle(best.toggles):
                others.setdefault(way, m)
        return {m.toggles: round(m.us, 2) for m in others.values()}


def axes(machine: Machine) -> list[tuple[str, ...]]:
    """The choices to vary: one of each tuple is used. Toggles that cannot run here are left out."""
    named = {word.partition("=")[0] for group in (GEMM_TOGGLES, FUSION) for word in group}
    others = [("", name) for name, t in TOGGLES.items()
              if t.group == "kernels" and name not in {*named, "tune"}]
    wanted = [GEMM_TOGGLES, OVERLAP_TOGGLES, FUSION, *others]
    return [tuple(c for c in choices if _runs(c, machine)) for choices in wanted]


def _runs(choice: str, machine: Machine) -> bool:
    toggles = [TOGGLES[word.partition("=")[0]] for word in choice.split(",") if word]
    return all(t.needs(machine) is None for t in toggles)


def changed(toggles: str, choices: Sequence[str], choice: str) -> str:
    """The set with another one of `choices`."""
    gone = {word.partition("=")[0] for group in choices for word in group.split(",")}
    words = [word for word in toggles.split(",") if word.partition("=")[0] not in gone]
    return format_toggles([*words, *choice.split(",")])


def format_toggles(words: Iterable[str]) -> str:
    """Toggles in the registry's order, as they are typed."""
    order = list(TOGGLES)
    return ",".join(sorted(filter(None, words), key=lambda w: order.index(w.partition("=")[0])))


def gemm_toggle(toggles: str) -> str:
    """Which toggles compute GEMMs in a set: one of GEMM_TOGGLES."""
    words = {"cublas=auto" if word.startswith("cublas=") else word for word in toggles.split(",")}
    return max((way for way in GEMM_TOGGLES if {*filter(None, way.split(","))} <= words), key=len)


def fits(network: Network, data: Dataset) -> bool:
    """Whether the data set has the network's inputs and answers."""
    labelled = network.loss_spec.labelled
    return data.features == network.layers[0] and data.outputs <= network.outputs \
        and (data.train_labels is not None) == labelled

