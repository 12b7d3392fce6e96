"""Whether systems did the same work: their losses over the first steps, from the same initial
weights on the same batches.

Of one network the means over windows of WINDOW steps are compared. The reference is the truth, in
float64, where a system gives it (PyTorch does), else the median of all systems' float32 losses,
step by step: with three systems one that is wrong does not move it. Of an ensemble some members'
mean losses of each epoch are compared with those that NumPy computes in float64.

Allowed is a share of how far the loss has moved since the first step, so that a wrong update shows,
a share of the loss itself for what rounding does to it, and SLACK times what float32 costs this
very run: training amplifies rounding, in some networks by more than any fixed tolerance. That cost
is the median over the systems of their float32 losses' distance from the truth; of two systems the
greater, but at most ALIKE times the lesser. One that is wrong does not move it far in either case.
It is the greatest up to the window that follows, as runs do not begin to part at the same step.

No fixed share of a loss says how far tf32 may move it, either. So where a program's losses are
further from the truth than the fixed shares allow, its network is trained WAYS times in NumPy, with
operands of products that are rounded up or down at random, in proportion to how near either is; of
tf32 also once with operands that are cut off, as tensor cores do with those that a kernel has not
rounded. Each is as valid a run as the program's own. The program may be as far away as TIMES the
furthest of them. What is wrong by more than rounding is still found, and a network that rounding
hardly moves gets no wider tolerance. A network for which that would take minutes is allowed what
its precision costs the systems, as in float32, or TIMES what bf16 costs them: at a batch of one
others multiply in float32 where tf32 is allowed, which says nothing of tf32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.numpy_many import Stacked
from rawnn.bench.peers.numpy_system import Loop, Tensor
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import CHECKED_EPOCHS, TRUTH, WINDOW, Losses, ReadyProgram

TOLERANCES = {"float32": (0.01, 1e-4), "tf32": (0.03, 1e-3), "bf16": (0.1, 1e-2)}
"""Precision -> the shares of the loss's movement and of the loss that windows may differ by."""
SLACK = 8.0
ALIKE = 4.0
"""Of two right runs in float32 one may be so many times as far from float64 as the other."""
BITS = {"tf32": 10, "bf16": 7}
"""Precision -> fraction bits of its operands; float32's own cost is known from the systems."""
WAYS = 8
TIMES = 2.0
"""In 629-387-675-36-49 at batch 2 with Adam, whose losses in tf32 such runs move by up to 3.3 times
the fixed shares, rounding to the nearest uses up 0.34 of this, a run without the last bias 6.1, one
on other batches 9.6 (results/trials/peers.toml)."""
MOST_WORK = 1e11
"""Operations of a run up to which it is measured: all ways take some seconds. A larger one, up to
WAYS times as large, has batches over which random rounding averages out, and the cut alone."""
ROUNDING = 300
"""Operations of a product in whose time one operand is rounded at random."""

Cost = NDArray[np.float64] | float
"""How far from float64 a precision moves losses."""
ShareOf = Callable[[ReadyProgram], float]
"""How much of the tolerance a program's losses used up; above 1 is wrong."""


