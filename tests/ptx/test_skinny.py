"""skinny.cu compiles for what it is for, without spills, and its launches cover every extent. Needs
NVRTC but no GPU."""

from __future__ import annotations

import pytest

from rawnn import ptx
from rawnn.common.errors import CompileError
from rawnn.common.target import known
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.compiling.resources import spills
from rawnn.ptx.gemm.skinny import Launch, choose_backward, choose_nt
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS
from tests.ptx.architectures import installed_nvrtc, some_instances, supported
from tests.slices import sliced

HOPPER = known((9, 0))
ARCHITECTURES = ("sm_90", "sm_100", "sm_120")
WIDTHS = (1, 16, 784, 1024, 2048, 4096, 8192)
BATCHES = (1, 16, 32, 33, 64)
TOLERATED = 32
"""Bytes that skinny_backward may spill: stochastic rounding uses all 168 registers that 9 warps can
have, and spills a few bytes around its loop."""


def _arguments(*words: object) -> str:
    return ",".join(str(word) for word in words)


def _expressions() -> tuple[str, ...]:
    found = []
    for batch in (16, 32, 64):
        for width in (10, 2048, 8192):
            nt = choose_nt(HOPPER, batch, width, 1024)
            nn = choose_backward(HOPPER, batch, 1024, width, 2, gradient=True, update=False)
            found.append(f"skinny_nt<{_arguments('bfloat16', 'bfloat16', 'Relu', *nt.template())}>")
            found.append(f"skinny_nn<{_arguments('bfloat16', 'Relu', *nn.template())}>")
        for weights, size, chance in (("bfloat16", 2, True), ("float", 4, False)):
            for kernel in ("skinny_update", "skinny_backward"):
                for ragged in (False, chance):
                    both = kernel == "skinny_backward"
                    launch = choose_backward(HOPPER, batch, 1024, 1024, size, gradient=both,
                                             update=True, ragged=ragged)
                    flags = ("true" if flag else "false" for flag in (chance, ragged, ragged))
                    found.append(f"{kernel}<" + _arguments(
                        "bfloat16", weights, *(("Relu",) if both else ()), *flags,
                        *launch.template()) + ">")
    nt = choose_nt(HOPPER, 32, 10, 1024)
    update = choose_backward(HOPPER, 32, 999, 1003, 4, gradient=False, update=True)
    found.append(f"skinny_nt<{_arguments('float16', 'float', 'None', *nt.template())}>")
    found.append("skinny_update<" + _arguments(
        "float16", "float", "false", "true", "false", *update.template()) + ">")
    return tuple(dict.fromkeys(found))


def built(arch: str, wanted: tuple[str, ...]) -> Compiled:
    supported(arch)
    return compile_source(
        installed_nvrtc(), (ptx.SOURCES / "gemm/skinny.cu").read_text(), name="gemm/skinny.cu",
        arch=arch,
        expressions=wanted, programmatic=True, options=("--ptxas-options=-v",))


@pytest.mark.parametrize("arch", sliced(ARCHITECTURES))
def test_compiles_without_spills_and_reads_ahead_of_the_wait(arch: str) -> None:
    wanted = some_instances(arch, _expressions())
    compiled = built(arch, wanted)
    assert "warning" not in compiled.log, compiled.log
    spilled = spills(compiled.log)
    for expression in wanted:
        allowed = TOLERATED if expression.startswith("skinny_backward") else 0
        assert max(spilled[compiled.lowered[expression]]) <= allowed, expression
    assert set(compiled.proofs) == set(wanted)
    for expression, proof in compiled.proofs.items():
        assert proof.waits, f"{expression}: {proof.reason}"
        assert proof.ordered, expression
        products = expression.startswith(("skinny_nt", "skinny_nn"))
        assert set(proof.early) == ({"b"} if products else {"w", "x"}), expression


def test_is_refused_where_the_instructions_are_missing() -> None:
    with pytest.raises(CompileError, match=r"compute capability 9\.0"):
        built("sm_80", _expressions()[:1])


def _check(key: Key, launch: Launch, long_side: int, rounds: int, batch: int) -> None:
    assert 8 * launch.tiles >= batch
    assert launch.shared <= 227 * 1024 - 272  # barriers beside it
    assert launch.splits * launch.share >= rounds > (launch.splits - 1) * launch.share
    assert launch.depth >= min(3, launch.share)  # an update's stores may lie two rounds behind
    assert launch.box_rows <= 256
    entry, side = KERNELS[key], "n" if key.layout == "nt" else "cols"
    scalars = {**launch.scalars(), side: long_side}
    grid, _ = entry.geometry(scalars)
    assert grid[0] == launch.splits
    assert (grid[1] - 1) * launch.width < long_side <= grid[1] * launch.width
    # Blocks that share a row of the grid add their sums up: they are a cluster, all of it at once.
    assert entry.cluster(scalars) == (1 if key.kind == "weight_update" else launch.splits)
    assert entry.shared(scalars) == launch.shared


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rows", WIDTHS)
@pytest.mark.parametrize("cols", WIDTHS)
def test_launches_cover_the_matrix(batch: int, rows: int, cols: int) -> None:
    nt = choose_nt(HOPPER, batch, rows, cols)
    _check(Key("matmul", "skinny", "nt"), nt, rows, -(-cols // (64 * nt.shape[1])), batch)
    launches = [nt]
    for kind, gradient, update in (("matmul", True, False), ("weight_update", False, True),
                                   ("layer_backward", True, True)):
        for size, ragged in ((2, False), (2, True), (4, False)):
            found = choose_backward(HOPPER, batch, rows, cols, size, gradient=gradient,
                                    update=update, ragged=ragged)
            key = Key(kind, "skinny", "nn" if kind == "matmul" else "")
            _check(key, found, cols, -(-rows // found.box_rows), batch)
            if gradient:
                launches.append(found)
    for launch in launches:
        assert launch.splits in (1, 2, 4, 8)
        assert launch.width >= 4 * launch.splits


def test_few_strips_are_shared_by_clusters() -> None:
    """A layer of one strip, whose long sum would keep one block busy."""
    assert choose_nt(HOPPER, 32, 10, 8192).splits == 4
    assert choose_backward(HOPPER, 32, 8192, 64, 2, gradient=True, update=True).splits == 8


@pytest.mark.parametrize("width", [4096, 8192])
def test_large_layers_give_each_multiprocessor_one_block(width: int) -> None:
    both = choose_backward(HOPPER, 32, width, width, 2, gradient=True, update=True)
    for launch in (choose_nt(HOPPER, 32, width, width), both):
        assert 120 <= launch.splits * -(-width // launch.width) <= 132
