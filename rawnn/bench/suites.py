"""What `rawnn bench` measures: bench.toml, or a file of the user's own.

bench.toml stands at the top of the repository; the link beside this file puts it into the package.

Every key is a field of a struct here; docs/suites.md explains them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from rawnn.common.errors import ConfigError, nearest
from rawnn.model.workloads import workload
from rawnn.opts import TOGGLES

PACKAGED = Path(__file__).with_name("bench.toml")

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class LadderSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench ladder`: the toggles of the baseline, and what each rung adds."""

    base: list[str]
    rungs: list[str]
    repeats: Count


class WorkloadsSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench workloads`: workloads by name, and the toggles that each is trained with (`sets`);
    `others` are those of workloads that have none. `epochs` likewise, where they are not the
    workload's own."""

    names: list[str]
    repeats: Count
    epochs: dict[str, Count] = {}
    sets: dict[str, list[str]]


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shows the speedup of a toggle: workloads that are trained with the toggles `beside`, and
    with each of `added` beside those (the toggle itself unless some are given). Where the toggle
    stands in `beside` with another value, it is that which `added` replaces."""

    workloads: list[str]
    beside: str
    added: list[str] = []


class TogglesSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench toggles`: by toggle, what shows its speedup; `epochs` as in WorkloadsSuite."""

    repeats: Count
    epochs: dict[str, Count] = {}
    compare: dict[str, list[Comparison]]


class AblationSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench ablation`: a workload with the fastest configuration `full`, less one toggle at a
    time, and with `base`, plus one at a time."""

    workload: str
    full: str
    base: str
    epochs: Count = 3
    repeats: Count = 3


class SweepSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench sweep`: every network with every batch, by ours in `sets` (numbers:toggles) and by the
    peers; epochs of `steps`."""

    name: str
    layers: list[str]
    batches: list[Count]
    sets: list[str]
    lr: float = 0.003
    steps: Count = 128
    systems: list[str] = msgspec.field(default_factory=lambda: ["torch", "jax"])


class PeersSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench peers` and `bench curves`: workloads by name, their first `steps` steps, beside the
    peers `systems`."""

    names: list[str]
    steps: Count
    systems: list[str]


class SampleSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench sample`: how many random networks, from which seed on, beside the peers `systems`."""

    n: Count
    seed: Annotated[int, Meta(ge=0)]
    systems: list[str]


class LowerBoundsSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench lower-bounds`: samples of each constant."""

    samples: Count


class LaunchesSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench launches`: samples of each way of launching, and launches of a sample."""

    samples: Annotated[int, Meta(ge=1, le=10_000)]
    launches: Annotated[int, Meta(ge=1, le=400)]


class AllSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench all`: which suites, in which order; none is begun after `budget` seconds, and `shares`
    says how many of them are each suite's: what one leaves the next ones have as well."""

    suites: list[str]
    budget: Annotated[float, Meta(gt=0)]
    shares: dict[str, Annotated[float, Meta(gt=0)]] = {}


class Suites(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    ladder: LadderSuite
    workloads: WorkloadsSuite
    toggles: TogglesSuite
    ablation: list[AblationSuite]
    sweep: list[SweepSuite]
    peers: PeersSuite
    curves: PeersSuite
    sample: SampleSuite
    lower_bounds: LowerBoundsSuite
    launches: LaunchesSuite
    all: AllSuite


OLD_TABLES = {"random": "sample", "floors": "lower_bounds"}
"""Tables that were called otherwise, as files of users may still call them."""
OLD_SUITES = {"random": "sample", "floors": "lower-bounds"}

_STRUCTS = {Suites, Comparison, *(
    hint for hint in get_type_hints(Suites).values() if isinstance(hint, type)),
    AblationSuite, SweepSuite}


def read_suites(path: str | None = None) -> Suites:
    """The packaged suites, with what a file of the user's says in their place. Raises ConfigError
    for a file that cannot be read, and for keys and values that mean nothing."""
    packaged = tomllib.loads(PACKAGED.read_text())
    if path is None:
        return _converted(packaged, str(PACKAGED))
    try:
        own = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the suites {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return _converted(_laid_over(packaged, _renamed(own)), path)


def _renamed(own: dict[str, Any]) -> dict[str, Any]:
    """A user's file with today's names of tables and suites."""
    found = {OLD_TABLES.get(name, name): table for name, table in own.items()}
    whole = found.get("all")
    if isinstance(whole, dict):
        whole = dict(whole)
        if isinstance(names := whole.get("suites"), list):
            whole["suites"] = [OLD_SUITES.get(name, name) if isinstance(name, str) else name
                               for name in names]
        if isinstance(shares := whole.get("shares"), dict):
            whole["shares"] = {OLD_SUITES.get(name, name): share for name, share in shares.items()}
        found["all"] = whole
    return found


def _laid_over(below: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A table with the keys of another in place of its own, tables within likewise; lists are
    replaced whole."""
    found = dict(below)
    for name, value in own.items():
        before = found.get(name)
        found[name] = _laid_over(before, value) \
            if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def _converted(values: dict[str, Any], path: str) -> Suites:
    try:
        return _checked(msgspec.convert(values, Suites), path)
    except msgspec.ValidationError as error:
        text = str(error)
        unknown = re.search(r"unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?", text)
        if not unknown:
            raise ConfigError(f"{path}: {text}") from None
        where = f" in [{unknown[2]}]" if unknown[2] else ""
        raise ConfigError(f"{path}: unknown key '{unknown[1]}'{where}"
                          + nearest(unknown[1], _keys(unknown[2] or ""))) from None


def _checked(suites: Suites, path: str) -> Suites:
    """Raise ConfigError for workloads and toggles that there are not."""
    named = [("workloads", name) for name in suites.workloads.names]
    for where, table in (("workloads.sets", suites.workloads.sets),
                         ("workloads.epochs", suites.workloads.epochs),
                         ("toggles.epochs", suites.toggles.epochs)):
        named += [(where, name) for name in table if name != "others"]
    named += [("ablation", suite.workload) for suite in suites.ablation]
    named += [("peers", name) for name in suites.peers.names]
    named += [("curves", name) for name in suites.curves.names]
    for toggle, several in suites.toggles.compare.items():
        if toggle not in TOGGLES:
            raise ConfigError(f"{path}, [toggles.compare]: no toggle is called '{toggle}'"
                              + nearest(toggle, TOGGLES))
        named += [(f"toggles.compare.{toggle}", name) for c in several for name in c.workloads]
    for where, name in named:
        try:
            workload(name)
        except ConfigError as error:
            raise ConfigError(f"{path}, [{where}]: {error}") from None
    return suites


def _keys(where: str) -> Iterator[str]:
    """The keys that may stand in a table of the file, the top level for an empty name."""
    hint: Any = Suites
    for name in filter(None, re.sub(r"\[[^\]]*\]", "", where).split(".")):
        if hint in _STRUCTS:
            hint = get_type_hints(hint).get(name, Suites)
        while get_args(hint):
            hint = get_args(hint)[-1]
    yield from get_type_hints(hint if hint in _STRUCTS else Suites)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return msgspec.json.schema(Suites)
