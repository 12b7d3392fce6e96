"""Apply mutants one at a time in a scratch copy, run the tests, and print which are caught.

    python tools/mutants.py FILE [--jobs N] [--timeout SECONDS] [--only NUMBERS] [--at-least RATE]
                            [--json OUT] [--no-baseline]

FILE is TOML with a [[mutant]] table each, or JSON lines with an object each:

    path = "rawnn/engine/loop.py"      # relative to the root of the checkout
    old = "step + 1"                # occurs there exactly once
    new = "step"
    tests = "tests/test_training.py -k resume"   # arguments of pytest, as a string or a list;
                                    # without them those of the default command: -n auto
    equivalent = "why"              # optional: changes nothing, and does not count in the rate
    note = "what it stands for"     # optional: is printed

The working tree is copied once for each job, uncommitted changes and new files included, and is
itself never changed. The tests have to pass without a mutant first (--no-baseline leaves that out).
A mutant is caught when its tests fail; when they outlast the timeout, which is said; never when
pytest finds no test. It is refused where `old` does not occur exactly once. Exits with 1 where the
rate is below --at-least (1 unless given), and with 2 where a mutant or the file is refused.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from queue import Queue
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.slices import SLICE

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_TESTS = ("-n", "auto")
NO_TESTS = 5
"""The exit status of a pytest that found no test."""
COUNTED = ("caught", "caught by the timeout", "survived")


class Refused(Exception):
    """A file of mutants, or one of them, that cannot be used."""


@dataclass(frozen=True)
class Mutant:
    path: str
    old: str
    new: str
    tests: tuple[str, ...] = DEFAULT_TESTS
    equivalent: str = ""
    note: str = ""

    def apply(self, text: str) -> str:
        """The text of its file with the change. Raises Refused."""
        found = text.count(self.old)
        if found != 1:
            raise Refused(f"`old` occurs {found} times in {self.path}, not once: {self.old!r}")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        change = f"{self.path}: {self.old.strip()!r} -> {self.new.strip()!r}"
        return f"{change} ({self.note})" if self.note else change


@dataclass(frozen=True)
class Outcome:
    number: int
    mutant: Mutant
    what: str
    """One of COUNTED, "equivalent" or "refused"."""
    how: str
    """The test that failed, or why the mutant is refused."""
    seconds: float

    def __str__(self) -> str:
        said = f": {self.how}" if self.how else ""
        return f"{self.number:4}  {self.what} ({self.seconds:.0f} s)  {self.mutant}{said}"


def read(path: Path) -> list[Mutant]:
    """The mutants of a file. Raises Refused where it is not one of mutants."""
    try:
        text = path.read_text()
        if path.suffix == ".toml":
            tables = tomllib.loads(text).get("mutant", [])
        else:
            tables = [json.loads(line) for line in text.splitlines() if line.strip()]
        found = [_mutant(n, table) for n, table in enumerate(tables, 1)]
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from None
    if not found:
        raise Refused(f"{path} has no mutant: it needs [[mutant]] tables or lines of JSON")
    return found


def _mutant(number: int, table: Any) -> Mutant:
    if not isinstance(table, dict):
        raise ValueError(f"mutant {number} is not a table")
    known = {field.name for field in fields(Mutant)}
    missing = {"path", "old", "new"} - set(table)
    if missing or set(table) - known:
        raise ValueError(f"mutant {number}: it has to have path, old and new, and may have tests, "
                         f"equivalent and note; it has {', '.join(table)}")
    tests = table.get("tests") or DEFAULT_TESTS
    made = Mutant(**{**table, "tests": tuple(shlex.split(tests) if isinstance(tests, str)
                                             else tests)})
    if made.old == made.new or not made.old:
        raise ValueError(f"mutant {number} changes nothing")
    return made


class Copy:
    """A scratch copy of the working tree, with a kernel cache of its own."""

    def __init__(self, root: Path, folder: Path, cache: Path | None = None) -> None:
        self.tree, self.cache, self.template = folder / "tree", folder / "cache", cache
        self.running: subprocess.Popen[str] | None = None
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root,
                                check=True, capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.tree / name, follow_symlinks=False)
        self.changes = time.time()

    def write(self, path: Path, text: str) -> None:
        """Write a file with a time that no other change has: Python knows its compiled files by
        the second and the size."""
        path.write_text(text)
        self.changes += 2
        os.utime(path, (self.changes, self.changes))

    def run(self, tests: Sequence[str], timeout: float) -> tuple[int | None, str, float]:
        """The exit status of pytest (None: it outlasted the timeout), its output, its seconds."""
        shutil.rmtree(self.cache, ignore_errors=True)
        if self.template is not None and self.template.exists():
            shutil.copytree(self.template, self.cache)
        self.cache.mkdir(exist_ok=True)
        plain = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        environment = {**plain, "PYTHONPATH": str(self.tree), "RAWNN_CACHE": str(self.cache),
                       "RAWNN_SLICE": str(SLICE)}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        begin = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = self.running = subprocess.Popen(
                command, cwd=self.tree, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, text=True, start_new_session=True)
            try:
                status: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                self.stop()
            output.seek(0)
            return status, output.read(), time.monotonic() - begin

    def stop(self) -> None:
        """End what runs here, and all that it started."""
        if self.running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.running.pid, signal.SIGKILL)
            self.running.wait()

    def attempt(self, number: int, mutant: Mutant, timeout: float) -> Outcome:
        path = self.tree / mutant.path
        try:
            if not path.resolve().is_relative_to(self.tree.resolve()):
                raise Refused(f"{mutant.path} lies outside the checkout")
            text = path.read_text()
            mutated = mutant.apply(text)
        except (OSError, ValueError, Refused) as error:
            return Outcome(number, mutant, "refused", str(error), 0)
        if mutant.equivalent:
            return Outcome(number, mutant, "equivalent", mutant.equivalent, 0)
        self.write(path, mutated)
        try:
            status, output, seconds = self.run(mutant.tests, timeout)
        finally:
            self.write(path, text)
        if status is None:
            return Outcome(number, mutant, "caught by the timeout", f"{timeout:.0f} s", seconds)
        if status == NO_TESTS:
            return Outcome(number, mutant, "refused", "pytest finds no test", seconds)
        if status == 0:
            return Outcome(number, mutant, "survived", "", seconds)
        return Outcome(number, mutant, "caught", _why(output), seconds)


def _why(output: str) -> str:
    """The first test that failed, or the last line that pytest printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))),
                lines[-1] if lines else "")[:160]


