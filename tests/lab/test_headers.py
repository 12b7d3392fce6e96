"""Headers that people's kernels include, each compiled by the NVRTC that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawnn.common.errors import CompileError
from rawnn.cuda import library_folders
from rawnn.cuda.compiling import headers
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.nvrtc import Nvrtc
from tests import requires

requires.module("cuda.bindings.nvrtc")

INCLUDING = {
    "cooperative_groups": """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(float* x) { cg::this_thread_block().sync(); x[0] = 1; }""",
    "cooperative_groups/reduce": """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(float* x) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    x[0] = cg::reduce(warp, x[threadIdx.x], cg::plus<float>());
}""",
    "mma": """
#include <mma.h>
using namespace nvcuda;
__global__ void k(half* x) {
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> c;
    wmma::fill_fragment(c, __float2half(0.f));
    wmma::store_matrix_sync(x, c, 16, wmma::mem_row_major);
}""",
    "cstdio": """
#include <cstdio>
__global__ void k(float* x) { printf("%f\\n", x[0]); std::printf("\\n"); }""",
    "stdint": """
#include <stdint.h>
#include <cstddef>
__global__ void k(float* x) { x[0] = uint32_t(1) + std::int64_t(2) + std::size_t(3); }""",
    "C": """
#include <cassert>
#include <cfloat>
#include <climits>
#include <math.h>
#include <stdlib.h>
#include <string.h>
__global__ void k(float* x) { assert(x); x[0] = sqrtf(FLT_MAX) + INT_MAX; }""",
    "cuda/std": """
#include <cuda/std/array>
__global__ void k(float* x) { cuda::std::array<float, 2> a{1, 2}; x[0] = a[1]; }""",
    "cuda/barrier": """
#include <cuda/barrier>
__global__ void k(float* x) {
    __shared__ cuda::barrier<cuda::thread_scope_block> all;
    if (threadIdx.x == 0) init(&all, blockDim.x);
    __syncthreads();
    all.arrive_and_wait();
    x[0] = 1;
}""",
    "cub/block": """
#include <cub/block/block_reduce.cuh>
__global__ void k(float* x) {
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ Reduce::TempStorage room;
    float sum = Reduce(room).Sum(x[threadIdx.x]);
    if (threadIdx.x == 0) x[0] = sum;
}""",
    "cuda_runtime": """
#include <cuda_runtime.h>
#include <device_launch_parameters.h>
__global__ void k(float* x) { x[0] = 1; }""",
}


def compiled(text: str, name: str = "k.cu", *folders: Path) -> bytes:
    return compile_source(Nvrtc, text, name=name, arch="sm_90", expressions=("k",),
                          include_paths=folders).cubin


@pytest.mark.parametrize("text", INCLUDING.values(), ids=INCLUDING)
def test_a_header_can_be_included(text: str) -> None:
    try:
        assert compiled(text).startswith(b"\x7fELF")
    except CompileError as error:
        if "pip install nvidia-cuda-nvcc-cu12" in str(error):
            pytest.skip("crt/mma.h is not installed")
        raise


def test_headers_find_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "sub" / "b.h").write_text("constexpr float B = 1;\n")
    assert compiled('#include "sub/a.h"\n__global__ void k(float* x) { *x = B; }\n', "k.cu",
                    tmp_path)


def test_the_working_directory_is_none_of_a_kernels(tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"(?s)here\.h.*include=\[\.\.\.\]") as caught:
        compiled('#include "here.h"\n__global__ void k(float* x) {}\n')
    assert "no-such-folder" not in str(caught.value)
    assert "k.cu(1): " in str(caught.value)


STANDARD = {
    "algorithm": "x[0] = std::min(x[0], x[1]);",
    "array": "std::array<float, 2> a{1, 2}; x[0] = a[1];",
    "cmath": "x[0] = std::sqrt(x[0]) + std::abs(x[1]) + std::fmaf(x[0], x[1], INFINITY) + M_PI;",
    "complex": "std::complex<float> c(x[0], x[1]); x[0] = (c * c).real();",
    "cstdint": "std::uint32_t n = 3; x[n] = uint8_t(n);",
    "functional": "x[0] = std::plus<float>()(x[0], x[1]);",
    "limits": "x[0] = std::numeric_limits<float>::max();",
    "numeric": "x[0] = std::gcd(int(x[0]), 12);",
    "optional": "std::optional<float> o{x[0]}; x[0] = *o;",
    "tuple": "std::tuple<int, float> t{1, x[0]}; x[0] = std::get<1>(t);",
    "type_traits": "static_assert(std::is_same_v<float, std::remove_const_t<const float>>);",
    "utility": "auto p = std::make_pair(1, x[0]); x[0] = std::move(p.second);",
}


@pytest.mark.parametrize("header", STANDARD)
def test_headers_of_the_standard_library_are_cccls(header: str) -> None:
    assert compiled(f"#include <{header}>\n__global__ void k(float* x) {{ {STANDARD[header]} }}\n")


@pytest.mark.parametrize("header", sorted(headers.STANDARD))
def test_each_of_them_can_be_included(header: str) -> None:
    assert (headers.HOST_HEADERS / header).is_file()
    assert f"<cuda/std/{header}>" in (headers.HOST_HEADERS / header).read_text()


def test_the_umbrella_of_cub() -> None:
    assert compiled("""#include <cub/cub.cuh>
__global__ void k(float* x) {
    using Reduce = cub::BlockReduce<float, 128>;
    using Load = cub::BlockLoad<float, 128, 1>;
    __shared__ union { Reduce::TempStorage reduce; Load::TempStorage load; } shared;
    float mine[1];
    Load(shared.load).Load(x, mine);
    __syncthreads();
    float sum = Reduce(shared.reduce).Sum(mine);
    if (threadIdx.x == 0) x[0] = sum;
}""")


CURAND = """#include <curand_kernel.h>
__global__ void k(float* x) {
    curandState state;
    curand_init(1, threadIdx.x, 0, &state);
    x[threadIdx.x] = curand_uniform(&state) + curand_normal(&state);
}"""


def test_curand_is_found_where_its_wheel_is_and_else_the_wheel_is_the_fix(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not headers.find_optional_directories(["curand_kernel.h"]):
        with pytest.raises(CompileError, match="cuRAND's: pip install nvidia-curand"):
            compiled(CURAND)
        folder = tmp_path / "nvidia" / "curand" / "include"
        folder.mkdir(parents=True)
        (folder / "curand_kernel.h").write_text(
            "struct curandState { unsigned n; };\n"
            "__device__ void curand_init(int, int, int, curandState* s) { s->n = 1; }\n"
            "__device__ float curand_uniform(curandState* s) { return s->n; }\n"
            "__device__ float curand_normal(curandState* s) { return s->n; }\n")
        wheels = library_folders.wheels
        monkeypatch.setattr(library_folders, "wheels", lambda package: [
            *wheels(package), *([tmp_path / package] if package == "nvidia" else [])])
    assert compiled(CURAND)
