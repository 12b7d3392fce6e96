"""The mistakes that people make most with a kernel of their own: each is refused before the launch,
in one sentence that says the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import RawnnError
from rawnn.cuda.device import Device
from tests import requires

SOURCE = """
__constant__ float taps[4];
template <typename T>
__global__ void lab_mistaken(const T* x, T* y, float a, int n) {}
"""


class Lab:
    """A kernel, arrays for it, and other kernels."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.k = self.kernel()
        self.x, self.y = (self.array(np.zeros(8, np.float32)) for _ in range(2))

    def kernel(self, source: str = SOURCE, name: str = "lab_mistaken<float>", **more: Any) -> Any:
        return rawnn.Kernel(source, name, device=self.device, **more)

    def array(self, values: Any) -> Any:
        return rawnn.array(values, device=self.device)

    def check(self, **changed: Any) -> Any:
        return rawnn.check(self.k, **{"reference": lambda x, a: a * x, "grid": "cdiv(n, 32)",
                                      "block": 32, **changed})

    def record(self, add: Callable[[Any], Any]) -> None:
        with rawnn.Graph() as graph:
            self.k[1, 8](self.x, self.y, 1, 8)
            add(graph)


Attempt = Callable[[Lab], Any]
MISTAKES: dict[str, tuple[Attempt, str]] = {
    "no geometry": (lambda o: o.k(o.x, o.y, 1, 8), "write kernel[grid, block](...)"),
    "a grid by true division": (lambda o: o.k[8 / 4, 4], "(n + 255) // 256"),
    "an empty grid": (lambda o: o.k[0, 4], "of at least 1"),
    "too large a block": (lambda o: o.k[1, 2048], "take smaller blocks and more of them"),
    "too much shared memory": (lambda o: o.k[1, 32, 300_000], "take smaller tiles"),
    "too many blocks along y": (lambda o: o.k[(1, 70_000), 32], "or use x, which has the most"),
    "a shape below 0": (lambda o: rawnn.empty((2, -1), device=o.device), "of at least 0"),
    "a fraction as a shape": (lambda o: rawnn.empty(2.5, device=o.device),  # type: ignore[arg-type]
                              "of at least 0"),
    "Python objects": (lambda o: o.array([None, 1]), "say dtype=np.float32"),
    "words": (lambda o: o.array("abc"), "say dtype=np.float32"),
    "an empty source": (lambda o: o.kernel(""), "declared as __global__ void name(...)"),
    "a function of the host": (lambda o: o.kernel("void f(float* x) { x[0] = 1; }"),
                               "declared as __global__ void name(...)"),
    "bytes as a source": (lambda o: o.kernel(b"k"), "is text or the path of a file"),
    "no name": (lambda o: o.kernel(name=None), 'such as "scale<float>"'),
    "macros as a list": (lambda o: o.kernel(defines=["TILE"]), "a mapping of macros"),
    "more blocks than can meet": (lambda o: o.k[2000, 1024].using(cooperative=True),
                                  "take 264 at most, and let each do several parts"),
    "more than can meet, of much shared memory": (
        lambda o: o.k[133, 32, 200_000].using(cooperative=True), "132 fit (1 on each of 132"),
    "too large a cluster": (lambda o: o.k[32, 32].using(cluster=32),
                            "can have at most 16 here: take smaller clusters"),
    "a ragged cluster": (lambda o: o.k[5, 32].using(cluster=2), "round the grid up"),
    "an argument forgotten": (lambda o: o.k[1, 8](o.x, o.y, 1), "(x, y, a, n), not 3"),
    "a NumPy array": (lambda o: o.k[1, 8](np.zeros(8, np.float32), o.y, 1, 8),
                      "copy it with rawnn.array"),
    "a list": (lambda o: o.k[1, 8]([1.0], o.y, 1, 8), "make one with rawnn.array"),
    "NumPy's default float64": (lambda o: o.k[1, 8](o.array(np.zeros(8)), o.y, 1, 8),
                                "convert it to float (NumPy's float32)"),
    "a number for a pointer": (lambda o: o.k[1, 8](o.x, 3, 1, 8), "'y' is a pointer: pass"),
    "an array for a number": (lambda o: o.k[1, 8](o.x, o.y, o.x, 8), "pass one number"),
    "None for a number": (lambda o: o.k[1, 8](o.x, o.y, 1, None), "only a pointer may be None"),
    "a fraction for an int": (lambda o: o.k[1, 8](o.x, o.y, 1, 8.5), "pass int(...)"),
    "a number that does not fit": (lambda o: o.k[1, 8](o.x, o.y, 1, 1 << 40), "cannot hold"),
    "text for a number": (lambda o: o.k[1, 8](o.x, o.y, "1", 8), "cannot hold '1'"),
    "an array of another device": (
        lambda o: o.k[1, 8](rawnn.array(np.zeros(8, np.float32), device=rawnn.lab.simulated()), o.y,
                            1, 8), "with the same device="),
    "a name misspelt": (lambda o: o.kernel(name="lab_mistake<float>"),
                        "did you mean 'lab_mistaken'?"),
    "a template without arguments": (lambda o: o.kernel(name="lab_mistaken"),
                                     'write it such as "lab_mistaken<float>"'),
    "a file that is not there": (lambda o: o.kernel("kernels/none.cu"), "cannot read the kernel"),
    "a symbol misspelt": (lambda o: o.k.symbol("tap"), "did you mean 'taps'?"),
    "too many values for a symbol": (lambda o: o.k.symbol("taps").__setitem__(slice(None), [1] * 5),
                                     "does not take values of shape (5,)"),
    "an option without a dash": (lambda o: o.kernel(options=["use_fast_math"]), "--use_fast_math"),
    "the architecture as an option": (lambda o: o.kernel(options=["-arch=sm_90a"]),
                                      'write arch="sm_90a" instead'),
    "another GPU's architecture": (lambda o: o.kernel(arch="sm_100"), "leave arch out"),
    "an architecture that is none": (lambda o: o.kernel(arch="90"), "give one such as"),
    "a macro with a value in its name": (lambda o: o.kernel(defines={"N=3": True}),
                                         "is no name of a macro"),
    "a macro that is infinite": (lambda o: o.kernel(defines={"N": float("inf")}),
                                 'give text, such as "INFINITY"'),
    "a kernel of another name": (lambda o: o.kernel(name="other"), "; there is lab_mistaken"),
    "an array with a mask": (lambda o: rawnn.array(np.ma.array([1, 2], mask=[False, True]),
                                                   device=o.device), "1 values are masked"),
    "a symbol with a mask": (lambda o: o.k.symbol("taps").__setitem__(
        slice(None), np.ma.array([1, 2, 3, 4], mask=[0, 0, 1, 1])), "2 values are masked"),
    "a map of an array on the host": (lambda o: rawnn.tensor_map(np.ones((16, 32)), (8, 32)),
                                      "copy it with rawnn.array(...)"),
    "an array with None": (lambda o: rawnn.array([1, None], np.float32, device=o.device),
                           "the array holds None, which is no number: fill it in"),
    "None for an array": (lambda o: rawnn.array(None, np.float32, device=o.device),
                          "the array holds None"),
    "a folder that is not there": (lambda o: o.kernel(include=["nowhere"]), "there is no folder"),
    "options as text": (lambda o: o.kernel(options="-lineinfo"),
                        "options is a list, such as ['-lineinfo']"),
    "a macro that is a list": (lambda o: o.kernel(defines={"N": [1]}),
                               "N = [1] is neither a number nor text"),
    "a size that is a truth": (lambda o: o.check(sizes={"n": True}),
                               "sizes: n = True is no size"),
    "a size of 0": (lambda o: o.check(sizes={"n": 0}), "sizes are whole numbers of at least 1"),
    "a range with steps": (lambda o: o.check(sizes={"n": range(1, 9, 2)}), "give a number, a list"),
    "a range that ends early": (lambda o: o.check(sizes={"n": "9..1"}), "is no range of sizes"),
    "inputs of no range": (lambda o: o.check(inputs={"x": "5..1"}), "inputs: x = \"5..1\" is no"),
    "a grid of four": (lambda o: o.check(grid=(1, 1, 1, 1)),
                       "grid = (1, 1, 1, 1): give one to three extents"),
    "one result for two arrays": (lambda o: o.check(writes=("x", "y")),
                                  "may write x, y: let the reference return a dictionary such as "
                                  "{'x': ..., 'y': ...}"),
    "a reference that returns nothing": (lambda o: o.check(reference=lambda x, a: None),
                                         "let it return what the kernel writes"),
    "a copy to rows that are strided": (
        lambda o: o.record(lambda g: g.copy(np.zeros((4, 4), np.float32)[::2, :2].T, o.x)),
        "does not fit"),
    "a copy from rows that are strided": (
        lambda o: o.record(lambda g: g.copy(o.x, np.zeros((8, 2), np.float32)[:, 0])),
        "np.ascontiguousarray(...)"),
    "a copy between arrays of NumPy": (
        lambda o: o.record(lambda g: g.copy(np.zeros(8), np.zeros(8))), "copy takes two rawnn"),
    "a copy of other bytes": (
        lambda o: o.record(lambda g: g.copy(o.x, np.zeros(7, np.float32))),
        "copy: float32[7] does not fit float32[8]"),
    "a stream that is none": (lambda o: o.k[1, 8].using(stream="s"), "pass a stream of PyTorch"),
}


