"""`tune`: each kernel is launched in the variant that was fastest in the step itself.

Without stored choices for this GPU, driver and source, the variants of every launch are measured
before training (tuning/launch_tuning.py). Later runs read the stored choices.

`Policy.tune` is read by engine/runners/gpu.py, and cleared by engine/run_planner.py where a resumed
run has its choices.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, tune=True)


register(Toggle(
    "tune",
    claim="tiles, blocks and library algorithms of every op as measured in the real step, once per "
          "GPU, driver and shape",
    source="ATLAS (Whaley and Dongarra, 1998); torch.backends.cudnn.benchmark",
    group="kernels", apply=apply,
))
