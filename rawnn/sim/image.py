"""Simulated cubins, which SimNvrtc makes, the linker joins and cuModuleLoadData reads.

An image is JSON after a magic word: the source, its name, the text of its headers, the requested
kernels with their mangled names, whether it still needs linking, and whether RAWNN_PDL is defined.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_text import split_expression
from rawnn.cuda.compiling.compiled_signature import Instance, annotation
from rawnn.cuda.compiling.signature import known_name, parse_kernels
from rawnn.ptx import INCLUDE

MAGIC = b"rawnn simulated cubin\n"
_DEVICE_RUNTIME = "cudaGraphSetConditional"


@dataclass(frozen=True)
class Image:
    """`lowered` maps name expressions to mangled names; `arch` is, for example, "sm_90"."""

    name: str
    source: str
    arch: str
    lowered: dict[str, str]
    relocatable: bool
    linked: bool = False
    programmatic: bool = False
    headers: str = ""

    @cached_property
    def text(self) -> str:
        """All that was compiled: the headers and the source."""
        return self.headers + self.source

    @property
    def needs_device_runtime(self) -> bool:
        return _DEVICE_RUNTIME in self.source

    @property
    def loadable(self) -> bool:
        """Whether every symbol is resolved."""
        return self.linked or not self.needs_device_runtime

    def encode(self) -> bytes:
        return _encoded(tuple(self.lowered.items()), tuple(
            (f.name, getattr(self, f.name)) for f in fields(self) if f.name != "lowered"))

    def link(self) -> Image:
        return replace(self, linked=True)


@lru_cache(64)  # as decode: equal images are then the same object, which is hashed once
def _encoded(lowered: tuple[tuple[str, str], ...], others: tuple[tuple[str, object], ...]) -> bytes:
    return MAGIC + json.dumps({**dict(others), "lowered": dict(lowered)}).encode()


@lru_cache(256)
def instance(name: str, source: str, expression: str) -> Instance:
    """The kernel that an expression names in `source`, which may be the file `name`: as compiled,
    else as declared. Raises ConfigError if there is none."""
    known = annotation(source)
    if expression in known:
        return known[expression]
    kernels = parse_kernels(source, (Path(name).parent, *INCLUDE))
    declared = kernels[known_name(kernels, expression)]
    signature = declared.instantiate(expression)
    return Instance(signature, dict(zip(declared.template, signature.arguments, strict=True)))


@lru_cache(64)  # runs with one failing call load the same kernels again and again
def decode(image: bytes) -> Image | None:
    """The image, or None for other bytes."""
    if not image.startswith(MAGIC):
        return None
    return Image(**json.loads(image[len(MAGIC):]))


def build(name: str, source: str, arch: str, expressions: list[str],
          relocatable: bool, programmatic: bool = False,
          headers: str = "") -> tuple[Image | None, str]:
    """(image, "") or (None, log): reads the kernels' declarations and checks that every expression
    names one. Errors inside a kernel's body are not found."""
    try:
        for expression in expressions:
            instance(name, source, expression)
    except ConfigError as error:
        found = re.search(r"on line (\d+)", str(error))
        return None, f"{name}({found[1] if found else 1}): error: {error}\n"
    lowered = {e: _mangled(e, source) for e in expressions}
    image = Image(name, source, arch, lowered, relocatable, programmatic=programmatic,
                  headers=headers)
    if image.needs_device_runtime and not relocatable:
        line = next(n for n, text in enumerate(source.splitlines(), 1)
                    if _DEVICE_RUNTIME in text)
        return None, (f"{name}({line}): error: cudaGraphSetConditional needs "
                      f"--relocatable-device-code=true\n")
    return image, ""


def _mangled(expression: str, source: str) -> str:
    name = kernel_of(expression)
    if _plain(name, source):
        return name
    rest = re.sub(r"\W", "_", expression.replace(name, "", 1))
    return f"_Z{len(name)}{name}{rest}"


def kernel_of(expression: str) -> str:
    """The name of a kernel in its definition: without namespaces and template arguments."""
    return split_expression(expression)[0].rpartition("::")[2]


@cache
def _plain(name: str, source: str) -> bool:
    """Whether the kernel has C linkage."""
    return re.search(rf'extern\s+"C"\s+__global__[^;{{]*\b{name}\s*\(', source) is not None


@cache
def launch_bounds(source: str, kernel: str) -> int:
    """Most threads in a block of the kernel: its __launch_bounds__ if that is a plain number, else
    1,024."""
    found = re.search(rf"__launch_bounds__\s*\(\s*(\d+)\s*\)\s*\b{kernel}\s*\(", source)
    return int(found[1]) if found else 1024
