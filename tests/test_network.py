from __future__ import annotations

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES


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


@pytest.mark.parametrize(("init", "weight", "bias"), [
    ("uniform", 1 / np.sqrt(50), 1 / np.sqrt(50)), ("he", np.sqrt(6 / 50), 0.0),
    ("glorot", np.sqrt(6 / 90), 0.0), ("zeros", 0.0, 0.0),
])
def test_every_initialisation_fills_its_range(init: str, weight: float, bias: float) -> None:
    drawn = Network((50, 40, 30), init=init).initial(1)
    for name, bound in (("fc1.weight", weight), ("fc1.bias", bias)):
        largest = np.abs(drawn[name]).max()
        assert 0.9 * bound <= largest <= np.float32(bound), name
    assert (drawn["fc2.weight"].ravel()[:20] != drawn["fc1.weight"].ravel()[:20]).all() \
        or init == "zeros"


def test_a_network_without_biases_has_none() -> None:
    network = Network((5, 4, 3), bias=False)
    assert [t.name for t in network.parameters()] == ["fc1.weight", "fc2.weight"]
    assert set(network.initial(0)) == {"fc1.weight", "fc2.weight"}


@pytest.mark.parametrize(("options", "sentence"), [
    ({"activation": "rely"}, "unknown activation 'rely'; did you mean 'relu'?"),
    ({"activation": "xyzzy"},
     f"unknown activation 'xyzzy'; there are {', '.join(sorted(ACTIVATIONS))}"),
    ({"loss": "mes"}, "unknown loss 'mes'; did you mean 'mse'?"),
    ({"loss": "xyzzy"}, f"unknown loss 'xyzzy'; there are {', '.join(sorted(LOSSES))}"),
    ({"init": "hee"}, "unknown initialisation 'hee'; did you mean 'he'?"),
    ({"init": "xyzzy"}, "unknown initialisation 'xyzzy'; there are uniform, he, glorot, zeros"),
])
def test_unknown_names_are_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Network((5, 3), **options)  # type: ignore[arg-type]
    assert str(caught.value) == sentence


def test_a_seed_gives_the_same_numbers_everywhere_and_others_give_others() -> None:
    network = Network((3, 2))
    first, again, other = network.initial(7), network.initial(7), network.initial(8)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
        assert (first[name] != other[name]).all()
    np.testing.assert_allclose(
        first["fc1.weight"],
        [[0.5249235, 0.2888508, -0.4455096], [-0.4784411, -0.1074329, 0.3409646]],
        rtol=1e-6)


@pytest.mark.parametrize("layers", [(4,), (), (4, 0), (4, 2.5), "4-2", (4, "2"), 4])
def test_sizes_that_are_none_are_refused(layers: object) -> None:
    with pytest.raises(ConfigError, match=r"layers = .*: give two sizes or more"):
        Network(layers)  # type: ignore[arg-type]
