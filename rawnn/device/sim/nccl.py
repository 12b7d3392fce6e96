"""The simulated NCCL: joins the simulated GPUs of one process, each driven by a thread of its own.

A collective is a task of every rank. It runs where all ranks have come to it: whoever comes first
waits. What NCCL would answer with a hang or with wrong numbers is reported with both ops named:
ranks that come to different collectives, a rank that has left or never comes, two collectives of a
rank that nothing orders. Buffers are accessed as by any task, so that one reused too early is a
race like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count as counter
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import itemsize
from rawnn.device.libs.nccl import DATA_TYPE, MAX, SUM, SYMMETRIC, UNIQUE_ID_BYTES
from rawnn.device.sim.codes import describe
from rawnn.device.sim.cublaslt import load, quiet, store
from rawnn.device.sim.errors import Race, Refused, SimulationError
from rawnn.device.sim.faults import seam
from rawnn.device.sim.graphs import Node
from rawnn.device.sim.memory import Region
from rawnn.device.sim.order import Task
from rawnn.device.sim.simulation import Simulation

PATIENCE = 20.0
"""Seconds that a rank waits for the others before they are said to be missing."""
ABORTED, NOTICE = "has aborted", 1.0
"""Of a rank that is lost NCCL tells the others nothing: they have so many seconds to hear of it by
themselves and to abort, too."""
_INVALID, _USAGE = "ncclInvalidArgument", "ncclInvalidUsage"
_NAMES = {number: name for name, number in DATA_TYPE.items()}
_STORED = {"float32": "R_32F", "float16": "R_16F", "bfloat16": "R_16BF"}
_FIRST_CUSTOM = 16


@dataclass(frozen=True)
class _Part:
    """One call of a group: `weight` is what this rank's values count for."""

    send: int
    receive: int
    count: int
    dtype: str
    reduction: str
    weight: float

    @property
    def words(self) -> str:
        """What all ranks must have in common."""
        return f"{self.reduction} of {self.count:,} {self.dtype}"

    @property
    def call(self) -> str:
        return {"scattered sum": "ncclReduceScatter", "gathering": "ncclAllGather"}.get(
            self.reduction, "ncclAllReduce")

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    def sent(self, ranks: int) -> int:
        """Bytes of the send buffer."""
        return self.count * self.itemsize * (ranks if self.reduction == "scattered sum" else 1)

    def received(self, ranks: int) -> int:
        """Bytes of the receive buffer."""
        return self.count * self.itemsize * (ranks if self.reduction == "gathering" else 1)

    def values(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        """What this rank brings: in float32, or as it is where nothing is computed."""
        if self.reduction == "gathering":
            return raw.reshape(-1).copy()
        if self.dtype not in _STORED:
            return raw.reshape(-1).view(self.dtype).copy()
        return np.float32(self.weight) * load(raw, _STORED[self.dtype]).reshape(-1)

    def stored(self, result: NDArray[Any], rank: int) -> NDArray[np.uint8]:
        """What of the result is this rank's, as bytes."""
        if self.reduction == "scattered sum":
            result = result[rank * self.count : (rank + 1) * self.count]
        if self.reduction == "gathering" or self.dtype not in _STORED:
            return result.view(np.uint8)
        return store(result, _STORED[self.dtype]).view(np.uint8)


@dataclass(eq=False)
class _Round:
    """One collective of all ranks: what each brought, and what came out."""

    words: dict[int, str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    brought: dict[int, list[NDArray[Any]]] = field(default_factory=dict)
    result: list[NDArray[Any]] | None = None


class Meeting:
    """The ranks of one unique id. All state is guarded by `changed`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.present: set[int] = set()
        self.gone: dict[int, str] = {}
        self.last: dict[int, str] = {}
        self.rounds: dict[int, _Round] = {}
        self.error = ""

    def join(self, rank: int) -> None:
        """Come together. Raises SimulationError where some rank never comes."""
        with self.changed:
            self.present.add(rank)
            self.changed.notify_all()
            self._wait(lambda: len(self.present) == self.size, rank, "ncclCommInitRankConfig",
                       lambda: set(range(self.size)) - self.present)

    def leave(self, rank: int, how: str) -> None:
        with self.changed:
            self.gone[rank] = how
            self.changed.notify_all()

    def reduce(self, rank: int, number: int, label: str, words: str, parts: list[_Part],
               brought: list[NDArray[Any]], meanwhile: Callable[[], bool] = lambda: False
               ) -> list[NDArray[Any]]:
        """The result of collective `number` of this rank, once all ranks have come to it; `words`
        are what all must have in common. `meanwhile` does something else that the rank has to do,
        if there is any."""
        with self.changed:
            here = self.rounds.setdefault(number, _Round())
            here.words[rank] = words
            here.labels[rank] = self.last[rank] = label
            here.brought[rank] = brought
            self.changed.notify_all()
            for other, words in here.words.items():
                if words != here.words[rank] and not self.error:
                    self.error = (f"collective {number} differs between ranks: rank {rank} is in "
                                  f"{label} ({here.words[rank]}), rank {other} in "
                                  f"{here.labels[other]} ({words})")
                    self.changed.notify_all()
            if len(here.brought) == self.size and here.result is None and not self.error:
                here.result = [_combined(part, [here.brought[r][i] for r in range(self.size)])
                               for i, part in enumerate(parts)]
            self._wait(lambda: here.result is not None, rank, label,
                       lambda: set(range(self.size)) - here.brought.keys(), meanwhile)
            assert here.result is not None
            return here.result

    def _wait(self, done: Callable[[], bool], rank: int, label: str,
              missing: Callable[[], set[int]], meanwhile: Callable[[], bool] = lambda: False
              ) -> None:
        until, aborted = monotonic() + PATIENCE, 0.0
        while not done():
            if self.error:
                raise SimulationError(self.error)
            if rank in self.gone:
                raise SimulationError(f"rank {rank} {self.gone[rank]} while it waited in {label}")
            lost = sorted(missing() & self.gone.keys())
            if lost:
                aborted = aborted or monotonic() + NOTICE
                lost = lost if monotonic() > aborted else []
            if lost or monotonic() > until:
                other = lost[0] if lost else min(missing())
                did = f"its last collective was {self.last[other]}" if other in self.last \
                    else "it came to no collective"
                how = self.gone.get(other, f"has not come within {PATIENCE:g} s")
                raise SimulationError(f"rank {rank} waits in {label} for rank {other}, which "
                                      f"{how}; {did}")
            self.changed.release()
            try:
                worked = meanwhile()
            finally:
                self.changed.acquire()
            if not worked:
                self.changed.wait(0.05)


def _combined(part: _Part, values: list[NDArray[Any]]) -> NDArray[Any]:
    """In the order of the ranks, in float32."""
    if part.reduction == "gathering":
        return np.concatenate(values)
    total = values[0]
    for value in values[1:]:
        total = np.maximum(total, value) if part.reduction == "max" else total + value
    return total


_MEETINGS: dict[bytes, Meeting] = {}
_NUMBERS = counter(1)


@dataclass(eq=False)
class _Communicator:
    meeting: Meeting
    rank: int
    collectives: int = 0
    latest: Task | None = None
    sums: dict[int, float] = field(default_factory=dict)
    windows: dict[int, _Window] = field(default_factory=dict)
    registered: int = 0

    def words(self, part: _Part) -> str:
        """Of a call: what all ranks must have in common, with the place of what the other ranks
        read and write, where that is in a window."""
        address = part.send if part.reduction == "scattered sum" else part.receive
        places = [f" at byte {address - w.begin:,} of window {w.number}"
                  for w in self.windows.values() if w.begin <= address < w.begin + w.size]
        return part.words + "".join(places)


@dataclass(frozen=True)
class _Window:
    """Number `number` of those that a communicator registered."""

    number: int
    begin: int
    size: int


class SimNccl:
    """`rawnn.device.libs.nccl.Nccl` for a simulated GPU."""

    library = "nccl"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.path = "simulated NCCL"
        self._group: list[tuple[_Communicator, int, _Part]] | None = None

    def error_text(self, code: Any) -> tuple[str, str]:
        return describe("nccl", int(code))

    def _communicator(self, comm: Any) -> _Communicator:
        found: _Communicator = self.simulation.find(comm, "NCCL communicator", _INVALID)
        return found

    @seam(0)
    def ncclGetVersion(self) -> tuple[int, int]:
        return 0, 22809

    @seam(b"")
    def ncclGetUniqueId(self) -> tuple[int, bytes]:
        return 0, next(_NUMBERS).to_bytes(UNIQUE_ID_BYTES, "little")

    @seam(None)
    def ncclCommInitRankConfig(self, nranks: int, commId: bytes, rank: int,
                               CTAPolicy: int) -> tuple[int, Any]:
        if not self.simulation.current or not 0 <= rank < nranks:
            raise Refused(_INVALID)
        meeting = _MEETINGS.setdefault(bytes(commId), Meeting(nranks))
        if meeting.size != nranks or rank in meeting.present:
            raise Refused(_USAGE)
        meeting.join(rank)
        _MEETINGS.pop(bytes(commId), None)
        made = _Communicator(meeting, rank)
        return 0, self.simulation.create("NCCL communicator", lambda handle: made)[0]

    @seam()
    def ncclCommDestroy(self, comm: Any) -> tuple[int]:
        return self._end(comm, "has destroyed its communicator")

    @seam()
    def ncclCommAbort(self, comm: Any) -> tuple[int]:
        return self._end(comm, ABORTED)

    def _end(self, comm: Any, how: str) -> tuple[int]:
        found = self._communicator(comm)
        with found.meeting.changed:
            for op in found.sums:
                self.simulation.destroy(op, "NCCL reduction", _INVALID)
            for window in found.windows:
                self.simulation.destroy(window, "NCCL window", _INVALID)
            self.simulation.destroy(comm, "NCCL communicator", _INVALID)
            found.meeting.leave(found.rank, how)
        return (0,)

    @seam(0)
    def ncclMemAlloc(self, size: int) -> tuple[int, int]:
        self.simulation.unless_capturing()
        if size > self.simulation.memory.total - self.simulation.memory.used:
            raise Refused("ncclUnhandledCudaError")
        return 0, self.simulation.memory.allocate(size, self.simulation.site())

    @seam()
    def ncclMemFree(self, ptr: int) -> tuple[int]:
        """As cuMemFree: what is enqueued is done first."""
        self.simulation.unless_capturing()
        self.simulation.scheduler.run_all()
        self.simulation.memory.free(ptr, self.simulation.site())
        return (0,)

    @seam(None)
    def ncclCommWindowRegister(self, comm: Any, buff: int, size: int,
                               winFlags: int) -> tuple[int, Any]:
        """All ranks come to it: their windows must be of the same size."""
        found = self._communicator(comm)
        if not size or winFlags != SYMMETRIC:
            raise Refused(_INVALID)
        self.simulation.memory.region(buff, size, size, 1, "a window")
        made = _Window(found.registered, buff, size)
        found.registered += 1
        found.meeting.reduce(found.rank, -found.registered,
                             f"ncclCommWindowRegister of {size:,} bytes",
                             f"a window of {size:,} bytes", [], [])
        with found.meeting.changed:  # which another thread may abort
            if found.rank in found.meeting.gone:
                raise Refused(_INVALID)
            handle, _ = self.simulation.create("NCCL window", lambda handle: made)
            found.windows[handle] = made
        return 0, handle

    @seam()
    def ncclCommWindowDeregister(self, comm: Any, win: Any) -> tuple[int]:
        found = self._communicator(comm)
        self.simulation.destroy(win, "NCCL window", _INVALID)
        del found.windows[win]
        return (0,)

    @seam(0)
    def ncclRedOpCreatePreMulSum(self, scalar: float, datatype: int,
                                 comm: Any) -> tuple[int, int]:
        found = self._communicator(comm)
        if _NAMES.get(datatype) not in _STORED:
            raise Refused(_INVALID)
        handle, _ = self.simulation.create("NCCL reduction", lambda handle: scalar)
        found.sums[handle] = float(scalar)
        return 0, handle

    @seam()
    def ncclRedOpDestroy(self, op: int, comm: Any) -> tuple[int]:
        found = self._communicator(comm)
        self.simulation.destroy(op, "NCCL reduction", _INVALID)
        found.sums.pop(op, None)
        return (0,)

    @seam()
    def ncclGroupStart(self) -> tuple[int]:
        if self._group is not None:
            raise Refused(_USAGE)
        self._group = []
        return (0,)

    @seam()
    def ncclAllReduce(self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int,
                      comm: Any, stream: int) -> tuple[int]:
        found = self._communicator(comm)
        if datatype not in _NAMES or count < 1 or not sendbuff or not recvbuff \
                or op not in (SUM, MAX, *found.sums):
            raise Refused(_INVALID)
        self._add(found, stream, _Part(sendbuff, recvbuff, count, _NAMES[datatype],
                                       "max" if op == MAX else "sum", found.sums.get(op, 1.0)))
        return (0,)

    @seam()
    def ncclReduceScatter(self, sendbuff: int, recvbuff: int, recvcount: int, datatype: int,
                          op: int, comm: Any, stream: int) -> tuple[int]:
        found = self._communicator(comm)
        if _NAMES.get(datatype) not in _STORED or recvcount < 1 or not sendbuff or not recvbuff \
                or op not in (SUM, *found.sums):
            raise Refused(_INVALID)
        self._add(found, stream, _Part(sendbuff, recvbuff, recvcount, _NAMES[datatype],
                                       "scattered sum", found.sums.get(op, 1.0)))
        return (0,)

    @seam()
    def ncclAllGather(self, sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: Any,
                      stream: int) -> tuple[int]:
        found = self._communicator(comm)
        if datatype not in _NAMES or sendcount < 1 or not sendbuff or not recvbuff:
            raise Refused(_INVALID)
        self._add(found, stream, _Part(sendbuff, recvbuff, sendcount, _NAMES[datatype], "gathering",
                                       1.0))
        return (0,)

    def _add(self, found: _Communicator, stream: int, part: _Part) -> None:
        if self._group is None:
            self._enqueue(found, stream, [part])
        else:
            self._group.append((found, stream, part))

    @seam()
    def ncclGroupEnd(self) -> tuple[int]:
        group, self._group = self._group, None
        if group is None:
            raise Refused(_USAGE)
        if len({(id(found), stream) for found, stream, _ in group}) > 1:
            raise SimulationError("a group of collectives on several communicators or streams is "
                                  "not simulated")
        if group:
            self._enqueue(group[0][0], group[0][1], [part for _, _, part in group])
        return (0,)

    def _enqueue(self, found: _Communicator, stream: int, parts: list[_Part]) -> None:
        capture = self.simulation.stream(stream).capture
        if capture is not None and not capture.apart:
            capture.invalid = True  # as NCCL 2.28 does: "dependency created on uncaptured work"
            raise Refused("ncclUnhandledCudaError")
        label = f"{parts[0].call} of {' + '.join(str(p.count) for p in parts)} elements"
        memory = self.simulation.memory

        def region(task: Task, what: str, address: int, nbytes: int) -> Region:
            return memory.region(address, nbytes, nbytes, 1, f"{what} of {task}")

        def run(task: Task) -> None:
            _in_order(found, task)
            size, brought = found.meeting.size, []
            for i, part in enumerate(parts):
                source = region(task, f"send buffer {i}", part.send, part.sent(size))
                memory.read(task, source, f"send buffer {i}")
                brought.append(part.values(source.bytes()))
            found.collectives += 1
            words = "; ".join(map(found.words, parts))
            results = found.meeting.reduce(found.rank, found.collectives, str(task), words, parts,
                                           brought, self.simulation.scheduler.run_another)
            for i, (part, result) in enumerate(zip(parts, results, strict=True)):
                target = region(task, f"receive buffer {i}", part.receive, part.received(size))
                memory.write(task, target, f"receive buffer {i}")
                raw = target.bytes()
                raw[...] = part.stored(result, found.rank).reshape(raw.shape)
                memory.mark_written(target)

        self.simulation.enqueue(stream, Node("kernel", label, (), quiet(run)))


def _in_order(found: _Communicator, task: Task) -> None:
    """Collectives of a communicator run in the same order on every rank only where something
    orders them. Raises Race naming both."""
    before, found.latest = found.latest, task
    if before is not None and not task.after(before.lane, before.index):
        raise Race(f"nothing orders {task} and {before} on rank {found.rank}: another rank may "
                   f"run these collectives the other way round")
