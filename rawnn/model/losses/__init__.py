"""Losses: each is one small file with its formula and gradient in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import unknown
from rawnn.common.registry import import_all

if TYPE_CHECKING:
    from rawnn.plan.build import Builder

Array = NDArray[Any]
Link = Literal["identity", "sigmoid", "softmax"]


@dataclass(frozen=True)
class Loss:
    """A loss on the network's last outputs z.

    `target_kind` says what it compares with: "labels" (y, class indices) or "targets" (t, as wide
    as z). A loss that is a mean over all elements says all with two functions, from which
    rawnn.plan.ops.losses makes its ops: `terms(z, t)`, the loss of each element, and
    `gradient(z, t)`, that of the mean. Any other defines its ops, and says how a plan is built from
    them: `measure(builder)` adds the ops that give loss (and correct), `backward(builder)` those
    that give the last dz. `parts` are the kinds of those ops, `fused` the one that does the work
    of all of them in one pass ("" where there is none).

    `counts` is how many answers an example of `outputs` outputs has that can be right (0: the loss
    has no accuracy). `total(z, targets)` is the sum of a batch's losses in float64, of examples
    where it compares with labels, else of elements (that of `terms` by default). `link` is what
    makes the network's answers of z: the softmax of a row, of which one class is right, the sigmoid
    of each element, which compares with numbers from 0 to 1, or nothing. `functor` is the CUDA
    functor (ptx/losses/losses.cuh) of a loss that is a mean over all elements, else ""; `of_rows`
    that of one which takes whole rows, of which a product's epilogue knows (ptx/gemm/mma_loss.cuh).
    `unit_power` is that of the targets' unit in a loss of z - t alone: 2 for squares, as z and t
    that are both c times as large make it c**2 times as large. Targets of such a loss can be
    normalised; 0 is any other loss.
    """

    name: str
    target_kind: Literal["labels", "targets"]
    measure: Callable[[Builder], None] | None = None
    backward: Callable[[Builder], None] | None = None
    parts: tuple[str, ...] = ()
    fused: str = ""
    counts: Callable[[int], int] = lambda outputs: 0
    total: Callable[[Array, Array], float] | None = None
    link: Link = "identity"
    functor: str = ""
    of_rows: str = ""
    unit_power: int = 0
    terms: Callable[[Array, Array], Array] | None = None
    gradient: Callable[[Array, Array], Array] | None = None

    @property
    def labelled(self) -> bool:
        """Whether an example has one right class, not an answer for each output."""
        return self.target_kind == "labels"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of its ops."""
        return (*self.parts, self.fused)

    def sum_of(self, z: Array, targets: Array) -> float:
        """The sum of a batch's losses, in float64."""
        if self.total is not None:
            return self.total(z, targets)
        assert self.terms is not None, f"the loss {self.name} has neither total nor terms"
        return float(self.terms(z, targets).sum(dtype=np.float64))

    def count_correct(self, z: Array, targets: Array) -> int:
        """How many of a batch's answers are right; 0 where none can be."""
        if self.link == "identity":
            return 0
        right = (z.argmax(axis=1) == targets if self.link == "softmax"
                 else (z > 0) == (targets > 0.5))
        return int(np.count_nonzero(right))


LOSSES: dict[str, Loss] = {}


def register(loss: Loss) -> Loss:
    LOSSES[loss.name] = loss
    return loss


def loss(name: str) -> Loss:
    """The loss `name`. Raises ConfigError for an unknown one."""
    if name not in LOSSES:
        raise unknown("loss", name, sorted(LOSSES))
    return LOSSES[name]


import_all(__name__, __path__)
