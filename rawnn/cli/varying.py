"""The values of `--vary NAME=VALUES`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, unknown
from rawnn.engine.config import Config, parse_layers
from rawnn.many.variation import VARYING

_WHOLE = ("epochs", "batch", "seed")
_NUMBERS = ("lr", "momentum", "weight_decay", "beta1", "beta2", "eps", *_WHOLE)
_SWITCHES = ("bias", "partial", "shuffle", "nesterov")
_RANGE = re.compile(r"(linear:)?([^.:].*?)\.\.([^:]+)(?::([0-9]+))?")
MOST = 100_000


def varied(texts: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """The values of each option, in the order given. Raises ConfigError, with how to write it."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals and values.strip()):
            raise ConfigError(f"--vary {text}: write NAME=VALUES, such as lr=1e-4..1e-1:64")
        if name not in VARYING:
            if name in Config.known():
                raise ConfigError(f"--vary {text}: {name} is shared by all members; options that "
                                  f"may vary are {', '.join(VARYING)}")
            raise unknown("option", name, VARYING)
        if name in found:
            raise ConfigError(f"--vary {name} is given twice: write all values behind one")
        found[name] = _values(name, values.strip(), text)
    return found


def _values(name: str, values: str, text: str) -> tuple[Any, ...]:
    if name in _NUMBERS and (match := _RANGE.fullmatch(values)):
        linear, first, last, count = match.groups()
        return _range(name, bool(linear), first, last, count, text)
    parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
    return tuple(_value(name, part, text) for part in parts)


def _value(name: str, part: str, text: str) -> Any:
    if name == "layers":
        return parse_layers(part)
    if name in _SWITCHES:
        if part not in ("true", "false", "yes", "no"):
            raise ConfigError(f"--vary {text}: {name} is true or false")
        return part in ("true", "yes")
    return _number(name, part, text) if name in _NUMBERS else part


def _number(name: str, part: str, text: str) -> int | float:
    try:
        return int(part) if name in _WHOLE else float(part)
    except ValueError:
        raise ConfigError(f"--vary {text}: '{part}' is no "
                          f"{'whole ' if name in _WHOLE else ''}number; write "
                          f"{name}={'0..15' if name in _WHOLE else '1e-4..1e-1:64'}, or values "
                          f"behind commas") from None


def _range(name: str, linear: bool, first: str, last: str, count: str | None,
           text: str) -> tuple[Any, ...]:
    low, high = (_number(name, end.strip(), text) for end in (first, last))
    if not low < high:
        raise ConfigError(f"--vary {text}: the first number must be below the last")
    if count is None:
        if name not in _WHOLE or linear:
            raise ConfigError(f"--vary {text}: say how many, as in {name}={'linear:' * linear}"
                              f"{first}..{last}:16")
        if high - low >= MOST:
            raise ConfigError(f"--vary {text}: that is more than {MOST:,} values")
        return tuple(range(int(low), int(high) + 1))
    if not 2 <= int(count) <= MOST:
        raise ConfigError(f"--vary {text}: give from 2 to {MOST:,} values")
    if linear:
        numbers = np.linspace(low, high, int(count))
    elif low <= 0:
        raise ConfigError(f"--vary {text}: each number is a factor times the one before, so the "
                          f"first must be above 0; for equal steps write {name}=linear:"
                          f"{first}..{last}:{count}")
    else:
        numbers = np.geomspace(low, high, int(count))
    if name not in _WHOLE:
        return tuple(numbers.tolist())
    return tuple(dict.fromkeys(round(n) for n in numbers.tolist()))
