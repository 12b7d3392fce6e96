"""What users and files rely on: defaults of public functions and options, and the numbers by which
rawnn decides, with their names.

Most constants also show in the records of decisions. Here are those that a run shows only on
hardware or after minutes: timeouts, thresholds, sizes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import rawnn
from rawnn.bench.case import all_cases
from rawnn.bench.suites import read_suites, schema
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS
from rawnn.model.schedules import SCHEDULE_SPECS
from rawnn.model.workloads import WORKLOADS
from rawnn.opts import TOGGLES
from rawnn.ptx.family import FAMILIES
from tests.records import Lines, record, short

SKIPPED = ("rawnn.bench.peers.jax", "rawnn.bench.peers.torch")
"""Modules that need packages which are not rawnn's."""


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(rawnn.__path__, "rawnn."):
        if not found.name.startswith(SKIPPED) and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


@record
def constants() -> Lines:
    """Numbers, tables, and regular expressions of all modules, by the module that defines them."""
    for module in modules():
        assigned = _assigned(module)
        for name, value in vars(module).items():
            if name not in assigned:
                continue
            where = f"{module.__name__.removeprefix('rawnn.')}.{name}"
            text = _plain(value)
            if any(map(str.isdigit, text)):
                yield f"{where} = {text}"
            elif assigned[name] not in FILLED_LATER and (text := _words(value)):
                yield from textwrap.wrap(f"{where} = {text}", 98, subsequent_indent="  ",
                                         break_long_words=False, break_on_hyphens=False)


FILLED_LATER = ("{}", "[]", "set()")
TABLES = (Mapping, tuple, list, set, frozenset)


def _words(value: Any) -> str:
    """A table of words, or a regular expression, as text, without sentences; "" for all else."""
    if not isinstance(value, (*TABLES, re.Pattern)):
        return ""
    if isinstance(value, re.Pattern):
        flags = re.RegexFlag(value.flags & ~re.UNICODE)
        return f"{value.pattern!r}{f' {flags!r}' if flags else ''}"
    if isinstance(value, Mapping):
        parts = [_word(part) for pair in value.items() for part in pair]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return f"{{{', '.join(map(': '.join, pairs))}}}" if parts and all(parts) else ""
    parts = list(map(_word, sorted(value, key=str) if isinstance(value, set | frozenset)
                     else value))
    return f"({', '.join(parts)})" if all(parts) else ""


def _word(value: Any) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, str | bytes) and len(value) > 60:
        return "..."
    if is_dataclass(value):
        parts = [_word(getattr(value, f.name)) for f in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})" if all(parts) else ""
    return repr(value) if isinstance(value, int | float | str | bytes | np.dtype | None) else \
        _words(value)


def _assigned(module: Any) -> dict[str, str]:
    """Names of constants that the module itself assigns, not those that it imports, and what."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    return {
        name.id: ast.unparse(node.value or ast.Constant(None))
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name) and name.id.isupper()
    }


def _plain(value: Any) -> str:
    """The text of numbers and short words, alone or in tuples and mappings; "" for all else."""
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) < 60 and "/" not in value else ""
    if isinstance(value, frozenset | set):
        value = sorted(value, key=str)
    if isinstance(value, tuple | list):
        parts = [_plain(each) for each in value]
        return (
            f"({', '.join(parts)})" if parts and all(parts) and sum(map(len, parts)) < 300 else ""
        )
    if isinstance(value, Mapping):
        items = [(_plain(k), _plain(v)) for k, v in value.items()]
        return (
            "{" + ", ".join(f"{k}: {v}" for k, v in items) + "}"
            if items
            and all(k and v for k, v in items)
            and sum(len(k) + len(v) for k, v in items) < 300
            else ""
        )
    if is_dataclass(value) and not isinstance(value, type) and len(fields(value)) < 20:
        parts = [f"{f.name}={_plain(getattr(value, f.name))}" for f in fields(value)]
        return (
            f"{type(value).__name__}({', '.join(parts)})"
            if all(not p.endswith("=") for p in parts)
            else ""
        )
    return ""


@record
def defaults() -> Lines:
    """Parameters with a default, of functions, methods and the fields of classes."""
    for module in modules():
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__ or name.startswith("__"):
                continue
            where = f"{module.__name__.removeprefix('rawnn.')}.{name}"
            if inspect.isclass(value):
                yield from _of_class(where, value)
            elif inspect.isfunction(value):
                yield from _of_signature(where, value)


def _of_class(where: str, value: type) -> Lines:
    if issubclass(value, msgspec.Struct):
        found = [
            f"{f.name}={_default(f.default)}"
            for f in msgspec.structs.fields(value)
            if f.default is not msgspec.NODEFAULT and _is_telling(f.default)
        ]
        if found:
            yield f"{where}: {', '.join(found)}"
    elif is_dataclass(value):
        found = [
            f"{f.name}={_default(f.default)}"
            for f in fields(value)
            if type(f.default).__name__ != "_MISSING_TYPE" and _is_telling(f.default)
        ]
        if found:
            yield f"{where}: {', '.join(found)}"
    for name, method in vars(value).items():
        if (
            inspect.isfunction(method)
            and (not name.startswith("__") or name in ("__init__", "__call__"))
            and not (is_dataclass(value) and name == "__init__")
        ):
            yield from _of_signature(f"{where}.{name}", method)
        elif (
            not name.startswith("__")
            and name != "_is_protocol"
            and isinstance(method, int | float | str)
            and _plain(method)
        ):
            yield f"{where}.{name} = {_plain(method)}"


def _of_signature(where: str, function: Any) -> Lines:
    found = [
        f"{p.name}={_default(p.default)}"
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty and _is_telling(p.default)
    ]
    if found:
        yield f"{where}({', '.join(found)})"


def _is_telling(value: Any) -> bool:
    """Whether a default is more than "none given"."""
    return value is not None and (isinstance(value, bool | int | float) or bool(value))


def _default(value: Any) -> str:
    return _plain(value) or getattr(value, "__name__", type(value).__name__)


@record
def registries() -> Lines:
    """What is known by name: toggles, losses, optimizers, schedules, workloads, measurements."""
    for kind, known in (
        ("toggle", TOGGLES),
        ("loss", LOSSES),
        ("activation", ACTIVATIONS),
        ("optimizer", OPTIMIZER_SPECS),
        ("schedule", SCHEDULE_SPECS),
        ("workload", WORKLOADS),
        ("measurement", all_cases()),
        ("kernels", FAMILIES),
    ):
        for name, value in known.items():
            yield f"{kind} {name}: {_fields(value)}"
    suites = read_suites(None)
    for name in suites.__struct_fields__:
        yield f"bench.toml, {name}: {short(msgspec.to_builtins(getattr(suites, name)))}"
    for name, table in schema()["$defs"].items():
        yield from (f"{name}.{key} is {short(kind)}" for key, kind in table["properties"].items())


def _fields(value: Any) -> str:
    """The fields of an entry that are no functions."""
    if not is_dataclass(value):
        return short(value)
    names = [f.name for f in fields(value)]
    found = {name: getattr(value, name) for name in names}
    return ", ".join(
        f"{name} {short(each)}"
        for name, each in found.items()
        if isinstance(each, bool | int | float | str | tuple | list | dict | frozenset)
        and each not in ("", (), {}, [])
        and "object at" not in str(each)
        and "function" not in str(each)
    )
