"""A run of several ranks, as one of them sees it: joining the others, what has to be equal on all,
and the reduction of metrics."""

from __future__ import annotations

import os
import platform
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

import rawnn
from rawnn.common.errors import ConfigError, OutOfMemory
from rawnn.data import Dataset
from rawnn.distributed import Team, rank_from_communicator, rank_from_environment
from rawnn.distributed.rank_context import SECRET
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.plan.recipe import Recipe
from rawnn.version import __version__

SHORT_US = 500.0
"""If a step computes for less time than this, launching kernels and reductions dominates, and more
ranks do not divide that cost. Then the run is compared with one GPU."""
MIN_GAIN = 0.6
"""Fraction of the ideal speedup below which a message says that several GPUs do not pay off."""
BACKWARD = 2 / 3
"""Fraction of a step's arithmetic in the backward pass."""
OPEN_JOB = (f"the ranks of several hosts share no secret, so that whoever reaches rank 0's port "
            f"could join them: give all of them the same {SECRET}, such as $(openssl rand -hex 32)")
OF_A_HOST = ("device", "data", "save", "resume")
"""Options that may differ from rank to rank, because they are specific to a host."""
PACKAGES = ("numpy", "ml_dtypes", "cuda-bindings", "nvmath-python", "nccl4py", "nvidia-nccl-cu12",
            "nvidia-nccl-cu13", "nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cudnn-cu12",
            "nvidia-cudnn-cu13", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")


def join(config: Config, environ: Mapping[str, str] = os.environ,
         communicator: Any = None) -> Team | None:
    """Join the ranks that a launcher started, this process among them, or those of a `communicator`
    of mpi4py. Returns once all are there and run the same code with the same options; None in a
    process of its own. Raises ConfigError, RanksError."""
    place = rank_from_environment(environ, os.getppid()) if communicator is None \
        else rank_from_communicator(communicator, environ)
    if place is None:
        return None
    return Team(place, facts(config), guard=True)


def facts(config: Config) -> dict[str, str]:
    """What ranks must have in common, by the name that an error message gives it."""
    found = {"rawnn's version": __version__, "rawnn's code": _code(),
             "Python's version": platform.python_version()}
    for name in PACKAGES:
        try:
            found[f"the version of {name}"] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    options = msgspec.to_builtins(config)
    return found | {f"the option {name}": str(value) for name, value in options.items()
                    if name not in OF_A_HOST}


def _code() -> str:
    """A checksum of the package's sources."""
    root, found = Path(rawnn.__file__).parent, 0
    for path in sorted(root.rglob("*.*")):
        if path.suffix in (".py", ".cu", ".cuh", ".json"):
            found = zlib.crc32(path.read_bytes(), zlib.crc32(str(path.relative_to(root)).encode(),
                                                             found))
    return f"{found:08x}"


def _checksum(array: NDArray[Any]) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data):08x}"


def data_facts(data: Dataset) -> dict[str, str]:
    """Name, sizes and a checksum of every part of a data set."""
    parts = {f"{part}_{kind}": getattr(data, f"{part}_{kind}") for part in ("train", "test")
             for kind in ("images", "labels", "targets")}
    return {"the data set": data.name} | {
        f"the data set's {name}": f"{list(array.shape)} {array.dtype}, checksum "
                                  f"{_checksum(array)}"
        for name, array in parts.items() if array is not None}


