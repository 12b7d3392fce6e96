"""Connects the ranks: rank 0 listens, the others connect."""

from __future__ import annotations

import atexit
import ipaddress
import queue
import secrets
import socket
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from time import monotonic, sleep
from typing import Any

from rawnn.common.errors import RanksError
from rawnn.distributed.admission import Arrival, admit, introduce
from rawnn.distributed.rank_context import RankContext
from rawnn.distributed.wire import Wire

MAX_PENDING = 64
"""Connections that may be authenticating at the same time. More are closed at once, and a rank
among them tries again."""


def connect_ranks(place: RankContext, who: str) -> tuple[dict[int, Wire], dict[int, str]]:
    """Connections by rank (of rank 0 to all others, of the others to rank 0), and the description
    of each process.

    Raises RanksError that names the ranks that did not connect within the time of `place`.
    """
    listener = None
    if not place.address:
        listener, address, port, secret = _rendezvous_by_mpi(place)
        place = replace(place, address=address, port=port, secret=secret)
    if place.rank == 0:
        with listener or _listening(place) as server:
            return _receive_all(server, place)
    return _reach(place, who)


def _listening(place: RankContext) -> socket.socket:
    """Listens only on the interface of the rendezvous address."""
    try:
        address = socket.gethostbyname(place.address)
        if ipaddress.ip_address(address).is_loopback and place.local_size < place.world_size:
            raise RanksError(f"on this host {place.address} means {address}, where no other host "
                             f"can reach rank 0: give MASTER_ADDR as the address of rank 0's host "
                             f"on the network of the ranks", True)
        return socket.create_server((address, place.port), backlog=128)
    except OSError as error:
        raise RanksError(f"rank 0 cannot listen at {place.address}:{place.port} for the other "
                         f"ranks: {error.strerror or error}", True) from None


def _rendezvous_by_mpi(place: RankContext) -> tuple[socket.socket | None, str, int, str]:
    """The rendezvous and a secret: rank 0 listens at any free port, and MPI sends both to the
    others."""
    world = place.world or _mpi_world(place)
    listener, mine = None, None
    if place.rank == 0:
        address = "127.0.0.1" if place.local_size == place.world_size else socket.getfqdn()
        listener = _listening(replace(place, address=address))
        mine = (address, listener.getsockname()[1], place.secret or secrets.token_hex(32))
    address, port, secret = world.bcast(mine, root=0)
    return listener, address, port, secret


def _mpi_world(place: RankContext) -> Any:
    """MPI's communicator of all processes."""
    # If the user's program imported it, it also goes on using MPI and finalises it.
    was_imported = "mpi4py.MPI" in sys.modules
    try:
        mpi: Any = import_module("mpi4py.MPI")
    except ImportError as error:
        raise RanksError(f"mpirun started ranks on several hosts, and without mpi4py ({error}) "
                         f"they do not know where to meet: install mpi4py, or give the variables "
                         f"MASTER_ADDR and MASTER_PORT (mpirun -x)", place.rank == 0) from None
    if not was_imported:
        atexit.register(_leave, mpi)
    return mpi.COMM_WORLD


def _leave(mpi: Any) -> None:
    """Finalise MPI. mpi4py does so at the interpreter's regular exit, which the command line skips;
    mpirun reports a process that ends without it as failed."""
    if not mpi.Is_finalized():
        mpi.Finalize()


def _receive_all(server: socket.socket,
                 place: RankContext) -> tuple[dict[int, Wire], dict[int, str]]:
    wires: dict[int, Wire] = {}
    names: dict[int, str] = {}
    arrivals: queue.Queue[Arrival | None] = queue.Queue()
    until, unknown, strangers = monotonic() + place.seconds, 0, 0
    while len(wires) < place.world_size - 1:
        if monotonic() > until:
            missing = _ranks(set(range(1, place.world_size)) - wires.keys())
            others = f" ({strangers} of those that connected did not belong)" if strangers else ""
            raise _refused(wires.values(), f"{missing} of {place.world_size} did not come to "
                           f"{place.address}:{place.port} within {place.seconds:g} s{others}")
        unknown += _accepted(server, place, until, arrivals, unknown)
        while not arrivals.empty():
            arrival = arrivals.get()
            unknown -= 1
            strangers += arrival is None
            if arrival is None:
                continue
            if arrival.size != place.world_size:
                raise _refused([*wires.values(), arrival.wire],
                               f"rank {arrival.rank} ({arrival.who}) is one of {arrival.size}, "
                               f"and rank 0 one of {place.world_size}")
            if arrival.rank in wires or not 0 < arrival.rank < place.world_size:
                arrival.wire.close()
                continue
            wires[arrival.rank], names[arrival.rank] = arrival.wire, arrival.who
    for wire in wires.values():
        wire.send({"all": True})
    return wires, names


def _accepted(server: socket.socket, place: RankContext, until: float,
              arrivals: queue.Queue[Arrival | None], unknown: int) -> int:
    """Accept at most one connection and return how many. A thread of its own authenticates it, so
    that a silent one does not delay the others."""
    server.settimeout(0.02)
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return 0
    if unknown >= MAX_PENDING:
        connection.close()
        return 0
    threading.Thread(target=_admit, args=(connection, place, until, arrivals), daemon=True,
                     name="admission").start()
    return 1


def _admit(connection: socket.socket, place: RankContext, until: float,
           arrivals: queue.Queue[Arrival | None]) -> None:
    """Put the authenticated process into `arrivals`, None for a stranger. Exactly one entry follows
    whatever is raised: without one the connection would count as pending for ever."""
    arrival = None
    try:
        with suppress(OSError):  # the options of a closed socket cannot be set
            arrival = admit(Wire(connection), place, max(until - monotonic(), 0.001))
    finally:
        if arrival is None:
            connection.close()
        arrivals.put(arrival)


def _refused(wires: Iterable[Wire], message: str) -> RanksError:
    """The error of rank 0, after it was sent to the others."""
    for wire in wires:
        with suppress(OSError):
            wire.send({"failed": message})
        wire.close()
    return RanksError(message, True)


def _reach(place: RankContext, who: str) -> tuple[dict[int, Wire], dict[int, str]]:
    until = monotonic() + place.seconds
    while True:
        try:
            wire = Wire(socket.create_connection((place.address, place.port),
                                                 max(until - monotonic(), 0.01)))
            try:
                introduce(wire, place, who, max(until - monotonic(), 0.001))
                answer = wire.receive(max(until - monotonic(), 0.001) + 1.0)  # who is missing
            except BaseException:
                wire.close()
                raise
            break
        except (OSError, EOFError) as error:
            if monotonic() > until:
                raise RanksError(f"rank 0 did not come to {place.address}:{place.port} within "
                                 f"{place.seconds:g} s ({error or 'it hung up'})",
                                 place.rank == 1) from None
            sleep(0.05)
    if "failed" in answer:
        raise RanksError(answer["failed"], False)
    return {0: wire}, {}


def _ranks(missing: set[int]) -> str:
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, sorted(missing)))}"
