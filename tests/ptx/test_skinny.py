"""skinny.cu compiles for what it is for, without spills, and its launches cover every extent. Needs
NVRTC but no GPU."""

from __future__ import annotations

import re
from functools import cache

import pytest

from rawnn import ptx
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.errors import CompileError, MissingLibrary
from rawnn.ptx.compile import Compiled, compile_source
from rawnn.ptx.resources import spills
from rawnn.runners.kernels.skinny import Launch, choose_nn, choose_nt, choose_update

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
WIDTHS = (16, 1024, 2048, 4096, 8192)
BATCHES = (1, 16, 32, 33, 64, 128)


def _arguments(*words: object) -> str:
    return ",".join(str(word) for word in words)


def _expressions() -> tuple[str, ...]:
    found = []
    for batch in (16, 32, 64, 128):
        for width in (10, 1024, 8192):
            nt, nn = choose_nt(batch, width, 1024), choose_nn(batch, 1024, width)
            found.append(f"skinny_nt<{_arguments('bfloat16', 'bfloat16', 'Relu', *nt.template())}>")
            found.append(f"skinny_nn<{_arguments('bfloat16', 'Relu', 'false', *nn.template())}>")
            for weights, size in (("bfloat16", 2), ("float", 4)):
                chance = "true" if size == 2 else "false"
                update = choose_update(batch, width, 1024, size)
                found.append("skinny_update<" + _arguments(
                    "bfloat16", weights, chance, "false", "false", *update.template()) + ">")
    nt, update = choose_nt(32, 10, 1024), choose_update(32, 999, 1003, 4)
    found.append(f"skinny_nt<{_arguments('float16', 'float', 'None', *nt.template())}>")
    found.append("skinny_update<" + _arguments(
        "float16", "float", "false", "true", "true", *update.template()) + ">")
    return tuple(dict.fromkeys(found))


@cache
def nvrtc() -> Nvrtc:
    try:
        return Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))


def built(arch: str, wanted: tuple[str, ...]) -> Compiled:
    known = nvrtc().nvrtcGetSupportedArchs()[1]
    if int(re.sub(r"\D", "", arch)) not in known:
        pytest.skip(f"this NVRTC does not know {arch}")
    return compile_source(nvrtc(), (ptx.SOURCES / "skinny.cu").read_text(), name="skinny.cu",
                          arch=arch, expressions=wanted, programmatic=arch.startswith("sm_9"),
                          options=("--ptxas-options=-v",))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_compiles_without_spills(arch: str) -> None:
    wanted = _expressions()
    compiled = built(arch, wanted)
    assert "warning" not in compiled.log, compiled.log
    spilled = spills(compiled.log)
    for expression in wanted:
        assert spilled[compiled.lowered[expression]] == (0, 0), expression


def test_weights_and_nothing_else_are_read_ahead_of_the_wait() -> None:
    wanted = _expressions()
    for expression, proof in built("sm_90", wanted).proofs.items():
        assert proof.waits, f"{expression}: {proof.reason}"
        assert proof.ordered, expression
        products = expression.startswith(("skinny_nt", "skinny_nn"))
        assert set(proof.early) == {"b" if products else "w"}, expression


def test_is_refused_where_the_instructions_are_missing() -> None:
    with pytest.raises(CompileError, match=r"compute capability 8\.0"):
        built("sm_75", _expressions()[:1])


def _check(launch: Launch, long_side: int, units: int, batch: int) -> None:
    assert 8 * launch.tiles >= batch
    assert launch.shared <= 227 * 1024
    assert launch.splits * launch.share >= units
    assert launch.threads <= 1024
    assert launch.depth >= 2
    assert -(-long_side // launch.width) >= 1


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rows", WIDTHS)
@pytest.mark.parametrize("cols", WIDTHS)
def test_launches_cover_the_matrix(batch: int, rows: int, cols: int) -> None:
    nt, nn = choose_nt(batch, rows, cols), choose_nn(batch, cols, rows)
    _check(nt, rows, -(-cols // 64), batch)
    _check(nn, cols, -(-rows // 16), batch)
    for launch in (nt, nn):
        assert launch.splits in (1, 2, 4, 8)
        assert launch.width >= 4 * launch.splits
    for size in (2, 4):
        _check(choose_update(batch, rows, cols, size), cols, -(-rows // 16), batch)


@pytest.mark.parametrize("width", [2048, 4096, 8192])
def test_large_products_give_each_multiprocessor_one_block(width: int) -> None:
    for launch in (choose_nt(32, width, width), choose_nn(32, width, width)):
        assert 120 <= launch.splits * -(-width // launch.width) <= 132
