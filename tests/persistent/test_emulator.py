"""Kernels that are written for a network, run on the host by the CPU emulator of the device
primitives: right against NumPy, and free of races, for several ways to share the work."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.cuda_text import CudaText
from rawnn.common.dtypes import numpy_dtype
from rawnn.common.target import known
from rawnn.cuda.device import padded
from rawnn.model.layers import Network
from rawnn.opts import TOGGLES
from rawnn.opts.persistent import as_one_op, rewrite
from rawnn.persistent import layout, schedule
from rawnn.persistent.choose import Choice
from rawnn.persistent.layout import COUNTS, layout_of
from rawnn.persistent.problem import problem_of
from rawnn.persistent.sharding import DSMEM, L2, Sharding
from rawnn.plan import epoch_plans as around
from rawnn.plan.build import CLOCK
from rawnn.plan.merging import with_partial_batch
from rawnn.plan.op import Op
from rawnn.plan.ops import train_steps
from rawnn.plan.ops.train_steps import spanning
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx import SOURCES
from rawnn.ptx.kernels import KernelImpl, kernel_for
from tests import requires
from tests.catalogue import MORE_ACTIVATIONS, WITH_CODE
from tests.persistent.problems import HOPPER, VARIETY, prepared
from tests.ptx.emulator.emulator import EmulatedLibrary, EmulatorError, Kernels
from tests.slices import sliced

pytestmark = requires.GXX

STEPS = 5
STEPS_OF_EPOCH = 64
"""By which a clock goes on."""
CHOSEN = [
    ("softmax, SGD", 1, 1), ("softmax, SGD", 1, 3), ("Adam in an order", 1, 1),
    ("Adam in an order", 4, 2), ("float16 inputs, normalised", 2, 3), ("bfloat16", 2, 1),
    ("stochastic rounding", 2, 1), ("stochastic rounding, Adam", 1, 1),
    ("stochastic rounding, Adam", 4, 3), ("float16", 1, 1), ("float16", 2, 2),
    ("float16, Adam, tanh", 8, 1), ("float16, mean squares", 1, 3),
    ("tf32, one layer", 4, 1), ("long rows", 2, 2), ("more outputs than a register file", 4, 1),
    *((f"softmax, {name}", 1, 3) for name in (*WITH_CODE, *MORE_ACTIVATIONS)),
]
"""Kinds of problems, and the blocks and clusters that share them as the cost model says."""

STATE_FAR = ", state far"
"""Ends the name of a problem where the state of the optimizer lies in a workspace."""

SHARED = [
    ("softmax, SGD", 2, 1, "FSFG"), ("softmax, SGD", 4, 1, "FGSF"), ("softmax, SGD", 2, 2, "SFGF"),
    ("Adam in an order", 4, 1, "FSFF"), ("a wide middle", 4, 1, "SFGF"),
    ("a wide middle", 2, 2, "FGFG"), ("binary cross-entropy, tanh", 4, 2, "FGFS"),
    ("mean squares, gelu, no bias", 2, 3, "SFSF"), ("an autoencoder", 2, 1, "SFS"),
    ("float32 inputs, a schedule", 8, 1, "FSFF"), ("long rows", 2, 1, "SF"),
    ("softmax, SGD", 8, 1, "FSFG"), ("softmax, SGD", 8, 2, "FGFG"), ("softmax, SGD", 4, 1, "SFGF"),
    ("softmax, SGD", 16, 1, "SFGF"),  # blocks that have nothing of a boundary
    ("a wide layer of outputs", 8, 1, "FSFG"),  # the last block has outputs alone
    ("a wide layer of outputs", 8, 2, "FSFS"),
    ("clusters share sums", 1, 8, ""), ("more outputs than a register file", 2, 3, "FG"),
    ("Adam in an order, state far", 2, 1, "FSFF"), ("Adam in an order, state far", 2, 3, "FSFF"),
    ("more outputs than a register file", 4, 1, "FS"), ("softmax, SGD", 16, 1, "SFGS"),
    ("more outputs than a register file", 2, 3, "FS"), ("a wide middle", 4, 2, "FSFS"),
    ("stochastic rounding, Adam", 2, 2, "FSFS"), ("tf32, one layer", 4, 1, "FS"),
    ("many outputs, mean squares", 2, 1, "FSF"),  # more pairs of a loss's sums than threads
]
"""The same with types of the boundaries, so that every exchange comes up."""


class Launch:
    """An op with arrays for all its operands, on which its kernel and its reference can run. Its
    last step is on a partial batch of `left` examples, where there are some. One that is `turning`
    also does what stands between two epochs. One of a `whole_epoch` has no other steps: the first
    is the epoch's first, and the last uses workspaces and metrics to their ends."""

    def __init__(self, name: str, ranks: int, groups: int, types: str = "",
                 scale: tuple[float, float] = (64.0, 0.0), left: int = 0, turns: int = 1,
                 exchange: str = DSMEM, turning: bool = False,
                 room: int = HOPPER.shared, whole_epoch: bool = False,
                 resident: int = 0, threads: int = 256) -> None:
        keywords = dict(VARIETY[name.removesuffix(STATE_FAR)])
        network = Network(keywords.pop("layers", (21, 26, 9, 7)), **keywords.pop("network", {}))
        batch = keywords.pop("batch", 11)
        self.offset = 0 if whole_epoch else 1
        whole = STEPS - (left > 0) if whole_epoch else STEPS
        if whole_epoch:
            keywords["steps"] = whole
        plan = replace(prepared(network, batch, left=left, **keywords), target=known((9, 0)))
        if not types:
            self.plan: Plan = rewrite(plan, ranks, groups)
        else:
            d = Sharding(problem_of(plan), ranks, groups, threads, types, turns, exchange,
                         resident=resident)
            room = 0 if name.endswith(STATE_FAR) else room
            self.plan = as_one_op(plan, Choice(layout_of(d, room), 0.0))
        if left:
            rest = prepared(network, batch, left=left, rest=True, **keywords)
            self.plan = with_partial_batch(self.plan, rest, whole)
        self.op: Op = spanning(self.plan.ops[0], STEPS)
        if turning:
            self.plan = self.plan.with_tensors(CLOCK)
            count = self.plan[self.op.operands["order"]].shape[0]
            self.op = train_steps.with_boundary(self.op, Op(
                "epoch_boundary", "epoch_boundary", {"clock": "clock", "order": "order"},
                {"seed": 7, "count": count, "offset": 0,
                 "steps": STEPS if whole_epoch else STEPS_OF_EPOCH}))
        self.impl: KernelImpl = kernel_for(self.op)
        self.sharding: Sharding = self.op.attributes["choice"].sharding
        self.arrays = self._arrays(np.random.default_rng(0), scale)
        self.library: EmulatedLibrary | None = None

    def _arrays(self, generator: np.random.Generator,
                scale: tuple[float, float]) -> dict[str, np.ndarray]:
        found: dict[str, Any] = {}
        for role, name in self.op.operands.items():
            tensor = self.plan[name]
            dtype = numpy_dtype(tensor.dtype)
            if role == "order":
                values = generator.permutation(tensor.shape[0])
            elif role == "labels":
                values = generator.integers(0, self.sharding.problem.outputs, tensor.shape)
            elif role == "images" and tensor.role is Role.ROUNDED:
                values = self._rounded(tensor, generator)
            elif role == "images" and tensor.dtype == "uint8":
                values = generator.integers(0, 256, tensor.shape)
            elif role == "targets":
                values = (generator.random(tensor.shape) > 0.5).astype(np.float32)
            elif role == "rates":
                values = generator.uniform(0.05, 0.1, tensor.shape)
            elif role == "inverse_std":
                values = generator.uniform(0.5, 1.0, tensor.shape)
            elif tensor.role in (Role.SCRATCH, Role.CURSOR, Role.METRIC):
                values = np.zeros(tensor.shape)
            elif role == "clock":
                values = np.array([1, 5])
            elif role == "loss_scale":
                values = np.array(scale)
            elif role == "overflow":
                values = np.zeros(1)
            else:
                most = 1.0 if role in ("images", "mean") else 0.3
                values = generator.uniform(-most, most, tensor.shape)
                values = np.abs(values) if role.endswith("_v") else values
            found[role] = values.astype(dtype)
        for role in found:
            if self.plan[self.op.operands[role]].role is Role.COPY:
                found[role] = found[f"w{role[1:]}"].astype(found[role].dtype)
        return found

    def _rounded(self, tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
        """Inputs as the plan's start rounds them, `of_inputs` as the data set has them."""
        source = self.plan[tensor.source]
        whole = source.dtype == "uint8"
        values = (generator.integers(0, 256, source.shape) if whole
                  else generator.uniform(-1.0, 1.0, source.shape)).astype(numpy_dtype(source.dtype))
        op = around.rounded(tensor, self.plan)
        of = {"images": values, "cursor": np.zeros(1, np.int32),
              "x": np.empty(source.shape, np.float32)}
        for role in ("mean", "inverse_std"):
            if role in op.operands:
                of[role] = np.linspace(0.5, 1.0, source.shape[1]).astype(np.float32)
        op.spec.reference(SimpleNamespace(**of), op.attributes)
        self.of_inputs = of
        return of["x"]

    def on_emulator(self, folder: Path, run: int,
                sources: Path = SOURCES) -> dict[str, np.ndarray]:
        """What the kernel leaves, without padding. What is ahead of it has not ended yet."""
        (folder / self.impl.source).write_text(self.impl.code.text)
        self.library = library = Kernels((self.impl.source,), (self.impl.name,),
                                   defines=("RAWNN_PDL",), sources=sources,
                                   folders=(folder,)).build()
        laid = {role: padded(array.copy(), self.plan[self.op.operands[role]].padded_shape,
                             self.plan[self.op.operands[role]].dtype)
                for role, array in self.arrays.items()}
        laid |= {role: laid[role].view(np.uint32) for role in COUNTS if role in laid}
        scalars = self.impl.scalars(self.op, self.plan)
        grid, block = self.impl.geometry(scalars)
        library.call(self.impl.name, grid, block, shared=self.impl.shared(scalars),
                  cluster=self.impl.cluster(scalars), cooperative=self.impl.cooperative,
                  early=("cursor",), run=run, offset=self.offset, span=STEPS, **self._numbers(),
                  **laid)
        return {role: array[tuple(slice(n) for n in self.plan[self.op.operands[role]].shape)]
                for role, array in laid.items()}

    def _numbers(self) -> dict[str, int]:
        return {k: v for k, v in self.op.attributes.items()
                if k in ("seed", "whole", "left", "order_seed", "count", "steps")}

    def by_reference(self, number: type = np.float64) -> dict[str, np.ndarray]:
        """What NumPy leaves, in float64 (where nothing is rounded) or float32."""
        return self._by_reference_of(self.op, number)

    def rounded_reference(self) -> dict[str, np.ndarray]:
        """What NumPy leaves in float32 where values are rounded to 16 bits as in the kernel: the
        operands of products, and no sum ahead of its bias, activation or slope. So round the fused
        ops of launches."""
        steps = {name: fused(self.op.attributes[name]) for name in ("step", "rest")
                 if name in self.op.attributes}
        op = replace(self.op, attributes={**self.op.attributes, **steps})
        return self._by_reference_of(op, np.float32)

    def _by_reference_of(self, op: Op, number: type) -> dict[str, np.ndarray]:
        wide = {r: a.astype(number) if self.plan[self.op.operands[r]].floating
                and r not in ("images",) else a.copy() for r, a in self.arrays.items()}
        op.spec.reference(SimpleNamespace(**wide), {"offset": self.offset, "span": STEPS})
        return wide


def fused(plan: Plan) -> Plan:
    """The plan's products with their biases, activations and slopes. No head: it rounds a gradient
    ahead of a gelu's slope, which the kernel does not."""
    for name, value in (("mma", None), ("fuse", "-head")):
        plan, _ = TOGGLES[name].apply(plan, Policy(), TOGGLES[name].parse(value))
    return plan


def allowed(d: Sharding) -> float:
    """What part of a parameter's change may be error.

    In 16 bits, with the unit roundoff u, the reference rounds where the kernel does. A sum that is
    added up in another order may become the next number of 16 bits, 2 u away. Groups that publish
    bfloat16 round each part of a gradient once, independently of each other, and, where each
    updates its share, the change of the weight once more.
    """
    if not d.problem.halved:
        return {"float32": 2e-4, "tf32": 1e-3}[d.problem.numbers]
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[d.problem.numbers]
    if not d.publishes_bf16:
        return 2 * unit
    reduced = schedule.build(d).all_reduce
    assert reduced is not None
    return unit * (2 + d.dp_size**0.5 + reduced.sharded)


def check(launch: Launch, folder: Path, run: int, sources: Path = SOURCES) -> None:
    """The kernel leaves what NumPy does, and counters as it found them."""
    numbers, halved = launch.sharding.problem.numbers, launch.sharding.problem.halved
    # Rounding moves weights more than a step does: the reference has to draw the same bits.
    chance = bool(launch.sharding.problem.streams)
    found = launch.on_emulator(folder, run, sources)
    wanted = launch.rounded_reference() if halved else launch.by_reference()
    of_change = allowed(launch.sharding)
    unit = of_change if halved else {"float32": 1e-5, "tf32": 4e-3}[numbers]
    of_loss = {"float32": 1e-6, "tf32": 3e-4, "float16": 2e-4, "bfloat16": 1e-3}[numbers]
    for role in launch.op.spec.writes:
        if launch.plan[launch.op.operands[role]].role is Role.SCRATCH:
            continue
        if role in ("loss_scale", "overflow", "order", "clock"):
            assert np.array_equal(found[role], wanted[role]), role
            continue
        if role == "correct":
            off = np.abs(found[role].astype(int) - wanted[role])
            # Rounding to 16 bits, or of factors to tf32, may turn one answer that is close.
            assert off.sum() <= (unit > 1e-5), (found[role], wanted[role])
            continue
        a, b = found[role].astype(np.float64), wanted[role].astype(np.float64)
        error = np.linalg.norm(a - b)
        assert error <= (of_loss if role == "loss" else unit) * max(np.linalg.norm(b), 1e-3), role
        if role[0] in "wb" and role[1].isdigit():
            most = 0.1 if chance and role[0] == "w" and role[1:].isdigit() else of_change
            assert error <= most * np.linalg.norm(b - launch.arrays[role]), role
    _check_counters(launch, found)


def _check_counters(launch: Launch, found: dict[str, np.ndarray]) -> None:
    assert not found["counters"].any()
    if "all_reduces" in found:
        counted = launch.arrays["all_reduces"] + STEPS
        assert np.array_equal(found["all_reduces"].view(np.int32), counted)


def check_alike(launch: Launch, folder: Path, run: int, sources: Path = SOURCES) -> None:
    """The last cluster has the same weights as the first, to the last bit: each stores some."""
    found = []
    text, last = launch.impl.code.text, launch.sharding.dp_size - 1
    for group in (0, last):
        # A turn of 1 << 20 has nothing to store.
        turns = {"of_groups": f"group == {group} ? 0 : 1 << 20, 1",
                 "of_blocks": f"group == {group} ? rank : 1 << 20, {launch.sharding.tp_size}"}
        changed = text
        for name, turn in turns.items():
            changed, count = re.subn(rf"StoreShare {name} = {{[^}}]*}}",
                                     f"StoreShare {name} = {{{turn}}}", changed)
            assert count == 1
        launch.impl = replace(launch.impl, code=CudaText(changed))
        found.append(launch.on_emulator(folder, run, sources))
    launch.impl = replace(launch.impl, code=CudaText(text))
    for role in found[0]:
        if role[0] in "wb" and role[1:].isdigit():
            first, other = (each[role].view(np.uint8) for each in found)
            assert np.array_equal(first, other), role


ALIKE = [("clusters share sums", 1, 4, ""), ("stochastic rounding, Adam", 4, 3, "FSFF"),
         ("more outputs than a register file", 2, 3, "FG"), ("softmax, SGD", 2, 2, "SFGF")]


@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(ALIKE))
def test_all_clusters_have_the_same_weights(tmp_path: Path, name: str, ranks: int, groups: int,
                                            types: str) -> None:
    """New weights are published as changes, which may lose a bit: the same for all clusters."""
    check_alike(Launch(name, ranks, groups, types), tmp_path, 1)


