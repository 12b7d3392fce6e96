"""Files of contests made into one: parts of a draw from several GPUs, or several draws."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.records import Contest, ContestsResult
from rawnn.common.errors import ConfigError


def merged_contests(found: Sequence[tuple[str, ContestsResult]]) -> ContestsResult:
    """One result of several, each with the name of its file. What was asked for keeps its order,
    and so do contests. Raises ConfigError where the figures would not stand beside each other:
    measured by other code, on another kind of GPU, with other libraries, by other rules; or where
    two files hold the same contest."""
    (name, first), *others = found
    wanted = _alike(first)
    for other, result in others:
        for what, found_here in _alike(result).items():
            if found_here != wanted[what]:
                raise ConfigError(f"{name} and {other} do not belong together: {what} "
                                  f"{wanted[what]} in the one, {found_here} in the other")
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


def _alike(result: ContestsResult) -> dict[str, str]:
    """What must be the same, in words."""
    place = result.environment
    gpu = place.gpu or {}
    return {
        "the kind is": result.kind,
        "the draw's version is": str(result.draw_version),
        "a run's steps are": str(result.run_steps),
        "the turns are": str(result.rounds),
        "the systems are": ", ".join(result.systems),
        "rawnn's commit is": place.commit,
        "the GPU is": f"{gpu.get('name', 'none')}, driver {gpu.get('driver', 'none')}",
        "the libraries are": ", ".join(f"{n} {v}" for n, v in sorted(place.libraries.items())),
    }
