"""`workloads`, `toggles` and `ablation`: which runs each asks for, and what is kept of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rawnn.bench import training
from rawnn.bench.cases import ablation
from rawnn.bench.cases.ablation import ablated
from rawnn.bench.cases.toggles import pairings, toggles_named
from rawnn.bench.cases.workloads import default_opts, nothing_ran, workload_opts
from rawnn.bench.harness import Harness
from rawnn.bench.record import Results
from rawnn.bench.suites import read_suites
from rawnn.bench.training import WorkloadOpt, measure_workloads
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.config import Config
from rawnn.engine.data_source import settled
from rawnn.engine.machine import open_device
from rawnn.engine.result import Result
from rawnn.engine.session import Session
from rawnn.model.layers import Network
from rawnn.model.workloads import workload
from rawnn.opts import TOGGLES, select
from rawnn.opts.presets import PRESETS
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import DataSpec
from tests.bench import built
from tests.bench.measuring import standing
from tests.engine import CAPABLE, random_dataset

DATA = random_dataset(784, 10, 300, 60)
TWO = [("linear", "best"), ("linear", "none")]
SUITES = read_suites()
EVERY = list(dict.fromkeys(pair for toggle in TOGGLES.values()
                           for pairing in pairings(toggle, SUITES.toggles)
                           for pair in pairing.variants))


def measured(suite: str, wanted: list[WorkloadOpt], repeats: int = 1, epochs: int = 1
             ) -> Results:
    with Harness(suite) as harness:
        measure_workloads(harness, wanted, repeats, epochs, "host", "mnist", data=DATA)
    return harness.results


def test_a_run_says_all_that_it_found() -> None:
    found = measured("workloads", TWO, 2, 2)
    for entry, (name, opt) in zip(found.entries(), TWO, strict=True):
        assert (entry.case, entry.variant, entry.precision) == (f"workloads/{name}", opt, "float32")
        assert entry.conditions["epochs"] == 2
        assert [len(entry.samples(m)) for m in ("epoch_ms", "step_us", "accuracy", "total_ms",
                                                "evaluation_ms", "steps")] == [2, 2, 2, 2, 2, 1]
        assert entry.samples("steps") == [2]
        assert entry.median("step_us") == pytest.approx((entry.median("epoch_ms") or 0) * 500)
        assert entry.notes[0].startswith("toggles: ")


def test_an_evaluation_is_timed_report_by_report(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    run = Session.run

    def recorded(session: Session) -> Result:
        results.append(run(session))
        return results[-1]

    monkeypatch.setattr(Session, "run", recorded)
    entry, = measured("workloads", [("linear", "none")], 1, 3).entries()
    result, = results
    assert len(result.history) == 3
    assert entry.samples("evaluation_ms") == [pytest.approx(result.times.evaluation / 3)]
    assert entry.samples("total_ms") == [result.times.training]


@pytest.mark.parametrize(("asked", "epochs"), [
    (None, None), (5, 5), ({"linear": 3}, 3), ({"linear": 3, "others": 9}, 3), ({"others": 9}, 9),
    ({"wide7": 2}, None)])
def test_epochs_of_a_workload_are_its_own_those_of_others_or_those_of_its_file(
        asked: int | dict[str, int] | None, epochs: int | None) -> None:
    assert training._epochs(asked, "linear") == epochs


@pytest.mark.parametrize(("suite", "opt", "reason"), [
    ("workloads", "graphs", "only for a GPU: graphs"),
    ("toggles", "best,bf16", "the host only emulates bf16"),
    ("toggles", "fp16=acc16", "the host only emulates fp16")])
def test_what_says_nothing_on_the_host_is_kept_with_the_reason(suite: str, opt: str,
                                                               reason: str) -> None:
    entry, = measured(suite, [("wide7", opt)]).entries()
    assert (entry.status, entry.samples("epoch_ms")) == ("unavailable", [])
    assert entry.reason.startswith(reason)


def test_who_asks_for_emulated_numbers_by_name_gets_them() -> None:
    entry, = measured("workloads", [("linear", "best,bf16")]).entries()
    assert (entry.status, entry.precision) == ("measured", "bf16")


def test_a_later_failure_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Session):
        def run(self):  # type: ignore[no-untyped-def]
            if self.config.seed == 1:
                raise RawnnError("cuLaunchKernel failed")
            return super().run()

    monkeypatch.setattr(training, "Session", Broken)
    entry, = measured("workloads", TWO[:1], 3).entries()
    assert (len(entry.samples("accuracy")), entry.reason) == (1, "cuLaunchKernel failed")


def test_mistakes_are_found_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="--opt nosuch: no toggle is called 'nosuch'"):
        measured("workloads", [("linear", "nosuch")])
    with pytest.raises(ConfigError, match="unknown workload 'linea'; did you mean 'linear'"):
        measured("workloads", [("linea", "best")])
    with pytest.raises(ConfigError):
        measured("workloads", [("linear", "best")], epochs=0)


# -- which runs ------------------------------------------------------------------------------------


def test_sixteen_bit_workloads_are_measured_in_32_bits_too(tmp_path: Path) -> None:
    assert default_opts("linear", SUITES.workloads) == ["best"]
    assert default_opts("wide64", SUITES.workloads) == ["best", "best,bf16", "best,sr"]
    assert workload_opts(["linear", "wide64"], ["none"], SUITES.workloads) == [
        ("linear", "none"), ("wide64", "none")]
    own = tmp_path / "own.toml"
    own.write_text('[workloads.sets]\nwide64 = ["seed"]\n')
    assert workload_opts(["linear", "wide64", "mlp4"], (), read_suites(str(own)).workloads)[:3] == [
        ("linear", "best"), ("wide64", "seed"), ("mlp4", "best")]
    with pytest.raises(ConfigError, match="unknown workload 'wide'"):
        workload_opts(["wide"], (), SUITES.workloads)


@pytest.mark.parametrize(("name", "opt"), EVERY)
def test_every_pair_can_run_where_every_toggle_can(name: str, opt: str) -> None:
    config = Config(**{**workload(name), "opt": opt})
    selection = select(opt, config.network(), 100, CAPABLE, batch=config.recipe().batch)
    asked = {word.partition("=")[0] for word in opt.split(",") if word} - {*PRESETS}
    assert asked <= set(selection.values)


@pytest.mark.parametrize("toggle", TOGGLES.values(), ids=lambda toggle: toggle.name)
def test_every_toggle_is_compared_with_its_absence(toggle) -> None:
    found = pairings(toggle, SUITES.toggles)
    assert bool(found) == (toggle.group != "scale")  # `bench scaling` is for that
    assert all(c.is_of_part for c in found) == (not found)
    for pairing in found:
        beside = [w for w in pairing.base.split(",") if w.partition("=")[0] == toggle.name]
        assert bool(beside) == pairing.is_of_part
        assert all("=-" in word for word in beside)  # one of its parts is left out
        assert any(word.partition("=")[0] == toggle.name for word in pairing.added)


def test_equal_toggles_are_measured_once() -> None:
    assert len({(name, frozenset(opt.split(","))) for name, opt in EVERY}) == len(EVERY)


def test_parts_of_a_toggle_have_pairs_of_their_own() -> None:
    assert {("linear", f"preload,arena,nosync,{word},graphs=epoch")
            for word in ("fuse=-linear", "fuse")} <= set(EVERY)
    from rawnn.opts.fuse import FUSIONS

    asked = {word for c in pairings(TOGGLES["fuse"], SUITES.toggles) for word in
             c.base.split(",")}
    # Of the built-in workloads none has an activation that keeps its input, a loss that several
    # blocks share, or a batch of a few rows.
    assert {name for name in FUSIONS if f"fuse=-{name}" not in asked} == {"late_slope", "loss_sums",
                                                                          "deferred"}


def test_a_file_of_ones_own_says_what_shows_a_toggle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'nosync'"):
        toggles_named(["nosink"], SUITES.toggles)
    own = tmp_path / "own.toml"
    own.write_text('[toggles.compare]\nfuse = [{ workloads = ["wide64"], beside = "none" }]\n')
    suite = read_suites(str(own)).toggles
    pairing, = pairings(TOGGLES["fuse"], suite)
    assert pairing.variants == [("wide64", "none"), ("wide64", "none,fuse")]
    own.write_text("[toggles.compare]\nfuse = []\n")
    with pytest.raises(ConfigError, match=r"nothing under \[toggles.compare\] shows"):
        toggles_named(["fuse"], read_suites(str(own)).toggles)


def test_an_ablation_measures_each_toggle_alone_and_beside_the_others() -> None:
    found = ablated(SUITES.ablation[0], CAPABLE)
    words = {t.toggle.partition("=")[0] for t in found}
    assert "fuse" in words
    assert not words & {"preload", "arena"}
    pairs = {pair for t in found for pair in t.variants}
    assert len(pairs) == 2 + 2 * len(found)
    assert {("linear", "best,-fuse"), ("linear", "preload,arena,fuse")} <= pairs


@pytest.mark.parametrize("full", ["best", "preload,arena,graphs=epoch,fuse,pdl,report=3"])
def test_an_ablated_toggle_is_added_with_its_value_and_removed_by_its_name(full: str) -> None:
    suite = msgspec.structs.replace(SUITES.ablation[0], full=full)
    found = ablated(suite, CAPABLE)
    assert {t.toggle for t in found} >= {"fuse", "graphs=epoch"}
    for each in found:
        name = each.toggle.partition("=")[0]
        opts = (each.base, full, f"{each.base},{each.toggle}", f"{full},-{name}")
        assert each.variants == [("linear", opt) for opt in opts]
        assert name not in [word.partition("=")[0] for word in each.base.split(",")]


def test_an_ablation_asks_for_its_runs_by_the_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toggles are those of the workload's batch and recipe on all of MNIST, epochs the most that a
    suite of the workload wants, repeats the most of all."""
    asked, chosen = [], []
    monkeypatch.setattr(ablation, "open_timed", lambda harness, device: SimpleNamespace(
        device=device, machine=CAPABLE))
    monkeypatch.setattr(ablation, "measure_workloads", lambda *given, **how: asked.append(
        (*given, how)))

    def selected(opt: str, network: Network, steps: int, machine: Machine, **how: Any) -> Any:
        chosen.append((opt, network.layers, steps, machine, how))
        return select(opt, network, steps, machine, **how)

    monkeypatch.setattr(ablation, "select", selected)
    tables = [ablation.AblationSuite(workload="mlp4", full="preload,arena,fuse", base="preload",
                                     epochs=4),
              ablation.AblationSuite(workload="mlp4", full="preload,nosync", base="preload",
                                     repeats=5),
              ablation.AblationSuite(workload="linear", full="preload,nosync",
                                     base="preload,arena", epochs=2)]
    suites: Any = SimpleNamespace(ablation=tables)
    for repeats in (None, 7):
        ablation.measure("harness", suites, repeats=repeats, dataset="mnist", device="sim")
    (_, pairs, runs, epochs, device, dataset, how), (_, _, more, *_) = asked
    assert pairs == [
        *(("mlp4", opt) for opt in ("preload", "preload,arena,fuse", "preload,fuse",
                                    "preload,arena,fuse,-fuse", "preload,nosync",
                                    "preload,nosync,-nosync")),  # preload brings arena
        *(("linear", opt) for opt in ("preload,arena", "preload,nosync", "preload,arena,nosync",
                                      "preload,nosync,-nosync"))]
    assert (runs, more, epochs, device, dataset) == (5, 7, {"mlp4": 4, "linear": 2}, "sim", "mnist")
    assert [how["conditions"](pairs[n]) for n in (1, 3, 5, 7)] == [
        {"base": "preload", "full": "preload,arena,fuse"}] * 2 + [
        {"base": "preload", "full": "preload,nosync"},
        {"base": "preload,arena", "full": "preload,nosync"}]
    for _, layers, steps, machine, more in chosen:
        batch = workload("mlp4" if layers[1:-1] else "linear")["batch"]
        assert (layers[0], steps, machine) == (784, 60_000 // batch, CAPABLE)
        assert (more["batch"], more["recipe"].batch) == (batch, batch)
        assert more["data_spec"] == DataSpec(60_000, labels="uint8", scale=1 / 255)


def test_a_device_that_is_open_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, given = open_device("host", print), []
    monkeypatch.setattr(training, "open_timed", lambda *arguments: pytest.fail("opened again"))
    monkeypatch.setattr(training, "trained", lambda config, data, there, watch: given.append(
        there) or training.Sample({"epoch_ms": 1.0}))
    with standing("workloads") as harness:
        measure_workloads(harness, TWO, 1, 1, "host", "mnist", data=DATA, opened=opened)
    assert given == [opened] * 2


@pytest.mark.parametrize("ran", [(), (False,), (True,), (True, False), (False, True), (True, True)])
def test_workloads_of_which_one_ran_are_no_failure(ran: tuple[bool, ...]) -> None:
    found = built.results(*(built.entry(f"workloads/{n}", "best", {"epoch_ms": [1.0], **(
        {"accuracy": [0.5]} if has_run else {})}) for n, has_run in enumerate(ran)))
    assert nothing_ran(found) == ("" if any(ran) else
                                  "none of it can run here; the reasons stand above")


def test_what_runs_need_is_compiled_at_once_though_one_of_them_cannot_run(
        monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[list[int]] = []
    monkeypatch.setattr(training, "precompile", lambda device, works: compiled.append(
        [work.train.batch for work in works]))
    opened = open_device("sim", lambda message: None)
    small = Config(layers=(29, 7), device="sim", epochs=1)
    configs = [small, dataclasses.replace(small, opt="nosuch"),
               dataclasses.replace(small, opt="best", batch=6)]
    data = random_dataset()
    training._compile(configs, data, opened)
    assert compiled == [[settled(small, data)[0].batch, 6]]
    training._compile(configs, data, open_device("host", lambda message: None))
    assert len(compiled) == 1
