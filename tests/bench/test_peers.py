"""Contests with peers: the draw, the check of losses, processes that fail, budgets and what goes on
where a file ends. NumPy is the peer that is always there; PyTorch and JAX where installed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from rawnn.bench.clocks import ManagedGpu
from rawnn.bench.compare import compare
from rawnn.bench.conditions import Conditions, Watch
from rawnn.bench.peers import worker
from rawnn.bench.peers.arrange import Arrangement, drawn, drawn_forms, of_workloads
from rawnn.bench.peers.check import Reference, reference
from rawnn.bench.peers.contest import Rules, run_contests
from rawnn.bench.peers.lanes import Lane, Lanes
from rawnn.bench.peers.merging import merged_contests
from rawnn.bench.peers.numpy_system import Loop
from rawnn.bench.peers.problem import DRAW_VERSION, RUN_STEPS, Problem, draw, draws, smaller
from rawnn.bench.peers.process import SystemProcess, missing
from rawnn.bench.peers.rawnn_system import Training, dataset
from rawnn.bench.peers.records import Contest, ContestsResult, Entry, read_contests
from rawnn.bench.peers.summary import by_draw, cells, markdown, network_line, setups, summary
from rawnn.bench.peers.worker import TRUTH, Made, Prepare, Program, first_losses, timed
from rawnn.bench.peers.workload_table import table_rows
from rawnn.bench.series import read_series
from rawnn.cli.bench import bench
from rawnn.errors import ConfigError
from rawnn.run.machine import open_device
from rawnn.run.result import Environment

PLACE = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda",
                    {"name": "Some GPU", "driver": "580.1", "cuda": "13.0"}, {"numpy": "2"}, {}, "")


def tiny(**more: Any) -> Problem:
    values: dict[str, Any] = {
        "name": "tiny", "seed": 3, "layers": (12, 17, 5), "batch": 6, "loss": "cross_entropy",
        "optimizer": "sgd", "lr": 0.05, "steps": 32, **more}
    return Problem(**values)


# -- the draw --------------------------------------------------------------------------------------

def test_a_version_of_the_draw_never_draws_other_networks() -> None:
    text = "\n".join(f"{p} lr {p.lr} steps {p.steps}" for p in map(draw, range(200)))
    assert (DRAW_VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (1, "97b13949476667fc")


def test_the_draw_covers_what_it_says() -> None:
    problems = [draw(seed) for seed in range(1000)]
    depths = {len(p.layers) - 1 for p in problems}
    widths = [n for p in problems for n in p.layers[:-1]]
    assert depths == {1, 2, 3, 4, 5, 6}
    assert min(widths) == 16
    assert 1000 < max(widths) <= 1024
    assert np.median(widths) == pytest.approx(128, rel=0.15)  # log-uniform: the geometric middle
    assert min(p.batch for p in problems) == 1
    assert max(p.batch for p in problems) > 3500
    assert {(p.loss, p.optimizer) for p in problems} == {
        (a, b) for a in ("cross_entropy", "mse", "bce") for b in ("sgd", "adam")}
    assert all(p.shuffle and p.steps == 64 for p in problems)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
def test_a_problems_arrays_are_the_same_each_time(loss: Any) -> None:
    problem = tiny(loss=loss)
    x, y = problem.arrays()
    again = problem.arrays()
    assert np.array_equal(x, again[0])
    assert np.array_equal(y, again[1])
    assert (x.shape, x.dtype) == ((192, 12), np.float32)
    assert y.shape == ((192,) if loss == "cross_entropy" else (192, 5))
    assert sorted(problem.order(1)) == list(range(192))
    assert not np.array_equal(problem.order(0), problem.order(1))


def test_what_is_slow_to_make_is_made_for_five_networks_of_each_draw() -> None:
    asked = drawn((10, 110), 30, "gpu")
    forms = drawn_forms(asked)
    wanted = [first + n for first in (10, 110) for n in (0, 6, 12, 18, 24)]
    assert [p.seed for p in asked if "graph, compiled" in forms(p, "torch")] == wanted
    assert [p.seed for p in asked if forms(p, "jax") != ["tf32", "bf16"]] == wanted
    assert not any(forms(p, "jax") for p in asked if p.seed in wanted)


@pytest.mark.parametrize(("forms", "wanted"), [
    ([], 6), (["tf32", "bf16"], 4), (["scan"], 3), (["tf32", "scan"], 1)])
def test_forms_of_jax_are_chosen_by_numbers_and_by_unrolling(forms: list[str],
                                                             wanted: int) -> None:
    if missing("jax"):
        pytest.skip(missing("jax"))
    import jax

    from rawnn.bench.peers import jax_system

    host = jax.devices("cpu")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jax, "devices", lambda kind: host)
        assert len(list(jax_system.offers(tiny(), "gpu", forms))) == wanted


def test_draws_that_touch_are_refused() -> None:
    assert [len(d) for d in draws(drawn((40, 7), 30, "gpu"))] == [30, 30]
    with pytest.raises(ConfigError, match="seeds 7 and 37 on are not apart: take seeds 31 or more"):
        drawn((37, 7), 30, "gpu")


def test_operations_of_a_step() -> None:
    assert tiny(layers=(2, 3, 5), batch=7).flops == 2 * 7 * (3 * (6 + 15) - 6)


# -- the same work in all systems ------------------------------------------------------------------

def share(losses: Any, right: Any, numbers: str) -> float:
    """Of the tolerance, where nobody knows what float32 costs."""
    return Reference(np.asarray(right), np.zeros(len(right))).share(list(losses), numbers)


def losses_of(program: Program, problem: Problem) -> np.ndarray:
    return np.asarray(first_losses(program, problem))


def ours(problem: Problem) -> np.ndarray:
    opened = open_device("host", lambda message: None)
    return losses_of(Training(problem.config("best", "host"), dataset(problem), opened), problem)


PROBLEMS = [tiny(loss=loss, optimizer=optimizer, lr=lr, layers=layers) for loss, layers in
            (("cross_entropy", (12, 17, 5)), ("mse", (12, 5)), ("bce", (12, 9, 8, 5)))
            for optimizer, lr in (("sgd", 0.05), ("adam", 1e-3))]


@pytest.mark.parametrize("problem", [*PROBLEMS, tiny(bias=False), tiny(shuffle=False)], ids=str)
def test_numpy_and_rawnn_see_the_same_losses(problem: Problem) -> None:
    mine, theirs = ours(problem), losses_of(Loop(problem), problem)
    assert len(mine) == 64
    assert share(list(mine), theirs, "float32") < 0.05


@pytest.mark.parametrize("system", ["torch", "jax"])
def test_a_peer_sees_the_same_losses(system: str) -> None:
    if missing(system):
        pytest.skip(missing(system))
    for problem in PROBLEMS:
        process = SystemProcess(system)
        try:
            programs = process.prepare(Prepare(problem, "host", [], 60), 60)
            assert [m.reason for m in programs] == [""] * len(programs), process.lost
            for made in programs:
                if made.numbers == TRUTH:
                    continue
                assert share(made.losses, ours(problem), made.numbers) < 0.1
        finally:
            process.close()


def test_a_coarse_class_may_go_astray_where_training_amplifies_rounding() -> None:
    right = np.linspace(2.0, 1.0, 64)  # moves by 1
    calm, chaotic = (Reference(right, np.full(4, cost)) for cost in (1e-9, 1e-4))
    for astray, of_calm, of_chaotic in ((0.05, True, False), (0.5, True, True)):
        losses = list(right + astray * np.linspace(0, 1, 64))
        assert (calm.share(losses, "tf32") > 1, chaotic.share(losses, "tf32") > 1) == (
            of_calm, of_chaotic)
        assert chaotic.share(losses, "float32") > 1


@pytest.mark.parametrize("change", [{"lr": 0.0525}, {"lr": 0.0}, {"optimizer": "adam"},
                                    {"seed": 4}, {"shuffle": False}, {"loss": "bce"}], ids=str)
def test_other_work_is_found_to_be_wrong(change: dict[str, Any]) -> None:
    values = {"loss": "mse", **change}
    wrong = losses_of(Loop(tiny(**values)), tiny(**values))
    right = losses_of(Loop(tiny(loss="mse")), tiny(loss="mse"))
    assert share(list(wrong), right, "float32") > 1


def test_losses_that_are_not_finite_are_wrong() -> None:
    right = losses_of(Loop(tiny()), tiny())
    assert share([*right[:5], None, *right[6:]], right, "bf16") == float("inf")
    assert share([], right, "bf16") == float("inf")


def made_of(losses: Sequence[float], numbers: str = "float32", **more: Any) -> Made:
    return Made(numbers=numbers, form="f", clock="wall", losses=list(losses), **more)


def test_the_reference_is_not_moved_by_one_system_that_is_wrong() -> None:
    right = np.linspace(2, 1, 64)
    found = reference([("a", made_of(right)), ("b", made_of(right * 3)), ("c", made_of(right)),
                       ("c", made_of(right * 9, "bf16"))])
    assert found is not None
    assert np.array_equal(found.losses, right)
    assert reference([("a", made_of(right)), ("a", made_of(right))]) is None
    assert reference([("a", made_of(right)), ("b", made_of([], reason="no memory"))]) is None


def test_a_loop_that_was_broken_off_is_compared_as_far_as_it_got() -> None:
    right = np.linspace(2, 1, 64)
    found = reference([("a", made_of(right)), ("b", made_of(right[:20] * 2))])
    assert found is not None
    assert np.array_equal(found.losses, right)
    assert found.share(list(right[:20]), "float32") == 0
    assert found.share(list(right[:20] * 1.1), "float32") > 1


def test_what_float32_costs_a_run_is_allowed_and_one_that_is_wrong_does_not_widen_it() -> None:
    truth = np.linspace(2, 1, 64)
    away = np.linspace(0, 0.02, 64)  # 2 % of the movement: more than float32's fixed share
    strict = [("torch", made_of(truth, "float64")), ("a", made_of(truth)), ("b", made_of(truth)),
              ("c", made_of(truth + away))]
    found = reference(strict)
    assert found is not None
    assert found.share(list(truth + away), "float32") > 1
    two = reference([strict[0], ("a", made_of(truth)), ("b", made_of(truth * 2))])
    assert two is not None
    assert two.share(list(truth * 2), "float32") > 1
    assert two.share(list(truth), "float32") == 0
    two = reference([strict[0], ("a", made_of(truth + away)), ("b", made_of(truth - away / 3))])
    assert two is not None
    assert two.share(list(truth + away), "float32") < 1
    chaotic = [strict[0], ("a", made_of(truth - away)), ("b", made_of(truth + away / 2)),
               ("c", made_of(truth * 2))]
    found = reference(chaotic)
    assert found is not None
    assert found.share(list(truth + away), "float32") < 1
    assert found.share(list(truth * 2), "float32") > 1


# -- time ------------------------------------------------------------------------------------------

class Clock:
    """A program that gets faster, and then stays."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def block(self, epochs: int) -> float:
        self.asked.append(epochs)
        return max(20.0 - len(self.asked), 12.0)

    def reorder(self, order: Any) -> None: ...

    def losses(self) -> Any: ...


