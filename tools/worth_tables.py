#!/usr/bin/env python3
"""Write the tables of measured worth into docs/toggles, from results/toggles-*.json.

    python tools/worth_tables.py

Each file is what `rawnn bench toggles [TOGGLE]... --json FILE` kept on one GPU. A table has a
column for each GPU, all of it from one run, and stands between two comments of its toggle's page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.bench.sets import SetsResult  # noqa: E402
from rawnn.bench.worth import has_all, markdown  # noqa: E402
from rawnn.opts import TOGGLES  # noqa: E402
from rawnn.opts.registry import Toggle  # noqa: E402

PAGES = ROOT / "docs" / "toggles"
BEGIN, END = "<!-- worth -->\n", "<!-- /worth -->\n"


def results() -> list[SetsResult]:
    """Everything that was measured, the newest first."""
    found = [msgspec.json.decode(path.read_bytes(), type=SetsResult)
             for path in (ROOT / "results").glob("toggles-*.json")]
    return sorted(found, key=lambda result: result.environment.date, reverse=True)


def columns(toggle: Toggle, measured: Sequence[SetsResult]) -> list[SetsResult]:
    """Of each GPU the newest result that has all the sets of a toggle, by the GPU's name."""
    newest: dict[str, SetsResult] = {}
    for result in measured:
        if has_all(result, toggle):
            newest.setdefault(result.machine(), result)
    return [newest[machine] for machine in sorted(newest)]


def page(toggle: Toggle, measured: Sequence[SetsResult]) -> tuple[Path, str]:
    """A toggle's page, and what it is to say. Raises ValueError for a page without the comments,
    or a toggle that nobody has measured."""
    path = PAGES / f"{toggle.name}.md"
    found = columns(toggle, measured)
    if not found:
        raise ValueError(f"no file of results has all that {toggle.name} is compared by")
    head, rest = _split(path, path.read_text(), BEGIN)
    _, tail = _split(path, rest, END)
    text = (f"Milliseconds an epoch of MNIST by the device's clock, and in brackets how many times "
            f"faster than without; `python -m rawnn bench toggles {toggle.name}` measures this "
            f"([how we measure](../measuring.md)).\n\n{markdown(toggle, found)}")
    return path, f"{head}{BEGIN}{text}{END}{tail}"


def _split(path: Path, text: str, mark: str) -> tuple[str, str]:
    before, found, behind = text.partition(mark)
    if not found:
        raise ValueError(f"{path} has no {mark.strip()}")
    return before, behind


def main() -> None:
    measured = results()
    for toggle in TOGGLES.values():
        path, text = page(toggle, measured)
        path.write_text(text)


if __name__ == "__main__":
    main()
