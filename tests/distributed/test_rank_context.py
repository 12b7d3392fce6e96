"""Which rank a process is, by the variables that launchers set."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from threading import Barrier
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rawnn.common.errors import ConfigError, RanksError
from rawnn.distributed import RankContext, rank_from_environment
from rawnn.distributed.rank_context import first_node
from rawnn.distributed.rendezvous import connect_ranks
from rawnn.engine import parallel
from rawnn.engine.config import Config
from rawnn.engine.parallel import join
from tests.together import all_fine, together

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
         "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NODELIST": "gpu[03-04]",
         "SLURM_JOB_ID": "71234", "PMI_RANK": "5", "PMI_SIZE": "8"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(("environ", "wanted"), [
    (TORCHRUN, RankContext(3, 8, 1, 2, "torchrun", "head", 29500, 60.0)),
    ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, RankContext(3, 8, 1, 2, "torchrun", "head", 29501,
                                                           60.0)),
    ({**TORCHRUN, "RAWNN_LAUNCH": "1", "LOCAL_WORLD_SIZE": "8"},
     RankContext(3, 8, 1, 8, "rawnn launch", "head", 29500, 10.0)),
    (OPEN_MPI, RankContext(1, 2, 1, 2, "mpirun", "127.0.0.1", 20077, 10.0)),
    ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
     RankContext(1, 2, 1, 1, "mpirun", "", 0, 60.0)),
    ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"},
     RankContext(1, 2, 1, 1, "mpirun", "a", 5, 60.0)),
    (SLURM, RankContext(5, 8, 1, 4, "srun", "gpu03", 31234, 60.0)),
    *(({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1,3(x2)", "SLURM_NODEID": str(node)},
       RankContext(5, 8, 1, count, "srun", "gpu03", 31234, 60.0))
      for node, count in enumerate((2, 2, 2, 1, 3, 3))),
    ({**SLURM, "SLURM_STEP_ID": "2"}, RankContext(5, 8, 1, 4, "srun", "gpu03", 33252, 60.0)),
    (MPICH, RankContext(0, 4, 0, 2, "mpirun", "", 0, 60.0)),
    ({**TORCHRUN, "RAWNN_JOIN_SECONDS": "2.5"},
     RankContext(3, 8, 1, 2, "torchrun", "head", 29500, 2.5)),
    ({}, None), ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, None),
    ({**TORCHRUN, "RAWNN_RANKS": "off"}, None),
    # The script of a job, in which srun has not started anything.
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "a"}, None),
])
def test_the_place_is_the_launchers(environ: dict[str, str], wanted: RankContext | None) -> None:
    assert rank_from_environment(environ, 20077 - 20000 + 20000 * 2) == wanted


@pytest.mark.parametrize(("environ", "message"), [
    ({**TORCHRUN, "RANK": "x"}, "RANK=x is no whole number"),
    ({**TORCHRUN, "RANK": "8"}, "RANK=8 is no rank of 8"),
    ({**TORCHRUN, "RAWNN_JOIN_SECONDS": "soon"}, "RAWNN_JOIN_SECONDS=soon"),
    ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, "MASTER_ADDR and MASTER_PORT"),
])
def test_variables_that_make_no_sense_are_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rank_from_environment(environ)


@pytest.mark.parametrize(("nodes", "first"), [
    ("gpu[03-07,12],login", "gpu03"), ("gpu[12,14]", "gpu12"), ("a,b", "a"), ("one", "one"),
    ("node-7-[001]", "node-7-001"),
])
def test_the_first_host_of_slurms_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_mpi_carries_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for mpi4py: what rank 0 gives is what the others get."""
    import threading

    there, box = threading.Event(), []

    def bcast(value: Any, root: int) -> Any:
        if value is not None:
            box.append(("127.0.0.1", *value[1:]))
            there.set()
        assert there.wait(10)
        return box[0]

    monkeypatch.setattr("socket.gethostbyname", lambda name: "0.0.0.0")  # of this host's network
    module = ModuleType("mpi4py.MPI")
    module.COMM_WORLD = SimpleNamespace(bcast=bcast)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)

    def act(rank: int) -> Any:
        wires, names = connect_ranks(RankContext(rank, 3, 0, 1, "mpirun", "", 0, 10.0),
                                     f"rank {rank}")
        for wire in wires.values():
            wire.close()
        return sorted(wires), names

    found = all_fine(together(3, act))
    assert found[0] == ([1, 2], {1: "rank 1", 2: "rank 2"})
    assert found[1] == found[2] == ([0], {})


