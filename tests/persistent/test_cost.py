"""Each constant of the cost model adds to the phases that its description names, and to no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from rawnn.common.target import known
from rawnn.persistent import cost
from rawnn.persistent.cost import FITTED, Costs, costs_of, launch_cycles, microseconds, table
from rawnn.persistent.phases.epilogue import LOSS
from rawnn.persistent.phases.exchange import REDUCE_SCATTER, Exchange
from rawnn.persistent.phases.gemm import GRADIENT, Gemm
from rawnn.persistent.phases.gradient_all_reduce import GradientAllReduce
from rawnn.persistent.phases.input import ConvertInput, Prefetch, WaitForInput
from rawnn.persistent.phases.overflow import OVERFLOW, AgreeOnStep
from rawnn.persistent.phases.phase import BETWEEN, Phase
from rawnn.persistent.phases.softmax import STATISTICS, Softmax
from rawnn.persistent.schedule import build
from rawnn.persistent.sharding import REPLICATED, Sharding
from tests.persistent.sampling import sampled

Adds = Callable[[Sharding, Phase], bool]


def is_gradient(phase: Phase) -> bool:
    return isinstance(phase, Gemm) and phase.kind == GRADIENT


def of_exchange(adds: Callable[[Sharding, Exchange], bool]) -> Adds:
    return lambda d, phase: isinstance(phase, Exchange) and adds(d, phase)


def of_all_reduce(adds: Callable[[Sharding, GradientAllReduce], bool]) -> Adds:
    return lambda d, phase: isinstance(phase, GradientAllReduce) and adds(d, phase)


def exchanges_via_l2(d: Sharding) -> bool:
    return d.via_l2 and d.has_exchanges


ADDS: dict[str, Adds] = {
    "gemm": lambda d, phase: isinstance(phase, Gemm) and not is_gradient(phase),
    "gemm_begin": lambda d, phase: isinstance(phase, Gemm) and not is_gradient(phase),
    "gradient": lambda d, phase: is_gradient(phase) and d.dp_size == 1,
    "published": lambda d, phase: is_gradient(phase) and d.dp_size > 1,
    "update_state": lambda d, phase: is_gradient(phase) and d.dp_size == 1
    and bool(d.problem.states),
    "overlapped": lambda d, phase: isinstance(phase, Gemm) and is_gradient(phase)
    and phase.layer > 0 and not phase.conditional,
    "exchange": of_exchange(lambda d, e: not d.via_l2 and not e.second),
    "second_exchange": of_exchange(
        lambda d, e: not d.via_l2 and (e.second or e.name == STATISTICS)),
    "exchange_bytes": of_exchange(lambda d, e: not d.via_l2 and e.features > 0),
    "via_l2": of_exchange(lambda d, e: d.via_l2),
    "via_l2_block": of_exchange(lambda d, e: d.via_l2),
    "via_l2_sums": of_exchange(lambda d, e: d.via_l2 and e.kind == REDUCE_SCATTER and e.rows > 0),
    "via_l2_bytes": of_exchange(lambda d, e: d.via_l2 and e.kind != REDUCE_SCATTER and e.rows > 0),
    "via_l2_step": lambda d, phase: isinstance(phase, WaitForInput) and exchanges_via_l2(d),
    "softmax": lambda d, phase: isinstance(phase, Softmax) and not phase.statistics,
    "softmax_rows": lambda d, phase: isinstance(phase, Softmax) and not phase.statistics,
    "elementwise_round": lambda d, phase: isinstance(phase, Gemm | Exchange)
    and phase.epilogue.function == LOSS,
    "convert": lambda d, phase: isinstance(phase, ConvertInput),
    "convert_round": lambda d, phase: isinstance(phase, ConvertInput),
    "all_reduce": of_all_reduce(lambda d, a: not exchanges_via_l2(d)),
    "via_l2_all_reduce": of_all_reduce(lambda d, a: exchanges_via_l2(d)),
    "summed_bytes": of_all_reduce(lambda d, a: not a.sharded),
    "sharded_bytes": of_all_reduce(lambda d, a: a.sharded),
    "bf16_summed": of_all_reduce(lambda d, a: d.publishes_bf16 and not a.sharded),
    "bf16": of_all_reduce(lambda d, a: d.publishes_bf16 and a.sharded),
    "state_bytes": of_all_reduce(lambda d, a: bool(d.problem.states)),
    "step": lambda d, phase: isinstance(phase, WaitForInput),
    "hidden_step": lambda d, phase: isinstance(phase, WaitForInput) and d.dp_size > 1
    and d.micro_batches == 1,
    "rounding": lambda d, phase: is_gradient(phase) and bool(d.problem.streams),
    "overflow_check": lambda d, phase: isinstance(phase, AgreeOnStep),
    "group_overflow_check": lambda d, phase: isinstance(phase, AgreeOnStep) and d.dp_size > 1,
}
ELSEWHERE = {"via_l2_rest", "global_state", "fetch", "fetch_bytes", "micro_batch", "launch",
             "launch_bytes", "clock"}
"""Constants of what is no phase of the table, or of all of them, or of some together."""
LESS = ("exchange_bytes", "via_l2_bytes", "via_l2_sums", "summed_bytes", "sharded_bytes",
        "bf16_summed", "bf16", "state_bytes", "hidden_step")
"""Rates, and what an all-reduce hides: the greater, the fewer cycles."""


def cycles_of(d: Sharding, costs: Costs) -> dict[Phase, float]:
    found: dict[Phase, float] = {}
    for phase, line in table(build(d), costs):
        found[phase] = found.get(phase, 0.0) + line.cycles
    return found


def test_every_constant_has_its_phases() -> None:
    assert {each.name for each in fields(Costs)} == ADDS.keys() | ELSEWHERE


@pytest.mark.parametrize("constant", ADDS)
def test_a_constant_adds_to_its_phases_alone(constant: str) -> None:
    greater = replace(FITTED, **{constant: 2 * getattr(FITTED, constant)})
    seen = set()
    for seed in (*range(40), 72):  # 72: shares of gradients in bfloat16
        d = sampled(seed)
        before, after = cycles_of(d, FITTED), cycles_of(d, greater)
        for phase, cycles in before.items():
            adds = ADDS[constant](d, phase)
            seen.add(adds)
            if not adds:
                assert after[phase] == cycles, (seed, phase)
            else:
                assert (after[phase] < cycles) == (constant in LESS), (seed, phase)
                assert after[phase] != cycles, (seed, phase)
    assert seen == {True, False}


def bytes_of(d: Sharding, phase: Phase, constant: str) -> float:
    """What passes at the rate of the constant in a phase: float32 values of an exchange, gradients
    of a block as they are published, optimizer state."""
    if isinstance(phase, Exchange):
        return 4 * d.sent * (phase.rows if d.via_l2 else phase.features)
    assert isinstance(phase, GradientAllReduce)
    parameters = phase.tiles * 16 * 8
    if constant == "state_bytes":
        return 4 * parameters * len(d.problem.states) / (d.dp_size if phase.sharded else 1)
    published = parameters * (2 if d.publishes_bf16 else 4)
    factor = FITTED.bf16 if phase.sharded else FITTED.bf16_summed
    whole = published / factor if d.publishes_bf16 else published
    return whole if phase.sharded else whole * d.dp_size


@pytest.mark.parametrize("constant", ["exchange_bytes", "via_l2_bytes", "via_l2_sums",
                                      "summed_bytes", "sharded_bytes", "state_bytes"])
def test_a_rate_is_of_bytes_in_a_cycle(constant: str) -> None:
    rate = getattr(FITTED, constant)
    greater = replace(FITTED, **{constant: 2 * rate})
    for seed in range(40):
        d = sampled(seed)
        before, after = cycles_of(d, FITTED), cycles_of(d, greater)
        for phase in before:
            if ADDS[constant](d, phase):
                factor = FITTED.micro_batch if d.micro_batches > 1 and not d.via_l2 else 1
                times = d.micro_batches * factor if isinstance(phase, Exchange) else 1
                if exchanges_via_l2(d) and (isinstance(phase, GradientAllReduce)
                                            or phase.name == OVERFLOW):
                    times *= FITTED.via_l2_rest
                saved = times * bytes_of(d, phase, constant) / rate / 2
                assert before[phase] - after[phase] == pytest.approx(saved), (seed, phase)


def rounds(elements: int, d: Sharding) -> int:
    """Rounds in which the threads of a block do so many elements."""
    return math.ceil(elements / d.threads)


def quads_of_input(d: Sharding) -> int:
    """Quads of values that a block converts in a micro-batch: of all features, or of its share."""
    of_row = math.ceil(d.problem.layers[0] / 4)
    return d.columns * (of_row if d.boundaries[0] == REPLICATED else math.ceil(of_row / d.tp_size))


def rounded_tiles(d: Sharding, phase: Phase) -> int:
    """Tiles that one of four sub-cores rounds, of the group's share."""
    assert isinstance(phase, Gemm)
    tiles = math.ceil(phase.m / 16) * math.ceil(phase.n / 8)
    return math.ceil(math.ceil(tiles / d.dp_size) / 4)


