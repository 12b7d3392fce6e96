"""Every kernel that compares with labels, on the CPU emulator: logits that are all far below 0, or
equal, and labels that are none, which make the step's loss no number and change nothing of other
rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role
from tests import requires
from tests.ptx.emulator.cases import CASES, plan_of, taken_early
from tests.ptx.emulator.emulator import EmulatedLibrary
from tests.ptx.emulator.plans import (
    Memory,
    build,
    check,
    has_kernel,
    kernel_for,
    launch,
    refer,
)
from tests.slices import SLICE, sliced

pytestmark = requires.GXX

NAMES = ("products of floats", "one layer", "narrow layers", "losses of several blocks",
         "mma of bfloat16", "mma of tf32 with a softmax", "wgmma with a softmax",
         "streamed weights", "streamed weights in float16", "wgmma of three tf32 with a softmax")
"""Networks that between them have all those kernels: alone, behind a product, in a whole layer."""
IN_TURNS = {"one layer", "narrow layers", "losses of several blocks"}
"""Those whose softmax has the columns of a row in turns (losses/softmax.cuh); others, in quads."""


def below_zero(weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
    for last in biases[-1:]:
        last -= 40.0


def all_equal(weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
    """Logits of which the first counts as the largest."""
    for last in (*weights[-1:], *biases[-1:]):
        last[...] = 0.0


def two_equal(weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
    """The largest logits are the second and the last, in a network with biases."""
    all_equal(weights, biases)
    for last in biases[-1:]:
        last[[1, -1]] = 3.0


def far_apart(weights: list[np.ndarray], biases: list[np.ndarray]) -> None:
    """Logits that make probabilities of most labels 0 in float32."""
    for last in weights[-1:]:
        last *= 3000.0


def with_labels(plan: Plan) -> list[Op]:
    """The ops of kernels that compare with labels; those of the batch's examples are `y`."""
    return [op for op in plan.ops if has_kernel(op) and op.kind != "gather"
            and {"y", "labels"} & op.operands.keys()]


def one_step_of(name: str) -> Plan:
    """Behind an update equal logits may differ by the order of sums."""
    with taken_early(name):
        return replace(CASES[name], steps=1).plan()


def kernels_of(name: str) -> set[str]:
    return {kernel_for(op).name.partition("<")[0] for op in with_labels(plan_of(name))}


def test_all_kernels_with_labels_are_among_them() -> None:
    found = set().union(*map(kernels_of, NAMES))
    assert {"linear_forward", "narrow_inner", "softmax_loss_gradient", "gemm_loss",
            "softmax_head", "cross_entropy", "accuracy", "softmax_backward"} <= found


@pytest.mark.parametrize("name", sliced(NAMES, kind=IN_TURNS.__contains__))
def test_labels_that_are_none_and_logits_below_zero(name: str) -> None:
    plan = plan_of(name)
    ops = with_labels(plan)
    names = tuple({kernel_for(op).name for op in ops})
    libraries = build([plan], names)
    memory = Memory(plan, 5, 0, below_zero)
    assert check(libraries, memory, SLICE % 4, names) == len(ops)
    classes = max((t.name, t.shape[0]) for t in plan.tensors.values()
                  if t.role is Role.PARAMETER)[1]
    for op in ops:
        labels = memory.view(op.operands["y" if "y" in op.operands else "labels"])
        row = plan.batch // 2 + op.offset * plan.batch * ("labels" in op.operands)
        good, none = int(labels[row]), (-1, classes, 1 << 20) if labels.dtype == np.int32 \
            else (classes, 255)
        library = libraries[kernel_for(op).source]
        begun = {n: array.copy() for n, array in memory.arrays.items()}

        def after(label: int, op=op, labels=labels, row=row, library=library,
                  begun=begun) -> dict[str, np.ndarray]:
            for n, array in begun.items():
                memory.arrays[n][...] = array
            labels[row] = label
            launch(library, op, memory, 1)
            return {n: memory.read(n).copy() for n, _ in op.writes}

        wanted = after(good)
        for label in none:
            found = after(label)
            lost = [n for n, array in found.items() if not n.startswith("dz")
                    and np.isnan(array.astype(np.float64)).any()]
            measures = any("loss" in n or "row_p" in n for n in found)
            assert bool(lost) == measures, (op.name, label, lost)
            for n, array in found.items():
                if n.startswith("dz") and len(array) == plan.batch:
                    others = np.arange(len(array)) != plan.batch // 2
                    assert np.array_equal(array[others], wanted[n][others]), (op.name, n)
                    assert np.isfinite(array.astype(np.float32)).all(), (op.name, n)
                elif plan[n].role is Role.METRIC and array.dtype.kind == "i":
                    right = array[op.slots].sum() - wanted[n][op.slots].sum()
                    assert right in (-1, 0), (op.name, n)
        for n, array in begun.items():
            memory.arrays[n][...] = array
    check_far_apart(libraries, Memory(plan, 5, 0, far_apart), names)
    for spoil in (all_equal, two_equal):
        again = Memory(one_step_of(name), 5, 0, spoil)
        labels = again.view("labels")
        labels[...] = np.resize([0, 0, 0, 1, 1, classes - 1], labels.shape)
        check_counts(libraries, again)


def check_far_apart(libraries: dict[str, EmulatedLibrary], memory: Memory,
                    names: tuple[str, ...]) -> None:
    """Losses are those of the references: no row's is cut off at -log of the smallest float32."""
    assert check(libraries, memory, SLICE % 4, names) == len(with_labels(memory.plan))
    losses = [memory.read(n) for n, t in memory.plan.tensors.items()
              if t.role is Role.METRIC and "loss" in n]
    assert max(array.max() for array in losses) > 100


def check_counts(libraries: dict[str, EmulatedLibrary], memory: Memory) -> None:
    """Kernels count as many right answers as their references."""
    for op in memory.plan.ops:
        wanted = refer(op, memory)
        counts = [n for n, _ in op.writes if memory.plan[n].role is Role.METRIC
                  and memory.arrays[n].dtype.kind == "i"]
        if counts and op in with_labels(memory.plan):
            launch(libraries[kernel_for(op).source], op, memory, SLICE % 4)
            for n in counts:
                found = memory.read(n)[op.slots].sum()
                assert found == wanted[n][op.slots].sum() > 0, (op.name, n)
        for n, _ in op.writes:
            memory.store(n, wanted[n])
