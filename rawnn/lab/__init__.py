"""Runs, checks and times a user's CUDA kernels and graphs, with the engine's own objects."""

from rawnn.lab.arrays import Array, array, empty, simulated
from rawnn.lab.checking import Checked, CheckFailed, check
from rawnn.lab.integrity import Refused
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_files import kernel_of
from rawnn.lab.maps import TensorMap, tensor_map
from rawnn.lab.sanitizer import Sanitized, sanitize
from rawnn.lab.sweeping import Swept, sweep
from rawnn.lab.timing import Timed, time
from rawnn.lab.work import Work

__all__ = ["Array", "CheckFailed", "Checked", "Kernel", "Refused", "Sanitized", "Swept",
           "TensorMap", "Timed", "Work", "array", "check", "empty", "kernel_of", "sanitize",
           "simulated", "sweep", "tensor_map", "time"]
