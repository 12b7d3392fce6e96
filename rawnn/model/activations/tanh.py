"""Hyperbolic tangent. Its slope is 1 - a^2, from the output."""

import numpy as np

from rawnn.model.activations import Activation, register

register(Activation(
    "tanh", "Tanh", "output", np.tanh, lambda a: 1 - a * a,
    onnx=lambda graph, z, name: graph.add("Tanh", z, name=f"{name}.tanh")))
