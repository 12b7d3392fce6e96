"""The parameters with which the compiler compiled a kernel.

The source may differ from them: an `#if` in a parameter list, two definitions of which one was
compiled, types with other names. So the same NVRTC program also compiles a variable template for
the type of the kernel's address, whose mangled name contains each parameter's type. Number, size
and alignment come from the kernel's `.param` lines in the PTX (PTX ISA, "Kernel Function
Parameters").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rawnn.common.errors import CompileError
from rawnn.cuda.compiling.c_types import FORMATS
from rawnn.cuda.compiling.mangled import CType, read_variable

_NAMESPACE = "rawnn_probe"
PROBE = f"""\
namespace {_NAMESPACE} {{
template <typename, typename> struct Enum;
template <typename Rawnn_T, bool = __is_enum(Rawnn_T)> struct Value {{ using type = Rawnn_T; }};
template <typename Rawnn_T> struct Value<Rawnn_T, true> {{
  using type = Enum<Rawnn_T, __underlying_type(Rawnn_T)>;
}};
template <typename Rawnn_T> struct Value<const Rawnn_T, false> {{
  using type = const typename Value<Rawnn_T>::type;
}};
template <typename Rawnn_T> struct Value<const Rawnn_T, true> {{
  using type = const typename Value<Rawnn_T>::type;
}};
template <typename Rawnn_T> struct Value<Rawnn_T*, false> {{
  using type = typename Value<Rawnn_T>::type*;
}};
template <typename...> struct List;
template <typename> struct Of;
template <typename Rawnn_R, typename... Rawnn_T> struct Of<Rawnn_R (*)(Rawnn_T...)> {{
  using type = List<typename Value<Rawnn_T>::type...>;
}};
template <typename> __device__ char seen;
}}
"""
"""Text before the source and its macros. An enumeration appears as its underlying type."""
_ENUM = f"{_NAMESPACE}::Enum"
_PARAM = re.compile(r"\.param\s+(?:\.align\s+(\d+)\s+)?\.[a-z](\d+)\b[^,\n]*?_param_\d+"
                    r"(?:\[(\d+)\])?")
_FUNCTION = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_WORKSPACE = "%envreg"


@dataclass(frozen=True)
class CompiledParameter:
    """A compiled parameter: `size` and `align` in bytes.

    ctype: the type's canonical name ("" if unknown); for a `pointer` that of its target.
    const: whether the pointer's target is const.
    code: the `struct` code of an enumeration.
    """

    ctype: str
    pointer: bool
    const: bool
    size: int
    align: int
    code: str = ""
    reference: bool = False


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel's declaration as compiled. `waits_for_grid` says that all of its blocks must be
    resident at the same time, because it calls grid.sync() of cooperative_groups."""

    parameters: tuple[CompiledParameter, ...]
    waits_for_grid: bool


def probe_of(expression: str) -> str:
    """The name expression whose lowered name contains the types of the kernel `expression`."""
    return f"&{_NAMESPACE}::seen<{_NAMESPACE}::Of<decltype(&{expression})>::type>"


def probed(expression: str) -> str:
    """The kernel of a name expression of `probe_of`; any other expression unchanged."""
    before, _, suffix = probe_of("\0").partition("\0")
    inner = expression.removeprefix(before)
    return expression if inner == expression else inner.removesuffix(suffix)


def compiled_kernels(name: str, ptx: str, lowered: Mapping[str, str], expressions: Sequence[str]
                     ) -> dict[str, CompiledKernel]:
    """Each kernel of the source `name`. Raises CompileError for one without a body."""
    found = {}
    for expression in expressions:
        if not has_body(ptx, lowered[expression]):
            raise undefined(name, expression)
        kernel = compiled_kernel(ptx, lowered[expression], lowered.get(probe_of(expression), ""))
        if kernel is not None:
            found[expression] = kernel
    return found


def compiled_kernel(ptx: str, lowered: str, probe: str) -> CompiledKernel | None:
    """The kernel with the mangled name `lowered`, whose probe is `probe`; None if the PTX lacks
    it."""
    functions = _functions(ptx)
    if lowered not in functions:
        return None
    sizes = [(int(m[2]) // 8 * int(m[3] or 1), int(m[1] or int(m[2]) // 8))
             for m in _PARAM.finditer(functions[lowered][0])]
    try:
        types = read_variable(probe).arguments[0].arguments
    except (ValueError, IndexError):
        types = ()
    if len(types) != len(sizes):  # a type without a readable name: sizes are known nevertheless
        types = (CType(""),) * len(sizes)
    return CompiledKernel(tuple(_parameter(kind, *size) for kind, size in
                                zip(types, sizes, strict=True)), _waits(functions, lowered))


def has_body(ptx: str, lowered: str) -> bool:
    """Whether the PTX defines the kernel with this mangled name."""
    return f".entry {lowered}(" in ptx


def undefined(name: str, expression: str) -> CompileError:
    """The error for a kernel without a body in the source `name`."""
    return CompileError(f"{name} declares the kernel '{expression}', but does not define it: give "
                        f"the file that has its body, or include that file")


def _functions(ptx: str) -> dict[str, tuple[str, str]]:
    """(head, body) of every function that the PTX defines, by name; declarations may precede a
    head."""
    parts = (part.partition("\n{") for part in re.split(r"^\}", ptx, flags=re.MULTILINE))
    return {found[-1][1]: (head[found[-1].end():], body) for head, _, body in parts
            if (found := [*_FUNCTION.finditer(head)])}


def _parameter(kind: CType, size: int, align: int) -> CompiledParameter:
    target = kind.target
    if target is None:
        code = "Q" if kind.name == "nullptr_t" else ""
        if kind.name == _ENUM:
            code = FORMATS.get(kind.arguments[1].name, "")
        return CompiledParameter(_name(kind), False, kind.const, size, align, code)
    if target.name == "function":
        return CompiledParameter("function pointer", False, False, size, align, "Q")
    pointee = target.arguments[1] if target.name == _ENUM else target
    return CompiledParameter(_name(pointee), True, target.const, size, align,
                             reference=kind.name == "&")


def _name(kind: CType) -> str:
    """The name without a top-level const."""
    if kind.name == _ENUM:
        return kind.arguments[0].name
    return str(kind).removesuffix(" const").removeprefix("const ") if kind.const else str(kind)


def _waits(functions: dict[str, tuple[str, str]], lowered: str) -> bool:
    """Whether a kernel, or a function that it calls, reads the workspace of a cooperative launch
    from the special register that grid.sync() uses."""
    todo, visited = [lowered], set[str]()
    while todo:
        name = todo.pop()
        visited.add(name)
        body = functions[name][1]
        if _WORKSPACE in body:
            return True
        todo += [other for other in functions if other not in visited
                 and re.search(rf"(?<![\w$]){re.escape(other)}(?![\w$])", body)]
    return False


def packed(kernel: CompiledKernel) -> list[object]:
    """Plain values, for JSON."""
    return [kernel.waits_for_grid, [list(vars(p).values()) for p in kernel.parameters]]


def unpacked(stored: Sequence[object]) -> CompiledKernel:
    """Inverse of `packed`. Raises TypeError or ValueError for other values."""
    waits, parameters = stored
    return CompiledKernel(tuple(CompiledParameter(*each) for each in parameters),  # type: ignore[attr-defined]
                          bool(waits))
