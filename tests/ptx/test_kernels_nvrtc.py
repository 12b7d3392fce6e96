"""Every kernel source compiles with NVRTC, in every instance and for every architecture, without a
warning. Needs NVRTC but no GPU."""

from __future__ import annotations

import itertools
import re
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
    "gather": ["gather<float>"],
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
    "cursor": ["advance"],
    "while": ["advance_while"],
    "linear": [
        f"{name}<{classes}>"
        for name in ("linear_forward", "linear_update")
        for classes in (2, 10, 32)
    ],
}
RELOCATABLE = {"while"}


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))


def compile_source(nvrtc: Nvrtc, source: str, arch: str) -> tuple[str, bytes, bytes, list[str]]:
    """Log, cubin, PTX and lowered names."""
    text = (SOURCES / f"{source}.cu").read_text()
    code, program = nvrtc.nvrtcCreateProgram(text, f"{source}.cu")
    assert not code
    try:
        for expression in INSTANCES[source]:
            assert not nvrtc.nvrtcAddNameExpression(program, expression)[0]
        options = [f"-arch={arch}", "-std=c++17", f"-I{SOURCES}"]
        if source in RELOCATABLE:
            options.append("-rdc=true")
        (code,) = nvrtc.nvrtcCompileProgram(program, options)
        _, log = nvrtc.nvrtcGetProgramLog(program)
        assert not code, log
        names = [nvrtc.nvrtcGetLoweredName(program, e)[1] for e in INSTANCES[source]]
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
    log, cubin, _, names = compile_source(nvrtc, source, arch)
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


def test_linear_forward_loads_are_wide(nvrtc):
    """What makes the fused forward fast: 16 bytes of each weight row and 4 pixels a load."""
    supported(nvrtc, "sm_90")
    ptx = compile_source(nvrtc, "linear", "sm_90")[2].decode()
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)\n\}", ptx, re.DOTALL))
    (forward,) = (body for name, body in bodies.items() if "linear_forwardILi10E" in name)
    assert len(re.findall(r"ld\.global(?:\.nc)?\.v4\.f32", forward)) >= 10
    assert re.search(r"ld\.global(?:\.nc)?\.(?:v4\.u8|u32)", forward)
    for name in bodies:
        assert "__local_depot" not in bodies[name], f"{name} keeps an array in local memory"
