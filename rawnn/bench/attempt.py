"""A kernel of one's own tried where it is to be used: what it uses, whether it is right, what it
takes alone, and whether the training step got faster by it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.rawnn_system import Training
from rawnn.common.dtypes import numpy_dtype
from rawnn.common.target import Machine
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Command
from rawnn.cuda.stream import Event
from rawnn.data import Dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, open_device
from rawnn.engine.runners.lowering import Lowering
from rawnn.engine.runners.prepared_run import prepare
from rawnn.graphs.graph import Graph
from rawnn.lab.inspection import Resources, resources
from rawnn.lab.kernel_source import Source
from rawnn.lab.ops import Examined, examine, fill_operands
from rawnn.opts import select
from rawnn.opts.precision_names import precision_of
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.user_kernels import REPLACES, UserKernel, user_ops

NODES = 50
"""Launches in the graph by which an op is timed alone, one behind the other."""
SAMPLES = 21
STEPS = 3
"""Steps that the simulated GPU runs."""
MOST_WORK = 2e9
"""Multiplications of those steps up to which it does: NumPy takes some seconds for them."""
ORDER = 8
"""How many times farther than another order of arithmetic a loss curve may be off."""


@dataclass(frozen=True)
class IsolatedTime:
    """Microseconds of one op launched repeatedly by itself, with the user's kernel and with the
    kernels of rawnn that it replaces."""

    op: str
    user_us: float
    rawnn_us: float
    replaced: tuple[str, ...]


@dataclass(frozen=True)
class LossDifference:
    """The largest relative difference of a step's loss in the first epoch: with the user's kernel,
    and between two orders of arithmetic of rawnn's own."""

    user: float
    usual: float

    @property
    def is_within_tolerance(self) -> bool:
        return self.user <= ORDER * max(self.usual, 2.0**-20)

    def __str__(self) -> str:
        usual = f"{self.usual:.1e} between rawnn's own ways of computing it"
        if self.is_within_tolerance:
            return f"the loss curve stayed: no step's loss differs by more than {self.user:.1e} " \
                   f"({usual})"
        return f"the loss curve did NOT stay: a step's loss differs by {self.user:.1e}, and by " \
               f"{usual}"


def training_plan(config: Config, opt: str, data: Dataset, machine: Machine) -> Plan:
    """The step that `opt` makes of the network. Raises ConfigError."""
    network, recipe = config.network(), config.recipe()
    selection = select(opt, network, max(recipe.steps(len(data.train_images)), 1), machine,
                       batch=recipe.batch, recipe=recipe)
    return prepare(network, data, selection, recipe).train


def compile_instances(own: UserKernel, plan: Plan, arch: str) -> list[Resources]:
    """What each instance that the step asks for uses. Raises CompileError, MissingLibrary."""
    kernel = own.kernel
    expressions = tuple(dict.fromkeys(kernel.expression(op, plan) for op in ops_of(own, plan)))
    assert isinstance(kernel.code, Source)  # as of every kernel that a user has brought
    return resources(replace(kernel.code, name=kernel.source), expressions,
                     kernel.code.arch or arch)


def simulate(config: Config, opt: str, data: Dataset) -> str:
    """Some steps on the simulated GPU, which proves arguments, bounds and order; "" where it did,
    else why it was not asked. Raises SimulationError for what is wrong."""
    network, batch = config.network(), config.batch or 128
    work = 6.0 * STEPS * batch * sum(a * b for a, b in zip(network.layers, network.layers[1:],
                                                            strict=False))
    if work > MOST_WORK:
        return "the network is too large for NumPy: name a smaller one by --layers"
    parts: dict[str, Any] = {
        name: None if (whole := getattr(data, name)) is None else whole[: STEPS * batch]
        for name in ("train_images", "train_labels", "train_targets", "test_images", "test_labels",
                     "test_targets")}
    few = replace(data, **parts, resident={})
    opened = open_device("sim", lambda message: None)
    with ExitStack() as closing:
        if opened.device:
            closing.callback(opened.device.close)
        training = Training(replace(config, opt=opt, device="sim"), few, opened)
        closing.enter_context(training.session)
        training.block(1)
    return ""