IN_SHARES = [("softmax, SGD", 2, 3, "SFGF"), ("Adam in an order", 2, 2, "FSFF"),
             ("Adam in an order, state far", 2, 3, "FSFF"), ("a wide middle", 1, 7, "FFFF"),
             ("stochastic rounding, Adam", 2, 3, "FSFF"),
             ("float32 inputs, a schedule", 2, 5, "SFFF"), ("bfloat16", 2, 3, "FSFG"),
             ("bfloat16, long rows", 1, 7, "FF")]
"""Problems so small that all clusters would sum, with fewer tiles than a block has warps."""


@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(IN_SHARES, 2))
def test_clusters_share_few_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str,
                                  ranks: int, groups: int, types: str) -> None:
    """Some clusters receive one tile more than others."""
    monkeypatch.setattr(schedule, "is_summed_by_all", lambda *_: False)
    launch = Launch(name, ranks, groups, types)
    found = launch.op.attributes["choice"].layout
    assert found.sync == layout.SHARE
    assert found.tiles % groups or groups == 2
    check(launch, tmp_path, 1)


@pytest.mark.parametrize(("shared", "types"), sliced([(True, "FSFG"), (False, "FGSF")]))
def test_clusters_that_publish_bfloat16_have_the_same_weights(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, types: str) -> None:
    """A cluster adds its own published change as the others do."""
    monkeypatch.setattr(schedule, "is_summed_by_all", lambda *_: not shared)
    launch = Launch("bfloat16", 2, 3, types)
    assert launch.sharding.publishes_bf16
    check(launch, tmp_path, 2)
    check_alike(launch, tmp_path, 1)


