"""Every kernel source compiles with NVRTC, in every instance, without a warning. Needs NVRTC but no
GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rawnn.cuda.compiling import resources
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.model.activations import ACTIVATIONS
from rawnn.ptx.instance_text import with_instance_text
from tests.ptx.architectures import installed_nvrtc, some, some_instances, supported
from tests.slices import sliced

SOURCES = Path(__file__).resolve().parents[2] / "rawnn" / "ptx"
# What rawnn claims; 90a goes with 90. An NVRTC that does not know one yet is not asked for it.
ARCHITECTURES = {
    "sm_75": 75, "sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90": 90, "sm_90a": 90,
    "sm_100": 100, "sm_120": 120,
}  # fmt: skip
FLAGS = ("false", "true")
SMALL = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
FLOATS = ("float", *SMALL)
HALVES = ("float16", "bfloat16")
FUNCTORS = tuple(a.functor for a in ACTIVATIONS.values())
# Operands and result of a product, as networks of each storage type have them.
PRODUCTS = (
    "float,float,float", *(f"{t},{t},{t}" for t in HALVES), "bfloat16,bfloat16,float",
    "float8_e5m2,float8_e4m3,bfloat16",
)  # fmt: skip
# Weights, gradient and working copy.
UPDATES = (
    "float,float,float", "float,float,float8_e4m3", *(f"float,{t},{t}" for t in HALVES),
    "bfloat16,bfloat16,float",
)  # fmt: skip
INSTANCES = {
    "gemm/matmul": [
        *(f"matmul_nt<float,float,float,{b},{a}>"
          for b, a in itertools.product(FLAGS, ("None", *FUNCTORS))),
        *(f"matmul_nt<{t},true,Relu>" for t in PRODUCTS[1:]),
        *(f"matmul_nn<{t},Relu>" for t in PRODUCTS),
        *(f"matmul_nn<float,float,float,{s}>" for s in ("None", "Tanh", "Gelu")),
        *(f"matmul_tn<{t}>" for t in PRODUCTS),
        "matmul_nn<float8_e5m2,float8_e4m3,float8_e5m2,Relu,float8_e4m3>",
        "matmul_nt<float16,float16,float16,true,Relu,None,float16,float16>",
        "matmul_nn<float16,float16,float16,Relu,float16,float16>",
        "matmul_tn<float16,float16,float16,float16>",
    ],
    "optimizers/weight_update": [
        "weight_update<float,float,float>",
        *(f"weight_update<{t},float,{t}>" for t in HALVES),
        "weight_update<bfloat16,bfloat16,float>",
        "weight_update<float8_e4m3,float,float8_e4m3,float8_e5m2>",
        "weight_update<float16,float,float16,float16,float16>",
    ],
    "elementwise/bias": [
        *(f"{n}<{t}>" for n in ("bias_add", "bias_grad", "bias_sgd") for t in ("float", *HALVES)),
        "bias_grad<float8_e5m2>", "bias_sgd<float8_e5m2>",
    ],
    "elementwise/activation": [
        f"{name}<{types},{activation}>"
        for activation in FUNCTORS
        for name, types in (
            *(("activate", f"{t},{t}") for t in ("float", "bfloat16")),
            ("activate", "float,float16"), ("activate", "bfloat16,float8_e4m3"),
            *(("activate_backward", f"{t},{t},{t}") for t in ("float", "float16")),
            ("activate_backward", "bfloat16,float8_e4m3,float8_e5m2"),
        )
    ],
    "losses/softmax": [
        *(f"softmax<{t}>" for t in ("float", *HALVES)),
        *(f"softmax_backward<{t}>" for t in ("float", *HALVES, "float8_e5m2")),
    ],
    "losses/loss": [
        "cross_entropy", "accuracy", "loss_accuracy",
        *(f"{n}<{t}>" for n in ("loss_gradient", "softmax_loss_gradient")
          for t in ("float", "bfloat16", "float8_e5m2")),
    ],
    "losses/mse": [
        "mse<float>", "mse<bfloat16>",
        *(f"{n}<float,{d}>" for n in ("mse_backward", "mse_gradient") for d in ("float", *HALVES)),
    ],
    "losses/bce": [
        "bce<float>", "bce_accuracy<float>",
        *(f"{n}<float,{d}>" for n in ("bce_backward", "bce_gradient") for d in ("float", *HALVES)),
    ],
    **{f"optimizers/{name}": [f"{name}<{t}>" for t in UPDATES]
       for name in ("sgd", "momentum", "adam")},
    "elementwise/cast": [
        *(f"cast<float,{t}>" for t in FLOATS), *(f"cast<{t},float>" for t in SMALL),
    ],
    "gemm/slices": [
        *(f"sum_slices<float,float,{b},{a}>"
          for b, a in itertools.product(FLAGS, ("None", "Relu"))),
        "sum_slices<float,bfloat16,true,Gelu>",
        "slices_sgd<float>",
        "slices_sgd<bfloat16,bfloat16>",
    ],
}  # fmt: skip
# A block of 1,024 threads has 64 registers a thread; wide updates live on many warps as well.
REGISTERS = {"gemm/slices": 128, "optimizers/adam": 96}
PDL = "-DRAWNN_PDL"
EIGHT_BIT_SPILL = 36
"""Bytes that NVRTC 13 spills at most in losses whose gradients are stored in 8 bits: they look for
what lies beyond the type's largest number. NVRTC 12.9 spills none."""
REPORT = re.compile(r"ptxas\s+(info|\.) |\s*\d+ bytes stack frame|\s*$")  # what -v makes it tell


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return installed_nvrtc()


