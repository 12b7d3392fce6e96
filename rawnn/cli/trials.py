"""`rawnn kernel check` and `rawnn kernel time`: is a kernel of one's own right, and how fast?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rawnn.errors import ConfigError

if TYPE_CHECKING:
    from rawnn.lab.kernel import Kernel
    from rawnn.lab.work import Work

LIMIT = 60.0


def of_work(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments and options that say a kernel and its work."""
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
        click.option("-D", "defines", multiple=True, metavar="NAME[=VALUE]",
                     help="Define a macro."),
        click.option("-I", "include", multiple=True, metavar="FOLDER",
                     help="A folder with headers."),
        click.option("--option", "options", multiple=True, metavar="OPTION",
                     help="Another option of NVRTC, such as --option=--use_fast_math."),
        click.option("--seed", default=0, show_default=True, help="Of everything drawn."),
        click.option("--limit", default=LIMIT, show_default=True, metavar="SECONDS",
                     help="Of a launch, in a process of its own; 0: in this one."),
        click.option("--device", default="gpu", show_default=True, metavar="gpu:N|sim",
                     help="Where to run; sim tries all but what the kernel computes."),
    )):
        command = decorate(command)
    return command


def described(file: Path, name: str | None, given: dict[str, Any]) -> tuple[Kernel, Work]:
    """The kernel and its work; takes from `given` what says them."""
    from rawnn.lab.files import kernel_of

    work: dict[str, Any] = {key: given.pop(key) for key in ("reference", "length")}
    for key in ("grid", "block"):
        text = given.pop(key)
        work[key] = None if text is None else _extents(text)
    work["sizes"] = {n: _sizes(text) for n, text in _pairs(given.pop("sizes"), "--size")}
    work["shapes"] = {n: _extents(text) for n, text in _pairs(given.pop("shapes"), "--shape")}
    work["values"] = dict(_pairs(given.pop("values"), "--value"))
    macros = {}
    for define in given.pop("defines"):
        macro, equals, value = define.partition("=")
        macros[macro] = value if equals else True
    return kernel_of(file, name, device=_device(given.pop("device")), defines=macros,
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
    from rawnn.lab.arrays import default_device, simulated
    from rawnn.run.machine import open_gpu

    if wanted == "sim":
        return simulated()
    kind, _, number = wanted.partition(":")
    if kind != "gpu" or (number and not number.isdigit()):
        raise ConfigError(f"--device {wanted}: a kernel runs on gpu, gpu:N or sim")
    return open_gpu(int(number), print) if number else default_device()


@click.command()
@of_work
@click.option("--trials", default=12, show_default=True, help="Sets of sizes, where drawn.")
@click.option("--special", is_flag=True, help="Put NaN, infinities and zeros among the inputs.")
def check(file: Path, name: str | None, trials: int, special: bool, seed: int, limit: float,
          **given: Any) -> int:
    """Is the kernel of FILE right? Tried on many sizes beside a reference, as its header says, and
    these options in place of it.

    The exit status is 0 where it is, else 1."""
    from rawnn.lab.checking import check as checked

    kernel, work = described(file, name, given)
    found = checked(kernel, work, trials=trials, special=special, seed=seed, limit=limit or None)
    click.echo(str(found))
    return 0 if found else 1


@click.command()
@of_work
@click.option("--at", multiple=True, metavar="NAME=SIZE",
              help="Sizes to time. [default: the largest]")
@click.option("--samples", default=40, show_default=True, help="Of a cold and of a warm cache.")
@click.option("--bytes", "moved", metavar="TEXT", help="Bytes that have to move, as an expression.")
@click.option("--flops", metavar="TEXT", help="Operations, as an expression ('2 * m * n * k').")
def time(file: Path, name: str | None, at: tuple[str, ...], samples: int, moved: str | None,
         flops: str | None, seed: int, limit: float, **given: Any) -> int:
    """How long does the kernel of FILE take, and how far is that from what the GPU can? Its results
    are compared with the reference behind the clock.

    The exit status is 1 where they are wrong, or where the time cannot be true."""
    from rawnn.lab.timing import time as timed

    kernel, work = described(file, name, given)
    declared = {key: value for key, value in (("bytes", moved), ("flops", flops)) if value}
    found = timed(kernel, work, at={n: _sizes(v)[0] for n, v in _pairs(at, "--at")},
                  samples=samples, seed=seed, limit=limit or None, **declared)
    click.echo(str(found))
    return 0
