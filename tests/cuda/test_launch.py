"""Arguments as C lays them out, and commands on a stream."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import KernelSignature, Parameter, parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.launch import Arguments, HostToDevice
from rawnn.graphs import Graph
from tests.sim.work import read, relu, vector

TYPES: dict[str, tuple[Any, Any]] = {
    "bool": (ctypes.c_bool, st.booleans()), "signed char": (ctypes.c_byte, st.integers(-128, 127)),
    "unsigned char": (ctypes.c_ubyte, st.integers(0, 255)),
    "short": (ctypes.c_short, st.integers(-2**15, 2**15 - 1)),
    "unsigned short": (ctypes.c_ushort, st.integers(0, 2**16 - 1)),
    "int": (ctypes.c_int, st.integers(-2**31, 2**31 - 1)),
    "unsigned int": (ctypes.c_uint, st.integers(0, 2**32 - 1)),
    "long long": (ctypes.c_longlong, st.integers(-2**63, 2**63 - 1)),
    "size_t": (ctypes.c_size_t, st.integers(0, 2**64 - 1)),
    "float": (ctypes.c_float, st.floats(width=32, allow_nan=False)),
    "double": (ctypes.c_double, st.floats(allow_nan=False)),
    "float *": (ctypes.c_void_p, st.integers(1, 2**64 - 1)),
}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data(), st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=12))
def test_arguments_are_packed_as_a_c_structure(data: st.DataObject, types: list[str]) -> None:
    names = [f"p{i}" for i in range(len(types))]
    fields = [(n, TYPES[t][0]) for n, t in zip(names, types, strict=True)]
    structure = type("Structure", (ctypes.Structure,), {"_fields_": fields})
    values = {n: data.draw(TYPES[t][1]) for n, t in zip(names, types, strict=True)}
    signature = KernelSignature("k", tuple(
        Parameter(n, t.removesuffix(" *"), t.endswith("*"), False)
        for n, t in zip(names, types, strict=True)))
    arguments = Arguments(signature, values)
    pointers = (ctypes.c_void_p * len(names)).from_address(arguments.address)
    for index, (name, kind) in enumerate(fields):
        assert pointers[index] - pointers[0] == getattr(structure, name).offset
        assert kind.from_address(pointers[index]).value == values[name]
        assert pointers[index] % ctypes.sizeof(kind) == 0


def signature(parameters: str) -> KernelSignature:
    return parse_kernels(f"__global__ void k({parameters}) {{}}")["k"]


def test_a_kernel_without_parameters() -> None:
    assert Arguments(signature(""), {}).address


@pytest.mark.parametrize(("values", "sentence"), [
    ({"x": 1}, "kernel 'k' takes (x, n); missing: n"),
    ({"x": 1, "n": 2, "m": 3}, "kernel 'k' takes (x, n); not among them: m"),
    ({}, "missing: x, n"), ({"x": 1.0, "n": 1.5}, "argument 'n' (int) cannot hold 1.5"),
    ({"x": 1.0, "n": 2**31}, "argument 'n' (int) cannot hold 2147483648"),
    ({"x": 1e300, "n": 1}, "argument 'x' (float) cannot hold 1e+300"),
    ({"x": None, "n": 1}, "argument 'x' (float) cannot hold None"),
    ({"x": "1", "n": 1}, "argument 'x' (float) cannot hold '1'"),
])
def test_arguments_that_do_not_fit(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Arguments(signature("float x, int n"), values)
    assert sentence in str(caught.value)


def test_a_cell_is_the_argument_itself() -> None:
    arguments = Arguments(signature("float x, int offset"), {"x": 1, "offset": 2})
    cell = arguments.cell("offset")
    assert cell.value == 2
    cell.value = 7
    pointers = (ctypes.c_void_p * 2).from_address(arguments.address)
    assert ctypes.c_int.from_address(pointers[1] or 0).value == 7
    spare = arguments.cell("other")
    spare.value = 9
    assert cell.value == 7


def test_a_launch_reads_the_address_it_was_rebound_to(device: Device) -> None:
    z, a, b = vector(device, -2.0), vector(device), vector(device)
    launch = relu(device, z, a)
    launch.run(0)
    launch.rebind("a", b)
    launch.rebind("z", a)
    launch.run(0)
    assert (read(device, b) == 0).all()


def test_a_failed_launch_says_its_geometry(device: Device) -> None:
    launch = relu(device, 0, 0)
    launch._prepared = (launch._prepared[0], 1, 1, 1, 4096, 1, 1, *launch._prepared[7:])
    launch._geometry = (launch._geometry[0], (1, 1, 1), (4096, 1, 1), 0)
    with pytest.raises(CallFailed, match=r"cuLaunchKernel failed .*relu, grid \(1, 1, 1\), block "
                                         r"\(4096, 1, 1\), 0 bytes of shared memory"):
        launch.run(0)


def test_copies_from_the_host_take_the_slice_of_their_step(device: Device) -> None:
    host = np.arange(24, dtype=np.float32)
    first, second = vector(device), vector(device)
    copy = HostToDevice(device.driver, device.stream, "upload", "x", first, host.ctypes.data, 32,
                        host)
    copy.run(1)
    copy.rebind("y", 0)  # another operand's address
    copy.rebind("x", second)
    copy.run(2)
    assert read(device, first).tolist() == list(range(8, 16))
    assert read(device, second).tolist() == list(range(16, 24))


@pytest.mark.parametrize("way", ["stream", "graph"])
@pytest.mark.parametrize(("stride", "step", "first"), [(None, 2, 16), (64, 0, 0), (64, 1, 16),
                                                       (64, 2, 32), (4, 3, 3)])
def test_a_copy_of_a_part_of_each_slice_begins_at_its_stride(
        device: Device, way: str, stride: int | None, step: int, first: int) -> None:
    """A rank takes 8 of the examples of each batch; batches begin `stride` bytes apart."""
    host, target = np.arange(64, dtype=np.float32), vector(device)
    copy = HostToDevice(device.driver, device.stream, "upload", "x", target, host.ctypes.data, 32,
                        host, stride)
    if way == "stream":
        copy.run(step)
    else:
        graph = Graph(device.driver, device.context)
        copy.add_to(graph, (), step)
        executable = graph.instantiate("one copy")
        graph.close()
        executable.launch(device.stream)
        device.stream.synchronize()
        executable.close()
    assert read(device, target).tolist() == list(range(first, first + 8))
