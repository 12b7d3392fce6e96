"""Random specifications: a network, data, an optimizer, precisions and toggles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rawnn.bench.peers.training_problem import log_uniform
from rawnn.common.errors import ConfigError
from rawnn.data import Dataset
from rawnn.data.normalise import Normalisation
from rawnn.engine.launch_choices import applied, key_of, variants
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.engine.runners.prepared_run import PreparedRun, prepare
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import INITIALISERS, Network
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS, Optimizer
from rawnn.opts import TOGGLES, Selection, select
from rawnn.opts.precision_names import PRECISIONS
from rawnn.opts.registry import Machine, Toggle
from rawnn.plan.build import training_step
from rawnn.plan.recipe import DataSpec, Recipe

EPOCHS = 2

Generator = np.random.Generator


@dataclass(frozen=True)
class Limits:
    """What specifications are sampled from: sizes of layers and batches; those of networks that
    are wide and see `few` examples a step; and multiply-adds a step that are not exceeded, which
    bound the time that the host needs."""

    widths: tuple[int, int] = (16, 1024)
    batch: int = 4096
    wide: tuple[int, int] = (1536, 3072)
    few: int = 64
    work: float = 2e9


SMALL = Limits((2, 40), 33, (40, 60), 8, 2e5)
"""For simulated devices."""

_PRESETS = ("none", "seed", "best", "best,-fuse", "best,-graphs", "best,-streams")
_VALUES = {"graphs": ("auto", "step", "2", "epoch", "while"), "report": ("2",),
           "mma": ("auto", "sync")}
"""What is sampled of toggles that take a value."""


@dataclass(frozen=True)
class Specification:
    """A training run, all of which follows from `seed`, the limits and the machine. `words` are its
    toggles without the precision; with `has_launch_variants` launches
    take other tiles and blocks than by rule."""

    seed: int
    network: Network
    batch: int
    examples: int
    tests: int
    optimizer: Optimizer
    schedule: str
    shuffle: bool
    partial: bool
    inputs: str
    normalised: bool
    autoencoder: bool
    precision: str
    has_launch_variants: bool = False
    words: tuple[str, ...] = field(default=())

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.batch, self.optimizer, self.schedule, self.shuffle, self.partial,
                      self.seed, EPOCHS)

    def opt(self, *words: str) -> str:
        """`words` and the precision as after --opt, and nothing else."""
        return ",".join(["none", *(words or self.words), *filter(None, [self.precision])])

    def work(self, opt: str, data: Dataset, machine: Machine) -> PreparedRun:
        """The run made ready. Raises ConfigError for toggles that do not go together."""
        recipe = self.recipe
        selection = select(opt, self.network, recipe.steps(self.examples), machine,
                           batch=self.batch, recipe=recipe, data_spec=data_spec_of(data, "train"))
        return prepare(self.network, data, selection, recipe, evaluation_batch=256)

    def with_launch_variants(self, work: PreparedRun) -> PreparedRun:
        """About half of the launches as `tune` might choose them; the libraries' stay."""
        generator = np.random.default_rng([self.seed, 2])
        plan, choices = work.train, {}
        for op in plan.ops:
            others = variants(op, plan) if op.impl != "cublas" else []
            if others and generator.random() < 0.5:
                choices[key_of(op, plan)] = others[int(generator.integers(len(others)))]
        return applied(work, choices)

    def data(self) -> Dataset:
        """Examples with a faint pattern, and the answers that the loss compares with."""
        generator = np.random.default_rng([self.seed, 1])
        network = self.network
        features, outputs, count = network.layers[0], network.outputs, self.examples + self.tests
        labels = generator.integers(0, outputs, count)
        patterns = generator.integers(0, 256, (outputs, features))
        images = (patterns[labels] + generator.integers(0, 256, (count, features))) // 2
        x = images.astype(np.uint8) if self.inputs == "uint8" else \
            (images / 255).astype(self.inputs)
        cut = self.examples
        found = Dataset("random", x[:cut], None, x[cut:], None, 0, (features,), "a generator", True)
        if self.normalised:
            found = replace(found, normalisation=Normalisation.of("learned", found.train_images))
        if self.autoencoder:
            return found.reconstructing()
        if network.loss_spec.labelled:
            y = labels.astype(np.uint8 if outputs <= 256 else np.int32)
            return replace(found, train_labels=y[:cut], test_labels=y[cut:], classes=outputs)
        values = generator.normal(size=(count, outputs))
        t = (values > 0 if network.loss_spec.link == "sigmoid" else values).astype(np.float32)
        return replace(found, train_targets=t[:cut], test_targets=t[cut:])

    def __str__(self) -> str:
        network = self.network
        words = [str(network), network.activation if network.depth > 1 else "", network.loss,
                 network.init, "" if network.bias else "no bias", f"batch {self.batch}",
                 f"{self.examples} examples", self.inputs, "normalised" if self.normalised else "",
                 "autoencoder" if self.autoencoder else "", str(self.optimizer),
                 "" if self.schedule == "constant" else self.schedule,
                 "shuffled" if self.shuffle else "", "partial" if self.partial else "",
                 "other launch variants" if self.has_launch_variants else "", f"--opt {self.opt()}"]
        return ", ".join(filter(None, words))


