"""The numbered kernels of examples/lab: compiled, launched on the simulated GPU, and right on the
library, where it can run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rawnn
from rawnn.lab.header import header
from rawnn.lab.kernel_files import kernel_of
from tests import requires
from tests.lab.on_the_emulator import check_of_nothing, check_on_the_emulator
from tests.ptx.emulator.emulator import Kernels
from tests.slices import sliced

LAB = Path(rawnn.__file__).parents[1] / "examples" / "lab"
SERIES = sorted(LAB.glob("[rtsg]*/[1-9]_*.cu"))
SMALL = {"reduction": {"n": [1, 5000, 8192]}, "transpose": {"rows": [5, 40], "cols": [33, 64]},
         "softmax": {"rows": [1, 3], "cols": [4, 300]},
         "gemm": {"m": [3, 65], "n": [20], "k": [17]}}
"""Sizes for the CPU emulator, which runs thread by thread."""
WHOLE_ROWS = {"m": [200], "n": [264], "k": [136]}
"""For steps that take rows of a multiple of 16 bytes: tiles beyond the matrix on every side, and
another turn of a ring of two stages."""


def small(path: Path) -> dict[str, list[int]]:
    """Sizes of a step for the CPU emulator."""
    topic = path.parent.name
    if topic == "gemm" and int(path.stem[0]) > 4:
        return WHOLE_ROWS
    return {"rows": [8, 72], "cols": [64, 132]} if path.stem == "5_four_by_four" else SMALL[topic]


def test_every_topic_is_a_series() -> None:
    assert {path.parent.name for path in SERIES} == set(SMALL)
    for topic in SMALL:
        steps = [path.name for path in SERIES if path.parent.name == topic]
        assert [int(name[0]) for name in steps] == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("path", SERIES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_its_description_fits(path: Path) -> None:
    requires.module("cuda.bindings.nvrtc")
    assert "// Learned: " in path.read_text()
    assert header(path.read_text(), path)
    kernel, work = kernel_of(path, device=rawnn.lab.simulated())
    rawnn.check(kernel, work, trials=2).require()
    assert check_of_nothing(kernel, work).findings[0].what in ("not written", "wrong")


@pytest.mark.parametrize(("script", "words"), [
    ("series.py reduction", "5_wide_loads: its description fits; "),
    ("plugged.py --examples 600", "with bias_relu.cu: test accuracy 0."),
    ("power_iteration.py", "rawnn.Graph(2 nodes, 1 edge): 5 rounds, largest eigenvalue 63.7"),
])
def test_the_scripts_run_on_the_simulated_gpu(script: str, words: str) -> None:
    requires.module("cuda.bindings.nvrtc")
    done = subprocess.run([sys.executable, *f"{LAB}/{script} --device sim".split()],
                          capture_output=True, text=True, check=False, timeout=240,
                          env={**os.environ, "PYTHONPATH": str(LAB.parents[1])})
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


@requires.GXX
def test_the_kernel_for_the_trainer_is_right_on_the_emulator() -> None:
    rng = np.random.default_rng(0)
    z, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((5, 18), (18,)))
    a = np.zeros((5, 20), np.float32)[:, :18]
    library = Kernels(("bias_relu.cu",), ("bias_relu<float,float>",), folders=(LAB,)).build()
    library.call("bias_relu<float,float>", (1,), (256,), z=z, bias=bias, a=a, rows=5, cols=18)
    np.testing.assert_array_equal(a, np.maximum(z + bias, 0))


@requires.GXX
@pytest.mark.parametrize("path", sliced((p for p in SERIES if p.stem != "4_tensor_cores"), 5),
                         ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_its_code_is_right_on_the_emulator(path: Path) -> None:
    check_on_the_emulator(path, sizes=small(path)).require()


@requires.GXX
@pytest.mark.parametrize(("defines", "grid"), sliced([
    ({"STAGES": 2, "CLUSTER": 2, "GROUP": 1}, 2), ({"STAGES": 3, "CLUSTER": 4, "GROUP": 2}, 4),
    ({"STAGES": 2, "CLUSTER": 1, "GROUP": 8}, 1)]))
def test_a_block_computes_several_tiles_in_every_order(defines: dict[str, int], grid: int) -> None:
    """Fewer blocks than tiles, rings of fewer stages, clusters of other sizes."""
    sizes = {"m": [264], "n": [264], "k": [136]}
    check_on_the_emulator(LAB / "gemm" / "8_clusters.cu", sizes=sizes, defines=defines,
                      grid=grid).require()


@requires.GXX
@pytest.mark.parametrize(("right", "wrong", "words"), sliced([
    # A place is filled again before all have read it.
    ("          ptx::wait_for(empty + turn.slot * 8, turn.parity ^ 1);\n", "",
     "more arrivals than a barrier expects"),
    # Only this block's warpgroups say that they have read what both blocks get.
    ("2 * CLUSTER);", "2);", "more arrivals than a barrier expects"),
    # Half of b comes to this block alone.
    ("(1 << CLUSTER) - 1);", "1 << rank);", "waits"),
    # Sums are read while the tensor cores may still write them.
    ("      ptx::wait_for_products<0>();\n", "", "wrong"),
    # The copy engine reads what it cannot see yet.
    ("        ptx::fence_proxy_async();\n", "", "without a proxy fence between"),
    # A place is overwritten that the copy engine has not read.
    ("        if (lane == 0) ptx::wait_for_reads<1>();  // this place has been read\n", "",
     "without synchronisation"),
], 2))
def test_mistakes_in_the_last_product_are_found_there(tmp_path: Path, right: str, wrong: str,
                                                      words: str) -> None:
    text = (LAB / "gemm" / "8_clusters.cu").read_text()
    assert text.count(right) == 1, right
    path = tmp_path / "wrong.cu"
    path.write_text(text.replace(right, wrong))
    found = check_on_the_emulator(path, sizes={"m": [264], "n": [256], "k": [200]},
                              defines={"STAGES": 2})
    assert not found
    assert words in str(found)


@requires.GXX
def test_a_kernel_that_forgets_a_barrier_is_found_there(tmp_path: Path) -> None:
    text = (LAB / "transpose" / "2_tile.cu").read_text()
    wrong = tmp_path / "wrong.cu"
    wrong.write_text(text.replace("  __syncthreads();\n", ""))
    found = check_on_the_emulator(wrong, sizes=SMALL["transpose"])
    assert not found
    assert "wrong.cu:15, without synchronisation" in str(found)


@pytest.mark.parametrize(("torch", "words"), [
    ("raise ImportError('not here')", "this example needs PyTorch: pip install torch"),
    ("class cuda:\n    is_available = staticmethod(lambda: False)",
     "this example needs a GPU that PyTorch can use, and there is none"),
])
def test_zero_copy_says_what_it_needs(tmp_path: Path, torch: str, words: str) -> None:
    (tmp_path / "torch.py").write_text(torch)
    done = subprocess.run(
        [sys.executable, str(LAB / "zero_copy.py")], capture_output=True, text=True, check=False,
        timeout=60, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{LAB.parents[1]}"})
    assert (done.returncode, done.stderr.strip()) == (1, words)
