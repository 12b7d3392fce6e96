"""Whole plans on the CPU emulator: every op's kernel, launched as the runner launches it, beside
the op's NumPy reference on the same operands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.common.dtypes import LOW_PRECISION, numpy_dtype, rounded
from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import find_kernel, parse_kernels
from rawnn.cuda.launch import Arguments
from rawnn.engine.runners.arguments import kernel_arguments, kernel_maps
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx import SOURCES
from rawnn.ptx.gemm.tiles import prefetched_operand
from rawnn.ptx.instance_text import with_instance_text
from rawnn.ptx.kernels import kernel_for
from rawnn.sim.tensormap import SimMap
from tests.engine import CAPABLE, step_plan
from tests.ptx.emulator.emulator import DTYPES, EmulatedLibrary, Kernels, with_headers

NEIGHBOUR = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7,
             "float8_e4m3": 2.0**-3, "float8_e5m2": 2.0**-2}
"""From a number to the next of its type, as a part of it; float32's with room for other orders."""
EARLY = frozenset({"cursor", "order", "images", "labels", "rates", "clock"})
"""What no kernel directly before a training kernel writes: it may be read ahead of the wait."""
WEIGHTS = {
    "softmax_head": {"w", "copy", "bias"}, "narrow_update": {"w1", "b1"},
    "skinny_nt": {"b"}, "skinny_nn": {"b"}, "skinny_update": {"w", "x"},
    "skinny_backward": {"w", "x"},
}  # fmt: skip
"""The same, of single kernels."""


Spoil = Callable[[list[np.ndarray], list[np.ndarray]], None]
"""Makes some number among the layers' weights and biases, its arguments, one that is not finite."""


POISON = 0xFF
"""Each byte of memory that nothing has written: a NaN of all types of floats."""


@dataclass(frozen=True)
class Case:
    """A network, and the toggles that give it its kernels."""

    layers: tuple[int, ...]
    batch: int
    opt: str
    steps: int = 2
    choice: int = 0  # of the variants that a launch has
    spoil: tuple[Spoil, ...] = ()  # what each makes is to come through as in the references
    network: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    packed: str = ""  # a tensor whose rows have no padding, as in a library's

    def plan(self) -> Plan:
        """`steps` steps, unrolled."""
        network = Network(self.layers, **self.network)
        plan = step_plan(network, self.batch, self.batch * self.steps, **self.options)
        selection = select(self.opt, network, self.steps, CAPABLE)
        plan = selection.apply(plan)[0].map_ops(self._chosen).unrolled(self.steps)
        return plan.with_tensors(*(replace(tensor, packed=True) for tensor in plan.tensors.values()
                                   if self.packs(tensor.name)))

    def packs(self, tensor: str) -> bool:
        return tensor.rstrip("'") == self.packed

    def _chosen(self, op: Op) -> Op:
        chosen = ("mma", "wgmma", "wgmma_scaled", "tiled")
        if not self.choice or not has_kernel(op) or op.impl not in chosen:
            return op
        return replace(op, attributes={**op.attributes, "choice": self.choice})


def has_kernel(op: Op) -> bool:
    try:
        kernel_for(op)
    except ConfigError:
        return False
    return True


