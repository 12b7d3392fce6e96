"""A graph of one's own with a conditional node: power iteration, which goes round on the device
until the vector stays as it is. The host launches once, and looks at nothing in between.

    python examples/lab/power_iteration.py [--device sim]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import rawnn
from rawnn.cuda.device import Device

SOURCE = """
__global__ void multiply(const float* a, const float* x, float* y, int n) {
  float sum = 0.0f;  // a warp a row
  for (int i = threadIdx.x; i < n; i += 32) sum += a[blockIdx.x * n + i] * x[i];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

// x = y / |y|; goes on as long as some element changed by more than a little, and rounds are left.
__global__ void normalise(float* x, const float* y, int* again, int* rounds, int n) {
  __shared__ float square;
  __shared__ int moved;
  if (threadIdx.x == 0) square = moved = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&square, y[i] * y[i]);
  __syncthreads();
  const float scale = rsqrtf(square);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (fabsf(x[i] - y[i] * scale) > 1e-6f) atomicAdd(&moved, 1);
    x[i] = y[i] * scale;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    rounds[0] += 1;
    again[0] = moved > 0 && rounds[0] < 1000;
  }
}
"""


def simulate() -> Device:
    """What the kernels mean, for the simulated GPU."""
    def multiply(t: Any, a: Any) -> None:
        t.y[...] = t.a @ t.x

    def normalise(t: Any, a: Any) -> None:
        new = t.y / np.linalg.norm(t.y)
        t.rounds[0] += 1
        t.again[0] = np.abs(new - t.x).max() > 1e-6 and t.rounds[0] < 1000
        t.x[...] = new

    rawnn.sim.register("multiply", multiply, {"a": ("n", "n"), "x": ("n",), "y": ("n",)},
                       reads=("a", "x"), writes=("y",))
    rawnn.sim.register("normalise", normalise,
                       {"x": ("n",), "y": ("n",), "again": ("1",), "rounds": ("1",)},
                       reads=("x", "y", "rounds"), writes=("x", "again", "rounds"))
    return rawnn.lab.simulated()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("gpu", "sim"), default="gpu")
    device = simulate() if parser.parse_args().device == "sim" else None
    n, generator = 64, np.random.default_rng(0)
    matrix = generator.uniform(size=(n, n)).astype(np.float32)
    matrix += matrix.T

    a = rawnn.array(matrix, device=device)
    x, y = rawnn.array(np.ones(n), np.float32, device=device), rawnn.empty(n, device=device)
    again, rounds = (rawnn.array([k], np.int32, device=device) for k in (1, 0))
    multiply, normalise = (rawnn.Kernel(SOURCE, name, device=device)
                           for name in ("multiply", "normalise"))
    with rawnn.Graph() as graph, graph.while_(again):
        multiply[n, 32](a, x, y, n)
        normalise[1, 256](x, y, again, rounds, n)
    graph.check()  # the order of the nodes, proved
    graph.launch()

    vector = x.numpy()
    value = vector @ matrix @ vector
    print(f"{graph!r}: {rounds.numpy()[0]} rounds, largest eigenvalue {value:.4f}")
    assert abs(value - np.linalg.eigvalsh(matrix)[-1]) < 1e-2


if __name__ == "__main__":
    main()
