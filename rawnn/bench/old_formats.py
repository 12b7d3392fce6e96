"""Results files as rawnn wrote them before format 2: one shape a suite, read into records.

Each reader takes the JSON of one kind. What a file lacks, because its version did not measure it,
its records lack as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from rawnn.bench.cases.ladder import ALWAYS, IDENTIFYING
from rawnn.bench.gpu_limits import METRICS
from rawnn.bench.harness import precision_name
from rawnn.bench.record import (
    CLOCK_METRICS,
    Record,
    Results,
    Value,
    records_of,
)
from rawnn.common.errors import ConfigError
from rawnn.engine.config import Config
from rawnn.engine.result import Environment

Json = dict[str, Any]

RESTORED = ("the file keeps medians and spreads alone; samples with the same median, extremes and "
            "median deviation stand for those measured")
OTHERS = {
    "the result of one training run, as `rawnn train --json` writes it (docs/results.md)":
        {"config", "toggles", "history", "epoch_ms"},
    "what `rawnn eval --json` found of a checkpoint": {"checkpoint", "epoch", "loss", "accuracy"},
}
"""Other files of JSON that rawnn writes, and keys that each of them has."""


def converted(content: bytes, path: str) -> Results:
    """The records of an older results file. Raises ConfigError for what is none, and
    msgspec.DecodeError for what is no JSON."""
    raw = msgspec.json.decode(content)
    keys = set(raw) if isinstance(raw, dict) else set()
    for words, wanted in OTHERS.items():
        if wanted <= keys and "kind" not in keys:
            raise ConfigError(f"{path} is {words}, and no measurement of `rawnn bench`")
    kind = str(raw.get("kind") or "") if isinstance(raw, dict) else ""
    if kind not in READERS:
        raise ConfigError(f"{path} holds '{kind}', which is no results file of rawnn bench; older "
                          f"files are read of {', '.join(READERS)}" if kind else
                          f"{path} is not a results file of rawnn")
    try:
        place = environment_of(raw)
        results = Results(environments={place.key: place})
        results.records = [msgspec.structs.replace(record, environment=place.key)
                           for record in READERS[kind](raw)]
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} holds '{kind}', but not as rawnn wrote it: {error}") from None
    if raw.get("interrupted") or raw.get("ended"):
        for suite in results.suites:
            results.ended[suite] = raw.get("ended") or "Ctrl-C"
    return results


def environment_of(raw: Json) -> Environment:
    """Where and when a file was measured."""
    place = dict(raw["environment"])
    known = {name: place[name] for name in Environment.__struct_fields__ if name in place}
    return msgspec.convert({**known, "timer": raw.get("timer", {})}, Environment)


# -- records ---------------------------------------------------------------------------------------


def _plan(print_: Json | None) -> dict[str, float | None]:
    """What a step launches and moves by its plan, and its lower bound."""
    if not print_:
        return {}
    bound = print_.get("floor") or {}
    return {"launches": print_["launches"], "graph_nodes": print_.get("nodes"),
            "steps": print_.get("steps") or None,
            "step_bytes": print_["bytes"], "least_bytes": print_["least_bytes"],
            "lower_bound_us": bound.get("us"), "lower_bound_memory_us": bound.get("memory_us"),
            "lower_bound_arithmetic_us": bound.get("arithmetic_us"),
            "lower_bound_waiting_us": bound.get("waiting_us"),
            "lower_bound_exchanges": bound.get("exchanges")}


def _readings(conditions: Json | None) -> dict[str, Sequence[float] | float | None]:
    """What NVML read meanwhile: the least, the median and the most of each quantity."""
    if not conditions:
        return {}
    found: dict[str, Sequence[float] | float | None] = {
        name: (spread["min"], spread["median"], spread["max"])
        for name in CLOCK_METRICS if (spread := conditions.get(name))}
    return {**found, "energy_j": conditions.get("energy_j"),
            "seconds": conditions.get("seconds")}


def _slowed(*conditions: Json | None) -> list[str]:
    reasons = sorted({word for each in conditions if each for word in each.get("slowdowns", [])}
                     - {"power limit"})
    return [f"ran on a slowed-down GPU ({', '.join(reasons)}), even when it was run again"] \
        if reasons else []


def restored(spread: Json) -> list[float]:
    """Samples with the median, extremes and median deviation of a spread: the very ones up to
    three, else some that are as far apart."""
    n, middle, least, most = spread["n"], spread["median"], spread["min"], spread["max"]
    if n < 3:
        return [middle] if n == 1 else [least, most]
    middles = [middle] * (2 - n % 2)
    inner = n - 2 - len(middles)
    low, high = max(least, middle - spread["mad"]), min(most, middle + spread["mad"])
    return [least, *[low] * (inner // 2), *middles, *[high] * (inner // 2), most]


def _dataset(raw: Json) -> dict[str, Value | None]:
    """The data set, and whether generated data stood in for it."""
    stood_in = raw["synthetic"] and raw["dataset"] != "synthetic"
    return {"dataset": raw["dataset"], "synthetic": True if stood_in else None}


def _toggles(words: Sequence[str]) -> list[str]:
    return [f"toggles: {','.join(words)}"] if words else []


# -- kinds -----------------------------------------------------------------------------------------


def _ladder(raw: Json) -> Iterator[Record]:
    config, usual = raw["config"], {each.name: each.default for each in fields(Config)}
    shared: dict[str, Value | None] = {
        name: config[name] for name in usual if name in config and (
            name in ALWAYS or (name in IDENTIFYING and config[name] != usual[name]))}
    shared |= {"seed": config["seed"], **_dataset(raw)}
    for rung in raw["rungs"]:
        runs, cond = rung["runs"], rung.get("conditions")
        status = rung.get("status", "measured")
        notes = [*rung["notes"], *_toggles(rung["toggles"]), *_slowed(cond)]
        metrics: dict[str, Sequence[float] | float | None] = {
            "epoch_ms": [r["average_epoch_ms"] for r in runs],
            "every_epoch_ms": [ms for r in runs for ms in r["epoch_ms"]],
            "epoch_wall_ms": [r["average_epoch_wall_ms"] for r in runs],
            "total_ms": [r["total_ms"] for r in runs],
            "total_device_ms": [r["total_device_ms"] for r in runs],
            "evaluation_ms": [r["evaluation_ms"] for r in runs],
            "accuracy": [r["test_accuracy"] for r in runs],
            "loss": [r["test_loss"] for r in runs],
            "peak_memory_bytes": [r["peak_memory_bytes"] for r in runs],
            "step_us": [r["average_epoch_ms"] * 1e3 / steps for r in runs]
            if (steps := (rung.get("footprint") or {}).get("steps")) else [],
            **_plan(rung.get("footprint")), **_readings(cond)}
        yield from records_of("ladder", rung["name"], metrics,
                              precision=precision_name(rung["opt"]),
                              conditions=shared, status=status,
                              reason=rung.get("reason", ""), notes=notes)
    if oracle := raw.get("oracle"):
        yield from records_of("ladder", "reference", {"accuracy": oracle["accuracies"]},
                              precision="float64",
                              conditions={**shared, "seeds": list(oracle["seeds"])})


def _sets(raw: Json) -> Iterator[Record]:
    pairs: dict[str, list[str]] = {}
    for m in raw["measurements"]:  # of an ablation the first two of a workload are base and fastest
        pairs.setdefault(m["workload"], []).append(m["opt"].removeprefix("none,"))
    for m in raw["measurements"]:
        epochs_ms = m.get("times_ms") or (restored(m["epoch_ms"]) if m.get("epoch_ms") else [])
        was_restored = bool(epochs_ms) and not m.get("times_ms")
        steps = m.get("steps") or None
        metrics: dict[str, Sequence[float] | float | None] = {
            "epoch_ms": epochs_ms,
            "step_us": [ms * 1e3 / steps for ms in epochs_ms] if steps else [],
            "evaluation_ms": restored(m["evaluation_ms"]) if m.get("evaluation_ms") else [],
            "accuracy": m.get("accuracies", []),
            "peak_memory_bytes": m.get("peak_memory_bytes") or None,
            "steps": steps, **_plan(m.get("footprint")), **_readings(m.get("conditions"))}
        if not m.get("conditions"):
            metrics.update({n: (s["min"], s["median"], s["max"])
                            for n, s in m.get("clocks", {}).items()})
        yield from records_of(
            f"{raw['kind']}/{m['workload']}", m["opt"].removeprefix("none,"), metrics,
            precision=precision_name(m["opt"]),
            conditions={"epochs": m["epochs"], **_dataset(raw), **(
                            dict(zip(("base", "full"), pairs[m["workload"]], strict=False))
                            if raw["kind"] == "ablation" else {})},
            status="measured" if epochs_ms else "unavailable" if m["reason"] else "not measured",
            reason=m["reason"], notes=[*m["notes"], *_toggles(m["toggles"]),
                                       *_slowed(m.get("conditions")),
                                       *([RESTORED] if was_restored else [])])


USUAL = {"bias": True, "activation": "relu", "shuffle": True, "data": "drawn"}
"""Keys of a problem that are conditions only where they have another value."""


def _problem(problem: Json) -> dict[str, Value | None]:
    return {"layers": list(problem["layers"]), "batch": problem["batch"],
            "loss": problem["loss"], "optimizer": problem["optimizer"], "lr": problem["lr"],
            "steps": problem.get("steps"), "seed": problem["seed"],
            **{name: problem[name] for name, value in USUAL.items()
               if problem.get(name, value) != value}}


SUITES = {"random-peers": "sample", "peers": "peers", "sweep": "sweep"}


def _contests(raw: Json) -> Iterator[Record]:
    suite = SUITES[raw["kind"]]
    shared = {"run_steps": raw.get("run_steps", 128_000),
              "sample_version": raw["draw_version"] if suite == "sample" else None}
    for contest in raw["contests"]:
        problem = contest["problem"]
        for e in contest["entries"]:
            notes = _slowed(e.get("conditions"), {"slowdowns": e.get("throttled", [])})
            if not e.get("steady", True):
                notes.append("never became steady")
            yield from records_of(
                _network_case(suite, problem), f"{e['system']} {e['form']}".strip(), {
                    "step_us": e.get("us", []), "setup_s": e.get("setup_s") or None,
                    "loss_error": e.get("error"), "epochs": e.get("epochs") or None,
                    **_plan(e.get("footprint")), **_readings(e.get("conditions"))},
                precision=e["numbers"], status=e["status"], reason=e.get("reason", ""),
                notes=notes, conditions={
                    "system": e["system"], "form": e["form"] or None, **_problem(problem),
                    **shared, "clock": e.get("clock", "events")})
    done = {contest["problem"]["name"] for contest in raw["contests"]}
    for problem in raw["asked"]:
        if problem["name"] not in done:
            yield from records_of(
                _network_case(suite, problem), "rawnn best", {"step_us": []}, precision="float32",
                conditions={"system": "rawnn", "form": "best", **_problem(problem), **shared},
                status="not measured", reason=raw.get("ended") or "not reached")
    for system, why in raw.get("left_out", {}).items():
        yield from records_of(suite, system, {"step_us": []}, status="unavailable", reason=why,
                              conditions={"system": system})


def _network_case(suite: str, problem: Json) -> str:
    name = str(problem["name"])
    return f"{suite}/{name.removeprefix('seed ') if suite == 'sample' else name}"


def _floors(raw: Json) -> Iterator[Record]:
    for f in raw["floors"]:
        yield from records_of(
            "lower-bounds", f["name"], {METRICS[f["unit"]]: f.get("samples", [])},
            status="measured" if f.get("value") else "unavailable", reason=f.get("reason", ""),
            notes=[f["what"], f.get("how", "") + (
                "" if f.get("steady", True) else "; not steady")])
    yield from records_of(
        "lower-bounds", "gpu", {"multiprocessors": raw.get("multiprocessors"),
                                "l2_bytes": raw.get("l2_bytes") or None,
                                **_readings(raw.get("conditions"))},
        notes=_slowed(raw.get("conditions")))


READERS: dict[str, Callable[[Json], Iterator[Record]]] = {
    "ladder": _ladder, "workloads": _sets, "toggles": _sets, "ablation": _sets,
    "random-peers": _contests, "peers": _contests, "sweep": _contests, "floors": _floors}
"""What a file says it holds -> how its records are read."""
