"""The losses of many steps, of which each block has a part, as kernels add them up at their end: in
several rounds through shared memory that something else lay in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.plan.ops.metrics import KIND as LOSS_SUMS
from rawnn.plan.tensor import Role
from rawnn.ptx import SOURCES
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS, kernel_for
from rawnn.ptx.losses import losses
from tests import requires
from tests.ptx.emulator.emulator import EmulatedLibrary, Kernels
from tests.ptx.emulator.plans import Case, Memory, build, launch, refer

HERE = Path(__file__).resolve().parent / "emulator"
STEPS, PARTS = 20, 24


def check_losses(sources: Path = SOURCES) -> None:
    library = Kernels(("losses.cu",), ("add_up",), folders=(HERE,), sources=sources).build()
    rng = np.random.default_rng(3)
    losses = rng.standard_normal((STEPS, PARTS)).astype(np.float32)
    hits = rng.integers(0, 9, (STEPS, PARTS)).astype(np.int32)
    for seed in range(4):
        loss, right = np.zeros(STEPS, np.float32), np.zeros(STEPS, np.int32)
        library.call("add_up", (3,), (64,), shared=1600, run=seed, losses=losses, hits=hits,
                  tally=np.zeros((STEPS, PARTS, 2), np.float32), ticket=np.zeros(1, np.uint32),
                  loss=loss, right=right, steps=STEPS)
        assert np.allclose(loss, losses.sum(1), atol=1e-5)
        assert np.array_equal(right, hits.sum(1))


@requires.GXX
def test_many_parts_are_added_up_in_rounds() -> None:
    check_losses()


@requires.GXX
@pytest.mark.parametrize("left", [32, 5])
def test_the_mean_loss_of_an_epoch_is_numpys_bit_for_bit(left: int) -> None:
    """Of every number of steps around those at which NumPy sums in another way: 8, and multiples
    of it up to more than 128."""
    library = Kernels(("means.cu",), ("means",), folders=(HERE,)).build()
    generator = np.random.default_rng(8)
    for most in (300, *[20] * 12):
        # So far apart that a sum in float64 depends on its order.
        scales = 10.0 ** generator.integers(-9, 9, most)
        loss = (generator.random(most) * scales).astype(np.float32)
        found = np.full(most, np.nan)
        library.call("means", (1,), (32,), loss=loss, most=most, batch=32, left=left, mean=found)
        for steps, mean in enumerate(found.tolist(), 1):
            weights = np.full(steps, 32)
            weights[-1] = left
            assert mean == np.average(loss[:steps].astype(np.float64), weights=weights), steps


SIZES = [(rows, cols) for rows in (1, 128, 4096, 4097, 16_385, 140_000)
         for cols in (1, 10, 32, 33, 1000)]


def takes_a_workspace(key: Key) -> bool:
    entry = KERNELS[key]
    return "workspace" in entry.shapes and any(
        parameter.name == "workspace" for parameter in
        parse_kernels((SOURCES / entry.source).read_text())[entry.name].parameters)


@pytest.mark.parametrize("key", list(filter(takes_a_workspace, KERNELS)), ids=str)
def test_every_block_has_its_places_in_the_workspace(key: Key) -> None:
    """A ticket, and two numbers of each block (metrics.cuh); a block alone uses none of them."""
    entry = KERNELS[key]
    places = int(entry.shapes["workspace"][0])
    many = 0
    for rows, cols in SIZES:
        for choice in range(entry.variants({"rows": rows, "cols": cols})):
            (blocks, *_), (threads, *_) = entry.geometry(
                {"rows": rows, "cols": cols, "choice": choice})
            assert blocks == 1 or 1 + 2 * blocks <= places, (rows, cols)
            assert threads % 32 == 0
            assert threads <= 1024
            many = max(many, blocks)
    assert many == (places - 1) // 2  # the largest grid there may be


@requires.GXX
@pytest.mark.parametrize(("layers", "batch", "loss", "opt"), [
    ((20, 31), 530, "cross_entropy", "preload"), ((20, 33), 141, "cross_entropy", "preload"),
    ((20, 33), 141, "cross_entropy", "preload,fuse"), ((20, 131), 41, "mse", "preload"),
    ((20, 131), 41, "mse", "preload,fuse"), ((20, 131), 41, "bce", "preload"),
    ((20, 131), 41, "bce", "preload,fuse")])
def test_few_blocks_take_all_rows_of_a_large_batch(
        monkeypatch: pytest.MonkeyPatch, layers: tuple[int, ...], batch: int, loss: str,
        opt: str) -> None:
    """As those of the largest grid do with more rows than they have threads or warps."""
    monkeypatch.setattr(losses, "MOST_BLOCKS", 2)
    plan = Case(layers, batch, opt, steps=1, network={"loss": loss}).plan()
    memory = Memory(plan, 5)
    several = [op for op in plan.ops if {"workspace", "loss_parts"} & set(op.operands)
               and op.kind != LOSS_SUMS]
    assert several
    libraries = build([plan], tuple({kernel_for(op).name for op in several}))
    for op in plan.ops:
        wanted = refer(op, memory)
        if op in several:
            impl = kernel_for(op)
            assert impl.geometry(impl.scalars(op, plan))[0] == (2, 1, 1)
            launch(libraries[impl.source], op, memory)
        for name, _ in op.writes:
            if op not in several:
                memory.store(name, wanted[name])
            elif plan[name].role is Role.SCRATCH:
                assert memory.view(name)[0] == 0  # the ticket, for the next launch
            else:
                found, right = (each[op.slots] if plan[name].role is Role.METRIC else each
                                for each in (memory.read(name), wanted[name]))
                if found.ndim == 2 and plan[name].role is Role.METRIC:
                    found, right = found.sum(1), right.sum(1)
                np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-7, err_msg=name)


EXAMPLES, PRESENT, TALLIED = 16, 14, 15
LAYOUTS = [
    # outputs, lanes of a warp, warps and blocks that share an example, one place, all logits
    (21, 4, 1, 1, True, True), (70, 8, 1, 1, False, True), (21, 4, 1, 3, True, True),
    (21, 4, 2, 1, True, False), (70, 8, 4, 1, False, False), (140, 4, 2, 1, True, False),
    (21, 4, 1, 3, True, False), (21, 8, 1, 2, False, False), (5, 4, 1, 4, True, False),
]
"""Of a softmax of whole rows, of rows that are gathered, of warps and of blocks that share rows:
also more outputs than a lane keeps in registers, and a block without outputs."""


@pytest.fixture(scope="module")
def softmaxes() -> EmulatedLibrary:
    names = tuple("softmaxes<{},{},{},{},{},{}>".format(*(str(n).lower() for n in layout))
                  for layout in LAYOUTS)
    return Kernels(("softmaxes.cu",), names, folders=(HERE,)).build()


def rows_and_labels(outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose parts have maxima far apart, so far that a label's probability is 0 in float32,
    all far below 0 or above it, equal ones, infinite ones, and one that is no number; labels of all
    kinds, also such as are none."""
    rng = np.random.default_rng(outputs)
    z = rng.normal(size=(EXAMPLES, outputs)).astype(np.float32)
    for example in range(6):  # any part has the largest, by far or by little
        z[example, rng.integers(outputs)] += (1.0, 8.0, 30.0)[example % 3]
    z[3, 0] -= 400  # below its own part
    z[4, : outputs // 2] += 300  # above the last part
    z[6] -= 1000
    z[7] += 1000
    z[8] = -2.5
    z[9, outputs // 2] = np.nan
    labels = rng.integers(0, outputs, EXAMPLES).astype(np.int32)
    labels[:3] = z[:3].argmax(1)
    labels[3:9] = 0, outputs - 1, outputs, outputs + 1, -1, 0
    labels[9:13] = 0, 255, 1 << 20, outputs
    z[10, : outputs // 2] = -np.inf  # of some parts all
    z[13, [1, outputs - 1]] = 9  # of which the first counts
    labels[13] = outputs - 1
    return z, labels


@requires.GXX
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_softmax_is_the_same_however_it_is_shared(softmaxes: EmulatedLibrary,
                                                    layout: tuple[Any, ...]) -> None:
    """dz = (p - onehot(label)) * share and the label's probability, or its logarithm where float32
    does not hold it, as float64 has them. A label that is none has no one, and a probability that
    is no number."""
    outputs, _, warps, blocks, one, whole = layout
    z, labels = rows_and_labels(outputs)
    wide = z.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True))
    p = powers / powers.sum(1, keepdims=True)
    ones = labels[:, None] == np.arange(outputs)
    wanted = np.where(np.arange(EXAMPLES)[:, None] < PRESENT, (p - ones) * 0.25, 0.0)
    of_label = np.where(ones.any(1), np.where(ones, p, 0).sum(1), np.nan)
    of_label[9] = np.nan
    tiny = of_label < np.finfo(np.float32).tiny
    assert tiny.sum() == 2
    of_label[tiny] = np.log(of_label[tiny])
    dz = np.full_like(z, 7)
    probability = np.full((blocks, EXAMPLES), 7, np.float32)
    right = np.full((blocks, EXAMPLES), 7, np.int32)
    floats = (1 + whole) * 20 * outputs + EXAMPLES * blocks * (4 * warps + 4 + 2)
    name = "softmaxes<{},{},{},{},{},{}>".format(*(str(n).lower() for n in layout))
    softmaxes.call(name, (1,), (128,), shared=4 * floats, logits=z, labels=labels, dz=dz,
                   probability=probability, right=right, present=PRESENT, share=0.25,
                   tallied=TALLIED)
    np.testing.assert_allclose(dz, wanted, rtol=1e-5, atol=1e-7)
    rows = [0] if one else range(blocks)
    assert (probability[:, TALLIED:] == 7).all()
    assert (probability[1:] == 7).all() or not one
    found, hits = probability[rows, :TALLIED], right[rows, :TALLIED]
    if len(rows) > 1 and not whole:  # all but one of the blocks have nothing of a label
        assert ((found == 1) & (hits == 0)).sum(axis=0).min() >= blocks - 1
    found, hits = (found.prod(axis=0), hits.sum(axis=0)) if not whole else (found[0], hits[0])
    np.testing.assert_allclose(found[:PRESENT], of_label[:PRESENT], rtol=1e-5)
    np.testing.assert_array_equal(hits[:PRESENT], (p.argmax(1) == labels)[:PRESENT])
    np.testing.assert_array_equal((found[PRESENT:], hits[PRESENT:]), ([1.0], [0]))
