"""Members on a GPU: one launch trains an epoch of all active ones, and one behind it measures them.

Nothing is waited for until scores or states are read. Where a thread block or cluster cannot hold a
member, the constructor raises Unsupported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import numpy_dtype
from rawnn.cuda.errors import check
from rawnn.cuda.launch import Command
from rawnn.cuda.memory import rounded_up
from rawnn.engine.machine import Opened
from rawnn.engine.runners.arenas import fill
from rawnn.engine.runners.lowering import Lowering
from rawnn.engine.runners.plan_data import contents
from rawnn.engine.runners.prepared_run import FIRST_LOSS_SCALE
from rawnn.many.member_plans import OF_DATA, TEST, member_plans
from rawnn.many.members import Arrays, Group, Rows, Scores, as_slice, columns_from
from rawnn.plan.build import used_tensors
from rawnn.plan.op import Op
from rawnn.plan.ops.members import SCORES
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor

SCORE_BYTES = 8
"""Of a score of a member, a float64."""
_Launch = tuple[Command, tuple[str, ...]]
"""A command, and which scores it writes."""
Shared = dict[tuple[Any, ...], int]
"""Addresses of a data set's arrays on a device, by what they are. Groups of one data set share
them; they are freed with the device."""


def columns_of(group: Group) -> int:
    """Columns of a group's scores on the device."""
    return max(member.epochs for member in group.members)


