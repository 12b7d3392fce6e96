"""What a block loads of weights and optimizer state, and what it stores. Of the state a group keeps
the tiles that it updates, in the order of their numbers (gradient_all_reduce.cuh updates tile
`group`, `group + groups`, ...)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.persistent.sharding import TILE, ceil
from tests import requires
from tests.ptx.emulator.emulator import EmulatedLibrary, Kernels

pytestmark = requires.GXX

HERE = Path(__file__).resolve().parents[1] / "ptx" / "emulator"
STATES, STATE = 2, 1
OUTS, INS = 141, 38
PITCH = 156
PART = {"out": 3, "outs": OUTS, "in": 5, "ins": INS}
ACROSS, OF_WEIGHTS = ceil(OUTS, 8), ceil(OUTS, 8) * ceil(INS, 16)
TILES = OF_WEIGHTS + ceil(OUTS, TILE)
CASES = [(1, 0), (2, 1), (3, 0), (3, 1), (3, 2), (3, 10), (5, 4), (5, 13)]
"""Groups that share the updates, and tiles of the layers ahead."""


@pytest.fixture(scope="module")
def library() -> EmulatedLibrary:
    kept = [f"{what}_kept<{STATES},{shares}>" for shares in sorted({s for s, _ in CASES})
            for what in ("load", "store")]
    names = (*kept, "load_images", "store_images")
    return Kernels(("states.cu",), names, folders=(HERE,)).build()


def kept_of(shares: int, base: int, w: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """[groups, floats]: of tile `base + tile` in a group's own order the 16 inputs x 8 outputs, as
    the lanes of a warp have them, or 128 biases; with 7 where other state lies."""
    slots = (base + TILES) // shares + 1
    kept = np.full((shares, slots, STATES, TILE), 7, np.float32)
    for tile in range(TILES):
        number = base + tile
        found = kept[number % shares, number // shares, STATE]
        for at in range(TILE):
            lane, q = divmod(at, 4)
            if tile >= OF_WEIGHTS:
                out = (tile - OF_WEIGHTS) * TILE + at
                found[at] = bias[3 + out] if out < OUTS else 0
            else:
                i = tile // ACROSS * 16 + lane // 4 + q // 2 * 8
                out = tile % ACROSS * 8 + lane % 4 * 2 + q % 2
                found[at] = w[3 + out, 5 + i] if out < OUTS and i < INS else 0
    return kept.reshape(shares, -1)


def tensors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    w, bias = rng.normal(size=(150, 52)), rng.normal(size=150)
    return w.astype(np.float32), bias.astype(np.float32)


def numbers(base: int) -> dict[str, Any]:
    return {"across": ACROSS, "of_weights": OF_WEIGHTS, "tiles": TILES, "base": base,
            "state": STATE, **PART}


@pytest.mark.parametrize(("shares", "base"), CASES)
def test_a_group_loads_the_state_of_the_tiles_that_it_updates(library: EmulatedLibrary, shares: int,
                                                              base: int) -> None:
    w, bias = tensors()
    wanted = kept_of(shares, base, w, bias)
    kept = np.full_like(wanted, 7)
    library.call(f"load_kept<{STATES},{shares}>", (shares,), (64,), kept=kept, w=w, bias=bias,
              **numbers(base))
    np.testing.assert_array_equal(kept, wanted)


@pytest.mark.parametrize("storing", [1, 3])
@pytest.mark.parametrize(("shares", "base"), CASES)
def test_blocks_store_every_state_once_where_it_belongs(library: EmulatedLibrary, shares: int,
                                                        base: int,
                                                        storing: int) -> None:
    """`storing` blocks of each group share what it stores; a second store would be a race."""
    w, bias = tensors()
    found, of_bias = np.full_like(w, 7), np.full_like(bias, 7)
    library.call(f"store_kept<{STATES},{shares}>", (shares * storing,), (64,),
              kept=kept_of(shares, base, w, bias), w=found, bias=of_bias, **numbers(base))
    inside = slice(3, 3 + OUTS), slice(5, 5 + INS)
    np.testing.assert_array_equal(found[inside], w[inside])
    np.testing.assert_array_equal(of_bias[inside[0]], bias[inside[0]])
    found[inside], of_bias[inside[0]] = 7, 7
    assert (found == 7).all()
    assert (of_bias == 7).all()


WHERE = [PART, {"out": 0, "outs": 150, "in": 0, "ins": 52},
         {"out": 149, "outs": 1, "in": 0, "ins": 1},
         {"out": 8, "outs": 12, "in": 51, "ins": 1}, {"out": 4, "outs": 9, "in": 7, "ins": 0}]
"""Parts of a matrix: whole tiles and others, one element, one column, and biases alone."""


@pytest.mark.parametrize("part", WHERE, ids=str)
@pytest.mark.parametrize("storing", [1, 2, 3, 9])
def test_blocks_load_a_part_of_the_weights_and_store_it_once(library: EmulatedLibrary,
                                                             part: dict[str, int],
                                                             storing: int) -> None:
    w, bias = tensors()
    inside = (slice(part["out"], part["out"] + part["outs"]),
              slice(part["in"], part["in"] + part["ins"]))
    image = np.full((max(part["ins"], 1), PITCH), 7, np.float32)
    biases = np.full((1, PITCH), 7, np.float32)
    library.call("load_images", (1,), (64,), shared=4 * (part["ins"] + 1) * PITCH, image=image,
              biases=biases, w=w, bias=bias, **part)
    wanted = np.zeros((part["ins"], PITCH), np.float32)
    wanted[:, : part["outs"]] = w[inside].T
    np.testing.assert_array_equal(image[: part["ins"]], wanted)
    np.testing.assert_array_equal(biases[0, : part["outs"]], bias[inside[0]])
    assert not biases[0, part["outs"] :].any()
    found, of_bias = np.full_like(w, 7), np.full_like(bias, 7)
    library.call("store_images", (storing,), (64,), image=image, biases=biases, w=found,
                 bias=of_bias, **part)
    np.testing.assert_array_equal(found[inside], w[inside])
    np.testing.assert_array_equal(of_bias[inside[0]], bias[inside[0]])
    found[inside], of_bias[inside[0]] = 7, 7
    assert (found == 7).all()
    assert (of_bias == 7).all()
