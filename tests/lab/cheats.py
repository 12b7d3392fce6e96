"""Kernels that are wrong in ways that a careless check lets pass, knowingly or not: each as CUDA C
and as what it does in NumPy, with what it has to be caught for.

All of them are meant to compute y = 2 x, unless they bring a reference of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

import rawnn
from rawnn.cuda.device import Device
from rawnn.sim import register

Meaning = Callable[[SimpleNamespace, Mapping[str, Any]], None]
SHAPES: dict[str, tuple[str, ...]] = {"x": ("n",), "y": ("n",)}
HEAD = "(const float* x, float* y, int n) {\n    int i = blockIdx.x * 256 + threadIdx.x;\n"


@dataclass(frozen=True)
class Cheat:
    """`body` is what a thread does, `before` what stands ahead of the kernel; `meaning` makes a
    fresh NumPy meaning; `caught` are the findings that will do."""

    name: str
    body: str
    meaning: Callable[[], Meaning]
    caught: tuple[str, ...]
    before: str = ""
    work: dict[str, Any] = field(default_factory=dict)
    limit: float | None = None
    special: bool = False

    @property
    def source(self) -> str:
        return f"{self.before}__global__ void {self.name}{HEAD}    {self.body}\n}}\n"

    def kernel(self, device: Device) -> rawnn.Kernel:
        return rawnn.Kernel(self.source, self.name, device=device)

    def simulated(self, device: Device) -> rawnn.Kernel:
        """The kernel on the simulated GPU, with its NumPy meaning."""
        register(self.name, self.meaning(), SHAPES, reads=("x",), writes=("y",))
        return self.kernel(device)

    @property
    def given(self) -> dict[str, Any]:
        return {"reference": lambda x: 2 * x, "grid": "cdiv(n, 256)", "block": 256,
                "sizes": {"n": "1..20000"}, **self.work}


def plain(meaning: Meaning) -> Callable[[], Meaning]:
    return lambda: meaning


def past(view: Any, index: int) -> Any:
    """The element of a view's memory at `index` from its beginning, in or outside of it."""
    start = (view.ctypes.data - view.base.ctypes.data) // view.itemsize
    return view.base.view(view.dtype), start + index


