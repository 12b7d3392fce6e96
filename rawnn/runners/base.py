"""What every runner offers, so that the training loop need not know which one it drives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rawnn.data import Dataset
from rawnn.network import Network, Parameters
from rawnn.opts import Selection
from rawnn.policy import Policy
from rawnn.step.build import evaluation_step, training_step
from rawnn.step.plan import Plan

EVALUATION_BATCH = 2000
"""Test examples measured at a time: large enough to fill a GPU, 6 MB of activations for MNIST."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy (0-1) over a data set."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class Part:
    """`steps` batches of the test set, the first of them beginning at example `first`."""

    plan: Plan
    first: int
    steps: int


@dataclass(frozen=True)
class Work:
    """A run made ready: the rewritten plans, the policy, the data and the initial parameters.

    `train` measures loss and accuracy; `quiet` is the same step without the ops that only
    measure, for epochs that are not reported. `evaluate` covers the test set in whole batches and,
    if it is no multiple of them, one smaller batch for the rest.
    """

    network: Network
    data: Dataset
    initial: Parameters
    policy: Policy
    train: Plan
    quiet: Plan
    evaluate: tuple[Part, ...]
    steps: int


def prepare(network: Network, data: Dataset, initial: Parameters, selection: Selection,
            batch: int, lr: float, evaluation_batch: int = EVALUATION_BATCH) -> Work:
    """Build the baseline plans of a run and apply its toggles."""
    examples = len(data.train_images)
    train, policy = selection.apply(training_step(network, batch, examples, lr))
    tests = len(data.test_images)
    whole = min(evaluation_batch, tests)
    rest = tests % whole
    parts = [(whole, 0, tests // whole)] + ([(rest, tests - rest, 1)] if rest else [])
    evaluate = tuple(
        Part(selection.apply(evaluation_step(network, size, tests - first))[0], first, steps)
        for size, first, steps in parts
    )
    quiet = train.without_metrics() if policy.report > 1 else train
    return Work(network, data, initial, policy, train, quiet, evaluate, examples // batch)


class Runner(Protocol):
    """Executes a Work. `epoch` only enqueues where the device is asynchronous."""

    def epoch(self, measured: bool) -> None:
        """Train one epoch; `measured` says that its loss and accuracy will be asked for."""

    def metrics(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Mean loss and number right of every step of the last measured epoch; waits for it."""

    def evaluate(self) -> Evaluation:
        """Loss and accuracy on the test set with the parameters as they are."""

    def parameters(self) -> Parameters:
        """The parameters as they are, float32, on the host."""

    def epoch_milliseconds(self) -> list[float]:
        """Time of every epoch so far: on a GPU between events of the device, otherwise by the
        wall clock. Waits for the last."""

    def peak_memory(self) -> int:
        """Most bytes of device memory held at once (0 on the host)."""

    def describe(self) -> dict[str, Any]:
        """Facts for the result: graph nodes, driver allocations and the like."""

    def close(self) -> None:
        """Release everything; a second call is harmless."""


def evaluation_of(parts: Iterable[tuple[Part, NDArray[Any], NDArray[Any]]]) -> Evaluation:
    """Combine the losses and counts of each part, batch by batch, into means over all examples."""
    total = right = 0
    loss = 0.0
    for part, losses, correct in parts:
        examples = part.plan.batch * part.steps
        loss += float(losses[: part.steps].astype(np.float64).mean()) * examples
        right += int(correct[: part.steps].sum())
        total += examples
    return Evaluation(loss / total, right / total)
