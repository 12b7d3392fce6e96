"""The kernels that are written compile for every architecture that runs them, without a warning and
with few spills. Needs NVRTC but no GPU."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rawnn.common.target import known
from rawnn.cuda.compiling import resources
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts.persistent import rewrite
from rawnn.persistent.choose import choose
from rawnn.persistent.layout import layout_of
from rawnn.persistent.sharding import L2, Sharding
from rawnn.persistent.source import source
from rawnn.plan.op import Op
from rawnn.ptx.kernels import kernel_for
from rawnn.ptx.persistent.persistent import QUICK
from tests.persistent.problems import AMPERE, HOPPER, VARIETY, prepared, problem
from tests.ptx.architectures import installed_nvrtc
from tests.slices import sliced

MOST_SPILLED = 256
"""Bytes of a thread's spills: some around a division or an exponential cost less than fewer
warps."""

SHARED = [("softmax, SGD", 4, 1), ("Adam in an order", 16, 1), ("Adam in an order", 2, 3),
          ("binary cross-entropy, tanh", 8, 2), ("bfloat16", 2, 2), ("an autoencoder", 2, 2),
          ("float16, Adam, tanh", 1, 1), ("float16", 4, 1), ("float16", 2, 3),
          ("stochastic rounding, Adam", 1, 1), ("stochastic rounding", 4, 2)]


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return installed_nvrtc()


def built(nvrtc: Nvrtc, text: str, arch: str) -> int:
    """Bytes spilled a thread. Fails where NVRTC says anything but what ptxas reports."""
    found = compile_source(nvrtc, text, name="train_steps.cu", arch=arch,
                           expressions=("train_steps",),
                           options=(*QUICK, "--ptxas-options=-v"))
    assert "warning" not in found.log, found.log
    stores, loads = next(iter(resources.spills(found.log).values()))
    return stores + loads


@pytest.mark.parametrize("name", sliced(VARIETY))
def test_a_kernel_of_one_block_compiles(nvrtc: Nvrtc, name: str) -> None:
    for arch, chip in sliced([("sm_80", AMPERE), ("sm_90", HOPPER)]):
        text = source(choose(problem(**VARIETY[name]), chip, 1, 1).layout, "train_steps")
        assert built(nvrtc, text, arch) <= MOST_SPILLED


@pytest.mark.parametrize(("name", "ranks", "groups"), sliced(SHARED))
def test_kernels_of_several_blocks_compile(nvrtc: Nvrtc, name: str, ranks: int,
                                           groups: int) -> None:
    text = source(choose(problem(**VARIETY[name]), HOPPER, ranks, groups).layout, "train_steps")
    for arch in sliced(["sm_90", "sm_100"]):
        assert built(nvrtc, text, arch) <= MOST_SPILLED


def test_a_kernel_that_takes_turns_and_a_partial_batch_compiles(nvrtc: Nvrtc) -> None:
    d = choose(problem(**VARIETY["Adam in an order"]), HOPPER, 4, 2).sharding
    layout = layout_of(replace(d, micro_batches=2), HOPPER.shared).with_partial_batch()
    assert built(nvrtc, source(layout, "train_steps"), "sm_90") <= MOST_SPILLED


@pytest.mark.parametrize("name", VARIETY)
@pytest.mark.parametrize("layers", [None, (16, 16)], ids=["own layers", "one layer"])
def test_operands_that_a_kernel_names_are_its_parameters(
        name: str, layers: tuple[int, ...] | None) -> None:
    """Of all kinds of problems, whose layers are loaded one by one or in a call. A slice compiles
    some."""
    p = problem(**VARIETY[name] | ({"layers": layers} if layers else {}))
    for d in (Sharding(p, 1, 1, 256, "F" * (p.depth + 1)), Sharding(p, 1, 2, 256,
                                                                    "F" * (p.depth + 1))):
        text = source(layout_of(d, HOPPER.shared), "train_steps")
        parameters = {each.name for each in parse_kernels(text)["train_steps"].parameters}
        named = {*re.findall(r"\b(?:ld)?[wbc]\d+(?:_[a-z]+)?\b", text)}
        assert named <= parameters


def test_each_layer_of_a_long_kernel_is_loaded_and_stored_in_one_call() -> None:
    """Calls and loops outside of the steps are a part of the time in which a kernel compiles."""
    chosen = choose(problem(**VARIETY["Adam in an order"]), HOPPER, 4, 1)
    text = source(chosen.layout, "train_steps")
    for what in ("load_layer<", "load_state<", "store_layer<", "store_state<"):
        assert text.count(what) == 3, what
    assert "_biases<" not in text


def test_all_states_of_a_layer_of_a_short_kernel_are_moved_in_one_pass() -> None:
    chosen = choose(problem((40, 17, 10), optimizer=Optimizer("adam", 1e-3)), HOPPER, 1, 1)
    text = source(chosen.layout, "train_steps")
    for what in ("load_states<", "store_states<"):
        assert text.count(what) == 2, what
    assert text.count("{w1_m, w1_v}, {ldw1_m, ldw1_v}, {b1_m, b1_v}") == 2


def test_the_epilogue_of_bias_sums_is_there_once_a_gradient(nvrtc: Nvrtc) -> None:
    """Its shuffles are two. The task of a sum has four tiles here, and nothing else of the kernel
    shuffles so."""
    chosen = choose(problem((32, 128, 64), batch=96, network={"loss": "mse"}), HOPPER, 1, 3)
    text = source(chosen.layout, "train_steps")
    assert text.count("1, 1, 4, 40, 40, true, float, float>::run") == 2, "four tiles a task"
    found = compile_source(nvrtc, text, name="train_steps.cu", arch="compute_90",
                           expressions=("train_steps",), options=QUICK)
    assert found.cubin.count(b"shfl.sync.bfly") == 2 * 2


LONGEST = ((32, 960, 128, 784, 48, 32, 32), 256, (16, 8, 512, "FSFSFFF", 1, L2))
"""Of the random networks from seeds 31001 and 32001 on, one of the four whose float32 kernels
compile longest, with its sharding."""
MOST_STATEMENTS = 11_000
"""Of its PTX, with which the time of NVVM and ptxas grows; NVRTC 12.9 makes 10,841."""


def test_one_of_the_longest_kernels_stays_as_short_as_it_is(nvrtc: Nvrtc) -> None:
    layers, batch, how = LONGEST
    given = problem(layers, batch, form={"inputs": "float32", "scale": 1.0}, shuffle=True)
    text = source(layout_of(Sharding(given, *how), HOPPER.shared), "train_steps")
    found = compile_source(nvrtc, text, name="train_steps.cu", arch="compute_90",
                           expressions=("train_steps",), options=QUICK)
    code = found.cubin[found.cubin.index(b".entry"):]
    assert 5000 < code.count(b";") <= MOST_STATEMENTS


@pytest.mark.parametrize(("threads", "loops"), [(256, False), (128, True)])
def test_the_table_of_tiles_is_filled_by_a_loop_where_threads_are_fewer(threads: int,
                                                                        loops: bool) -> None:
    d = Sharding(problem((32, 128, 112), network={"loss": "mse"}), 1, 3, threads, "FFF")
    layout = layout_of(d, HOPPER.shared)
    assert 128 < layout.tiles <= 256
    text = source(layout, "train_steps")
    assert (f"i < {layout.tiles}; i += {threads}" in text) == loops
    assert (f"if (thread < {layout.tiles}) places[thread] =" in text) != loops


def op_of(name: str) -> Op:
    keywords = dict(VARIETY[name])
    network = Network(keywords.pop("layers", (40, 64, 17, 10)), **keywords.pop("network", {}))
    plan = replace(prepared(network, **keywords), target=known((9, 0)))
    return rewrite(plan).ops[0]


@pytest.mark.parametrize("name", VARIETY)
def test_the_kernel_takes_what_the_op_has(name: str) -> None:
    op = op_of(name)
    impl = kernel_for(op)
    signature = parse_kernels(impl.code.text)[impl.name]
    pointers = [p.name for p in signature.parameters if p.pointer]
    assert sorted(pointers) == sorted(op.operands)
    scalars = {p.name for p in signature.parameters if not p.pointer}
    assert {"offset", "span"} <= scalars
    assert scalars - {k for k, v in op.attributes.items() if isinstance(v, int)} <= {
        f"ld{name}" for name in pointers}
    assert set(impl.shapes) == set(op.operands)


def test_another_network_is_another_kernel() -> None:
    names = {kernel_for(op_of(name)).name for name in VARIETY}
    assert len(names) == len(VARIETY)
    assert kernel_for(op_of("bfloat16")).name == kernel_for(op_of("bfloat16")).name


def test_blocks_that_wait_for_each_other_are_launched_together() -> None:
    plan = replace(prepared(Network((16, 32, 10)), batch=4096), target=known((9, 0)))
    together = rewrite(plan, 1, 64).ops[0]
    small = replace(prepared(Network((16, 32, 10))), target=known((9, 0)))
    alone = rewrite(small, 1, 1).ops[0]
    assert kernel_for(together).cooperative
    assert not kernel_for(alone).cooperative
