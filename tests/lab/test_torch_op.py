"""An operator for PyTorch: what of it needs no PyTorch, and by a stand-in for torch.library what it
is registered as. With PyTorch and a GPU: tests/gpu/test_torch_op.py."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.lab.torch_op import TorchOp, torch_op
from rawnn.lab.work import Work

FORWARD = """
__global__ void bias_relu(const float* z, const float* bias, float scale, float* a, int rows,
                          int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * cols) a[i] = scale * fmaxf(z[i] + bias[i % cols], 0.0f);
}
"""
BACKWARD = """
__global__ void gradient(const float* da, const float* a, float scale, float* dz, int rows,
                         int cols) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * cols) dz[i] = a[i] > 0.0f ? scale * da[i] : 0.0f;
}
"""
MATRIX = ("rows", "cols")
LAUNCH: dict[str, Any] = {"grid": "cdiv(rows * cols, 128)", "block": 128}
WORK = Work(lambda z, bias, scale: scale * np.maximum(z + bias, 0),
            shapes={"z": MATRIX, "bias": "cols", "a": MATRIX}, **LAUNCH)
GRADIENT = Work(lambda da, a, scale: np.where(a > 0, scale * da, 0),
                shapes={"da": MATRIX, "a": MATRIX, "dz": MATRIX}, **LAUNCH)


def kernels(device: Any = None) -> tuple[rawnn.Kernel, rawnn.Kernel]:
    return (rawnn.Kernel(FORWARD, "bias_relu", device=device),
            rawnn.Kernel(BACKWARD, "gradient", device=device))


def test_arguments_outputs_and_sizes_follow_from_the_work() -> None:
    device = rawnn.lab.simulated()
    forward, backward = (TorchOp(k, w) for k, w in zip(kernels(device), (WORK, GRADIENT),
                                                       strict=True))
    assert forward.schema == "(Tensor z, Tensor bias, float scale) -> Tensor"
    assert forward.sizes({"z": (3, 5), "bias": (5,)}) == {"rows": 3, "cols": 5}
    assert [(o.name, shape) for o, shape in forward.output_shapes({"z": (3, 5), "bias": (5,)})] == \
        [("a", (3, 5))]
    backward.check_gradients_of(forward)
    with pytest.raises(ConfigError, match=r"'bias' is of shape \[4\], but cols is 5"):
        forward.sizes({"z": (3, 5), "bias": (4,)})
    fixed = TorchOp(rawnn.Kernel("__global__ void f(const float* x, const float* w, float* y) {}",
                                 "f", device=device),
                    Work(lambda x, w: x, shapes={"x": ["n", 4], "w": ["2 * n"], "y": ["n", 4]},
                         grid=1, block=1))
    assert fixed.sizes({"x": (3, 4), "w": (6,)}) == {"n": 3}
    for shapes, sentence in (({"x": (3, 5), "w": (6,)}, r"'x' should be of shape \[3, 4\], not "
                                                        r"\[3, 5\]"),
                             ({"x": (3, 4), "w": (3,)}, r"'w' should be of shape \[6\], not")):
        with pytest.raises(ConfigError, match=sentence):
            fixed.sizes(shapes)
    for shape in ((15,), (3, 5, 1)):
        with pytest.raises(ConfigError, match=f"'z' has 2 dimensions .*, not the {len(shape)} of"):
            forward.sizes({"z": shape, "bias": (5,)})
    with pytest.raises(ConfigError, match="the backward kernel asks for 'z'"):
        forward.check_gradients_of(backward)


def test_what_no_operator_can_be_made_of() -> None:
    device = rawnn.lab.simulated()
    kernel = rawnn.Kernel("__global__ void f(float* x, int n) { x[0] = n; }", "f", device=device)
    with pytest.raises(ConfigError, match="reads and writes 'x': an operator's outputs are made"):
        TorchOp(kernel, Work(lambda x: x, grid=1, block=1))
    with pytest.raises(ConfigError, match="the size 'n' is no extent of an input"):
        TorchOp(kernel, Work(lambda n: np.zeros(n), shapes={"x": "n"}, grid=1, block=1))


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_a_launch_has_its_arguments_in_order_and_sizes_of_shapes() -> None:
    launched: list[Any] = []

    class Fake:
        def __getitem__(self, how: Any) -> Any:
            return SimpleNamespace(using=lambda **more: lambda *given: launched.append(
                (how, more, given)))

    op = TorchOp(kernels(rawnn.lab.simulated())[0], WORK)
    op.kernel = cast(Any, Fake())
    z, bias, a = (np.zeros(shape, np.float32) for shape in ((30, 5), (5,), (30, 5)))
    op.launch({"z": z, "bias": bias, "scale": 2.0, "a": a}, 7)
    (grid, block), more, given = launched.pop()
    assert (grid, block) == ((2, 1, 1), (128, 1, 1))
    assert more == {"shared": 0, "cluster": None, "cooperative": False, "stream": 7}
    assert [*map(id, (given[0], given[1], given[3]))] == [*map(id, (z, bias, a))]
    assert (given[2], *given[4:]) == (2.0, 30, 5)


def test_without_pytorch_it_is_said() -> None:
    kernel, _ = kernels(rawnn.lab.simulated())
    with pytest.raises(MissingLibrary, match="pip install torch"):
        torch_op("mine::bias_relu", kernel, WORK)


class Tensor:
    """As much of a tensor as the operator touches."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape = array.shape
        self.is_detached = False

    def new_empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        return Tensor(np.full(shape, np.nan, dtype))

    def detach(self) -> Tensor:
        found = Tensor(self.array)
        found.is_detached = True
        return found

    def contiguous(self) -> Tensor:
        found = Tensor(np.ascontiguousarray(self.array))
        found.is_detached = self.is_detached
        return found


