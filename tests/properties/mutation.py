"""Broken files, by the thousand: a seeded stream of mutations of good content."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path


def mutants(content: bytes, pieces: Sequence[bytes], count: int,
            generator: random.Random) -> Iterator[bytes]:
    """`count` copies of `content`, each with one to four mutations: bits flipped, bytes changed,
    ranges cut out, doubled or swapped, the end cut off, and `pieces` put in or written over."""
    for _ in range(count):
        mutant = bytearray(content)
        for _ in range(generator.choice((1, 1, 1, 2, 3, 4))):
            _mutate(mutant, pieces, generator)
        yield bytes(mutant)


class Rewritten:
    """A file whose content is replaced in place: opening a file anew for each of thousands of
    mutants costs far more than reading it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb", buffering=0)

    def __enter__(self) -> Rewritten:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, content: bytes) -> None:
        self._file.seek(0)
        self._file.write(content)
        self._file.truncate()


def _mutate(mutant: bytearray, pieces: Sequence[bytes], generator: random.Random) -> None:
    at = generator.randrange(len(mutant) + 1)
    end = min(len(mutant), at + generator.choice((1, 2, 4, 16)))
    how = generator.randrange(8)
    if how == 0 and at < len(mutant):
        mutant[at] ^= 1 << generator.randrange(8)
    elif how == 1:
        mutant[at:end] = generator.randbytes(end - at)
    elif how == 2:
        del mutant[at:end]
    elif how == 3:
        mutant[at:at] = mutant[at:end]
    elif how == 4:
        del mutant[at:]
    elif how == 5:
        mutant[at:at] = generator.choice(pieces)
    elif how == 6:
        mutant[at:end] = generator.choice(pieces)
    else:  # a number in the text becomes another
        for place in range(at, len(mutant)):
            if 48 <= mutant[place] <= 57:
                mutant[place : place + 1] = str(generator.choice(
                    (-1, 0, 7, 255, 2**31, 2**63, 2**64, 10**30))).encode()
                break
