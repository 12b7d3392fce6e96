"""A user's kernel in the place of rawnn's, for any op: what it computes there, what is kept out of
its way, and what is wrong with it said before anything is launched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.cli import run
from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.device import Device
from rawnn.engine.runners.host import HostRunner
from rawnn.lab.implementation import Implementation
from rawnn.lab.plug import load
from rawnn.model.layers import Network
from rawnn.ptx import SOURCES
from rawnn.ptx.user_kernels import USER_KERNELS, unregister, user_ops, vocabulary
from rawnn.sim import Simulation, SimulationError
from tests import requires
from tests.engine import (
    dataset_for,
    make_work,
    random_dataset,
    run_on,
    same_parameters,
    trained,
)
from tests.slices import sliced

MINE = """// Bias and ReLU, a thread an element.
/* rawnn
op = "bias_relu"
kernel = "bias_relu<{z}, {a}>"
grid = "cdiv(rows * cols, TILE)"
block = "TILE"
defines = {TILE = 64}
*/
#include "primitives/pdl.cuh"
#include "primitives/types.cuh"

template <typename TZ, typename TA>
__global__ void bias_relu(const TZ* z, int ldz, const float* bias, TA* a, int lda, int rows,
                          int cols) {
  WAIT
  const int i = blockIdx.x * TILE + threadIdx.x;
  if (i >= rows * cols) return;
  const int row = i / cols, column = i % cols;
  a[row * lda + column] =
      from_float<TA>(fmaxf(to_float(z[row * ldz + column]) + bias[column], 0.0f));
}
"""
DATA, LAYERS = random_dataset(), (29, 18, 12, 7)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    for word in list(USER_KERNELS):
        unregister(word)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.cu"
    path.write_text(MINE.replace("WAIT", "pdl_wait();\n  pdl_trigger();"))
    return path


def on_sim(opt: str, data: Any = DATA, layers: tuple[int, ...] = LAYERS, **options: Any) -> Any:
    simulation = Simulation(1)
    device = Device(simulation.backend())
    found = run_on(device, make_work(opt, layers, data, **options))
    device.close()
    simulation.assert_clean()
    return found


def same(opt: str, own: str, data: Any = DATA, layers: tuple[int, ...] = LAYERS,
         **options: Any) -> None:
    """With a user's kernels a run on the simulated GPU is the host's without, bit for bit."""
    found = on_sim(f"{opt},{own}", data, layers, **options)
    wanted = trained(HostRunner(make_work(opt, layers, data, **options)))
    np.testing.assert_array_equal(found.loss, wanted.loss)
    same_parameters(wanted, found)


@pytest.mark.parametrize("opt", sliced([
    "nosync", "preload,pdl,arena,nosync", "preload,graphs=epoch,streams,pdl",
    "preload,graphs=while,pdl", "preload,bf16,graphs=3", "preload,fp16", "preload,streams",
    "preload,graphs=step", "preload,graphs=3", "preload,fuse,streams"], 6))
def test_training_with_it_is_training_without(opt: str, mine: Path) -> None:
    same(opt, f"bias_relu={mine}")


def test_sizes_may_have_other_names_by_values(tmp_path: Path) -> None:
    """Rows lie as far apart as a `values` of the kernel's own says, which counts as taken."""
    text = MINE.replace("WAIT", "pdl_wait();").replace('defines =', 'values = {zs = "ldz", as_ = '
                        '"lda", count = "rows * cols"}\ndefines =')
    for old, new in (("int ldz", "int zs"), ("int lda", "int as_"), ("int rows,", "int count,"),
                     ("* ldz", "* zs"), ("* lda", "* as_"), ("i >= rows * cols", "i >= count")):
        text = text.replace(old, new)
    file = tmp_path / "named.cu"
    file.write_text(text)
    same("preload", f"bias_relu={file}")
    file.write_text(text.replace('zs = "ldz", ', 'zs = "cols", '))
    with pytest.raises(ConfigError, match=r"rows of 'z' .* elements\) lie .* apart"):
        on_sim(f"preload,bias_relu={file}")


def test_it_stays_itself_in_whatever_else_computes_the_step(mine: Path) -> None:
    plan = make_work(f"preload,mma,fuse,pdl,bias_relu={mine}", LAYERS, DATA).train
    assert [op.name for op in user_ops(plan)] == ["relu1", "relu2"]
    assert len(plan.find(kind="weight_update")) == 3
    assert not any(op.attributes["activation"] for op in plan.find(kind="matmul"))


