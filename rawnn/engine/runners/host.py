"""The host runner: executes the plan with NumPy, op by op, by the ops' own references."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import LOW_PRECISION, numpy_dtype, rounded
from rawnn.common.errors import ConfigError
from rawnn.distributed import Team
from rawnn.engine.runners.plan_data import HostBatches, contents
from rawnn.engine.runners.prepared_run import (
    Evaluation,
    EvaluationPart,
    PreparedRun,
    State,
    evaluation_of,
    initial_state,
)
from rawnn.engine.runners.threaded_matmul import ThreadedMatmul
from rawnn.model.layers import Parameters
from rawnn.plan.build import used_tensors
from rawnn.plan.op import Attributes, Reference
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor

Arrays = dict[str, NDArray[Any]]


class HostRunner:
    """Runs a PreparedRun on the CPU. Tensors of less than 32 bits are float32 arrays, rounded after
    each op that writes them. With `dtype` "float64" nothing is rounded: that is the oracle for
    accuracy."""

    def __init__(self, prepared: PreparedRun, dtype: str = "float32", team: Team | None = None
                 ) -> None:
        self._prepared, self._team = prepared, team
        self._matmul = ThreadedMatmul()
        self._dtype = np.dtype(dtype)
        around = (prepared.start, prepared.refresh, prepared.epoch_begin, prepared.epoch_end,
                  prepared.assemble)
        steps = [plan for plan in (prepared.train, prepared.unreported, prepared.partial)
                 if plan is not None]
        self._arrays = self._place((*around, *steps), "train")
        self._tensors = used_tensors((*around, *steps))
        hosted = {n: a for n, a in self._arrays.items() if self._tensors[n].role is Role.HOST}
        self._order = HostBatches(hosted, prepared.recipe.seed) if prepared.shuffles_host else None
        self._start, self._refresh, self._begin, self._end, self._assemble = \
            map(self._program, around)
        self._train = self._program(prepared.train)
        self._unreported = self._program(prepared.unreported)
        self._partial = self._program(prepared.partial) if prepared.partial is not None else None
        for name, value in initial_state(prepared.train).items():
            self._arrays[name][...] = value
        for program in (self._start, self._refresh):
            program.run(range(1))
        self._tests: list[tuple[EvaluationPart, _Program, Arrays]] = []
        for part in prepared.evaluate:
            arrays = self._place((part.plan,), "test", part.first)
            self._tests.append((part, _Program(part.plan, arrays, self._matmul), arrays))
        self._milliseconds: list[float] = []
        self._matmul.open()

    def _program(self, plan: Plan) -> _Program:
        return _Program(plan, self._arrays, self._matmul, self._team)

    def _place(self, plans: tuple[Plan, ...], part: str, first: int = 0) -> Arrays:
        """An array for every tensor of the plans; parameters are shared and the data set is filled
        in."""
        arrays: Arrays = {}
        data = self._prepared.data
        tensors = used_tensors(plans)
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].role is Role.VIEW):
            if tensor.role is Role.VIEW:
                rows, columns = (slice(begin, begin + n) for begin, n in zip(
                    (tensor.first, tensor.column), tensor.shape, strict=True))
                arrays[name] = arrays[tensor.source][rows, columns]
            elif part == "test" and tensor.role in (Role.PARAMETER, Role.COPY):
                arrays[name] = self._arrays[name]
            elif tensor.role in (Role.DATA, Role.HOST):
                array = contents(data, tensor, part, first,
                                 tensor.role is Role.HOST and self._prepared.shuffles_host)
                arrays[name] = array.astype(self._dtype) if tensor.role is Role.HOST \
                    and tensor.floating else array
            else:
                arrays[name] = np.zeros(tensor.shape, self._dtype if tensor.floating
                                        else tensor.dtype)
        return arrays

    def epoch(self, reported: bool) -> None:
        started = perf_counter()
        prepared = self._prepared
        if self._order:
            self._order.shuffle(int(self._arrays["clock"][0]))
        self._begin.run(range(1))
        program = self._train if reported else self._unreported
        for step in range(prepared.steps):
            with self._matmul.step():
                program.run(range(step, step + 1))
        if self._partial is not None:
            self._partial.run(range(prepared.steps, prepared.steps + 1))
        self._end.run(range(1))
        self._assemble.run(range(1))
        self._milliseconds.append((perf_counter() - started) * 1e3)

    def metrics(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        updates = self._prepared.updates
        correct = self._arrays.get("correct")
        return (self._arrays["loss"].astype(np.float32),
                np.zeros(updates, np.int32) if correct is None else correct.copy())

    def evaluate(self) -> Evaluation:
        for part, program, _ in self._tests:
            program.run(range(part.steps))
        return evaluation_of(self._prepared, (
            (part, a["loss"], a.get("correct", np.zeros(part.steps)))
            for part, _, a in self._tests))

    def assemble(self) -> None:
        """Nothing to do: the host runner gathers at the end of every epoch."""

    def keep_sharded(self) -> None:
        """Nothing to do, as in `assemble`."""

    def parameters(self) -> Parameters:
        return {t.name: self._arrays[t.name].astype(np.float32)
                for t in self._prepared.network.parameters()}

    def state(self) -> dict[str, NDArray[Any]]:
        return {name: self._arrays[name].astype(numpy_dtype(self._tensors[name].dtype))
                for name in self._prepared.state if name in self._arrays}

    def load(self, state: State) -> None:
        for name, value in state.items():
            array = self._arrays[name]
            if array.shape != value.shape:
                raise ConfigError(f"{name} has the shape {value.shape}, not {array.shape}")
            array[...] = value.astype(array.dtype)
        self._refresh.run(range(1))

    def epoch_milliseconds(self) -> list[float]:
        return list(self._milliseconds)

    def peak_memory(self) -> int:
        return 0

    def describe(self) -> dict[str, Any]:
        return {"dtype": self._dtype.name, "threads": self._matmul.threads}

    def close(self) -> None:
        self._matmul.close()


class _Program:
    """A plan bound to arrays: its references, with their operands looked up once."""

    def __init__(self, plan: Plan, arrays: Arrays, matmul: ThreadedMatmul,
                 team: Team | None = None) -> None:
        self._cursor = arrays.get("cursor", np.zeros(1, np.int32))
        self._calls: list[tuple[Reference, SimpleNamespace, Attributes,
                                list[tuple[NDArray[Any], str]]]] = [
            (op.spec.reference,
             SimpleNamespace(**{role: arrays[name] for role, name in op.operands.items()}),
             {**op.attributes, "stored": {r: plan[n].dtype for r, n in op.operands.items()},
              "team": team, "multiply": matmul.multiply},
             [(arrays[name], plan[name].dtype) for name, _ in op.writes
              if _is_rounded(plan[name], arrays)])
            for op in plan.ops
        ]

    def run(self, steps: range) -> None:
        # Infinities and NaNs are valid values, as on a GPU: of a loss scale that is too large, or
        # of a run that diverged.
        with np.errstate(over="ignore", invalid="ignore"):
            for step in steps:
                self._cursor[0] = step
                for reference, operands, attributes, low in self._calls:
                    reference(operands, attributes)
                    for array, dtype in low:
                        array[...] = rounded(array, dtype)


def _is_rounded(tensor: Tensor, arrays: Arrays) -> bool:
    return tensor.dtype in LOW_PRECISION and arrays[tensor.name].dtype == np.float32
