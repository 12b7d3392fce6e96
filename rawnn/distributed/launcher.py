"""Starts ranks of a command on this host, and ends them together: what torchrun and mpirun do, for
users without PyTorch and MPI."""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from types import FrameType

from rawnn.common.words import counted
from rawnn.distributed.rank_context import SECRET

PATIENCE = 10.0
"""Seconds that ranks have to end by themselves once one has ended; then they are terminated."""
TIMED_OUT = 124
"""Exit status of ranks that had to be terminated, as that of timeout(1)."""
FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP")


def run(command: Sequence[str], ranks: int, notify: Callable[[str], None],
        seconds: float = math.inf, on_signal: Callable[[int], object] = lambda number: None) -> int:
    """Start the ranks, wait for all, and return the exit status of the first that failed. `notify`
    gets a sentence on each rank that a signal ended, and on those that were terminated because one
    had failed or all took more than `seconds` (TIMED_OUT). `on_signal` gets the number of a signal
    that asks this process to end; the ranks receive it, too."""
    port, threads = _free_port(), str(threads_of(ranks))
    secret = secrets.token_hex(32)
    processes = []
    try:
        for rank in range(ranks):
            processes.append(subprocess.Popen(command, env={
                "OMP_NUM_THREADS": threads, SECRET: secret, **os.environ,
                "RANK": str(rank), "WORLD_SIZE": str(ranks),
                "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RAWNN_LAUNCH": "1"}))
        with _forwarding(processes, on_signal):
            return _wait(processes, notify, seconds)
    finally:
        _end(processes)


def threads_of(ranks: int) -> int:
    """Threads with which each rank may compute on the host: its share of the cores that this
    process may use, passed as OMP_NUM_THREADS to OpenBLAS, MKL and PyTorch. Without it each rank
    uses all cores, and spinning threads take them from each other: two ranks on four cores took 6
    to 8 times as long for an epoch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max((cores or 1) // ranks, 1)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _forwarding(processes: Sequence[subprocess.Popen[bytes]],
                on_signal: Callable[[int], object]) -> Iterator[None]:
    """Forward signals that ask the launcher to end to the ranks. A terminal's Ctrl-C reaches them
    directly, because they are in the same process group."""

    def forward(number: int, frame: FrameType | None) -> None:
        on_signal(number)
        if number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty():
            return
        for process in processes:
            with suppress(OSError):
                process.send_signal(number)

    before = {getattr(signal, name): signal.getsignal(getattr(signal, name)) for name in FORWARDED
              if hasattr(signal, name)}
    for number in before:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence[subprocess.Popen[bytes]], notify: Callable[[str], None],
          seconds: float) -> int:
    """Wait until all have ended, or for `seconds`; after a failure the others have PATIENCE."""
    left, first, until, last = dict(enumerate(processes)), 0, 0.0, monotonic() + seconds
    while left:
        for rank, process in list(left.items()):
            status = process.poll()
            if status is None:
                continue
            del left[rank]
            if not status or first:
                continue
            first, until = status if status > 0 else 128 - status, monotonic() + PATIENCE
            if status < 0:
                notify(f"rank {rank} was ended by {signal.Signals(-status).name}")
        if left and until and monotonic() > until:
            notify(f"{counted(len(left), 'rank')} did not end within {PATIENCE:g} s of it: ended")
            _end(processes)
            break
        if left and monotonic() > last:
            notify(f"{counted(len(left), 'rank')} had not ended after {seconds:g} s: ended")
            _end(processes)
            return first or TIMED_OUT
        sleep(0.02)
    return first


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
