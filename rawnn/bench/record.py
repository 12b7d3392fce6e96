"""What every measurement is stored as: records in long format, one metric of one variant each.

A results file is JSON: `format` (2), lists of `environments` and of `conditions`, `records` that
name places in those, under `ended` the suites that were ended early, with the reason, and under
`parts` those of which the file has a part (`--part`).
docs/measuring.md explains every field and metric."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec

from rawnn.common.errors import ConfigError
from rawnn.common.files import write_atomically
from rawnn.engine.result import Environment

FORMAT = 2

Status = Literal["measured", "not measured", "unavailable", "failed", "wrong"]
"""`not measured`: asked for, and not reached. `unavailable`: this machine cannot run it. `wrong`:
it ran, but does not compute what it should; its times count for nothing."""

Value = str | int | float | bool | list[Any]
"""Of a condition; lists are of integers or of texts."""

UNITS = {"ms": "ms", "us": "us", "s": "s", "seconds": "s", "j": "J", "bytes": "B", "gbs": "GB/s",
         "tflops": "TFLOP/s", "mhz": "MHz", "c": "C", "w": "W", "cycles": "cycles"}
"""The unit of a metric by what its name ends with; others are counts and fractions."""

UNSTEADY = "it never became steady"
"""The note of an entry whose warm-up did not end in equal times."""

CLOCK_METRICS = ("sm_mhz", "mem_mhz", "temperature_c", "power_w")
"""Metrics whose samples are the minimum, the median and the maximum of what was read."""


def unit_of(metric: str) -> str:
    """The unit of a metric's samples, "" for counts and fractions."""
    return UNITS.get(metric.rpartition("_")[2], "")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All samples of one metric of one variant, in the order measured.

    `case` is the suite and what was measured in it ("ladder", "toggles/mlp4"), `variant` how
    (toggles, a rung, a peer's program). `conditions` identify the measurement further: records with
    equal case, variant, precision, metric and conditions measure the same. `environment` is a key
    of the file's environments. `reason` says why there are no samples, or why they count for
    nothing; `notes` are sentences for a reader."""

    case: str
    variant: str
    precision: str
    metric: str
    samples: list[float]
    unit: str = ""
    conditions: dict[str, Value] = {}
    environment: str = ""
    status: Status = "measured"
    reason: str = ""
    notes: list[str] = []

    @property
    def suite(self) -> str:
        return self.case.partition("/")[0]

    @property
    def key(self) -> tuple[object, ...]:
        """What two records that measure the same have in common."""
        return (*self.program, self.metric)

    def is_reached_by(self, other: Record) -> bool:
        """Whether another record is of what this one asks for: of the same case, under the same
        conditions and perhaps more."""
        return self.case == other.case and other.status != "not measured" and \
            self.conditions.items() <= other.conditions.items()

    @property
    def program(self) -> tuple[object, ...]:
        """The same without the metric."""
        return self.case, self.variant, self.precision, _frozen(self.conditions)


def _frozen(conditions: Mapping[str, Value]) -> tuple[object, ...]:
    """Conditions as a key."""
    return tuple((name, tuple(value) if isinstance(value, list) else value)
                 for name, value in sorted(conditions.items()))


def records_of(case: str, variant: str, metrics: Mapping[str, Sequence[float] | float | None], *,
               precision: str = "", conditions: Mapping[str, Value | None] | None = None,
               status: Status = "measured", reason: str = "", notes: Sequence[str] = (),
               environment: str = "") -> Iterator[Record]:
    """A record of the first metric, which has the status and the notes, and one of each other
    metric that has samples. Conditions of None are left out."""
    given = {name: value for name, value in (conditions or {}).items() if value is not None}
    samples = {name: _samples(value) for name, value in metrics.items()}
    first = next(iter(metrics))
    names = [name for name, found in samples.items() if found]
    for name in names if first in names else [first, *names]:  # which has status and notes
        yield Record(case=case, variant=variant, precision=precision, metric=name,
                     samples=samples[name], unit=unit_of(name), conditions=given,
                     environment=environment,
                     status=status if name == first else "measured",
                     reason=reason if name == first else "",
                     notes=list(notes) if name == first else [])


def _samples(value: Sequence[float] | float | None) -> list[float]:
    if value is None:
        return []
    return [float(value)] if isinstance(value, (int, float)) else [float(v) for v in value]


class Entry:
    """One variant under the same conditions, with all its metrics by name."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        first = records[0]
        self.case, self.variant, self.precision = first.case, first.variant, first.precision
        self.suite, self.conditions, self.environment = \
            first.suite, first.conditions, first.environment
        self.status, self.reason, self.notes = first.status, first.reason, first.notes
        self._by_metric = {record.metric: record for record in records}

    def samples(self, metric: str) -> list[float]:
        """Empty where the metric was not measured."""
        found = self._by_metric.get(metric)
        return found.samples if found else []

    def median(self, metric: str) -> float | None:
        samples = self.samples(metric)
        return median(samples) if samples else None

    def __contains__(self, metric: str) -> bool:
        return bool(self.samples(metric))


class Results(msgspec.Struct, kw_only=True):
    """A results file. `ended` are suites that were ended early, with the reason, `parts` those that
    the file was asked for the Kth of N parts of."""

    format: Literal[2] = 2
    environments: dict[str, Environment] = {}
    records: list[Record] = []
    ended: dict[str, str] = {}
    parts: dict[str, tuple[int, int]] = {}

    def where(self, suite: str = "", **wanted: Any) -> list[Record]:
        """The records of a suite whose fields, or conditions, have these values, in order."""
        fields = Record.__struct_fields__
        return [r for r in self.records if suite in ("", r.suite) and all(
            (getattr(r, name) if name in fields else r.conditions.get(name)) == value
            for name, value in wanted.items())]

    def entries(self, suite: str = "", **wanted: Any) -> list[Entry]:
        """The same as variants with all their metrics."""
        found: dict[tuple[object, ...], list[Record]] = {}
        frozen: dict[int, tuple[object, ...]] = {}  # records of a file share their conditions
        for record in self.where(suite, **wanted):
            conditions = frozen.get(id(record.conditions))
            if conditions is None:
                conditions = frozen[id(record.conditions)] = _frozen(record.conditions)
            key = record.case, record.variant, record.precision, conditions
            found.setdefault(key, []).append(record)
        return [Entry(records) for records in found.values()]

    @property
    def suites(self) -> list[str]:
        return list(dict.fromkeys(record.suite for record in self.records))

    def place(self, record: Record | Entry) -> Environment:
        """Where a record was measured."""
        return self.environments[record.environment]

    def is_whole(self, suite: str) -> bool:
        """Whether all that a suite was asked for was measured, refused or failed."""
        mine = self.where(suite)
        return bool(mine) and suite not in self.ended and \
            all(record.status != "not measured" for record in mine)

    def update(self, records: Iterable[Record]) -> None:
        """Put variants in the place of those that measure the same, with all their metrics; new
        ones behind them."""
        new: dict[tuple[object, ...], list[Record]] = {}
        for record in records:
            new.setdefault(record.program, []).append(record)
        replaced = set(new)
        merged: list[Record] = []
        for record in self.records:
            if record.program in replaced:
                merged += new.pop(record.program, [])
            else:
                merged.append(record)
        self.records = merged + [record for several in new.values() for record in several]

    def replace(self, program: tuple[object, ...], records: Sequence[Record]) -> None:
        """Put other records in the place of a variant's."""
        place = next((n for n, r in enumerate(self.records) if r.program == program),
                     len(self.records))
        others = [r for r in self.records if r.program != program]
        self.records = [*others[:place], *records, *others[place:]]

    def merge(self, other: Results, what: str = "the other file") -> None:
        """Add what another file has, but not that its machine could not run what this one has.
        Raises ConfigError for a variant that both have measured."""
        mine = {entry.records[0].program: entry for entry in self.entries()}
        waiting: list[Record] = []
        for entry in other.entries():
            before = mine.get(entry.records[0].program)
            if entry.status == "not measured":
                if before is None and not any(map(entry.records[0].is_reached_by, self.records)):
                    waiting += entry.records
            elif before is None or before.status in ("not measured", "unavailable"):
                waiting += entry.records
            elif entry.status != "unavailable":
                raise ConfigError(
                    f"{what} has {entry.case}, {entry.variant} ({entry.precision}) a second time: "
                    f"measure parts of a sample with --part, or from seeds that are apart")
        for asked in [r for r in self.records if r.status == "not measured"]:
            if reached := [r for r in waiting if asked.is_reached_by(r)]:
                self.replace(asked.program, reached)
        self.environments |= other.environments
        self.parts = {}
        self.update(waiting)
        self.ended = {suite: why for suite, why in {**other.ended, **self.ended}.items()
                      if any(r.status == "not measured" for r in self.where(suite))}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it atomically, a record a line. Raises RawnnError where that cannot be done.

        Conditions and environments stand in the file once, and records have their places there: a
        program has some ten metrics, and a case some twenty programs of one network.
        """
        used = {record.environment for record in self.records}
        environments = [key for key in self.environments if key in used]
        places = {key: place for place, key in enumerate(environments)}
        conditions: dict[bytes, int] = {}
        lines = []
        for record in self.records:
            encoded = msgspec.to_builtins(record)
            text = msgspec.json.encode(record.conditions)
            encoded["conditions"] = conditions.setdefault(text, len(conditions))
            encoded["environment"] = places[record.environment]
            if record.unit == unit_of(record.metric):
                encoded.pop("unit", None)
            lines.append(msgspec.json.encode(encoded))
        head = msgspec.json.encode({
            "format": FORMAT, "ended": self.ended, **({"parts": self.parts} if self.parts else {}),
            "environments": [self.environments[key] for key in environments]})
        write_atomically(path, b"".join([
            head[:-1], b',"conditions":[\n', b",\n".join(conditions), b'\n],"records":[\n',
            b",\n".join(lines), b"\n]}\n"]))


class _File(msgspec.Struct):
    """A file as it is written: records name conditions and environments by their places."""

    environments: list[Environment]
    conditions: list[dict[str, Value]]
    records: list[dict[str, Any]]
    ended: dict[str, str] = {}
    parts: dict[str, tuple[int, int]] = {}

    def results(self) -> Results:
        """Raises IndexError or KeyError for a place that there is not."""
        keys = [environment.key for environment in self.environments]
        records = []
        for raw in self.records:
            conditions, place = self.conditions[raw["conditions"]], keys[raw["environment"]]
            record = msgspec.convert({"unit": unit_of(raw["metric"]), **raw,
                                      "conditions": {}, "environment": place}, Record)
            records.append(msgspec.structs.replace(record, conditions=conditions))
        return Results(environments=dict(zip(keys, self.environments, strict=True)),
                       records=records, ended=self.ended, parts=self.parts)


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read a results file, of an older format as well. Raises ConfigError, in one sentence, for
    anything else."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {os.fspath(path)}: {error.strerror}") from None
    try:
        is_list = content.lstrip()[:1] == b"["
        found = _Head() if is_list else msgspec.json.decode(content, type=_Head)
        if found.format is None:
            from rawnn.bench.old_formats import converted

            return converted(content, os.fspath(path))
        if found.format != FORMAT:
            raise ConfigError(f"{os.fspath(path)} has format {found.format}, and this rawnn reads "
                              f"{FORMAT} and older ones: use a newer rawnn")
        return msgspec.json.decode(content, type=_File).results()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{os.fspath(path)} is not a results file of rawnn: {error}") from None
    except (IndexError, KeyError, TypeError):
        raise ConfigError(f"{os.fspath(path)} names conditions or an environment that it does not "
                          f"describe") from None


def read_all(path: str | os.PathLike[str]) -> list[tuple[str, Results]]:
    """A results file with its name, or all that a directory has. Raises ConfigError for a file that
    is none."""
    if not Path(path).is_dir():
        return [(Path(path).stem, read_results(path))]
    found = []
    for file in sorted(Path(path).glob("*.json")):
        with suppress(ConfigError):
            found.append((file.stem, read_results(file)))
    return found


def read_directory(path: str | os.PathLike[str]) -> Results:
    """All results files of a directory as one; a file alone is read as it is. Raises
    ConfigError."""
    if not Path(path).is_dir():
        return read_results(path)
    whole = Results()
    for _, found in read_all(path):
        whole.environments |= found.environments
        whole.ended |= found.ended
        whole.update(found.records)
    if not whole.records:
        raise ConfigError(f"{os.fspath(path)} has no results file")
    return whole


class _Head(msgspec.Struct):
    """The part of a file that says which format it has; older ones have none."""

    format: int | None = None
