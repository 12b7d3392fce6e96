import numpy as np


def counts(threads, seed, draws):
    state = np.arange(threads, dtype=np.uint64) + np.uint64(seed)

    def draw():
        nonlocal state
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        return state >> np.uint64(33)

    draw()
    found = np.zeros(threads, np.int32)
    for _ in range(draws):
        x, y = draw(), draw()
        found += x * x + y * y < np.uint64(1 << 62)
    return found
