"""`rawnn.check` and `rawnn.time` on a GPU: honest kernels pass, and every cheat is caught."""

from __future__ import annotations

from typing import Any

import pytest

import rawnn
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Stream
from rawnn.lab import CheckFailed, Refused
from tests.lab.cheats import CHEATS, HEAD, WRITE, Cheat

pytestmark = pytest.mark.gpu

HONEST = Cheat("honest", WRITE, lambda: lambda t, a: None, ())
GRID: dict[str, Any] = {"grid": "cdiv(n, 256)", "block": 256}


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_caught(device: Device, cheat: Cheat) -> None:
    limit = None if cheat.limit is None else max(cheat.limit, 10.0)
    found = rawnn.check(cheat.kernel(device), **cheat.given, limit=limit, special=cheat.special)
    assert not found
    assert found.findings[0].what in cheat.caught, str(found)
    rawnn.check(HONEST.kernel(device), **HONEST.given).require()  # the GPU is as it was


def test_what_a_kernel_prints_does_not_disturb_its_process(device: Device) -> None:
    source = ("#include <cstdio>\n__global__ void talks" + HEAD
              + "    if (i == 0) printf(\"hello\\n\");\n    " + WRITE + "\n}\n")
    kernel = rawnn.Kernel(source, "talks", device=device)
    assert rawnn.check(kernel, lambda x: 2 * x, **GRID, trials=3, limit=30)


REDUCE = """
__global__ void total(const float* x, float* y, int n) {
    __shared__ float s[256];
    float mine = 0;
    for (int i = threadIdx.x; i < n; i += 256) mine += x[i];
    s[threadIdx.x] = mine;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
    }
    if (threadIdx.x == 0) y[0] = s[0];
}
__global__ void by_atomics(const float* x, float* y, int n) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) atomicAdd(y, x[i]);
}
__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    if (row >= m || col >= n) return;
    for (int i = 0; i < k; i++) sum += a[row * k + i] * b[i * n + col];
    c[row * n + col] = sum;
}
"""


