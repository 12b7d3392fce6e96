"""What an epoch asks of the CUDA driver, as the simulated GPU records it.

The order and the number of the calls are those of a GPU. Their times are not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from rawnn.common.listener import Listener
from rawnn.data import load_dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.session import Session
from rawnn.graphs.unrolling import GraphPlan, graph_plans, is_single_kernel
from rawnn.plan.op import Op

TIMING = ("cuEventCreate", "cuEventRecord", "cuEventElapsedTime")
"""Calls that only measure."""
WAITS = ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
MOST_OPS = 12
"""Ops of a step that the text names."""
WIDTH = 100


@dataclass(frozen=True)
class DriverCalls:
    """The calls of one epoch in order, without those that only measure.

    ops: the ops of one training step, in the order of the plan.
    graph: the first graph of the epoch; None if ops are launched one by one, or if one kernel runs
        all steps.
    is_whole: whether one launch runs all steps of the epoch.
    """

    toggles: str
    steps: int
    calls: tuple[str, ...]
    ops: tuple[Op, ...]
    graph: GraphPlan | None = None
    is_whole: bool = False

    @property
    def waits(self) -> int:
        """How often Python waits for the GPU in the epoch."""
        return sum(call in WAITS for call in self.calls)

    @property
    def step_calls(self) -> tuple[str, ...]:
        """The calls of one step; empty if a launch covers several steps."""
        count = len(self.calls) // self.steps
        return self.calls[:count]

    def __str__(self) -> str:
        names = [f"{op.name} ({op.impl})" for op in self.ops]
        more = f", and {len(names) - MOST_OPS} more" if len(names) > MOST_OPS else ""
        counts = ", ".join(f"{count} x {call}" for call, count in
                           Counter(self.calls).most_common())
        lines = {"toggles": self.toggles,
                 "ops of a step": f"{len(names)}: {', '.join(names[:MOST_OPS])}{more}",
                 "calls an epoch": f"{len(self.calls)} in {self.steps} steps: {counts}"}
        return "\n".join(fill(text, WIDTH, initial_indent=f"{name:<16}",
                              subsequent_indent=" " * 16, break_on_hyphens=False)
                         for name, text in lines.items())


def driver_calls(toggles: str, layers: Sequence[int] = (784, 10), batch: int = 128,
                 is_reported: bool = True) -> DriverCalls:
    """Train two epochs of synthetic data on a simulated GPU and return the calls of the second.

    toggles: as after --opt.
    layers: sizes from the inputs to the classes.
    batch: examples a step.
    is_reported: whether the epoch computes loss and accuracy (see the toggle `report`).
    Raises ConfigError for toggles that do not exist or cannot be combined.
    """
    from rawnn.cuda.device import Device
    from rawnn.sim import Simulation

    simulation = Simulation()
    device = Device(simulation.backend())
    data = load_dataset("synthetic")
    config = Config(layers=tuple(layers), batch=batch, opt=toggles, device="sim",
                    dataset="synthetic", epochs=2)
    with Opened(device, machine_of(device), 0.0) as opened, \
            Session(config, Listener(), data=data, opened=opened) as session:
        runner = session.runner
        assert isinstance(runner, GpuRunner)
        work = runner.prepared
        plan = work.train if is_reported else work.unreported
        before = 0
        for _ in range(2):
            before = len(simulation.calls)
            runner.epoch(reported=is_reported)
            runner.metrics()
        calls = tuple(call for call in simulation.calls[before:] if call not in TIMING)
        graphs = [] if not work.policy.graph or is_single_kernel(plan, work.policy) \
            else graph_plans(plan, work.policy, work.steps)
        return DriverCalls(toggles, work.steps, calls, plan.ops,
                           graphs[0] if graphs else None,
                           is_whole=bool(plan.find(kind="train_steps")))