def sample(seed: int, limits: Limits, machine: Machine) -> Specification:
    """The specification of a seed. What it asks for can be run on `machine`."""
    generator = np.random.default_rng([seed, 0])
    loss = _one(generator, _all(LOSSES, "cross_entropy", "cross_entropy", "mse", "bce"))
    layers, batch = _sizes(generator, limits)
    autoencoder = loss == "mse" and generator.random() < 0.3
    if autoencoder:
        layers = (*layers[:-1], layers[0])
    elif loss == "cross_entropy" and generator.random() < 0.6:
        layers = (*layers[:-1], int(generator.integers(2, min(33, limits.widths[1]))))
    batch = _within(layers, batch, limits.work)
    network = Network(
        layers, bias=generator.random() < 0.7,
        activation=_one(generator, _all(ACTIVATIONS, "relu", "tanh", "gelu")),
        loss=loss, init=_one(generator, tuple(INITIALISERS) if len(layers) < 3 else
                             tuple(name for name in INITIALISERS if name != "zeros")))
    steps, rest = int(generator.integers(1, 5)), int(generator.integers(0, batch))
    spec = Specification(
        seed, network, batch, batch * steps + rest, int(generator.integers(1, 600)),
        _optimizer(generator),
        _one(generator, ("constant", "constant", "cosine", "step:1:0.5", "warmup:1,cosine")),
        shuffle=generator.random() < 0.4, partial=generator.random() < 0.5,
        inputs=_one(generator, ("uint8", "uint8", "float32", "float16")),
        normalised=generator.random() < 0.3, autoencoder=autoencoder,
        precision=_one(generator, _precisions(machine)),
        has_launch_variants=machine.has_gpu and generator.random() < 0.3)
    return _with_toggles(generator, spec, machine)


def _all(registry: Iterable[str], *names: str) -> tuple[str, ...]:
    """What is sampled from: the `names`, as often as they are given, then all others of the
    registry once. The order of those known so far stays, so that a seed keeps its network."""
    return (*names, *(name for name in registry if name not in names))


def _one(generator: Generator, choices: tuple[str, ...]) -> str:
    return choices[int(generator.integers(len(choices)))]


