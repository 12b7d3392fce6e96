"""Kernels of many networks on the CPU emulator, and those of one network that they are compared
with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rawnn.common import random
from rawnn.common.dtypes import numpy_dtype
from rawnn.cuda.device import padded
from rawnn.data import Dataset
from rawnn.data.normalise import Normalisation
from rawnn.engine.config import Config
from rawnn.many.gpu import OF_DATA, TEST
from rawnn.many.member_plans import member_plans, schedule_of, words_of
from rawnn.many.members import Group
from rawnn.persistent.chip import chip_of
from rawnn.persistent.layout import layout_of
from rawnn.persistent.problem import problem_of
from rawnn.persistent.source import source
from rawnn.persistent.spelling import sharding_of
from rawnn.plan.ops.members import member_words
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role
from rawnn.ptx import SOURCES
from rawnn.ptx.kernels import kernel_for
from tests.engine import CAPABLE, dataset_for
from tests.ptx.emulator.emulator import Kernels

ROOM = chip_of(CAPABLE.target)
"""The chip that the kernels of one network are laid out for, as those of members are."""
Arrays = dict[str, np.ndarray]

FLAGS = ("-fno-builtin-log1pf", "-fno-builtin-expm1f")
"""g++ rounds the functions of constants in another way than those of variables."""


def group_of(members: int, folds: int = 0, rows: int | tuple[int, ...] = 25,
             varied: tuple[str, ...] = (), **options: Any) -> Group:
    """Members that differ in seed and learning rate, and in the options `varied`; with `folds`
    lists of so many rows, each scored on the other rows and normalised by its own."""
    lengths = rows if isinstance(rows, tuple) else (rows,) * folds
    settings = {"layers": (21, 26, 9, 7), "batch": 11, "partial": True, "shuffle": True,
                "epochs": 4, "schedule": "cosine:0.001", "device": "sim", "opt": "none", **options}
    first = Config(**settings)
    data = dataset_for(first.network(), 40 if isinstance(rows, tuple) or folds else rows, 17)
    generator = np.random.default_rng(5)
    more: dict[str, Any] = {"weight_decay": lambda i: 0.01 * i, "beta1": lambda i: 0.9 - 0.05 * i,
                            "momentum": lambda i: 0.5 + 0.1 * (i % 4)}
    configs = tuple(Config(**settings | {"seed": 3 + 7 * i, "lr": 0.01 * (1 + i % 5)}
                           | {name: more[name](i) for name in varied}) for i in range(members))
    lists = [generator.permutation(40)[:each].astype(np.int32) for each in lengths]
    held = [np.setdiff1d(np.arange(40), each).astype(np.int32) for each in lists]
    learned = [Normalisation.of("learned", data.train_images[each]) for each in lists]
    fold = np.arange(members) % folds if folds else np.zeros(members, int)
    return Group(first, data, configs, tuple(lists), tuple(held), fold.astype(np.int32),
                 tuple(learned) or (data.normalisation,), (None,) * max(folds, 1))


class MemberLaunch:
    """The training and the evaluation of a group, with arrays for all their operands."""

    def __init__(self, group: Group, sharding: str) -> None:
        self.group, self.sharding = group, sharding
        self.plans = member_plans(group, CAPABLE, sharding, group.config.epochs)
        self.arrays: Arrays = {}
        for plan in (self.plans.train, self.plans.evaluate):
            for tensor in plan.tensors.values():
                if tensor.name not in self.arrays:
                    self.arrays[tensor.name] = self._begin(plan, tensor.name)
        self.steps = group.config.recipe().updates(group.examples)
        for i in range(len(group)):  # weights of each from its seed, and all of its state at random
            self._draw(i)

    def _begin(self, plan: Plan, name: str) -> np.ndarray:
        group, tensor = self.group, plan[name]
        dtype = numpy_dtype(tensor.dtype)
        if name in ("train_loss", "validation_loss", "validation_score"):
            return np.full((len(group), group.config.epochs), np.nan)
        if name == "parts":
            return np.zeros(tensor.shape[0] // 2)
        if name == "active":
            return np.arange(len(group), dtype=np.int32)
        if name == "members":
            return np.stack([member_words(**words_of(group, i, self.plans.settings))
                             for i in range(len(group))])
        if name in ("rows", "held_out"):
            lists = getattr(group, name)
            longest = max(map(len, lists))
            return np.concatenate([np.pad(each, (0, longest - len(each))) for each in lists])
        if name == "counts":
            return group.counts.reshape(-1)
        if name in ("mean", "inverse_std"):
            array = np.stack([getattr(each, name) for each in group.normalisations])
        elif name.removeprefix(TEST) in OF_DATA:
            part = "test" if name.startswith(TEST) else "train"
            array = getattr(group.dataset, f"{part}_{name.removeprefix(TEST)}")
        elif tensor.role is Role.ROUNDED:
            array = self._rounded(group.dataset, name)
        else:
            array = np.zeros(tensor.shape, dtype)
        return padded(array.astype(dtype), tensor.padded_shape, tensor.dtype)

    def _rounded(self, data: Dataset, name: str) -> np.ndarray:
        part = "test" if name.startswith(TEST) else "train"
        return data.normalisation.apply(getattr(data, f"{part}_images"))

    def _draw(self, member: int) -> None:
        generator = np.random.default_rng(member)
        drawn = self.group.config.network().initial(self.group.members[member].seed)
        for name, tensor in self.plans.train.tensors.items():
            own = self.of(member, name) if tensor.role in (Role.PARAMETER, Role.STATE) else None
            if own is None:
                continue
            if name in drawn:
                own[...] = drawn[name]
            elif name == "clock":
                own[...] = (1, self.steps)
            elif name == "loss_scale":
                own[...] = (64.0, 0.0)
            else:
                own[...] = np.abs(generator.normal(size=own.shape)) * 0.01

    def of(self, member: int, name: str) -> np.ndarray:
        """A member's part of a stack, without padding."""
        tensor = self.plans.train[name]
        array = self.arrays[name]
        if tensor.packed:
            return array[member]
        size = len(array) // len(self.group)
        part = array[member * size:(member + 1) * size]
        return part[:, :tensor.shape[1]] if part.ndim > 1 else part

    def rates(self) -> None:
        """The learning rates of every member's epoch, as NumPy has them."""
        for i in range(len(self.group)):
            first = int(self.of(i, "clock")[1])
            self.of(i, "rates")[...] = schedule_of(self.group, i).rates(first, self.steps)

    def launch(self, plan: Plan, active: np.ndarray, column: int, folder: Path, run: int = 0,
               text: str = "", sources: Path = SOURCES) -> None:
        """Run the plan's op on the emulator, with another text of the kernel where it is given."""
        op = plan.ops[0]
        impl = kernel_for(op)
        assert impl.code is not None
        (folder / impl.source).write_text(text or impl.code.text)
        library = Kernels((impl.source,), (impl.name,), defines=("RAWNN_PDL",), sources=sources,
                       folders=(folder,), flags=FLAGS).build()
        numbers = {**impl.scalars(op, plan), "launched": len(active), "offset": column}
        grid, block = impl.geometry(numbers)
        self.arrays["active"] = np.array(active, np.int32)
        operands = {role: self.arrays[name] for role, name in op.operands.items()}
        if not op.spec.kind.startswith("evaluate"):
            self.rates()
        wanted = text_parameters(impl)
        library.call(impl.name, grid, block, shared=impl.shared(numbers),
                  cluster=impl.cluster(numbers), early=(), run=run, **operands,
                  **{k: v for k, v in numbers.items() if k in wanted and k not in operands})

    # -- one network -------------------------------------------------------------------------------
    def single(self, member: int, folder: Path, run: int = 0) -> Arrays:
        """What the kernel of one network leaves of a member's epoch, from the same arrays."""
        group, config, op = self.group, self.group.members[member], self.plans.train.ops[0]
        step = self._step(member)
        left = config.recipe().partial_size(int(group.counts[group.fold[member], 0]))
        problem = replace(problem_of(step), partial=left > 0)
        d = sharding_of(problem, self.sharding)
        layout = layout_of(d, ROOM.room(d.resident))
        text = source(layout, "train_steps")
        (folder / "single.cu").write_text(text)
        library = Kernels(("single.cu",), ("train_steps",), defines=("RAWNN_PDL",),
                       folders=(folder,), flags=FLAGS).build()
        fold, steps = int(group.fold[member]), group.steps_of(member)
        examples = int(group.counts[fold, 0])
        clock = self.of(member, "clock")
        index = random.permutation(config.seed, int(clock[0]), examples) if config.shuffle \
            else np.arange(examples, dtype=np.int32)
        rates = schedule_of(group, member).rates(int(clock[1]), steps)
        arrays: Arrays = {
            "order": group.rows[fold][index] if group.rows else index, "rates": rates,
            "cursor": np.zeros(1, np.int32), "loss": np.zeros(steps, np.float32),
            "correct": np.zeros(steps, np.int32), "clock": clock.copy()}
        for name, words in layout.workspaces(steps).items():
            arrays[name] = np.zeros(words, np.uint32 if name == "counters" else np.float32)
        for role, name in op.operands.items():
            tensor = self.plans.train[name]
            if role in ("mean", "inverse_std"):
                arrays[role] = self.arrays[name][fold]
            elif tensor.role in (Role.DATA, Role.ROUNDED) \
                    and role not in ("rows", "members", "counts"):
                arrays[role] = self.arrays[name]
            elif tensor.role in (Role.PARAMETER, Role.STATE) or role == "overflow":
                own = self.of(member, name)
                arrays[role] = padded(own.copy(), (*own.shape[:-1], tensor.ld) if own.ndim > 1
                                      else own.shape, tensor.dtype)
        wanted = set(text.split("(const", 1)[1].split(") {")[0].replace(",", " ").split())
        arrays = {role: array for role, array in arrays.items() if role in wanted}
        copies = {f"c{n}": arrays[f"w{n}"].astype(numpy_dtype(problem.copies))
                  for n in range(1, problem.depth + 1) if problem.copies}
        numbers = {"whole": examples // config.batch, "left": examples % config.batch,
                   "seed": config.seed}
        library.call("train_steps", (d.blocks, 1, 1), (d.threads, 1, 1),
                     shared=layout.dynamic_bytes, cluster=d.cluster_size, early=("cursor",),
                     run=run, span=steps, offset=0,
                     **{k: v for k, v in numbers.items() if k in wanted}, **arrays, **copies)
        return arrays

    def _step(self, member: int) -> Plan:
        """The plan of a step of this member alone."""
        of = replace(self.group, config=self.group.members[member],
                     members=(self.group.members[member],), fold=self.group.fold[:1])
        step: Plan = member_plans(of, CAPABLE, self.sharding, 1).train.ops[0].attributes["step"]
        return step


def text_parameters(impl: Any) -> set[str]:
    from rawnn.cuda.compiling.signature import parse_kernels

    return {p.name for p in parse_kernels(impl.code.text)[impl.name].parameters}


def check_member(launch: MemberLaunch, found: Arrays, member: int, column: int) -> None:
    """A member of a launch has what `single` gave: parameters, state, losses and clock."""
    op = launch.plans.train.ops[0]
    for role, name in op.operands.items():
        tensor = launch.plans.train[name]
        if tensor.role in (Role.PARAMETER, Role.STATE) and role != "clock":
            wanted = found[role][..., :tensor.shape[-1]] if found[role].ndim > 1 else found[role]
            np.testing.assert_array_equal(launch.of(member, name).view(np.uint8),
                                          np.ascontiguousarray(wanted).view(np.uint8), role)
    steps = launch.group.steps_of(member)
    np.testing.assert_array_equal(launch.of(member, "loss")[:steps], found["loss"])
    examples, batch = launch.group.counts[launch.group.fold[member], 0], launch.group.config.batch
    weights = [min(batch, examples - batch * s) for s in range(steps)]
    mean = np.average(found["loss"].astype(np.float64), weights=weights)
    assert launch.arrays["train_loss"][member, column] == mean
