#!/usr/bin/env python3
"""Keep what the tests and the sanitizers said on a GPU in results/gpu-tests.json, of which
docs/testing.md has its tables.

    python tools/gpu_record.py FOLDER... --commit 0123abc

A FOLDER holds what a run of the lists left: `LIST.jsonl`, a line a test as
{"test", "when", "outcome", "seconds", "text"}; `again-LIST.jsonl`, the same of what had failed, run
once more and alone; `san-NAME-TOOL.log` or `NAME-TOOL.log`, what compute-sanitizer printed; and
`gpu.txt`, the GPU's name and its driver. What is new takes the place of what was, list by list.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.bench.render.grid import Grid  # noqa: E402
from rawnn.common.files import write_atomically  # noqa: E402

RECORD = ROOT / "results" / "gpu-tests.json"
LISTS = {
    "whole": "all of `tests/gpu`", "chip": "those that train on the chip, and the engine's",
    "ranks": "`tests/gpu/test_ranks.py` on two GPUs",
    "killed": "`tests/gpu/test_rank_faults.py` on four GPUs",
    "as-7.5": "as on 7.5 (`RAWNN_COMPUTE=7.5`)", "as-8.0": "as on 8.0", "as-8.6": "as on 8.6",
    "as-8.9": "as on 8.9", "nvrtc12": "kernels compiled by NVRTC 12.9",
}
"""Lists in the order of the table, in words."""
CHECKED = {
    "p4x2": "`persistent` in 4 x 2 blocks", "l2": "the exchange through L2: 4 x 2 blocks",
    "l2g": "the same, layers gathered", "l2wide": "the same, 33 x 1 blocks",
    "l2many": "the same, 12 x 5 blocks, all layers gathered",
    "special": "blocks that split examples, and clusters that share streamed weights",
    "members": "many networks, a block each", "uneven": "many networks of uneven widths",
    "indexed": "many networks that read rows by a list",
    "clusters-mma": "products and weight gradients in clusters: `mma`",
    "clusters-mma16": "the same: `mma` in bf16", "clusters-wgmma": "the same: `wgmma`",
    "clusters-tf32": "the same: `wgmma_tf32`", "clusters-scaled": "the same: `wgmma_scaled`",
    "products-mma": "products and updates in all layouts: `mma`",
    "products-wgmma": "the same: `wgmma`, `wgmma_tf32`, `wgmma_scaled`",
    "ops-loss": "the loss in the last product, sums of what is reported",
    "ops-scaled": "the loss in the last product: `wgmma_scaled`",
    "ops-flat": "elementwise kernels, updates and sums of columns",
    "vanish": "losses of probabilities that vanish",
    "updates": "updates of 16-bit products, streamed weights included",
}
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
NOT_REACHED = "NOT REACHED"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A test that failed, the last line of what it said, and whether it passed when it ran once
    more and alone: a time is none where many tests share the GPU and the host."""

    test: str
    text: str
    passed_alone: bool


class List(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a list of tests; `seconds` are those of all its tests together, `gpu` where
    they ran if not on the record's."""

    name: str
    commit: str
    passed: int
    skipped: int
    not_reached: int
    seconds: float
    failures: list[Failure]
    gpu: str = ""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A run under compute-sanitizer: its last word, and whether it is clean; `errors` of the tool,
    None where the run did not come to its end; `gpu` as a list's."""

    name: str
    tool: str
    commit: str
    errors: int | None
    said: str
    gpu: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """All lists and checks, and where they ran."""

    kind: str = "gpu-tests"
    gpu: str
    date: str
    lists: list[List]
    checked: list[Checked]


class _Line(msgspec.Struct):
    test: str
    when: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


def lines_of(path: Path) -> list[_Line]:
    """The tests of a list; a last line that was cut off is left out."""
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=_Line))
        except msgspec.DecodeError:
            break
    return found


def list_of(path: Path, commit: str) -> List:
    """What became of the list of a file."""
    lines = lines_of(path)
    again = path.with_name(f"again-{path.name}")
    if path.stem == "whole" and not again.exists():
        again = path.with_name("again.jsonl")
    later = lines_of(again) if again.exists() else []
    alone = {line.test for line in later if line.outcome == "passed"} - \
        {line.test for line in later if line.outcome == "failed"}
    failed = {line.test: line for line in lines if line.outcome == "failed"}
    unreached = sum(line.outcome == "skipped" and NOT_REACHED in line.text for line in lines)
    return List(
        name=path.stem, commit=commit, not_reached=unreached,
        passed=len({line.test for line in lines if line.outcome == "passed"} - set(failed)),
        skipped=sum(line.outcome == "skipped" for line in lines) - unreached,
        seconds=round(sum(line.seconds for line in lines), 1),
        failures=[Failure(test=name, text=_last(line.text), passed_alone=name in alone)
                  for name, line in sorted(failed.items())])


