"""Sets of toggles beside each other on one network: which is faster, and how surely.

All of them are made ready first, then take turns, so that what changes with time touches all. Every
turn warms up until it is steady (rawnn.bench.peers.worker).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from statistics import median
from typing import Literal

import msgspec
import numpy as np

from rawnn.bench.conditions import Conditions, Watch, merged
from rawnn.bench.footprint import Footprint
from rawnn.bench.measured import Measured
from rawnn.bench.peers.rawnn_system import Training
from rawnn.bench.peers.worker import timed
from rawnn.bench.records import place_of
from rawnn.bench.statistics import Spread, ratio_interval, spread
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.result import Environment

ROUNDS = 5
SCHEMA_VERSION = 1


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One set: its toggles with those that they imply, milliseconds of an epoch (a sample each),
    and the mean loss of its first epoch."""

    opt: str
    toggles: list[str]
    notes: list[str]
    milliseconds: list[float]
    steps: int
    loss: float
    steady: bool = True
    footprint: Footprint | None = None
    conditions: Conditions | None = None

    @property
    def us(self) -> Spread:
        """Microseconds a step."""
        return spread([ms * 1e3 / self.steps for ms in self.milliseconds])


class Duel(Measured, frozen=True, kw_only=True):
    """Sets on the network of `config`, whose own toggles play no part; the first is what the others
    are compared with. `interrupted` says that Ctrl-C ended it ahead of its last turn."""

    config: Config
    environment: Environment
    dataset: str
    rounds: int
    sides: list[Side]
    kind: Literal["duel"] = "duel"
    schema_version: int = SCHEMA_VERSION
    interrupted: bool = False

    def verdict(self, side: Side) -> str:
        """A sentence on a set beside the first."""
        first = self.sides[0]
        ratio = median(first.milliseconds) / median(side.milliseconds)
        low, high = ratio_interval(first.milliseconds, side.milliseconds)
        interval = f"95 % interval {low:.3f}-{high:.3f}"
        if low <= 1 <= high:
            return f"{side.opt} and {first.opt} differ by no more than the noise ({interval})"
        word = "faster" if ratio > 1 else "slower"
        times = ratio if ratio > 1 else 1 / ratio
        return f"{side.opt} is {times:.3f} times {word} than {first.opt} ({interval})"


DUELS: Mapping[str, tuple[type[Duel], int]] = {"duel": (Duel, SCHEMA_VERSION)}


def duel(config: Config, opts: Sequence[str], data: Dataset, opened: Opened, rounds: int = ROUNDS,
         on_turn: Callable[[int, str], None] = lambda number, opt: None) -> Duel:
    """Time each set `rounds` times in turns, all on one opened device. Raises ConfigError for fewer
    than two sets, and whatever a set's session raises. Ctrl-C ends it with what was measured, once
    each set has had a turn."""
    if len(set(opts)) < 2:
        raise ConfigError("give at least two different sets of toggles: --opt A --opt B")
    watch = Watch.of(opened)
    with ExitStack() as closing:
        programs = []
        for opt in dict.fromkeys(opts):
            program = Training(replace(config, opt=opt), data, opened)
            closing.enter_context(program.session)
            programs.append(program)
        losses = []
        for program in programs:
            program.block(1)
            losses.append(float(np.mean(program.losses(), dtype=np.float64)))
        samples: list[list[float]] = [[] for _ in programs]
        seen: list[list[Conditions]] = [[] for _ in programs]
        steady = [True] * len(programs)
        interrupted = False
        try:
            for number in range(rounds):
                for index, program in enumerate(programs):
                    with watch.during() as conditions:
                        found = timed(program)
                    samples[index] += found.milliseconds
                    steady[index] &= found.steady
                    seen[index] += [conditions.conditions] if conditions.conditions else []
                    on_turn(number, program.session.config.opt)
        except KeyboardInterrupt:
            if not all(samples):
                raise
            interrupted = True
        sides = [Side(
            opt=p.session.config.opt, notes=list(p.session.selection.notes),
            toggles=[n if v is None else f"{n}={v}" for n, v in p.session.selection.values.items()],
            milliseconds=samples[i], steps=p.session.work.updates, loss=losses[i],
            steady=steady[i], footprint=p.footprint, conditions=merged(seen[i]))
            for i, p in enumerate(programs)]
        environment = place_of(opened)
        for program in programs:
            with suppress(RawnnError, KeyError):
                environment.libraries.update(program.session.runner.describe()["libraries"])
    return Duel(config=config, environment=environment, dataset=data.name, rounds=rounds,
                sides=sides, interrupted=interrupted)
