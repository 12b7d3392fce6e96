"""A NumPy interpreter of a schedule: every block of every group, phase by phase, in lock step.

It is the reference of the schedule, for tests, and each phase is its own (`Phase.interpret`). A
phase that is missing or in the wrong place, an exchange of the wrong kind or a wrong shard changes
the weights, leaves groups with different weights, or raises KeyError for data that never came.

It computes in the dtype of its arrays (float64: nothing is rounded) and takes from the plan of a
step what is not sharded: how examples are gathered, and the step of the optimizer on one element.
Barriers mean nothing to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import overflows
from rawnn.persistent.phases.phase import Phase
from rawnn.persistent.schedule import Schedule
from rawnn.persistent.sharding import COLUMN_PARALLEL, REPLICATED, ROW_PARALLEL
from rawnn.plan.op import Op
from rawnn.plan.ops.train_steps import role_of
from rawnn.plan.plan import Plan

Array = NDArray[Any]
CONTEXT = ("rates", "cursor", "clock", "loss_scale", "overflow")
"""Operands of an optimizer step that are not parameters."""


@dataclass
class Block:
    """A thread block. `at` has its weights, biases and optimizer state by their roles, and its
    buffers [features, examples] by the names of the schedule."""

    tp_rank: int
    group: int
    at: dict[str, Array] = field(default_factory=dict)
    fetched: dict[str, Array] = field(default_factory=dict)
    received: dict[str, dict[int, Array]] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    changes: dict[str, Array] = field(default_factory=dict)
    overflowed: bool = False
    left_out: bool = False
    loss_scale: Array = field(default_factory=lambda: np.ones(2))


class Interpreter:
    """Trains the parameters among `arrays` (by their roles, as `w1` and `w1_m`) by a schedule."""

    def __init__(self, schedule: Schedule, plan: Plan, arrays: dict[str, Array]) -> None:
        self.schedule, self.d, self.p = schedule, schedule.sharding, schedule.sharding.problem
        self.arrays, self.plan = arrays, plan
        self.blocks = [Block(rank, group) for group in range(self.d.dp_size)
                       for rank in range(self.d.tp_size)]
        for block in self.blocks:
            for name, part in self.parameters(block).items():
                block.at[name] = arrays[name][part].copy()
            if self.p.scaled:
                block.loss_scale = arrays["loss_scale"].copy()
        self.inputs: Array = np.zeros((0, 0))
        self.answers = self.inputs
        self.offset = self.part = 0

    # -- sharding ----------------------------------------------------------------------------------
    def own(self, block: Block, boundary: int) -> slice:
        """The block's shard of a boundary."""
        size, n = self.d.shards[boundary], self.p.layers[boundary]
        return slice(min(block.tp_rank * size, n), min((block.tp_rank + 1) * size, n))

    def shard(self, block: Block, boundary: int) -> slice:
        """The features whose gradients a block has."""
        replicated = self.d.boundaries[boundary] == REPLICATED
        return slice(None) if replicated else self.own(block, boundary)

    def updates(self) -> dict[str, Op]:
        """The optimizer steps of a plan by their parameter."""
        return {role_of(self.plan[op.operands["w"]]): op
                for op in self.plan.ops if "dw" in op.operands}

    def parameters(self, block: Block) -> dict[str, tuple[slice, ...]]:
        """Which part of each parameter, and of its optimizer state, a block has."""
        found: dict[str, tuple[slice, ...]] = {}
        for name, op in self.updates().items():
            layer = int(name[1:]) - 1
            kind, rows, columns = self.d.layer_kinds[layer], slice(None), slice(None)
            if kind == COLUMN_PARALLEL:
                rows = self.own(block, layer + 1)
            if self.d.is_streamed and layer and name[0] == "w":
                rows, columns = slice(None), self.own(block, layer)
            elif kind == ROW_PARALLEL:
                columns = self.own(block, layer)
            for role in ("w", *self.p.states):
                found[role_of(self.plan[op.operands[role]])] \
                    = (rows, columns) if name[0] == "w" else (rows,)
        return found

    def trained(self) -> dict[str, Array]:
        """All parameters and the loss scale, put together from their blocks. Raises AssertionError
        where groups have different weights."""
        found: dict[str, Array] = {}
        for block in self.blocks:
            for name, part in self.parameters(block).items():
                whole = found.setdefault(name, np.full(self.arrays[name].shape, np.nan))
                mine = block.at[name]
                if self.shares_update and name not in self.updates():  # state of its own share
                    owned = self.owned(mine, block.group)
                    mine = whole[part].copy()
                    mine.reshape(-1)[owned] = block.at[name].reshape(-1)[owned]
                elif name in self.updates() and not np.isnan(whole[part]).any():
                    np.testing.assert_allclose(mine, whole[part], rtol=1e-12, atol=1e-13)
                whole[part] = mine
        if self.p.scaled:
            found["loss_scale"] = self.blocks[0].loss_scale
        return found

    @property
    def shares_update(self) -> bool:
        found = self.schedule.all_reduce
        return found is not None and found.sharded

    def owned(self, values: Array, group: int) -> slice:
        """The elements that a group updates. (The kernel shares tiles, not elements.)"""
        size = -(-values.size // self.d.dp_size)
        return slice(group * size, (group + 1) * size)

    # -- a step ------------------------------------------------------------------------------------
    def step(self, plan: Plan, offset: int) -> None:
        """One step of a plan, which differs from the first one's in its batch only."""
        self.plan, self.offset = plan, offset
        self.inputs, self.answers = self.gathered(plan, offset)
        self.part = 0
        for block in self.blocks:
            self.fetch(block, 0)
            block.at |= block.fetched
            block.fetched = {}
        for part in range(self.d.micro_batches):
            self.part = part
            self.run(self.schedule.micro_batch)
        self.run(self.schedule.step)

    def gathered(self, plan: Plan, offset: int) -> tuple[Array, Array]:
        """Inputs and answers of a step, each with a row for each example."""
        (op,) = plan.find(kind="gather")
        number = self.arrays["w1"].dtype
        found = {}
        for role, name in op.operands.items():
            tensor = plan[name]
            of = number if tensor.floating else tensor.dtype
            found[role] = self.arrays[role_of(tensor)] if role_of(tensor) in self.arrays \
                else np.zeros(tensor.shape, of)
        op.spec.reference(SimpleNamespace(**found), {**op.attributes, "offset": offset})
        x = found["x"]
        return x, x if self.p.reconstruct else found["y" if self.p.labelled else "t"]

    def fetch(self, block: Block, part: int) -> None:
        """The examples of a micro-batch."""
        d, batch = self.d, len(self.inputs)
        first = block.group * d.group_batch + part * d.micro_batch
        end = min(first + d.micro_batch, (block.group + 1) * d.group_batch)
        here = slice(min(first, batch), min(end, batch))
        name = "raw" if self.p.converted else "x"
        block.fetched = {name: self.inputs[here].T[self.shard(block, 0)],
                         "y": self.answers[here].T}

    def run(self, phases: tuple[Phase, ...]) -> None:
        for phase in phases:
            for block in self.blocks:
                self.run_phase(block, phase)

    def run_phase(self, block: Block, phase: Phase) -> None:
        if not (phase.is_conditional and block.left_out):
            phase.interpret(self, block)

    # -- what phases use ---------------------------------------------------------------------------
    def group(self, block: Block) -> list[Block]:
        """The blocks of its tensor-parallel group."""
        return self.blocks[block.group * self.d.tp_size :][: self.d.tp_size]

    def replicas(self, block: Block) -> list[Block]:
        """The blocks of all data-parallel groups that have the same weights."""
        return self.blocks[block.tp_rank :: self.d.tp_size]

    def scaled(self, block: Block, v: Array) -> Array:
        """A gradient of the outputs with the loss scale."""
        v = v * block.loss_scale[0] if self.p.scaled else v
        self.check_overflow(block, v)
        return v

    def check_overflow(self, block: Block, v: Array) -> None:
        block.overflowed |= self.p.scaled and bool(overflows(v, "float16"))

    def update(self, block: Block, name: str, gradient: Array, owned: slice) -> None:
        """The plan's optimizer step on some elements of a parameter."""
        op = self.updates()[name]
        operands: dict[str, Any] = {
            role: self.arrays[role_of(self.plan[of])]
            for role, of in op.operands.items() if role in CONTEXT}
        if self.p.scaled:
            operands |= {"loss_scale": block.loss_scale, "overflow": np.zeros(1)}
        for role in ("w", *self.p.states):
            operands[role] = block.at[role_of(self.plan[op.operands[role]])].reshape(-1)[owned]
        operands["dw"] = gradient.reshape(-1)[owned]
        op.spec.reference(SimpleNamespace(**operands), {**op.attributes, "offset": self.offset})
