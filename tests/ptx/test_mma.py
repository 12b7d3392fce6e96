"""mma.cu, wgmma.cu and tiled.cu compile for what they are for, without spills, and are refused
elsewhere. Needs NVRTC but no GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from rawnn import ptx
from rawnn.common.errors import CompileError, ConfigError
from rawnn.common.target import KNOWN, Target, known
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.compiling.resources import spills
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.opts.mma import resolve
from rawnn.opts.registry import Machine
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.gemm.mma import (
    TILES,
    WGMMA_TILES,
    choose,
    choose_wgmma,
    choose_wgmma_scaled,
    choose_wgmma_tf32,
    scaled_is_faster,
    streams_weights,
    wgmma_is_faster,
)
from rawnn.ptx.gemm.tile_cost import shared
from rawnn.ptx.gemm.tiled import choose as choose_tiled
from rawnn.ptx.gemm.tiles import GemmShape, Tile, with_partial_sums
from rawnn.ptx.kernels import kernel_for
from tests.engine import CAPABLE, step_plan
from tests.ptx.architectures import installed_nvrtc, some, some_instances, supported
from tests.slices import sliced

DEEP = Network((784, 784, 784, 10))
FAMILIES = {"tiled": "gemm/tiled.cu", "mma": "gemm/mma.cu", "wgmma": "gemm/wgmma.cu",
            "wgmma_tf32": "gemm/wgmma_tf32.cu", "wgmma_scaled": "gemm/wgmma_scaled.cu"}
ARCHITECTURES = {"tiled": ("sm_75", "sm_80", "sm_90", "sm_120"),
                 "mma": ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
                 "wgmma": ("sm_90a",), "wgmma_tf32": ("sm_90a",),
                 "wgmma_scaled": ("sm_90a",)}
FP8 = (
    "gemm_nt<Mma,float8_e4m3,float8_e4m3,bfloat16,true,Relu,None,bfloat16,float,64,64,2,2,"
    "1,4,1,128,true>",
    "gemm_nn<Mma,float8_e5m2,float8_e4m3,float8_e5m2,false,None,Relu,float8_e4m3,float,64,"
    "64,2,2,1,4,1,128,true>",
    "gemm_update<Mma,float8_e5m2,float8_e4m3,float,float8_e4m3,true,float,64,64,2,2,1,2,1,"
    "128,true>",
)
FP8_WGMMA = (
    "gemm_nt<Wgmma,float8_e4m3,float8_e4m3,bfloat16,true,Relu,None,bfloat16,float,128,128,"
    "8,1,1,5,1,128,true>",
)
OPTIMIZERS = (
    "gemm_momentum<Mma,float,float,float,float,true,tf32x3,32,32,1,1,4,4,1,256,true>",
    "gemm_adam<Mma,float,float,float,float,true,tf32x3,64,64,2,2,2,4,1,128,true>",
    "gemm_adam<Mma,bfloat16,bfloat16,float,bfloat16,true,float,16,32,1,1,8,4,1,256,true>",
)
OPTIMIZERS_TF32 = (
    "gemm_momentum<WgmmaTf32,float,float,float,float,false,float,128,128,8,1,1,3,1,128,true>",
    "gemm_adam<WgmmaTf32,float,float,float,float,true,tf32x3,128,64,8,1,1,3,4,128,true>",
)
OPTIMIZERS_SCALED = (
    "gemm_momentum<WgmmaScaled,float,float,float,float,true,f16x3,128,64,8,1,1,3,2,128,true>",
    "gemm_adam<WgmmaScaled,float,float,float,float,true,f16x3,128,128,8,1,1,3,4,128,true>",
    "gemm_nn<WgmmaScaled,float,float,float,false,None,Relu,float,f16x3,128,128,8,1,1,3,1,128,"
    "false>",
)
OPTIMIZERS_WGMMA = (
    "gemm_momentum<Wgmma,float16,float16,float,float16,false,float,64,64,4,1,1,6,1,128,true>",
    "gemm_adam<Wgmma,bfloat16,bfloat16,float,bfloat16,true,float,256,128,16,1,1,4,1,128,true>",
)
CLUSTERS_SYNC = (
    "gemm_nt<Mma,float,float,float,true,Gelu,None,float,tf32x3,16,32,1,1,8,4,4,256,true>",
    "gemm_adam<Mma,float,float,float,float,true,tf32x3,32,32,1,1,8,3,2,256,true>",
    "gemm_update<Mma,bfloat16,bfloat16,float,bfloat16,true,float,64,64,2,2,2,4,4,128,true>",
)
CLUSTERS = (
    "gemm_adam<Wgmma,bfloat16,bfloat16,float,bfloat16,true,float,128,128,8,1,1,4,2,128,true>",
    "gemm_nt<Wgmma,bfloat16,bfloat16,bfloat16,true,Relu,None,bfloat16,float,64,64,4,1,1,6,"
    "2,128,true>",
)


def instances(opt: str, batch: int, impl: str) -> Iterator[tuple[Op, Plan, str]]:
    """The ops of one step that `impl` computes, and their kernels."""
    plan, _ = select(f"none,{opt}", DEEP, 4, CAPABLE).apply(step_plan(DEEP, batch, 4 * batch))
    for op in plan.ops:
        if op.impl == impl:
            yield op, plan, kernel_for(op).expression(op, plan)


def expressions(impl: str) -> tuple[str, ...]:
    opts = {"tiled": ("preload,tiled,fuse", "preload,tiled,bf16,sr,fuse"),
            "mma": ("preload,mma=sync,bf16,fuse", "preload,mma=sync,tf32,fuse",
                    "preload,mma=sync,fuse", "preload,mma=sync,fp16"),
            "wgmma": ("preload,mma,bf16,fuse",),
            "wgmma_tf32": ("preload,mma=-scaled,fuse", "preload,mma=-scaled,tf32,fuse"),
            "wgmma_scaled": ("preload,mma,fuse",)}[impl]
    batches = {"tiled": (64, 1024), "mma": (64, 1024), "wgmma": (1024, 4096),
               "wgmma_tf32": (4096,), "wgmma_scaled": (4096,)}[impl]
    return tuple(dict.fromkeys(e for opt in opts for batch in batches
                               for _, _, e in instances(opt, batch, impl)))


def built(impl: str, arch: str, wanted: tuple[str, ...]) -> Compiled:
    source = FAMILIES[impl]
    return compile_source(installed_nvrtc(), (ptx.SOURCES / source).read_text(), name=source,
                          arch=arch, expressions=wanted, programmatic=arch.startswith("sm_9"),
                          options=("--ptxas-options=-v",))


def _second(expression: str) -> str:
    return "b" if expression.startswith(("gemm_nt", "gemm_nn", "gemm_loss")) else "x"


@pytest.mark.parametrize(("impl", "arch"), [(i, a) for i, archs in ARCHITECTURES.items()
                                            for a in some(i, archs)])
def test_compiles_without_spills(impl: str, arch: str) -> None:
    supported(arch)
    wanted = expressions(impl)
    if impl == "mma" and arch not in ("sm_80", "sm_86"):
        wanted += FP8
    if impl == "mma":
        wanted += OPTIMIZERS
        wanted += CLUSTERS_SYNC if arch == "sm_90" else ()
    if impl == "wgmma":
        wanted += FP8_WGMMA + OPTIMIZERS_WGMMA + CLUSTERS
    if impl == "wgmma_tf32":
        wanted += OPTIMIZERS_TF32
    if impl == "wgmma_scaled":
        wanted += OPTIMIZERS_SCALED
    wanted = some_instances(f"{impl}, {arch}", wanted)
    compiled = built(impl, arch, wanted)
    assert "warning" not in compiled.log, compiled.log
    assert "serialized" not in compiled.log, compiled.log  # products that wait for each other
    spilled = spills(compiled.log)
    for expression in wanted:
        stored, loaded = spilled[compiled.lowered[expression]]
        # A few words of what is read once a block, for more blocks at a time.
        words = 48 if "f16x3" in expression else 24 if "tf32x3" in expression else 5 if impl in (
            "tiled", "wgmma_tf32", "wgmma_scaled") or arch in ("sm_100", "sm_120") else 2
        assert stored + loaded <= 4 * words, expression
        if compiled.proofs:
            assert compiled.proofs[expression].waits, compiled.proofs[expression].reason
            assert compiled.proofs[expression].ordered
            # The second operand's first tiles, where the last parameter says so.
            early = expression.endswith((",true,true>", ",false,true>"))
            found = set(compiled.proofs[expression].early)
            assert found - _of_the_step(impl, expression) == (
                {_second(expression)} if early else set())


def _of_the_step(impl: str, expression: str) -> set[str]:
    """What says which step it is, where a kernel asks for it as early."""
    plain = expression.startswith(("gemm_nt", "gemm_nn", "gemm_tn"))
    if plain or impl in ("tiled", "wgmma_tf32", "wgmma_scaled"):
        return set()
    return {"cursor"} if expression.startswith("gemm_loss") else {"cursor", "rates", "clock"}


CUT = [("mma", "Mma", tile) for tile in TILES if tile.cluster > 1] + \
    [("wgmma", "Wgmma", tile) for tile in WGMMA_TILES if tile.cluster > 1]


@pytest.mark.parametrize(("impl", "loop", "tile"), sliced(CUT, 3))
def test_kernels_take_every_tile_of_a_cluster(impl: str, loop: str, tile: Tile) -> None:
    """Forward, and an update with its bias."""
    numbers = ",".join(str(number) for number in tile.scalars().values())
    wanted = (f"gemm_nt<{loop},bfloat16,bfloat16,bfloat16,true,Relu,None,bfloat16,float,"
              f"{numbers},true>",
              f"gemm_update<{loop},bfloat16,bfloat16,float,bfloat16,true,float,{numbers},true>")
    assert set(built(impl, "sm_90a" if impl == "wgmma" else "sm_90", wanted).lowered) == set(wanted)


@pytest.mark.parametrize(("impl", "arch", "sentence"), [
    ("mma", "sm_75", "compute capability 8.0"), ("wgmma", "sm_90", "compile it for sm_90a"),
    ("wgmma", "sm_80", "compile it for sm_90a"), ("wgmma_tf32", "sm_90", "compile it for sm_90a"),
    ("wgmma_scaled", "sm_90", "compile it for sm_90a"),
])
def test_is_refused_where_the_instructions_are_missing(impl: str, arch: str,
                                                       sentence: str) -> None:
    supported(arch)
    with pytest.raises(CompileError, match=sentence):
        built(impl, arch, expressions(impl)[:1])


@pytest.mark.parametrize(("text", "capability", "sentence"), [
    ("mma", (7, 5), "from compute capability 8.0"),
    ("mma=wgmma", (8, 6), "only compute capability 9.0 has; this GPU has 8.6"),
    ("mma=wgmma", (10, 0), "only compute capability 9.0 has; this GPU has 10.0"),
    ("mma=wmma", (9, 0), "give auto, sync, wgmma or many"),
    ("mma,cublas", (9, 0), "exclude each other"), ("tiled,cublas", (9, 0), "exclude each other"),
])
def test_the_toggle_is_refused(text: str, capability: tuple[int, int], sentence: str) -> None:
    machine = Machine(None, capability, 13000, lambda package: True)
    with pytest.raises(ConfigError, match=sentence):
        select(f"none,{text}", DEEP, 4, machine)


@pytest.mark.parametrize(("capability", "value"), [((8, 0), "sync"), ((9, 0), "wgmma"),
                                                   ((12, 0), "sync")])
def test_auto_is_what_the_machine_has(capability: tuple[int, int], value: str) -> None:
    assert resolve("auto", Machine(None, capability)) == value


@pytest.mark.parametrize(("opt", "impls"), [
    ("mma=sync", {"mma"}), ("mma", {"mma"}), ("mma=-wgmma", {"mma"}),
    ("mma,tf32", {"mma"}), ("mma,bf16", {"mma"}), ("tiled,mma=sync", {"mma"}),
    ("tiled", {"tiled"}), ("tiled,mma,tf32", {"mma"}), ("mma=sync,fp16", {"mma"}),
])
def test_which_products_it_takes(opt: str, impls: set[str]) -> None:
    plan, _ = select(f"none,{opt}", DEEP, 4, CAPABLE).apply(step_plan(DEEP, 64, 256))
    assert {op.impl for op in plan.find(kind="matmul")} == impls


def test_large_products_are_for_wgmma() -> None:
    large = {op.name: op.impl for op, _, _ in instances("mma,bf16,fuse", 4096, "wgmma")}
    small = {op.name for op, _, _ in instances("mma,bf16,fuse", 4096, "mma")}
    assert {"fc1.forward", "fc2.forward", "fc2.input_grad", "fc2.weight.sgd"} <= set(large)
    assert "fc3.weight.sgd" in small


SIZES = (1, 10, 64, 130, 784, 1024, 4096)


def test_the_float32_products_are_three_of_tf32() -> None:
    for opt, wanted in (("mma=sync,fuse", "tf32x3"), ("mma=sync,tf32,fuse", "float")):
        for _, _, expression in instances(f"preload,{opt}", 64, "mma"):
            assert f",{wanted}," in expression, expression


def test_long_sums_of_few_tiles_are_cut_where_blocks_form_clusters() -> None:
    product, target = GemmShape("tn", 16, 64, 4096, 4, 3), known((9, 0))
    assert choose(product, target).cluster > 1
    assert choose(product, target.without("clusters")).cluster == 1
    assert choose(replace(product, m=1024, n=1024), target).cluster == 1
    fewer, more = (choose(GemmShape("nt", 512, 512, 512, 4, 3),
                          replace(target, multiprocessors=n, at_once={1: n})) for n in (8, 200))
    assert fewer.bm * fewer.bn > more.bm * more.bn


def test_tiles_of_float32_by_wgmma_are_128_rows_of_one_operand() -> None:
    for layout in ("nt", "nn", "tn"):
        for m, times in itertools.product((2048, 4096), (1, 3)):
            found = choose_wgmma_tf32(GemmShape(layout, m, 1024, 512, 4, times), known((9, 0)))
            other = found.bm if layout == "nn" else found.bn
            assert (found.bn if layout == "nn" else found.bm) == 128
            assert other in (64, 128, 256)
            assert times == 1 or other == 64
            prepared = 0 if times == 1 and layout != "tn" else 2 * other * (2 if times == 3 else 1)
            operands = 128 * (found.stages * (128 + other) + prepared)
            room = (227 << 10) // (2 if other == 64 else 1) - 1024
            assert max(operands, with_partial_sums(found.scalars(), 0)) <= room


def test_tf32_has_the_widest_tile_where_it_leaves_no_multiprocessor_idle() -> None:
    """On an H200, 784-1024-1024-1024-10 at batch 4096: 256 tiles of 128 x 128 are two rounds of
    132 blocks, 128 of 128 x 256 are one."""
    target = known((9, 0))
    for layout, sizes in (("nt", (128, 256)), ("nn", (256, 128))):
        wide = choose_wgmma_tf32(GemmShape(layout, 4096, 1024, 1024, 4), target)
        assert (wide.bm, wide.bn, wide.stages, wide.cluster) == (*sizes, 4, 1)
        few = choose_wgmma_tf32(GemmShape(layout, 4096, 512, 1024, 4), target)
        assert (few.bm, few.bn, few.stages) == (128, 128, 4)
        short = choose_wgmma_tf32(GemmShape(layout, 4096, 1024, 128, 4), target)
        assert max(short.bm, short.bn) == 128
    update = choose_wgmma_tf32(GemmShape("tn", 1024, 1024, 4096, 4), target)
    assert (update.bm, update.bn, update.stages, update.cluster) == (128, 128, 4, 2)
    ragged = choose_wgmma_tf32(GemmShape("tn", 1024, 784, 4096, 4), target)
    assert (ragged.bm, ragged.bn, ragged.cluster) == (128, 64, 2)


@pytest.mark.parametrize(("chosen", "size", "times"), [
    (choose, 2, 1), (choose, 4, 1), (choose, 4, 3), (choose_wgmma, 2, 1),
    (choose_wgmma_tf32, 4, 1), (choose_wgmma_tf32, 4, 3), (choose_wgmma_scaled, 4, 3)])
def test_a_tile_that_spans_a_row_has_no_more_columns_than_a_warp_holds(
        chosen: Callable[[GemmShape, Target], Tile], size: int, times: int) -> None:
    """A softmax is one over the lanes of a warp, four columns each."""
    row, target = GemmShape("nt", 8192, 60, 1024, size, times, rows=True), known((9, 0))
    assert 60 <= chosen(row, target).bn <= 128
    for columns in (129, 200, 256):
        with pytest.raises(ConfigError, match=f"no tile spans rows of {columns}"):
            chosen(replace(row, n=columns), target)


def test_updates_that_stream_their_weights_have_small_tiles() -> None:
    target = known((9, 0))
    for size, times in ((2, 1), (4, 1), (4, 3)):
        large = GemmShape("tn", 4096, 4096, 32, size, times)
        assert streams_weights(large, target)
        tile = choose(large, target)
        assert (tile.bm, tile.bn, tile.wm * tile.wn * tile.wk) == (64, 64, 4)
        assert 4 * shared(tile) <= target.shared_per_multiprocessor  # many at the same time
        assert not wgmma_is_faster(large, target)
        assert not scaled_is_faster(large, target)
        for other in (replace(large, k=256), replace(large, m=784), replace(large, layout="nt"),
                      replace(large, size=1, times=1)):
            assert not streams_weights(other, target)
    assert not streams_weights(GemmShape("tn", 4096, 4096, 32, 4), known((8, 0)))


def test_large_products_of_float32_are_for_wgmma() -> None:
    large, small = GemmShape("nt", 4096, 1024, 1024, 4, 3), GemmShape("nt", 64, 784, 784, 4, 3)
    target = known((9, 0))
    assert wgmma_is_faster(large, target)
    assert not wgmma_is_faster(small, target)
    assert not wgmma_is_faster(replace(large, k=16384), target)  # a sum that long is less exact
    assert wgmma_is_faster(replace(large, k=16384, times=1), target)
    for opt, impls in (("mma", {"wgmma_scaled"}), ("mma=-scaled", {"wgmma_tf32"}),
                       ("mma=sync", {"mma"})):
        step = step_plan(DEEP, 4096, 4 * 4096)
        plan, _ = select(f"none,{opt},fuse", DEEP, 4, CAPABLE).apply(step)
        assert {op.impl for op in plan.ops if op.name.startswith("fc2")} == impls


def test_tiles_of_scaled_products_fit_and_their_sums_are_not_longer() -> None:
    for layout in ("nt", "nn", "tn"):
        for k in (512, 4096, 16384):
            found = choose_wgmma_scaled(GemmShape(layout, 2048, 1024, k, 4, 3), known((9, 0)))
            assert found.bm == 128
            assert found.bn in (64, 128)
            operands = 128 * (found.stages * (128 + found.bn) + 2 * found.bn)
            room = (227 << 10) // (2 if found.bn == 64 else 1) - 1024
            assert max(operands, with_partial_sums(found.scalars(), 0)) + 12 * found.bn <= room
            assert k / 32 / found.cluster <= 64  # additions of float32 in a block, one a stage


def test_scaled_products_are_for_float32_and_no_sum_is_too_long_for_them() -> None:
    large, target = GemmShape("nt", 4096, 1024, 1024, 4, 3), known((9, 0))
    assert scaled_is_faster(large, target)
    assert not scaled_is_faster(GemmShape("nt", 64, 784, 784, 4, 3), target)
    assert not scaled_is_faster(replace(large, k=32768), target)
    assert not scaled_is_faster(replace(large, times=1), target)  # of tf32
    for opt in ("mma,bf16,fuse", "mma,tf32,fuse"):
        assert not list(instances(opt, 4096, "wgmma_scaled"))


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_tiles_fit_every_product(layout: str, size: int) -> None:
    """What the kernels demand of a tile, for every shape: whole fragments, and shared memory that
    every GPU of the family has."""
    for m, n, k in sliced(itertools.product(SIZES, repeat=3), 70):
        product = GemmShape(layout, m, n, k, size)
        for target in KNOWN.values():
            for times in (1, 3) if size == 4 else (1,):
                found = choose(replace(product, times=times), target)
                assert target.has("clusters") or found.cluster == 1
                assert times == 1 or found.bm * found.bn <= 1024 * found.wm * found.wn
                _check_mma(found, target)
            _check_tiled(choose_tiled(product, target))
        _check_wgmma(choose_wgmma(product, known((9, 0))))


def _check_mma(tile: Tile, target: Target) -> None:
    assert tile.bm % (16 * tile.wm) == 0
    assert tile.bn % (16 * tile.wn) == 0
    assert tile.bytes in (128, 256, 512)
    assert tile.bytes // 32 % tile.wk == 0
    assert tile.stages >= 2
    assert shared(tile) <= target.shared_per_block


def _check_wgmma(tile: Tile) -> None:
    assert tile.wm * 16 == tile.bm
    assert tile.bm % 64 == 0
    assert tile.bn // tile.wn in (64, 128, 256)
    assert tile.wk == 1
    assert tile.stages >= 3
    operands = tile.stages * (tile.bm + tile.bn) * tile.bytes + 1024
    assert with_partial_sums(tile.scalars(), operands) <= 227 << 10


def _check_tiled(tile: Tile) -> None:
    assert tile.bm % (16 * tile.wm) == 0
    assert tile.bn % (32 * tile.wn) == 0
    assert 8 % tile.wk == 0
    assert tile.cluster == 1
    assert tile.stages * 32 * (tile.bm + tile.bn) * 4 <= 64 << 10  # what sm_75 has
