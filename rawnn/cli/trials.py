"""`rawnn kernel check`, `time` and `sweep`: whether a user's kernel is right, how fast it is, and
with which macros it is fastest."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from rawnn.cli import compiler
from rawnn.cli.screen import say
from rawnn.common.errors import ConfigError, DeviceError, RawnnError

if TYPE_CHECKING:
    from rawnn.lab.kernel import Kernel
    from rawnn.lab.work import Work

LIMIT = 60.0


def of_work(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that describe a kernel and its work. The command ends by force if
    the reference is stuck."""
    @wraps(command)
    def limited(*arguments: Any, **options: Any) -> Any:
        from rawnn.lab.time_limit import killed_if_stuck

        with killed_if_stuck():
            return command(*arguments, **options)

    decorated: Callable[..., Any] = limited
    for decorate in reversed((
        click.argument("file", type=click.Path(path_type=Path)),
        click.argument("name", required=False),
        click.option("--reference", metavar="TEXT",
                     help="What it has to compute: NumPy ('a * x + y'), or file.py:function."),
        click.option("--grid", metavar="TEXT",
                     help="Blocks: numbers or expressions ('cdiv(n, 256)'), commas between."),
        click.option("--block", metavar="TEXT", help="Threads of a block, likewise."),
        click.option("--size", "sizes", multiple=True, metavar="NAME=SIZES",
                     help="Sizes to try: n=1000, n=1,31,4096 or n=1..4096."),
        click.option("--shape", "shapes", multiple=True, metavar="NAME=EXTENTS",
                     help="The extents of an array: x=rows,cols."),
        click.option("--value", "values", multiple=True, metavar="NAME=VALUE",
                     help="A number that the kernel takes."),
        click.option("--length", metavar="TEXT",
                     help="How many products are added up for one element."),
        click.option("--arch", metavar="sm_90a", help="Architecture. [default: this GPU's]"),
        *compiler.OPTIONS,
        click.option("--seed", default=0, show_default=True, help="Of all random samples."),
        click.option("--limit", default=LIMIT, show_default=True, metavar="SECONDS",
                     help="Of a launch, in a process of its own, and of a call of the reference; "
                          "0: in this one, without a limit."),
        click.option("--device", default="gpu", show_default=True, metavar="gpu:N|sim",
                     help="Where to run; sim tries all but what the kernel computes."),
    )):
        decorated = decorate(decorated)
    return decorated


def described(file: Path, name: str | None, given: dict[str, Any]) -> tuple[Kernel, Work]:
    """The kernel and its work; removes their arguments from `given`."""
    from rawnn.lab.kernel_files import kernel_of, text_of

    text_of(file)  # a missing file is reported before a missing GPU
    work: dict[str, Any] = {key: given.pop(key) for key in ("reference", "length")}
    for key in ("grid", "block"):
        text = given.pop(key)
        work[key] = None if text is None else _extents(text)
    work["sizes"] = {n: _sizes(text) for n, text in _pairs(given.pop("sizes"), "--size")}
    work["shapes"] = {n: _extents(text) for n, text in _pairs(given.pop("shapes"), "--shape")}
    work["values"] = dict(_pairs(given.pop("values"), "--value"))
    return kernel_of(file, name, device=_device(given.pop("device")),
                     defines=compiler.macros(given.pop("defines")),
                     options=given.pop("options"), include=given.pop("include"),
                     arch=given.pop("arch"),
                     **{key: value for key, value in work.items() if value not in (None, {})})


def _pairs(texts: tuple[str, ...], option: str) -> list[tuple[str, str]]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option} {text}: write NAME=VALUE")
        found.append((name, value))
    return found


