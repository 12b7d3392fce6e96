"""Structs by value: their layout against the C compiler's, what fits them, and launches."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import KernelSignature, parse_kernels
from rawnn.cuda.compiling.structs import Struct, built_in
from rawnn.cuda.compiling.symbols import body_of, find_symbol, static_shared, symbols
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.engine.runners.arguments import kernel_arguments
from rawnn.plan import OPS
from rawnn.plan.op import Op, define
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.kernel_registry import Key
from rawnn.ptx.kernels import KERNELS, KernelImpl
from rawnn.sim import SimulationError, register
from tests.sim.work import read, vector

LAYER = """
constexpr int MOST = 3;
struct Layer {
  int rows, cols;  // of the weights
  float rate;
};
struct Epoch { Layer layers[MOST]; unsigned long long seed; short depth; bool last; };
"""
SOURCE = LAYER + "__global__ void train(const float* x, float* y, const Epoch epoch, int n) {}"


def struct_of(text: str, name: str = "S", folders: tuple[Path, ...] = ()) -> Struct:
    kernel, = parse_kernels(f"{text}\n__global__ void k({name} s) {{}}", folders).values()
    kernel.layout()
    found = kernel.parameters[0].struct
    assert found is not None
    return found


def test_members_lie_where_c_puts_them() -> None:
    signature = parse_kernels(SOURCE)["train"]
    assert signature.layout() == ((0, 8, 16, 72), 76)
    epoch = signature.parameters[2].struct
    assert epoch is not None
    assert (epoch.size, epoch.align) == (56, 8)
    assert [(m.name, m.shape, m.offset) for m in epoch.members] == [
        ("layers", (3,), 0), ("seed", (), 40), ("depth", (), 48), ("last", (), 50)]
    assert epoch.dtype["layers"].base == np.dtype([("rows", "i4"), ("cols", "i4"), ("rate", "f4")])
    assert not epoch.pointers
    assert signature.parameters[2].number


_NATIVE = {"char": ctypes.c_char, "short": ctypes.c_short, "unsigned int": ctypes.c_uint,
           "double": ctypes.c_double, "float": ctypes.c_float, "bool": ctypes.c_bool,
           "long long": ctypes.c_longlong}


@given(st.lists(st.tuples(st.sampled_from(sorted(_NATIVE)), st.integers(0, 3)), min_size=1,
                max_size=9))
def test_layouts_agree_with_the_compilers(members: list[tuple[str, int]]) -> None:
    text = "".join(f"{t} a{i}{f'[{n}]' if n else ''};" for i, (t, n) in enumerate(members))
    fields = [(f"a{i}", _NATIVE[t] * n if n else _NATIVE[t]) for i, (t, n) in enumerate(members)]
    native: Any = type("Native", (ctypes.Structure,), {"_fields_": fields})
    found = struct_of(f"struct S {{ {text} }};")
    assert (found.size, found.align) == (ctypes.sizeof(native), ctypes.alignment(native))
    assert [m.offset for m in found.members] == [getattr(native, name).offset for name, _ in fields]
    assert found.dtype.itemsize == found.size


def test_declarations_are_read_as_c_reads_them() -> None:
    found = struct_of("struct S { const float *w, rate; long unsigned int seed;\n"
                      "int a[2], b, c [2][3]; };")
    assert [(m.name, m.code, m.pointer, m.shape) for m in found.members] == [
        ("w", "Q", True, ()), ("rate", "f", False, ()), ("seed", "Q", False, ()),
        ("a", "i", False, (2,)), ("b", "i", False, ()), ("c", "i", False, (2, 3))]
    assert found.pointers


def test_a_struct_may_come_from_a_header_of_a_header(tmp_path: Path) -> None:
    (tmp_path / "one.cuh").write_text('#include "two.cuh"\n')
    (tmp_path / "two.cuh").write_text('#include "one.cuh"\n/* struct S { int x; }; */\n'
                                      'struct S { double x; };\n')
    assert struct_of('#include "one.cuh"', folders=(tmp_path,)).size == 8


def test_a_template_parameter_is_not_the_struct_of_its_name() -> None:
    text = ("struct T { double x; };\nstruct S { int x; };\n"
            "template <typename T> __global__ void k(T value, S s) {}")
    value, shape = parse_kernels(text)["k"].instantiate("k<float>").parameters
    assert (value.ctype, value.struct) == ("float", None)
    assert shape.struct is not None


def test_a_struct_that_two_headers_declare_alike_is_one(tmp_path: Path) -> None:
    (tmp_path / "one.cuh").write_text("struct S { int x;\n int y; };\n")
    source = '#include "one.cuh"\nstruct S { int x; int y; };'
    assert struct_of(source, folders=(tmp_path,)).size == 8


@pytest.mark.parametrize(("text", "message"), [
    ("struct S { int x; };\nnamespace a { struct S { double x; }; }",
     "the struct 'S' is declared more than once, with other members"),
    ("", "by value; pass a pointer, a struct of plain members"),
    ("template <typename T> struct S { T x; };", "by value; pass a pointer"),
    ("struct S { int f() { return 1; } int x; };", "by value; pass a pointer"),
    ("struct alignas(16) S { int x; };", "by value; pass a pointer"),
    ("struct S { int f(); };", r"cannot read the member 'int f\(\)' of the struct 'S'"),
    ("struct S { int x : 3; };", "cannot read the member 'int x : 3'"),
    ("struct S { Other x; };", "member 'x' of the struct 'S' has type 'Other'"),
    ("struct S { TensorMap x; };", "member 'x' of the struct 'S' has type 'TensorMap'"),
    ("struct S { int x[N]; };", "array of 'N' elements, a number that cannot be read"),
    ("struct S { };", "'S' has no members"),
])
def test_structs_that_cannot_be_passed(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"kernel 'k': parameter 's' has type 'S'.*{message}"):
        struct_of(text)


def test_values_that_do_not_fit() -> None:
    found = struct_of("struct S { int n; double x; };")
    value = np.zeros(1, found.dtype)[0]
    value["n"], value["x"] = 3, 0.5
    assert found.packed(value) == struct.pack("i4xd", 3, 0.5)
    assert found.packed(bytes(16)) == bytes(16)
    for wrong, message in [
        (bytes(12), "'S' has 16 bytes, not 12"), (5, "structured scalar or its 16 bytes, not 5"),
        (np.float32(1), "structured scalar"),
        (np.zeros(2), "structured scalar"), (np.zeros(2, np.int32), "structured scalar"),
        (1j, "structured scalar"), (np.complex128(1), "structured scalar"),
        (np.zeros(1, [("n", "i4")])[0], "has the member 'x', and the value has not"),
        (np.zeros(1, [("n", "i4"), ("x", "f8")])[0], "'x' .* float64 at byte 8.* at byte 4"),
        (np.zeros(1, [("n", "i4"), ("x", "f4")])[0], "'x' .* is float64 .* is float32"),
        (np.zeros(1, np.dtype([("n", "i4"), ("x", "f8"), ("y", "i4")], align=True))[0],
         "no member 'y'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            found.packed(wrong)


def test_a_tuple_is_refused_by_the_first_member_that_it_would_change() -> None:
    found = struct_of("struct P { short x[2]; };\nstruct S { int n; float x; P p; };")
    assert found.packed((3, 0.5, ((1, -2),))) == struct.pack("ifhh", 3, 0.5, 1, -2)
    for wrong, message in [
        ((1.5, 0.5, ((1, 2),)), "cannot hold 1.5 in its member 'n', of int32"),
        ((2**40, 0.5, ((1, 2),)), "members n, x, p, which cannot hold|1099511627776 in its"),
        ((3, 1e300, ((1, 2),)), "cannot hold 1e[+]300 in its member 'x', of float32"),
        ((3, 0.5, ((1, 2.5),)), "cannot hold 2.5 in its member 'x', of int16"),
        ((3, 0.5, (1,)), r"cannot hold 1 in its member 'x', of shape \(2,\)"),
        ((3, 0.5), "has the members n, x, p, which cannot hold"),
    ]:
        with pytest.raises(ConfigError, match=message):
            found.packed(wrong)


@pytest.mark.parametrize("members", [
    "float x; int n;", "int n; float x;", "double x; long long n;", "long long n; double x;"])
def test_numbers_of_one_type_are_no_struct_of_several(members: str) -> None:
    found = struct_of(f"struct S {{ {members} }};")
    for kind in (np.float32, np.int32, np.float64, np.int64, np.complex64, np.complex128):
        for wrong in (np.zeros(2, kind), kind(1), np.zeros(1, kind), np.zeros(3, kind)):
            with pytest.raises(ConfigError, match="structured scalar"):
                found.packed(wrong)
    with pytest.raises(ConfigError, match="structured scalar"):
        found.packed(1 + 2j)


# -- launches -------------------------------------------------------------------------------------
SCALE = """
struct Line { float slope; int count; };
__global__ void line(const float* x, float* y, Line shape, int offset) {
  for (int i = threadIdx.x; i < shape.count; i += blockDim.x) y[i] = shape.slope * x[i];
}
struct Bad { float* y; int count; };
__global__ void bad(const float* x, float* y, Bad shape) {}
"""
SIGNATURES = parse_kernels(SCALE)


@pytest.fixture(autouse=True)
def _references(own_meanings: None) -> None:
    def line(t: SimpleNamespace, scalars: Any) -> None:
        assert scalars["shape"]["slope"] == np.float32(scalars["slope"])
        np.multiply(t.x, scalars["slope"], out=t.y)

    for name in ("line", "bad"):
        register(name, line, {"x": ("count",), "y": ("count",)}, reads=("x",), writes=("y",))


def launch(device: Device, name: str, values: dict[str, Any]) -> None:
    if ("own.cu", name, False) not in device._functions:
        device.load(SCALE, "own.cu", SIGNATURES, (name,))
    function = device.function("own.cu", name)
    KernelLaunch(device.driver, device.stream, function.handle, name, (1, 1, 1), (32, 1, 1),
                 Arguments(function.signature, values)).run(0)


def shape_of(signature: KernelSignature, **members: Any) -> np.void:
    layout = signature.parameters[2].struct
    assert layout is not None
    record = np.zeros(1, layout.dtype)
    for name, value in members.items():
        record[name] = value
    return record[0]


def test_a_struct_reaches_the_kernel_and_its_members_the_reference(device: Device) -> None:
    x, y = vector(device, 3.0), vector(device)
    shape = shape_of(SIGNATURES["line"], slope=0.5, count=8)
    launch(device, "line", {"x": x, "y": y, "shape": shape, "offset": 0})
    assert (read(device, y) == 1.5).all()
    launch(device, "line", {"x": x, "y": y, "shape": struct.pack("fi", 2, 8), "offset": 0})
    assert (read(device, y) == 6).all()
    with pytest.raises(ConfigError, match="the struct 'Line' has 8 bytes"):
        launch(device, "line", {"x": x, "y": y, "shape": b"", "offset": 0})


def test_what_a_simulated_kernel_touches_is_no_members_secret(device: Device) -> None:
    x, y = vector(device, 3.0), vector(device)
    shape = shape_of(SIGNATURES["bad"], y=y, count=8)
    with pytest.raises(SimulationError, match="'shape' holds pointers; pass them as parameters"):
        launch(device, "bad", {"x": x, "y": y, "shape": shape})


def test_members_are_filled_in_from_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "line", OPS["sgd"])
    define("line", reads=("x",), writes=("y",))(lambda t, a: None)
    monkeypatch.setitem(KERNELS, Key("line", "naive"), KernelImpl(
        "own.cu", "line", lambda op, plan: [], lambda op, plan: {"count": 8},
        lambda s: ((1, 1, 1), (32, 1, 1)), {"x": ("count",), "y": ("count",)}))
    tensors = {n: Tensor(n, (8,), "float32", Role.ACTIVATION) for n in "xy"}
    op = Op("line", "line", {"x": "x", "y": "y"}, {"slope": 0.25, "offset": 0})
    plan = Plan("own", tensors, (op,), 1)
    signature = SIGNATURES["line"]
    values = kernel_arguments(op, plan, signature, {"x": 256, "y": 512})
    assert values == {"x": 256, "y": 512, "offset": 0,
                      "shape": shape_of(signature, slope=0.25, count=8)}
    without = Op("line", "line", {"x": "x", "y": "y"}, {"offset": 0})
    with pytest.raises(ConfigError, match=r"op 'line' \(line\) gives no 'slope' for the struct"):
        kernel_arguments(without, plan, signature, {"x": 256, "y": 512})


# -- other types, and variables -------------------------------------------------------------------
VECTORS = {
    "char": (1, "1,2,1,4"), "uchar": (1, "1,2,1,4"), "short": (2, "2,4,2,8"),
    "ushort": (2, "2,4,2,8"),
    "int": (4, "4,8,4,16"), "uint": (4, "4,8,4,16"), "float": (4, "4,8,4,16"),
    "long": (8, "8,16,8,16"), "ulong": (8, "8,16,8,16"), "longlong": (8, "8,16,8,16"),
    "ulonglong": (8, "8,16,8,16"), "double": (8, "8,16,8,16"),
}
"""Bytes of an element, and the alignments of vectors of 1 to 4, by the CUDA programming guide."""


@pytest.mark.parametrize("base", VECTORS)
def test_vectors_are_aligned_as_the_guide_says(base: str) -> None:
    size, alignments = VECTORS[base]
    for count, align in enumerate(map(int, alignments.split(",")), 1):
        found = built_in(f"{base}{count}")
        assert found is not None
        assert (found.size, found.align) == (size * count, align)
        assert [(m.name, m.offset, m.shape) for m in found.members] == [
            ("xyzw"[i], size * i, ()) for i in range(count)]
        kinds = {np.dtype(m.code).kind for m in found.members}
        assert kinds == {"f" if base in ("float", "double") else "u" if base[0] == "u" else "i"}
        inner = struct_of(f"struct S {{ char first; {base}{count} v[2]; char last; }};")
        end = align + 2 * size * count
        assert [m.offset for m in inner.members] == [0, align, end]
        assert (inner.size, inner.align) == (-(-(end + 1) // align) * align, align)
    assert built_in(f"{base}5") is built_in(f"{base}") is built_in(f"{base}0") is None


@pytest.mark.parametrize(("name", "size", "align", "members"), [
    ("dim3", 12, 4, "xyz"), ("half2", 4, 4, "xy"), ("__nv_bfloat162", 4, 4, "xy"),
    ("std::complex<float>", 8, 8, ("real", "imag")),
    ("cuda::std::complex<double>", 16, 16, ("real", "imag"))])
def test_other_built_in_types(name: str, size: int, align: int, members: Any) -> None:
    found = built_in(name)
    assert found is not None
    assert (found.size, found.align, found.dtype.itemsize) == (size, align, size)
    assert [m.name for m in found.members] == list(members)


def test_a_struct_of_structs_lies_where_c_puts_it() -> None:
    """An inner struct has the alignment of its widest member, not its own size, and a pointer that
    of an address."""
    found = struct_of("""struct A { double x; char c; }; struct B { short s[3]; };
        using Index = unsigned short; typedef B Named;
        struct S { char c; A a[2]; char d; Named b; Index i; const A* p; bool last; };""")
    native_a: Any = type("A", (ctypes.Structure,), {"_fields_": [("x", ctypes.c_double),
                                                                 ("c", ctypes.c_char)]})
    native_b: Any = type("B", (ctypes.Structure,), {"_fields_": [("s", ctypes.c_short * 3)]})
    native: Any = type("S", (ctypes.Structure,), {"_fields_": [
        ("c", ctypes.c_char), ("a", native_a * 2), ("d", ctypes.c_char), ("b", native_b),
        ("i", ctypes.c_ushort), ("p", ctypes.c_void_p), ("last", ctypes.c_bool)]})
    assert (found.size, found.align) == (ctypes.sizeof(native), ctypes.alignment(native))
    assert {m.name: m.offset for m in found.members} == {
        name: getattr(native, name).offset for name in ("c", "a", "d", "b", "i", "p", "last")}
    assert found.pointers
    assert not struct_of("struct A { int x; }; struct S { A a; };").pointers
    assert struct_of("struct A { int* x; }; struct S { A a; };").pointers


CODE = """#define RADIUS 3  // of the stencil
#  define WIDE (2 * RADIUS + 1)
constexpr int ROWS = 4, COLS = WIDE;
static const int HALF = ROWS / 2 - 1;
enum { MANY = 5 };
struct Point { double x; float y; };
__constant__ float taps[WIDE];
__device__ Point points[ROWS][COLS];
__device__ unsigned int count = 0;
__managed__ __device__ short* where;
static __constant__ Point one = {1, 2};
__device__ int few[HALF], unknown[sizeof(int)];
__device__ Hidden* hidden;
// __device__ int gone;
namespace a { __global__ void k(float* x) {
  __shared__ float tile[ROWS * WIDE];
  __shared__ __align__(16) Point p; { __shared__ char c[2], d; }
} }
__global__ void other(float* x) { extern __shared__ float dynamic[]; __shared__ int n[3]; }
"""


def test_variables_and_their_bytes() -> None:
    found = {each.name: (each.ctype, each.shape, each.nbytes) for each in symbols(CODE)}
    assert {name: each for name, each in found.items() if name != "unknown"} == {
        "taps": ("float", (7,), 28), "points": ("Point", (4, 7), 16 * 28), "one": ("Point", (), 16),
        "count": ("unsigned int", (), 4), "where": ("short*", (), 8), "few": ("int", (1,), 4),
        "hidden": ("Hidden*", (), 8)}
    assert found["unknown"] == ("int", None, None)
    one = find_symbol(CODE, "one")
    assert one is not None
    assert one.layout is not None
    assert [(m.name, m.offset) for m in one.layout.members] == [("x", 0), ("y", 8)]
    assert find_symbol(CODE, "gone") is None
    longer = find_symbol("__device__ int taps2[5]; __device__ float taps[3];", "taps")
    assert longer is not None
    assert (longer.name, longer.shape) == ("taps", (3,))
    unknown = find_symbol("__device__ int u[sizeof(int)]; __device__ Hidden h;", "u")
    assert unknown is not None
    assert (unknown.shape, unknown.nbytes) == (None, None)
    for opaque in ("Hidden", "CUtensorMap", "TensorMap"):
        assert [each.nbytes for each in symbols(f"__device__ {opaque} one;")] == [None]


@pytest.mark.parametrize(("extent", "value"), [
    ("6", 6), ("N", 7), ("N + 1", 8), ("(N + 1) / 3", 2), ("M", 15), ("2 * M - N", 23), ("K", 5),
    ("N % 2", None), ("", None), ("1 / 0", None), ("f(2)", None), ("N ** 2", None), ("T", None)])
def test_extents_are_computed_from_constants_and_macros(extent: str, value: int | None) -> None:
    text = (f"template <int T = 3, int U> struct W {{}};\nconstexpr int N = 7;\n"
            f"#define M 2 * N + 1 // comment\n#define K 5\n__device__ float x[{extent}];")
    found = find_symbol(text, "x")
    assert found is not None
    assert found.shape == (None if value is None else (value,))


def test_shared_bytes_are_those_of_the_kernels_own_body() -> None:
    assert static_shared(CODE, "k") == 4 * 4 * 7 + 16 + 3
    assert static_shared(CODE, "other") == 12
    assert static_shared(CODE, "none") == 0
    assert "dynamic" in body_of(CODE, "other")
    assert "dynamic" not in body_of(CODE, "k")
