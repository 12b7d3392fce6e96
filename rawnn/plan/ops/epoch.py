"""Ops that run once: at the start of training, or at the start and the end of an epoch."""

from __future__ import annotations

from types import SimpleNamespace

from rawnn.common import random
from rawnn.plan.op import Attributes, define
from rawnn.plan.ops.common import matrix_view

CLOCK_PERIOD = 1 << 29
MAX_STEPS = 3 * CLOCK_PERIOD
"""Number of steps up to which the clock counts exactly."""


def count_after(steps: int) -> int:
    """The clock after `steps` steps: from MAX_STEPS on it cycles through the last CLOCK_PERIOD
    values below. The steps of an epoch, fewer than CLOCK_PERIOD, can then be added in 32 bits
    however long training runs. By then Adam's bias correction is negligible, and random bits repeat
    only after CLOCK_PERIOD steps."""
    return steps if steps < MAX_STEPS else MAX_STEPS - CLOCK_PERIOD + steps % CLOCK_PERIOD


@define("initialise", reads=(), writes=("w",))
def initialise(t: SimpleNamespace, a: Attributes) -> None:
    """w uniform in [-bound, bound), by counter: the same values on every device."""
    w = matrix_view(t.w)
    sampled = random.uniform(a["seed"], a["stream"], w.size, a["bound"])
    w[...] = sampled.reshape(w.shape)


@define("cast", reads=("source",), writes=("copy",))
def cast(t: SimpleNamespace, a: Attributes) -> None:
    """copy = source * copy_scale, rounded to the copy's dtype."""
    t.copy[...] = t.source * t.source.dtype.type(a["copy_scale"])


@define("shuffle", reads=("clock",), writes=("order",))
def shuffle(t: SimpleNamespace, a: Attributes) -> None:
    """order = a permutation of the examples, keyed by the seed and the epoch, `ahead` from now."""
    t.order[...] = random.permutation(a["seed"], int(t.clock[0]) + int(a["ahead"]), len(t.order))


@define("schedule", reads=("clock",), writes=("rates",))
def schedule(t: SimpleNamespace, a: Attributes) -> None:
    """rates[s] = the learning rate of each step of the coming epoch."""
    from rawnn.model.schedules import Schedule

    plan = Schedule.from_attributes(a)
    first = int(t.clock[1])
    t.rates[...] = plan.rates(first, len(t.rates))


@define("tick", reads=("clock",), writes=("clock",))
def tick(t: SimpleNamespace, a: Attributes) -> None:
    """clock += (1, steps): the epoch is done; the steps follow count_after."""
    t.clock[0] += 1
    t.clock[1] = count_after(int(t.clock[1]) + int(a["steps"]))


@define("epoch_boundary", reads=("clock",), writes=("clock", "order"))
def epoch_boundary(t: SimpleNamespace, a: Attributes) -> None:
    """tick, and the order of the next epoch, whose number is given as `offset`."""
    tick(t, a)
    t.order[...] = random.permutation(a["seed"], int(a["offset"]), len(t.order))


@define("advance", reads=("cursor",), writes=("cursor",))
def advance(t: SimpleNamespace, a: Attributes) -> None:
    """cursor += steps."""
    t.cursor[0] += a["steps"]


@define("adjust_scale", reads=("overflow", "loss_scale"), writes=("overflow", "loss_scale"))
def adjust_scale(t: SimpleNamespace, a: Attributes) -> None:
    """Dynamic loss scaling: halve after an overflow, double after `growth` good steps."""
    scale, good = t.loss_scale
    if t.overflow[0]:
        scale, good = max(scale / 2, 1.0), 0
    else:
        good += 1
        if good >= a["growth"]:
            scale, good = min(scale * 2, 2.0**24), 0
    t.loss_scale[...] = scale, good
    t.overflow[0] = 0
