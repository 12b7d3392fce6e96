"""The learning rate of a step, and the object of the optimizer step that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.phases.phase import Phase
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.writer import Kernel


@dataclass(frozen=True)
class LoadRate(Phase):
    """One thread reads the learning rate of the next step."""

    label, runs_beside_next, part_at_barrier = "learning rate", True, None

    def emit(self, k: Kernel) -> None:
        k.w("if (u + 1 < span) {")
        k.w(f"if (thread == {k.d.threads - 1}) rate = {k.rate('u + 1')};")
        k.w("}")


def prepare_optimizer(k: Kernel) -> None:
    """One thread makes the object of the optimizer step."""
    p = k.p
    if k.d.evaluates:
        return
    time = "steps_before + u + 1" if p.timed else "0"
    settings = "".join(f", {k.setting(i)}" for i in range(len(p.settings)))
    scale = "scaling->scale, " if p.scaled else ""
    rate = "rate" if p.scheduled else k.rate("")
    first = "micro_batch == 0 && " if k.d.micro_batches > 1 else ""
    k.w(f"if ({first}thread == {k.d.threads - 1}) *rule_of_step = Rule({scale}{rate}, "
        f"{time}{settings});")


def declare_rule(k: Kernel) -> None:
    """A copy of the object of the optimizer step, with the flags that the kernel knows."""
    k.w("Rule rule = *rule_of_step;")
    flags = "".join(f", {literal(value)}" for value in k.p.settings if isinstance(value, bool))
    if flags:
        k.w(f"Flags<Rule>::set(rule{flags});")
