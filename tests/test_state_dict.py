"""Parameters under PyTorch's names, out and in."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from rawnn.common.errors import CheckpointError
from rawnn.engine.state_dict import from_torch, layers_of, read_state_dict, to_torch
from rawnn.model.layers import Network
from tests.data.foreign import BFLOAT16, Foreign

NETWORK = Network((6, 5, 4, 3))
PARAMETERS = NETWORK.initial(1)


def equal(found: dict[str, Any], wanted: dict[str, Any] = PARAMETERS) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array)


def test_names_and_shapes_are_those_of_a_sequential() -> None:
    state = to_torch(PARAMETERS, NETWORK)
    assert {n: a.shape for n, a in state.items()} == {
        "0.weight": (5, 6), "0.bias": (5,), "2.weight": (4, 5), "2.bias": (4,),
        "4.weight": (3, 4), "4.bias": (3,)}
    equal(from_torch(state, NETWORK))
    assert layers_of(state) == ((6, 5, 4, 3), True)


def named(names: tuple[str, ...]) -> dict[str, Any]:
    return {f"{new}.{part}": PARAMETERS[f"fc{i}.{part}"] for i, new in enumerate(names, 1)
            for part in ("weight", "bias")}


NUMBERED = [("fc1", "fc2", "fc3"), ("net.1", "net.3", "net.10"),
            ("layers.0.linear", "layers.1.linear", "layers.2.linear")]
WORDS = [("first", "second", "third"), ("a1", "b1", "c1")]


@pytest.mark.parametrize("names", [*NUMBERED, *WORDS])
def test_other_names(names: tuple[str, ...]) -> None:
    equal(from_torch(named(names), NETWORK))


@pytest.mark.parametrize("names", NUMBERED)
def test_the_numbers_in_names_say_which_layer_is_first(names: tuple[str, ...]) -> None:
    equal(from_torch(dict(reversed(named(names).items())), NETWORK))


@pytest.mark.parametrize("names", WORDS)
def test_without_such_numbers_the_order_of_the_dict_says_it(names: tuple[str, ...]) -> None:
    other = named(names[::-1])  # the last of these words comes first
    equal(from_torch(other, NETWORK))
    with pytest.raises(CheckpointError, match="but the network needs"):
        from_torch(dict(reversed(other.items())), NETWORK)


def test_a_single_layer_without_a_prefix_and_networks_without_biases() -> None:
    bare = Network((6, 3), bias=False)
    weight = np.ones((3, 6), np.float32)
    equal(from_torch({"weight": weight}, bare), {"fc1.weight": weight})
    assert layers_of({"weight": weight}) == ((6, 3), False)
    assert set(to_torch({"fc1.weight": weight}, bare)) == {"0.weight"}


@pytest.mark.parametrize("dtype", ["float64", "float16", ml_dtypes.bfloat16])
def test_floats_of_other_widths(dtype: Any) -> None:
    state = {name: array.astype(dtype) for name, array in to_torch(PARAMETERS, NETWORK).items()}
    equal(from_torch(state, NETWORK),
          {n: a.astype(dtype).astype(np.float32) for n, a in PARAMETERS.items()})


def test_tensors_of_another_library() -> None:
    class Tensor(Foreign):
        """Takes part in autograd, as torch.nn.Parameter does."""

        detached = False

        def detach(self) -> Tensor:
            self.detached = True
            return self

        def __dlpack__(self, **options: Any) -> Any:
            if not self.detached:
                raise BufferError("it requires grad")
            return super().__dlpack__(**options)

    state = {n: Tensor(a) for n, a in to_torch(PARAMETERS, NETWORK).items()}
    equal(from_torch(state, NETWORK))
    low = {n: a.astype(ml_dtypes.bfloat16) for n, a in to_torch(PARAMETERS, NETWORK).items()}
    found = from_torch({n: Tensor(a.view(np.uint16), BFLOAT16) for n, a in low.items()}, NETWORK)
    equal(found, {n: a.astype(ml_dtypes.bfloat16).astype(np.float32)
                  for n, a in PARAMETERS.items()})
    found["fc1.weight"][:] = 0  # a copy: the other library's memory is its own
    assert low["0.weight"].astype(np.float32).any()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("made", [np.asarray, Foreign], ids=["numpy", "dlpack"])
def test_parameters_do_not_share_memory_with_the_state_dict(made: Any, order: Any) -> None:
    arrays = {n: a.copy(order) for n, a in to_torch(PARAMETERS, NETWORK).items()}
    found = from_torch({n: made(a) for n, a in arrays.items()}, NETWORK)
    assert all(array.flags.c_contiguous for array in found.values())
    for array in arrays.values():
        array[...] = 7  # as training it on would
    equal(found)
    for array in found.values():
        array[...] = 9
    assert all((array == 7).all() for array in arrays.values())


def changed(**state: Any) -> dict[str, Any]:
    values = {**to_torch(PARAMETERS, NETWORK), **{n.replace("_", "."): v for n, v in state.items()}}
    return {name: value for name, value in values.items() if value is not None}


F = np.zeros


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e39])
def test_the_first_number_that_is_not_finite_is_named(value: float) -> None:
    weight = np.zeros((4, 5))
    weight[1, 2], weight[3, 0] = value, math.nan
    with pytest.raises(CheckpointError, match=re.escape(f"'2.weight' holds {value} at [1, 2]: ")):
        from_torch(changed(**{"2_weight": weight}), NETWORK)


@pytest.mark.parametrize(("state", "sentence"), [
    ({}, r"0 linear layers \(none\), but the network 6-5-4-3 has 3"),
    (changed(**{"6_weight": F((3, 3)), "6_bias": F(3)}), r"has 4 linear layers \(0, 2, 4, 6\)"),
    (changed(**{"2_bias": None}), "has no bias for its layer '2'"),
    (changed(**{"2_weight": None}), "has no weight for its layer '2'"),
    (changed(**{"2_weight": F((5, 4))}), r"'2.weight' is of shape \[5, 4\], but the network needs "
                                         r"\[4, 5\]; it looks transposed"),
    (changed(**{"2_bias": F(7)}), r"'2.bias' is of shape \[7\], but the network needs \[4\]$"),
    (changed(**{"2_bias": F(4, np.int64)}), "'2.bias' is of type int64, but parameters are floats"),
    (changed(**{"1_running": F(4)}), "has '1.running', which is neither the weight nor the bias"),
    (changed(**{"2_bias": Foreign(F(4, np.uint8), (10, 8))}),
     "'2.bias' is of type float8_e4m3fn, but parameters are floats"),
    (changed(**{"2_bias": Foreign(F(4, np.uint8), (3, 8))}), "cannot be read: '2.bias'"),
])
def test_refusals(state: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        from_torch(state, NETWORK)


def test_biases_that_the_network_has_not() -> None:
    with pytest.raises(CheckpointError, match=r"has '0\.bias', but the network has no biases"):
        from_torch(to_torch(PARAMETERS, NETWORK), Network((6, 5, 4, 3), bias=False))


@pytest.mark.parametrize(("state", "sentence"), [
    ({}, "holds no linear layer"),
    ({"0.bias": F(3)}, "has no weight for its layer '0'"),
    ({"0.weight": F((3, 3, 3))}, "has two dimensions"),
    ({"0.weight": F((3, 2)), "1.weight": F((4, 4))}, "'1.weight' takes 4 inputs, but the layer "
                                                     "before it gives 3"),
    ({"0.weight": F((3, 2)), "0.bias": F(3), "1.weight": F((4, 3))}, "some have none"),
])
def test_layers_that_do_not_follow_each_other(state: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        layers_of(state)


def test_any_safetensors_file_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(
        {n: a.astype(ml_dtypes.bfloat16) for n, a in to_torch(PARAMETERS, NETWORK).items()}, file)
    state = read_state_dict(file)
    assert layers_of(state) == ((6, 5, 4, 3), True)
    from_torch(state, NETWORK)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="is truncated"):
        read_state_dict(file)


def test_what_is_no_state_dict_is_refused() -> None:
    for state in ([1, 2], {1: np.ones(3)}):
        with pytest.raises(CheckpointError, match="has '1', which is neither the weight nor"):
            layers_of(state)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [("fc1", "fc2", "out"), ("net.0", "net.2", "head"),
                                   ("block1.fc", "block2.fc", "head.0")])
def test_a_last_layer_with_another_name_stays_the_last(names: tuple[str, ...]) -> None:
    equal(from_torch(named(names), NETWORK))
    assert layers_of(named(names)) == ((6, 5, 4, 3), True)
    square = Network((2, 2, 2, 2))  # whose shapes do not say the order
    wanted = square.initial(3)
    state = {f"{new}.{part}": wanted[f"fc{i}.{part}"] for i, new in enumerate(names, 1)
             for part in ("weight", "bias")}
    equal(from_torch(state, square), wanted)
