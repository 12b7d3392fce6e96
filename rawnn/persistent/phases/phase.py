"""What every kind of phase says about itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.layout import Layout
    from rawnn.persistent.sharding import Sharding
    from rawnn.persistent.writer import Kernel

BETWEEN = "begin and end"
"""The name of phases that share the line of the begin and the end of a step."""
INPUTS, TENSOR_CORES, ELEMENTWISE, OTHER_BLOCKS, BARRIER = (
    "input", "tensor cores", "loss and scale", "other blocks", "barrier")
"""Lanes of a chart of a schedule: what a phase keeps busy."""


@dataclass(frozen=True)
class Line:
    """A line of the cost table: a part of the step by its name, and its cycles."""

    name: str
    cycles: float


@dataclass(frozen=True)
class Phase:
    """A part of the step. `name` is its line in the cost table and in a trace; phases may share
    one.

    header: the file of its templates in ptx/persistent/; "" if all kernels include it (kernel.cuh).
    lane, label: where a chart has it, and in which words; "" if these are the name.
    """

    name: str

    header: ClassVar[str] = ""
    lane: ClassVar[str] = ELEMENTWISE
    label: ClassVar[str] = ""

    # -- memory ------------------------------------------------------------------------------------
    def reads(self, d: Sharding) -> set[str]:
        """The buffers of a block that it reads."""
        return set()

    def writes(self, d: Sharding) -> set[str]:
        """The buffers of a block that it writes."""
        return set()

    def unshared(self, earlier: Iterable[Phase]) -> set[str]:
        """Buffers for which it need not wait for `earlier` phases: each warp has the same part of
        them in both."""
        return set()

    def scratch_floats(self, d: Sharding) -> int:
        """Floats of scratch memory, which phases use one after the other."""
        return 0

    def own_floats(self, d: Sharding) -> Mapping[str, tuple[int, str]]:
        """Shared memory that no other phase uses: floats by name, and what they hold in words."""
        return {}

    # -- order and time ----------------------------------------------------------------------------
    @property
    def runs_beside_next(self) -> bool:
        """Whether some threads do it while the others go on with the next phase. A barrier that the
        next phase needs then stands ahead of both."""
        return False

    @property
    def is_conditional(self) -> bool:
        """Whether it runs only if the step counts (fp16 without overflow)."""
        return False

    @property
    def part_at_barrier(self) -> str | None:
        """What a trace calls the time from its last stamp to a barrier behind it; "" if there is no
        stamp, None if the barrier belongs to the phase ahead of this one."""
        return "work"

    def stamps(self, d: Sharding) -> Sequence[str]:
        """The parts that it stamps itself in a trace, in order."""
        return ()

    def next_warp(self, layout: Layout, first: int) -> int:
        """The warp at which a weight gradient behind it begins: that has no task of it, where the
        two run side by side. Its own first task is that of warp `first`."""
        return first

    def cost(self, model: CostModel) -> Iterator[Line]:
        """The lines of the cost table that it adds to; none if it costs nothing."""
        yield from ()

    def fetching(self, model: CostModel) -> float:
        """Cycles until the copies of the next input that it starts have ended, which phases behind
        it hide; 0 if it starts none."""
        return 0.0

    # -- text --------------------------------------------------------------------------------------
    def begin_launch(self, k: Kernel) -> None:
        """Emits what stands ahead of all steps of a launch."""

    def emit(self, k: Kernel) -> None:
        """Emits its C++."""
        raise NotImplementedError(f"{type(self).__name__} has no C++")

    def describe(self, d: Sharding) -> str:
        """What it does, in a few words."""
        return ""

    # -- meaning -----------------------------------------------------------------------------------
    def interpret(self, run: Interpreter, block: Block) -> None:
        """What it does to a block, in NumPy."""


@dataclass(frozen=True)
class Barrier(Phase):
    """The threads of a block wait for each other: what phases ahead wrote, phases behind read.
    `part` is what a trace calls the time since the last stamp; "" if there is no stamp."""

    part: str = "work"

    lane = label = BARRIER

    def stamps(self, d: Sharding) -> Sequence[str]:
        return (self.part,) if self.part else ()

    def next_warp(self, layout: Layout, first: int) -> int:
        return 0

    def emit(self, k: Kernel) -> None:
        k.w("__syncthreads();")
        if self.part:
            k.stamp(self.name, self.part)
