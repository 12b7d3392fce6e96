"""Regression: how far diabetes has progressed after a year, from ten measurements (scikit-learn's
data), or a made-up function where scikit-learn is not installed."""

import numpy as np

import rawnn

try:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    best_known = "a linear model explains about half of the variance"
except ImportError:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(600, 10))
    y = 100 + 50 * np.sin(x[:, 0]) + 20 * x[:, 1] * x[:, 2] + generator.normal(size=600)
    best_known = "all but a thousandth of the variance can be explained"

mean, std = y.mean(), y.std()
data = rawnn.from_arrays((x, (y - mean) / std), 0.25, normalise="learned")
result = rawnn.train(layers=(10, 32, 1), loss="mse", data=data, batch=16, epochs=200, shuffle=True,
                     optimizer="adamw", lr=1e-3, weight_decay=0.01, activation="tanh", patience=15)

predicted = result.model.predict(data.test_images)[:, 0] * std + mean
actual = data.test_targets[:, 0] * std + mean
explained = 1 - np.mean((predicted - actual) ** 2) / np.var(actual)
print(f"{len(result.history)} epochs, error {np.abs(predicted - actual).mean():.1f} on average; "
      f"R2 = {explained:.2f} ({best_known})")
assert explained > 0.3
