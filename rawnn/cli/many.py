"""`rawnn many`: train many networks at once, with a table of the best and a plot."""

from __future__ import annotations

import math
import os
import shlex
import signal
import warnings
from dataclasses import replace
from typing import Any

import click
import numpy as np

from rawnn.cli.option_groups import Command
from rawnn.cli.options import (
    DATA,
    DEVICE,
    KEEPING,
    OUTPUT,
    PATH,
    TRAINING,
    config_options,
    devices,
    make_config,
    run_option,
)
from rawnn.cli.run_summary import loss_text
from rawnn.cli.screen import Heartbeat, duration, say
from rawnn.cli.tables import print_table
from rawnn.cli.varying import varied
from rawnn.common.errors import ConfigError, TrainingDiverged
from rawnn.common.files import check_output
from rawnn.common.listener import Listener
from rawnn.common.words import counted
from rawnn.distributed import rank_from_environment
from rawnn.engine.config import Config
from rawnn.many.progress import FIGURES, HIGHER_IS_BETTER, ManyReport
from rawnn.many.result import Many
from rawnn.many.tables import cell
from rawnn.many.training import continue_from, divergence_of, start
from rawnn.many.variation import differing, product_of

VARY = "What varies: lr=1e-4..1e-1:64 (each a factor times the one before), " \
    "lr=linear:0.1..0.5:9, lr=0.1,0.2,0.3, seed=0..15, layers=20-32-3,20-64-3; separate " \
    "values that contain commas by ;. Several --vary make every combination."
HEADER = f"{'epoch':>6} {'members':>8} {'best':>7} {'test loss':>14} {'steps/s':>12} {'left':>14}"


@click.command(cls=Command)
@run_option(TRAINING, "--vary", VARY, "nothing", metavar="NAME=VALUES", multiple=True)
@run_option(TRAINING, "--seeds", "Train each network with N seeds, from --seed on.", "1",
            metavar="N", type=click.IntRange(1))
@run_option(DATA, "--folds", "Cross-validation: each network once a fold, scored on the rows that "
            "the fold holds out.", "none", metavar="N", type=int)
@run_option(DATA, "--repeats", "With --folds: how often rows are assigned anew.", "1", metavar="N",
            type=int, default=1)
@run_option(TRAINING, "--halving", "Successive halving: after each rung, 1 of N networks "
            "continues.", "none", metavar="N", type=float)
@run_option(TRAINING, "--min-epochs", "With --halving: the first rung.",
            "such that fewer than --halving are left for the last epochs", metavar="N", type=int)
@config_options("monitor", "seed", "resume", "device")
@run_option(TRAINING, "--seed", "The first seed.", "0", type=int)
@run_option(TRAINING, "--monitor", "What networks are compared by: test_loss, test_accuracy or "
            "train_loss.", "test_loss", metavar="NAME", values=lambda: FIGURES)
@run_option(KEEPING, "--resume", "Go on from a directory that --save filled, or from a file in it; "
            "of other options only --epochs, --save, --save-every, --keep, --device and --data.",
            "a new run", metavar="PATH", type=PATH)
@run_option(DEVICE, "--device", "Where to run: also on several GPUs, as in gpu:0,1,2,3 or gpu:all.",
            "auto", metavar="auto|gpu:N,...|host|sim", values=lambda: (*devices(), "gpu:all"))
@run_option(OUTPUT, "--best", "Rows of the table.", "10", metavar="N", type=click.IntRange(1),
            default=10)
@run_option(OUTPUT, "--json json_file", "Write all members and scores as JSON.", "not written",
            metavar="FILE", type=PATH)
@run_option(OUTPUT, "--plot plot_file", "Draw the score against what varied: SVG, or by its ending "
            "PNG or PDF.", "not drawn", metavar="FILE", type=PATH)
@run_option(OUTPUT, "--quiet", "Print nothing but warnings and errors.", "no", is_flag=True)
def many(vary: tuple[str, ...], seeds: int | None, folds: int | None, repeats: int,
         halving: float | None, min_epochs: int | None, monitor: str | None, resume: str | None,
         best: int, json_file: str | None, plot_file: str | None, quiet: bool,
         config_file: str | None, **options: Any) -> None:
    """Train many networks at once, each as `train` would train it alone: one for each combination
    of what --vary names, --seeds and --folds.

    Prints a line an epoch and a table of the best. RUNS/a#17 is network 17 of those that --save
    RUNS/a stored, wherever a checkpoint is accepted.
    """
    reads = config_file, options.get("data"), resume
    check_output("--json", json_file, *reads)
    check_output("--plot", plot_file, *reads)
    if plot_file is not None:
        from rawnn.bench.render.charts import require_matplotlib

        require_matplotlib(plot_file)  # before the work
    place = rank_from_environment(os.environ, os.getppid())
    mute = place is not None and place.rank > 0  # rank 0 prints and writes
    if mute:
        quiet, json_file, plot_file = True, None, None
    screen = _Screen(quiet, mute)
    with warnings.catch_warnings(), screen:
        warnings.simplefilter("ignore", RuntimeWarning)  # the listener says the same
        if resume is not None:
            own = {"--vary": vary or None, "--seeds": seeds, "--folds": folds,
                   "--repeats": None if repeats == 1 else repeats, "--halving": halving,
                   "--min-epochs": min_epochs, "--monitor": monitor}
            for name, value in own.items():
                if value is not None:
                    raise ConfigError(f"{name} is stored in the checkpoint: leave it out with "
                                      f"--resume")
            given = {name: value for name, value in options.items() if value is not None}
            found = continue_from(resume, given.pop("data", None), None, screen, given)
        else:
            if folds is not None and options.get("validation") is not None:
                raise ConfigError("with --folds each network is scored on the rows that its fold "
                                  "holds out: leave --validation out")
            configs = _configs(config_file, options, varied(vary), seeds)
            if plot_file is not None and not differing(configs).keys() - {"seed"}:
                raise ConfigError("--plot draws the score against what varies, and nothing but "
                                  "seeds does: add --vary, such as --vary lr=1e-4..1e-1:64")
            found = start(configs, {}, folds=folds, repeats=repeats, halving=halving,
                          min_epochs=min_epochs, monitor=monitor, listener=screen, stacklevel=2)
    if json_file:
        found.to_json(json_file)
    if not quiet:
        _summary(found, best)
    if sentence := divergence_of(found):
        raise TrainingDiverged(sentence)
    if plot_file and not found.interrupted:
        from rawnn.bench.render.variation import chart_of

        chart_of(found.to_dict()).write(plot_file)
    if found.interrupted:
        if not mute:
            say(_interruption(found))
        click.get_current_context().exit(128 + (found.signal or signal.SIGINT))


