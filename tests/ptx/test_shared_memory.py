"""Dynamic shared memory of the tiled products: what the table of kernels asks for is what the head
of each .cu says, for every tile that it may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from rawnn.common.dtypes import itemsize
from rawnn.common.target import known
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS

Numbers = dict[str, int]


def _sums(s: Numbers) -> int:
    """What the parts that a block's warps add up take: rows of BN floats and 8 more."""
    return s["WK"] * s["BM"] * (s["BN"] + 8) * 4


def _inbox(s: Numbers) -> int:
    """What the other blocks of a cluster leave theirs in: the rows that this block finishes, from
    each of them, and the barrier that counts them."""
    blocks = s["CLUSTER"]
    return -(-s["BM"] // blocks) * blocks * (s["BN"] + 8) * 4 + 16 if blocks > 1 else 0


HEADS: dict[str, Callable[[Numbers], int]] = {
    "tiled": lambda s: max(s["STAGES"] * 32 * (s["BM"] * s["A"] + s["BN"] * s["B"]),
                           _sums(s) if s["WK"] > 1 else 0),
    "mma": lambda s: max(s["STAGES"] * (s["BM"] + s["BN"]) * s["BYTES"], _sums(s)) + _inbox(s),
    "wgmma": lambda s: max(s["STAGES"] * (s["BM"] + s["BN"]) * 128 + 1024, _sums(s)) + _inbox(s),
}
TYPES = {"tiled": (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")),
         "mma": (("float32", "float32"), ("bfloat16", "bfloat16"), ("float8_e4m3", "float8_e5m2")),
         "wgmma": (("bfloat16", "bfloat16"),)}
EXTENTS = (7, 128, 1000, 4096)


def gemm_shape(impl: str, layout: str, m: int, n: int, k: int,
               types: tuple[str, str]) -> tuple[Op, Plan]:
    shapes = {"a": (k, m) if layout[0] == "t" else (m, k),
              "b": (n, k) if layout[1] == "t" else (k, n)}
    tensors = {role: Tensor(role, shape, dtype, Role.ACTIVATION)
               for (role, shape), dtype in zip(shapes.items(), types, strict=True)}
    tensors["c"] = Tensor("c", (m, n), "float32", Role.ACTIVATION)
    op = Op("matmul", "product", {role: role for role in tensors},
            {"layout": layout, "m": m, "n": n, "k": k, "compute": "float32"}, impl)
    return op, Plan("one", tensors, (op,), m, target=known((9, 0)))


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("impl", HEADS)
def test_the_table_gives_what_the_head_asks_for(impl: str, layout: str) -> None:
    entry = KERNELS[Key("matmul", impl, layout)]
    for m, n, k in product(EXTENTS, repeat=3):
        for types in TYPES[impl]:
            op, plan = gemm_shape(impl, layout, m, n, k, types)
            for choice in range(entry.variants(entry.scalars(op, plan))):
                chosen = replace(op, attributes={**op.attributes, "choice": choice})
                scalars = entry.scalars(chosen, plan)
                numbers = {name: int(value) for name, value in scalars.items()}
                a, b = map(itemsize, types)
                asked = HEADS[impl]({**numbers, "A": a, "B": b})
                assert entry.shared(scalars) == asked, (chosen, types)
                assert asked <= 227 << 10
