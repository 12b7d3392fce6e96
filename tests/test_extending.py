"""An activation, an optimizer and a loss from outside the package, each one file, as
CONTRIBUTING.md says: the first two trained on the simulated GPU, compiled by NVRTC, and their
device code run on the CPU emulator; the loss on the host, as it brings no kernels."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.target import known
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.device import Device
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.engine.runners.host import HostRunner
from rawnn.engine.runners.lowering import _instance_source
from rawnn.model import activations, losses, optimizers
from rawnn.model.activations import ACTIVATIONS, Activation
from rawnn.model.layers import Network
from rawnn.model.losses import LOSSES, Loss
from rawnn.model.optimizers import OPTIMIZER_SPECS, Optimizer, OptimizerSpec
from rawnn.opts.persistent import rewrite
from rawnn.plan.op import OPS, define
from rawnn.plan.ops.common import write_gradient
from rawnn.plan.ops.metrics import report
from rawnn.ptx import source_path
from rawnn.ptx.family import FAMILIES, Family
from rawnn.ptx.kernel_registry import KERNELS
from rawnn.ptx.kernels import kernel_for
from rawnn.ptx.optimizers.updates import register_update
from rawnn.sim import Simulation
from rawnn.sim.kernel_references import reference_of
from tests import requires
from tests.engine import make_work, random_dataset, run_on, same_parameters, trained
from tests.persistent.problems import prepared
from tests.ptx.emulator.emulator import Kernels

ROOT = Path(__file__).resolve().parents[1]

LEAKY = """
struct Leaky {  // z above 0, a tenth of it below
  static constexpr bool kIdentity = false;
  static __device__ __forceinline__ float apply(float z) { return z > 0.0f ? z : 0.1f * z; }
  static __device__ __forceinline__ float backward(float incoming, float saved) {
    return saved > 0.0f ? incoming : 0.1f * incoming;
  }
};
"""

SIGN = """
// signs: w -= lr * (dw clipped to -bound .. bound + decay * w).
#include "optimizers/updates.cuh"

template <typename TW, typename TG, typename TC>
__global__ void signs(TW* __restrict__ w, int ldw, const TG* __restrict__ dw, int lddw,
                      TC* __restrict__ copy, int ldcopy, const float* __restrict__ loss_scale,
                      const int* __restrict__ overflow, int rows, int cols, float lr, float decay,
                      float bound, float copy_scale) {
  pdl_wait();
  pdl_trigger();
  if (left_out(overflow)) return;
  const Rounding how = {false, 0, 0, 0};
  const auto nothing = [](int, int, bool, int) {};
  update_matrix(
      w, ldw, dw, lddw, static_cast<const TG*>(nullptr), 0, 1.0f, 0.0f, copy, ldcopy, copy_scale,
      true, loss_scale, rows, cols, how, nothing,
      [&](float weight, float gradient, int) {
        const float clipped = fminf(fmaxf(gradient, -bound), bound);
        return weight - lr * (clipped + decay * weight);
      },
      nothing);
}
"""

LION = '''
"""Lion (Chen et al., 2023): steps of the sign of a moment."""
import numpy as np

from rawnn.model.optimizers import OptimizerSpec, UpdateRule, register, register_rule

CODE = """
struct Lion {
  static constexpr int kStates = 1;
  float rate, decay, beta1, beta2;
  __device__ __forceinline__ Lion(float rate, int, float decay, float beta1, float beta2)
      : rate(rate), decay(decay), beta1(beta1), beta2(beta2) {}
  __device__ __forceinline__ float operator()(float w, float g, float* m) const {
    const float c = beta1 * *m + (1.0f - beta1) * g;
    *m = beta2 * *m + (1.0f - beta2) * g;
    return w - rate * ((c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c) + decay * w);
  }
};
"""


def formula(w, g, state, a, rate, t):
    """w - rate * (sign(beta1 * m + (1 - beta1) * g) + decay * w); m = beta2 * m + (1 - beta2) * g.
    """
    number, m = w.dtype.type, state["m"]
    beta1, beta2 = number(a["beta1"]), number(a["beta2"])
    c = beta1 * m + (1 - beta1) * g
    m[...] = beta2 * m + (1 - beta2) * g
    return w - rate * (np.sign(c) + number(a["decay"]) * w)


register_rule(UpdateRule("lion", "Lion", formula, keeps=("m",), code=CODE,
                         settings={"beta1": "float", "beta2": "float"}))
register(OptimizerSpec("lion", {"beta1": 0.9, "beta2": 0.99, "decay": 0.0},
                       lambda s: "lion", lambda s: ("m",),
                       lambda s: {"beta1": s["beta1"], "beta2": s["beta2"]}))
'''
"""The file of an optimizer, whose kernels are made of its functor."""

WITH_LION = """
import lion  # ahead of all that is made of the registry
import numpy as np
from rawnn.common.target import known
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts.persistent import rewrite
from rawnn.ptx import source_path
from rawnn.ptx.instance_text import with_instance_text
from rawnn.ptx.kernels import kernel_for
from dataclasses import replace
from tests.engine import random_dataset, make_work, run_on, trained, same_parameters
from rawnn.cuda.device import Device
from rawnn.engine.runners.host import HostRunner
from rawnn.sim import Simulation
from tests.persistent.problems import prepared
from pathlib import Path
from tests.persistent import test_emulator as persistent
from tests.ptx.emulator.cases import plan_of
from tests.ptx.emulator.plans import Memory, build, check

