"""A process that says that this one is stuck in a call that Python cannot interrupt, and kills it.

Python handles signals between two instructions. One call of compiled code that never returns, such
as `sum(itertools.repeat(0))`, holds the interpreter, so that neither a handler nor a thread of this
process can end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PROGRAM = r"""
import os, select, signal, sys
seconds = text = None
while True:
    if select.select([0], [], [], seconds)[0]:
        lines = os.read(0, 65536).decode().splitlines()
        if not lines:
            sys.exit()
        limit, _, text = lines[-1].partition(" ")
        seconds = float(limit) if limit else None
        continue
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if len(sys.argv) > 2:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
    seconds = None
"""
"""It reads lines "SECONDS SENTENCE", of which the last counts; an empty one ends the time."""


class Watchdog:
    """The process, which is started when it is first needed; it kills this one only if it
    `kills`."""

    def __init__(self, kills: bool = True) -> None:
        self.kills = kills
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def watching(self, seconds: float, sentence: str) -> Iterator[None]:
        """If the block takes longer, the sentence is printed on standard error, and this process
        killed if the watchdog `kills`."""
        self._write(f"{seconds} {sentence}\n")
        try:
            yield
        finally:
            self._write("\n")

    def _write(self, line: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()),
                 *["kill"] * self.kills],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0,
                start_new_session=True)  # Ctrl-C is for this process
        assert self._process.stdin is not None
        with suppress(OSError):  # somebody killed it
            self._process.stdin.write(line.encode())

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
