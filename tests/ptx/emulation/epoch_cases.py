"""What the kernels of data and of epochs must do, as checks on an Emulator: bit for bit NumPy where
they draw random numbers or move data, within rounding where they compute rates.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import linear_cases
import numpy as np
from emulated_arrays import DTYPES, EPS, STEP, UNTOUCHED, metrics
from emulated_kernels import Emulator
from linear_cases import threads_for

from rawnn.common import random
from rawnn.model.schedules import SCHEDULE_SPECS, functor, parse
from rawnn.plan.ops.epoch import MAX_STEPS, count_after
from rawnn.plan.ops.members import member_words

GATHERS = (
    *(("unsigned char", x, "unsigned char") for x in DTYPES if "float" in x),
    ("unsigned char", "float", "int"),
    ("float", "float", "int"),
    ("float", "bfloat16", "unsigned char"),
    ("float16", "float16", "unsigned char"),
    ("float16", "float", "int"),
)
INITIALISED = ("float", "float16", "bfloat16")
FILES = (
    "epoch_probe", "elementwise/gather", "elementwise/cursor", "elementwise/while",
    "elementwise/shuffle", "elementwise/epoch_boundary", "elementwise/schedule",
    "elementwise/initialise", "optimizers/loss_scale", "fused/linear",
)  # fmt: skip
EXPRESSIONS = (
    *(f"gather<{','.join(types)}>" for types in GATHERS),
    "advance",
    "tick",
    "advance_while",
    "shuffle",
    "epoch_boundary",
    *(f"schedule<{functor(kind)}>" for kind in SCHEDULE_SPECS),
    *(f"initialise<{t}>" for t in INITIALISED),
    *(f"member_schedule<{functor(kind)}>" for kind in SCHEDULE_SPECS),
    *(f"initialise_members<{t}>" for t in INITIALISED),
    "adjust_scale",
    "draw_words",
    "draw_rounding", "round_values", "place_elements",
    *linear_cases.EXPRESSIONS,
)
UNALIGNED = 1  # elements by which a matrix is moved off its alignment


def raw(array: np.ndarray) -> np.ndarray:
    """The array's bytes, element by element."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, array.itemsize)


def matrix(rows: int, cols: int, pitch: int, dtype: Any, shift: int = 0) -> np.ndarray:
    """A [rows, cols] view with `pitch`, of bytes 0x5a, aligned to 16 bytes but for `shift`."""
    itemsize = np.dtype(dtype).itemsize
    count = rows * pitch + shift
    buffer = np.full(count * itemsize, 0x5A, np.uint8)  # no byte more: what is read behind it shows
    if buffer.ctypes.data % 16:
        buffer = np.full(count * itemsize + 16, 0x5A, np.uint8)
    begin = -buffer.ctypes.data % 16
    flat = buffer[begin : begin + count * itemsize].view(dtype)
    return flat[shift:].reshape(rows, pitch)[:, :cols]


def pitch(array: np.ndarray) -> int:
    return array.strides[0] // array.itemsize


def padding_untouched(array: np.ndarray) -> None:
    used = array.view(np.uint8)  # ml_dtypes' types cannot be strided
    shape = (len(used) - 1, used.strides[0])
    whole = np.lib.stride_tricks.as_strided(used, shape, used.strides)
    assert (whole[:, used.shape[1] :] == 0x5A).all(), "a kernel wrote into padding columns"


