"""The header of a `.cu` file: TOML in a comment that begins with `rawnn`.

    /* rawnn
    op = "bias_relu"
    grid = "cdiv(rows * cols, 256)"
    block = 256
    */

Lines that begin with //, the first of them `// rawnn`, do as well. A file of several kernels may
have one for each, which names its `kernel` or its `op`. Compiling, checking, timing and plugging in
a kernel read the same header (docs/lab.md explains each key).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from rawnn.common.errors import ConfigError, nearest

Table = dict[str, Any]

COMPILED: dict[str, type | tuple[type, ...]] = {
    "kernel": str, "defines": dict, "options": list, "include": (str, list), "arch": str,
    "symbols": dict,
}
"""Which kernel, and how it is compiled."""
LAUNCHED: dict[str, type | tuple[type, ...]] = {
    "grid": (int, str, list), "block": (int, str, list), "shared": (int, str),
    "cluster": (int, str, list), "cooperative": bool, "values": dict,
}
"""How it is launched: numbers, or expressions of sizes."""
PLUGGED: dict[str, type | tuple[type, ...]] = {
    "op": str, "name": str, "where": str, "require": (str, list),
}
"""Which op of a training step it replaces."""
CHECKED: dict[str, type | tuple[type, ...]] = {
    "shapes": dict, "maps": dict, "sizes": dict, "inputs": dict, "reference": (str, dict),
    "length": (int, str),
    "bytes": (int, float, str), "flops": (int, float, str), "types": dict,
    "writes": list, "symbols": dict,
    "compute": str, "sums": str, "tolerance": (int, float), "deterministic": bool,
}
"""What it computes, and on what it is checked."""
SWEPT: dict[str, type | tuple[type, ...]] = {"sweep": dict, "restrict": (str, list)}
"""Macros and launch geometries to sweep over, and conditions on them."""
KNOWN = {**COMPILED, **LAUNCHED, **PLUGGED, **CHECKED, **SWEPT}

_BLOCK = re.compile(r"/\*+!?\s*rawnn\b[^\S\n]*\n(?P<block>.*?)\*/|"
                    r"^[^\S\n]*//+[^\S\n]*rawnn[^\S\n]*\n"
                    r"(?P<lines>(?:[^\S\n]*//[^\n]*(?:\n|\Z))+)", re.DOTALL | re.MULTILINE)
"""A comment of either kind: /* rawnn ... */, or lines that begin with //."""


def header(text: str, path: str | Path = "kernel.cu", kernel: str | None = None,
           op: str | None = None) -> Table:
    """The header of a source; {} if it has none. Of several it is that of `kernel` (whatever its
    template arguments), or of the `op`. `include` and a text `reference` are returned unchanged:
    their paths are relative to the file's folder.

    Raises ConfigError, with the file's line, for invalid TOML, and for a key that is unknown or has
    a value of another type; for several headers of which none is asked for.
    """
    found = [_parsed(block, text, path) for block in _BLOCK.finditer(text)]
    if len(found) < 2:
        return found[0] if found else {}
    fitting = [table for table in found if
               (kernel is not None and _base(table.get("kernel")) == _base(kernel))
               or (kernel is None and op is not None and table.get("op") == op)]
    if len(fitting) != 1:
        names = ", ".join(str(table.get("kernel") or table.get("op") or "one without a name")
                          for table in found)
        raise ConfigError(f"{path} has {len(found)} headers, of {names}: name one of these kernels "
                          f"(or ops), and let each header name its own")
    return fitting[0]


def _base(kernel: str | None) -> str:
    """A kernel's name without its template arguments."""
    return (kernel or "").partition("<")[0].strip()


def _parsed(found: re.Match[str], text: str, path: str | Path) -> Table:
    """The table of one header."""
    kind = "block" if found["block"] is not None else "lines"
    first = text.count("\n", 0, found.start(kind)) + 1
    # Lines may begin with stars, as is usual in comments.
    start = r"^[ \t]*\*[ \t]?" if kind == "block" else r"^[ \t]*//[ \t]?"
    lines = [re.sub(start, "", line) for line in found[kind].split("\n")]
    try:
        table = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = first + int(at[1]) - 1 if at else first
        what = str(error).partition(" (at ")[0]
        raise ConfigError(f"{path}, line {line}: the header is TOML, and this is none: {what}; "
                          f"write key = value, with text in quotes") from None
    for key, value in table.items():
        _check(key, value, f"{path}, line {_line(lines, key) + first}")
    return table


def _check(key: str, value: object, where: str) -> None:
    if key not in KNOWN:
        raise ConfigError(f"{where}: the header knows no '{key}'" + (
            nearest(key, KNOWN) or f"; it knows {', '.join(KNOWN)}"))
    wanted = KNOWN[key]
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        raise ConfigError(f"{where}: {key} = {value!r} should be "
                          f"{' or '.join(_IN_WORDS[kind] for kind in kinds)}")


_IN_WORDS = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false",
             list: "a list in [ ]", dict: "a table in { }"}


def _line(lines: list[str], key: str) -> int:
    """The line of a key, counted from the header's first line."""
    pattern = re.compile(rf"\s*(\[\s*)?[\"']?{re.escape(key)}\b")
    return next((n for n, line in enumerate(lines) if pattern.match(line)), 0)
