"""`fp8`: inputs, activations and a copy of the weights in float8_e4m3, the gradients that GEMMs
read in float8_e5m2, other intermediate tensors in bfloat16, with dynamic loss scaling.

Weights are small: at a width of 4096 they start below 1/64, where e4m3 has its subnormals. The copy
of each layer is therefore multiplied by a power of two, which its GEMMs divide out again.
"""

from __future__ import annotations

from collections.abc import Collection

from rawnn.opts.precision import with_loss_scale, with_storage_types
from rawnn.opts.registry import Machine, Rewritten, Toggle, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy

TENSOR_CORES = (8, 9)


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return with_loss_scale(with_storage_types(plan, "float8_e4m3", "float8_e5m2",
                                              "bfloat16")), policy


def beside(names: Collection[str], machine: Machine) -> str | None:
    if "cublas" in names:
        return "on Ada and Hopper cuBLASLt multiplies 8-bit floats only where both lie along the " \
               "inner dimension, one GEMM of a layer's three; use mma instead"
    if "mma" in names and machine.compute_capability < TENSOR_CORES:
        have = ".".join(map(str, machine.compute_capability))
        return f"tensor cores multiply 8-bit floats from compute capability 8.9 on, and this GPU " \
               f"has {have}; use tiled instead of mma, or bf16"
    return None


register(Toggle(
    "fp8",
    claim="inputs, activations and copies of the weights in float8_e4m3, gradients in "
          "float8_e5m2, float32 masters, dynamic loss scaling",
    source="Micikevicius et al., FP8 Formats for Deep Learning, 2022",
    group="numbers", apply=apply, conflicts=("fp16", "bf16", "tf32", "sr"), beside=beside,
    host=True,
))