@pytest.mark.parametrize(("name", "ranks", "groups"), sliced(CHOSEN))
def test_a_kernel_on_the_host_trains_as_numpy_does(tmp_path: Path, name: str, ranks: int,
                                                   groups: int) -> None:
    check(Launch(name, ranks, groups), tmp_path, 0)


@pytest.mark.parametrize("run", sliced([0, 1, 2]))
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(SHARED, 2))
def test_every_exchange_on_the_host(tmp_path: Path, name: str, ranks: int, groups: int,
                                    types: str, run: int) -> None:
    check(Launch(name, ranks, groups, types), tmp_path, run)


COMPACT = [
    ("softmax, SGD", 2, 2, "SFGF", DSMEM), ("softmax, SGD", 1, 3, "FFFF", DSMEM),
    ("Adam in an order, state far", 2, 3, "FSFF", L2), ("relu, mean squares", 4, 3, "FGSF", DSMEM),
    ("binary cross-entropy, tanh", 4, 2, "FGFS", L2), ("bfloat16", 2, 3, "FFSF", DSMEM),
    ("float32 inputs, a schedule", 2, 5, "SFFF", DSMEM), ("an autoencoder", 2, 3, "SFS", DSMEM),
    ("float16 inputs, normalised", 3, 2, "FSFG", L2), ("long rows", 2, 2, "SF", DSMEM),
    ("mean squares, gelu, no bias", 2, 3, "SFSF", DSMEM), ("float16", 2, 2, "FSFF", DSMEM),
    ("bfloat16, float32 inputs in an order", 2, 3, "FGGF", DSMEM),
]
"""Several groups whose blocks have too little shared memory for two steps of inputs, and for
gradients of their own."""


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "exchange"), sliced(COMPACT, 2))
def test_buffers_that_share_memory_change_no_bit(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str, exchange: str) -> None:
    compact = Launch(name, ranks, groups, types, exchange=exchange, room=0)
    ample = Launch(name.removesuffix(STATE_FAR), ranks, groups, types, exchange=exchange)
    small, large = (each.op.attributes["choice"].layout for each in (compact, ample))
    assert small.schedule.input_buffers == 1
    assert not large.schedule.is_compact
    assert small.nbytes < large.nbytes
    check(compact, tmp_path, 1)
    found, wanted = (each.on_emulator(tmp_path, 0) for each in (compact, ample))
    for role in ample.op.spec.writes:
        if ample.plan[ample.op.operands[role]].role is not Role.SCRATCH:
            assert np.array_equal(found[role].view(np.uint8), wanted[role].view(np.uint8)), role


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "left"), sliced([
    ("Adam in an order, state far", 2, 3, "FSFF", 4), ("softmax, SGD", 1, 2, "FFFF", 3),
    ("float32 inputs, a schedule", 2, 2, "SFFF", 7)]))
