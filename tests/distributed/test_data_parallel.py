"""Several ranks train as one does on the same global batch, on simulated GPUs and on the host."""

from __future__ import annotations

import re
from contextlib import ExitStack
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.cuda.libs.calls import CollectiveCall
from rawnn.distributed import Team
from rawnn.engine.parallel import compare_with_one_rank, metrics, predict_scaling
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.graphs.unrolling import graph_plans
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import select
from rawnn.opts.precision import steps_a_parameter
from rawnn.plan.recipe import Recipe
from rawnn.plan.tensor import Role
from rawnn.sim import Simulation
from tests.distributed.runs import collected, joined, on_hosts, on_simulated, teams, work_of
from tests.engine import CAPABLE, make_work, random_dataset, run_on
from tests.slices import sliced
from tests.together import all_fine
from tests.tolerances import of_run

LAYERS, BATCH = (29, 18, 7), 8
DATA = random_dataset(train=45, test=15)
"""Five whole batches, and one of five examples: of four ranks the first gets two of them."""


def alone(opt: str, data: Any = DATA, layers: tuple[int, ...] = LAYERS, **options: Any) -> Any:
    from rawnn.cuda.device import Device
    from rawnn.sim import Simulation

    simulation = Simulation()
    device = Device(simulation.backend())
    try:
        return run_on(device, make_work(opt, layers, data, BATCH, **options))
    finally:
        device.close()


def same(found: list[Any], wanted: Any, types: Any = (), what: str = "") -> None:
    tolerance = of_run(types)
    losses, correct = joined(found)
    np.testing.assert_allclose(losses, wanted.loss, rtol=tolerance, atol=tolerance, err_msg=what)
    for each in found:
        for name, array in wanted.parameters.items():
            np.testing.assert_allclose(each.parameters[name], array, rtol=0, atol=tolerance,
                                       err_msg=f"{name} {what}")
            assert np.array_equal(each.parameters[name], found[0].parameters[name])
    if not types:
        np.testing.assert_array_equal(correct, wanted.correct)


@pytest.mark.parametrize("opt", sliced([
    "preload,arena", "preload,cublas,fuse", "preload,graphs=epoch,streams,fuse",
    "preload,graphs=3,mma,fuse,pdl,streams", "streams,pinned,arena,nosync", "arena,nosync",
    "preload,arena,nosync,fuse", "pool", "graphs=step,pinned",
    "preload,graphs,tiled,fuse,report=2"], 5))
def test_four_ranks_equal_one(opt: str) -> None:
    options = {"partial": True, "shuffle": True}
    wanted = alone(opt, **options)
    same(on_simulated(f"{opt},nccl", LAYERS, DATA, BATCH, 4, **options), wanted, what=opt)


@pytest.mark.parametrize(("ranks", "data"), [
    (2, random_dataset(train=43, test=15)), (4, random_dataset(train=42, test=15)),
    (8, random_dataset(train=41, test=15)),
])
def test_a_partial_batch_smaller_than_the_ranks_counts_once(ranks: int, data: Any) -> None:
    options = {"partial": True, "shuffle": True}
    wanted = alone("preload,fuse,arena", data, **options)
    same(on_simulated("preload,fuse,arena,nccl", LAYERS, data, BATCH, ranks, **options), wanted)


@pytest.mark.parametrize("layers", [(29, 7), (64, 5), (5, 6, 4, 3)])
@pytest.mark.parametrize("opt", ["preload,fuse", "preload,fuse,mma"])
def test_kernels_that_take_the_update_in_step_aside(layers: tuple[int, ...], opt: str) -> None:
    data = random_dataset(layers[0], layers[-1], train=40, test=9)
    work = work_of(f"{opt},nccl", layers, data, BATCH, 2, 0)
    assert work.train.find(kind="all_reduce")
    assert all("dw" in op.operands for op in work.train.ops
               if any(work.train[name].role is Role.PARAMETER for name, _ in op.writes))
    same(on_simulated(f"{opt},nccl", layers, data, BATCH, 2), alone(opt, data, layers))


@pytest.mark.parametrize("optimizer", [
    Optimizer("sgd", 0.1, {"momentum": 0.9}), Optimizer("adam", 1e-2)])
def test_optimizers_run_on_the_sum(optimizer: Optimizer) -> None:
    opt = "preload,graphs=epoch,fuse,mma"
    wanted = alone(opt, optimizer=optimizer)
    same(on_simulated(f"{opt},nccl=1", LAYERS, DATA, BATCH, 2, optimizer=optimizer), wanted)


