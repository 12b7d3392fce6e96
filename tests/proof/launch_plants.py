"""Faults of launches: arguments, extents, instances, grids."""

from __future__ import annotations

import re
import struct
from itertools import combinations
from typing import Any

from rawnn.cuda import launch
from rawnn.cuda.compiling.signature import KernelSignature, Parameter, parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.memory import ALIGNMENT
from rawnn.engine.runners import lowering
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.model.activations import ACTIVATIONS
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Tensor
from rawnn.ptx import source_path
from rawnn.ptx.instance_text import with_instance_text
from rawnn.ptx.kernels import kernel_for
from tests.proof.planting import Found, Plant, Plants, at, observe, replaced, tampered


def _launches(clean: Found) -> list[tuple[int, Op, Plan, KernelSignature, dict[str, Any]]]:
    """(number, op, plan, signature, values) of every binding of a kernel; of ops that recur in
    later plans with the same values, the first."""
    found, seen = [], set()
    for number, (op, plan, signature, addresses) in enumerate(
            observe(clean, lowering, "kernel_arguments")):
        values = lowering.kernel_arguments(op, plan, signature, addresses)
        scalars = tuple(values[p.name] for p in signature.parameters
                        if not (p.pointer or p.tensor_map))
        key = (op.name, op.kind, tuple(op.operands.items()), scalars)
        if key not in seen:
            seen.add(key)
            found.append((number, op, plan, signature, values))
    return found


class _Swapped(launch.Arguments):
    """Two arguments of the same size, each in the other's place."""

    def __init__(self, signature: KernelSignature, values: Any, maps: Any,
                 pair: tuple[str, str]) -> None:
        self._other = {pair[0]: pair[1], pair[1]: pair[0]}
        super().__init__(signature, values, maps)

    def _pack(self, name: str, value: launch.Value) -> None:
        where = self._offsets[self._index[self._other.get(name, name)]]
        struct.pack_into("=" + launch._code(self._parameters[name]), self._buffer, where, value)

    def cell(self, name: str) -> Any:
        return super().cell(self._other.get(name, name) if name in self._index else name)


NOTHING = 1e-6
"""A float below this makes no difference here: Adam's eps is one."""


def _dead(op: Op, plan: Plan, signature: KernelSignature, values: dict[str, Any]) -> set[str]:
    """Arguments that the kernel has no use for in this launch: operands left out with their pitches
    and scales, the pitch of a vector, the step where there is no cursor, what draws random numbers
    where none are drawn."""
    names = {p.name for p in signature.parameters}
    absent = {p.name for p in signature.parameters if p.pointer and p.name not in op.operands}
    dead = absent | {f"ld{name}" for name in absent} | {f"{name}_scale" for name in absent}
    dead |= {f"{name}_map" for name in absent}
    dead.add("overflow")  # nothing overflows in these runs, so that none may be given as well
    dead |= {f"ld{role}" for role, name in op.operands.items() if len(plan[name].shape) == 1}
    if "cursor" in absent:
        dead.add("offset")
    if "other" in absent:
        dead |= {"share", "other_share"}
    if "stochastic" in names and not values["stochastic"]:
        dead |= {"seed", "stream"}
    return dead


def _bits(parameter: Parameter, values: dict[str, Any]) -> bytes:
    """What tells the argument from others of its size: of a map, where its operand lies."""
    if parameter.tensor_map:
        return struct.pack("=Q", values[parameter.mapped])
    return struct.pack("=" + launch._code(parameter), values[parameter.name])


def swaps(work: PreparedRun, wanted: Found) -> Plants:
    """Every two arguments of one kernel that have the same size and different meaning swapped;
    those whose values are equal, or of which the kernel uses neither, are skipped, and offset and
    stride where the cursor stays at 0 (a batch begins at their product), and a float of next to
    nothing with another or with an integer that is not used (as a float, next to nothing)."""
    made: dict[str, Plant] = {}
    skipped, policy = 0, work.policy
    for number, op, plan, signature, values in _launches(wanted):
        dead = _dead(op, plan, signature, values)
        for a, b in combinations(signature.parameters, 2):
            if a.size != b.size:
                continue
            x, y = (_bits(p, values) for p in (a, b))
            pair = {a.name, b.name}
            varies = not policy.graph and (
                "offset" in pair or (a.pointer and policy.allocator != "arena"))
            product = pair == {"offset", "stride"} and policy.graph in ("", "epoch", "while")
            small = {p.name for p in (a, b) if p.format == "f" and abs(values[p.name]) < NOTHING}
            tiny = bool(small) and pair <= small | dead
            if product or tiny or pair <= dead or (x == y and not varies):
                skipped += 1
                continue
            made[f"{op.name}: {a.name} <-> {b.name}"] = tampered(work, wanted, at(
                lowering, "Arguments", number,
                lambda signature, values, maps, pair=(a.name, b.name):
                    _Swapped(signature, values, maps, pair)))
    return Plants(made, skipped)


