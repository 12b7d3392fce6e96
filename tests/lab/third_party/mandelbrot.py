import numpy as np


def rounds(width, height, most):
    cx = -2.0 + 3.0 * np.arange(width)[None] / width + np.zeros((height, 1))
    cy = -1.5 + 3.0 * np.arange(height)[:, None] / height + np.zeros((1, width))
    x, y, found = np.zeros_like(cx), np.zeros_like(cx), np.zeros(cx.shape, np.uint16)
    for _ in range(most):
        inside = x * x + y * y <= 4.0
        found += inside
        x, y = np.where(inside, x * x - y * y + cx, x), np.where(inside, 2.0 * x * y + cy, y)
    return found
