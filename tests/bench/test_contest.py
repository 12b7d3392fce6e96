"""Who is asked for what in a comparison of systems, what a turn is, and what is said of it, with
stand-ins for the processes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.bench.peers import lanes, system_comparison
from rawnn.bench.peers.loss_check import ShareOf
from rawnn.bench.peers.system_comparison import (
    Rules,
    check,
    failures,
    network_line,
    program,
    task_of,
    timed_in_turns,
)
from rawnn.bench.peers.worker import TRUTH, Timed
from rawnn.sim import Simulation
from tests.bench import built
from tests.bench.measuring import made_of, standing, tiny

LARGE = ("X", "Y")


@pytest.mark.parametrize(("names", "at_once", "programs", "wanted"), [
    ("abcd", 3, 99, "abc"), ("abcd", 9, None, "abcd"), ("abcd", 9, 32, "ab"), ("abcd", 9, 31, "a"),
    ("abcd", 9, 5, "a"), ("XYab", 9, 28, "XYa"), ("XYab", 9, 27, "XY"), ("aXYb", 9, 28, "aXY"),
    ("aXb", 1, 99, "a")])
def test_problems_are_made_ready_together_where_the_memory_has_room(
        names: str, at_once: int, programs: int | None, wanted: str) -> None:
    """Of a large one six programs are counted, of another sixteen; one is taken whatever it is."""
    problems = [tiny(name=name) for name in names]
    memory = None if programs is None else -(-4 * problems[0].program_bytes * programs // 3)
    rules = Rules(("rawnn",), "gpu", at_once=at_once, is_large=lambda p: p.name in LARGE,
                  memory=memory)
    assert [p.name for p in rules.group(problems)] == list(wanted)


@pytest.mark.parametrize(("device", "ours", "theirs"), [
    ("gpu", "gpu", "gpu"), ("host", "host", "host"), ("sim", "sim", "host")])
def test_other_systems_have_no_simulated_gpu(device: str, ours: str, theirs: str) -> None:
    rules = Rules(("rawnn", "numpy"), device)
    assert (rules.device_of("rawnn"), rules.device_of("numpy")) == (ours, theirs)


@pytest.mark.parametrize(("systems", "problems", "cores", "gib", "counts", "each"), [
    (("rawnn", "torch", "jax"), 48, 16, None, {"rawnn": 4, "torch": 3, "jax": 9}, 1),
    (("rawnn", "torch", "jax"), 48, 16, 141, {"rawnn": 4, "torch": 3, "jax": 9}, 1),
    (("rawnn", "torch", "jax"), 48, 64, 48, {"rawnn": 4, "torch": 3, "jax": 9}, 4),
    (("rawnn", "torch", "jax"), 48, 64, 2, {"rawnn": 1, "torch": 1, "jax": 1}, 21),
    (("rawnn", "torch", "jax"), 2, 16, 80, {"rawnn": 2, "torch": 2, "jax": 2}, 2),
    (("rawnn", "torch", "jax"), 48, 1, 80, {"rawnn": 1, "torch": 1, "jax": 1}, 1),
    (("rawnn", "numpy"), 48, 10, None, {"rawnn": 8, "numpy": 2}, 1),
    (("rawnn", "torch"), 48, 32, None, {"rawnn": 18, "torch": 14}, 1)])
def test_cores_are_divided_among_systems_by_what_each_takes(
        monkeypatch: pytest.MonkeyPatch, systems: tuple[str, ...], problems: int, cores: int,
        gib: int | None, counts: dict[str, int], each: int) -> None:
    """As many processes as there are cores for, and room on the GPU."""
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(lanes, "Lane", lambda system, own: made.append((system, own))
                        or SimpleNamespace(close=lambda: None))
    with lanes.Lanes(systems, problems, cores, gib and gib << 30):
        assert {name: made.count((name, each)) for name in systems} == counts
        assert len(made) == sum(counts.values())


def test_processes_have_to_fit_the_memory_of_the_gpu_that_was_opened(
        monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(system_comparison, "Lanes", lambda systems, problems, **more:
                        seen.append((systems, problems, more)) or contextlib.nullcontext())
    monkeypatch.setattr(system_comparison, "_compared_group", lambda *more: iter(()))
    with standing("sample") as harness:
        system_comparison.compare_systems(harness, [task_of(tiny(steps=4), "sample/3")], ["numpy"],
                                          [], "sim")
    assert seen == [(("rawnn", "numpy"), 1, {"memory": Simulation().memory.total})]


# -- the turns -------------------------------------------------------------------------------------


class Prepared:
    """A system's programs, which take so many microseconds a step each, or fail."""

    def __init__(self, system: str, programs: list[Any], times: list[Any], turns: list[str],
                 reason: str = "") -> None:
        self.system, self.programs, self.times, self.reason = system, programs, times, reason
        self.problem, self.turns = tiny(steps=10), turns

    def time(self, index: int, timeout_s: float) -> Timed:
        assert timeout_s == system_comparison.TURN_S
        self.turns.append(f"{self.system} {index}")
        us = self.times[index]
        if isinstance(us, str):
            return Timed(reason=us)
        return Timed(milliseconds=[us * 10 / 1e3, us * 10 / 1e3])


