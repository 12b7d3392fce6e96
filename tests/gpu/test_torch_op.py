"""A PyTorch operator made of a kernel, with autograd through a second one."""

from __future__ import annotations

import pytest

from rawnn.cuda.device import Device
from rawnn.lab.torch_op import torch_op
from tests import requires
from tests.lab.test_torch_op import GRADIENT, WORK, kernels

torch = requires.module("torch")
pytestmark = pytest.mark.gpu


def test_it_computes_and_has_gradients(device: Device) -> None:
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    first, second = kernels(device)
    relu = torch_op("rawnn_test::bias_relu", first, WORK, backward=(second, GRADIENT))
    z = torch.randn(33, 20, device="cuda", requires_grad=True)
    bias = torch.randn(20, device="cuda")
    a = relu(z, bias, 2.0)
    torch.testing.assert_close(a, 2 * torch.relu(z + bias))
    a.sum().backward()
    torch.testing.assert_close(z.grad, 2 * (z + bias > 0).float())
    torch.library.opcheck(relu, (z, bias, 2.0))
    compiled = torch.compile(lambda z, b: relu(z, b, 0.5) + 1)
    torch.testing.assert_close(compiled(z, bias), torch.relu(z + bias) / 2 + 1)
