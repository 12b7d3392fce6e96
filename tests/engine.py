"""What tests of the engine share: small data sets, works made ready, ops filled with numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.cuda.device import Device, padded
from rawnn.data import Dataset
from rawnn.data.normalise import PIXEL_SCALE
from rawnn.network import Network
from rawnn.optimizers import Optimizer
from rawnn.opts import TOGGLES, select
from rawnn.opts.registry import Machine
from rawnn.runners.base import Work, prepare
from rawnn.runners.gpu import GpuRunner
from rawnn.runners.host import HostRunner
from rawnn.runners.lowering import Lowering
from rawnn.step.build import evaluation_step, training_step
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.recipe import Form, Recipe
from rawnn.step.tensor import Role

CAPABLE = Machine(None, (9, 0), 13000, lambda package: True)
"""A machine on which every toggle can run."""

LADDER = (
    "none", "nosync", "arena", "preload", "preload,arena", "preload,arena,nosync",
    "preload,arena,nosync,cublas", "preload,arena,nosync,cublas,report=2",
    "preload,arena,nosync,cublas,report=2,fuse",
    "preload,arena,nosync,cublas,report=2,fuse,cudnn", "seed", "best", "best,-graphs",
    "fuse", "preload,fuse", "cublas", "cudnn", "report=2", "cublas,fuse",
)
VALUES = {"batch": "2"}
"""Values of the toggles that mean nothing without one."""


def spelled(name: str) -> str:
    """A toggle as one types it, with a value where it must have one."""
    parameter = TOGGLES[name].parameter
    needed = parameter is not None and parameter.default is None
    return f"{name}={VALUES[name]}" if needed else name


GRAPHS = ("step", "epoch", "while", "3")


def random_dataset(features: int = 29, classes: int = 7, train: int = 70, test: int = 23,
                   seed: int = 0) -> Dataset:
    """Noise with a faint class pattern, so that training moves the loss."""
    generator = np.random.default_rng(seed)
    patterns = generator.integers(0, 256, (classes, features))

    def draw(count: int) -> tuple[Any, Any]:
        labels = generator.integers(0, classes, count).astype(np.uint8)
        noise = generator.integers(0, 256, (count, features))
        return ((patterns[labels] + noise) // 2).astype(np.uint8), labels

    x, y = draw(train)
    xt, yt = draw(test)
    return Dataset("random", x, y, xt, yt, classes, (1, features), "a generator", True)


def dataset_for(network: Network, train: int, test: int, seed: int = 0) -> Dataset:
    """Noise with the answers that the network's loss compares with: class labels, values of both
    signs, or (for binary cross-entropy) zeros and ones."""
    data = random_dataset(network.layers[0], network.outputs, train, test, seed)
    if network.answers.answers == "labels":
        return data
    generator = np.random.default_rng(seed + 1)

    def draw(count: int) -> Any:
        values = generator.normal(size=(count, network.outputs))
        return (values > 0 if network.loss == "bce" else values).astype(np.float32)

    return replace(data, train_labels=None, test_labels=None, classes=0,
                   train_targets=draw(train), test_targets=draw(test))


def form_for(network: Network, examples: int, **options: Any) -> Form:
    """uint8 pixels, with the answers that the network's loss compares with."""
    if network.answers.answers == "targets":
        options = {"labels": "", "targets": network.outputs, **options}
    return Form(examples, **{"scale": PIXEL_SCALE, **options})


def step_plan(network: Network, batch: int, examples: int, lr: float = 0.1,
              optimizer: Optimizer | None = None, form: dict[str, Any] | None = None,
              rest: bool = False, **recipe: Any) -> Plan:
    """The baseline plan of a step; `form` goes to Form, `recipe` to Recipe."""
    return training_step(network, Recipe(batch, optimizer or Optimizer(lr=lr), **recipe),
                         form_for(network, examples, **(form or {})), rest=rest)


def measuring_plan(network: Network, batch: int, examples: int) -> Plan:
    """The baseline plan that measures a batch of the test set."""
    return evaluation_step(network, batch, form_for(network, examples))


