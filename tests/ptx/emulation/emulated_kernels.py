"""The portable kernels on the CPU emulator: which instances are built, and how the checks call
them."""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from emulated_arrays import FUNCTORS

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rawnn.ptx import SOURCES
from rawnn.sim.griddepcontrol import waits
from tests.ptx.emulator.emulator import EmulatedLibrary, Kernels, signature_of, with_headers

SMALL = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
MATMULS = (
    "matmul_nt<float,float,float,false,None>",
    "matmul_nt<float,float,float,true,Relu>",
    "matmul_nt<bfloat16,bfloat16,bfloat16,true,Gelu>",
    "matmul_nt<float16,float16,float16,true,Tanh,None,float16,float16>",
    "matmul_nt<float8_e4m3,float8_e4m3,float,false,None,Relu,bfloat16>",
    "matmul_nn<float,float,float>",
    "matmul_nn<float,float,float,Relu>",
    "matmul_nn<bfloat16,bfloat16,bfloat16,Gelu>",
    "matmul_nn<float16,float16,float16,Tanh>",
    "matmul_nn<float8_e5m2,float8_e4m3,float8_e5m2,Relu,float8_e4m3>",
    "matmul_tn<float,float,float>",
    "matmul_tn<bfloat16,bfloat16,float>",
    "matmul_tn<float16,float16,float16,float16>",
)
MORE = tuple(act for act in FUNCTORS if not re.search(rf"\b{act}\b", " ".join(MATMULS)))
"""Activations that none of these has."""
SOURCES_AND_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "gemm/matmul": (
        *MATMULS, *(f"matmul_nt<float,float,float,true,{act}>" for act in MORE),
        *(f"matmul_nn<float,float,float,{act}>" for act in MORE),
    ),
    "optimizers/weight_update": (
        "weight_update<float,float,float>",
        "weight_update<float,bfloat16,float>",
        "weight_update<bfloat16,float,bfloat16>",
        "weight_update<bfloat16,bfloat16,float>",
        "weight_update<float16,float,float16,float16,float16>",
    ),
    "gemm/slices": (
        "sum_slices<float,float,false,None>",
        "sum_slices<float,float,true,Relu>",
        "sum_slices<float,bfloat16,true,Gelu>",
        *(f"sum_slices<float,float,true,{act}>" for act in MORE),
        "slices_sgd<float>",
        "slices_sgd<bfloat16,bfloat16>",
    ),
    "elementwise/bias": tuple(
        f"{name}<{kind}>"
        for name in ("bias_add", "bias_grad", "bias_sgd")
        for kind in ("float", "bfloat16")
    ),
    "elementwise/activation": tuple(
        f"{name}<{kinds},{act}>"
        for act in FUNCTORS
        for name, kinds in (
            ("activate", "float,float"), ("activate", "float,bfloat16"),
            ("activate", "float16,float16"), ("activate_backward", "float,float,float"),
            ("activate_backward", "float,bfloat16,float16"),
            ("activate_backward", "bfloat16,bfloat16,bfloat16"),
            ("activate_backward", "float,bfloat16,float8_e5m2"),
        )
    ),
    "losses/softmax": (
        "softmax<float>", "softmax<bfloat16>", "softmax_backward<float>",
        "softmax_backward<float16>",
    ),
    "losses/loss": (
        "cross_entropy", "accuracy", "loss_accuracy",
        *(f"{name}<{kind}>" for name in ("loss_gradient", "softmax_loss_gradient")
          for kind in ("float", "float16", "bfloat16", "float8_e5m2")),
    ),
    "losses/mse": (
        "mse<float>", "mse<bfloat16>", "mse_backward<float,float16>", "mse_gradient<float,float>",
        "mse_gradient<float16,bfloat16>",
    ),
    "losses/bce": (
        "bce<float>", "bce_accuracy<float>", "bce_accuracy<bfloat16>",
        "bce_backward<float,float16>", "bce_gradient<float,float>",
        "bce_gradient<float16,bfloat16>",
    ),
    **{
        f"optimizers/{name}": (
            f"{name}<float,float,float>", f"{name}<float,float,bfloat16>",
            f"{name}<float,bfloat16,float8_e4m3>", f"{name}<bfloat16,float,float>",
            f"{name}<bfloat16,bfloat16,float>",
        )
        for name in ("sgd", "momentum", "adam")
    },
    "elementwise/cast": (
        *(f"cast<float,{kind}>" for kind in SMALL), *(f"cast<{kind},float>" for kind in SMALL),
        "cast<bfloat16,float16>", "cast<float16,float8_e5m2>",
    ),
}  # fmt: skip
FILES = tuple(SOURCES_AND_EXPRESSIONS)
EXPRESSIONS = tuple(e for group in SOURCES_AND_EXPRESSIONS.values() for e in group)
ARCHITECTURES = {"sm_75": 750, "sm_90": 900}
"""The conversions by integers, that run anywhere, and those by the GPU's instructions."""


def kernels(files: Iterable[str] = FILES, expressions: tuple[str, ...] = EXPRESSIONS,
            arch: str = "sm_90", sources: Path = SOURCES) -> Kernels:
    """Instances of the kernels of `files`, named without ".cu"."""
    return Kernels(tuple(f"{name}.cu" for name in files), expressions, ARCHITECTURES[arch],
                   ("RAWNN_PDL",), sources, (Path(__file__).resolve().parent,))


class Emulator:
    """Launches kernels of a built library with a seed of the CPU emulator; `quick` asks the checks
    for fewer and smaller launches."""

    def __init__(self, library: EmulatedLibrary, *, seed: int = 0, quick: bool = False) -> None:
        self.library = library
        self.seed = seed
        self.quick = quick

    def launch(
        self, expression: str, grid: Iterable[int], block: Iterable[int], *arguments: object
    ) -> None:
        """Arrays go as pointers, int as int, float as float, ctypes values as they are."""
        signature = signature_of(self.library.kernels, expression)
        values = [_value(argument) for argument in arguments]
        memory = {parameter.name: argument
                  for parameter, argument in zip(signature.parameters, arguments, strict=True)
                  if isinstance(argument, np.ndarray)}
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.library.launch(expression, grid, block, pointers, memory, run=self.seed,
                         early=self._early(expression))

    def call(
        self, expression: str, grid: Iterable[int], block: Iterable[int], **arguments: Any
    ) -> None:
        """As `launch`, with arguments by the names in the kernel's source: pitches are those of the
        arrays, operands left out are null and numbers left out 0. An array must have the type that
        the kernel reads."""
        self.library.call(expression, grid, block, run=self.seed, early=self._early(expression),
                       **arguments)

    def _early(self, expression: str) -> tuple[str, ...] | None:
        """What a kernel may touch ahead of its wait: nothing; None for one that does not wait."""
        kernels = self.library.kernels
        programmatic = kernels.arch >= 900 and _waits(kernels, expression.partition("<")[0])
        return () if programmatic else None


@functools.cache
def _waits(kernels: Kernels, name: str) -> bool:
    # By the sources as they are: a planted fault must not choose how it is looked at.
    return any(waits(with_headers(SOURCES, file), name, True) for file in kernels.files
               if (SOURCES / file).is_file())


def _value(argument: object) -> ctypes._SimpleCData[Any]:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, (int, np.integer)):
        return ctypes.c_int(int(argument))
    assert isinstance(argument, ctypes._SimpleCData), argument
    return argument
