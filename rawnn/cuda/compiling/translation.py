"""A rewritten version of a user's source, and what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass, field

DYNAMIC = "it launches kernels from the device (<<<), which takes the device runtime's linker"
"""Why a function is left out that NVRTC alone cannot compile."""


@dataclass(frozen=True)
class Omission:
    """Something that the device part leaves out: `what` it is ("function", "variable", "type",
    "header", ...), its name, the file's name ("" for the source itself), its lines, and why ("" for
    host code)."""

    what: str
    name: str
    file: str = ""
    first: int = 0
    last: int = 0
    why: str = ""

    def __str__(self) -> str:
        lines = f"line {self.first}" if self.first == self.last else (
            f"lines {self.first}-{self.last}")
        place = ", ".join([*([self.file] if self.file else []), *([lines] if self.first else [])])
        return (f"{self.what} {self.name}".rstrip() + (f" ({place})" if place else "")
                + (f": {self.why}" if self.why else ""))


@dataclass(frozen=True)
class Translation:
    """A source for another attempt: its text, `headers` by name, a preamble, further options, and
    what was left out."""

    text: str
    headers: dict[str, str] = field(default_factory=dict)
    preamble: str = ""
    options: tuple[str, ...] = ()
    left_out: tuple[Omission, ...] = ()