launched, instances = set(), {}
for name in ("lion alone", "mma of bfloat16, lion"):
    plan = plan_of(name)
    check(build([plan]), Memory(plan, 5), 0)
    for op in plan.find(kind="lion") + plan.find(kind="weight_lion"):
        impl = kernel_for(op)
        launched.add(op.kind)
        instances.setdefault(impl.source, []).append(impl.expression(op, plan))
assert {"lion", "weight_lion"} <= launched

persistent.check(persistent.Launch("softmax, lion", 1, 3), Path(FOLDER), 0)

work = make_work("preload,bf16,mma=sync,fuse,graphs=3", (29, 18, 7), random_dataset(),
                 optimizer=Optimizer("lion", 0.002, {"decay": 0.1}))
device = Device(Simulation(1).backend())
same_parameters(trained(HostRunner(work)), run_on(device, work))

step = replace(prepared(Network((16, 24, 8)), 16, optimizer=Optimizer("lion", 0.01)),
               target=known((9, 0)))
impl = kernel_for(rewrite(step, 2, 1).ops[0])
assert "struct Lion" in impl.code.text and "OnChip<Lion>" in impl.code.text
try:
    Nvrtc()
except Exception as error:
    print(f"persistent was not compiled: {error}")
else:
    assert compile_source(Nvrtc, impl.code.text, name="step.cu", arch="sm_90a",
                          expressions=(impl.name,)).cubin
    for source, expressions in instances.items():
        text = with_instance_text(source_path(source).read_text(), expressions)
        assert compile_source(Nvrtc, text, name=source, arch="sm_80",
                              expressions=expressions).cubin
