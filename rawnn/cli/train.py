"""`rawnn train`: train a network and show progress and results."""

from __future__ import annotations

import errno
import math
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rawnn.cli.option_groups import Command
from rawnn.cli.options import KEEPING, OUTPUT, PATH, config_options, make_config, run_option
from rawnn.cli.run_summary import (
    epoch_text,
    initialisation_text,
    loss_text,
    network_text,
    training_text,
)
from rawnn.cli.screen import Heartbeat, Pace, duration, fitted, text_console
from rawnn.common.errors import RawnnError
from rawnn.common.files import SideOutput, TextSink, check_output
from rawnn.common.listener import Listener
from rawnn.engine.checkpoint import listed
from rawnn.engine.machine import since_import
from rawnn.engine.parallel import join
from rawnn.engine.session import Session

if TYPE_CHECKING:
    from rawnn.engine.result import Report, Result

HEADER = f"{'epoch':>6} {'train loss':>11} {'train acc':>10} {'test acc':>9} {'ms/epoch':>10}"
LOSS_HEADER = f"{'epoch':>6} {'train loss':>11} {'test loss':>20} {'ms/epoch':>10}"
"""For losses without an accuracy."""


@click.command(cls=Command)
@config_options()
@run_option(KEEPING, "--new-data", "With --resume: go on with other data than the checkpoint's.",
            "they are refused", is_flag=True)
@run_option(OUTPUT, "--json json_file", "Write the whole result as JSON.", "not written",
            metavar="FILE", type=PATH)
@run_option(OUTPUT, "--log-allocations log_file", "Write a line for every call that takes device "
            "memory from the driver or gives it back, to FILE or to the screen.", "not written",
            metavar="[FILE]", is_flag=False, flag_value="-")
@run_option(OUTPUT, "--quiet", "Print nothing but warnings and errors.", "no", is_flag=True)
def train(config_file: str | None, json_file: str | None, log_file: str | None, quiet: bool,
          new_data: bool, **options: Any) -> None:
    """Train a network on MNIST (or another data set) and report how fast and how well.

    Without --opt the preset `best` is used: what is fastest for this network on this machine.
    """
    imports_ms = since_import() * 1e3
    config = make_config(config_file, options)
    reads = config_file, config.data, config.resume
    check_output("--json", json_file, *reads)
    check_output("--log-allocations", None if log_file == "-" else log_file, *reads)
    team = join(config)
    mute = team is not None and team.rank > 0
    if mute:
        quiet, json_file, log_file = True, None, None
    screen = _Screen(quiet, config.epochs, mute, bool(json_file or config.save))
    with ExitStack() as closing:
        log: TextSink | None = None
        if log_file is not None:
            log = sys.stderr if log_file == "-" else \
                closing.enter_context(SideOutput(log_file, screen.notify))
        closing.enter_context(screen)
        session = closing.enter_context(Session(
            config, screen, imports_ms=imports_ms, log_allocations=log, stand_in=True,
            team=team, new_data=new_data))
        result = session.run()
    try:
        if json_file:
            result.write_json(json_file)
    except RawnnError as error:
        if session.unsaved is None:
            raise
        screen.notify(str(error))
    finally:
        if quiet and result.interrupted:
            screen.notify(f"interrupted {_interruption(result)}")
        elif not quiet:
            with _terminal():
                screen.end(result)
    if isinstance(screen.lost, BrokenPipeError):
        click.get_current_context().exit(141)
    if screen.lost is not None:
        raise screen.lost
    if session.unsaved is not None:
        raise session.unsaved
    if result.interrupted:
        click.get_current_context().exit(128 + session.signal)