ANY: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bias_add": ("elementwise/bias.cu", "bias_add<{z}>", {"grid": "cdiv(rows * cols, 64)"}),
    "bias_grad": ("elementwise/bias.cu", "bias_grad<{dz}>", {"grid": "cols"}),
    "activate": ("elementwise/activation.cu", "activate<{z}, {a}, {activation}>", {"grid": 3}),
    "activate_backward": ("elementwise/activation.cu",
                          "activate_backward<{da}, {saved}, {dz}, {activation}>",
                          {"grid": 3}),
    "softmax": ("losses/softmax.cu", "softmax<{z}>", {"grid": "cdiv(rows, 2)"}),
    "softmax_backward": ("losses/softmax.cu", "softmax_backward<{dz}>", {"grid": 3}),
    "cross_entropy": ("losses/loss.cu", "cross_entropy", {"grid": 1}),
    "accuracy": ("losses/loss.cu", "accuracy", {"grid": 1}),
    "sgd": ("optimizers/sgd.cu", "sgd<{w}, {dw}, {copy}>", {"grid": "cdiv(rows * cols, 64)"}),
    "momentum": ("optimizers/momentum.cu", "momentum<{w}, {dw}, {copy}>", {"grid": 2}),
    "adam": ("optimizers/adam.cu", "adam<{w}, {dw}, {copy}>", {"grid": 2}),
    "matmul": ("gemm/matmul.cu", "matmul_nn<{a}, {b}, {c}, {slope}>",
               {"grid": ["cdiv(n, 8)", "cdiv(m, 8)"], "block": [8, 8],
                "where": "layout == 'nn'"}),
    "gather": ("elementwise/gather.cu", "gather<{images}, {x}, {labels}>", {"grid": 4}),
    "initialise": ("elementwise/initialise.cu", "initialise<{w}>", {"grid": 2}),
    "shuffle": ("elementwise/shuffle.cu", "shuffle", {"grid": 2}),
    "tick": ("elementwise/cursor.cu", "tick", {"grid": 1, "block": 1}),
    "mse": ("losses/mse.cu", "mse<{t}>", {"grid": 1}),
    "mse_backward": ("losses/mse.cu", "mse_backward<{t}, {dz}>", {"grid": 1}),
    "softmax_loss_gradient": ("losses/loss.cu", "softmax_loss_gradient<{dz}>", {"grid": 1}),
    "weight_update": ("optimizers/weight_update.cu", "weight_update<{x}, {w}, {copy}, {dz}>",
                      {"grid": ["cdiv(n, 8)", "cdiv(m, 8)"], "block": [8, 8]}),
}


@pytest.mark.parametrize("op", sliced(ANY, 8))
def test_any_op_can_be_replaced(op: str) -> None:
    source, expression, how = ANY[op]
    rawnn.impl(op, SOURCES / source, expression, name="other", **{"block": 64, **how})
    options: dict[str, Any] = {"shuffle": True}
    if op in ("momentum", "adam"):
        from rawnn.model.optimizers import Optimizer

        options["optimizer"] = Optimizer("adam" if op == "adam" else "sgd", 0.05,
                                         {} if op == "adam" else {"momentum": 0.9})
    if op.startswith("mse"):
        options["network_options"] = {"loss": "mse"}
    data = dataset_for(Network(LAYERS, **options.get("network_options", {})), 70, 23)
    fused = ",fuse" if op in ("softmax_loss_gradient", "weight_update") else ""
    same(f"preload,arena,nosync,pdl{fused}", f"{op}=other", data, **options)


def test_the_vocabulary_is_every_op_that_a_kernel_can_run() -> None:
    assert {*ANY, "bias_relu", "bias_gelu", "linear_update", "cast"} <= {*vocabulary()}
    assert not {"upload", "train_steps", "advance"} & {*vocabulary()}


def test_an_activation_that_keeps_its_input_stores_it() -> None:
    rawnn.impl("bias_gelu", """
        __global__ void gelu(float* z, int ldz, const float* bias, float* a, int lda, int n,
                             int cols) {}
    """, name="mine", grid=1, block=32, values={"n": "rows * cols"})
    same("preload,graphs=epoch", "bias_gelu=mine", network_options={"activation": "gelu"})