def _sizes(generator: Generator, limits: Limits) -> tuple[tuple[int, ...], int]:
    """Sizes of up to six layers and a batch, half of them all multiples of 16: sizes that vectors
    and tensor cores take whole, and sizes that they do not. One in ten is large and shallow and one
    in ten wide with a small batch, for what is done differently from some size on."""
    depth, widths, batches = int(generator.integers(1, 7)), limits.widths, (1, limits.batch)
    kind = generator.random()
    if kind < 0.1:
        depth, widths = 1 + depth % 2, (widths[1] // 2, widths[1])
        batches = limits.batch // 2, limits.batch
    elif kind < 0.2:
        depth, widths, batches = 1 + depth % 2, limits.wide, (1, limits.few)
    sizes = [log_uniform(generator, widths) for _ in range(depth + 1)]
    batch = log_uniform(generator, batches)
    if generator.random() < 0.5 and widths[1] >= 16:
        sizes = [-(-n // 16) * 16 for n in sizes]
        batch = -(-batch // 16) * 16
    return tuple(min(n, widths[1]) for n in sizes), min(batch, batches[1])


def _within(layers: tuple[int, ...], batch: int, work: float) -> int:
    weights = sum(a * b for a, b in pairwise(layers))
    most = max(int(work / (3 * weights)), 1)
    return batch if batch <= most else most // 16 * 16 or most


def _optimizer(generator: Generator) -> Optimizer:
    name = _one(generator, _all(OPTIMIZER_SPECS, "sgd", "sgd", "adam", "adamw"))
    settings = {"decay": 0.01} if generator.random() < 0.3 else {}
    if name != "sgd":
        return Optimizer(name, 1e-3, settings)
    if generator.random() < 0.5:
        return Optimizer(name, 0.1, settings)
    nesterov = {"nesterov": 1.0} if generator.random() < 0.5 else {}
    return Optimizer(name, 0.05, {**settings, "momentum": 0.9, **nesterov})


def _precisions(machine: Machine) -> tuple[str, ...]:
    """Precisions that the machine can run; float32 as often as all others together."""
    there = tuple(word for word in PRECISIONS if _runs(word.partition("=")[0], machine))
    return ("",) * max(len(there), 1) + there


def _runs(name: str, machine: Machine) -> bool:
    toggle = TOGGLES.get(name)
    if toggle is None or (not machine.has_gpu and not toggle.host):
        return False
    return not machine.has_gpu or toggle.needs(machine) is None


def _with_toggles(generator: Generator, spec: Specification, machine: Machine) -> Specification:
    """A preset, or toggles sampled one by one, each used where it goes with those before it."""
    if generator.random() < 0.3:
        preset = _one(generator, _PRESETS if machine.has_gpu else ("none", "best"))
        if _accepted(replace(spec, words=(preset,)), machine):
            return replace(spec, words=(preset,))
    share = generator.uniform(0.1, 0.7)
    for index in generator.permutation(len(TOGGLES)):
        toggle = list(TOGGLES.values())[index]
        if toggle.name == "tune":  # measures for a while; launch variants stand for it
            continue
        word = _spelled(generator, toggle)
        wider = replace(spec, words=(*spec.words, word))
        if generator.random() < share and toggle.group != "numbers" \
                and _runs(toggle.name, machine) and word and _accepted(wider, machine):
            spec = wider
    return spec


def _spelled(generator: Generator, toggle: Toggle) -> str:
    """The toggle with a value; nothing where it must have one that nobody can guess."""
    if toggle.name in _VALUES:
        return f"{toggle.name}={_one(generator, _VALUES[toggle.name])}"
    if toggle.parameter is not None and toggle.parameter.default is None:
        return ""
    return toggle.name


def _trained_so(spec: Specification, selection: Selection) -> bool:
    """Whether the toggles take a step of this network and batch on data of its form."""
    labelled = spec.network.loss_spec.target_kind == "labels"
    data_spec = DataSpec(spec.examples, inputs=spec.inputs, labels="uint8" if labelled else "",
                         targets=0 if labelled or spec.autoencoder else spec.network.outputs,
                         normalised=spec.normalised, reconstruct=spec.autoencoder)
    try:
        selection.apply(training_step(spec.network, spec.recipe, data_spec))
    except ConfigError:
        return False
    return True


def _accepted(spec: Specification, machine: Machine) -> bool:
    """Whether the toggles go together: a graph that repeats cannot take batches from the host."""
    try:
        selection = select(spec.opt(), spec.network, 1, machine, batch=spec.batch)
    except ConfigError:
        return False
    values: dict[str, Any] = selection.values
    if "persistent" in values and not _trained_so(spec, selection):
        return False
    return "preload" in values or values.get("graphs") not in ("while", 2)
