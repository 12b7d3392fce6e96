"""Groups of networks made ready in lanes, and lanes, with stand-ins for their processes."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rawnn.bench.peers import lanes, process, system_comparison
from rawnn.bench.peers.lanes import GRACE_S, Lane, Lanes, Prepared
from rawnn.bench.peers.system_comparison import Rules, compare, task_of
from rawnn.bench.peers.worker import Prepare, Timed
from tests.bench.measuring import made_of, place, standing, tiny

# -- groups ----------------------------------------------------------------------------------------


class Group:
    """Lanes that are ready at once with the networks of `ready`, and keep what they are asked."""

    def __init__(self, ready: str, seconds: float = 7.0, on_time: Any = None) -> None:
        self.ready, self.seconds, self.on_time = ready, seconds, on_time
        self.made: list[Any] = []
        self.asked: list[Any] = []
        self.given_back: list[str] = []
        self.versions = {"numpy": "2.9"}

    def __call__(self, systems: tuple[str, ...], problems: int, memory: int | None) -> Group:
        self.made.append((systems, problems, memory))
        self.systems = systems
        return self

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None: ...

    def usual(self) -> float:
        return self.seconds

    def prepare(self, group: Any, command: Any, done: Any, has_time_for: Any) -> dict[str, Any]:
        self.asked.append([p.name for p in group])
        self.has_time_for = has_time_for
        found = {p.name: [self._prepared(p, s, command) for s in self.systems] for p in group
                 if p.name in self.ready}
        for several in found.values():
            for each in several:
                done(each)
        return found

    def _prepared(self, problem: Any, system: str, command: Any) -> Any:
        self.asked.append(command(problem, system))

        def time(index: int, timeout_s: float) -> Timed:
            if self.on_time:
                self.on_time()
            return Timed(milliseconds=[8.0])

        return SimpleNamespace(
            problem=problem, system=system, programs=[made_of([1.0])], reason="", time=time,
            forget=lambda: self.given_back.append(f"{problem.name} {system}"))


def compared(monkeypatch: pytest.MonkeyPatch, group: Group, names: str, said: list[str],
             budget: float = float("inf"), **more: Any) -> Any:
    monkeypatch.setattr(system_comparison, "Lanes", group)
    monkeypatch.setattr(system_comparison, "checker", lambda problem, programs: None)
    rules = Rules(("rawnn", "numpy"), "sim", forms=lambda problem, system: [
        f"{system} of {problem.name}"], is_large=lambda p: p.name in "LM", rounds=1,
        memory=1 << 30, **more)
    tasks = [task_of(tiny(name=name), f"sample/{name}") for name in names]
    with standing("sample", where=place(device="sim"), notify=said.append, budget=budget) as found:
        compare(found, tasks, rules)
    return found


def test_networks_are_made_ready_in_groups_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    group, said = Group("abcLM"), list[str]()
    found = compared(monkeypatch, group, "aLMbc", said, at_once=3, timeout_s=90.0)
    asked = [a for a in group.asked if isinstance(a, list)]
    assert asked == [["a", "L", "M"], ["b", "c"]]
    assert group.made == [(("rawnn", "numpy"), 3, 1 << 30)]
    assert [a for a in group.asked if not isinstance(a, list)] == [
        Prepare(tiny(name=name), "sim" if system == "rawnn" else "host", [f"{system} of {name}"],
                90.0, name in "LM") for name in "aLMbc" for system in ("rawnn", "numpy")]
    assert group.given_back == [f"{n} {s}" for n in "aLMbc" for s in ("rawnn", "numpy")]
    assert found.environment.libraries["numpy"] == "2.9"
    assert [(e.case, e.median("step_us")) for e in found.results.entries()] == [
        (f"sample/{n}", 250.0) for n in "aLMbc" for _ in "ab"]
    assert said[:6] == [f"{n} is ready in {s} ({k} of 6, 0 s)" for k, (n, s) in enumerate(
        [(n, s) for n in "aLM" for s in ("rawnn", "numpy")], 1)]
    assert found.results.ended == {}


@pytest.mark.parametrize(("left", "seconds", "waiting", "is_begun"), [
    (16.1, 10.0, "ab", True), (15.9, 10.0, "ab", False), (13.1, 10.0, "a", True),
    (3.0, 0.0, "a", False), (33.1, 10.0, "aL", True), (32.9, 10.0, "La", False)])
def test_a_network_is_begun_with_time_for_it_and_for_timing_all_that_then_wait(
        left: float, seconds: float, waiting: str, is_begun: bool) -> None:
    harness: Any = SimpleNamespace(left=left)
    rules = Rules(("rawnn",), "gpu", is_large=lambda p: p.name == "L")
    problems = [tiny(name=name) for name in waiting]
    assert system_comparison._has_time_for(harness, rules, problems, seconds) is is_begun


@pytest.mark.parametrize(("seconds", "asked", "said"), [
    (7.0, [["a"], ["b"], ["c"]], None),
    (60.0, [["a"]], "the budget is spent: 2 of 3 networks are left")])
def test_another_group_is_begun_if_the_budget_suffices(
        monkeypatch: pytest.MonkeyPatch, seconds: float, asked: list[Any], said: str | None
        ) -> None:
    group, words = Group("abc", seconds), list[str]()
    found = compared(monkeypatch, group, "abc", words, budget=50.0, at_once=1)
    assert [a for a in group.asked if isinstance(a, list)] == asked
    prepares = [a for a in group.asked if isinstance(a, Prepare)]
    assert all(40.0 < a.seconds <= 50.0 for a in prepares)
    assert group.has_time_for(0, 40.0)
    assert not group.has_time_for(0, 48.0)
    assert any(word.startswith(said) for word in words) if said else not found.results.ended
    assert (found.results.ended == {"sample": "the budget of 50 s was spent"}) is bool(said)


def test_nothing_is_begun_again_where_a_group_came_to_nothing(monkeypatch: pytest.MonkeyPatch
                                                              ) -> None:
    group = Group("a")
    compared(monkeypatch, group, "ab", [], budget=50.0, at_once=1)
    assert [a for a in group.asked if isinstance(a, list)] == [["a"], ["b"]]


# -- lanes -----------------------------------------------------------------------------------------


class Process:
    """A process that makes one program of each network, which takes its place among all that were
    asked for; `lost` once it is asked for "broken"."""

    made: ClassVar[list[Process]] = []

    def __init__(self, system: str, cores: int) -> None:
        self.system, self.cores, self.lost = system, cores, ""
        self.versions = {system: f"{len(Process.made)}"}
        self.calls: list[Any] = []
        Process.made.append(self)

    def prepare(self, command: Prepare, timeout_s: float) -> list[Any]:
        self.calls.append(("prepare", command.problem.name, timeout_s))
        if command.problem.name == "broken":
            self.lost = "it broke"
            return []
        return [made_of([1.0])] * (2 if command.problem.name == "two" else 1)

    def time(self, problem: str, program: int, timeout_s: float) -> Timed:
        self.calls.append(("time", problem, program, timeout_s))
        if problem == "dies":
            self.lost = "it died"
            return Timed(reason=self.lost)
        return Timed(milliseconds=[3.0])

    def forget(self, name: str) -> None:
        self.calls.append(("forget", name))

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    monkeypatch.setattr(lanes, "SystemProcess", Process)
    Process.made = []
    return Process.made


def asked(name: str, *, is_large: bool = False) -> Prepare:
    return Prepare(tiny(name=name), "host", [], 20.0, is_large)


def test_a_lane_keeps_what_is_ready_and_begins_anew_without_what_broke(processes: list[Process]
                                                                       ) -> None:
    lane = Lane("numpy", 3)
    one, dies, two = (lane.prepare(asked(name)) for name in ("one", "dies", "two"))
    assert (one.system, one.reason, len(one.programs), len(two.programs)) == ("numpy", "", 1, 2)
    assert dies.time(0, 5.0).reason == "it died"
    assert (dies.reason, one.reason) == ("it died", "")
    first, second = processes
    assert first.calls == [*(("prepare", n, 20.0 + GRACE_S) for n in ("one", "dies", "two")),
                           ("time", "dies", 0, 5.0), "close"]
    assert second.calls == [("prepare", n, 50.0) for n in ("one", "two")]
    assert (second.system, second.cores) == ("numpy", 3)
    assert dies.time(0, 5.0).reason == "it died"  # without asking anybody
    assert one.time(1, 6.0).milliseconds == [3.0]
    assert second.calls[2:] == [("time", "one", 1, 6.0)]
    broken = lane.prepare(asked("broken"))
    assert (broken.reason, broken.programs) == ("it broke", [])
    third = processes[2]
    assert third.calls == [("prepare", n, 50.0) for n in ("one", "two")]
    one.forget()
    one.forget()
    dies.forget()
    assert third.calls[2:] == [("forget", "one")]
    lane.close()
    lane.renew()
    assert third.calls[3:] == ["close"]
    assert len(processes) == 3


def test_a_lane_begins_anew_once_nothing_is_ready_where_it_had_a_large_problem(
        processes: list[Process]) -> None:
    """Whichever is forgotten last, in whichever process the large one was made ready."""
    lane = Lane("numpy", 1)
    for large_first, breaks in ((True, False), (False, False), (True, True)):
        ready = [lane.prepare(asked(name, is_large=(name == "large")))
                 for name in (("large", "small") if large_first else ("small", "large"))]
        if breaks:
            lane.prepare(asked("broken"))
        process = processes[-1]
        ready[0].forget()
        assert "close" not in process.calls
        ready[1].forget()
        assert process.calls[-1] == "close"
        assert processes[-1].calls == []
    lane.prepare(asked("small")).forget()
    assert processes[-1].calls[-1] == ("forget", "small")


def test_what_is_not_ready_again_says_so(processes: list[Process], monkeypatch: pytest.MonkeyPatch
                                         ) -> None:
    lane = Lane("numpy", 1)
    one, two = lane.prepare(asked("one")), lane.prepare(asked("two"))

    def fewer(own: Process, command: Prepare, timeout_s: float) -> list[Any]:
        return [made_of([1.0])]

    monkeypatch.setattr(Process, "prepare", fewer)
    lane.renew()
    assert (one.reason, two.reason) == ("", "it was not made ready again")
    two.forget()
    assert ("forget", "two") not in processes[1].calls


def test_lanes_take_networks_in_order_and_keep_those_that_all_have(processes: list[Process],
                                                                   monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    """The second system has no time for the third network. A clock that goes by two seconds a look
    says what each took."""
    clock, lock = iter(range(0, 1000, 2)), threading.Lock()

    def now() -> float:
        with lock:
            return float(next(clock))

    monkeypatch.setattr(lanes, "monotonic", now)
    done: list[Prepared] = []
    waiting: list[tuple[int, float]] = []

    def has_time_for(ready: int, seconds: float) -> bool:
        waiting.append((ready, seconds))
        return not (threading.current_thread().name == "late" and ready == 2)

    with Lanes(("rawnn", "numpy"), 1, cores=2) as several:
        assert [(p.system, p.cores) for p in processes] == [("rawnn", 1), ("numpy", 1)]
        assert several.usual() == 0.0
        several._took["rawnn", ("x",)] = [4.0, 6.0]
        several._took["rawnn", ()] = [1.0, 2.0]
        several._took["numpy", ()] = [5.0]
        assert several.usual() == 6.0  # of 1, 2, 4 and 6, and of 5
        several._took.clear()
        problems = [tiny(name=name) for name in ("c", "a", "b")]
        numpy = several._lanes["numpy"][0]
        whole = numpy.prepare

        def late(command: Prepare) -> Prepared:
            threading.current_thread().name = "late"
            return whole(command)

        monkeypatch.setattr(numpy, "prepare", late)
        found = several.prepare(problems, lambda p, s: asked(p.name), done.append, has_time_for)
        assert several.versions == {"rawnn": "0", "numpy": "1"}
    assert {name: [p.system for p in ready] for name, ready in found.items()} == {
        "c": ["rawnn", "numpy"], "a": ["rawnn", "numpy"]}
    assert list(found) == ["c", "a"]
    assert sorted(p.problem.name for p in done) == ["a", "a", "b", "c", "c"]
    assert sorted(ready for ready, _ in waiting) == [1, 1, 2, 2]
    assert all(seconds > 0 for _, seconds in waiting)
    assert [c for c in processes[0].calls if c[0] == "forget"] == [("forget", "b")]
    assert [c for c in processes[1].calls if c[0] == "forget"] == []
    assert all(p.calls[-1] == "close" for p in processes)


# -- processes -------------------------------------------------------------------------------------


class Pipe:
    """The end of a pipe whose other side answers each `send` with the next of `answers`."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent, self.waited = list(answers), [], []

    def send(self, asked: Any) -> None:
        self.sent.append(asked)

    def poll(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return bool(self.answers) and self.answers[0] is not None

    def recv(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def started(pipe: Pipe, words: bytes = b"") -> tuple[process.SystemProcess, list[str]]:
    asked: list[str] = []
    made = process.SystemProcess.__new__(process.SystemProcess)
    made.system, made.versions, made.lost = "jax", {"jax": "0"}, ""
    made._pipe, made._log = pipe, io.BytesIO(words)  # type: ignore[assignment]
    made._process = SimpleNamespace(  # type: ignore[assignment]
        kill=lambda: asked.append("kill"), wait=lambda: asked.append("wait"), returncode=9)
    return made, asked


def test_a_process_is_asked_by_method_and_waited_for_no_longer_than_it_may_take() -> None:
    pipe = Pipe(([made_of([1.0])], {"jax": "0.7"}), Timed(epochs=3), 0)
    made, asked_of = started(pipe)
    command = asked("one")
    assert made.prepare(command, 4.0) == [made_of([1.0])]
    assert made.time("one", 2, 5.0) == Timed(epochs=3)
    made.forget("one")
    assert pipe.sent == [("prepare", command), ("time", "one", 2), ("forget", "one")]
    assert (pipe.waited, made.versions, made.lost) == ([4.0, 5.0, 60.0], {"jax": "0.7"}, "")
    assert asked_of == []


def test_a_process_that_is_late_is_ended_and_asked_no_more() -> None:
    made, asked_of = started(Pipe(None))
    assert made.time("one", 0, -1.0).reason == "its process did not answer in time"
    assert asked_of == ["kill", "wait"]
    assert made.prepare(asked("one"), 5.0) == []
    assert made.time("one", 0, 5.0).reason == made.lost
    assert made._pipe.waited == [0.0]  # type: ignore[attr-defined]
    assert made.versions == {"jax": "0"}


@pytest.mark.parametrize(("words", "said"), [
    (b"", "exit status 9"), (b"first\nlast words \n\n", "last words"),
    (b"x" * 1000 + b"\nOSError: it", "OSError: it"), (b"y" * 1000, "y" * 400)])
def test_a_process_that_ends_says_its_last_words(words: bytes, said: str) -> None:
    made, _ = started(Pipe(EOFError()), words)
    assert made.time("one", 0, 5.0).reason == f"its process ended: {said}"


def test_a_process_has_so_many_cores_and_takes_memory_as_it_needs_it(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SOME", "thing")
    found = process.environment(3)
    assert found.items() >= {"SOME": "thing", "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                             "PYTHONUNBUFFERED": "1"}.items()
    assert {name for name, value in found.items() if value == "3"} >= {
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
        "TORCHINDUCTOR_COMPILE_THREADS"}
    for folder in (None, tmp_path):
        if folder:
            monkeypatch.setenv("RAWNN_PEER_LOGS", str(folder))
        else:
            monkeypatch.delenv("RAWNN_PEER_LOGS", raising=False)
        with process._log("torch") as log:
            log.write(b"words")
    assert [(f.name[:6], f.suffix, f.read_text()) for f in tmp_path.iterdir()] == [
        ("torch-", ".log", "words")]
