"""Builds rawnn's kernels for the host with g++ and cuda_host.h, and calls them on NumPy arrays."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / "rawnn" / "ptx"
EXPRESSIONS = (
    *(f"matmul_nt<float,{b},{r}>" for b in ("false", "true") for r in ("false", "true")),
    "matmul_nn<float>",
    "matmul_tn<float>",
    "bias_add<float>",
    "bias_grad<float>",
    "bias_sgd<float>",
    "relu<float>",
    "relu_backward<float>",
    "softmax<float>",
    "softmax_backward<float>",
    "cross_entropy<float>",
    "accuracy<float>",
    "loss_accuracy<float>",
    "loss_gradient<float>",
    "softmax_loss_gradient<float>",
    "sgd<float>",
    *(f"sum_slices<float,{b},{r}>" for b in ("false", "true") for r in ("false", "true")),
    "slices_sgd<float>",
)
FILES = (
    "matmul", "bias", "relu", "softmax", "loss", "sgd", "slices",
)  # fmt: skip
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


def _value(argument: object) -> ctypes._SimpleCData:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, (int, np.integer)):
        return ctypes.c_int(int(argument))
    assert isinstance(argument, ctypes._SimpleCData), argument
    return argument
