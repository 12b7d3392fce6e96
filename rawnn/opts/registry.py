"""The registry of toggles. Help, the table of `rawnn toggles`, validation and error messages are
made from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from rawnn.common.errors import ConfigError, nearest
from rawnn.common.target import Machine as Machine
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

Rewritten = tuple[Plan, Policy]


@dataclass(frozen=True)
class Parameter:
    """The value after a toggle's "=": `parse` returns it ("": that of the bare name) or raises
    ConfigError, `default` is what the bare name means (None: a value must be given; "": it has
    none). `retired` are names that -NAME could leave out in an earlier version: they change nothing
    now, so that commands and files that have them stay valid."""

    syntax: str
    parse: Callable[[str], str | int]
    default: str | int | None
    retired: tuple[str, ...] = ()

    def notes(self, toggle: str, text: str) -> list[str]:
        """A sentence on each retired name in what stands after "="."""
        return [f"{toggle}=-{name} changes nothing: this version has no '{name}'"
                for name in self.retired if name in left_out(text)]


@dataclass(frozen=True)
class Outcome:
    """What became of a part of a toggle in a plan: `reason` says why it was not taken, "" that it
    was; `but` what it was kept out of."""

    part: str
    reason: str
    but: str = ""


@dataclass(frozen=True)
class Toggle:
    """One optimization.

    `apply(plan, policy, value)` returns the plan and the policy rewritten. `needs(machine)`
    returns why it cannot run on a machine, or None, and
    `beside(names, machine)` why it cannot run there with the toggles `names`, and what to do.
    It excludes those of `conflicts`; `conflict` says why.
    A list of toggles that has this one does not start from those of `instead`.
    `host` says whether it means anything where there is no GPU. `resolve(value, machine)` is the
    value that a machine gives to one that leaves it open, `resolved_value(value, plan)` the one
    that says what became of it in the plan of a step, so that it can be asked for again. `claim` is
    one line; `source` is where the idea comes from. `outcomes(plan, value)` says what became of its
    single parts in the plan that it is applied to. What shows its worth stands in bench.toml.
    """

    name: str
    claim: str
    source: str
    group: str
    apply: Callable[[Plan, Policy, str | int | None], Rewritten]
    parameter: Parameter | None = None
    needs: Callable[[Machine], str | None] = lambda machine: None
    needs_text: str = ""
    implies: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    conflict: str = ""
    instead: tuple[str, ...] = ()
    beside: Callable[[Collection[str], Machine], str | None] = lambda names, machine: None
    host: bool = False
    resolve: Callable[[str | int | None, Machine], str | int | None] = \
        lambda value, machine: value
    resolved_value: Callable[[str | int | None, Plan], str | int | None] = lambda value, plan: value
    outcomes: Callable[[Plan, str | int | None], list[Outcome]] = lambda plan, value: []

    def parse(self, text: str | None) -> str | int | None:
        """The toggle's value from what stands after "=" (None: nothing does)."""
        if self.parameter is None:
            if text is not None:
                raise ConfigError(f"the toggle '{self.name}' takes no value, but got '={text}'")
            return None
        if text is None:
            if self.parameter.default is None:
                raise ConfigError(
                    f"the toggle '{self.name}' needs a value: {self.name}={self.parameter.syntax}"
                )
            return self.parameter.default or None
        value = self.parameter.parse(text)
        return self.parse(None) if value == "" else value


TOGGLES: dict[str, Toggle] = {}


def register(toggle: Toggle) -> Toggle:
    TOGGLES[toggle.name] = toggle
    return toggle


def positive_count(name: str) -> Callable[[str], int]:
    """A parser for a whole number of at least 1."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = 0
        if value < 1:
            raise ConfigError(f"{name}={text}: give a whole number of at least 1")
        return value

    return parse


def leaving_out(toggle: str, what: str, known: Iterable[str],
                retired: Iterable[str] = ()) -> Callable[[str], str]:
    """A parser for names with a "-" before each, which are to be left out of `known`; it gives them
    in the order of those, without the `retired` ones. `what` says in the plural what they are."""
    names = tuple(known)

    def parse(text: str) -> str:
        first, *wanted = text.split("-")
        if first or not all(wanted):
            raise ConfigError(f"{toggle}={text}: write the {what} to leave out, each behind a -, "
                              f"as in {toggle}=-{names[-1]}")
        for name in wanted:
            if name not in names and name not in retired:
                raise ConfigError(f"{toggle}=-{name}: there is no '{name}'" + (
                    nearest(name, names) or f"; the {what} are {', '.join(names)}"))
        return "".join(f"-{name}" for name in names if name in wanted)

    return parse


def left_out(value: str | int | None) -> frozenset[str]:
    """The names in what such a parser gave; none of any other value."""
    return frozenset(value.split("-")[1:]) if isinstance(value, str) and value[:1] == "-" \
        else frozenset()
