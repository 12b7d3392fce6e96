"""PyTorch: a whole epoch in one CUDA graph, with eager or inductor's kernels; and the loops that
people write, for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import TRUTH, Offer

GRAPHS = ("graph", "graph, gathered first")
COMPILED = "graph, compiled"
PLAIN = "plain loop"
TUNED = "compiled loop"
"""Forms. `graph`: one CUDA graph an epoch; `gathered first`: the epoch's batches by one kernel;
`compiled`: forward and backward pass by inductor. `plain loop`: batches from the host, the loss
read at every step. `compiled loop`: compiled, automatic mixed precision, data on the GPU through
page-locked memory, no graph."""
GATHERED_BYTES = 2**31
"""An epoch is gathered first only where its batches take no more memory than this."""

Tensor: TypeAlias = Any  # torch.Tensor, of which type checkers know nothing without torch


def versions() -> dict[str, str]:
    return {"torch": str(torch.__version__)}


def offers(problem: Problem, device: str, forms: list[str]) -> Iterator[Offer]:
    on_gpu = device != "host"
    place = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.init()
    host = [torch.from_numpy(a) for a in problem.arrays()]
    data = [a.pin_memory().to(place) if on_gpu else a for a in host]
    if problem.loss == "cross_entropy":
        data[1] = data[1].long()
    wanted = (forms or GRAPHS) if on_gpu else (PLAIN,)  # the other forms are a GPU's
    small = problem.examples * problem.layers[0] * 4 <= GATHERED_BYTES
    yield Offer(TRUTH, PLAIN, "wall", partial(Loop, problem, TRUTH, place, host))
    for form in wanted:
        if form == PLAIN:
            yield Offer("float32", form, "wall", partial(Loop, problem, "float32", place, host))
        elif form == TUNED:
            yield Offer("bf16", form, "wall", partial(Loop, problem, "bf16", place, data, True))
        elif form != GRAPHS[1] or small:
            for precision in ("float32", "tf32", "bf16"):
                yield Offer(precision, form, "events",
                            partial(Graph, problem, precision, form, place, data))


def allow(precision: str) -> None:
    """Let float32 products use tf32, or not."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def replay_ms(graph: Any, epochs: int) -> float:
    """Milliseconds of a replay, by events around as many as there are epochs."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(epochs):
        graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / epochs


class _State:
    """Parameters and optimizer."""

    def __init__(self, problem: Problem, precision: str, place: torch.device,
                 compiled: bool = False) -> None:
        self.problem, self.precision, self.place = problem, precision, place
        kind = torch.float64 if precision == TRUTH else torch.float32
        self.start = [torch.from_numpy(a.copy()).to(place, kind) for a in problem.initial()]
        self.parameters = [a.clone().requires_grad_() for a in self.start]
        gpu = place.type == "cuda"
        self.optimizer: torch.optim.Optimizer = \
            torch.optim.SGD(self.parameters, lr=problem.lr, fused=gpu) \
            if problem.optimizer == "sgd" else \
            torch.optim.Adam(self.parameters, lr=problem.lr, fused=gpu, capturable=gpu)
        if compiled:  # every problem compiles the same function anew
            torch._dynamo.config.recompile_limit = 10_000
            torch._dynamo.config.accumulated_recompile_limit = 10_000
        function: Callable[..., Tensor] = partial(loss_of, problem.loss, problem.bias)
        self._loss = torch.compile(function, dynamic=False, fullgraph=True) if compiled \
            else function

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(self.place.type, torch.bfloat16, enabled=self.precision == "bf16",
                            cache_enabled=False):
            return self._loss(self.parameters, x, y)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(x, y)
        for p, g in zip(self.parameters, torch.autograd.grad(loss, self.parameters), strict=True):
            p.grad = g.contiguous()  # which inductor's are not always, and fused optimizers ask for
        self.optimizer.step()
        return loss.detach()

    def again(self) -> None:
        """Back to the start, in place."""
        with torch.no_grad():
            for p, a in zip(self.parameters, self.start, strict=True):
                p.copy_(a)
                for value in self.optimizer.state.get(p, {}).values():
                    if isinstance(value, torch.Tensor):
                        value.zero_()


def loss_of(loss: str, biased: bool, parameters: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The mean loss of a batch."""
    each = 2 if biased else 1
    depth, h = len(parameters) // each, x
    for layer in range(depth):
        bias = parameters[each * layer + 1] if biased else None
        h = F.linear(h, parameters[each * layer], bias)
        if layer + 1 < depth:
            h = F.relu(h)
    h = h if h.dtype == torch.float64 else h.float()
    if loss == "cross_entropy":
        return F.cross_entropy(h, y)
    if loss == "mse":
        return F.mse_loss(h, y)
    return F.binary_cross_entropy_with_logits(h, y)


