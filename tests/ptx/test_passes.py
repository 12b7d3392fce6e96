"""The kernel of a step's passes, written for a network, on the host's twin against its NumPy
reference: in several forms, number formats and losses."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.dtypes import itemsize
from rawnn.device.compiling.signature import parse_kernels, find_kernel
from rawnn.device.cuda.launch import Arguments
from rawnn.device.target import known
from rawnn.network.layers import Network
from rawnn.opts import select
from rawnn.ptx import SOURCES
from rawnn.ptx.kernels import kernel_for
from rawnn.ptx.passes import KIND, passes_op
from rawnn.ptx.passes_form import sliced
from rawnn.runners.arguments import kernel_arguments
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role
from tests.engine import CAPABLE, step_plan
from tests.ptx.twin.plans import Memory, Spoil, refer
from tests.ptx.twin.cases import a_nan, infinite_in_part
from tests.ptx.twin.twin import Kernels, compiler

import ctypes

pytestmark = pytest.mark.skipif(compiler() is None, reason="no g++ on PATH")

STEPS = 3
OFFSET = 1
ERROR = {"": 2e-5, "tf32": 4e-3, "bf16": 2e-2, "fp16": 4e-3, "sr": 2e-2}
"""By number format, of the norm of what an op leaves: it rounds in between."""


@dataclass(frozen=True)
class Launch:
    """A network's passes in a form: blocks of a cluster, rows, warps, and layers that every block
    computes though they are not narrow."""

    layers: tuple[int, ...]
    batch: int
    numbers: str
    ranks: int
    rows: int
    warps: int
    everywhere: tuple[int, ...] = ()
    network: dict[str, Any] = field(default_factory=dict)
    spoil: Spoil | None = None

    @cached_property
    def plan(self) -> Plan:
        network = Network(self.layers, **self.network)
        plan = step_plan(network, self.batch, self.batch * STEPS)
        opt = ",".join(filter(None, ("preload", self.numbers, "mma,fuse=-passes")))
        left = ("head", "layers", "narrow", "loss_product", "loss_sums", "late_slope")
        opt = ",".join(filter(None, ("preload", self.numbers, "mma")))
        plan = select(opt, network, STEPS, CAPABLE).apply(plan)[0]
        from rawnn.opts.fuse import FUSIONS
        for name in ("loss", "epilogue", "slope", "update"):
            found = FUSIONS[name].apply(plan)
            plan = found if isinstance(found, Plan) else plan
        return passes_op(replace(plan, target=known((9, 0))), self.form)

    @cached_property
    def form(self):
        from rawnn.ptx.passes_form import Network as Sizes

        size = {"": 4, "tf32": 4}.get(self.numbers, 2)
        relu = self.network.get("activation", "relu") == "relu"
        sizes = Sizes(self.layers, self.batch, size, 3 if self.numbers == "" else 1,
                      0.125 if relu else size, "loss" not in self.network,
                      self.network.get("bias", True))
        form = sliced(sizes, self.ranks, self.rows, self.warps)
        return replace(form, sliced=tuple(
            flag and layer not in self.everywhere for layer, flag in enumerate(form.sliced)))


def on_twin(launch: Launch, folder: Path, run: int, sources: Path = SOURCES) -> None:
    plan = launch.plan
    (op,) = plan.find(kind=KIND)
    op = op.at_step(OFFSET, {})
    impl = kernel_for(op)
    (folder / impl.source).write_text(impl.code.text)
    twin = Kernels((impl.source,), (impl.name,), defines=("RAWNN_PDL",), sources=sources,
                   folders=(folder,)).build()
    memory = Memory(plan, 5, spoil=launch.spoil)
    for name in op.operands.values():
        if plan[name].role is Role.BATCH:
            view = memory.view(name)
            generator = np.random.default_rng(3)
            if plan[name].dtype == "int32":
                view[...] = generator.integers(0, launch.layers[-1], view.shape)
            elif name == "t":
                view[...] = generator.random(view.shape) > 0.5
            else:
                memory.store(name, generator.random(view.shape) * (generator.random(view.shape) < 0.5))
        memory.spoil_padding(name)
    wanted = refer(op, memory)
    signature = find_kernel(parse_kernels(impl.code.text), impl.name)
    addresses = {name: array.ctypes.data for name, array in memory.arrays.items()}
    arguments = Arguments(signature, kernel_arguments(op, plan, signature, addresses))
    scalars = impl.scalars(op, plan)
    grid, block = impl.geometry(scalars)
    early = {op.operands[r] for r in ("x", "y", "cursor") if r in op.operands}
    twin.launch(impl.name, grid, block, ctypes.c_void_p(arguments.address),
                {n: memory.arrays[n] for n in op.operands.values()}, shared=impl.shared(scalars),
                cluster=impl.cluster(scalars), early=early, run=run)
    for role in op.spec.writes:
        name = op.operands[role]
        found, right = memory.read(name), wanted[name]
        if role in ("loss_parts", "correct_parts"):
            found, right = (each[OFFSET].sum() for each in (found, right))
            if role == "correct_parts" and launch.numbers:
                assert abs(int(found) - int(right)) <= 0.02 * launch.batch + 1, role
                continue
        exists = np.isfinite(right)
        assert np.array_equal(np.isfinite(found), exists), role
        found, right = (np.where(exists, each, 0).astype(np.float64) for each in (found, right))
        error = np.linalg.norm(found - right)
        assert error <= ERROR[launch.numbers] * np.linalg.norm(right) + 1e-30, \
            (role, error / np.linalg.norm(right))


LAUNCHES = {
    "a cluster of two": Launch((37, 50, 70, 10), 21, "bf16", 2, 16, 8),
    "one block": Launch((37, 50, 70, 10), 21, "bf16", 1, 8, 8),
    "a softmax that is shared": Launch((41, 72, 133, 101), 19, "bf16", 4, 16, 8),
    "rounds": Launch((40, 600, 33), 9, "bf16", 2, 8, 8),
    "float32": Launch((37, 50, 70, 45), 11, "", 2, 8, 8),
    "tf32": Launch((37, 50, 70, 10), 11, "tf32", 4, 8, 16, network={"activation": "tanh"}),
    "squared errors": Launch((37, 90, 70), 30, "bf16", 4, 24, 8, network={
        "loss": "mse", "activation": "gelu"}),
    "float16": Launch((37, 90, 70), 30, "fp16", 8, 32, 8, network={"loss": "bce", "bias": False}),
    "a wide layer of all": Launch((37, 64, 70, 50, 12), 13, "sr", 4, 16, 16, (2,)),
    "no number": Launch((37, 70, 61), 13, "bf16", 2, 8, 8, network={"activation": "tanh"},
                        spoil=a_nan),
    "infinite in part": Launch((37, 70, 61), 13, "tf32", 2, 8, 8, spoil=infinite_in_part),
}


@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize("run", [0, 3])
def test_passes_do_what_their_reference_does(tmp_path: Path, name: str, run: int) -> None:
    on_twin(LAUNCHES[name], tmp_path, run)