def test_a_partial_batch_overwrites_the_inputs_of_a_whole_one(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str, left: int) -> None:
    launch = Launch(name, ranks, groups, types, left=left, room=0)
    assert launch.op.attributes["choice"].layout.schedule.input_buffers == 1
    check(launch, tmp_path, 2)


@pytest.mark.parametrize("sync", sliced([layout.ALL, layout.SHARE]))
def test_a_warp_updates_more_tiles_than_it_loads_at_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str) -> None:
    """71 tiles of two clusters: eight warps load at most four each at once."""
    monkeypatch.setattr(schedule, "is_summed_by_all", lambda *_: sync == layout.ALL)
    launch = Launch("long rows", 1, 2, "FF")
    found = launch.op.attributes["choice"].layout
    assert (found.sync, launch.sharding.threads) == (sync, 256)
    assert found.tiles // (2 if sync == layout.SHARE else 1) > 4 * 8
    check(launch, tmp_path, 0)


SCALES = [
    ("float16", 1, 1, "", (64.0, 1998.0)),  # doubles behind the second step
    ("float16", 1, 1, "", (2.0**20, 0.0)),  # the first steps overflow
    ("float16", 2, 1, "FSFG", (2.0**20, 5.0)),
    ("float16", 4, 1, "FGFF", (2.0**24, 0.0)),
    ("float16", 1, 2, "", (2.0**20, 5.0)),
    ("float16", 2, 3, "SFGF", (2.0**20, 5.0)),
    ("float16", 8, 1, "FSFF", (2.0**20, 1999.0)),
    ("float16, Adam, tanh", 2, 2, "FSFF", (2.0**20, 0.0)),
    ("float16, Adam, tanh", 1, 1, "", (2.0**20, 0.0)),
    ("float16, mean squares", 2, 1, "SFSF", (2.0**21, 0.0)),
    ("float16, mean squares", 4, 3, "FGFS", (2.0**21, 0.0)),
    ("float16", 4, 2, "FGFS", (2.0**20, 5.0)),
]
"""Loss scales that overflow, or grow, and how the work is shared then."""


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "scale"), sliced(SCALES))
def test_steps_that_overflow_are_left_out_everywhere(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str,
        scale: tuple[float, float]) -> None:
    launch = Launch(name, ranks, groups, types, scale)
    check(launch, tmp_path, 2)
    wanted = launch.by_reference()
    assert wanted["loss_scale"][0] != scale[0]


