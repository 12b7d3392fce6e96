"""Builds rawnn's kernels for the host with g++ and cuda_host.h, and calls them on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from emulated_arrays import DTYPES, pitch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from rawnn.ptx.signature import KernelSignature, find_kernel, parse_kernels  # noqa: E402

SOURCES = HERE.parents[2] / "rawnn" / "ptx"
SMALL = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2")
SOURCES_AND_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "matmul": (
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
    ),
    "weight_update": (
        "weight_update<float,float,float>",
        "weight_update<float,bfloat16,float>",
        "weight_update<bfloat16,float,bfloat16>",
        "weight_update<bfloat16,bfloat16,float>",
        "weight_update<float16,float,float16,float16,float16>",
    ),
    "slices": (
        "sum_slices<float,float,false,None>",
        "sum_slices<float,float,true,Relu>",
        "sum_slices<float,bfloat16,true,Gelu>",
        "slices_sgd<float>",
        "slices_sgd<bfloat16,bfloat16>",
    ),
    "bias": tuple(
        f"{name}<{kind}>"
        for name in ("bias_add", "bias_grad", "bias_sgd")
        for kind in ("float", "bfloat16")
    ),
    "activation": tuple(
        f"{name}<{kinds},{act}>"
        for act in ("Relu", "Tanh", "Gelu")
        for name, kinds in (
            ("activate", "float,float"), ("activate", "float,bfloat16"),
            ("activate", "float16,float16"), ("activate_backward", "float,float,float"),
            ("activate_backward", "float,bfloat16,float16"),
            ("activate_backward", "bfloat16,bfloat16,bfloat16"),
            ("activate_backward", "float,bfloat16,float8_e5m2"),
        )
    ),
    "softmax": (
        "softmax<float>", "softmax<bfloat16>", "softmax_backward<float>",
        "softmax_backward<float16>",
    ),
    "loss": (
        "cross_entropy", "accuracy", "loss_accuracy",
        *(f"{name}<{kind}>" for name in ("loss_gradient", "softmax_loss_gradient")
          for kind in ("float", "float16", "bfloat16", "float8_e5m2")),
    ),
    "mse": (
        "mse<float>", "mse<bfloat16>", "mse_backward<float,float16>", "mse_gradient<float,float>",
        "mse_gradient<float16,bfloat16>",
    ),
    "bce": (
        "bce<float>", "bce_accuracy<float>", "bce_accuracy<bfloat16>",
        "bce_backward<float,float16>", "bce_gradient<float,float>",
        "bce_gradient<float16,bfloat16>",
    ),
    **{
        name: (
            f"{name}<float,float,float>", f"{name}<float,float,bfloat16>",
            f"{name}<float,bfloat16,float8_e4m3>", f"{name}<bfloat16,float,float>",
            f"{name}<bfloat16,bfloat16,float>",
        )
        for name in ("sgd", "momentum", "adam")
    },
    "cast": (
        *(f"cast<float,{kind}>" for kind in SMALL), *(f"cast<{kind},float>" for kind in SMALL),
        "cast<bfloat16,float16>", "cast<float16,float8_e5m2>",
    ),
}  # fmt: skip
FILES = tuple(SOURCES_AND_EXPRESSIONS)
EXPRESSIONS = tuple(e for group in SOURCES_AND_EXPRESSIONS.values() for e in group)
FLAGS = {
    None: ["-O1"],
    "address": ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-O1", "-g", "-fsanitize=thread", "-DCUDA_HOST_THREADS"],
}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}


def compiler() -> str | None:
    """The C++ compiler, or None: the tests are then skipped."""
    return shutil.which("g++")


def runtime(sanitizer: str) -> str | None:
    """The sanitizer's run-time library, which must be loaded before Python's own memory; None
    where the compiler came without it."""
    found = subprocess.run(
        [compiler() or "g++", f"-print-file-name={RUNTIMES[sanitizer]}"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    return str(Path(found).resolve()) if os.path.isabs(found) else None


def start_build(
    directory: Path, sanitizer: str | None = None, files: Iterable[str] = FILES,
    expressions: Sequence[str] = EXPRESSIONS,
) -> tuple[Path, subprocess.Popen]:
    """Starts the compiler on all kernels at once; finish_build waits for it."""
    lines = ['#include "cuda_host.h"', *(f'#include "{name}.cu"' for name in files)]
    lines += [f"CUDA_HOST_EXPORT(kernel_{i}, {e})" for i, e in enumerate(expressions)]
    source = directory / f"kernels_{sanitizer}.cpp"
    source.write_text("\n".join(lines) + "\n")
    library = directory / f"kernels_{sanitizer}.so"
    # -ffp-contract=off: the host's products and sums round one by one, whatever its processor.
    # -Bsymbolic: the C library has an old function named `advance` as well.
    command = [
        compiler() or "g++", "-std=c++20", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic",
        "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
        *FLAGS[sanitizer], f"-I{HERE}", f"-I{SOURCES}", str(source), "-o", str(library),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return library, process


def finish_build(library: Path, process: subprocess.Popen) -> Path:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{library.name} does not compile:\n{output}")
    return library


class Emulator:
    """Launches kernels of one built library; `reverse` turns the order of a block's threads round.

    `host_threads` says that the library runs a host thread for each CUDA thread: kernel_cases then
    keeps to small blocks and fewer of them.
    """

    def __init__(
        self, library: Path, *, reverse: bool = False, host_threads: bool = False,
        expressions: Sequence[str] = EXPRESSIONS,
    ) -> None:
        self._expressions = expressions
        self._library = ctypes.CDLL(str(library))
        self._reverse = reverse
        self.host_threads = host_threads

    def launch(
        self, expression: str, grid: Iterable[int], block: Iterable[int], *arguments: object
    ) -> None:
        """Arrays go as pointers, int as int, float as float, ctypes values as they are."""
        function = self._library[f"kernel_{self._expressions.index(expression)}"]
        shape = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        function((ctypes.c_int * 6)(*shape), int(self._reverse), pointers)

    def call(
        self, expression: str, grid: Iterable[int], block: Iterable[int], **arguments: object
    ) -> None:
        """As `launch`, with arguments by the names in the kernel's source: pitches are those of the
        arrays, operands left out are null and numbers left out 0. An array must have the type that
        the kernel reads."""
        signature = _signature(expression)
        values: list[object] = []
        left = set(arguments)
        for parameter in signature.parameters:
            name = parameter.name
            given = arguments.get(name)
            left.discard(name)
            if parameter.pointer:
                if isinstance(given, np.ndarray) and parameter.ctype in DTYPES:
                    assert given.dtype == DTYPES[parameter.ctype], (expression, name)
                values.append(ctypes.c_void_p() if given is None else given)
            elif name.startswith("ld") and given is None:
                array = arguments.get(name[2:])
                values.append(pitch(array) if isinstance(array, np.ndarray) else 0)
            else:
                values.append(_NUMBERS[parameter.format](given or 0))
        assert not left, f"{expression} has no {left}"
        self.launch(expression, grid, block, *values)


_NUMBERS = {
    "?": ctypes.c_bool, "i": ctypes.c_int, "I": ctypes.c_uint, "f": ctypes.c_float,
    "d": ctypes.c_double, "Q": ctypes.c_ulonglong, "q": ctypes.c_longlong,
}  # fmt: skip


@functools.cache
def _signature(expression: str) -> KernelSignature:
    name = expression.partition("<")[0]
    for source in sorted(SOURCES.glob("*.cu")):
        text = source.read_text()
        if f" {name}(" in text:
            kernels = parse_kernels(text)
            if name in kernels:
                return find_kernel(kernels, expression)
    raise LookupError(f"no source has the kernel {name}")


def _value(argument: object) -> ctypes._SimpleCData:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, (int, np.integer)):
        return ctypes.c_int(int(argument))
    assert isinstance(argument, ctypes._SimpleCData), argument
    return argument