@dataclass(frozen=True)
class Reference:
    """What losses of a network are compared with: float64 [steps], what float32 costs by windows,
    and what other precisions do."""

    losses: NDArray[np.float64]
    cost: NDArray[np.float64]
    coarse: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def share(self, losses: Losses, precision: str, more: Cost = 0.0) -> float:
        """The largest share of the tolerance that a window used up; above 1 is wrong, and so are
        losses that are not finite. `more` is what the precision costs this very run, by windows,
        where that is known."""
        mine, right = windows(as_array(losses)), windows(self.losses[:len(losses)])
        return _share(mine, right, self.losses[0], np.maximum(
            SLACK * self.cost, more)[:len(right)], precision)

    def distance(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the losses of all steps that are checked are away, by windows."""
        return np.abs(windows(losses) - windows(self.losses))


@dataclass(frozen=True)
class EnsembleReference:
    """In float64: the loss of each checked member's first step [members], the mean loss of each
    epoch [epochs, members], and how far float32 is from it."""

    first: NDArray[np.float64]
    epochs: NDArray[np.float64]
    cost: NDArray[np.float64]

    def share(self, losses: Losses, precision: str, more: Cost = 0.0) -> float:
        """As of a network."""
        mine = as_array(losses)
        if mine.size == self.epochs.size:
            mine = mine.reshape(self.epochs.shape)
        return _share(mine, self.epochs, self.first, np.maximum(SLACK * self.cost, more), precision)

    def distance(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
        """How far the losses of all steps [steps, members] are away, by epochs."""
        return np.abs(by_epoch(losses) - self.epochs)


def _share(mine: NDArray[np.float64], right: NDArray[np.float64], start: NDArray[np.float64],
           cost: NDArray[np.float64], precision: str) -> float:
    """The largest share of the tolerance that losses [windows, ...] used up, of which the first
    ones are `start` [...]; infinity for losses that are not finite or not as many as those that are
    `right`."""
    if not len(mine) or mine.shape != right.shape or not np.isfinite(mine).all():
        return math.inf
    moved, own = TOLERANCES.get(precision, TOLERANCES["bf16"])
    movement = np.maximum.accumulate(np.abs(right - start))
    return float((np.abs(mine - right) / (moved * movement + own * np.abs(start) + cost)).max())


def as_array(losses: Losses) -> NDArray[np.float64]:
    """Losses [steps], NaN for None."""
    return np.array([math.nan if v is None else v for v in losses], np.float64)


def windows(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of WINDOW neighbouring steps, of the rest, too."""
    return np.array([losses[i:i + WINDOW].mean() for i in range(0, len(losses), WINDOW)])


def by_epoch(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The means [epochs, members] of the losses of all steps [steps, members]."""
    return np.asarray(losses.reshape(CHECKED_EPOCHS, -1, losses.shape[1]).mean(axis=1))


def checker(problem: Problem, programs: Sequence[tuple[str, ReadyProgram]]) -> ShareOf | None:
    """What checks the programs of a problem, of which all are given with their systems; None where
    there is nothing to compare with."""
    right = ensemble_reference(problem) if isinstance(problem, Ensemble) else reference(programs)
    return None if right is None else partial(share, right, problem)


def reference(made: Sequence[tuple[str, ReadyProgram]]) -> Reference | None:
    """What all programs, with their systems, are compared with. None unless two systems at least
    have losses in float32."""
    usable = [(system, program) for system, program in made if not program.reason]
    truth = max((p.losses for _, p in usable if p.precision == TRUTH), key=len, default=[])
    every = _longest(usable, "float32")
    if len(every) < 2:
        return None
    longest = max(map(len, every))
    whole = [each for each in every if len(each) == longest]
    right = as_array(truth)
    if len(right) == longest and np.isfinite(right).all():
        return Reference(right, _usual_cost(whole, right), {
            precision: _usual_cost(found, right) for precision in BITS
            if len(found := [each for each in _longest(usable, precision)
                             if len(each) == longest]) > 1})
    right = np.median(whole, axis=0) if len(whole) > 1 else whole[0]
    return Reference(right, np.zeros(len(windows(right))))


def _longest(made: Sequence[tuple[str, ReadyProgram]], precision: str
             ) -> list[NDArray[np.float64]]:
    """The losses of each system's first program in a precision, of those with the most steps."""
    found: dict[str, Losses] = {}
    for system, program in made:
        if program.precision == precision and len(program.losses) > len(found.get(system, [])):
            found[system] = program.losses
    return [as_array(losses) for losses in found.values()]


def _usual_cost(found: Sequence[NDArray[np.float64]], right: NDArray[np.float64]
                ) -> NDArray[np.float64]:
    """How far the losses of one precision in several systems usually are from the truth up to the
    end of the window behind each window."""
    costs = [np.maximum.accumulate(np.abs(windows(each) - windows(right))) for each in found]
    usual = np.asarray(np.median(costs, axis=0))
    if len(costs) == 2:
        usual = np.minimum(np.maximum(*costs), ALIKE * np.minimum(*costs))
    return np.asarray(np.nan_to_num(np.append(usual[1:], usual[-1:]), nan=0.0))


@lru_cache(4)
def ensemble_reference(problem: Ensemble) -> EnsembleReference:
    exact, coarse = (Stacked(problem, problem.checked, kind).checked_losses()
                     for kind in (np.float64, np.float32))
    return EnsembleReference(exact[0], by_epoch(exact), np.maximum.accumulate(
        np.abs(by_epoch(coarse) - by_epoch(exact))))


def share(right: Reference | EnsembleReference, problem: Problem, program: ReadyProgram) -> float:
    """The largest share of the tolerance that a program's losses used up; above 1 is wrong."""
    found = right.share(program.losses, program.precision)
    if not 1 < found < np.inf or program.precision not in BITS:
        return found
    work = _work(problem)
    if work > WAYS * MOST_WORK:
        costs = right.coarse if isinstance(right, Reference) else {}
        return right.share(program.losses, program.precision, np.maximum(
            SLACK * costs.get(program.precision, 0.0), TIMES * costs.get("bf16", 0.0)))
    away = [right.distance(each) for each in
            _rounded_runs(problem, program.precision, WAYS if work <= MOST_WORK else 0)]
    if not away:
        return found
    cost = np.maximum.accumulate(np.nan_to_num(np.max(away, axis=0), nan=0.0, posinf=0.0))
    return right.share(program.losses, program.precision, TIMES * cost)  # errors may cancel later


def _work(problem: Problem) -> float:
    """Operations of a run in NumPy whose operands are rounded: two for each weight, four for each
    unit of each example."""
    rounded = 2 * problem.weights + 4 * problem.batch * sum(problem.layers)
    networks = len(problem.checked) if isinstance(problem, Ensemble) else 1
    return (problem.flops + ROUNDING * rounded) * CHECKED_EPOCHS * problem.steps * networks


@lru_cache(8)
def _rounded_runs(problem: Problem, precision: str, ways: int) -> list[NDArray[np.float64]]:
    """The losses of each way; once for all programs of a precision."""
    bits = BITS[precision]
    operands = [stochastically_rounded(bits, way) for way in range(ways)]
    return [losses(problem, operand) for operand in
            (*operands, *([cut_off(bits)] if precision == "tf32" else []))]


def losses(problem: Problem, operand: Callable[[Tensor], Tensor],
           system: type[Loop] = Loop) -> NDArray[np.float64]:
    """The loss of each step of the epochs that are checked, with such operands of products."""
    loop = Stacked(problem, problem.checked, operand=operand) if isinstance(problem, Ensemble) \
        else system(problem, operand)
    return loop.checked_losses()


def cut_off(bits: int) -> Callable[[Tensor], Tensor]:
    """Cuts float32 off behind so many fraction bits. Tensor cores ignore the other bits of tf32
    (PTX ISA, alternate floating-point data formats), and PyTorch does not round before."""
    mask = np.uint32(0xFFFFFFFF << 23 - bits & 0xFFFFFFFF)

    def cut(array: Tensor) -> Tensor:
        found: Tensor = (np.ascontiguousarray(array, np.float32).view(np.uint32) & mask).view(
            np.float32)
        return found

    return cut


def stochastically_rounded(bits: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Rounds float32 to so many fraction bits, up or down: in the mean to what it was."""
    generator, dropped = np.random.default_rng([seed, bits]), 23 - bits
    mask = np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)

    def rounded(array: Tensor) -> Tensor:
        words = np.ascontiguousarray(array, np.float32).view(np.uint32)
        added = generator.integers(0, 1 << 16, words.shape, np.uint16) >> (16 - dropped)
        found: Tensor = ((words + added) & mask).view(np.float32)
        return found

    return rounded
