"""The phases of a step of one layer whose blocks share the inputs, and then the examples of the
softmax (ptx/persistent/by_examples.cuh).

Two exchanges, of which each sends a value once to every block that needs it: partial sums of the
outputs to the block that has the example, and the gradients of its outputs to all blocks. While
they are on their way, warps without a part in the softmax convert the inputs of the next step and
fetch those of the step behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rawnn.persistent.by_examples import (
    forward_tiles,
    forward_warps,
    input_floats,
    input_pitch,
    planes_pitch,
    softmax_warps,
    steps_of_examples,
    steps_of_inputs,
)
from rawnn.persistent.phases.exchange import Exchange, end_exchanges
from rawnn.persistent.phases.gemm import Gemm
from rawnn.persistent.phases.input import (
    Prefetch,
    WaitForInput,
    fetch,
)
from rawnn.persistent.phases.learning_rate import prepare_optimizer
from rawnn.persistent.phases.phase import ELEMENTWISE, INPUTS, OTHER_BLOCKS, Line, Phase
from rawnn.persistent.phases.softmax import place_of_tallies
from rawnn.persistent.phases.weight_gradient import WeightGradient
from rawnn.persistent.sharding import WARP, Sharding, ceil
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Array, Block, Interpreter
    from rawnn.persistent.writer import Kernel

HEADER = "by_examples.cuh"
SCATTER_EXAMPLES = "scatter of examples"
FORWARD_CYCLES, SOFTMAX_CYCLES, GATHER_CYCLES, GRADIENT_CYCLES = 600.0, 1000.0, 830.0, 700.0
GATHER_BYTES, GEMM_STEP = 20.0, 1.0
"""Cycles of each phase besides, bytes of an all-gather in a cycle, and cycles of a step of 16
inputs for an example, in each GEMM. Of 784-10 at batches of 32 to 256 in 16 blocks, and 128 in 8
(H100)."""
HIDDEN_ROUNDS, ROUND = 4, 350.0
"""Rounds of the free threads that convert inputs while exchanges are on their way, and cycles of
another."""


def at(k: Kernel, name: str) -> str:
    """C++: a place in shared memory with values of 16 bits."""
    return f"reinterpret_cast<Half*>({k.at(name)})"


def inputs(k: Kernel, step: str) -> str:
    """C++: the inputs of a step."""
    return f"{at(k, 'x')} + (({step}) & 1) * {2 * input_floats(k.d)}"


def labels(k: Kernel, step: str) -> str:
    """C++: the labels of a step."""
    return f"y + (({step}) & 1) * {k.d.columns}"


def _gemm(d: Sharding) -> float:
    """The cycles of a GEMM's steps."""
    return GEMM_STEP * d.columns * steps_of_inputs(d)


# -- the inputs ------------------------------------------------------------------------------------
def convert(k: Kernel, step: str, first_thread: int) -> None:
    """Emits the conversion of a step's bytes."""
    d, found = k.d, k.layout
    raw = f"reinterpret_cast<const unsigned char*>({k.at('raw')}) + (({step}) & 1) * " \
          f"{d.columns * found.raw_pitch}"
    k.w(f"by_examples::convert<Shape, {first_thread}, {d.ins(0)}, {input_pitch(d)}, "
        f"{found.raw_pitch}>({inputs(k, step)}, {raw}, {k.count(0)}, {k.present(step)});")


@dataclass(frozen=True)
class ConvertAhead(Phase):
    """Threads from `first_thread` on convert the inputs of the next step."""

    first_thread: int

    lane, label, part_at_barrier = INPUTS, "convert", None
    runs_beside_next = True

    def cost(self, model: CostModel) -> Iterator[Line]:
        d = model.d
        rounds = ceil(d.columns * ceil(d.ins(0), 8), d.threads - self.first_thread)
        yield Line(self.name, ROUND * max(rounds - HIDDEN_ROUNDS, 0))

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("work",)

    def emit(self, k: Kernel) -> None:
        k.w(f"if (u + 1 < span && thread >= {self.first_thread}) {{")
        convert(k, "u + 1", self.first_thread)
        k.w("}")
        k.stamp(self.name)


@dataclass(frozen=True)
class FetchAhead(Prefetch):
    """Threads from `first_thread` on start to copy the inputs of the step behind the next, and the
    order of the one behind that."""

    def emit(self, k: Kernel) -> None:
        w = k.w
        w(f"if (u + 2 < span && thread >= {self.first_thread}) {{")
        fetch(k, "u + 2")
        w("ptx::commit_copies();")
        if k.p.ordered:
            w("if (u + 3 < span) {")
            fetch_order(k, "u + 3")
            w("}")
        w("}")
        k.stamp(self.name, "fetch")

    def fetching(self, model: CostModel) -> float:
        return 0.0

    def interpret(self, run: Interpreter, block: Block) -> None:
        run.fetch(block, run.part + 1)