def check_ops(device: Device, own: UserKernel, plan: Plan) -> list[Examined]:
    """Each op that the kernel runs compared with its reference."""
    lowering = Lowering(device)
    try:
        return [examine(device, lowering, op, plan, seed) for seed, op in
                enumerate(_distinct_ops(own, plan))]
    finally:
        lowering.close()


def time_ops(device: Device, own: UserKernel, plan: Plan) -> list[IsolatedTime]:
    """What each op takes by itself: the median of launches of a graph of many, data in the L2
    cache."""
    lowering = Lowering(device)
    found = []
    try:
        for op in _distinct_ops(own, plan):
            replaced: tuple[Op, ...] = op.attributes[REPLACES]
            user, ours = (_microseconds(device, lowering, ops, plan) for ops in ((op,), replaced))
            found.append(IsolatedTime(op.name, user, ours,
                                      tuple(f"{o.kind}/{o.impl}" for o in replaced)))
    finally:
        lowering.close()
    return found


def _microseconds(device: Device, lowering: Lowering, ops: Sequence[Op], plan: Plan) -> float:
    lowering.compile([replace(plan, ops=tuple(ops))])
    addresses: dict[str, int] = {}
    for op in ops:
        for name, value in fill_operands(op, plan, 0).items():
            tensor = plan[name]
            if name not in addresses:
                addresses[name] = device.memory.allocate(tensor.nbytes, name).address
                whole = np.zeros(tensor.padded_shape, value.dtype)
                whole[tuple(slice(n) for n in tensor.shape)] = value
                stored = np.ascontiguousarray(whole, numpy_dtype(tensor.dtype))
                device.to_device(addresses[name], stored, name)
    commands: list[Command] = [c for op in ops for c in lowering.commands(op, plan, addresses, {})]
    with ExitStack() as closing:
        closing.callback(device.memory.free_all)
        graph = Graph(device.driver, device.context, "an op by itself")
        closing.callback(graph.close)
        behind: list[object] = []
        for _ in range(NODES):
            for command in commands:
                behind = command.add_to(graph, behind, 0)
        executable = graph.instantiate("an op by itself")
        closing.callback(executable.close)
        start, end = Event(device.driver), Event(device.driver)
        closing.callback(start.close)
        closing.callback(end.close)
        samples = []
        for _ in range(SAMPLES + 3):
            start.record(device.stream)
            executable.launch(device.stream)
            end.record(device.stream)
            device.stream.synchronize("an op by itself")
            samples.append(end.milliseconds_since(start) * 1e3 / NODES)
        return median(samples[3:])


def compare_losses(config: Config, base: str, opt: str, data: Dataset,
                   opened: Opened) -> LossDifference:
    """The first epoch with `opt` and with `base`, step by step; what is usual is the difference
    that computing it op by op makes."""
    precision = precision_of(base.split(","))
    plain = ",".join(filter(None, ["none", "preload", precision]))
    losses: list[NDArray[np.float64]] = []
    for each in (base, opt, plain):
        training = Training(replace(config, opt=each), data, opened)
        with training.session:
            training.block(1)
            losses.append(np.asarray(training.losses(), np.float64).copy())
    first, mine, usual = losses
    scale = np.maximum(np.abs(first), 1e-12)
    return LossDifference(*(float(np.max(np.abs(each - first) / scale)) for each in (mine, usual)))


def ops_of(own: UserKernel, plan: Plan) -> list[Op]:
    """The ops of a step that the kernel runs."""
    return [op for op in user_ops(plan) if op.kind == own.word]


def _distinct_ops(own: UserKernel, plan: Plan) -> list[Op]:
    """The ops of a kernel, those of the same shapes once."""
    found: dict[Any, Op] = {}
    for op in ops_of(own, plan):
        shapes = tuple((role, plan[name].shape, plan[name].dtype)
                       for role, name in op.operands.items())
        found.setdefault((own.kernel.expression(op, plan), shapes), op)
    return list(found.values())
