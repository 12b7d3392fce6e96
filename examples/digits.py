"""Handwritten digits of 8 x 8 pixels from scikit-learn: train on NumPy arrays, stop early, look at
what the network confuses, hand the weights to PyTorch."""

import numpy as np

import rawnn

try:
    from sklearn.datasets import load_digits
except ImportError:
    raise SystemExit("this example needs scikit-learn: pip install scikit-learn") from None

digits = load_digits()
data = rawnn.from_arrays((digits.images.astype(np.float32), digits.target), 0.25,
                         normalise="learned")
result = rawnn.train(layers=(64, 64, 10), data=data, batch=32, epochs=100, shuffle=True,
                     optimizer="adam", lr=1e-3, patience=8)
print(f"{len(result.history)} epochs; {result.stopped or 'not stopped early'}")
print(f"test accuracy {result.test_accuracy:.4f}")

model = result.model
print(model.confusion(data.test_images, data.test_labels))
print({name: array.shape for name, array in model.state_dict().items()})
assert result.test_accuracy > 0.95
