"""SoftmaxPlan and CudnnContext over a recording cuDNN that works on the host."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.libs.cudnn import SOFTMAX_ACCURATE, SOFTMAX_MODE_CHANNEL, SOFTMAX_MODE_INSTANCE
from rawnn.cuda.libs.softmax import CudnnContext, SoftmaxPlan

from .stub import CudnnStub


def test_normalises_rows_and_leaves_the_padding() -> None:
    z = np.random.default_rng(2).standard_normal((6, 12), dtype=np.float32) * 50
    p = np.full((6, 16), 9, np.float32)
    api = CudnnStub()
    context = CudnnContext(api)
    context.plan(6, 10, 12, 16).run(5, z.ctypes.data, p.ctypes.data)
    e = np.exp(z[:, :10] - z[:, :10].max(axis=1, keepdims=True))
    np.testing.assert_allclose(p[:, :10], e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    assert (p[:, 10:] == 9).all()
    assert [x[1:] for x in api.arguments("cudnnSetTensor4dDescriptorEx")] == [
        ("float32", (6, 10, 1, 1), (12, 1, 1, 1)), ("float32", (6, 10, 1, 1), (16, 1, 1, 1)),
    ]
    assert api.arguments("cudnnSoftmaxForward") == [(SOFTMAX_ACCURATE, SOFTMAX_MODE_CHANNEL)]


def test_plans_share_the_handles_stream_which_is_set_when_it_changes() -> None:
    api = CudnnStub()
    context = CudnnContext(api)
    first, second = context.plan(2, 4, 4, 4), context.plan(2, 3, 4, 4)
    z = np.zeros((2, 4), np.float32)
    for plan, stream in ((first, 0), (first, 8), (second, 8), (second, 9), (first, 8)):
        plan.run(stream, z.ctypes.data, z.ctypes.data)
    assert [stream for _, stream in api.arguments("cudnnSetStream")] == [8, 9, 8]


def test_context_keeps_plans_by_shape_and_closes_everything() -> None:
    api = CudnnStub()
    context = CudnnContext(api)
    assert not api.calls
    plan = context.plan(2, 4, 4, 4)
    assert context.plan(2, 4, 4, 4) is plan
    assert context.plan(2, 4, 4, 4, "float16") is not plan
    context.set_stream(3)
    context.close()
    context.close()
    plan.close()
    assert not api.alive
    assert api.names()[-1] == "cudnnDestroy"
    z = np.zeros((2, 4), np.float32)
    context.plan(2, 4, 4, 4).run(3, z.ctypes.data, z.ctypes.data)  # a new handle, its stream 0
    assert len(api.arguments("cudnnSetStream")) == 2


def test_mode_can_be_chosen() -> None:
    api = CudnnStub()
    plan = SoftmaxPlan(CudnnContext(api), 2, 4, 4, 4, mode=SOFTMAX_MODE_INSTANCE)
    z = np.zeros((2, 4), np.float32)
    plan.run(0, z.ctypes.data, z.ctypes.data)
    assert api.arguments("cudnnSoftmaxForward") == [(SOFTMAX_ACCURATE, SOFTMAX_MODE_INSTANCE)]


def test_a_failing_constructor_leaves_no_descriptor() -> None:
    api = CudnnStub()
    CudnnContext(api).plan(2, 4, 4, 4)
    for index in range(len(api.calls)):
        failing = CudnnStub(fail_at=index)
        context = CudnnContext(failing)
        with pytest.raises(CallFailed, match=r"STATUS_7 \[7\]"):
            context.plan(2, 4, 4, 4)
        assert not failing.alive, api.calls[index]


def test_failing_calls_say_what_they_were_for() -> None:
    api = CudnnStub()
    plan = CudnnContext(api).plan(2, 4, 4, 4)
    api.fail_at = len(api.calls)
    with pytest.raises(CallFailed, match=r"cudnnSetStream failed .*stream 0x10"):
        plan.run(16, 1, 2)
    api.fail_at = len(api.calls) + 1
    with pytest.raises(CallFailed, match=r"cudnnSoftmaxForward failed .*softmax rows=2 cols=4"):
        plan.run(16, 1, 2)
    with pytest.raises(ConfigError, match="did you mean 'float32'"):
        CudnnContext(api).plan(2, 4, 4, 4, "float23")
