"""Our side of the conversation with a system's process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from typing import IO, Any

from rawnn.bench.peers.worker import Prepare, ReadyProgram, Timed

SYSTEMS = {"rawnn": "rawnn", "torch": "torch", "jax": "jax", "numpy": "numpy"}
"""Name of a system -> the package that it needs."""
EXTRAS = {"torch": "peers", "jax": "peers-jax"}
LAST_WORDS = 400
"""Characters of what a dead process printed that are looked at."""
FORGET_S = 60.0


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
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rawnn.bench.peers.worker", system, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._log,
                stderr=self._log, env=environment(cores),
                start_new_session=True)  # Ctrl-C is for us alone, who then end it

    def _ask(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        """What a method of Worker returns; None where there is no answer, which `lost` explains."""
        if self.lost:
            return None
        try:
            self._pipe.send((method, *arguments))
            if self._pipe.poll(max(timeout_s, 0.0)):
                return self._pipe.recv()
            self.lost = "its process did not answer in time"
            self.close()
        except (OSError, EOFError):
            self.lost = f"its process ended: {self._last_words()}"
        return None

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - LAST_WORDS))
        words = self._log.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else f"exit status {self._process.returncode}"

    def prepare(self, command: Prepare, timeout_s: float) -> list[ReadyProgram]:
        """Make the programs of a problem ready, and say which there are. If `timeout_s` seconds do
        not suffice, or the process ends, there are none and `lost` says so. Never raises."""
        made, self.versions = self._ask(timeout_s, "prepare", command) or ([], self.versions)
        found: list[ReadyProgram] = made
        return found

    def time(self, problem: str, program: int, timeout_s: float) -> Timed:
        """Time a program of a problem once more. Never raises."""
        found: Timed | None = self._ask(timeout_s, "time", problem, program)
        return found or Timed(reason=self.lost)

    def forget(self, problem: str) -> None:
        """Drop the programs of a problem."""
        self._ask(FORGET_S, "forget", problem)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def _log(system: str) -> IO[bytes]:
    """What takes all that the process prints: a file that is kept where RAWNN_PEER_LOGS says."""
    folder = os.environ.get("RAWNN_PEER_LOGS")
    return tempfile.NamedTemporaryFile(prefix=f"{system}-", suffix=".log", dir=folder,
                                       delete=folder is None)


def environment(cores: int) -> dict[str, str]:
    """Of a system's process: some cores for what compiles and computes, and device memory as it is
    used, so that several processes can wait side by side."""
    return {**os.environ, "OMP_NUM_THREADS": str(cores), "OPENBLAS_NUM_THREADS": str(cores),
            "MKL_NUM_THREADS": str(cores), "TORCHINDUCTOR_COMPILE_THREADS": str(cores),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONUNBUFFERED": "1"}
