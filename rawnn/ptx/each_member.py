"""Kernels that do for each of many networks what another kernel does for one: its text, with a
wrapper that moves pointers to the member of blockIdx.z, which no kernel uses.

GEMMs of tensor cores read rows of a shared matrix by the member's list of them (IndexedRows of
gemm/mma_copy.cuh).
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

from rawnn.common.cuda_text import CudaText
from rawnn.plan.op import Op
from rawnn.plan.ops.each_member import FOLD, INDEXED, KIND, OWN, SHARED
from rawnn.plan.ops.members import FOLD_WORD, SETTINGS_WORD
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Tensor
from rawnn.ptx import SOURCES
from rawnn.ptx.instance_text import with_instance_text
from rawnn.ptx.kernel_registry import (
    GENERATED,
    Geometry,
    KernelImpl,
    Scalars,
    Shape,
    ceil,
    kernel_for,
    plain,
)

if TYPE_CHECKING:
    from rawnn.cuda.compiling.signature import KernelSignature, Parameter

MOST_MEMBERS = 65535
"""Members of a launch: blocks of a grid along z."""
STRIDED_BLOCKS = 8 * 8 * 132
"""Blocks of a launch of a strided kernel from which on more blocks take longer than threads that do
more: a block waits for its member, the cursor and the order before it begins."""
DEVICE_FUNCTIONS = '''\
#define RAWNN_CHOSEN_{kernel}
#undef __global__
#define __global__ __device__ __forceinline__
#undef __launch_bounds__
#define __launch_bounds__(...)
{text}
#undef __global__
#undef __launch_bounds__
#ifdef __CUDACC__
#define __global__ __attribute__((global))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#else
#define __global__
#define __launch_bounds__(...)
#endif
'''
"""The kernels of a text as functions of the device."""


def elements_of(tensor: Tensor) -> int:
    """Elements from a member's part of a stack to the next, of tensors like this one. Those of
    vectors are rows of a matrix, so that each begins at 16 bytes; not those that other kernels
    read as one vector."""
    if len(tensor.shape) > 1:
        return tensor.shape[0] * tensor.ld
    row = 1 if tensor.name in FLAT else 16 // tensor.itemsize
    return -(-tensor.shape[0] // row) * row


INDEXED_ROWS = "IndexedRows"
"""What a GEMM's operand is in mma_copy.cuh whose rows a list names."""
FLAT = ("clock", "rates", "loss_scale", "overflow")
"""Vectors of members that lie one behind the other."""


def _signature(text: str, expression: str) -> KernelSignature:
    from rawnn.cuda.compiling.signature import find_kernel, parse_kernels

    return find_kernel(parse_kernels(text), expression)


@cache
def _base_text(source: str, expression: str) -> str:
    return with_instance_text((SOURCES / source).read_text(), (expression,))


def _declared(p: Parameter) -> str:
    kind = f"{'const ' if p.const and p.pointer else ''}{p.ctype}"
    return f"{kind}{'*' if p.pointer else ''} {p.name}"


def _text(op: Op, base: KernelImpl, name: str) -> tuple[str, str]:
    """The text of the kernel `name`, and its declaration alone."""
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    expression = base.expression(single, plan)
    text = _base_text(base.source, expression)
    signature = _signature(text, expression)
    indexed = _indexed(op)
    names = {p.name for p in signature.parameters}
    listed = [word for word in _INDEX_PARAMETERS if indexed
              and word.rpartition(" ")[2] not in names]
    pitches = [f"int ld{role}" for role in _rows(op) if f"ld{role}" not in names]
    head = ["const int* active", "const int* members", "int ldmembers", "int launched",
            "int networks", *map(_declared, signature.parameters), *pitches, *listed]
    scalars = base.scalars(single, plan)
    _, (x, y, z) = base.geometry(scalars)
    bounds = "GEMM_BOUNDS" if "GEMM_BOUNDS" in text else f"__launch_bounds__({x * y * z})"
    template = "".join(f"[[maybe_unused]] constexpr {kind} {number} = {value};\n"
                       for number, kind, value in _numbers(text, expression)) \
        if bounds == "GEMM_BOUNDS" else ""
    declaration = f'extern "C" __global__ void {bounds} {name}({", ".join(head)})'
    called = ", ".join(f"&indexed_{p.name}" if p.pointer and p.name in indexed else _argument(op, p)
                       for p in signature.parameters)
    instance, rows_of = _with_indexed_rows(op, text, expression)
    body = f"""\
{template}{declaration} {{
  const int member = active[blockIdx.z];
  if (member < 0) return;
  [[maybe_unused]] const int* const words = members + static_cast<long long>(member) * ldmembers;
{rows_of}  {instance}({called});
}}
"""
    functions = DEVICE_FUNCTIONS.replace("{kernel}", base.name).replace("{text}", text)
    return functions + body, f"{declaration};"


