"""The learning rate of a step, and the object of the optimizer step that has it.

Where that object depends on the number of the step, making it takes a thread about 200
instructions, so the last threads of a block make those of several steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawnn.persistent.phases.phase import Phase
from rawnn.persistent.writer import literal

if TYPE_CHECKING:
    from rawnn.persistent.problem import Problem
    from rawnn.persistent.writer import Kernel


AT_ONCE = 8
"""Steps whose objects are made at once."""


@dataclass(frozen=True)
class LoadRate(Phase):
    """Threads read the learning rates of the next steps."""

    label, runs_beside_next, part_at_barrier = "learning rate", True, None

    def emit(self, k: Kernel) -> None:
        many = rules_at_once(k.p)
        some = f" && (u + 1) % {many} == 0" if many > 1 else ""
        k.w(f"if (u + 1 < span{some}) {{")
        k.w(f"if (thread >= {k.d.threads - many}) rate = {rate_of_thread(k, 'u + 1')};")
        k.w("}")


def rules_at_once(p: Problem) -> int:
    """Steps whose objects are made at once. The loss scale may change with each step."""
    return AT_ONCE if p.timed and not p.scaled else 1


def rate_of_thread(k: Kernel, step: str) -> str:
    """C++: the learning rate of the step that a thread makes an object of, counted from `step`."""
    many = rules_at_once(k.p)
    if many == 1:
        return k.rate(step)
    return k.rate(f"min({step} + thread - {k.d.threads - many}, span - 1)")


def prepare_optimizer(k: Kernel) -> None:
    """Makes the objects of the next optimizer steps, a thread each."""
    p, many = k.p, rules_at_once(k.p)
    if k.d.evaluates:
        return
    first_thread = k.d.threads - many
    of_thread = f"thread - {first_thread}" if many > 1 else "0"
    time = f"steps_before + u + 1{f' + {of_thread}' * (many > 1)}" if p.timed else "0"
    settings = "".join(f", {k.setting(i)}" for i in range(len(p.settings)))
    scale = "scaling->scale, " if p.scaled else ""
    rate = "rate" if p.scheduled else k.rate("")
    first = "micro_batch == 0 && " if k.d.micro_batches > 1 else ""
    first += f"u % {many} == 0 && " if many > 1 else ""
    k.w(f"if ({first}thread >= {first_thread}) rules[{of_thread}] = Rule({scale}{rate}, "
        f"{time}{settings});")


def declare_rule(k: Kernel) -> None:
    """A copy of the object of the optimizer step, with the flags that the kernel knows."""
    p, many = k.p, rules_at_once(k.p)
    k.w(f"Rule rule = rules[{f'u % {many}' if many > 1 else 0}];")
    flags = "".join(f", {literal(value)}" for value in p.settings if isinstance(value, bool))
    k.w(f"Flags<Rule>::set(rule, {literal(p.decays)}{flags});")
