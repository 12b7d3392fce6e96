"""A kernel with its work from a `.cu` file: from its header and the caller's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.includes import read_source
from rawnn.cuda.device import Device
from rawnn.lab.header import COMPILED, header
from rawnn.lab.inspection import instances
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_source import Source
from rawnn.lab.work import KNOWN, Work


def text_of(path: Path) -> str:
    """The content of the file. Raises ConfigError if it cannot be read."""
    try:
        return read_source(path)
    except OSError as error:
        raise ConfigError(f"cannot read the kernel {path}: {error.strerror}") from None


def kernel_of(path: str | Path, expression: str | None = None, *, device: Device | None = None,
              defines: Mapping[str, object] | None = None, options: Sequence[str] = (),
              include: Sequence[str | Path] = (), arch: str | None = None,
              **work: Any) -> tuple[Kernel, Work]:
    """The kernel of a file with its work. Arguments override the file's header; tables (defines,
    sizes, values, ...) are merged with the header's, options and folders are appended.

    Raises ConfigError for a file with several kernels if none is named, and for what does not fit;
    CompileError.
    """
    path = Path(path)
    table = header(text_of(path), path, expression)
    settings = {name: table[name] for name in COMPILED if name in table}
    folders = settings.get("include", [])
    compiled: dict[str, Any] = {
        "defines": {**settings.get("defines", {}), **(defines or {})},
        "options": [*settings.get("options", []), *options],
        "include": [*(path.parent / f for f in ([folders] if isinstance(folders, str)
                                                else folders)), *include],
        "arch": arch or settings.get("arch"),
    }
    mentions = [work, {n: v for n, v in table.items() if n not in ("defines", "sweep")}]
    Source.of(path, **compiled).check_macros(compiled["defines"], repr(mentions))
    symbols = settings.get("symbols")
    name = expression or settings.get("kernel")
    if name is None:
        found = instances(Source.of(path, **compiled), ())
        if len(found) > 1:
            raise ConfigError(f"{path} has {len(found)} kernels ({', '.join(found)}): name one")
        name = found[0]
    if "{" in name or ("op" in table and "reference" not in {**table, **work}):
        raise ConfigError(f"{path} says that it computes the op '{table.get('op', '?')}' of a "
                          f"training step: `rawnn kernel try {path}` checks and times it there; to "
                          f"take it by itself, name an instance and say shapes and a reference")
    given = {n: v for n, v in table.items() if n in KNOWN}
    for key, value in work.items():
        merged = isinstance(value, Mapping) and isinstance(given.get(key), Mapping)
        given[key] = {**given[key], **value} if merged else value
    if isinstance(given.get("require"), str):
        given["require"] = [given["require"]]
    return (Kernel(path, name, device=device, symbols=symbols, **compiled),
            Work.of(given.pop("reference", None), {**given, "folder": path.parent}))
