"""`rawnn bench`: measure the ladder of optimizations, and show what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import click

from rawnn.bench.accuracy import (
    SEEDS,
    Oracle,
    default_path,
    find_oracle,
    host_accuracy,
    keep_oracle,
)
from rawnn.bench.curves import CURVES, CurvesResult
from rawnn.bench.duel import DUELS, Duel
from rawnn.bench.floors import FLOORS, FloorsResult
from rawnn.bench.ladder import Progress, check_rungs, run_ladder
from rawnn.bench.launches import LAUNCHES, LaunchesResult
from rawnn.bench.measured import Measured, read_measured
from rawnn.bench.peers.records import CONTESTS, ContestsResult
from rawnn.bench.phases import PHASES, PhasesResult
from rawnn.bench.plot import plot_ladder, require_matplotlib
from rawnn.bench.records import LADDERS, LadderResult
from rawnn.bench.scaling import SCALINGS, ScalingResult
from rawnn.bench.sets import SETS
from rawnn.bench.suites import read_suites
from rawnn.bench.table import markdown, provenance, remarks, terminal_table
from rawnn.cli.compare import show_duel
from rawnn.cli.differences import compare
from rawnn.cli.floors import floors, show_floors
from rawnn.cli.kept import Kept
from rawnn.cli.launches import launches, show_launches
from rawnn.cli.options import make_config
from rawnn.cli.peers import (
    Part,
    bench_option,
    merge,
    peers,
    random_contests,
    show_contests,
)
from rawnn.cli.phases import phases, show_phases
from rawnn.cli.report import everything, report
from rawnn.cli.scaling import scaling, show_scaling
from rawnn.cli.screen import Screen, say, sentences, table_console
from rawnn.cli.sets import show_sets, toggles, workloads
from rawnn.cli.suites import ablation, curves, show_ablation, show_curves, sweep
from rawnn.common.errors import ConfigError, RawnnError, nearest
from rawnn.common.files import check_output, write_atomically
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import settled
from rawnn.engine.machine import open_device


class _Bench(click.Group):
    """A group whose default is the ladder, with its options: `rawnn bench --epochs 1`."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["ladder", *args]
        return super().parse_args(context, args)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            raise click.UsageError(f"no such measurement '{args[0]}'" + (
                nearest(args[0], self.commands) or f"; there are {', '.join(self.commands)}"))
        return super().resolve_command(context, args)


@click.group(cls=_Bench, invoke_without_command=True)
@click.pass_context
def bench(context: click.Context) -> None:
    """Measure what each optimization is worth on this machine; the ladder unless another
    measurement is named."""
    if context.invoked_subcommand is None:
        context.invoke(ladder)


@bench.command()
@bench_option
@click.option("--repeats", type=click.IntRange(1),
              help="How often every rung is run, with a seed of its own each time (5).")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="Run all rungs once more only where that is expected to end within this.")
@click.option("--rungs", metavar="TOGGLES",
              help="What each rung adds to the one before (as bench.toml says); a+b adds two at "
                   "once, a preset replaces all. The baseline is always run.")
@click.option("--layers", metavar="784-10", help="Sizes from the inputs to the classes.")
@click.option("--epochs", type=int, help="Passes over the training set (20).")
@click.option("--batch", type=int, help="Examples per step (128).")
@click.option("--lr", type=float, help="Learning rate (0.1).")
@click.option("--seed", type=int, help="Seed of the first repeat (0).")
@click.option("--dataset", metavar="NAME",
              help="mnist (the default), fashion-mnist, idx or synthetic.")
@click.option("--data", metavar="DIRECTORY", help="Where the data set's IDX files are.")
@click.option("--device", metavar="auto|gpu:N|host|sim", help="Where to run (auto).")
@click.option("--json", "json_file", metavar="FILE",
              help="Keep everything as JSON; written after every run.")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
@click.option("--plot", "plot_file", metavar="FILE.svg", help="Draw the ladder.")
@click.option("--oracle", type=click.Choice(["auto", "compute", "off"]), default="auto",
              show_default=True,
              help="Compare accuracies with float64 runs on the host: kept ones if there are any, "
                   "computed now and kept, or not at all.")
