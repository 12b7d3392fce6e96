"""The schedule of a step, interpreted in NumPy, trains as the plan of the step does; and faults
that are planted in it are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.persistent.interpreter import Block, Interpreter
from rawnn.persistent.phases.epilogue import IDENTITY
from rawnn.persistent.phases.exchange import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Exchange
from rawnn.persistent.phases.gemm import GRADIENT, Gemm
from rawnn.persistent.phases.gradient_all_reduce import GradientAllReduce, WeightAllGather
from rawnn.persistent.phases.input import ConvertInput, Prefetch
from rawnn.persistent.phases.overflow import AgreeOnStep, CheckOverflow
from rawnn.persistent.phases.phase import Phase
from rawnn.persistent.phases.softmax import STATISTICS, Softmax
from rawnn.persistent.schedule import Schedule, build
from rawnn.persistent.sharding import L2
from rawnn.plan.tensor import Role
from tests.persistent import test_interpreter
from tests.persistent.test_emulator import (
    COMPACT,
    FAR,
    FAR_STEPS,
    PARTIAL,
    SCALES,
    SHARED,
    STEPS,
    TURNS,
    Launch,
)

CASES: list[dict[str, Any]] = [
    *({"args": how} for how in SHARED), *({"args": how, "exchange": L2} for how in FAR),
    *({"args": how[:5]} for how in SCALES), *({"args": how[:4], "left": how[4]} for how in PARTIAL),
    *({"args": how[:5], "left": how[5], "turns": how[6], "exchange": L2} for how in FAR_STEPS),
    *({"args": how[:4], "turns": how[4], "left": how[5]} for how in TURNS)]
"""Every exchange over both transports, overflows, partial batches and micro-batches."""


def launched(case: dict[str, Any]) -> Launch:
    """The op of a case. Its copies of weights in 16 bits are not rounded, as the interpreter has
    none."""
    given = dict(case)
    launch = Launch(*given.pop("args"), **given)
    for role in launch.arrays:
        if launch.plan[launch.op.operands[role]].role is Role.COPY:
            launch.arrays[role] = launch.arrays[f"w{role[1:]}"].copy()
    return launch


def interpreted(launch: Launch, change: Callable[[Schedule], Schedule] = lambda s: s
                ) -> dict[str, np.ndarray]:
    """What the interpreter leaves in float64, by the roles of the op."""
    layout = launch.op.attributes["choice"].layout
    rest = launch.op.attributes.get("rest")
    layout = layout.with_partial_batch() if rest else layout
    step = launch.op.attributes["step"]
    arrays = {role: launch.arrays[role].astype(np.float64)
              if launch.plan[name].floating and role != "images" else launch.arrays[role]
              for role, name in launch.op.operands.items()}
    found = Interpreter(change(build(layout.sharding)), step, arrays)
    whole = launch.op.attributes.get("whole", STEPS + 1) - int(launch.arrays["cursor"][0])
    for offset in range(launch.offset, launch.offset + STEPS):
        found.step(step if offset < whole else rest, offset)
    return found.trained()


def worst(launch: Launch, found: dict[str, np.ndarray]) -> float:
    """The largest difference from the plan's reference in float64, as a part of the change."""
    wanted = launch.by_reference()
    errors = [np.abs(found[role] - wanted[role]).max()
              / max(np.abs(wanted[role] - launch.arrays[role]).max(), 1e-9) for role in found]
    return float(np.nan_to_num(errors, nan=np.inf).max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_schedule_trains_as_the_plan_does(case: dict[str, Any]) -> None:
    launch = launched(case)
    found = interpreted(launch)
    assert {role for role in launch.op.spec.writes if role[0] in "wb" and role[1].isdigit()} \
        <= set(found)
    assert worst(launch, found) < 1e-6


@pytest.mark.parametrize("how", COMPACT, ids=str)
def test_a_schedule_of_little_shared_memory_trains_as_the_plan_does(
        how: tuple[str, int, int, str, str]) -> None:
    launch = launched({"args": how[:4], "exchange": how[4]})
    found = interpreted(launch, lambda schedule: build(schedule.sharding, compact=True))
    assert worst(launch, found) < 1e-6


class Log(dict[str, np.ndarray]):
    """Buffers of a block, with the names of those that are read and written."""

    def __init__(self, buffers: dict[str, np.ndarray]) -> None:
        super().__init__(buffers)
        self.read: set[str] = set()
        self.written: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        self.read.add(name)
        return super().__getitem__(name)

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        self.written.add(name)
        super().__setitem__(name, value)

    def pop(self, name: str, *default: Any) -> Any:
        self.read.add(name)
        return super().pop(name, *default)


class CheckedInterpreter(Interpreter):
    """Raises AssertionError if a phase reads or writes a buffer that it does not name."""

    def run_phase(self, block: Block, phase: Phase) -> None:
        before = {*block.at} - {"raw", "overflow"}
        block.at = log = Log(block.at)
        super().run_phase(block, phase)
        block.at = dict(log)
        if phase.name == STATISTICS:
            return  # all threads wait in the exchange
        written = phase.writes(self.d)
        read = {name.partition("_")[0] for name in log.read & before}  # w1_m is updated with w1
        assert read <= phase.reads(self.d) | written, phase
        assert log.written & {*block.at} - {"overflow"} <= written, phase


@pytest.mark.parametrize("case", CASES[::3], ids=str)
def test_a_phase_names_the_buffers_that_it_reads_and_writes(
        case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """From these follow the barriers of a block."""
    monkeypatch.setattr(test_interpreter, "Interpreter", CheckedInterpreter)
    interpreted(launched(case))


@pytest.mark.parametrize(("kind", "method"), [
    (Gemm, "reads"), (Gemm, "writes"), (Exchange, "writes"), (Softmax, "reads"),
    (Softmax, "writes"), (ConvertInput, "writes"), (GradientAllReduce, "writes")])
def test_a_buffer_that_a_phase_does_not_name_is_found(
        kind: type[Phase], method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_interpreter, "Interpreter", CheckedInterpreter)
    monkeypatch.setattr(kind, method, lambda self, d: set())
    found = 0
    for case in CASES[::3]:
        try:
            interpreted(launched(case))
        except AssertionError:
            found += 1
            break
    assert found


Fault = Callable[[tuple[Phase, ...]], tuple[Phase, ...]]
"""A change of the phases of a micro-batch or of a step; the same phases where it does not apply."""


def without(kind: type[Phase], /, **fields: Any) -> Fault:
    """Leaves out the last phase of a kind with these fields."""
    def change(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        for i in reversed(range(len(phases))):
            if isinstance(phases[i], kind) and fields.items() <= vars(phases[i]).items():
                return phases[:i] + phases[i + 1:]
        return phases
    return change


def instead(kind: type[Phase], fields: dict[str, Any], others: dict[str, Any]) -> Fault:
    """Changes fields of the first phase of a kind that has `fields`."""
    def change(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        for i, phase in enumerate(phases):
            if isinstance(phase, kind) and fields.items() <= vars(phase).items():
                return (*phases[:i], replace(phase, **others), *phases[i + 1:])
        return phases
    return change


def too_soon(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Updates the weights of the last layer ahead of its backward GEMM."""
    for i, phase in enumerate(phases):
        if isinstance(phase, Gemm) and phase.kind == "backward":
            for j in range(i + 1, len(phases)):
                late = phases[j]
                if isinstance(late, Gemm) and late.kind == GRADIENT and late.layer == phase.layer \
                        and late.epilogue.function == "update" and not late.conditional:
                    return (*phases[:i], late, *phases[i:j], *phases[j + 1:])
            return phases
    return phases


def not_agreed(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Updates weights ahead of the agreement on an overflow."""
    at = [i for i, phase in enumerate(phases) if isinstance(phase, AgreeOnStep)]
    last = phases[-1] if at else None
    if not isinstance(last, Gemm) or not last.conditional:
        return phases
    return (*phases[: at[0]], last, *phases[at[0] : -1])


def without_bias(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    for i, phase in enumerate(phases):
        if isinstance(phase, (Gemm, Exchange)) and phase.epilogue.bias:
            changed = replace(phase, epilogue=replace(phase.epilogue, bias=""))
            return (*phases[:i], changed, *phases[i + 1:])
    return phases


def without_activation(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    for i, phase in enumerate(phases):
        if isinstance(phase, (Gemm, Exchange)) and phase.epilogue.function == "activate":
            changed = replace(phase, epilogue=replace(phase.epilogue, function=IDENTITY))
            return (*phases[:i], changed, *phases[i + 1:])
    return phases


FAULTS: dict[str, Fault] = {
    "no all-gather": without(Exchange, kind=ALL_GATHER),
    "no reduce-scatter": without(Exchange, kind=REDUCE_SCATTER),
    "no all-reduce": without(Exchange, kind=ALL_REDUCE, parts=2),
    "no exchange of statistics": without(Exchange, name="exchange of softmax"),
    "no exchange of overflow flags": without(Exchange, name="overflow"),
    "an all-gather adds up": instead(Exchange, {"kind": ALL_GATHER}, {"kind": ALL_REDUCE}),
    "a reduce-scatter keeps all": instead(Exchange, {"kind": REDUCE_SCATTER},
                                          {"kind": ALL_REDUCE}),
    "an all-reduce gathers": instead(Exchange, {"kind": ALL_REDUCE, "parts": 2},
                                     {"kind": ALL_GATHER}),
    "no weight gradient": without(Gemm, kind=GRADIENT),
    "no backward GEMM": without(Gemm, kind="backward"),
    "no softmax": without(Softmax, statistics=False),
    "weights updated too soon": too_soon,
    "weights updated ahead of the agreement": not_agreed,
    "no agreement on overflows": without(AgreeOnStep),
    "overflow is not checked": without(CheckOverflow),
    "no all-reduce of gradients": without(GradientAllReduce),
    "no all-gather of weights": without(WeightAllGather),
    "every group updates its share only": instead(
        GradientAllReduce, {"sharded": False}, {"sharded": True}),
    "inputs are not converted": without(ConvertInput),
    "inputs are not fetched": without(Prefetch),
    "no bias": without_bias, "no activation": without_activation,
}
MOST_CASES = 6
"""Cases that each fault is planted in."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_schedule_is_found(fault: str) -> None:
    """In every case where it applies. Of those with overflows, which may train nothing, only what
    concerns them."""
    of_overflow = "overflow" in fault or "agree" in fault

    def plant(schedule: Schedule) -> Schedule:
        micro_batch, step = map(FAULTS[fault], (schedule.micro_batch, schedule.step))
        return replace(schedule, micro_batch=micro_batch, step=step)

    planted = 0
    cases = [case for case in CASES if of_overflow == (
        len(case["args"]) > 4 and case["args"][4][0] > 2**16)]
    for case in cases:
        launch = launched(case)
        schedule = build(launch.op.attributes["choice"].sharding)
        if plant(schedule) == schedule:
            continue
        planted += 1
        try:
            found = interpreted(launch, plant)
        except (KeyError, ValueError, AssertionError):
            continue
        assert worst(launch, found) > 1e-6, (fault, case)
        if planted == MOST_CASES:
            break
    assert planted
