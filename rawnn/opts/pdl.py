"""`pdl`: programmatic dependent launch. A kernel starts before its predecessor has ended.

Five files say how:
- cuda/launch.py: launches that have the attribute, and nodes with programmatic edges;
- cuda/compiling/launch_proof.py: what is proved from the PTX of a kernel compiled for this;
- graphs/early_starts.py: which kernels may start early, in a graph and on a stream;
- engine/runners/lowering.py reads `Policy.pdl`: kernels are compiled to wait and trigger
  (RAWNN_PDL, ptx/primitives/pdl.cuh), and launched early on a stream;
- graphs/graph_programs.py gives a graph the programmatic edges.

It is displayed by cli/plan.py, costed by bench/costing.py, added by opts/presets.py beside `mma`,
and tried by tuning/search.py. GEMMs of cuBLASLt do not start early, which opts/cublas_payoff.py
adds to their time (LATE_US). ptx/fused/narrow.cu and ptx/fused/narrow_inner.cu load inputs ahead of
their wait only with it (kProgrammatic).
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
