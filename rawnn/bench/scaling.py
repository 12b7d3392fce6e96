"""How a network's training scales over ranks: the same batch on more of them (strong), and more
examples with them (weak); PyTorch's DDP beside it. Every run is processes of its own."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from rawnn.bench.columns import markdown_table
from rawnn.bench.measured import Measured, read_measured
from rawnn.bench.ranked import Answer, Request
from rawnn.bench.statistics import Spread, spread
from rawnn.common.errors import ConfigError
from rawnn.common.words import counted
from rawnn.distributed.launcher import TIMED_OUT, run
from rawnn.distributed.rank_context import VARIABLES
from rawnn.engine.config import Config
from rawnn.engine.result import Environment, environment
from rawnn.model.workloads import workload

SCHEMA_VERSION = 1
PEER_SECONDS = 300.0
"""What a run of a peer may take, which no message ends where its ranks wait for each other for
ever."""
SYSTEMS = {"rawnn": "rawnn", "torch": "PyTorch DDP"}
HEADINGS = ("workload", "system", "scaling", "ranks", "batch", "us a step", "min-max", "speed-up",
            "efficiency", "note")

ALIKE = 1e-4
"""The part of a loss by which two systems may differ to be called alike."""

Scaling = Literal["strong", "weak"]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ranks: microseconds a step over all epochs of all repeats, behind the warm
    ones; `losses` are the training loss of each report of the first repeat. `reason` says why there
    is no time."""

    workload: str
    system: str
    scaling: Scaling
    ranks: int
    batch: int
    us: Spread | None = None
    samples: list[float] = []
    losses: list[float] = []
    toggles: str = ""
    note: str = ""
    reason: str = ""


class ScalingResult(Measured, frozen=True, kw_only=True):
    """All points, and where they were measured; `devices` names every rank's GPU and host, as the
    run of most ranks had them."""

    kind: Literal["scaling"] = "scaling"
    schema_version: int = SCHEMA_VERSION
    environment: Environment
    opt: str
    epochs: int
    repeats: int
    points: list[Point]
    devices: list[dict[str, str]] = msgspec.field(default_factory=list)
    interrupted: bool = False

    def alone(self, point: Point) -> Point | None:
        """The point of one rank that another is compared with."""
        return next((p for p in self.points if p.us and p.ranks == 1 and
                     (p.workload, p.system, p.scaling)
                     == (point.workload, point.system, point.scaling)), None)

    def speed_up(self, point: Point) -> float | None:
        """Examples a second over those of one rank."""
        one = self.alone(point)
        if one is None or one.us is None or point.us is None:
            return None
        return one.us.median / point.us.median * point.batch / one.batch

    def cells(self, point: Point) -> list[str]:
        """A row of the table."""
        head = [point.workload, SYSTEMS[point.system], point.scaling, str(point.ranks),
                f"{point.batch:,}"]
        if point.us is None:
            return [*head, "-", "", "", "", point.reason]
        ratio = self.speed_up(point)
        return [*head, f"{point.us.median:,.1f}", f"{point.us.min:,.1f}-{point.us.max:,.1f}",
                f"{ratio:.2f}" if ratio else "", f"{ratio / point.ranks:.0%}" if ratio else "",
                point.note]

    def provenance(self) -> str:
        """Where, when and with what it was measured."""
        place = self.environment
        where = ", ".join(dict.fromkeys(d["device"] for d in self.devices)) or "the host"
        libraries = ", ".join(f"{n} {v}" for n, v in place.libraries.items())
        return (f"{len(self.devices) or 1} x {where}; {libraries}; {self.opt}; {self.epochs} "
                f"epochs, the first half of them warm, {self.repeats} repeats; {place.date}, "
                f"commit {place.commit or 'unknown'}")

    def losses_apart(self) -> str:
        """How far training losses of the same batches lie apart at most, in a sentence; "" where
        but one system was measured."""
        found = []
        for one in self.points:
            same = [p for p in self.points if p.system != one.system and
                    (p.workload, p.ranks, p.batch) == (one.workload, one.ranks, one.batch)]
            pairs = zip(one.losses, same[0].losses, strict=False) if same else ()
            found += [(abs(a / b - 1), f"{one.workload}, {counted(one.ranks, 'rank')}, batch "
                       f"{one.batch:,}") for a, b in pairs if b]
        if not found:
            return ""
        most, where = max(found)
        alike = sum(apart <= ALIKE for apart, _ in found) / len(found)
        return (f"Training losses of both systems, report by report: {alike:.0%} within "
                f"{ALIKE:.2%} of each other, the furthest {most:.2%} apart ({where}).")

    def markdown(self) -> str:
        """The table in Markdown, with its provenance below."""
        lines = markdown_table(HEADINGS, [self.cells(p) for p in self.points],
                               (*HEADINGS[:3], HEADINGS[-1]))
        said = [self.losses_apart(), ""] if self.losses_apart() else []
        return "\n".join([*lines, "", *said, f"{self.provenance()}.", ""])


