"""`rawnn plan`: the plan of a step and the graph that it becomes, without a GPU."""

from __future__ import annotations

from typing import Any

import click

from rawnn.cli.grouped import Command
from rawnn.cli.options import config_options, make_config
from rawnn.onchip.report import describe
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.runners.graphplan import GraphPlan, graph_plans
from rawnn.step.build import training_step
from rawnn.step.recipe import Form
from rawnn.words import counted

SHOWN_NODES = 60
ASSUMED = Machine(None, (9, 0), 13000, lambda package: True)
"""Plans are shown as for a GPU on which every toggle can run."""


@click.command(cls=Command)
@config_options("init", "seed", "partial", "patience", "min_delta", "monitor", "dataset", "data",
                "target", "validation", "normalise", "autoencoder", "save", "save_every", "keep",
                "resume", "device")
@click.option("--examples", type=click.IntRange(1), default=60_000, show_default=True,
              help="Training examples, which fix the steps of an epoch.")
@click.option("--dot", is_flag=True, help="Print the graph for Graphviz.")
@click.option("--all", "show_all", is_flag=True,
              help=f"Show every node of a graph, not the first {SHOWN_NODES}.")
def plan(config_file: str | None, examples: int, dot: bool, show_all: bool, **options: Any) -> None:
    """Print the plan that a set of toggles makes: each op with its shapes, types, implementation,
    reads and writes, and the nodes and edges of the graph that it becomes."""
    config = make_config(config_file, options)
    network, recipe = config.network(), config.recipe()
    steps = max(recipe.steps(examples), 1)
    labelled = network.answers.answers == "labels"
    form = Form(examples, labels="uint8" if labelled else "", scale=1 / 255,
                targets=0 if labelled else network.outputs)
    selection = select(config.opt, network, steps, ASSUMED, batch=recipe.batch,
                       recipe=recipe, form=form)
    step, policy = selection.apply(training_step(network, recipe, form))
    graphs = graph_plans(step, policy, steps) if policy.graph else [GraphPlan(step, steps)]
    if dot:
        click.echo(_dot(graphs))
        return
    click.echo(f"toggles: {selection}")
    click.echo(f"policy:  {policy}\n")
    click.echo(step)
    for op in step.find(kind="train_steps"):
        click.echo()
        click.echo(describe(op.attributes["chosen"]))
    for graph in graphs:
        click.echo()
        click.echo(_describe(graph, bool(policy.graph), show_all))


def _describe(graph: GraphPlan, is_graph: bool, show_all: bool) -> str:
    edges = graph.edges()
    ops = graph.plan.ops
    what = "graph" if is_graph else "stream (no graph); the order that reads and writes require"
    lines = [f"{what}: {counted(len(ops), 'node')}, {counted(sum(map(len, edges)), 'edge')}, "
             f"{counted(graph.plan.steps, 'step')}, launched {counted(graph.launches, 'time')} "
             f"an epoch"]
    if graph.loop:
        lines.append("  the body of a WHILE node, repeated until the epoch is over")
    lines += [f"  on the stream before each launch: {op.name}" for op in graph.ahead]
    shown = len(ops) if show_all else SHOWN_NODES
    for index, (op, before) in enumerate(zip(ops[:shown], edges, strict=False)):
        after = ", ".join(map(str, before)) or "-"
        lines.append(f"  {index:>4}  {op.name:<28} {op.kind}/{op.impl:<8} after {after}")
    if len(ops) > shown:
        lines.append(f"  ... {len(ops) - shown} more (--all shows them)")
    return "\n".join(lines)


def _dot(graphs: list[GraphPlan]) -> str:
    lines = ["digraph step {", "  node [shape=box, fontname=monospace];"]
    for number, graph in enumerate(graphs):
        lines.append(f"  subgraph cluster_{number} {{")
        label = f"{counted(graph.plan.steps, 'step')}, " \
                f"{counted(graph.launches, 'launch', 'launches')}"
        lines.append(f'    label="{label}";')
        for index, (op, before) in enumerate(zip(graph.plan.ops, graph.edges(), strict=True)):
            lines.append(f'    g{number}_{index} [label="{op.name}\\n{op.kind}/{op.impl}"];')
            lines += [f"    g{number}_{b} -> g{number}_{index};" for b in before]
        lines.append("  }")
    return "\n".join([*lines, "}"])