def test_warm_up_ends_when_the_last_samples_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WARM_S", 0.0)
    clock = Clock()
    found = timed(clock)
    assert found.milliseconds == [12.0] * 4
    assert found.steady
    assert len(clock.asked) == 10 + 4


def test_a_program_that_never_settles_is_timed_and_said_to_be_unsteady(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PATIENCE_S", 0.0)
    assert not timed(Clock()).steady


# -- contests --------------------------------------------------------------------------------------

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


def test_the_summary_takes_the_best_form_of_each_class() -> None:
    a = contest_of(rawnn_float32=[10.0], torch_float32=[20.0], jax_float32=[5.0], jax_tf32=[4.0],
                   rawnn_bf16=[2.0], torch_bf16=[3.0])
    b = contest_of(rawnn_float32=[10.0], torch_float32=[40.0], jax_float32=[20.0], jax_tf32=[30.0])
    lines = {(n.name, n.against): n for n in summary(result_of(a, b))}
    strict = lines["float32 against true float32", "the best peer"]
    assert (strict.networks, strict.worst, strict.faster) == (2, 0.5, 1)
    assert strict.mean == pytest.approx(1.0)
    assert lines["float32 against tf32", "jax"].mean == pytest.approx((0.4 * 3) ** 0.5)
    assert lines["float32 against true float32", "torch"].mean == pytest.approx(8**0.5)
    half = lines["bf16 against bf16", "torch"]
    assert (half.networks, half.failures, half.mean) == (1, 1, pytest.approx(1.5))
    fastest = lines["fastest against fastest", "the best peer"]
    assert fastest.worst == pytest.approx(1.5)
    assert cells(half)[-1] == "1"


def test_a_network_for_which_a_peer_was_not_asked_is_none_of_the_class() -> None:
    a = contest_of(rawnn_float32=[10.0], torch_float32=[20.0], jax_tf32=[30.0], jax_float32=[40.0])
    b = contest_of(rawnn_float32=[10.0], torch_float32=[50.0], jax_tf32=[15.0], jax_bf16=[9.0])
    broken = Entry(system="jax", numbers="", form="", status="failed", reason="no memory")
    c = msgspec.structs.replace(b, entries=[*b.entries[:2], broken])
    assert "float32 10.00 us | -" in network_line(b)
    assert "float32 10.00 us | 50.00 us torch" in network_line(c)
    plain = contest_of(numpy_float32=[99.0], torch_tf32=[5.0], torch_bf16=[4.0], rawnn_tf32=[1.0])
    assert "tf32 1.00 us | 5.00 us torch" in network_line(plain)
    lines = {(n.name, n.against): n for n in summary(result_of(a, b, c))}
    strict = lines["float32 against true float32", "the best peer"]
    assert (strict.networks, strict.mean) == (2, pytest.approx(10**0.5))  # 20 of a, 50 of c
    assert lines["float32 against true float32", "torch"].networks == 3
    assert lines["float32 against true float32", "jax"].missing == 1
    assert lines["fastest against fastest", "the best peer"].networks == 3


def test_what_being_made_ready_took_is_said() -> None:
    def contest(us: float, ready: float) -> Contest:
        slow = Entry(system="jax", numbers="tf32", form="f", status="measured", us=[us],
                     setup_s=ready)
        other = msgspec.structs.replace(slow, numbers="bf16", us=[us + 1], setup_s=10.0)
        ours = msgspec.structs.replace(slow, system="rawnn", us=[1.0], setup_s=0.5)
        return Contest(problem=tiny(), entries=[ours, slow, other])

    said = setups(result_of(contest(5.0, 2.0), contest(6.0, 3.0), contest(7.0, 9.0)))
    assert "in the median: rawnn 0.5, jax 3.0 (all that were tried: rawnn 0.5, jax 13.0)" in said
    assert "torch" not in said


def test_parts_and_draws_become_one_file(tmp_path: Path) -> None:
    asked = drawn((3, 50), 2, "gpu")
    held = [msgspec.structs.replace(contest_of(rawnn_float32=[10.0], torch_float32=[us]), problem=p)
            for p, us in zip(asked, (20.0, 5.0, 40.0, 80.0), strict=True)]
    more: dict[str, Any] = {"asked": asked, "systems": ["rawnn", "torch"]}
    parts = [result_of(*held[k::2], **more, ended="the budget of 9 s was spent") for k in (0, 1)]
    found = merged_contests([("a", parts[1]), ("b", parts[0])])
    assert [c.problem.seed for c in found.contests] == [3, 4, 50, 51]
    assert found.ended == ""
    assert [round(lines[0].mean, 3) for lines in by_draw(found)] == [1.0, 5.657]
    assert "(seeds 3-4, 50-51) by themselves: float32 against true float32 1.00, 5.66" \
        in markdown(found)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, part in zip(files, parts, strict=True):
        part.write_json(file)
    done = invoke("merge", *map(str, files), "--json", str(tmp_path / "all.json"))
    assert done.exit_code == 0, done.output
    both = merged_contests([("a", parts[0]), ("b", parts[1])])
    assert read_contests(tmp_path / "all.json") == both
    with pytest.raises(ConfigError, match="b holds seed 3 a second time"):
        merged_contests([("a", parts[0]), ("b", parts[0])])
    other = msgspec.structs.replace(parts[1], environment=dataclasses.replace(PLACE, commit="abd"))
    with pytest.raises(ConfigError, match="rawnn's commit is abc in the one, abd in the other"):
        merged_contests([("a", parts[0]), ("b", other)])
    longer = msgspec.structs.replace(parts[1], run_steps=RUN_STEPS)
    with pytest.raises(ConfigError, match="a run's steps are 128000 in the one, 1000000 in the"):
        merged_contests([("a", parts[0]), ("b", longer)])


def test_what_is_wrong_or_refused_counts_as_a_failure_and_never_as_a_time() -> None:
    wrong = Entry(system="rawnn", numbers="float32", form="best", status="wrong", us=[1.0],
                  reason="its losses are off by 3 times the tolerance")
    contest = contest_of(torch_float32=[3.0])
    contest = msgspec.structs.replace(contest, entries=[*contest.entries, wrong])
    line = next(n for n in summary(result_of(contest)) if n.against == "torch")
    assert (line.networks, line.failures) == (0, 1)
    assert "off by 3 times" in network_line(contest)
    assert "off by 3 times" in markdown(result_of(contest))


def test_a_difference_within_the_noise_is_said() -> None:
    near = contest_of(rawnn_float32=[10.0, 11.0, 9.0], torch_float32=[10.1, 9.1, 11.0])
    far = contest_of(rawnn_float32=[10.0, 11.0, 9.0], torch_float32=[20.1, 19.1, 21.0])
    assert "in the noise" in network_line(near)
    assert "in the noise" not in network_line(far)


def test_contests_are_held_in_turns_and_kept(tmp_path: Path) -> None:
    asked = [smaller(p, 20, 8, 4) for p in drawn((0,), 2, "gpu")]
    arranged = Arrangement("random-peers", asked, Rules(("rawnn", "numpy"), "host"), {})
    heard: list[str] = []

    def over(contest: Contest) -> None:
        heard.append(contest.problem.name)
        assert arranged.result().ended  # what a killed process leaves is not whole

    result = arranged.hold(600, over, heard.append)
    assert [c.problem.name for c in result.contests] == ["seed 0", "seed 1"]
    for contest in result.contests:
        assert {(e.system, e.status, len(e.us)) for e in contest.entries} == {
            ("rawnn", "measured", 8), ("numpy", "measured", 8)}
        assert all(e.error is not None and e.error < 0.1 for e in contest.entries)
    assert result.ended == ""
    assert "numpy" in result.environment.libraries
    file = tmp_path / "r.json"
    result.write_json(file)
    assert read_contests(file) == result
    series = read_series(file)
    assert len(series.series) == 4
    assert not compare(series, series).regressions


def test_the_budget_ends_between_contests_and_a_file_is_gone_on_with() -> None:
    asked = [smaller(p, 20, 8, 4) for p in drawn((0,), 3, "gpu")]
    rules = Rules(("rawnn", "numpy"), "host", at_once=1)
    ended = Arrangement("random-peers", asked, rules, {}).hold(0.5, lambda c: None,
                                                               lambda m: None)
    assert "the budget of 0 s was spent" in ended.ended
    assert len(ended.contests) == 1  # what was begun is finished
    again = Arrangement("random-peers", asked, rules, {}, ended)
    result = again.hold(600, lambda c: None, lambda m: None)
    assert [c.problem.name for c in result.contests] == ["seed 0", "seed 1", "seed 2"]
    assert result.contests[0] == ended.contests[0]


def test_a_part_holds_every_second_network() -> None:
    asked = [smaller(p, 20, 8, 4) for p in drawn((0,), 3, "gpu")]
    rules = Rules(("rawnn", "numpy"), "host")
    second = Arrangement("random-peers", asked, rules, {}, part=(2, 2)).hold(
        600, lambda c: None, lambda m: None)
    assert [c.problem.name for c in second.contests] == ["seed 1"]
    assert second.asked == asked
    assert not second.ended


def test_time_is_kept_for_what_is_being_made_ready() -> None:
    made: list[str] = []

    def command(problem: Problem, system: str) -> Prepare:
        made.append(problem.name)
        return Prepare(problem, "host", [], 60)

    several = [tiny(name=name, steps=4) for name in "abc"]
    with Lanes(("numpy",), 1, cores=1) as lanes:
        found = lanes.prepare(several, command, suffices=lambda ready, longest: ready < 2)
        assert lanes.longest() > 0
    assert (made, list(found)) == (["a", "b"], ["a", "b"])


def test_a_file_of_other_contests_is_not_gone_on_with() -> None:
    asked = drawn((0,), 2, "host")
    rules = Rules(("rawnn", "numpy"), "host")
    before = Arrangement("random-peers", asked, rules, {}).result()
    with pytest.raises(ConfigError, match="with rawnn, numpy on the host, and this is"):
        Arrangement("random-peers", asked, Rules(("rawnn", "torch"), "host"), {}, before)
    other = msgspec.structs.replace(before, contests=[Contest(problem=tiny(), entries=[])])
    with pytest.raises(ConfigError, match=r"has tiny .* which is not asked for"):
        Arrangement("random-peers", asked, rules, {}, other)


def test_a_system_that_breaks_is_an_entry_and_the_others_go_on() -> None:
    rules = Rules(("rawnn", "nosuch", "numpy"), "host")
    contest, = run_contests([tiny(steps=4)], rules, Watch(ManagedGpu(0)))
    found = {e.system: e for e in contest.entries}
    assert found["nosuch"].status == "failed"
    assert "No module named 'rawnn.bench.peers.nosuch_system'" in found["nosuch"].reason
    assert found["rawnn"].status == found["numpy"].status == "measured"


def test_a_process_that_is_killed_is_said_and_never_waited_for() -> None:
    process = SystemProcess("numpy")
    process.prepare(Prepare(tiny(steps=4), "host", [], 60), 60)
    process.close()
    assert "its process ended" in process.time("tiny", 0, 5.0).reason
    assert "its process ended" in process.time("tiny", 0, 5.0).reason


def test_a_process_that_does_not_answer_is_given_up() -> None:
    process = SystemProcess("numpy")
    assert process.prepare(Prepare(tiny(steps=4), "host", [], 60), 0.0) == []
    assert process.lost == "its process did not answer in time"


def test_a_lane_whose_process_ends_makes_the_others_ready_again() -> None:
    lane = Lane("numpy", 1)
    try:
        first, second, third = (
            lane.prepare(Prepare(tiny(name=name, steps=4), "host", [], 60)) for name in "abc")
        assert not second.time(0, 60).reason
        third.forget()
        lane.process.close()
        assert "its process ended" in first.time(0, 60).reason
        assert "its process ended" in first.reason
        assert len(second.time(0, 60).milliseconds) == 4
    finally:
        lane.close()


def test_lanes_share_the_cores() -> None:
    with Lanes(("numpy", "rawnn"), 1, cores=16) as lanes:
        found = lanes.prepare([tiny(steps=4)], lambda p, s: Prepare(p, "host", [], 60))
        assert [p.system for p in found["tiny"]] == ["numpy", "rawnn"]
        assert set(lanes.versions) == {"numpy", "rawnn"}


# -- conditions ------------------------------------------------------------------------------------

class Library:
    """As much of NVML as is asked."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonHwSlowdown = 8
    nvmlClocksThrottleReasonSwPowerCap = 4
    reasons, energy = 12, 0

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        return 1980 if which == 1 else 3201

    def nvmlDeviceGetTemperature(self, handle: int, which: int) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self.energy += 5000
        return self.energy

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons


def test_conditions_are_sampled_while_something_runs() -> None:
    with Watch(ManagedGpu(0, Library())).during() as seen:
        pass
    found = seen.conditions
    assert found is not None
    assert found.sm_mhz is not None
    assert found.sm_mhz.median == 1980
    assert found.temperature_c is None
    assert found.energy_j == 5.0
    assert found.slowdowns == ["hardware slowdown", "power limit"]
    assert found.throttled == ["hardware slowdown"]


def test_nothing_is_observed_without_the_library() -> None:
    class Broken:
        def nvmlInit(self) -> None:
            raise OSError("no driver")

    watch = Watch(ManagedGpu(0, Broken()))
    assert not watch.observes
    with watch.during() as seen:
        pass
    assert seen.conditions is None


def test_a_throttled_turn_is_repeated_and_then_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    contest, = run_contests([tiny(steps=4)], Rules(("rawnn", "numpy"), "host", rounds=1),
                            Watch(ManagedGpu(0, Library())))
    for entry in contest.entries:
        assert entry.throttled == ["hardware slowdown"]
        assert len(entry.us) == 4
        assert isinstance(entry.conditions, Conditions)


# -- the commands ----------------------------------------------------------------------------------

def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


def test_the_headline_command(tmp_path: Path) -> None:
    kept, table = tmp_path / "r.json", tmp_path / "r.md"
    done = invoke("random", "--peers", "--n", "1", "--seed", "2", "--device", "host", "--peer",
                  "numpy", "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    for words in ("seed 2", "float32 against true float32", "above 1 we are faster", "draw 1"):
        assert words in done.output
    assert len(read_contests(kept).contests) == 1
    assert "Nothing failed" in table.read_text()
    again = invoke("random", "--peers", "--device", "host", "--peer", "numpy", "--resume",
                   str(kept))
    assert again.exit_code == 0, again.output
    shorter = msgspec.structs.replace(read_contests(kept), run_steps=128_000)
    assert shorter.run_steps != read_contests(kept).run_steps == RUN_STEPS
    shorter.write_json(kept)
    again = invoke("random", "--peers", "--device", "host", "--peer", "numpy", "--resume",
                   str(kept))
    assert again.exit_code != 0
    assert "of runs of 128,000 steps" in str(again.exception or again.output)


def test_workloads_beside_numpy(tmp_path: Path) -> None:
    kept = tmp_path / "p.json"
    done = invoke("peers", "--workload", "linear", "--dataset", "synthetic", "--device", "host",
                  "--peer", "numpy", "--steps", "4", "--json", str(kept), "--markdown",
                  str(tmp_path / "p.md"))
    assert done.exit_code == 0, done.output
    rows = table_rows(read_contests(kept))
    assert [row[1] for row in rows] == ["rawnn", "numpy"]
    assert all(row[-1] == "agree" for row in rows)
    assert "| linear | rawnn |" in (tmp_path / "p.md").read_text()


@pytest.mark.parametrize(("arguments", "words"), [
    (("random", "--peers", "--peer", "tarch"), "did you mean 'torch'"),
    (("random", "--peers", "--work", "5"), "--peers does not"),
    (("random", "--budget", "5"), "--budget goes with --peers only"),
    (("random", "--seed", "1", "--seed", "2"), "a second --seed goes with --peers only"),
    (("random", "--peers", "--part", "3/2"), "'3/2' is no part: 2/3 is the second of three"),
    (("peers", "--workload", "lineer"), "did you mean 'linear'"),
    (("peers", "--device", "gpu:3"), "CUDA_VISIBLE_DEVICES=3")])
def test_what_means_nothing_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code != 0
    assert words in str(done.exception) + done.output


def test_a_peer_that_is_not_installed_is_left_out_by_name() -> None:
    absent = next((s for s in ("torch", "jax") if find_spec(s) is None), None)
    if absent is None:
        pytest.skip("all peers are installed")
    done = invoke("random", "--peers", "--n", "1", "--device", "host", "--peer", absent)
    assert f"{absent} is not installed" in done.output
    assert "left out" in done.output


def test_workloads_become_problems() -> None:
    linear, mlp4 = of_workloads(["linear", "mlp4"], "mnist", 256)
    assert (linear.layers, linear.bias, linear.shuffle, linear.steps) == ((784, 10), True, False,
                                                                          256)
    assert (mlp4.bias, mlp4.shuffle, mlp4.batch) == (False, True, 64)