CHANCE = [("", 1, 1), ("", 1, 3), ("FSFG", 2, 1), ("SFGF", 4, 1), ("FGSF", 8, 1), ("SFGF", 2, 3),
          ("FSFF", 4, 2)]
"""Types of the boundaries, blocks and clusters that share stochastically rounded weights."""


DECAY = "stochastic rounding, decay alone"


def check_stochastic_rounding(launch: Launch, folder: Path, run: int,
                              sources: Path = SOURCES) -> None:
    """Inputs of 0 and no biases make all gradients 0: what is left is the decay, which is the same
    arithmetic everywhere, so that a weight differs only where another bit was drawn."""
    launch.arrays["images"][:] = 0
    found, wanted = launch.on_emulator(folder, run, sources), launch.by_reference(np.float32)
    _check_counters(launch, found)
    for layer in (1, 2, 3):
        weights = found[f"w{layer}"].astype(np.float32)
        assert np.array_equal(weights, wanted[f"w{layer}"])
        assert not np.array_equal(weights, launch.arrays[f"w{layer}"].astype(np.float32))


@pytest.mark.parametrize(("types", "ranks", "groups"), sliced(CHANCE))
def test_weights_are_rounded_with_the_bits_that_numpy_draws(
        tmp_path: Path, types: str, ranks: int, groups: int) -> None:
    check_stochastic_rounding(Launch(DECAY, ranks, groups, types), tmp_path, 2)