def fetch_order(k: Kernel, step: str) -> None:
    """Starts the copies of a step's order."""
    k.w(f"fetch_order<Shape, {k.schedule.prefetch.first_thread}, kBehindTargets>(fetched + "
        f"(({step}) & 1) * {k.d.columns}, order, first_of({step}), {k.present(step)});")
    k.w("ptx::commit_copies();")


@dataclass(frozen=True)
class WaitForInputs(WaitForInput):
    """The bytes of the step behind the next are complete, and its labels."""

    def emit(self, k: Kernel) -> None:
        w = k.w
        wait_for_bytes(k, "u + 2")
        w(f"labels_ahead.store({labels(k, 'u')});")
        end_exchanges(k)
        w("__syncthreads();")
        k.stamp(self.name, "next input")


def wait_for_bytes(k: Kernel, step: str) -> None:
    """Waits for the copies of a step, if there is such."""
    engine = f"by_engine<Shape, {k.d.ins(0)}, unsigned char>()"
    k.w("ptx::wait_for_copies<0>();")
    k.w(f"if ({engine} && {step} < span) ptx::wait_for(barriers + 8 * (({step}) & 1), "
        f"({step}) >> 1 & 1);")


# -- forward ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ForwardOfBytes(Gemm):
    """The partial sums of all outputs over a block's inputs."""

    header = HEADER

    def own_floats(self, d: Sharding) -> Mapping[str, tuple[int, str]]:
        return {"planes": (16 * steps_of_inputs(d) * planes_pitch(d) // 2, "weights in 16 bits")}

    def writes(self, d: Sharding) -> set[str]:
        return set()

    def scratch_floats(self, d: Sharding) -> int:
        return 0

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("work",)

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, FORWARD_CYCLES + _gemm(model.d))

    def emit(self, k: Kernel) -> None:
        d, p = k.d, k.p
        assert self.epilogue.send is not None
        self.epilogue.send.begin(k)
        prepare_optimizer(k)
        k.w(f"by_examples::forward<Shape, {p.outputs}, {forward_warps(d)}, {forward_tiles(d)}, "
            f"{16 * steps_of_inputs(d)}, {input_pitch(d)}, {self.epilogue.send.c_type(k)}>("
            f"transport, {at(k, 'planes')}, {inputs(k, 'u')}, {literal(float(p.scale))}f);")
        k.stamp(self.name)

    def interpret(self, run: Interpreter, block: Block) -> None:
        block.at["x"] = block.at.pop("raw")
        super().interpret(run, block)


def make_planes(k: Kernel) -> None:
    """Emits the planes of the weights that a launch begins with."""
    part = k.layout.layers[0]
    k.w(f"by_examples::make_planes<Shape, {k.p.outputs}, {part.pitch}>("
        f"{at(k, 'planes')}, weights1, {part.rows});")


# -- the loss --------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class OwnSoftmax(Exchange):
    """The first warps of a block get the partial sums of its own examples' outputs, and publish the
    gradients. Other warps go on."""

    lane = ELEMENTWISE
    part_at_barrier: ClassVar[str | None] = None

    def writes(self, d: Sharding) -> set[str]:
        return {"tallies"}

    def reads(self, d: Sharding) -> set[str]:
        return {"y"} | self.epilogue.reads

    def floats_of_block(self, d: Sharding) -> int:
        return d.tp_size * self.rows * d.own_examples

    def rows_of_block(self, d: Sharding) -> tuple[int, str]:
        """Examples in place of rows."""
        own = d.own_examples
        return own, f"max(0, min({own}, {d.sent} - rank * {own}))"

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait", "work")

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, SOFTMAX_CYCLES)

    def describe(self, d: Sharding) -> str:
        return f"{d.own_examples} examples a block, {4 * self.floats_of_block(d):,} bytes " \
               f"received, send"

    def c_type(self, k: Kernel) -> str:
        return "ScatteredExamples"

    def begin(self, k: Kernel) -> None:
        own, mine = self.rows_of_block(k.d)
        k.w(f"using {self.c_type(k)} = Exchange<kScatterExamples, {self.rows}, {own}, "
            f"{self.parts}, 0, 0, 0, 1, 0, 1>;")
        k.w(f"transport.expect<{self.c_type(k)}>({mine});")

    def emit(self, k: Kernel) -> None:
        d, p, name, w = k.d, k.p, self.c_type(k), k.w
        warps = softmax_warps(d)
        assert self.epilogue.send is not None
        gather = self.epilogue.send
        w(f"const float* const received_{name} = transport.wait_by_first<{name}, "
          f"{WARP * warps}>();")
        k.stamp(self.name, "wait")
        gather.begin(k)
        w(f"by_examples::softmax<Shape, {p.outputs}, {warps}, {name}, {gather.c_type(k)}>("
          f"transport, received_{name}, {self.epilogue.biases or 'nullptr'}, {labels(k, 'u')}, "
          f"present, {k.mean(p.batch)}, {place_of_tallies(k)});")
        k.stamp(self.name)

    def send(self, run: Interpreter, block: Block, v: Array) -> None:
        for other in run.group(block):
            other.received.setdefault(f"{self.kind} {self.name}", {})[block.tp_rank] = \
                v[:, _examples(run, other)]

    def interpret(self, run: Interpreter, block: Block) -> None:
        found, here = self.received(run, block), _examples(run, block)
        z = sum(found[1:], found[0])
        if self.epilogue.bias:
            z = z + block.at[self.epilogue.bias][:, None]
        powers = np.exp(z - z.max(axis=0, initial=-np.inf))
        hot = np.arange(run.p.outputs)[:, None] == block.at["y"][None, here]
        assert self.epilogue.send is not None
        self.epilogue.send.send(run, block, (powers / powers.sum(axis=0) - hot) / len(run.inputs))


