"""The description of a kernel's task, for `check`, `time` and `sweep`: its launch, the sizes of its
arrays, and the NumPy function that computes the same."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from types import CodeType, NoneType
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, check_type, nearest
from rawnn.common.words import named_by, python_name
from rawnn.lab.expressions import Expression

Extents = Expression | Sequence[Expression]
Geometry = Extents | Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Work:
    """The task of a kernel. Only `reference`, `grid` and `block` are required; a kernel with
    several sizes needs `shapes` as well.

    `reference(...)` is a NumPy function whose parameters have the names of the kernel's: arrays
    (all floats as float64), numbers and sizes. It returns what the kernel writes: one array, or
    {parameter: array} (None for an array with any content). An array that it takes has input; one
    that it does not take is poisoned before the launch. As text it is an expression
    ("a * x + y"), a table of expressions by what is written, or "file.py:function".

    `grid`, `block`, `cluster`, `shared` (bytes of dynamic shared memory) are numbers or expressions
    of sizes, values and macros ("cdiv(n, TILE)"; a list for two or three extents), or functions of
    a dictionary of those. `cooperative` makes a launch whose blocks all run at once; `folder` is
    where "file.py:function" is looked for.
    `shapes` gives the extents of each array in terms of sizes: {"x": "n", "c": ("rows", "cols")};
    `types` the element types that the kernel does not declare (NumPy's).
    `maps` gives the boxes that the tensor map of an array copies, `x_map` for "x": the extents of a
    box in the format of `shapes` ({"x": (64, "TILE")}), or {"box": ..., "swizzle": ...}.
    `sizes` gives the sizes to try: a number, a list (each of them), "1..4096" (sampled, with the
    edges); others are sampled. `require` are conditions on sizes ("n % 4 == 0").
    `values` are the kernel's other numbers, or expressions; floats left out are sampled.
    `inputs` gives the content of arrays: "normal" (floats, by default), "uniform" (0 to 1),
    "lo..hi" (whole numbers for integers), a number, or a function of (generator, shape).
    `symbols` gives the content of `__constant__` and `__device__` variables, likewise or as values;
    the reference may take them.
    `writes` are the arrays that may be written, by default all that are not const.

    `length` is the number of products summed for one element, `compute` "tf32" if factors are
    rounded to it, `sums` the dtype of accumulators, or "tensor cores". The tolerance follows from
    them, unless `tolerance` (relative) is given. With `deterministic` False two runs may differ.
    `bytes` and `flops` are the data to move and the operations; by default every input is read once
    and every output written once, and operations are unknown.
    """

    reference: Callable[..., Any] | str | Mapping[str, str] | None = None
    grid: Geometry | None = None
    block: Geometry | None = None
    shared: Geometry = 0
    cluster: Geometry | None = None
    cooperative: bool = False
    shapes: Mapping[str, Extents] = field(default_factory=dict)
    types: Mapping[str, Any] = field(default_factory=dict)
    maps: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    require: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    symbols: Mapping[str, Any] = field(default_factory=dict)
    writes: Sequence[str] | None = None
    length: Expression = 1
    compute: str = "float32"
    sums: str | float = "float32"
    tolerance: float | None = None
    deterministic: bool = True
    bytes: Expression | None = None
    flops: Expression | None = None
    folder: Path = Path()

    def __post_init__(self) -> None:
        for name in _TABLES:
            check_type(name, getattr(self, name), Mapping, "a mapping by names of the kernel")
        for name in ("require", "writes"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        check_type("require", self.require, Iterable, "a list of conditions, as text")
        check_type("writes", self.writes, (Iterable, NoneType), "a list of the kernel's arrays")
        limit = self.tolerance
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, Real)
                                  or not 0 <= limit < math.inf):
            raise ConfigError(f"tolerance = {limit!r}: give a number of at least 0")

    @classmethod
    def of(cls, reference: Any, given: Mapping[str, Any]) -> Work:
        """A Work from the arguments of `check` and similar functions: a Work, or a reference with
        Work's other fields. Raises ConfigError, with the nearest name, for an unknown field."""
        known = [each.name for each in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"'{name}' says nothing of a kernel's work{nearest(name, known)} "
                                  f"(known: {', '.join(known)})")
        if isinstance(reference, Work):
            if not given:
                return reference
            return cls(**{name: getattr(reference, name) for name in known} | dict(given))
        return cls(reference=reference, **given)


    def of_parameters(self, names: Collection[str]) -> Work:
        """The same with the kernel's own names of parameters: `in` for `in_`."""
        tables: dict[str, Any] = {
            table: {named_by(name, names): each for name, each in getattr(self, table).items()}
            for table in _TABLES if table != "symbols"}
        writes = None if self.writes is None else [named_by(name, names) for name in self.writes]
        return replace(self, writes=writes, **tables)


_TABLES = ("shapes", "types", "maps", "sizes", "values", "inputs", "symbols")
KNOWN = tuple(each.name for each in fields(Work) if each.name != "folder")


@dataclass(frozen=True)
class Reference:
    """A reference to be called by names: `wants` are those that it requires, None for all, `takes`
    those that have defaults, which are passed if available."""

    call: Callable[..., Any]
    wants: frozenset[str] | None
    takes: frozenset[str] = frozenset()

    def __call__(self, known: Mapping[str, Any]) -> Any:
        """Raises ConfigError if it requires an unknown name."""
        if self.wants is None:
            return self.call(**known)
        self.check(known)
        places = {name: named_by(name, known) for name in self.wants | self.takes}
        return self.call(**{name: known[place] for name, place in places.items()
                            if place in known})

    def check(self, known: Collection[str]) -> None:
        """Raise ConfigError if it requires a name that is not among the known ones."""
        missing = {name for name in self.wants or () if named_by(name, known) not in known}
        if missing:
            name = min(missing)
            raise ConfigError(f"the reference asks for '{name}', and the kernel has no such "
                              f"parameter or size{nearest(name, known)} (known: "
                              f"{', '.join(sorted(known))})")

    def asks_for(self, name: str) -> bool:
        return self.wants is None or not {name, python_name(name)}.isdisjoint(
            self.wants | self.takes)


def reference_of(given: Callable[..., Any] | str | Mapping[str, str] | None,
                 folder: Path = Path()) -> Reference:
    """A reference from a function or text. Raises ConfigError if it cannot be called by names."""
    if given is None:
        raise ConfigError("a check needs a reference: a NumPy function of the kernel's parameters "
                          "that returns what it writes, such as lambda x, y, a: a * x + y; in a "
                          ".cu file reference = \"a * x + y\", in a comment that begins with rawnn")
    if isinstance(given, Mapping):
        parts = {name: _expression(text) for name, text in given.items()}
        asked = frozenset().union(*(p.wants or () for p in parts.values()))
        return Reference(lambda **known: {
            name: part.call(**{n: known[n] for n in part.wants or ()})
            for name, part in parts.items()}, asked)
    if isinstance(given, str):
        file, colon, name = given.rpartition(":")
        if colon and file.endswith(".py"):
            return reference_of(_loaded(folder / file, name.strip()))
        return _expression(given)
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(f"the reference {given!r} does not say the names of its parameters: wrap "
                          f"it, such as lambda a, b: np.add(a, b)") from None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return Reference(given, None)
    if any(p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY) for p in parameters):
        raise ConfigError(f"the reference {given!r} does not say the names of its parameters: "
                          f"give it those of the kernel's that it needs")
    return Reference(given, frozenset(p.name for p in parameters if p.default is p.empty),
                     frozenset(p.name for p in parameters if p.default is not p.empty))


def _loaded(path: Path, name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"rawnn_lab_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"the reference's file {path} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"{path} has no function '{name}'{nearest(name, vars(module))}")
    return found  # type: ignore[no-any-return]


def _expression(text: str) -> Reference:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ConfigError(f"reference = \"{text}\" cannot be read: {error.msg}; give an expression "
                          f"in NumPy, or \"file.py:function\"") from None
    bound = {node.id for node in ast.walk(tree)
             if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    code: CodeType = compile(tree, "<reference>", "eval")
    builtin = {"abs": abs, "min": min, "max": max, "range": range, "len": len, "sum": sum,
               "int": int, "float": float,
                "__import__": __import__}  # NumPy imports some modules when they are used

    def call(**known: Any) -> Any:
        return eval(code, {"__builtins__": builtin, "np": np, **known})

    return Reference(call, frozenset(names - bound - {"np"} - set(builtin)))
