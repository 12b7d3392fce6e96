"""Derivatives by central differences, and how far they may be off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEP = 1e-5

DIFFERENCE = 1e-9
"""Absolute error of a central difference of functions of the order of 1 whose third derivative is
at most 10: truncation STEP^2 / 6 * 10 = 2e-10, rounding of float64 2^-52 / STEP = 2e-11, and a
margin of four for sums of some such functions."""


def numeric(function: Callable[[], float], at: np.ndarray) -> np.ndarray:
    """Central differences of a scalar function, element by element of `at` (changed in place and
    put back)."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        kept = at[index]
        at[index] = kept + STEP
        above = function()
        at[index] = kept - STEP
        gradient[index] = (above - function()) / (2 * STEP)
        at[index] = kept
    return gradient
