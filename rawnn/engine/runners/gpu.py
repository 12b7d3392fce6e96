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
    EvaluationPart,
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

    def __init__(self, device: Device, prepared: PreparedRun, team: RankGroup | None = None
                 ) -> None:
        if prepared.policy.tune:
            from rawnn.tuning.launch_tuning import tuned

            prepared = tuned(device, prepared)
        self._device, self._prepared, self._team = device, prepared, team
        self._closing = ExitStack()
        self._times = EpochTimes(device.driver, device.stream)
        self._closing.callback(self._times.close)
        try:
            self._build()
        except BaseException:
            self._closing.close()
            raise

    @property
    def prepared(self) -> PreparedRun:
        """The run as executed: with the launch variants that `tune` found."""
        return self._prepared

    # -- construction -----------------------------------------------------------------------------
    def _build(self) -> None:
        device, prepared = self._device, self._prepared
        device.memory.reset_peak()
        self._lowering = Lowering(device, prepared.policy, self._team)
        self._closing.callback(self._lowering.close)
        self._memory = TensorMemory(device, prepared, self._lowering, self._closing)
        self._allocator = self._memory.allocator
        policy, partial = prepared.policy, prepared.partial is not None
        graphs = [] if not policy.graph or is_single_kernel(prepared.train, policy) else \
            [epoch_graphs(p, policy, prepared.steps, prepared.epoch_begin, prepared.epoch_end,
                          partial)
             for p in (prepared.train, prepared.unreported)]
        between = prepared.epoch_boundary
        if prepared.merged_boundary or includes_boundary(prepared.train, policy,
                                                         prepared.epoch_end, partial):
            between = replace(between, ops=())
        around = [prepared.start, prepared.refresh, prepared.epoch_begin, between,
                  prepared.assemble]
        steps = prepared.step_plans
        if policy.streams and not graphs:
            steps += [buffer_plans(p)[1] for p in (prepared.train, prepared.unreported)]
        plans = [*(g.plan for group in graphs for g in group), *steps, *around]
        tests = [part.plan.advancing() if policy.graph else part.plan
                 for part in prepared.evaluate]
        compiling = self._lowering.begin([*plans, *tests])
        self._closing.callback(compiling.close)
        self._tensors = used_tensors(plans)
        shared = shared_by_ranks(plans)
        self._addresses, self._host = self._memory.place("training", self._tensors, "train", 0,
                                                         shared)
        self._lowering.prepare([*plans, *tests])
        device.finish(compiling)
        self._order = HostBatches(self._host, prepared.recipe.seed) \
            if prepared.shuffles_host else None
        self._metrics = Metrics(device, self._memory.pinned, self._tensors, self._addresses,
                                prepared.updates)
        self._epochs = 0
        self._begun = False  # whether the data that the next epoch begins with are ready
        self._is_sharded = False  # whether state was updated since ranks last gathered it
        if graphs:
            self._train = self._graph(graphs[0], "reported epoch")
            self._unreported = self._train if prepared.unreported is prepared.train \
                else self._graph(graphs[1], "unreported epoch")
        else:
            self._train = self._steps(prepared.train)
            self._unreported = self._train if prepared.unreported is prepared.train \
                else self._steps(prepared.unreported)
        self._moves = isinstance(self._train, GraphProgram) and self._train.moves
        self._partial = self._stream(prepared.partial) if prepared.partial is not None else None
        start, self._refresh, self._begin, self._between, self._assemble = \
            map(self._stream, around)
        self._tests: list[tuple[EvaluationPart, Program, dict[str, int]]] = [
            self._test(part, plan) for part, plan in zip(prepared.evaluate, tests, strict=True)
        ]
        for name, value in initial_state(prepared.train).items():
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
        policy = self._prepared.policy
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
        before, steps = self.state(), min(self._prepared.steps, MAX_TIMED_STEPS)
        try:
            return microseconds(self._device, self.trial(self._prepared.train, steps), steps)
        finally:
            self.load(before)

    def time_without_collectives(self) -> tuple[float, float]:
        """Microseconds of a step without its collectives, and of the collectives by themselves.
        All ranks call it; parameters and state are restored."""
        before, prepared = self.state(), self._prepared
        steps = min(prepared.steps, MAX_TIMED_STEPS)
        inside, together = (replace(prepared.train, ops=tuple(
            op for op in prepared.train.ops if (op.impl == "nccl") is shared))
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
        prepared = self._prepared
        if prepared.merged_boundary:
            merged = prepared.merged_boundary[plan is not prepared.train]
            epochs = EpochProgram(self._lowering, merged.unrolled(prepared.steps), self._addresses,
                                   self._host, lambda: self._epochs + 1)
            self._closing.callback(epochs.close)
            return epochs
        if prepared.steps and spans(plan) and prepared.policy.sync == "report":
            whole = WholeProgram(self._lowering, plan.unrolled(prepared.steps), self._addresses,
                                 self._host)
            self._closing.callback(whole.close)
            return whole
        if not prepared.policy.streams or not fetching(plan):
            return self._stream(plan)
        addresses, host = self._addresses, self._host
        program = OverlappedProgram(
            self._lowering, plan, addresses, host, self._prepared.steps,
            lambda others: make_program(self._lowering, others, addresses, host,
                                        self._allocator))
        self._closing.callback(program.close)
        return program

    def _test(self, part: EvaluationPart, plan: Plan
              ) -> tuple[EvaluationPart, Program, dict[str, int]]:
        addresses, host = self._memory.place("evaluation", used_tensors([plan]), "test", part.first)
        program: Program
        if self._prepared.policy.graph and not plan.find(kind="upload"):
            program = RepeatProgram(self._lowering, part.plan, part.steps, addresses,
                                    not self._prepared.policy.streams)
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
        if self._prepared.policy.sync == "step" and reported:
            self._epoch_with_waits(program)
        else:
            program.run(self._prepared.steps)
            if self._partial:
                if self._moves:
                    self._device.fill(self._addresses["cursor"], 0, 4, "cursor")
                self._partial.step(self._prepared.steps)
            self._metrics.unfetched = reported
        self._epochs += 1
        self._is_sharded = bool(self._prepared.assemble.ops)
        self._between.step(self._epochs)
        self._begun = True
        if log is not None:
            log.begin_epoch(0)
        self._times.end()

    def _epoch_with_waits(self, program: Any) -> None:
        """An epoch of the baseline: loss and accuracy are copied and waited for after every
        step."""
        for index in range(self._prepared.updates):
            partial = self._partial if index == self._prepared.steps else None
            (partial or program).step(index)
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
        return evaluation_of(self._prepared, parts)

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
                for t in self._prepared.network.parameters()}

    def state(self) -> dict[str, NDArray[Any]]:
        self.assemble()
        return {name: self._read(name) for name in self._prepared.state if name in self._addresses}

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
        if self._prepared.policy.tune:
            from rawnn.engine.launch_choices import chosen

            facts["choices"] = chosen(self._prepared.train)
        if self._allocator is not None:
            statistics = self._allocator.statistics()
            facts["memory"] = {**asdict(statistics), "fragmentation": statistics.fragmentation}
        if isinstance(self._train, GraphProgram):
            facts["graph_nodes"], facts["graph_edges"] = self._train.nodes, self._train.edges
        elif self._prepared.policy.graph:
            facts["graph_nodes"], facts["graph_edges"] = 1, 0
        return facts

    def close(self) -> None:
        self._closing.close()
