"""The table of kernels.

A kernel's arguments follow from its signature and the plan (rawnn/engine/runners/arguments.py). An
entry gives the rest for each (kind, impl): source, template arguments, sizes, geometry and the
boxes of tensor maps. Entries are data: nothing here loads a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rawnn.common.cuda_text import CudaText
from rawnn.common.dtypes import c_type
from rawnn.common.errors import ConfigError
from rawnn.model.activations import functor
from rawnn.plan.op import Op, OpSpec
from rawnn.plan.plan import Plan

Dim = tuple[int, int, int]
Scalars = dict[str, int | float]
Geometry = tuple[Dim, Dim]
Shape = tuple[str, ...]
"""Extents of an operand: numbers, or names of the kernel's scalar parameters and their products.
A leading "@" marks the rows (or elements) of the current step: "@batch" are `batch` rows from
s*stride on, "@1" is element s, and for a metric "@span" are `span` elements from s on. "?" is an
extent that only the size of the data set gives: that of the rows `order` indexes."""


@dataclass(frozen=True)
class GeometryVariants:
    """Alternative geometries of a kernel; the scalar `choice` selects one, 0 by default. Only for
    kernels that are correct in any of them."""

    geometries: tuple[Callable[[Scalars], Geometry], ...]

    def __call__(self, s: Scalars) -> Geometry:
        return self.geometries[int(s.get("choice", 0))](s)


@dataclass(frozen=True)
class KernelImpl:
    """How one (kind, impl) is launched.

    `name` is the kernel's and `template(op, plan)` gives its template arguments. `sizes(op, plan)`
    gives the parameters that are neither operands, leading dimensions nor attributes of the op, and
    whatever else the geometry depends on. `geometry(scalars)` gives grid and block from all of
    them. `shapes` are the extents of every operand, for the simulated device and for tests.

    `shared(scalars)` is the dynamic shared memory in bytes, `cluster(scalars)` the blocks of a
    cluster along x. `choices(scalars)` is the number of variants of a launch; the op's attribute
    `choice` selects one, 0 by default. None means that the variants are those of the geometry.
    `boxes(scalars)` are the box rows of every operand that the kernel reads by tensor map; they
    follow from the kernel's own parameters.

    `carveout` is the percentage of L1 memory that is to be shared memory; -1: the driver decides.
    All blocks of a `cooperative` kernel are resident at once. A `relocatable` kernel is linked with
    the device runtime. An architecture-`specific` kernel uses instructions that later architectures
    do not have (it is compiled for sm_90a, not sm_90). A `strided` kernel does the same with fewer
    blocks along x, whose threads then do more. `code` is the text of a kernel that is in none of
    rawnn's files.
    """

    source: str
    name: str
    template: Callable[[Op, Plan], list[str]]
    sizes: Callable[[Op, Plan], Scalars]
    geometry: Callable[[Scalars], Geometry]
    shapes: Mapping[str, Shape]
    shared: Callable[[Scalars], int] = lambda s: 0
    cluster: Callable[[Scalars], int] = lambda s: 1
    choices: Callable[[Scalars], int] | None = None
    boxes: Callable[[Scalars], Mapping[str, int]] = lambda s: {}
    carveout: int = -1
    cooperative: bool = False
    relocatable: bool = False
    specific: bool = False
    strided: bool = False
    code: CudaText | None = None

    def variants(self, scalars: Scalars) -> int:
        """Number of variants of a launch; 1 if there is nothing to choose."""
        if self.choices is not None:
            return self.choices(scalars)
        return len(self.geometry.geometries) if isinstance(self.geometry, GeometryVariants) else 1

    def expression(self, op: Op, plan: Plan) -> str:
        """The template instance that runs the op, such as "matmul_tn<float,float,float>"."""
        arguments = self.template(op, plan)
        return f"{self.name}<{','.join(arguments)}>" if arguments else self.name

    def scalars(self, op: Op, plan: Plan) -> Scalars:
        """Every number that the kernel or its geometry may use: attributes, sizes, and
        `itemsize_<operand>`, the bytes of an element of each operand."""
        numbers: Scalars = {f"itemsize_{r}": plan[n].itemsize for r, n in op.operands.items()}
        numbers |= {k: v for k, v in op.attributes.items() if isinstance(v, (int, float))}
        return {**numbers, **self.sizes(op, plan)}


class Key(NamedTuple):
    """The key of a kernel: the op's kind and implementation, and a matrix product's layout."""

    kind: str
    impl: str
    layout: str = ""


KERNELS: dict[Key, KernelImpl] = {}

NEUTRAL: Mapping[str, int | float] = {"alpha": 1.0, "beta": 0.0, "decay": 0.0, "copy_scale": 1.0}
"""Parameters that a kernel may lack, with the value it then assumes. An op with another value needs
a kernel that has the parameter."""


GENERATED: dict[str, Callable[[Op], KernelImpl]] = {}
"""Kinds of ops whose kernels are generated for each op -> the generator."""

WRITTEN: dict[str, tuple[OpSpec, KernelImpl]] = {}
"""Generated kernels by name, with the op that they compute."""


def key_of(op: Op) -> Key:
    """The key of an op's kernel in the table."""
    return Key(op.kind, op.impl, op.attributes["layout"] if op.kind == "matmul" else "")


