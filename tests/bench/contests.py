"""What the tests of contests share: a small network, and results made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner, Result

from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.records import Contest, ContestsResult, Entry
from rawnn.bench.peers.worker import Made
from rawnn.cli.bench import bench
from rawnn.engine.result import Environment

PLACE = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda",
                    {"name": "Some GPU", "driver": "580.1", "cuda": "13.0"}, {"numpy": "2"}, {}, "")


def tiny(**more: Any) -> Problem:
    values: dict[str, Any] = {
        "name": "tiny", "seed": 3, "layers": (12, 17, 5), "batch": 6, "loss": "cross_entropy",
        "optimizer": "sgd", "lr": 0.05, "steps": 32, **more}
    return Problem(**values)


def made_of(losses: Sequence[float], numbers: str = "float32", **more: Any) -> Made:
    return Made(numbers=numbers, form="f", clock="wall", losses=list(losses), **more)


def contest_of(**times: list[float]) -> Contest:
    """times: "rawnn_float32" -> us."""
    return Contest(problem=tiny(), entries=[
        Entry(system=key.split("_")[0], numbers=key.split("_")[1], form="f", status="measured",
              us=us) for key, us in times.items()])


def result_of(*contests: Contest, **more: Any) -> ContestsResult:
    values: dict[str, Any] = {
        "kind": "random-peers", "draw_version": 1, "asked": [c.problem for c in contests],
        "rounds": 2, "systems": ["rawnn", "torch", "jax"], "left_out": {}, "environment": PLACE,
        "timer": {}, "contests": list(contests), **more}
    return ContestsResult(**values)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)
