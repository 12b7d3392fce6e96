"""fp16: whether a step counts, and the loss scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from rawnn.persistent.phases.exchange import Exchange
from rawnn.persistent.phases.phase import OTHER_BLOCKS, Line, Phase
from rawnn.persistent.sharding import Sharding

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Block, Interpreter
    from rawnn.persistent.writer import Kernel

OVERFLOW = "overflow"


@dataclass(frozen=True)
class FlagExchange(Exchange):
    """Each block gets the flags of all, which AgreeOnStep reads."""

    def rows_of_block(self, d: Sharding) -> tuple[int, str]:
        return 0, "0"

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ()

    def cost(self, model: CostModel) -> Iterator[Line]:
        yield Line(self.name, model.rest * self.cycles(model))

    def emit(self, k: Kernel) -> None:
        """Nothing: `transport.any` waits."""

    def interpret(self, run: Interpreter, block: Block) -> None:
        flags = self.received(run, block)
        block.at["overflow"] = np.array([any(bool(flag[0]) for flag in flags)])


@dataclass(frozen=True)
class CheckOverflow(Phase):
    """A block knows whether its gradients overflowed, and may send that to its group."""

    send: FlagExchange | None = None

    def reads(self, d: Sharding) -> set[str]:
        return {"overflow"}

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("send",) if d.dp_size > 1 else ()

    def emit(self, k: Kernel) -> None:
        if self.send:
            self.send.begin(k)
            k.w(f"transport.publish_flag<{self.send.c_type(k)}>(rank, "
                "*found != 0 ? 1.0f : 0.0f);")
        if k.d.dp_size > 1:
            k.stamp(self.name, "send")

    def interpret(self, run: Interpreter, block: Block) -> None:
        flag = np.array([block.overflowed])
        if self.send:
            self.send.send(run, block, flag)
        else:
            block.at["overflow"] = flag


@dataclass(frozen=True)
class AgreeOnStep(Phase):
    """The step counts if no block of any group saw an overflow. One of several data-parallel groups
    publishes what it has found."""

    lane = OTHER_BLOCKS

    def reads(self, d: Sharding) -> set[str]:
        return {"overflow"}

    def stamps(self, d: Sharding) -> Sequence[str]:
        return ("work",)

    def cost(self, model: CostModel) -> Iterator[Line]:
        between = model.costs.group_overflow_check if model.d.dp_size > 1 else 0.0
        yield Line(self.name, model.rest * (model.costs.overflow_check + between))

    def emit(self, k: Kernel) -> None:
        d, w = k.d, k.w
        found = "*found != 0" if d.tp_size == 1 else \
            f"transport.any<{k.schedule.exchanges[-1].c_type(k)}>()"
        if d.dp_size == 1:
            w(f"const bool skipped = {found};")
        else:
            w(f"const bool seen = {found};")
            w("const unsigned int overflow_flag_bit = ~(all_reduce >> 1) & 1u;")
            w("float4* const of_groups = reinterpret_cast<float4*>(overflows) + (all_reduce & 1) * "
              f"{d.blocks} + rank;")
            w(f"if (thread == 0) send_flagged(of_groups + group * {d.tp_size}, "
              "make_float4(seen ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f), overflow_flag_bit);")
        k.stamp(self.name)

    def interpret(self, run: Interpreter, block: Block) -> None:
        block.left_out = any(bool(other.at["overflow"][0]) for other in run.replicas(block))


@dataclass(frozen=True)
class AdjustLossScale(Phase):
    """One thread doubles or halves the loss scale."""

    label = "loss scale"

    def emit(self, k: Kernel) -> None:
        k.w(f"if (thread == 0) scaling->adjust(skipped, {k.p.growth}, (u + 1) & 1);")

    def interpret(self, run: Interpreter, block: Block) -> None:
        (op,) = run.plan.find(kind="adjust_scale")
        op.spec.reference(SimpleNamespace(
            overflow=np.array([block.left_out]), loss_scale=block.loss_scale), op.attributes)
        block.overflowed = block.left_out = False
        block.at.pop("overflow", None)
