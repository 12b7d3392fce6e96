"""`rawnn plan`: the plan of a step and the graph that it becomes, without a GPU."""

from __future__ import annotations

from typing import Any

import click

from rawnn.cli.costs import show_costs
from rawnn.cli.option_groups import Command, completed
from rawnn.cli.options import config_options, listed, make_config
from rawnn.cli.screen import sentences, table_console
from rawnn.common.errors import ConfigError
from rawnn.common.target import NAMED, gpu_named
from rawnn.common.words import counted
from rawnn.engine.runners.prepared_run import row_by_row_operands, with_unaligned_rows
from rawnn.graphs.unrolling import GraphPlan, epoch_graphs
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.persistent.report import describe
from rawnn.plan import epoch_plans
from rawnn.plan.build import training_step
from rawnn.plan.dependencies import reason
from rawnn.plan.op import Op
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec

SHOWN_NODES = 60
TARGETS = {target.name: target for target in NAMED}
EVERYTHING_RUNS = "H200"


def assumed(name: str) -> Machine:
    """A machine with the GPU of a name, and everything else that toggles may need. Raises
    ConfigError."""
    target = gpu_named(name)
    return Machine(None, target.capability, 13000, lambda package: True, name=target.name,
                   measure=lambda: target)


ASSUMED = assumed(EVERYTHING_RUNS)
"""Default machine of displayed plans: a GPU on which every toggle can run."""


@click.command(cls=Command)
@config_options("sharding", "init", "seed", "partial", "patience", "min_delta", "monitor",
                "dataset", "data", "target", "encoding", "decimal", "skip", "validation",
                "normalise", "normalise_targets", "autoencoder", "save", "save_every", "keep",
                "resume", "device")
@click.option("--gpu", metavar="NAME", default=EVERYTHING_RUNS, show_default=True,
              shell_complete=completed(lambda: TARGETS),
              help=f"The GPU that the plan is for: {listed(TARGETS)}.")
@click.option("--examples", type=click.IntRange(1), default=60_000, show_default=True,
              help="Training examples, which fix the steps of an epoch.")
@click.option("--cost", is_flag=True,
              help="Print what each op costs by the GPU's limits, and what no program could do "
                   "without.")
@click.option("--floors", "floors_file", metavar="FILE.json",
              help="With --cost: limits that `bench lower-bounds --json` wrote (those kept here).")
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz.")
@click.option("--all", "show_all", is_flag=True,
              help=f"Show every node of a graph, not the first {SHOWN_NODES}.")
def plan(config_file: str | None, examples: int, gpu: str, cost: bool, floors_file: str | None,
         dot: bool, show_all: bool, **options: Any) -> None:
    """Print the plan that a set of toggles makes: the outcome of each part of a toggle, each op
    with its shapes, types, implementation, reads and writes, and the nodes of the graph that it
    becomes with the reason of every edge.

    With --cost only the table of what each op costs."""
    if floors_file and not cost:
        raise ConfigError("--floors goes with --cost only")
    if cost and dot:
        raise ConfigError("--cost and --dot print different things: give one")
    config = make_config(config_file, options)
    network, recipe = config.network(), config.recipe()
    if recipe.batch > examples:
        raise ConfigError(f"batch = {recipe.batch} is larger than the training set ({examples} "
                          f"examples): use --batch {examples} or less")
    steps = recipe.steps(examples)
    labelled = network.loss_spec.labelled
    data_spec = DataSpec(examples, labels="uint8" if labelled else "", scale=1 / 255,
                         targets=0 if labelled else network.outputs)
    selection = select(config.toggles, network, steps, assumed(gpu), batch=recipe.batch,
                       recipe=recipe, data_spec=data_spec)
    baseline = training_step(network, recipe, data_spec)
    step, policy = selection.apply(baseline)
    step = with_unaligned_rows(step, row_by_row_operands(step))
    if cost:
        show_costs(step, policy, selection.target.name, floors_file)
        return
    graphs = epoch_graphs(
        step, policy, steps, epoch_plans.begin(step, recipe, examples),
        epoch_plans.end(step, recipe.updates(examples)),
        bool(recipe.partial_size(examples))) if policy.graph else [GraphPlan(step, steps)]
    if dot:
        click.echo(_dot(graphs))
        return
    sentences(table_console(), [f"toggles: {selection}", f"policy:  {policy}",
                                f"for:     {selection.target}",
                                *(f"note:    {note}" for note in selection.notes)])
    click.echo()
    for name, outcomes in selection.outcomes(baseline).items():
        click.echo(f"parts of {name}")
        width = max((len(outcome.part) for outcome in outcomes), default=0)
        for outcome in outcomes:
            taken = f"taken, but {outcome.but}" if outcome.but else "taken"
            text = f"not taken: {outcome.reason}" if outcome.reason else taken
            click.echo(f"  {outcome.part:<{width}} {text}")
        click.echo()
    click.echo(step)
    for op in step.find(kind="train_steps"):
        click.echo()
        click.echo(describe(op.attributes["choice"]))
    for graph in graphs:
        click.echo()
        early = _early_edges(graph, policy) if policy.graph and policy.pdl else None
        click.echo(_describe(graph, bool(policy.graph), show_all, early))


