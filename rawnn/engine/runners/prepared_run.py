"""The interface of runners and the run that they execute, so that the training loop is the same for
all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rawnn.data import Dataset
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.graphs.unrolling import is_single_kernel
from rawnn.model.layers import Network, Parameters
from rawnn.opts import Selection
from rawnn.plan import epoch_plans
from rawnn.plan.build import evaluation_step, training_step, used_tensors
from rawnn.plan.merging import spans, with_epoch_boundary, with_partial_batch
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import Recipe
from rawnn.plan.tensor import Role
from rawnn.ptx.user_kernels import with_user_kernels

EVALUATION_BATCH = 2000
"""Test examples per batch: enough to fill a GPU, 6 MB of activations for MNIST."""

State = Mapping[str, NDArray[Any]]
"""Parameters and optimizer state by tensor name, in their storage types."""


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and accuracy (0-1; NaN where the loss has none) over a data set."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class EvaluationPart:
    """`steps` batches of the test set, beginning at example `first`."""

    plan: Plan
    first: int
    steps: int


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to execute: the rewritten plans, the policy and the data.

    `train` is the step with metrics, `unreported` the step without the ops that only measure, for
    epochs that are not reported. `partial` is the step on the last, smaller batch of an epoch, if
    it is used. `start` initialises parameters and `refresh` updates their copies. `epoch_begin`
    and `epoch_end` enclose each epoch; `epoch_boundary` is an end and the next beginning, for
    runners that enqueue epochs back to back. `assemble` all-gathers sharded state.
    `evaluate` covers the test set in full batches and, if needed, one smaller batch. `steps`
    counts the full batches of an epoch, `updates` the partial one as well.
    """

    network: Network
    data: Dataset
    recipe: Recipe
    policy: Policy
    train: Plan
    unreported: Plan
    partial: Plan | None
    start: Plan
    refresh: Plan
    epoch_begin: Plan
    epoch_end: Plan
    epoch_boundary: Plan
    assemble: Plan
    evaluate: tuple[EvaluationPart, ...]
    steps: int
    updates: int

    @cached_property
    def merged_boundary(self) -> tuple[Plan, ...]:
        """`train` and `unreported`, each as one op that includes the epoch boundary, so that an
        epoch is one launch; () if their kernel cannot."""
        alike = self.policy.sync == "report" and (
            not self.policy.graph or is_single_kernel(self.train, self.policy))
        if not self.steps or not alike or not spans(self.train):
            return ()
        found = [with_epoch_boundary(plan, self.epoch_boundary) for plan
                 in (self.train, self.unreported)]
        plans = tuple(plan for plan in found if plan is not None)
        return plans if len(plans) == len(found) else ()

    @property
    def step_plans(self) -> list[Plan]:
        """The plans of an epoch's steps."""
        plans = self.merged_boundary or (self.train, self.unreported)
        return [plan for plan in (*plans, self.partial) if plan is not None]

    @property
    def state(self) -> list[str]:
        """Names of the tensors in a checkpoint: parameters and optimizer state."""
        tensors = self.train.tensors.values()
        return [t.name for t in tensors if t.role in ("parameter", "state")]

    def device_bytes(self) -> int:
        """Bytes of device memory of all tensors of the run, each counted once."""
        plans = [p for p in (self.train, self.unreported, self.partial) if p is not None]
        placed = used_tensors([*plans, self.start, self.epoch_begin, self.epoch_end,
                               self.assemble]).values()
        tests = [t for part in self.evaluate for t in used_tensors([part.plan]).values()
                 if t.role not in (Role.PARAMETER, Role.COPY)]
        batches = {t.name for t in self.train.tensors.values() if t.role is Role.BATCH}
        twice = {*self.train.alternating()} if self.policy.graph else \
            batches if self.policy.streams else set()
        doubled = [t for t in placed if t.name in twice
                   or (t.role is Role.BATCH and self.policy.graph)]
        return sum(t.nbytes for t in (*placed, *tests, *doubled)
                   if t.role not in (Role.HOST, Role.VIEW))

    def examples_of(self, step: int) -> int:
        """Examples in a step of the epoch, over all ranks."""
        examples = len(self.data.train_images)
        is_full = step < self.recipe.steps(examples)
        return self.recipe.batch if is_full else self.recipe.partial_size(examples)

    @property
    def shuffles_host(self) -> bool:
        """Whether batches are uploaded from the host in a new order each epoch."""
        return self.recipe.shuffle and bool(self.train.find(kind="upload"))

    @property
    def targets_per_example(self) -> int:
        """How many outputs of an example can be correct; 0 if the loss has no accuracy."""
        return self.network.loss_spec.counts(self.network.outputs)


