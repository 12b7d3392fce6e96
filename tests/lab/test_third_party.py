"""Ten kernels of the kind that users bring, as they would bring them: each compiles, its
description fits, and where the CPU emulator can run it, it is right there. On a GPU:
tests/gpu/test_third_party.py."""

from __future__ import annotations

from pathlib import Path

import pytest

import rawnn
from rawnn.lab.kernel_files import kernel_of
from tests import requires
from tests.lab.on_the_emulator import check_of_nothing, check_on_the_emulator
from tests.slices import sliced

BROUGHT = sorted((Path(__file__).parent / "third_party").glob("*.cu"))
NOT_ON_THE_EMULATOR = ("layernorm", "wmma_gemm", "convolution", "mandelbrot", "histogram", "scan")
"""Libraries of CUDA's, constant memory, products of doubles by name, atomics in shared memory, and
shared memory of a size that the launch gives."""


def test_there_are_ten() -> None:
    assert len(BROUGHT) == 10
    assert {*NOT_ON_THE_EMULATOR} < {path.stem for path in BROUGHT}


@pytest.mark.parametrize("path", BROUGHT, ids=lambda p: p.stem)
def test_it_compiles_and_its_description_fits(path: Path) -> None:
    requires.module("cuda.bindings.nvrtc")
    kernel, work = kernel_of(path, device=rawnn.lab.simulated())
    rawnn.check(kernel, work, trials=3).require()
    assert check_of_nothing(kernel, work).findings[0].what in ("not written", "wrong")


@requires.GXX
@pytest.mark.parametrize("path", sliced(
    (p for p in BROUGHT if p.stem not in NOT_ON_THE_EMULATOR), 2), ids=lambda p: p.stem)
def test_its_code_is_right_on_the_emulator(path: Path) -> None:
    check_on_the_emulator(path, trials=1).require()


def test_constants_of_the_header_go_where_the_kernel_goes() -> None:
    path = Path(__file__).parent / "third_party" / "convolution.cu"
    kernel, _ = kernel_of(path, device=rawnn.lab.simulated())
    assert kernel.symbol("taps").numpy()[2] == pytest.approx(0.4)
    again = rawnn.Kernel.from_recipe(kernel.recipe, kernel.device)
    assert again.symbol("taps").numpy()[2] == pytest.approx(0.4)
