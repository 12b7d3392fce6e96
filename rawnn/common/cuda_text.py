"""CUDA C that is no file of rawnn's: a user's kernel, or one generated for a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self


@dataclass(frozen=True)
class CudaText:
    """CUDA C text with NVRTC's `options`, folders to `include` from, an architecture (`arch`, ""
    for the GPU's own) and a `preamble` that defines macros. `declared` is the text with the macros'
    values substituted, from which types are read; "" without macros."""

    text: str
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    arch: str = ""
    preamble: str = ""
    declared: str = ""
    probed: ClassVar[bool] = False
    """Whether the compiler is asked for the parameters of its kernels, as for a user's."""

    @property
    def declarations(self) -> str:
        """The text from which the parameters of its kernels are read."""
        return self.declared or self.text

    def simulated(self) -> Self:
        """The text for the simulated GPU, which reads only declarations."""
        return replace(self, text=self.declarations)
