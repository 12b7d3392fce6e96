"""Generated digits: 5 x 7 glyphs, scaled, shifted, dimmed and overlaid with noise.

They replace MNIST if no data are available, so that every command still runs. They are easier than
MNIST, and results are marked.
"""

from __future__ import annotations

import numpy as np

from rawnn.data.idx import Bytes

SIDE = 28
CLASSES = 10
_MARGIN = 2  # most pixels by which a glyph is off the centre
# One string of 7 rows x 5 columns for each digit.
_GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_SCALES = ((3, 3), (3, 4), (2, 3), (3, 2))  # vertical, horizontal


EXAMPLES = 6000
"""Default number of training examples."""


def generate(
    train: int = EXAMPLES, test: int = 1000, seed: int = 1
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Train images, train labels, test images, test labels: uint8 [N, 784] and uint8 [N].

    The same seed gives the same set with the same version of NumPy.
    """
    rng = np.random.default_rng(seed)
    images, labels = _draw(train + test, rng)
    return images[:train], labels[:train], images[train:], labels[train:]


def _draw(count: int, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    labels = rng.integers(0, CLASSES, count, dtype=np.uint8)
    # Every glyph is drawn on a canvas with a margin; a window of the canvas is a shifted glyph.
    canvas = np.zeros((len(_SCALES), CLASSES, SIDE + 2 * _MARGIN, SIDE + 2 * _MARGIN), np.uint8)
    for place, scale in enumerate(_SCALES):
        for digit, text in enumerate(_GLYPHS):
            rows = [[int(bit) for bit in row] for row in text.split()]
            glyph = np.kron(np.array(rows, np.uint8), np.ones(scale, np.uint8))
            top, left = (SIDE + 2 * _MARGIN - np.array(glyph.shape)) // 2
            canvas[place, digit, top : top + glyph.shape[0], left : left + glyph.shape[1]] = glyph
    windows = np.lib.stride_tricks.sliding_window_view(canvas, (SIDE, SIDE), axis=(2, 3))
    shift = rng.integers(0, 2 * _MARGIN + 1, (2, count))
    images = windows[rng.integers(0, len(_SCALES), count), labels, shift[0], shift[1]]
    images = images * rng.integers(120, 216, (count, 1, 1), dtype=np.uint8)
    images += rng.integers(0, 40, images.shape, dtype=np.uint8)  # at most 215 + 39: no overflow
    return images.reshape(count, SIDE * SIDE), labels
