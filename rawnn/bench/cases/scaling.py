"""How a network's training scales over ranks: the same batch on more of them (strong), and more
examples with them (weak); PyTorch's DDP for comparison. Every run is processes of its own."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from rawnn.bench.case import Case
from rawnn.bench.harness import Harness, Sample, Variant, precision_name
from rawnn.bench.peers.process import missing
from rawnn.bench.ranked import Answer, Request
from rawnn.bench.record import Results
from rawnn.bench.render import machine
from rawnn.bench.render.view import View
from rawnn.bench.suites import Suites
from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.distributed.launcher import TIMED_OUT, run
from rawnn.distributed.rank_context import VARIABLES
from rawnn.engine.config import Config, check_device
from rawnn.engine.machine import open_gpu
from rawnn.engine.result import environment
from rawnn.model.workloads import workload

PEER_SECONDS = 300.0
"""What a run of a peer may take, which no message ends where its ranks wait for each other for
ever."""
TIMER = {"step_us": "wall clock of an epoch over its steps, as rank 0 sees it; the first half of "
                    "the epochs is not counted"}

Scaling = Literal["strong", "weak"]


def measure(harness: Harness, suites: Suites, *, ranks: int, names: tuple[str, ...], batch: int,
            opt: str | None, peers: tuple[str, ...], epochs: int, repeats: int, dataset: str,
            device: str) -> None:
    """Measure how training scales over ranks: strong (the batch stays) and weak (each rank's part
    stays), with the loss of every epoch.

    Exits with 1 where a run failed; the table says which.
    """
    check_is_first()
    check_device(device)
    wanted = points(names or ("mlp4", "wide1024", "wide4096", "wide8192"),
                    ("rawnn", *dict.fromkeys(peers)), batch, ranks)
    for reason in filter(None, map(missing, peers)):
        raise ConfigError(f"--peer: {reason}")
    if device != "host":
        try:
            open_gpu(0, harness.notify).close()
        except DeviceError as error:
            raise ConfigError(f"ranks run on a GPU each: {error}; --device host measures them on "
                              f"the host") from None
    harness.stand(environment(device, None, {}, TIMER))
    variants = [_variant(point, opt, epochs, device, dataset, harness) for point in wanted]
    harness.ask(variants)
    harness.interleave(variants, repeats, is_budgeted=False)
    harness.end()


@dataclass(frozen=True)
class Point:
    """One number of ranks of one system."""

    workload: str
    system: str
    scaling: Scaling
    ranks: int
    batch: int


def sizes(most: int) -> list[int]:
    """Numbers of ranks to measure: powers of two up to `most`, and that."""
    return sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most})


def points(names: Sequence[str], systems: Sequence[str], batch: int, most: int) -> list[Point]:
    """What is to be measured. Raises ConfigError for a batch that the ranks cannot share evenly."""
    if bad := [n for n in sizes(most) if batch % n]:
        raise ConfigError(f"a batch of {batch} cannot be split evenly among {bad[0]} ranks")
    kinds: tuple[Scaling, ...] = ("strong", "weak")
    return [Point(name, system, scaling, n, batch if scaling == "strong" else batch // most * n)
            for name in names for scaling in kinds for n in sizes(most) for system in systems]


def _variant(point: Point, opt: str | None, epochs: int, device: str, dataset: str,
             harness: Harness) -> Variant:
    """A point as a variant: microseconds a step of every epoch that counts, and the training loss
    of every report of the first repeat."""
    options: dict[str, Any] = {
        **workload(point.workload), "batch": point.batch, "epochs": epochs, "device": device,
        "dataset": dataset, **({} if opt is None else {"opt": opt})}
    Config(**options)

    def take(number: int) -> Sample:
        answer = once(point.system, {**options, "seed": number}, point.ranks, harness.notify)
        if isinstance(answer, str):
            raise RawnnError(answer)
        place = harness.environment
        place.ranks = max(place.ranks, answer.ranks, key=len)
        place.gpu = answer.gpu or place.gpu
        notes = [f"toggles: {answer.toggles}"] if answer.toggles else []
        return Sample({"step_us": answer.step_us, **({} if number else {"loss": answer.losses})},
                      notes=[*notes, *filter(None, [answer.note])], libraries=answer.libraries)

    precision = precision_name(str(options.get("opt", "best")))
    return Variant(f"scaling/{point.workload}", point.system, precision, "step_us", {
                       "scaling": point.scaling, "ranks": point.ranks, "batch": point.batch,
                       "epochs": epochs, "opt": opt or "the workload's own", "dataset": dataset},
                   take)


def once(system: str, options: dict[str, Any], ranks: int,
         say: Callable[[str], None]) -> Answer | str:
    """One run of as many ranks; why there is no answer where there is none. A peer that has
    answered has, however its ranks end. Raises KeyboardInterrupt where a signal asks to end."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_bytes(msgspec.json.encode(Request(options, str(answer),
                                                        options["dataset"] == "synthetic")))
        signals: list[int] = []
        status = run([sys.executable, "-m", "rawnn.bench.ranked", system, str(request)], ranks, say,
                     math.inf if system == "rawnn" else PEER_SECONDS, signals.append)
        if signals:
            raise KeyboardInterrupt
        if not answer.exists() and status == TIMED_OUT:
            return f"not ended after {PEER_SECONDS:g} s"
        if not answer.exists() or (status and system == "rawnn"):
            return f"failed with status {status}"
        return msgspec.json.decode(answer.read_bytes(), type=Answer)


def check_is_first() -> None:
    """Raise ConfigError in a process that a launcher started: ranks are started here."""
    if any(size in os.environ and os.environ[size] != "1" for _, _, size, *_ in VARIABLES):
        raise ConfigError("bench scaling starts the ranks itself: run it by itself")


def failures(results: Results) -> str:
    """How many points failed."""
    found = results.entries("scaling")
    failed = [e for e in found if e.status not in ("measured", "not measured")]
    return f"{len(failed)} of {len(found)} measurements failed; what they said stands above" \
        if failed else ""


CASE = Case("scaling", measure, (
    click.option("--ranks", type=click.IntRange(1, 1024), default=2, show_default=True,
                 help="Measure up to so many processes on this host, one for each GPU."),
    click.option("--workload", "names", multiple=True, metavar="NAME",
                 help="A built-in workload; several may be given (mlp4, wide1024, wide4096, "
                      "wide8192)."),
    click.option("--batch", type=click.IntRange(1), default=4096, show_default=True,
                 help="The global batch; in weak scaling that of the most ranks."),
    click.option("--opt", metavar="TOGGLES", help="Toggles (each workload's own)."),
    click.option("--peer", "peers", multiple=True, type=click.Choice(["torch"]),
                 help="Measure PyTorch's DDP as well."),
    click.option("--epochs", type=click.IntRange(2), default=10, show_default=True,
                 help="Epochs of a run, the first half of which are not counted."),
    click.option("--repeats", type=click.IntRange(1), default=3, show_default=True,
                 help="Runs of each, in turns, with a seed of its own each time."),
    click.option("--dataset", default="mnist", show_default=True, metavar="NAME",
                 help="mnist or synthetic."),
    click.option("--device", default="gpu", show_default=True, metavar="gpu|host",
                 help="Where ranks run."),
), failures, resumes=False, view=View(
    "Several GPUs", "The same batch on more GPUs, and more examples with them.", machine.scaling,
    machine.scaling_charts))