def _numbers(text: str, expression: str) -> list[tuple[str, str, str]]:
    """(name, type, value) of the numbers among an instance's template arguments."""
    template = _template(text, expression).template_parameters
    values = _signature(text, expression).arguments
    return [(p.name, p.kind, value) for p, value in zip(template, values, strict=True)
            if p.kind != "typename"]


_INDEX_PARAMETERS = ("const int* order", "int ldorder", "const int* cursor", "int offset",
                     "int stride")


def _indexed(op: Op) -> list[str]:
    """The operands that are rows of a shared matrix."""
    return [role for role, stack in op.attributes["stacks"].items() if stack == INDEXED]


def _with_indexed_rows(op: Op, text: str, expression: str) -> tuple[str, str]:
    """The instance that takes IndexedRows for the operands that are rows of a shared matrix, and
    the text that declares these."""
    from rawnn.cuda.compiling.c_text import split_expression

    indexed = _indexed(op)
    if not indexed:
        return expression, ""
    name, arguments = split_expression(expression)
    kernel = _template(text, expression)
    types = {p.name: p.ctype for p in kernel.parameters}
    declared = ["  const int* const list = order + static_cast<long long>(member) * ldorder +",
                "      static_cast<long long>(current_step(cursor, offset)) * stride;"]
    given = list(arguments)
    for role in indexed:
        place = kernel.template.index(types[role])
        given[place] = f"{INDEXED_ROWS}<{arguments[place]}>"
        declared.append(f"  const {given[place]} indexed_{role}{{{role}, list}};")
    return f"{name}<{','.join(given)}>", "".join(f"{line}\n" for line in declared)


def _template(text: str, expression: str) -> KernelSignature:
    """The kernel that an expression is an instance of, with its template parameters."""
    from rawnn.cuda.compiling.signature import known_name, parse_kernels

    kernels = parse_kernels(text)
    return kernels[known_name(kernels, expression)]


def _rows(op: Op) -> list[str]:
    """The operands that are rows of a matrix, of which the kernel of one network has a vector."""
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    return [role for role, stack in op.attributes["stacks"].items()
            if stack not in (SHARED, INDEXED) and len(plan[single.operands[role]].shape) == 1
            and plan[single.operands[role]].name not in FLAT]


def _argument(op: Op, p: Parameter) -> str:
    """What the wrapper passes for a parameter."""
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    places: dict[str, int] = op.attributes["setting_places"]
    if p.pointer:
        stack = op.attributes["stacks"].get(p.name, SHARED)
        if stack == SHARED:
            return p.name
        number = "member" if stack == OWN else f"words[{FOLD_WORD}]"
        return f"{p.name} + static_cast<long long>({number}) * " \
               f"{elements_of(plan[single.operands[p.name]])}"
    if p.name in places:
        return f"static_cast<{p.ctype}>(reinterpret_cast<const double*>" \
               f"(words + {SETTINGS_WORD})[{places[p.name]}])"
    if p.name == "seed":
        return "*reinterpret_cast<const unsigned long long*>(words)"
    return p.name


def _shapes(op: Op) -> dict[str, Shape]:
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    found: dict[str, Shape] = {"active": ("launched",), "members": ("networks", "ldmembers")}
    for role, name in single.operands.items():
        stack, shape = op.attributes["stacks"][role], plan[name].shape
        times = {OWN: "networks*", FOLD: f"{op.attributes['folds']}*"}.get(stack, "")
        rows = times.removesuffix("*")
        found[role] = (f"{times}{shape[0]}", *map(str, shape[1:])) \
            if not times or len(shape) > 1 or plan[name].name in FLAT \
            else (rows, str(shape[0]))
    if _indexed(op):
        found |= {"order": ("networks", str(plan["order"].shape[0])), "cursor": ("1",)}
    return found


def _impl(op: Op) -> KernelImpl:
    single: Op = op.attributes["single"]
    plan: Plan = op.attributes["plan"]
    base = kernel_for(single)
    scalars = base.scalars(single, plan)
    scalars.pop("offset", None)
    (across, down, _), block = base.geometry(scalars)
    shapes, shared = _shapes(op), base.shared(scalars)
    numbers = {k: v for k, v in single.attributes.items() if isinstance(v, int | float | str)}
    text, _ = _text(op, base, KIND)
    digest = hashlib.sha256(f"{text} {shapes} {sorted(numbers.items())}".encode()).hexdigest()[:12]
    name = f"{KIND}_{digest}"
    text, declared = _text(op, base, name)

    def geometry(s: Scalars) -> Geometry:
        launched = int(s["launched"])
        x = min(across, ceil(STRIDED_BLOCKS, launched)) if base.strided else across
        return (x, down, launched), block

    return KernelImpl(
        f"{name}.cu", name, plain, lambda op, plan: scalars, geometry, shapes,
        shared=lambda s: shared, cluster=lambda s: base.cluster(scalars), carveout=base.carveout,
        specific=base.specific, code=CudaText(text, declared=declared))


GENERATED[KIND] = _impl
