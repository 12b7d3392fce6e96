"""What was measured of the series in examples/lab, and their tables: tools/lab_series.py measures,
tools/pages.py writes examples/lab/README.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.bench.conditions import Conditions  # noqa: E402
from rawnn.bench.floors import number  # noqa: E402
from rawnn.bench.measured import read_measured  # noqa: E402
from rawnn.bench.statistics import Spread  # noqa: E402
from rawnn.engine.result import Environment  # noqa: E402

LAB = ROOT / "examples" / "lab"
SCHEMA_VERSION = 1


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a series, or what it is compared with: microseconds of one launch with a cold L2
    cache, and the 95 % interval of their median. `shared` bytes are those of a block, `local` bytes
    of a thread are what registers had no room for."""

    name: str
    us: Spread
    interval: tuple[float, float]
    registers: int = 0
    shared: int = 0
    local: int = 0
    launch: str = ""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A series at one size: bytes that have to be moved and operations to be computed. `also` are
    steps with other macros."""

    name: str
    sizes: dict[str, int]
    moved: int
    computed: int | None
    steps: list[Candidate]
    beside: list[Candidate]
    also: list[Candidate] = []
    missing: list[str] = []


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """All series on one GPU."""

    kind: Literal["lab-series"] = "lab-series"
    schema_version: int = SCHEMA_VERSION
    environment: Environment
    conditions: Conditions | None
    topics: list[Topic]


def read_lab(path: Path) -> LabResult:
    """Raises ConfigError for what is no such file."""
    found: LabResult = read_measured(path, {"lab-series": (LabResult, SCHEMA_VERSION)})
    return found


# -- the table -------------------------------------------------------------------------------------


def steps_of(topic: str) -> list[Path]:
    return sorted((LAB / topic).glob("[1-9]_*.cu"))


def learned(path: Path) -> str:
    """A header comment's sentences behind "Learned:", in one line."""
    found = re.search(r"// Learned: (.*?)\n(?!//)", path.read_text(encoding="utf-8"), re.DOTALL)
    return " ".join(found[1].replace("\n//", " ").split()) if found else ""


def table(topic: str, results: Sequence[LabResult]) -> str:
    """A series in Markdown: what each step taught, and what it takes on each GPU."""
    found = [(r, t) for r in results for t in r.topics if t.name == topic]
    steps = steps_of(topic)
    if not found:
        rows = [f"| [{p.stem}]({topic}/{p.name}) | not measured | {learned(p)} |" for p in steps]
        return "\n".join(["| step | us | learned |", "|---|---:|---|", *rows, ""])
    lines = []
    for result, of in found:
        lines += [*_measured(of, steps), "", f"{_place(result, of)}", ""]
    lessons = [f"- [{p.stem}]({topic}/{p.name}): {learned(p)}" for p in steps]
    return "\n".join([*lessons, "", *lines])


def _measured(of: Topic, steps: Sequence[Path]) -> list[str]:
    unit = "TFLOP/s" if of.name == "gemm" else "GB/s"
    limit = of.beside[0].name if of.beside else "-"
    lines = [f"| step | us | min-max | {unit} | x step 1 | of {limit} | registers | shared bytes |",
             "|---|" + "---:|" * 7]
    first = of.steps[0].us.median if of.steps else 1.0
    best = min((b.us.median for b in of.beside), default=None)
    timed = {each.name: each for each in of.steps}
    for name in [*(p.stem for p in steps), *(each.name for each in of.beside)]:
        each = timed.get(name) or next((b for b in of.beside if b.name == name), None)
        if each is None:
            lines.append(f"| {name} | not measured |" + " |" * 6)
            continue
        amount = of.computed if of.name == "gemm" and of.computed else of.moved
        rate = amount / each.us.median * (1e-6 if unit == "TFLOP/s" else 1e-3)
        share = "-" if best is None else f"{best / each.us.median:.1%}"
        ours = name in timed
        lines.append("| " + " | ".join([
            each.name, f"{each.us.median:,.1f}", f"{each.us.min:,.1f}-{each.us.max:,.1f}",
            number(rate), f"{first / each.us.median:,.1f}" if ours else "", share,
            str(each.registers) if ours else "", f"{each.shared:,}" if ours else ""]) + " |")
    return lines


def _place(result: LabResult, of: Topic) -> str:
    place, seen = result.environment, result.conditions
    gpu = place.gpu or {}
    clocks = f"; SM {seen.sm_mhz.min:.0f}-{seen.sm_mhz.max:.0f} MHz" if seen and seen.sm_mhz else ""
    sizes = ", ".join(f"{n} = {v:,}" for n, v in of.sizes.items())
    counts = sorted({c.us.n for c in (*of.steps, *of.beside)})
    samples = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return (f"{gpu.get('name', place.device)}, driver {gpu.get('driver', 'unknown')}{clocks}; "
            f"{sizes}; cold L2 cache; medians of {samples} launches, in turns; {place.date}, "
            f"commit {place.commit or 'unknown'}.")
