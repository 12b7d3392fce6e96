"""The simulated NCCL: connects the simulated GPUs of one process, each driven by its own thread.

A collective is a task of every rank, for which the ranks rendezvous (`nccl_rendezvous.py`). Two
unordered collectives of a rank are a race: another rank may run them in the other order. Buffers
are accessed as by any task, so that one reused too early is a race, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count as counter
from typing import Any

from rawnn.cuda.libs.nccl import DATA_TYPE, MAX, SUM, SYMMETRIC, UNIQUE_ID_BYTES
from rawnn.sim.codes import describe
from rawnn.sim.cublaslt import without_fp_warnings
from rawnn.sim.errors import Race, Refused, SimulationError
from rawnn.sim.faults import simulated_call
from rawnn.sim.graphs import Node
from rawnn.sim.memory import Region
from rawnn.sim.nccl_rendezvous import ABORTED, STORED, GroupCall, Rendezvous
from rawnn.sim.order import Task
from rawnn.sim.simulation import Simulation

_INVALID, _USAGE = "ncclInvalidArgument", "ncclInvalidUsage"
_NAMES = {number: name for name, number in DATA_TYPE.items()}
_RENDEZVOUS: dict[bytes, Rendezvous] = {}
_NUMBERS = counter(1)


@dataclass(eq=False)
class _Communicator:
    rendezvous: Rendezvous
    rank: int
    collectives: int = 0
    latest: Task | None = None
    sums: dict[int, float] = field(default_factory=dict)
    windows: dict[int, _Window] = field(default_factory=dict)
    registered: int = 0

    def words(self, part: GroupCall) -> str:
        """A description of a call that must be the same on all ranks, with the offset in its window
        of each buffer that other ranks access."""
        address = part.send if part.reduction == "scattered sum" else part.receive
        places = [f" at byte {address - w.begin:,} of window {w.number}"
                  for w in self.windows.values() if w.begin <= address < w.begin + w.size]
        return part.words + "".join(places)


@dataclass(frozen=True)
class _Window:
    """Window `number` of a communicator."""

    number: int
    begin: int
    size: int


class SimNccl:
    """`rawnn.cuda.libs.nccl.Nccl` for a simulated GPU."""

    library = "nccl"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.path = "simulated NCCL"
        self._group: list[tuple[_Communicator, int, GroupCall]] | None = None

    def error_text(self, code: Any) -> tuple[str, str]:
        return describe("nccl", int(code))

    def _communicator(self, comm: Any) -> _Communicator:
        found: _Communicator = self.simulation.find(comm, "NCCL communicator", _INVALID)
        return found

    @simulated_call(0)
    def ncclGetVersion(self) -> tuple[int, int]:
        return 0, 22809

    @simulated_call(b"")
    def ncclGetUniqueId(self) -> tuple[int, bytes]:
        return 0, next(_NUMBERS).to_bytes(UNIQUE_ID_BYTES, "little")

    @simulated_call(None)
    def ncclCommInitRankConfig(self, nranks: int, commId: bytes, rank: int,
                               CTAPolicy: int) -> tuple[int, Any]:
        if not self.simulation.current or not 0 <= rank < nranks:
            raise Refused(_INVALID)
        rendezvous = _RENDEZVOUS.setdefault(bytes(commId), Rendezvous(nranks))
        if rendezvous.size != nranks or rank in rendezvous.present:
            raise Refused(_USAGE)
        rendezvous.join(rank)
        _RENDEZVOUS.pop(bytes(commId), None)
        resource = _Communicator(rendezvous, rank)
        return 0, self.simulation.create("NCCL communicator", lambda handle: resource)[0]

    @simulated_call()
    def ncclCommDestroy(self, comm: Any) -> tuple[int]:
        return self._end(comm, "has destroyed its communicator")

    @simulated_call()
    def ncclCommAbort(self, comm: Any) -> tuple[int]:
        return self._end(comm, ABORTED)

    def _end(self, comm: Any, how: str) -> tuple[int]:
        found = self._communicator(comm)
        with found.rendezvous.changed:
            for op in found.sums:
                self.simulation.destroy(op, "NCCL reduction", _INVALID)
            for window in found.windows:
                self.simulation.destroy(window, "NCCL window", _INVALID)
            self.simulation.destroy(comm, "NCCL communicator", _INVALID)
            found.rendezvous.leave(found.rank, how)
        return (0,)

    @simulated_call(0)
    def ncclMemAlloc(self, size: int) -> tuple[int, int]:
        self.simulation.unless_capturing()
        if size > self.simulation.memory.total - self.simulation.memory.used:
            raise Refused("ncclUnhandledCudaError")
        return 0, self.simulation.memory.allocate(size, self.simulation.site())

    @simulated_call()
    def ncclMemFree(self, ptr: int) -> tuple[int]:
        """As cuMemFree: pending work is done first."""
        self.simulation.unless_capturing()
        self.simulation.scheduler.run_all()
        self.simulation.memory.free(ptr, self.simulation.site())
        return (0,)

    @simulated_call(None)
    def ncclCommWindowRegister(self, comm: Any, buff: int, size: int,
                               winFlags: int) -> tuple[int, Any]:
        """All ranks call it; their windows must have the same size."""
        found = self._communicator(comm)
        if not size or winFlags != SYMMETRIC:
            raise Refused(_INVALID)
        self.simulation.memory.region(buff, size, size, 1, "a window")
        resource = _Window(found.registered, buff, size)
        found.registered += 1
        found.rendezvous.reduce(found.rank, -found.registered,
                                f"ncclCommWindowRegister of {size:,} bytes",
                                f"a window of {size:,} bytes", [], [])
        with found.rendezvous.changed:  # another thread may abort it
            if found.rank in found.rendezvous.gone:
                raise Refused(_INVALID)
            handle, _ = self.simulation.create("NCCL window", lambda handle: resource)
            found.windows[handle] = resource
        return 0, handle

    @simulated_call()
    def ncclCommWindowDeregister(self, comm: Any, win: Any) -> tuple[int]:
        found = self._communicator(comm)
        self.simulation.destroy(win, "NCCL window", _INVALID)
        del found.windows[win]
        return (0,)

    @simulated_call(0)
    def ncclRedOpCreatePreMulSum(self, scalar: float, datatype: int,
                                 comm: Any) -> tuple[int, int]:
        found = self._communicator(comm)
        if _NAMES.get(datatype) not in STORED:
            raise Refused(_INVALID)
        handle, _ = self.simulation.create("NCCL reduction", lambda handle: scalar)
        found.sums[handle] = float(scalar)
        return 0, handle

    @simulated_call()
    def ncclRedOpDestroy(self, op: int, comm: Any) -> tuple[int]:
        found = self._communicator(comm)
        self.simulation.destroy(op, "NCCL reduction", _INVALID)
        found.sums.pop(op, None)
        return (0,)

    @simulated_call()
    def ncclGroupStart(self) -> tuple[int]:
        if self._group is not None:
            raise Refused(_USAGE)
        self._group = []
        return (0,)

    @simulated_call()
    def ncclAllReduce(self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int,
                      comm: Any, stream: int) -> tuple[int]:
        found = self._communicator(comm)
        if datatype not in _NAMES or count < 1 or not sendbuff or not recvbuff \
                or op not in (SUM, MAX, *found.sums):
            raise Refused(_INVALID)
        self._add(found, stream, GroupCall(sendbuff, recvbuff, count, _NAMES[datatype],
                                           "max" if op == MAX else "sum", found.sums.get(op, 1.0)))
        return (0,)

    @simulated_call()
    def ncclReduceScatter(self, sendbuff: int, recvbuff: int, recvcount: int, datatype: int,
                          op: int, comm: Any, stream: int) -> tuple[int]:
        found = self._communicator(comm)
        if _NAMES.get(datatype) not in STORED or recvcount < 1 or not sendbuff or not recvbuff \
                or op not in (SUM, *found.sums):
            raise Refused(_INVALID)
        self._add(found, stream, GroupCall(sendbuff, recvbuff, recvcount, _NAMES[datatype],
                                           "scattered sum", found.sums.get(op, 1.0)))
        return (0,)

    @simulated_call()
    def ncclAllGather(self, sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: Any,
                      stream: int) -> tuple[int]:
        found = self._communicator(comm)
        if datatype not in _NAMES or sendcount < 1 or not sendbuff or not recvbuff:
            raise Refused(_INVALID)
        self._add(found, stream, GroupCall(sendbuff, recvbuff, sendcount, _NAMES[datatype],
                                           "gathering", 1.0))
        return (0,)

    def _add(self, found: _Communicator, stream: int, part: GroupCall) -> None:
        if self._group is None:
            self._enqueue(found, stream, [part])
        else:
            self._group.append((found, stream, part))

    @simulated_call()
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

    def _enqueue(self, found: _Communicator, stream: int, parts: list[GroupCall]) -> None:
        capture = self.simulation.stream(stream).capture
        if capture is not None and not capture.owns_graph:
            capture.invalid = True  # as NCCL 2.28 does: "dependency created on uncaptured work"
            raise Refused("ncclUnhandledCudaError")
        label = f"{parts[0].call} of {' + '.join(str(p.count) for p in parts)} elements"
        memory = self.simulation.memory

        def region(task: Task, what: str, address: int, nbytes: int) -> Region:
            return memory.region(address, nbytes, nbytes, 1, f"{what} of {task}")

        def run(task: Task) -> None:
            if found.rendezvous.gone.get(found.rank) == ABORTED:
                return  # like NCCL's kernels, which end if their communicator was aborted
            _in_order(found, task)
            size, contributions = found.rendezvous.size, []
            for i, part in enumerate(parts):
                source = region(task, f"send buffer {i}", part.send, part.sent(size))
                memory.read(task, source, f"send buffer {i}")
                contributions.append(part.values(source.bytes()))
            found.collectives += 1
            words = "; ".join(map(found.words, parts))
            results = found.rendezvous.reduce(found.rank, found.collectives, str(task), words,
                                              parts,
                                              contributions, self.simulation.scheduler.run_another)
            for i, (part, result) in enumerate(zip(parts, results, strict=True)):
                target = region(task, f"receive buffer {i}", part.receive, part.received(size))
                memory.write(task, target, f"receive buffer {i}")
                raw = target.bytes()
                raw[...] = part.stored(result, found.rank).reshape(raw.shape)
                memory.mark_written(target)

        self.simulation.enqueue(stream, Node("kernel", label, (), without_fp_warnings(run)))


def _in_order(found: _Communicator, task: Task) -> None:
    """Check that something orders the collectives of a communicator: otherwise another rank may run
    them in another order. Raises Race with both."""
    before, found.latest = found.latest, task
    if before is not None and not task.after(before.lane, before.index):
        raise Race(f"nothing orders {task} and {before} on rank {found.rank}: another rank may "
                   f"run these collectives the other way round")
