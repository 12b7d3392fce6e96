"""`report=N`: loss and accuracy are computed and shown every N epochs only.

`Policy.report` is read by engine/runners/prepared_run.py, which makes a step without metrics for
the other epochs, and by engine/loop.py; bench/cases/check.py follows it.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.opts.registry import Parameter, Rewritten, Toggle, positive_count, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

DEFAULT_INTERVAL = 10


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, replace(policy, report=int(value or DEFAULT_INTERVAL))


register(Toggle(
    "report",
    claim="loss and accuracy are computed, fetched and shown every N epochs (10) only",
    source="the report's rung of rare reporting",
    group="scheduling", apply=apply, host=True,
    parameter=Parameter("N", positive_count("report"), DEFAULT_INTERVAL),
))