"""


def step(t: SimpleNamespace, a: Any) -> None:
    """w -= lr * (dw clipped to -bound .. bound + decay * w)."""
    if hasattr(t, "overflow") and t.overflow[0]:
        return
    number = t.w.dtype.type
    g = t.dw / number(t.loss_scale[0]) if hasattr(t, "loss_scale") else t.dw
    g = np.clip(g, number(-a["bound"]), number(a["bound"]))
    t.w -= number(a["lr"]) * (g + number(a["decay"]) * t.w)
    if hasattr(t, "copy"):
        t.copy[...] = t.w * number(a["copy_scale"])


@pytest.fixture
def leaky() -> Iterator[Activation]:
    yield activations.register(Activation(
        "leaky", "Leaky", "output", lambda z: np.where(z > 0, z, z.dtype.type(0.1) * z),
        lambda a: np.where(a > 0, a.dtype.type(1), a.dtype.type(0.1)), LEAKY))
    del ACTIVATIONS["leaky"]


@pytest.fixture
def signs(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "signs.cu"
    path.write_text(SIGN)
    define("signs", reads=("w", "dw", "loss_scale", "overflow"), writes=("w", "copy"),
           optional=("copy", "loss_scale", "overflow"))(step)
    optimizers.register(OptimizerSpec(
        "signs", {"bound": 0.01, "decay": 0.0}, kind=lambda s: "signs", state=lambda s: (),
        attributes=lambda s: {"bound": s["bound"]},
        ranges={"bound": (lambda v: v > 0, "above 0"), "decay": (lambda v: v < 1, "below 1")}))
    family = Family("signs", "steps of clipped gradients")
    register_update(family, "signs", str(path))
    yield path
    del OPTIMIZER_SPECS["signs"], OPS["signs"], FAMILIES["signs"]
    for key in family.kernels:
        del KERNELS[key]


@pytest.fixture
def absolute() -> Iterator[Loss]:
    """Mean absolute error."""
    scaling = ("loss_scale", "overflow")
    define("mae", reads=("z", "t", "cursor"), writes=("loss",), slotted=("loss",))(
        lambda t, a: report(t, a, np.abs(t.z - t.t).mean(), t.z.size))
    define("mae_backward", reads=("z", "t", *scaling), writes=("dz", "overflow"), optional=scaling)(
        lambda t, a: write_gradient(t, a, np.sign(t.z - t.t) / t.z.dtype.type(t.z.size)))
    yield losses.register(Loss(
        "mae", "targets",
        lambda b: b.measure("mae", {"z": b.logits, "t": b.targets, "loss": "loss"}),
        lambda b: b.op("mae_backward", "mae_backward",
                       {"z": b.logits, "t": b.targets, "dz": b.last_gradient}),
        ("mae", "mae_backward"), "", lambda outputs: 0,
        lambda z, t: float(np.abs(z - t).sum(dtype=np.float64))))
    del LOSSES["mae"], OPS["mae"], OPS["mae_backward"]


def test_a_loss_from_outside_is_trained_scored_and_predicted_from(absolute: Loss) -> None:
    x = np.random.default_rng(0).standard_normal((256, 9), np.float32)
    y = np.ascontiguousarray(x[:, :3] * 0.5)
    result = rawnn.train(layers=(9, 8, 3), batch=16, epochs=6, loss="mae", lr=0.1, device="host",
                         opt="none", data=(x, y))
    assert result.model is not None
    score = result.model.score(x, y)
    assert score.loss == pytest.approx(np.abs(result.model.predict(x) - y).mean(), rel=1e-5)
    assert score.loss < 0.7 * np.abs(y).mean()
    assert math.isnan(score.accuracy)


DATA, LAYERS = random_dataset(), (29, 18, 7)


@pytest.mark.parametrize("opt", ["none", "preload,fuse,graphs=epoch", "preload,bf16",
                                 "preload,bf16,fuse,graphs=3", "preload,bf16,mma,fuse,pdl,streams",
                                 "preload,fp16,tiled,fuse"])
def test_training_with_both_on_the_simulated_gpu_is_the_hosts(
        opt: str, leaky: Activation, signs: Path) -> None:
    options: dict[str, Any] = {"network_options": {"activation": "leaky"},
                               "optimizer": Optimizer("signs", 0.05, {"bound": 0.02})}
    work = make_work(opt, LAYERS, DATA, **options)
    simulation = Simulation(1)
    device = Device(simulation.backend())
    found = run_on(device, work)
    device.close()
    simulation.assert_clean()
    wanted = trained(HostRunner(work))
    np.testing.assert_array_equal(found.loss, wanted.loss)
    same_parameters(wanted, found)
    assert found.loss[-1] < found.loss[0]


def test_the_simulated_gpu_goes_by_the_table_as_it_is_now(
        signs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference_of(str(signs), "signs") is not None
    for key in [key for key in KERNELS if key.kind == "signs"]:
        monkeypatch.setitem(KERNELS, key, replace(KERNELS[key], name="others"))
    assert reference_of(str(signs), "signs") is None
    assert reference_of(str(signs), "others") is not None


def test_the_activation_is_in_the_text_of_kernels_that_use_it_alone(leaky: Activation) -> None:
    used = _instance_source("elementwise/activation.cu", ["activate<float,float,Leaky>"])
    assert used.startswith(source_path("elementwise/activation.cu").read_text())
    assert used.rstrip().endswith(LEAKY.rstrip())
    assert _instance_source("elementwise/activation.cu", ["activate<float,float,Relu>"]) == ""


WITH_LEAKY = """
import numpy as np
from rawnn.model.activations import Activation, register
from tests.runners.torch_formulas import ACTIVATIONS

leaky = lambda z: np.maximum(z, 3 * z)
register(Activation("leaky", "Leaky", "output", leaky, lambda a: np.where(a > 0, 3.0, 1.0), "..."))
ACTIVATIONS["leaky"] = (leaky, lambda z: np.where(z > 0, 3.0, 1.0))

from emulated_arrays import steepest
from emulated_kernels import SOURCES_AND_EXPRESSIONS
from tests.persistent.test_emulator import CHOSEN
from tests.persistent.problems import VARIETY

assert steepest("Leaky") == 3
for source, count in (("elementwise/activation", 7), ("gemm/matmul", 2), ("gemm/slices", 1)):
    assert sum("Leaky" in text for text in SOURCES_AND_EXPRESSIONS[source]) == count, source
