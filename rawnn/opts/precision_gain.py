"""Fewer bits are not slower: `best` beside what it would take in the precisions with more bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rawnn.model.layers import Network
from rawnn.opts.persistent_payoff import Estimate, Verdict, estimate_sharding, evaluate_payoff
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import DataSpec, Recipe

MORE_BITS = {"tf32": ("",), "bf16": ("tf32", ""), "fp16": ("tf32", ""), "sr": ("bf16", "tf32", "")}
"""The precisions with more bits, by precision; "" is float32."""
CLEAR = 1.25
"""Ratio of two expected times beyond which the difference is clear of the model's error: twice that
of a ratio of two times, each of which is about 9 % off."""


def compare_more_bits(verdict: Verdict, network: Network, recipe: Recipe, data_spec: DataSpec,
                      precision: str, machine: Machine,
                      launch_us: Callable[[str], float | None]) -> tuple[Verdict, list[str]]:
    """The verdict, and a sentence where a precision with more bits is clearly faster.

    Launches in fewer bits are faster, so that more steps earn the compilation of the persistent
    kernel. Where a run in more bits takes it, this one does, too: its steps are not slower.
    `launch_us` has the measured microseconds of a step by launches in a precision."""
    own = verdict.estimate
    if own is None:
        return verdict, []
    sharding = own.choice.sharding if own.choice else None
    others = {other: estimate_sharding(network, recipe, data_spec, other, machine,
                                       launch_us(other), sharding)
              for other in MORE_BITS.get(precision, ())}
    steps = recipe.updates(data_spec.examples) * recipe.epochs
    if not verdict.taken and own.choice and own.persistent < own.launches:
        for other, found in others.items():
            # A search in the other precision is slow, and finds nothing faster than this one's.
            if steps >= replace(found, choice=own.choice).steps_needed and evaluate_payoff(
                    network, recipe, data_spec, other, machine, launch_us(other)).taken:
                verdict = replace(verdict, taken=True, why=(
                    f"best takes persistent: {own.persistent:.1f} us a step are expected of it "
                    f"({own.choice.sharding}), {own.launches:.0f} of launches; {steps} steps earn "
                    f"its compilation in {other or 'float32'}, so that {precision} takes it, too"))
                break
    return verdict, _faster(own, verdict.taken, precision, others, steps)


def _faster(own: Estimate, persistent: bool, precision: str, others: dict[str, Estimate],
            steps: int) -> list[str]:
    """A sentence that names the fastest precision with more bits, if it is clearly faster."""
    us = own.persistent if persistent else own.launches
    least, fastest = min(((found.us(steps), other) for other, found in others.items()),
                         default=(us, precision))
    if us <= CLEAR * least:
        return []
    return [f"{fastest or 'float32'} is expected to be faster here than {precision}: "
            f"{least:.1f} us a step in place of {us:.1f}"]
