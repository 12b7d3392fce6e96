"""The CPU emulator itself: it lets synchronised kernels pass and refuses each hazard, whatever the
order in which threads run; its products and conversions are those of NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rawnn.sim.tensormap import SimMap
from tests import requires
from tests.ptx.emulator.emulator import EmulatedLibrary, EmulatorError, Kernels

pytestmark = requires.GXX

HERE = Path(__file__).resolve().parent / "emulator"
RUNS = (0, 1, 2, 3)
CLUSTER: dict[str, Any] = {"grid": (2,), "cluster": 2, "shared": 128}
HAZARDS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # what passes, what does not, how both are launched, and what is said of it
    "barrier": ("barrier<true>", "barrier<false>", {"block": (64,)}, "without synchronisation"),
    "reuse": ("reuse<true>", "reuse<false>", {"block": (64,)}, "without synchronisation"),
    "warp": ("warp<true>", "warp<false>", {}, "without synchronisation"),
    "banks": ("banks<true>", "banks<false>", {"shared": 32 * 144}, "share banks"),
    "wait": ("copies<true>", "copies<false>", {"shared": 256}, "asynchronous copies"),
    "copies of others": ("copies_of_others<true>", "copies_of_others<false>", {"shared": 128},
                         "asynchronous copies"),
    "proxy fence": ("proxy<true>", "proxy<false>", {"shared": 256}, "without a proxy fence"),
    "stores": ("stores<true>", "stores<false>", {"shared": 256}, "bulk stores are under way"),
    "bytes": ("bytes<true>", "bytes<false>", {"shared": 128}, "no thread can go on"),
    "initialised": ("initialised<true>", "initialised<false>", {}, "initialised"),
    "published": ("published<true>", "published<false>", {"shared": 128}, "publish_barriers"),
    "cluster barrier": ("remote<true,true>", "remote<false,true>", CLUSTER,
                        "without synchronisation"),
    "end of a block": ("remote<true,true>", "remote<true,false>", CLUSTER, "end"),
    "sent": ("sent<true,true>", "sent<false,true>", CLUSTER, "initialised|publish_barriers"),
    "seen by its block alone": ("sent<true,true>", "sent<true,false>", CLUSTER,
                                "without synchronisation"),
    "released to its block alone": ("arrived<true>", "arrived<false>", CLUSTER,
                                    "without synchronisation"),
    "atomic note": ("noted<true>", "noted<false>", {"shared": 128}, "without synchronisation"),
    "grid barrier": ("grid<true>", "grid<false>", {"grid": (3,), "cooperative": True},
                     "without synchronisation"),
    "release fence": ("ticket<true,true>", "ticket<false,true>", {"grid": (3,), "block": (1,)},
                      "without synchronisation"),
    "acquire fence": ("ticket<true,true>", "ticket<true,false>", {"grid": (3,), "block": (1,)},
                      "without synchronisation"),
}
UNDEFINED = {0: (2048, "outside|of which it has"), 1: (1, "misaligned"), 2: (4, "index outside"),
             3: (32, "a shift"), 4: (16, "no thread can go on"), 5: (32, "of which it has|outside")}


@pytest.fixture(scope="module")
def library() -> EmulatedLibrary:
    wanted = [e for pair in HAZARDS.values() for e in pair[:2]]
    wanted += [f"undefined<{what}>" for what in UNDEFINED]
    return Kernels(("hazards.cu",), tuple(dict.fromkeys(wanted)), folders=(HERE,)).build()


def run(library: EmulatedLibrary, expression: str, seed: int, **how: Any) -> np.ndarray:
    x = np.ones(1024, np.float32)
    more: dict[str, Any] = {}
    if expression.startswith("grid"):
        more = {"counter": np.zeros(1, np.uint32)}
    elif expression.startswith("ticket"):
        more = {"counter": np.zeros(1, np.int32)}
    elif expression.startswith(("proxy", "stores")):  # x as one tile of 32 elements
        more = {"x_map": SimMap("FLOAT32", x.ctypes.data, (32, 1), (128,), (32, 1), "NONE",
                                "NONE").encoded()}
    arguments = {"grid": (1,), "block": (32,), **how}
    library.call(expression, arguments.pop("grid"), arguments.pop("block"), run=seed, x=x, **more,
              **arguments)
    return x


@pytest.mark.parametrize("name", HAZARDS)
def test_a_hazard_is_found_in_every_order(library: EmulatedLibrary, name: str) -> None:
    right, wrong, how, message = HAZARDS[name]
    for seed in RUNS:
        run(library, right, seed, **how)
        if name == "bytes":
            # More bytes are announced than come.
            with pytest.raises(EmulatorError, match=message):
                run(library, wrong, seed, **how)
            continue
        with pytest.raises(EmulatorError, match=message) as found:
            run(library, wrong, seed, **how)
        assert "hazards.cu:" in str(found.value), found.value


@pytest.mark.parametrize("what", UNDEFINED)
def test_what_is_undefined_is_found(library: EmulatedLibrary, what: int) -> None:
    n, message = UNDEFINED[what]
    with pytest.raises(EmulatorError, match=message):
        run(library, f"undefined<{what}>", 0, n=n, shared=128)


def test_twelve_thousand_threads_at_once(library: EmulatedLibrary) -> None:
    x, counter = np.zeros(2 * 120 * 100, np.float32), np.zeros(1, np.uint32)
    library.call("grid<true>", (120,), (100,), cooperative=True, run=3, x=x, counter=counter)
    assert counter[0] == 240
    assert (x[:12000] == 1).all()
    assert (x[12000:] == 2).all()


NUMBERS = r"""
#include "primitives/types.cuh"
template <typename T>
__global__ void convert(const float* x, unsigned int* bits, float* back, int n) {
  for (int i = 0; i < n; ++i) {
    bits[i] = from_float<T>(x[i]).bits;
    back[i] = to_float(from_float<T>(x[i]));
  }
}
template <typename T>
__global__ void pairs(const float* x, unsigned int* words, float* back, int n) {
  for (int i = 0; i < n; i += 2) {
    words[i / 2] = pack_pair<T>(x[i], x[i + 1]);
    const float2 both = unpack_pair<T>(words[i / 2]);
    back[i] = both.x;
    back[i + 1] = both.y;
  }
}

