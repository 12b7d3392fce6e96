"""The registry of toggles, from which help, the table of `rawnn toggles`, validation and error
messages are made."""

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
    """The value after a toggle's "=".

    parse: returns the value ("": that of the bare name) or raises ConfigError.
    default: what the bare name means (None: a value must be given; "": it has none).
    retired: names that -NAME could leave out in an earlier version. They have no effect now, so
        that commands and files with them stay valid.
    """

    syntax: str
    parse: Callable[[str], str | int]
    default: str | int | None
    retired: tuple[str, ...] = ()

    def notes(self, toggle: str, text: str) -> list[str]:
        """A sentence on each retired name in the text after "="."""
        return [f"{toggle}=-{name} changes nothing: this version has no '{name}'"
                for name in self.retired if name in left_out(text)]


@dataclass(frozen=True)
class Outcome:
    """Whether a part of a toggle applied to a plan: `reason` says why not, "" if it did; `but` is
    the user's kernel that prevented it."""

    part: str
    reason: str
    but: str = ""


@dataclass(frozen=True)
class Toggle:
    """One optimization.

    apply(plan, policy, value): returns both rewritten.
    needs(machine): why it cannot run on a machine, or None.
    beside(names, machine): why it cannot run with the toggles `names`, and what to do.
    conflicts, conflict: the toggles that it excludes, and why.
    combines(value): those of them, and of the toggles that exclude it, that a value goes with.
    instead: a list of toggles that contains this one does not start from these.
    host: whether it has an effect without a GPU.
    resolve(value, machine): the value that a machine gives to one that is left open.
    resolved_value(value, plan): the value, as one would type it, that reproduces its result in the
        plan of a step.
    claim: one line on what it does.
    source: where the idea comes from.
    outcomes(plan, value): the outcomes of its parts in the plan that it is applied to.

    bench.toml lists the comparisons that show its speedup.
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
    combines: Callable[[str | int | None], tuple[str, ...]] = lambda value: ()
    instead: tuple[str, ...] = ()
    beside: Callable[[Collection[str], Machine], str | None] = lambda names, machine: None
    host: bool = False
    resolve: Callable[[str | int | None, Machine], str | int | None] = \
        lambda value, machine: value
    resolved_value: Callable[[str | int | None, Plan], str | int | None] = lambda value, plan: value
    outcomes: Callable[[Plan, str | int | None], list[Outcome]] = lambda plan, value: []

    def parse(self, text: str | None) -> str | int | None:
        """The toggle's value from the text after "=" (None without one)."""
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
    """A parser for names of `known` to leave out, each after a "-". It returns them in the order of
    `known`, without the `retired` ones. `what` names them in the plural."""
    names = tuple(known)

    def parse(text: str) -> str:
        first, *wanted = text.split("-")
        if first or not all(wanted):
            raise ConfigError(f"{toggle}={text}: write the {what} to leave out, each after a -, "
                              f"as in {toggle}=-{names[-1]}")
        for name in wanted:
            if name not in names and name not in retired:
                raise ConfigError(f"{toggle}=-{name}: there is no '{name}'" + (
                    nearest(name, names) or f"; the {what} are {', '.join(names)}"))
        return "".join(f"-{name}" for name in names if name in wanted)

    return parse


def left_out(value: str | int | None) -> frozenset[str]:
    """The names in the value of such a parser; none for any other value."""
    return frozenset(value.split("-")[1:]) if isinstance(value, str) and value[:1] == "-" \
        else frozenset()
