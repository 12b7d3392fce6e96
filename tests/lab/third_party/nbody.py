import numpy as np


def accelerations(bodies):
    place, mass = bodies[:, :3], bodies[:, 3]
    away = place[None] - place[:, None]
    strength = mass[None] / ((away**2).sum(axis=2) + np.float64(np.float32(0.01))) ** 1.5
    return np.concatenate([(away * strength[..., None]).sum(axis=1), np.zeros((len(mass), 1))], 1)
