import numpy as np

TAPS = (0.05, 0.25, 0.4, 0.25, 0.05)


def rows(**given):
    image = given["in"]
    wide = np.pad(image, ((0, 0), (2, 2)), mode="edge")
    return sum(t * wide[:, i : i + image.shape[1]] for i, t in enumerate(np.float32(TAPS)))
