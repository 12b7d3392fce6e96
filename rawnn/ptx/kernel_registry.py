"""The table of kernels.

What an op's kernel is told follows from its signature and the plan
(rawnn/engine/runners/arguments.py).
What is left are the source, the template arguments, the sizes, the geometry and the boxes of tensor
maps, which an entry gives for every (kind, impl). Entries are data: nothing here loads a driver.
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
A leading "@" marks the rows (or the elements) that belong to the current step: "@batch" are
`batch` rows from s*stride on, "@1" is element s, and of a metric "@span" are `span` elements from
s on. "?" stands for an extent that only the data's size
gives: rows that `order` picks from."""


@dataclass(frozen=True)
class GeometryVariants:
    """A geometry in several forms, of which the scalar `choice` picks one; the first is the usual
    one. Only for kernels that run in any of them."""

    geometries: tuple[Callable[[Scalars], Geometry], ...]

    def __call__(self, s: Scalars) -> Geometry:
        return self.geometries[int(s.get("choice", 0))](s)


@dataclass(frozen=True)
class KernelImpl:
    """How one (kind, impl) is launched.

    `name` is the kernel's, `template(op, plan)` its template arguments; `sizes(op, plan)` gives the
    parameters that are neither operands, leading dimensions nor attributes of the op, and what else
    the geometry depends on; `geometry(scalars)` the grid and block from all of them; `shapes` the
    extents of every operand, which the simulated device and tests go by. `shared(scalars)` are the
    bytes of dynamic shared memory, `cluster` blocks of a cluster along x. `choices(scalars)` is the
    number of variants of a launch, of which the op's attribute `choice` picks one, 0 by default;
    None where they are the forms of the geometry. `boxes(scalars)` are the rows of a box of every
    operand that the kernel takes a tensor map of; they follow from the kernel's own parameters.
    The blocks of a `cooperative` kernel all run at once. A `relocatable` one is linked with the
    device runtime, an architecture-`specific` one has instructions that the successors of its
    architecture have not (it is compiled for sm_90a, not sm_90). A kernel that is in no file of
    rawnn's brings its `code`.
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
    cooperative: bool = False
    relocatable: bool = False
    specific: bool = False
    code: CudaText | None = None

    def variants(self, scalars: Scalars) -> int:
        """How many variants of a launch there are; 1 where there is nothing to choose."""
        if self.choices is not None:
            return self.choices(scalars)
        return len(self.geometry.geometries) if isinstance(self.geometry, GeometryVariants) else 1

    def expression(self, op: Op, plan: Plan) -> str:
        """The instance that runs the op, such as "matmul_tn<float,float,float>"."""
        arguments = self.template(op, plan)
        return f"{self.name}<{','.join(arguments)}>" if arguments else self.name

    def scalars(self, op: Op, plan: Plan) -> Scalars:
        """Every number that the kernel or its geometry may ask for: attributes, sizes, and the
        bytes of an element of each operand, `itemsize_<operand>`."""
        numbers: Scalars = {f"itemsize_{r}": plan[n].itemsize for r, n in op.operands.items()}
        numbers |= {k: v for k, v in op.attributes.items() if isinstance(v, (int, float))}
        return {**numbers, **self.sizes(op, plan)}


class Key(NamedTuple):
    """What a kernel is found by: the op's kind and implementation, and of a product its layout."""

    kind: str
    impl: str
    layout: str = ""


KERNELS: dict[Key, KernelImpl] = {}

NEUTRAL: Mapping[str, int | float] = {"alpha": 1.0, "beta": 0.0, "decay": 0.0, "copy_scale": 1.0}
"""Numbers that a kernel may do without: it then computes with this value, so that an op with
another is not for it."""


GENERATED: dict[str, Callable[[Op], KernelImpl]] = {}
"""Kinds of ops whose kernels are written for each op -> what writes it."""

WRITTEN: dict[str, tuple[OpSpec, KernelImpl]] = {}
"""Kernels that were written, by name: what they mean."""


def key_of(op: Op) -> Key:
    """The place of an op's kernel in the table."""
    return Key(op.kind, op.impl, op.attributes["layout"] if op.kind == "matmul" else "")


def kernel_for(op: Op) -> KernelImpl:
    """The table's entry for an op. Raises ConfigError for an impl that no kernel provides."""
    if op.kind in GENERATED:
        written = GENERATED[op.kind](op)
        WRITTEN[written.name] = op.spec, written
        return written
    try:
        return KERNELS[key_of(op)]
    except KeyError:
        raise ConfigError(f"no kernel runs the op '{op.name}' ({op.kind}/{op.impl})") from None


# -- what the entries are made from ----------------------------------------------------------------


def ceil(a: int | float, b: int) -> int:
    """a / b, rounded up."""
    return -(-int(a) // b)


def types(op: Op, plan: Plan, *operands: str, default: str = "float32") -> list[str]:
    """C types of operands; `default` for those that the op leaves out."""
    return [c_type(plan[op.operands[r]].dtype if r in op.operands else default) for r in operands]


def flag(value: object) -> str:
    """A template argument that is true or false."""
    return "true" if value else "false"


def plain(op: Op, plan: Plan) -> list[str]:
    """No template arguments."""
    return []


def typed(*operands: str, flags: tuple[str, ...] = (),
          functors: tuple[str, ...] = ()) -> Callable[[Op, Plan], list[str]]:
    """Types of operands, then attributes that are flags, then those that name activations: the
    usual order of template arguments."""

    def template(op: Op, plan: Plan) -> list[str]:
        return [*types(op, plan, *operands),
                *(flag(op.attributes[f]) for f in flags),
                *(functor(str(op.attributes[f])) for f in functors)]

    return template


def no_sizes(op: Op, plan: Plan) -> Scalars:
    """The attributes say all."""
    return {}


def matrix(operand: str) -> Callable[[Op, Plan], Scalars]:
    """rows and cols of an operand; a vector is one row."""

    def sizes(op: Op, plan: Plan) -> Scalars:
        shape = plan[op.operands[operand]].shape
        rows, cols = shape if len(shape) == 2 else (1, *shape)
        return {"rows": rows, "cols": cols}

    return sizes


THREADS = (64, 128, 256)
"""Threads of a block that elementwise kernels are tried with."""


def elements(threads: int = 256, each: int = 1) -> GeometryVariants:
    """One dimension over rows * cols, `each` elements a thread, in blocks of `threads`."""

    def geometry_for(size: int) -> Callable[[Scalars], Geometry]:
        return lambda s: ((max(ceil(s["rows"] * s["cols"], size * each), 1), 1, 1), (size, 1, 1))

    return GeometryVariants(tuple(geometry_for(n) for n
                                  in (threads, *(n for n in THREADS if n != threads))))


SPREAD, EACH = 2048, 4
"""Blocks that keep any GPU busy, and how many vectors a thread takes one behind the other where
there are more."""


def vectors(*operands: str, threads: int = 256) -> GeometryVariants:
    """One dimension over the rows of a matrix, in vectors of columns: 16 bytes of the widest of
    `operands` (float32 where an op leaves one out), as vector_length in common.cuh has them. With a
    thread for each element three of four blocks begin for nothing: an H200's update of 37 million
    weights took 133 us longer so."""

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
