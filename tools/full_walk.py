#!/usr/bin/env python3
"""Run all cases of the tests that take a slice of them by default (tests/slices.py), and keep what
became of them in results/full-walk.json, of which docs/testing.md has its table.

    python tools/full_walk.py [--jobs N] [--only PATTERN] [--again] [--list]

A part is a test file with all its cases, or a file of property tests once for each slice. A part
whose outcome is kept of this commit is left out unless --again asks for it. --only takes the parts
whose name matches a regular expression; --list prints the parts and what is kept of each. The code
and the tests have to be committed. Then `python tools/pages.py` writes the table. Exits with 1
where a test failed.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rawnn.bench.render.grid import Grid
from rawnn.common.files import write_atomically
from tests.slices import SLICES

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "results" / "full-walk.json"
WRITTEN = ("results/full-walk.json", "docs/testing.md")
"""Files that a walk changes itself."""
SEEDED = "tests.properties.profile"
"""The module of the tests that a slice gives a seed, of which there is no list of all cases."""
LEFT_OUT = ("RAWNN_FULL", "RAWNN_SLICE", "PYTEST_ADDOPTS")
"""Variables that would change which cases run, or what pytest prints of them."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a part; `seconds` are those of all its tests together."""

    name: str
    commit: str
    passed: int
    skipped: int
    failed: list[str]
    seconds: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = "full-walk"
    parts: list[Part]


@dataclass(frozen=True)
class Step:
    """A part to walk: a test file with all cases, or with those of a slice."""

    file: str
    slice: int | None = None

    @property
    def name(self) -> str:
        return self.file if self.slice is None else f"{self.file} (slice {self.slice})"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that choose the cases."""
        plain = {k: v for k, v in os.environ.items() if k not in LEFT_OUT}
        chosen = {"RAWNN_FULL": "1"} if self.slice is None else {"RAWNN_SLICE": str(self.slice)}
        found_in = dict.fromkeys((str(ROOT), str(Path(__file__).resolve().parent.parent)))
        return {**plain, **chosen, "PYTHONPATH": os.pathsep.join(found_in)}


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of the tests that a module of theirs imports ahead of its functions, directly or
    through another."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not path.exists():
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            found |= {str(node.module), *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found.union(*(imported(name) for name in found if name != module)))


def steps() -> list[Step]:
    """All parts: the files whose tests take slices, but those of the GPU."""
    found: list[Step] = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        of = imported(file.removesuffix(".py").replace("/", "."))
        if file.startswith("tests/gpu/") or file == "tests/test_slices.py":
            continue
        if SEEDED in of:
            found += [Step(file, of_slice) for of_slice in range(SLICES)]
        elif "tests.slices" in of:
            found.append(Step(file))
    return found


def walk(step: Step, commit: str, jobs: int) -> Part:
    """Run the tests of a part."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        status = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(jobs),
             f"--junitxml={report}", step.file], cwd=ROOT, env=step.environment,
            check=False).returncode
        if status not in (0, 1):  # neither all passed nor some failed
            sys.exit(f"{step.name}: pytest ended with {status}; the same command goes on there")
        tests = list(ElementTree.parse(report).iter("testcase"))
    failed = [f"{step.file}::{test.get('name')}" for test in tests
              if test.find("failure") is not None or test.find("error") is not None]
    skipped = sum(test.find("skipped") is not None for test in tests)
    return Part(name=step.name, commit=commit, passed=len(tests) - skipped - len(failed),
                skipped=skipped, failed=failed,
                seconds=round(sum(float(test.get("time", 0)) for test in tests), 1))


def read_record() -> Record:
    if not RECORD.exists():
        return Record(parts=[])
    return msgspec.json.decode(RECORD.read_bytes(), type=Record)


def updated(record: Record, part: Part, every: Sequence[Step]) -> Record:
    """The record with a part in place of what was known of it; parts that are gone are left out."""
    parts = {each.name: each for each in record.parts} | {part.name: part}
    return Record(parts=[parts[step.name] for step in every if step.name in parts])


HEADS = ("tests", "parts", "passed", "skipped", "failed", "minutes of a core")


def table(record: Record) -> str:
    """The tables of docs/testing.md: one for each commit, a line a folder; and what is left."""
    if not record.parts:
        return "Not walked yet.\n"
    folders: dict[str, dict[str, list[Part]]] = {}
    for part in record.parts:
        commit = folders.setdefault(part.commit[:7], {})
        commit.setdefault(part.name.rpartition("/")[0], []).append(part)
    tables = [Grid(HEADS, [_row(f"`{folder}`", parts) for folder, parts in several.items()],
                   HEADS[:1], source=f"commit {commit}").markdown()
              for commit, several in folders.items()]
    known = {part.name for part in record.parts}
    if left := dict.fromkeys(f"`{step.file}`" for step in steps() if step.name not in known):
        tables.append(textwrap.fill(f"Not walked yet: {', '.join(left)}.", 120) + "\n")
    return "\n".join(tables)


def _row(name: str, parts: Sequence[Part]) -> list[str]:
    counts = (sum(counted) for counted in zip(
        *((p.passed, p.skipped, len(p.failed)) for p in parts), strict=True))
    return [name, str(len(parts)), *(f"{count:,}" for count in counts),
            f"{sum(p.seconds for p in parts) / 60:.1f}"]


def commit_of_code() -> str:
    """The commit, where nothing but what a walk writes has changed since; else it exits."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True,
                              text=True).stdout

    changed = [line[3:] for line in git("status", "--porcelain").splitlines()
               if line[3:] not in WRITTEN]
    if changed:
        sys.exit(f"commit first: {', '.join(changed[:5])} differ from the last commit")
    return git("rev-parse", "HEAD").strip()


def chosen(only: str, again: bool, commit: str, record: Record) -> Iterator[Step]:
    """The parts that are asked for and not known of this commit."""
    known = {part.name for part in record.parts if part.commit == commit}
    for step in steps():
        if re.search(only, step.name) and (again or step.name not in known):
            yield step


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", metavar="PATTERN", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--list", action="store_true")
    asked = parser.parse_args(arguments)
    record = read_record()
    if asked.list:
        known = {part.name: part for part in record.parts}
        for step in steps():
            of = known.get(step.name)
            print(step.name, f"{of.commit[:7]}: {of.passed} passed, {len(of.failed)} failed, "
                             f"{of.seconds:.0f} s" if of else "-", sep="  ")
        return 0
    commit = commit_of_code()
    for step in list(chosen(asked.only, asked.again, commit, record)):
        begin = time.monotonic()
        part = walk(step, commit, asked.jobs)
        record = updated(record, part, steps())
        write_atomically(RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1))
        print(f"{part.name}: {part.passed} passed, {part.skipped} skipped, {len(part.failed)} "
              f"failed; {part.seconds:.0f} s of tests in {time.monotonic() - begin:.0f} s",
              *part.failed, sep="\n  ", flush=True)
    return 1 if any(part.failed for part in record.parts) else 0


if __name__ == "__main__":
    sys.exit(main())
