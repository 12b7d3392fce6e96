from __future__ import annotations

import numpy as np

from rawnn.data import synthetic


def test_shapes_and_seed() -> None:
    first, again = synthetic.generate(), synthetic.generate()
    shapes = [array.shape for array in first]
    assert shapes == [(6000, 784), (6000,), (1000, 784), (1000,)]
    assert all(array.dtype == np.uint8 for array in first)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not (synthetic.generate(seed=2)[0] == first[0]).all()
    assert sorted(set(first[1].tolist())) == list(range(10))
    # A digit of 120 to 215, and noise of 0 to 39 everywhere: no more than a byte holds.
    assert (first[0].min(), first[0][:, 0].max(), first[0].max()) == (0, 39, 215 + 39)
    assert np.unique(first[0].max(axis=1) // 10).tolist() == list(range(15, 26))


def test_softmax_regression_learns_it() -> None:
    """Three epochs of plain SGD: above 0.8 on the test images, and not trivially perfect."""
    images, labels, test_images, test_labels = synthetic.generate()
    w, bias = np.zeros((10, 784), np.float32), np.zeros(10, np.float32)
    for start in [*range(0, 6000, 100)] * 3:
        x = images[start : start + 100] / np.float32(255)
        z = x @ w.T + bias
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(100), labels[start : start + 100]] -= 1
        w -= 0.1 / 100 * p.T @ x
        bias -= 0.1 / 100 * p.sum(0)
    right = ((test_images / np.float32(255) @ w.T + bias).argmax(1) == test_labels).mean()
    assert 0.8 < right < 0.99
