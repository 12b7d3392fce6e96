"""The ladder: the same training with one optimization more at every rung."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import click
import msgspec

from rawnn.bench.case import BUDGET, DEVICE, Case
from rawnn.bench.harness import Harness, Sample, Variant, precision_name
from rawnn.bench.record import Record, Results, Value
from rawnn.bench.reference import SEEDS, host_accuracy
from rawnn.bench.render import training
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites
from rawnn.bench.training import check_words, open_timed, trained
from rawnn.common.listener import Listener
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, check_outline, settled
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS

BASELINE = "baseline"
IDENTIFYING = ("layers", "bias", "activation", "loss", "init", "epochs", "batch", "partial",
               "shuffle", "optimizer", "lr", "momentum", "schedule", "dataset")
"""What of a Config identifies a ladder, where it is not the default."""
ALWAYS = ("layers", "epochs", "batch", "lr", "dataset")


class LadderSuite(Settings, frozen=True, kw_only=True):
    """`bench ladder`: the toggles of the baseline, and what each rung adds."""

    base: list[str]
    rungs: list[str]
    repeats: Count


def measure(harness: Harness, suites: Suites, *, rungs: str | None, repeats: int | None,
            oracle: str, data: str | None, device: str, **options: Any) -> None:
    """Run the ladder: the same training with one optimization more at every rung, interleaved.

    Exits with 1 if a rung failed; a rung that cannot run on this machine is a row that says why.
    """
    suite: LadderSuite = suites.ladder
    config = Config(device=device, data=data,
                    **{name: value for name, value in options.items() if value is not None})
    names = suite.rungs if rungs is None else [r.strip() for r in rungs.split(",") if r.strip()]
    check_rungs([*names, *suite.base])
    check_outline(config)
    examples = load_dataset(config.dataset, config.data, notify=harness.notify, stand_in=True)
    check_fit(config, examples)
    config, _ = settled(config, examples)
    reference = _reference(config, examples, harness) if oracle == "compute" else None
    run_ladder(harness, config, repeats or suite.repeats, names, suite.base, examples, reference)


def run_ladder(harness: Harness, config: Config, repeats: int, rungs: Sequence[str],
               base: Sequence[str], data: Dataset, reference: Record | None = None) -> None:
    """Measure every rung `repeats` times. Repeat r trains every rung with seed `config.seed` + r.

    `rungs` are toggles as after --opt, each added to those of the rungs before; one rung may add
    several ("fuse+cublas"); a preset ("best") replaces them. The baseline, of the toggles `base`,
    is always run first; `config.opt` plays no part. What a rung adds is not carried on to later
    rungs where this rung cannot run. All rungs are run once more only where that is expected to end
    within the budget.
    """
    opened = open_timed(harness, config.device)
    steps: list[tuple[str, tuple[str, ...]]] = [(BASELINE, ())]
    steps += [(name, tuple(name.split("+"))) for name in rungs]
    notes: list[str] = []
    if opened.device is None:
        base = [word for word in base if _is_for_host(word)]
        left_out = [name for name, words in steps if not all(map(_is_for_host, words))]
        steps = [(name, words) for name, words in steps if name not in left_out]
        config = replace(config, device="host")
        notes.append(f"measured on the host: {opened.machine.no_gpu}")
        if left_out:
            notes.append(f"rungs that mean nothing on the host are left out: "
                         f"{', '.join(left_out)}")
    listener, conditions = _Once(harness.notify), _conditions(config, data)
    variants: list[Variant] = []

    @cache
    def opt_of(place: int) -> str:
        """The toggles of a rung, when it is first run: what failed before it is not carried on, as
        one missing library must not take all later rungs with it."""
        words = tuple(base)
        for (_, added), variant in zip(steps[:place], variants, strict=False):
            words = climb(words, added) if variant.status == "measured" else words
        words = climb(words, steps[place][1])
        return ",".join(words if words and words[0] in PRESETS else ("none", *words))

    def take(place: int, number: int) -> Sample:
        return trained(replace(config, opt=opt_of(place), seed=config.seed + number), data, opened,
                       harness.watch, listener)

    reached = tuple(base)
    for place, (name, words) in enumerate(steps):
        reached = climb(reached, words)
        variants.append(Variant("ladder", name, precision_name(",".join(reached)), "epoch_ms",
                                conditions, partial(take, place)))
    variants[0].notes += notes
    harness.ask(variants)
    if reference is not None:
        harness.store([msgspec.structs.replace(reference, environment=harness.environment.key)])
    harness.interleave(variants, repeats, whole_rounds=True)
    harness.end()


def check_rungs(rungs: Sequence[str]) -> None:
    """Raise ConfigError unless every rung names toggles or presets, with valid values."""
    for rung in rungs:
        check_words(rung.split("+"), f"the rung '{rung}'")


def climb(words: Sequence[str], added: Sequence[str]) -> tuple[str, ...]:
    """The toggles of a rung: those of the rung before it and what it adds."""
    now = list(words)
    for word in added:
        name = word.removeprefix("-").partition("=")[0]
        if word in PRESETS:
            now = [word]
            continue
        known = [w for w in now if w.partition("=")[0] == name]
        now = [w for w in now if w not in known]
        if not word.startswith("-") or not known:
            now.append(word)
    return tuple(now)


def _conditions(config: Config, data: Dataset) -> dict[str, Value]:
    """What identifies the ladder of a configuration."""
    found: dict[str, Value] = {}
    for each in fields(Config):
        value = getattr(config, each.name)
        if each.name in ALWAYS or (each.name in IDENTIFYING and value != each.default):
            found[each.name] = list(value) if isinstance(value, tuple) else value
    found["batch"] = config.recipe().batch
    found["seed"] = config.seed
    if data.synthetic and data.name != "synthetic":
        found["synthetic"] = True
    return found


def _is_for_host(word: str) -> bool:
    """Whether a toggle or preset means anything where there is no GPU."""
    name = word.removeprefix("-").partition("=")[0]
    return TOGGLES[name].host if name in TOGGLES else name in ("best", "none")


class _Once(Listener):
    """Passes each different message on once, not at every run."""

    reads = False

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify, self._said = notify, set[str]()

    def notify(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._notify(message)


def _reference(config: Config, data: Dataset, harness: Harness) -> Record:
    """The accuracy that a correct run reaches."""
    def notify_of(seed: int, accuracy: float) -> None:
        harness.notify(f"float64 on the host, seed {seed}: accuracy {accuracy:.4f}")
        harness.progress(SEEDS.index(seed) + 1, len(SEEDS), len(SEEDS), f"reference, seed {seed}")

    return host_accuracy(config, data, SEEDS, notify_of)


def failures(results: Results) -> str:
    """Which rungs failed."""
    rungs = [e for e in results.entries("ladder") if e.variant != training.REFERENCE]
    failed = [e.variant for e in rungs if e.status == "failed"]
    return f"{len(failed)} of {len(rungs)} rungs failed ({', '.join(failed)}); the reasons stand " \
           f"below the table" if failed else ""


CASE = Case("ladder", measure, (
    click.option("--repeats", type=click.IntRange(1),
                 help="How often every rung is run, with a seed of its own each time (8)."),
    BUDGET,
    click.option("--rungs", metavar="TOGGLES",
                 help="What each rung adds to the one before (as bench.toml says); a+b adds two at "
                      "once, a preset replaces all. The baseline is always run."),
    click.option("--layers", metavar="784-10", help="Sizes from the inputs to the classes."),
    click.option("--epochs", type=int, help="Passes over the training set (20)."),
    click.option("--batch", type=int, help="Examples per step (128)."),
    click.option("--lr", type=float, help="Learning rate (0.1)."),
    click.option("--seed", type=int, help="Seed of the first repeat (0)."),
    click.option("--dataset", metavar="NAME",
                 help="mnist (the default), fashion-mnist, idx or synthetic."),
    click.option("--data", metavar="DIRECTORY", help="Where the data set's IDX files are."),
    DEVICE,
    click.option("--oracle", type=click.Choice(["auto", "compute", "off"]), default="auto",
                 show_default=True,
                 help="Compare accuracies with float64 runs on the host that are computed now, or "
                      "else with those of the baseline."),
), failures, has_plot=True, settings=LadderSuite, view=View(
    "The ladder", "The same training with one optimization more at every rung.", training.ladder,
    training.ladder_charts))