class _Screen(Listener):
    """Prints rows of the table as reports come in, with a progress bar below on a terminal.

    If output can no longer be written (the reader of a pipe has left, the disk is full), a run that
    writes files ends after its epoch, and writes them: `lost` then says why. Any other ends at
    once.
    """

    reads = False

    def __init__(self, quiet: bool, epochs: int, mute: bool = False, writes: bool = False) -> None:
        """`writes` says that the run leaves files: checkpoints, its result."""
        self.console = text_console()
        self._quiet, self._mute, self._writes = quiet, mute, writes
        self.lost: OSError | None = None
        self._session: Session | None = None
        self._bar = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self.console, transient=True, auto_refresh=False,
            disable=quiet or not self.console.is_terminal,
        )
        self._task = self._bar.add_task("epochs", total=epochs)
        self._drawn = 0.0
        self._running = False
        self._pace = Pace(epochs, "epoch")
        self._heart = Heartbeat(self._alive)

    def __enter__(self) -> _Screen:
        if not self._quiet:
            self._heart.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._quiet:
            self._heart.__exit__()
        if not self._bar.disable:  # rich before 14.3 ends a hidden bar with an empty line
            self._bar.stop()

    def _alive(self) -> None:
        """Print a sign of life: data are fetched, or epochs are long, or few are reported."""
        if not self._running:
            self.notify(f"making ready for {duration(self._pace.elapsed)}")
        elif self._bar.disable:
            self.notify(f"training: {self._pace}")
        else:
            self._bar.refresh()

    def notify(self, message: str) -> None:
        if self._mute:  # rank 0 prints it
            return
        self._write(lambda: click.echo(f"rawnn: {message}", err=True))

    def end(self, result: Result) -> None:
        """Print the result."""
        if self.lost is None:
            _summary(self.console, result)

    def started(self, session: Session) -> None:
        self._counts = session.prepared.targets_per_example > 0
        if self._quiet:
            return
        data = session.data
        if session.device:
            info, libraries = session.device.info, session.runner.describe()["libraries"]
            major, minor = info.compute_capability
            self._line(f"GPU       {info.name} (compute capability {major}.{minor}, "
                       f"{info.multiprocessors} SMs, {info.memory / 2**30:.0f} GiB)")
            versions = [f"driver {info.driver}", f"CUDA {info.cuda}",
                        f"cuda-bindings {info.bindings}",
                        *(f"{name} {version}" for name, version in libraries.items())]
            self._line(f"versions  {', '.join(versions)}")
        else:
            self._line("device    host (NumPy)")
        if session.team is not None:
            team = session.team
            self._line(f"ranks     {team.world_size}, started by {team.place.launcher}")
        self._line(f"data      {data.name}, {len(data.train_images):,} + "
                   f"{len(data.test_images):,} examples, from {data.source}")
        if session.left_out:
            self._line(f"          {session.left_out}")
        self._line(f"network   {network_text(session.prepared, session.config)}")
        self._line(f"toggles   {session.selection}")
        for note in session.selection.notes:
            self._line(f"          {note}")
        self._line("")
        self._line(HEADER if self._counts else LOSS_HEADER)
        self._bar.start()
        self._done, total = session.resumed, session.config.epochs - session.resumed
        self._pace, self._total, self._running = Pace(total, "epoch"), total, True
        self._session = session

    def reported(self, report: Report) -> None:
        if not self._quiet:
            self._heart.restart()
            figures = f"{report.train_accuracy:>10.4f} {report.test_accuracy:>9.4f}" \
                if self._counts else f"{loss_text(report.test_loss):>20}"
            self._line(f"{report.epoch:>6} {loss_text(report.train_loss):>11} {figures} "
                       f"{report.epoch_ms:>10.3f}")

    def epoch_done(self, epoch: int) -> None:
        if self._running:
            self._pace.advance(epoch - self._done, self._total)
        # Redrawn at most every 50 ms: drawing takes longer than a fast epoch.
        if not self._bar.disable and perf_counter() - self._drawn > 0.05:
            self._write(lambda: self._bar.update(self._task, completed=epoch, refresh=True))
            self._drawn = perf_counter()

    def _line(self, text: str) -> None:
        self._write(lambda: self.console.print(fitted(self.console, text, 10), markup=False))

    def _write(self, output: Callable[[], object]) -> None:
        if self.lost is not None:
            return
        try:
            with _terminal():
                output()
        except (OSError, SystemExit) as error:
            reason = error.__context__ if isinstance(error, SystemExit) else error
            if not isinstance(reason, OSError) or self._session is None or not self._writes:
                raise
            self.lost = reason  # rich would turn a broken pipe into an exit
            self._session.stop(f"its output could not be written: {reason.strerror or reason}")


@contextmanager
def _terminal() -> Iterator[None]:
    """Continue without a terminal: the signal (SIGHUP) ends the run."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def _interruption(result: Result) -> str:
    """How far the run got, and how to continue."""
    done, config = result.resumed_epochs + len(result.epoch_ms), result.config
    reached = f"after {done} of {config.epochs} epochs"
    if result.broken_epoch:
        reached = f"{reached}, in the middle of the next" if done else \
            f"in the middle of epoch 1 of {config.epochs}"
    if config.save is None:
        return f"{reached}; nothing is kept without --save DIRECTORY"
    if not listed(config.save):
        return f"{reached}; no checkpoint was reached"
    return f"{reached}; continue with: python -m rawnn --resume {shlex.quote(config.save)}"


def _summary(console: Console, result: Result) -> None:
    def line(name: str, text: str) -> None:
        console.print(fitted(console, f"{name:<15} {text}", 16), markup=False)

    console.print()
    if result.interrupted:
        line("interrupted", _interruption(result))
    if result.stopped:
        line("stopped", result.stopped)
    if result.epoch_ms:
        line("average epoch", epoch_text(result))
    line("total training", training_text(result))
    line("initialisation", initialisation_text(result))
    synthetic = " on SYNTHETIC data" if result.synthetic else ""
    if math.isnan(result.test_loss):
        line("test loss", "not measured, as the run was ended at once")
    elif math.isnan(result.test_accuracy):
        line("test loss", f"{loss_text(result.test_loss, 6)}{synthetic}")
    else:
        line("test accuracy", f"{result.test_accuracy:.4f}{synthetic}")
    if result.environment.gpu:
        line("device memory", f"{result.peak_memory_bytes / 2**20:.1f} MiB at the peak")
    if instead := _instead(result):
        line("NOTE", instead)
    sys.stdout.flush()


def _instead(result: Result) -> str:
    """A sentence on what was used instead of what was asked for."""
    parts = []
    if result.synthetic and result.config.dataset != "synthetic":
        parts.append(f"trained on GENERATED digits, not on {result.config.dataset}")
    if result.environment.gpu is None and result.config.device == "auto":
        parts.append("on the host, not on a GPU" if parts else "trained on the host, not on a GPU")
    return "; ".join(parts)
