"""ReLU: max(z, 0). Its slope is 1 where the output is positive, else 0."""

import numpy as np

from rawnn.model.activations import Activation, register

register(Activation(
    "relu", "Relu", "output", lambda z: np.maximum(z, 0), lambda a: a > 0,
    onnx=lambda graph, z, name: graph.add("Relu", z, name=f"{name}.relu"),
    fast=lambda z: np.maximum(z, 0, out=z)))
