"""`rawnn.check(kernel, reference, ...)`: checks a kernel on many sizes, with red zones, poison,
repeated launches, and a comparison with the reference. The result says what is wrong and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, DeviceError, OutOfMemory, RawnnError, check_whole
from rawnn.common.words import counted
from rawnn.lab.arrays import check_not_recording
from rawnn.lab.candidate_runner import Runner
from rawnn.lab.comparison import Comparison, Values, allowed, compare, is_nothing, sensitivity
from rawnn.lab.integrity import Integrity
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Launching, Operand, Trial
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.red_zones import Contents, Image, place
from rawnn.lab.reference_run import NOTE, ReferenceRun
from rawnn.lab.sampling import Sizes
from rawnn.lab.subprocess_runner import runner_for
from rawnn.lab.work import Work

_PERTURBATION = 2.0**-20
_NEAR = 100
"""Errors up to this many tolerances suggest that the tolerance is wrong."""
_REPEATS = 3
"""Further launches on the same bytes after two launches on other bytes differed: they show whether
the kernel is nondeterministic."""
_STEPS = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2)
TRIALS = 12
"""Default number of sampled sets of sizes."""


class CheckFailed(RawnnError):
    """The kernel is wrong; the message is the report."""


@dataclass(frozen=True)
class Finding:
    """One error: `what` in one or two words, the array that it concerns ("" for none), a sentence,
    and what to look at next."""

    what: str
    operand: str
    sentence: str
    fix: str = ""

    def __str__(self) -> str:
        return self.sentence + (f"\n    -> {self.fix}" if self.fix else "")


@dataclass(frozen=True)
class TrialResult:
    """One set of sizes: its launch, the comparisons of its results, and the errors."""

    sizes: Sizes
    launching: Launching | None
    comparisons: tuple[Comparison, ...]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        sizes = ", ".join(f"{n} = {v:,}" for n, v in self.sizes.items()) or "the only size"
        return sizes + (f" ({self.launching})" if self.launching else "")


@dataclass(frozen=True)
class Checked:
    """The result of a check, true if nothing is wrong. `str` is the report; `require` raises it."""

    kernel: str
    tried: tuple[TrialResult, ...]
    planned: int
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return bool(self.tried) and not any(t.findings for t in self.tried)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def failed(self) -> tuple[TrialResult, ...]:
        """The sizes with errors, the smallest first."""
        return tuple(t for t in self.tried if t.findings)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(f for t in self.tried for f in t.findings)

    def worst(self) -> dict[str, tuple[Comparison, TrialResult]]:
        """For each array the comparison with the largest error, and its sizes."""
        found: dict[str, tuple[Comparison, TrialResult]] = {}
        for tried in self.tried:
            for each in tried.comparisons:
                if each.operand not in found or each.error > found[each.operand][0].error:
                    found[each.operand] = each, tried
        return found

    def require(self) -> Checked:
        """Returns itself. Raises CheckFailed, with the report, if something is wrong."""
        if not self.passed:
            raise CheckFailed(str(self))
        return self

    def __str__(self) -> str:
        if self.passed:
            lines = [f"{self.kernel}: right with all of {counted(len(self.tried), 'set')} of sizes"]
            for each, tried in self.worst().values():
                lines.append(f"  {each}" if each.tolerance == 0 else f"  {each}; at {tried}")
            lines.append("  nothing was written outside of arrays or into inputs, and every launch "
                         "was repeated with other bytes around and beneath")
        else:
            failed = self.failed
            lines = [f"{self.kernel}: WRONG with {len(failed)} of "
                     f"{counted(len(self.tried), 'set')} of sizes; the smallest: "
                     f"{failed[0] if failed else ''}"]
            lines += [f"  {finding}" for finding in failed[0].findings]
            if len(failed) > 1:
                others = "; ".join(str(t) for t in failed[1:4])
                lines.append(f"  also with {others}{', ...' if len(failed) > 4 else ''}")
            right = [t for t in self.tried if not t.findings]
            lines += [f"  {text}" for text in patterns([t.sizes for t in failed],
                                                       [t.sizes for t in right])]
            if right:
                lines.append(f"  right with {'; '.join(str(t) for t in right[:3])}"
                             f"{', ...' if len(right) > 3 else ''}")
        if len(self.tried) < self.planned:
            lines.append(f"  {self.planned - len(self.tried)} more were not tried: the GPU cannot "
                         f"be used after this error")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def patterns(wrong: Sequence[Sizes], right: Sequence[Sizes]) -> Iterator[str]:
    """Properties that distinguish the wrong sizes from the right ones."""
    if not wrong or len(right) < 2:
        return  # a single right one may be a coincidence
    for name in wrong[0]:
        bad, good = ([sizes[name] for sizes in each] for each in (wrong, right))
        for step in _STEPS:
            if all(n % step for n in bad) and not any(n % step for n in good):
                yield f"right only where {name} is a multiple of {step}"
                break
        if min(bad) > max(good):
            yield f"right up to {name} = {max(good):,}, wrong from {name} = {min(bad):,} on"
        if max(bad) < min(good):
            yield f"right from {name} = {min(good):,} on, wrong up to {name} = {max(bad):,}"


def check(kernel: Kernel | Callable[..., Any], reference: Any = None, *, trials: int = TRIALS,
          seed: int = 0, special: bool = False, limit: float | None = None, device: Any = None,
          **work: Any) -> Checked:
    """Check whether a kernel computes what a reference does.

        rawnn.check(saxpy, lambda x, y, a: a * x + y, grid="cdiv(n, 256)", block=256)

    `reference` and `work` are as in rawnn.lab.Work (or `reference` is a Work). `kernel` may be a
    function that launches several, given `shapes`. For each of `trials` sets of sizes, the kernel
    is launched twice, with outputs poisoned and red zones around every array; the second time with
    other poison and other zones. Inputs have to be unchanged, zones untouched, and both results
    equal bit for bit and within the tolerance that follows from the dtypes and the length of sums.
    If all is right, one set is repeated with other inputs. `special` puts NaN, infinities and zeros
    among the inputs. `seed` seeds all samples.

    With `limit` (seconds per launch) the kernel runs in a separate process, so that one that never
    ends or that breaks the GPU's context becomes a finding; otherwise it runs in this process. A
    call of the reference may take as long; one that takes longer is a ConfigError (in the main
    thread: elsewhere the reference has no limit). A reference within one call of compiled code that
    never returns cannot be interrupted; only the command `rawnn kernel check` ends then, by force.

    Raises ConfigError, with the fix, for work that does not fit the kernel, and Refused for a
    function that replaces what judges it.

    Parameters
    ----------
    kernel
        a Kernel, or a function that launches several
    reference
        a NumPy function, or a Work
    trials
        sets of sizes
    seed
        of all draws
    special
        whether inputs have NaN, infinities and zeros
    limit
        seconds for a launch, in a process of its own, and for a call of the reference; None: no
        limit
    device
        where a function's kernels run; None: that of the kernel
    work
        keywords of Work
    """
    check_not_recording("rawnn.check")
    problem = problem_of(kernel, Work.of(reference, work), limit)
    check_whole("trials", trials, 1)
    check_whole("seed", seed, 0)
    generator = np.random.default_rng(seed)
    every = problem.sizes(trials, generator)
    first = problem.trial(every[0], np.random.default_rng(seed), special)
    if all(exact is None for exact in first.expected().values()):  # reported before any launch
        raise ConfigError("the reference returns no array to compare with: let it return what the "
                          "kernel writes, such as {\"y\": ...}")
    runner, integrity = runner_for(problem, limit, device), Integrity()
    notes = (NOTE,) if isinstance(runner, ReferenceRun) else ()
    tried: list[TrialResult] = []
    try:
        for sizes in every:
            done, alive = try_sizes(problem, sizes, runner, generator, special)
            tried.append(done)
            if not alive:
                break
        else:
            _with_other_inputs(problem, tried, runner, generator, special)
    finally:
        runner.close()
    integrity.require()
    return Checked(problem.label, tuple(tried), len(every), notes)


def _with_other_inputs(problem: KernelProblem, tried: list[TrialResult], runner: Runner,
                       generator: np.random.Generator, special: bool) -> None:
    """Repeat the last set of sizes with other inputs, if all were right: every earlier set has
    different sizes, with which a candidate that caches results by size or address is right."""
    if any(each.findings for each in tried) or not any(o.read for o in problem.operands):
        return
    again, _ = try_sizes(problem, tried[-1].sizes, runner, generator, special)
    if again.findings:
        tried[-1] = replace(again, findings=(*again.findings, Finding(
            "keeps results", "", "these sizes were right with other inputs, just before",
            "does it keep results, or inputs, from one launch to the next?")))


def try_sizes(problem: KernelProblem, sizes: Sizes, runner: Runner, generator: np.random.Generator,
              special: bool = False) -> tuple[TrialResult, bool]:
    """One set of sizes, and whether further launches are possible."""
    trial = problem.trial(sizes, generator, special)
    images = images_of(trial, generator)
    other = {o.name: _with_other_bytes(images[o.name], o, generator) for o in problem.operands}
    if isinstance(runner, ReferenceRun):
        trial.expected()  # raises errors of the reference, which a launch would report as its own
    contents: list[Contents] = []
    try:
        for given in (images, other):
            contents.append(runner.run(trial.launching, given, trial.numbers))
    except RawnnError as error:
        return TrialResult(sizes, trial.launching, (), (_failure(error),)), _alive(runner, error)
    expected = trial.expected()
    outputs = [o for o in problem.outputs if expected.get(o.name) is not None]
    findings = invalid_writes(trial, images, contents[0], expected) or \
        invalid_writes(trial, other, contents[1], expected)
    scales: dict[str, float] = {}
    comparisons = judged(trial, expected, _results(outputs, images, contents[0]), generator, scales)
    for each in comparisons:
        if not each.passed:
            findings.append(_wrong(each, images, other, contents))
    if not any(f.what in ("wrong", "not written") for f in findings):
        different = _different(outputs, images, contents)
        if different:
            try:
                repeated = [[runner.run(trial.launching, given, trial.numbers)
                             for _ in range(_REPEATS)] for given in (images, other)]
            except RawnnError as error:
                return TrialResult(sizes, trial.launching, comparisons, (_failure(error),)), \
                    _alive(runner, error)
            findings += _nondeterminism(problem, images, contents, repeated, different)
            later = [(other, contents[1]), *((given, content) for given, every in zip(
                (images, other), repeated, strict=True) for content in every)]
            for given, content in later:  # runs may differ: each has to be right by itself
                if findings:
                    break
                findings += invalid_writes(trial, given, content, expected)
                findings += [_wrong(c, images, other, contents) for c in judged(
                    trial, expected, _results(outputs, given, content), generator, scales)
                    if not c.passed]
    return TrialResult(sizes, trial.launching, comparisons, tuple(findings)), True


def _alive(runner: Runner, error: RawnnError) -> bool:
    """Whether further launches are possible after one that failed: if it was refused before it
    began, or ran in a separate process, which is started again."""
    return getattr(runner, "renewable", False) or type(error) in (
        ConfigError, DeviceError, OutOfMemory)


def images_of(trial: Trial, generator: np.random.Generator) -> dict[str, Image]:
    """The arrays of a trial between red zones; those without input have all bits set."""
    result = {}
    for operand in trial.problem.operands:
        image = Image.of(trial.arrays[operand.name], generator)
        result[operand.name] = image if operand.read else image.poisoned(None)
    return result


def _with_other_bytes(image: Image, operand: Operand, generator: np.random.Generator) -> Image:
    moved = image.with_other_zones(generator)
    return moved if operand.read else moved.poisoned(generator)


def _results(outputs: Sequence[Operand], images: Mapping[str, Image], contents: Contents
             ) -> dict[str, Values]:
    return {o.name: images[o.name].values(contents[o.name]) for o in outputs}


def judged(trial: Trial, expected: Mapping[str, Values | None], results: Mapping[str, Values],
           generator: np.random.Generator, scales: dict[str, float] | None = None
           ) -> tuple[Comparison, ...]:
    """Comparisons of results with the reference. `scales`, valid for one set of sizes, caches the
    size of the results' terms."""
    problem, work = trial.problem, trial.problem.work
    scales = {} if scales is None else scales
    if not scales:
        perturbed = [trial.expected(generator, _PERTURBATION) for _ in range(2)]
        for name in results:
            scales[name] = max(sensitivity(exact, other, _PERTURBATION) for n in perturbed
                               if (exact := expected[name]) is not None
                               and (other := n[name]) is not None)
    nothing = max((is_nothing(trial.arrays[o.name]) for o in problem.operands if o.read),
                  default=0.0)
    # A sum by atomics is one chain, in any order: one of 200,000 numbers exceeded the bound for
    # other sums of that length 1.4 times.
    length = problem.length(trial.known) * (1 if work.deterministic else 4)
    found = []
    for name, result in results.items():
        exact = expected[name]
        assert exact is not None
        tolerance = allowed(result.dtype, length, work.compute, work.sums) \
            if work.tolerance is None else work.tolerance
        found.append(compare(name, exact, result, tolerance, scales[name], nothing))
    return tuple(found)