@pytest.mark.parametrize(("name", "types", "turns"), sliced([
    ("tf32, one layer", "FF", 1),
    ("softmax, SGD", "FFFF", 1), ("softmax, SGD", "FFFF", 2)]))
def test_blocks_that_exchange_nothing_in_a_cluster_store_once_all_have_loaded(
        tmp_path: Path, name: str, types: str, turns: int) -> None:
    """Each of four blocks stores a fourth of the weights that all four load. The search chooses
    such boundaries for narrow layers."""
    launch = Launch(name, 2, 2, types, turns=turns)
    assert not launch.sharding.has_exchanges
    check(launch, tmp_path, 1)


def test_a_sum_next_to_zero_passes_its_gradient_as_with_rounded_operands(tmp_path: Path) -> None:
    """The relu of a sum that rounding takes across 0: in float64 the gradient of an example takes
    another path, which is more of a step than all other errors."""
    launch = Launch("bfloat16, float32 inputs in an order", 2, 3, "SFFS", turns=3, exchange=L2)
    check(launch, tmp_path, 6)
    begin, exact = launch.arrays["w1"], launch.by_reference()["w1"]
    off = np.linalg.norm(launch.rounded_reference()["w1"] - exact)
    assert off > 3 * allowed(launch.sharding) * np.linalg.norm(exact - begin)


PARTIAL = [
    ("softmax, SGD", 1, 1, "", 5), ("softmax, SGD", 2, 3, "SFGF", 5),  # a cluster with one example
    ("softmax, SGD", 1, 3, "", 1), ("Adam in an order", 4, 2, "FSFF", 3),
    ("float32 inputs, a schedule", 8, 1, "FSFF", 10), ("long rows", 2, 2, "SF", 4),
    ("mean squares, gelu, no bias", 2, 3, "SFSF", 7), ("an autoencoder", 2, 1, "SFS", 2),
    ("binary cross-entropy, tanh", 4, 1, "FGFS", 9), ("float16, Adam, tanh", 2, 2, "FSFF", 6),
    ("float16 inputs, normalised", 1, 2, "", 8), ("stochastic rounding", 2, 1, "FSFG", 5),
    ("Adam in an order", 4, 2, "FGFS", 3),
]
"""How the work is shared where the last step has fewer examples, and how many."""


@pytest.mark.parametrize("exchange", sliced([DSMEM, L2]))
def test_blocks_without_inputs_of_their_own_have_the_state_of_all_biases(
        tmp_path: Path, exchange: str) -> None:
    """The 21 inputs are shared by two of four blocks; all four add up and update biases."""
    check(Launch("Adam in an order", 4, 1, "SFGF", exchange=exchange), tmp_path, 3)


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "left"), sliced(PARTIAL))
def test_a_partial_batch_ends_an_epoch(tmp_path: Path, name: str, ranks: int, groups: int,
                                       types: str, left: int) -> None:
    check(Launch(name, ranks, groups, types, left=left), tmp_path, 2)


def test_a_step_that_overflowed_leaves_the_partial_batch_nothing(tmp_path: Path) -> None:
    """The third step's inputs are infinite in float16, so that it is left out. The partial batch,
    two steps behind it, has its rows in the same buffer, and of each gradient a zero times one of
    those that it does not fill."""
    launch = Launch("float16, one layer", 1, 1, left=4)
    batch = launch.sharding.problem.batch
    launch.arrays["images"][3 * batch : 4 * batch] = np.inf
    found = launch.on_emulator(tmp_path, 1)
    with np.errstate(invalid="ignore"):
        wanted = launch.by_reference()
    assert found["loss_scale"].tolist() == [32.0, 2.0]  # two good steps behind it
    assert np.flatnonzero(~np.isfinite(found["loss"])).tolist() == [3]
    for role in ("w1", "b1"):
        change = np.linalg.norm(wanted[role] - launch.arrays[role])
        assert np.linalg.norm(found[role] - wanted[role]) <= 4e-3 * change, role


def test_each_thread_with_a_part_of_a_narrow_layers_loss_has_a_tally(tmp_path: Path) -> None:
    """Sums of a product whose factors warps share, which threads add up pair by pair: twice as
    many threads as have sums of one that a warp has to itself, and fewer than a block has."""
    launch = Launch("narrow outputs, mean squares", 1, 1, "FF")
    found, d = launch.op.attributes["choice"].layout, launch.sharding
    assert found.layers[-1].forward.split > 1
    assert layout.tallies(d) == 16 * 16 // 2 < d.threads
    check(launch, tmp_path, 1)


