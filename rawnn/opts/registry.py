"""The registry of toggles. Help, the table of `rawnn toggles`, validation and error messages are
made from it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from rawnn.errors import ConfigError
from rawnn.policy import Policy
from rawnn.step.plan import ASSUMED_MULTIPROCESSORS, Plan

Rewritten = tuple[Plan, Policy]


@dataclass(frozen=True)
class Machine:
    """What toggles need to know of the machine: whether there is a GPU, its compute capability,
    the CUDA version its driver supports (12090 for 12.9), which packages can be imported,
    whether the driver can allocate in the order of a stream, what the GPU is called, and how many
    multiprocessors it has.
    `gpu` is None where there is one, else the sentence that says why not."""

    gpu: str | None
    compute_capability: tuple[int, int] = (0, 0)
    driver: int = 0
    has_package: Callable[[str], bool] = lambda package: False
    memory_pools: bool = True
    name: str = ""
    multiprocessors: int = ASSUMED_MULTIPROCESSORS


@dataclass(frozen=True)
class Parameter:
    """The value after a toggle's "=": `parse` returns it or raises ConfigError, `default` is what
    the bare name means (None: a value must be given)."""

    form: str
    parse: Callable[[str], str | int]
    default: str | int | None


@dataclass(frozen=True)
class Comparison:
    """What shows the worth of a toggle: a built-in workload that is trained with the toggles
    `beside`, and with each of `added` beside those (the toggle itself unless some are given)."""

    workload: str
    beside: str
    added: tuple[str, ...] = ()


@dataclass(frozen=True)
class Toggle:
    """One optimization.

    `apply(plan, policy, value)` returns the plan and the policy rewritten. `needs(machine)`
    returns why it cannot run on a machine, or None, and
    `beside(names, machine)` why it cannot run there with the toggles `names`, and what to do.
    `host` says whether it means anything where there is no GPU. `settle(value, machine)` is the
    value that a machine gives to one that leaves it open. `claim` is one line; `source` is where
    the idea comes from; `comparisons` are what `rawnn bench toggles` measures.
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
    beside: Callable[[Collection[str], Machine], str | None] = lambda names, machine: None
    host: bool = False
    settle: Callable[[str | int | None, Machine], str | int | None] = \
        lambda value, machine: value
    comparisons: tuple[Comparison, ...] = ()

    def parse(self, text: str | None) -> str | int | None:
        """The toggle's value from what stands after "=" (None: nothing does)."""
        if self.parameter is None:
            if text is not None:
                raise ConfigError(f"the toggle '{self.name}' takes no value, but got '={text}'")
            return None
        if text is None:
            if self.parameter.default is None:
                raise ConfigError(
                    f"the toggle '{self.name}' needs a value: {self.name}={self.parameter.form}"
                )
            return self.parameter.default
        return self.parameter.parse(text)


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