def _last(text: str) -> str:
    """The last line, without the folder that the tests ran in."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"/[\w./-]*/(examples|rawnn|tests)/", r"\1/", lines[-1])[:200] if lines else ""


def checked_of(path: Path, commit: str) -> Checked | None:
    """A sanitizer's log, by its name; None for other files."""
    match = re.fullmatch(rf"(?:san-)?(.+)-({'|'.join(TOOLS)})\.log", path.name)
    if not match:
        return None
    text = path.read_text(errors="replace")
    summary = re.findall(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", text, re.M)
    said = re.findall(r"^.*(?:\d+ (?:passed|failed).*|in clusters.*)$", text, re.M)
    last = re.sub(r"^=+ | =+$|^=+$| in [\d.]+s.*$", "", said[-1]).strip() if said else ""
    return Checked(name=match[1], tool=match[2], commit=commit, said=last,
                   errors=int(summary[-1]) if summary and last else None)


def record(folders: Sequence[Path], commit: str, before: Record | None = None) -> Record:
    """The record of some folders, with what else an earlier one has."""
    lists = {each.name: each for each in before.lists} if before else {}
    checks = {(c.name, c.tool): c for c in before.checked} if before else {}
    gpu = before.gpu if before else ""
    for folder in folders:
        here = (folder / "gpu.txt").read_text().strip().partition("\n")[0] \
            if (folder / "gpu.txt").exists() else ""
        gpu = gpu or here
        other = here if here != gpu else ""
        for path in sorted(folder.glob("*.jsonl")):
            if not path.stem.startswith("again"):
                lists[path.stem] = msgspec.structs.replace(list_of(path, commit), gpu=other)
        for path in sorted(folder.glob("*.log")):
            if found := checked_of(path, commit):
                checks[found.name, found.tool] = msgspec.structs.replace(found, gpu=other)
    return Record(gpu=gpu, date=datetime.now(UTC).isoformat(timespec="seconds"),
                  lists=_ordered(lists.values(), LISTS), checked=sorted(
                      checks.values(), key=lambda c: (list(CHECKED).index(c.name)
                                                      if c.name in CHECKED else 99, c.tool)))


def _ordered(lists: Iterable[List], order: dict[str, str]) -> list[List]:
    return sorted(lists, key=lambda each: list(order).index(each.name)
                  if each.name in order else 99)


def read_record() -> Record:
    return msgspec.json.decode(RECORD.read_bytes(), type=Record)


LIST_HEADS = ("list", "", "passed", "failed", "of them passed alone", "skipped", "not reached")


def lists_table(found: Record) -> str:
    """The lists as Markdown, a table for each commit, and every failure in words."""
    tables = []
    for commit, lists in _by_commit(found.lists).items():
        rows = [[each.name, LISTS.get(each.name, ""), f"{each.passed:,}", str(len(each.failures)),
                 str(sum(f.passed_alone for f in each.failures) or ""), str(each.skipped),
                 str(each.not_reached or "")] for each in lists]
        tables.append(Grid(LIST_HEADS, rows, LIST_HEADS[:2],
                           source=_source(found, commit, lists)).markdown())
    failures: dict[str, list[tuple[str, Failure]]] = {}
    for each in found.lists:
        for f in each.failures:
            failures.setdefault(f.test.removeprefix("tests/gpu/"), []).append((each.name, f))
    said = [f"- `{test}` ({', '.join(name for name, _ in where)}"
            f"{'; passed alone' if all(f.passed_alone for _, f in where) else ''}): "
            f"`{where[0][1].text.removeprefix('E').strip().replace('`', '')}`"
            for test, where in sorted(failures.items())]
    return "\n".join([*tables, *(said or ["Nothing failed."]), ""])


CHECKED_HEADS = ("under compute-sanitizer", "tool", "result")


def checked_table(found: Record) -> str:
    """The sanitizers' runs as Markdown, a table for each commit."""
    tables = []
    for commit, checks in _by_commit(found.checked).items():
        rows = [[CHECKED.get(c.name, c.name), c.tool, "did not come to its end"
                 if c.errors is None else
                 f"{'clean' if c.errors == 0 else f'{c.errors} errors'}; {c.said}"] for c in checks]
        tables.append(Grid(CHECKED_HEADS, rows, CHECKED_HEADS,
                           source=_source(found, commit, checks)).markdown())
    return "\n".join(tables)


Ran = TypeVar("Ran", List, Checked)


def _by_commit(several: Iterable[Ran]) -> dict[str, list[Ran]]:
    """What ran at each commit, and on each GPU of it."""
    made: dict[str, list[Ran]] = {}
    for each in several:
        made.setdefault(f"{each.commit[:7]} {each.gpu}", []).append(each)
    return made


def _source(found: Record, commit: str, several: Sequence[List | Checked]) -> str:
    return f"{several[0].gpu or found.gpu}, commit {commit.split()[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--commit", required=True, help="that the folders' runs were of")
    parser.add_argument("--new", action="store_true", help="keep nothing of the record before")
    asked = parser.parse_args()
    if missing := [str(folder) for folder in asked.folders if not folder.is_dir()]:
        parser.error(f"there is no folder {', '.join(missing)}")
    before = read_record() if RECORD.exists() and not asked.new else None
    found = record(asked.folders, asked.commit, before)
    write_atomically(RECORD, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    main()