@pytest.mark.parametrize(("opt", "words"), [
    ("bf16", ("nccl", "nccl=fp32", "nccl=bf16")), ("fp16", ("nccl",)), ("sr", ("nccl=1:fp32",)),
    ("tf32", ("nccl",)), ("fp8", ("nccl",)),
])
def test_number_formats(opt: str, words: tuple[str, ...]) -> None:
    text = f"preload,graphs=epoch,mma,fuse,{opt}"
    wanted = alone(text)
    for word in words:
        found = on_simulated(f"{text},{word}", LAYERS, DATA, BATCH, 2)
        plan = found[0].work.train
        matrices = {t.dtype for t in plan.tensors.values()
                    if t.role is Role.REDUCED and len(t.shape) == 2}
        assert matrices == ({"bfloat16"} if opt == "bf16" and "fp32" not in word else {"float32"})
        types = {t.dtype for t in plan.tensors.values() if t.floating}
        same(found, wanted, types | {"bfloat16" if opt == "tf32" else "float32"}, f"{opt} {word}")


SHARDED = (
    "preload,graphs=epoch,streams,fuse,mma", "pool", "preload,graphs=epoch,mma,fuse,sr",
    "preload,graphs=epoch,tiled,fuse,fp8", "preload,arena,nosync", "preload,cublas,fuse,graphs=3",
    "preload,graphs=epoch,mma,fuse,bf16", "preload,graphs=epoch,mma,fuse,fp16")


FORWARD = ("preload,graphs=epoch,streams,fuse,bf16,mma", "preload,graphs=3,streams,fuse,mma",
           "preload,arena,nosync,fuse,tiled", "pool", "preload,cublas,fuse,graphs=epoch,streams")


@pytest.fixture
def nothing_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of 1,500 bytes are large."""
    monkeypatch.setattr("rawnn.opts.nccl.SMALL_MB", 0.0015)


@pytest.mark.parametrize(("opt", "ranks"), sliced(product(SHARDED, (2, 3)), 5))
@pytest.mark.parametrize("optimizer", sliced([
    Optimizer("adam", 1e-2), Optimizer("sgd", 0.1, {"momentum": 0.9})]),
    ids=lambda optimizer: optimizer.name)
@pytest.mark.usefixtures("nothing_small")
def test_sharded_updates_equal_whole_ones(opt: str, ranks: int, optimizer: Optimizer) -> None:
    """96 rows are shared by two ranks or three, 7 are not. Two whose memory is placed once send
    each other what the other updates, in place; each adds it to its own: the same bits."""
    if "sr" in opt:  # Adam makes as much of a gradient that is nothing but what rounding left
        optimizer = Optimizer("sgd", 0.1)
    options = {"optimizer": optimizer, "shuffle": True, "partial": True}
    batch, layers = BATCH if ranks == 2 else 9, (29, 96, 7)
    found = on_simulated(f"{opt},nccl=sharded", layers, DATA, batch, ranks, **options)
    work = found[0].work
    plan, exchanged = work.train, ranks == 2 and work.policy.allocator == "arena"
    assert [len(plan.find(kind=kind)) for kind in ("all_gather", "reduce_scatter")] \
        == ([2, 0] if exchanged else [1, 1])
    assert exchanged == any("other" in op.operands for op in plan.ops)
    assert {plan[op.operands["w"]].shape for op in plan.ops if "dw" in op.operands} \
        == {(96 // ranks, 29), (96,), (7, 96), (7,)}
    whole = on_simulated(f"{opt},nccl=whole", layers, DATA, batch, ranks, **options)
    for name, array in whole[0].state.items():
        if "sr" not in opt:  # the same bits; with sr each rank rounds by numbers of its own
            np.testing.assert_array_equal(found[0].state[name], array, err_msg=name)
    same(found, SimpleNamespace(**vars(whole[0]) | dict(zip(("loss", "correct"), joined(whole),
                                                            strict=True))), {"bfloat16"})
    for one, other in zip(*(each.state.values() for each in found[:2]), strict=True):
        assert np.array_equal(one, other)


def test_small_matrices_are_not_sharded() -> None:
    work = work_of("preload,nccl=sharded", LAYERS, DATA, BATCH, 2, 0)
    assert [op.kind for op in work.train.ops if op.impl == "nccl"] == ["all_reduce"]
    assert not work.assemble.ops


@pytest.mark.parametrize("more", sliced([",fuse,bf16,mma", "", ",fuse,mma", ",cublas,fuse"]))
def test_sharded_in_the_order_of_the_backward_pass(more: str) -> None:
    layers, data = (20, 800, 800, 6), random_dataset(20, 6, train=16, test=4)
    opt = f"preload,graphs=epoch,streams{more}"
    found = on_simulated(f"{opt},nccl=sharded:1:backward", layers, data, BATCH, 2)
    assert sum("other" in op.operands for op in found[0].work.train.ops) == 1  # of the largest
    whole = on_simulated(f"{opt},nccl=1:backward:whole", layers, data, BATCH, 2)[0]
    for name, array in whole.state.items():
        np.testing.assert_array_equal(found[0].state[name], array, err_msg=name)


@pytest.mark.parametrize("more", sliced(FORWARD))
@pytest.mark.usefixtures("nothing_small")
def test_what_sharded_ranks_send_has_something_to_run_beside(
        more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last large gradient comes last, and what is sent of it first; weights are updated once
    nothing reads them. Two ranks take that by themselves where their memory is placed once. The
    first layer's gradients are exchanged whole, so that no gather opens the next step."""
    monkeypatch.setattr("rawnn.opts.nccl.BUCKET_MB", 0.0005)
    monkeypatch.setattr("rawnn.opts.shards.TILE", 1)
    layers, data = (29, 32, 48, 32, 4), random_dataset(29, 4, train=45, test=4)
    options = {"shuffle": True, "partial": True}
    found = on_simulated(f"{more},nccl", layers, data, BATCH, 2, **options)
    plan = found[0].work.train
    places = {op.name: i for i, op in enumerate(plan.ops)}
    if found[0].work.policy.allocator == "arena":
        copy = ".bfloat16" if "bf16" in more else ""
        wanted = ["fc2.weight_grad", "dw2.exchange", "fc2.input_grad", "fc2.weight.sgd",
                  f"fc2.weight{copy}.all_gather", "fc1.weight_grad", "dw1.exchange",
                  "fc1.weight.sgd", "fc3.weight_grad.sent",
                  "dw3.exchange", "fc3.weight_grad", "fc3.weight.sgd"]
        assert sorted(wanted, key=lambda name: places[name]) == wanted
        assert f"fc1.weight{copy}.all_gather" not in places
        first, = (op for op in plan.ops if op.name == "fc1.weight.sgd")
        assert plan[first.operands["w"]].shape == (32, 29)
    whole = on_simulated(f"{more},nccl=whole", layers, data, BATCH, 2, **options)[0]
    for name, array in whole.state.items():
        for each in found:
            np.testing.assert_array_equal(each.state[name], array, err_msg=name)


