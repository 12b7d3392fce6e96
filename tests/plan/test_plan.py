"""Plans: checks, rewrites, and what is printed of them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from rawnn.common.errors import ConfigError
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.plan import Op, Plan, Role, Tensor
from rawnn.plan.build import used_tensors
from rawnn.plan.op import OPS
from rawnn.plan.ops.metrics import PARTS
from tests.engine import CAPABLE, measuring_plan, step_plan


@pytest.fixture
def plan() -> Plan:
    return step_plan(Network((6, 5, 3)), 4, 14)


def kinds(plan: Plan) -> list[str]:
    return [op.kind for op in plan.ops]


def test_the_baseline_step_is_one_op_for_each_thing_done(plan: Plan) -> None:
    assert kinds(plan) == [
        "upload", "matmul", "bias_add", "activate", "matmul", "bias_add", "softmax",
        "cross_entropy", "accuracy", "softmax_backward", "matmul", "bias_grad", "matmul",
        "activate_backward",
        "matmul", "bias_grad", "sgd", "sgd", "sgd", "sgd",
    ]
    assert {op.impl for op in plan.ops[1:]} == {"naive"}
    assert plan["loss"].shape == (3,)  # the partial batch is dropped
    assert "images" in plan.tensors  # both homes of the data set, of which ops read one
    assert "images" not in used_tensors([plan])


def test_sizes_of_products_follow_from_their_operands(plan: Plan) -> None:
    for op in plan.find(kind="matmul"):
        a, b, c = (plan[op.operands[r]].shape for r in "abc")
        m, n, k = (op.attributes[d] for d in "mnk")
        left = a if op.attributes["layout"][0] == "n" else a[::-1]
        right = b if op.attributes["layout"][1] == "n" else b[::-1]
        assert (left, right, c) == ((m, k), (k, n), (m, n))


def test_evaluation_measures_and_updates_nothing() -> None:
    plan = measuring_plan(Network((6, 5, 3)), 4, 14)
    assert kinds(plan)[-2:] == ["cross_entropy", "accuracy"]
    assert not {name for op in plan.ops for name, _ in op.writes} & {
        t.name for t in Network((6, 5, 3)).parameters()}
    assert not [n for n in plan.tensors if n.startswith(("d", "db"))]


def test_fewer_examples_than_a_batch_still_make_one_step() -> None:
    assert step_plan(Network((6, 3)), 4, 2)["loss"].shape == (1,)


def test_check_finds_what_is_read_before_it_is_written(plan: Plan) -> None:
    late = replace(plan, ops=plan.ops[1:])
    with pytest.raises(ValueError, match=r"fc1\.forward reads x before anything wrote it"):
        late.check()
    assert plan.check() is plan


@pytest.mark.parametrize(("operands", "message"), [
    ({"z": "z1"}, r"operands \['z'\] do not fit activate"),
    ({"z": "z1", "a": "a1", "b": "x"}, "do not fit activate"),
    ({"z": "z1", "a": "nowhere"}, "operand a names no tensor: nowhere"),
])
def test_check_finds_wrong_operands(plan: Plan, operands: dict[str, str], message: str) -> None:
    ops = tuple(replace(op, operands=operands) if op.kind == "activate" else op for op in plan.ops)
    with pytest.raises(ValueError, match=message):
        replace(plan, ops=ops).check()


def test_an_op_on_a_view_touches_what_that_lies_in(plan: Plan) -> None:
    op = next(op for op in plan.ops if "dz" in op.operands)
    dz = plan[op.operands["dz"]]
    half = replace(dz, name="half", role=Role.VIEW, source=dz.name, shape=(dz.shape[0] // 2,
                                                                            *dz.shape[1:]))
    seen = plan.with_tensors(half)
    silent = replace(op, operands={**op.operands, "dz": "half"})
    with pytest.raises(ValueError, match=f"is a view of {dz.name}, which the op does not say"):
        replace(seen, ops=tuple(silent if o is op else o for o in plan.ops)).check()
    expected = silent.viewing(seen.tensors)
    assert (expected.reads, expected.writes) == (op.reads, op.writes)
    assert replace(seen, ops=tuple(expected if o is op else o for o in plan.ops)).check()
    assert expected.at_step(2, {}).reads[0][0] == op.reads[0][0]


def test_an_accumulating_product_reads_its_output(plan: Plan) -> None:
    product = plan.find(name="fc1.weight_grad")[0]
    assert ("dw1", None) not in product.reads
    accumulating = replace(product, attributes={**product.attributes, "beta": 1.0})
    assert ("dw1", None) in accumulating.reads
    with pytest.raises(ValueError, match="reads dw1 before anything wrote it"):
        plan.substitute([product], [accumulating]).check()


def test_unrolled_repeats_the_step_with_two_buffers_for_batches(plan: Plan) -> None:
    three = plan.unrolled(3)
    assert three.steps == 3
    assert len(three.ops) == 3 * len(plan.ops)
    assert three.ops[0].name == "upload@0"
    assert [op.operands["x"] for op in three.find(kind="upload")] == ["x", "x'", "x"]
    assert [op.offset for op in three.find(kind="cross_entropy")] == [0, 1, 2]
    assert three["x'"] == replace(plan["x"], name="x'")
    assert three.check() is three
    with pytest.raises(ConfigError, match="spans 3 steps already"):
        three.unrolled(2)


def test_a_workspace_that_nothing_reads_has_no_second_buffer() -> None:
    """cuBLASLt's is of megabytes, and steps share it. The second step's first product may run
    beside the first step, so what it makes of the batch has two buffers."""
    network = Network((6, 5, 3))
    plan = select("none,preload,cublas,fuse", network, 3, CAPABLE).apply(
        step_plan(network, 4, 14))[0]
    assert plan.find(name="fc1.forward")[0].operands["workspace"] == "fc1.forward.workspace"
    two = plan.unrolled(2)
    assert set(two.tensors) - set(plan.tensors) == {"x'", "y'", "a1'"}
    assert {op.operands["workspace"] for op in two.ops if op.own_name == "fc1.forward"} == {
        "fc1.forward.workspace"}


def test_one_step_unrolled_needs_no_second_buffer(plan: Plan) -> None:
    assert set(plan.unrolled(1).tensors) == set(plan.tensors)


def test_advancing_moves_the_cursor_behind_all_steps(plan: Plan) -> None:
    last = plan.unrolled(3).advancing().ops[-1]
    assert (last.kind, last.attributes["steps"], last.reads, last.writes) == (
        "advance", 3, (("cursor", None),), (("cursor", None),))


def test_advancing_takes_in_the_last_op_unless_it_reads_the_cursor() -> None:
    """Its first block would move the cursor while others still read their learning rate there."""
    plan = step_plan(Network((784, 10)), 128, 3 * 128)
    plan = select("none,cublas,fuse", Network((784, 10)), 3, CAPABLE).apply(plan)[0].unrolled(3)
    *before, last = plan.ops
    assert (last.kind, last.attributes["steps"], "cursor" in last.operands) == (
        "slices_sgd", 0, False)
    found = plan.advancing()
    assert found.ops[:-1] == tuple(before)
    assert found.ops[-1] == replace(last, operands={**last.operands, "cursor": "cursor"},
                                    attributes={**last.attributes, "steps": 3})
    assert ("cursor", None) in found.ops[-1].writes
    scheduled = replace(last, operands={**last.operands, "rates": "rates", "cursor": "cursor"})
    found = replace(plan, ops=(*before, scheduled)).advancing()
    assert found.ops[:-1] == (*before, scheduled)
    assert (found.ops[-1].kind, found.ops[-1].attributes["steps"]) == ("advance", 3)


def test_without_metrics_drops_what_only_measures(plan: Plan) -> None:
    quiet = plan.without_metrics()
    assert [k for k in kinds(plan) if k not in kinds(quiet)] == ["cross_entropy", "accuracy"]
    assert kinds(quiet) == [k for k in kinds(plan) if k not in ("cross_entropy", "accuracy")]
    assert kinds(quiet.without_metrics()) == kinds(quiet)


def test_without_metrics_drops_what_measures_by_several_blocks() -> None:
    """Of 128 x 48 outputs, whose blocks count themselves in a workspace of the kernel's own."""
    plan = step_plan(Network((64, 48)), 128, 500)
    measuring = [op for op in plan.ops if "workspace" in op.operands]
    assert [op.kind for op in measuring] == ["cross_entropy", "accuracy"]
    assert plan.without_metrics().ops == tuple(op for op in plan.ops if op not in measuring)