def test_a_meaning_of_ones_own_is_what_is_simulated() -> None:
    def half(t: Any, a: Any) -> None:
        t.a[...] = np.maximum(t.z + t.bias, 0) / 2

    how: dict[str, Any] = {"grid": 1, "block": 32}
    rawnn.impl("bias_relu", RELU, name="half", **how)(half)
    rawnn.impl("bias_relu", RELU, name="given", reference=half, **how)
    plain, halved = on_sim("preload"), on_sim("preload,bias_relu=half")
    assert not np.array_equal(plain.loss, halved.loss)
    np.testing.assert_array_equal(
        halved.loss, trained(HostRunner(make_work("preload,bias_relu=given", LAYERS, DATA))).loss)


def test_a_launch_that_no_op_asks_for_is_an_error_of_the_simulated_gpu(mine: Path) -> None:
    own = load(mine)
    right = own.kernel.sizes
    own.kernel.__dict__["sizes"] = lambda op, plan: {**right(op, plan), "rows": 3}
    with pytest.raises(SimulationError, match="no op of the plan asks for that"):
        on_sim(f"preload,bias_relu={mine}")


def test_a_kernel_that_does_not_wait_gets_full_edges(mine: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--layers", "784-64-10", "--opt", f"preload,arena,nosync,pdl,graphs=1,"
             f"bias_relu={mine}", "--examples", "1280"]
    assert run(words) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "relu1" in x and "behind" in x)
    assert "early behind" in line
    mine.write_text(MINE.replace("WAIT", ""))
    assert run(words) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "relu1@0" in x)
    assert "early" not in line
    assert "after" in line