class Batch:
    """One gather of step STEP on random data."""

    def __init__(
        self, rng: np.random.Generator, types: tuple[str, str, str], batch: int, features: int,
        layout: str, outputs: int = 3,
    ) -> None:
        """`layout`: "packed", "pitched" (rows of whole quads) or "shifted" (nothing aligned)."""
        images, x, labels = (DTYPES[t] for t in types)
        self.types, self.batch, self.features, self.outputs = types, batch, features, outputs
        wide = {"packed": features, "pitched": -(-features // 16) * 16 + 16,
                "shifted": features + 3}[layout]  # fmt: skip
        of_targets, of_t = {"packed": (outputs, outputs), "shifted": (outputs + 2, outputs + 1),
                            "pitched": (-(-outputs // 4) * 4, -(-outputs // 4) * 4 + 4)}[layout]
        shift = UNALIGNED if layout == "shifted" else 0
        self.stride = batch + 2  # other ranks' rows lie between
        examples = STEP * self.stride + batch
        self.images = matrix(examples, features, wide, images, shift)
        self.images[:] = (rng.integers(0, 256, self.images.shape) if images is np.uint8
                          else rng.standard_normal(self.images.shape)).astype(images)
        self.labels = rng.integers(0, 200, examples).astype(labels)
        self.targets = matrix(examples, outputs, of_targets, np.float32, shift)
        self.targets[:] = rng.standard_normal(self.targets.shape)
        self.order = rng.permutation(examples).astype(np.int32)
        padded = matrix(2, features, -(-features // 4) * 4, np.float32)
        padded[:] = rng.standard_normal(padded.shape)
        self.mean, self.inverse_std = padded
        self.x = matrix(batch, features, wide, x, shift)
        self.y = np.full(batch, UNTOUCHED, np.int32)
        self.t = matrix(batch, outputs, of_t, np.float32, shift)

    def run(
        self, emulator: Emulator, ordered: bool, labelled: bool, targeted: bool, mean: bool,
        inverse_std: bool,
    ) -> None:
        cursor, _, _ = metrics()
        scale = 1 / 255
        given: dict[str, np.ndarray | bool] = {
            "order": ordered and self.order, "mean": mean and self.mean,
            "inverse_std": inverse_std and self.inverse_std,
            "labels": labelled and self.labels, "y": labelled and self.y,
            "targets": targeted and self.targets, "t": targeted and self.t,
        }  # fmt: skip
        emulator.call(
            f"gather<{','.join(self.types)}>", (2,), (threads_for(emulator, 96),),
            images=self.images, ldimages=pitch(self.images), ldtargets=pitch(self.targets),
            cursor=cursor, offset=2, stride=self.stride, scale=scale, x=self.x, ldx=pitch(self.x),
            ldt=pitch(self.t), batch=self.batch, features=self.features,
            outputs=self.outputs if targeted else 0,
            **{name: array for name, array in given.items() if array is not False},
        )  # fmt: skip
        rows: slice | np.ndarray = slice(STEP * self.stride, STEP * self.stride + self.batch)
        if ordered:
            rows = self.order[rows]
        expected = self.images[rows].astype(np.float32) * np.float32(scale)
        if mean:
            expected = expected - self.mean
        if inverse_std:
            expected = expected * self.inverse_std
        # One rounding at a time, as in the emulation: equal to the bit, the last rounding too.
        stored = self.x.dtype
        if stored == DTYPES["float8_e4m3"]:
            expected = np.clip(expected, -448, 448)
        assert np.array_equal(raw(self.x), raw(expected.astype(stored)))
        padding_untouched(self.x)
        if labelled:
            assert np.array_equal(self.y, self.labels[rows])
        else:
            assert (self.y == UNTOUCHED).all()
        if targeted:
            assert np.array_equal(self.t, self.targets[rows])
            padding_untouched(self.t)


def check_gather(emulator: Emulator, rng: np.random.Generator) -> None:
    """Every combination of types at one shape and of operands at another; ragged batches and
    features with and without rows that allow wide accesses."""
    for types in GATHERS:
        for layout in ("packed", "pitched", "shifted"):
            Batch(rng, types, 3, 53, layout).run(emulator, True, True, False, True, True)
    first = GATHERS[0]
    for operands in itertools.product((False, True), repeat=5):
        Batch(rng, first, 5, 8, "packed").run(emulator, *operands)
    for batch, features in itertools.product((1, 33), (1, 4, 31, 64)):
        for layout, ordered in itertools.product(("packed", "pitched", "shifted"), (False, True)):
            if not emulator.quick or batch * features < 40:
                made = Batch(rng, first, batch, features, layout)
                made.run(emulator, ordered, True, True, False, False)
    for outputs, layout in itertools.product((1, 4, 37), ("packed", "pitched", "shifted")):
        made = Batch(rng, GATHERS[-2], 7, 5, layout, outputs)  # more targets than inputs
        made.run(emulator, True, False, True, True, False)
    if not emulator.quick:  # several pieces a thread, and more labels than threads
        for outputs in (2, 129):
            Batch(rng, first, 300, 2, "pitched", outputs).run(emulator, True, True, True, False,
                                                              False)


def check_cursor(emulator: Emulator, rng: np.random.Generator) -> None:
    cursor = np.array([5], np.int32)
    emulator.call("advance", (1,), (1,), cursor=cursor, steps=3)
    assert cursor[0] == 8
    for end, again in ((11, 0), (12, 1)):
        flag, cursor = np.array([9], np.uint32), np.array([8], np.int32)
        emulator.call("advance_while", (1,), (1,), cursor=cursor, steps=3, end=end,
                      handle=flag.ctypes.data)  # fmt: skip
        assert (cursor[0], flag[0]) == (11, again)
    clock = np.array([2, 936], np.int32)
    emulator.call("tick", (1,), (1,), clock=clock, steps=468)
    assert list(clock) == [3, 1404]
    for before in (MAX_STEPS - 469, MAX_STEPS - 468, MAX_STEPS - 1):
        clock = np.array([2, before], np.int32)
        emulator.call("tick", (1,), (1,), clock=clock, steps=468)
        assert list(clock) == [3, count_after(before + 468)]
    clock = np.array([2, MAX_STEPS - 1], np.int32)
    emulator.call("tick", (1,), (1,), clock=clock, steps=2**31 - 1)
    assert list(clock) == [3, count_after(MAX_STEPS + 2**31 - 2)]


def check_places(emulator: Emulator, rng: np.random.Generator) -> None:
    """Of elements of matrices with more elements than 32 bits count."""
    matrix = np.zeros(16, np.uint8)
    for ld, row, column in ((16, 3, 5), (70_000, 70_000, 69_999), (2**31 - 1, 2**30, 7)):
        places = np.zeros(33, np.uint64)
        emulator.launch("place_elements", (1,), (33,), places, matrix, ld, row, column)
        assert places.tolist() == [(row + i) * ld + column for i in range(33)]


def check_philox(emulator: Emulator, rng: np.random.Generator) -> None:
    for seed, stream, counter, purpose in (
        (0, 0, 0, 0), (2**64 - 1, 2**32 - 1, 2**64 - 40, 2**32 - 1), (1 << 40 | 7, 3, 2**32 - 5, 2),
    ):  # fmt: skip
        words = np.zeros((33, 4), np.uint32)
        emulator.launch("draw_words", (1,), (33,), words, ctypes.c_ulonglong(seed),
                        ctypes.c_uint(stream), ctypes.c_ulonglong(counter),
                        ctypes.c_uint(purpose))  # fmt: skip
        counters = np.arange(33, dtype=np.uint64) + np.uint64(counter)
        assert np.array_equal(words, random.philox(seed, stream, counters, purpose))


def check_rounding_bits(emulator: Emulator, rng: np.random.Generator) -> None:
    for seed, stream, step, first in (
        (0, 0, 0, 0), (1 << 40 | 7, 5, 2**31 - 1, 13), (2**64 - 1, 2**32 - 1, 1, 2**32 - 33),
    ):  # fmt: skip
        alone, grouped = np.zeros(33, np.uint32), np.zeros(33, np.uint32)
        emulator.launch("draw_rounding", (1,), (33,), alone, grouped, ctypes.c_ulonglong(seed),
                        ctypes.c_uint(stream), step, ctypes.c_uint(first))  # fmt: skip
        expected = random.rounding_bits(seed, stream, step, np.arange(first, first + 33))
        assert np.array_equal(alone, expected)
        assert np.array_equal(grouped, expected)


ODD = np.array([0x7f800000, 0xff800000, 0x7fffffff, 0x7fc00000, 0xffc00000, 0x7f7fffff, 0xff7fffff,
                0x7f7f0000, 0x00000001, 0x80000000, 0x0000ffff], np.uint32)
"""Infinities, the NaNs that a GPU and a host make, the largest numbers, the smallest."""


def check_stochastic_rounding(emulator: Emulator, rng: np.random.Generator) -> None:
    """Eight at once are rounded each by its own bits, whichever element they begin at."""
    seed, stream, step, first, threads = 1 << 40 | 7, 5, 3, 2**32 - 512, 33
    values = rng.standard_normal((threads, 8)).astype(np.float32)
    odd = rng.random(values.shape) < 0.3
    values.view(np.uint32)[odd] = rng.choice(ODD, odd.sum())
    rounded = np.zeros((threads, 8), np.uint16)
    emulator.launch("round_values", (1,), (threads,), values, rounded, ctypes.c_ulonglong(seed),
                    ctypes.c_uint(stream), step, ctypes.c_uint(first))
    elements = first + 9 * np.arange(threads)[:, None] + np.arange(8)
    drawn = random.rounding_bits(seed, stream, step, elements).astype(np.uint64)
    expected = ((values.view(np.uint32) + drawn) >> np.uint64(16)).astype(np.uint16)
    nan = np.isnan(values)
    assert np.array_equal(rounded[~nan], expected[~nan])
    assert np.isnan((rounded.astype(np.uint32) << 16).view(np.float32)[nan]).all()


def check_initialise(emulator: Emulator, rng: np.random.Generator) -> None:
    seed = 1 << 50 | 99
    for kind in INITIALISED:
        for rows, cols, bound in ((1, 1, 0.5), (1, 67, 2.0), (7, 33, 1 / 28), (40, 3, 0.0)):
            w = matrix(rows, cols, cols + 2, DTYPES[kind])
            emulator.call(f"initialise<{kind}>", (2,), (32,), w=w, ldw=pitch(w), rows=rows,
                          cols=cols, seed=seed, stream=4, bound=bound)  # fmt: skip
            drawn = random.uniform(seed, 4, rows * cols, bound).reshape(rows, cols)
            # Zeros are +0: the bits are compared.
            assert np.array_equal(raw(w), raw((drawn + np.float32(0)).astype(w.dtype)))
            padding_untouched(w)


def members_of(count: int, lr: float = 0.3) -> np.ndarray:
    """The table of so many members, each with a seed and a schedule of its own."""
    texts = ("cosine:0.01", "warmup:2,cosine")
    return np.stack([member_words((1 << 50 | 99) + i, 0, parse(texts[i % 2]).resolve(
        lr * (1 + i), 50, 6), [0.1 * i]) for i in range(count)])


def check_initialise_members(emulator: Emulator, rng: np.random.Generator) -> None:
    members = members_of(3)
    for kind in INITIALISED:
        for rows, cols, bound in ((1, 67, 2.0), (7, 33, 1 / 28), (4, 3, 0.0)):
            w = matrix(3 * rows, cols, cols + 2, DTYPES[kind])
            emulator.call(f"initialise_members<{kind}>", (2, 2), (32,), w=w, ldw=pitch(w),
                          members=members, ldmembers=members.shape[1], networks=3, rows=rows,
                          cols=cols, stream=4, bound=bound)  # fmt: skip
            drawn = np.stack([random.uniform((1 << 50 | 99) + i, 4, rows * cols, bound)
                              for i in range(3)]).reshape(3 * rows, cols)
            assert np.array_equal(raw(w), raw((drawn + np.float32(0)).astype(w.dtype)))
            padding_untouched(w)


def check_member_schedule(emulator: Emulator, rng: np.random.Generator) -> None:
    """Of three members the last and the first are active."""
    members = members_of(3)
    clock, active = np.array([0, 0, 5, 73, 1, 290], np.int32), np.array([2, 0], np.int32)
    for kind in SCHEDULE_SPECS:
        rates = np.full(151, np.nan, np.float32)
        emulator.call(f"member_schedule<{functor(kind)}>", (2, 1), (32,), active=active,
                      members=members, ldmembers=members.shape[1], clock=clock, rates=rates,
                      launched=2, networks=3, steps=50)  # fmt: skip
        for i in (0, 2):
            text = ("cosine:0.01", "warmup:2,cosine")[i % 2]
            made = replace(parse(text).resolve(0.3 * (1 + i), 50, 6), kind=kind)
            expected = made.rates(int(clock[2 * i + 1]), 50)
            assert np.abs(rates[50 * i:50 * i + 50] - expected).max() <= 4 * EPS * 0.9
        assert np.isnan(rates[50:100]).all()
        assert np.isnan(rates[150])


def check_shuffle(emulator: Emulator, rng: np.random.Generator) -> None:
    counts = (1, 2, 5, 64, 65) if emulator.quick else (1, 2, 3, 5, 16, 17, 65, 1000, 4097)
    for count, seed, epoch in itertools.product(counts, (3, 1 << 40 | 7), (0, 9)):
        clock, order = np.array([epoch, 77], np.int32), np.full(count + 1, UNTOUCHED, np.int32)
        for ahead in (0, 1):
            emulator.call("shuffle", (3,), (32,), clock=clock, order=order, seed=seed, count=count,
                          ahead=ahead)  # fmt: skip
            assert np.array_equal(order[:count], random.permutation(seed, epoch + ahead, count))
        order[...] = UNTOUCHED
        emulator.call("epoch_boundary", (3,), (32,), clock=clock, order=order, seed=seed,
                      count=count, steps=468, offset=epoch)  # fmt: skip
        assert np.array_equal(order[:count], random.permutation(seed, epoch, count))
        assert order[count] == UNTOUCHED
        assert clock.tolist() == [epoch + 1, 545]


def check_schedule(emulator: Emulator, rng: np.random.Generator) -> None:
    for text in ("constant", "warmup:1.5,constant", "step:0.5:0.7", "warmup:2,step:1:0.1", "cosine",
                 "cosine:0.01", "warmup:2,cosine:0.01"):  # fmt: skip
        made = parse(text).resolve(0.3, 50, 6)
        for first in (0, 73, 250, 290, 3000):
            clock, rates = np.array([5, first], np.int32), np.full(51, np.nan, np.float32)
            scalars = made.attributes()
            emulator.call(f"schedule<{functor(str(scalars.pop('kind')))}>", (1,), (32,),
                          clock=clock, rates=rates, **scalars)  # fmt: skip
            expected = made.rates(first, 50)
            if made.kind == "cosine":
                assert np.abs(rates[:50] - expected).max() <= 4 * EPS * 0.3
            else:
                assert np.array_equal(rates[:50], expected)
            assert np.isnan(rates[50])


def check_loss_scale(emulator: Emulator, rng: np.random.Generator) -> None:
    for overflow, scale, good, after in (
        (0, 1024, 0, (1024, 1)),
        (0, 1024, 2, (2048, 0)),  # the third good step
        (1, 1024, 2, (512, 0)),
        (1, 1, 1, (1, 0)),
        (1, 1.5, 1, (1, 0)),
        (0, 2.0**24, 2, (2.0**24, 0)),
        (0, 1.5 * 2.0**23, 2, (2.0**24, 0)),
        (-5, 2, 0, (1, 0)),
    ):
        flag, state = np.array([overflow], np.int32), np.array([scale, good], np.float32)
        emulator.call("adjust_scale", (2,), (32,), overflow=flag, loss_scale=state, growth=3)
        assert tuple(state) == after
        assert flag[0] == 0


CHECKS: dict[str, Callable[[Emulator, np.random.Generator], None]] = {
    name.removeprefix("check_"): function
    for name, function in sorted({**globals(), **vars(linear_cases)}.items())
    if name.startswith("check_")
}