named = [name for name, *_ in CHOSEN if "leaky" in name]
assert named and all(VARIETY[name]["network"] == {"activation": "leaky"} for name in named)
"""


def test_the_cases_of_kernels_include_a_new_activation() -> None:
    paths = (str(ROOT), str(ROOT / "tests" / "ptx" / "emulation"))
    subprocess.run([sys.executable, "-c", WITH_LEAKY], cwd=ROOT, check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})


def test_settings_of_its_own_have_a_range_of_their_own(signs: Path) -> None:
    with pytest.raises(ConfigError, match="bound = 0: it must be above 0"):
        Optimizer("signs", 0.1, {"bound": 0.0})
    assert Optimizer("signs", 0.1, {"decay": -0.5}).settings["decay"] == -0.5  # its own range
    assert str(Optimizer("signs", 0.1)) == "signs, lr 0.1, bound 0.01"


def test_nvrtc_compiles_them(leaky: Activation, signs: Path) -> None:
    try:
        Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))
    text = _instance_source("elementwise/activation.cu", ["activate<float,bfloat16,Leaky>"])
    for source, name, expression in ((text, "elementwise/activation.cu",
                                      "activate<float,bfloat16,Leaky>"),
                                     (SIGN, str(signs), "signs<float,float,bfloat16>")):
        assert compile_source(Nvrtc, source, name=name, arch="sm_90",
                              expressions=(expression,)).cubin


@requires.GXX
def test_an_optimizer_is_one_file_fused_and_in_a_whole_step(tmp_path: Path) -> None:
    """Its own kernel and the one with the weight gradient's GEMM are made of its functor, and do
    what its formula says: on the CPU emulator, and launched by the engine."""
    (tmp_path / "lion.py").write_text(LION)
    done = subprocess.run(
        [sys.executable, "-c", f"FOLDER = {str(tmp_path)!r}\n{WITH_LION}"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    assert not done.returncode, done.stderr


def test_a_functor_that_takes_other_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole steps construct it by position."""
    monkeypatch.setitem(optimizers.UPDATE_RULES, "swapped", optimizers.Step(
        "swapped", "Swapped", lambda w, g, state, a, rate, t: w, code="struct Swapped {};",
        settings={"beta2": "float", "beta1": "float"}))
    with pytest.raises(ConfigError, match="attributes beta1, beta2, and its functor takes beta2, "):
        optimizers.register(OptimizerSpec(
            "swapped", {"beta1": 0.9, "beta2": 0.9, "decay": 0.0}, kind=lambda s: "swapped",
            state=lambda s: (), attributes=lambda s: {"beta1": 0.9, "beta2": 0.9}))
    assert "swapped" not in OPTIMIZER_SPECS


@requires.GXX
def test_a_whole_step_declares_the_activation_that_it_uses(leaky: Activation) -> None:
    try:
        Nvrtc()
    except MissingLibrary as error:
        pytest.skip(str(error))
    plan = replace(prepared(Network((16, 24, 8), activation="leaky"), 16), target=known((9, 0)))
    impl = kernel_for(rewrite(plan, 2, 1).ops[0])
    assert impl.code is not None
    assert "struct Leaky" in impl.code.text
    assert compile_source(Nvrtc, impl.code.text, name="step.cu", arch="sm_90a",
                          expressions=(impl.name,)).cubin


def test_the_device_code_runs_on_the_emulator(leaky: Activation, signs: Path) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5, 8)).astype(np.float32)
    expression = "activate<float,float,Leaky>"
    library = Kernels(("elementwise/activation.cu",), (expression,))
    a = np.zeros_like(z)
    library.build().call(expression, (1,), (64,), z=z, a=a, rows=5, cols=8)
    np.testing.assert_array_equal(a, leaky.function(z))

    expression = "signs<float,float,bfloat16>"
    w = rng.normal(size=(3, 8)).astype(np.float32)
    dw = rng.normal(size=(3, 8)).astype(np.float32)
    copy = np.zeros((3, 8), ml_dtypes.bfloat16)
    wanted = SimpleNamespace(w=w.copy(), dw=dw)
    numbers = {"lr": 0.1, "decay": 0.5, "bound": 0.25, "copy_scale": 1.0}
    step(wanted, numbers)
    Kernels(("signs.cu",), (expression,), folders=(signs.parent,)).build().call(
        expression, (1,), (64,), w=w, dw=dw, copy=copy, rows=3, cols=8, **numbers)
    np.testing.assert_allclose(w, wanted.w, rtol=1e-6)
    np.testing.assert_array_equal(copy, w.astype(ml_dtypes.bfloat16))
