"""`rawnn tune`: find out what is fastest for a network on this GPU, and store it for `best`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from rawnn.cli.option_groups import Command
from rawnn.cli.options import config_options, make_config
from rawnn.cli.screen import say, sentences, table_console
from rawnn.common.errors import ConfigError, DataError, DeviceError
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import named, outline_of, settled
from rawnn.engine.launch_choices import remembered
from rawnn.engine.machine import open_device
from rawnn.engine.result import environment
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.opts.best_table import PACKAGED, Entry, conditions_of, read, remember, user_file
from rawnn.opts.precision_names import precision_of
from rawnn.tuning.launch_tuning import described
from rawnn.tuning.search import Measured, Search, Task, fits


@click.command(cls=Command)
@config_options("sharding", "epochs", "init", "seed", "partial", "patience", "min_delta", "monitor",
                "validation", "save", "save_every", "keep", "resume")
@click.option("--table", "table_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Store what was found there, not in the user's own table.")
@click.option("--show", is_flag=True, help="Print what is stored, and measure nothing.")
def tune(config_file: str | None, table_file: Path | None, show: bool, **options: Any) -> None:
    """Measure sets of toggles in real training, and store the fastest for `--opt best`.

    The options are those of the run to be made fast: layers, batch, optimizer and, in --opt, the
    precision (bf16, tf32, ...), which is never changed. Ctrl-C stores what was found.
    """
    if show:
        for path in [table_file] if table_file else [user_file(), PACKAGED]:
            _show(path)
        if table_file is None:
            _show_launches()
        return
    config = make_config(config_file, options)
    precision = precision_of(word.strip() for word in config.opt.split(","))
    opened = open_device(config.device, say)
    if opened.device is None:
        raise ConfigError(f"tune measures on a GPU: {opened.machine.no_gpu}")
    try:
        data = _data(config)
        config = settled(config, data)[0] if data else config
        task = Task.of(config.network(), config.recipe(), precision, data, opened.machine)
        search = Search(opened.device, task, _tell)
        interrupted = False
        try:
            search.run()
        except KeyboardInterrupt:
            interrupted = True
        if search.fastest():
            entry = _entry(search, task, opened.device.info.driver)
            path = table_file or user_file()
            _report(search, entry)
            remember(path, entry)
            click.echo(f"stored in {path}")
    finally:
        with suppress(DeviceError):
            opened.device.close()
    if interrupted:
        raise click.Abort()
    if not search.fastest():
        raise ConfigError("no set of toggles could be measured: "
                          + next(m.refusal for m in search.found.values()))


def _data(config: Config) -> Dataset | None:
    """The data set that the options name, if it fits the network; else None, for random data."""
    outline = outline_of(config)
    if outline is not None and not fits(config.network(), outline.reconstructing()
                                        if config.autoencoder else outline):
        return None  # without fetching it
    try:
        data = named(config, say, stand_in=True)
    except DataError as error:
        say(f"tuning with random data: {error}")
        return None
    data = data.reconstructing() if config.autoencoder else data
    return data if fits(config.network(), data) else None


def _entry(search: Search, task: Task, driver: str) -> Entry:
    here = environment("cuda", None, {})
    best = search.fastest()[0]
    return Entry(gpu=task.machine.name, layers=task.network.layers, batch=task.recipe.batch,
                 precision=task.precision, toggles=best.toggles, us=round(best.us, 2),
                 others=search.others(), driver=driver, commit=here.commit, date=here.date,
                 conditions=conditions_of(task.network, task.recipe,
                                          data_spec_of(task.data, "train")))


def _tell(found: Measured) -> None:
    if found.us:
        say(f"{found.us:9.1f} us a step  {found.toggles or 'no toggle'}")


def _report(search: Search, entry: Entry) -> None:
    """Print all that was tried, the fastest first, then what could not run."""
    table = Table(title=f"{entry.gpu}: {_what(entry)}, us a step by the device's clock")
    for heading, justify in (("toggles", "left"), ("us", "right"), ("min-max", "right"),
                             ("", "left")):
        table.add_column(heading, justify=justify, overflow="fold",  # type: ignore[arg-type]
                         no_wrap=justify == "right")
    for m in search.fastest():
        table.add_row(m.toggles or "none", f"{m.us:.1f}", f"{m.low:.1f}-{m.high:.1f}", "")
    for m in search.found.values():
        if m.refusal:
            table.add_row(m.toggles, "", "", m.refusal.splitlines()[0])
    table_console().print(table)
    same = sum(m.same_as is not None for m in search.found.values())
    if same:
        click.echo(f"{same} more sets make a plan that was measured already")


def _what(entry: Entry) -> str:
    words = [f"{'-'.join(map(str, entry.layers))} at batch {entry.batch}",
             entry.precision or "float32", *entry.conditions.values()]
    return ", ".join(words)


def _show(path: Path) -> None:
    entries = read(path)
    if not entries:
        click.echo(f"{path}: nothing is stored")
        return
    console = table_console()
    sentences(console, [f"{path}, microseconds of a step:"])
    for e in entries:  # one per row would need some 200 columns
        others = [f"{words or 'none'} {us:.1f}" for words, us in e.others.items()]
        sentences(console, [f"- {e.gpu}, {_what(e)}: {e.toggles or 'none'} {e.us:.1f}"
                            + (f"; others: {', '.join(others)}" if others else "")
                            + f" ({e.date[:10]})"])


def _show_launches() -> None:
    """Print what the toggle `tune` found, file by file; default launches are only counted."""
    for path, choices in remembered().items():
        click.echo(f"\n{path}: {len(choices)} launches measured")
        for key, found in choices.items():
            if found.changes:
                click.echo(f"  {described(key, found)}")
