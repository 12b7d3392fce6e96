"""Each device primitive by itself on the CPU emulator, which compiles rawnn/ptx/device and
interprets its instructions: numbers, places and order against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from rawnn.sim.tensormap import SimMap
from tests import requires
from tests.ptx.emulator.emulator import EmulatedLibrary, EmulatorError, Kernels, for_host

pytestmark = requires.GXX

Array = NDArray[Any]
HERE = Path(__file__).resolve().parent / "emulator"
TYPES: dict[str, Any] = {
    "float": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
}
PAIRS = [("float", "float"), ("bfloat16", "bfloat16"), ("float16", "float16"),
         ("float8_e4m3", "float8_e4m3"), ("float8_e4m3", "float8_e5m2"),
         ("float8_e5m2", "float8_e4m3"), ("float8_e5m2", "float8_e5m2")]
"""Types of the factors of a product."""
WARPGROUPS = [
    # columns, types, whether an operand is contiguous along the other dimension, swizzle
    (8, "bfloat16", "bfloat16", False, False, True), (64, "float16", "float16", True, True, True),
    (64, "bfloat16", "bfloat16", False, True, True),
    (128, "bfloat16", "bfloat16", True, False, True),
    (128, "float8_e4m3", "float8_e5m2", False, False, True),
    (256, "float8_e5m2", "float8_e4m3", False, False, True),
    (64, "float8_e4m3", "float8_e4m3", False, False, True),
    (64, "float8_e5m2", "float8_e5m2", False, False, True),
    (256, "bfloat16", "bfloat16", False, True, True),
    (64, "float16", "float16", False, False, False),
]
ROWS = [(64, "float", False), (128, "float", False), (64, "float16", True),
        (64, "float16", False), (128, "float16", True), (128, "float16", False)]
"""Columns, type, and whether B is contiguous along them, with A in registers."""


def expression(name: str, *arguments: Any) -> str:
    return f"{name}<{','.join(str(a).lower() for a in arguments)}>"


@pytest.fixture(scope="module")
def library() -> EmulatedLibrary:
    wanted = ["numbers", "words<16>", "words<1024>", "copied<4>", "copied<8>", "copied<16>",
              "handed", "around", "engine", "wrapped", "dependent", "product_from_zero",
              "product_f16", "half_product<bfloat16>", "half_product<float16>", "transposed"]
    wanted += [expression("product", *pair) for pair in PAIRS]
    wanted += [expression("matrices", many, trans) for many in (1, 2, 4) for trans in (True, False)]
    wanted += [expression("warpgroup_product", *how) for how in WARPGROUPS]
    wanted += [expression("warpgroup_rows", *how) for how in ROWS]
    return Kernels(("primitives.cu",), tuple(wanted), folders=(HERE,)).build()


# -- numbers ---------------------------------------------------------------------------------------


def computed(library: EmulatedLibrary, what: int, a: Array, b: Array, c: Array) -> Array:
    out = np.zeros(a.size, np.uint64)
    library.call("numbers", (1,), (1,), what=what, a=a.view(np.uint32), b=b.view(np.uint32),
              c=c.view(np.uint32), out=out, n=a.size)
    return out


def floats(seed: int, low: float = -20, high: float = 14) -> Array:
    generator = np.random.default_rng(seed)
    x = 2.0 ** generator.uniform(low, high, 400) * generator.choice([-1, 1], 400)
    ties = 1 + np.arange(100) / 4096
    return np.concatenate([x, ties, [0.0, -0.0, 1.0, -3.0]]).astype(np.float32)


def of(dtype: Any, values: Array) -> Array:
    """The bits of values that are rounded to a type, beyond its largest to that."""
    if np.dtype(dtype).itemsize == 1:
        largest = float(ml_dtypes.finfo(dtype).max)
        values = np.clip(values, -largest, largest)
    return values.astype(dtype).view(f"u{np.dtype(dtype).itemsize}").astype(np.uint64)


def joined(dtype: Any, low: Array, high: Array) -> Array:
    return of(dtype, low) | of(dtype, high) << np.uint64(8 * np.dtype(dtype).itemsize)


@pytest.mark.parametrize(("what", "name"), list(enumerate(
    ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])))
def test_pairs_have_the_first_number_low(library: EmulatedLibrary, what: int, name: str) -> None:
    x, y = floats(1), floats(2)
    np.testing.assert_array_equal(computed(library, what, x, y, x), joined(TYPES[name], x, y))


@pytest.mark.parametrize(("what", "name"), [(4, "float8_e4m3"), (5, "float8_e5m2")])
def test_pairs_of_eight_bits_become_pairs_of_float16(
        library: EmulatedLibrary, what: int, name: str) -> None:
    x, y = floats(3, -8, 7).astype(TYPES[name]), floats(4, -8, 7).astype(TYPES[name])
    words = (x.view(np.uint8) | y.view(np.uint8).astype(np.uint32) << 8).astype(np.uint32)
    np.testing.assert_array_equal(computed(library, what, words, words, words),
                                  joined(np.float16, x.astype(np.float32), y.astype(np.float32)))


def test_single_numbers_of_sixteen_bits(library: EmulatedLibrary) -> None:
    x = floats(5)
    np.testing.assert_array_equal(computed(library, 6, x, x, x), of(np.float16, x))
    np.testing.assert_array_equal(computed(library, 7, x, x, x), of(ml_dtypes.bfloat16, x))
    half = x.astype(np.float16)
    words = half.view(np.uint16).astype(np.uint32)
    np.testing.assert_array_equal(computed(library, 8, words, words, words),
                                  of(np.float32, half.astype(np.float32)))


def test_products_and_sums_of_float16_are_rounded_once(library: EmulatedLibrary) -> None:
    parts = [floats(seed, -7, 6)[:400].astype(np.float16) for seed in range(6)]
    exact = [(a.astype(np.float64) * b + c.astype(np.float64)).astype(np.float16)
             for a, b, c in (parts[:3], parts[3:])]
    low, high = ([p.view(np.uint16).astype(np.uint32) for p in half]
                 for half in (parts[:3], parts[3:]))
    both = [x | y << np.uint32(16) for x, y in zip(low, high, strict=True)]
    bits = [e.view(np.uint16).astype(np.uint64) for e in exact]
    np.testing.assert_array_equal(computed(library, 9, *both), bits[0])
    np.testing.assert_array_equal(computed(library, 10, *both), bits[0] | bits[1] << np.uint64(16))


def nearest_tf32(x: Array, even: bool = False) -> Array:
    """Of 11 significant bits, ties away from zero, or of two equally near ones the `even` one."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    scaled = np.abs(mantissa) * 2**11
    nearest = np.rint(scaled) if even else np.floor(scaled + 0.5)
    return np.copysign(nearest, x) * 2.0 ** (exponent - 11)


