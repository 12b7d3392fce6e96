"""`rawnn.sanitize(script)`: runs a program under NVIDIA's compute-sanitizer and parses its
reports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rawnn.common.errors import ConfigError, DeviceError, MissingLibrary, nearest
from rawnn.common.words import counted
from rawnn.cuda.compiling import headers

TOOLS = {"memcheck": "accesses outside of memory, misaligned ones, leaks",
         "racecheck": "races in shared memory",
         "synccheck": "wrong use of barriers",
         "initcheck": "reads of global memory that nothing has written"}
"""What each tool finds."""
_SUMMARY = re.compile(r"ERROR SUMMARY:\s*(\d+)|RACECHECK SUMMARY:.*\((\d+) errors?")
_HOST = re.compile(r"\s*(Saved host backtrace|Host Frame)")


@dataclass(frozen=True)
class Complaint:
    """One report: its message, the kernel and source line if given, the place (thread and block),
    and the text as printed."""

    message: str
    kernel: str = ""
    line: str = ""
    place: str = ""
    text: str = ""

    def __str__(self) -> str:
        where = f" in {self.kernel}" if self.kernel else ""
        at = f" at {self.line}" if self.line else ""
        return f"{self.message}{where}{at}" + (f" ({self.place})" if self.place else "")


@dataclass(frozen=True)
class Sanitized:
    """The result of one tool, true if it reported only warnings. `errors` is its own count, which
    may exceed the complaints that it printed; `output` is what the program printed."""

    tool: str
    command: tuple[str, ...]
    errors: int
    complaints: tuple[Complaint, ...]
    exit_status: int
    output: str

    def __bool__(self) -> bool:
        grave = [c for c in self.complaints if not c.message.startswith("Warning")]
        return not self.errors and not grave and self.exit_status == 0

    def __str__(self) -> str:
        if self:
            return f"{self.tool}: nothing found ({TOOLS[self.tool]})"
        lines = [f"{self.tool}: {counted(self.errors, 'error')}"]
        if not self.errors and not self.complaints:
            lines = [f"{self.tool}: the program ended with exit status {self.exit_status}"]
        same: dict[str, list[Complaint]] = {}
        for each in self.complaints:
            same.setdefault(f"{each.message} {each.kernel} {each.line}", []).append(each)
        for group in same.values():
            more = f"; {len(group) - 1} more like it" if len(group) > 1 else ""
            lines.append(f"  {group[0]}{more}")
        return "\n".join(lines)


def sanitize(script: str | os.PathLike[str] | Sequence[str], *arguments: str,
             tools: Sequence[str] = ("memcheck", "racecheck", "synccheck", "initcheck"),
             options: Sequence[str] = (), timeout: float | None = None,
             environment: Mapping[str, str] | None = None) -> tuple[Sanitized, ...]:
    """Run a program under compute-sanitizer, once for each of `tools`, and parse the reports.

    `script` is a Python file, run by this Python with `arguments`, or a complete command as a list.
    Kernels should be compiled with `options=["-lineinfo"]` for source lines. `options` are further
    ones of compute-sanitizer, `timeout` seconds for each tool, `environment` variables in addition
    to those of this process.

    Raises MissingLibrary, with the fix, without compute-sanitizer; ConfigError for an unknown tool
    or script; DeviceError if it exceeds the timeout.
    """
    for tool in tools:
        if tool not in TOOLS:
            raise ConfigError(f"compute-sanitizer has no tool '{tool}'{nearest(tool, TOOLS)} "
                              f"({', '.join(TOOLS)})")
    command = _command(script, arguments)
    program = headers.tool("compute-sanitizer")
    if program is None:
        raise MissingLibrary("compute-sanitizer cannot be found on PATH, in CUDA_HOME or in "
                             "/usr/local/cuda: it comes with the CUDA toolkit (apt install "
                             "cuda-sanitizer-12-9, or conda install -c nvidia cuda-sanitizer-api)")
    return tuple(_run(program, tool, command, options, timeout, environment) for tool in tools)


def _command(script: str | os.PathLike[str] | Sequence[str], arguments: Sequence[str]
             ) -> tuple[str, ...]:
    if not isinstance(script, str | os.PathLike):
        return (*script, *arguments)
    if not Path(script).is_file():
        raise ConfigError(f"there is no script {script}")
    return (sys.executable, os.fspath(script), *arguments)


def _run(program: Path, tool: str, command: tuple[str, ...], options: Sequence[str],
         timeout: float | None, environment: Mapping[str, str] | None) -> Sanitized:
    try:
        done = subprocess.run(
            [str(program), "--tool", tool, "--target-processes", "all", *options, *command],
            capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
            env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired:
        raise DeviceError(f"compute-sanitizer's {tool} did not end within {timeout:g} s: give it "
                          f"more (timeout=), or less work; it slows a program down tens of times"
                          ) from None
    return parsed(tool, command, done.stdout + done.stderr, done.returncode)


def parsed(tool: str, command: Sequence[str], text: str, status: int) -> Sanitized:
    """The reports in the output of compute-sanitizer, whose lines begin with =========."""
    complaints: list[Complaint] = []
    block: list[str] = []
    output, errors = [], 0
    for line in text.splitlines():
        if not line.startswith("========="):
            output.append(line)
            continue
        message = line[len("========="):].removeprefix(" ").rstrip()
        if found := _SUMMARY.search(message):
            errors += int(found[1] or found[2])
        elif message.startswith(("COMPUTE-SANITIZER", "LEAK SUMMARY", "ERROR SUMMARY")):
            pass
        elif message and not message[0].isspace():
            complaints += _complaint(block)
            block = [message]
        elif message and block:
            block.append(message)
    complaints += _complaint(block)
    return Sanitized(tool, tuple(command), errors, tuple(complaints), status, "\n".join(output))


def _complaint(block: Sequence[str]) -> list[Complaint]:
    """A complaint from a report: its first line is the message, the others give the place."""
    if not block or block[0].startswith(("Target application", "No attachable")):
        return []
    device = []
    for line in block:
        if _HOST.match(line):
            break
        device.append(line)
    text = "\n".join(device)
    at = re.search(r"\bat (.+?)(?:[+:]0x[0-9a-f]+)?(?: in (\S+:\d+))?$", text, re.MULTILINE)
    place = re.search(r"by (thread \([\d,]+\) in block \([\d,]+\))", text)
    return [Complaint(block[0].removeprefix("Error: ").strip(), at[1].strip() if at else "",
                      at[2] or "" if at else "", place[1] if place else "", text)]
