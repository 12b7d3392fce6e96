"""Small pieces of sentences."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 step", "3 steps", "1,000 steps"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
