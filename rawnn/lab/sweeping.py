"""`rawnn.sweep(kernel, {"TILE": [64, 128]}, ...)`: finds the fastest macros and launch geometries.
It checks every variant before timing it, and can store results in a file and resume from it."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

from rawnn.common.errors import ConfigError, RawnnError, check_type, check_whole
from rawnn.common.files import check_output
from rawnn.common.words import counted
from rawnn.lab.checking import check
from rawnn.lab.expressions import called, evaluate
from rawnn.lab.kernel import Kernel
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.time_limit import TimeLimitReached
from rawnn.lab.timing import SAMPLES, time
from rawnn.lab.work import Work

Parameters = dict[str, Any]
_LAUNCH = ("grid", "block", "shared", "cluster")
_FINALISTS = 3
"""How many of the fastest are timed again, in turn: the least of many medians is partly luck."""
_TRIALS = 4
_SHOWN = 10


@dataclass(frozen=True)
class Variant:
    """One set of parameters and its result: microseconds with a cold (median, ends of its 95 %
    interval) and a warm cache, and the fraction of the GPU's limit; or in `failure` why there is
    none."""

    parameters: Parameters
    cold: float | None = None
    low: float | None = None
    high: float | None = None
    warm: float | None = None
    fraction: float | None = None
    failure: str = ""

    def __str__(self) -> str:
        named = " ".join(f"{n}={v}" for n, v in self.parameters.items())
        if self.cold is None:
            return f"{named}: {self.failure}"
        share = f", {self.fraction:.0%} of the limit" if self.fraction is not None else ""
        return (f"{named}: {self.cold:.2f} us ({self.low:.2f}-{self.high:.2f}), "
                f"warm {self.warm:.2f} us{share}")


@dataclass(frozen=True)
class Swept:
    """The result of a sweep: all variants, the fastest first. `allowed` counts the possible ones,
    `earlier` those from the file."""

    kernel: Kernel
    work: Work
    variants: tuple[Variant, ...]
    allowed: int
    earlier: int

    @property
    def best(self) -> Variant:
        """The fastest. Raises ConfigError if none is right."""
        if not self.variants or self.variants[0].cold is None:
            raise ConfigError(f"no variant of {self.kernel.expression} is right:\n{self}")
        return self.variants[0]

    def made(self) -> tuple[Kernel, Work]:
        """The fastest as a kernel, and its work."""
        return variant_of(self.kernel, self.work, self.best.parameters)

    def __str__(self) -> str:
        right = [v for v in self.variants if v.cold is not None]
        lines = [f"{self.kernel.expression}: {len(self.variants)} of "
                 f"{counted(self.allowed, 'variant')} tried"
                 + (f" ({self.earlier} of them before)" if self.earlier else "")
                 + f", {len(right)} right; the fastest:"]
        lines += [f"  {v}" for v in right[:_SHOWN]]
        if len(right) > 1:
            lines.append(f"  slowest: {right[-1]}")
        lines += [f"  {v}" for v in self.variants[len(right):][:_SHOWN]]
        return "\n".join(lines)


def sweep(kernel: Kernel, parameters: Mapping[str, Sequence[Any]], reference: Any = None, *,
          restrict: Sequence[str | Callable[[Parameters], bool]] = (), budget: int | None = None,
          at: Mapping[str, int] | None = None, samples: int = SAMPLES // 2, seed: int = 0,
          limit: float | None = None, resume: str | Path | None = None,
          tell: Callable[[Variant], None] = lambda variant: None, **work: Any) -> Swept:
    """Try a grid of parameters and rank them by time.

        rawnn.sweep(saxpy, {"TILE": [64, 128, 256]}, lambda x, y, a: a * x + y,
                    grid="cdiv(n, TILE)", block="TILE")

    `parameters` are macros with their values, or "grid", "block", "shared" and "cluster" of the
    launch. `restrict` are conditions on them, as expressions or functions of a dictionary. All
    variants that meet them are tried, or with a `budget` that many, sampled by `seed` without
    repetition. Each is compiled, checked on sampled sizes, then timed on those `at` (by default the
    largest); the fastest three are timed again. A failure is stored with its reason. `resume` is a
    file of JSON lines: results there for the same text, work, sizes and GPU are not measured again.
    `tell` is called with every variant.

    Raises ConfigError for parameters without values, and where no variant meets the conditions.

    Parameters
    ----------
    kernel
        a Kernel; its macros are what varies
    parameters
        values by macro, or by "grid", "block", "shared", "cluster"
    reference
        a NumPy function, or a Work
    restrict
        conditions, as expressions or functions of a dictionary
    budget
        variants at most; None: all
    at
        sizes by name; None: the largest of the work
    samples
        launches of a variant that are timed
    seed
        of all draws
    limit
        seconds for a variant; None: no limit
    resume
        file of JSON lines to go on with
    tell
        called with each variant
    work
        keywords of Work
    """
    check_type("kernel", kernel, Kernel, "a rawnn.Kernel, whose macros vary")
    check_type("parameters", parameters, Mapping, 'a mapping, such as {"TILE": [64, 128]}')
    check_whole("samples", samples, 2)
    check_whole("seed", seed, 0)
    if budget is not None and (not isinstance(budget, Integral) or budget < 1):
        raise ConfigError(f"budget = {budget!r}: give a number of variants")
    if isinstance(restrict, str):
        restrict = [restrict]
    declared = Work.of(reference, work)
    kernel.source.check_macros([n for n in parameters if n not in _LAUNCH], repr(declared))
    every = list(_allowed(parameters, restrict))
    if not every:
        raise ConfigError(f"no variant meets restrict = {[str(r) for r in restrict]}")
    sizes = problem_of(kernel, _launched(declared, every[0]), limit).largest(at or {})
    chosen = every
    if budget is not None and budget < len(every):
        chosen = random.Random(seed).sample(every, budget)
    file = _File(resume, _fingerprint(kernel, declared, sizes))
    found: list[Variant] = []

    def measured(each: Parameters, seed: int) -> Variant:
        return _tried(kernel, declared, each, sizes, samples, seed, limit)

    for each in chosen:
        variant = file.known(each)
        if variant is None:
            variant = measured(each, seed)
            file.keep(variant)
        found.append(variant)
        tell(variant)
    earlier = file.used
    found.sort(key=_order)
    right = [v for v in found if v.cold is not None]
    if len(right) > 1 and earlier < len(found):
        again = [measured(v.parameters, seed + 1) for v in right[:_FINALISTS]]
        found = sorted([*again, *found[len(again):]], key=_order)
    return Swept(kernel, declared, tuple(found), len(every), earlier)


def _order(variant: Variant) -> float:
    return float("inf") if variant.cold is None else variant.cold


def _allowed(parameters: Mapping[str, Sequence[Any]],
             restrict: Sequence[str | Callable[[Parameters], bool]]) -> Iterator[Parameters]:
    for name, values in parameters.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"the parameter {name} = {values!r}: give a list of values")
    for values in itertools.product(*parameters.values()):
        each = dict(zip(parameters, values, strict=True))
        if all(called(r, each, "restrict") if callable(r) else evaluate(r, each, "restrict")
               for r in restrict):
            yield each


def variant_of(kernel: Kernel, work: Work, parameters: Parameters) -> tuple[Kernel, Work]:
    """A kernel and its work with these parameters. Raises CompileError."""
    macros = {n: v for n, v in parameters.items() if n not in _LAUNCH}
    return kernel.redefined(macros) if macros else kernel, _launched(work, parameters)


def _launched(work: Work, parameters: Parameters) -> Work:
    """The work with the launch parameters applied."""
    return replace(work, **{n: v for n, v in parameters.items() if n in _LAUNCH})


def _tried(kernel: Kernel, work: Work, parameters: Parameters, sizes: Mapping[str, int],
           samples: int, seed: int, limit: float | None) -> Variant:
    try:
        variant_kernel, declared = variant_of(kernel, work, parameters)
        if declared.reference is not None:
            check(variant_kernel, declared, trials=_TRIALS, seed=seed, limit=limit).require()
        timed = time(variant_kernel, declared, at=sizes, samples=samples, seed=seed, limit=limit)
    except TimeLimitReached:
        raise  # by the reference, which all variants share
    except RawnnError as error:
        return Variant(parameters, failure=f"{type(error).__name__}: {error}")
    return Variant(parameters, timed.cold.median, timed.cold.low, timed.cold.high,
                   timed.warm.median, timed.fraction)


def _fingerprint(kernel: Kernel, work: Work, sizes: Mapping[str, int]) -> str:
    """A digest of everything that a time depends on, as far as it is known; functions are
    identified only by their names."""
    fields = {k: _as_text(v) for k, v in vars(work).items()}
    source = kernel.source
    everything = (source.text, source.options, source.preamble, source.arch, kernel.expression,
                  kernel.device.info.name, sorted(sizes.items()), sorted(fields.items()))
    return hashlib.sha256(repr(everything).encode()).hexdigest()[:16]


def _as_text(value: Any) -> str:
    """A field of a work as text that is the same in another process."""
    if isinstance(value, Mapping):
        return str(sorted((k, _as_text(v)) for k, v in value.items()))
    return getattr(value, "__qualname__", None) or repr(value)


class _File:
    """Variants as lines of JSON, each written as soon as it is known."""

    def __init__(self, path: str | Path | None, fingerprint: str) -> None:
        self._path = Path(path) if path is not None else None
        self._fingerprint = fingerprint
        self._stored: dict[str, Variant] = {}
        self.used = 0
        check_output("resume", path)
        if self._path is not None and self._path.exists():
            try:
                lines = self._path.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError) as error:
                raise ConfigError(f"resume: {self._path} cannot be read: {error}") from None
            for number, line in enumerate(lines, 1):
                self._read(line, number)

    def _read(self, line: str, number: int) -> None:
        try:
            record = json.loads(line)
            same = record.pop("of") == self._fingerprint
            variant = Variant(**record)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(f"{self._path}, line {number}, is none of a sweep's: give another "
                              f"file to resume") from None
        if same:
            self._stored[_key(variant.parameters)] = variant

    def known(self, parameters: Parameters) -> Variant | None:
        found = self._stored.get(_key(parameters))
        self.used += found is not None
        return found

    def keep(self, variant: Variant) -> None:
        if self._path is not None:
            line = json.dumps({"of": self._fingerprint, **asdict(variant)}, default=str)
            with self._path.open("a", encoding="utf-8") as out:
                out.write(line + "\n")


def _key(parameters: Parameters) -> str:
    return json.dumps(parameters, sort_keys=True, default=str)
