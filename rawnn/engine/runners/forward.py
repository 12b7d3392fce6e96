"""Forward passes on a device: the plan of an evaluation up to the logits, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import numpy_dtype
from rawnn.cuda.device import Device, padded
from rawnn.data.dataset_types import INPUT_TYPES
from rawnn.data.normalise import Normalisation
from rawnn.engine.machine import machine_of
from rawnn.engine.runners.lowering import Lowering
from rawnn.engine.runners.programs import StreamProgram
from rawnn.model.layers import Network, Parameters
from rawnn.opts import TOGGLES, select
from rawnn.plan.build import Builder, used_tensors
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import DataSpec

BATCH = 2048
"""Examples per batch, as in evaluations: enough to fill a GPU."""


def forward(network: Network, parameters: Parameters, normalisation: Normalisation,
            inputs: NDArray[Any], device: Device) -> Iterator[NDArray[np.float32]]:
    """The logits of `inputs` [N, F], float32 [<= BATCH, C] at a time, computed on the device.
    Raises DeviceError and ConfigError."""
    if normalisation.is_double:  # applied on the host, as in training
        inputs, normalisation = normalisation.apply(inputs), Normalisation()
    with ExitStack() as closing:
        yield from _run(device, network, parameters, normalisation, inputs, closing)


def _run(device: Device, network: Network, parameters: Parameters, normalisation: Normalisation,
         inputs: NDArray[Any], closing: ExitStack) -> Iterator[NDArray[np.float32]]:
    examples, features = inputs.shape
    batch = min(BATCH, examples)
    steps = -(-examples // batch)
    plan = _plan(device, network, normalisation, inputs, batch, steps)
    lowering = Lowering(device)
    closing.callback(lowering.close)
    lowering.compile([plan])
    tensors = used_tensors([plan])
    block, addresses = device.memory.arena([(t.name, t.nbytes) for t in tensors.values()],
                                           "forward passes")
    closing.callback(device.memory.free, block)
    images = np.zeros((steps * batch, features), numpy_dtype(tensors["images"].dtype))
    images[:examples] = inputs
    filled = {**parameters, "images": images, "cursor": np.zeros(1, np.int32),
              "mean": normalisation.mean, "inverse_std": normalisation.inverse_std}
    for name, array in filled.items():
        if name in tensors and array is not None:
            tensor = tensors[name]
            device.to_device(addresses[name], padded(array, tensor.padded_shape, tensor.dtype),
                             name)
    program = StreamProgram(lowering, plan, addresses, {})
    logits = tensors[f"z{network.depth}"]
    device.fill(addresses[logits.name], 0, logits.nbytes, logits.name)  # padding is copied back too
    for step in range(steps):
        program.step(step)
        found = np.empty(logits.padded_shape, np.float32)
        device.to_host(found, addresses[logits.name], logits.name)
        yield found[: min(batch, examples - step * batch), : network.outputs].copy()


def _plan(device: Device, network: Network, normalisation: Normalisation, inputs: NDArray[Any],
          batch: int, steps: int) -> Plan:
    kind = inputs.dtype.name if inputs.dtype.name in INPUT_TYPES else "float32"
    # The spec of an autoencoder, so that the batch has neither labels nor targets.
    data_spec = DataSpec(steps * batch, inputs=kind, scale=normalisation.scale, reconstruct=True,
                         normalised=normalisation.mean is not None)
    builder = Builder(replace(network, loss="mse"), batch, data_spec, steps, batch)
    builder.forward()
    machine = machine_of(device)
    cublas = [] if TOGGLES["cublas"].needs(machine) else ["cublas"]
    selection = select(",".join(["preload", "arena", "fuse", *cublas]), network, steps, machine)
    return selection.apply(builder.plan("forward"))[0]
