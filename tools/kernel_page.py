"""rawnn/ptx/README.md: the families of kernels on one page, from the record of what they use.

Written and checked by tools/kernel_table.py.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rawnn.opts import TOGGLES
from rawnn.ptx.family import FAMILIES, Family
from rawnn.ptx.kernel_registry import Key, key_of
from rawnn.ptx.limits.microbenchmarks import Probe
from tests.catalogue import Case

PAGE = Path(__file__).resolve().parents[1] / "rawnn" / "ptx" / "README.md"
TOGGLE_PAGES = "../../docs/toggles"

PARTS = {
    "Matrix products, from naive to best":
        ("products", "slices", "tiled", "mma", "wgmma", "skinny"),
    "Several ops of a step, or all, in one kernel": ("linear", "head", "narrow", "deferred"),
}
"""Families by the part of the page that they are in; the others follow."""
OTHERS = "Everything else"
COLUMNS = (
    "| family | computes | ops | numbers | GPUs | instances | registers | spills | toggles |",
    "|---|---|---|---|---|---:|---:|---:|---|",
)

TYPES = {"float": "float32", "float16": "fp16", "bfloat16": "bf16", "float8_e4m3": "fp8",
         "float8_e5m2": "fp8", "tf32": "tf32", "tf32x3": "3 x tf32",
         "f16x3": "3 x fp16", "unsigned char": "uint8"}
"""Template arguments that say in what numbers a kernel works."""

HEAD = """\
# The kernels

They are CUDA C++: the folder is called after the PTX that NVRTC makes of them.

Written by `python tools/kernel_table.py` from [results/kernels.json](../../results/kernels.json);
not edited by hand.

A family of kernels is a `.cu` file in a folder, whose head says what it computes and what limits
it, and beside it a Python module with the object that says all else: ops with their references,
what a GPU must have, where in a plan the kernels take others' place, how they are launched.
*Instances* are the template instances that the engine can ask for, *registers* the fewest and most
a thread over these and all architectures, *spills* the instances that spill on any architecture,
and the most bytes stored and loaded a thread ({version}). *Toggles* are those without which no plan
has the family, with their measured worth on their pages; kernels of "every run" need none. Where
numbers are float32, tensor cores round them to tf32, unless they multiply by 3 x tf32.
"""

FLOORS = "What a GPU's limits are measured with"
FLOORS_SUMMARY = "one thing each, as fast as the GPU can: what times are compared with"

PERSISTENT = """\
## Written for a network: `persistent`

