"""The plans from which a policy's graphs are built, and how often an epoch launches each. This
needs no GPU, so that `rawnn plan` shows it anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rawnn.plan.dependencies import dependencies
from rawnn.plan.epoch_plans import boundary_in_graph
from rawnn.plan.merging import spans
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan, advance
from rawnn.plan.policy import Policy

MAX_LOOP_BODY = 16
"""Steps unrolled in the body of graphs=while: an iteration costs 3.9 us on an H200 in addition to
its kernels, which several steps share."""


@dataclass(frozen=True)
class GraphPlan:
    """One graph of an epoch.

    plan: the plan that becomes the graph.
    launches: how often an epoch launches it.
    host_ops: ops that the host puts on the stream before each launch (copies whose source moves
        from step to step).
    loop: whether the plan is the body of a WHILE node.
    chain: whether its ops run one after the other, in the plan's order.
    """

    plan: Plan
    launches: int
    host_ops: tuple[Op, ...] = ()
    loop: bool = False
    chain: bool = False

    def edges(self) -> list[tuple[int, ...]]:
        """For each op of the plan, the ops it must wait for."""
        if self.chain:
            return [(index - 1,) if index else () for index in range(len(self.plan.ops))]
        return dependencies(self.plan.ops)


def is_single_kernel(plan: Plan, policy: Policy) -> bool:
    """Whether an epoch's graph would be one kernel. It is launched without a graph, with `pdl` or
    without, as a graph of one node saves nothing. With `pdl` its successor on the stream starts
    early, as it could not behind a graph: 5 us of an epoch on an H200."""
    return policy.graph == "epoch" and spans(plan)


def graph_plans(plan: Plan, policy: Policy, steps: int) -> list[GraphPlan]:
    """The graphs of an epoch of `steps` steps, in the order in which they are launched."""
    chain = not policy.streams
    if policy.graph == "epoch":
        return [GraphPlan(plan.unrolled(steps), 1, chain=chain)]
    if policy.graph == "while":
        body = max(n for n in range(1, min(MAX_LOOP_BODY, steps) + 1) if steps % n == 0)
        loop = plan.unrolled(body)
        last = replace(advance(body), impl="while",
                       attributes={"steps": body, "end": steps, "handle": 0})
        return [GraphPlan(replace(loop, ops=(*loop.ops, last)), 1, loop=True, chain=chain)]
    ahead = tuple(plan.find(kind="upload"))
    inside = replace(plan, ops=tuple(op for op in plan.ops if op not in ahead))
    size = min(policy.graph_steps if policy.graph == "unroll" else 1, steps)
    graphs = [GraphPlan(inside.unrolled(size).advancing(), steps // size, ahead, chain=chain)]
    if steps % size:
        graphs.append(GraphPlan(inside.unrolled(steps % size).advancing(), 1, chain=chain))
    return graphs


def includes_boundary(plan: Plan, policy: Policy, end: Plan, partial: bool) -> bool:
    """Whether the graph of an epoch includes the epoch boundary: it holds all steps, no `partial`
    batch follows, and no collective ends an epoch."""
    return policy.graph == "epoch" and not is_single_kernel(plan, policy) and not partial \
        and all(op.impl != "nccl" for op in end.ops)


def epoch_graphs(plan: Plan, policy: Policy, steps: int, begin: Plan, end: Plan,
                 partial: bool) -> list[GraphPlan]:
    """The graphs of an epoch of a run, with the plans `begin` and `end` around every epoch."""
    graphs = graph_plans(plan, policy, steps)
    if not includes_boundary(plan, policy, end, partial):
        return graphs
    whole, = graphs
    tensors = {**begin.tensors, **end.tensors, **whole.plan.tensors}
    ops = (*whole.plan.ops, *boundary_in_graph(begin, end))
    return [replace(whole, plan=replace(whole.plan, tensors=tensors, ops=ops))]