def _extents(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _sizes(text: str) -> Any:
    try:
        return text if ".." in text else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--size ...={text}: write 1000, 1,31,4096 or 1..4096") from None


def _device(wanted: str) -> Any:
    from rawnn.engine.machine import open_gpu
    from rawnn.lab.arrays import default_device, simulated

    if wanted == "sim":
        return simulated()
    kind, _, number = wanted.partition(":")
    if kind != "gpu" or (number and not number.isdigit()):
        raise ConfigError(f"--device {wanted}: a kernel runs on gpu, gpu:N or sim")
    try:
        return open_gpu(int(number), print) if number else default_device()
    except DeviceError as error:
        reason = str(error).partition("; without a GPU")[0]
        raise DeviceError(f"{reason}; --device sim compiles the kernel and checks its launches "
                          f"without a GPU") from None


WATCH = click.option("--watch", is_flag=True, help="Again at every save, till Ctrl-C.")
_SOURCES = (".cu", ".cuh", ".h", ".hpp", ".py")
_PAUSE = 0.3
"""Seconds between checks of the files."""


def repeated(file: Path, include: tuple[str, ...], watch: bool, once: Callable[[], int]) -> int:
    """Run `once`, or with `watch` again whenever a source in the folder of FILE or in its include
    folders is saved. Errors are printed, and the next save is awaited."""
    if not watch:
        return once()
    folders = [file.parent, *map(Path, include)]

    def stamps() -> dict[Path, int]:
        found = [path for folder in folders for path in folder.iterdir()
                 if path.suffix in _SOURCES]
        return {path: path.stat().st_mtime_ns for path in found if path.exists()}

    try:
        while True:
            seen = stamps()
            try:
                once()
            except RawnnError as error:
                say(str(error))
            say(f"waiting for the next save beside {file}; Ctrl-C ends")
            while stamps() == seen:
                sleep(_PAUSE)
    except KeyboardInterrupt:
        return 0


@click.command()
@of_work
@click.option("--trials", default=12, show_default=True, help="Sets of sizes, if sampled.")
@click.option("--special", is_flag=True, help="Put NaN, infinities and zeros among the inputs.")
@compiler.LEFT_OUT
@WATCH
def check(file: Path, name: str | None, trials: int, special: bool, left_out: bool, watch: bool,
          seed: int, limit: float, **given: Any) -> int:
    """Is the kernel of FILE right? It is tried on many sizes and compared with a reference, as its
    header says; these options override the header.

    The exit status is 0 if it is, else 1."""
    from rawnn.lab.checking import check as checked

    def once() -> int:
        kernel, work = described(file, name, dict(given))
        if left_out:
            compiler.list_left_out(file, kernel.left_out, True)
        found = checked(kernel, work, trials=trials, special=special, seed=seed,
                        limit=limit or None)
        click.echo(str(found))
        return 0 if found else 1

    return repeated(file, given["include"], watch, once)


@click.command()
@of_work
@click.option("--at", multiple=True, metavar="NAME=SIZE",
              help="Sizes to time. [default: the largest]")
@click.option("--samples", default=40, show_default=True, help="Of a cold and of a warm cache.")
@click.option("--bytes", "moved", metavar="TEXT", help="Bytes that have to move, as an expression.")
@click.option("--flops", metavar="TEXT", help="Operations, as an expression ('2 * m * n * k').")
@compiler.LEFT_OUT
@WATCH
def time(file: Path, name: str | None, at: tuple[str, ...], samples: int, moved: str | None,
         flops: str | None, left_out: bool, watch: bool, seed: int, limit: float,
         **given: Any) -> int:
    """How long does the kernel of FILE take, and how far is that from the GPU's limits? Its results
    are compared with the reference after the measurement. With --watch it is also checked on many
    sizes.

    The exit status is 1 if they are wrong, or if the time cannot be true."""
    from rawnn.lab.checking import check as checked
    from rawnn.lab.timing import time as timed

    def once() -> int:
        kernel, work = described(file, name, dict(given))
        if left_out:
            compiler.list_left_out(file, kernel.left_out, True)
        if watch:
            click.echo(str(checked(kernel, work, seed=seed, limit=limit or None).require()))
        found = timed(kernel, work, at=_at(at), samples=samples, seed=seed, limit=limit or None,
                      **_declared(moved, flops))
        click.echo(str(found))
        return 0

    return repeated(file, given["include"], watch, once)


@click.command()
@of_work
@click.option("--over", multiple=True, metavar="NAME=VALUES",
              help="A macro, or grid, block, shared or cluster, with values: TILE=64,128.")
@click.option("--restrict", multiple=True, metavar="TEXT",
              help="A condition on them: 'TILE * WIDTH <= 1024'.")
@click.option("--budget", type=click.IntRange(1), metavar="N", help="Try so many, sampled. [all]")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FILE",
              help="Keep what is found in this file, and go on from it.")
@click.option("--at", multiple=True, metavar="NAME=SIZE",
              help="Sizes to time. [default: the largest]")
@click.option("--samples", default=20, show_default=True, help="Of each variant.")
def sweep(file: Path, name: str | None, over: tuple[str, ...], restrict: tuple[str, ...],
          budget: int | None, resume: Path | None, at: tuple[str, ...], samples: int, seed: int,
          limit: float, **given: Any) -> int:
    """Which macros and launch geometries make the kernel of FILE fastest? Every variant is checked
    before it is timed. The header's `sweep` and `restrict` are used unless options are given.

    The exit status is 1 if no variant is right."""
    from rawnn.lab.header import header
    from rawnn.lab.sweeping import sweep as swept

    kernel, work = described(file, name, given)
    table = header(kernel.source.text, file, name)
    parameters = {n: _values(text) for n, text in _pairs(over, "--over")} or table.get("sweep", {})
    if not parameters:
        raise ConfigError(f"say what to sweep over: --over TILE=64,128, or in the header of {file} "
                          f"sweep = {{TILE = [64, 128]}}")
    restrictions = table.get("restrict", [])
    found = swept(kernel, parameters, work, restrict=restrict or (
        [restrictions] if isinstance(restrictions, str) else restrictions), budget=budget,
        at=_at(at), samples=samples, seed=seed, limit=limit or None, resume=resume,
        tell=lambda variant: say(str(variant)))
    click.echo(str(found))
    if found.variants[0].cold is None:
        return 1
    click.echo("best: " + " ".join(f"{n}={v}" for n, v in found.best.parameters.items()))
    return 0


def _values(text: str) -> list[Any]:
    """Numbers if they are numbers, split at commas outside of brackets."""
    def read(part: str) -> Any:
        try:
            return int(part)
        except ValueError:
            return part

    return [read(part) for part in _extents(text)]


def _at(texts: tuple[str, ...]) -> dict[str, int]:
    found = _pairs(texts, "--at")
    for name, value in found:
        if not value.isdecimal():
            raise ConfigError(f"--at {name}={value}: give one size, such as {name}=4096")
    return {name: int(value) for name, value in found}


def _declared(moved: str | None, flops: str | None) -> dict[str, str]:
    return {key: value for key, value in (("bytes", moved), ("flops", flops)) if value}
