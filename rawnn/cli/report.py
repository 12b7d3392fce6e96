"""`rawnn bench report` and `rawnn bench all`."""

from __future__ import annotations

import traceback
from pathlib import Path
from time import monotonic

import click
import msgspec

from rawnn.bench.report import SECTIONS, write_report
from rawnn.bench.suites import read_suites
from rawnn.cli.peers import bench_option
from rawnn.cli.screen import say
from rawnn.common.errors import ConfigError, RawnnError, unknown
from rawnn.common.files import check_output

SUITES = ("floors", "launches", "ladder", "workloads", "toggles", "ablation", "sweep", "peers",
          "curves", "random")
RESUMABLE = ("sweep", "peers", "random", "workloads", "toggles", "ablation")
"""Suites whose files are gone on with where they end; the others are measured anew."""


@click.command()
@click.argument("results", nargs=-1, metavar="[FILE|DIRECTORY]...")
@click.option("--out", "out", default="report.html", show_default=True, metavar="FILE.html",
              help="The page.")
@click.option("--title", default="What every optimization is worth", show_default=True)
def report(results: tuple[str, ...], out: str, title: str) -> None:
    """Make one HTML page of results files, or of all in a directory (results, unless named).

    It needs no network: figures are in it, and it has no script.
    """
    check_output("--out", out)
    files = [str(file) for name in results or ("results",) for file in _files(Path(name))]
    made = write_report(files, out, title)
    say(f"{out}: {', '.join(section.title for section in made)}")


def _files(path: Path) -> list[Path]:
    """A file, or those of a directory that a report has a section for."""
    if not path.is_dir():
        return [path]
    return [file for file in sorted(path.glob("*.json")) if _kind(file) in SECTIONS]


def _whole(file: Path) -> bool:
    """Whether a file has all that its suite was to measure."""
    head = _head(file)
    return bool(head.kind) and not head.interrupted and not head.ended


class _Head(msgspec.Struct):
    kind: str = ""
    interrupted: bool = False
    ended: str = ""


def _head(file: Path) -> _Head:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Head)
    except (OSError, msgspec.DecodeError):
        return _Head()


def _kind(file: Path) -> str:
    return _head(file).kind


@click.command("all")
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@bench_option
@click.option("--out", "out", default="results", show_default=True, metavar="DIRECTORY",
              help="Where the results files are written, and those that are whole are kept.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="For all that are left: each has its share, and none is begun after this (720).")
@click.option("--device", default="auto", metavar="auto|gpu:N|host|sim", help="Where to run.")
@click.option("--dataset", type=click.Choice(["mnist", "synthetic"]), default="mnist",
              show_default=True, help="The data set.")
@click.pass_context
def everything(context: click.Context, names: tuple[str, ...], bench_file: str | None, out: str,
               budget: float | None, device: str, dataset: str) -> None:
    """Measure all suites of bench.toml, one after the other, each into a file of its own.

    A suite whose file is whole is not measured again, so that after Ctrl-C the same command goes
    on where it was. A suite that fails does not stop the others.
    """
    suite = read_suites(bench_file).all
    wanted, budget = names or tuple(suite.suites), budget or suite.budget
    for name in (*wanted, *suite.shares):
        if name not in SUITES:
            raise unknown("suite", name, SUITES)
    folder, begun = Path(out), monotonic()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from None
    files = {name: folder / f"{name}.json" for name in wanted}
    shares = {name: suite.shares.get(name, 0.0) for name in wanted if not _whole(files[name])}
    until, all_shares = 0.0, sum(shares.values())
    failed: list[str] = []
    for name, file in files.items():
        if name not in shares:
            say(f"{name}: {file} is whole; remove it to measure again")
            continue
        spent = monotonic() - begun
        if spent >= budget:
            raise RawnnError(f"the budget of {budget:.0f} s is spent before {name}; the same "
                             f"command goes on there")
        share = shares[name] * budget / all_shares if shares[name] else budget
        until += share
        left = min(max(until - spent, share), budget - spent)
        say(f"{name}: into {file}, for {left:.0f} of the {budget - spent:.0f} s that are left")
        try:
            _measure(context, name, file, left, bench_file, device, dataset)
        except RawnnError as error:
            failed.append(name)
            say(f"{name}: {error}")
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # a fault of one suite is no reason to lose the others
            failed.append(name)
            traceback.print_exc()
            say(f"{name}: {type(error).__name__}: {error}")
    if failed:
        raise RawnnError(f"{len(failed)} of {len(wanted)} suites failed ({', '.join(failed)})")


def _measure(context: click.Context, name: str, file: Path, left: float, bench_file: str | None,
             device: str, dataset: str) -> None:
    """Run a suite's own command, with its table as Markdown beside the results."""
    group = context.parent.command if context.parent else None
    assert isinstance(group, click.Group)
    command = group.commands[name]
    values: dict[str, object] = {"device": device, "dataset": dataset, "bench_file": bench_file,
                                 "json_file": str(file),
                                 "markdown_file": str(file.with_suffix(".md"))}
    values["budget"] = left
    if name in RESUMABLE:
        values["resume"] = str(file) if _kind(file) else None
    if name == "random":
        values["beside_peers"] = True
    known = {p.name for p in command.params}
    context.invoke(command, **{k: v for k, v in values.items() if k in known})
