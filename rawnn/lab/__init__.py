"""Try a CUDA kernel of your own on rawnn's arrays, with the objects that the engine launches."""

from rawnn.lab.arrays import Array, array, empty
from rawnn.lab.kernel import Kernel

__all__ = ["Array", "Kernel", "array", "empty"]