def _examples(run: Interpreter, block: Block) -> slice:
    """The examples of a block."""
    own = run.d.own_examples
    return slice(block.tp_rank * own, (block.tp_rank + 1) * own)


@dataclass(frozen=True, kw_only=True)
class GatherGradients(Exchange):
    """The gradients of all examples' outputs, as planes of 16 bits."""

    lane = OTHER_BLOCKS

    def own_floats(self, d: Sharding) -> Mapping[str, tuple[int, str]]:
        return {"z1": (16 * steps_of_examples(d) * planes_pitch(d) // 2, "gradients")}

    def rows_of_block(self, d: Sharding) -> tuple[int, str]:
        return self.rows, str(self.rows)

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("wait",)

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, GATHER_CYCLES + self.rows * model.d.sent * 4 / GATHER_BYTES)

    def emit(self, k: Kernel) -> None:
        name = self.c_type(k)
        k.w(f"const float* const received_{name} = transport.wait<{name}>();")
        k.stamp(self.name, "wait")
        k.w(f"by_examples::store_gradients_of<Shape, {k.p.outputs}>({at(k, 'z1')}, "
            f"received_{name});")

    def interpret(self, run: Interpreter, block: Block) -> None:
        block.at["z1"] = np.concatenate(self.received(run, block), axis=1)


# -- backward --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class UpdateOfBytes(WeightGradient):
    """The weight gradient and its update, by a warp for each 16 inputs. Other warps add up the
    gradients of the biases."""

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, GRADIENT_CYCLES + _gemm(model.d))

    def begin_launch(self, k: Kernel) -> None:
        """Registers hold nothing."""

    def emit(self, k: Kernel) -> None:
        d, p = k.d, k.p
        gather = next(each for each in k.schedule.exchanges if isinstance(each, GatherGradients))
        k.w("{")
        self.declare_update(k)
        k.w(f"by_examples::update<Shape, {p.outputs}, {steps_of_inputs(d)}, "
            f"{steps_of_examples(d)}, {input_pitch(d)}, {literal(p.bias)}>({inputs(k, 'u')}, "
            f"{at(k, 'z1')}, {literal(float(p.scale))}f, finish, {at(k, 'planes')}, "
            f"received_{gather.c_type(k)});")
        k.w("}")
        k.stamp(self.name)


# -- ahead of the steps ----------------------------------------------------------------------------
def fetch_first_inputs(k: Kernel) -> None:
    """Starts the copies of the first two steps, and of the order of the third."""
    w, first = k.w, k.schedule.prefetch.first_thread
    for step in ("0", "1"):
        w(f"if ({step} < span && thread >= {first}) {{")
        fetch(k, step)
        w("}")
        w("ptx::commit_copies();")
        if step == "0":
            w(f"labels_ahead.store({labels(k, step)});")
    if k.p.ordered:
        w("__syncthreads();")
        w(f"if (2 < span && thread >= {first}) {{")
        fetch_order(k, "2")
        w("}")


def convert_first_inputs(k: Kernel) -> None:
    """Waits for the first two steps' inputs, and converts those of the first."""
    for step in ("0", "1"):
        wait_for_bytes(k, step)
    k.w(f"labels_ahead.store({labels(k, '1')});")
    k.w("__syncthreads();")
    convert(k, "0", 0)
    make_planes(k)