@pytest.mark.parametrize("first", ["rawnn.model.losses", "rawnn.engine.training",
                                   "rawnn.plan.plan"])
def test_quiet_plans_measure_nothing_whatever_is_imported_first(first: str) -> None:
    """In a process of its own: what is known of an op must not hang on the order of imports."""
    code = f"""
import {first}
from rawnn.model.layers import Network
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.plan.build import training_step
from rawnn.plan.recipe import DataSpec, Recipe
for loss in ("mse", "bce"):
    network = Network((6, 5, 3), loss=loss)
    plan = training_step(network, Recipe(4), DataSpec(14, labels="", targets=3))
    fused, _ = select("none,fuse", network, 3, Machine(None)).apply(plan)
    print(loss, *(op.kind for op in fused.without_metrics().ops if loss in op.kind))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                           timeout=120, check=True)
    assert found.stdout.split("\n") == ["mse mse_backward", "bce bce_backward", ""]


def test_substitute_puts_the_new_ops_where_the_last_old_one_stood(plan: Plan) -> None:
    old = [plan.find(kind="cross_entropy")[0], plan.find(kind="softmax_backward")[0]]
    new = [Op("softmax_backward", n, old[1].operands) for n in ("first", "second")]
    names = [op.name for op in plan.substitute(old, new).ops]
    assert names[7:11] == ["accuracy", "first", "second", "fc2.weight_grad"]
    assert len(names) == len(plan.ops)


def test_substitute_drops_temporaries_that_nothing_touches_any_more(plan: Plan) -> None:
    gone = plan.substitute(plan.find(kind="bias_grad") + plan.find(kind="sgd"))
    assert "db1" not in gone.tensors
    assert "fc1.bias" in gone.tensors  # parameters stay, whoever reads them
    assert "db1" in plan.tensors  # the plan itself is never changed


def test_only_the_op_itself_is_substituted_not_its_equals(plan: Plan) -> None:
    copy = replace(plan.ops[3])
    doubled = replace(plan, ops=(*plan.ops[:4], copy, *plan.ops[4:]))
    assert len(doubled.substitute([copy]).ops) == len(plan.ops)
    assert doubled.substitute([copy]).ops[3] is plan.ops[3]


def test_producer_and_consumers(plan: Plan) -> None:
    activation = plan.find(kind="activate")[0]
    producer = plan.producer("z1", activation)
    assert producer is not None
    assert producer.kind == "bias_add"  # the last of the two that write z1
    assert plan.producer("z1", plan.ops[0]) is None
    assert [op.name for op in plan.consumers("a1")] == [
        "fc2.forward", "fc2.weight_grad", "relu1.backward"]


def test_slots_of_metrics() -> None:
    op = Op("loss_accuracy", "m", {"p": "p", "y": "y", "cursor": "cursor", "loss": "loss",
                                   "correct": "correct"}, {"offset": 2})
    assert op.writes == (("loss", range(2, 3)), ("correct", range(2, 3)))
    assert op.reads == (("p", None), ("y", None), ("cursor", None))
    assert op.at_step(3, {"y": "y'"}).writes == (("loss", range(5, 6)), ("correct", range(5, 6)))
    assert op.at_step(3, {"y": "y'"}).operands["y"] == "y'"
    assert "writes loss[cursor+2], correct[cursor+2]" in str(op)


@pytest.mark.parametrize("kind", OPS)
def test_whatever_measures_touches_the_slot_of_its_step(kind: str) -> None:
    """Else the steps of an unrolled graph would wait for each other's metrics. `member_means` reads
    those of all steps, behind them."""
    spec = OPS[kind]
    if kind == "member_means":
        assert not spec.slotted
        return
    metrics = {"loss", "correct", *PARTS} & {*spec.reads, *spec.writes}
    assert metrics == {*spec.slotted}


def test_a_plan_prints_its_tensors_and_ops(plan: Plan) -> None:
    text = str(plan)
    assert text.startswith("plan train: batch 4, 1 step, 20 ops")
    assert "fc1.weight: float32[5, 6] ld 8 (parameter)" in text
    assert "lr=0.1" in text
    assert "  images:" not in text  # only what is used


@pytest.mark.parametrize(("shape", "dtype", "role", "ld", "nbytes"), [
    ((3, 784), "float32", Role.BATCH, 784, 3 * 784 * 4),
    ((3, 785), "uint8", Role.BATCH, 800, 2400), ((10,), "float32", Role.ACTIVATION, 10, 40),
    ((3, 137), "float32", Role.PARAMETER, 160, 3 * 640), ((3, 37), "float32", Role.STATE, 40, 480),
    ((3, 10), "float32", Role.ACTIVATION, 12, 144), ((2, 1), "int32", Role.ACTIVATION, 4, 32),
    ((3, 127), "float32", Role.ACTIVATION, 128, 3 * 512),
    ((3, 784), "float32", Role.ACTIVATION, 800, 3 * 3200),
    ((3, 257), "bfloat16", Role.GRADIENT, 320, 3 * 640),
])
def test_rows_are_padded_to_16_bytes_and_long_ones_of_what_is_multiplied_to_cache_lines(
        shape: tuple[int, ...], dtype: str, role: Role, ld: int, nbytes: int) -> None:
    tensor = Tensor("t", shape, dtype, role)
    assert (tensor.ld, tensor.nbytes, tensor.padded_shape) == (ld, nbytes, (*shape[:-1], ld))
    if shape[-1] > 512:
        assert replace(tensor, lines=True).ld * tensor.itemsize % 128 == 0
    packed = replace(tensor, packed=True)
    assert packed.ld == shape[-1]
    assert packed.padded_shape == shape


IN_A_STEP, OF_DATA = {"batch", "activation", "gradient"}, {"host", "data", "rounded"}
FILLED_LATER = {"host", "data", "view", *IN_A_STEP}
ZEROED = {"rounded", "parameter", "copy", "state", "epoch", "reduced", "scratch", "metric",
          "cursor"}


def test_every_role_lives_where_its_tensors_are_used() -> None:
    """Within a step; from step to step, beginning with zeros; as the data set has it; or in another
    tensor's memory."""
    assert {role.value for role in Role} == FILLED_LATER | ZEROED
    for role in Role:
        assert role.temporary == (role.value in IN_A_STEP)
        assert role.of_data == (role.value in OF_DATA)
        assert role.zeroed == (role.value in ZEROED)
