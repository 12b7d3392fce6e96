"""What is chosen for sampled networks: toggles, kernels and their geometry, shardings, times."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rawnn.common.errors import ConfigError
from rawnn.graphs.unrolling import epoch_graphs
from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.plan import epoch_plans
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.kernel_registry import GENERATED, KernelImpl
from rawnn.ptx.kernels import kernel_for
from tests.records import Lines, record, short
from tests.records.sampled import Case, cases, selected

COUNT = 50
LIBRARIES = {"cublas", "cudnn", "nccl", "memcpy", "while"}


@record
def decisions() -> Lines:
    for case in cases(COUNT, 20261127):
        yield ""
        yield f"# {case}"
        yield from decided(case)


def decided(case: Case) -> Lines:
    try:
        selection, plan, policy = selected(case)
    except ConfigError as error:
        yield f"refused: {error}"
        return
    yield f"toggles: {selection}"
    yield from (f"note: {note}" for note in selection.notes)
    recipe = case.config().recipe()
    steps, examples = max(recipe.steps(case.data_spec.examples), 1), case.data_spec.examples
    begin = epoch_plans.begin(plan, recipe, examples)
    end = epoch_plans.end(plan, max(recipe.updates(examples), 1))
    if policy.graph:
        graphs = epoch_graphs(
            plan,
            policy,
            min(steps, 3) if policy.graph == "epoch" else steps,
            begin,
            end,
            bool(recipe.partial_size(examples)),
        )
        yield "graphs: " + ", ".join(
            f"{g.plan.steps} steps in {len(g.plan.ops)} nodes and {sum(map(len, g.edges()))} edges "
            f"launched {g.launches}x"
            for g in graphs
        )
    yield from map(op_line, plan.ops, [plan] * len(plan.ops))
    for op in plan.ops:
        if isinstance(choice := op.attributes.get("choice"), Choice):
            yield from choice_lines(choice, with_places=False)
    yield "around: " + ", ".join(
        f"{op.name} {geometry(op, p)}" for p in (begin, end) for op in p.ops
    )
    yield f"scratch: {workspaces(plan)}; device bytes {total_bytes(plan.tensors.values()):,}"


def op_line(op: Op, plan: Plan) -> str:
    return f"{op.name}: {op.impl} {geometry(op, plan)}"


def geometry(op: Op, plan: Plan) -> str:
    """The kernel with its template's arguments, how it is launched, and that it is one of so many
    variants."""
    if op.kind == "upload" or op.impl in LIBRARIES:
        return ""
    impl = kernel_for(op)
    scalars = impl.scalars(op, plan)
    grid, block = impl.geometry(scalars)
    name = re.sub(r"_[0-9a-f]{12}\b", "", impl.expression(op, plan)).replace("float", "f")
    launch = f"{'x'.join(map(str, grid))} of {'x'.join(map(str, block))}"
    shared, cluster = impl.shared(scalars), impl.cluster(scalars)
    return (
        f"{name} {launch}"
        + (f" shared {shared}" if shared else "")
        + (f" cluster {cluster}" if cluster not in (1, (1, 1, 1)) else "")
        + (f" 1/{impl.variants(scalars)}" if impl.variants(scalars) > 1 else "")
        + (f" carveout {impl.carveout} {short(flags(impl))}" if op.kind in GENERATED else "")
    )


def flags(impl: KernelImpl) -> list[str]:
    return [n for n in ("cooperative", "relocatable", "specific", "strided") if getattr(impl, n)]


def choice_lines(choice: Choice, with_places: bool = True) -> Lines:
    """A sharding, with its expected times by phase and its memory."""
    d, layout = choice.sharding, choice.layout
    yield f"sharding {d.text}: {short(choice.us)} us, {layout.nbytes} bytes a block; " + ", ".join(
        f"{name} {4 * words}" for name, words in layout.workspaces(1).items()
    )
    yield "cycles " + ", ".join(
        f"{line.name} {short(line.cycles)}" for line in cost.phases(d, choice.costs)
    )
    if not with_places:
        return
    contents = sorted((start, name) for name, start in layout.places.items())
    yield "words " + ", ".join(f"{name} {start}" for start, name in contents)


def workspaces(plan: Plan) -> str:
    return (
        ", ".join(f"{t.name} {t.nbytes}" for t in plan.tensors.values() if t.role == "scratch")
        or "none"
    )


def total_bytes(tensors: Iterable[object]) -> int:
    return sum(getattr(t, "nbytes", 0) for t in tensors)
