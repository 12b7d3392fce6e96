"""As much of PyTorch as the peers' programs call, in NumPy, for networks of some dozen numbers.

Gradients are central differences in float64 of what was computed, so that no rule of a derivative
stands here. A graph that is captured runs again whatever wrote into a tensor meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

Compute = Callable[..., Any]


COMPILED: list[Any] = []
"""Functions that were compiled."""


class Stream:
    """What was enqueued must be waited for before another stream of the rank has work; `steps`
    counts it."""

    def __init__(self) -> None:
        self.is_busy, self.steps, self.rank = False, 0, threading.get_ident()
        STREAMS.append(self)

    def wait_stream(self, other: Stream) -> None:
        other.is_busy = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        before, STATE.stream = STATE.stream, self
        yield
        STATE.stream = before

    def work(self) -> None:
        others = [s for s in STREAMS if s is not self and s.rank == self.rank]
        assert not any(s.is_busy for s in others), "nothing waits for a stream"
        self.is_busy, self.steps = True, self.steps + 1


STREAMS: list[Stream] = []


def synchronize() -> None:
    for stream in STREAMS:
        stream.is_busy = False


class State(threading.local):
    """What is under way in a rank's thread: the graph that is captured, autocast, and whether
    differences are taken."""

    captured: list[Callable[[], None]] | None = None
    low = False
    exact = False
    stream: Stream

    def __init__(self) -> None:
        self.stream = Stream()


STATE = State()


def as_bf16(array: Any) -> Any:
    """Rounded to bfloat16's eight bits, as float32."""
    words = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((words + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def _low(array: Any) -> Any:
    return as_bf16(array) if STATE.low and not STATE.exact else array


def _written(run: Callable[[], None]) -> None:
    """Run it now, and with every replay of the graph that is being captured."""
    STATE.stream.work()
    run()
    if STATE.captured is not None:
        STATE.captured.append(run)


class Tensor:
    """An array, perhaps with what computes it of other tensors."""

    def __init__(self, data: Any, made: tuple[Compute, tuple[Tensor, ...]] | None = None,
                 place: str = "cpu") -> None:
        self.data, self.made, self.place = np.asarray(data), made, place
        self.grad: Tensor | None = None
        self.requires_grad = False
        self.reduce: Callable[[Tensor], None] = lambda gradient: None

    def _of(self, compute: Compute, *others: Tensor) -> Tensor:
        return computed(compute, self, *others)

    def _view(self, data: Any) -> Tensor:
        return Tensor(data, None, self.place)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def device(self) -> str:
        return self.place

    def __getitem__(self, key: Any) -> Tensor:
        return self._view(self.data[key] if isinstance(key, slice) else self.data[key, ...])

    def __len__(self) -> int:
        return len(self.data)

    def __float__(self) -> float:
        return float(self.data)

    item = __float__

    def __truediv__(self, number: float) -> Tensor:
        return self._of(lambda a: a / number)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self._of(lambda a, b: _low(_low(a) @ _low(b)), other)

    def to(self, *asked: Any) -> Tensor:
        """By kinds, and by places, each of which has its own copy."""
        found = self
        for each in asked:
            if isinstance(each, Place | str):
                place = str(each)
                if place != found.place:
                    found = Tensor(found.data.copy(), None, place)
            elif np.dtype(each) != found.dtype:
                found = found._of(lambda a, kind=each: a if STATE.exact else a.astype(kind))
        return found

    def view(self, *shape: int) -> Tensor:
        return self._of(lambda a: a.reshape(shape))

    def requires_grad_(self) -> Tensor:
        self.requires_grad = True
        return self

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        assert self.place == rows.place, "rows and examples lie on two devices"
        return self._of(lambda a, b: np.take(a, b.astype(np.int64), axis), rows)

    def copy_(self, other: Tensor) -> None:
        def run() -> None:
            self.data[...] = other.data

        assert self.shape == other.shape
        _written(run)

    def add_(self, other: Tensor) -> None:
        def run() -> None:
            self.data[...] += other.data

        _written(run)

    def zero_(self) -> None:
        def run() -> None:
            self.data[...] = 0

        _written(run)

    def backward(self) -> None:
        leaves = [leaf for leaf in dict.fromkeys(_leaves(self)) if leaf.requires_grad]
        for leaf, found in zip(leaves, grad(self, leaves), strict=True):
            if leaf.grad is None:
                leaf.grad = Tensor(np.zeros_like(leaf.data))
            leaf.grad.add_(found)
            leaf.reduce(leaf.grad)

    def detach(self) -> Tensor:
        return self._view(self.data)

    clone = property(lambda self: lambda: Tensor(self.data.copy(), None, self.place))
    cpu = property(lambda self: lambda: self.to("cpu"))
    pin_memory = contiguous = property(lambda self: lambda: self)
    numpy = property(lambda self: lambda: self.data)
    long = property(lambda self: lambda: self.to(np.int64))
    float = property(lambda self: lambda: self.to(np.float32))

    def sum(self) -> Tensor:
        return self._of(lambda a: a.sum())

    def mean(self, dim: int | None = None) -> Tensor:
        return self._of(lambda a: a.mean(axis=dim))

    def flatten(self, first: int) -> Tensor:
        return self._of(lambda a: a.reshape(*a.shape[:first], -1))

    def unsqueeze(self, axis: int) -> Tensor:
        return self._of(lambda a: np.expand_dims(a, axis))

    def squeeze(self, axis: int) -> Tensor:
        return self._of(lambda a: np.squeeze(a, axis))

    def gather(self, axis: int, index: Tensor) -> Tensor:
        return self._of(lambda a, b: np.take_along_axis(a, b, axis), index)

    def __sub__(self, other: Tensor) -> Tensor:
        return self._of(lambda a, b: a - b, other)


def computed(compute: Compute, *inputs: Tensor) -> Tensor:
    found = Tensor(compute(*(t.data for t in inputs)), (compute, inputs), inputs[0].place)
    if STATE.captured is not None:
        def run(low: bool = STATE.low) -> None:
            before, STATE.low = STATE.low, low
            found.data[...] = compute(*(t.data for t in inputs))
            STATE.low = before

        STATE.captured.append(run)
    return found


def _leaves(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.made is None:
        yield tensor
    else:
        for each in tensor.made[1]:
            yield from _leaves(each)


def _value(tensor: Tensor, exact: dict[int, Any]) -> Any:
    if tensor.made is None:
        found = exact.get(id(tensor), tensor.data)
        return found.astype(np.float64) if found.dtype.kind == "f" else found
    return tensor.made[0](*(_value(each, exact) for each in tensor.made[1]))


def grad(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    found = [Tensor(np.zeros_like(p.data), None, p.place) for p in parameters]

    def run() -> None:
        STATE.exact = True
        for parameter, into in zip(parameters, found, strict=True):
            moved = parameter.data.astype(np.float64)
            for place in np.ndindex(*moved.shape):
                ends = []
                for step in (1e-6, -2e-6):
                    moved[place] += step
                    ends.append(float(_value(loss, {id(parameter): moved})))
                moved[place] += 1e-6
                into.data[place] = (ends[0] - ends[1]) / 2e-6
        STATE.exact = False

    _written(run)
    return found


class Optimizer:
    """Adam as its paper has it, with `_step` on the device; plain descent without moments."""

    def __init__(self, parameters: Any, lr: float, adam: bool) -> None:
        self.parameters, self._lr, self._adam = list(parameters), lr, adam
        self.state: dict[Tensor, dict[str, Any]] = {}

    def zero_grad(self, set_to_none: bool) -> None:
        assert not set_to_none, "a graph writes into the same gradients again"
        for p in self.parameters:
            if p.grad is not None:
                p.grad.zero_()

    def step(self) -> None:
        for p in self.parameters:
            assert p.grad is not None
            self._move(p, p.grad)

    def _move(self, p: Tensor, g: Tensor) -> None:
        kept = self.state.setdefault(p, {"step": Tensor(np.zeros(())), "name": "a word", **{
            name: Tensor(np.zeros(p.shape)) for name in "mv"}} if self._adam else {})

        def run() -> None:
            slope = g.data.astype(np.float64)
            if self._adam:
                count, m, v = (kept[name].data for name in ("step", "m", "v"))
                count += 1
                m += 0.1 * (slope - m)
                v += 0.001 * (slope * slope - v)
                slope = m / (1 - 0.9**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
            p.data[...] = p.data - self._lr * slope

        _written(run)


class Place:
    """A device."""

    def __init__(self, name: str) -> None:
        self.type, _, index = name.partition(":")
        self.index = int(index) if index else None

    def __str__(self) -> str:
        return self.type


class Graph:
    def replay(self) -> None:
        for run in self.runs:
            run()


@contextmanager
def capture(graph: Graph, **how: Any) -> Iterator[None]:
    assert how["capture_error_mode"] == "thread_local"
    assert STREAMS[-1].steps > 0, "libraries choose and allocate before a capture"
    assert not any(stream.is_busy for stream in STREAMS)
    STATE.captured = graph.runs = []
    try:
        yield
    finally:
        STATE.captured = None


@contextmanager
def autocast(device: str, kind: Any, enabled: bool, **how: Any) -> Iterator[None]:
    before, STATE.low = STATE.low, enabled
    yield
    STATE.low = before


class Event:
    """A clock that goes by a millisecond with each event."""

    count = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.count += 1
        self.at = Event.count

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)


def _log_sum(z: Any, axis: int = -1) -> Any:
    return np.log(np.exp(z).sum(axis=axis))


def _binary(z: Any, y: Any) -> Any:
    return np.log1p(np.exp(z)) - z * y


def _reduced(elements: Compute) -> Callable[..., Tensor]:
    def function(z: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        return computed((lambda a, b: elements(a, b).mean()) if reduction == "mean" else elements,
                        z, y)

    return function


def linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    def forward(a: Any, b: Any, *more: Any) -> Any:
        return _low(_low(a) @ _low(b).T + (more[0] if more else 0))

    return computed(forward, x, w, *([bias] if bias is not None else []))


def added(bias: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return computed(lambda a, b, c: _low(_low(b) @ _low(c) + a), bias, x, w)


def relu(x: Tensor) -> Tensor:
    return computed(lambda a: np.maximum(a, 0), x)


class Layer:
    """torch.nn.Linear, which begins somewhere else than ours."""

    def __init__(self, inside: int, outside: int, bias: bool) -> None:
        shapes = [(outside, inside), *([(outside,)] if bias else [])]
        self.given = [Tensor(np.full(s, 0.3, np.float32)).requires_grad_() for s in shapes]

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.given[0], self.given[1] if len(self.given) > 1 else None)


class Sequential:
    def __init__(self, *layers: Any) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def to(self, place: Any) -> Sequential:
        for p in self.parameters():
            p.place = str(place)
        return self

    def parameters(self) -> list[Tensor]:
        return [p for layer in self.layers for p in getattr(layer, "given", [])]


def _mapped(one: Callable[..., Any]) -> Callable[..., Any]:
    """torch.func.vmap of a function of parameters, inputs and answers."""
    def function(parameters: list[Tensor], x: Tensor, y: Tensor) -> Any:
        each = [one([p[i] for p in parameters], x[i], y[i]) for i in range(x.shape[0])]
        joined = [stacked([g[n] for g, _ in each]) for n in range(len(parameters))]
        return joined, stacked([loss for _, loss in each])

    return function


def stacked(several: Sequence[Tensor]) -> Tensor:
    return computed(lambda *arrays: np.stack(arrays), *several)


def small_torch() -> dict[str, Any]:
    """The modules by their names."""
    STREAMS[:] = [STATE.stream]
    torch: Any = ModuleType("torch")
    functional = SimpleNamespace(
        linear=linear, relu=relu, mse_loss=_reduced(lambda z, y: np.square(z - y)),
        cross_entropy=_reduced(lambda z, y: _log_sum(z) - np.take_along_axis(
            z, y[:, None], axis=-1)[:, 0]), binary_cross_entropy_with_logits=_reduced(_binary))
    data_parallel = lambda model, **how: model  # noqa: E731
    torch.nn = SimpleNamespace(
        functional=functional, Linear=Layer, ReLU=lambda: relu, Sequential=Sequential,
        parallel=SimpleNamespace(DistributedDataParallel=data_parallel))
    torch.cuda = SimpleNamespace(
        init=lambda: None, synchronize=synchronize, Event=Event, CUDAGraph=Graph, graph=capture,
        Stream=Stream, stream=lambda which: which.entered(), current_stream=lambda: STATE.stream,
        set_device=lambda place: None, is_available=lambda: False)
    torch.optim = SimpleNamespace(
        Optimizer=Optimizer, SGD=lambda given, lr, fused: Optimizer(given, lr, False),
        Adam=lambda given, lr, fused, capturable: Optimizer(given, lr, True))
    torch.autograd = SimpleNamespace(grad=grad)
    torch.func = SimpleNamespace(vmap=_mapped, grad_and_value=lambda function: lambda p, x, y: (
        lambda loss: (grad(loss, p), loss))(function(p, x, y)))
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(
        matmul=SimpleNamespace(allow_tf32=None)))
    limits = SimpleNamespace(recompile_limit=8, accumulated_recompile_limit=256)
    torch._dynamo = SimpleNamespace(config=limits)

    def compiled(function: Any, dynamic: bool, fullgraph: bool) -> Any:
        assert (dynamic, fullgraph, *vars(limits).values()) == (False, True, 10_000, 10_000)
        COMPILED.append(function)
        return function

    torch.compile = compiled
    torch.from_numpy, torch.Tensor, torch.device, torch.autocast = Tensor, Tensor, Place, autocast
    torch.no_grad, torch.manual_seed, torch.__version__ = nullcontext, lambda seed: None, "2.9"
    torch.zeros = torch.empty = lambda shape, dtype=np.float32, device="cpu": Tensor(
        np.zeros(shape, dtype), None, str(device))
    torch.bmm = lambda x, w: x @ w
    torch.baddbmm = torch.addmm = added
    torch.logsumexp = lambda z, axis: computed(lambda a: _log_sum(a, axis), z)
    torch.square = lambda z: computed(np.square, z)
    for name in ("float64", "float32", "int32", "int64"):
        setattr(torch, name, np.dtype(name))
    torch.bfloat16 = "bfloat16"
    torch.distributed = SimpleNamespace()
    return {"torch": torch, "torch.nn": torch.nn, "torch.nn.functional": functional,
            "torch.distributed": torch.distributed}
