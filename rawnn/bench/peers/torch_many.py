"""PyTorch on ensembles: products of all members by `baddbmm`, or `vmap` of one member's gradient by
inductor; optimizers fused over all members; an epoch in one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rawnn.bench.peers.ensemble import Ensemble
from rawnn.bench.peers.torch_system import allow, replay_ms, versions
from rawnn.bench.peers.worker import Offer

__all__ = ["Trainer", "offers", "versions"]

GRAPH = "graph"
COMPILED = "graph, compiled"
VMAPPED = "graph, vmap, compiled"
FORMS = (GRAPH, COMPILED, VMAPPED)
LOOPS = {"loop": GRAPH, "loop, vmap": VMAPPED}
"""Forms of the host, without a graph or a compiler -> what computes the gradients."""
WARM_STEPS = 3

Tensor: TypeAlias = Any  # torch.Tensor, of which type checkers know nothing without torch


def offers(problem: Ensemble, device: str, forms: list[str]) -> Iterator[Offer]:
    """Every form in every precision, or those that `forms` names with it ("tf32:graph")."""
    on_gpu = device != "host"
    place = torch.device("cuda" if on_gpu else "cpu")
    data = [torch.from_numpy(a).to(place) for a in problem.arrays()]
    if problem.loss == "cross_entropy":
        data[1] = data[1].long()
    problem.initial(), problem.order(0)  # which no program's own time covers
    for precision in ("float32", "tf32", "bf16") if on_gpu else ("float32",):
        for form in FORMS if on_gpu else LOOPS:
            if not forms or f"{precision}:{form}" in forms:
                yield Offer(precision, form, "events" if on_gpu else "wall",
                            partial(Trainer, problem, precision, form, place, data))


class Trainer:
    """All members with their optimizer; on a GPU an epoch is captured in one CUDA graph, and every
    replay takes the order that lies in memory."""

    def __init__(self, problem: Ensemble, precision: str, form: str, place: torch.device,
                 data: list[Tensor]) -> None:
        allow(precision)
        self._problem, self._precision, self._place, self._data = problem, precision, place, data
        start = problem.initial()
        each = 2 if problem.bias else 1
        self._parameters = [
            torch.from_numpy((a[:, None, :] if i % each else a.swapaxes(1, 2)).copy("C"))
            .to(place).requires_grad_()
            for i, a in enumerate(start)]  # [members, in, out] and [members, 1, out]
        on_gpu = place.type == "cuda"
        self._optimizer: torch.optim.Optimizer = \
            torch.optim.SGD(self._parameters, lr=problem.lr, fused=on_gpu) \
            if problem.optimizer == "sgd" else \
            torch.optim.Adam(self._parameters, lr=problem.lr, fused=on_gpu, capturable=on_gpu)
        self._gradients = gradients_by(problem, LOOPS.get(form, form), form in FORMS)
        self._losses = torch.zeros((problem.steps, problem.members), device=place)
        self._order = torch.empty((problem.steps, problem.members, problem.batch),
                                  dtype=torch.int32, device=place)
        self.reorder(problem.order(0))
        self._graph: Any = None
        if on_gpu:
            self._capture()

    def _capture(self) -> None:
        before = [p.detach().cpu() for p in self._parameters]
        warming = torch.cuda.Stream()
        warming.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warming):  # libraries choose and allocate before they are captured
            for step in range(WARM_STEPS):
                self._step(step)
        torch.cuda.current_stream().wait_stream(warming)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._epoch()
        with torch.no_grad():
            for p, value in zip(self._parameters, before, strict=True):
                p.copy_(value)
                for state in self._optimizer.state.get(p, {}).values():
                    if isinstance(state, torch.Tensor):
                        state.zero_()
        torch.cuda.synchronize()

    def _step(self, step: int) -> None:
        rows = self._order[step]
        x, y = (a.index_select(0, rows.view(-1)).view(*rows.shape, *a.shape[1:])
                for a in self._data)
        with torch.autocast(self._place.type, torch.bfloat16, enabled=self._precision == "bf16",
                            cache_enabled=False):
            losses, gradients = self._gradients(self._parameters, x, y)
        for p, g in zip(self._parameters, gradients, strict=True):
            p.grad = g.contiguous()  # which inductor's are not always, and fused optimizers ask for
        self._optimizer.step()
        self._losses[step].copy_(losses)

    def _epoch(self) -> None:
        for step in range(self._problem.steps):
            self._step(step)

    def reorder(self, order: NDArray[np.int32]) -> None:
        self._order.copy_(torch.from_numpy(self._problem.by_step(order)))

    def losses(self) -> NDArray[np.floating[Any]]:
        found: NDArray[np.floating[Any]] = self._losses.mean(dim=0).cpu().numpy()
        return found

    def block(self, epochs: int) -> float:
        if self._graph is None:
            begun = perf_counter()
            for _ in range(epochs):
                self._epoch()
            return (perf_counter() - begun) * 1e3 / epochs
        return replay_ms(self._graph, epochs)


Gradients: TypeAlias = Callable[[list[Tensor], Tensor, Tensor], tuple[Tensor, Any]]
"""Parameters of all members, examples [members, batch, ...] -> losses [members], gradients."""


def gradients_by(problem: Ensemble, form: str, is_compiled: bool) -> Gradients:
    """What computes the gradients of all members in a form."""
    if is_compiled and form != GRAPH:  # every ensemble compiles the same functions anew
        torch._dynamo.config.recompile_limit = 10_000
        torch._dynamo.config.accumulated_recompile_limit = 10_000
    compiled: Callable[[Any], Any] = partial(torch.compile, dynamic=False, fullgraph=True) \
        if is_compiled and form != GRAPH else lambda function: function
    if form == VMAPPED:
        one = torch.func.grad_and_value(partial(loss_of_one, problem.loss, problem.bias))
        vmapped = compiled(torch.func.vmap(one))

        def by_vmap(parameters: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
            gradients, losses = vmapped([p.detach() for p in parameters], x, y)
            return losses, gradients

        return by_vmap
    losses_of = compiled(partial(stacked_losses, problem.loss, problem.bias))

    def by_autograd(parameters: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
        losses = losses_of(parameters, x, y)
        return losses.detach(), torch.autograd.grad(losses.sum(), parameters)

    return by_autograd


def stacked_losses(loss: str, biased: bool, parameters: list[Tensor], x: Tensor,
                   y: Tensor) -> Tensor:
    """The mean loss of each member's batch."""
    each = 2 if biased else 1
    depth, h = len(parameters) // each, x
    for layer in range(depth):
        w = parameters[each * layer]
        h = torch.baddbmm(parameters[each * layer + 1], h, w) if biased else torch.bmm(h, w)
        if layer + 1 < depth:
            h = F.relu(h)
    return element_losses(loss, h.float(), y).flatten(1).mean(dim=1)


def loss_of_one(loss: str, biased: bool, parameters: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The mean loss of one member's batch."""
    each = 2 if biased else 1
    depth, h = len(parameters) // each, x
    for layer in range(depth):
        w = parameters[each * layer]
        h = torch.addmm(parameters[each * layer + 1], h, w) if biased else h @ w
        if layer + 1 < depth:
            h = F.relu(h)
    return element_losses(loss, h.float(), y).mean()


def element_losses(loss: str, z: Tensor, y: Tensor) -> Tensor:
    """The loss of each example, or of each output of it."""
    if loss == "cross_entropy":
        return torch.logsumexp(z, -1) - z.gather(-1, y.unsqueeze(-1)).squeeze(-1)
    if loss == "mse":
        return torch.square(z - y)
    return F.binary_cross_entropy_with_logits(z, y, reduction="none")
