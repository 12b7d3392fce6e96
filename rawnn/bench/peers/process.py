"""Our side of the conversation with a system's process."""

from __future__ import annotations

import importlib.util
import os
import queue
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from time import monotonic
from typing import IO

import msgspec

from rawnn.bench.peers.worker import (
    Answer,
    Command,
    Forget,
    Prepare,
    Ready,
    ReadyProgram,
    Time,
    Timed,
)

SYSTEMS = {"rawnn": "rawnn", "torch": "torch", "jax": "jax", "numpy": "numpy"}
"""Name of a system -> the package that it needs."""
EXTRAS = {"torch": "peers", "jax": "peers-jax"}
LAST_WORDS = 400
"""Characters of a dead process's error stream that are shown."""


def missing(system: str) -> str:
    """Why a system cannot run here, an empty string if it can."""
    if importlib.util.find_spec(SYSTEMS[system]) is not None:
        return ""
    extra = EXTRAS.get(system)
    return f"{system} is not installed" + (f": pip install 'rawnn[{extra}]'" if extra else "")


class SystemProcess:
    """A system at work, on one problem after the other. `close` ends it, whatever it does; `lost`
    says why it can do nothing any more."""

    def __init__(self, system: str, cores: int = 2) -> None:
        self.system, self.versions, self.lost = system, dict[str, str](), ""
        self._log = _log(system)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rawnn.bench.peers.worker", system], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment(cores),
            start_new_session=True)  # Ctrl-C is for us alone, who then end it
        self._answers: queue.Queue[Answer | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError, msgspec.MsgspecError):  # closed, or something else speaks there
            for line in self._process.stdout:
                answer: Answer = msgspec.json.decode(line, type=Answer)
                self._answers.put(answer)
        self._answers.put(None)

    def _send(self, command: Command) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(command).decode() + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the pipe is broken, or was closed
            self.lost = self.lost or f"its process ended: {self._last_words()}"

    def _next(self, deadline: float) -> Answer | None:
        """The next answer; None where there is none, which `lost` explains."""
        if self.lost:
            return None
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - monotonic()))
        except queue.Empty:
            self.lost = "its process did not answer in time"
            self.close()
            return None
        if answer is None:
            self.lost = f"its process ended: {self._last_words()}"
        return answer

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - LAST_WORDS))
        words = self._log.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"exit status {self._process.returncode}"

    def prepare(self, command: Prepare, timeout_s: float) -> list[ReadyProgram]:
        """Make the programs of a problem ready, and say which there are. If `timeout_s` seconds do
        not suffice, or the process ends, `lost` says so. Never raises."""
        self._send(command)
        made: list[ReadyProgram] = []
        deadline = monotonic() + timeout_s
        while True:
            answer = self._next(deadline)
            if isinstance(answer, ReadyProgram):
                made.append(answer)
                continue
            if isinstance(answer, Ready):
                self.versions = answer.versions
            return made

    def time(self, problem: str, program: int, timeout_s: float) -> Timed:
        """Time a program of a problem once more. Never raises."""
        self._send(Time(problem, program))
        answer = self._next(monotonic() + timeout_s)
        return answer if isinstance(answer, Timed) else Timed(reason=self.lost)

    def forget(self, problem: str) -> None:
        """Drop the programs of a problem."""
        self._send(Forget(problem))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):  # what was not yet sent is lost with it
            self._process.stdin.close()


def _log(system: str) -> IO[bytes]:
    """What takes the process's error stream: a file that is kept where RAWNN_PEER_LOGS says."""
    folder = os.environ.get("RAWNN_PEER_LOGS")
    return tempfile.NamedTemporaryFile(prefix=f"{system}-", suffix=".log", dir=folder,
                                       delete=folder is None)


def environment(cores: int) -> dict[str, str]:
    """Of a system's process: some cores for what compiles and computes, and device memory as it is
    used, so that several processes can wait side by side."""
    return {**os.environ, "OMP_NUM_THREADS": str(cores), "OPENBLAS_NUM_THREADS": str(cores),
            "MKL_NUM_THREADS": str(cores), "TORCHINDUCTOR_COMPILE_THREADS": str(cores),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
