"""The metrics of a step, from the partial sums of the blocks of its loss.

The backward pass needs no loss, only its gradient. So a kernel of several blocks stores each
block's sums in a row of the step, `loss_parts[s]` and `correct_parts[s]`, of which only the row's
sum is defined. One op adds up the rows of all steps of a graph, in parallel with other work.
"""

from __future__ import annotations

from types import SimpleNamespace

from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import step_of

KIND = "loss_sums"
PARTS = ("loss_parts", "correct_parts")
"""Operands that an op which measures may write instead of loss and correct."""


def report(t: SimpleNamespace, a: Attributes, loss: float, terms: int, right: int = 0) -> None:
    """Write the metrics of a step: `loss`, a mean over `terms`, and the correct count; as partial
    sums if the op has those."""
    s = step_of(t, a)
    if hasattr(t, "loss_parts"):
        t.loss_parts[s] = 0
        t.loss_parts[s, 0] = loss * terms
    if hasattr(t, "loss"):
        t.loss[s] = loss
    if hasattr(t, "correct_parts"):
        t.correct_parts[s] = 0
        t.correct_parts[s, 0] = right
    if hasattr(t, "correct"):
        t.correct[s] = right


@define(KIND, reads=(*PARTS, "cursor"), writes=("loss", "correct"),
        slotted=(*PARTS, "loss", "correct"), optional=("correct_parts", "correct"))
def loss_sums(t: SimpleNamespace, a: Attributes) -> None:
    """loss[s] = sum of loss_parts[s] / terms, and correct[s] likewise, of `span` steps."""
    first = step_of(t, a)
    steps = slice(first, first + int(a.get("span", 1)))
    t.loss[steps] = t.loss_parts[steps].sum(axis=1) / a["terms"]
    if hasattr(t, "correct"):
        t.correct[steps] = t.correct_parts[steps].sum(axis=1)