FAR = [
    ("softmax, SGD", 2, 1, "FSFG"), ("softmax, SGD", 4, 1, "FGSF"),
    ("softmax, SGD", 2, 2, "SFGF"), ("Adam in an order", 4, 1, "FSFF"),
    ("a wide middle", 4, 1, "SFGF"), ("a wide middle", 2, 2, "FGFG"),
    ("binary cross-entropy, tanh", 4, 2, "FGFS"), ("bfloat16", 8, 2, "FSFG"),
    ("mean squares, gelu, no bias", 2, 3, "SFSF"), ("an autoencoder", 2, 1, "SFS"),
    ("float32 inputs, a schedule", 8, 1, "FSFF"), ("long rows", 32, 1, "SF"),
    ("softmax, SGD", 16, 1, "SFGF"), ("more outputs than a register file", 2, 3, "FG"),
    ("more outputs than a register file", 32, 1, "FG"), ("clusters share sums", 12, 1, "SF"),
    ("a wide middle", 32, 1, "FGFG"), ("a wide middle", 20, 2, "FGSF"),
    ("float16, mean squares", 4, 3, "FGFS"), ("stochastic rounding, Adam", 3, 3, "FSFF"),
    ("tf32, one layer", 5, 2, "SF"), ("more outputs than a register file", 32, 1, "FS"),
    ("softmax, SGD", 12, 2, "FGFS"), ("a wide middle", 3, 1, "FSFS"),
    ("tf32, one layer", 8, 1, "FS"), ("softmax, SGD", 4, 2, "FFFF"),
]
"""The same through the L2 cache: blocks that share the widths, groups, and types."""


@pytest.mark.parametrize("run", sliced([0, 1, 3]))
@pytest.mark.parametrize(("name", "ranks", "groups", "types"), sliced(FAR, 2))
def test_every_exchange_through_the_l2_cache(tmp_path: Path, name: str, ranks: int, groups: int,
                                             types: str, run: int) -> None:
    check(Launch(name, ranks, groups, types, exchange=L2), tmp_path, run)


def test_blocks_without_features_are_waited_for_through_l2(tmp_path: Path) -> None:
    """Two of eight have none of the 12 outputs, and a step has one exchange: a block that did not
    wait for them would overwrite what they still read."""
    launch = Launch("tf32, one layer", 8, 1, "FG", exchange=L2)
    check(launch, tmp_path, 0)
    text, changed = re.subn(r"receive_flags<E0>\([^;]*\);", ";", launch.impl.code.text)
    assert changed == 1
    launch.impl = replace(launch.impl, code=CudaText(text))
    with pytest.raises(EmulatorError, match="found with a mark"):
        check(launch, tmp_path, 0)


def test_more_blocks_have_no_features_than_a_block_has_threads(tmp_path: Path) -> None:
    """A block sends a flag to each, of which there are more than it has threads."""
    launch = Launch("softmax, SGD", 44, 1, "FGGS", exchange=L2, threads=32)
    idle = 44 - launch.sharding.problem.layers[2]
    assert idle > launch.sharding.threads
    check(launch, tmp_path, 1)


FAR_STEPS = [
    ("float16", 4, 2, "FGFF", (2.0**24, 0.0), 0, 1),
    ("float16", 2, 1, "FSFG", (2.0**20, 5.0), 0, 1),
    ("binary cross-entropy, tanh", 4, 1, "FGFS", (1.0, 0.0), 9, 1),
    ("Adam in an order", 4, 2, "FSFF", (1.0, 0.0), 0, 3),
]
"""Steps that overflow, a partial batch, and micro-batches: also the loss scale, the examples that
are left, and turns."""


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "scale", "left", "turns"),
                         sliced(FAR_STEPS))
def test_steps_through_the_l2_cache(
        tmp_path: Path, name: str, ranks: int, groups: int, types: str,
        scale: tuple[float, float], left: int, turns: int) -> None:
    check(Launch(name, ranks, groups, types, scale, left, turns, L2), tmp_path, 2)


