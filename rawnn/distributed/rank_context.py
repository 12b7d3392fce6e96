"""Which rank a process is, and where the ranks meet: from the variables that launchers set."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rawnn.common.errors import ConfigError

OFF = "RAWNN_RANKS"
"""Set to "off", the variables of launchers mean nothing: every process trains by itself."""
SECONDS = "RAWNN_JOIN_SECONDS"
SECRET = "RAWNN_JOB_SECRET"
"""What all ranks of a job know and nobody else: any text, the longer the better."""
FIRST_PORT, PORTS = 20000, 20000
"""Where a port is not given, it follows from what started the ranks."""
STEP_PORTS = 1009
"""Ports between two steps of a job of SLURM, which may run side by side as jobs may."""


@dataclass(frozen=True)
class RankContext:
    """Rank `rank` of `size`, number `local_rank` of `local_size` on this host, started by
    `launcher`. They meet at `address`:`port` within `seconds`; "": `world`, a communicator of
    mpi4py, tells where, that of all processes where none is given. They prove to each other that
    they know `secret`; "" is one that everybody knows."""

    rank: int
    world_size: int
    local_rank: int
    local_size: int
    launcher: str
    address: str = ""
    port: int = 0
    seconds: float = 10.0
    world: Any = None
    secret: str = field(default="", repr=False)

    @property
    def is_open(self) -> bool:
        """Whether ranks of several hosts take whoever connects for one of theirs."""
        return not self.secret and self.local_size < self.world_size and bool(self.address)


VARIABLES = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # Not SLURM_NTASKS, which a job's script has as well, though it is no rank.
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""Of each launcher: rank, number of ranks, and the same on this host."""


def rank_from_environment(environ: Mapping[str, str], parent: int = 0) -> RankContext | None:
    """The place that a launcher has given this process, None where it is alone. `parent` is the
    id of the process that started it.

    Raises ConfigError for variables that are no numbers, or do not say where to meet.
    """
    if environ.get(OFF) == "off":
        return None
    for launcher, rank, size, local_rank, local_size in VARIABLES:
        if rank not in environ or size not in environ:
            continue
        number, count = _number(environ, rank), _number(environ, size)
        if count == 1:
            return None
        if not 0 <= number < count:
            raise ConfigError(f"{rank}={number} is no rank of {count} ({size})")
        if launcher == "torchrun" and "RAWNN_LAUNCH" in environ:
            launcher = "rawnn launch"
        here = _number(environ, local_rank) if local_rank in environ else 0
        together = _number(environ, local_size) if local_size in environ else \
            _slurm_tasks(environ) if launcher == "srun" else 1
        address, port = _rendezvous_address(environ, launcher, together == count, parent)
        default = 10.0 if together == count else 60.0
        return RankContext(number, count, here, together, launcher, address, port,
                           _seconds(environ, default), secret=environ.get(SECRET, ""))
    return None


def rank_from_communicator(communicator: Any, environ: Mapping[str, str]) -> RankContext | None:
    """The place in a communicator of mpi4py, or one with its `Get_rank`, `Get_size`, `allgather`
    and `bcast`, which all ranks call here; None where it has one rank. Raises ConfigError."""
    if any(not hasattr(communicator, name) for name in ("Get_rank", "Get_size", "allgather",
                                                        "bcast")):
        raise ConfigError(f"communicator = {communicator!r}: give one of mpi4py")
    rank, size = communicator.Get_rank(), communicator.Get_size()
    if size == 1:
        return None
    hosts = communicator.allgather(socket.gethostname())
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return RankContext(rank, size, here.index(rank), len(here), "a communicator",
                       seconds=_seconds(environ, 60.0), world=communicator,
                       secret=environ.get(SECRET, ""))


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"{name}={environ[name]} is no whole number, but a launcher's variable "
                          f"for ranks; {OFF}=off ignores them") from None


def _seconds(environ: Mapping[str, str], default: float) -> float:
    try:
        return float(environ.get(SECONDS, default))
    except ValueError:
        raise ConfigError(f"{SECONDS}={environ[SECONDS]} is no number of seconds") from None


def _rendezvous_address(environ: Mapping[str, str], launcher: str, one_host: bool,
                        parent: int) -> tuple[str, int]:
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        port = _number(environ, "MASTER_PORT")
        # torchrun's own store listens at MASTER_PORT for as long as the ranks run.
        return environ["MASTER_ADDR"], port + ("TORCHELASTIC_RUN_ID" in environ)
    if launcher == "srun":
        nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST", ""))
        job, step = (_number(environ, name) if name in environ else 0
                     for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        if nodes:
            return first_node(nodes), FIRST_PORT + (job + STEP_PORTS * step) % PORTS
    if launcher == "mpirun" and one_host:
        return "127.0.0.1", FIRST_PORT + parent % PORTS
    if launcher == "mpirun":
        return "", 0
    raise ConfigError(f"{launcher} started this process, but MASTER_ADDR and MASTER_PORT, where "
                      f"the ranks meet, are not set")


def first_node(nodes: str) -> str:
    """The first host of SLURM's list, such as "gpu[03-07,12],login" or "a,b"."""
    found = re.match(r"([^,\[]+)(?:\[([^\]-]*?)[-,\]])?", nodes)
    return found[1] + (found[2] or "") if found else nodes


def _slurm_tasks(environ: Mapping[str, str]) -> int:
    """Ranks on this host, by a list such as "2(x3),1"; on the first one, where SLURM does not say
    which this is."""
    counts: list[int] = []
    for count, times in re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?",
                                   environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    return counts[node] if 0 <= node < len(counts) else 1
