"""Kernels that do for each of many networks what another does for one, on the CPU emulator: a
member's part is bit for bit what the kernel of one network makes of it, and no other is touched."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common import random
from rawnn.common.dtypes import numpy_dtype
from rawnn.cuda.compiling import resources
from rawnn.cuda.compiling.compile import compile_source
from rawnn.many import indexed_inputs
from rawnn.many.launch_plans import LaunchPlans, launch_plans
from rawnn.many.members import Group
from rawnn.plan.op import Op
from rawnn.plan.ops.each_member import FOLD, INDEXED, KIND, SHARED, part_of
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Tensor
from rawnn.ptx import SOURCES, each_member
from rawnn.ptx.kernels import kernel_for
from tests import requires
from tests.engine import CAPABLE
from tests.persistent.member_launch import FLAGS, group_of
from tests.ptx.architectures import installed_nvrtc
from tests.ptx.emulator.emulator import Kernels, signature_of
from tests.slices import sliced

pytestmark = requires.GXX
ACTIVE = np.array([2, -1, 1, -1], np.int32)
"""Of two folds one each."""
STEP = 1
"""Of the batches that are read by index."""
SPILLED = {12: 16, 13: 32}
"""Bytes that a thread spills at most, by NVRTC's major version: of exact float32 by wgmma."""


