"""What `rawnn bench` measures: `bench.toml` beside this file, or one of the user's own.

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

from rawnn.errors import ConfigError, nearest

PACKAGED = Path(__file__).with_name("bench.toml")

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class LadderSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench ladder`: the toggles of the baseline, and what each rung adds."""

    base: list[str]
    rungs: list[str]
    repeats: Count


class SetsSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench workloads`: workloads by name, each with its own sets."""

    names: list[str]
    repeats: Count


class TogglesSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench toggles`: all that the toggles ask for themselves."""

    repeats: Count


class AblationSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench ablation`: a workload with the fastest set `full`, less one toggle at a time, and with
    `base`, plus one at a time."""

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


class PeersSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench peers`: workloads by name, epochs of `steps`."""

    names: list[str]
    steps: Count


class CurvesSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench curves`: the losses of the first `steps` steps of workloads."""

    names: list[str]
    steps: Count


class RandomSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench random --peers`: how many networks, from which seed on."""

    n: Count
    seed: Annotated[int, Meta(ge=0)]


class FloorsSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench floors`: samples of each constant."""

    samples: Count


class AllSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bench all`: which suites, in which order."""

    suites: list[str]


class Suites(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    ladder: LadderSuite
    workloads: SetsSuite
    toggles: TogglesSuite
    ablation: list[AblationSuite]
    sweep: list[SweepSuite]
    peers: PeersSuite
    curves: CurvesSuite
    random: RandomSuite
    floors: FloorsSuite
    all: AllSuite


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
    for name, value in own.items():
        before = packaged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        packaged[name] = {**before, **value} if both and before is not None else value
    return _converted(packaged, path)


def _converted(values: dict[str, Any], path: str) -> Suites:
    try:
        return msgspec.convert(values, Suites)
    except msgspec.ValidationError as error:
        text = str(error)
        unknown = re.search(r"unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?", text)
        if not unknown:
            raise ConfigError(f"{path}: {text}") from None
        where = f" in [{unknown[2]}]" if unknown[2] else ""
        raise ConfigError(f"{path}: unknown key '{unknown[1]}'{where}"
                          + nearest(unknown[1], _keys(unknown[2] or ""))) from None


def _keys(where: str) -> Iterator[str]:
    """The keys that may stand in a table of the file, the top level for an empty name."""
    struct: Any = Suites
    for name in filter(None, re.sub(r"\[[^\]]*\]", "", where).split(".")):
        hint = get_type_hints(struct).get(name, Suites)
        struct = (get_args(hint) or (hint,))[0]
    yield from get_type_hints(struct)


def schema() -> dict[str, Any]:
    """The JSON Schema of the file."""
    return msgspec.json.schema(Suites)