def test_sums(device: Device) -> None:
    shapes = {"x": "n", "y": 1}
    total = rawnn.Kernel(REDUCE, "total", device=device)
    rawnn.check(total, lambda x: x.sum(), grid=1, block=256, shapes=shapes, length="n").require()
    atomics = rawnn.Kernel(REDUCE, "by_atomics", device=device)
    rawnn.check(atomics, lambda x, y: y + x.sum(), **GRID, shapes=shapes, length="n",
                inputs={"y": 0}, deterministic=False).require()
    product = rawnn.Kernel(REDUCE, "product", device=device)
    rawnn.check(product, lambda a, b: a @ b, grid=["cdiv(n, 16)", "cdiv(m, 16)"], block=[16, 16],
                shapes={"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}, length="k").require()


def test_a_copy_is_timed_within_the_memorys_limit(device: Device) -> None:
    found = rawnn.time(HONEST.kernel(device), **HONEST.given, at={"n": 20000}, samples=20)
    assert 0 < found.warm.spread.min <= found.warm.median
    assert found.empty is not None
    large = rawnn.time(HONEST.kernel(device), **{**HONEST.given, "sizes": {"n": 1 << 25}},
                       samples=10, limit=120)
    assert large.checked >= 4
    peak = 2e-6 * device.attribute("MEMORY_CLOCK_RATE") / 8 \
        * device.attribute("GLOBAL_MEMORY_BUS_WIDTH")
    if peak:
        assert large.gbps < 1.05 * peak
    assert large.uses is not None
    virtual = device.arch.startswith("compute_")  # PTX, of which no registers are known
    assert (large.uses.resources is None) == virtual, large.uses


def test_a_cold_cache_is_cold(device: Device) -> None:
    given = {**HONEST.given, "sizes": {"n": 1 << 20}}
    found = rawnn.time(HONEST.kernel(device), **given, samples=30)
    # Something else at work makes single samples longer, never shorter.
    assert found.cold.spread.min > found.warm.spread.min


def test_what_is_too_fast_is_refused(device: Device) -> None:
    with pytest.raises(Refused, match="allows no less than"):
        rawnn.time(HONEST.kernel(device), **HONEST.given, at={"n": 20000}, bytes="n * 10**6")


@pytest.mark.parametrize("name", ["caches_its_output", "skips_repeated_inputs",
                                  "exits_early_by_size"])
def test_a_cheat_is_not_timed(device: Device, name: str) -> None:
    cheat = next(c for c in CHEATS if c.name == name)
    with pytest.raises(CheckFailed):
        rawnn.time(cheat.kernel(device), **cheat.given, samples=10)


def test_a_kernel_that_cheats_on_the_clock_alone_is_caught(device: Device) -> None:
    lazy = Cheat("lazy", "if (launches < 40 * gridDim.x && i < n) y[i] = 2 * x[i];\n"
                 "    if (threadIdx.x == 0) atomicAdd((int*)&launches, 1);",
                 lambda: lambda t, a: None, (), "__device__ volatile int launches;\n")
    with pytest.raises(CheckFailed, match="while it was timed"):
        rawnn.time(lazy.kernel(device), **lazy.given, samples=200)


def test_work_on_another_stream_is_waited_for(device: Device) -> None:
    source = ("__global__ void slow" + HEAD + "    long long begin = clock64();\n"
              "    while (clock64() - begin < 2000000) {}\n    " + WRITE + "\n}\n")
    kernel, side = rawnn.Kernel(source, "slow", device=device), Stream(device.driver)

    def elsewhere(x: Any, y: Any, n: int) -> None:
        kernel[-(-n // 256), 256].using(stream=side)(x, y, n)

    found = rawnn.time(elsewhere, lambda x: 2 * x, shapes={"x": "n", "y": "n"},
                       sizes={"n": 1000}, device=device, samples=5)
    assert found.cold.spread.min > 500  # microseconds: two million clocks
    side.close()


PUTS_OFF = """
__device__ const float* xs[64];
__device__ float* ys[64];
__device__ int waiting, launches;
__global__ void puts_off(const float* x, float* y, int n) {
    if (threadIdx.x == 0) { xs[waiting] = x; ys[waiting++] = y; launches++; }
    __syncthreads();
    if (launches > 2 && (launches - 2) % 5) return;
    for (int w = 0; w < waiting; w++)
        for (int i = threadIdx.x; i < n; i += 256) ys[w][i] = 2 * xs[w][i];
    __syncthreads();
    if (threadIdx.x == 0) waiting = 0;
}
"""


def test_work_that_is_put_off_till_a_later_sample_is_missed(device: Device) -> None:
    """Honest in the check; then the last of five samples does the work of all."""
    kernel = rawnn.Kernel(PUTS_OFF, "puts_off", device=device)
    with pytest.raises(CheckFailed, match="was never written by the end of its sample"):
        rawnn.time(kernel, lambda x: 2 * x, grid=1, block=256, sizes={"n": 1000}, samples=5)


def test_results_kept_by_address_are_found(device: Device) -> None:
    kernel, results, stale = HONEST.kernel(device), {}, []

    def keeping(x: Any, y: Any, n: int) -> None:
        key = x.address, y.address, n
        if key not in results:
            kernel[-(-n // 256), 256](x, y, n)
            results[key] = x.numpy(), y.numpy()
        else:
            stale.append((results[key][0] != x.numpy()).any())
            device.to_device(y.address, results[key][1], "y")

    found = rawnn.check(keeping, lambda x: {"y": 2 * x}, shapes={"x": "n", "y": "n"},
                        sizes={"n": [100, 100_000]}, device=device)
    if not any(stale):
        pytest.skip("the driver gave other addresses")
    assert [f.what for f in found.findings] == ["wrong", "keeps results"], str(found)


def test_a_part_of_the_cache_that_is_set_aside_is_refused(device: Device) -> None:
    kernel, limit = HONEST.kernel(device), "PERSISTING_L2_CACHE_SIZE"
    code, before = device.driver.cuCtxGetLimit(limit)
    if code or not device.attribute("MAX_PERSISTING_L2_CACHE_SIZE"):
        pytest.skip("this GPU has no part of its cache to set aside")

    def persisting(x: Any, y: Any, n: int) -> None:
        device.driver.cuCtxSetLimit(limit, 1 << 20)
        kernel[-(-n // 256), 256](x, y, n)

    with pytest.raises(Refused, match="of the L2 cache aside for persisting accesses"):
        rawnn.time(persisting, lambda x: {"y": 2 * x}, shapes={"x": "n", "y": "n"},
                   sizes={"n": 1000}, device=device, samples=3)
    device.driver.cuCtxSetLimit(limit, before)
    device.driver.cuCtxSetLimit(limit, 1 << 20)
    held = device.driver.cuCtxGetLimit(limit)[1]
    given = {**HONEST.given, "sizes": {"n": 1 << 20}}
    found = rawnn.time(kernel, **given, samples=30)
    assert found.cold.spread.min > found.warm.spread.min
    assert device.driver.cuCtxGetLimit(limit)[1] == held
    device.driver.cuCtxSetLimit(limit, before)


def test_special_values(device: Device) -> None:
    rawnn.check(HONEST.kernel(device), **HONEST.given, special=True).require()
    half = ("#include <cuda_fp16.h>\n__global__ void halves(const __half* x, __half* y, int n) {\n"
            "    int i = blockIdx.x * 256 + threadIdx.x;\n"
            "    if (i < n) y[i] = __float2half(1000.0f * __half2float(x[i]));\n}\n")
    rawnn.check(rawnn.Kernel(half, "halves", device=device), lambda x: 1000 * x, **GRID,
                inputs={"x": lambda g, shape: 100 * g.normal(size=shape)}, special=True).require()
