"""`sr`: weights in bfloat16 only, stochastically rounded, so that there is no float32 master.

Rounding to nearest would lose an update smaller than half a unit in the last place: plain bfloat16
weights do not learn at lr 0.003. Rounded up or down with the right probability, it has the right
mean, and a step reads and writes 2 bytes per weight instead of 10.
"""

from __future__ import annotations

from rawnn.opts.precision import without_masters
from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return without_masters(plan), policy


register(Toggle(
    "sr",
    claim="bfloat16 weights with stochastic rounding and no float32 masters",
    source="Gupta et al., Deep Learning with Limited Numerical Precision, 2015",
    group="numbers", apply=apply, implies=("bf16",), conflicts=("fp16", "fp8", "tf32"), host=True,
))
