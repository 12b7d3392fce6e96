"""Files of contests made into one: parts of a draw from several GPUs, or several draws."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.records import Contest, ContestsResult
from rawnn.errors import ConfigError
from rawnn.run.result import Environment


def merged_contests(found: Sequence[tuple[str, ContestsResult]]) -> ContestsResult:
    """One result of several, each with the name of its file. What was asked for keeps its order,
    and so do contests. Raises ConfigError where the figures would not stand beside each other:
    measured by other code, on another kind of GPU, with other libraries, by other rules; or where
    two files hold the same contest."""
    (name, first), *others = found
    for other, result in others:
        for what, a, b in zip(COMPARED, _alike(first), _alike(result), strict=True):
            if a != b:
                raise ConfigError(f"{name} and {other} do not belong together: {what} {a} in the "
                                  f"one, {b} in the other")
    asked: dict[str, Problem] = {}
    held: dict[str, Contest] = {}
    for file, result in found:
        for problem in result.asked:
            if asked.setdefault(problem.name, problem) != problem:
                raise ConfigError(f"{file} has another network called {problem.name}")
        for contest in result.contests:
            if contest.problem.name in held:
                raise ConfigError(f"{file} holds {contest.problem.name} a second time: measure "
                                  f"parts with --part, or draws that are apart")
            held[contest.problem.name] = contest
    ended = [result.ended for _, result in found if result.ended]
    return msgspec.structs.replace(
        first, asked=list(asked.values()),
        contests=[held[n] for n in asked if n in held],
        ended=ended[0] if ended and len(held) < len(asked) else "")


COMPARED = ("the kind is", "the draw's version is", "a run's steps are", "the turns are",
            "the systems are", "rawnn's commit is", "the GPU is", "the libraries are")


def _alike(result: ContestsResult) -> tuple[object, ...]:
    """What must be the same, in the order of COMPARED."""
    place: Environment = result.environment
    gpu = place.gpu or {}
    return (result.kind, result.draw_version, result.run_steps, result.rounds,
            ", ".join(result.systems),
            place.commit, f"{gpu.get('name', 'none')}, driver {gpu.get('driver', 'none')}",
            ", ".join(f"{n} {v}" for n, v in sorted(place.libraries.items())))