def _failure(error: RawnnError) -> Finding:
    return Finding("failed", "", f"the launch failed: {error}",
                   "run it under compute-sanitizer to see the line: rawnn.sanitize(script)"
                   if "ILLEGAL" in str(error) or "MISALIGNED" in str(error) else "")


def invalid_writes(trial: Trial, images: Mapping[str, Image], contents: Contents,
                   expected: Mapping[str, Values | None] | None) -> list[Finding]:
    """Forbidden writes: outside of arrays, into inputs, into arrays that the reference does not
    write (None: unknown)."""
    problem = trial.problem
    unwritten = [o for o in problem.operands
                 if not o.written or (expected is not None and o.name not in expected)]
    return [*_out_of_bounds(problem, images, contents), *_changed(unwritten, images, contents)]


def _out_of_bounds(problem: KernelProblem, images: Mapping[str, Image], contents: Contents
                   ) -> list[Finding]:
    found = []
    for operand in problem.operands:
        words = images[operand.name].out_of_bounds(contents[operand.name])
        if words:
            found.append(Finding(
                "outside", operand.name, f"'{operand.name}' was overrun: the kernel wrote {words}",
                "does every thread compare its index with the size before it writes?"))
    return found


def _changed(unwritten: Sequence[Operand], images: Mapping[str, Image], contents: Contents
             ) -> list[Finding]:
    """Changes of arrays that the kernel must not modify."""
    found = []
    for operand in unwritten:
        changed = images[operand.name].changed(contents[operand.name])
        if changed.size:
            what = "the reference does not return it" if operand.written else "it is an input"
            where = place(int(changed[0]), images[operand.name].shape)
            found.append(Finding(
                "input changed", operand.name,
                f"'{operand.name}' was changed, and {what}: {counted(changed.size, 'element')}, "
                f"the first at {operand.name}{where}",
                "if it is meant to be written, let the reference return it (None: it may hold "
                "anything)"))
    return found


