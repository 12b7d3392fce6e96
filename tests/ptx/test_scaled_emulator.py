"""wgmma_scaled.cu on the CPU emulator, of numbers of every size: scales that change in every stage,
rows and columns that float16 is far from holding, numbers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.common.target import known
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from tests import requires
from tests.ptx.emulator.plans import Memory, build, launch

pytestmark = requires.GXX

M, N, K = 70, 72, 140


def plan_of(choice: int) -> Plan:
    """A product of each layout: a [M, K] b [N, K]^T, stored as the layout has it."""
    tensors, ops = {}, []
    for layout in ("nt", "nn", "tn"):
        shapes = {"a": (K, M) if layout == "tn" else (M, K),
                  "b": (N, K) if layout == "nt" else (K, N), "c": (M, N)}
        names = {role: f"{layout}_{role}" for role in shapes}
        tensors |= {names[role]: Tensor(names[role], shape, "float32",
                                        Role.PARAMETER if role == "b" else Role.BATCH)
                    for role, shape in shapes.items()}
        ops.append(Op("matmul", layout, names, {
            "layout": layout, "m": M, "n": N, "k": K, "alpha": 1.0, "beta": 0.0, "bias": False,
            "activation": "", "slope": "", "compute": "float32", "choice": choice}, "wgmma_scaled"))
    return Plan("test", tensors, tuple(ops), 1, target=known((9, 0)))


def draws(kind: str, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = (rng.uniform(-1, 1, (rows, K)) for rows in (M, N))
    if kind == "rows":
        a *= 10.0 ** rng.uniform(10, 18, (M, 1))
        b *= 10.0 ** rng.uniform(-37, -15, (N, 1))
    elif kind == "growing":
        a *= 2.0 ** (np.arange(K) / 2)
        b *= 2.0 ** (np.arange(K) / 4)
        b[:, :40] = 0
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.parametrize("choice", [0, 4])
def test_products_of_numbers_of_every_size(choice: int) -> None:
    plan = plan_of(choice)
    library = build([plan])["gemm/wgmma_scaled.cu"]
    rng = np.random.default_rng(1)
    for op in plan.ops:
        layout = op.attributes["layout"]
        for kind in ("rows", "growing", "not finite"):
            a, b = draws(kind, rng)
            if kind == "not finite":
                a[3, 50], a[7, 139], b[5, 0] = np.nan, np.inf, -np.inf
            memory = Memory(plan, 1)
            memory.view(op.operands["a"])[...] = a.T if layout == "tn" else a
            memory.view(op.operands["b"])[...] = b if layout == "nt" else b.T
            launch(library, op, memory)
            found = memory.view(op.operands["c"]).astype(np.float64)
            with np.errstate(invalid="ignore"):
                exact = a.astype(np.float64) @ b.astype(np.float64).T
            finite = np.isfinite(exact)
            assert finite.sum() == ((M - 2) * (N - 1) if kind == "not finite" else M * N)
            assert not np.isfinite(found[~finite]).any()
            size = np.outer(*(np.linalg.norm(x.astype(np.float64), axis=1) for x in (a, b)))
            error = np.abs(found[finite] - exact[finite])
            assert (error <= 2.0**-21 * size[finite]).all(), (layout, kind)