SCALINGS: Mapping[str, tuple[type[ScalingResult], int]] = {
    "scaling": (ScalingResult, SCHEMA_VERSION)}


def read_scaling(path: str | os.PathLike[str]) -> ScalingResult:
    """Read what `write_json` wrote. Raises ConfigError for anything else."""
    found: ScalingResult = read_measured(path, SCALINGS)
    return found


def sizes(most: int) -> list[int]:
    """Numbers of ranks to measure: powers of two up to `most`, and that."""
    return sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most})


def points(names: Sequence[str], systems: Sequence[str], batch: int, most: int) -> list[Point]:
    """What is to be measured. Raises ConfigError for a batch that the ranks cannot share evenly."""
    if bad := [n for n in sizes(most) if batch % n]:
        raise ConfigError(f"a batch of {batch} cannot be split evenly among {bad[0]} ranks")
    kinds: tuple[Scaling, ...] = ("strong", "weak")
    return [Point(workload=name, system=system, scaling=scaling, ranks=n,
                  batch=batch if scaling == "strong" else batch // most * n)
            for name in names for scaling in kinds for n in sizes(most) for system in systems]


def measure(wanted: Sequence[Point], opt: str | None, epochs: int, repeats: int, device: str,
            dataset: str, say: Callable[[str], None]) -> Iterator[ScalingResult]:
    """Run every point in turns, repeat after repeat; yields all that is known after each run."""
    found = list(wanted)
    place = environment(device, None, {})
    devices: list[dict[str, str]] = []

    def result(points: Sequence[Point]) -> ScalingResult:
        return ScalingResult(environment=place, opt=opt or "each workload's own toggles",
                             epochs=epochs, repeats=repeats, points=list(points), devices=devices)

    for repeat in range(repeats):
        for i, point in enumerate(found):
            if point.reason:
                yield result(found)
                continue
            options = {**workload(point.workload), "batch": point.batch, "epochs": epochs,
                       "seed": repeat, "device": device, "dataset": dataset,
                       **({} if opt is None else {"opt": opt})}
            answer = once(point.system, options, point.ranks, say)
            if isinstance(answer, str):
                found[i] = msgspec.structs.replace(point, reason=answer)
            else:
                samples = [*point.samples, *answer.step_us]
                found[i] = msgspec.structs.replace(
                    point, samples=samples, us=spread(samples), toggles=answer.toggles,
                    note=answer.note, losses=point.losses or answer.losses)
                devices = max(devices, answer.ranks, key=len)
                place = replace(place, libraries={**place.libraries, **answer.libraries},
                                gpu=answer.gpu or place.gpu)
            yield result(found)


def once(system: str, options: dict[str, Any], ranks: int,
         say: Callable[[str], None]) -> Answer | str:
    """One run of as many ranks; why there is no answer where there is none. A peer that has
    answered has, however its ranks end. Raises KeyboardInterrupt where a signal asks to end."""
    Config(**options)
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_bytes(msgspec.json.encode(Request(options, str(answer),
                                                        options["dataset"] == "synthetic")))
        heard: list[int] = []
        status = run([sys.executable, "-m", "rawnn.bench.ranked", system, str(request)], ranks, say,
                     math.inf if system == "rawnn" else PEER_SECONDS, heard.append)
        if heard:
            raise KeyboardInterrupt
        if not answer.exists() and status == TIMED_OUT:
            return f"not ended after {PEER_SECONDS:g} s"
        if not answer.exists() or (status and system == "rawnn"):
            return f"failed with status {status}"
        return msgspec.json.decode(answer.read_bytes(), type=Answer)


def alone() -> None:
    """Raise ConfigError in a process that a launcher started: ranks are started here."""
    if any(size in os.environ and os.environ[size] != "1" for _, _, size, *_ in VARIABLES):
        raise ConfigError("bench scaling starts the ranks itself: run it by itself")
