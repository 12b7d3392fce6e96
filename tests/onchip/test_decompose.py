"""How blocks share layers, and where what they hold lies."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rawnn.onchip.decompose import (
    BY_INPUTS,
    BY_OUTPUTS,
    EVERYWHERE,
    L2,
    Decomposition,
    kinds,
    pitch,
)
from rawnn.onchip.layout import ALL, SHARE, layout_of, summed_by_all
from tests.onchip.problems import HOPPER, VARIETY, problem


@pytest.mark.parametrize(("types", "wanted"), [
    ("FFF", (EVERYWHERE, EVERYWHERE)), ("FSF", (BY_OUTPUTS, BY_INPUTS)),
    ("FGF", (BY_OUTPUTS, EVERYWHERE)), ("SFS", (BY_INPUTS, BY_OUTPUTS)), ("FSS", None),
    ("SGF", None),
])
def test_the_types_of_boundaries_say_who_does_what(
        types: str, wanted: tuple[str, ...] | None) -> None:
    assert kinds(types) == wanted


@pytest.mark.parametrize("features", [1, 7, 64, 100, 513])
def test_rows_of_fragments_lie_in_all_banks(features: int) -> None:
    step = pitch(features)
    assert step >= features
    assert len({(row * step + column) % 32 for row in range(4) for column in range(8)}) == 32


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_slices_cover_a_boundary_and_start_at_whole_chunks(ranks: int) -> None:
    p = problem((41, 30, 10))
    d = Decomposition(p, ranks, 1, 512, "SFF")
    assert all(size * ranks >= n for size, n in zip(d.slices, p.layers, strict=True))
    assert d.slices[0] * p.input_size % 16 == 0


def test_ins_and_outs_follow_the_kind() -> None:
    d = Decomposition(problem((40, 64, 17, 10)), 4, 1, 512, "FSFF")
    assert [(d.outs(i), d.ins(i)) for i in range(3)] == [(16, 40), (17, 16), (10, 17)]


@pytest.mark.parametrize("name", VARIETY)
@pytest.mark.parametrize(("ranks", "groups", "types"), [(1, 1, "F"), (4, 1, "S"), (4, 3, "S")])
def test_nothing_overlaps_in_shared_memory(name: str, ranks: int, groups: int,
                                           types: str) -> None:
    p = problem(**VARIETY[name])
    chosen = "F" * (p.depth + 1) if types == "F" or p.reconstruct else \
        ("FS" * p.depth)[: p.depth] + "F"
    if kinds(chosen) is None or (ranks > 1 and chosen[-2:] == "SS"):
        pytest.skip("types that do not go together")
    found = layout_of(Decomposition(p, ranks, groups, 256, chosen), HOPPER.shared)
    starts = sorted(found.places.values())
    assert all(start % 4 == 0 for start in starts)
    assert starts[-1] * 4 <= found.dynamic_bytes
    for layer, part in enumerate(found.layers):
        assert part.rows >= found.decomposition.ins(layer)
        assert part.pitch >= found.decomposition.outs(layer)
        assert part.bias >= part.weights + part.rows * part.pitch
    assert all(b.base + b.all_tiles == a.base for a, b in pairwise(found.layers))
    assert (found.sync == "") == (groups == 1)


def test_many_gradients_are_shared_and_few_summed_by_all() -> None:
    small = Decomposition(problem((40, 16, 10)), 1, 2, 256, "FFF")
    large = Decomposition(problem((400, 160, 10)), 1, 2, 256, "FFF")
    assert [layout_of(d, HOPPER.shared).sync for d in (small, large)] == [ALL, SHARE]


def test_state_that_finds_no_room_goes_to_a_workspace() -> None:
    p = problem(**VARIETY["Adam in an order"])
    d = Decomposition(p, 1, 1, 256, "F" * (p.depth + 1))
    near, far = layout_of(d, HOPPER.shared), layout_of(d, 30 << 10)
    assert near.far_tiles == 0
    assert far.far_tiles == near.tiles
    assert "far" in far.workspaces(9)
    assert far.nbytes < near.nbytes


def test_clusters_share_sums_where_each_would_take_in_much() -> None:
    """More bytes, more clusters and more state all speak for shares."""
    assert summed_by_all(2, 40_000, 0)
    assert not summed_by_all(2, 40_000, 2)
    assert not summed_by_all(2, 80_000, 0)
    assert summed_by_all(16, 3_000, 0)
    assert not summed_by_all(16, 6_000, 0)


def test_a_warp_of_its_own_fetches_where_it_has_time_and_room() -> None:
    """Not where blocks exchange through the L2 cache or a loss is scaled, nor where state would
    lose its place, nor where blocks of a cluster tell each other nothing in a step."""
    p = problem()
    assert Decomposition(p, 2, 5, 512, "FSFF").fetches_apart
    assert not Decomposition(p, 2, 1, 256, "FSFF", exchange=L2).fetches_apart
    assert not Decomposition(problem(numbers="fp16"), 2, 1, 256, "FSFF").fetches_apart
    assert not layout_of(Decomposition(p, 2, 1, 256, "FFFF"), HOPPER.shared).apart
    p = problem(**VARIETY["Adam in an order"])
    d = Decomposition(p, 2, 1, 256, "FSFF")
    found = layout_of(d, HOPPER.shared)
    assert (found.apart, found.threads) == (True, 288)
    full = layout_of(d, found.nbytes - 16)
    assert (full.apart, full.threads, full.far_tiles) == (False, 256, 0)


def test_a_warp_that_makes_a_rule_of_the_steps_number_fetches_for_several_layers() -> None:
    """With one layer, what it does by itself would be the step."""
    for name, wanted in (("softmax, SGD", True), ("Adam in an order", False)):
        one = problem((40, 10), **VARIETY[name])
        assert one.timed is not wanted
        assert Decomposition(one, 4, 1, 256, "FS").fetches_apart is wanted
        assert Decomposition(problem(**VARIETY[name]), 4, 1, 256, "FSFF").fetches_apart
