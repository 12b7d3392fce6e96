"""The host runner: the plan executed with NumPy, op by op, by the references themselves."""

from __future__ import annotations

from contextlib import ExitStack
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rawnn.network import Parameters
from rawnn.runners.base import Evaluation, Part, Work, evaluation_of
from rawnn.step.build import PIXEL_SCALE, used_tensors
from rawnn.step.op import Attributes, Reference
from rawnn.step.plan import Plan

Arrays = dict[str, NDArray[Any]]


SMALL_PRODUCT = 16e6
"""Multiply-adds per step up to which one BLAS thread is used: 784-10 at batch 128 has 1e6. A
second thread saves nothing there, and on a busy machine its spinning made an epoch up to 80 times
slower (15 s in place of 0.18 s)."""


class HostRunner:
    """Runs a Work on the CPU. With `dtype` "float64" it is the oracle for accuracy."""

    def __init__(self, work: Work, dtype: str = "float32") -> None:
        self._work = work
        self._threads = ExitStack()
        self._dtype = np.dtype(dtype)
        self._parameters: Arrays = {
            name: array.astype(self._dtype) for name, array in work.initial.items()
        }
        data = work.data
        train = self._arrays((work.train, work.quiet), data.train_images, data.train_labels)
        self._train, self._quiet = (_Program(p, train) for p in (work.train, work.quiet))
        self._metrics = train
        self._tests: list[tuple[Part, _Program, Arrays]] = []
        for part in work.evaluate:
            arrays = self._arrays((part.plan,), data.test_images[part.first :],
                                  data.test_labels[part.first :])
            self._tests.append((part, _Program(part.plan, arrays), arrays))
        self._milliseconds: list[float] = []
        work_per_step = sum(t.shape[0] * t.shape[-1] for t in work.network.parameters())
        if work_per_step * work.train.batch <= SMALL_PRODUCT:
            self._threads.enter_context(threadpool_limits(1, "blas"))

    def _arrays(self, plans: tuple[Plan, ...], images: NDArray[np.uint8],
                labels: NDArray[np.uint8]) -> Arrays:
        arrays: Arrays = {}
        for name, tensor in used_tensors(plans).items():
            if name in self._parameters:
                arrays[name] = self._parameters[name]
            elif name == "images":
                arrays[name] = images
            elif name in ("labels", "host_labels"):
                arrays[name] = labels
            elif name == "host_images":
                arrays[name] = np.multiply(images, PIXEL_SCALE, dtype=self._dtype)
            else:
                floating = tensor.dtype == "float32"
                arrays[name] = np.zeros(tensor.shape, self._dtype if floating else tensor.dtype)
        return arrays

    def epoch(self, measured: bool) -> None:
        started = perf_counter()
        (self._train if measured else self._quiet).run(range(self._work.steps))
        self._milliseconds.append((perf_counter() - started) * 1e3)

    def metrics(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        return self._metrics["loss"].astype(np.float32), self._metrics["correct"].copy()

    def evaluate(self) -> Evaluation:
        for part, program, _ in self._tests:
            program.run(range(part.steps))
        return evaluation_of((part, a["loss"], a["correct"]) for part, _, a in self._tests)

    def parameters(self) -> Parameters:
        return {name: a.astype(np.float32) for name, a in self._parameters.items()}

    def epoch_milliseconds(self) -> list[float]:
        return list(self._milliseconds)

    def peak_memory(self) -> int:
        return 0

    def describe(self) -> dict[str, Any]:
        return {"dtype": self._dtype.name}

    def close(self) -> None:
        self._threads.close()


class _Program:
    """A plan bound to arrays: the references with their operands looked up once."""

    def __init__(self, plan: Plan, arrays: Arrays) -> None:
        self._cursor = arrays["cursor"]
        self._calls: list[tuple[Reference, SimpleNamespace, Attributes]] = [
            (op.spec.reference,
             SimpleNamespace(**{role: arrays[name] for role, name in op.operands.items()}),
             op.attributes)
            for op in plan.ops
        ]

    def run(self, steps: range) -> None:
        for step in steps:
            self._cursor[0] = step
            for reference, operands, attributes in self._calls:
                reference(operands, attributes)