class Communicator:
    """A stand-in for mpi4py's, of threads."""

    def __init__(self, size: int) -> None:
        self._box: list[Any] = [None] * size
        self._barrier = Barrier(size)

    def of(self, rank: int) -> Any:
        def allgather(value: Any) -> list[Any]:
            self._box[rank] = value
            self._barrier.wait(10)
            found = list(self._box)
            self._barrier.wait(10)
            return found

        return SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: len(self._box),
                               allgather=allgather,
                               bcast=lambda value, root: allgather(value)[root])


def test_a_communicator_of_the_users_joins_its_ranks() -> None:
    """Whatever a launcher's variables say."""
    world, config = Communicator(3), Config(device="host")

    def act(rank: int) -> Any:
        team = join(config, TORCHRUN, world.of(rank))
        assert team is not None
        try:
            return team.place.local_rank, team.place.local_size, team.gather("ranks", team.rank)
        finally:
            team.close()

    assert all_fine(together(3, act)) == [(rank, 3, [0, 1, 2]) for rank in range(3)]
    assert join(config, TORCHRUN, Communicator(1).of(0)) is None
    with pytest.raises(ConfigError, match="give one of mpi4py"):
        join(config, {}, 5)


@pytest.mark.parametrize("brought", [False, True])
def test_mpi_is_left_by_who_began_it(brought: bool, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """mpirun takes a process that ends without MPI_Finalize for one that has failed."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "left = []\nIs_finalized = lambda: bool(left)\nFinalize = lambda: left.append(1)\n"
        "class COMM_WORLD:\n    bcast = staticmethod(lambda value, root: value)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mpi4py", "mpi4py.MPI"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that it goes behind the test
        del sys.modules[name]
    if brought:
        import_module("mpi4py.MPI")
    monkeypatch.setattr("socket.gethostbyname", lambda name: "0.0.0.0")  # of this host's network
    asked: list[Any] = []
    monkeypatch.setattr("atexit.register", lambda *call: asked.append(call))
    with pytest.raises(RanksError, match="rank 1 of 2 did not come"):
        connect_ranks(RankContext(0, 2, 0, 1, "mpirun", "", 0, 0.05), "")
    for act, *given in asked:
        act(*given)
        act(*given)
    mpi: Any = sys.modules["mpi4py.MPI"]
    assert mpi.left == ([] if brought else [1])


def test_without_mpi4py_ranks_of_several_hosts_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(RanksError, match="install mpi4py, or give the variables MASTER_ADDR"):
        connect_ranks(RankContext(0, 2, 0, 1, "mpirun", "", 0, 1.0), "")


def test_a_port_that_is_taken_is_said() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RanksError, match=f"rank 0 cannot listen at 127.0.0.1:{port}"):
            connect_ranks(RankContext(0, 2, 0, 2, "a test", "127.0.0.1", port, 1.0), "")


def test_a_rank_of_a_run_joins_with_its_place_its_facts_and_a_guard(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard ends a process that a lost rank leaves inside a library's call."""
    monkeypatch.setattr(parallel, "Team", lambda place, facts, guard=False: (place, facts, guard))
    config = Config(layers=(4, 3, 2), seed=5)
    assert parallel.join(config, TORCHRUN) == (rank_from_environment(TORCHRUN),
                                               parallel.facts(config), True)
    assert parallel.facts(config) != parallel.facts(Config(layers=(4, 3, 2), seed=6))
    assert parallel.join(config, {}) is None