def test_the_plan_says_what_it_keeps_out(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--layers", "784-64-10", "--opt", f"best,bias_relu={mine}"]) == 0
    expected = capsys.readouterr().out
    assert "epilogue     taken, but bias_relu=mine computes relu1" in expected
    assert "best goes without persistent: bias_relu=" in expected
    assert run(["plan", "--opt", f"best,bias_add={SOURCES / 'elementwise/bias.cu'}"]) == 2
    rawnn.impl("bias_add", SOURCES / "elementwise/bias.cu", "bias_add<{z}>", name="mine", grid=9,
               block=64)
    capsys.readouterr()
    assert run(["plan", "--layers", "784-10", "--opt", "none,preload,fuse,bias_add=mine"]) == 0
    expected = capsys.readouterr().out
    assert "epilogue     not taken: bias_add=mine computes fc1.bias_add; it would apply" in expected
    assert "linear       not taken: bias_add=mine; it would apply without" in expected
    assert run(["plan", "--opt", "persistent,bias_add=mine"]) == 2
    assert "cannot be part of the one kernel that persistent makes" in capsys.readouterr().err


def test_nvrtc_compiles_it_for_what_the_plan_asks(mine: Path) -> None:
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    plan = make_work(f"preload,bf16,bias_relu={mine}", LAYERS, DATA).train
    kernel = USER_KERNELS["bias_relu=mine"].kernel
    for op in user_ops(plan):
        built = compile_source(Nvrtc, kernel.code.text, name=kernel.source, arch="sm_90",
                               expressions=(kernel.expression(op, plan),), programmatic=True,
                               preamble=kernel.code.preamble)
        assert all(proof.waits for proof in built.proofs.values())


def test_a_file_that_changes_while_a_device_is_open(mine: Path) -> None:
    """A device keeps what it loaded, and gets each text under a name of its own."""
    simulation = Simulation(1)
    device = Device(simulation.backend())
    wanted = trained(HostRunner(make_work("preload", LAYERS, DATA)))
    text = mine.read_text()
    for tile in (64, 32, 64, 96):
        mine.write_text(text.replace("TILE = 64", f"TILE = {tile}"))
        found = run_on(device, make_work(f"preload,bias_relu={mine}", LAYERS, DATA))
        np.testing.assert_array_equal(found.loss, wanted.loss)
    assert len({own.kernel.source for own in USER_KERNELS.values()}) == 1
    device.close()


def test_one_file_for_two_ops(mine: Path) -> None:
    mine.write_text(mine.read_text().replace('op = "bias_relu"\n', ""))
    for op, activation in (("bias_relu", "relu"), ("bias_tanh", "tanh")):
        same("preload", f"{op}={mine}", network_options={"activation": activation})
    assert len({own.kernel.source for own in USER_KERNELS.values()}) == 2


def test_a_changed_file_is_read_again(mine: Path) -> None:
    first = load(mine)
    assert load(mine) is first
    mine.write_text(mine.read_text().replace("TILE = 64", "TILE = 128"))
    second = load(mine)
    assert second is not first
    assert second.kernel.geometry({"rows": 2, "cols": 128})[1] == (128, 1, 1)


RELU = ("__global__ void relu(const float* z, int ldz, const float* bias, float* a, int lda, "
        "int rows, int cols) {}")
SGD = "__global__ void f(float* w, int ldw, const float* dw, int lddw, int rows, LR) {}"


@pytest.mark.parametrize(("op", "source", "how", "message"), [
    ("bias_rleu", RELU, {}, "there is no op 'bias_rleu'; did you mean 'bias_relu'"),
    ("upload", RELU, {}, "no kernel can take the place of the op 'upload'"),
    ("bias_relu", RELU, {"grid": None}, "say how many blocks: grid = "),
    ("bias_relu", RELU.replace("* a,", "* out,"), {}, "'out' is no operand of the op 'bias_relu'"),
    ("bias_relu", RELU.replace("float* a", "const float* a"), {},
     "the op writes 'a', and the kernel's pointer is const: take the const away"),
    ("bias_relu", RELU.replace("const float* bias", "float* bias"), {},
     r"only reads 'bias', and the kernel could write it: declare it const float\* bias"),
    ("bias_relu", RELU.replace("const float* bias, ", ""), {},
     "reads 'bias', and the kernel has no pointer of that name"),
    ("bias_relu", "template <typename T> " + RELU, {}, 'name an instance, kernel = "relu<float>"'),
    ("bias_relu", "int relu() {}\n", {}, "has no __global__ function"),
    ("bias_relu", RELU, {"name": "a b"}, "give letters, digits and _"),
    ("bias_relu", RELU.replace("int cols", "int cols, int count"), {},
     r"nothing fills its parameter 'count'.*values = \{count = ...\}"),
    ("bias_relu", RELU.replace("int cols", "int cols, int count"), {"defines": {"TILE": 4}},
     r"'count'; the op gives rows, cols, ldz, lda, and others come from"),
    ("bias_relu", RELU.replace("int ldz, ", ""), {},
     r"rows of 'z' \(7 elements\) lie 8 apart, .* take int ldz and address z\[row \* ldz"),
    ("bias_relu", RELU.replace("float* a", "__half* a"), {},
     r"its 'a' points to __half, and the tensor a1 holds float32: make it a template.*relu<\{a\}>"),
    ("bias_relu", RELU, {"require": "cols % 4 == 0"},
     r"it requires cols % 4 == 0, and here cols = 7: leave it out there with where"),
    ("bias_relu", RELU, {"where": "cols > 99"},
     r"bias_relu=mine has nothing to do: none of the ops .*cols > 99 does not hold: cols = 7"),
    ("bias_relu", RELU, {"grid": "cdiv(row, 2)"}, "asks for 'row', which is not known; did you "
                                                  "mean 'rows'"),
    ("bias_relu", RELU, {"block": 2048}, r"a block \(2048, 1, 1\) has 2,048 threads, and it can "
                                         r"have at most 1,024"),
    ("bias_relu", RELU, {"grid": "rows / 3"}, "it has to be a whole number of at least 1"),
    ("activate", "__global__ void f(const float* z, int ldz, float* a, int lda, int rows) {}", {},
     "activation is 'relu', which the kernel does not get: .*where = .*activation == 'relu'"),
    ("sgd", SGD.replace("LR", "int cols"), {},
     "the op has lr = 0.1, and the kernel does not take it: add a parameter float lr"),
    ("sgd", SGD.replace("LR", "float lr"), {}, "the op has the operand 'rates' here"),
])
def test_what_is_wrong_is_said_with_its_fix(op: str, source: str, how: dict[str, Any],
                                             message: str) -> None:
    def plugged() -> None:
        rawnn.impl(op, source, **{"name": "mine", "grid": 4, "block": 32, **how})
        schedule = {"schedule": "cosine"} if "rates" in message else {}
        make_work(f"preload,{op}=mine", (29, 7, 5), random_dataset(29, 5), **schedule)

    with pytest.raises(ConfigError, match=message):
        plugged()


@pytest.mark.parametrize(("dtype", "ctype", "right"), [
    ("int32", "int", True), ("int32", "int32_t", True), ("int32", "uint8_t", False),
    ("uint8", "unsigned char", True), ("uint8", "uint8_t", True), ("uint8", "int32_t", False),
    ("float32", "float", True), ("float32", "int32_t", False), ("float16", "__half", True),
    ("bfloat16", "__half", False)])
def test_a_pointers_type_by_any_of_its_names(dtype: str, ctype: str, right: bool) -> None:
    plan: Any = {"labels": SimpleNamespace(dtype=dtype)}
    op: Any = SimpleNamespace(operands={"y": "labels"})
    own: Any = SimpleNamespace(kernel="mine")
    parameter: Any = SimpleNamespace(name="y", ctype=ctype)
    with nullcontext() if right else pytest.raises(
            ConfigError, match=f"its 'y' points to {ctype}, and the tensor labels holds {dtype}"):
        Implementation._check_type(own, parameter, op, plan, "mine")


STOCHASTIC = {"stochastic": True, "stream": 2}


@pytest.mark.parametrize(("attributes", "taken", "refused"), [
    ({"lr": 0.1}, {}, "lr = 0.1.* add a parameter float lr"), ({"n": 3}, {}, "parameter int n"),
    ({"lr": 0.0}, {}, "parameter float lr"), ({"n": 0}, {}, "parameter int n"),
    ({"flag": True}, {}, "parameter bool flag"), ({"flag": False, "text": "", "x": None}, {}, ""),
    ({"lr": 0.1}, {"parameters": ("lr",)}, ""), ({"lr": 0.1}, {"where": "lr < 1"}, ""),
    ({"lr": 0.1}, {"require": ["lr < 1"]}, ""), ({"lr": 0.1}, {"values": {"step": "-lr"}}, ""),
    ({"lr": 0.1}, {"arguments": ["{dw}", "{ lr }"]}, ""),
    ({"compute": "float32"}, {}, ""), ({"compute": "tf32"}, {}, "compute is 'tf32', which"),
    ({"alpha": 1.0, "beta": 0.0, "decay": 0.0, "copy_scale": 1.0}, {}, ""),
    ({"alpha": 0.0}, {}, "float alpha"), ({"beta": 0.5}, {}, "float beta"),
    ({"seed": 3, "stream": 2}, {}, ""), (STOCHASTIC, {}, "bool stochastic"),
    (STOCHASTIC, {"parameters": ("stochastic",)}, "int stream"),
    (STOCHASTIC, {"parameters": ("stochastic", "stream")}, ""),
    ({"offset": 3}, {}, ""), ({"offset": 3}, {"operands": {"cursor": "c"}}, "int offset"),
    ({"offset": 3}, {"operands": {"cursor": "c"}, "parameters": ("offset",)}, ""),
    ({"urgent": True}, {}, "")])
def test_every_number_of_the_op_that_matters_reaches_the_kernel(
        attributes: dict[str, Any], taken: dict[str, Any], refused: str) -> None:
    own: Any = SimpleNamespace(how={"where": taken.get("where", "")}, **{
        "require": [], "values": {}, "arguments": [], **taken})
    op: Any = SimpleNamespace(attributes=attributes, operands=taken.get("operands", {}))
    signature: Any = SimpleNamespace(parameters=[
        SimpleNamespace(name=name) for name in taken.get("parameters", ())])
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        Implementation._check_numbers(own, op, {}, signature, "mine")


@pytest.mark.parametrize(("words", "message"), [
    ("bias_relu=yours", "there is no such kernel; name a file with a header"),
    ("bias_relu", "needs a value: bias_relu=NAME"),
    ("bias_relu=none.cu", "cannot read the kernel none.cu"),
    ("bias_rel=yours", "unknown toggle 'bias_rel'"),
])
def test_words_that_name_none(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_work(words, LAYERS, DATA)


def test_a_kernel_of_the_step_is_no_kernel_to_check_by_itself(
        mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "check", str(mine), "--device", "sim"]) == 2
    assert "computes the op 'bias_relu' of a training step: `rawnn kernel try" in \
        capsys.readouterr().err


def test_one_that_waits_for_the_grid_says_that_it_is_cooperative() -> None:
    text = ("#include <cooperative_groups.h>\n"
            "__global__ void meets(const float* z, int ldz, const float* bias, float* a, int lda, "
            "int rows, int cols) { cooperative_groups::this_grid().sync(); }\n")
    with pytest.raises(ConfigError, match=r"grid\.sync\(\).*say cooperative = true"):
        rawnn.impl("bias_relu", text, name="meets", grid=4, block=32)
    assert rawnn.impl("bias_relu", text, name="meets", grid=4, block=32, cooperative=True)


def test_the_simulated_gpu_says_that_it_compiles_no_kernel(mine: Path,
                                                           capsys: pytest.CaptureFixture[str]
                                                           ) -> None:
    mine.write_text(MINE.replace("fmaxf", "no_such_function"))
    words = ["train", "--device", "sim", "--dataset", "synthetic", "--layers", "784-16-10",
             "--epochs", "1", "--batch", "1000", "--quiet"]
    assert run([*words, "--opt", f"best,bias_relu={mine}"]) == 0
    said = f"bias_relu={mine} is not compiled for the simulated GPU"
    assert said in capsys.readouterr().err
    assert run(words) == 0
    assert "is not compiled" not in capsys.readouterr().err


@pytest.mark.parametrize(("header", "kernels", "said"), [
    ('grid = 1\nblock = 32', "a", "does not say which op it runs: write op = \"bias_relu\""),
    ('op = "bias_relu"\ngrid = 1\nblock = 32', "ab",
     "has several kernels (a, b): say which, kernel = \"a\""),
    ('op = "bias_relu"\nkernel = "c"\ngrid = 1\nblock = 32', "ab", "has no kernel 'c'"),
    ('op = "bias_relu"\ngrid = 1\nblock = 32', "", "has no __global__ function"),
    ('op = "bias_relu"\ngrid = 1\nblock = 32\nsymbols = {t = [1]}', "a",
     "has no symbols set: write them into the source"),
    ('op = "bias_relu"\nblock = 32', "a", "say how many blocks: grid = ..."),
    ('op = "bias_relu"\ngrid = 1', "a", "say how many threads a block has: block = ..."),
    ('op = "bias_relu"\ngrid = 1\nblock = 32\nname = "a b"', "a", "name = 'a b': give letters")])
def test_what_a_header_lacks_is_said(tmp_path: Path, header: str, kernels: str, said: str) -> None:
    file = tmp_path / "own.cu"
    file.write_text(f"/* rawnn\n{header}\n*/\n" + "".join(
        f"__global__ void {name}(const float* z, float* a, int rows, int cols) {{}}\n"
        for name in kernels))
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert said in str(caught.value)


SETTINGS: dict[str, tuple[Any, Any]] = {
    "grid": (3, [5, "rows"]), "block": (64, [8, 4]), "shared": (16, "2 * cols"), "cluster": (2, 4),
    "cooperative": (False, True), "values": ({"count": 1}, {"count": "rows"}),
    "where": ("rows > 1", "rows > 2"), "require": (["cols > 1"], "cols > 2"),
    "defines": ({"TILE": 8}, {"TILE": 16}), "options": (["-DA"], ["-DB"]),
    "include": ("below", ["other"]), "arch": ("sm_80", "sm_90"), "name": ("first", "second"),
    "kernel": ("one", "two")}


def described(own: Any) -> dict[str, Any]:
    """What a plugged kernel is, by the names of settings."""
    made, names = own.kernel.geometry.__self__, {"rows": 6, "cols": 5}
    grid, block = own.kernel.geometry(names)
    return {
        "grid": grid, "block": block, "shared": own.kernel.shared(names),
        "cluster": own.kernel.cluster(names), "cooperative": own.kernel.cooperative,
        "values": made.values, "where": made.how.get("where"), "require": made.require,
        "defines": own.kernel.code.preamble, "options": own.kernel.code.options,
        "include": own.kernel.code.include, "arch": own.kernel.code.arch, "name": own.name,
        "kernel": made.kernel}


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_argument_takes_the_place_of_the_headers(tmp_path: Path, setting: str) -> None:
    """And of nothing else of it; a folder of the header's is beside the file."""
    for folder in ("below", "other"):
        (tmp_path / folder).mkdir()
    _, two = SETTINGS[setting]
    kernels = "".join(RELU.replace("relu", name).replace("int cols", "int cols, int count") + "\n"
                      for name in ("one", "two"))
    file = tmp_path / "own.cu"

    def made(head: dict[str, Any], **given: Any) -> dict[str, Any]:
        lines = "".join(f"{key} = {_toml(value)}\n" for key, value in head.items())
        file.write_text(f"/* rawnn\n{lines}*/\n{kernels}")
        given = {("expression" if key == "kernel" else key): value for key, value in given.items()}
        return described(rawnn.impl("bias_relu", file, **given))

    base = {key: first for key, (first, _) in SETTINGS.items()}
    given = [str(tmp_path / "other")] if setting == "include" else two
    argued = made(base, **{setting: given})
    assert argued == made({**base, setting: two})
    assert argued == made({key: base[key] for key in base if key != setting}, **{setting: given})
    before = made(base)
    assert {key for key in before if before[key] != argued[key]} == {setting}
    if setting == "include":
        assert before["include"] == (tmp_path, tmp_path / "below")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else json.dumps(value)
