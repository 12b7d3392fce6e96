"""wgmma_tf32.cu on the CPU emulator, in its wide tiles: operands rounded in place, and both
orientations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rawnn.common.target import known
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.gemm.mma import choose_wgmma_tf32
from rawnn.ptx.gemm.tiles import gemm_shape
from tests import requires
from tests.ptx.emulator.plans import Memory, build, launch

pytestmark = requires.GXX

TARGET = replace(known((9, 0)), multiprocessors=1, at_once={1: 1})
"""So few multiprocessors that a product is computed in wide tiles."""


@pytest.mark.parametrize(("layout", "m", "n", "k", "other"), [
    ("nt", 250, 510, 260, 256), ("nn", 510, 250, 260, 256), ("tn", 120, 256, 900, 128)])
def test_products_in_wide_tiles(layout: str, m: int, n: int, k: int, other: int) -> None:
    """Of numbers that are integers in tf32: every bit of the sums is right."""
    shapes = {"a": (k, m) if layout == "tn" else (m, k),
              "b": (n, k) if layout == "nt" else (k, n), "c": (m, n)}
    tensors = {role: Tensor(role, shape, "float32",
                            Role.PARAMETER if role == "b" else Role.BATCH)
               for role, shape in shapes.items()}
    op = Op("matmul", layout, {role: role for role in shapes}, {
        "layout": layout, "m": m, "n": n, "k": k, "alpha": 1.0, "beta": 0.0, "bias": False,
        "activation": "", "slope": "", "compute": "tf32"}, "wgmma_tf32")
    plan = Plan("test", tensors, (op,), 1, target=TARGET)
    tile = choose_wgmma_tf32(gemm_shape(op, plan), TARGET)
    assert (tile.bm if layout == "nn" else tile.bn, tile.stages) == (other, 4)
    library = build([plan])["gemm/wgmma_tf32.cu"]
    rng = np.random.default_rng(3)
    memory = Memory(plan, 1)
    a, b = (rng.integers(-32, 33, shapes[role]).astype(np.float32) for role in "ab")
    for role, exact in (("a", a), ("b", b)):  # rounding to 11 bits restores the integers
        memory.view(role)[...] = exact * rng.uniform(1 - 2.0**-13, 1 + 2.0**-13, exact.shape)
    launch(library, op, memory)
    np.testing.assert_array_equal(memory.view("c"), (a.T if layout == "tn" else a)
                                  @ (b.T if layout == "nt" else b))