def _configs(config_file: str | None, options: dict[str, Any], values: dict[str, Any],
             seeds: int | None) -> list[Config]:
    """Every combination, the last option running fastest. Raises ConfigError."""
    for name in values:
        if options.get(name) is not None:
            raise ConfigError(f"{name} is given twice: by --{name.replace('_', '-')} and by --vary")
    if seeds is not None and "seed" in values:
        raise ConfigError("--seeds and --vary seed exclude each other: leave one of them out")
    if "layers" in values and options.get("layers") is None:
        options = {**options, "layers": "-".join(map(str, values["layers"][0]))}
    config = make_config(config_file, options)
    if seeds is not None:
        values = {**values, "seed": tuple(range(config.seed, config.seed + seeds))}
    return [replace(config, **each) for each in product_of(values)]


class _Screen(Listener):
    """A line an epoch."""

    reads = False

    def __init__(self, quiet: bool, mute: bool) -> None:
        self._quiet, self._mute = quiet, mute
        self._begun = False
        self._heart = Heartbeat(self._alive)

    def __enter__(self) -> _Screen:
        if not self._quiet:
            self._heart.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._quiet:
            self._heart.__exit__()

    def _alive(self) -> None:
        say("training" if self._begun else "making ready")

    def notify(self, message: str) -> None:
        if not self._mute:
            say(message)

    def started(self, session: Any) -> None:
        self._begun = True
        if self._quiet:
            return
        members, device = session.members, session.opened.device
        groups = [f"{len(group):,} of {group.config.network()}, batch {group.config.batch}"
                  for group in members.groups]
        shown = "; ".join(groups[:4]) + (f"; {counted(len(groups) - 4, 'more group')}"
                                         if len(groups) > 4 else "")
        data = session.source.data
        several = f"{len(session.gpus)} x " if session.gpus else ""
        click.echo(f"device    {several}{device.info.name if device else 'host (NumPy)'}")
        if session.team is not None:
            click.echo(f"ranks     {session.team.world_size}, started by "
                       f"{session.team.place.launcher}")
        click.echo(f"data      {data.name}, {len(data.train_images):,} examples, from "
                   f"{data.source}")
        click.echo(f"members   {len(members):,}: {shown}")
        if session.rules.rungs:
            rungs = ", ".join(map(str, session.rules.rungs))
            click.echo(f"halving   by {session.rules.halving:g} behind the epochs {rungs}")
        click.echo()
        click.echo(HEADER.replace(f"{'test loss':>14}",
                                  f"{session.rules.monitor.replace('_', ' '):>14}"))

    def reported(self, report: Any) -> None:
        if self._quiet:
            return
        self._heart.restart()
        found: ManyReport = report
        left = "" if math.isnan(found.seconds_left) else duration(found.seconds_left)
        best = str(found.best_member) if found.best_member >= 0 else "-"
        click.echo(f"{found.epoch:>6} {found.members:>8,} {best:>7} {loss_text(found.best):>14} "
                   f"{found.steps_per_second:>12,.0f} {left:>14}")


def _summary(found: Many, rows: int) -> None:
    """The best members, or the best configurations over their folds, and how fast all were."""
    by, what = found.monitor.replace("_", " "), "members"
    if found.lists > 1:
        table, what = found.configurations(), "configurations"
        values = table[f"mean_{found.monitor}"]
        chosen = np.argsort(-values if found.monitor in HIGHER_IS_BETTER else values,
                            kind="stable")[:rows].tolist()
        by = f"mean {by} over {found.lists} folds"
    else:
        table, chosen = found.table(), [member.index for member in found.best(rows)]
    names = [name for name in table.dtype.names or () if name not in ("best_epoch", "members")
             and not (name.endswith("test_accuracy") and not _some(table[name]))]
    click.echo()
    print_table([name.replace("_", " ") for name in names],
                [[cell(table[name][i]) for name in names] for i in chosen],
                f"The best {len(chosen)} of {len(table):,} {what} by {by}")
    seconds = float(found.stored.settings["seconds"])
    click.echo(f"{found.stored.settings['steps']:,} training steps in {seconds:.3g} s, "
               f"{found.network_steps_per_second:,.0f} a second")


def _some(values: Any) -> bool:
    return any(not math.isnan(value) for value in values.tolist())


def _interruption(found: Many) -> str:
    """How far the run got, and how to go on."""
    reached = f"interrupted after {found.stored.epoch} epochs"
    directory = found.stored.settings.get("save")
    if not directory:
        return f"{reached}; nothing is stored without --save DIRECTORY"
    return f"{reached}; continue with: python -m rawnn many --resume " \
           f"{shlex.quote(os.fspath(directory))}"
