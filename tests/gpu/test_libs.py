"""cuBLASLt products and cuDNN's softmax on a GPU, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rawnn.common.errors import DeviceError
from rawnn.cuda.driver import Driver
from rawnn.cuda.errors import check
from rawnn.cuda.libs.cublaslt import CublasLt
from rawnn.cuda.libs.cudnn import SOFTMAX_MODE_CHANNEL, SOFTMAX_MODE_INSTANCE, Cudnn
from rawnn.cuda.libs.matmul import LtContext
from rawnn.cuda.libs.softmax import CudnnContext, SoftmaxPlan

pytestmark = pytest.mark.gpu


class Gpu:
    """The first device's primary context, one stream, and copies."""

    def __init__(self) -> None:
        self.driver = Driver()
        self("cuInit", 0)
        self.device = self("cuDeviceGet", 0)
        self("cuCtxSetCurrent", self("cuDevicePrimaryCtxRetain", self.device))
        self.stream = int(self("cuStreamCreate", 1))  # non-blocking
        self.addresses: list[int] = []

    def __call__(self, call: str, *arguments: object) -> object:
        return check(self.driver, call, getattr(self.driver, call)(*arguments))

    def upload(self, array: np.ndarray) -> int:
        address = self("cuMemAlloc", max(array.nbytes, 256))
        self.addresses.append(address)
        self("cuMemcpyHtoDAsync", address, array.ctypes.data, array.nbytes, self.stream)
        self("cuStreamSynchronize", self.stream)
        return address

    def download(self, address: int, like: np.ndarray) -> np.ndarray:
        out = np.empty_like(like)
        self("cuMemcpyDtoHAsync", out.ctypes.data, address, out.nbytes, self.stream)
        self("cuStreamSynchronize", self.stream)
        return out

    def replay(self, enqueue: Callable[[], None]) -> int:
        """Capture what `enqueue` puts on the stream, launch it once; returns the node count."""
        graph = self("cuGraphCreate", 0)
        self("cuStreamBeginCaptureToGraph", self.stream, graph, [])
        enqueue()
        self("cuStreamEndCapture", self.stream)
        nodes = self("cuGraphGetNodes", graph)
        executable = self("cuGraphInstantiate", graph, 0)
        self("cuGraphLaunch", executable, self.stream)
        self("cuStreamSynchronize", self.stream)
        self("cuGraphExecDestroy", executable)
        self("cuGraphDestroy", graph)
        return nodes

    def close(self) -> None:
        for address in self.addresses:
            self("cuMemFree", address)
        self("cuStreamDestroy", self.stream)
        self("cuDevicePrimaryCtxRelease", self.device)


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    try:
        device = Gpu()
    except (DeviceError, RuntimeError) as error:  # RuntimeError: the bindings, without a driver
        pytest.skip(f"no GPU: {error}")
    yield device
    device.close()


@pytest.fixture(scope="module")
def lt(gpu: Gpu) -> Iterator[LtContext]:
    context = LtContext(CublasLt())
    yield context
    context.close()


@pytest.fixture(scope="module")
def dnn(gpu: Gpu) -> Iterator[CudnnContext]:
    context = CudnnContext(Cudnn())
    yield context
    context.close()


def pitch(columns: int, extra: int = 0) -> int:
    return (columns + 3) // 4 * 4 + extra