TURNS = [
    ("softmax, SGD", 1, 2, "FFFF", 2, 0), ("softmax, SGD", 2, 3, "SFGF", 2, 5),
    ("Adam in an order", 4, 2, "FSFF", 3, 0), ("Adam in an order", 1, 3, "FFFF", 2, 7),
    ("float32 inputs, a schedule", 2, 2, "FSFF", 2, 0), ("long rows", 2, 2, "SF", 3, 0),
    ("mean squares, gelu, no bias", 2, 2, "SFSF", 2, 3), ("an autoencoder", 2, 2, "SFS", 4, 0),
    ("binary cross-entropy, tanh", 4, 2, "FGFS", 2, 0), ("bfloat16", 2, 2, "FSFG", 2, 0),
    ("stochastic rounding, Adam", 2, 2, "FSFG", 2, 3), ("a wide middle", 8, 2, "FGFG", 2, 0),
    ("clusters share sums", 2, 3, "FG", 2, 4), ("clusters share sums", 2, 3, "FS", 2, 4),
    ("softmax, SGD", 1, 1, "FFFF", 2, 5), ("Adam in an order", 1, 1, "FFFF", 3, 7),
    ("Adam in an order", 4, 1, "FSFF", 2, 0), ("binary cross-entropy, tanh", 2, 1, "FGFS", 2, 4),
    ("stochastic rounding, decay alone", 1, 1, "FFFF", 2, 0), ("bfloat16", 2, 1, "FSFG", 3, 0),
]
"""How the work is shared by clusters that take their examples in micro-batches, how many, and what
is left for a partial batch."""


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "turns", "left"),
                         sliced(TURNS))
def test_micro_batches(tmp_path: Path, name: str, ranks: int, groups: int, types: str, turns: int,
                       left: int) -> None:
    check(Launch(name, ranks, groups, types, left=left, turns=turns), tmp_path, 2)


HELD = [
    ("Adam in an order", 1, 1, "FFFF", 1, 7), ("Adam in an order", 2, 1, "FSFG", 1, 0),
    ("float16 inputs, normalised", 1, 1, "FFFF", 1, 0), ("float16, Adam, tanh", 1, 1, "FFFF", 1, 0),
    ("stochastic rounding, Adam", 1, 2, "FFFF", 2, 3), ("one layer in an order", 1, 1, "FF", 1, 3),
    ("Adam in an order, state far", 1, 2, "FFFF", 2, 5),
]
"""Blocks of a network, and of a multiprocessor; with state in registers, but for the last."""


@pytest.mark.parametrize(("name", "ranks", "resident", "types", "turns", "left"), sliced(HELD))
def test_blocks_that_share_a_multiprocessor(tmp_path: Path, name: str, ranks: int, resident: int,
                                            types: str, turns: int, left: int) -> None:
    launch = Launch(name, ranks, 1, types, left=left, turns=turns, resident=resident)
    held = [part.in_registers for part in launch.op.attributes["choice"].layout.layers]
    assert any(held) != name.endswith(STATE_FAR)
    check(launch, tmp_path, 2)


EPOCHS: list[tuple[Any, ...]] = [
    ("an autoencoder", 2, 1, "SFS", 2), ("bfloat16", 2, 1, "", 4),
    ("more outputs than a register file", 2, 3, "FG"),
    ("mean squares, gelu, no bias", 1, 1, ""), ("clusters share sums", 2, 3, "FS", 4, 2),
    ("Adam in an order", 4, 2, "FSFF", 0, 3), ("float16", 4, 2, "FGFF", 5, 1, L2),
    ("Adam in an order", 12, 2, "FGFS", 0, 1, L2, True),
    ("softmax, SGD", 3, 1, "FSFS", 0, 1, L2),
]
"""How the work is shared, the examples of a partial batch, micro-batches, and where blocks
exchange: every place where losses are reported, and every workspace."""


@pytest.mark.parametrize("how", sliced(EPOCHS, 2), ids=lambda how: ", ".join(map(str, how)))
def test_a_whole_epoch_uses_its_workspaces_to_the_end(tmp_path: Path,
                                                      how: tuple[Any, ...]) -> None:
    """The last step of an epoch has the last of what is kept for each step."""
    name, ranks, groups, types, *more = how
    launch = Launch(name, ranks, groups, types, (64.0, 0.0), *more, whole_epoch=True)
    assert launch.arrays["loss"].shape == (STEPS,)
    check(launch, tmp_path, 2)


def test_epochs_keep_losses_in_every_way_and_use_every_workspace() -> None:
    layouts = [Launch(*how[:4], (64.0, 0.0), *how[4:]).op.attributes["choice"].layout
               for how in EPOCHS]
    assert {found.reports for found in layouts} == {layout.AT_ONCE, layout.BY_FIRST,
                                                    layout.BY_LAST}
    assert {name for found in layouts for name in found.workspaces(STEPS)} >= {
        "counters", "tally", "gradients", "weight_changes", "overflows", "all_reduces",
        "generations", "receive_buffers"}
    assert any(found.sharding.micro_batches > 1 and found.reports == layout.BY_LAST
               for found in layouts)


def test_a_tally_that_leaves_micro_batches_out_is_written_past_its_end(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = layout.Layout.workspaces

    def without_turns(self: layout.Layout, steps: int) -> dict[str, int]:
        found = complete(self, steps)
        return {**found, "tally": found["tally"] // self.sharding.micro_batches}

    monkeypatch.setattr(layout.Layout, "workspaces", without_turns)
    launch = Launch("clusters share sums", 2, 3, "FS", turns=2, whole_epoch=True)
    with pytest.raises(EmulatorError, match=r"outside its|of which it has"):
        check(launch, tmp_path, 0)
