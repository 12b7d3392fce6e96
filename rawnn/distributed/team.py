"""The ranks of a run, connected in a star over TCP with rank 0 in the centre.

Messages are small or rare: the communicator's id for the GPUs, comparisons at the start, metrics,
and failures. In runs on the host gradients are sent this way, too.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import RanksError
from rawnn.distributed.rank_context import RankContext
from rawnn.distributed.rendezvous import connect_ranks

NOTICE = 1.0
"""Seconds in which a rank notices the loss of another by itself, before what waits for it on the
device is aborted. An aborted communicator must not be used any more."""
GRACE = 5.0
"""Seconds after that in which it has to return from a call and release its resources."""
PROGRESS_PERIOD = 0.2
"""Least seconds between two progress messages of a rank."""


class Team:
    """This rank and the others. All ranks call every method, except `fail`, `check` and `doing`, in
    the same order. The methods raise RanksError if one of the ranks is lost.

    With `guard`, a process ends if it does not return from a library's call, or does not reach
    `close`, within NOTICE and GRACE seconds after a rank was lost.
    """

    def __init__(self, place: RankContext, facts: Mapping[str, str], guard: bool = False) -> None:
        self.place, self.rank, self.world_size = place, place.rank, place.world_size
        self._guard, self._failure_handlers = guard, list[Callable[[], None]]()
        self._inboxes: dict[int, queue.Queue[Any]] = {}
        self._failure: RanksError | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._leaving = self._broken = False
        self._final_message = ""
        self._doing, self._progress_sent = "making ready", 0.0
        self.who = f"{socket.gethostname()}, pid {os.getpid()}"
        self._wires, self._names = connect_ranks(place, self.who)
        self._activities = dict.fromkeys(self._wires, self._doing)
        self._departed: set[int] = set()
        for rank in self._wires:
            self._inboxes[rank] = queue.Queue()
            threading.Thread(target=self._listen, args=(rank,), daemon=True,
                             name=f"rank {rank}").start()
        self.compare("the start", facts)

    # -- collective calls -------------------------------------------------------------------------
    def exchange(self, what: str, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """`combine` of the values of all ranks, in their order, on every rank; rank 0 computes it.
        Values must be supported by MessagePack."""
        self.check()
        if self.rank:
            self._send(0, [what, value])
            return self._next(0, what)
        values = [value, *(self._next(rank, what) for rank in range(1, self.world_size))]
        result = combine(values)
        for rank in range(1, self.world_size):
            self._send(rank, [what, result])
        return result

    def broadcast(self, value: bytes | None) -> bytes:
        """Rank 0's value, on every rank."""
        found: bytes = self.exchange("broadcast", value, lambda values: values[0])
        return found

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        found: list[Any] = self.exchange(what, value, lambda values: values)
        return found

    def any(self, what: str, value: str) -> str:
        """The first value that is not empty, in the order of the ranks."""
        found: str = self.exchange(what, value, lambda values: next(filter(None, values), ""))
        return found

    def reduce(self, arrays: Sequence[NDArray[Any]], weight: float, reduce: str = "sum") -> None:
        """Replace each array by the sum over ranks of its elements times their weight, in the order
        of the ranks, or ("max") by the largest."""
        def combine(values: list[list[bytes]]) -> list[bytes]:
            found = []
            for i, array in enumerate(arrays):
                parts = [np.frombuffer(each[i], array.dtype) for each in values]
                total = parts[0]
                for part in parts[1:]:
                    total = np.maximum(total, part) if reduce == "max" else total + part
                found.append(total.tobytes())
            return found

        mine = [(a if reduce == "max" else a * a.dtype.type(weight)).tobytes() for a in arrays]
        result = self.exchange(f"{reduce} of {', '.join(str(a.size) for a in arrays)}", mine,
                               combine)
        for array, data in zip(arrays, result, strict=True):
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)

    def compare(self, what: str, facts: Mapping[str, str]) -> None:
        """Raise RanksError, on every rank, if one has other facts than rank 0."""
        def combine(values: list[dict[str, str]]) -> str:
            for rank, theirs in enumerate(values):
                for name in sorted(values[0].keys() | theirs.keys()):
                    here, there = values[0].get(name, "none"), theirs.get(name, "none")
                    if here != there:
                        return (f"rank {rank} ({self._names.get(rank, self.who)}) differs from "
                                f"rank 0 in {name}: {there}, not {here}")
            return ""

        if message := self.exchange(what, dict(facts), combine):
            raise RanksError(message, self.rank == 0)

    # -- progress and failure ---------------------------------------------------------------------
    @property
    def doing(self) -> str:
        return self._doing

    @doing.setter
    def doing(self, what: str) -> None:
        """Sent to rank 0, at most every PROGRESS_PERIOD seconds."""
        self._doing = what
        if self.rank and monotonic() - self._progress_sent > PROGRESS_PERIOD:
            self._progress_sent = monotonic()
            self._send(0, {"doing": what})

    def on_failure(self, act: Callable[[], None]) -> None:
        """Have `act` called, in any thread, once some rank is lost or this one has failed."""
        with self._lock:
            self._failure_handlers.append(act)
            late = self._broken
        if late:
            act()

    def check(self) -> None:
        """Raise RanksError if some rank is lost."""
        if self._failure is not None:
            raise self._failure

    @property
    def failed(self) -> bool:
        """Whether some rank, this one included, is lost."""
        return self._failure is not None or self._leaving

    def fail(self, error: BaseException) -> None:
        """Send the others that this rank cannot continue, and why. What waits for them on the
        device is aborted, because they will not arrive."""
        if self._failure is None:
            self._send_failure(f"rank {self.rank} ({self.who}) failed while {self._doing}: "
                               f"{str(error) or type(error).__name__}", set())
            self._final_message = str(error) if self.rank == 0 else ""
        self._leaving = True
        self._abort_waiting(0.0)

    def close(self) -> None:
        """Leave the group; a second call has no effect."""
        self._leaving = True
        self._closed.set()
        for rank, wire in self._wires.items():
            self._send(rank, {"bye": True})
            wire.close()

    # -- connections ------------------------------------------------------------------------------
    def _send(self, rank: int, message: Any) -> None:
        with suppress(OSError):  # the listening thread detects a closed connection
            self._wires[rank].send(message)

    def _next(self, rank: int, what: str) -> Any:
        while True:
            try:
                theirs, value = self._inboxes[rank].get(timeout=0.1)
            except queue.Empty:  # messages before a loss count: all ranks see the same then
                self.check()
                continue
            if theirs != what:
                self._lost(f"rank {rank} is at '{theirs}' while rank {self.rank} is at '{what}'")
                continue
            return value

    def _listen(self, rank: int) -> None:
        wire = self._wires[rank]
        try:
            while True:
                message = wire.receive()
                if isinstance(message, list):
                    self._inboxes[rank].put(message)
                elif "doing" in message:
                    self._activities[rank] = message["doing"]
                elif "failed" in message:
                    self._lost(message["failed"], {rank})
                elif "bye" in message:
                    self._departed.add(rank)
        except EOFError:
            if not self._leaving and rank not in self._departed:
                about = f"it was last heard of {self._activities[rank]}" if self.rank == 0 else \
                    f"rank {self.rank} was {self._doing}"
                self._lost(f"rank {rank} ({self._names.get(rank, 'unknown')}) ended without a "
                           f"word: {about}", {rank}, silent=rank == 0)
            elif not self._leaving:
                self._inboxes[rank].put([f"the end of rank {rank}", None])

    def _send_failure(self, message: str, but: set[int]) -> None:
        for rank in self._wires.keys() - but:
            self._send(rank, {"failed": message})

    def _lost(self, message: str, known: set[int] | None = None, silent: bool = False) -> None:
        """Some rank is lost: notify the others, and abort what waits for it here. Rank 0 prints it,
        or rank 1 if rank 0 is the one that is `silent`."""
        with self._lock:
            if self._failure is not None or self._leaving:
                return
            reporter = 1 if silent else 0
            self._failure = RanksError(message, self.rank == reporter)
        if self.rank == reporter:
            self._final_message = message
        self._send_failure(message, known or set())
        self._abort_waiting(NOTICE)

    def _abort_waiting(self, seconds: float) -> None:
        """Abort after `seconds`; a process with a guard then has GRACE seconds to end."""
        if not self._guard:
            self._run_failure_handlers()
            return
        threading.Thread(target=self._watch, args=(seconds,), daemon=True, name="guard").start()

    def _watch(self, seconds: float) -> None:
        self._closed.wait(seconds)
        threading.Thread(target=self._run_failure_handlers, daemon=True, name="abort").start()
        if not self._closed.wait(GRACE):
            if self._final_message:
                with suppress(OSError):
                    os.write(2, f"rawnn: error: {self._final_message}\n".encode())
            with suppress(Exception):
                sys.stdout.flush()
            os._exit(1)

    def _run_failure_handlers(self) -> None:
        with self._lock:
            acts, self._broken = ([] if self._broken else list(self._failure_handlers)), True
        for act in acts:
            with suppress(Exception):  # the loss is the error to report
                act()
