"""The schedule of a step: its barriers, receive buffers, stamps and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from rawnn.persistent import cost
from rawnn.persistent.buffers import LINE, dsmem_floats, group_floats, l2_slots
from rawnn.persistent.layout import layout_of
from rawnn.persistent.phases.exchange import ALL_GATHER, REDUCE_SCATTER, Exchange
from rawnn.persistent.phases.gemm import GRADIENT, Gemm
from rawnn.persistent.phases.input import ConvertInput, Prefetch, WaitForInput
from rawnn.persistent.phases.learning_rate import LoadRate
from rawnn.persistent.phases.overflow import OVERFLOW
from rawnn.persistent.phases.phase import Barrier, Phase
from rawnn.persistent.schedule import (
    Schedule,
    aliases_of,
    build,
    has_clean_padding,
    with_barriers,
)
from rawnn.persistent.sharding import L2, Sharding
from rawnn.persistent.stamps import stamps
from tests.persistent.hazards import hazards
from tests.persistent.problems import HOPPER, problem
from tests.persistent.sampling import sampled

SEEDS = range(120)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_stand_where_one_phase_needs_what_another_wrote(seed: int, compact: bool) -> None:
    schedule = build(sampled(seed), compact=compact)
    assert hazards(schedule) == []
    missing = [without for without in leaving_barriers_out(schedule) if not hazards(without)]
    # Behind the step of micro-batches there is one, though converted inputs have one as well.
    assert len(missing) <= (schedule.sharding.micro_batches > 1 and
                            schedule.sharding.problem.converted)


@dataclass(frozen=True)
class Whiten(Phase):
    """A kind of phase that the schedule does not know."""

    def reads(self, d: Sharding) -> set[str]:
        return {"x"}

    def writes(self, d: Sharding) -> set[str]:
        return {"x"}


def test_a_new_kind_of_phase_gets_its_barriers() -> None:
    d = sampled(0)
    gemm = next(phase for phase in build(d).micro_batch if isinstance(phase, Gemm))
    listed = with_barriers(d, [ConvertInput("input"), Whiten("whiten"), LoadRate("rate"), gemm])
    assert listed == [ConvertInput("input"), Barrier("input"), Whiten("whiten"), Barrier("whiten"),
                      LoadRate("rate"), gemm]
    assert with_barriers(d, [LoadRate("rate"), gemm]) == [LoadRate("rate"), gemm]


def leaving_barriers_out(schedule: Schedule) -> Iterator[Schedule]:
    """The schedule without one of its barriers."""
    for name in ("micro_batch", "step"):
        phases = getattr(schedule, name)
        for i, phase in enumerate(phases):
            if isinstance(phase, Barrier):
                fewer: Any = {name: phases[:i] + phases[i + 1:]}
                yield replace(schedule, **fewer)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_sent_is_received_once_and_later(seed: int) -> None:
    """Each exchange has one sender ahead of it, and none is announced while another, which it
    follows, is still to be waited for."""
    schedule = build(sampled(seed))
    under_way: list[Exchange] = []
    received = []
    for phase in schedule.micro_batch:
        if isinstance(phase, Exchange):
            assert under_way == [phase]
            received.append(under_way.pop())
        end = getattr(phase, "epilogue", None)
        sent = end.send if end else getattr(phase, "send", None)
        under_way += [sent] if sent else []
    assert not under_way
    assert tuple(received) == schedule.exchanges
    assert len(set(received)) == len(received)
    assert schedule.sharding.has_exchanges == any(each.name != OVERFLOW for each in received)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_layer_has_its_gemms_and_every_micro_batch_its_input(seed: int) -> None:
    schedule = build(sampled(seed))
    p = schedule.sharding.problem
    gemms = [phase for phase in schedule.micro_batch if isinstance(phase, Gemm)]
    names = [f"forward {n}" for n in range(1, p.depth + 1)]
    names += [f"gradient {n}" for n in range(1, p.depth + 1)]
    names += [f"backward {n}" for n in range(2, p.depth + 1)]
    assert sorted(gemm.name for gemm in gemms) == sorted(names)
    both = (*schedule.micro_batch, *schedule.step)
    for kind in (Prefetch, WaitForInput):
        assert sum(isinstance(phase, kind) for phase in both) == 1
    assert isinstance(both[-1], (WaitForInput, Barrier))


@pytest.mark.parametrize("seed", SEEDS)
def test_an_exchange_brings_all_features_or_all_parts_of_a_shard(seed: int) -> None:
    d = sampled(seed)
    for each in build(d).exchanges:
        n = d.problem.layers[each.boundary]
        if each.kind == REDUCE_SCATTER:
            assert each.rows * d.tp_size >= n * d.tp_size  # parts of a shard of n / tp_size or more
            assert each.rows % d.tp_size == 0
            assert each.parts == d.tp_size
        elif each.kind == ALL_GATHER:
            assert each.rows in (n, 4 * d.tp_size, 0)
        else:
            assert each.rows == n * d.tp_size


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_via_l2_do_not_overlap_and_are_not_reused_too_soon(seed: int) -> None:
    d = sampled(seed)
    schedule = build(d)
    slots = l2_slots(schedule)
    if not d.via_l2:
        assert slots == ()
        floats = [each.rows * d.sent + each.flags for each in schedule.exchanges]
        assert dsmem_floats(schedule) >= max(floats, default=0)
        return
    needs: dict[int, int] = {}
    for slot, each in zip(slots, schedule.exchanges, strict=True):
        own = d.tp_size if each.kind == REDUCE_SCATTER else 1
        floats = own * each.rows * d.sent + 4 * each.flags
        assert needs.setdefault(slot.offset, floats) == floats
    assert all(offset % LINE == 0 or d.sent % LINE for offset in needs)
    ends = [*sorted(needs), group_floats(schedule)]
    assert all(start + needs[start] <= end for start, end in pairwise(ends))
    if len(slots) > 1:  # one alone alternates between two buffers
        around = [*slots, slots[0]]
        assert all(a.offset != b.offset for a, b in pairwise(around))


@pytest.mark.parametrize("seed", SEEDS)
def test_costs_and_stamps_have_the_same_lines(seed: int) -> None:
    d = sampled(seed)
    schedule = build(d)
    priced = {line.name for _, line in cost.table(schedule)} - {"exchanges begin"}
    stamped = {stamp.phase for stamp in stamps(schedule)}
    assert {name for name in priced if not name.startswith("rounding ")} == stamped
    assert math.isclose(cost.cycles(d), sum(line.cycles for _, line in cost.table(schedule))
                        + cost.launch_cycles(d) / cost.LAUNCHED)


@pytest.mark.parametrize("seed", SEEDS)
def test_tilings_of_the_layout_are_those_of_the_schedule(seed: int) -> None:
    """But for weight gradients, whose tiling depends on where optimizer state lies."""
    d = sampled(seed)
    found = layout_of(d, HOPPER.shared)
    for phase in found.schedule.micro_batch:
        if isinstance(phase, Gemm) and phase.kind != GRADIENT:
            layer = found.layers[phase.layer]
            assert phase.tiling(d) == (
                layer.forward if phase.kind == "forward" else layer.backward)


@pytest.mark.parametrize(("inputs", "split"), [(64, 1), (600, 4), (1500, 8)])
def test_a_reduction_waits_for_a_gemm_whose_parts_lie_in_the_same_scratch_memory(
        inputs: int, split: int) -> None:
    d = Sharding(problem((inputs, 10), 8), 9, 1, 256, "SF", transport=L2)
    schedule = build(d)
    gemm, exchange = schedule.gemms[0], schedule.exchanges[0]
    assert (gemm.tiling(d).split, exchange.teams(d)) == (split, 2)
    assert exchange.scratch_busy == ("scratch" in gemm.writes(d)) == (split > 1)


def test_buffers_share_memory_only_where_padding_stays_zero() -> None:
    """Gradients are padded to whole eights of rows, activations to whole sixteens."""
    for gradients in range(1, 60):
        for activations in range(1, 60):
            padding = {*range(gradients, -(-gradients // 8) * 8)}
            of_activations = {*range(activations, -(-activations // 16) * 16)}
            is_clean = not padding & {*range(activations)} \
                and not of_activations & {*range(gradients)}
            assert has_clean_padding(gradients, activations) == is_clean
    resident = replace(
        sampled(0), problem=problem(layers=(5, 7, 54, 16, 48, 10)), tp_size=1, dp_size=1,
        boundaries="FFFFFF", resident=1)
    assert aliases_of(resident) == {"z2": "a3", "z3": "a4"}