def prepare(network: Network, data: Dataset, selection: Selection, recipe: Recipe,
            evaluation_batch: int = EVALUATION_BATCH) -> PreparedRun:
    """Build the baseline plans of a run and apply its toggles."""
    data_spec = data_spec_of(data, "train")
    train, policy = selection.apply(training_step(network, recipe, data_spec))
    near = row_by_row_operands(train)
    train = with_unaligned_rows(train, near)
    steps = recipe.steps(data_spec.examples)
    # A kernel of whole steps does the partial batch as it does others: no later toggle changes it.
    left_over = recipe.partial_size(data_spec.examples)
    merged = bool(left_over and steps and spans(train))
    deciding = selection.through(train.ops[0].impl) if merged else selection
    partial = with_unaligned_rows(deciding.apply(training_step(network, recipe, data_spec,
                                                               partial=True))[0],
                                  near).with_own_temporaries("partial.") if left_over else None
    if partial is not None and merged:
        train, partial, steps = with_partial_batch(train, partial, steps), None, steps + 1
    tests = data_spec_of(data, "test").examples
    batch = min(evaluation_batch, tests)
    left = tests % batch
    parts = [(batch, 0, tests // batch)] + ([(left, tests - left, 1)] if left else [])
    evaluate = tuple(
        EvaluationPart(with_unaligned_rows(selection.apply(
            evaluation_step(network, size, data_spec_of(data, "test", first)))[0], near),
                       first, steps)
        for size, first, steps in parts
    )
    unreported = train.without_metrics() if policy.report > 1 else train
    updates = recipe.updates(data_spec.examples)
    start, refresh, begin, end = (
        with_user_kernels(replace(plan, user_kernels=train.user_kernels)) for plan in (
            epoch_plans.start(train, network, recipe.seed), epoch_plans.refresh(train),
            epoch_plans.begin(train, recipe, data_spec.examples), epoch_plans.end(train, updates)))
    return PreparedRun(network, data, recipe, policy, train, unreported, partial, start, refresh,
                       begin, end, epoch_plans.boundary(begin, end), epoch_plans.assemble(train),
                       evaluate, steps, updates)


def row_by_row_operands(plan: Plan) -> frozenset[str]:
    """Operands that GEMMs without tensor cores read row by row, padded to no cache line."""
    return frozenset(op.operands[role] for op in plan.find(kind="matmul", impl="naive")
                     if op.attributes["layout"] == "nt" for role in ("a", "b"))


def with_unaligned_rows(plan: Plan, names: Collection[str]) -> Plan:
    """`plan` in which rows of these matrices do not begin at cache lines.

    A warp of a plain GEMM reads sixteen rows of weights and two of inputs at a time, word by word.
    If all rows begin at cache lines, these words lie in one bank of L1: an epoch of 784-10 took
    29.7 ms, and 24.5 ms with unaligned rows of the weights (H200)."""
    return plan.with_tensors(*(replace(t, near=True) for name, t in plan.tensors.items()
                               if plan.storage_of(name) in names))


class Runner(Protocol):
    """Executes a PreparedRun. `epoch` only enqueues if the device is asynchronous."""

    def epoch(self, reported: bool) -> None:
        """Train one epoch; `reported` says that its loss and accuracy will be asked for."""

    def metrics(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Mean loss and correct count of every step of the last reported epoch; waits for it."""

    def evaluate(self) -> Evaluation:
        """Loss and accuracy on the test set with the current parameters."""

    def assemble(self) -> None:
        """Give every rank all parameters and state if they are sharded. All ranks call it together;
        `parameters` and `state` do if nobody has."""

    def keep_sharded(self) -> None:
        """Skip `assemble`, because other ranks may be gone: each rank keeps its shard."""

    def parameters(self) -> Parameters:
        """The current parameters, float32, on the host."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Parameters and optimizer state in their storage dtypes: all that `load` needs to continue
        bit for bit."""

    def load(self, state: State) -> None:
        """Replace parameters and optimizer state, each in its storage dtype and shape."""

    def epoch_milliseconds(self) -> list[float]:
        """Time of every epoch so far: on a GPU between events on the device, else by the wall
        clock. Waits for the last epoch."""

    def peak_memory(self) -> int:
        """Peak bytes of device memory (0 on the host)."""

    def describe(self) -> dict[str, Any]:
        """Facts for the result, such as graph nodes and driver allocations."""

    def close(self) -> None:
        """Release everything; a second call is harmless."""


def evaluation_of(prepared: PreparedRun, parts: Iterable[
        tuple[EvaluationPart, NDArray[Any], NDArray[Any]]]) -> Evaluation:
    """Combine the losses and counts of each part, batch by batch, into means over all examples."""
    total = right = 0
    loss = 0.0
    for part, losses, correct in parts:
        examples = part.plan.batch * part.steps
        loss += float(losses[: part.steps].astype(np.float64).mean()) * examples
        right += int(correct[: part.steps].sum())
        total += examples
    per_example = prepared.targets_per_example
    accuracy = right / (total * per_example) if per_example else float("nan")
    return Evaluation(loss / total, accuracy)


def initial_state(plan: Plan) -> dict[str, NDArray[Any]]:
    """Initial values of optimizer state that is not zero."""
    started: dict[str, NDArray[Any]] = {}
    if "loss_scale" in plan.tensors:
        started["loss_scale"] = np.array([FIRST_LOSS_SCALE, 0], np.float32)
    return started


FIRST_LOSS_SCALE = 65536.0
"""The default of torch.amp.GradScaler. Overflows reduce it within a few steps."""
