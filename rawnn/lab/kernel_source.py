"""The text of a user's kernel with its macros, options, folders and architecture."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from rawnn.common.cuda_text import CudaText
from rawnn.common.errors import ConfigError, MissingLibrary, check_type, nearest
from rawnn.cuda.compiling.c_types import code_of, without_comments
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.compiling.compiled_signature import Instance, annotated
from rawnn.cuda.compiling.headers import include_directories
from rawnn.cuda.compiling.includes import follow_includes, read_source
from rawnn.cuda.compiling.symbols import body_of
from rawnn.cuda.device import Device
from rawnn.ptx import INCLUDE

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


@dataclass(frozen=True)
class Source(CudaText):
    """CUDA C text with a `name` for the compiler: a path, or "kernel.cu"."""

    name: str = "kernel.cu"
    probed: ClassVar[bool] = True

    @classmethod
    def of(cls, source: str | os.PathLike[str], defines: Mapping[str, object] | None = None,
           options: Sequence[str] = (), include: Sequence[str | os.PathLike[str]] = (),
           arch: str | None = None) -> Source:
        """A source from text or a path. Raises ConfigError for an invalid file, macro, option,
        folder or architecture."""
        text, name = _read(source)
        if defines is not None and not isinstance(defines, Mapping):
            raise ConfigError(f"defines = {defines!r}: give a mapping of macros to their values, "
                              f"such as {{\"TILE\": 32}} (True for one without a value)")
        if isinstance(options, str):
            raise ConfigError(f"options is a list, such as [{options!r}]")
        check_type("options", options, Iterable, 'a list, such as ["-lineinfo"]')
        for option in options:
            if not isinstance(option, str) or not option.startswith("-"):
                raise ConfigError(f"the option {option!r} does not begin with a dash: write "
                                  f"\"--use_fast_math\"; macros are for defines=")
            if option.startswith(("-arch", "--gpu-architecture")):
                raise ConfigError(f"the option {option!r}: write arch=\"sm_90a\" instead")
        if isinstance(include, str | os.PathLike):
            include = [include]
        folders = tuple(Path(folder) for folder in include)
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"include: there is no folder {folder}")
        if arch is not None and not (isinstance(arch, str) and _ARCH.fullmatch(arch)):
            raise ConfigError(f"arch = {arch!r}: give one such as \"sm_90\", or \"sm_90a\" for "
                              f"what this architecture alone can do (wgmma)")
        macros = {name: _value(name, value) for name, value in (defines or {}).items()}
        preamble = _abbreviations(text) + "".join(
            f"#define {name} {value}\n" for name, value in macros.items())
        return cls(text, tuple(options), folders, arch or "", preamble,
                   _replaced(text, {**_kernel_words(text), **macros}), name)

    def check_macros(self, names: Iterable[str], others: str = "") -> None:
        """Raise ConfigError, with the nearest name, for a macro that is not mentioned by the
        source, a header that it includes, or `others`."""
        code = without_comments(self.text)  # a header names the macros that it defines
        unknown = [n for n in names if not re.search(rf"\b{n}\b", code + others)]
        if not unknown or "##" in self.text:  # names may be concatenated
            return
        folders = [Path(self.name).parent, *self.include, *INCLUDE]
        with suppress(MissingLibrary):
            folders += include_directories()
        texts = [content for _, content in follow_includes(self.text, folders)[0]]
        for name in unknown:
            word = re.compile(rf"\b{name}\b")
            if not any(word.search(each) for each in (self.preamble.replace(
                    f"#define {name} ", ""), *texts)):
                known = set(re.findall(r"\b[A-Za-z_]\w*", code_of(self.text)))
                raise ConfigError(f"the macro {name}: {self.name} mentions no '{name}'"
                                  f"{nearest(name, known)}")

    def waits_for_grid(self, name: str) -> bool:
        """Whether the kernel's text calls grid.sync() without first asking whether it may."""
        body = body_of(code_of(self.text), name.rpartition("::")[2])
        return re.search(r"\bthis_grid\s*\(", body) is not None \
            and re.search(r"\bsync\s*\(", body) is not None and "is_valid" not in body

    def check_arch(self, capability: tuple[int, int]) -> None:
        """Raise ConfigError for an architecture that a GPU of this compute capability cannot
        run."""
        found = _ARCH.fullmatch(self.arch)
        if found is None:
            return
        wanted = int(found[2]), int(found[3])
        runs = wanted == capability if found[4] == "a" else \
            wanted <= capability if (found[1], found[4]) == ("compute", "") else \
            wanted[0] == capability[0] and wanted[1] <= capability[1]
        if not runs:
            major, minor = capability
            raise ConfigError(f"arch = {self.arch!r} does not run on this GPU, which is "
                              f"sm_{major}{minor}: leave arch out; `rawnn kernel compile` compiles "
                              f"for any")

    def compiled(self, expressions: Sequence[str], arch: str, options: Sequence[str] = (),
                 cache: CubinCache | None = None, probed: bool = False) -> Compiled:
        """Compile with the installed NVRTC, without a GPU; `probed` as in compile_source. Raises
        CompileError, MissingLibrary."""
        from rawnn.cuda.nvrtc import Nvrtc

        return compile_source(Nvrtc, self.text, name=self.name, arch=arch, expressions=expressions,
                              options=(*self.options, *options), include_paths=self.include,
                              preamble=self.preamble, cache=cache, probed=probed)

    def compile_for_real(self, expression: str, device: Device) -> Compiled | None:
        """Compile with NVRTC for the simulation, which reads only declarations; None if NVRTC
        cannot be used. Raises CompileError for errors outside of declarations."""
        try:
            return self.compiled((expression,), self.arch or device.arch,
                                 cache=CubinCache(notify=device.notify), probed=True)
        except (MissingLibrary, RuntimeError) as error:  # RuntimeError: bindings without library
            device.notify(f"the kernel's body is not checked, since NVRTC cannot be used: {error}")
            return None

    def for_simulation(self, instances: Mapping[str, Instance]) -> Source:
        """The source for the simulated GPU, with the signatures that a compiler found."""
        simulated = self.simulated()
        return replace(simulated, text=annotated(simulated.text, instances))


