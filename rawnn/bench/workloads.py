"""The built-in workloads, each with one set of toggles after the other: time, accuracy, memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Literal

import msgspec

from rawnn.bench.clocks import ClockSample, ClockSampler, summarize
from rawnn.bench.records import GPU_TIMER, HOST_TIMER
from rawnn.bench.statistics import Spread, mean_std, spread
from rawnn.config import Config
from rawnn.data import Dataset, load_dataset
from rawnn.datasource import check_fit
from rawnn.errors import RawnnError
from rawnn.machine import Opened, open_device
from rawnn.result import Environment, Result, environment, write_atomically
from rawnn.training import Listener, Session
from rawnn.workloads import WORKLOADS, workload

HEADINGS = ("workload", "toggles", "µs/step", "ms/epoch", "test accuracy", "device memory")


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One workload with one set of toggles. `us` is the time of a step in microseconds, `epoch_ms`
    of an epoch in milliseconds, both by the clock that the result's `timer` describes;
    `evaluation_ms` of one pass over the test set by the wall clock. `reason` says why a workload
    that could not be run has no figures."""

    workload: str
    opt: str
    config: Config
    toggles: list[str] = []
    notes: list[str] = []
    steps: int = 0
    us: Spread | None = None
    epoch_ms: Spread | None = None
    evaluation_ms: Spread | None = None
    accuracies: list[float] = []
    peak_memory_bytes: int = 0
    clocks: dict[str, Spread] = {}
    reason: str = ""

    def cells(self) -> list[str]:
        """Its row of the table."""
        if self.us is None or self.epoch_ms is None:
            return [self.workload, self.opt, "-", "-", self.reason, "-"]
        mean, std = mean_std(self.accuracies)
        return [self.workload, self.opt, f"{self.us.median:.2f} ± {self.us.mad:.2f}",
                f"{self.epoch_ms.median:.2f}", f"{mean:.4f} ± {std:.4f}",
                f"{self.peak_memory_bytes / 2**20:.0f} MiB"]


class WorkloadsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Every measurement of a run of `rawnn bench workloads`, and where it was made."""

    kind: Literal["workloads"] = "workloads"
    schema_version: int = 1
    repeats: int
    environment: Environment
    dataset: str
    synthetic: bool
    timer: dict[str, str]
    measurements: list[Measurement]

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write the result atomically. Raises RawnnError where the file cannot be written."""
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    def markdown(self) -> str:
        """The table in Markdown, with its provenance below."""
        lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|---:|---:|---:|---:|"]
        for m in self.measurements:
            name, opt, *figures = m.cells()
            lines.append(f"| `{name}` | `{opt}` | " + " | ".join(figures) + " |")
        return "\n".join([*lines, "", *(f"{text}  " for text in self.provenance()), ""])

    def provenance(self) -> list[str]:
        """Where, when and how it was measured."""
        env = self.environment
        machine = f"{env.gpu['name']}, driver {env.gpu['driver']}, CUDA {env.gpu['cuda']}" \
            if env.gpu else f"host ({env.platform})"
        return [f"{machine}; medians and median deviations of {self.repeats} runs, seeds from 0, "
                f"on {self.dataset}; accuracy: mean and standard deviation; {env.date}, commit "
                f"{env.commit or 'unknown'}"]


def default_sets(name: str) -> list[str]:
    """The toggles that a workload is measured with: float32, its own, and stochastic rounding
    where weights are in 16 bits."""
    own = str(workload(name).get("opt", "best"))
    return ["best"] if own == "best" else ["best", own, "best,sr"]


def run_workloads(names: Sequence[str] = tuple(WORKLOADS), sets: Sequence[str] = (),
                  repeats: int = 3, epochs: int | None = None, device: str = "auto",
                  dataset: str = "mnist", *,
                  notify: Callable[[str], None] = lambda message: None,
                  on_result: Callable[[WorkloadsResult], None] = lambda result: None,
                  data: Dataset | None = None) -> WorkloadsResult:
    """Train every workload with every set of toggles (`default_sets` unless given), `repeats` times
    with seeds 0, 1, ..., on one opened device.

    `on_result` hears everything found so far after each set. What cannot run is kept with the
    reason. Raises ConfigError for unknown names, DataError, DeviceError.
    """
    plans = [(name, opt, _config(name, opt, epochs, device, dataset))
             for name in names for opt in (sets or default_sets(name))]
    data = data or load_dataset(dataset, notify=notify)
    for _, _, config in plans:
        check_fit(config, data)
    opened = open_device(device, notify)
    try:
        found: list[Measurement] = []
        result = None
        for name, opt, config in plans:
            measurement, env = _measure(name, opt, config, repeats, data, opened)
            found.append(measurement)
            result = WorkloadsResult(
                repeats=repeats, environment=env, dataset=data.name, synthetic=data.synthetic,
                timer=GPU_TIMER if opened.device else HOST_TIMER, measurements=list(found))
            on_result(result)
        assert result is not None
        return result
    finally:
        if opened.device:
            with suppress(RawnnError):
                opened.device.close()


def _config(name: str, opt: str, epochs: int | None, device: str, dataset: str) -> Config:
    values = {**workload(name), "opt": opt, "device": device, "dataset": dataset}
    return Config(**(values if epochs is None else {**values, "epochs": epochs}))


def _measure(name: str, opt: str, config: Config, repeats: int, data: Dataset,
             opened: Opened) -> tuple[Measurement, Environment]:
    runs: list[Result] = []
    steps, reason = 0, ""
    clocks: list[ClockSample | None] = []
    sampler = ClockSampler(opened.device.info.ordinal) \
        if opened.device and opened.device.backend.name != "sim" else None
    try:
        for seed in range(repeats):
            with Session(replace(config, seed=seed), Listener(), data=data,
                         opened=opened) as session:
                runs.append(session.run())
                steps = session.work.updates
            clocks.append(sampler.sample() if sampler else None)
    except RawnnError as error:
        reason = str(error)
    env = runs[-1].environment if runs else environment(
        opened.device.backend.name if opened.device else "host",
        asdict(opened.device.info) if opened.device else None, {})
    measurement = Measurement(workload=name, opt=opt, config=config, reason=reason)
    if len(runs) < repeats:
        return measurement, env
    times = [r.average_epoch_ms for r in runs]
    return msgspec.structs.replace(
        measurement, toggles=_words(runs[-1]), notes=runs[-1].notes, steps=steps,
        us=spread([t * 1e3 / steps for t in times]), epoch_ms=spread(times),
        evaluation_ms=spread([r.times.evaluation / max(len(r.history), 1) for r in runs]),
        accuracies=[r.test_accuracy for r in runs],
        peak_memory_bytes=max(r.peak_memory_bytes for r in runs), clocks=summarize(clocks),
    ), env


def _words(result: Result) -> list[str]:
    return [n if v is None else f"{n}={v}" for n, v in result.toggles.items()]