The kernel of [`persistent`]({pages}/persistent.md#measured-worth) stands in no file:
[persistent.py](persistent/persistent.py) has [rawnn/persistent](../persistent) choose how blocks
share the network at hand, and write the source of all steps of an epoch in one kernel, from the
templates in `persistent/*.cuh`. There is one for every network, batch, optimizer and GPU, so that
it is not in the record; `python -m rawnn plan` names it. It takes compute capability 8.0.
"""

TAIL = """\
## The record

[results/kernels.json](../../results/kernels.json) has {count} instances, one a line: threads and
dynamic shared memory of the largest launch, and for {architectures}, by NVRTC {versions},
registers, static shared memory and spills. How many blocks fit on a multiprocessor follows from
them (`rawnn.cuda.compiling.resources.occupancy`). What CI proves of it, and when it has to be
written anew: [testing](../../docs/testing.md#what-ci-runs).
"""


def render(record: Mapping[str, Any], launched: Mapping[Any, Iterable[Case]],
           probes: Sequence[Probe]) -> str:
    """The page; `launched` are the instances that the engine can ask for, with the ops they run,
    `probes` those that no op runs."""
    needed = _needed(launched)
    known = [name for names in PARTS.values() for name in names]
    parts = {**PARTS, OTHERS: sorted(FAMILIES.keys() - known)}
    versions = " and ".join(version for _, version in sorted(record["nvrtc"].items()))
    blocks = [HEAD.format(version=f"NVRTC {versions}")]
    for title, names in parts.items():
        lines = [_line(FAMILIES[name], record, needed[name]) for name in names if name in needed]
        blocks += [f"## {title}", "\n".join([*COLUMNS, *lines])]
    blocks += [f"## {FLOORS}", "\n".join([*COLUMNS, _probes_line(probes, record)])]
    blocks += [PERSISTENT.format(pages=TOGGLE_PAGES), TAIL.format(
        count=sum(map(len, record["kernels"].values())), versions=versions,
        architectures=", ".join(record["architectures"]))]
    return "\n\n".join(map(_wrapped, blocks)) + "\n"


def _wrapped(text: str) -> str:
    """Paragraphs in lines of equal width; tables and headings stay as they are."""
    return "\n\n".join(part if part.startswith(("#", "|")) else
                       textwrap.fill(part, 99, break_on_hyphens=False, break_long_words=False)
                       for part in text.strip().split("\n\n"))


def _needed(launched: Mapping[Any, Iterable[Case]]) -> dict[str, set[str]]:
    """By family: the kernel toggles that every plan with one of its kernels has."""
    family_of: dict[Key, str] = {k: f.name for f in FAMILIES.values() for k in f.kernels}
    found: dict[str, set[str]] = {}
    for case in (case for several in launched.values() for case in several):
        words = {word.partition("=")[0] for word in case.opt.split(",")}
        name = family_of[key_of(case.op)]
        found[name] = found.get(name, words) & words
    return {name: {w for w in words if w in TOGGLES and TOGGLES[w].group == "kernels"}
            for name, words in found.items()}


def _line(family: Family, record: Mapping[str, Any], toggles: set[str]) -> str:
    names = {kernel.name for kernel in family.kernels.values()}
    worth = ", ".join(f"[{t}]({TOGGLE_PAGES}/{t}.md#measured-worth)" for t in sorted(toggles))
    ops = ", ".join(f"`{kind}`" for kind in dict.fromkeys(key.kind for key in family.kernels))
    return _row(family.name, _module(family), family.summary, ops, family.sources, names, record,
                worth or "every run")


def _probes_line(probes: Sequence[Probe], record: Mapping[str, Any]) -> str:
    return _row("floors", "limits/microbenchmarks.py", FLOORS_SUMMARY, "none",
                tuple(dict.fromkeys(p.source for p in probes)), {p.name for p in probes}, record,
                "none: `rawnn bench floors`")


def _row(name: str, module: str, summary: str, ops: str, sources: Sequence[str], names: set[str],
         record: Mapping[str, Any], toggles: str) -> str:
    """A line of a table: the kernels `names` in some sources."""
    entries = {expression: entry for source in sources
               for expression, entry in record["kernels"].get(source, {}).items()
               if expression.partition("<")[0] in names}
    cells = [(expression, cell) for expression, entry in entries.items()
             for major in record["nvrtc"] for cell in entry.get(major, ()) if cell]
    registers = [cell[0] for _, cell in cells]
    spilled = {expression: cell[2:] for expression, cell in cells if cell[2:]}
    worst = max((cell[2:] for _, cell in cells if cell[2:]), default=None)
    arguments = {argument for expression in entries
                 for argument in re.split(r"[<>,]", expression)[1:]}
    numbers = list(dict.fromkeys(said for word, said in TYPES.items() if word in arguments))
    listed = ", ".join(f"[{Path(source).name}]({source})" for source in sources)
    return " | ".join((
        f"| [{name}]({module}) ({listed})", summary, ops,
        ", ".join(numbers) or "float32", _gpus(list(entries.values()), record), str(len(entries)),
        "-".join(str(n) for n in sorted({min(registers), max(registers)})),
        f"{len(spilled)}, at most {worst[0]} + {worst[1]} B" if worst else "0",
        toggles)) + " |"


def _module(family: Family) -> str:
    """The Python file next to the sources that makes the family's object."""
    made = re.compile(rf'Family\(\s*"{family.name}"')
    return next(str(path.relative_to(PAGE.parent)) for path in sorted(PAGE.parent.rglob("*.py"))
                if made.search(path.read_text()))


def _gpus(entries: Iterable[Mapping[str, Any]], record: Mapping[str, Any]) -> str:
    """Those architectures of the record that can be asked for any of the instances."""
    archs = record["architectures"]
    found = [arch for at, arch in enumerate(archs)
             if any(entry[major][at] for entry in entries for major in record["nvrtc"])]
    if found == archs:
        return "all"
    return f"{found[0]} on" if found == archs[archs.index(found[0]):] else ", ".join(found)
