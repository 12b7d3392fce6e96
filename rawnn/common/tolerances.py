"""How far results may be from float64: what a user's kernel and rawnn's own are judged by.

A result is judged by the norm of its error over its own norm. Inputs are rounded to their storage
types first, so that what is left are these parts, which add up:

- *storage*: the result is rounded once, to half a unit of its last place: `UNIT[type]` at most
  (twice that where it is rounded stochastically).
- *sums*: adding up n terms of random sign, the k-th partial sum is of the order of sqrt(k) terms
  and is rounded by up to UNIT; the errors add up as sqrt(1 + 2 + ... + n) < n, while the sum is of
  the order of sqrt(n): sqrt(n) * UNIT of the type of the sums. Sums in another order, in several
  parts, are nearer. Tensor cores cut off what they do not keep, always
  towards zero, so that errors do not cancel: `TENSOR_CORE` is their unit.
- *factors*: tensor cores round float32 factors to tf32, 10 bits of mantissa, some by cutting off
  the rest: 2^-10 of each factor at most. 16-bit and 8-bit factors are taken as they are.
- *functions*: exp, log, tanh, erf and pow of the GPU are off by some units of the last place of
  float32, and some are taken of values that are off themselves: `FUNCTIONS`. In float64 they and
  the sums are as many units of its own.

The table of docs/testing.md shows what this gives.
"""

from __future__ import annotations

import math

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3": 2.0**-4,
        "float8_e5m2": 2.0**-3, "float64": 2.0**-53, "int32": 0.0, "uint8": 0.0}
"""Largest relative error of rounding a normal number to the nearest of a storage type."""

SMALLEST = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float8_e4m3": 2.0**-6,
            "float8_e5m2": 2.0**-14, "float32": 2.0**-126,
            "float64": 2.0**-1022}
"""The smallest normal number of each type: below it the error is UNIT times this."""

TENSOR_CORE = 4 * 2.0**-24
"""Unit of the sums of tensor cores in float32: twice that of rounding, and twice for the bias."""
TENSOR_CORE_8_BIT = 2.0**-13
"""Unit of the sums of 8-bit products: Hopper's tensor cores keep 14 bits of them (DeepSeek-V3
technical report, 2024, section 3.3.2)."""

FACTOR = {"float32": 0.0, "float16": 0.0, "bfloat16": 0.0, "tf32": 2.0**-10}
"""Largest relative error of a factor, by what a product computes in."""

FUNCTIONS = 16 * 2.0**-24


def of_op(stored: str, length: int = 1, compute: str = "float32", sums: str | float = "float32",
          stochastic: bool = False) -> float:
    """Of one op whose result is stored in the type `stored`, each element from a sum of `length`
    products; `sums` is the type (or the unit) that they are added in."""
    unit = UNIT[sums] if isinstance(sums, str) else sums
    functions = FUNCTIONS
    if stored == "float64":  # whatever it is made of is, too
        unit, functions = UNIT[stored], FUNCTIONS / UNIT["float32"] * UNIT[stored]
    return (UNIT[stored] * (2 if stochastic else 1) + functions + 2 * FACTOR[compute]
            + math.sqrt(length) * unit)


def table() -> str:
    """The table of docs/testing.md: tolerances of one op by storage type and length of its sums."""
    lengths = (1, 128, 784, 4096)
    rows: list[tuple[str, str, str | float, str]] = [
        ("float32", "float32", "float32", ""),
        ("float32", "float32", TENSOR_CORE, ", tensor cores"),
        ("float32", "tf32", TENSOR_CORE, ", tf32"),
        ("float32", "float32", TENSOR_CORE_8_BIT, ", tensor cores, 8-bit factors"),
        ("float16", "float32", "float32", ""), ("float16", "float16", "float16", ", sums too"),
        ("bfloat16", "float32", "float32", ""), ("float8_e4m3", "float32", "float32", ""),
        ("float8_e5m2", "float32", "float32", "")]
    lines = ["| stored in | " + " | ".join(f"sums of {n}" for n in lengths) + " |",
             "|---" + "|---:" * len(lengths) + "|"]
    for stored, compute, sums, word in rows:
        cells = [f"{of_op(stored, n, compute, sums):.1e}" for n in lengths]
        lines.append(f"| {stored}{word} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
