"""The tiles that are chosen for sampled GEMMs, and the cycles predicted of all others."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rawnn.common.target import Target, gpu_named
from rawnn.ptx.gemm import mma, skinny, tiled
from rawnn.ptx.gemm.tiles import GemmShape, Tile
from tests.records import Lines, outcome, record, short
from tests.records.sampled import Draw

GPUS = ("H200", "H200", "A100", "L40", "B200", "RTX 4090")


def spelled(tile: Tile) -> str:
    return (
        f"{tile.bm}x{tile.bn}/{tile.wm}x{tile.wn}x{tile.wk}s{tile.stages}c{tile.cluster}"
        f"b{tile.bytes}"
    )


@record
def gemms() -> Lines:
    draw = Draw(7)
    for number in range(100):
        size = draw.one_of((2, 2, 4, 4, 4, 1))
        layout = draw.one_of(("nt", "nn", "tn")) if size > 1 else "nt"
        m, n, k = (draw.size(3, 9000) for _ in range(3))
        if number % 3:
            m, n, k = (-(-x // 32) * 32 for x in (m, n, k))
        if number % 8 == 7:  # few examples: updates and products that stream their weights
            m, k = (m, draw.size(3, 64)) if layout == "tn" else (draw.size(3, 64), k)
        rows = number % 10 == 9 and layout == "nt"
        p = GemmShape(
            layout,
            m,
            draw.size(3, 100) if rows else n,
            k,
            size,
            draw.one_of((1, 3)) if size == 4 else 1,
            rows,
        )
        target = gpu_named(draw.one_of(GPUS))
        yield (
            f"{layout} {p.m} {p.n} {k} of {size} bytes, {p.times}x{' rows' * rows}, "
            f"{target.name}: " + ", ".join(tiles(p, target))
        )
    for m, n, k in (
        (3, 2048, 2048),
        (8, 5000, 700),
        (32, 4096, 4096),
        (64, 1024, 9000),
        (50, 8192, 1024),
        (16, 512, 4096),
    ):
        for gpu in ("H200", "B200"):
            target = gpu_named(gpu)
            yield (
                f"skinny {m} {n} {k} {gpu}: {short(skinny.choose_nt(target, m, n, k))}; "
                + "; ".join(
                    outcome(
                        lambda: skinny.choose_backward(
                            target, m, n, k, size, gradient=gradient, update=update
                        )
                    )
                    for size in (2, 4)
                    for gradient, update in ((True, True), (True, False), (False, True))
                )
            )


BOUNDS = sorted({max(2**i + j, 1) for i in range(2, 14) for j in (-1, 0, 1)})
"""Extents on both sides of powers of two, at which most rules change their answer."""


@record
def gemms_at_bounds() -> Lines:
    """What is chosen as one extent grows: each answer, and the extent up to which it holds."""
    for gpu in ("H200", "A100"):
        target = gpu_named(gpu)
        for layout, size, times, sides in (
            ("nt", 4, 1, (96, 200, 784)),
            ("nn", 4, 3, (512, 300, 64)),
            ("tn", 4, 1, (700, 80, 128)),
            ("nt", 2, 1, (128, 512, 600)),
            ("tn", 2, 1, (1000, 130, 40)),
            ("nt", 1, 1, (256, 256, 256)),
        ):
            for side in range(3):
                answers: dict[str, list[tuple[int, str]]] = {}
                for extent in BOUNDS:
                    m, n, k = (extent if i == side else x for i, x in enumerate(sides))
                    for name, answer in answers_of(GemmShape(layout, m, n, k, size, times), target):
                        found = answers.setdefault(name, [])
                        if found and found[-1][1] == answer:
                            found.pop()
                        found.append((extent, answer))
                shown = "x".join("*" if i == side else str(x) for i, x in enumerate(sides))
                for name, found in answers.items():
                    until = ", ".join(f"{answer} to {extent}" for extent, answer in found)
                    yield f"{gpu} {layout} {size} {times}x {shown} {name}: {until}"


def answers_of(p: GemmShape, target: Target) -> Iterator[tuple[str, str]]:
    yield "tiled", spelled(tiled.choose(p, target))
    yield "mma", spelled(mma.PREDICTED["mma"][0](p, target))
    if target.has("wgmma") and p.size > 1:
        yield "by wgmma", str(mma.wgmma_is_faster(p, target))
        yield "scaled", str(mma.scaled_is_faster(p, target))
    yield "streams", str(mma.streams_weights(p, target))


def tiles(p: GemmShape, target: Target) -> Lines:
    """What each family would take, with its cycles, and the mean of the cycles of all its tiles."""
    yield f"tiled {spelled(tiled.choose(p, target))}" if not p.rows else "spans rows"
    hopper = target.has("wgmma")
    families = {"mma": [*mma.TILES, *mma.ROWS]}
    if hopper and p.size < 4 and (p.size == 2 or p.layout == "nt"):
        families["wgmma"] = [*mma.WGMMA_TILES]
    if hopper and p.size == 4:
        families["wgmma_tf32"] = mma._tiles_wgmma_tf32(p)
        if p.times == 3:
            families["wgmma_scaled"] = [*mma.SCALED_TUNE_TILES]
    for name, every in families.items():
        choose, cycles = mma.PREDICTED[name]
        tile = choose(p, target)
        finite = [c for c in (cycles(p, t, target) for t in every) if math.isfinite(c)]
        yield (
            f"{name} {spelled(tile)} {short(cycles(p, tile, target))} of {len(finite)} with a "
            f"mean of {short(sum(finite) / max(len(finite), 1))}"
        )
        assert mma.predicted(name, p, target) == cycles(p, tile, target)
    if hopper and p.size > 1:
        yield f"by wgmma {mma.wgmma_is_faster(p, target)}"
        yield f"scaled {mma.scaled_is_faster(p, target)}"
    yield f"streams {mma.streams_weights(p, target)}"
