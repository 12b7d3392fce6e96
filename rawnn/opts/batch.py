"""`batch`: another batch size than the configuration's; `batch=max` takes the largest that fits.

It changes the recipe, not the plan. Fewer, larger steps make an epoch faster, but at the same
learning rate an epoch learns less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rawnn.common.errors import ConfigError
from rawnn.common.words import counted
from rawnn.opts.registry import Parameter, Rewritten, Toggle, positive_count, register
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import Recipe

SHARE = 0.9
"""Fraction of the free memory that batch=max may use; libraries need workspaces in addition."""


def parse(text: str) -> str | int:
    return text if text == "max" else positive_count("batch")(text)


def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
    return plan, policy


def with_batch(value: str | int | None, recipe: Recipe, examples: int, free: int,
               needed: Callable[[Recipe], int]) -> tuple[Recipe, str]:
    """The recipe with the toggle's batch, and a sentence on what it means.

    `free` is the free device memory in bytes (0 without a GPU), `needed(recipe)` the bytes of a
    run. Raises ConfigError for a batch larger than the training set, and for max on the host.
    """
    if isinstance(value, int):
        if value > examples:
            raise ConfigError(f"batch={value} is larger than the training set ({examples} "
                              f"examples)")
        batch = value
    else:
        if not free:
            raise ConfigError("batch=max asks how much fits into a GPU's memory, and this run is "
                              "on the host: give batch=N")
        batch = _largest(lambda n: needed(replace(recipe, batch=n)) <= SHARE * free, examples)
    other = replace(recipe, batch=batch)
    steps, before = other.updates(examples), recipe.updates(examples)
    return other, (f"batch {batch} makes {counted(steps, 'step')} an epoch in place of "
                   f"{before:,}: at the same learning rate an epoch learns less; compare the "
                   f"accuracy, not only the time")


def _largest(fits: Callable[[int], bool], examples: int) -> int:
    """The largest batch that fits, by bisection: memory grows with the batch."""
    if not fits(1):
        raise ConfigError("batch=max: not even one example a step fits into the free memory")
    low, high = 1, examples
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


register(Toggle(
    "batch",
    claim="another batch size; max takes the largest that fits into memory",
    source="the report's batch-size study; Shallue et al., 2019, on what a larger batch costs",
    group="numbers", apply=apply, host=True, parameter=Parameter("N|max", parse, None),
    resolved_value=lambda value, plan: plan.batch,
))
