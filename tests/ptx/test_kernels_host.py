"""The kernels' real arithmetic on the host: the portable kernels of rawnn/ptx on the CPU emulator,
checked against NumPy.

The checks themselves are in emulation/kernel_cases.py. They run with the conversions that any GPU
can do and with those of new ones, with the threads of a block in order, in reverse and at random.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "emulation"))

import emulated_kernels
import kernel_cases

from tests import requires
from tests.ptx.emulator.emulator import EmulatedLibrary
from tests.slices import sliced

pytestmark = requires.GXX

RUNS = {"sm_90 in order": ("sm_90", 0), "sm_75 in reverse": ("sm_75", 1),
        "sm_90 at random": ("sm_90", 3)}


@cache
def built(arch: str) -> EmulatedLibrary:
    return emulated_kernels.kernels(arch=arch).build()


@pytest.mark.parametrize("run", ["sm_90 in order", *sliced([*RUNS][1:])])
@pytest.mark.parametrize("name", kernel_cases.CHECKS)
def test_against_numpy(name: str, run: str) -> None:
    arch, seed = RUNS[run]
    emulator = emulated_kernels.Emulator(built(arch), seed=seed, quick=seed > 0)
    kernel_cases.CHECKS[name](emulator, np.random.default_rng(7))


def test_conversions_by_integers() -> None:
    """In every slice: elsewhere those of the GPU's instructions are taken."""
    casts = emulated_kernels.SOURCES_AND_EXPRESSIONS["elementwise/cast"]
    library = emulated_kernels.kernels(("elementwise/cast",), casts, "sm_75").build()
    for name in ("cast", "casts"):
        emulator = emulated_kernels.Emulator(library, quick=True)
        kernel_cases.CHECKS[name](emulator, np.random.default_rng(7))
