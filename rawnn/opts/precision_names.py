"""The precision of a run as one word, by which measured toggles are stored and looked up."""

from __future__ import annotations

from collections.abc import Iterable

PRECISIONS = ("tf32", "fp16", "fp16=acc16", "bf16", "sr", "fp8")
"""The precisions other than float32, as typed after --opt."""


def precision_of(words: Iterable[str]) -> str:
    """The precision that words after --opt ask for, "" for float32. The last of several counts;
    `sr`, which implies bfloat16, has precedence over `bf16`."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.removeprefix("-").partition("=")
        if word.startswith("-"):
            found.pop(name, None)
        elif any(name == known.partition("=")[0] for known in PRECISIONS):
            found.pop(name, None)
            found[name] = f"{name}={value}" if value == "acc16" else name
    if "sr" in found:
        found.pop("bf16", None)
    return list(found.values())[-1] if found else ""