def test_tf32_is_the_nearest(library: EmulatedLibrary) -> None:
    x = floats(6)
    wanted = nearest_tf32(x).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(computed(library, 11, x, x, x), wanted)
    near = computed(library, 12, x, x, x)
    np.testing.assert_array_equal(near & np.uint64(0xFFFFE000), wanted)


NOT_FINITE = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800000, 0xFF800000],
                      np.uint32).view(np.float32)
"""NaN whose bits a carry makes a number of, other NaN, and both infinities."""


def test_factors_of_tf32_are_rounded_and_split_as_numpy_has_them(library: EmulatedLibrary) -> None:
    """As tensor cores take them: without the low 13 bits. What is not finite makes a product that
    is not, a NaN a NaN."""
    x = np.concatenate([floats(12), NOT_FINITE])
    taken, high, low = ((computed(library, what, x, x, x) & np.uint64(0xFFFFE000)).astype(
        np.uint32).view(np.float32) for what in (23, 24, 25))
    finite = np.isfinite(x)
    wanted = nearest_tf32(x[finite]).astype(np.float32)
    np.testing.assert_array_equal(taken[finite], wanted)
    np.testing.assert_array_equal(high[finite], wanted)
    rest = ((x[finite] - wanted).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    np.testing.assert_array_equal(low[finite], rest)
    np.testing.assert_array_equal(taken[~finite], NOT_FINITE)
    assert np.isnan(high[~finite] + low[~finite]).all()


def test_two_tf32_have_all_bits_of_a_float_but_two(library: EmulatedLibrary) -> None:
    """As tensor cores take them: without the low 13 bits of either."""
    x = floats(7)
    high, low = (computed(library, what, x, x, x).astype(np.uint32) for what in (13, 14))
    wanted = nearest_tf32(x, even=True).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(high, wanted)
    taken = [(part & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
             for part in (high, low)]
    np.testing.assert_array_equal(high.view(np.float32) + low.view(np.float32), x)
    assert (np.abs(taken[0] + taken[1] - x) <= np.spacing(np.abs(x))).all()
    assert (np.abs(taken[0] + taken[1] - x) <= 2.0**-22 * np.abs(x)).all()


def test_approximate_functions(library: EmulatedLibrary) -> None:
    x, y = np.abs(floats(8)[:400]), floats(9)[:400]
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    for what, wanted in ((15, np.sqrt(wide_x)), (17, 1 / wide_x), (18, wide_x / wide_y)):
        found = computed(library, what, x, y, x).astype(np.uint32).view(np.float32)
        np.testing.assert_allclose(found, wanted, rtol=2.0**-21)
    small = np.linspace(-100, 100, 201, dtype=np.float32)
    found = computed(library, 16, small, small, small).astype(np.uint32).view(np.float32)
    np.testing.assert_allclose(found, np.exp2(small.astype(np.float64)), rtol=2.0**-21)


@pytest.mark.parametrize(("what", "name"), [(19, "bfloat16"), (20, "float16")])
def test_pairs_are_compared_half_by_half(library: EmulatedLibrary, what: int, name: str) -> None:
    generator = np.random.default_rng(10)
    a, b = (generator.integers(0, 1 << 16, (2, 400)).astype(np.uint16) for _ in range(2))
    b[:, :50] = a[:, :50]
    with np.errstate(invalid="ignore"):
        greater = a.view(TYPES[name]).astype(np.float32) > b.view(TYPES[name]).astype(np.float32)
    wanted = np.where(greater[0], 0xFFFF, 0) | np.where(greater[1], 0xFFFF0000, 0)
    words = [x[0] | x[1].astype(np.uint32) << 16 for x in (a, b)]
    np.testing.assert_array_equal(computed(library, what, words[0], words[1], words[0]), wanted)


def test_integers(library: EmulatedLibrary) -> None:
    a, b = np.random.default_rng(11).integers(0, 1 << 32, (2, 100)).astype(np.uint32)
    np.testing.assert_array_equal(computed(library, 21, a, b, a), a.astype(np.uint64) * b)
    assert not computed(library, 22, a, b, a).any()


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("align", [16, 1024])
def test_words_lie_where_their_addresses_say(library: EmulatedLibrary, align: int) -> None:
    x = np.random.default_rng(0).integers(0, 1 << 31, 224).astype(np.uint32)
    stored, loaded = np.zeros_like(x), np.zeros_like(x)
    library.call(f"words<{align}>", (1,), (32,), shared=896, x=x, stored=stored, loaded=loaded)
    np.testing.assert_array_equal(stored, x)
    np.testing.assert_array_equal(loaded, x + 1)


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("run", [0, 3])
def test_copies_bring_what_exists(library: EmulatedLibrary, size: int, run: int) -> None:
    x = np.random.default_rng(0).integers(1, 256, 96 * size).astype(np.uint8)
    for exist in range(size + 1):
        out = np.zeros_like(x)
        library.call(f"copied<{size}>", (1,), (32,), shared=96 * size, x=x, out=out, exist=exist,
                  run=run)
        wanted = x.copy().reshape(3, 32, size)
        wanted[1, :, exist:] = 0
        wanted[2, :, exist // 2 :] = 0
        np.testing.assert_array_equal(out.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("run", range(4))
def test_barriers_hand_numbers_over(library: EmulatedLibrary, run: int) -> None:
    x = np.arange(7 * 32, dtype=np.float32)
    out = np.zeros_like(x)
    library.call("handed", (1,), (64,), x=x, out=out, rounds=7, run=run)
    np.testing.assert_array_equal(out.reshape(7, 32), x.reshape(7, 32)[:, ::-1])


@pytest.mark.parametrize("run", range(4))
def test_blocks_of_a_cluster_send_and_read(library: EmulatedLibrary, run: int) -> None:
    out, ranks = np.zeros((8, 192), np.float32), np.zeros(8, np.uint32)
    library.call("around", (8,), (32,), shared=768, cluster=4, out=out, ranks=ranks, run=run)
    np.testing.assert_array_equal(ranks, np.arange(8) % 4)
    lane = np.arange(32, dtype=np.float32)
    for block in range(8):
        first = 1000 * ((block + 3) % 4) + lane
        quads = first[:, None] + np.array([0.25, 0.5, 0.75, 0.875], np.float32)
        far = -(1000 * ((block + 2) % 4) + lane)
        np.testing.assert_array_equal(out[block], np.concatenate([first, quads.ravel(), far]))


def tiles(array: Array) -> bytes:
    rows, columns = array.shape
    return SimMap("FLOAT32", array.ctypes.data, (columns, rows), (columns * 4,), (32, 8), "NONE",
                  "NONE").encoded()


@pytest.mark.parametrize("run", range(4))
def test_the_copy_engine_moves_tiles(library: EmulatedLibrary, run: int) -> None:
    x = np.arange(20 * 40, dtype=np.float32).reshape(20, 40)
    y, out = np.zeros((20, 68), np.float32), np.zeros((2, 544), np.float32)
    library.call("engine", (2,), (32,), shared=2176, cluster=2, x=x, y=y, out=out, x_map=tiles(x),
              y_map=tiles(y), run=run)
    padded = np.zeros((40, 80), np.float32)
    padded[:20, :40] = x
    stored = np.zeros((40, 100), np.float32)
    for rank in range(2):
        own, both = padded[3 + rank : 11 + rank, 8:40], padded[12:20, 4:36]
        np.testing.assert_array_equal(out[rank], np.concatenate(
            [x[rank, :32], own.ravel(), both.ravel()]))
        stored[10 * rank + 1 :][:8, 4:36] = own
        stored[10 * rank + 2 :][:8, 36:68] = both
        stored[10 * rank + 1, 4] += 1
    np.testing.assert_array_equal(y, stored[:20, :68])


@pytest.mark.parametrize("first", [0, 2**32 - 4])
def test_a_counter_of_the_grid_wraps_around(library: EmulatedLibrary, first: int) -> None:
    x, counter = np.zeros((3, 96), np.float32), np.full(1, first, np.uint32)
    library.call("wrapped", (3,), (32,), cooperative=True, x=x, counter=counter, first=first, run=3)
    np.testing.assert_array_equal(x, np.arange(1, 4)[:, None] + np.zeros((3, 96)))
    assert counter[0] == (first + 9) % 2**32


def test_a_dependent_kernel_waits(library: EmulatedLibrary) -> None:
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    library.call("dependent", (1,), (32,), early=(), x=x, y=y)
    np.testing.assert_array_equal(y, x)


# -- products --------------------------------------------------------------------------------------


def factors(seed: int, name: str, *shape: int) -> Array:
    return np.random.default_rng(seed).uniform(-2, 2, shape).astype(np.float32).astype(TYPES[name])


def packed(values: Array) -> Array:
    """Neighbours along the last axis as 32-bit words."""
    return np.ascontiguousarray(values).view(np.uint32)


def as_factor(values: Array) -> Array:
    """What products take of numbers: of floats no more than tf32."""
    if values.dtype == np.float32:
        values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(np.float64)


G, T = np.arange(32) // 4, np.arange(32) % 4


def fragments(a: Array, b: Array) -> tuple[Array, Array]:
    """A [16, E] and B [E, 8], words of a lane (products.cuh)."""
    rows, columns = packed(a), packed(b.T)
    left = np.stack([rows[G, T], rows[G + 8, T], rows[G, T + 4], rows[G + 8, T + 4]], axis=1)
    return left, np.stack([columns[G, T], columns[G, T + 4]], axis=1)


def of_sums(c: Array) -> Array:
    return np.stack([c[G, 2 * T], c[G, 2 * T + 1], c[G + 8, 2 * T], c[G + 8, 2 * T + 1]], axis=1)


@pytest.mark.parametrize("types", PAIRS)
def test_products_of_fragments(library: EmulatedLibrary, types: tuple[str, str]) -> None:
    depth = 32 // np.dtype(TYPES[types[0]]).itemsize
    a, b = factors(1, types[0], 16, depth), factors(2, types[1], depth, 8)
    c = factors(3, "float", 16, 8)
    left, right = fragments(a, b)
    sums = of_sums(c)
    library.call(expression("product", *types), (1,), (32,), a=left, b=right, c=sums)
    np.testing.assert_allclose(sums, of_sums(as_factor(a) @ as_factor(b) + c), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_half_a_step(library: EmulatedLibrary, name: str) -> None:
    a, b, c = factors(1, name, 16, 8), factors(2, name, 8, 8), factors(3, "float", 16, 8)
    left, right = fragments(np.pad(a, ((0, 0), (0, 8))), np.pad(b, ((0, 8), (0, 0))))
    sums = of_sums(c)
    library.call(f"half_product<{name}>", (1,), (32,), a=left, b=right, c=sums)
    np.testing.assert_allclose(sums, of_sums(as_factor(a) @ as_factor(b) + c), rtol=1e-6, atol=1e-6)


def test_a_product_from_zero(library: EmulatedLibrary) -> None:
    a, b = factors(1, "float", 16, 8), factors(2, "float", 8, 8)
    left, right = fragments(a, b)
    sums = np.ones((32, 4), np.float32)
    library.call("product_from_zero", (1,), (32,), a=left, b=right, c=sums)
    np.testing.assert_allclose(sums, of_sums(as_factor(a) @ as_factor(b)), rtol=1e-6, atol=1e-6)


def test_sums_of_float16(library: EmulatedLibrary) -> None:
    a, b = factors(1, "float16", 16, 16), factors(2, "float16", 16, 8)
    c = factors(3, "float16", 16, 8)
    left, right = fragments(a, b)
    sums = packed(of_sums(c))
    library.call("product_f16", (1,), (32,), a=left, b=right, c=sums)
    np.testing.assert_allclose(sums.view(np.float16).astype(np.float64),
                               of_sums(as_factor(a) @ as_factor(b) + c.astype(np.float64)),
                               rtol=2.0**-10, atol=1e-4)


@pytest.mark.parametrize("many", [1, 2, 4])
@pytest.mark.parametrize("trans", [False, True])
def test_matrices_are_spread_over_lanes(library: EmulatedLibrary, many: int, trans: bool) -> None:
    elements = np.arange(many * 64, dtype=np.uint16).reshape(many, 8, 8)
    out = np.zeros((many, 32), np.uint32)
    library.call(expression("matrices", many, trans), (1,), (32,), shared=many * 128,
              rows=packed(elements).ravel(), out=out)
    turned = elements.transpose(0, 2, 1) if trans else elements
    np.testing.assert_array_equal(out, packed(turned).reshape(many, 32))


def test_a_matrix_is_transposed(library: EmulatedLibrary) -> None:
    elements = np.arange(64, dtype=np.uint16).reshape(8, 8)
    out = np.zeros(32, np.uint32)
    library.call("transposed", (1,), (32,), x=packed(elements).ravel(), out=out)
    np.testing.assert_array_equal(out, packed(elements.T).ravel())


def swizzled(addresses: Array) -> Array:
    return addresses ^ (addresses >> 7 & 7) << 4


def image(values: Array, wide: bool, swizzle: bool) -> tuple[Array, int]:
    """Where [along, deep], two steps of 32 bytes, lies in shared memory (warpgroup.cuh), and the
    bytes from the first step to the second."""
    along, deep = np.indices(values.shape)
    size = values.dtype.itemsize
    if not swizzle:
        byte = deep * size
        places = along // 8 * 512 + byte // 16 * 128 + along % 8 * 16 + byte % 16
        step = 256
    elif wide:
        places = swizzled(along // 64 * (values.shape[1] * 128) + deep * 128 + along % 64 * size)
        step = 16 * 128
    else:
        places = swizzled(along * 128 + deep * size)
        step = 32
    memory = np.zeros(-(-(int(places.max()) + size) // 1024) * 1024 // size, values.dtype)
    memory[places // size] = values
    return memory.view(np.uint32), step


def of_warpgroup(sums: Array) -> Array:
    """Sums [64, N] as the threads of a warpgroup have them."""
    thread, i = np.indices((128, sums.shape[1] // 2))
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    return sums[row, i // 4 * 8 + thread % 4 * 2 + i % 2]


@pytest.mark.parametrize("how", WARPGROUPS, ids=lambda how: "-".join(map(str, how)))
def test_products_of_a_warpgroup(
        library: EmulatedLibrary, how: tuple[int, str, str, bool, bool, bool]) -> None:
    columns, type_a, type_b, wide_a, wide_b, swizzle = how
    depth = 64 // np.dtype(TYPES[type_a]).itemsize
    a, b = factors(1, type_a, 64, depth), factors(2, type_b, columns, depth)
    (left, step_a), (right, step_b) = image(a, wide_a, swizzle), image(b, wide_b, swizzle)
    out = np.zeros((128, 2, columns // 2), np.float32)
    library.call(expression("warpgroup_product", *how), (1,), (128,),
              shared=4 * (left.size + right.size), a=left, b=right, out=out, words_a=left.size,
              words_b=right.size, step_a=step_a, step_b=step_b,
              leading=depth * 128 if swizzle else 128, stride=1024 if swizzle else 512)
    half = depth // 2
    for part, deep in ((0, half), (1, depth)):
        wanted = as_factor(a[:, :deep]) @ as_factor(b[:, :deep]).T
        np.testing.assert_allclose(out[:, part], of_warpgroup(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ROWS, ids=lambda how: "-".join(map(str, how)))
def test_products_of_a_warpgroup_with_rows_in_registers(library: EmulatedLibrary,
                                                        how: tuple[int, str, bool]) -> None:
    columns, name, wide = how
    depth = 32 // np.dtype(TYPES[name]).itemsize
    a, b = factors(1, name, 64, depth), factors(2, name, columns, depth)
    right, _ = image(b, wide, True)
    rows = np.concatenate([fragments(a[16 * w : 16 * w + 16], np.zeros((depth, 8), a.dtype))[0]
                           for w in range(4)])
    out = np.zeros((128, columns // 2), np.float32)
    library.call(expression("warpgroup_rows", *how), (1,), (128,), shared=4 * right.size, a=rows,
              b=right, out=out, words_b=right.size, leading=depth * 128, stride=1024)
    np.testing.assert_allclose(out, of_warpgroup(as_factor(a) @ as_factor(b).T), rtol=1e-5,
                               atol=1e-5)


# -- inline PTX ------------------------------------------------------------------------------------


STATEMENT = """__global__ void k(unsigned int* x) {{
  unsigned int v = x[0], w = x[1];
  asm volatile({text} : "+r"(v) : "r"(w) : "memory");
  x[0] = v;
}}
"""


def statement(folder: Path, text: str, x: Array) -> Array:
    (folder / "k.cu").write_text(STATEMENT.format(text=text))
    Kernels(("k.cu",), ("k",), folders=(folder,)).build().call("k", (1,), (1,), x=x)
    return x


@pytest.mark.parametrize("text", [
    '"frobnicate.u32 %0, %1;"', '"mov.u32 %0, %%laneid;"', '"mov.u32 %0, %7;"',
    '"bar.sync 0;"', '"mov.u64 %0, %1;"', '"ld.relaxed.shared.u32 %0, [%1];"',
    '"cvt.rz.bf16x2.f32 %0, %1, %1;"', '"mbarrier.arrive.acquire.cta.shared::cta.b64 _, [%1];"'])
def test_an_instruction_that_is_not_known_is_refused_with_its_text(tmp_path: Path,
                                                                   text: str) -> None:
    with pytest.raises(EmulatorError, match="PTX that the emulator does not know") as found:
        statement(tmp_path, text, np.ones(2, np.uint32))
    assert text.strip('"').split(" ")[0] in str(found.value)


def test_a_statement_has_registers_and_predicates_of_its_own(tmp_path: Path) -> None:
    text = ('"{\\n.reg .pred p, q;\\n.reg .b32 t;\\nsetp.ne.b32 p, %1, 0x5;\\n"\n'
            '"setp.eq.u32 q, %1, 7;\\nmov.b32 t, 3;\\n@p mov.u32 %0, t;\\n"\n'
            '"@!p mov.u32 %0, 9;\\n@q mov.u32 %0, 11;\\n}"')
    for second, wanted in ((5, 9), (6, 3), (7, 11)):
        found = statement(tmp_path, text, np.array([1, second], np.uint32))
        assert found[0] == wanted


def test_statements_keep_their_lines() -> None:
    text = ('int a;\n// asm("no");\nasm volatile("mov.u32 %0, %%x;\\n"\n    "(:);" : "=r"(a)\n'
            '    : "r"(f(b, "x:y"))  // :\n    : "memory");\nextern __shared__ float s[];\n')
    found = for_host(text)
    assert found.count("\n") == text.count("\n")
    assert '// asm("no");' in found
    assert "::twin::output<'r'>(a)" in found
    assert "::twin::input<'r'>(f(b, \"x:y\"))" in found
    assert "float* const s = ::twin::dynamic_shared<float>(alignof(float));" in found
