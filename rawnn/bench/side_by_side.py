"""Configurations side by side on one network: which is faster, and how surely.

All of them are made ready first, then take turns, so that what changes with time touches all. Every
turn warms up until it is steady (rawnn.bench.peers.worker).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

import numpy as np

from rawnn.bench.harness import Harness, Sample, Variant, precision_name, sample_of
from rawnn.bench.peers.rawnn_system import Training
from rawnn.bench.peers.worker import timed
from rawnn.bench.record import Entry, Value
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened

SUITE = "compare"
ROUNDS = 5
TIMER = {"epoch_ms": "time between two events on the device around epochs that follow each other, "
                     "over their number; on the host and on a simulated GPU the wall clock"}


def compare_configurations(harness: Harness, config: Config, opts: Sequence[str], data: Dataset,
                           opened: Opened, rounds: int = ROUNDS) -> list[Entry]:
    """Time each of several toggles on the network of `config` in `rounds` turns, on one opened
    device; the first is what the others are compared with.

    A variant has milliseconds of an epoch (`epoch_ms`, some samples a turn), microseconds of a
    step, and the mean loss of its first epoch. Raises ConfigError for fewer than two, and whatever
    a session raises. Ctrl-C ends it with what was measured."""
    if len(set(opts)) < 2:
        raise ConfigError("give at least two different sets of toggles: --opt A --opt B")
    with ExitStack() as closing:
        programs = {}
        for opt in dict.fromkeys(opts):
            programs[opt] = Training(replace(config, opt=opt), data, opened)
            closing.enter_context(programs[opt].session)
        variants = [_variant(opt, program, config, data, harness)
                    for opt, program in programs.items()]
        for variant, program in zip(variants, programs.values(), strict=True):
            program.block(1)
            variant.facts["loss"] = float(np.mean(program.losses(), dtype=np.float64))
        harness.ask(variants)
        harness.interleave(variants, rounds, is_budgeted=False)
    harness.end()
    return harness.results.entries(SUITE)


def _variant(opt: str, program: Training, config: Config, data: Dataset,
             harness: Harness) -> Variant:
    session = program.session
    words = [n if v is None else f"{n}={v}" for n, v in session.selection.values.items()]
    conditions: dict[str, Value] = {
        "layers": list(session.config.layers), "batch": session.config.recipe().batch,
        "loss": config.loss, "optimizer": config.optimizer, "dataset": data.name}
    variant = Variant(SUITE, opt, precision_name(opt), "epoch_ms", conditions,
                      partial(_turn, program, harness))
    variant.facts = dict(program.footprint)
    variant.notes = [f"toggles: {','.join(words)}", *session.selection.notes]
    return variant


def _turn(program: Training, harness: Harness, number: int) -> Sample:
    with harness.watch.during() as observed:
        found = timed(program)
    libraries: dict[str, str] = {}
    with suppress(RawnnError, KeyError):
        libraries = program.session.runner.describe()["libraries"]
    return sample_of(found, program.session.prepared.updates, observed, "epoch_ms",
                     libraries=libraries)
