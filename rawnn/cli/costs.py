"""`rawnn plan --cost`: the cost of each op of a step by the limits of a GPU."""

from __future__ import annotations

from rawnn.bench.costing import OWN, OpCost, deferred_bytes, least_time, moved, op_costs, total
from rawnn.bench.gpu_limits import Limits, missing, read_limits, stored_limits
from rawnn.cli.screen import sentences, table_console
from rawnn.cli.tables import print_table
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

HEADINGS = ("op", "kind", "bytes", "operations", "numbers", "memory (us)", "arithmetic (us)",
            "launch (us)", "expected (us)", "bound by")
UNROLLED = 16
"""Steps of the graph for which it is said what merged updates move."""
KNOWN = 5
"""Columns that need no GPU's limits."""


def show_costs(plan: Plan, policy: Policy, gpu: str, floors_file: str | None = None) -> None:
    """Print the costs of a one-step plan on a GPU, by limits from a file, or the stored ones."""
    limits, where = _limits(gpu, floors_file)
    costs = op_costs(plan, policy, limits)
    rows = [_row(cost) for cost in costs]
    rows.append(("the step", "", f"{sum(c.nbytes for c in costs):,}",
                 f"{sum(c.operations for c in costs):,}", "", "", "", "", _us(total(costs)), ""))
    shown = len(HEADINGS) if limits else KNOWN
    print_table(HEADINGS[:shown], [row[:shown] for row in rows])
    sentences(table_console(), [where, *_merged(plan), *_below(costs, plan, limits)])


def _merged(plan: Plan) -> list[str]:
    """What a step moves on average where updates are merged with the next step's GEMMs."""
    if not deferred_bytes(plan):
        return []
    nbytes = moved(plan.unrolled(UNROLLED)) // UNROLLED
    return [f"in a graph of {UNROLLED} steps some updates are one kernel with the next step's "
            f"GEMM: a step moves {nbytes:,} bytes on average"]


def _limits(gpu: str, file: str | None) -> tuple[Limits | None, str]:
    """The limits, and a sentence on their source, or why there are none."""
    if file:
        found = read_limits(file)
        return found, f"limits: {file}, measured {found.environment.date} on {found.gpu}"
    there = stored_limits(gpu)
    if there is None:
        return None, f"no microseconds: {missing(gpu)}"
    return there, f"limits: {there}"


def _row(cost: OpCost) -> tuple[str, ...]:
    op = cost.op
    return (op.name, f"{op.kind}/{op.impl}", f"{cost.nbytes:,}", f"{cost.operations:,}",
            cost.precision, _us(cost.memory_us), _us(cost.arithmetic_us), _us(cost.launch_us),
            _us(cost.us), cost.bound)


def _us(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _below(costs: list[OpCost], plan: Plan, limits: Limits | None) -> list[str]:
    if limits is None:
        return []
    text = ["expected: a launch and, behind it, the bytes or the operations, whichever take "
            "longer; of the step all ops, one behind the other"]
    if any(cost.bound == OWN for cost in costs):
        text.append("a whole-step kernel is expected to take what its own model says (`rawnn plan` "
                    "prints that)")
    least = least_time(plan, limits)
    expected = total(costs)
    if least:
        times = f"; expected is {expected / least.us:.1f} times that" if expected else ""
        text.append(f"no program does the step in less than {least}{times}")
    else:
        text.append("what no program could do without is not known: limits are missing")
    return text
