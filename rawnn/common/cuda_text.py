"""CUDA C that is in no file of rawnn's: a user's kernel, or one that was written for a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self


@dataclass(frozen=True)
class CudaText:
    """The text with what goes with it: NVRTC's `options`, folders to `include` from, an
    architecture (`arch`, "" for the GPU's own) and a `preamble` that defines macros. `declared` is
    the text with their values put in, by which types are read; "" where there are none."""

    text: str
    options: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    arch: str = ""
    preamble: str = ""
    declared: str = ""
    probed: ClassVar[bool] = False
    """Whether the compiler is asked for the parameters of its kernels: of a user's."""

    @property
    def declarations(self) -> str:
        """What the parameters of its kernels are read from."""
        return self.declared or self.text

    def simulated(self) -> Self:
        """What the simulated GPU, which reads declarations alone, is given to compile."""
        return replace(self, text=self.declarations)
