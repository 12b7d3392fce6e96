"""Losses: each is one small file that defines its ops and says how a plan is built from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rawnn.errors import unknown

if TYPE_CHECKING:
    from rawnn.step.build import Builder


@dataclass(frozen=True)
class Loss:
    """A loss on the network's last outputs z.

    `answers` says what it compares with: "labels" (y, class indices) or "targets" (t, as wide as
    z). `measure(builder)` adds the ops that give loss (and correct), `backward(builder)` those that
    give the last dz. `fused` names the op that does the work of all `parts` in one pass. `counts`
    is how many answers an example of `outputs` outputs has that can be right (0: the loss has no
    accuracy). `functor` is the CUDA functor (ptx/losses.cuh) of a loss that is a mean over all
    elements, else ""; `of_rows` that of one which takes whole rows, of which a product's epilogue
    knows (ptx/mma_loss.cuh).
    """

    name: str
    answers: Literal["labels", "targets"]
    measure: Callable[[Builder], None]
    backward: Callable[[Builder], None]
    parts: tuple[str, ...]
    fused: str
    counts: Callable[[int], int]
    functor: str = ""
    of_rows: str = ""


LOSSES: dict[str, Loss] = {}


def register(loss: Loss) -> Loss:
    LOSSES[loss.name] = loss
    return loss


def loss(name: str) -> Loss:
    """The loss `name`. Raises ConfigError for an unknown one."""
    if name not in LOSSES:
        raise unknown("loss", name, sorted(LOSSES))
    return LOSSES[name]


from rawnn.network.losses import bce as _bce  # noqa: E402
from rawnn.network.losses import cross_entropy as _cross_entropy  # noqa: E402
from rawnn.network.losses import mse as _mse  # noqa: E402

del _bce, _cross_entropy, _mse