class Graph:
    """An epoch captured in one CUDA graph. Every replay takes the order that lies in memory."""

    def __init__(self, problem: Problem, precision: str, form: str, place: torch.device,
                 data: list[Tensor]) -> None:
        allow(precision)
        self._problem, self._data, self._gathered = problem, data, form == GRAPHS[1]
        self._state = state = _State(problem, precision, place, form == COMPILED)
        self._order = torch.from_numpy(problem.order(0)).to(place)
        self._step_losses = torch.zeros(problem.steps, device=place)
        warming = torch.cuda.Stream()
        warming.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warming):  # libraries choose and allocate before they are captured
            for _ in range(3):
                state.step(*(a.index_select(0, self._order[:problem.batch]) for a in data))
        torch.cuda.current_stream().wait_stream(warming)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._epoch()
        state.again()
        torch.cuda.synchronize()

    def _epoch(self) -> None:
        batch, data = self._problem.batch, self._data
        if self._gathered:
            data = [a.index_select(0, self._order) for a in data]
        for step in range(self._problem.steps):
            part = slice(step * batch, (step + 1) * batch)
            x, y = (a[part] for a in data) if self._gathered else \
                (a.index_select(0, self._order[part]) for a in data)
            self._step_losses[step].copy_(self._state.step(x, y))

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order.copy_(torch.from_numpy(order))

    def losses(self) -> NDArray[np.floating[Any]]:
        found: NDArray[np.floating[Any]] = self._step_losses.cpu().numpy()
        return found

    def block(self, epochs: int) -> float:
        return replay_ms(self._graph, epochs)


class Loop:
    """A Python loop over the steps. `tuned`: compiled, losses stay on the device until the end."""

    LIMIT_S, TRUTH_S = 2.0, 20.0
    """A block is broken off after so long; the epoch's time then follows from the steps done.
    float64, whose losses are the truth, has the time for all of them beside other programs."""

    def __init__(self, problem: Problem, precision: str, place: torch.device, data: list[Tensor],
                 tuned: bool = False) -> None:
        self._problem, self._place, self._data, self._tuned = problem, place, data, tuned
        self._state = _State(problem, precision, place, compiled=tuned)
        self._order = torch.from_numpy(problem.order(0))
        self._losses: list[Any] = []
        if tuned:  # compilation is no part of an epoch
            self._state.step(*self._batch(0))
            self._state.again()

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order = torch.from_numpy(order).to(self._data[0].device)

    def losses(self) -> NDArray[np.floating[Any]]:
        return np.array([float(v) for v in self._losses])

    def _batch(self, step: int) -> list[Tensor]:
        batch = self._problem.batch
        rows = self._order[step * batch:(step + 1) * batch].to(self._data[0].device)
        x, y = (a.index_select(0, rows).to(self._place) for a in self._data)
        x = x.to(self._state.start[0].dtype)
        return [x, y.long() if self._problem.loss == "cross_entropy" else y.to(x.dtype)]

    def block(self, epochs: int) -> float:
        allow(self._state.precision)
        limit = self.TRUTH_S if self._state.precision == TRUTH else self.LIMIT_S
        begun, steps = perf_counter(), 0
        for _ in range(epochs):
            self._losses = []
            for step in range(self._problem.steps):
                loss = self._state.step(*self._batch(step))
                self._losses.append(loss if self._tuned else loss.item())
                steps += 1
                if perf_counter() - begun > limit:
                    break
            if perf_counter() - begun > limit:
                break
        if self._place.type == "cuda":
            torch.cuda.synchronize()
        return (perf_counter() - begun) * 1e3 / steps * self._problem.steps
