"""float32 on the chip stays float32: the error of a step is no more than twice that of NumPy's
float32, on tensor cores that cut their sums off.

The arithmetic is a model in NumPy (arithmetic.py), which gives the very bits of the kernels' code
on the CPU emulator where the CPU emulator's rounding is put into it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.dtypes import numpy_dtype
from rawnn.persistent.sharding import DSMEM, L2
from rawnn.plan.ops.train_steps import role_of
from tests import requires
from tests.persistent import arithmetic, errors
from tests.persistent.arithmetic import Arithmetic
from tests.persistent.test_emulator import STEPS, Launch
from tests.ptx.emulator.emulator import Kernels
from tests.slices import FULL, sliced

HERE = Path(__file__).resolve().parents[1] / "ptx" / "emulator"
RESULTS = Path(__file__).resolve().parents[2] / "results" / "float32-error.json"
QUICK = 12

EXACT: list[tuple[Any, ...]] = [
    ("relu, mean squares", 1, 1, ""), ("relu, mean squares", 4, 1, "FSFS"),
    ("relu, mean squares", 2, 3, "SFGS"), ("relu, mean squares", 8, 2, "FGFS"),
    ("an autoencoder", 2, 1, "SFS"), ("a wide middle, mean squares", 2, 2, "FGFS"),
    ("a wide middle, mean squares", 1, 3, ""), ("relu, mean squares", 5, 2, "FGFS", L2),
    ("a wide middle, mean squares", 8, 1, "FSFS", L2), ("relu, mean squares", 12, 1, "FGGS", L2),
]
"""Kernels without exponentials, which the host's library rounds otherwise than NumPy."""


@requires.GXX
@pytest.mark.parametrize("how", sliced(EXACT, 2), ids=str)
def test_the_model_is_the_kernels_arithmetic(tmp_path: Path, how: tuple[Any, ...]) -> None:
    """Bit for bit, parameters and loss aside, which is summed in another order."""
    launch = Launch(*how[:4], exchange=how[4] if len(how) > 4 else DSMEM)
    found = launch.on_emulator(tmp_path, 0)
    step = launch.op.attributes["step"]
    arrays: dict[str, Any] = {
        t.name: launch.arrays[role_of(t)].copy() if role_of(t) in launch.arrays
        else np.zeros(t.shape, numpy_dtype(t.dtype)) for t in step.tensors.values()}
    for offset in range(1, 1 + STEPS):
        Arithmetic(launch.op.attributes["choice"], nearest=True).step(step, arrays, offset)
    trained = [role for role in launch.op.spec.writes if role[0] in "wb" and role[1].isdigit()]
    assert len(trained) >= 4
    for role in trained:
        np.testing.assert_array_equal(found[role], arrays[launch.op.operands[role]], role)


SHARED = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (2, 4)]
"""Tiles of a task, down and across."""
STEPS_AND_PARTS = [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (7, 1), (8, 1), (9, 1), (7, 2), (10, 3),
                   (8, 2)]


@requires.GXX
def test_the_model_is_the_arithmetic_of_all_tilings() -> None:
    """Bit for bit, of tasks of one to eight tiles, of few steps and of a loop over many, of an even
    and an odd number, and of parts of which the last has fewer."""
    cases = [(deep, steps, parts, *tiles) for tiles in SHARED for steps, parts in STEPS_AND_PARTS
             for deep in (False, True)][::1 if FULL else 5]
    names = [f"products<{str(deep).lower()},{','.join(map(str, rest))}>" for deep, *rest in cases]
    library = Kernels(("products.cu",), tuple(names), folders=(HERE,)).build()
    generator = np.random.default_rng(4)
    for name, (deep, steps, parts, down, across) in zip(names, cases, strict=True):
        a = generator.standard_normal((16 * down, 8 * steps)).astype(np.float32)
        b = generator.standard_normal((8 * steps, 8 * across)).astype(np.float32)
        c = np.zeros((parts, 16 * down, 8 * across), np.float32)
        library.call(name, (1, 1, 1), (32, 1, 1), a=a if deep else np.ascontiguousarray(a.T),
                     b=np.ascontiguousarray(b.T) if deep else b, c=c)
        wanted = arithmetic.product(a, b, down * across, parts, nearest=True)
        found = c[0]
        for part in c[1:]:
            found = found + part
        np.testing.assert_array_equal(found, wanted, name)


@pytest.mark.parametrize("seed", sliced(range(errors.DRAWS), QUICK))
def test_a_step_is_no_more_than_twice_as_far_from_float64_as_in_numpy(seed: int) -> None:
    found = errors.measured(errors.draw(seed))
    assert max(found.ratios) <= errors.BOUND, (str(found.drawn), found.ratios)


def test_sums_that_stay_in_the_tensor_cores_would_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find in a kernel that does not round the sum of each step."""

    def drifting(a: Any, b: Any, tiles: int, parts: int = 1, nearest: bool = False) -> Any:
        (a_high, a_low), (b_high, b_low) = arithmetic.split(a), arithmetic.split(b)
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for first in range(0, a.shape[1], arithmetic.STEP):
            k = slice(first, first + arithmetic.STEP)
            for left, right in ((a_low, b_high), (a_high, b_low), (a_high, b_high)):
                total = arithmetic.toward_zero(total + left[:, k] @ right[k])
        return total

    drawn = replace(errors.draw(0), batch=200)
    sound = errors.measured(drawn).ratios
    monkeypatch.setattr(arithmetic, "product", drifting)
    assert sound[1] <= errors.BOUND < errors.measured(drawn).ratios[1]


def test_one_product_of_tf32_would_be_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    split = arithmetic.split
    monkeypatch.setattr(arithmetic, "split",
                        lambda values: (split(values)[0], np.zeros(values.shape)))
    assert min(errors.measured(errors.draw(0)).ratios) > 5 * errors.BOUND


def test_what_is_written_down_is_of_all_draws() -> None:
    """results/float32-error.json, of which the page of `persistent` has its figures."""
    kept = json.loads(RESULTS.read_text())
    assert len(kept["draws"]) == errors.DRAWS
    for what in ("update", "gradient"):
        assert kept["worst"][what] == max(row[what] for row in kept["draws"]) <= errors.BOUND
    for row in kept["draws"][:: errors.DRAWS // 3]:
        found = errors.measured(errors.draw(row["seed"]))
        assert row["what"] == str(found.drawn)
        np.testing.assert_allclose((row["update"], row["gradient"]), found.ratios, rtol=0.5)