@pytest.mark.parametrize(("attempt", "fix"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_with_its_fix(device: Device, attempt: Attempt,
                                                 fix: str) -> None:
    lab = Lab(device)
    with pytest.raises(RawnnError) as caught:
        attempt(lab)
    assert fix in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


BESIDE = """constexpr int kTile = 1024;
__global__ void lab_beside(float* x) {
  extern __shared__ float rest[];
  __shared__ alignas(16) float s[4 * kTile][2];
  if (x) { __shared__ int one; one = 0; rest[0] = one; s[0][0] = 0; }
}
__global__ void lab_alone(float* x) { extern __shared__ float rest[]; }"""


def test_what_a_kernel_declares_counts_beside_what_the_launch_gives(device: Device) -> None:
    beside = Lab(device).kernel(BESIDE, "lab_beside")
    room = 232_448 - 32_772
    with pytest.raises(RawnnError, match=re.escape(
            f"lab_beside: {room + 4:,} bytes of shared memory beside the 32,772 that it declares, "
            f"and a block has at most 232,448 here: take smaller tiles")):
        beside[1, 32, room + 4]
    for shared in (20_000, room):
        beside[1, 32, shared].bind(None)
    Lab(device).kernel(BESIDE, "lab_alone")[1, 32, 232_448].bind(None)


def test_as_many_blocks_as_fit_may_meet(device: Device) -> None:
    lab = Lab(device)
    for grid, block, how in ((264, 1024, {"cooperative": True}), (16, 32, {"cluster": 16}),
                             (132, 32, {"cooperative": True, "shared": 200_000}),
                             (24, 32, {"cluster": 12, "shared": 200_000})):
        lab.k[grid, block].using(**how).bind(lab.x, lab.y, 1, 8)


DECLARES = "__global__ void lab_large(float* x) { __shared__ float s[20000]; s[*(int*)x] = *x; " \
           "__syncthreads(); *x = s[threadIdx.x]; }"


@pytest.mark.parametrize(("source", "name", "words"), [
    (SOURCE, "lab_mistaken<flaot>", 'the name expression "lab_mistaken<flaot>" fits no kernel of '
     "the source: identifier \"flaot\" is undefined; did you mean 'float'?\n"),
    ("template <int N> __global__ void lab_n(float* x) {}", "lab_n<float>",
     'the name expression "lab_n<float>" fits no kernel of the source: cannot determine'),
    (DECLARES, "lab_large", "lab_large declares 80,000 bytes of __shared__ arrays, and a kernel "
     "may declare 49,152: use dynamic shared memory, of which a block can have 232,448 bytes on "
     "sm_90: extern __shared__ ..., and shared=80000 at the launch"),
])
def test_what_the_compiler_refuses_has_a_fix(device: Device, source: str, name: str,
                                              words: str) -> None:
    requires.module("cuda.bindings.nvrtc")
    with pytest.raises(RawnnError) as caught:
        Lab(device).kernel(source, name)
    message, _, log = str(caught.value).partition("\nlog:\n")
    assert words in message
    assert "__nv_name_map" not in message
    assert log
