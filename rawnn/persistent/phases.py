"""The phases of a training step: what a thread block of the persistent kernel does between two of
its barriers, or beside another phase.

- An `Epilogue` is what happens to finished sums in registers: bias, activation, loss, update.
- Phases name buffers of a block: `x` (inputs), `w1`, `b1` (weights, biases), `a1` (activations of
  boundary 1), `z1` (pre-activations, then their gradients), `logits`, `y` (labels or targets),
  `statistics` (of a softmax), `tallies` (of the loss), `overflow` (whether a gradient was too large
  for fp16), `scratch`. They hold no addresses (layout.py) and no C++ (the emitters).
- A phase says which buffers it reads and writes. The barriers of a block follow from that.

docs/persistent-kernel.md follows one phase through all files, and says what a new kind needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent.sharding import Sharding, ceil
from rawnn.persistent.tiles import Tiling, tiling

FORWARD, BACKWARD, GRADIENT = "forward", "backward", "gradient"
"""Kinds of GEMMs. GRADIENT is that of weights and biases."""
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"
IDENTITY, ACTIVATE, ACTIVATE_BACKWARD, LOSS = "identity", "activate", "activate_backward", "loss"
UPDATE, PUBLISH, ACCUMULATE = "update", "publish", "accumulate"
"""What becomes of a weight gradient: the optimizer step, a store for the other groups, or an
addition to what earlier micro-batches stored for them."""

INPUT, SOFTMAX, STATISTICS, OVERFLOW = "input", "softmax", "exchange of softmax", "overflow"
BETWEEN = "begin and end"
SUM_ALL, SUM_SHARES = "all clusters sum", "clusters sum and share"
"""Names of phases in cost tables and traces."""


@dataclass(frozen=True)
class Phase:
    """A part of the step. `name` is its line in the cost table and in a trace; phases may share
    one."""

    name: str

    def reads(self, d: Sharding) -> set[str]:
        """The buffers of a block that it reads."""
        return set()

    def writes(self, d: Sharding) -> set[str]:
        """The buffers of a block that it writes."""
        return set()

    @property
    def runs_beside_next(self) -> bool:
        """Whether some threads do it while the others go on with the next phase. A barrier that the
        next phase needs then stands ahead of both."""
        return False


@dataclass(frozen=True)
class Epilogue:
    """What happens to finished sums in registers.

    Adds the buffer `bias`, applies `function`, stores to the buffer `to`, and sends to the blocks
    of the group. ACTIVATE_BACKWARD reads `saved`; ACTIVATE writes it where the slope needs the
    input of the activation. With `own_rows` the block keeps its shard of the rows only.
    """

    function: str
    to: str = ""
    bias: str = ""
    saved: str = ""
    own_rows: bool = False
    send: Exchange | None = None

    @property
    def reads(self) -> set[str]:
        found = {self.bias, "y" if self.function == LOSS else "",
                 self.saved if self.function == ACTIVATE_BACKWARD else ""}
        return found - {""}

    @property
    def writes(self) -> set[str]:
        found = {self.to, self.saved if self.function == ACTIVATE else "",
                 "overflow" if self.function in (ACTIVATE_BACKWARD, LOSS) else ""}
        return found - {""}


@dataclass(frozen=True)
class Gemm(Phase):
    """`m` x `n` sums over `k` of the buffers `left` and `right`, on the tensor cores of a block.

    layer: 0 .. depth - 1.
    conditional: it runs only if the step counts (fp16 without overflow).
    """

    kind: str
    layer: int
    left: str
    right: str
    m: int
    n: int
    k: int
    epilogue: Epilogue
    conditional: bool = False

    def tiling(self, d: Sharding) -> Tiling:
        """How the warps share it. The layout may choose another one for a GRADIENT."""
        return tiling(ceil(self.m, 16), ceil(self.n, 8), ceil(self.k, 8), d.warps,
                      d.problem.numbers, may_split=self.kind != GRADIENT)

    def reads(self, d: Sharding) -> set[str]:
        return {self.left, self.right} | self.epilogue.reads

    def writes(self, d: Sharding) -> set[str]:
        """With a published gradient as with an update, so that barriers are the same in both."""
        if self.kind == GRADIENT:
            return {f"w{self.layer + 1}", f"b{self.layer + 1}"}
        return self.epilogue.writes | ({"scratch"} if self.tiling(d).split > 1 else set())


@dataclass(frozen=True)
class Exchange(Phase):
    """The receiving end of an exchange in a tensor-parallel group. An earlier epilogue sends.

    kind: ALL_GATHER (each block gets the features of all), REDUCE_SCATTER (each block gets all
        partial sums of its shard and adds them) or ALL_REDUCE (each block gets all partial sums of
        all features and adds them: one-shot).
    boundary: 0 .. depth.
    features: of all blocks together.
    rows: rows of `Sharding.sent` floats in a receive buffer.
    parts: partial sums of each row; 1 of an all-gather.
    idle: the last blocks, which have no features of the boundary. They still take part: a block
        without data sends or receives flags, so that no block runs ahead of another.
    flags: single numbers behind the rows of a receive buffer.
    second: it follows the reduce-scatter of a two-shot all-reduce.
    scratch_busy: the sending GEMM may still read its scratch memory, which the reduction needs. The
        exchange then has a block barrier of its own.
    """

    kind: str
    boundary: int
    features: int
    rows: int
    epilogue: Epilogue
    parts: int = 1
    idle: int = 0
    flags: int = 0
    second: bool = False
    scratch_busy: bool = False

    def reads(self, d: Sharding) -> set[str]:
        return self.epilogue.reads

    def writes(self, d: Sharding) -> set[str]:
        if self.name == STATISTICS:
            return set()  # all threads wait in the exchange
        shares_sums = self.parts > 1 and d.teams(self.rows // d.tp_size) > 1
        return self.epilogue.writes | ({"scratch"} if shares_sums and not self.scratch_busy
                                       else set())


@dataclass(frozen=True)
class Barrier(Phase):
    """The threads of a block wait for each other: what phases ahead wrote, phases behind read.
    `part` is what a trace calls the time since the last stamp; "" if there is no stamp."""

    part: str = "work"


@dataclass(frozen=True)
class ConvertInput(Phase):
    """Rows as the data set stores them become the operand `x` of layer 1."""

    def writes(self, d: Sharding) -> set[str]:
        return {"x"}


@dataclass(frozen=True)
class ClearInput(Phase):
    """A partial batch clears the rows of `x` that it has no examples for, and then has a block
    barrier of its own."""

    def reads(self, d: Sharding) -> set[str]:
        return {"x"}


@dataclass(frozen=True)
class Prefetch(Phase):
    """Threads from `first_thread` on start to copy the input of the next micro-batch, to the other
    half of its buffer."""

    first_thread: int = 0

    @property
    def runs_beside_next(self) -> bool:
        return self.first_thread > 0


@dataclass(frozen=True)
class LoadRate(Phase):
    """One thread reads the learning rate of the next step."""

    @property
    def runs_beside_next(self) -> bool:
        return True


@dataclass(frozen=True)
class Softmax(Phase):
    """Cross-entropy with labels: the gradient of `logits` goes to the buffer `to`.

    If warps or blocks share an example, a phase with `statistics` comes first: each finds the
    maximum and the sum of exponentials of its logits, and may send them.
    """

    logits: str
    to: str
    statistics: bool = False
    send: Exchange | None = None

    def reads(self, d: Sharding) -> set[str]:
        return {self.logits} if self.statistics else {self.logits, "y", "statistics"}

    def writes(self, d: Sharding) -> set[str]:
        if self.statistics:  # exponentials take the place of logits
            return {self.logits} if self.send else {self.logits, "statistics"}
        return {self.to, "tallies", "overflow"}


@dataclass(frozen=True)
class StoreTallies(Phase):
    """Each thread stores what its elements contribute to a loss in an epilogue."""

    def writes(self, d: Sharding) -> set[str]:
        return {"tallies"}


@dataclass(frozen=True)
class SumLoss(Phase):
    """The last warp adds up what the examples of the step contribute to the loss."""

    def reads(self, d: Sharding) -> set[str]:
        return {"tallies"}


@dataclass(frozen=True)
class CheckOverflow(Phase):
    """fp16: a block knows whether its gradients overflowed, and may send that to its group."""

    send: Exchange | None = None

    def reads(self, d: Sharding) -> set[str]:
        return {"overflow"}


@dataclass(frozen=True)
class AgreeOnStep(Phase):
    """fp16: the step counts if no block of any group saw an overflow."""

    def reads(self, d: Sharding) -> set[str]:
        return {"overflow"}


@dataclass(frozen=True)
class AdjustLossScale(Phase):
    """fp16: one thread doubles or halves the loss scale."""


@dataclass(frozen=True)
class GradientAllReduce(Phase):
    """Sums the published gradients of all data-parallel groups via L2, in the order of the groups,
    and updates the weights: all `tiles` of a block, or if `sharded` the share of this group, whose
    changes it publishes."""

    tiles: int
    sharded: bool = False

    def owned(self, d: Sharding) -> int:
        """Tiles that a group updates, and keeps the optimizer state of."""
        return ceil(self.tiles, d.dp_size) if self.sharded else self.tiles

    def writes(self, d: Sharding) -> set[str]:
        return parameters(d)


@dataclass(frozen=True)
class WeightAllGather(Phase):
    """Adds the changes of weights that the other groups published."""

    tiles: int

    def writes(self, d: Sharding) -> set[str]:
        return parameters(d)


def parameters(d: Sharding) -> set[str]:
    """The buffers of all weights and biases."""
    return {f"{name}{n}" for n in range(1, d.problem.depth + 1) for name in "wb"}


@dataclass(frozen=True)
class WaitForInput(Phase):
    """The input of the next micro-batch is complete, and all threads of the block are here."""
