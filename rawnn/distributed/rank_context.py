"""The rank of a process and the rendezvous address, from the variables that launchers set."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rawnn.common.errors import ConfigError

OFF = "RAWNN_RANKS"
"""If set to "off", launchers' variables are ignored: every process trains by itself."""
SECONDS = "RAWNN_JOIN_SECONDS"
SECRET = "RAWNN_JOB_SECRET"
"""The secret that all ranks of a job share: any text, the longer the better."""
FIRST_PORT, PORTS = 20000, 20000
"""Range of the port, derived from what started the ranks if none is given."""
STEP_PORTS = 1009
"""Ports between two steps of a SLURM job, which may run concurrently, as jobs may."""


@dataclass(frozen=True)
class RankContext:
    """Rank `rank` of `world_size`, number `local_rank` of `local_size` on this host, started by
    `launcher`.

    address, port: the rendezvous, to be reached within `seconds`. If `address` is "", the mpi4py
        communicator `world` (None: that of all processes) determines it.
    secret: what ranks authenticate with; "" is known to everybody.
    """

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
        """Whether ranks of several hosts accept any connection as one of theirs."""
        return not self.secret and self.local_size < self.world_size and bool(self.address)


VARIABLES = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # Not SLURM_NTASKS: a job's script, which is no rank, has it as well.
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
"""For each launcher: the variables of rank and number of ranks, and the same on this host."""


def rank_from_environment(environ: Mapping[str, str], parent: int = 0) -> RankContext | None:
    """The rank that a launcher gave this process, None without one. `parent` is the id of the
    process that started it.

    Raises ConfigError for variables that are no numbers, or do not give a rendezvous.
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
        local = _number(environ, local_rank) if local_rank in environ else 0
        together = _number(environ, local_size) if local_size in environ else \
            _slurm_tasks(environ) if launcher == "srun" else 1
        address, port = _rendezvous_address(environ, launcher, together == count, parent)
        default = 10.0 if together == count else 60.0
        return RankContext(number, count, local, together, launcher, address, port,
                           _seconds(environ, default), secret=environ.get(SECRET, ""))
    return None


def rank_from_communicator(communicator: Any, environ: Mapping[str, str]) -> RankContext | None:
    """The rank in a communicator of mpi4py, or one with its `Get_rank`, `Get_size`, `allgather` and
    `bcast`, which all ranks call here; None if it has one rank. Raises ConfigError."""
    if any(not hasattr(communicator, name) for name in ("Get_rank", "Get_size", "allgather",
                                                        "bcast")):
        raise ConfigError(f"communicator = {communicator!r}: give one of mpi4py")
    rank, size = communicator.Get_rank(), communicator.Get_size()
    if size == 1:
        return None
    hosts = communicator.allgather(socket.gethostname())
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return RankContext(rank, size, local.index(rank), len(local), "a communicator",
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
        # torchrun's own store listens at MASTER_PORT as long as the ranks run.
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
    """Ranks on this host, from a list such as "2(x3),1"; those of the first host if SLURM does not
    say which this is."""
    counts: list[int] = []
    for count, times in re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?",
                                   environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    return counts[node] if 0 <= node < len(counts) else 1