COUNTS: dict[str, Callable[[Sharding, Any], float]] = {
    **dict.fromkeys(("gemm_begin", "exchange", "via_l2", "via_l2_step", "softmax", "convert",
                     "step", "overflow_check", "group_overflow_check"), lambda d, phase: 1),
    "hidden_step": lambda d, phase: -1,
    "second_exchange": lambda d, e: e.second + (e.name == STATISTICS),
    "via_l2_block": lambda d, e: d.tp_size,
    "all_reduce": lambda d, a: 2 if a.sharded else 1,  # gradients there, and changes back
    "via_l2_all_reduce": lambda d, a: 2 if a.sharded else 1,
    "elementwise_round": lambda d, phase: rounds(d.columns * d.outs(d.problem.depth - 1), d),
    "convert_round": lambda d, phase: rounds(quads_of_input(d), d),
    "rounding": rounded_tiles,
}
"""How often a phase takes what costs so much."""
UNSCALED = ("exchange", "second_exchange", "via_l2", "via_l2_block", "via_l2_step",
            "elementwise_round")
"""Constants of exchanges and of the loss, to which `via_l2_rest` does not apply."""


@pytest.mark.parametrize("constant", COUNTS)
def test_a_constant_is_taken_as_often_as_its_phase_needs(constant: str) -> None:
    greater = replace(FITTED, **{constant: 1 + getattr(FITTED, constant)})
    for seed in range(40):
        d = sampled(seed)
        before, after, schedule = cycles_of(d, FITTED), cycles_of(d, greater), build(d)
        repeats = {*schedule.micro_batch}
        for phase in before:
            if not ADDS[constant](d, phase):
                continue
            times = COUNTS[constant](d, phase)
            if exchanges_via_l2(d) and (constant not in UNSCALED or (
                    constant.startswith("via") and phase.name == OVERFLOW)):
                times *= FITTED.via_l2_rest
            if phase in repeats:
                times *= d.micro_batches
                times *= FITTED.micro_batch if d.micro_batches > 1 and not d.via_l2 else 1
            assert after[phase] - before[phase] == pytest.approx(times), (seed, phase)