def turned(prepared: list[Prepared], share: ShareOf | None = None, **more: Any) -> list[Any]:
    """What is timed, though the budget is spent: a network that was begun is finished."""
    rules = Rules(tuple(p.system for p in prepared), "gpu", **more)
    with standing("sample", budget=0.0) as harness, pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_comparison, "checker", lambda problem, programs: share)
        return timed_in_turns(task_of(tiny(steps=10), "sample/3"), prepared, rules, harness)  # type: ignore[arg-type]


def test_programs_take_turns_and_those_that_are_far_slower_one() -> None:
    """Than another form of the same system in the same precision."""
    turns: list[str] = []
    forms = [made_of([1.0], precision) for precision in ("tf32", "tf32", "float32")]
    ratio = system_comparison.FAR_SLOWER
    found = turned([Prepared("rawnn", forms, [5.0, 5.0 * ratio * 1.01, 900.0], turns),
                    Prepared("torch", forms[:1], [5.0 * ratio * 2], turns)], rounds=3)
    assert turns == ["rawnn 0", "rawnn 1", "rawnn 2", "torch 0",
                     *["rawnn 0", "rawnn 2", "torch 0"] * 2]
    assert [v.samples["step_us"] for v in found] == [
        pytest.approx([us] * count) for us, count in
        ((5.0, 6), (5.0 * ratio * 1.01, 2), (900.0, 6), (5.0 * ratio * 2, 6))]
    assert [v.status for v in found] == ["measured"] * 4


def test_what_fails_or_is_wrong_says_so_and_the_rest_is_timed() -> None:
    turns: list[str] = []
    programs = [made_of([1.0, 2.0]), made_of([1.0, None]),  # type: ignore[list-item]
                made_of([], reason="no such kernel"), made_of([9.0]), made_of([1.0])]
    found = turned([Prepared("rawnn", programs, [5.0, 5.0, 5.0, 5.0, "it broke"], turns),
                    Prepared("torch", [], [], turns, "its process ended"),
                    Prepared("jax", [], [], turns)], lambda made: made.losses[0] or 0.0)
    assert [(v.status, v.reason) for v in found] == [
        ("measured", ""), ("wrong", "its loss is not finite at step 2"),
        ("failed", "no such kernel"),
        ("wrong", "its losses are off by 9 times the tolerance"), ("failed", "it broke"),
        ("failed", "its process ended"), ("failed", "it made nothing ready")]
    assert turns == ["rawnn 0", "rawnn 1", "rawnn 3", "rawnn 4", "rawnn 0", "rawnn 1", "rawnn 3"]
    assert [v.facts.get("loss_error") for v in found[:4]] == [1.0, None, None, 9.0]
    assert len(found[1].samples["step_us"]) == len(found[3].samples["step_us"]) == 4


@pytest.mark.parametrize("records", [False, True])
def test_losses_of_float64_are_compared_with_and_shown_as_a_curve_alone(records: bool) -> None:
    turns: list[str] = []
    programs = [made_of([3.0, 2.0], TRUTH), made_of([3.0, 2.5])]
    found = turned([Prepared("torch", programs, [7.0, 5.0], turns)], records_losses=records)
    assert [v.precision for v in found] == ([TRUTH] if records else []) + ["float32"]
    assert turns == ["torch 1"] * 2
    assert [v.metric for v in found] == (["loss"] * 2 if records else ["step_us"])
    if records:
        assert [v.samples["loss"] for v in found] == [[3.0, 2.0], [3.0, 2.5]]


