"""A training run as a sample: what `ladder`, `workloads`, `toggles` and `ablation` time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rawnn.bench.conditions import Watch
from rawnn.bench.costing import footprint
from rawnn.bench.harness import Harness, Sample, Variant, precision_name
from rawnn.bench.record import Value
from rawnn.common.errors import CompileError, ConfigError, RawnnError, nearest
from rawnn.common.listener import Listener
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit, check_outline, settled
from rawnn.engine.machine import Opened
from rawnn.engine.run_planner import RunPlanner
from rawnn.engine.runners.precompile import precompile
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.engine.session import Session
from rawnn.model.workloads import workload
from rawnn.opts import TOGGLES
from rawnn.opts.precision_names import PRECISIONS
from rawnn.opts.presets import PRESETS
from rawnn.opts.select import check_text
from rawnn.opts.user_kernel_toggles import is_op, toggle

GPU_TIMER = {
    "epoch_ms": (
        "time between two events on the device, recorded before the first and after the last "
        "command of an epoch, averaged over the later half of the run's epochs; it covers "
        "gathering the batches, forward pass, loss, accuracy, backward pass, update and, where an "
        "epoch is measured, the copies of loss and accuracy to the host"
    ),
    "total_ms": (
        "wall clock over all epochs, the wait for the last metrics included; imports, data, "
        "driver, compilation, graph construction and test evaluation excluded"
    ),
}
HOST_TIMER = {
    "epoch_ms": "wall clock around the NumPy operations of an epoch, averaged over the later half "
                "of the run's epochs",
    "total_ms": "wall clock over all epochs; imports, data, setup and test evaluation excluded",
}
SIMULATED_TIMER = {
    "epoch_ms": "wall clock of the simulation, which computes with NumPy, averaged over the later "
                "half of the run's epochs: it says nothing about a GPU",
    "total_ms": "wall clock of the simulation over all epochs: it says nothing about a GPU",
}

EMULATED = frozenset(word.partition("=")[0] for word in PRECISIONS)
"""Precisions, whose rounding NumPy carries out in addition to the arithmetic of float32."""


def timer_of(device: str, opened: bool = True) -> dict[str, str]:
    """What the times of training runs are, in sentences, by metric."""
    return SIMULATED_TIMER if device == "sim" else GPU_TIMER if opened else HOST_TIMER


def open_timed(harness: Harness, device: str) -> Opened:
    """Open the device to train on."""
    opened = harness.open(device, {})
    harness.environment.timer = timer_of(harness.environment.device, opened.device is not None)
    return opened


def check_words(words: Sequence[str], where: str) -> None:
    """Raise ConfigError unless each word is a toggle or preset, with a valid value; `where` they
    stand is said."""
    for word in words:
        name, _, value = word.strip().removeprefix("-").partition("=")
        if not name or (name in PRESETS and not value):
            continue
        if name not in TOGGLES and not is_op(name):
            known = (*TOGGLES, *PRESETS)
            raise ConfigError(f"{where}: no toggle is called '{name}'" + (
                nearest(name, known) or f"; the toggles are {', '.join(known)}"))
        if not word.startswith("-"):
            toggle(name).parse(value if "=" in word else None)


def trained(config: Config, data: Dataset, opened: Opened, watch: Watch,
            listener: Listener | None = None) -> Sample:
    """One run. Raises KeyboardInterrupt where it was ended early, and what a session raises."""
    try:
        with Session(config, listener or Listener(), data=data, opened=opened) as session:
            with watch.during() as observed:
                result = session.run()
            facts = footprint(session.prepared, result.facts, opened)
    except RawnnError:
        with suppress(RawnnError):  # the first failure is the one that counts
            _reset_peak(opened)
        raise
    _reset_peak(opened)
    if result.interrupted:
        raise KeyboardInterrupt
    words = [n if v is None else f"{n}={v}" for n, v in result.toggles.items()]
    return Sample(
        {"epoch_ms": result.average_epoch_ms, "step_us": result.average_epoch_ms * 1e3
         / facts["steps"], "total_ms": result.times.training, "accuracy": result.test_accuracy,
         "loss": result.test_loss, "every_epoch_ms": result.epoch_ms,
         "epoch_wall_ms": result.average_epoch_wall_ms,
         "total_device_ms": result.times.training_device,
         "evaluation_ms": result.times.evaluation / max(len(result.history), 1),
         "peak_memory_bytes": result.peak_memory_bytes},
        facts, [f"toggles: {','.join(words)}", *result.notes], observed,
        result.environment.libraries)


def _reset_peak(opened: Opened) -> None:
    """Start the next run with a peak of device memory of its own."""
    if opened.device:
        opened.device.memory.reset_peak()


WorkloadOpt = tuple[str, str]
"""A workload's name, and toggles as after --opt."""