def test_a_step_has_its_share_of_a_launch_and_of_the_weights_that_it_loads() -> None:
    for seed in range(20):
        d = sampled(seed)
        matrices = [(d.ins(i), d.outs(i)) for i in range(d.problem.depth)]
        arrays = [np.zeros(shape, np.float32) for shape in matrices
                  for _ in ("w", *d.problem.states)]
        launch = FITTED.launch + sum(a.nbytes for a in arrays) / FITTED.launch_bytes
        assert launch_cycles(d) == pytest.approx(launch)
        of_phases = sum(cycles_of(d, FITTED).values())
        assert cost.cycles(d) == pytest.approx(of_phases + launch / 64)
        assert microseconds(d) == pytest.approx(cost.cycles(d) / FITTED.clock)
        faster = replace(FITTED, clock=2 * FITTED.clock)
        assert microseconds(d, faster) == pytest.approx(microseconds(d) / 2)


@pytest.mark.parametrize("fitted", [{}, {"gemm": 2.0}, {"meeting": 3.0, "clock": 1000.0}])
def test_another_gpu_has_its_own_constants_or_its_own_clock(fitted: dict[str, float]) -> None:
    target = replace(known((9, 0)), costs=fitted, clock=990.0)
    names = {"meeting": "all_reduce"}
    expected = {names.get(name, name): value for name, value in fitted.items()} or \
        {"clock": FITTED.clock / 2}
    assert costs_of(target) == replace(FITTED, **expected)
    assert costs_of(replace(target, clock=0.0, costs={})) == FITTED


@pytest.mark.parametrize("seed", range(40))
def test_a_step_waits_for_what_does_not_hide_the_next_input(seed: int) -> None:
    """It takes `fetch` cycles, and one for each byte, from the prefetch on."""
    d = sampled(seed)
    schedule = build(d)
    fast = replace(FITTED, fetch=1e-9, fetch_bytes=1e18)
    slow = replace(FITTED, fetch=1e5, fetch_bytes=1.0)
    size = 2 if d.problem.rounded else d.problem.input_size
    nbytes = d.micro_batch * d.ins(0) * size
    several = d.micro_batches > 1  # each waits for the next one's
    times = d.micro_batches * (FITTED.micro_batch if several and not d.via_l2 else 1.0)
    program = schedule.micro_batch if several else (*schedule.micro_batch, *schedule.step)
    behind = {*program[next(i for i, p in enumerate(program) if isinstance(p, Prefetch)):]}
    hidden = sum(line.cycles for phase, line in table(schedule, fast)
                 if phase in behind and not isinstance(phase, WaitForInput))
    waited = {line.name: after.cycles - line.cycles for (_, line), (_, after) in
              zip(table(schedule, fast), table(schedule, slow), strict=True)
              if after.cycles != line.cycles}
    assert [*waited] == [BETWEEN]
    assert waited[BETWEEN] == pytest.approx(times * (1e5 + nbytes) - hidden)