def check_baseline(copy: Copy, mutants: Sequence[Mutant], timeout: float) -> None:
    """Every set of tests passes without a mutant. Raises Refused."""
    for tests in dict.fromkeys(m.tests for m in mutants if not m.equivalent):
        status, output, seconds = copy.run(tests, timeout)
        if copy.template is None:  # compiled kernels are kept for the mutants
            shutil.copytree(copy.cache, copy.cache.with_name("template"), dirs_exist_ok=True)
        if status != 0:
            said = "outlast the timeout" if status is None else f"fail: {_why(output)}"
            raise Refused(f"without a mutant the tests {shlex.join(tests)} {said}")
        print(f"baseline passed ({seconds:.0f} s)  {shlex.join(tests)}", flush=True)


def attempts(mutants: dict[int, Mutant], jobs: int, timeout: float, baseline: bool,
             root: Path = ROOT) -> Iterator[Outcome]:
    """The outcome of each mutant by its number, in the order in which they end."""
    with tempfile.TemporaryDirectory(prefix="rawnn-mutants-") as scratch:
        first = Copy(root, Path(scratch) / "0")
        if baseline:
            check_baseline(first, list(mutants.values()), timeout)
        template = first.template = first.cache.with_name("template")
        copies = [first, *(Copy(root, Path(scratch) / str(n), template) for n in range(1, jobs))]
        free: Queue[Copy] = Queue()
        for copy in copies:
            free.put(copy)
        stopped = threading.Event()

        def attempt(number: int) -> Outcome | None:
            copy = free.get()
            try:
                return None if stopped.is_set() else copy.attempt(number, mutants[number], timeout)
            finally:
                free.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            try:
                for done in as_completed([pool.submit(attempt, number) for number in mutants]):
                    if (found := done.result()) is not None:
                        yield found
            finally:
                stopped.set()
                for copy in copies:
                    copy.stop()


def rate(outcomes: Sequence[Outcome]) -> float:
    """The share of the mutants that were caught, of those that change something and ran."""
    counted = [o for o in outcomes if o.what in COUNTED]
    return sum(o.what != "survived" for o in counted) / len(counted) if counted else 0.0


def summary(outcomes: Sequence[Outcome]) -> str:
    def count(*whats: str) -> int:
        return sum(o.what in whats for o in outcomes)

    caught = count(*COUNTED[:2])
    return (f"{caught} of {count(*COUNTED)} caught ({rate(outcomes):.1%}), {count(COUNTED[1])} of "
            f"them by the timeout; {count('survived')} survived, {count('equivalent')} equivalent, "
            f"{count('refused')} refused")


def _numbers(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--timeout", type=float, default=900, help="seconds a mutant")
    parser.add_argument("--only", type=_numbers, help="numbers of mutants: 1,4,7-9")
    parser.add_argument("--at-least", type=float, default=1.0, help="the rate that passes")
    parser.add_argument("--json", type=Path, help="a file for the outcomes")
    parser.add_argument("--no-baseline", action="store_true")
    asked = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    try:
        mutants = dict(enumerate(read(asked.file), 1))
        if asked.only:
            if asked.only - set(mutants):
                raise Refused(f"--only: {asked.file} has mutants 1 to {len(mutants)}")
            mutants = {n: m for n, m in mutants.items() if n in asked.only}
        for outcome in attempts(mutants, max(asked.jobs, 1), asked.timeout, not asked.no_baseline):
            outcomes.append(outcome)
            print(outcome, flush=True)
    except Refused as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    print(summary(outcomes))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    if any(o.what == "refused" for o in outcomes):
        return 2
    return 0 if rate(outcomes) >= asked.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
