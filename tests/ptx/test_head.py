"""head.cu compiles for what it is for, without spills, and reads ahead of its wait what it may.
Needs NVRTC but no GPU."""

from __future__ import annotations

import pytest

from rawnn import ptx
from rawnn.common.errors import CompileError
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.compiling.resources import spills
from rawnn.ptx.fused.head import WARPS
from tests.ptx.architectures import installed_nvrtc, supported
from tests.slices import sliced

EXPRESSIONS = tuple(
    f"softmax_head<{numbers},{slope},{chance},{ragged},{tiles},{classes},{WARPS}>"
    for numbers, chance in (
        ("bfloat16,bfloat16", "true"), ("bfloat16,float", "false"), ("float16,float", "false"))
    for slope, ragged, tiles, classes in (
        ("Relu", "false", 4, 1), ("Tanh", "true", 8, 1), ("None", "true", 2, 2),
        ("Relu", "false", 16, 1), ("Tanh", "true", 16, 2), ("Relu", "true", 8, 4)))


def built(arch: str, wanted: tuple[str, ...]) -> Compiled:
    supported(arch)
    return compile_source(installed_nvrtc(), (ptx.SOURCES / "fused/head.cu").read_text(),
                          name="fused/head.cu",
                          arch=arch, expressions=wanted, programmatic=arch.startswith("sm_9"),
                          options=("--ptxas-options=-v",))


@pytest.mark.parametrize("arch", sliced(["sm_90", "sm_100"]))
def test_compiles_without_spills_and_reads_ahead_of_the_wait(arch: str) -> None:
    wanted = sliced(EXPRESSIONS, kind=lambda expression: expression.partition(",")[0])
    compiled = built(arch, tuple(wanted))
    assert "warning" not in compiled.log, compiled.log
    spilled = spills(compiled.log)
    for expression in wanted:
        assert spilled[compiled.lowered[expression]] == (0, 0), expression
    for expression, proof in compiled.proofs.items():
        assert proof.waits, f"{expression}: {proof.reason}"
        assert proof.ordered, expression
        weights = {"w", "clock"} if ",bfloat16," in expression else {"w", "copy"}
        assert set(proof.early) == {*weights, "bias", "rates", "cursor"}, expression


def test_is_refused_where_there_are_no_clusters() -> None:
    with pytest.raises(CompileError, match=r"compute capability 9\.0"):
        built("sm_89", EXPRESSIONS[:1])
