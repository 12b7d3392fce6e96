"""How the thread blocks of one kernel share a network and its batch.

A tensor-parallel group of blocks shares the features of each boundary between two layers. At a
boundary, values are *replicated* (every block has all features), *sharded* (each block has its
shard) or *all-gathered* (computed in shards, then sent to all). The boundaries around a layer say
how its weights are shared:

    inputs                     outputs                    layer
    replicated, all-gathered   replicated                 replicated: each block has all weights
    replicated, all-gathered   sharded, all-gathered      column-parallel: rows of [outputs, inputs]
    sharded                    replicated                 row-parallel, and an all-reduce: columns
    sharded                    sharded, all-gathered      not supported: it needs two exchanges
    sharded                    split by examples          row-parallel, of a network of one layer

Gradients are shared as the values of their boundary. In the backward pass of a column-parallel
layer each block has a partial sum of the gradient of its inputs. A replicated layer needs no
exchange, which is best for narrow layers. schedule.py has the phases that follow from a sharding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rawnn.persistent.problem import Problem

REPLICATED, SHARDED, ALL_GATHERED = "F", "S", "G"
"""Boundaries between layers, as users type them in `persistent=4x8:256:FSGF`."""
BY_EXAMPLES = "E"
"""The outputs of a single layer, where each block has all of them for its own examples
(phases/by_examples.py)."""
DSMEM, L2, STREAM = "cluster", "l2", "stream"
"""Transports: a tensor-parallel group is a thread block cluster, whose blocks exchange through
distributed shared memory; or it exchanges via L2, through global memory that stays in that cache,
from where it comes to shared memory; or operands stream from L2 to registers.
"""
STREAMED_WIDTH = 8
"""Features of a hidden boundary that a block owns where operands stream."""
REPLICATED_LAYER, COLUMN_PARALLEL, ROW_PARALLEL = "replicated", "column-parallel", "row-parallel"
WARP = 32
REGISTERS, MOST_REGISTERS = 65536, 255
"""Of a multiprocessor, on every GPU with asynchronous copies; and of a thread, at most."""
TILE = 128
"""Floats of a tile of gradients: 16 inputs x 8 outputs of a weight, or 128 biases."""
LOADS_IN_FLIGHT = 8
"""Partial sums that a thread loads via L2 at once (kLoadsInFlight in
persistent/exchange_l2.cuh)."""
ONE_SHOT_BYTES = 8192
"""Bytes of partial sums up to which an all-reduce is one-shot: each block sends its partial sums to
all others, and each adds up all of them."""
ONE_SHOT_BYTES_VIA_L2 = 65_536
"""The same via L2, where a second exchange takes about as long as these bytes, and all blocks read
one copy."""


def ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def up(a: int, b: int) -> int:
    """The least multiple of b that is at least a."""
    return ceil(a, b) * b


def pitch(n: int) -> int:
    """Floats from one row of a fragment's operand to the next: at least n, and 8 more than a
    multiple of 16, so that 4 rows by 8 columns lie in 32 banks."""
    return n + (8 - n) % 16


@dataclass(frozen=True)
class Members:
    """Many networks of one kernel: a tensor-parallel group trains one member, and there are no
    data-parallel groups. Each member has weights, optimizer state, learning rates, settings and an
    order of its own (ptx/persistent/members.cuh).

    listed: whether a member takes its examples from a list of rows, such as a fold.
    shuffled: whether every epoch has a new order.
    evaluates: whether the kernel runs the forward phases and the loss alone, in the rows' order.
    uneven: whether lists of rows differ in length.
    single: what the kernel of one network trains in its place. Where a sharding leaves `resident`
        out, the layout of that kernel decides how gradients are tiled, on which bits depend.
    """

    listed: bool = False
    shuffled: bool = False
    evaluates: bool = False
    uneven: bool = False
    single: Problem | None = None


@dataclass(frozen=True)
class Sharding:
    """How the thread blocks of one kernel share a network and its batch.

    tp_size: thread blocks of a tensor-parallel group. They share the features of each boundary.
    dp_size: data-parallel groups. Each takes an equal share of the batch.
    threads: threads of a block.
    boundaries: one letter for each boundary 0 .. depth: REPLICATED, SHARDED or ALL_GATHERED.
    micro_batches: parts in which a group takes its share of the batch. Their gradients are
        accumulated in global memory, or with one group in registers.
    transport: DSMEM (each tensor-parallel group is a thread block cluster) or L2.
    members: where every tensor-parallel group trains a network of its own; None for one network.
    resident: blocks that share the memory and registers of a multiprocessor; 0 where the sharding
        does not say, which is one. Where it says, the tiles of a gradient do not depend on where
        optimizer state lies, and state may lie in registers.
    peers: blocks of a thread block cluster, which share the inner dimension of each GEMM where
        operands stream.
    """

    problem: Problem
    tp_size: int
    dp_size: int
    threads: int
    boundaries: str
    micro_batches: int = 1
    transport: str = DSMEM
    members: Members | None = None
    resident: int = 0
    peers: int = 1

    def __str__(self) -> str:
        micro = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        clusters = f" in clusters of {self.peers}" if self.peers > 1 else ""
        transport = f", streamed{clusters}" if self.is_streamed else \
            ", through L2" if self.via_l2 else ""
        resident = f", {self.resident} a multiprocessor" if self.resident else ""
        return f"{self.tp_size} x {self.dp_size} blocks of {self.threads} threads, " \
               f"{self.boundaries}{transport}{micro}{resident}"

    @property
    def text(self) -> str:
        """The sharding as users type it, which says all that bits depend on."""
        peers = self.peers if self.peers > 1 else ""
        transport = f"@{self.transport}{peers}" if self.via_l2 else ""
        resident = f"x{self.resident}" if self.resident else ""
        micro = f":{self.micro_batches}" if self.micro_batches > 1 else ""
        return f"{self.tp_size}x{self.dp_size}{transport}:{self.threads}{resident}:" \
               f"{self.boundaries}{micro}"

    @property
    def blocks_per_multiprocessor(self) -> int:
        """Blocks that share a multiprocessor. It is one if the sharding does not say."""
        return max(self.resident, 1)

    @property
    def registers(self) -> int:
        """Registers of a multiprocessor for each of its threads. ptxas grants a thread the largest
        multiple of eight of these, and MOST_REGISTERS at most."""
        return REGISTERS // (self.threads * self.blocks_per_multiprocessor)

    @property
    def holds_tiles(self) -> bool:
        """Whether a tile of a gradient belongs to one warp for a whole launch, so that what is kept
        of it may lie in the warp's registers."""
        return self.dp_size == 1 and not self.evaluates \
            and (self.resident > 0 or self.micro_batches > 1)

    @property
    def via_l2(self) -> bool:
        """Whether the blocks of a tensor-parallel group exchange via L2."""
        return self.tp_size > 1 and self.transport != DSMEM

    @property
    def is_streamed(self) -> bool:
        """Whether operands stream from L2 to registers (ptx/persistent/streamed.cuh)."""
        return self.transport == STREAM

    @property
    def cluster_size(self) -> int:
        """Blocks of a thread block cluster."""
        return self.peers if self.via_l2 else self.tp_size

    @property
    def blocks(self) -> int:
        return self.tp_size * self.dp_size

    @property
    def publishes_bf16(self) -> bool:
        """Whether data-parallel groups publish gradients and changes of weights as bfloat16: where
        GEMMs take bfloat16 and weights are float32. Not the gradients of micro-batches, which
        accumulate where they are published."""
        p = self.problem
        return self.dp_size > 1 and p.numbers == "bfloat16" and not p.streams \
            and self.micro_batches == 1

    @property
    def published_bytes(self) -> int:
        """Bytes of a published gradient."""
        return 2 if self.publishes_bf16 else 4

    @property
    def members_or_fail(self) -> Members:
        """Of a kernel of many networks."""
        assert self.members is not None
        return self.members

    @property
    def evaluates(self) -> bool:
        """Whether the kernel trains nothing, and measures the loss of members."""
        return self.members is not None and self.members.evaluates

    @property
    def warps(self) -> int:
        return self.threads // WARP

    @cached_property
    def group_batch(self) -> int:
        """Examples of the largest data-parallel group in a step."""
        return ceil(self.problem.batch, self.dp_size)

    @cached_property
    def micro_batch(self) -> int:
        """Examples of the largest micro-batch of a group."""
        return ceil(self.group_batch, self.micro_batches)

    @cached_property
    def columns(self) -> int:
        """Examples of a micro-batch, padded to the tiles of tensor cores."""
        return up(self.micro_batch, 8)

    @cached_property
    def sent(self) -> int:
        """Columns that an exchange sends: the examples, in fours. All columns where a gradient
        overwrites the pre-activations, of which nothing may remain."""
        return self.columns if self.problem.saves_input else up(self.micro_batch, 4)

    @cached_property
    def pitch(self) -> int:
        return pitch(self.columns)

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """REPLICATED_LAYER, COLUMN_PARALLEL or ROW_PARALLEL for each layer."""
        return layer_kinds(self.boundaries) or ()

    @cached_property
    def shards(self) -> tuple[int, ...]:
        """Features of the first block's shard of each boundary; the last blocks may have fewer."""
        p = self.problem
        whole = 16 // p.input_size
        sizes = [ceil(n, self.tp_size) for n in p.layers]
        sizes[0] = up(sizes[0], whole)
        if p.reconstruct:
            sizes[-1] = sizes[0]
        elif self.boundaries[-1] == SHARDED and not p.labelled:
            sizes[-1] = up(sizes[-1], 4)
        return tuple(sizes)

    def idle(self, boundary: int) -> int:
        """Blocks, the last ones, whose shard of a boundary has no features."""
        return self.tp_size - ceil(self.problem.layers[boundary], self.shards[boundary])

    def ins(self, layer: int) -> int:
        """Inputs of the layer (0 .. depth - 1) in a block, at most."""
        return self.shards[layer] if self.layer_kinds[layer] == ROW_PARALLEL \
            else self.problem.layers[layer]

    def outs(self, layer: int) -> int:
        """Outputs of the layer in a block, at most."""
        return self.shards[layer + 1] if self.layer_kinds[layer] == COLUMN_PARALLEL \
            else self.problem.layers[layer + 1]

    def gradient_tiles(self, layer: int) -> int:
        """Tiles of a layer's gradient in a block, biases included."""
        tiles = ceil(self.ins(layer), 16) * ceil(self.outs(layer), 8)
        return tiles + (ceil(self.outs(layer), TILE) if self.problem.bias else 0)

    @property
    def has_exchanges(self) -> bool:
        """Whether the blocks of a group exchange values or sums in a step."""
        return self.shards_softmax or ALL_GATHERED in self.boundaries \
            or ROW_PARALLEL in self.layer_kinds or COLUMN_PARALLEL in self.layer_kinds[1:]

    @property
    def shards_softmax(self) -> bool:
        """Whether each block has the softmax of its own shard of the outputs."""
        return self.problem.labelled and self.boundaries[-1] == SHARDED

    @property
    def splits_examples(self) -> bool:
        """Whether each block has the softmax of its own examples, of one layer that reads bytes."""
        return self.boundaries[-1] == BY_EXAMPLES

    @cached_property
    def own_examples(self) -> int:
        """Examples of the first block, in fours, where blocks split them; the last have fewer."""
        return ceil(self.sent // 4, self.tp_size) * 4

    @property
    def separates_logits(self) -> bool:
        """Whether a softmax stores gradients elsewhere than where its logits lie: those of all
        blocks, or gradients in 16 bits."""
        return self.boundaries[-1] == ALL_GATHERED or (self.problem.labelled
                                                       and self.problem.halved)

    @property
    def stores_tallies(self) -> bool:
        """Whether what each example contributes to the loss goes to global memory, and is added up
        behind the steps. With one group, no other phase hides `SumLoss`. Of many members, such a
        buffer would be as large as their orders of examples: they sum in each step. So do
        micro-batches, which members have in the same way."""
        return self.problem.labelled and self.dp_size == 1 and self.members is None \
            and self.micro_batches == 1

    def is_one_shot(self, features: int) -> bool:
        """Whether the all-reduce of so many features is one-shot: every block adds up all partial
        sums. Else it is two-shot: a reduce-scatter, then an all-gather."""
        most = ONE_SHOT_BYTES_VIA_L2 if self.via_l2 else ONE_SHOT_BYTES
        return features * self.sent * 4 * self.tp_size <= most

    def teams(self, rows: int) -> int:
        """Threads that share one sum of a reduction via L2 of so many rows: as many as have
        LOADS_IN_FLIGHT parts each, as far as there are threads."""
        if not self.via_l2:
            return 1
        items = rows * self.sent // 4
        return max(1, min(ceil(self.tp_size, LOADS_IN_FLIGHT), self.threads // items))


def output_boundaries(problem: Problem) -> str:
    """The letters that the last boundary may have."""
    return REPLICATED + SHARDED + (ALL_GATHERED if problem.labelled else "")


def layer_kinds(boundaries: str) -> tuple[str, ...] | None:
    """The kind of each layer between boundaries; None where a layer is not supported."""
    found = []
    for below, above in pairwise(boundaries):
        if below == SHARDED and above not in (REPLICATED, BY_EXAMPLES):
            return None
        if below == BY_EXAMPLES or (above == BY_EXAMPLES and below != SHARDED):
            return None
        found.append(ROW_PARALLEL if below == SHARDED else
                     REPLICATED_LAYER if above == REPLICATED else COLUMN_PARALLEL)
    return tuple(found)