def _value(name: str, value: object) -> str:
    """A macro's value as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ConfigError(f"defines: {name!r} is no name of a macro: letters, digits and _ alone")
    if value is True or value is None:
        return ""
    if isinstance(value, bool):
        return "0"
    if not isinstance(value, int | float | str):
        raise ConfigError(f"defines: {name} = {value!r} is neither a number nor text")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"defines: {name} = {value!r} is no number of C++: give text, such as "
                          f"\"INFINITY\" or \"NAN\"")
    return str(value)


def _abbreviations(text: str) -> str:
    """Definitions of host headers' short names of unsigned types, which nvcc finds and NVRTC does
    not, for those that the text uses without defining them."""
    return "".join(
        f"typedef unsigned {name[1:]} {name};\n" for name in ("uint", "ushort", "ulong")
        if re.search(rf"\b{name}\b", text)
        and not re.search(rf"\b(?:using|struct|define)[ \t]+{name}\b|\b{name}\s*;", text))


_KERNEL_WORD = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+"
                          r"([^\n{};\\]*\b__global__\b[^\n{};\\]*?)[ \t]*(?://[^\n]*)?\r?$",
                          re.MULTILINE)


def _kernel_words(text: str) -> dict[str, str]:
    """Macros without parameters that begin a declaration, as in `#define KERNEL __global__ void`,
    with what they stand for: without it the names of a kernel's parameters are not found."""
    return {found[1]: found[2] for found in _KERNEL_WORD.finditer(text)}


def _replaced(text: str, macros: Mapping[str, str]) -> str:
    words = {name: value for name, value in macros.items() if value}
    if not words:
        return text
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b")
    return pattern.sub(lambda match: words[match[1]], text)


def _read(source: str | os.PathLike[str]) -> tuple[str, str]:
    """(text, name) of a kernel given as text or as a path."""
    if isinstance(source, str) and ("__global__" in source or "\n" in source):
        return source.removeprefix("\ufeff"), "kernel.cu"
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"a kernel's source is text or the path of a file, not a "
                          f"{type(source).__name__}")
    if isinstance(source, str) and (not source.strip() or set(source) & set("{};")):
        raise ConfigError("the source has no __global__ function: a kernel is declared as "
                          "__global__ void name(...)")
    path = Path(source)
    try:
        return read_source(path), str(path)
    except OSError as error:
        raise ConfigError(f"cannot read the kernel {path}: {error.strerror}") from None
