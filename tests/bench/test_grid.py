"""`bench grid`: cells in a balanced order, gone on with and merged, on the simulated GPU."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from rawnn.bench.cases.network_grid import DATA_BYTES, JAX, order_of, problem_of
from rawnn.bench.peers.ensemble import is_large
from rawnn.bench.peers.system_comparison import Rules, compare, task_of, tasks_in
from rawnn.bench.record import read_results
from rawnn.bench.suites import read_suites
from tests import requires
from tests.bench.measuring import invoke, place, standing, tiny

GRID = read_suites().grid


@pytest.mark.parametrize("seed", range(5))
def test_every_cell_comes_once_and_every_beginning_is_balanced(seed: int) -> None:
    cells = order_of(GRID, seed)
    assert sorted(cells) == sorted(product(GRID.widths, GRID.depths, GRID.batches, GRID.optimizers))
    for diagonals in range(1, 7):
        begun = cells[:6 * diagonals]
        for axis, values in ((0, GRID.widths), (2, GRID.batches)):
            assert Counter(c[axis] for c in begun) == dict.fromkeys(values, diagonals)
        assert Counter(c[1] for c in begun) == dict.fromkeys(GRID.depths, 2 * diagonals)
        assert len({(c[0], c[2]) for c in begun}) == 6 * diagonals
    for first in range(0, len(cells), 36):  # a Latin square
        for axis, values in ((0, GRID.widths), (2, GRID.batches)):
            for value in values:
                pairs = [(c[1], c[3]) for c in cells[first:first + 36] if c[axis] == value]
                assert sorted(pairs) == sorted(product(GRID.depths, GRID.optimizers))
    rules = Counter(c[3] for c in cells[:36])
    assert rules["sgd"] == rules["adam"] == 18
    assert min(Counter(c[3] for c in cells[:6]).values()) >= 2


def test_another_seed_has_another_order() -> None:
    assert order_of(GRID, 0) == order_of(GRID, 0)
    assert order_of(GRID, 0) != order_of(GRID, 1)


def test_an_epoch_of_a_cell_fits() -> None:
    small, large = problem_of((64, 3, 32, "adam")), problem_of((8192, 6, 16384, "sgd"))
    assert small.layers == (64, 64, 64, 64, 10)
    assert (small.steps, large.steps) == (64, 2)
    assert 4 * small.examples * 64 <= DATA_BYTES
    assert not is_large(small)
    assert is_large(large)


def test_forms_of_jax_are_forms_that_it_has() -> None:
    requires.module("jax")
    from rawnn.bench.peers import jax_system

    assert {form.split(":")[1] for form in JAX} == set(jax_system.FORMS)
    assert {form.split(":")[0] for form in JAX} == set(jax_system.PRECISION)


def test_programs_of_large_problems_are_made_again_for_their_time() -> None:
    rules = Rules(("rawnn", "numpy"), "host", is_large=lambda p: p.batch == 9)
    with standing("made-up", where=place(device="host", gpu=None)) as harness:
        compare(harness, [task_of(tiny(batch=9, steps=4), "made-up/p2")], rules)
    entries = harness.results.entries("made-up")
    assert [(e.variant, e.status, len(e.samples("step_us"))) for e in entries] == [
        ("rawnn best", "measured", 8), ("numpy arrays", "measured", 8)]


def test_cells_on_the_simulated_gpu_are_merged_and_gone_on_with(tmp_path: Path) -> None:
    kept, other, both = (tmp_path / f"{name}.json" for name in ("g", "other", "both"))
    first = invoke("grid", "--device", "sim", "--peer", "numpy", "--cells", "2", "--part", "1/2",
                   "--json", str(kept), "--markdown", str(tmp_path / "g.md"))
    assert first.exit_code == 0, first.output
    found = read_results(kept)
    assert Counter(e.status for e in found.entries("grid")) == {"measured": 4, "not measured": 1}
    asked = [(c["width"], c["depth"], c["cell_batch"], c["optimizer"])
             for c in (task.conditions for task in tasks_in(found, "grid"))]
    assert asked == order_of(GRID, GRID.seed)[:2]
    assert "float32 against true float32" in (tmp_path / "g.md").read_text()
    second = invoke("grid", "--device", "sim", "--peer", "numpy", "--cells", "2", "--part", "2/2",
                    "--json", str(other))
    assert second.exit_code == 0, second.output
    assert invoke("merge", str(kept), str(other), "--json", str(both)).exit_code == 0
    assert read_results(both).is_whole("grid")
    again = invoke("grid", "--device", "sim", "--peer", "numpy", "--resume", str(kept))
    assert (again.exit_code, read_results(kept).is_whole("grid")) == (0, False), again.output
    again = invoke("grid", "--device", "sim", "--peer", "numpy", "--resume", str(kept), "--part",
                   "1/1")
    assert (again.exit_code, read_results(kept).is_whole("grid")) == (0, True), again.output
    assert "2 of 2 cells" in again.output