def make_work(opt: str, layers: tuple[int, ...], data: Dataset, batch: int = 8, lr: float = 0.1,
              seed: int = 0, machine: Machine = CAPABLE, optimizer: Optimizer | None = None,
              network_options: dict[str, Any] | None = None, **recipe_options: Any) -> Work:
    """`network_options` go to Network, `recipe_options` to Recipe."""
    network = Network(layers, **(network_options or {}))
    recipe = Recipe(batch, optimizer or Optimizer(lr=lr), seed=seed, **recipe_options)
    selection = select(opt, network, len(data.train_images) // batch, machine)
    return prepare(network, data, selection, recipe, evaluation_batch=8)


def trained(runner: HostRunner | GpuRunner, epochs: int = 2) -> SimpleNamespace:
    """Train and collect everything that can be compared."""
    for _ in range(epochs):
        runner.epoch(True)
    loss, correct = runner.metrics()
    evaluation = runner.evaluate()
    return SimpleNamespace(loss=loss.copy(), correct=correct.copy(), evaluation=evaluation,
                           parameters=runner.parameters())


def run_on(device: Device, work: Work, epochs: int = 2) -> SimpleNamespace:
    runner = GpuRunner(device, work)
    try:
        return trained(runner, epochs)
    finally:
        runner.close()


def fill_operands(op: Op, plan: Plan, seed: int) -> dict[str, np.ndarray]:
    """Random valid values for every tensor that an op touches, float64 where it is a float."""
    generator = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    classes = max((plan[n].shape[-1] for n in plan.tensors if n in ("p", "dz1")), default=10)
    for role, name in op.operands.items():
        tensor = plan[name]
        if tensor.role is Role.CURSOR:
            values[name] = np.array([1], np.int32)
        elif role in ("y", "labels") or name == "host_labels":
            last = [t for t in plan.tensors.values() if t.name.endswith(".bias")][-1].shape[0]
            values[name] = generator.integers(0, last, tensor.shape).astype(tensor.dtype)
        elif tensor.dtype == "uint8":
            values[name] = generator.integers(0, 256, tensor.shape).astype(np.uint8)
        elif tensor.dtype == "int32":
            values[name] = generator.integers(0, classes, tensor.shape).astype(np.int32)
        elif role == "p":
            raw = np.exp(generator.normal(size=tensor.shape))
            values[name] = raw / raw.sum(axis=1, keepdims=True)
        else:
            values[name] = generator.normal(size=tensor.shape)
        if tensor.dtype == "float32":  # both sides start from the same float32 numbers
            values[name] = values[name].astype(np.float32).astype(np.float64)
    return values


def op_error(device: Device, lowering: Lowering, op: Op, plan: Plan, seed: int = 0) -> float:
    """Run one op on the device and with its float64 reference; returns the largest relative error
    ||device - reference|| / ||reference|| over what it writes. Outputs start as NaN."""
    values = fill_operands(op, plan, seed)
    read = {name for name, _ in op.reads}
    written = [name for name, _ in op.writes if not name.endswith(".workspace")]
    addresses: dict[str, int] = {}
    host: dict[str, np.ndarray] = {}
    for name, value in values.items():
        tensor = plan[name]
        start = value
        if name in written and name not in read:
            start = np.full_like(value, np.nan if tensor.dtype == "float32" else 111)
        laid_out = padded(start, tensor.padded_shape, tensor.dtype)
        if tensor.role is Role.HOST:
            host[name] = laid_out
        else:
            addresses[name] = device.memory.allocate(tensor.nbytes, name).address
            device.to_device(addresses[name], laid_out, name)
    lowering.compile([plan])
    for command in lowering.commands(op, plan, addresses, host):
        command.run(op.offset)
    operands = {role: values[name].copy() for role, name in op.operands.items()}
    if op.kind == "upload":  # the host gives the copies their step; the reference has the cursor
        operands["cursor"] = np.array([0], np.int32)
    op.spec.reference(SimpleNamespace(**operands), op.attributes)
    worst = 0.0
    roles = {name: role for role, name in op.operands.items()}
    for name in written:
        tensor = plan[name]
        found = np.zeros(tensor.padded_shape, tensor.dtype)
        device.to_host(found, addresses[name], name)
        found = found[tuple(slice(n) for n in tensor.shape)]
        wanted = operands[roles[name]]
        if tensor.role is Role.METRIC:  # only the element of this step is written
            step = 1 + op.offset
            found, wanted = found[step : step + 1], wanted[step : step + 1]
        assert np.isfinite(found).all(), f"{op.name} left {name} unwritten"
        scale = np.linalg.norm(wanted) or 1.0
        worst = max(worst, float(np.linalg.norm(found - wanted) / scale))
    device.memory.free_all()
    return worst
