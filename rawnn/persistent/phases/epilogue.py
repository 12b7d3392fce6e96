"""What happens to finished sums in registers: bias, activation, loss, a store, a send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rawnn.model.activations import activation
from rawnn.persistent.sharding import Sharding, ceil

if TYPE_CHECKING:
    from rawnn.persistent.cost import CostModel
    from rawnn.persistent.interpreter import Array, Block, Interpreter
    from rawnn.persistent.phases.exchange import Exchange
    from rawnn.persistent.writer import Kernel

IDENTITY, ACTIVATE, ACTIVATE_BACKWARD, LOSS = "identity", "activate", "activate_backward", "loss"
UPDATE, PUBLISH, ACCUMULATE = "update", "publish", "accumulate"
"""What becomes of a weight gradient: the optimizer step, a store for the other groups, or an
addition to what earlier micro-batches stored for them."""


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

    def cycles(self, model: CostModel) -> float:
        """An elementwise loss, which was fitted by itself. Other epilogues are part of the rest."""
        if self.function != LOSS:
            return 0.0
        elements = model.d.columns * model.d.outs(model.p.depth - 1)
        return model.costs.elementwise_round * ceil(elements, model.d.threads)

    def describe(self, d: Sharding) -> str:
        words = [word for word, said in (
            ("bias", bool(self.bias)), (d.problem.activation, self.function == ACTIVATE),
            (f"gradient of {d.problem.activation}", self.function == ACTIVATE_BACKWARD),
            ("loss", self.function == LOSS), ("update", self.function == UPDATE),
            ("send", self.send is not None)) if said]
        return f", {', '.join(words)}" if words else ""

    # -- text --------------------------------------------------------------------------------------
    @property
    def biases(self) -> str:
        """The biases that it adds, in C++; "" where it adds none."""
        return self.bias.replace("b", "biases")

    def text(self, k: Kernel, boundary: int, limit: str) -> str:
        """The C++ function: over row `m` (below the limit) and the examples e .. e + 3 where it
        sends, else over row `m` and the examples e, e + 1."""
        if self.function == LOSS:
            return "of_outputs"
        if self.send:
            columns = f" && e < {k.d.sent}" if k.d.sent < k.d.columns else ""
            if is_whole(limit) and not columns:
                return f"[=](int m, int e, float4 v) {{\n{self._sent(k, self.send)}\n}}"
            return f"[=](int m, int e, float4 v) {{\nif (m < {limit}{columns}) {{\n" \
                   f"{self._sent(k, self.send)}\n}}\n}}"
        if self.own_rows and limit == str(k.p.layers[boundary]):  # all rows are there
            text = f"const int own = m - rank * {k.d.shards[boundary]};\n" \
                   f"if (own >= 0 && own < n{boundary}) {{\n{self._stored(k, 'own', 'm')}\n}}"
        elif self.own_rows:
            shard = f"rank * {k.d.shards[boundary]} + m"
            text = self._stored(k, "m", shard)
        else:
            text = self._stored(k, "m", "m")
        if is_whole(limit):
            return f"[=](int m, int e, float v0, float v1) {{\n{text}\n}}"
        return f"[=](int m, int e, float v0, float v1) {{\nif (m < {limit}) {{\n{text}\n}}\n}}"

    def whole_text(self, k: Kernel, limit: str) -> str:
        """The C++ epilogue of a GEMM's tiles where it is more than a function of pairs (`text`); ""
        where it is none."""
        if self.function != ACTIVATE_BACKWARD or self.send or self.own_rows or k.p.scaled:
            return ""
        boundary = int(self.to[1:])
        count = "kAllRows" if is_whole(limit) else limit
        return f"Gradients<Shape, Activation, {k.type_of(boundary)}>{{{k.buffer(self.saved)}, " \
               f"{k.buffer(self.to)}, {count}}}"

    def _stored(self, k: Kernel, row: str, saved_row: str) -> str:
        """C++ that applies the function to v0 and v1, and stores them. `row` is that of the block's
        shard, `saved_row` that of all features."""
        if self.function == ACTIVATE_BACKWARD:
            return self._activation_gradient(k, row, saved_row)
        is_logits = k.p.labelled and self.to == f"z{k.p.depth}"
        to = k.logits if is_logits else k.buffer(self.to)
        if self.function != ACTIVATE:
            return _store(k, to, "v0", "v1", row)
        saved = [_store(k, k.buffer(self.saved), "v0", "v1", row)] if self.saved else []
        values = "Activation::apply(v0)", "Activation::apply(v1)"
        return "\n".join([*saved, _store(k, to, *values, row)])

    def _activation_gradient(self, k: Kernel, row: str, saved_row: str) -> str:
        to = k.buffer(self.to)
        saved = f"{to} + ({row}) * {k.d.pitch}" if self.saved == self.to \
            else f"{k.buffer(self.saved)} + ({saved_row}) * {k.d.pitch}"
        kept = f"const float2 kept = load_two<Shape>({saved} + e);\n"
        slopes = "Activation::backward(v0, kept.x)", "Activation::backward(v1, kept.y)"
        if not k.p.scaled:
            return kept + _store(k, to, *slopes, row)
        return f"{kept}const float d0 = {slopes[0]}, d1 = {slopes[1]};\n" \
               "report_overflow(found, poison<float16>(v0) + poison<float16>(v1) + " \
               "poison<float16>(d0) + poison<float16>(d1));\n" + _store(k, to, "d0", "d1", row)

    def _sent(self, k: Kernel, send: Exchange) -> str:
        """C++ that applies the function to `v`, and sends it."""
        lines = []
        if self.function == ACTIVATE:
            if self.saved:
                saved = f"{k.buffer(self.saved)} + m * {k.d.pitch} + e"
                lines.append(f"store_four<Shape>({saved}, v);")
            applied = ", ".join(f"Activation::apply(v.{c})" for c in "xyzw")
            lines.append(f"v = make_float4({applied});")
        return "\n".join([*lines, send.send_row(k)])

    # -- meaning -----------------------------------------------------------------------------------
    def interpret(self, run: Interpreter, block: Block, v: Array, boundary: int) -> None:
        """Of sums `v` [features, examples] at a boundary (0 is the input)."""
        p = run.p
        if self.bias:
            v = v + block.at[self.bias][:, None]
        if self.own_rows and len(v) == p.layers[boundary]:
            v = v[run.own(block, boundary)]
        if self.function == ACTIVATE:
            if self.saved:
                block.at[self.saved] = v
            v = activation(p.activation).function(v)
        elif self.function == ACTIVATE_BACKWARD:
            saved = block.at[self.saved]
            saved = saved if len(saved) == len(v) else saved[run.own(block, boundary)]
            run.check_overflow(block, v)
            v = v * activation(p.activation).slope(saved)
            run.check_overflow(block, v)
        elif self.function == LOSS:
            y = block.at["y"][run.shard(block, boundary)]
            if p.reconstruct and len(y) != len(v):
                y = block.at["y"]
            slope = 2 * (v - y) if p.loss == "SquaredError" else 1 / (1 + np.exp(-v)) - y
            v = run.scaled(block, slope * (1 / (len(run.inputs) * p.outputs)))
        if self.to:
            block.at[self.to] = v
        if self.send:
            self.send.send(run, block, v)


def is_whole(limit: str) -> bool:
    """Whether tiles have no rows beyond a limit in C++: then none need be left out."""
    return limit.isdecimal() and int(limit) % 16 == 0


def _store(k: Kernel, to: str, first: str, second: str, row: str) -> str:
    return f"store_two<Shape>({to} + ({row}) * {k.d.pitch} + e, {first}, {second});"
