"""Simulated cubins: what SimNvrtc makes, the linker joins and cuModuleLoadData reads.

An image is JSON behind a magic word: the source, its name, the text of its headers, the kernels
asked for with their mangled names, whether it still needs linking, and whether RAWNN_PDL is defined
in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

from rawnn.device.compiling.signature import KernelSignature, find_kernel, parse_kernels
from rawnn.errors import ConfigError
from rawnn.ptx import SOURCES

MAGIC = b"rawnn simulated cubin\n"
_DEVICE_RUNTIME = "cudaGraphSetConditional"


@dataclass(frozen=True)
class Image:
    """`lowered` maps name expressions to mangled names; `arch` is such as "sm_90"."""

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
        return MAGIC + json.dumps({f.name: getattr(self, f.name) for f in fields(self)}).encode()

    def link(self) -> Image:
        return replace(self, linked=True)


def signatures(name: str, source: str) -> dict[str, KernelSignature]:
    """Of the kernels in `source`, which may be the file `name`."""
    return parse_kernels(source, (Path(name).parent, SOURCES))


@lru_cache(64)  # runs with one call failing load the same kernels again and again
def decode(image: bytes) -> Image | None:
    """The image, or None where the bytes are none."""
    if not image.startswith(MAGIC):
        return None
    return Image(**json.loads(image[len(MAGIC):]))


def build(name: str, source: str, arch: str, expressions: list[str],
          relocatable: bool, programmatic: bool = False,
          headers: str = "") -> tuple[Image | None, str]:
    """(image, "") or (None, log): reads the kernels' declarations and checks that every
    expression names one. Errors inside a kernel's body are not seen."""
    try:
        kernels = signatures(name, source)
        for expression in expressions:
            find_kernel(kernels, expression)
    except ConfigError as error:
        found = re.search(r"on line (\d+)", str(error))
        return None, f"{name}({found[1] if found else 1}): error: {error}\n"
    lowered = {e: _mangled(e, kernels, source) for e in expressions}
    image = Image(name, source, arch, lowered, relocatable, programmatic=programmatic,
                  headers=headers)
    if image.needs_device_runtime and not relocatable:
        line = next(n for n, text in enumerate(source.splitlines(), 1)
                    if _DEVICE_RUNTIME in text)
        return None, (f"{name}({line}): error: cudaGraphSetConditional needs "
                      f"--relocatable-device-code=true\n")
    return image, ""


def _mangled(expression: str, kernels: Mapping[str, object], source: str) -> str:
    name = expression.split("<")[0].strip()
    if name in kernels and _plain(name, source):
        return name
    arguments = re.sub(r"\W", "_", expression[len(name):])
    return f"_Z{len(name)}{name}{arguments}"


@cache
def _plain(name: str, source: str) -> bool:
    """Whether the kernel's name is that of C."""
    return re.search(rf'extern\s+"C"\s+__global__[^;{{]*\b{name}\s*\(', source) is not None


@cache
def launch_bounds(source: str, kernel: str) -> int:
    """Most threads a block of the kernel may have: its __launch_bounds__ where that is a plain
    number, else 1,024."""
    found = re.search(rf"__launch_bounds__\s*\(\s*(\d+)\s*\)\s*\b{kernel}\s*\(", source)
    return int(found[1]) if found else 1024