def measure_workloads(harness: Harness, wanted: Sequence[WorkloadOpt], repeats: int,
                      epochs: int | Mapping[str, int] | None, device: str, dataset: str, *,
                      opened: Opened | None = None,
                      conditions: Callable[[WorkloadOpt], Mapping[str, Value]] = lambda pair: {},
                      data: Dataset | None = None) -> None:
    """Train each workload with its toggles, `repeats` times with seeds 0, 1, ..., interleaved.

    `epochs` are the workload's own unless given: for all workloads, or by name, with `others` for
    those that are not named. `conditions` adds to what identifies a pair. Raises ConfigError for
    unknown names, DataError, DeviceError.
    """
    for _, opt in wanted:
        check_words(opt.split(","), f"--opt {opt}")
        check_text(opt)
    configs = {pair: _config(*pair, _epochs(epochs, pair[0]), device, dataset) for pair in wanted}
    for config in () if data else configs.values():
        check_outline(config)
    data = data or load_dataset(dataset, notify=harness.notify, stand_in=True)
    for config in configs.values():
        check_fit(config, data)
    there = opened or open_timed(harness, device)
    whole = data
    variants = []
    for pair, config in configs.items():
        if there.device is None:
            config = replace(config, device="host")  # which leaves no toggle out

        def take(number: int, config: Config = config) -> Sample:
            return trained(replace(config, seed=number), whole, there, harness.watch)

        variant = Variant(
            f"{harness.suite}/{pair[0]}", pair[1], precision_name(pair[1]), "epoch_ms",
            {"epochs": config.epochs, "dataset": data.name,
             **({"synthetic": True} if data.synthetic and data.name != "synthetic" else {}),
             **conditions(pair)}, take)
        if there.device is None and (reason := _not_on_host(harness.suite, pair[1])):
            variant.refuse("unavailable", reason)
        variants.append(variant)
    harness.ask(variants)
    _compile([configs[pair] for pair, v in zip(configs, variants, strict=True)
              if v.is_usable and v.turns < repeats], data, there)
    harness.interleave(variants, repeats)
    harness.end()


def _config(name: str, opt: str, epochs: int | None, device: str, dataset: str) -> Config:
    values = {**workload(name), "opt": opt, "device": device, "dataset": dataset}
    return Config(**(values if epochs is None else {**values, "epochs": epochs}))


def _epochs(asked: int | Mapping[str, int] | None, name: str) -> int | None:
    """The epochs that a workload is asked for, None for its own."""
    if asked is None or isinstance(asked, int):
        return asked
    return asked.get(name, asked.get("others"))


def _not_on_host(suite: str, opt: str) -> str:
    """Why toggles say nothing where there is no GPU; "" where they do."""
    names = [name for word in opt.split(",") if word[:1] != "-"
             for name in [word.partition("=")[0]] if name in TOGGLES]
    if gpu := [name for name in names if not TOGGLES[name].host]:
        return f"only for a GPU: {', '.join(gpu)}"
    if suite == "toggles" and (emulated := [name for name in names if name in EMULATED]):
        return f"the host only emulates {', '.join(emulated)}: its time says nothing"
    return ""


def _compile(configs: Sequence[Config], data: Dataset, opened: Opened) -> None:
    """Compile what these runs need at once, on all cores. What is wrong with one is said when its
    turn comes."""
    if opened.device is None:
        return
    works = list[PreparedRun]()
    for config in configs:
        with suppress(RawnnError):
            config, _ = settled(config, data)
            works.append(RunPlanner(config, data, opened, None, lambda message: None)
                         .plan(None)[1])
    with suppress(CompileError):
        precompile(opened.device, works)
