"""Every kernel source compiles with NVRTC, in every instance and for every architecture, without a
warning. Needs NVRTC but no GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rawnn.cuda.nvrtc import Nvrtc
from rawnn.errors import MissingLibrary

SOURCES = Path(__file__).resolve().parents[2] / "rawnn" / "ptx"
# What rawnn claims; 90a goes with 90. An NVRTC that does not know one yet is not asked for it.
ARCHITECTURES = {
    "sm_75": 75, "sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90": 90, "sm_90a": 90,
    "sm_100": 100, "sm_120": 120,
}  # fmt: skip
FLAGS = ("false", "true")
INSTANCES = {
    "matmul": [
        *(f"matmul_nt<float,{b},{r}>" for b, r in itertools.product(FLAGS, FLAGS)),
        "matmul_nn<float>",
        "matmul_tn<float>",
    ],
    "bias": ["bias_add<float>", "bias_grad<float>", "bias_sgd<float>"],
    "relu": ["relu<float>", "relu_backward<float>"],
    "softmax": ["softmax<float>", "softmax_backward<float>"],
    "loss": [
        "cross_entropy<float>",
        "accuracy<float>",
        "loss_accuracy<float>",
        "loss_gradient<float>",
        "softmax_loss_gradient<float>",
    ],
    "sgd": ["sgd<float>"],
    "slices": [
        *(f"sum_slices<float,{b},{r}>" for b, r in itertools.product(FLAGS, FLAGS)),
        "slices_sgd<float>",
    ],
}


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))


def compile_source(
    nvrtc: Nvrtc, source: str, arch: str, expressions: Sequence[str], *further: str
) -> tuple[str, bytes, bytes, list[str]]:
    """Log, cubin, PTX and lowered names; `further` are more options."""
    text = (SOURCES / f"{source}.cu").read_text()
    code, program = nvrtc.nvrtcCreateProgram(text, f"{source}.cu")
    assert not code
    try:
        for expression in expressions:
            assert not nvrtc.nvrtcAddNameExpression(program, expression)[0]
        options = [f"-arch={arch}", "-std=c++17", f"-I{SOURCES}", *further]
        (code,) = nvrtc.nvrtcCompileProgram(program, options)
        _, log = nvrtc.nvrtcGetProgramLog(program)
        assert not code, log
        names = [nvrtc.nvrtcGetLoweredName(program, e)[1] for e in expressions]
        return log, nvrtc.nvrtcGetCUBIN(program)[1], nvrtc.nvrtcGetPTX(program)[1], names
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def supported(nvrtc: Nvrtc, arch: str) -> None:
    if ARCHITECTURES[arch] not in nvrtc.nvrtcGetSupportedArchs()[1]:
        pytest.skip(f"this NVRTC does not know {arch}")


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("source", INSTANCES)
def test_compiles_without_a_warning(nvrtc, source, arch):
    supported(nvrtc, arch)
    log, cubin, _, names = compile_source(nvrtc, source, arch, INSTANCES[source])
    # The log, not -Werror: NVRTC before 13 does not know that option.
    assert not log.strip(" \0\n"), log
    for name in names:
        assert name.encode() in cubin


def test_every_kernel_is_in_the_table():
    """A kernel added to a source without its instances here would go unchecked."""
    for source, expressions in INSTANCES.items():
        text = re.sub(r"__launch_bounds__\(.*\)\n", "", (SOURCES / f"{source}.cu").read_text())
        kernels = re.findall(r"__global__ void\s+(\w+)\(", text)
        assert set(kernels) == {e.partition("<")[0] for e in expressions}, source