template <typename T>
__global__ void widen(const unsigned int* words, float* alone, float* paired, int codes) {
  for (int i = 0; i < codes; ++i) {
    T value;
    value.bits = static_cast<decltype(value.bits)>(words[i]);
    alone[i] = to_float(value);
    const float2 both = unpack_pair<T>(words[i] << (8 * sizeof(T)));
    paired[i] = both.y;
  }
}
"""
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
         "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("arch", [750, 900])
def test_numbers_are_numpys(tmp_path: Path, arch: int) -> None:
    """By integers, and by the GPU's instructions: what saturates, ties, subnormals, both halves."""
    (tmp_path / "numbers.cu").write_text(NUMBERS)
    expressions = tuple(f"{kernel}<{t}>" for kernel in ("convert", "pairs", "widen")
                        for t in TYPES)
    built = Kernels(("numbers.cu",), expressions, arch, folders=(tmp_path,)).build()
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.standard_normal(300), 2.0 ** rng.uniform(-30, 18, 400) * rng.choice([-1, 1], 400),
        [0, -0.0, 448, 464, 465, 57344, 61440, 65504, 65519, 65520, 1e30, -1e30],
    ]).astype(np.float32)
    x = np.append(x, (np.float32(1) + np.arange(64, dtype=np.float32) / 128)).astype(np.float32)
    x = x[: x.size // 2 * 2]
    for name, dtype in TYPES.items():
        small = name.startswith("float8")
        largest = float(ml_dtypes.finfo(dtype).max)
        wanted = (np.clip(x, -largest, largest) if small else x).astype(dtype)
        unit = np.uint8 if small else np.uint16
        bits, back = np.zeros(x.size, np.uint32), np.zeros(x.size, np.float32)
        built.call(f"convert<{name}>", (1,), (1,), x=x, bits=bits, back=back, n=x.size)
        np.testing.assert_array_equal(bits, wanted.view(unit), name)
        np.testing.assert_array_equal(back, wanted.astype(np.float32), name)
        words, back = np.zeros(x.size // 2, np.uint32), np.zeros(x.size, np.float32)
        built.call(f"pairs<{name}>", (1,), (1,), x=x, words=words, back=back, n=x.size)
        halves = words.view(np.uint16) if not small else words.astype(np.uint16)
        np.testing.assert_array_equal(halves.view(unit), wanted.view(unit), name)
        np.testing.assert_array_equal(back, wanted.astype(np.float32), name)
        codes = np.arange(np.iinfo(unit).max + 1, dtype=np.uint32)  # all that there are
        alone, paired = np.zeros(codes.size, np.float32), np.zeros(codes.size, np.float32)
        built.call(f"widen<{name}>", (1,), (1,), words=codes, alone=alone, paired=paired,
                   codes=codes.size)
        wanted = codes.astype(unit).view(dtype).astype(np.float32)
        for found in (alone, paired):
            np.testing.assert_array_equal(found, wanted, name)
            np.testing.assert_array_equal(np.signbit(found[found == 0]),
                                          np.signbit(wanted[wanted == 0]), name)


