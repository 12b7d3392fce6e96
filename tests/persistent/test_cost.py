"""Each constant of the cost model adds to the phases that its description names, and to no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from rawnn.persistent.cost import FITTED, Costs, table
from rawnn.persistent.phases import (
    GRADIENT,
    LOSS,
    OVERFLOW,
    REDUCE_SCATTER,
    STATISTICS,
    AgreeOnStep,
    ConvertInput,
    Exchange,
    Gemm,
    GradientAllReduce,
    Phase,
    Softmax,
    WaitForInput,
)
from rawnn.persistent.schedule import build
from rawnn.persistent.sharding import Sharding
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
    "bf16": of_all_reduce(lambda d, a: d.publishes_bf16),
    "state_bytes": of_all_reduce(lambda d, a: bool(d.problem.states)),
    "step": lambda d, phase: isinstance(phase, WaitForInput),
    "hidden_step": lambda d, phase: isinstance(phase, WaitForInput) and d.dp_size > 1
    and d.micro_batches == 1,
    "rounding": lambda d, phase: is_gradient(phase) and bool(d.problem.streams),
    "overflow_check": lambda d, phase: isinstance(phase, AgreeOnStep),
    "group_overflow_check": lambda d, phase: isinstance(phase, AgreeOnStep) and d.dp_size > 1,
}
ELSEWHERE = {"via_l2_rest", "global_state", "micro_batch", "launch", "launch_bytes", "clock"}
"""Constants of what is no phase of the table, or of all of them."""
LESS = ("exchange_bytes", "via_l2_bytes", "via_l2_sums", "summed_bytes", "sharded_bytes", "bf16",
        "state_bytes", "hidden_step")
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
    for seed in range(40):
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
    whole = published / FITTED.bf16 if d.publishes_bf16 else published
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
