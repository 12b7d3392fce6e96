"""Members on a GPU: one launch trains an epoch of all active ones, and one behind it measures them.

Nothing is waited for until scores or states are read. Where a thread block or cluster cannot hold a
member, the constructor raises Unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import numpy_dtype
from rawnn.cuda.errors import check
from rawnn.cuda.launch import Command
from rawnn.engine.machine import Opened
from rawnn.engine.runners.arenas import fill
from rawnn.engine.runners.lowering import Lowering
from rawnn.engine.runners.plan_data import contents
from rawnn.engine.runners.prepared_run import FIRST_LOSS_SCALE
from rawnn.many.member_plans import OF_DATA, TEST, member_plans, words_of
from rawnn.many.members import Arrays, Group, Rows, Scores
from rawnn.plan.build import used_tensors
from rawnn.plan.ops.members import SCORES, member_words
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor


class GpuMembers:
    """Trains the members of a group on an open device, which it leaves open. A `sharding`, such as
    "1x1:128:FFFF", is taken as it is; else a cost model chooses one. Raises Unsupported where no
    kernel trains such members, OutOfMemory, CompileError, CallFailed, ConfigError."""

    def __init__(self, group: Group, opened: Opened, *,
                 notify: Callable[[str], object] = lambda message: None,
                 sharding: str = "") -> None:
        assert opened.device is not None
        self._group, self._device = group, opened.device
        self._columns = max(member.epochs for member in group.members)
        self._plans = member_plans(group, opened.machine, sharding, self._columns)
        self._epochs = 0  # columns of scores so far
        self._earlier: list[tuple[NDArray[np.float64], ...]] = []  # those that were read already
        self._active: Rows | None = None
        self._uploaded: list[NDArray[np.int32]] = []  # until a copy of it has ended
        self._commands: dict[int, list[Command]] = {}
        self._closing = ExitStack()
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise
        d = self._plans.choice.sharding
        notify(f"{len(group):,} members: each on {d.tp_size} thread block"
               f"{'s' if d.tp_size > 1 else ''} of {d.threads} threads, "
               f"{d.blocks_per_multiprocessor} blocks a multiprocessor, {self.sharding}")

    @property
    def sharding(self) -> str:
        return self._plans.choice.sharding.text

    # -- making ready ------------------------------------------------------------------------------
    def _build(self) -> None:
        device, plans = self._device, self._plans
        every = [plans.start, plans.rates, plans.train, plans.evaluate]
        self._lowering = Lowering(device)
        self._closing.callback(self._lowering.close)
        compiling = self._lowering.begin(every)
        self._closing.callback(compiling.close)
        self._tensors = used_tensors(every)
        block, self._addresses = device.memory.arena(
            [(t.name, t.nbytes) for t in self._tensors.values()], "members")
        self._closing.callback(device.memory.free, block)
        for name, tensor in self._tensors.items():
            self._place(name, tensor)
        device.finish(compiling)
        for command in self._lowered(plans.start):
            command.run(0)
        self._activate(np.arange(len(self._group), dtype=np.int32))
        if plans.constant:
            for command in self._lowered(plans.rates):
                command.run(0)
        device.stream.synchronize("making members ready")

    def _place(self, name: str, tensor: Tensor) -> None:
        """Fill a tensor with what it begins with."""
        if name in SCORES:
            self._device.fill(self._addresses[name], 0xFF, tensor.nbytes, name)  # NaN
        elif tensor.role is Role.DATA and name != "active":
            fill(self._device, tensor, self._addresses[name], self._contents(name, tensor))
        else:
            self._device.fill(self._addresses[name], 0, tensor.nbytes, name)
            if name == "loss_scale":
                first = np.tile(np.array([FIRST_LOSS_SCALE, 0], np.float32), len(self._group))
                fill(self._device, tensor, self._addresses[name], first)

    def _contents(self, name: str, tensor: Tensor) -> NDArray[Any]:
        group, data = self._group, self._group.dataset
        folds = range(max(len(group.rows), len(group.held_out), 1))
        if name == "members":
            return np.stack([member_words(**words_of(group, i, self._plans.settings))
                             for i in range(len(group))])
        if name == "rows":
            return np.concatenate(group.rows)
        if name == "held_out":
            return np.concatenate(group.held_out)
        if name in ("mean", "inverse_std"):
            of = group.normalisations
            return np.stack([getattr(of[i if len(of) > 1 else 0], name) for i in folds])
        kind, part = name.removeprefix(TEST), "test" if name.startswith(TEST) else "train"
        assert kind in OF_DATA
        if kind == "targets" and group.exact_targets is not None:
            values = [group.targets_of(part, i, slice(None)) for i in folds]
            return np.concatenate([each for each in values if each is not None])
        return contents(replace(data, normalisation=group.normalisations[0]), tensor, part)

    def _lowered(self, plan: Plan) -> list[Command]:
        return [command for op in plan.ops
                for command in self._lowering.commands(op, plan, self._addresses, {})]

    # -- training ----------------------------------------------------------------------------------
    def _activate(self, active: Rows) -> None:
        """Hand the list of active members to the device, in the order of its stream."""
        if self._active is not None and np.array_equal(active, self._active):
            return
        self._active = np.array(active, np.int32)
        self._uploaded.append(self._active)
        check(self._device.driver, "cuMemcpyHtoDAsync", self._device.driver.cuMemcpyHtoDAsync(
            self._addresses["active"], self._active.ctypes.data, self._active.nbytes,
            self._device.stream.handle), "the list of active members")

    def _of_epoch(self, launched: int) -> list[Command]:
        """The commands of an epoch of so many members."""
        if launched not in self._commands:
            self._commands[launched] = [
                command for plan in self._plans.epoch for command in self._lowered(replace(
                    plan, ops=tuple(replace(op, attributes={**op.attributes, "launched": launched})
                                    for op in plan.ops)))]
        return self._commands[launched]

    def run(self, active: Rows, epochs: int) -> None:
        """Enqueue `epochs` more epochs of the members `active`."""
        commands: list[Command] = []
        if len(active):
            self._activate(active)
            commands = self._of_epoch(len(active))
        for _ in range(epochs):
            column = self._column()
            for command in commands:
                command.run(column)
            self._epochs += 1

    def _column(self) -> int:
        """The column of the scores of the epoch that comes. Those on the device are read, and
        cleared, where all are in use."""
        column = self._epochs % self._columns
        if self._epochs and not column:
            self._earlier.append(self._read_scores())
            for name in SCORES:
                self._device.fill(self._addresses[name], 0xFF, self._tensors[name].nbytes, name)
        return column

    # -- results -----------------------------------------------------------------------------------
    def _read_scores(self) -> tuple[NDArray[np.float64], ...]:
        """The scores on the device, float64 [members, columns], in the order of SCORES; waits."""
        found = tuple(np.empty((len(self._group), self._columns), np.float64) for _ in SCORES)
        for name, array in zip(SCORES, found, strict=True):
            self._device.to_host_later(array, self._addresses[name], name)
        self._device.stream.synchronize("scores of members")
        self._uploaded = self._uploaded[-1:]
        return found

    def scores(self) -> Scores:
        parts = [*self._earlier, self._read_scores()]
        train, loss, score = (np.concatenate(each, axis=1)[:, :self._epochs]
                              for each in zip(*parts, strict=True))
        of_folds = [self._group.loss_factor(i) or 1.0
                    for i in range(len(self._group.target_normalisations))]
        factor = np.array([of_folds[fold if len(of_folds) > 1 else 0]
                           for fold in self._group.fold])[:, None]
        if not self._plans.evaluate.ops[0].attributes["answers"]:
            score = np.full_like(score, np.nan)
        return Scores(train * factor, loss * factor, score)

    @property
    def _state(self) -> dict[str, Tensor]:
        """The stacks that a checkpoint holds."""
        return {name: t for name, t in self._plans.train.tensors.items()
                if t.role in (Role.PARAMETER, Role.STATE)}

    def _stack(self, name: str) -> NDArray[Any]:
        """A stack as it lies on the device, [members, rows of one member ..., padding included]."""
        tensor = self._tensors[name]
        array = np.empty(tensor.padded_shape, numpy_dtype(tensor.dtype))
        self._device.to_host(array, self._addresses[name], name)
        members = len(self._group)
        if tensor.packed:
            return array
        return array.reshape(members, len(array) // members, *array.shape[1:])

    def state(self, members: Rows) -> Arrays:
        found: Arrays = {}
        for name, tensor in self._state.items():
            stack = self._stack(name)
            whole = stack[..., :tensor.shape[-1]] if len(tensor.shape) > 1 else stack
            found[name] = whole[members].copy()
        return {**found, "epoch": found["clock"][:, 0].astype(np.int64)}

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        for name, tensor in self._state.items():
            stack = self._stack(name)
            whole = stack[..., :tensor.shape[-1]] if len(tensor.shape) > 1 else stack
            whole[members] = state[name]
            self._device.to_device(self._addresses[name], np.ascontiguousarray(stack), name)

    def close(self) -> None:
        self._closing.close()
