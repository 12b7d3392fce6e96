"""Numbers that carry a flag bit, on the CPU emulator: what is sent is received except for that bit,
in any order in which stores become visible."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from rawnn.ptx import SOURCES
from tests import requires
from tests.ptx.emulator.emulator import Kernels

HERE = Path(__file__).resolve().parent / "emulator"
ROUNDS = 5


def without_last_bit(values: np.ndarray) -> np.ndarray:
    """Of each four floats the last without its lowest bit: the odd one of the two neighbours."""
    bits = values.view(np.uint32).copy()
    last = bits[..., 3]
    last |= (last & 1) << 1
    last &= ~np.uint32(1)
    return bits


def in_halves(values: np.ndarray) -> np.ndarray:
    """As bfloat16, the third of each four without its lowest bit, of the same kind."""
    bits = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    third = bits[..., 2]
    third |= (third & 1) << 1
    third &= ~np.uint16(1)
    return bits.view(ml_dtypes.bfloat16).astype(np.float32).view(np.uint32)


def check_marks(sources: Path = SOURCES) -> None:
    library = Kernels(("marks.cu",), ("converse", "converse_in_halves"), folders=(HERE,),
                   sources=sources).build()
    rng = np.random.default_rng(3)
    say = rng.standard_normal((ROUNDS, 64, 4)).astype(np.float32)
    say.reshape(-1)[:32:2] = 0.0
    say[1, :3, 3] = np.inf, -np.inf, np.finfo(np.float32).max
    say[1, :3, 2] = np.inf, -np.inf, np.finfo(np.float32).max
    say[2, :3] = np.nan
    for seed in range(4):
        for first in (0, 2**32 - 4):
            for name, width, wanted in (("converse", 4, without_last_bit(say)),
                                        ("converse_in_halves", 2, in_halves(say))):
                slots, answers = (np.zeros((n, width), np.float32 if width == 4 else np.uint32)
                                  for n in (128, 32))
                received = np.full((ROUNDS, 3, 32, 4), 7.0, np.float32)
                library.call(name, (2,), (32,), cooperative=True, run=seed, say=say.copy(),
                             slots=slots, received=received, answers=answers, first=first,
                             rounds=ROUNDS)
                found = received.view(np.uint32)
                numbers = ~np.isnan(wanted.view(np.float32))
                two = found[:, :2].reshape(ROUNDS, 64, 4)
                assert np.array_equal(two[numbers], wanted[numbers])
                assert np.isnan(two.view(np.float32)[~numbers]).all()
                assert np.array_equal(found[:, 2], found[:, 0])


@requires.GXX
def test_what_is_sent_is_received() -> None:
    check_marks()


def test_the_bit_is_rounded_off() -> None:
    """To the odd neighbour where it lay between two; infinity stays what it is."""
    values = np.array([[1, 2, 3, 1 + 2**-23], [0, 0, 0, np.inf], [0, 0, 0, 1 + 3 * 2**-23],
                       [0, 0, 0, np.finfo(np.float32).max]], np.float32)
    found = without_last_bit(values).view(np.float32)[:, 3]
    assert list(found[:3]) == [1 + 2**-22, np.inf, 1 + 2**-22]
    assert np.isfinite(found[3])
