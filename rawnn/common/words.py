"""Helpers for wording messages."""

from __future__ import annotations

from collections.abc import Collection
from keyword import iskeyword


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 step", "3 steps", "1,000 steps"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def python_name(name: str) -> str:
    """A name that Python accepts as an identifier: `in_` for `in`."""
    return f"{name}_" if iskeyword(name) else name


def named_by(spelled: str, known: Collection[str]) -> str:
    """The name among `known` for a Python identifier: `in` for `in_`, if there is no `in_`."""
    name = spelled.removesuffix("_")
    return name if spelled not in known and iskeyword(name) and name in known else spelled