def array_of(tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    """Small floats, or ones, in memory of its own."""
    dtype = numpy_dtype(tensor.dtype)
    if dtype.kind != "f":
        return np.ones(tensor.padded_shape, dtype)
    return generator.uniform(0.01, 0.5, tensor.padded_shape).astype(dtype)


def arrays_of(group: Group, plans: LaunchPlans, plan: Plan) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    found = {n: array_of(t, generator) for n, t in plan.tensors.items()}
    found |= {"active": ACTIVE, "members": plans.words}
    for name, tensor in plan.tensors.items():
        if name.endswith("cursor"):
            found[name][...] = 0
        elif name in ("order", "held_out"):
            for row in found[name]:
                row[:tensor.shape[1]] = generator.permutation(tensor.shape[1])
    return found


def called(op: Op, plan: Plan, folder: Path, arrays: dict[str, np.ndarray],
           sources: Path = SOURCES) -> None:
    """Launch an op's kernel on arrays by their roles."""
    impl = kernel_for(op)
    numbers = {**impl.scalars(op, plan), "offset": 0, "launched": len(ACTIVE)}
    expression = impl.expression(op, plan)
    if impl.code is not None:
        (folder / impl.source).write_text(impl.code.text)
    library = Kernels((impl.source,), (expression,), sources=sources, folders=(folder,),
                      flags=FLAGS).build()
    wanted = {p.name for p in signature_of(library.kernels, expression).parameters if p.number}
    grid, block = impl.geometry(numbers)
    library.call(expression, grid, block, shared=impl.shared(numbers),
                 cluster=impl.cluster(numbers), **arrays,
                 **{k: v for k, v in numbers.items() if k in wanted})


def part(array: np.ndarray, tensor: Tensor, stack: str, member: int, fold: int) -> np.ndarray:
    """What the kernel of one network gets: a copy with the padding of rows."""
    if stack == SHARED:
        return array.copy()
    found = part_of(array, tensor, fold if stack == FOLD else member)
    return np.ascontiguousarray(found).copy()


@pytest.mark.parametrize("options", sliced([
    {"layers": (13, 9, 4), "optimizer": "adam", "varied": ("weight_decay",)},
    {"layers": (13, 4), "shuffle": False}]), ids=str)
def test_each_member_has_its_own(options: dict[str, Any], tmp_path: Path) -> None:
    group = group_of(4, folds=2, rows=23, **options)
    plans = launch_plans(group, CAPABLE, "", 1)
    checked = set()
    for plan in (plans.training.whole, plans.training.partial, plans.end,
                 plans.evaluation.whole):
        for op in plan.ops:
            if op.kind != KIND or kernel_for(op).name in checked:
                continue
            checked.add(kernel_for(op).name)
            arrays = arrays_of(group, plans, plan)
            before = {name: array.copy() for name, array in arrays.items()}
            called(op, plan, tmp_path, {r: arrays[n] for r, n in op.operands.items()})
            single, single_plan = op.attributes["single"], op.attributes["plan"]
            for member in range(len(group)):
                fold, config = int(group.fold[member]), group.members[member]
                own = {role: part(before[op.operands[role]], single_plan[name],
                                  op.attributes["stacks"][role], member, fold)
                       for role, name in single.operands.items()}
                settings = config.recipe().optimizer.attributes()
                varied = {name: settings[name] for name in op.attributes["setting_places"]}
                changed = type(op)(single.kind, single.name, single.operands, {
                    **single.attributes, **varied, **({"seed": config.seed} if "seed" in
                                                      single.attributes else {})}, single.impl)
                if member in ACTIVE:
                    called(changed, single_plan, tmp_path, own)
                for role, name in single.operands.items():
                    stack = op.attributes["stacks"][role]
                    found = part(arrays[op.operands[role]], single_plan[name], stack, member, fold)
                    assert found.tobytes() == own[role].tobytes(), (op.name, role, member)
    assert len(checked) >= 5


def by_index(op: Op, plan: Plan, before: dict[str, np.ndarray], folder: Path,
             sources: Path = SOURCES) -> bool:
    """Whether the kernel of an op that reads rows of shared inputs by the members' orders makes of
    them what the kernel of one network makes of the rows gathered; writes into no array."""
    arrays = {name: array.copy() for name, array in before.items()}
    called(op, plan, folder, {r: arrays[n] for r, n in op.operands.items()}, sources)
    single, single_plan = op.attributes["single"], op.attributes["plan"]
    stacks, alike = op.attributes["stacks"], True
    rows, first = op.attributes["batch"], STEP * op.attributes["stride"]
    for member in range(len(before["members"])):
        own = {role: before[op.operands[role]][before["order"][member][first:first + rows]]
               if stacks[role] == INDEXED else
               part(before[op.operands[role]], single_plan[name], stacks[role], member, 0)
               for role, name in single.operands.items()}
        if member in ACTIVE:
            called(single, single_plan, folder, own)
        for role, name in single.operands.items():
            if stacks[role] != INDEXED:
                found = part(arrays[op.operands[role]], single_plan[name], stacks[role], member, 0)
                alike = alike and found.tobytes() == own[role].tobytes()
    return alike


def indexed_ops(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> \
        list[tuple[Op, Plan, dict[str, np.ndarray]]]:
    """The ops of a step of four members that read inputs by index, with their plan and arrays."""
    monkeypatch.setattr(indexed_inputs, "LEAST_BYTES", 0)
    group = group_of(4, **options)
    plans = launch_plans(group, CAPABLE, "", 1)
    found = []
    for plan in (plans.training.whole, plans.training.partial):
        arrays = arrays_of(group, plans, plan) if plan.ops else {}
        if "cursor" in arrays:
            arrays["cursor"][...] = STEP
        found += [(op, plan, arrays) for op in plan.ops
                  if INDEXED in op.attributes["stacks"].values()]
    return found


@pytest.mark.parametrize(("options", "loops"), [
    ({"layers": (13, 9, 4), "rows": 27}, {"Mma"}),
    ({"layers": (96, 128, 4), "batch": 128, "rows": 300, "optimizer": "adam"},
     {"Mma", "WgmmaTf32", "WgmmaScaled"}),
    ({"layers": (300, 128, 10), "batch": 128, "rows": 256, "opt": "fp16"}, {"Mma", "Wgmma"})],
    ids=["float32", "float32 by wgmma", "float16"])
def test_products_read_rows_by_index(options: dict[str, Any], loops: set[str], tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for op, plan, arrays in indexed_ops(options, monkeypatch):
        single = op.attributes["single"]
        expression = kernel_for(single).expression(single, op.attributes["plan"])
        seen.add(expression.partition("<")[2].partition(",")[0])
        assert by_index(op, plan, arrays, tmp_path), expression
    assert seen == loops


def test_a_product_by_index_is_numpys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for op, plan, before in indexed_ops({"layers": (13, 9, 4), "rows": 27}, monkeypatch):
        arrays = {name: array.copy() for name, array in before.items()}
        called(op, plan, tmp_path, {r: arrays[n] for r, n in op.operands.items()})
        wanted = {name: array.astype(np.float64) if array.dtype == np.float32 else array.copy()
                  for name, array in before.items()}
        views = {role: wanted[name][..., :plan[name].shape[-1]] if len(plan[name].shape) > 1
                 else wanted[name] for role, name in op.operands.items()}
        op.spec.reference(SimpleNamespace(**views), {**op.attributes, "launched": len(ACTIVE)})
        for role in op.spec.writes:
            if role in op.operands:
                name = op.operands[role]
                np.testing.assert_allclose(arrays[name], wanted[name], rtol=2e-6, atol=5e-7,
                                           err_msg=name)


@pytest.mark.parametrize(("right", "wrong"), [
    ("matrix->list[nth]", "nth"), ("inner_rows.list[min(nth, depth - 1)]", "min(nth, depth - 1)"),
    ("ahead * PANEL::kDepth", "0 * ahead"), ("inner_rows.list += PANEL::kDepth;", ";"),
    ("{matrix->matrix + place, matrix->list + begin}", "{matrix->matrix, matrix->list + begin}"),
    ("index[ahead - 1][pass] = index[ahead][pass]", ";")])
def test_wrong_rows_are_noticed(right: str, wrong: str, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults in how a loader finds rows, planted one at a time."""
    sources = tmp_path / "sources"
    shutil.copytree(SOURCES, sources)
    header = sources / "gemm" / "mma_copy.cuh"
    text = header.read_text()
    assert text.count(right) == 1
    header.write_text(text.replace(right, wrong))
    options = {"layers": (70, 9, 4), "batch": 100, "rows": 300}
    ops = [each for each in indexed_ops(options, monkeypatch) if each[1].batch == 100]
    assert not all(by_index(*each, tmp_path, sources) for each in ops)


@pytest.mark.parametrize(("loss", "answer", "pieces"), [("cross_entropy", "y", 1), ("mse", "t", 2)])
def test_fewer_blocks_gather_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str,
                                      answer: str, pieces: int) -> None:
    """16 rows of 50 pieces and those of the answer are more than three blocks of a member."""
    group = group_of(4, rows=23, layers=(200, 9, 7), batch=16, loss=loss)
    assert 3 * 256 < 16 * (50 + pieces) <= 4 * 256
    plans = launch_plans(group, CAPABLE, "", 1)
    (op,) = (op for op in plans.training.whole.ops if op.attributes["single"].kind == "gather")
    grids, found = [], []
    for blocks in (8448, 9, 1):
        monkeypatch.setattr(each_member, "STRIDED_BLOCKS", blocks)
        grids.append(kernel_for(op).geometry({"launched": len(ACTIVE)})[0])
        arrays = arrays_of(group, plans, plans.training.whole)
        called(op, plans.training.whole, tmp_path, {r: arrays[n] for r, n in op.operands.items()})
        found.append([arrays[op.operands[role]].tobytes() for role in ("x", answer)])
    assert grids == [(4, 1, 4), (3, 1, 4), (1, 1, 4)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("options", sliced([
    {"opt": "tf32"}, {"loss": "mse", "opt": "bf16,sr", "optimizer": "adam"}, {"opt": "fp16"},
    {"layers": (13, 4)}, {"layers": (64, 128, 4), "batch": 128, "rows": 300}], 2), ids=str)
def test_nvrtc_compiles_them(options: dict[str, Any]) -> None:
    plans = launch_plans(group_of(3, **options), CAPABLE, "", 1)
    impls = {impl.name: impl for plan in (plans.training.whole, plans.evaluation.whole, plans.end)
             for op in plan.ops if (impl := kernel_for(op)).code is not None}
    nvrtc = installed_nvrtc()
    _, major, _ = nvrtc.nvrtcVersion()
    for impl in impls.values():
        assert impl.code is not None
        arch = "sm_90a" if impl.specific else "sm_90"
        found = compile_source(nvrtc, impl.code.text, name=impl.source, arch=arch,
                               expressions=(impl.name,), options=("--ptxas-options=-v",))
        assert "warning" not in found.log, found.log
        assert max(resources.spills(found.log)[impl.name]) <= SPILLED[major]


def test_other_numbers_are_another_kernel() -> None:
    """A kernel is found by its name, so that ops with equal sizes have one only if they have equal
    numbers."""
    plan = launch_plans(group_of(4, rows=23, layers=(13, 9, 4), optimizer="adam"), CAPABLE, "",
                        1).training.whole
    checked = 0
    for op in plan.ops:
        single = op.attributes.get("single")
        if op.kind != KIND or single is None:
            continue
        for name, number in single.attributes.items():
            if not isinstance(number, float):
                continue
            other = replace(single, attributes={**single.attributes, name: number + 0.25})
            names = {kernel_for(replace(op, attributes={**op.attributes, "single": each})).name
                     for each in (single, other, replace(single))}
            assert len(names) == 2, (op.name, name)
            checked += 1
    assert checked >= 6


@pytest.mark.parametrize("shuffled", [True, False])
def test_orders_of_members(shuffled: bool, tmp_path: Path) -> None:
    group = group_of(4, folds=2, rows=23, layers=(13, 4), shuffle=shuffled)
    plans = launch_plans(group, CAPABLE, "", 1)
    plan = plans.begin
    op = next(op for op in plan.ops if op.kind == "member_orders")
    arrays = arrays_of(group, plans, plan) | {"rows": np.concatenate(group.rows)}
    before = arrays["order"].copy()
    called(op, plan, tmp_path, {r: arrays[n] for r, n in op.operands.items()})
    for member in range(4):
        index = random.permutation(group.members[member].seed, 1, 23) if shuffled \
            else np.arange(23)
        wanted = group.rows[int(group.fold[member])][index] if member in ACTIVE \
            else before[member, :23]
        np.testing.assert_array_equal(arrays["order"][member, :23], wanted)


@pytest.mark.parametrize("answers", [0, 1])
def test_means_of_members(answers: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    whole, batch, left, networks = 139, 16, 5, 4
    loss = generator.uniform(0, 3, (networks, 140)).astype(np.float32)
    correct = generator.integers(0, 6, (networks, 140)).astype(np.int32)
    mean, score = np.full(networks, -1.0), np.full(networks, -1.0)
    library = Kernels(("elementwise/members.cu",), ("member_means",), flags=FLAGS).build()
    library.call("member_means", (1, 2), (32,), active=ACTIVE, loss=loss, mean=mean, score=score,
                 launched=networks, networks=networks, steps=140, batch=batch, whole=whole,
                 left=left, answers=answers, **({"correct": correct} if answers else {}))
    weights = np.append(np.full(whole, batch), left)
    for member in range(networks):
        if member not in ACTIVE:
            assert (mean[member], score[member]) == (-1, -1)
            continue
        assert mean[member] == np.average(loss[member].astype(np.float64), weights=weights)
        wanted = correct[member].sum() / weights.sum() if answers else np.nan
        np.testing.assert_equal(score[member], wanted)
