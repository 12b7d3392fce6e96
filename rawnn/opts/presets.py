"""Presets: named sets of toggles."""

from __future__ import annotations

from rawnn.network import Network
from rawnn.opts.fuse import MAX_FUSED_CLASSES
from rawnn.opts.registry import TOGGLES, Machine

Values = dict[str, str | int | None]

PRESETS = ("none", "seed", "best")

MAX_UNROLLED_NODES = 20_000
"""Nodes up to which `best` unrolls the whole epoch: building and instantiating costs about 35 us a
node once, which a longer graph does not earn back in twenty epochs."""
UNROLLED_STEPS = 200


def none() -> Values:
    """The baseline: one kernel an op, batches from the host, memory from the driver at each use."""
    return {}


def seed() -> Values:
    """The report's last rung. Its data and buffers are on the GPU before its clock starts."""
    return {"preload": None, "arena": None, "nosync": None, "cublas": None, "report": 10,
            "fuse": None, "cudnn": None, "streams": None, "graphs": "auto"}


def resolve(name: str, network: Network, steps: int, machine: Machine) -> tuple[
        Values, list[str]]:
    """The toggles of a preset, and sentences on what it decided."""
    if name == "best":
        return best(network, steps, machine)
    return (seed() if name == "seed" else none()), []


def best(network: Network, steps: int, machine: Machine) -> tuple[Values, list[str]]:
    """What is fastest for this network on this machine, and why, in a sentence each."""
    if machine.gpu is not None:
        return {"preload": None, "fuse": None}, []
    values: Values = {"preload": None, "arena": None, "nosync": None, "fuse": None}
    notes = []
    if network.depth == 1 and network.layers[-1] <= MAX_FUSED_CLASSES:
        notes.append("best leaves cublas and cudnn out: the fused two-kernel step of a one-layer "
                     "network is faster than any library call between kernels")
        nodes = 2 * steps
    else:
        notes.append("best leaves cudnn out: softmax fused with loss and gradient saves a kernel")
        nodes = (6 * network.depth + 4) * steps
        reason = TOGGLES["cublas"].needs(machine)
        if reason is None:
            values["cublas"] = None
        else:
            notes.append(f"best goes without cublas, which would be faster: {reason}")
    if TOGGLES["graphs"].needs(machine) is None:
        values["streams"] = None
        values["graphs"] = "epoch" if nodes <= MAX_UNROLLED_NODES else UNROLLED_STEPS
    else:
        notes.append(f"best goes without graphs: {TOGGLES['graphs'].needs(machine)}")
    return values, notes