@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 10, 784), (10, 784, 128), (33, 17, 65)])
@pytest.mark.parametrize(
    ("bias", "relu", "beta"), list(itertools.product([False, True], [False, True], [0.0, 0.5]))
)
@pytest.mark.parametrize("split_k", [True, False])
def test_matmul(
    gpu: Gpu, lt: LtContext, layout: str, m: int, n: int, k: int, bias: bool, relu: bool,
    beta: float, split_k: bool,
) -> None:
    rng = np.random.default_rng(3)
    shape_a = (k, m) if layout == "tn" else (m, k)
    shape_b = (n, k) if layout == "nt" else (k, n)
    lda, ldb, ldc = pitch(shape_a[1], 4), pitch(shape_b[1]), pitch(n, 8)
    a = rng.standard_normal((shape_a[0], lda), dtype=np.float32)
    b = rng.standard_normal((shape_b[0], ldb), dtype=np.float32)
    c = rng.standard_normal((m, ldc), dtype=np.float32)
    v = rng.standard_normal(n, dtype=np.float32)
    if beta == 0:
        c[:, :n] = np.nan  # must not be read
    left = a[:, :m].T if layout == "tn" else a[:, :k]
    right = b[:, :k].T if layout == "nt" else b[:, :n]
    expected = 0.25 * (left.astype(np.float64) @ right)
    if beta:
        expected += beta * c[:, :n]
    expected += v if bias else 0
    expected = np.maximum(expected, 0) if relu else expected

    plan = lt.plan(
        layout=layout, m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldc, alpha=0.25, beta=beta,
        bias=bias, relu=relu, split_k=split_k,
    )
    da, db, dv = gpu.upload(a), gpu.upload(b), gpu.upload(v)
    workspace = gpu.upload(np.zeros(max(plan.workspace_bytes, 16), np.uint8))
    results = []
    for _ in range(2):
        dc = gpu.upload(c)
        plan.run(gpu.stream, da, db, dc, dv, workspace)
        results.append(gpu.download(dc, c))
    np.testing.assert_allclose(results[0][:, :n], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(results[0][:, n:], c[:, n:])  # padding is left alone
    np.testing.assert_array_equal(results[0], results[1])  # bit for bit


@pytest.mark.parametrize("compute", ["float32", "tf32"])
def test_compute_types(gpu: Gpu, lt: LtContext, compute: str) -> None:
    rng = np.random.default_rng(4)
    a = rng.standard_normal((128, 784), dtype=np.float32)
    b = rng.standard_normal((64, 784), dtype=np.float32)
    c = np.zeros((128, 64), np.float32)
    plan = lt.plan(
        layout="nt", m=128, n=64, k=784, lda=784, ldb=784, ldc=64, compute=compute
    )
    workspace = gpu.upload(np.zeros(max(plan.workspace_bytes, 16), np.uint8))
    dc = gpu.upload(c)
    plan.run(gpu.stream, gpu.upload(a), gpu.upload(b), dc, 0, workspace)
    error = np.abs(gpu.download(dc, c) - a.astype(np.float64) @ b.T).max()
    assert error < (1e-3 if compute == "float32" else 0.2)  # TF32 keeps 10 bits of the mantissa


@pytest.mark.parametrize(("rows", "cols"), [(128, 10), (1, 10), (33, 17), (512, 784)])
@pytest.mark.parametrize("mode", [SOFTMAX_MODE_INSTANCE, SOFTMAX_MODE_CHANNEL])
def test_softmax(gpu: Gpu, dnn: CudnnContext, rows: int, cols: int, mode: int) -> None:
    rng = np.random.default_rng(5)
    z = rng.standard_normal((rows, pitch(cols)), dtype=np.float32) * 40
    p = np.full((rows, pitch(cols, 4)), 9, np.float32)
    dp = gpu.upload(p)
    plan = SoftmaxPlan(dnn, rows, cols, z.shape[1], p.shape[1], mode=mode)
    plan.run(gpu.stream, gpu.upload(z), dp)
    out = gpu.download(dp, p)
    plan.close()
    e = np.exp(z[:, :cols].astype(np.float64) - z[:, :cols].max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        out[:, :cols], e / e.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-6
    )
    assert (out[:, cols:] == 9).all()


def test_both_can_be_captured_into_a_graph(gpu: Gpu, lt: LtContext, dnn: CudnnContext) -> None:
    rng = np.random.default_rng(6)
    a = rng.standard_normal((128, 784), dtype=np.float32)
    b = rng.standard_normal((10, 784), dtype=np.float32) / 28
    v = rng.standard_normal(10, dtype=np.float32)
    z = np.zeros((128, 12), np.float32)
    matmul = lt.plan(layout="nt", m=128, n=10, k=784, lda=784, ldb=784, ldc=12, bias=True)
    softmax = dnn.plan(128, 10, 12, 12)
    da, db, dv, dz, dp = (gpu.upload(array) for array in (a, b, v, z, z))
    workspace = gpu.upload(np.zeros(max(matmul.workspace_bytes, 16), np.uint8))

    def enqueue() -> None:
        matmul.run(gpu.stream, da, db, dz, dv, workspace)
        softmax.run(gpu.stream, dz, dp)

    captured = gpu.replay(enqueue)
    assert captured >= 2
    replayed = gpu.download(dp, z)
    e = np.exp(a.astype(np.float64) @ b.T + v)
    np.testing.assert_allclose(
        replayed[:, :10], e / e.sum(axis=1, keepdims=True), rtol=1e-3, atol=1e-5
    )
    enqueue()
    np.testing.assert_array_equal(gpu.download(dp, z), replayed)
