"""The simulated cuBLASLt and cuDNN against NumPy, and what they refuse."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.libs.cudnn import SOFTMAX_MODE_CHANNEL, SOFTMAX_MODE_INSTANCE
from rawnn.cuda.libs.matmul import LtContext, MatmulPlan
from rawnn.cuda.libs.softmax import CudnnContext, SoftmaxPlan
from rawnn.cuda.stream import Event, Stream
from rawnn.sim import Race, Simulation, SimulationError
from rawnn.sim.cublaslt import load, store


def place(device: Device, array: np.ndarray, ld: int) -> int:
    """Address of a matrix with padded rows; the padding is never written."""
    item = array.dtype.itemsize
    rows, cols = array.shape
    address = device.memory.allocate(((rows - 1) * ld + cols) * item, "a matrix").address
    for row in range(rows):
        device.to_device(address + row * ld * item, np.ascontiguousarray(array[row]), "a row")
    return address


def fetch(device: Device, address: int, shape: tuple[int, int], ld: int,
          dtype: Any = np.float32) -> np.ndarray:
    out = np.empty(shape, dtype)
    for row in range(shape[0]):
        device.to_host(out[row], address + row * ld * out.itemsize, "a row")
    return out


def operands(layout: str, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(m, k)), generator.normal(size=(k, n))
    return (a.T if layout[0] == "t" else a).copy(), (b.T if layout[1] == "t" else b).copy()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 2e-3)])
@pytest.mark.parametrize(("alpha", "beta", "bias", "relu"), [
    (1.0, 0.0, False, False), (0.5, 2.0, False, False), (1.0, 0.0, True, True),
    (1.0, 0.0, False, True), (1.0, 1.0, True, False),
])
def test_product(device: Device, layout: str, dtype: str, tolerance: float, alpha: float,
                 beta: float, bias: bool, relu: bool) -> None:
    m, n, k = 6, 10, 5
    a, b = (x.astype(dtype) for x in operands(layout, m, n, k))
    c = np.random.default_rng(2).normal(size=(m, n)).astype(dtype)
    shift = np.linspace(-2, 2, n).astype(dtype)
    context = LtContext(device.backend.cublaslt())
    plan = context.plan(layout=layout, m=m, n=n, k=k, lda=16, ldb=16, ldc=16, dtype=dtype,
                        alpha=alpha, beta=beta, bias=bias, relu=relu)
    at_a, at_b = place(device, a, 16), place(device, b, 16)
    at_c = place(device, c, 16) if beta else \
        device.memory.allocate((m * 16) * c.itemsize, "c").address  # not read: never written
    at_bias = place(device, shift[None], n)
    plan.run(device.stream.handle, at_a, at_b, at_c, at_bias if bias else 0)
    left, right = (x.astype(np.float64) for x in (a, b))
    wanted = alpha * (left.T if layout[0] == "t" else left) @ (
        right.T if layout[1] == "t" else right) + beta * c
    wanted = wanted + shift if bias else wanted
    wanted = np.maximum(wanted, 0) if relu else wanted
    found = fetch(device, at_c, (m, n), 16, np.dtype(dtype))
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    context.close()


def test_a_product_has_the_bias_that_was_set_at_its_call(device: Device) -> None:
    context = LtContext(device.backend.cublaslt())
    plan = context.plan(layout="nt", m=1, n=2, k=1, lda=1, ldb=1, ldc=2, bias=True)
    one, b = (place(device, np.ones((rows, 1), np.float32), 1) for rows in (1, 2))
    biases = [place(device, np.full((1, 2), of, np.float32), 2) for of in (1, 2)]
    results = [device.memory.allocate(8, "c").address for _ in biases]
    for c, bias in zip(results, biases, strict=True):  # both are enqueued before the first runs
        plan.run(device.stream.handle, one, b, c, bias)
    assert [fetch(device, c, (1, 2), 2)[0].tolist() for c in results] == [[2, 2], [3, 3]]
    context.close()


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, np.inf, np.nan], np.float32)
    again = load(store(values, "R_16BF"), "R_16BF")
    np.testing.assert_array_equal(again, np.float32([1.0, 1.0, 1.015625, -2.5, np.inf, np.nan]))


def large(device: Device, **options: Any) -> tuple[LtContext, MatmulPlan, list[int]]:
    """A product whose algorithm wants a workspace, with the addresses of a, b, c."""
    context = LtContext(device.backend.cublaslt())
    plan = context.plan(layout="nt", m=4, n=4, k=512, lda=512, ldb=512, ldc=4, **options)
    ones = np.ones((4, 512), np.float32)
    addresses = [place(device, ones, 512), place(device, ones, 512),
                 device.memory.allocate(64, "c").address]
    return context, plan, addresses


def test_workspace_is_needed_written_and_holds_nothing(device: Device) -> None:
    context, plan, (a, b, c) = large(device)
    assert plan.workspace_bytes == 32 << 10
    stream = device.stream.handle
    with pytest.raises(Exception, match="CUBLAS_STATUS_INVALID_VALUE"):
        plan.run(stream, a, b, c)
    workspace = device.memory.allocate(plan.workspace_bytes, "workspace").address
    device.fill(workspace, 0, 16, "workspace")
    with pytest.raises(Exception, match="CUBLAS_STATUS_INVALID_VALUE"):
        plan.run(stream, a, b, c, workspace=workspace + 4)
    plan.run(stream, a, b, c, workspace=workspace)
    assert (fetch(device, c, (4, 4), 4) == 512).all()
    context.close()
    with pytest.raises(SimulationError, match="before it was written"):
        device.to_host(np.empty(4, np.float32), workspace, "scratch")


def test_no_workspace_where_none_is_allowed_or_k_is_not_split(device: Device) -> None:
    for options in ({"workspace_limit": 0}, {"split_k": False}):
        context, plan, (a, b, c) = large(device, **options)
        plan.run(device.stream.handle, a, b, c)
        assert (fetch(device, c, (4, 4), 4) == 512).all()
        context.close()


@pytest.mark.parametrize(("k", "limit", "requested", "workspaces"), [
    (512, 32 << 10, 1, [32 << 10]), (512, 32 << 10, 2, [32 << 10, 0]),
    (512, 32 << 10, 9, [32 << 10, 0]), (512, (32 << 10) - 1, 9, [0]), (511, 32 << 10, 9, [0]),
    (512, None, 9, [0])])
def test_a_heuristic_has_at_most_as_many_results_as_are_asked_for(
        device: Device, k: int, limit: int | None, requested: int, workspaces: list[int]) -> None:
    api = device.backend.cublaslt()
    handle, desc = api.cublasLtCreate()[1], api.cublasLtMatmulDescCreate("32F", "R_32F")[1]
    wishes = api.cublasLtMatmulPreferenceCreate()[1]
    if limit is not None:
        assert api.cublasLtMatmulPreferenceSetAttribute(
            wishes, "MAX_WORKSPACE_BYTES", limit) == (0,)
    a, b, c = (api.cublasLtMatrixLayoutCreate("R_32F", rows, cols, rows)[1]
               for rows, cols in ((4, k), (k, 4), (4, 4)))
    code, found = api.cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, c, wishes, requested)
    assert code == 0
    assert [each.workspace_bytes for each in found] == workspaces
    for layout in (a, b, c):
        api.cublasLtMatrixLayoutDestroy(layout)
    api.cublasLtMatmulPreferenceDestroy(wishes)
    api.cublasLtMatmulDescDestroy(desc)
    api.cublasLtDestroy(handle)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ordered", [True, False])
def test_products_at_once_need_a_workspace_each(seed: int, ordered: bool) -> None:
    device = Device(Simulation(seed).backend())
    _, plan, (a, b, c) = large(device)
    d, other = device.memory.allocate(64, "d").address, Stream(device.driver)
    event = Event(device.driver)
    workspace = device.memory.allocate(plan.workspace_bytes, "workspace").address
    plan.run(device.stream.handle, a, b, c, workspace=workspace)
    if ordered:
        event.record(device.stream)
        device._check("cuStreamWaitEvent", other.handle, event.handle, 0)
    plan.run(other.handle, a, b, d, workspace=workspace)
    if ordered:
        device._check("cuCtxSynchronize")
        return
    with pytest.raises(Race, match="writes 'workspace'"):
        device._check("cuCtxSynchronize")


def test_algorithm_of_another_shape_is_refused(device: Device) -> None:
    api = device.backend.cublaslt()
    context = LtContext(api)
    small = context.plan(layout="nt", m=4, n=4, k=4, lda=4, ldb=4, ldc=4)
    other = context.plan(layout="nt", m=4, n=4, k=8, lda=8, ldb=8, ldc=4)
    small._algo_address = other._algo_address
    with pytest.raises(Exception, match="CUBLAS_STATUS_NOT_SUPPORTED"):
        small.run(device.stream.handle, 256, 256, 256)
    assert api.cublasLtMatmulDescSetAttribute(small._desc, "COLOUR", 1) == (7,)
    assert api.cublasLtMatrixLayoutCreate("R_32F", 8, 8, 4) == (7, 0)
    assert api.cublasLtMatmulDescDestroy(context.handle) == (7,)
    context.close()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softmax_of_padded_rows(device: Device, dtype: str) -> None:
    z = (np.random.default_rng(3).normal(size=(5, 7)) * 40).astype(dtype)
    context = CudnnContext(device.backend.cudnn())
    source, target = place(device, z, 8), device.memory.allocate(400, "p").address
    plan = SoftmaxPlan(context, 5, 7, 8, 16, dtype, mode=SOFTMAX_MODE_CHANNEL)
    plan.run(device.stream.handle, source, target)
    wide = z.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    np.testing.assert_allclose(fetch(device, target, (5, 7), 16, np.dtype(dtype)),
                               e / e.sum(axis=1, keepdims=True), atol=1e-3)
    plan.close()
    context.close()


def test_instance_mode_takes_rows_to_be_packed(device: Device) -> None:
    z = np.zeros((5, 7), np.float32)
    context = CudnnContext(device.backend.cudnn())
    packed = SoftmaxPlan(context, 5, 7, 7, 7, mode=SOFTMAX_MODE_INSTANCE)
    stream, target = device.stream.handle, device.memory.allocate(400, "p").address
    packed.run(stream, place(device, z, 7), target)
    assert (fetch(device, target, (5, 7), 7) == np.float32(1 / 7)).all()
    for pitches in ((8, 7), (7, 8), (8, 8)):
        padded_rows = SoftmaxPlan(context, 5, 7, *pitches, mode=SOFTMAX_MODE_INSTANCE)
        with pytest.raises(SimulationError, match="would return wrong numbers"):
            padded_rows.run(stream, place(device, z, pitches[0]), target)


def test_softmax_layouts_that_are_refused(device: Device) -> None:
    api = device.backend.cudnn()
    handle, tensor = api.cudnnCreate()[1], api.cudnnCreateTensorDescriptor()[1]
    one = ctypes.c_float(1)
    scale = ctypes.addressof(one)

    def forward(to: int = 0) -> int:
        return int(api.cudnnSoftmaxForward(handle, 1, SOFTMAX_MODE_CHANNEL, scale, tensor, 512,
                                           scale, to or tensor, 512)[0])

    assert forward() == 2000  # no shape yet
    assert api.cudnnSetTensor4dDescriptorEx(tensor, "float32", (0, 1, 1, 1), (1,) * 4) == (2000,)
    other = api.cudnnCreateTensorDescriptor()[1]
    rows, scattered = ("float32", (2, 3, 1, 1), (3, 1, 1, 1)), ("float32", (2, 3, 1, 1),
                                                                (1, 2, 1, 1))
    for code, of_tensor, of_other in (
            (3000, scattered, scattered), (3000, scattered, rows), (3000, rows, scattered),
            (2000, rows, ("float16", *rows[1:])), (2000, rows, ("float32", (3, 3, 1, 1), rows[2])),
            (3000, ("float32", (2, 3, 2, 1), rows[2]), ("float32", (2, 3, 2, 1), rows[2]))):
        for given, values in ((tensor, of_tensor), (other, of_other)):
            assert api.cudnnSetTensor4dDescriptorEx(given, *values) == (0,)
        assert forward(other) == code
    api.cudnnDestroyTensorDescriptor(other)
    assert api.cudnnSetStream(handle, 5) == (2000,)
    api.cudnnDestroyTensorDescriptor(tensor)
    assert forward() == 2000
    api.cudnnDestroy(handle)


def test_handles_need_a_context() -> None:
    backend = Simulation().backend()
    assert backend.cublaslt().cublasLtCreate() == (1, 0)
    assert backend.cudnn().cudnnCreate() == (1001, 0)


def test_batches_at_strides(device: Device) -> None:
    """C[i] = A[i] B[i]^T for three slices of the inner dimension, as one strided batch."""
    api = device.backend.cublaslt()
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=(4, 12)).astype(np.float32) for _ in range(2))
    at_a, at_b = place(device, a, 12), place(device, b, 12)
    at_c = device.memory.allocate(3 * 64, "c").address
    context = LtContext(api)
    plan = context.plan(layout="nt", m=4, n=4, k=4, lda=12, ldb=12, ldc=4)
    for layout, stride in ((plan._lt_a, 4), (plan._lt_b, 4), (plan._lt_c, 16)):
        assert api.cublasLtMatrixLayoutSetAttribute(layout, "BATCH_COUNT", 3) == (0,)
        assert api.cublasLtMatrixLayoutSetAttribute(layout, "STRIDED_BATCH_OFFSET", stride) == (0,)
    plan.run(device.stream.handle, at_a, at_b, at_c)
    found = fetch(device, at_c, (12, 4), 4).reshape(3, 4, 4)
    for i in range(3):
        part = slice(4 * i, 4 * i + 4)
        np.testing.assert_allclose(found[i], a[:, part] @ b[:, part].T, rtol=1e-5, atol=1e-6)
    api.cublasLtMatrixLayoutSetAttribute(plan._lt_c, "BATCH_COUNT", 2)
    with pytest.raises(Exception, match="CUBLAS_STATUS_INVALID_VALUE"):
        plan.run(device.stream.handle, at_a, at_b, at_c)
    context.close()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize(("m", "n"), [(3, 10), (10, 3), (5, 5)])
def test_slices_of_k_leave_their_products_one_below_the_other(device: Device, layout: str, m: int,
                                                              n: int) -> None:
    """The partial product of slice i is rows i * m to i * m + m - 1, whatever the shape."""
    slices, part, ld = 3, 4, 16
    k = slices * part
    a, b = (x.astype(np.float32) for x in operands(layout, m, n, k))
    context = LtContext(device.backend.cublaslt())
    plan = context.plan(layout=layout, m=m, n=n, k=k, lda=ld, ldb=ld, ldc=ld, slices=slices)
    at_a, at_b = place(device, a, ld), place(device, b, ld)
    at_c = device.memory.allocate(((slices * m - 1) * ld + n) * 4, "the partial products").address
    plan.run(device.stream.handle, at_a, at_b, at_c)
    found = fetch(device, at_c, (slices * m, n), ld)
    left = (a.T if layout[0] == "t" else a).astype(np.float64)
    right = (b.T if layout[1] == "t" else b).astype(np.float64)
    for i in range(slices):
        inner = slice(i * part, (i + 1) * part)
        np.testing.assert_allclose(found[i * m:(i + 1) * m], left[:, inner] @ right[inner],
                                   rtol=1e-5, atol=1e-6)
    context.close()