def state_facts(state: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """A checksum of each resumed tensor."""
    return {f"the resumed {name}": _checksum(array)
            for name, array in state.items()}


def ordinal(config: Config, team: Team) -> int:
    """The GPU that "auto" and "gpu" mean for this rank, among those visible to the process: a
    scheduler may leave it only one. Raises ConfigError for devices that cannot be joined."""
    here = team.place.local_size
    if config.device.startswith("sim"):
        raise ConfigError("the simulated GPUs of several processes cannot be joined: use --device "
                          "host, or a GPU for each rank")
    if config.device.startswith("gpu:") and here > 1:
        raise ConfigError(f"device = '{config.device}': {here} ranks of one host cannot all drive "
                          f"that GPU; with --device gpu each takes its own")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return 0 if visible is not None and "," not in visible else team.place.local_rank


def with_nccl(opt: str) -> str:
    """The toggles with `nccl`, which reduces gradients."""
    words = [word.strip() for word in opt.split(",") if word.strip()]
    return opt if "nccl" in {w.partition("=")[0] for w in words} else ",".join([*words, "nccl"])


def recipe_of_rank(recipe: Recipe, team: Team) -> Recipe:
    """The recipe of this rank. Raises ConfigError for a batch that does not split evenly, with the
    nearest sizes that do."""
    batch, size = recipe.batch, team.world_size
    if batch % size:
        near = [n for n in (batch // size * size, (batch // size + 1) * size) if n]
        raise ConfigError(f"a batch of {batch} cannot be split evenly among {size} ranks: the "
                          f"nearest that can are {' and '.join(map(str, near))}")
    return replace(recipe, world_size=size, rank=team.rank)


def predict_scaling(team: Team, inside_us: float, together_us: float) -> tuple[str,
                                                                               dict[str, float]]:
    """The scaling to expect, as a sentence, and the figures of the slowest rank that it is based
    on: microseconds of a step without collectives, and of the collectives."""
    inside, together = map(max, zip(*team.gather("the outlook", [inside_us, together_us]),
                                    strict=True))
    found = {"compute_us": inside, "reduce_us": together}
    message = f"a step computes for {inside:,.0f} us on each of {team.world_size} ranks, and its " \
              f"gradients take {together:,.0f} us to reduce"
    if together > inside:
        message += (": sending them bounds the step; more examples a rank (--batch), bf16 or fewer "
                    "ranks make better use of the GPUs")
    elif together > inside * BACKWARD:
        message += ", more than the backward pass can hide"
    return message, found


def time_one_rank(opened: Opened, prepared: PreparedRun) -> float | None:
    """Microseconds of a step on one GPU; None if it lacks the memory, or if these toggles need
    several ranks."""
    from rawnn.engine.runners.gpu import GpuRunner

    assert opened.device is not None
    try:
        runner = GpuRunner(opened.device, prepared)
    except (ConfigError, OutOfMemory):
        return None
    try:
        return runner.timed()
    finally:
        runner.close()
        opened.device.memory.reset_peak()


def compare_with_one_rank(team: Team, together_us: float, alone: Callable[[], float | None]
                          ) -> tuple[str, dict[str, float]]:
    """Compare the ranks with one GPU that trains the same batch: a sentence if they gain little or
    nothing ("" otherwise), and the figures. `together_us` is a step of this rank; `alone()` times
    rank 0 by itself and may return None."""
    found = team.gather("one GPU by itself", (together_us, None if team.rank else alone()))
    together, one = max(us for us, _ in found), found[0][1]
    if one is None:
        return "", {"step_us": together}
    message, gain = "", one / together
    if gain < team.world_size * MIN_GAIN:
        message = f"a step takes {together:,.0f} us on {team.world_size} ranks, and {one:,.0f} " \
                  f"us on one GPU by itself: this network and batch are too small for several " \
                  f"GPUs, " + (
                   "and one is faster" if gain < 1 else f"which gain {gain:.2f} times its speed")
    return message, {"step_us": together, "alone_us": one}


def metrics(team: Team, prepared: PreparedRun, losses: NDArray[np.float32],
            correct: NDArray[np.int32]) -> tuple[NDArray[np.float32], NDArray[np.int32], list[int]]:
    """Losses and counts of every step over all ranks. Also the ranks with a non-finite loss in the
    first step that has one."""
    weights = np.array([(prepared.train if s < prepared.steps or prepared.partial is None
                         else prepared.partial).weight
                        for s in range(prepared.updates)])
    counted = correct * (weights > 0)
    own = losses.astype(np.float64) * weights
    bad = np.flatnonzero(~np.isfinite(losses))
    first = team.gather("losses", int(bad[0]) if bad.size else -1)
    totals, counts = own, counted.astype(np.int64)
    team.reduce([totals, counts], 1.0)
    steps = [step for step in first if step >= 0]
    return totals.astype(np.float32), counts.astype(np.int32), \
        [rank for rank, step in enumerate(first) if steps and step == min(steps)]
