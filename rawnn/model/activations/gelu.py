"""GELU: z times the normal distribution function of z, exact (with erf), as torch.nn.GELU.

NumPy has no erf: Python's, value by value, is exact and fast enough for a reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.model.activations import Activation, register

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _distribution(z: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(0.5 * (1 + np.asarray(_erf(z / math.sqrt(2)), z.dtype)))


def function(z: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(z * _distribution(z))


def slope(z: NDArray[Any]) -> NDArray[Any]:
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return np.asarray(_distribution(z) + z * density)


register(Activation("gelu", "Gelu", "input", function, slope))
