"""PyTorch's DistributedDataParallel on the same work: forward, backward, bucketed reduction and
fused update, bfloat16 by autocast, each step one CUDA graph where capturing it works. It begins
with the same parameters and sees the same batches, so that losses can be compared.

`measure` runs in a process that a launcher started as a rank; torch must be installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from rawnn.bench.ranked import WARM, Answer, Request
from rawnn.common.errors import ConfigError
from rawnn.common.random import permutation
from rawnn.data import load_dataset
from rawnn.engine.config import Config

BUCKET_MB = 25
WARMING = 11
"""Steps before a capture, in which DDP settles its buckets (PyTorch's notes on CUDA graphs)."""


def measure(request: Request, store: Callable[[Answer], object] = lambda found: None
            ) -> Answer | None:
    """Train the network of the request's Config; None on other ranks than the first. `store` is
    called with the answer.

    On GPUs the process group is left as it is, for the process to end by `leave`: to destroy it is
    one more collective, at which a run that has its answer could wait.

    Only cross-entropy and plain SGD, as the built-in workloads have them. Raises ConfigError.
    """
    import torch
    from torch import distributed

    config = Config(**request.options)
    if config.loss != "cross_entropy" or config.optimizer != "sgd" or config.momentum:
        raise ConfigError("DDP is measured with cross-entropy and plain SGD only")
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    on_gpu = config.device != "host"
    place = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(place)
        torch.backends.cuda.matmul.allow_tf32 = True
    # Its own captures must not be watched by the thread that looks for errors of collectives.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    distributed.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=size)
    found = _trained(torch, config, rank, size, place, request.synthetic)
    if found is not None:
        store(found)
    if not on_gpu:
        distributed.destroy_process_group()
    return found


def leave(status: int) -> NoReturn:
    """End the process, which has a process group on a GPU."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _trained(torch: Any, config: Config, rank: int, size: int, place: Any,
             synthetic: bool) -> Answer | None:
    data = load_dataset(config.dataset, config.data, notify=lambda said: None, stand_in=synthetic)
    batch, mine = config.batch or 128, (config.batch or 128) // size
    steps = len(data.train_images) // batch
    images = torch.from_numpy(np.asarray(data.train_images, np.float32)
                              * data.normalisation.scale).to(place)
    labels = torch.from_numpy(np.asarray(data.train_labels, np.int64)).to(place)
    torch.manual_seed(config.seed)
    layers: list[Any] = []
    for inside, outside in zip(config.layers, config.layers[1:], strict=False):
        layers += [torch.nn.Linear(inside, outside, bias=config.bias), torch.nn.ReLU()]
    gpu = place.type == "cuda"
    side = torch.cuda.Stream() if gpu else None
    with torch.cuda.stream(side) if gpu else nullcontext():  # DDP is made on the captured stream
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers[:-1]).to(place), device_ids=[place.index] if gpu else None,
            bucket_cap_mb=BUCKET_MB, gradient_as_bucket_view=True, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, fused=gpu)
    words = {word.partition("=")[0] for word in config.opt.split(",")}
    low = bool(words & {"bf16", "sr"})
    rows = torch.zeros(mine, dtype=torch.int64, device=place)
    total = torch.zeros((), device=place)
    start = list(config.network().initial(config.seed).values())  # as ours begins

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast(place.type, torch.bfloat16, enabled=low):
            z = model(images.index_select(0, rows))
        found = torch.nn.functional.cross_entropy(z.float(), labels.index_select(0, rows))
        found.backward()
        optimizer.step()
        total.add_(found.detach())

    note, replay = "eager: the host has no graphs", step
    if gpu:
        note, replay = _captured(torch, step, side)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.copy_(torch.from_numpy(value))
    times, losses = [], []
    for epoch in range(config.epochs):
        seen = permutation(config.seed, epoch, len(images)) if config.shuffle \
            else np.arange(len(images))
        order = torch.from_numpy(seen.astype(np.int64)).to(place)
        total.zero_()
        if gpu:
            torch.cuda.synchronize()
        begun = perf_counter()
        for s in range(steps):
            first = s * batch + rank * mine
            rows.copy_(order[first : first + mine])
            replay()
        if gpu:
            torch.cuda.synchronize()
        times.append((perf_counter() - begun) * 1e6 / steps)
        torch.distributed.all_reduce(total)
        losses.append(float(total) / steps / size)
    if rank:
        return None
    return Answer(times[int(len(times) * WARM):], losses,
                  libraries={"torch": str(torch.__version__)}, note=note)


def _captured(torch: Any, step: Any, side: Any) -> tuple[str, Any]:
    """The step as a CUDA graph, or as it is where it cannot be captured."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMING):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            step()
    except RuntimeError as error:
        return f"eager: it cannot be captured ({str(error).splitlines()[0]})", step
    return "captured", graph.replay
