"""The GPU runner: data, parameters and metrics in device memory, and a program for each kind of
epoch. The policy selects the stream or a graph, and where temporaries are allocated."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import numpy_dtype
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Command
from rawnn.engine.runners.arenas import TensorMemory, fill, shared_by_ranks
from rawnn.engine.runners.lowering import Lowering
from rawnn.engine.runners.metrics import Metrics
from rawnn.engine.runners.overlap import OverlappedProgram, buffer_plans, fetching
from rawnn.engine.runners.plan_data import HostBatches
from rawnn.engine.runners.prepared_run import (
    Evaluation,
    Part,
    PreparedRun,
    State,
    evaluation_of,
    initial_state,
)
from rawnn.engine.runners.programs import (
    EpochProgram,
    Program,
    StreamProgram,
    WholeProgram,
    make_program,
)
from rawnn.engine.runners.times import EpochTimes, microseconds
from rawnn.graphs.graph_programs import GraphProgram, RepeatProgram
from rawnn.graphs.unrolling import epoch_graphs, graph_plans, includes_boundary, is_single_kernel
from rawnn.model.layers import Parameters
from rawnn.plan.build import used_tensors
from rawnn.plan.merging import spans
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan

if TYPE_CHECKING:
    from rawnn.cuda.libs.collectives import RankGroup


MAX_TIMED_STEPS = 16
"""Upper bound on the steps that are timed before a run of several ranks."""


class GpuRunner:
    """Runs a PreparedRun on one device, as a rank of `team` if there are several. It does not own
    the device, but frees all that it allocated there when it is closed.

    Raises OutOfMemory, CompileError, MissingLibrary, CallFailed, after releasing what the
    constructor had allocated.
    """

    def __init__(self, device: Device, work: PreparedRun, team: RankGroup | None = None) -> None:
        if work.policy.tune:
            from rawnn.tuning.launch_tuning import tuned

            work = tuned(device, work)
        self._device, self._work, self._team = device, work, team
        self._closing = ExitStack()
        self._times = EpochTimes(device.driver, device.stream)
        self._closing.callback(self._times.close)
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise

    @property
    def work(self) -> PreparedRun:
        """The run as executed: with the launch variants that `tune` found."""
        return self._work

    # -- construction -----------------------------------------------------------------------------
    def _build(self) -> None:
        device, work = self._device, self._work
        device.memory.reset_peak()
        self._lowering = Lowering(device, work.policy, self._team)
        self._closing.callback(self._lowering.close)
        self._memory = TensorMemory(device, work, self._lowering, self._closing)
        self._allocator = self._memory.allocator
        graphs = [] if not work.policy.graph or is_single_kernel(work.train, work.policy) else \
            [epoch_graphs(p, work.policy, work.steps, work.epoch_begin, work.epoch_end,
                          work.partial is not None)
             for p in (work.train, work.unreported)]
        between = replace(work.epoch_boundary, ops=()) if work.merged_boundary or includes_boundary(
            work.train, work.policy, work.epoch_end, work.partial
            is not None) else work.epoch_boundary
        around = [work.start, work.refresh, work.epoch_begin, between, work.assemble]
        steps = work.step_plans
        if work.policy.streams and not graphs:
            steps += [buffer_plans(p)[1] for p in (work.train, work.unreported)]
        plans = [*(g.plan for group in graphs for g in group), *steps, *around]
        tests = [part.plan.advancing() if work.policy.graph else part.plan
                 for part in work.evaluate]
        compiling = self._lowering.begin([*plans, *tests])
        self._closing.callback(compiling.close)
        self._tensors = used_tensors(plans)
        shared = shared_by_ranks(plans)
        self._addresses, self._host = self._memory.place("training", self._tensors, "train", 0,
                                                         shared)
        self._lowering.prepare([*plans, *tests])
        device.finish(compiling)
        self._order = HostBatches(self._host, work.recipe.seed) if work.shuffles_host else None
        self._metrics = Metrics(device, self._memory.pinned, self._tensors, self._addresses,
                                work.updates)
        self._epochs = 0
        self._begun = False  # whether the data that the next epoch begins with are ready
        self._is_sharded = False  # whether state was updated since ranks last gathered it
        if graphs:
            self._train = self._graph(graphs[0], "reported epoch")
            self._unreported = self._train if work.unreported is work.train \
                else self._graph(graphs[1], "unreported epoch")
        else:
            self._train = self._steps(work.train)
            self._unreported = self._train if work.unreported is work.train \
                else self._steps(work.unreported)
        self._moves = isinstance(self._train, GraphProgram) and self._train.moves
        self._rest = self._stream(work.partial) if work.partial is not None else None
        start, self._refresh, self._begin, self._between, self._assemble = \
            map(self._stream, around)
        self._tests: list[tuple[Part, Program, dict[str, int]]] = [
            self._test(part, plan) for part, plan in zip(work.evaluate, tests, strict=True)
        ]
        for name, value in initial_state(work.train).items():
            self._write(name, value)
        start.run(1)
        self._refresh.run(1)
        device.stream.synchronize("making ready")

    def _graph(self, graphs: Any, label: str) -> Program:
        program = GraphProgram(self._lowering, graphs, self._addresses, self._host, label)
        self._closing.callback(program.close)
        return program

    def trial(self, plan: Plan, steps: int) -> Program:
        """A program of `steps` steps of another plan of the same tensors, which the caller times
        and closes. Running it trains this runner's parameters."""
        self._pause()
        policy = self._work.policy
        if not policy.graph:
            self._lowering.compile([plan])
            return make_program(self._lowering, plan, self._addresses, self._host, self._allocator)
        graphs = graph_plans(plan, policy, steps)
        self._lowering.compile([g.plan for g in graphs])
        return GraphProgram(self._lowering, graphs, self._addresses, self._host, "trial")

    def commands(self, plan: Plan) -> list[tuple[Op, list[Command]]]:
        """The commands of each op of a plan of the same tensors, in order. The caller runs them
        with the steps of an epoch, from the first on. Raises ConfigError if temporaries are
        allocated at each use."""
        if self._allocator is not None:
            raise ConfigError("ops can be run one by one only where every tensor has an address: "
                              "add arena to the toggles")
        self._pause()
        self._lowering.compile([plan])
        self._device.fill(self._addresses["cursor"], 0, 4, "cursor")
        self._begin.run(1)
        return [(op, self._lowering.commands(op, plan, self._addresses, self._host))
                for op in plan.ops]

    def timed(self) -> float:
        """Microseconds of a step. All ranks call it; parameters and state are restored."""
        before, steps = self.state(), min(self._work.steps, MAX_TIMED_STEPS)
        try:
            return microseconds(self._device, self.trial(self._work.train, steps), steps)
        finally:
            self.load(before)

    def time_without_collectives(self) -> tuple[float, float]:
        """Microseconds of a step without its collectives, and of the collectives by themselves.
        All ranks call it; parameters and state are restored."""
        before, work = self.state(), self._work
        steps = min(work.steps, MAX_TIMED_STEPS)
        inside, together = (replace(work.train, ops=tuple(
            op for op in work.train.ops if (op.impl == "nccl") is shared))
            for shared in (False, True))
        try:
            return (microseconds(self._device, self.trial(inside, steps), steps),
                    microseconds(self._device, make_program(
                        self._lowering, together, self._addresses, self._host, self._allocator),
                        steps))
        finally:
            self.load(before)

    def _stream(self, plan: Plan) -> StreamProgram:
        program = make_program(self._lowering, plan, self._addresses, self._host, self._allocator)
        self._closing.callback(program.close)
        return program

    def _steps(self, plan: Plan) -> Program:
        """A program of the epoch's steps: one launch if one op does all of them. If the policy says
        so, ops that only fetch batches run on a second stream."""
        work = self._work
        if work.merged_boundary:
            merged = work.merged_boundary[plan is not work.train]
            epochs = EpochProgram(self._lowering, merged.unrolled(work.steps), self._addresses,
                                   self._host, lambda: self._epochs + 1)
            self._closing.callback(epochs.close)
            return epochs
        if work.steps and spans(plan) and work.policy.sync == "report":
            whole = WholeProgram(self._lowering, plan.unrolled(work.steps), self._addresses,
                                 self._host)
            self._closing.callback(whole.close)
            return whole
        if not work.policy.streams or not fetching(plan):
            return self._stream(plan)
        addresses, host = self._addresses, self._host
        program = OverlappedProgram(
            self._lowering, plan, addresses, host, self._work.steps,
            lambda rest: make_program(self._lowering, rest, addresses, host, self._allocator))
        self._closing.callback(program.close)
        return program

    def _test(self, part: Part, plan: Plan) -> tuple[Part, Program, dict[str, int]]:
        addresses, host = self._memory.place("evaluation", used_tensors([plan]), "test", part.first)
        program: Program
        if self._work.policy.graph and not plan.find(kind="upload"):
            program = RepeatProgram(self._lowering, part.plan, part.steps, addresses,
                                    not self._work.policy.streams)
        else:
            program = make_program(self._lowering, part.plan, addresses, host, self._allocator)
        self._closing.callback(program.close)
        return part, program, addresses

    def _write(self, name: str, array: NDArray[Any]) -> None:
        fill(self._device, self._tensors[name], self._addresses[name], array)

    def _read(self, name: str) -> NDArray[Any]:
        tensor = self._tensors[name]
        array = np.zeros(tensor.padded_shape, numpy_dtype(tensor.dtype))
        self._times.pause()
        self._device.to_host(array, self._addresses[name], name)
        return array[tuple(slice(n) for n in tensor.shape)].copy()

    def workspace(self, name: str) -> NDArray[Any]:
        """The content of a workspace of the plan, after all enqueued work."""
        self._device.stream.synchronize("epoch")
        return self._read(name)

    # -- running ----------------------------------------------------------------------------------
    def epoch(self, reported: bool) -> None:
        """The data that an epoch begins with are made at the end of the epoch before, so that few
        launches separate the two. Metrics stay on the device until they are asked for."""
        log = self._device.memory.log
        if not reported and self._metrics.unfetched:
            self._pause()
        if log is not None:
            log.begin_epoch(self._epochs + 1)
        self._times.begin()
        program = self._train if reported else self._unreported
        if self._order:
            self._device.stream.synchronize("the copies of the last epoch")
            self._order.shuffle(self._epochs)
        if not self._begun:
            self._begin.run(1)
        self._begun = False
        if self._work.policy.sync == "step" and reported:
            self._epoch_with_waits(program)
        else:
            program.run(self._work.steps)
            if self._rest:
                if self._moves:
                    self._device.fill(self._addresses["cursor"], 0, 4, "cursor")
                self._rest.step(self._work.steps)
            self._metrics.unfetched = reported
        self._epochs += 1
        self._is_sharded = bool(self._work.assemble.ops)
        self._between.step(self._epochs)
        self._begun = True
        if log is not None:
            log.begin_epoch(0)
        self._times.end()

    def _epoch_with_waits(self, program: Any) -> None:
        """An epoch of the baseline: loss and accuracy are copied and waited for after every
        step."""
        for index in range(self._work.updates):
            (self._rest if self._rest and index == self._work.steps else program).step(index)
            self._metrics.fetch_step(index)

    def _pause(self) -> None:
        """End the run of back-to-back epochs before other work. Their metrics are copied first,
        which counts to the last epoch; the other work counts to none."""
        if self._metrics.unfetched:
            with self._times.attributed_to_last():
                self._metrics.fetch()
        self._times.pause()

    def metrics(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        self._pause()
        self._device.stream.synchronize("epoch")
        return self._metrics.read()

    def evaluate(self) -> Evaluation:
        self._pause()
        parts = []
        for part, program, addresses in self._tests:
            program.run(part.steps)
            loss = np.zeros(part.steps, np.float32)
            correct = np.zeros(part.steps, np.int32)
            self._device.to_host(loss, addresses["loss"], "test losses")
            if "correct" in addresses:
                self._device.to_host(correct, addresses["correct"], "test counts")
            parts.append((part, loss, correct))
        return evaluation_of(self._work, parts)

    def assemble(self) -> None:
        if self._is_sharded:
            self._pause()
            self._assemble.run(1)
            self._is_sharded = False

    def keep_sharded(self) -> None:
        self._is_sharded = False

    def parameters(self) -> Parameters:
        self.assemble()
        return {t.name: self._read(t.name).astype(np.float32)
                for t in self._work.network.parameters()}

    def state(self) -> dict[str, NDArray[Any]]:
        self.assemble()
        return {name: self._read(name) for name in self._work.state if name in self._addresses}

    def load(self, state: State) -> None:
        self._pause()
        for name, value in state.items():
            if value.shape != self._tensors[name].shape:
                raise ConfigError(
                    f"{name} has the shape {value.shape}, not {self._tensors[name].shape}")
            self._write(name, value)
        if "clock" in state:
            self._epochs = int(state["clock"][0])
        self._begun = self._is_sharded = False
        self._refresh.run(1)
        self._device.stream.synchronize("loading")

    def time_each_epoch(self) -> None:
        """From now on no epoch is timed together with others."""
        self._times.epochs_per_span = 1

    def epoch_milliseconds(self) -> list[float]:
        return self._times.milliseconds()

    def peak_memory(self) -> int:
        return self._device.memory.peak

    def describe(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "driver_allocations": self._device.memory.calls,
            "kernels_compiled": self._device.compiled,
            "kernels_cached": self._device.cached,
            "compile_ms": self._device.compile_ms,
            "libraries": dict(self._lowering.libraries),
        }
        if self._work.policy.tune:
            from rawnn.engine.launch_choices import chosen

            facts["choices"] = chosen(self._work.train)
        if self._allocator is not None:
            statistics = self._allocator.statistics()
            facts["memory"] = {**asdict(statistics), "fragmentation": statistics.fragmentation}
        if isinstance(self._train, GraphProgram):
            facts["graph_nodes"], facts["graph_edges"] = self._train.nodes, self._train.edges
        elif self._work.policy.graph:
            facts["graph_nodes"], facts["graph_edges"] = 1, 0
        return facts

    def close(self) -> None:
        self._closing.close()
