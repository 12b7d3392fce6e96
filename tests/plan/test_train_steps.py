"""One op for whole steps: what it reads and writes, what it means, and how it is unrolled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts.precision import with_copies
from rawnn.plan.op import OPS, Op, OpSpec
from rawnn.plan.ops.train_steps import KIND, role_of, spanning, train_steps, with_partial
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from tests.engine import random_dataset, step_plan
from tests.persistent.problems import prepared
from tests.plan.execution import arrays_of, epoch, execute

NETWORK = Network((29, 12, 7))


def whole(plan: Plan) -> Plan:
    """The plan as one op."""
    workspace = Tensor("train_steps.tally", (4,), "float32", Role.SCRATCH, symbol="tally")
    return plan.with_tensors(workspace).substitute(
        plan.ops, [train_steps(plan, (workspace,), "persistent")])


def test_tensors_have_roles() -> None:
    made = prepared(NETWORK, shuffle=True, optimizer=Optimizer("adam", 1e-3))
    plan = with_copies(made, "bfloat16")
    roles = {name: role_of(tensor) for name, tensor in plan.tensors.items()
             if tensor.role is not Role.HOST}
    assert {name: roles[name] for name in (
        "fc2.weight", "fc1.bias", "fc1.weight.m", "fc1.bias.v", "fc2.weight.bfloat16", "images")
    } == {"fc2.weight": "w2", "fc1.bias": "b1", "fc1.weight.m": "w1_m", "fc1.bias.v": "b1_v",
          "fc2.weight.bfloat16": "c2", "images": "images"}
    assert len(set(roles.values())) == len(roles)


def test_it_touches_what_outlives_a_step() -> None:
    plan = whole(prepared(NETWORK, shuffle=True, optimizer=Optimizer("adam", 1e-3))).check()
    op: Op = plan.ops[0]
    assert {"images", "labels", "order", "cursor", "clock"} <= {n for n, _ in op.reads}
    assert {"loss", "correct", "fc1.weight", "fc2.bias.v", "train_steps.tally"} <= {
        n for n, _ in op.writes}
    assert not any(plan[name].role.temporary for name in op.tensors)
    assert dict(op.writes)["loss"] == range(1)
    assert "Plan(" not in str(plan)


@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.1), Optimizer("adam", 1e-2)])
def test_it_means_what_the_ops_mean_one_after_another(optimizer: Optimizer) -> None:
    data, steps = random_dataset(), 4
    parameters = NETWORK.initial(0)
    plain = prepared(NETWORK, 8, optimizer=optimizer, shuffle=True)
    plain = replace(plain, tensors={**plain.tensors, "order": replace(plain["order"],
                                                                      shape=(70,))})
    wanted = arrays_of(plain, data, parameters)
    epoch(plain, wanted, steps)
    for spans in ((1,) * steps, (steps,), (3, 1)):
        plan = whole(plain)
        found = arrays_of(plan, data, parameters)
        first = 0
        for span in spans:
            found["cursor"][0] = first
            execute(replace(plan, ops=(spanning(plan.ops[0], span),)), found)
            first += span
        for name in ("fc1.weight", "fc2.bias", "loss", "correct"):
            np.testing.assert_array_equal(found[name][:steps] if name in ("loss", "correct")
                                          else found[name],
                                          wanted[name][:steps] if name in ("loss", "correct")
                                          else wanted[name])


def test_an_unrolled_epoch_is_one_op() -> None:
    plan = whole(prepared(NETWORK)).unrolled(1000)
    assert len(plan.ops) == 1
    assert plan.steps == 1000
    assert plan.ops[0].slots == range(1000)
    assert [op.kind for op in plan.advancing().ops] == ["train_steps", "advance"]


def test_a_plan_without_metrics_trains_the_same() -> None:
    plan = whole(prepared(NETWORK))
    assert [op.kind for op in plan.without_metrics().ops] == ["train_steps"]
    assert len(step_plan(NETWORK, 8, 64).ops) > 1


@pytest.mark.parametrize("parts", [
    [(0, 0, 5)], [(0, 0, 4), (0, 4, 1)], [(0, 0, 1), (0, 1, 4)], [(0, 0, 2), (2, 0, 3)],
    [(0, 0, 2), (1, 1, 2), (1, 3, 1)], [(0, 0, 3), (2, 1, 2)], [(3, -3, 3), (3, 0, 2)]], ids=str)
def test_the_partial_batch_comes_last_however_an_epoch_is_cut(parts: list[tuple[int, int, int]]
                                                              ) -> None:
    """Each part is a cursor, an offset from there, and steps: which ones follows from both."""
    full, left, data = 4, 3, random_dataset(train=35)
    options: dict[str, Any] = {"left": left, "steps": full, "shuffle": True}
    plain, rest = prepared(NETWORK, 8, **options), prepared(NETWORK, 8, rest=True, **options)
    parameters = NETWORK.initial(0)
    wanted = arrays_of(plain, data, parameters)
    epoch(plain, wanted, full)
    wanted["cursor"][0] = full
    last = arrays_of(rest, data, parameters)
    last |= {name: array for name, array in wanted.items()
             if name in plain.tensors and not plain[name].role.temporary}
    execute(rest, last)
    plan = whole(plain)
    op = with_partial(plan.ops[0], rest, full)
    found = arrays_of(plan, data, parameters)
    for cursor, offset, span in parts:
        found["cursor"][0] = cursor
        part = spanning(op, span)
        part = replace(part, attributes={**part.attributes, "offset": offset})
        execute(replace(plan, ops=(part,)), found)
    for name in ("fc1.weight", "fc2.bias", "loss", "correct"):
        np.testing.assert_array_equal(found[name], last[name])


def test_what_an_op_reads_and_writes_asks_twice_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The specification is made of the whole step: once for each list, not for each operand."""
    op = replace(whole(prepared(NETWORK, optimizer=Optimizer("adam", 1e-3))).ops[0])
    asked = []
    right = OPS[KIND]

    def counted(op: Op) -> OpSpec:
        asked.append(op)
        assert right.of is not None
        return right.of(op)

    monkeypatch.setitem(OPS, KIND, replace(right, of=counted))
    assert len(op.reads) + len(op.writes) > 10
    assert len(asked) == 2
