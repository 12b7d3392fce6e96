"""Bounds on the distance of results from float64, by which a user's kernel and rawnn's own are
checked.

The error of a result is the norm of its difference over the norm of the result. Inputs are rounded
to their storage dtypes first, so that these parts remain, which add up:

- *storage*: the result is rounded once, to at most half a unit in the last place: `UNIT[dtype]`
  (twice that with stochastic rounding).
- *sums*: when n terms of random sign are added, the k-th partial sum is of the order of sqrt(k)
  terms and is rounded by up to UNIT; the errors add up as sqrt(1 + 2 + ... + n) < n, while the sum
  is of the order of sqrt(n): sqrt(n) * UNIT of the dtype of the sums. Sums in another order, or in
  several parts, are more accurate. Tensor cores truncate towards zero, so that errors do not
  cancel: `TENSOR_CORE` is their unit.
- *factors*: tensor cores round float32 factors to tf32, 10 bits of mantissa, some by truncation: at
  most 2^-10 of each factor. 16-bit and 8-bit factors are exact.
- *functions*: exp, log, tanh, erf and pow of the GPU are off by some units in the last place of
  float32, and some of their arguments are inexact: `FUNCTIONS`. In float64 they and the sums are
  off by as many of its units.

The table of docs/testing.md shows the resulting bounds.
"""

from __future__ import annotations

import math

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3": 2.0**-4,
        "float8_e5m2": 2.0**-3, "float64": 2.0**-53, "int32": 0.0, "uint8": 0.0}
"""Largest relative error of rounding a normal number to the nearest value of a storage dtype."""

SMALLEST = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float8_e4m3": 2.0**-6,
            "float8_e5m2": 2.0**-14, "float32": 2.0**-126,
            "float64": 2.0**-1022}
"""The smallest normal number of each dtype: below it the error is UNIT times this."""

TENSOR_CORE = 4 * 2.0**-24
"""Unit of the sums of tensor cores in float32: twice that of rounding, and twice for the bias."""
TENSOR_CORE_8_BIT = 2.0**-13
"""Unit of the sums of 8-bit GEMMs: Hopper's tensor cores keep 14 bits of them (DeepSeek-V3
technical report, 2024, section 3.3.2)."""

FACTOR = {"float32": 0.0, "float16": 0.0, "bfloat16": 0.0, "tf32": 2.0**-10}
"""Largest relative error of a factor, by the compute dtype of a GEMM."""

FUNCTIONS = 16 * 2.0**-24


def of_op(stored: str, length: int = 1, compute: str = "float32", sums: str | float = "float32",
          stochastic: bool = False) -> float:
    """The bound for one op whose result has the dtype `stored` and whose elements are sums of
    `length` products; `sums` is the dtype (or the unit) in which they are added."""
    unit = UNIT[sums] if isinstance(sums, str) else sums
    functions = FUNCTIONS
    if stored == "float64":  # sums and functions are then in float64, too
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
