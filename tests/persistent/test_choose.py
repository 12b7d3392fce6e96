"""Which sharding is taken, and what is expected of it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rawnn.common.target import HOST, known
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.persistent import choose as choosing
from rawnn.persistent import cost
from rawnn.persistent.chip import chip_of
from rawnn.persistent.choose import (
    COMPACT_MARGIN,
    MOST_COUNTS,
    MOST_WARPS,
    Choice,
    _group_counts,
    _groups,
    _layer,
    _layers,
    candidates,
    choose,
)
from rawnn.persistent.layout import layout_of, least_bytes
from rawnn.persistent.phases.exchange import Exchange
from rawnn.persistent.phases.gemm import Gemm
from rawnn.persistent.problem import Unsupported, problem_of
from rawnn.persistent.report import describe
from rawnn.persistent.sharding import (
    ALL_GATHERED,
    DSMEM,
    L2,
    REPLICATED,
    SHARDED,
    Sharding,
    layer_kinds,
    output_boundaries,
)
from rawnn.persistent.spelling import check_sharding, sharding_of
from tests.engine import step_plan
from tests.persistent.problems import AMPERE, HOPPER, VARIETY, problem
from tests.persistent.sampling import sampled


@pytest.mark.parametrize("name", VARIETY)
@pytest.mark.parametrize("chip", [HOPPER, AMPERE], ids=["Hopper", "Ampere"])
def test_what_is_chosen_fits_the_chip(name: str, chip: object) -> None:
    found = choose(problem(**VARIETY[name]), chip)  # type: ignore[arg-type]
    d = found.sharding
    assert found.layout.nbytes <= chip.shared  # type: ignore[attr-defined]
    assert d.dp_size <= chip.most_groups(d.tp_size, d.transport)  # type: ignore[attr-defined]
    assert d.dp_size <= d.problem.batch
    assert 256 <= d.threads <= 512
    assert 0 < found.us < 1000


def test_without_clusters_blocks_share_layers_through_l2() -> None:
    small = choose(problem((34, 27, 26), batch=25), AMPERE).sharding
    large = choose(problem((512, 512, 10), batch=8), AMPERE).sharding
    assert small.tp_size == 1
    assert large.tp_size > 1
    assert large.transport == L2
    assert large.cluster_size == 1


def test_weights_that_fit_no_cluster_are_shared_by_more_blocks() -> None:
    p = problem((200, 1024, 1024, 10), batch=16, form={"inputs": "float32", "scale": 1.0})
    found = choose(p, HOPPER)
    d = found.sharding
    assert d.transport == L2
    assert d.tp_size > 16
    assert d.blocks <= HOPPER.blocks
    assert "through the L2 cache" in describe(found)
    with pytest.raises(Unsupported, match="does not fit the chip"):
        choose(p, replace(HOPPER, clusters=((1, 16), (16, 16))))


def test_the_choice_is_the_cheapest_of_those_asked_for() -> None:
    p = problem((64, 120, 10))
    best = choose(p, HOPPER)
    for ranks, groups in ((1, 1), (4, 1), (8, 2), (16, 1)):
        assert choose(p, HOPPER, ranks, groups).us >= best.us


@pytest.mark.parametrize("most", [1, 5, 33, 132])
@pytest.mark.parametrize("batch", [1, 7, 8, 25, 100, 512, 4096])
def test_of_groups_with_as_large_shares_the_fewest_are_tried(batch: int, most: int) -> None:
    """Of which MOST_COUNTS are drawn evenly, both ends among them."""
    shares: dict[int, list[int]] = {}
    for groups in range(1, min(batch, most) + 1):
        shares.setdefault(math.ceil(math.ceil(batch / groups) / 8), []).append(groups)
    fewest = sorted(map(min, shares.values()))
    found = _group_counts(batch, most)
    assert set(found) <= set(fewest)
    assert len(found) == min(len(fewest), MOST_COUNTS)
    assert (found[0], found[-1]) == (1, fewest[-1])


def test_wide_layers_are_shared_and_large_batches_too() -> None:
    assert choose(problem((512, 512, 10), batch=8), HOPPER).sharding.tp_size > 1
    assert choose(problem((16, 32, 10), batch=4096), HOPPER).sharding.dp_size > 1


@pytest.mark.parametrize("chip", [HOPPER, AMPERE], ids=["Hopper", "Ampere"])
def test_the_softmax_of_many_outputs_is_shared_and_that_of_few_is_not(chip: object) -> None:
    many = choose(problem((400, 400, 900), batch=16), chip)  # type: ignore[arg-type]
    few = choose(problem((400, 400, 10), batch=16), chip)  # type: ignore[arg-type]
    assert many.sharding.boundaries[-1] == SHARDED
    assert few.sharding.boundaries[-1] == REPLICATED
    assert "exchange of softmax" in describe(many)
    assert "exchange of softmax" not in describe(few)


def test_a_batch_that_does_not_fit_is_taken_in_turns() -> None:
    p = problem((160, 32, 48, 32, 432, 48), batch=3520,
                form={"inputs": "float32", "scale": 1.0}, network={"loss": "bce"})
    found = choose(p, HOPPER)
    d = found.sharding
    assert d.micro_batches > 1
    assert d.dp_size > 1
    assert found.layout.nbytes <= HOPPER.shared
    assert cost.cycles(d) > cost.cycles(replace(d, micro_batches=1))
    assert f"in {d.micro_batches} micro-batches" in describe(found)
    with pytest.raises(Unsupported, match="does not fit the chip"):
        choose(replace(p, numbers="float16", growth=2000), HOPPER)


FLOATS = {"inputs": "float32", "scale": 1.0}


def test_buffers_share_memory_where_a_batch_then_needs_no_micro_batches() -> None:
    p = problem((96, 48, 848), batch=1888, network={"loss": "bce"}, form=FLOATS,
                optimizer=Optimizer("adam", 1e-3))
    found = choose(p, HOPPER)
    d, layout = found.sharding, found.layout
    assert d.micro_batches == 1
    assert layout.schedule.is_compact
    assert layout.nbytes <= HOPPER.shared
    # A second buffer of inputs and targets would not fit.
    targets = 4 * d.columns * layout.target_width
    inputs = 4 * d.columns * d.ins(0)
    assert layout.nbytes + targets + inputs > HOPPER.shared


def test_buffers_share_memory_only_where_that_is_expected_to_be_clearly_faster() -> None:
    p = problem((48, 80, 64, 80, 160, 48), batch=1232, network={"loss": "bce"}, form=FLOATS)
    found = choose(p, HOPPER)
    assert not found.layout.schedule.is_compact
    others = [(layout_of(d, HOPPER.shared), cost.microseconds(d))
              for d in candidates(p, HOPPER, 0, 0) if cost.microseconds(d) < found.us]
    compact = [us for layout, us in others if layout.nbytes <= HOPPER.shared]
    assert compact
    assert min(compact) * COMPACT_MARGIN >= found.us


def test_more_sizes_of_groups_are_tried_where_shared_memory_bounds_a_step(
        monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem((803, 400, 98, 93, 16, 133, 2), batch=225, numbers="tf32", form=FLOATS,
                optimizer=Optimizer("adam", 1e-3))
    found = choose(p, HOPPER)
    usual = {size for _, size in _groups(HOPPER, 0)}
    assert found.sharding.tp_size not in usual
    assert found.sharding.via_l2
    assert found.sharding.blocks <= HOPPER.blocks
    monkeypatch.setattr(choosing, "_more_groups", lambda chip: [])
    fewer = choose.__wrapped__(p, HOPPER)
    assert fewer.sharding.tp_size in usual
    assert found.us * COMPACT_MARGIN < fewer.us


def test_more_sizes_of_groups_are_not_tried_where_all_shardings_fit(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_more_groups", lambda chip: pytest.fail("no need"))
    assert not choose.__wrapped__(problem((64, 48, 10)), HOPPER).layout.schedule.is_compact


def test_more_work_is_expected_to_take_longer() -> None:
    d = choose(problem((64, 64, 10)), HOPPER, 1, 1).sharding
    wider = choose(problem((64, 128, 10)), HOPPER, 1, 1).sharding
    assert cost.cycles(d) < cost.cycles(wider)
    assert cost.cycles(d) == sum(phase.cycles for phase in cost.phases(d))


@pytest.mark.parametrize("variety", ["softmax, SGD", "an autoencoder", "float16, Adam, tanh",
                                     "mean squares, gelu, no bias"])
def test_what_a_layer_takes_follows_from_what_lies_next_to_it(variety: str) -> None:
    whole = problem(**{**VARIETY[variety], "layers": (33, 40, 24, 24, 24, 24, 24, 100, 33)})
    depth = whole.depth
    for ranks, groups, exchange in ((4, 1, DSMEM), (8, 3, DSMEM), (12, 2, L2)):
        layers = _layers(whole, HOPPER.costs, ranks, groups, exchange)
        for layer in range(depth):
            for below, above in product(REPLICATED + SHARDED + ALL_GATHERED, repeat=2):
                last = output_boundaries(whole) if layer == depth - 1 else \
                    REPLICATED + SHARDED + ALL_GATHERED
                if layer_kinds(below + above) is not None and above in last and (
                        layer or below != ALL_GATHERED):
                    d = Sharding(whole, ranks, groups, MOST_WARPS * 32,
                                 REPLICATED * layer + below + above
                                 + REPLICATED * (depth - layer - 1), transport=exchange)
                    assert layers(layer, below, above) == _layer(d, layer, HOPPER.costs)


@pytest.mark.parametrize("variety", VARIETY)
def test_no_layout_takes_less_than_is_said_to_be_the_least(variety: str) -> None:
    p = problem(**VARIETY[variety])
    for chip in (HOPPER, AMPERE):
        for d in candidates(p, chip, 0, 0):
            assert least_bytes(p, d.tp_size, d.columns) <= layout_of(d, chip.shared).nbytes


def test_deep_networks_that_cannot_fit_are_refused_and_others_are_not() -> None:
    assert choose(problem((16,) * 66 + (10,), batch=16), HOPPER).sharding.problem.depth == 66
    with pytest.raises(Unsupported, match=r"would need 5\d\d KiB of shared memory or more"):
        choose(problem((16,) * 400 + (10,)), HOPPER)


def test_blocks_that_do_not_run_at_once_or_have_no_example_are_refused() -> None:
    for ranks, groups, batch, most in ((4, 2, 1, "31 clusters"), (4, 40, 400, "31 clusters"),
                                       (3, 50, 400, "44 groups")):
        with pytest.raises(Unsupported, match=f"cannot be shared by {ranks} x {groups} blocks: "
                                              f"{most} of {ranks} run at once here, for a batch of "
                                              f"{batch}: write persistent alone"):
            choose(problem(batch=batch), HOPPER, ranks, groups)


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    with pytest.raises(Unsupported, match=r"would need \d+ KiB of shared memory or more, and has "
                                          r"227 KiB on this GPU\): leave persistent out"):
        choose(problem((2048, 2048, 2048)), HOPPER)


@pytest.mark.parametrize(("numbers", "reason"), [
    ("fp16=acc16", "sums products in float16: use fp16 in place of fp16=acc16"),
    ("fp8", "stores 8-bit numbers: use bf16 or fp16 in place of fp8"),
])
def test_numbers_that_the_kernel_has_not_are_refused(numbers: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        problem(numbers=numbers)


@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (4, 1), (4, 2)])
def test_a_loss_scale_costs_its_decision(ranks: int, groups: int) -> None:
    d = choose(problem((64, 120, 10), numbers="fp16"), HOPPER, ranks, groups).sharding
    plain = replace(d, problem=replace(d.problem, numbers="bfloat16", growth=0))
    assert cost.cycles(d) > cost.cycles(plain)
    assert "overflow" in [phase.name for phase in cost.phases(d)]


def test_stochastic_rounding_costs_its_draws() -> None:
    d = choose(problem((64, 120, 10), numbers="bf16,sr"), HOPPER).sharding
    assert cost.cycles(d) > cost.cycles(replace(d, problem=replace(d.problem, streams=())))


def test_batches_from_the_host_are_refused() -> None:
    with pytest.raises(Unsupported, match="takes its batches from the host: add preload"):
        problem_of(step_plan(Network((20, 10)), 8, 64))


def test_a_choice_is_told_in_words() -> None:
    said = describe(choose(problem((784, 128, 10), batch=128), HOPPER))
    assert "layer 1: 784 -> 128" in said
    assert "shared memory:" in said
    assert "expected:" in said


def test_the_phases_of_a_step_are_printed_with_their_cycles() -> None:
    choice = choose(problem((784, 128, 10), batch=128), HOPPER)
    head, _, said = describe(choice).partition("\nexpected: ")
    names = [line[2:26].strip() for line in said.splitlines()[1:]]
    lines = [line.name for _, line in cost.table(choice.layout.schedule)]
    assert names == [*lines, "launch"]  # in the order of the program
    cycles = [float(line[26:36].replace(",", "")) for line in said.splitlines()[1:]]
    total = float(said.split(" us a step, ")[1].split(" cycles")[0].replace(",", ""))
    assert sum(cycles) == pytest.approx(total, abs=len(cycles))
    assert "layer 1: 784 -> 128" in head


def test_a_chip_is_what_the_target_says() -> None:
    assert chip_of(known((9, 0))).sizes == (1, 2, 4, 8, 16)
    assert chip_of(known((8, 0))).sizes == (1,)
    assert chip_of(HOST).sizes == ()


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_launch_is_shared_by_its_steps(ranks: int) -> None:
    """n steps take n times what a step takes by itself, and one launch: of 20,000 cycles, and of
    its weights and biases at 8 bytes a cycle, at 1,760 cycles a microsecond."""
    choice = choose(problem((64, 120, 10)), HOPPER, ranks, 1)
    together = [n * choice.launched(n).us for n in (1, 2, 3, 64, 1000)]
    step = together[1] - together[0]
    launch = together[0] - step
    assert together == pytest.approx([n * step + launch for n in (1, 2, 3, 64, 1000)])
    assert together[3] == pytest.approx(64 * choice.us)
    if ranks == 1:
        assert launch == pytest.approx((20_000 + 4 * (64 * 120 + 120 * 10) / 8) / 1760)
    assert launch > 20_000 / 1760
    assert step > 0
    assert choice.launched(1).us > choice.launched(8).us > choice.us > choice.launched(1000).us


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_description_has_the_bytes_and_sizes_of_the_layout(seed: int) -> None:
    """Of what lies in shared memory, what is sent, and what a GEMM sums over."""
    choice = Choice(layout_of(sampled(seed), HOPPER.shared), 1.0, HOPPER.costs)
    layout, d = choice.layout, choice.sharding
    head, _, said = describe(choice).partition("\nexpected: ")
    lines = head.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("shared memory: "))
    assert lines[begin] == f"shared memory: {layout.nbytes:,} bytes a block"
    inside, outside = {}, {}
    for line in lines[begin + 1:]:
        name, size, where = re.fullmatch("  (.{24,}?) +([0-9,]+)( .global memory.)?", line).groups()
        (outside if where else inside)[name.rstrip()] = int(size.replace(",", ""))
    assert sum(inside.values()) == layout.dynamic_bytes - 4 * min(layout.places.values(), default=0)
    assert outside == {name: 4 * words for name, words in layout.workspaces(1).items()
                       if name != "tally"}
    told = [re.fullmatch("  .{24,}? +-?[0-9,]+(?:  (.*))?", line)[1] or ""
            for line in said.splitlines()[1:]]
    for phase in (*layout.schedule.micro_batch, *layout.schedule.step):
        if isinstance(phase, Exchange) and phase.rows:
            floats = np.zeros((phase.rows, d.sent), np.float32)
            assert any(f"{phase.kind}, {floats.nbytes:,} bytes a block" in each for each in told)
        if isinstance(phase, Gemm):
            assert any(each.startswith(f"{phase.m} x {phase.n} over {phase.k}") for each in told)


MOST_THREADS = 32 * MOST_WARPS
LIMITS: dict[str, tuple[list[str], list[str]]] = {
    "threads": (["1x1:32:FFFF", f"1x1:{MOST_THREADS}:FFFF", "2x1:96:FGSF"],
                ["1x1:48:FFFF", "1x1:31:FFFF", f"1x1:{MOST_THREADS + 32}:FFFF"]),
    "groups": (["1x32:64:FFFF", "4x31:64:FSFF", "16x7:64:FSFF"],
               ["1x33:64:FFFF", "4x32:64:FSFF", "16x8:64:FSFF"]),
    "blocks of a multiprocessor": (
        ["1x1:512x4:FFFF", "1x1:256x8:FFFF", "1x1:512x1:FFFF", "4x1:256x1:FSFF"],
        ["1x1:512x5:FFFF", "1x1:288x8:FFFF", "4x1:256x2:FSFF", "1x2:256x1:FFFF",
         "4x1@l2:256x1:FSFF"]),
    "micro-batches": (["1x1:64:FFFF:2", "4x2:64:FSFF:4", "4x2@l2:64:FSFF:4"],
                      ["4x1@l2:64:FSFF:2"]),
    "boundaries": (["4x1:64:FSFF", "4x1:64:FGSF", "4x1:64:SFFF", "4x1:64:FFFG"],
                   ["4x1:64:GSFF", "4x1:64:FSF", "1x1:64:FSFF", "4x1:64:FSSF"]),
}
"""Shardings at the limits of a GPU and of its blocks, and beyond them by as little as can be."""


@pytest.mark.parametrize("what", LIMITS)
def test_shardings_are_refused_from_their_limits_on(what: str) -> None:
    own = problem((40, 64, 64, 10), 32)
    assert (HOPPER.threads, HOPPER.most_groups(4), HOPPER.most_groups(16)) == (2048, 31, 7)
    allowed, refused = LIMITS[what]
    for text in allowed:
        check_sharding(sharding_of(own, text), HOPPER)
    for text in refused:
        with pytest.raises(Unsupported):
            check_sharding(sharding_of(own, text), HOPPER)
    if what == "micro-batches":
        scaled = problem((40, 64, 64, 10), 32, "fp16")
        check_sharding(sharding_of(scaled, "1x1:64:FFFF"), HOPPER)
        with pytest.raises(Unsupported, match="without a loss scale"):
            check_sharding(sharding_of(scaled, "1x1:64:FFFF:2"), HOPPER)
