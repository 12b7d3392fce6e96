"""Data, checkpoints and models on a GPU, with PyTorch's tensors where PyTorch is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.common.listener import Listener
from rawnn.cuda.device import Device
from rawnn.data import from_arrays
from rawnn.engine.checkpoint import listed
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened
from rawnn.engine.session import Session
from rawnn.engine.training import train
from rawnn.model.activations import ACTIVATIONS
from rawnn.opts.registry import Machine
from tests import requires
from tests.engine import random_dataset, same_parameters
from tests.runners import torch_formulas

pytestmark = pytest.mark.gpu

DATA = random_dataset(features=64, classes=10, train=1000, test=200)


@pytest.fixture(scope="module", autouse=True)
def opened(device: Device, machine: Machine) -> Opened:
    return Opened(device, machine, 0.0)


def on_gpu(array: Any, dtype: str) -> Any:
    torch = requires.module("torch")
    return torch.tensor(np.asarray(array), device="cuda").to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
def test_tensors_are_trained_on_where_they_are(opened: Opened, dtype: str) -> None:
    x, y = on_gpu(DATA.train_images, dtype), on_gpu(DATA.train_labels, "int32")
    test = (np.asarray(DATA.test_images, dtype), DATA.test_labels)
    config = Config(layers=(64, 32, 10), epochs=3, device="gpu", opt="best,preload")
    with Session(config, Listener(), data=from_arrays((x, y), test), opened=opened) as session:
        addresses = session.runner._addresses  # type: ignore[attr-defined]
        assert addresses["images"] == x.data_ptr()
        assert addresses["labels"] == y.data_ptr()
        found = session.run()
    copied = from_arrays((np.asarray(DATA.train_images, dtype),
                          np.asarray(DATA.train_labels, np.int32)), test)
    wanted = train(config, data=copied)
    same_parameters(found, wanted)


@pytest.mark.parametrize("changed", [
    {"optimizer": "adamw", "lr": 1e-3}, {"momentum": 0.9, "schedule": "cosine"},
    {"opt": "best,bf16"}, {"opt": "best,fp16"}, {"opt": "best,bf16,sr"}, {"opt": "none"},
])
def test_a_resumed_run_ends_as_one_that_never_stopped(tmp_path: Path, changed: dict[str, Any]
                                                      ) -> None:
    options = {"layers": (64, 96, 10), "batch": 32, "device": "gpu", "shuffle": True,
               "partial": True, "epochs": 4, "data": DATA, **changed}
    whole = train(**options, save=str(tmp_path))
    for _, path in listed(tmp_path)[2:]:
        path.unlink()
    rest = train(**options, resume=str(tmp_path))
    assert rest.resumed_epochs == 2
    same_parameters(rest, whole)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_models_predict_as_on_the_host_and_as_pytorch(activation: str) -> None:
    torch = requires.module("torch")
    result = train(layers=(64, 48, 10), epochs=2, device="gpu", data=DATA, activation=activation,
                   batch=32)
    model = result.model
    z = model.predict(DATA.test_images, "logits")
    np.testing.assert_allclose(model.predict(DATA.test_images, "logits", device="gpu"), z,
                               rtol=1e-4, atol=1e-4)
    assert model.score(DATA.test_images, DATA.test_labels).loss == pytest.approx(
        result.test_loss, rel=1e-4)

    class ByFormula(torch.nn.Module):  # type: ignore[misc]
        def forward(self, z: Any) -> Any:
            a = torch_formulas.ACTIVATIONS[activation][0](z.detach().numpy().astype(np.float64))
            return torch.from_numpy(a).float()

    named = {name.lower(): getattr(torch.nn, name) for name in dir(torch.nn)}
    between = named.get(activation.replace("_", ""), ByFormula)
    net = torch.nn.Sequential(torch.nn.Linear(64, 48), between(), torch.nn.Linear(48, 10))
    net.load_state_dict({n: torch.from_numpy(a) for n, a in model.state_dict().items()})
    x = torch.from_numpy(model.normalisation.apply(DATA.test_images))
    np.testing.assert_allclose(net(x).detach().numpy(), z, rtol=1e-4, atol=1e-4)
    model.load_state_dict(net.cuda().state_dict())
    np.testing.assert_array_equal(model.predict(DATA.test_images, "logits"), z)
    model.load_state_dict(net.bfloat16().state_dict())
    assert np.abs(model.predict(DATA.test_images, "logits") - z).max() < 0.1


@pytest.mark.parametrize("opt", [
    "none", "none,fuse", "none,cublas,cudnn", "none,cublas,cudnn,fuse", "best,-persistent",
    "best,persistent", "best,persistent=16x2", "best,tf32,-persistent", "best,tf32,persistent",
    "best,bf16,-persistent", "best,bf16,persistent"])
@pytest.mark.parametrize("layers", [(784, 10), (784, 128, 64, 10), (784, 300)], ids=str)
def test_losses_of_probabilities_that_vanish(layers: tuple[int, ...], opt: str) -> None:
    """Logits are so far apart that most labels' probabilities are 0 in float32; the loss is not cut
    off there."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (256, layers[0])).astype(np.uint8)
    y = rng.permutation(np.arange(256) % layers[-1])
    data = from_arrays((x, y), (x, y), normalise="none", classes=layers[-1])
    options: dict[str, Any] = {"layers": layers, "batch": 64, "lr": 1e-12, "epochs": 1,
                               "init": "he" if len(layers) > 2 else "uniform"}
    wanted = train(data=data, device="host", opt="none", **options).history[0]
    found = train(data=data, device="gpu", opt=opt, **options).history[0]
    assert wanted.train_loss > 100
    rtol = 0.03 if "bf16" in opt else 5e-3 if "tf32" in opt else 3e-5
    np.testing.assert_allclose((found.train_loss, found.test_loss),
                               (wanted.train_loss, wanted.test_loss), rtol=rtol)