@pytest.mark.parametrize("opt", ["preload,graphs=epoch,streams,fuse,bf16,mma", "pool"])
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.usefixtures("nothing_small")
def test_more_than_two_ranks_share_rows_where_copy_engines_gather_them(
        opt: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first layer's, whose gradient is summed whole: no gather opens the next step."""
    monkeypatch.setattr("rawnn.opts.nccl.BUCKET_MB", 0.0005)
    layers, data = (29, 24, 48, 36, 4), random_dataset(29, 4, train=45, test=4)
    found = on_simulated(f"{opt},nccl", layers, data, 12, ranks, partial=True)
    plan = found[0].work.train
    shapes = {op.operands["w"].split("/")[0]: plan[op.operands["w"]].shape for op in plan.ops
              if op.kind == "sgd"}
    shared = found[0].work.policy.allocator == "arena"
    assert {name: shape[0] for name, shape in shapes.items() if "weight" in name} == {
        "fc1.weight": 24, "fc2.weight": 48 // ranks if shared else 48,
        "fc3.weight": 36 // ranks if shared else 36, "fc4.weight": 4}
    whole = on_simulated(f"{opt},nccl=whole", layers, data, 12, ranks, partial=True)
    for one, other in zip(found, whole, strict=True):
        for name, array in other.state.items():
            np.testing.assert_allclose(one.state[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_collectives_of_graphs_have_a_stream_of_high_priority(
        monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    init = CollectiveCall.__init__
    monkeypatch.setattr(CollectiveCall, "__init__",
                        lambda self, *given: (made.append(given), init(self, *given))[1])
    on_simulated("preload,graphs=epoch,streams,nccl", (29, 24, 4),
                 random_dataset(29, 4, train=24, test=4), 12, 2)
    assert made
    assert all(urgent.priority < 0 and stream.priority == 0 for _, stream, *_, urgent in made)


@pytest.mark.parametrize(("more", "ranks"), sliced(product(
    ("fuse,bf16,mma", "fuse,mma", "cublas,fuse", "mma"), (3, 4)), 5))
@pytest.mark.parametrize("optimizer", [
    Optimizer("adam", 1e-2), Optimizer("sgd", 0.1, {"momentum": 0.9})], ids=["adam", "momentum"])
def test_the_last_large_gradient_is_summed_in_halves(
        more: str, ranks: int, optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One half is summed, and its weights are gathered, while the other is computed: nothing else
    is left to run beside but the first layers of the next step. Each rank has its rows of both."""
    monkeypatch.setattr("rawnn.opts.nccl.SMALL_MB", 0.0015 if "bf16" in more else 0.0025)
    monkeypatch.setattr("rawnn.opts.nccl.BUCKET_MB", 0.0005)
    monkeypatch.setattr("rawnn.opts.shards.TILE", 1)
    layers, data = (29, 24, 48, 144, 4), random_dataset(29, 4, train=45, test=4)
    options = {"partial": True, "shuffle": True, "optimizer": optimizer}
    opt = f"preload,graphs=epoch,streams,{more}"
    found = on_simulated(f"{opt},nccl", layers, data, 12, ranks, **options)
    plan = found[0].work.train
    copy = ".bfloat16" if "bf16" in more else ""
    wanted = ["fc2.input_grad", "fc1.weight_grad", "fc3.weight_grad:0", "dw3:0.reduce_scatter",
              f"fc3.weight.{optimizer.name}:0", f"fc3.weight{copy}/part:0.all_gather",
              "fc3.weight_grad:1", "dw3:1.reduce_scatter", f"fc3.weight.{optimizer.name}:1",
              f"fc3.weight{copy}/part:1.all_gather"]
    places = {op.name: i for i, op in enumerate(plan.ops)}
    assert sorted(wanted, key=lambda name: places[name]) == wanted
    streams = [op.attributes["stream"] for op in plan.ops if steps_a_parameter(op)]
    assert len({*streams}) == len(streams)  # of random numbers, by which each half is rounded
    for number in (0, 1):
        update, = (op for op in plan.ops if op.name == f"fc3.weight.{optimizer.name}:{number}")
        rows = plan[update.operands["w"]]
        assert (rows.shape, rows.first, rows.source) \
            == ((72 // ranks, 48), 72 * number, "fc3.weight")
    graph, = graph_plans(plan, found[0].work.policy, 1)
    ops, edges = graph.plan.ops, graph.edges()
    reached = {i: set(edges[i]) for i in range(len(ops))}
    for i in range(len(ops)):
        reached[i] |= set().union(*(reached[j] for j in edges[i]))
    at = {op.own_name: i for i, op in enumerate(ops)}
    for name in wanted[3:6]:
        assert at[name] not in reached[at["fc3.weight_grad:1"]], name
    whole = on_simulated(f"{opt},nccl=whole", layers, data, 12, ranks, **options)
    for one, other in zip(found, whole, strict=True):
        for name, array in other.state.items():
            np.testing.assert_allclose(one.state[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        for name, array in found[0].state.items():
            assert np.array_equal(array, one.state[name])


@pytest.mark.parametrize("optimizer", [
    Optimizer("adam", 1e-2), Optimizer("sgd", 0.1, {"momentum": 0.9})], ids=["adam", "momentum"])
@pytest.mark.usefixtures("nothing_small")
def test_exchanged_gradients_serve_every_optimizer(
        optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also of a partial batch of which ranks have unequal shares, with the state of
    whole sums on both in the end."""
    monkeypatch.setattr("rawnn.opts.nccl.BUCKET_MB", 0.0005)
    opt, options = "preload,graphs=epoch,streams,fuse,mma,pdl", {"optimizer": optimizer,
                                                                "partial": True}
    layers, data = (29, 32, 48, 32, 4), random_dataset(29, 4, train=45, test=4)
    found = on_simulated(f"{opt},nccl", layers, data, BATCH, 2, **options)
    assert sum("other" in op.operands for op in found[0].work.train.ops) == 3
    whole = on_simulated(f"{opt},nccl=whole", layers, data, BATCH, 2, **options)[0]
    assert any("fc2.weight" in name and name != "fc2.weight" for name in whole.state)
    for name, array in whole.state.items():
        for each in found:
            np.testing.assert_array_equal(each.state[name], array, err_msg=name)


def test_what_is_sent_waits_for_nothing_else() -> None:
    """Neither for sums of small gradients, nor for weights that are gathered."""
    data = random_dataset(train=16, test=9)
    work = work_of("preload,graphs=epoch,streams,nccl=1,fuse,mma,pdl", (29, 600, 600, 700, 7),
                   data, 8, 2, 0)
    graph, = graph_plans(work.train, work.policy, 2)
    ops, edges = graph.plan.ops, graph.edges()
    places = {op.name: i for i, op in enumerate(ops)}
    for name, ahead in (("dw3.exchange@0", {"dw2.exchange@0", "fc3.weight_grad@0"}),
                        ("fc2.weight.all_gather@0", {"fc2.weight.sgd@0"}),
                        ("fc2.weight.sgd@0", {"dw2.exchange@0", "fc2.input_grad@0"})):
        assert {ops[i].name for i in edges[places[name]]} == ahead, name
    assert all(op.attributes.get("urgent") for op in ops if "dw" in op.operands)


@pytest.mark.parametrize("more", sliced(FORWARD))
def test_gradients_come_as_the_next_step_needs_them(more: str) -> None:
    """The same numbers in another order: whose turn it is changes no sum."""
    layers, data = (20, 800, 800, 6), random_dataset(20, 6, train=45, test=4)
    options = {"shuffle": True, "partial": True}
    found = on_simulated(f"{more},nccl=1:whole", layers, data, BATCH, 2, **options)
    plan = found[0].work.train
    reduced = [n for op in plan.ops if op.impl == "nccl" and op.kind != "all_gather"
               for n, _ in op.writes if n.startswith("dw")]
    assert list(dict.fromkeys(reduced)) == ["dw1", "dw3", "dw2"]  # the small ones ahead
    assert len(plan.find(kind="all_reduce")) == 2
    first = min(i for i, op in enumerate(plan.ops) for n, _ in op.writes if n.startswith("dw"))
    assert all(i < first for i, op in enumerate(plan.ops) if "input_grad" in op.name)
    whole = on_simulated(f"{more},nccl=1:backward", layers, data, BATCH, 2, **options)[0]
    for name, array in whole.state.items():
        np.testing.assert_array_equal(found[0].state[name], array, err_msg=name)


@pytest.mark.parametrize("opt", ["fp16", "none"])
def test_gradients_keep_their_order_where_updates_wait_for_all(opt: str) -> None:
    text = f"preload,graphs=epoch,mma,fuse,{opt}"
    data = random_dataset(29, 7, train=16, test=4)
    plans = [work_of(f"{text},{word}", (29, 600, 600, 7), data, BATCH, 2, 0).train
             for word in ("nccl=1:backward", "nccl=1")]
    assert ([op.name for op in plans[0].ops] == [op.name for op in plans[1].ops]) == (opt == "fp16")


def test_what_sharded_ranks_left_others_go_on_with() -> None:
    opt, options = "preload,graphs=epoch,fuse", {
        "shuffle": True, "partial": True, "optimizer": Optimizer("adam", 1e-2)}
    begun = on_simulated(f"{opt},nccl=sharded", LAYERS, DATA, BATCH, 2, epochs=1, **options)
    for words, ranks in (("nccl=sharded", 3), ("nccl", 2), ("nccl", 1)):
        gone_on = on_simulated(f"{opt},{words}", LAYERS, DATA, BATCH, ranks, epochs=1,
                               resumed=begun[1].state, **options)
        same(gone_on, on_simulated(f"{opt},nccl", LAYERS, DATA, BATCH, 1, epochs=2, **options)[0])


def test_runs_with_as_many_ranks_are_the_same_bits() -> None:
    """Whatever order the simulated GPUs run what nothing orders in."""
    opt = "preload,graphs=epoch,streams,fuse,mma,nccl=1"
    first, again = (on_simulated(opt, LAYERS, DATA, 9, 3, seed=seed, shuffle=True)
                    for seed in (0, 7))
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one.loss, other.loss)
        for name in one.state:
            assert np.array_equal(one.state[name], other.state[name])


@pytest.mark.parametrize(("before", "behind"), [(4, 2), (2, 4), (1, 2), (2, 1)])
def test_what_n_ranks_left_m_go_on_with(before: int, behind: int) -> None:
    opt, options = "preload,graphs=epoch,fuse,nccl", {
        "shuffle": True, "partial": True, "optimizer": Optimizer("adam", 1e-2)}
    begun = on_simulated(opt, LAYERS, DATA, BATCH, before, epochs=1, **options)
    gone_on = on_simulated(opt, LAYERS, DATA, BATCH, behind, epochs=1, resumed=begun[0].state,
                           **options)
    wanted = on_simulated(opt, LAYERS, DATA, BATCH, 1, epochs=2, **options)
    same(gone_on, wanted[0])


@pytest.mark.parametrize("opt", ["nccl", "preload,fuse,nccl=1", "preload,bf16,nccl",
                                 "preload,nccl=sharded", "preload,bf16,nccl=sharded"])
def test_on_the_host_the_team_carries_gradients(opt: str) -> None:
    options = {"partial": True, "shuffle": True}
    plain = ",".join(w for w in opt.split(",") if not w.startswith("nccl"))
    found = on_hosts(opt, LAYERS, DATA, BATCH, 4, **options)
    same(found, alone(plain, **options), {"bfloat16"} if "bf16" in opt else ())


def test_the_sum_is_within_what_rounding_allows() -> None:
    """In float64 n ranks are one rank but for the order of sums, so that the whole of the
    difference in float32 is rounding."""
    wanted = on_hosts("nccl", LAYERS, DATA, BATCH, 1, dtype="float64")[0]
    for ranks in (2, 4):
        found = on_hosts("nccl", LAYERS, DATA, BATCH, ranks, dtype="float64")
        for name, array in wanted.parameters.items():
            np.testing.assert_allclose(found[0].parameters[name], array, rtol=0, atol=1e-6)
    assert found


def test_buckets_follow_the_backward_pass_and_are_filled() -> None:
    data = random_dataset(train=16, test=9)
    wide = work_of("preload,nccl=1:backward", (29, 600, 600, 7), data, 8, 2, 0).train
    reductions = wide.find(kind="all_reduce")
    assert [list(op.operands.values()) for op in reductions] == [
        ["dw3", "db3", "dw2", "nccl.token"], ["db2", "dw1", "db1", "nccl.token"]]
    places = {op.name: i for i, op in enumerate(wide.ops)}
    assert places[reductions[0].name] < places["fc1.weight_grad"]
    wide = work_of("preload,nccl=1:whole", (29, 600, 600, 700, 7), data, 8, 2, 0).train
    assert [list(op.operands.values()) for op in wide.find(kind="all_reduce")] == [
        ["dw1", "db1", "db2", "db3", "dw4", "db4", "nccl.token"], ["dw2", "nccl.token"],
        ["dw3", "nccl.token"]]
    for word, wanted in (("nccl", 1), ("nccl=1", 2)):  # what does not fill a bucket goes at once
        assert len(work_of(f"preload,{word}", (29, 600, 600, 7), data, 8, 2, 0)
                   .train.find(kind="all_reduce")) == wanted


def test_a_reduction_has_a_branch_of_its_own_beside_the_backward_pass() -> None:
    data = random_dataset(train=16, test=9)
    work = work_of("preload,graphs=epoch,streams,nccl=1:backward", (29, 600, 600, 7), data, 8, 2, 0)
    graph, = graph_plans(work.train, work.policy, 1)
    ops, edges = graph.plan.ops, graph.edges()
    first = next(i for i, op in enumerate(ops) if op.kind == "all_reduce")
    below = next(i for i, op in enumerate(ops) if op.own_name == "fc1.weight_grad")

    def ancestors(index: int) -> set[int]:
        return {index}.union(*(ancestors(i) for i in edges[index]))

    assert first not in ancestors(below)
    assert below not in ancestors(first)
    second = next(i for i, op in enumerate(ops) if op.kind == "all_reduce" and i > first)
    assert first in ancestors(second)


def test_the_last_reduction_is_beside_the_next_forward_pass() -> None:
    data = random_dataset(train=16, test=9)
    work = work_of("preload,graphs=epoch,streams,nccl=1:whole,fuse,mma,pdl",
                   (29, 600, 600, 700, 7), data, 8, 2, 0)
    graph, = graph_plans(work.train, work.policy, 2)
    ops, edges = graph.plan.ops, graph.edges()
    places = {op.name: i for i, op in enumerate(ops)}

    def ancestors(name: str) -> set[str]:
        found, left = set[int](), [places[name]]
        while left:
            if (index := left.pop()) not in found:
                found.add(index)
                left += edges[index]
        return {ops[i].name for i in found}

    assert "db4.all_reduce@0" in ancestors("fc1.forward@1")  # that of the first layer
    assert "dw2.all_reduce@0" not in ancestors("fc1.forward@1")
    assert "dw2.all_reduce@0" in ancestors("fc2.forward@1")
    assert "dw3.all_reduce@0" not in ancestors("fc2.forward@1")
    assert "dw3.all_reduce@0" in ancestors("fc3.forward@1")
    assert "fc2.weight_grad@0" in ancestors("fc3.weight_grad@0")  # whose turn is first
    reads, writes = ({n for n, _ in a} for a in (ops[places["fc3.weight_grad@0"]].reads,
                                                 ops[places["fc2.weight_grad@0"]].writes))
    assert reads.isdisjoint(writes)


def test_every_example_is_seen_once_an_epoch() -> None:
    for rows, ranks in ((8, 2), (5, 4), (3, 8), (1, 2), (128, 3)):
        shares = [Recipe(rows, world_size=ranks, rank=rank).share(rows) for rank in range(ranks)]
        seen = [share.first + i for share in shares if share.weight for i in range(share.rows)]
        assert seen == list(range(rows))
        assert sum(share.weight for share in shares) == pytest.approx(1.0)
        assert all(s.first >= 0 and s.first + s.rows <= rows for s in shares)


def test_one_rank_has_the_plan_that_it_has_without() -> None:
    data = random_dataset(train=16, test=9)
    for opt in ("preload,fuse", "preload,graphs=epoch,mma,fuse"):
        assert work_of(f"{opt},nccl", LAYERS, data, 8, 1, 0).train == \
            work_of(opt, LAYERS, data, 8, 1, 0).train


@pytest.mark.parametrize(("opt", "message"), [
    ("preload,graphs=while,nccl", "graphs=while cannot hold the collectives of nccl"),
    ("preload,nccl=bf16", "add bf16 or sr, or use nccl=fp32"),
    ("nccl=fp64", "nccl=fp64: give megabytes"), ("nccl=0", "nccl=0: give megabytes"),
    ("nccl=25:", "nccl=25:: give megabytes"),
    ("nccl,persistent", "'nccl' and 'persistent' exclude each other"),
    ("nccl,tune", "'nccl' and 'tune' exclude each other"),
])
def test_what_is_refused(opt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        work_of(opt, LAYERS, DATA, 8, 2, 0)


def test_without_the_package_the_extra_is_named() -> None:
    from dataclasses import replace

    bare = replace(CAPABLE, has_package=lambda name: name != "nccl.bindings")
    with pytest.raises(ConfigError, match=r"'nccl' cannot run here.*rawnn\[nccl12\]"):
        select("nccl", Network(LAYERS), 5, bare)


@pytest.mark.parametrize("opt", sliced([
    "nccl=sharded", "preload,graphs=epoch,streams,fuse,bf16,nccl=1", "graphs=step,nccl",
    "preload,arena,nosync,nccl", "pool,nccl", "preload,graphs=3,fuse,nccl=sharded"], 3))
def test_timing_both_sides_apart_leaves_everything_as_it_was(opt: str) -> None:
    def act(team: Team) -> Any:
        with ExitStack() as closing:
            simulation = Simulation()
            device = Device(simulation.backend())
            closing.callback(device.close)
            work = work_of(opt, LAYERS, DATA, BATCH, 2, team.rank, shuffle=True,
                           optimizer=Optimizer("adam", 1e-2))
            runner = GpuRunner(device, work, team)
            closing.callback(runner.close)
            before = runner.state()
            inside, together = runner.time_without_collectives()
            behind = runner.state()
            assert all(np.array_equal(before[name], behind[name]) for name in before)
            found = collected(runner, work, 2)
            closing.close()
            simulation.assert_clean()
            assert inside > 0
            assert together > 0
            return found

    wanted = on_simulated(opt, LAYERS, DATA, BATCH, 2, shuffle=True,
                          optimizer=Optimizer("adam", 1e-2))
    for found, other in zip(all_fine(teams(2, act)), wanted, strict=True):
        for name in other.parameters:
            assert np.array_equal(found.parameters[name], other.parameters[name])


@pytest.mark.parametrize(("times", "message"), [
    ((100.0, 50.0), "and its gradients take 50 us to reduce$"),
    ((100.0, 80.0), "more than the backward pass can hide$"),
    ((100.0, 300.0), "sending them bounds the step; more examples a rank"),
])
def test_where_sending_bounds_a_step_it_is_said(times: tuple[float, float], message: str) -> None:
    found = all_fine(teams(2, lambda team: predict_scaling(team,
                                                           *(t / (1 + team.rank) for t in times))))
    assert found[0] == found[1]
    assert re.search(message, found[0][0]), found
    assert found[0][1] == {"compute_us": times[0], "reduce_us": times[1]}


@pytest.mark.parametrize(("step", "alone", "message"), [
    (211.0, 196.0, "^a step takes 211 us on 2 ranks, and 196 us on one GPU by itself: .* too small "
                   "for several GPUs, and one is faster$"),
    (180.0, 196.0, "which gain 1.09 times its speed$"), (110.0, 196.0, "^$"), (211.0, None, "^$"),
])
def test_where_one_gpu_is_as_good_a_message_says_so(
        step: float, alone: float | None, message: str) -> None:
    asked: list[int] = []

    def act(team: Team) -> tuple[str, dict[str, float]]:
        def one() -> float | None:
            asked.append(team.rank)
            return alone

        return compare_with_one_rank(team, step / (1 + team.rank), one)

    found = all_fine(teams(2, act))
    assert found[0] == found[1]
    assert asked == [0]  # the others wait
    assert re.search(message, found[0][0]), found
    assert found[0][1] == {"step_us": step} | ({"alone_us": alone} if alone else {})


def test_metrics_count_every_example_once() -> None:
    """Of a last batch of one example rank 1 has none: its spare example counts nothing. Of whole
    batches of four rank 0 has three."""
    def act(team: Team) -> Any:
        train, rest = (SimpleNamespace(weight=weights[team.rank])
                       for weights in ((0.75, 0.25), (1.0, 0.0)))
        losses = np.array([[4, 8, 3], [0, 4, 100]][team.rank], np.float32)
        correct = np.array([[2, 3, 0], [1, 0, 1]][team.rank], np.int32)
        whole = SimpleNamespace(train=train, partial=None, steps=2, updates=2)
        partial = SimpleNamespace(train=train, partial=rest, steps=2, updates=3)
        return [metrics(team, work, losses[: work.updates],  # type: ignore[arg-type]
                        correct[: work.updates]) for work in (whole, partial)]

    for whole, partial in all_fine(teams(2, act)):
        for (losses, correct, ranks), count in ((whole, 2), (partial, 3)):
            assert losses.tolist() == [3, 7, 3][:count]
            assert correct.tolist() == [3, 3, 0][:count]
            assert (losses.dtype, correct.dtype, ranks) == (np.float32, np.int32, [])


def test_metrics_name_the_ranks_whose_loss_is_no_number_first() -> None:
    bad = ({2: np.nan}, {1: np.inf, 2: np.nan}, {}, {1: np.nan})

    def act(team: Team) -> Any:
        losses = np.ones(3, np.float32)
        for step, value in bad[team.rank].items():
            losses[step] = value
        work = SimpleNamespace(train=SimpleNamespace(weight=0.25), partial=None, steps=3, updates=3)
        return metrics(team, work, losses, np.ones(3, np.int32))  # type: ignore[arg-type]

    for losses, correct, ranks in all_fine(teams(4, act)):
        assert ranks == [1, 3]
        assert np.isfinite(losses).tolist() == [True, False, False]
        assert correct.tolist() == [4, 4, 4]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.usefixtures("nothing_small")
def test_ranks_round_their_rows_with_numbers_of_their_own(
        ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what all ranks compute whole with the same: so that they keep the same bits."""
    monkeypatch.setattr("rawnn.opts.nccl.BUCKET_MB", 0.0005)
    data = random_dataset(29, 4, train=45, test=4)
    streams: dict[str, list[int]] = {}
    shared = set()
    for rank in range(ranks):
        plan = work_of("preload,graphs=epoch,streams,sr,fuse,mma,nccl", (29, 32, 48, 32, 4), data,
                       12, ranks, rank).train
        for op in plan.ops:
            if op.attributes.get("stochastic"):
                streams.setdefault(op.name, []).append(op.attributes["stream"])
                whole = plan[op.operands["w"].split("/")[0]]
                if plan[op.operands["w"]].shape != whole.shape:
                    shared.add(op.name)
    assert shared
    assert set(streams) - shared
    for name, found in streams.items():
        assert len(found) == ranks
        assert len(set(found)) == (ranks if name in shared else 1), name
    of_one = {name: found[0] for name, found in streams.items()}
    assert len(set(of_one.values())) == len(of_one)