@pytest.mark.parametrize(("losses", "share", "said", "kept"), [
    ([1.0, 2.0], None, "", None), ([1.0], 0.25, "", 0.25), ([1.0], 1.0, "", 1.0),
    ([1.0], 1.01, "its losses are off by 1.01 times the tolerance", 1.01),
    ([1.0], float("nan"), "its losses cannot be compared", None),
    ([1.0, 2.0, None], 0.1, "its loss is not finite at step 3", None)])
def test_a_program_is_right_within_its_tolerance(losses: list[Any], share: float | None, said: str,
                                                 kept: float | None) -> None:
    with standing("sample") as harness:
        variant = program(task_of(tiny(), "sample/3"), "rawnn", made_of([1.0], seconds=2.5,
                                                                        footprint={"launches": 4}),
                          harness)
    assert variant.facts == {"setup_s": 2.5, "launches": 4}
    assert (variant.name, variant.conditions["form"], variant.conditions["clock"]) == (
        "rawnn f", "f", "wall")
    answer = None if share is None else lambda made: share
    assert check(variant, made_of(losses), answer) == said  # type: ignore[arg-type]
    assert variant.facts.get("loss_error") == kept


# -- what is said of it ----------------------------------------------------------------------------


def test_a_network_is_a_line_with_ours_and_the_best_peers_time_in_each_precision() -> None:
    turns: list[str] = []
    names = ("float32", "tf32", "bf16")
    found = turned([
        Prepared("rawnn", [made_of([1.0], n) for n in names[:2]], [10.0, 4.0], turns),
        Prepared("torch", [made_of([1.0], n) for n in names], [30.0, 2.0, 8.0], turns),
        Prepared("jax", [made_of([1.0], n) for n in names[:1]], [25.0], turns),
        Prepared("numpy", [], [], turns, "its process ended")])
    assert network_line(tiny(name="seed 7"), found).splitlines() == [
        "   seed 7  12-17-5, batch 6, cross_entropy, sgd: float32 10.00 us | 25.00 us jax (2.50 x);"
        " tf32 4.00 us | 2.00 us torch (0.50 x); bf16 - | 8.00 us",
        "           numpy  failed: its process ended"]


@pytest.mark.parametrize(("bad", "said"), [
    ((), ""), (("1",), "1 of 3 networks (1)"), (("3", "1"), "2 of 3 networks (1, 3)")])
def test_networks_in_which_ours_failed_are_counted_and_named(bad: tuple[str, ...], said: str
                                                             ) -> None:
    """A peer's failure is none of ours, and what was not reached no network yet."""
    times = {("rawnn", "float32"): 1.0, ("rawnn", "tf32"): 1.0, ("torch", "tf32"): 2.0}
    found = built.results(
        *(built.programs(f"sample/{n}", times, wrong=[("torch", "tf32"), *(
            [("rawnn", "tf32")] if n in bad else [])]) for n in "123"),
        built.entry("sample/4", "rawnn", {"step_us": []}, status="not measured", layers=[2, 1]))
    assert failures("sample", found) == (
        f"rawnn was refused, failed or was wrong in {said}" if said else "")


@pytest.mark.parametrize(("mine", "rivals", "is_far"), [
    ([], [[5.0]], False), ([5.0], [], False), ([6.2, 9.0], [[5.0, 8.0]], False),
    ([6.3, 9.0], [[8.0, 5.0]], True), ([6.3], [[5.1, 5.2], [5.0, 7.0], []], True)])
def test_a_form_is_far_slower_by_its_best_time_than_the_best_of_any(
        mine: list[float], rivals: list[list[float]], is_far: bool) -> None:
    def of(us: list[float], **more: Any) -> Any:
        return SimpleNamespace(**{"samples": {"step_us": us} if us else {}, "precision": "tf32",
                                  "conditions": {"system": "torch"}, **more})

    own = of(mine)
    others = [of([0.1], precision="bf16"), of([0.1], conditions={"system": "jax"})]
    assert system_comparison._is_far_slower(own, [own, *map(of, rivals), *others]) is is_far