def overruns(work: PreparedRun, wanted: Found) -> Plants:
    """Each kernel given one row, column, example or element of a product too many, or rows of a
    batch that lie one further apart. In an arena, what is written too many may land in the padding
    between tensors, or in a parameter that is drawn next, where it harms nothing."""
    made: dict[str, Plant] = {}
    harmless: set[str] = set()
    right = lowering.kernel_arguments
    for number, op, plan, signature, values in _launches(wanted):
        extents = {part for shape in kernel_for(op).shapes.values() for extent in shape
                   for part in extent.lstrip("@").split("*")}
        for name in (p.name for p in signature.parameters):
            if name not in {*extents, "steps", "stride"} or not values[name]:
                continue

            def more(*arguments: Any, name: str = name) -> Any:
                values = right(*arguments)
                return {**values, name: values[name] + 1}

            what = f"{op.name}: {name} + 1"
            made[what] = tampered(work, wanted, at(lowering, "kernel_arguments", number, more))
            if work.policy.allocator == "arena" and (op.kind == "initialise" or all(
                    _padding(plan[n]) >= plan[n].ld * plan[n].itemsize for n, _ in op.writes)):
                harmless.add(what)
    return Plants(made, harmless=frozenset(harmless))


def _padding(tensor: Tensor) -> int:
    """Bytes between the end of a tensor and what lies behind it in an arena."""
    return -tensor.nbytes % ALIGNMENT


FUNCTORS = {a.functor: "Tanh" if a.functor != "Tanh" else "Relu" for a in ACTIVATIONS.values()}
FUNCTORS |= {"None": "Tanh", "SoftmaxCrossEntropy": "SquaredError",
             "SquaredError": "LogitCrossEntropy", "LogitCrossEntropy": "SquaredError"}
"""Another activation or loss in the place of each."""
TYPES = {"float": "float16", "float16": "float", "bfloat16": "float", "int": "unsigned char",
         "unsigned char": "int", "float8_e4m3": "bfloat16", "float8_e5m2": "bfloat16",
         "tf32x3": "float", "f16x3": "float"}
"""Another storage type in the place of each, of another size: signs of 16-bit types look alike."""


def _other(word: str) -> str:
    """Another template argument of the same kind."""
    flags = {"true": "false", "false": "true"}
    return {**flags, **FUNCTORS, **TYPES}.get(word) or str(int(word) + 1)


def instances(work: PreparedRun, wanted: Found) -> Plants:
    """Each kernel replaced by another instance of its template: a flag turned round, a number one
    larger, another activation, another type. Types of operands that the op leaves out and those
    that sums are kept in change nothing here: they are skipped, as is what makes an instance more
    general than it has to be (`_general`). A copy that no op of a step reads (narrow_update rounds
    the first layer's weights itself) is written again before it is."""
    made: dict[str, Plant] = {}
    harmless: set[str] = set()
    skipped = 0
    read = {name for op in work.train.ops for name, _ in op.reads}
    right, compiled = lowering.Lowering._kernel, Device.function
    for number, op, _, signature, _ in _launches(wanted):
        expression = kernel_for(op).name
        text = source_path(kernel_for(op).source).read_text()
        declared = parse_kernels(with_instance_text(text, [expression]))[expression]
        for index, (parameter, word) in enumerate(
                zip(declared.template_parameters, signature.arguments, strict=True)):
            if parameter.kind == "typename" and word in TYPES and not any(
                    p.name in op.operands for p in declared.parameters
                    if p.pointer and p.ctype == parameter.name):
                skipped += 1
                continue
            if _general(parameter.name, word, dict(zip(
                    declared.template, signature.arguments, strict=True))):
                skipped += 1
                continue
            arguments = [*signature.arguments]
            arguments[index] = _other(word)
            changed = f"{expression}<{','.join(arguments)}>"

            def wrong(*bound: Any, changed: str = changed) -> Any:
                def other(device: Any, file: str, _: str, *rest: Any) -> Any:
                    return compiled(device, file, changed, *rest)

                with replaced(Device, "function", other):
                    return right(*bound)

            what = f"{number}: {op.name} as {changed}"
            made[what] = tampered(
                work, wanted, at(lowering.Lowering, "_kernel", number, wrong))
            if op.kind == "cast" and op.operands["copy"] not in read:
                harmless.add(what)
    return Plants(made, skipped, frozenset(harmless))


def _general(name: str, word: str, template: dict[str, str]) -> bool:
    """Whether the next value of a template parameter only makes room for more: rows need not be
    aligned, or may be ragged; layers behind the last (narrow.cu); more classes (head.cu), or as
    many layers' weights at a time as there are between the first and the last. Or there is none:
    a source has one main loop of products, and tiled.cu's asks for no bytes of a stage. What an
    instance reads early decides which edges may be programmatic, so that it is right either way."""
    if (name, word) in (("ALIGNED", "true"), ("RAGGED", "false"), ("BYTES", "0"), ("LOOP", word),
                        ("EARLY", word)):
        return True
    depth = int(template.get("DEPTH", "0"))
    if re.fullmatch(r"SIZE\d", name):
        return 0 < depth < int(name[-1])
    if name == "SLOTS":
        return int(word) >= depth - 2
    return name == "CLASSES" and "WARPS" in template


def grids(work: PreparedRun, wanted: Found) -> Plants:
    """Each kernel launched with one block, or one warp a block, too many."""
    made: dict[str, Plant] = {}
    right = lowering.KernelLaunch
    for number, (_, _, _, label, *_) in enumerate(observe(wanted, lowering, "KernelLaunch")):
        for what, dx, threads in (("a block", 1, 0), ("a warp", 0, 32)):
            def wrong(driver: Any, stream: Any, function: Any, label: str, grid: Any, block: Any,
                      *rest: Any, dx: int = dx, threads: int = threads) -> Any:
                return right(driver, stream, function, label, (grid[0] + dx, *grid[1:]),
                             (block[0] + threads, *block[1:]), *rest)

            made[f"{number}: {label}, {what} more"] = tampered(
                work, wanted, at(lowering, "KernelLaunch", number, wrong))
    return Plants(made)
