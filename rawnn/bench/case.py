"""A case of `rawnn bench`: its name, its options, and what measures it.

A new case is a module in rawnn/bench/cases with one `CASE`; if it has settings, they are a struct
in that module and a table of bench.toml. Its command line (rawnn/cli/bench.py), its tables and its
place in the report follow.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import click

from rawnn.bench.record import Results
from rawnn.bench.render.view import View

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Command], Command]
"""What click.option and click.argument return."""

BUDGET = click.option(
    "--budget", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
    help="Take further samples only where that is expected to end within this.")
DEVICE = click.option("--device", default="auto", metavar="auto|gpu:N|host|sim",
                      help="Where to run (auto).")
GPU_DEVICE = click.option("--device", default="auto", metavar="auto|gpu:N|sim",
                          help="Which GPU (auto).")
MNIST = click.option("--dataset", default="mnist", show_default=True, metavar="NAME",
                     help="mnist or synthetic.")
WORKLOADS = click.option("--workload", "names", multiple=True, metavar="NAME",
                         help="A built-in workload; several may be given (those of bench.toml).")


def peer_option(usual: str) -> Option[Any]:
    """Which other systems take part."""
    return click.option("--peer", "peers", multiple=True, metavar="NAME",
                        help=f"torch, jax or numpy; several may be given ({usual}).")


class Part(click.ParamType):  # type: ignore[type-arg]
    """One of several equal parts: "2/3" is (2, 3)."""

    name = "K/N"

    def convert(self, value: str | tuple[int, int], param: click.Parameter | None,
                context: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        number, _, count = value.partition("/")
        if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
            self.fail(f"'{value}' is no part: 2/3 is the second of three", param, context)
        return int(number), int(count)


def part_option(what: str) -> Option[Any]:
    """Which part of the networks, cells or ensembles is measured."""
    return click.option("--part", type=Part(), metavar="K/N",
                        help=f"The Kth of every N {what}, so that several GPUs share them, each "
                             f"command with cores of its own (taskset); bench merge makes one file "
                             f"of the parts.")


@dataclass(frozen=True)
class Case:
    """One case. `measure` is called with the harness, the settings of bench.toml and the values of
    `options`; its docstring is the help of the command. `settings` is the struct of its table of
    bench.toml, or a list of such structs, `view` how its records are shown, where not as all are.
    `failures` says, of what was found, why the exit status is 1, "" where it is 0; so does `doubts`
    under --check, of times that cannot be right. `resumes` says whether a file can be gone on with,
    `aliases` are spellings that still work, `has_bar` says whether progress is shown as a bar,
    `has_plot` whether --plot draws it."""

    name: str
    measure: Callable[..., None]
    options: tuple[Option[Any], ...]
    failures: Callable[[Results], str] = lambda results: ""
    doubts: Callable[[Results], str] | None = None
    resumes: bool = True
    aliases: tuple[str, ...] = ()
    has_bar: bool = True
    has_plot: bool = False
    settings: Any = None
    view: View | None = None

    @property
    def table(self) -> str:
        """The name of its table in bench.toml."""
        return self.name.replace("-", "_")


@cache
def all_cases() -> dict[str, Case]:
    """Every case by name: one for each module of rawnn/bench/cases."""
    package = importlib.import_module("rawnn.bench.cases")
    found = (importlib.import_module(f"{package.__name__}.{module.name}").CASE
             for module in pkgutil.iter_modules(package.__path__))
    return {case.name: case for case in found}
