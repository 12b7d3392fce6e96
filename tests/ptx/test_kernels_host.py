"""The kernels' real arithmetic on the host: rawnn/ptx/*.cu built with g++, checked against NumPy.

The checks themselves are in emulation/kernel_cases.py; here they run on the plain build (threads of
a block in both orders, so that a missing barrier shows) and under the sanitizers, each in a process
of its own because a sanitizer's run-time library must be loaded first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EMULATION = Path(__file__).resolve().parent / "emulation"
sys.path.insert(0, str(EMULATION))

import emulated_kernels  # noqa: E402
import kernel_cases  # noqa: E402

pytestmark = pytest.mark.skipif(emulated_kernels.compiler() is None, reason="no g++ on PATH")

SANITIZERS = {"address": "fibers", "thread": "threads"}


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """The libraries by sanitizer. All compilers start at once."""
    directory = tmp_path_factory.mktemp("emulation")
    wanted = [None, *(s for s in SANITIZERS if emulated_kernels.runtime(s))]
    started = {s: emulated_kernels.start_build(directory, s) for s in wanted}
    return {s: emulated_kernels.finish_build(*build) for s, build in started.items()}


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", kernel_cases.CHECKS)
def test_against_numpy(builds, name, reverse):
    emulator = emulated_kernels.Emulator(builds[None], reverse=reverse)
    kernel_cases.CHECKS[name](emulator, np.random.default_rng(7))


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_under_sanitizer(builds, sanitizer):
    if sanitizer not in builds:
        pytest.skip(f"g++ came without {emulated_kernels.RUNTIMES[sanitizer]}")
    environment = {
        **os.environ,
        "LD_PRELOAD": emulated_kernels.runtime(sanitizer),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory to its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable, str(EMULATION / "kernel_cases.py"), str(builds[sanitizer]),
        SANITIZERS[sanitizer],
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.count("passed") == len(kernel_cases.CHECKS)


def test_a_barrier_that_not_all_threads_reach_is_reported(tmp_path):
    """The emulator would otherwise hide or hang on what a GPU deadlocks on."""
    source = tmp_path / "stuck.cpp"
    source.write_text(
        '#include "cuda_host.h"\n'
        "void stuck() { if (threadIdx.x < 16) __shfl_xor_sync(0xffffffffu, 1, 1); }\n"
        "int main() { int shape[6] = {1, 1, 1, 32, 1, 1}; cuda_host::launch(&stuck, shape, 0, 0); }"
    )
    program = tmp_path / "stuck"
    subprocess.run(
        ["g++", "-std=c++20", f"-I{EMULATION}", str(source), "-o", str(program)], check=True
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "no thread of the block can go on" in done.stderr
