"""What each command of `bench` asks for: its options first, else what the file says."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.bench import training
from rawnn.bench.cases import ladder
from rawnn.bench.cases.network_grid import order_of, problem_of
from rawnn.bench.cases.peers import workload_forms
from rawnn.bench.record import Results
from rawnn.bench.suites import read_suites
from rawnn.common.errors import DataError
from rawnn.engine.machine import Opened
from rawnn.opts.registry import Machine
from tests.bench.measuring import tiny

FILE = """
[launches]
samples = 7
launches = 9
[lower_bounds]
samples = 11
[ladder]
base = ["preload"]
rungs = ["fuse"]
repeats = 13
[workloads]
names = ["mlp4"]
repeats = 5
epochs = { others = 17 }
[workloads.sets]
mlp4 = ["best"]
linear = ["none"]
[toggles]
repeats = 6
epochs = { others = 19 }
[toggles.compare]
fuse = [{ workloads = ["linear"], beside = "none" }]
[peers]
names = ["mlp4"]
steps = 21
systems = ["numpy"]
[curves]
names = ["wide64"]
steps = 45
systems = ["jax"]
[sample]
n = 2
seed = 31
systems = ["torch"]
[grid]
cells = 3
seed = 5
systems = ["torch", "numpy"]
"""
"""No two settings that could be mistaken for each other are alike."""
FUNCTIONS = {"launches": "measure_launches", "lower_bounds": "measure_limits",
             "ladder": "run_ladder", "workloads": "measure_workloads",
             "toggles": "measure_workloads", "peers": "compare_systems",
             "curves": "compare_systems", "sample": "compare_systems",
             "network_grid": "compare_systems"}


def asked(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
          ) -> tuple[Any, ...]:
    """The arguments, but for the harness, of what a case measures by."""
    found: list[tuple[Any, ...]] = []
    module = import_module(f"rawnn.bench.cases.{case}")
    monkeypatch.setattr(module, FUNCTIONS[case], lambda harness, *given, **named: found.append(
        given))
    file = tmp_path / "own.toml"
    file.write_text(FILE)
    gpu = SimpleNamespace(backend=SimpleNamespace(name="cuda"))
    opened = Opened(gpu, Machine("none"), 0.0)  # type: ignore[arg-type]
    harness = SimpleNamespace(suite=case, open=lambda device, timer: opened, results=Results(),
                              notify=lambda message: None)
    module.CASE.measure(harness, read_suites(str(file)), device="auto", **options)
    return found[0]


@pytest.mark.parametrize(("options", "wanted"), [
    ({"samples": None, "count": None}, (7, 9)), ({"samples": 2, "count": None}, (2, 9)),
    ({"samples": None, "count": 3}, (7, 3)), ({"samples": 2, "count": 3}, (2, 3))])
def test_launches(options: dict[str, Any], wanted: tuple[int, int], tmp_path: Path,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked("launches", tmp_path, monkeypatch, **options)[1:] == wanted


@pytest.mark.parametrize(("samples", "wanted"), [(None, 11), (4, 4)])
def test_lower_bounds(samples: int | None, wanted: int, tmp_path: Path,
                      monkeypatch: pytest.MonkeyPatch) -> None:
    _, effort = asked("lower_bounds", tmp_path, monkeypatch, samples=samples)
    assert effort.samples == wanted


@pytest.mark.parametrize(("rungs", "repeats", "wanted"), [
    (None, None, (13, ["fuse"])), (" nosync , cublas,", 2, (2, ["nosync", "cublas"]))])
def test_ladder(rungs: str | None, repeats: int | None, wanted: tuple[int, list[str]],
                tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, times, names, base, data, reference = asked(
        "ladder", tmp_path, monkeypatch, rungs=rungs, repeats=repeats, oracle="off", data=None,
        dataset="synthetic", lr=0.25, seed=None)
    assert ((times, names), base, reference) == (wanted, ["preload"], None)
    assert (config.dataset, config.lr, config.seed, data.name) == ("synthetic", 0.25, 0,
                                                                   "synthetic")


@pytest.mark.parametrize("module", [ladder, training])
def test_made_up_data_stand_in_for_those_that_cannot_be_fetched(
        module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, *given: Any, notify: Any, stand_in: bool = False) -> Any:
        raise DataError(f"{name} {given} {stand_in}")

    monkeypatch.setattr(module, "load_dataset", load)
    harness: Any = SimpleNamespace(notify=print)
    measure = partial(asked, "ladder", tmp_path, monkeypatch, rungs=None, repeats=None,
                      oracle="off", data=None, dataset="mnist") if module is ladder else \
        partial(training.measure_workloads, harness, [("linear", "none")], 1, None, "host", "mnist")
    with pytest.raises(DataError, match=r"^mnist .* True$"):
        measure()


@pytest.mark.parametrize("case", ["workloads", "toggles"])
@pytest.mark.parametrize(("repeats", "epochs"), [(None, None), (2, None), (None, 3), (2, 3)])
def test_runs_of_training(case: str, repeats: int | None, epochs: int | None, tmp_path: Path,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"workloads": (5, {"linear": 20, "others": 17}),
           "toggles": (6, {"linear": 6, "others": 19})}[case]
    named = {"workloads": {"names": (), "opts": ()}, "toggles": {"names": ("fuse",)}}[case]
    pairs, *rest = asked(case, tmp_path, monkeypatch, repeats=repeats, epochs=epochs,
                         dataset="synthetic", **named)
    assert rest == [repeats or own[0], epochs or own[1], "auto", "synthetic"]
    assert pairs == {"workloads": [("mlp4", "best")],
                     "toggles": [("linear", "none"), ("linear", "none,fuse")]}[case]


@pytest.mark.parametrize(("names", "steps"), [((), None), (("linear",), None), ((), 10),
                                              (("linear",), 11)])
@pytest.mark.parametrize("case", ["peers", "curves"])
def test_built_in_workloads(case: str, names: tuple[str, ...], steps: int | None, tmp_path: Path,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve's steps are those of two epochs, rounded up."""
    tasks, peers, systems, *_ = asked(case, tmp_path, monkeypatch, names=names, steps=steps,
                                      peers=("torch",), dataset="synthetic")
    own, usual, systems_of = {"peers": ("mlp4", 21, ["numpy"]),
                              "curves": ("wide64", 45, ["jax"])}[case]
    wanted = steps or usual
    [task] = tasks
    assert (task.case, task.problem.name) == (f"{case}/{(*names, own)[0]}", (*names, own)[0])
    assert task.problem.steps == (wanted if case == "peers" else (wanted + 1) // 2)
    assert (peers, systems) == (("torch",), systems_of)


@pytest.mark.parametrize(("count", "seeds", "wanted"), [
    (None, (), [31, 32]), (3, (), [31, 32, 33]), (None, (8,), [8, 9]), (1, (8, 4), [8, 4])])
def test_random_networks(count: int | None, seeds: tuple[int, ...], wanted: list[int],
                         tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, _, systems, *_ = asked("sample", tmp_path, monkeypatch, count=count, seeds=seeds,
                                  peers=(), part=None)
    assert sorted(task.problem.seed for task in tasks) == sorted(wanted)
    assert systems == ["torch"]


@pytest.mark.parametrize(("count", "seed"), [(None, None), (2, None), (None, 0), (4, 9)])
def test_cells_of_the_grid(count: int | None, seed: int | None, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, _, systems, *_ = asked("network_grid", tmp_path, monkeypatch, count=count, seed=seed,
                                  peers=(), part=None)
    suite = read_suites(str(tmp_path / "own.toml")).grid
    cells = order_of(suite, 5 if seed is None else seed)[:count or 3]
    assert [task.problem for task in tasks] == [problem_of(cell) for cell in cells]
    assert [tuple(task.conditions[n] for n in ("width", "depth", "cell_batch")) for task in tasks] \
        == [tuple(cell[:3]) for cell in cells]
    assert systems == ["torch", "numpy"]


@pytest.mark.parametrize(("layers", "ours"), [
    ((784, 10), ["float32:best", "tf32:best,tf32", "bf16:best,bf16"]),
    ((784, 128, 10), ["float32:best", "tf32:best,tf32", "bf16:best,bf16", "sr:best,sr"])])
def test_forms_of_built_in_workloads(layers: tuple[int, ...], ours: list[str]) -> None:
    """Stochastic rounding needs a hidden layer; what people write is compared as well."""
    problem = tiny(layers=layers)
    assert workload_forms(problem, "rawnn") == ours
    assert workload_forms(problem, "torch") == [
        "plain loop", "compiled loop", "graph", "graph, gathered first", "graph, compiled"]
    assert workload_forms(problem, "jax") == workload_forms(problem, "numpy") == []
