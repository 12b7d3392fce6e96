"""Members on a GPU whose steps are launches of all of them, as graphs: networks of any size, whose
weights lie in global memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.cuda.launch import Command
from rawnn.engine.machine import Opened
from rawnn.graphs.graph_programs import GraphProgram
from rawnn.many.gpu import SCORE_BYTES, GpuMembers, columns_of
from rawnn.many.launch_plans import (
    launch_plans,
    launched_with,
    single_microseconds,
    step_microseconds,
)
from rawnn.many.member_plans import MemberPlans, member_plans
from rawnn.many.members import Group, Rows
from rawnn.opts.launch_sharding import LAUNCHES
from rawnn.persistent.problem import Unsupported
from rawnn.plan.plan import Plan

_Prepared = tuple[Command, Mapping[str, str]]
"""A command, and its operands."""
WRITES_SCORES = ("mean", "score")
FEWER = 0.7
"""Factor between the numbers of members that graphs are built for. Fewer members than a graph is
built for run in it, too: the blocks of the others end at once. So each number of active members
needs no graph of its own."""


@dataclass(frozen=True, eq=False)
class _Graphs:
    """What an epoch runs for so many members at most: steps, the mean loss and the clock behind
    them, the measurement, and its means."""

    training: GraphProgram
    end: list[_Prepared]
    measuring: GraphProgram
    scores: list[_Prepared]


class LaunchMembers(GpuMembers):
    """Trains the members of a group as GpuMembers does, with the sharding LAUNCHES: their bits are
    those of a single run with it. Raises the same."""

    make_plans = staticmethod(launch_plans)

    def _prepare(self, plans: Any) -> None:
        self._launched, self._words, self._answers = plans, plans.words, bool(plans.answers)
        self.sharding = LAUNCHES
        self._graphs: dict[int, _Graphs] = {}
        self._begins: dict[int, list[_Prepared]] = {}

    @property
    def _described(self) -> str:
        ops = len(self._launched.training.whole.ops)
        return f"{ops} launches a step, each of all, {self.sharding}"

    def _build(self) -> None:
        plans, networks = self._launched, len(self._group)
        graphs = [*plans.training.graphs(networks), *plans.evaluation.graphs(networks)]
        self._place_all([*plans.around, *(graph.plan for graph in graphs)])
        self._run_once(plans.start)
        self._refresh()
        self._device.stream.synchronize("making members ready")

    def _refresh(self) -> None:
        """The copies of all members' weights."""
        self._activate(np.arange(len(self._group), dtype=np.int32))
        self._run_once(self._launched.refresh)

    def _all(self, plan: Plan, launched: int) -> list[_Prepared]:
        return [(command, op.operands) for op in plan.ops
                for command in self._commands(plan, launched_with(op, launched))]

    def _of_members(self, launched: int) -> _Graphs:
        """What so many members run, or some more."""
        size = len(self._group)
        while (fewer := int(size * FEWER)) >= launched:
            size = fewer
        if size not in self._graphs:
            plans = self._launched
            training, measuring = (
                GraphProgram(self._lowering, graphs, self._addresses, {}, label) for graphs, label
                in ((plans.training.graphs(size), "epoch"),
                    (plans.evaluation.graphs(size), "scores")))
            self._closing.callback(training.close)
            self._closing.callback(measuring.close)
            self._graphs[size] = _Graphs(training, self._all(plans.end, size), measuring,
                                         self._all(plans.scores, size))
        return self._graphs[size]

    def run(self, active: Rows, epochs: int) -> None:
        if len(active):
            self._activate(active)
        for _ in range(epochs):
            offset = self._column() * len(self._group) * SCORE_BYTES
            if len(active):
                self._run_epoch_of(len(active), offset)
            self._epochs += 1

    def _run_epoch_of(self, launched: int, offset: int) -> None:
        if launched not in self._begins:
            self._begins[launched] = self._all(self._launched.begin, launched)
        graphs = self._of_members(launched)
        for command, _ in self._begins[launched]:
            command.run(0)
        for program, commands in ((graphs.training, graphs.end),
                                  (graphs.measuring, graphs.scores)):
            self._device.fill(self._addresses["cursor"], 0, 4, "cursor")
            program.run(0)
            for command, operands in commands:
                for role in WRITES_SCORES:
                    if role in operands:
                        command.rebind(role, self._addresses[operands[role]] + offset)
                command.run(0)

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        super().load(members, state)
        self._refresh()


FASTER = 0.6
"""Launches are chosen where they are expected to take less than this part of what the kernel with
resident weights is expected to take. The two models err differently: where a member has a cluster,
that of the kernel predicts up to 1.5 times the measured time; that of launches errs by a tenth
(784-128-10, H200)."""
MEMORY, LEAST_MEMORY = 0.85, 0.5
"""The memory that the members of one trainer may take: the larger of MEMORY times what is free and
LEAST_MEMORY times all of the GPU's. Other groups may hold memory now, which they give back when
this one needs it. Members that need more train in parts, one after the other."""


def kind_of(group: Group, opened: Opened, sharding: str, at_once: int | None = None,
            plan: Callable[..., MemberPlans] = member_plans) -> type[GpuMembers]:
    """The kind of trainer that is expected to be faster for so many members `at_once`, or that of a
    `sharding`. `plan` makes the plans of a kernel. Raises Unsupported where ordinary runs are
    expected to be faster, or neither trains such members."""
    if sharding:
        return LaunchMembers if sharding == LAUNCHES else GpuMembers
    networks, machine = at_once or len(group), opened.machine
    refusal: Unsupported | None = None
    resident_us = math.inf
    try:
        plans = plan(group, machine, "", columns_of(group), at_once)
        if plans.is_named or plans.choice.sharding.tp_size == 1:
            return GpuMembers
        resident_us = plans.choice.us
    except Unsupported as error:
        refusal = error
    with suppress(Unsupported):
        single = launch_plans(group.part(_alike(group)[0]), machine, "", 1).single
        allowed_us = FASTER * resident_us if refusal is None \
            else networks * single_microseconds(single, machine.target)
        if step_microseconds(single, networks, machine.target) < allowed_us:
            return LaunchMembers
    if refusal is not None:
        raise refusal
    return GpuMembers


def _alike(group: Group) -> list[Rows]:
    """The places of members whose lists of rows have the same lengths."""
    _, which = np.unique(group.counts, axis=0, return_inverse=True)
    found = which.reshape(-1)[group.fold]
    return [np.flatnonzero(found == i).astype(np.int32) for i in np.unique(found)]


def parts_of(group: Group, opened: Opened) -> list[Rows]:
    """The places of members whose launches one trainer can have: those of equal lists of rows, as
    many as there is memory for."""
    assert opened.device is not None
    room = max(MEMORY * opened.device.free_memory(), LEAST_MEMORY * opened.device.info.memory)
    found: list[Rows] = []
    for places in _alike(group):
        plans = launch_plans(group.part(places), opened.machine, "", 1)
        nbytes = sum(tensor.nbytes for tensor in plans.start.tensors.values())
        found += np.array_split(places, min(math.ceil(nbytes / room), len(places)))
    return found
