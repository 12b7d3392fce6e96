"""A grid of widths, depths and batches compared with the peers, from one hidden layer of 64 to six
of 8,192."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Annotated

import click
import msgspec
import numpy as np
from msgspec import Meta

from rawnn.bench.case import BUDGET, DEVICE, Case, part_option, peer_option
from rawnn.bench.harness import Harness
from rawnn.bench.peers.ensemble import is_large
from rawnn.bench.peers.system_comparison import (
    asked_part,
    compare_systems,
    device_of,
    failures,
    part_of,
    task_of,
    tasks_in,
)
from rawnn.bench.peers.training_problem import LEARNING_RATES, STEPS, Problem, Rule, smaller
from rawnn.bench.render import heat as shown
from rawnn.bench.render.view import View
from rawnn.bench.suites import Count, Settings, Suites

CLASSES = 10
DATA_BYTES, FLOPS = 2**30, 2e13
"""Of an epoch, at most, unless two steps take more."""
JAX = ("tf32:scan, unrolled 8", "tf32:scan", "bf16:scan, unrolled 8", "bf16:scan", "float32:scan")

Cell = tuple[int, int, int, Rule]
"""Width, hidden layers, batch, optimizer."""


class GridSuite(Settings, frozen=True, kw_only=True):
    """`bench grid`: `cells` of the grid of `widths`, `depths` (hidden layers), `batches` and
    `optimizers`, in the order that `seed` says, compared with the peers `systems`."""

    widths: list[Count]
    depths: list[Count]
    batches: list[Count]
    optimizers: list[Rule]
    cells: Count
    seed: Annotated[int, Meta(ge=0)]
    systems: list[str]


def measure(harness: Harness, suites: Suites, *, count: int | None, seed: int | None,
            peers: tuple[str, ...], part: tuple[int, int] | None, device: str) -> None:
    """Time `best` in float32, tf32 and bf16 on cells of a grid of widths, depths, batches and
    optimizers, each against the best peer in the same precision.

    Cells are sampled without replacement in an order from a seed: any six that follow each other
    have every width and every batch once. A file to be resumed says which were asked for.
    """
    device = device_of(device)
    suite: GridSuite = suites.grid
    tasks = tasks_in(harness.results, "grid") if count is None and seed is None else []
    if not tasks:
        cells = order_of(suite, suite.seed if seed is None else seed)[:count or suite.cells]
        problems = [problem_of(cell) for cell in cells]
        if device in ("host", "sim"):
            problems = [smaller(p, 24, 16, 4) for p in problems]
        tasks = [task_of(p, f"grid/{p.name}", width=cell[0], depth=cell[1], cell_batch=cell[2])
                 for p, cell in zip(problems, cells, strict=True)]
    compare_systems(harness, tasks, peers, suite.systems, device, forms,
                    partial(part_of, asked_part(harness, part)), is_large=is_large)


def order_of(suite: GridSuite, seed: int) -> list[Cell]:
    """Every cell of the grid once, in an order in which any beginning is balanced.

    Widths and batches are the rows and columns of Latin squares whose symbols are pairs of a depth
    and an optimizer. A square is gone through by its diagonals, each of which has every width and
    every batch once; the seed says the order of rows, columns, symbols, diagonals and squares."""
    generator = np.random.default_rng([seed, 2])
    widths, batches = (list(generator.permutation(v)) for v in (suite.widths, suite.batches))
    symbols = list(product(generator.permutation(suite.depths), suite.optimizers))
    symbols = [symbols[i] for i in _alternating(len(suite.depths), len(suite.optimizers))]
    size = max(len(widths), len(batches))
    cells = []
    for shift in generator.permutation(len(symbols)):
        for diagonal in generator.permutation(size):
            for row in range(size):
                column = (row + diagonal) % size
                if row < len(widths) and column < len(batches):
                    depth, optimizer = symbols[(row + column + shift) % len(symbols)]
                    cells.append((int(widths[row]), int(depth), int(batches[column]), optimizer))
    return cells


def _alternating(depths: int, optimizers: int) -> list[int]:
    """Places of pairs (depth, optimizer) such that every second one has every depth, and both
    optimizers: a diagonal of a Latin square of even size has only those."""
    return [d * optimizers + (d + o) % optimizers for d in range(depths)
            for o in range(optimizers)]


def problem_of(cell: Cell) -> Problem:
    """The network of a cell: as many inputs as each hidden layer has units, ten classes."""
    width, depth, batch, optimizer = cell
    name = f"{width}x{depth} batch {batch} {optimizer}"
    plain = Problem(name=name, seed=0, layers=(width,) * (depth + 1) + (CLASSES,), batch=batch,
                    loss="cross_entropy", optimizer=optimizer, lr=LEARNING_RATES[optimizer])
    most = min(DATA_BYTES // (4 * batch * width), int(FLOPS / plain.flops), STEPS)
    return msgspec.structs.replace(plain, steps=max(most, 2))


def forms(problem: Problem, system: str) -> list[str]:
    """JAX's true float32 in one form, as it compiles for long; all forms of the others."""
    return list(JAX) if system == "jax" else []


CASE = Case("grid", measure, (
    click.option("--cells", "count", type=click.IntRange(1), help="How many cells (30)."),
    click.option("--seed", type=click.IntRange(0), help="Seed of the cells' order (0)."),
    peer_option("torch and jax"), BUDGET, part_option("cells"), DEVICE),
    partial(failures, "grid"), has_bar=False, settings=GridSuite, view=View(
        "Width, depth and batch", "Each cell against the best peer in the same precision.",
        shown.grid, shown.grid_charts))