def kernel_for(op: Op) -> KernelImpl:
    """The table's entry for an op. Raises ConfigError if no kernel provides its impl."""
    if op.kind in GENERATED:
        written = GENERATED[op.kind](op)
        WRITTEN[written.name] = op.spec, written
        return written
    try:
        return KERNELS[key_of(op)]
    except KeyError:
        raise ConfigError(f"no kernel runs the op '{op.name}' ({op.kind}/{op.impl})") from None


# -- helpers for entries ---------------------------------------------------------------------------


def ceil(a: int | float, b: int) -> int:
    """a / b, rounded up."""
    return -(-int(a) // b)


def types(op: Op, plan: Plan, *operands: str, default: str = "float32") -> list[str]:
    """C types of operands; `default` for those that the op omits."""
    return [c_type(plan[op.operands[r]].dtype if r in op.operands else default) for r in operands]


def flag(value: object) -> str:
    """A boolean template argument."""
    return "true" if value else "false"


def plain(op: Op, plan: Plan) -> list[str]:
    """No template arguments."""
    return []


def typed(*operands: str, flags: tuple[str, ...] = (),
          functors: tuple[str, ...] = ()) -> Callable[[Op, Plan], list[str]]:
    """Template arguments in the usual order: types of operands, then attributes that are flags,
    then those that name activations."""

    def template(op: Op, plan: Plan) -> list[str]:
        return [*types(op, plan, *operands),
                *(flag(op.attributes[f]) for f in flags),
                *(functor(str(op.attributes[f])) for f in functors)]

    return template


def no_sizes(op: Op, plan: Plan) -> Scalars:
    """No sizes: the attributes are enough."""
    return {}


def matrix(operand: str) -> Callable[[Op, Plan], Scalars]:
    """rows and cols of an operand; a vector counts as one row."""

    def sizes(op: Op, plan: Plan) -> Scalars:
        shape = plan[op.operands[operand]].shape
        rows, cols = shape if len(shape) == 2 else (1, *shape)
        return {"rows": rows, "cols": cols}

    return sizes


THREADS = (64, 128, 256)
"""Block sizes that elementwise kernels are tried with."""


def elements(threads: int = 256, each: int = 1) -> GeometryVariants:
    """One dimension over rows * cols, `each` elements a thread, in blocks of `threads`."""

    def geometry_for(size: int) -> Callable[[Scalars], Geometry]:
        return lambda s: ((max(ceil(s["rows"] * s["cols"], size * each), 1), 1, 1), (size, 1, 1))

    return GeometryVariants(tuple(geometry_for(n) for n
                                  in (threads, *(n for n in THREADS if n != threads))))


SPREAD, EACH = 2048, 4
"""Blocks that keep any GPU busy, and the vectors that a thread of a larger grid processes one after
the other."""


def vectors(*operands: str, threads: int = 256) -> GeometryVariants:
    """One dimension over the rows of a matrix, in vectors of columns. A vector is 16 bytes of the
    widest of `operands` (float32 if the op omits one), as vector_length in common.cuh defines it.
    A thread for each element would launch several times as many blocks for the same bytes."""

    def geometry_for(size: int) -> Callable[[Scalars], Geometry]:
        def geometry(s: Scalars) -> Geometry:
            length = 16 // max(int(s.get(f"itemsize_{r}", 4)) for r in operands)
            blocks = ceil(s["rows"] * ceil(s["cols"], length), size)
            if blocks > SPREAD:
                blocks = max(ceil(blocks, EACH), SPREAD)
            return (max(blocks, 1), 1, 1), (size, 1, 1)

        return geometry

    return GeometryVariants(tuple(geometry_for(n) for n
                                  in (threads, *(n for n in THREADS if n != threads))))


def in_blocks(*shapes: tuple[int, int]) -> GeometryVariants:
    """A thread for every element of an m x n result, in blocks of columns x rows."""

    def geometry_for(x: int, y: int) -> Callable[[Scalars], Geometry]:
        return lambda s: ((ceil(s["n"], x), ceil(s["m"], y), 1), (x, y, 1))

    return GeometryVariants(tuple(geometry_for(x, y) for x, y in shapes))
