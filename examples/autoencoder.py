"""An autoencoder on MNIST: 784 pixels through 32 numbers and back, by mean squared error.

    python examples/autoencoder.py [EPOCHS]

Without EPOCHS it trains four, which take 10 to 15 s on two cores of a host, longer on a busy one;
ten reach a test loss an eighth lower.
"""

import sys

import numpy as np

import rawnn
from rawnn.engine.result import Report

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 4


class Progress(rawnn.Listener):
    """A line an epoch."""

    reads = False

    def reported(self, report: Report) -> None:
        print(f"epoch {report.epoch} of {epochs}: test loss {report.test_loss:.4f}, "
              f"{report.epoch_ms / 1e3:.2f} s", flush=True)


print(f"784-256-32-256-784 on MNIST, {epochs} epochs", flush=True)
data = rawnn.load_dataset("mnist").reconstructing()
result = rawnn.train(layers=(784, 256, 32, 256, 784), loss="mse", data=data, batch=128,
                     epochs=epochs, shuffle=True, optimizer="adam", lr=1e-3, listener=Progress())

x = data.normalisation.apply(data.test_images)
blank = float(np.square(x - x.mean(axis=0)).mean())
print(f"test loss {result.test_loss:.4f}; the mean image alone gives {blank:.4f}")


def show(image: np.ndarray) -> list[str]:
    """14 lines of text for 28 x 28 pixels of 0 to 255."""
    rows = image.reshape(14, 2, 28).mean(axis=1) / 255
    return ["".join(" .:-=+*#%@"[int(np.clip(v, 0, 0.999) * 10)] for v in row) for row in rows]


some = data.test_images[:3]
for before, after in zip(some, result.model.predict(some), strict=True):
    print("\n".join(f"{a} | {b}" for a, b in zip(show(before), show(after), strict=True)))
assert result.test_loss < blank / 2