def _early_edges(graph: GraphPlan, policy: Policy) -> list[tuple[int, ...]]:
    """For each op the edges that are programmatic, as far as the kernels' sources say; a run proves
    it from their PTX."""
    from rawnn.cuda.device import Device
    from rawnn.engine.runners.lowering import Lowering
    from rawnn.graphs.early_starts import early_edges
    from rawnn.sim import Simulation

    target = graph.plan.target
    device = Device(Simulation(compute_capability=target.capability).backend())
    lowering = Lowering(device, policy)
    try:
        lowering.compile([graph.plan])
        return early_edges(graph.plan, graph.edges(), lowering)
    finally:
        lowering.close()
        device.close()


def _describe(graph: GraphPlan, is_graph: bool, show_all: bool,
              early: list[tuple[int, ...]] | None) -> str:
    edges = graph.edges()
    ops = graph.plan.ops
    what = "graph" if is_graph else "stream (no graph); the order that reads and writes require"
    lines = [f"{what}: {counted(len(ops), 'node')}, {counted(sum(map(len, edges)), 'edge')}, "
             f"{counted(graph.plan.steps, 'step')}, launched {counted(graph.launches, 'time')} "
             f"an epoch"]
    if graph.loop:
        lines.append("  the body of a WHILE node, repeated until the epoch is over")
    lines += [f"  on the stream before each launch: {op.name}" for op in graph.host_ops]
    shown = len(ops) if show_all else SHOWN_NODES
    for index, (op, before) in enumerate(zip(ops[:shown], edges, strict=False)):
        why = [f"{'early behind' if early and i in early[index] else 'after'} {i}, "
               f"{_reason(ops[i], op)}" for i in before]
        lines.append(f"  {index:>4}  {op.name:<28} {op.kind}/{op.impl:<8} "
                     f"{'; '.join(why) or 'at once'}")
    if len(ops) > shown:
        lines.append(f"  ... {len(ops) - shown} more (--all shows them)")
    if early is not None:
        lines.append("  early: it begins before the other has ended (a programmatic edge)")
    return "\n".join(lines)


def _reason(before: Op, after: Op) -> str:
    """Text such as "which wrote a1"; "chain" if only the order of the plan connects the two."""
    found = reason(before, after)
    return f"which {found.replace('; ', ' and ')}" if found else "chain"


def _dot(graphs: list[GraphPlan]) -> str:
    lines = ["digraph step {", "  node [shape=box, fontname=monospace];"]
    for number, graph in enumerate(graphs):
        lines.append(f"  subgraph cluster_{number} {{")
        label = f"{counted(graph.plan.steps, 'step')}, " \
                f"{counted(graph.launches, 'launch', 'launches')}"
        lines.append(f'    label="{label}";')
        for index, (op, before) in enumerate(zip(graph.plan.ops, graph.edges(), strict=True)):
            lines.append(f'    g{number}_{index} [label="{op.name}\\n{op.kind}/{op.impl}"];')
            lines += [f'    g{number}_{b} -> g{number}_{index} '
                      f'[tooltip="{reason(graph.plan.ops[b], op) or "chain"}"];' for b in before]
        lines.append("  }")
    return "\n".join([*lines, "}"])