class GpuMembers:
    """Trains the members of a group on an open device, which it leaves open, on a stream of its
    own. A `sharding`, such as "1x1:128:FFFF", is used as it is; else a cost model chooses one, for
    so many members `at_once` (None: all). Arrays of the data set that are in `shared` are not
    uploaded again. `plan` makes the plans. Raises Unsupported where no kernel trains such members,
    OutOfMemory, CompileError, CallFailed, ConfigError."""

    make_plans: Callable[..., Any] = staticmethod(member_plans)
    """Of a group, a machine, a sharding, epochs and members at once."""

    def __init__(self, group: Group, opened: Opened, *,
                 notify: Callable[[str], object] = lambda message: None,
                 sharding: str = "", at_once: int | None = None,
                 shared: Shared | None = None, plan: Callable[..., Any] | None = None) -> None:
        assert opened.device is not None
        self._group, self._shared = group, shared
        self._columns = columns_of(group)
        self._prepare((plan or self.make_plans)(group, opened.machine, sharding, self._columns,
                                                at_once))
        self._epochs = 0  # columns of scores so far
        self._blocks = [np.empty((len(group), 0, 3))]  # those that were read already
        self._read = 0
        self._active: Rows | None = None
        self._uploaded: list[NDArray[np.int32]] = []  # until a copy of it has ended
        self._launches: dict[int, list[_Launch]] = {}  # by the number of active members
        self._device = opened.device.with_own_stream()
        self._closing = ExitStack()
        self._closing.callback(self._device.close)
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise
        notify(f"{len(group):,} members: {self._described}")

    def _prepare(self, plans: Any) -> None:
        self._plans, self._words = plans, plans.words
        self.sharding, self.choice = plans.choice.sharding.text, plans.choice
        self._answers = bool(plans.evaluate.ops[0].attributes["answers"])

    @property
    def _described(self) -> str:
        d = self.choice.sharding
        return f"each on {d.tp_size} thread block{'s' if d.tp_size > 1 else ''} of {d.threads} " \
               f"threads, {d.blocks_per_multiprocessor} blocks a multiprocessor, {self.sharding}"

    # -- making ready ------------------------------------------------------------------------------
    def _build(self) -> None:
        plans = self._plans
        self._place_all([plans.start, plans.rates, plans.train, plans.evaluate])
        self._run_once(plans.start)
        self._activate(np.arange(len(self._group), dtype=np.int32))
        if plans.constant:
            self._run_once(plans.rates)
        self._device.stream.synchronize("making members ready")

    def _place_all(self, every: list[Plan]) -> None:
        """Compile the kernels of the plans, and give their tensors memory with what they begin
        with."""
        device = self._device
        self._lowering = Lowering(device)
        self._closing.callback(self._lowering.close)
        compiling = self._lowering.begin(every)
        self._closing.callback(compiling.close)
        self._tensors = used_tensors(every)
        keys = {name: self._key(name, tensor) for name, tensor in self._tensors.items()}
        block, self._addresses = device.memory.arena(
            [(t.name, t.nbytes) for t in self._tensors.values() if keys[t.name] is None],
            "members")
        self._closing.callback(device.memory.free, block)
        for name, tensor in self._tensors.items():
            self._place(name, tensor, keys[name])
        device.finish(compiling)

    def _key(self, name: str, tensor: Tensor) -> tuple[Any, ...] | None:
        """By what a tensor is found in `shared`; None for one of this group alone."""
        kind = name.removeprefix(TEST)
        is_own = (kind == "images" and self._group.normalisations[0].is_double) \
            or (kind == "targets" and self._group.exact_targets is not None)
        if self._shared is None or kind not in OF_DATA or tensor.role is not Role.DATA or is_own:
            return None
        return name, tensor.dtype, tensor.padded_shape

    def _place(self, name: str, tensor: Tensor, key: tuple[Any, ...] | None) -> None:
        """Fill a tensor with what it begins with, unless it is shared and there already."""
        if key is not None and self._shared is not None:
            if key not in self._shared:
                address = self._device.memory.allocate(rounded_up(tensor.nbytes), name).address
                fill(self._device, tensor, address, self._contents(name, tensor))
                self._shared[key] = address
            self._addresses[name] = self._shared[key]
        elif name in SCORES:
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
            return np.asarray(self._words)
        if name in ("rows", "held_out"):
            lists = group.rows if name == "rows" else group.held_out
            longest = max(map(len, lists))
            return np.stack([np.pad(each, (0, longest - len(each))) for each in lists]) \
                .reshape(tensor.shape)
        if name == "counts":
            return group.counts.reshape(-1)
        if name in ("mean", "inverse_std"):
            of = group.normalisations
            return np.stack([getattr(of[i if len(of) > 1 else 0], name) for i in folds])
        kind, part = name.removeprefix(TEST), "test" if name.startswith(TEST) else "train"
        assert kind in OF_DATA
        if kind == "targets" and group.exact_targets is not None:
            values = [group.targets_of(part, i, slice(None)) for i in folds]
            return np.concatenate([each for each in values if each is not None])
        return contents(replace(data, normalisation=group.normalisations[0]), tensor, part)

    def _commands(self, plan: Plan, op: Op) -> list[Command]:
        return self._lowering.commands(op, plan, self._addresses, {})

    def _run_once(self, plan: Plan) -> None:
        for op in plan.ops:
            for command in self._commands(plan, op):
                command.run(0)

    # -- training ----------------------------------------------------------------------------------
    def _activate(self, active: Rows) -> None:
        """Hand the list of active members to the device, in the order of its stream."""
        if self._active is not None and np.array_equal(active, self._active):
            return
        self._active = np.array(active, np.int32)
        listed = np.full(len(self._group), -1, np.int32)
        listed[:len(active)] = active
        self._uploaded.append(listed)
        check(self._device.driver, "cuMemcpyHtoDAsync", self._device.driver.cuMemcpyHtoDAsync(
            self._addresses["active"], listed.ctypes.data, listed.nbytes,
            self._device.stream.handle), "the list of active members")

    def _of_epoch(self, launched: int) -> list[_Launch]:
        """What an epoch of so many members runs. Scores lie by columns, so that those of some
        epochs lie together: each launch is given the memory of its own column."""
        if launched not in self._launches:
            changed = {"launched": launched, "epochs": 1}
            self._launches[launched] = [
                (command, tuple(name for name in SCORES if name in op.operands))
                for plan in self._plans.epoch for op in plan.ops
                for command in self._commands(plan, replace(
                    op, attributes={**op.attributes, **changed}))]
        return self._launches[launched]

    def run(self, active: Rows, epochs: int) -> None:
        """Enqueue `epochs` more epochs of the members `active`."""
        launches: list[_Launch] = []
        if len(active):
            self._activate(active)
            launches = self._of_epoch(len(active))
        for _ in range(epochs):
            self._run_epoch(launches, self._column() * len(self._group) * SCORE_BYTES)
            self._epochs += 1

    def _run_epoch(self, launches: list[_Launch], offset: int) -> None:
        """Enqueue an epoch, whose scores lie so many bytes behind those of the first column."""
        for command, scores in launches:
            for name in scores:
                command.rebind(name, self._addresses[name] + offset)
            command.run(0)

    def _column(self) -> int:
        """The column of the scores of the epoch that comes. Those on the device are read, and
        cleared, where all are in use."""
        column = self._epochs % self._columns
        if self._epochs and not column:
            self._read_scores()
            for name in SCORES:
                self._device.fill(self._addresses[name], 0xFF, self._tensors[name].nbytes, name)
        return column

    # -- results -----------------------------------------------------------------------------------
    def _read_scores(self) -> None:
        """Read the columns that were not read yet; waits."""
        missing, members = self._epochs - self._read, len(self._group)
        if not missing:
            return
        found = np.empty((3, missing, members), np.float64)
        offset = self._read % self._columns * members * SCORE_BYTES
        for name, array in zip(SCORES, found, strict=True):
            self._device.to_host_later(array, self._addresses[name] + offset, name)
        self._device.stream.synchronize("scores of members")
        self._uploaded = self._uploaded[-1:]
        self._read = self._epochs
        self._blocks.append(found.transpose(2, 1, 0))

    def scores(self, first: int = 0) -> Scores:
        self._read_scores()
        found = columns_from(self._blocks, first)
        of_folds = [self._group.loss_factor(i) or 1.0
                    for i in range(len(self._group.target_normalisations))]
        if is_scaled := any(factor != 1.0 for factor in of_folds):
            found = found.copy()
            found[:, :, :2] *= np.array([of_folds[fold if len(of_folds) > 1 else 0]
                                         for fold in self._group.fold])[:, None, None]
        if not self._answers:
            found = found if is_scaled else found.copy()
            found[:, :, 2] = np.nan
        return Scores.of(found)

    @property
    def _state(self) -> dict[str, Tensor]:
        """The stacks that a checkpoint holds."""
        return {name: t for name, t in self._tensors.items()
                if t.role in (Role.PARAMETER, Role.STATE)}

    def _parts(self, members: Rows) -> Iterator[tuple[Tensor, NDArray[Any], int]]:
        """Of each stack that a checkpoint holds, the part from the first of these members to the
        last as it lies on the device, [members, rows of one ..., padding included], and its
        address."""
        first, count = int(members.min()), int(members.max() - members.min()) + 1
        for tensor in self._state.values():
            total, *others = tensor.padded_shape
            rows = () if tensor.packed else (total // len(self._group),)
            part = np.empty((count, *rows, *others), numpy_dtype(tensor.dtype))
            address = self._addresses[tensor.name] + first * part[0].nbytes
            self._device.to_host(part, address, tensor.name)
            yield tensor, part, address

    def state(self, members: Rows) -> Arrays:
        places = as_slice(members - members.min())
        found = {tensor.name: np.ascontiguousarray(_unpadded(tensor, part)[places])
                 for tensor, part, _ in self._parts(members)}
        return {**found, "epoch": found["clock"][:, 0].astype(np.int64)}

    def load(self, members: Rows, state: Mapping[str, NDArray[Any]]) -> None:
        places = members - members.min()
        for tensor, part, address in self._parts(members):
            _unpadded(tensor, part)[places] = state[tensor.name]
            self._device.to_device(address, part, tensor.name)

    def close(self) -> None:
        self._closing.close()


def _unpadded(tensor: Tensor, part: NDArray[Any]) -> NDArray[Any]:
    """A view without the padding behind rows."""
    return part[..., :tensor.shape[-1]] if len(tensor.shape) > 1 else part