def _wrong(each: Comparison, images: Mapping[str, Image], other: Mapping[str, Image],
           contents: Sequence[Contents]) -> Finding:
    """The finding for a result that differs from the reference; it says if it was never written."""
    name = each.operand.partition(".")[0]
    first, second = images[name], other[name]
    untouched = np.setdiff1d(
        np.arange(first.nbytes // first.dtype.itemsize),
        np.union1d(first.changed(contents[0][name]), second.changed(contents[1][name])))
    blank = untouched.size and not np.array_equal(first.inside(), second.inside())
    if blank:
        count = first.nbytes // first.dtype.itemsize
        where = place(int(untouched[0]), first.shape)
        tail = untouched.size == count - int(untouched[0])
        if untouched.size == count:
            return Finding("not written", name, f"'{name}' was never written",
                           "does the kernel return early, or write to another array?")
        return Finding(
            "not written", name,
            f"{untouched.size:,} of {count:,} elements of '{name}' were never written, from "
            f"{name}{where} on{' to the end' if tail else ''}",
            "does the grid cover sizes that are no multiple of the block? Round it up: "
            "cdiv(n, threads)" if tail else "which threads should have written them?")
    fix = ""
    if "NaN where" in each.reason and not np.array_equal(first.inside(), second.inside()):
        fix = "outputs hold NaN before the launch: is one read, or added to, before it is set? " \
               "One that is meant to hold something has to be asked for by the reference"
    elif not each.reason and each.error < _NEAR * each.tolerance and (
            not each.wrong or each.wrong * 10 > each.count):
        fix = "if each element is a sum of many products, say so: length=\"k\"; tensor cores on " \
               "float32 round factors: compute=\"tf32\""
    return Finding("wrong", name, f"wrong: {each}", fix)


def _different(outputs: Sequence[Operand], images: Mapping[str, Image],
               contents: Sequence[Contents]) -> list[str]:
    return [o.name for o in outputs
            if not np.array_equal(images[o.name].inside(contents[0][o.name]),
                                  images[o.name].inside(contents[1][o.name]))]


def _nondeterminism(problem: KernelProblem, images: Mapping[str, Image],
                    contents: Sequence[Contents], repeated: Sequence[Sequence[Contents]],
                    different: Sequence[str]) -> list[Finding]:
    """The finding for launches that differ on the same input: nondeterminism, or a dependence on
    the bytes around and beneath the arrays."""
    found = []
    for name in different:
        image = images[name]
        same = all(np.array_equal(image.inside(first[name]), image.inside(again[name]))
                   for first, every in zip(contents, repeated, strict=True) for again in every)
        if same:
            found.append(Finding(
                "depends on what is around", name,
                f"'{name}' depends on bytes that are none of the kernel's input: what lies outside "
                f"of its arrays, or what an output held before",
                "does it read past the end of an array, or add to an output that nothing has set?"))
        elif problem.work.deterministic:
            found.append(Finding(
                "not deterministic", name,
                f"'{name}' differs from launch to launch on the same input",
                "is a __syncthreads() missing, or do threads write the same element? If it adds "
                "floats by atomics and that is meant, say deterministic=False"))
    return found
