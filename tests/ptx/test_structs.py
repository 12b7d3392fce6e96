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
from rawnn.cuda.compiling.structs import Struct
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
    found = struct_of("struct S { const float *w, rate; long unsigned int seed;\n int a[2], b; };")
    assert [(m.name, m.code, m.pointer, m.shape) for m in found.members] == [
        ("w", "Q", True, ()), ("rate", "f", False, ()), ("seed", "Q", False, ()),
        ("a", "i", False, (2,)), ("b", "i", False, ())]
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
        (np.zeros(1, [("n", "i4")])[0], "has the member 'x', and the value has not"),
        (np.zeros(1, [("n", "i4"), ("x", "f8")])[0], "'x' .* float64 at byte 8.* at byte 4"),
        (np.zeros(1, [("n", "i4"), ("x", "f4")])[0], "'x' .* is float64 .* is float32"),
        (np.zeros(1, np.dtype([("n", "i4"), ("x", "f8"), ("y", "i4")], align=True))[0],
         "no member 'y'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            found.packed(wrong)


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