def instances(plans: list[Plan], names: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The kernel instances that plans need, by source; of the kernels `names` alone, if given."""
    found: dict[str, dict[str, None]] = {}
    for plan in plans:
        for op in plan.ops:
            if has_kernel(op) and (not names or kernel_for(op).name in names):
                impl = kernel_for(op)
                found.setdefault(impl.source, {})[impl.expression(op, plan)] = None
    return {source: tuple(expressions) for source, expressions in found.items()}


class _Driver:
    """Encodes tensor maps, as the simulated driver does."""

    def cuTensorMapEncodeTiled(self, dtype: str, address: int, extents: tuple[int, ...],
                               strides: tuple[int, ...], box: tuple[int, ...], swizzle: str,
                               promotion: str) -> tuple[int, bytes]:
        return 0, SimMap(dtype, address, extents, strides, box, swizzle, promotion).encoded()


class Memory:
    """A plan's tensors as kernels see them: rows padded, all poisoned but what training starts
    from, and nothing beside them."""

    def __init__(self, plan: Plan, seed: int, overflow: int = 0,
                 spoil: Spoil | None = None) -> None:
        self.plan = plan
        self.arrays: dict[str, np.ndarray] = {}
        generator = np.random.default_rng(seed)
        parameters = [t for t in plan.tensors.values() if t.role is Role.PARAMETER]
        classes = next(t for t in reversed(parameters) if len(t.shape) == 2).shape[0]
        for tensor in plan.tensors.values():
            self.arrays[tensor.name] = self._empty(tensor)
            view = self.view(tensor.name)
            if tensor.role is Role.PARAMETER:
                bound = 1.0 / np.sqrt(tensor.shape[-1])
                view[...] = generator.uniform(-bound, bound, view.shape)
            elif tensor.role in (Role.SCRATCH, Role.CURSOR):
                view[...] = 0
            elif tensor.name == "loss_scale":
                view[...] = (8.0, 0.0)
            elif tensor.role in (Role.STATE, Role.EPOCH) and tensor.name not in ("order", "rates"):
                view[...] = generator.uniform(0, 0.01, view.shape) if tensor.floating else 3
            if tensor.name == "images":
                sparse = generator.random(view.shape) < 0.3
                view[...] = generator.integers(0, 256, view.shape) * sparse
            elif tensor.name == "labels":
                view[...] = generator.integers(0, classes, view.shape)
            elif tensor.name == "targets":
                view[...] = generator.standard_normal(view.shape)
            elif tensor.name == "order":
                view[...] = generator.permutation(len(view))
            elif tensor.name == "rates":
                view[...] = generator.uniform(0.1, 0.3, view.shape)
            elif tensor.name == "overflow":
                view[...] = overflow  # 1: updates are to be left out
        if spoil is not None:
            spoil(*([self.view(t.name) for t in parameters if len(t.shape) == axes]
                    for axes in (2, 1)))
        for tensor in plan.tensors.values():
            if tensor.role is Role.COPY:
                self.store(tensor.name, self.read(tensor.source) * tensor.scale)

    @staticmethod
    def _empty(tensor: Tensor) -> np.ndarray:
        """Of exactly its size, poisoned, and aligned as device memory is."""
        dtype = numpy_dtype(tensor.dtype)
        count = int(np.prod(tensor.padded_shape))
        # From a buffer, not from an array, which would be its base: for the CPU emulator the memory
        # ends where the base ends.
        raw = (ctypes.c_ubyte * (count * dtype.itemsize + 256))()
        array = np.ndarray(count, dtype, raw, -ctypes.addressof(raw) % 256)
        assert not isinstance(array.base, np.ndarray)
        array.view(np.uint8)[...] = POISON
        return array

    def spoil_padding(self, name: str) -> None:
        """What the padding holds is not to matter to any kernel, whatever the last one left there.
        """
        tensor = self.plan[name]
        if tensor.padded_shape != tensor.shape:
            view = self.view(name)
            kept = view.copy()
            self.arrays[name].view(np.uint8)[...] = POISON
            view[...] = kept

    def view(self, name: str) -> np.ndarray:
        tensor = self.plan[name]
        shaped = self.arrays[name].reshape(tensor.padded_shape)
        return shaped[tuple(slice(n) for n in tensor.shape)]

    def read(self, name: str) -> np.ndarray:
        """A copy, small floats as float32."""
        view = self.view(name)
        return view.astype(np.float32) if self.plan[name].dtype in LOW_PRECISION else view.copy()

    def store(self, name: str, value: np.ndarray) -> None:
        dtype = self.plan[name].dtype
        self.view(name)[...] = rounded(value, dtype) if dtype in LOW_PRECISION else value


def launch(library: EmulatedLibrary, op: Op, memory: Memory, run: int = 0, **change: Any) -> None:
    """Runs an op's kernel on the plan's memory; `change` replaces numbers of the launch."""
    plan, impl = memory.plan, kernel_for(op)
    expression = impl.expression(op, plan)
    text = with_instance_text((library.kernels.sources / impl.source).read_text(), [expression])
    signature = find_kernel(parse_kernels(text), expression)
    addresses = {name: array.ctypes.data for name, array in memory.arrays.items()}
    values = kernel_arguments(op, plan, signature, addresses)
    for operand, matrix in kernel_maps(op, plan, signature, _Driver()).items():
        values[f"{operand}_map"] = matrix.at(addresses[op.operands[operand]])
    arguments = Arguments(signature, values)
    scalars = impl.scalars(op, plan)
    grid, block = impl.geometry(scalars)
    early = EARLY | WEIGHTS.get(impl.name, set())
    if impl.name.startswith("gemm_") and op.impl != "tiled":
        early |= {prefetched_operand(op, plan)}
    # An operand of the op is early if its tensor is; two operands may be one tensor.
    allowed = {name for role, name in op.operands.items() if role in early}
    # By the source as it is: a planted fault must not choose how it is looked at.
    waits = "pdl_wait" in with_headers(SOURCES, impl.source)
    held = {name: memory.arrays[name] for name in op.operands.values()}
    library.launch(expression, grid, block, ctypes.c_void_p(arguments.address), held,
                shared=impl.shared(scalars), cluster=impl.cluster(scalars),
                early=allowed if waits else None, run=run, **change)


def refer(op: Op, memory: Memory) -> dict[str, np.ndarray]:
    """What the reference makes of the same operands, by tensor."""
    values = {name: memory.read(name) for name in op.operands.values()}
    with np.errstate(all="ignore"):
        op.spec.reference(
            SimpleNamespace(**{role: values[name] for role, name in op.operands.items()}),
            op.attributes)
    return values


def close(found: np.ndarray, wanted: np.ndarray, dtype: str, what: str, exact: float,
          neighbours: float = 0.1) -> None:
    """Every element within one place of its type and `exact` of the largest: sums of another order
    than NumPy's, and products of rounded factors. No more than a part of `neighbours` is not the
    same number."""
    if found.dtype.kind in "iub":
        assert (found == wanted).all(), what
        return
    untouched = ~np.isfinite(wanted)
    same = np.where(np.isfinite(found), 0, found), np.where(untouched, wanted, 0)
    assert np.array_equal(*same, equal_nan=True), f"{what}: infinite or NaN elsewhere"
    found, wanted = found[~untouched], wanted[~untouched]
    scale = np.abs(wanted).max(initial=0.0) + 1e-20
    error = np.abs(found.astype(np.float64) - wanted)
    bound = NEIGHBOUR.get(dtype, 0.0) * np.abs(wanted) + exact * scale
    if dtype != "float32" and error.size >= 32:
        # A sum seldom lies where another order rounds it elsewhere; other random bits often do.
        apart = np.count_nonzero(error) / error.size
        assert apart <= neighbours, f"{what}: {apart:.0%} are neighbours"
    worst = np.argmax(error - bound) if error.size else 0
    assert (error <= bound).all(), (
        f"{what}: {found.flat[worst]} for {wanted.flat[worst]} among {scale}")


CHAINED = {"narrow_inner", "softmax_head"}
"""Kernels that round in between: a number next to a tie moves all that is computed from it."""


def runs(case: Case, plan: Plan) -> list[tuple[int, int, Spoil | None]]:
    """The orders to run a case in, with what Memory starts from: `overflow` and `spoil`."""
    found: list[tuple[int, int, Spoil | None]] = [(0, 0, None), (3, 0, None)]
    if "overflow" in plan.tensors:
        found.append((1, 1, None))
    return found + [(1, 0, spoil) for spoil in case.spoil]


def check(library_of: dict[str, EmulatedLibrary], memory: Memory, run: int,
          names: tuple[str, ...] = ()) -> int:
    """Runs all ops of a plan in order, those of the kernels `names` on the CPU emulator (all, where
    none are given), the others by their references. The number of launches on the CPU emulator.

    Raises EmulatorError, or AssertionError for a result that is not the reference's.
    """
    launches = 0
    for op in memory.plan.ops:
        wanted = refer(op, memory)
        written = {n for n, _ in op.writes}
        impl = kernel_for(op) if has_kernel(op) else None
        if impl is None or (names and impl.name not in names):
            for name in written:
                memory.store(name, wanted[name])
            continue
        for name in op.operands.values():
            memory.spoil_padding(name)
        before = {n: memory.arrays[n].copy() for n in op.operands.values()}
        old = {n: memory.read(n) for n in written}
        launch(library_of[impl.source], op, memory, run)
        launches += 1
        for name, value in wanted.items():
            what = f"{op.name} ({impl.name}): {name}"
            tensor = memory.plan[name]
            if name not in written:
                same = memory.arrays[name].view(np.uint8) == before[name].view(np.uint8)
                assert same.all(), f"{what} was written"
                continue
            found = memory.read(name)
            exact = 2.0**-6 if impl.name in CHAINED else \
                1e-5 if tensor.dtype == "float32" and not _rounds(op) else 2.0**-10
            if tensor.role is Role.METRIC:
                others = np.setdiff1d(np.arange(len(found)), op.slots)
                np.testing.assert_array_equal(found[others], old[name][others],
                                              f"{what}: another step's")
                here = found[op.slots], value[op.slots]
                if found.ndim == 2:  # parts, of which the sum alone has a meaning
                    assert np.isfinite(here[0]).all() or not np.isfinite(here[1]).all(), what
                    here = here[0].sum(axis=1), here[1].sum(axis=1)
                close(*here, tensor.dtype, what, exact)
            elif tensor.role is Role.PARAMETER and tensor.dtype == "float32":
                # The change, not the weight: it is some thousand times smaller.
                close(found - old[name], value - old[name], "float32", what,
                      max(exact, 2.0**-12))
            else:
                value = rounded(value, tensor.dtype) if tensor.dtype in LOW_PRECISION else value
                stored = tensor.role in (Role.PARAMETER, Role.COPY)
                close(found, value, tensor.dtype, what, exact,
                      0.1 if impl.name not in CHAINED else 0.15 if stored else 0.4)
    return launches


def _rounds(op: Op) -> bool:
    """Whether the kernel rounds the factors of its products, as its reference may not."""
    return op.attributes.get("compute", "float32") != "float32" or op.impl in ("mma", "wgmma")


def build(plans: list[Plan], names: tuple[str, ...] = (), sources: Any = SOURCES,
          arch: int = 900) -> dict[str, EmulatedLibrary]:
    """A library of the CPU emulator for each source that the plans need."""
    return {source: Kernels((source,), expressions, arch, ("RAWNN_PDL",), sources).build()
            for source, expressions in instances(plans, names).items()}


__all__ = ["DTYPES", "Case", "Memory", "build", "check", "instances", "launch", "runs"]