@click.option("--oracle-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Where the reference accuracies are kept.")
def ladder(bench_file: str | None, repeats: int | None, budget: float | None, rungs: str | None,
           json_file: str | None, markdown_file: str | None, plot_file: str | None, oracle: str,
           oracle_file: Path | None, **options: Any) -> None:
    """Run the ladder: the same training with one optimization more at every rung, interleaved.

    Exits with 1 if a rung failed; a rung that cannot run on this machine is a row that says why.
    """
    config = make_config(None, options)
    suite = read_suites(bench_file).ladder
    repeats = repeats or suite.repeats
    names = suite.rungs if rungs is None else [r.strip() for r in rungs.split(",") if r.strip()]
    check_rungs([*names, *suite.base])
    _check_outputs(json_file, markdown_file, plot_file)
    data = load_dataset(config.dataset, config.data, notify=say, stand_in=True)
    config, _ = settled(config, data)
    reference = _reference(oracle, oracle_file or default_path(), config, data)
    kept = Kept(json_file)
    with Screen("ladder", repeats) as screen:

        def advance(progress: Progress) -> None:
            kept.write(progress.result)
            screen.advance(progress.done, progress.total, progress.rung)

        result = run_ladder(config, repeats, names, advance, notify=say, data=data,
                            oracle=reference, base=suite.base, budget=budget or inf)
    kept.write(result)
    _show(result)
    if result.interrupted and not any(rung.runs for rung in result.rungs):
        raise click.Abort()
    _export(result, markdown_file, plot_file)
    if result.interrupted:
        raise click.Abort()
    kept.check()
    failed = [rung.name for rung in result.rungs if rung.status == "failed"]
    if failed:
        raise RawnnError(f"{len(failed)} of {len(result.rungs)} rungs failed ({', '.join(failed)});"
                         f" the reasons stand below the table")


@bench.command()
@click.option("--n", "count", type=click.IntRange(1),
              help="How many runs are drawn (30).")
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True,
              help="Seed of the first run (0); each has the next. A run follows from its seed "
                   "alone. With --peers several may be given: a draw of N networks from each.")
@click.option("--work", type=click.FloatRange(1), metavar="N",
              help="Multiply-adds of a step at most, which bound the time that NumPy takes to "
                   "check it (2e9; on a simulated device 2e5).")
@click.option("--peers", "beside_peers", is_flag=True,
              help="Draw networks for speed, and time `best` beside PyTorch and JAX.")
@click.option("--peer", "peer_names", multiple=True, metavar="NAME",
              help="With --peers: torch, jax or numpy; several may be given (torch and jax).")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="With --peers: end with what was measured before this is exceeded.")
@click.option("--part", type=Part(), metavar="K/N",
              help="With --peers: the Kth of every N networks, so that several GPUs share them; "
                   "bench merge makes one file of the parts.")
@click.option("--resume", metavar="FILE",
              help="With --peers: go on where this file ends, and write it.")
@click.option("--markdown", "markdown_file", metavar="FILE",
              help="With --peers: write the tables as Markdown.")
@bench_option
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim",
              help="Where to run (auto).")
@click.option("--json", "json_file", metavar="FILE", help="Keep what was found as JSON.")
def random(count: int | None, seeds: tuple[int, ...], work: float | None, beside_peers: bool,
           peer_names: tuple[str, ...], budget: float | None, part: tuple[int, int] | None,
           resume: str | None, markdown_file: str | None, bench_file: str | None, device: str,
           json_file: str | None) -> None:
    """Train random networks with random toggles, and check each run against NumPy.

    Losses and parameters must come as near to a run in float64 as NumPy does that rounds the same
    numbers. Exits with 1 if a run is wrong or fails; one that does not fit into memory is said.

    With --peers another draw is timed: networks trained by `best` in float32, tf32 and bf16, beside
    the same work in other systems.
    """
    if beside_peers:
        if work is not None:
            raise ConfigError("--work bounds what NumPy checks, which --peers does not")
        random_contests(count, seeds, device, peer_names, budget, resume, json_file,
                        markdown_file, bench_file, part or (1, 1))
        return
    given = {"--peer": peer_names, "--budget": budget, "--part": part, "--resume": resume,
             "--markdown": markdown_file, "--bench": bench_file, "a second --seed": seeds[1:]}
    for option, value in given.items():
        if value:
            raise ConfigError(f"{option} goes with --peers only")
    count, seed = count or 30, seeds[0] if seeds else 0
    from rawnn.bench.random import HEADER, Outcomes, run_random
    from rawnn.bench.specification import SMALL, Limits

    check_output("--json", json_file)
    opened = open_device(Config(device=device).device, say)
    found, kept = Outcomes(), Kept(json_file)
    try:
        limits = SMALL if device == "sim" else Limits()
        limits = replace(limits, work=work or limits.work)
        click.echo(HEADER)
        with Screen("random runs", count) as screen:
            for outcome in run_random(opened, limits, seed, count):
                with screen.aside():
                    click.echo(str(outcome))
                found.append(outcome)
                kept.write(found)
                screen.advance(len(found), count, f"seed {outcome.seed}")
    finally:
        opened.close()
    kept.check()
    wrong = [str(outcome.seed) for outcome in found if outcome.verdict in ("wrong", "failed")]
    if len(found) < count:
        click.echo(f"the device cannot be used any more: {count - len(found)} runs are left")
    if wrong:
        raise RawnnError(f"{len(wrong)} of {len(found)} runs are not right (seeds "
                         f"{', '.join(wrong)}); --n 1 --seed N repeats one")


