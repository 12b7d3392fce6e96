"""`pdl`: programmatic dependent launch. A kernel begins before its predecessor has ended.

It sets `Policy.pdl`, which acts in engine/runners/lowering.py: kernels are compiled to wait and
trigger, and on a stream launched before those ahead have ended. In a graph graphs/programs.py makes
the edges programmatic that graphs/programmatic_edges.py allows.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

ARCHITECTURE = (9, 0)
"""The compute capability that introduced griddepcontrol."""


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, pdl=True)


def needs(machine: Machine) -> str | None:
    if machine.compute_capability >= ARCHITECTURE:
        return None
    return "needs compute capability 9.0 (Hopper) or newer"


register(Toggle(
    "pdl",
    claim="kernels begin while their predecessors still run, and wait for these to end before they "
          "read; proved from the PTX of each",
    source="a kernel node costs 0.49 to 1.14 us on an H200, 0.37 to 0.70 us after a programmatic "
           "edge",
    group="scheduling", apply=apply, needs=needs, needs_text="sm_90",
))
