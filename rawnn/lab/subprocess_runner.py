"""A separate process for a kernel that may never end, or may break the GPU's context."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.lab.arrays import chosen_device, default_device
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Launching
from rawnn.lab.measuring import Sample, Stopwatch
from rawnn.lab.red_zones import Contents, Images
from rawnn.lab.reference_run import ReferenceRun, needed

_START = 120.0
"""Seconds for a process to open the GPU and compile its kernel."""


class ProcessEnded(DeviceError):
    """A kernel's process did not answer in time, or died."""


def runner_for(problem: KernelProblem, limit: float | None, device: Any = None
               ) -> Stopwatch | SeparateProcess:
    """The runner of the candidate: in this process, or with a `limit` in seconds in a separate one.
    Raises ConfigError for a function with a limit, which cannot be sent to another process;
    DeviceError, with the reason, if the device is unusable."""
    if needed(problem):
        _require_usable(problem.candidate, device)
        return ReferenceRun(problem)
    if limit is None:
        _require_usable(problem.candidate, device)
        return Stopwatch(problem.candidate, problem.parameters, device)
    if not isinstance(problem.candidate, Kernel):
        raise ConfigError(f"limit: {problem.label} is a function, and only a rawnn.Kernel can run "
                          f"in a process of its own")
    if problem.candidate.device.backend.name == "sim":  # a forked copy has the same state
        _require_usable(problem.candidate, device)
    return SeparateProcess(problem.candidate, problem.parameters, limit)


def _require_usable(candidate: Any, device: Any) -> None:
    """Raise DeviceError if an earlier error has made the device unusable."""
    device = candidate.device if isinstance(candidate, Kernel) else \
        chosen_device(device, default_device)
    try:
        device.require_usable()
    except RawnnError as error:
        raise DeviceError(f"{device.info.name} is gone, and nothing can be launched on it: {error}"
                          ) from None


class SeparateProcess:
    """Launches in a separate process, which is started again after a failure. On the simulated GPU
    it is a fork, because only this process has the kernels' references."""

    renewable = True

    def __init__(self, kernel: Kernel, parameters: tuple[str, ...], limit: float) -> None:
        self._kernel, self._parameters, self.limit = kernel, parameters, limit
        self._connection: Connection[Any, Any] | None = None
        self._process: Any = None

    def run(self, launching: Launching | None, images: Images,
            numbers: Mapping[str, Any]) -> Contents:
        found: Contents = self.call("run", launching, dict(images), dict(numbers))
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        """What the method `name` of the other process's worker returns. Raises ProcessEnded if it
        does not within the limit, and what it raises itself."""
        if self._connection is None:
            self._start()
        connection = self._connection
        assert connection is not None
        try:
            connection.send((name, arguments))
            if not connection.poll(self.limit):
                raise ProcessEnded(f"{self._kernel.expression} did not end within {self.limit:g} "
                                   f"s, and its process was ended")
            kind, value = connection.recv()
        except (EOFError, OSError):
            self.close()
            raise ProcessEnded(f"the process of {self._kernel.expression} died") from None
        except ProcessEnded:
            self.close()
            raise
        if kind == "error":
            self.close()  # the context may be of no more use
            raise value
        return value

    def measure(self, launching: Launching | None, samples: Sequence[Sample], warm: bool
                ) -> tuple[list[float], list[Contents]]:
        """As Stopwatch.measure, there."""
        found: tuple[list[float], list[Contents]] = self.call("measure", launching, samples, warm)
        return found

    def empty(self, samples: int) -> list[float]:
        """As Stopwatch.empty, there."""
        found: list[float] = self.call("empty", samples)
        return found

    def free(self) -> int:
        """As Stopwatch.free, in the other process."""
        return int(self.call("free"))

    def _start(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        kernel = self._kernel
        if kernel.device.backend.name == "sim":
            forked = multiprocessing.get_context("fork").Process(
                target=_serve_copy, args=(ours, theirs, kernel, self._parameters), daemon=True)
            forked.start()
            self._process = forked
        else:
            root = Path(__file__).parents[2]
            paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH", "")])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rawnn.lab.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
            ours.send((kernel.recipe, kernel.device.info.ordinal, self._parameters))
            try:
                theirs.close()
                kind, value = ours.recv() if ours.poll(_START) else ("error", ProcessEnded(
                    f"the process of {kernel.expression} did not begin within {_START:g} s"))
            except (EOFError, OSError):
                kind, value = "error", ProcessEnded(f"the process of {kernel.expression} died at "
                                                    f"its beginning")
            if kind == "error":
                self._connection = ours
                self.close()
                raise value
        theirs.close()
        self._connection = ours

    def close(self) -> None:
        """End the process."""
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.join() if hasattr(process, "join") else process.wait()


def _serve_copy(of_parent: Connection[Any, Any], connection: Connection[Any, Any], kernel: Kernel,
                parameters: tuple[str, ...]) -> None:
    of_parent.close()  # so that this process sees that its parent was killed
    serve(connection, Stopwatch(kernel, parameters))


def serve(connection: Connection[Any, Any], here: Stopwatch) -> None:
    """Answer calls of the stopwatch's methods until the other side has closed."""
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: tuple[str, Any] = "done", getattr(here, name)(*arguments)
        except RawnnError as error:
            answer = "error", ProcessEnded(str(error))
        except BaseException as error:
            answer = "error", ProcessEnded(f"{type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except OSError:
            return