def test_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[str, Any] = {}

    def custom_op(name: str, run: Any, **messages: Any) -> Any:
        made = SimpleNamespace(run=run, **messages)
        made.register_fake = lambda f: setattr(made, "fake", f)
        made.register_autograd = lambda b, setup_context: vars(made).update(
            back=b, setup=setup_context)
        registered[name] = made
        return made

    torch = SimpleNamespace(library=SimpleNamespace(custom_op=custom_op), float32=np.float32,
                            cuda=SimpleNamespace(current_stream=lambda: 5))
    monkeypatch.setitem(sys.modules, "torch", torch)
    launched, passed = [], list[Tensor]()

    def launch(self: TorchOp, given: dict[str, Any], stream: Any) -> None:
        launched.append((self.kernel.expression, sorted(given), stream))
        passed.extend(given[operand.name] for operand in self.inputs)

    monkeypatch.setattr(TorchOp, "launch", launch)
    first, second = kernels(rawnn.lab.simulated())
    made = torch_op("mine::relu", first, WORK, backward=(second, GRADIENT))
    assert list(registered) == ["mine::relu", "mine::relu_backward"]
    assert (made.device_types, made.mutates_args) == ("cuda", ())
    z, bias = Tensor(np.ones((3, 5))), Tensor(np.ones(5))
    assert made.fake(z, bias, 2.0).shape == (3, 5)
    a = made.run(z, bias, 2.0)
    assert launched == [("bias_relu", ["a", "bias", "scale", "z"], 5)]
    strided = Tensor(np.arange(30.0).reshape(5, 6).T[::2])
    made.run(strided, bias, 2.0)  # a kernel reads rows without gaps
    assert all(t.is_detached and t.array.flags.c_contiguous for t in passed)
    assert np.array_equal(passed[2].array, strided.array)
    del launched[1:]
    context = SimpleNamespace(save_for_backward=lambda *t: vars(context).update(saved_tensors=t))
    made.setup(context, (z, bias, 2.0), a)
    assert context.saved_tensors == (a,)
    monkeypatch.setattr(registered["mine::relu_backward"], "__call__", None, raising=False)
    asked = []
    second_op = registered["mine::relu_backward"]
    cells = dict(zip(made.back.__code__.co_freevars, made.back.__closure__, strict=True))
    cells["second"].cell_contents = lambda *given: asked.append(given) or second_op.run(*given)
    found = made.back(context, Tensor(np.ones((3, 5))))
    assert asked[0][1:] == (a, 2.0)
    assert [None if g is None else g.shape for g in found] == [(3, 5), None, None]
