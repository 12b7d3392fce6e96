"""Arrays of PyTorch in a kernel of one's own, and ours in PyTorch, without a copy: one memory, two
libraries, ordered on the device.

    python examples/lab/zero_copy.py

Needs PyTorch and a GPU; without one of them it says so, and ends.
"""

from __future__ import annotations

import sys

import numpy as np

import rawnn

SOURCE = """
// x = x * sigmoid(x), in place
__global__ void silu(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] / (1.0f + __expf(-x[i]));
}
"""


def main() -> None:
    try:
        import torch
    except ImportError:
        sys.exit("this example needs PyTorch: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("this example needs a GPU that PyTorch can use, and there is none")
    n = 1 << 20
    silu = rawnn.Kernel(SOURCE, "silu")
    launch = silu[(n + 255) // 256, 256]

    # Theirs in our kernel. PyTorch fills x on its stream, the kernel runs on rawnn's, and PyTorch
    # subtracts: each waits on the device for the one before, the host for none.
    x = torch.randn(n, device="cuda")
    expected = torch.nn.functional.silu(x)
    where = x.data_ptr()
    launch(x, n)
    difference = (x - expected).abs().max().item()
    assert x.data_ptr() == where
    assert difference < 1e-5, difference
    print(f"a tensor in our kernel: off by {difference:.1e} from torch.nn.functional.silu")

    # On a stream of PyTorch: ordering is then that stream's, and nothing has to wait.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = torch.ones(n, device="cuda")
        launch.using(stream=stream)(y, n)
        total = y.sum()
    stream.synchronize()
    print(f"on a stream of PyTorch: {total.item() / n:.4f}, silu(1) = {1 / (1 + np.exp(-1)):.4f}")

    # Ours in PyTorch.
    ours = rawnn.array(np.linspace(-4, 4, n), np.float32)
    launch(ours, n)
    theirs = torch.from_dlpack(ours)
    assert theirs.data_ptr() == ours.address
    theirs.mul_(2)  # writes our memory
    torch.cuda.synchronize()  # numpy() waits for rawnn's stream, and this was another one's
    print(f"our array in PyTorch: {theirs[-1].item():.4f} there, {ours.numpy()[-1]:.4f} here")


if __name__ == "__main__":
    main()