def doubled(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.y[...] = 2 * t.x


def honest_then(change: Meaning) -> Callable[[], Meaning]:
    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        doubled(t, a)
        change(t, a)

    return plain(meaning)


def caching() -> Meaning:
    kept: dict[int, Any] = {}

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        for i in range(t.x.size):
            t.y[i] = kept.setdefault(i, 2 * t.x[i])

    return meaning


def remembering() -> Meaning:
    last: list[bytes] = [b""]

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        if t.x.tobytes() != last[0]:
            doubled(t, a)
        last[0] = t.x.tobytes()

    return meaning


def tiring(launches: int) -> Callable[[], Meaning]:
    def made() -> Meaning:
        left = [launches]

        def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
            left[0] -= 1
            if left[0] >= 0:
                doubled(t, a)

        return meaning

    return made


def keeping_by_size() -> Meaning:
    results: dict[int, Any] = {}

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        t.y[...] = results.setdefault(t.x.size, 2 * t.x)

    return meaning


def wrong_in_launches(*which: int, of: int) -> Callable[[], Meaning]:
    """1 % off in the launches `which` of every `of`, else off by less than a unit, as sums by
    atomics are."""
    def made() -> Meaning:
        launches, noisy = [0], racing()

        def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
            noisy(t, a)
            if launches[0] % of in which:
                t.y[...] *= np.float32(1.01)
            launches[0] += 1

        return meaning

    return made


def trespassing_later() -> Meaning:
    launches = [0]

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        doubled(t, a)
        launches[0] += 1
        if launches[0] % 2 == 0:
            memory, end = past(t.y, t.y.size)
            memory[end] = 0

    return meaning


def racing() -> Meaning:
    chance = np.random.default_rng()

    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        t.y[...] = 2 * t.x * (1 + 2e-7 * chance.choice([-1, 1], t.x.size))

    return meaning


def _past_end(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    memory, end = past(t.y, t.y.size)
    memory[end : end + -t.y.size % 256] = 0


def _before_start(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    memory, start = past(t.y, 0)
    memory[start - 1] = 0


def _input_changed(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.x[t.x.size // 2] = 0


def _nudged_by_what_is_behind(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    memory, end = past(t.x, t.x.size)
    if memory[end : end + 1].view(np.int32)[0] & 1:
        t.y[-1] = np.nextafter(t.y[-1], np.float32(0))


def _nudged_by_what_is_before(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    memory, start = past(t.x, 0)
    if memory[start - 1 : start].view(np.int32)[0] & 1:
        t.y[-1] = np.nextafter(t.y[-1], np.float32(0))


def _one_element(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.y[np.argmax(np.abs(t.x))] *= np.float32(1.00005)


def _nan_in_one(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.y[t.y.size // 2] = np.nan


def _whole_blocks(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    whole = t.x.size // 256 * 256
    t.y[:whole] = 2 * t.x[:whole]


def _but_one_above(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    covered = t.x.size - (t.x.size > 1 and t.x.size % 256 == 1)
    t.y[:covered] = 2 * t.x[:covered]


def _small_alone(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    if t.x.size <= 4096:
        doubled(t, a)


def _in_half(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    t.y[...] = (2 * t.x).astype(np.float16)


def _for_ever(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    while True:
        time.sleep(0.01)


def _crash(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    raise ValueError("CUDA_ERROR_ILLEGAL_ADDRESS")


WRITE = "if (i < n) y[i] = 2 * x[i];"
CHEATS = (
    Cheat("writes_nothing", "(void)i;", plain(lambda t, a: None), ("not written",)),
    Cheat("caches_its_output",
          "if (i < n) { if (!filled[i]) kept[i] = 2 * x[i]; filled[i] = true; y[i] = kept[i]; }",
          caching, ("wrong",),
          "__device__ float kept[1 << 20];\n__device__ bool filled[1 << 20];\n"),
    Cheat("skips_repeated_inputs",
          "if (i < n && (x[i] != last[i])) { last[i] = x[i]; y[i] = 2 * x[i]; }",
          remembering, ("not deterministic", "wrong", "not written"),
          "__device__ float last[1 << 20];\n"),
    Cheat("works_only_at_first",
          "if (launches < 5 && i < n) y[i] = 2 * x[i];\n    __syncthreads();\n"
          "    if (i == 0) launches++;", tiring(5), ("not written", "not deterministic", "wrong"),
          "__device__ volatile int launches;\n"),
    Cheat("works_only_once", "if (launches == 0 && i < n) y[i] = 2 * x[i];\n"
          "    __syncthreads(); if (i == n - 1) launches++;", tiring(1),
          ("not written", "not deterministic", "wrong"), "__device__ volatile int launches;\n"),
    Cheat("keeps_results_by_size",
          "if (i < n && of[i] != n) { of[i] = n; kept[i] = 2 * x[i]; } if (i < n) y[i] = kept[i];",
          keeping_by_size, ("wrong",),
          "__device__ float kept[1 << 20];\n__device__ int of[1 << 20];\n"),
    Cheat("wrong_in_the_second_launch",
          "if (i < n) y[i] = (2 + 0.02f * (count[i]++ % 8 == 1)) * x[i];",
          wrong_in_launches(1, of=8), ("wrong",), "__device__ int count[1 << 20];\n",
          work={"deterministic": False, "sizes": {"n": [1000]}}),
    Cheat("wrong_in_repeated_launches",
          "if (i < n) { int c = count[i]++ % 8;\n"
          "    y[i] = (c == 0 ? 2 : c == 1 ? 2 + 2.4e-7f : 2.02f) * x[i]; }",
          wrong_in_launches(2, 3, 4, 5, 6, 7, of=8), ("wrong",), "__device__ int count[1 << 20];\n",
          work={"deterministic": False, "sizes": {"n": [1000]}}),
    Cheat("writes_past_the_end", "y[i] = i < n ? 2 * x[i] : 0;", honest_then(_past_end),
          ("outside",)),
    Cheat("writes_past_the_end_in_turns",
          "if (i < n) y[i] = 2 * x[i]; __syncthreads();\n"
          "    if (i == 0 && launches++ % 2) y[n] = 0;", trespassing_later, ("outside",),
          "__device__ int launches;\n"),
    Cheat("writes_before_the_start", WRITE + " if (i == 0) y[-1] = 0;",
          honest_then(_before_start), ("outside",)),
    Cheat("changes_an_input", WRITE + " if (i == n / 2) ((float*)x)[i] = 0;",
          honest_then(_input_changed), ("input changed", "wrong")),
    Cheat("whole_blocks_alone", "if ((blockIdx.x + 1) * 256 <= n) y[i] = 2 * x[i];",
          plain(_whole_blocks), ("not written",)),
    Cheat("stops_one_above_a_multiple", "if (i < n - (n > 1 && n % 256 == 1)) y[i] = 2 * x[i];",
          plain(_but_one_above), ("not written",)),
    Cheat("exits_early_by_size", "if (n > 4096) return; " + WRITE, plain(_small_alone),
          ("not written",)),
    Cheat("races",
          "__shared__ float s[256]; s[threadIdx.x] = i < n ? x[i] : 0;\n"
          "    if (i < n) { int back = 255 - threadIdx.x; s[back] *= 2; y[i] = s[threadIdx.x]; }",
          racing, ("not deterministic", "wrong"), work={"sizes": {"n": "100..20000"}}),
    Cheat("all_nan", "if (i < n) y[i] = nanf(\"\");", plain(lambda t, a: t.y.fill(np.nan)),
          ("wrong", "not written")),
    Cheat("nan_in_one_element", "if (i < n) y[i] = i == n / 2 ? nanf(\"\") : 2 * x[i];",
          honest_then(_nan_in_one), ("wrong",)),
    Cheat("one_element_in_many",
          "if (i < n) y[i] = fabsf(x[i]) > 3.5f ? 2.0001f * x[i] : 2 * x[i];",
          honest_then(_one_element), ("wrong",), work={"sizes": {"n": 100_000}}),
    Cheat("a_number_for_infinity", "if (i < n) y[i] = fminf(expf(50 * fabsf(x[i])), 3e38f);",
          plain(lambda t, a: t.y.__setitem__(
              slice(None), np.minimum(np.exp(50 * np.abs(t.x.astype(np.float64))), 3e38))),
          ("wrong",), work={"reference": lambda x: np.exp(50 * np.abs(x)), "tolerance": 0.1,
                            "sizes": {"n": [100, 10_000]}}),
    Cheat("reads_past_the_end",
          "if (i < n) y[i] = 2 * x[i]; if (i == n - 1 && (__float_as_int(x[n]) & 1))\n"
          "        y[i] = __int_as_float(__float_as_int(y[i]) - 1);",
          honest_then(_nudged_by_what_is_behind), ("depends on what is around",)),
    Cheat("reads_before_the_start",
          "if (i < n) y[i] = 2 * x[i]; if (i == n - 1 && (__float_as_int(x[-1]) & 1))\n"
          "        y[i] = __int_as_float(__float_as_int(y[i]) - 1);",
          honest_then(_nudged_by_what_is_before), ("depends on what is around",)),
    Cheat("adds_to_what_was_there", "if (i < n) y[i] += 2 * x[i];",
          plain(lambda t, a: t.y.__iadd__(2 * t.x)), ("wrong", "not written")),
    Cheat("drops_small_numbers", "if (i < n) y[i] = fabsf(x[i]) < 1e-6f ? 0 : 2 * x[i];",
          plain(lambda t, a: t.y.__setitem__(slice(None),
                                             np.where(np.abs(t.x) < 1e-6, 0, 2 * t.x))),
          ("wrong",), work={"inputs": {"x": "-1e-9..1e-9"}}),
    Cheat("works_in_half_precision",
          "if (i < n) y[i] = __half2float(__float2half(2 * x[i]));", plain(_in_half), ("wrong",),
          "#include <cuda_fp16.h>\n"),
    Cheat("loses_nan", "if (i < n) y[i] = fmaxf(x[i], 0);",
          plain(lambda t, a: np.fmax(t.x, 0, out=t.y)), ("wrong",),
          work={"reference": lambda x: np.maximum(x, 0)}, special=True),
    Cheat("never_ends", "while (*(volatile const float*)x == *(volatile const float*)x) {}",
          plain(_for_ever), ("failed",), work={"sizes": {"n": 100}}, limit=0.5),
    Cheat("crashes", "if (i < n) ((volatile float*)0)[i] = 2 * x[i];", plain(_crash), ("failed",),
          work={"sizes": {"n": 100}}, limit=20.0),
)