bench.add_command(workloads)
bench.add_command(toggles)
bench.add_command(compare)
bench.add_command(peers)
bench.add_command(merge)
bench.add_command(ablation)
bench.add_command(sweep)
bench.add_command(curves)
bench.add_command(floors)
bench.add_command(launches)
bench.add_command(scaling)
bench.add_command(phases)
bench.add_command(report)
bench.add_command(everything)


SHOWN: Mapping[type[Measured], Callable[[Any, str | None], None]] = {
    FloorsResult: show_floors, LaunchesResult: show_launches, ScalingResult: show_scaling,
    PhasesResult: show_phases, ContestsResult: show_contests, CurvesResult: show_curves,
    Duel: show_duel}
"""What prints a result that says all by itself, and writes it as Markdown."""


@bench.command()
@click.argument("file", metavar="FILE.json")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write the table as Markdown.")
@click.option("--plot", "plot_file", metavar="FILE.svg", help="Draw the ladder.")
@bench_option
def show(file: str, markdown_file: str | None, plot_file: str | None, bench_file: str | None
         ) -> None:
    """Print the table of what --json kept of any of the suites, or of `rawnn compare`."""
    from rawnn.bench.random import HEADER, read_outcomes

    if (outcomes := read_outcomes(file)) is not None:
        if markdown_file or plot_file:
            raise ConfigError(f"{file} holds random runs, which are shown as text alone")
        click.echo("\n".join([HEADER, *map(str, outcomes)]))
        return
    result: Any = read_measured(
        file, {**LADDERS, **SETS, **FLOORS, **LAUNCHES, **SCALINGS, **PHASES, **CONTESTS,
               **CURVES, **DUELS})
    if isinstance(result, LadderResult):
        _show(result)
        _export(result, markdown_file, plot_file)
        return
    if plot_file:
        raise ConfigError(f"--plot draws a ladder, and {file} holds {result.kind}")
    if type(result) in SHOWN:
        SHOWN[type(result)](result, markdown_file)
    elif result.kind == "ablation":
        show_ablation(result, markdown_file)
    else:
        show_sets(result, markdown_file, bench_file)


def _check_outputs(json_file: str | None, markdown_file: str | None, plot_file: str | None) -> None:
    for option, file in (("--json", json_file), ("--markdown", markdown_file),
                         ("--plot", plot_file)):
        check_output(option, file)
    if plot_file:
        require_matplotlib()


def _reference(mode: str, path: Path, config: Config, data: Dataset) -> Oracle | None:
    if mode == "off":
        return None
    if mode == "auto":
        return find_oracle(path, config, data)

    with Screen("reference", len(SEEDS)) as screen:

        def tell(seed: int, accuracy: float) -> None:
            with screen.aside():
                say(f"float64 on the host, seed {seed}: accuracy {accuracy:.4f}")
            screen.advance(SEEDS.index(seed) + 1, len(SEEDS), f"seed {seed}")

        reference = host_accuracy(config, SEEDS, data=data, on_seed=tell)
    keep_oracle(path, reference)
    return reference


def _show(result: LadderResult) -> None:
    console = table_console()
    table, left_out = terminal_table(result, console.width)
    console.print(table)
    said = [f"no room for {', '.join(left_out)}: a wider terminal, a pipe or --markdown shows all"
            ] if left_out else []
    sentences(console, [*(f"- {text}" for text in (*said, *remarks(result))), *provenance(result),
                        *(f"{name}: {text}" for name, text in result.timer.items())])


def _export(result: LadderResult, markdown_file: str | None, plot_file: str | None) -> None:
    if markdown_file:
        write_atomically(markdown_file, markdown(result).encode())
    if plot_file:
        plot_ladder(result, plot_file)
