"""Try a CUDA kernel of your own on rawnn's arrays, with the objects that the engine launches."""

from rawnn.lab.arrays import Array, TensorMap, array, empty, simulated, tensor_map
from rawnn.lab.kernel import Kernel

__all__ = ["Array", "Kernel", "TensorMap", "array", "empty", "simulated", "tensor_map"]