def compile_source(
    nvrtc: Nvrtc, source: str, arch: str, expressions: Sequence[str], *further: str
) -> tuple[str, bytes, bytes, list[str]]:
    """Log, cubin, PTX and lowered names; `further` are more options."""
    text = with_instance_text((SOURCES / f"{source}.cu").read_text(), expressions)
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


@pytest.mark.parametrize(("source", "arch", "options"), [
    pytest.param(source, arch, options, id=f"{source}-{'programmatic' if options else arch}")
    for source in INSTANCES
    for arch, options in sliced((*((a, ()) for a in some(source, list(ARCHITECTURES), how_many=1)),
                                 ("sm_90", (PDL,))))
])
def test_compiles_without_a_warning_or_a_spill(nvrtc, source, arch, options):
    supported(arch)
    expressions = some_instances(f"{source}, {arch}{options}", INSTANCES[source])
    log, cubin, _, names = compile_source(
        nvrtc, source, arch, expressions, "--ptxas-options=-v", *options
    )
    # The log, not -Werror: NVRTC before 13 does not know that option.
    messages = [line for line in log.strip(" \0\n").splitlines() if not REPORT.match(line)]
    assert not messages, log
    spilled = {name: size for name, size in resources.spills(log).items()
               if max(size) > (EIGHT_BIT_SPILL if "float8" in name else 0)}
    assert not spilled
    usage = resources.resource_usage(cubin)
    for name in names:
        assert usage[name].registers <= REGISTERS.get(source, 64), name


def test_every_kernel_is_in_the_table():
    """A kernel added to a source without its instances here would go unchecked."""
    for source, expressions in INSTANCES.items():
        text = re.sub(r"__launch_bounds__\(.*\)\n", "", (SOURCES / f"{source}.cu").read_text())
        kernels = re.findall(r"__global__ void\s+(\w+)\(", text)
        assert set(kernels) == {e.partition("<")[0] for e in expressions}, source


def test_wide_accesses(nvrtc):
    """What the updates of wide layers live on: 16 bytes of each operand an access."""
    supported("sm_90")
    wanted = {
        ("optimizers/sgd", "sgd<float,float,float>"): (2, 1),
        ("optimizers/sgd", "sgd<bfloat16,bfloat16,float>"): (2, 1),
        ("elementwise/cast", "cast<float,float>"): (1, 1),
        ("elementwise/activation", "activate_backward<bfloat16,bfloat16,bfloat16,Relu>"): (2, 1),
    }
    for (source, expression), (loads, stores) in wanted.items():
        ptx = compile_source(nvrtc, source, "sm_90", [expression])[2].decode()
        assert len(re.findall(r"ld\.global(?:\.nc)?\.v4\.[ubf]32", ptx)) >= loads, expression
        assert len(re.findall(r"st\.global\.v4\.[ubf]32", ptx)) >= stores, expression
