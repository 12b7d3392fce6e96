"""Bias and ReLU of one's own inside the training step: does it train the same, and is it faster?

    python examples/lab/plugged.py              # on the GPU
    python examples/lab/plugged.py --device sim # what the op means in the kernel's place

`python -m rawnn kernel try examples/lab/bias_relu.cu` says it with intervals, in turns.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import rawnn

KERNEL = Path(__file__).with_name("bias_relu.cu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--examples", type=int, help="50,000, simulated 5,000 (10 s)")
    asked = parser.parse_args()
    examples = asked.examples or (5_000 if asked.device == "sim" else 50_000)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(examples, 100)).astype(np.float32)
    y = (x @ generator.normal(size=(100, 5))).argmax(axis=1)
    found = {}
    for opt in ("best", f"best,bias_relu={KERNEL}"):
        found[opt] = rawnn.train(data=(x, y), opt=opt, layers=(100, 128, 128, 5), epochs=3,
                                 device=asked.device)
    (_, ours), (_, mine) = found.items()
    for name, result in (("best", ours), ("with bias_relu.cu", mine)):
        simulated = " (simulated)" if asked.device == "sim" else ""
        print(f"{name}: test accuracy {result.test_accuracy:.4f}, "
              f"{result.average_epoch_ms:.2f} ms an epoch{simulated}")
    assert abs(mine.test_accuracy - ours.test_accuracy) < 0.01


if __name__ == "__main__":
    main()
