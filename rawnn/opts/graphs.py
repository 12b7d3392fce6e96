"""`graphs`: the step, several steps or the whole epoch as one explicit CUDA graph.

`Policy.graph` and `Policy.graph_steps` are read by graphs/unrolling.py, which makes the graphs'
plans, by engine/runners/gpu.py, which builds graphs or launches, and by
engine/runners/prepared_run.py, which counts their memory and lets an epoch of one kernel be one
launch. cli/plan.py displays them; bench/driver_calls.py, bench/costing.py and
bench/profiling.py follow them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from rawnn.common.errors import ConfigError
from rawnn.common.target import CONDITIONAL_NODES
from rawnn.opts.nccl import reduces
from rawnn.opts.registry import Machine, Parameter, Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

AUTOMATIC_STEPS = 16
"""Steps in a graph for a bare `graphs`. Between two launches the GPU idles for about 3 us. Preset
`seed` on an H200 with 1, 2, 4, 8, 16, 32 steps a graph takes 7.3, 7.1, 6.4, 6.1, 6.0, 5.9 ms an
epoch; `graphs,cublas,cudnn` with 4, 8, 16, 36 takes 10.74, 10.64, 10.56, 10.55. Longer graphs take
longer to build, so they have to be asked for."""


def parse(text: str) -> str | int:
    if text in ("auto", "step", "epoch", "while"):
        return text
    if re.fullmatch(r"[0-9]{1,9}", text) and int(text) >= 1:
        return int(text)
    raise ConfigError(f"graphs={text}: give auto, step, epoch, while or a number of steps")


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    if value == "auto":
        value = "step" if plan.find(kind="upload") else AUTOMATIC_STEPS
    if isinstance(value, int):
        if value > 1 and plan.find(kind="upload"):
            raise ConfigError(
                f"graphs={value} repeats one graph over an epoch whose batches come from the host, "
                f"and a graph cannot vary the address it copies from: add preload, or use "
                f"graphs=step or graphs=epoch"
            )
        return plan, replace(policy, graph="unroll", graph_steps=value)
    if value == "while" and reduces(plan):
        raise ConfigError(
            "graphs=while cannot hold the collectives of nccl: NCCL may add nodes that call the "
            "host, which the body of a loop on the device may not have; use graphs=epoch"
        )
    if value == "while" and plan.find(kind="upload"):
        raise ConfigError(
            "graphs=while loops on the device, which cannot fetch batches from the host: add "
            "preload"
        )
    modes: dict[str | int | None, Literal["step", "epoch", "while"]] = {
        "step": "step", "epoch": "epoch", "while": "while"}
    return plan, replace(policy, graph=modes[value])


def needs(machine: Machine) -> str | None:
    if machine.driver >= CONDITIONAL_NODES:
        return None
    return "needs a driver for CUDA 12.3 or newer: update the NVIDIA driver"


register(Toggle(
    "graphs",
    claim="one CUDA graph for a step, N steps, an epoch, or a loop on the device; auto takes a "
          "step, or sixteen where the data set is on the GPU",
    source="the report's last rung: CUDA Graphs, here built node by node from the plan's edges",
    group="scheduling", apply=apply, needs=needs, needs_text="driver for CUDA 12.3",
    parameter=Parameter("auto|step|N|epoch|while", parse, "auto"), implies=("nosync", "arena"),
))
