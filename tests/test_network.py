from __future__ import annotations

import numpy as np
import pytest

from rawnn.network import Network


def test_parameters_are_outputs_by_inputs_layer_by_layer() -> None:
    network = Network((784, 128, 10))
    assert network.depth == 2
    assert [(t.name, t.shape) for t in network.parameters()] == [
        ("fc1.weight", (128, 784)), ("fc1.bias", (128,)),
        ("fc2.weight", (10, 128)), ("fc2.bias", (10,)),
    ]
    assert str(network) == "784-128-10"


@pytest.mark.parametrize("layers", [(784, 10), (50, 40, 30), (1, 1)])
def test_initial_parameters_are_uniform_within_the_bound_of_their_inputs(
    layers: tuple[int, ...]
) -> None:
    network = Network(layers)
    drawn = network.initial(3)
    for index in range(1, network.depth + 1):
        bound = np.float32(1 / np.sqrt(layers[index - 1]))
        for name in (f"fc{index}.weight", f"fc{index}.bias"):
            assert drawn[name].dtype == np.float32
            assert np.abs(drawn[name]).max() <= bound
    weight = drawn["fc1.weight"] * np.sqrt(layers[0])
    if weight.size > 1000:
        assert weight.mean() == pytest.approx(0, abs=0.05)
        assert weight.std() == pytest.approx(1 / np.sqrt(3), abs=0.02)


def test_a_seed_gives_the_same_numbers_everywhere_and_others_give_others() -> None:
    network = Network((3, 2))
    first, again, other = network.initial(7), network.initial(7), network.initial(8)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert (first[name] != other[name]).all()
    np.testing.assert_allclose(
        first["fc1.weight"],
        [[0.1444478, 0.4586630, 0.3183344], [-0.3173034, -0.2307481, 0.4313424]],
        rtol=1e-6)
