"""How blocks share layers, and where what they hold lies."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, product

import pytest

from rawnn.model.optimizers import OPTIMIZER_SPECS, Optimizer
from rawnn.persistent.choose import priced
from rawnn.persistent.layout import RULE_BYTES, Layout, layout_of
from rawnn.persistent.phases.gradient_all_reduce import ALL, SHARE
from rawnn.persistent.phases.learning_rate import rules_at_once
from rawnn.persistent.problem import Problem
from rawnn.persistent.schedule import is_summed_by_all
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    COLUMN_PARALLEL,
    DSMEM,
    L2,
    REPLICATED,
    REPLICATED_LAYER,
    ROW_PARALLEL,
    SHARDED,
    TILE,
    Sharding,
    layer_kinds,
    output_boundaries,
    pitch,
)
from rawnn.persistent.spelling import exactly, parse_sharding, sharding_of
from rawnn.persistent.tiles import softmax_floats, softmax_of
from tests.persistent.problems import HOPPER, VARIETY, problem
from tests.persistent.sampling import sampled
from tests.slices import SLICE


@pytest.mark.parametrize(("types", "wanted"), [
    ("FFF", (REPLICATED_LAYER, REPLICATED_LAYER)), ("FSF", (COLUMN_PARALLEL, ROW_PARALLEL)),
    ("FGF", (COLUMN_PARALLEL, REPLICATED_LAYER)), ("SFS", (ROW_PARALLEL, COLUMN_PARALLEL)),
    ("FSE", (COLUMN_PARALLEL, ROW_PARALLEL)), ("FSS", None), ("SGF", None), ("FE", None),
    ("GE", None), ("EF", None), ("ES", None), ("SEF", None),
])
def test_the_types_of_boundaries_say_who_does_what(
        types: str, wanted: tuple[str, ...] | None) -> None:
    assert layer_kinds(types) == wanted


@pytest.mark.parametrize("features", [1, 7, 64, 100, 513])
def test_rows_of_fragments_lie_in_all_banks(features: int) -> None:
    step = pitch(features)
    assert step >= features
    assert len({(row * step + column) % 32 for row in range(4) for column in range(8)}) == 32


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_slices_cover_a_boundary_and_start_at_whole_chunks(ranks: int) -> None:
    p = problem((41, 30, 10))
    d = Sharding(p, ranks, 1, 512, "SFF")
    assert all(size * ranks >= n for size, n in zip(d.shards, p.layers, strict=True))
    assert d.shards[0] * p.input_size % 16 == 0


def test_ins_and_outs_follow_the_kind() -> None:
    d = Sharding(problem((40, 64, 17, 10)), 4, 1, 512, "FSFF")
    assert [(d.outs(i), d.ins(i)) for i in range(3)] == [(16, 40), (17, 16), (10, 17)]


def needed(found: Layout) -> dict[str, int]:
    """Floats that each place has to have, from what lies there: counted by the network, the batch
    and the pitches alone."""
    d, p = found.sharding, found.sharding.problem
    size, halves = 2 if p.halved else 4, 2 if p.rounded else 4
    rows = p.outputs if d.boundaries[-1] == ALL_GATHERED else d.outs(p.depth - 1)
    # Groups fetch behind the last use: one buffer does where there is little memory.
    at_once = found.schedule.input_buffers
    needs = {
        "x": (1 if p.converted else at_once) * d.columns * found.input_pitch * halves // 4,
        "raw": at_once * d.columns * found.raw_pitch * p.input_size // 4,
        "mean": d.ins(0), "inverse_std": d.ins(0), "logits": rows * d.pitch,
        "y": d.columns if p.labelled else at_once * d.columns * found.target_pitch,
        "order": 2 * d.columns, "rules": rules_at_once(d.problem) * RULE_BYTES // 4, "barriers": 8,
        "places": 2 * found.tiles, "tallies": 2, "scaling": 4, "copies": found.copied // 2,
        "exchange": 2 * max((e.rows for e in found.schedule.exchanges), default=0) * d.sent,
        "state": -(-found.tiles // (1 if found.sync == ALL else d.dp_size)) * len(p.states) * TILE}
    scratch = [0]
    for layer, part in enumerate(found.layers):
        needs[f"w{layer}"] = part.rows * part.pitch
        needs[f"b{layer}"] = d.outs(layer) if p.bias else 0
        needs[f"m{layer}"] = part.all_tiles * len(p.states) * TILE
        needs[f"a{layer}"] = d.ins(layer) * d.pitch * size // 4
        needs[f"z{layer + 1}"] = d.outs(layer) * d.pitch * size // 4
        for tiling, of in ((part.forward, d.outs(layer)), (part.backward, d.ins(layer))):
            if tiling is not None and tiling.split > 1:
                scratch.append(tiling.split * of * d.pitch)
    return {**needs, "scratch": max(scratch)}


def cut(p: Problem, draw: random.Random) -> str:
    """Types of the boundaries that go together, any of those that there are."""
    middle = [REPLICATED + SHARDED + ALL_GATHERED] * (p.depth - 1)
    every = [t for t in map("".join, product(REPLICATED + SHARDED, *middle, output_boundaries(p)))
        if layer_kinds(t) is not None
        and (not p.reconstruct or (t[0] == SHARDED) == (t[-1] == SHARDED))]
    return draw.choice(every)


@pytest.mark.parametrize("name", VARIETY)
@pytest.mark.parametrize("turn", range(6))
def test_nothing_overlaps_in_shared_memory(name: str, turn: int) -> None:
    """What lies in a place ends where the next begins, or ahead of it."""
    p = problem(**VARIETY[name])
    draw = random.Random(f"{name}, {turn}, {SLICE}")
    ranks, groups = ((1, 1), (1, 3), (4, 1), (8, 2), (3, 2), (33, 4))[turn]
    types = REPLICATED * (p.depth + 1) if ranks == 1 else cut(p, draw)
    d = Sharding(p, ranks, groups, 256, types, transport=L2 if ranks in (3, 33) else DSMEM)
    for room in (HOPPER.shared, 30 << 10):
        found = layout_of(d, room)
        needs = needed(found)
        assert set(found.places) <= set(needs)
        for name, of in found.schedule.aliases.items():
            assert found.places[name] == found.places[of]
            assert needs[name] <= needs[of]
        places = sorted(((there, start) for there, start in found.places.items()
                         if there not in found.schedule.aliases), key=lambda item: item[1])
        assert all(start % 4 == 0 for _, start in places)
        for (here, start), (there, behind) in pairwise(
                [*places, ("the end", found.dynamic_bytes // 4)]):
            assert start + needs[here] <= behind, f"{here} reaches into {there}"
        for layer, part in enumerate(found.layers):
            assert part.rows >= d.ins(layer)
            assert part.pitch >= d.outs(layer)
        assert all(b.base + b.all_tiles == a.base for a, b in pairwise(found.layers))
        assert (found.sync == "") == (groups == 1)


def test_many_gradients_are_shared_and_few_summed_by_all() -> None:
    small = Sharding(problem((40, 16, 10)), 1, 2, 256, "FFF")
    large = Sharding(problem((400, 160, 10)), 1, 2, 256, "FFF")
    assert [layout_of(d, HOPPER.shared).sync for d in (small, large)] == [ALL, SHARE]


def test_state_that_finds_no_room_goes_to_a_workspace() -> None:
    p = problem(**VARIETY["Adam in an order"])
    d = Sharding(p, 1, 1, 256, "F" * (p.depth + 1))
    near, far = layout_of(d, HOPPER.shared), layout_of(d, 30 << 10)
    assert near.global_tiles == 0
    assert priced(far, HOPPER).us - priced(near, HOPPER).us == pytest.approx(
        far.tiles * HOPPER.costs.global_state / HOPPER.costs.clock)
    assert far.global_tiles == near.tiles
    assert "optimizer_state" in far.workspaces(9)
    assert far.nbytes < near.nbytes


@pytest.mark.parametrize("seed", range(60))
def test_a_softmax_has_memory_and_cycles_for_what_it_exchanges(seed: int) -> None:
    """Each warp has four numbers of an example. Via L2 a block also copies those of all blocks. A
    softmax that every block has in full costs what it costs one block."""
    d = sampled(seed)
    if not d.problem.labelled:
        assert softmax_floats(d) == 0
        return
    warps = softmax_of(d).warps
    own = 4 * warps * d.columns if d.shards_softmax or warps > 1 else 0
    copied = 4 * d.tp_size * d.sent if d.shards_softmax and d.via_l2 else 0
    assert softmax_floats(d) == own + copied
    if d.boundaries[-1] == REPLICATED:
        alone = replace(d, tp_size=1, boundaries=REPLICATED * len(d.boundaries), transport=DSMEM)
        assert softmax_of(d) == softmax_of(alone)


def test_clusters_share_sums_where_each_would_take_in_much() -> None:
    """More bytes, more clusters and more state all speak for shares."""
    assert is_summed_by_all(2, 40_000, 0)
    assert not is_summed_by_all(2, 40_000, 2)
    assert not is_summed_by_all(2, 80_000, 0)
    assert is_summed_by_all(16, 3_000, 0)
    # 7 * 4,000 / 53 cycles to load what others publish, and as much state again / 8 / 47 each.
    assert is_summed_by_all(8, 4_000, 2)
    assert is_summed_by_all(8, 7_000, 1)
    assert not is_summed_by_all(8, 7_000, 2)
    assert not is_summed_by_all(16, 6_000, 0)


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", OPTIMIZER_SPECS)
def test_weights_decay_where_the_optimizer_says_so(name: str, flag: bool, decay: float) -> None:
    settings = {key: flag for key, value in OPTIMIZER_SPECS[name].settings.items()
                if isinstance(value, bool)}
    if "momentum" in OPTIMIZER_SPECS[name].settings:
        settings["momentum"] = 0.9
    found = problem(optimizer=Optimizer(name, 0.01, {"decay": decay, **settings}))
    assert found.decays == (decay > 0)


@pytest.mark.parametrize("text", [
    "1x1:256:FFFF", "4x8:256:FSFG", "2x3@l2:384:SFGF:1", "2x2:256:FSFF:2", "1x1:256x1:FFFF",
    "1x1:128x3:FFFF:2", "4x1:256x1:FGSF:3"])
def test_the_sharding_of_a_text_has_all_that_it_names(text: str) -> None:
    found = exactly(problem((40, 26, 21, 10), 27), HOPPER, *parse_sharding(text) or ()).sharding
    assert found.text == text.removesuffix(":1")
    assert found == sharding_of(found.problem, text)
