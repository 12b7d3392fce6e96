"""A user's kernel takes what the compiler says: by value, by pointer, by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import CompileError, ConfigError, DeviceError
from rawnn.cuda.compiling.signature import find_kernel, parse_kernels
from rawnn.cuda.device import Device
from rawnn.lab import Work, simulated
from rawnn.lab.kernel_source import Source
from rawnn.lab.parameter_roles import problem_of
from rawnn.sim import register
from tests import requires

requires.module("cuda.bindings.nvrtc")

Packed = Callable[..., list[bytes]]


@pytest.fixture
def device() -> Device:
    return simulated()


@pytest.fixture
def packed(device: Device) -> Packed:
    """What a kernel of these parameters gets of each argument, in bytes: those behind a float*."""
    def make(declared: str, *arguments: Any, before: str = "", **named: Any) -> list[bytes]:
        kernel = rawnn.Kernel(f"{before}\n__global__ void by_value(float* y, {declared}) "
                              f"{{ y[0] = 1; }}", "by_value", device=device)
        y = rawnn.empty(1, device=device)
        launcher = kernel[1, 1]
        values = launcher._values(launcher._placed((y, *arguments), named), [])
        launch = launcher._prepare(values)
        offsets, size = kernel.signature.layout()
        first = launch.arguments._first
        raw = bytes(launch.arguments._buffer)[first : first + size]
        return [raw[at : at + p.size] for at, p in zip(offsets, kernel.signature.parameters,
                                                       strict=True)][1:]
    return make


class Mode(IntEnum):
    SLOW = 0
    FAST = 3


def test_numbers_by_other_names(packed: Packed) -> None:
    found = packed("real r, uint u, Mode m, Small s", 0.1, 2**32 - 1, Mode.FAST, 255,
                   before="using real = double; enum Mode { A, B = 3 };\n"
                          "enum class Small : unsigned char { X };")
    assert found == [np.float64(0.1).tobytes(), b"\xff" * 4, np.int32(3).tobytes(), b"\xff"]
    with pytest.raises(ConfigError, match=r"'s' \(Small\) cannot hold 256"):
        packed("Small s", 256, before="enum class Small : unsigned char { X };")


def test_vectors_and_complex_numbers(packed: Packed) -> None:
    headers = ("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuComplex.h>\n"
               "#include <cuda/std/complex>\n")
    found = packed("dim3 d, half2 h, __nv_bfloat162 b, float3 f, cuComplex c, "
                   "cuda::std::complex<double> z",
                   (4, 5, 6), (1.5, -2), np.array([1, 2], ml_dtypes.bfloat16),
                   np.array([1, 2, 3], np.float32), 1 + 2j, np.complex128(3 - 4j), before=headers)
    assert found == [np.array([4, 5, 6], np.uint32).tobytes(),
                     np.array([1.5, -2], np.float16).tobytes(),
                     np.array([1, 2], ml_dtypes.bfloat16).tobytes(),
                     np.array([1, 2, 3], np.float32).tobytes(),
                     np.array([1 + 2j], np.complex64).tobytes(),
                     np.array([3 - 4j], np.complex128).tobytes()]
    for wrong in ((1, 2), np.array([1, 2, 3]), np.complex64(1), "x"):
        with pytest.raises(ConfigError, match=r"(?s)'float3'|argument 'f'"):
            packed("float3 f", wrong)


def test_structs_by_typedef_and_classes(packed: Packed) -> None:
    plain = np.array((7, 0.5), np.dtype([("a", "i4"), ("b", "f8")], align=True))[()]
    found = packed("Plain p, Twice t, Pair<int> q, Empty e", plain, np.float32(2),
                   np.array((1, 2), [("first", "i4"), ("second", "i4")])[()], b"\0", before="""
        typedef struct { int a; double b; } Plain;
        struct Twice { float by; __device__ float operator()(float x) const { return by * x; } };
        template <typename T> struct Pair { T a, b; };
        struct Empty { __device__ int operator()() const { return 1; } };""")
    assert found == [plain.tobytes(), np.float32(2).tobytes(), np.array([1, 2], "i4").tobytes(),
                     b"\0"]
    with pytest.raises(ConfigError, match="'Twice' takes a NumPy scalar of its size, structured or "
                                          "not, or its 4 bytes, not "):
        packed("Twice t", np.float64(2),
               before="struct Twice { float by; __device__ float f() const { return by; } };")


def test_structs_are_aligned_as_compiled(device: Device) -> None:
    members = "{ int a; float b; }"
    kernel = rawnn.Kernel(f"""
        #pragma pack(push, 1)
        struct A {members};
        #pragma pack(pop)
        struct B {members};
        struct alignas(8) C {members};
        typedef struct __align__(8) {members} D;
        __global__ void aligned(float* y, char a, A p, char b, B q, char c, C r, char d, D s) {{
          y[0] = 1;
        }}""", "aligned", device=device)
    assert kernel.signature.layout() == ((0, 8, 9, 17, 20, 28, 32, 40, 48), 56)


def test_pointers_to_pointers_take_addresses(device: Device) -> None:
    text = "__global__ void rows(float** x, const float* const* y) { x[0][0] = y[0][0]; }"
    kernel = rawnn.Kernel(text, "rows", device=device)
    x = rawnn.array(np.ones(4), np.float32, device=device)
    with pytest.raises(ConfigError, match=r"'x' points to pointers \(float\*\), and the array holds"
                                          r" float32: pass an array of addresses, uint64"):
        kernel[1, 1].bind(x, x)
    addresses = rawnn.array([x.address], np.uint64, device=device)
    kernel[1, 1].bind(addresses, addresses)
    assert [p.const for p in kernel.signature.parameters] == [False, True]
    with pytest.raises(ConfigError, match="no address can be drawn"):
        rawnn.check(kernel, lambda y: y, grid=1, block=1, shapes={"x": 1, "y": 1})


def test_what_the_preprocessor_leaves_out_is_not_asked_for(
        device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    text = ("__global__ void some(float* x,\n#ifdef EXTRA\nint extra,\n#endif\nint n)"
            "{ x[0] = n; }")
    register("some", lambda t, a: t.arg0.__setitem__(0, a["arg1"]), {"arg0": ("1",)}, reads=(),
             writes=("arg0",))
    x = rawnn.empty(1, device=device)
    kernel = rawnn.Kernel(text, "some", device=device)
    kernel[1, 1](x, 5)
    assert x.numpy() == [5]
    assert "the source declares 3 (an #if may leave some out)" in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match=r"takes 2 arguments \(arg0, arg1\), not 3"):
        kernel[1, 1](x, 5, 6)
    extra = rawnn.Kernel(text, "some", defines={"EXTRA": True}, device=device)
    assert [p.name for p in extra.signature.parameters] == ["x", "extra", "n"]


def test_overloads_have_their_fix(device: Device) -> None:
    with pytest.raises(CompileError, match=r"overloaded function.*give overloaded kernels "
                                           r"different names"):
        rawnn.Kernel("__global__ void k(float* x) {}\n__global__ void k(int* x) {}", "k",
                     device=device)


@pytest.mark.parametrize(("text", "expression", "listed"), [
    ("__global__ void k(float* x) {}\n__global__ void k(const int* x, int n) {}", "k",
     "'k' is an overloaded function: k(float* x) and k(const int* x, int n)"),
    ("template <class T> __global__ void k(T* x) {}\n"
     "template <class T> __global__ void k(T* x, T a) {}\n__global__ void other() {}", "k<float>",
     "'k<float>' is an overloaded function: k(T* x) and k(T* x, T a)"),
    ("namespace a { __global__ void k(float* x) {} __global__ void k(double* x) {} }", "a::k",
     "'a::k' is an overloaded function: a::k(float* x) and a::k(double* x)")])
def test_overloads_are_one_sentence_that_lists_them(
        text: str, expression: str, listed: str, device: Device, tmp_path: Path) -> None:
    sentence = re.escape(f"{listed}; give overloaded kernels different names")
    with pytest.raises(CompileError, match=rf"^NVRTC \S+ cannot compile \S+ for \w+: {sentence}$"):
        rawnn.Kernel(text, expression, device=device)
    (tmp_path / "k.cuh").write_text(text)
    (tmp_path / "k.cu").write_text('#include "k.cuh"\n')
    for file in ("k.cu", "k.cuh"):
        with pytest.raises(CompileError, match=f"{sentence}$"):
            rawnn.Kernel(tmp_path / file, expression, device=device)


INNER = """
#include <cuda_fp16.h>
namespace a { inline namespace v1 { namespace b {
template <typename T, int N> __global__ void k(T* x, int n) { if (n > 0) x[0] = N; }
} } }
"""


def test_kernels_in_namespaces(device: Device) -> None:
    register("a::b::k", lambda t, a: t.x.__setitem__(0, a["N"]), {"x": ("n",)}, reads=(),
             writes=("x",))
    kernel = rawnn.Kernel(INNER, "a::b::k<half, 2>", device=device)
    x = rawnn.empty(1, np.float16, device=device)
    kernel[1, 32](x, 1)
    assert x.numpy() == [2]
    for wrong in ("b::k", "::k", "a::k"):
        with pytest.raises(ConfigError, match="it is in a namespace, write 'a::b::k'"):
            find_kernel(parse_kernels("namespace a { namespace b { __global__ void k() {} } }"),
                        wrong)
    with pytest.raises(ConfigError, match="it is in a namespace, write 'a::b::k'"):
        rawnn.Kernel(INNER, "k<half, 2>", device=device)
    with pytest.raises(ConfigError, match="did you mean 'a::b::k'"):
        rawnn.Kernel(INNER, "a::b::q<half, 2>", device=device)


SCALED = "__global__ void scaled(const float* in, float* out, float lambda, int n) {}"


@pytest.fixture
def scaled(device: Device) -> rawnn.Kernel:
    register("scaled", lambda t, a: np.copyto(t.out, np.float32(a["lambda"]) * t.in_),
             {"in": ("n",), "out": ("n",)}, reads=("in",), writes=("out",))
    return rawnn.Kernel(SCALED, "scaled", device=device)


def test_arguments_by_name(scaled: rawnn.Kernel) -> None:
    x = rawnn.array([1, 2], np.float32, device=scaled.device)
    y = rawnn.empty(2, device=scaled.device)
    for factor in (2.0, 3.0):  # the second launch is a generated function's
        scaled[np.int64(1), np.int32(32)](x, n=2, lambda_=factor, out=y)
        assert y.numpy().tolist() == [factor, 2 * factor]
    scaled[1, 32](n=2, lambda_=4, out=y, in_=x)
    assert y.numpy().tolist() == [4, 8]
    scaled[1, 32](x, y, 5, 2)
    assert y.numpy().tolist() == [5, 10]
    scaled.bind(1, 32, x, y, n=2, lambda_=6)()
    assert y.numpy().tolist() == [6, 12]


def test_an_array_without_a_shape_is_as_long_as_the_only_size(device: Device) -> None:
    kernel = rawnn.Kernel("""__global__ void lab_only_size(const float2* x, float* y, int count) {
        if (threadIdx.x < count) y[threadIdx.x] = x[threadIdx.x].x; }""", "lab_only_size",
                          device=device)
    problem = problem_of(kernel, Work(lambda x: x[:, 0], grid=1, block=32))
    assert {o.name: o.extents for o in problem.operands} == {"x": ("count", 2), "y": ("count",)}


@pytest.mark.parametrize("block", [32, 64])  # a geometry that was launched, one that was not
def test_wrong_names_are_refused(scaled: rawnn.Kernel, block: int) -> None:
    x = rawnn.array([1, 2], np.float32, device=scaled.device)
    y = rawnn.empty(2, device=scaled.device)
    scaled[1, 32](x, y, 1, 2)
    scaled[1, 32](x, y, 2, 2)
    launcher = scaled[1, block]
    with pytest.raises(TypeError, match="'m'"):
        launcher(x, y, 2.0, m=4)
    with pytest.raises(TypeError, match="'n'"):
        launcher(x, y, 2.0, 2, n=2)
    with pytest.raises(ConfigError, match=r"takes 4 arguments \(in, out, lambda, n\), not 3"):
        launcher(x, y, n=2)
    with pytest.raises(ConfigError, match=r"not 3: without lambda_$"):
        launcher.bind(x, y, n=2)
    with pytest.raises(ConfigError, match=r"takes 4 arguments .* not 5"):
        launcher(x, y, 2.0, 2, 3)


def test_a_reference_spells_names_as_python_can(scaled: rawnn.Kernel) -> None:
    given: dict[str, Any] = {"grid": 1, "block": 32, "sizes": {"n": [1, 5]}}
    rawnn.check(scaled, lambda in_, lambda_: in_ * lambda_, **given).require()
    rawnn.check(scaled, "lambda_ * in_", shapes={"in_": "n", "out": "n"}, **given).require()
    assert not rawnn.check(scaled, lambda in_, lambda_: in_ + lambda_, **given)


@pytest.mark.parametrize(("value", "message"), [
    (np.int64(4), "4"), (np.float32(0.5), "0.5"), (np.bool_(True), ""), (np.bool_(False), "0")])
def test_macros_may_be_numbers_of_numpy(device: Device, value: Any, message: str) -> None:
    kernel = rawnn.Kernel("__global__ void k(float* x) { x[0] = 0 N; }".replace(
        "0 N", "N" if message else "1"), "k", defines={"N": value}, device=device)
    assert f"#define N {message}\n" in kernel.source.preamble


def test_a_block_beyond_an_axis_is_refused_with_the_limit(scaled: rawnn.Kernel) -> None:
    with pytest.raises(DeviceError, match=r"the block \(1, 1, 65\) has 65 threads along z, and it "
                                          r"can have at most 64 there"):
        scaled[1, (1, 1, 65)]
    assert scaled[1, (1, 1, 64)]


GRID = """
#include <cooperative_groups.h>
__global__ void meets(float* x) { cooperative_groups::this_grid().sync(); x[0] = 1; }
"""


def test_a_kernel_that_waits_for_the_grid_is_launched_cooperatively(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    register("meets", lambda t, a: t.x.fill(1), {"x": ("1",)}, reads=(), writes=("x",))
    x = rawnn.empty(1, device=device)
    kernel = rawnn.Kernel(GRID, "meets", device=device)
    for refused in (lambda: kernel[2, 32](x), lambda: kernel.bind(2, 32, x)):
        with pytest.raises(ConfigError, match=r"grid\.sync\(\).*using\(cooperative=True\)"):
            refused()
    with pytest.raises(ConfigError, match=r"using\(cooperative=True\)"), rawnn.Graph():
        kernel[2, 32](x)
    kernel[2, 32].using(cooperative=True)(x)
    assert x.numpy() == [1]
    asks = GRID.replace("cooperative_groups::this_grid().sync()",
                        "auto g = cooperative_groups::this_grid(); if (g.is_valid()) g.sync()")
    assert not rawnn.Kernel(asks, "meets", device=device).waits_for_grid
    monkeypatch.setattr("rawnn.lab.kernel_source.Source.compile_for_real", lambda *a: None)
    assert rawnn.Kernel(GRID, "meets", device=device).waits_for_grid  # by its text alone


def test_a_dead_device_is_no_wrong_kernel(device: Device) -> None:
    register("past", lambda t, a: t.x.fill(1), {"x": ("n",)}, reads=(), writes=("x",))
    kernel = rawnn.Kernel("__global__ void past(float* x, int n) { x[0] = 1; }", "past",
                          device=device)
    given: dict[str, Any] = {"grid": 1, "block": 32, "sizes": {"n": [3]}}
    rawnn.check(kernel, lambda n: np.ones(n), **given).require()
    x = rawnn.empty(4, device=device)
    kernel[1, 32](x, 8)
    with pytest.raises(rawnn.common.errors.RawnnError, match="past the end"):
        kernel.synchronize()
    for limit in (None, 5.0):
        with pytest.raises(DeviceError, match=r"(?s)simulated GPU is gone.*past the end of the "
                                              r"allocation of 16 bytes"):
            rawnn.check(kernel, lambda n: np.ones(n), limit=limit, **given)
    with pytest.raises(DeviceError, match="simulated GPU is gone"):
        rawnn.time(kernel, lambda n: np.ones(n), **given)


def test_sizes_and_values_that_nothing_asks_for_are_refused(scaled: rawnn.Kernel) -> None:
    given: dict[str, Any] = {"grid": 1, "block": 32, "reference": "lambda_ * in_"}
    for wrong, words in (({"sizes": {"m": 4}}, "sizes: nothing of scaled asks for 'm'"),
                         ({"values": {"gain": 2}}, "values: nothing of scaled asks for 'gain'")):
        with pytest.raises(ConfigError, match=words):
            rawnn.check(scaled, **given, **wrong)
    work = {**given, "grid": "cdiv(n, width)", "values": {"width": 16}, "sizes": {"n": 20}}
    rawnn.check(scaled, **work).require()
    with pytest.raises(ConfigError, match="mentions no 'TILL'"):
        rawnn.sweep(scaled, {"TILL": [1, 2]}, **given)


@pytest.mark.parametrize(("macro", "declaration"), [
    ("#define KERNEL __global__ void", "KERNEL worded"),
    ('#define KERNEL extern "C" __global__ void\r', "KERNEL worded"),
    ("#  define GLOBAL  __global__  // of the device", "GLOBAL void worded"),
    ("#ifdef NEVER\n#define K\n#else\n#define K __global__ __launch_bounds__(64)\n#endif",
     "K void worded")])
def test_a_macro_that_begins_a_declaration_leaves_parameters_their_names(
        device: Device, macro: str, declaration: str) -> None:
    kernel = rawnn.Kernel(f"{macro}\n{declaration}(float* y, int n) {{ y[0] = n; }}\n", "worded",
                          device=device)
    assert [p.name for p in kernel.signature.parameters] == ["y", "n"]


def test_names_with_an_underscore_mean_parameters_but_not_symbols() -> None:
    """`in_` is the parameter `in`, which no Python function can have; a symbol has its own name."""
    given = Work(lambda in_: in_, shapes={"in_": "n"}, types={"in_": np.float32},
                 inputs={"in_": "0..9"}, values={"lambda_": 2.0}, symbols={"in_": [1.0]},
                 writes=("in_", "y"), grid=1, block=32)
    found = given.of_parameters({"in", "lambda", "y"})
    assert (found.shapes, found.types, found.inputs, found.values) == (
        {"in": "n"}, {"in": np.float32}, {"in": "0..9"}, {"lambda": 2.0})
    assert (found.writes, found.symbols) == (["in", "y"], {"in_": [1.0]})
    assert given.of_parameters({"in_"}).shapes == {"in_": "n"}
    assert (found.grid, found.block) == (1, 32)


@pytest.mark.parametrize("limit", [0, 0.0, 1e-9, 0.5, np.float32(0.1), 7])
def test_a_tolerance_is_a_number_of_at_least_zero(limit: Any) -> None:
    assert Work(lambda x: x, tolerance=limit).tolerance == limit


@pytest.mark.parametrize("limit", [-1e-9, float("inf"), float("nan"), True, "0.1", [0.1]])
def test_what_is_no_tolerance_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="give a number of at least 0"):
        Work(lambda x: x, tolerance=limit)


@pytest.mark.parametrize("place", ["beside", "below", "named", "nowhere"])
def test_a_macro_may_be_mentioned_by_a_header_alone(tmp_path: Path, place: str) -> None:
    """That stands beside the file, in a folder below, or in one that is named."""
    for folder in ("kernels/below", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    header = {"beside": "kernels/own.cuh", "below": "kernels/below/own.cuh",
              "named": "elsewhere/own.cuh", "nowhere": "elsewhere/own.cuh"}[place]
    (tmp_path / header).write_text("constexpr int tile = TILE;\n")
    file = tmp_path / "kernels" / "own.cu"
    file.write_text(f'#include "{"below/" * (place == "below")}own.cuh"\n'
                    "__global__ void own(float* x) { x[0] = tile; }\n")
    source = Source.of(file, {"TILE": 32}, (), [tmp_path / "elsewhere"] * (place == "named"))
    if place == "nowhere":
        with pytest.raises(ConfigError, match="mentions no 'TILE'"):
            source.check_macros(["TILE"])
    else:
        source.check_macros(["TILE"])
    with pytest.raises(ConfigError, match="mentions no 'TYLE'"):
        source.check_macros(["TYLE"])


@pytest.mark.parametrize(("arch", "fit"), [
    ("sm_80", "8.0 8.6 8.9"), ("sm_86", "8.6 8.9"), ("sm_90", "9.0"), ("sm_90a", "9.0"),
    ("sm_100", "10.0 10.3"), ("sm_103", "10.3"), ("sm_100a", "10.0"), ("sm_100f", "10.0 10.3"),
    ("sm_120", "12.0"), ("compute_100f", "10.0 10.3"), ("compute_103f", "10.3"),
    ("compute_80", "8.0 8.6 8.9 9.0 10.0 10.3 12.0"),
    ("compute_90", "9.0 10.0 10.3 12.0"), ("compute_90a", "9.0"), ("compute_103", "10.3 12.0"),
    ("", "7.5 8.0 8.6 8.9 9.0 10.0 10.3 12.0")])
def test_an_architecture_runs_on_newer_gpus_of_its_family_and_ptx_on_all(arch: str,
                                                                         fit: str) -> None:
    source = Source.of("__global__ void own() {}", arch=arch or None)
    found = []
    for capability in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)):
        with suppress(ConfigError):
            source.check_arch(capability)
            found.append("{}.{}".format(*capability))
    assert found == fit.split()
