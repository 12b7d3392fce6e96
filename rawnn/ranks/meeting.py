"""How ranks find each other: rank 0 listens, the others connect."""

from __future__ import annotations

import atexit
import ipaddress
import socket
import sys
from contextlib import suppress
from importlib import import_module
from time import monotonic, sleep
from typing import Any

from rawnn.errors import RanksError
from rawnn.ranks.place import Place
from rawnn.ranks.wire import Wire

HELLO = "rawnn ranks 1"


def meet(place: Place, who: str) -> tuple[dict[int, Wire], dict[int, str]]:
    """Connections by rank (of rank 0 to all others, of the others to rank 0), and who is there.

    Raises RanksError that names who did not come within the time of `place`.
    """
    listener = None
    address, port = place.address, place.port
    if not address:
        listener, address, port = _told_by_mpi(place)
    if place.rank == 0:
        with listener or _listening(address, port) as open_door:
            return _receive_all(open_door, place, f"{address}:{port}")
    return _reach(place, address, port, who)


def _listening(address: str, port: int) -> socket.socket:
    """On the loopback alone where the ranks meet there."""
    loopback = address == "localhost"
    with suppress(ValueError):
        loopback = ipaddress.ip_address(address).is_loopback
    try:
        return socket.create_server((address if loopback else "", port), backlog=128)
    except OSError as error:
        raise RanksError(f"rank 0 cannot listen at {address or 'any address'}:{port} for the other "
                         f"ranks: {error.strerror}", True) from None


def _told_by_mpi(place: Place) -> tuple[socket.socket | None, str, int]:
    """Rank 0 listens wherever there is a free port, and MPI carries that to the others."""
    world = place.world or _of_all(place)
    loopback = "127.0.0.1" if place.local_size == place.size else ""
    listener = _listening(loopback, 0) if place.rank == 0 else None
    mine = (loopback or socket.getfqdn(), listener.getsockname()[1]) if listener else None
    address, port = world.bcast(mine, root=0)
    return listener, address, port


def _of_all(place: Place) -> Any:
    """MPI's communicator of all processes."""
    brought = "mpi4py.MPI" in sys.modules  # by the user's program, which has more to do with it
    try:
        mpi: Any = import_module("mpi4py.MPI")
    except ImportError as error:
        raise RanksError(f"mpirun started ranks on several hosts, and without mpi4py ({error}) "
                         f"they do not know where to meet: install mpi4py, or give the variables "
                         f"MASTER_ADDR and MASTER_PORT (mpirun -x)", place.rank == 0) from None
    if not brought:
        atexit.register(_leave, mpi)
    return mpi.COMM_WORLD


def _leave(mpi: Any) -> None:
    """mpi4py does it where Python takes itself apart, which the command line leaves out; mpirun
    takes a process that ends without it for one that has failed."""
    if not mpi.Is_finalized():
        mpi.Finalize()


def _receive_all(door: socket.socket, place: Place,
                 where: str) -> tuple[dict[int, Wire], dict[int, str]]:
    wires: dict[int, Wire] = {}
    names: dict[int, str] = {}
    until = monotonic() + place.seconds
    while len(wires) < place.size - 1:
        door.settimeout(max(until - monotonic(), 0.001))
        try:
            connection, _ = door.accept()
            wire = Wire(connection)
            hello = wire.receive(max(until - monotonic(), 0.001))
        except TimeoutError:
            said = f"{_ranks(set(range(1, place.size)) - wires.keys())} of {place.size} did not " \
                   f"come to {where} within {place.seconds:g} s"
            for wire in wires.values():
                with suppress(OSError):
                    wire.send({"failed": said})
                wire.close()
            raise RanksError(said, True) from None
        except EOFError:
            continue
        fits = isinstance(hello, list) and hello[:1] == [HELLO] and len(hello) == 4
        if not fits or hello[1] in wires or not 0 < hello[1] < place.size:
            wire.close()  # something else that looked in
            continue
        _, rank, size, name = hello
        if size != place.size:
            said = f"rank {rank} ({name}) is one of {size}, and rank 0 one of {place.size}"
            wire.send({"failed": said})
            raise RanksError(said, True)
        wires[rank], names[rank] = wire, name
    for wire in wires.values():
        wire.send({"all": True})
    return wires, names


def _reach(place: Place, address: str, port: int,
           who: str) -> tuple[dict[int, Wire], dict[int, str]]:
    until = monotonic() + place.seconds
    while True:
        try:
            wire = Wire(socket.create_connection((address, port), max(until - monotonic(), 0.01)))
            wire.send([HELLO, place.rank, place.size, who])
            said = wire.receive(max(until - monotonic(), 0.001) + 1.0)  # rank 0 says who is missing
            break
        except (OSError, EOFError) as error:
            if monotonic() > until:
                raise RanksError(f"rank 0 did not come to {address}:{port} within "
                                 f"{place.seconds:g} s ({error or 'it hung up'})",
                                 place.rank == 1) from None
            sleep(0.05)
    if "failed" in said:
        raise RanksError(said["failed"], False)
    return {0: wire}, {}


def _ranks(missing: set[int]) -> str:
    return f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, sorted(missing)))}"
