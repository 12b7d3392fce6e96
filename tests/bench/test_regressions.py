"""`bench compare`: what is flagged, what is measured again, and what is then called slower."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rawnn.bench import regressions, training
from rawnn.bench.cases import many_networks
from rawnn.bench.peers import worker
from rawnn.bench.peers.worker import Timed
from rawnn.bench.record import Record, Results, read_results
from rawnn.bench.regressions import Pair, elsewhere, judged, notes_of, pairs_of
from rawnn.bench.statistics import ratio
from rawnn.common.errors import ConfigError
from rawnn.engine.machine import Opened
from rawnn.engine.result import Result
from rawnn.engine.session import Session
from rawnn.model.workloads import workload
from rawnn.opts.registry import Machine
from tests.bench import built
from tests.bench.measuring import invoke, place, record, results, standing

LOCKED = {"sm": "1980 MHz", "mem": "2619 MHz"}
EIGHT = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0, 10.1]


def times(factor: float, samples: Sequence[float] = EIGHT) -> list[float]:
    return [factor * ms for ms in samples]


@pytest.mark.parametrize(("factor", "samples", "verdict"), [
    (1.2, EIGHT, "flagged"), (1 / 1.2, EIGHT, "faster"), (1.02, EIGHT, "same"),
    (1.2, [10.0, 10.1], "flagged"), (1.2, [10.0], "flagged"),
    (1.2, [10.0, 15.0], "noise"), (1.2, [6.0, 10.0, 16.0] * 3, "noise")])
def test_a_difference_counts_if_it_is_large_and_no_noise(factor: float, samples: list[float],
                                                         verdict: str) -> None:
    assert judged(ratio(times(factor, samples), samples), 0.03) == verdict


@pytest.mark.parametrize("effect", [0.03, 0.2])
def test_a_difference_is_the_same_whichever_file_comes_first(effect: float) -> None:
    """The limits are one over the other: 1.03 and 0.9709, not 0.97."""
    for factor in (1.001, 1 + effect - 1e-4, 1 + effect + 1e-4, 1 / (1 - effect), 2.0):
        slower, faster = (ratio(times(f), EIGHT) for f in (factor, 1 / factor))
        wanted = ("same", "same") if factor < 1 + effect else ("flagged", "faster")
        assert (judged(slower, effect), judged(faster, effect)) == wanted, factor


def peer(variant: str, samples: Sequence[float], **more: Any) -> Record:
    return record(variant, samples, "sweep/width", "step_us",
                  conditions={"system": variant.split()[0], "form": "f"}, **more)


def verdicts(a: Results, b: Results) -> dict[str, str]:
    return {p.variant: p.verdict for p in pairs_of(a, b)}


def test_variants_are_paired_by_all_that_identifies_them() -> None:
    a = results(record("best", EIGHT), record("none", EIGHT), record("fuse", EIGHT),
                record("left", EIGHT), record("gone", EIGHT), peer("rawnn best", EIGHT),
                peer("torch graph", EIGHT), record("other", EIGHT, conditions={"epochs": 1}))
    b = results(record("best", EIGHT), record("none", times(1.2)), record("new", EIGHT),
                record("fuse", status="failed", reason="a fault"),
                record("left", status="not measured"), peer("rawnn best", times(0.5)),
                peer("torch graph", times(2.0)), record("other", EIGHT, conditions={"epochs": 2}))
    pairs = pairs_of(a, b)
    found = [(p.variant, p.verdict) for p in pairs]
    assert found == [
        ("best", "same"), ("none", "flagged"), ("fuse", "lost"), ("left", "not measured"),
        ("gone", "not measured"), ("other", "not measured"), ("rawnn best", "faster"),
        ("torch graph", "flagged"), ("new", "new"), ("other", "new")]
    assert [p.is_ours for p in pairs].count(False) == 1
    assert pairs[2].reason == "a fault"


@pytest.mark.parametrize(("suite", "metric"), [
    *((suite, "epoch_ms") for suite in ("ladder", "workloads", "toggles", "ablation")),
    *((suite, "step_us") for suite in ("sample", "many", "grid", "peers", "sweep"))])
def test_every_suite_with_times_is_compared_by_its_own(suite: str, metric: str) -> None:
    """Of runs the epoch, whose steps another batch changes; of programs the step."""
    case = suite if suite == "ladder" else f"{suite}/x"
    a, b = (results(*(record("best", times(factor), case, name, precision="tf32")
                      for name, factor in (("accuracy", 1.0), (metric, of), (
                          "step_us" if metric == "epoch_ms" else "epoch_ms", 9.0))))
            for factor, of in ((1.0, 1.0), (1.0, 2.0)))
    [pair] = pairs_of(a, b)
    assert (pair.case, pair.verdict) == (case, "flagged")
    assert pair.ratio is not None
    assert pair.ratio.value == pytest.approx(2.0)


def test_files_without_a_variant_in_common_are_refused() -> None:
    with pytest.raises(ConfigError, match="have no variant in common: A has toggles/linear a"):
        pairs_of(results(record("a", [1.0])), results(record("b", [1.0])))
    with pytest.raises(ConfigError, match="toggles/linear a has epochs 20 in A and 6 in B"):
        pairs_of(results(record("a", [1.0], conditions={"epochs": 20})),
                 results(record("a", [1.0], conditions={"epochs": 6})))


def test_what_makes_files_hard_to_compare_is_said() -> None:
    one, other = place(), place(gpu={"name": "Other GPU", "driver": "590"})
    assert notes_of(Results(environments={"a": one}), Results(environments={"b": other})) == [
        "the machines differ: A Some GPU, B Other GPU", "the drivers differ: A 580.1, B 590"]
    assert elsewhere(one, Results(environments={"b": other})) == (
        "B was measured on Other GPU at commit abcdef0, and this is Some GPU at commit abcdef0")
    assert elsewhere(one, Results(environments={"b": place(date="2027")})) == ""
    for commit, said in (("1234567890", "commit 1234567"), ("", "commit unknown")):
        mixed = Results(environments={"b": place(date="2027"), "c": place(commit=commit)})
        assert elsewhere(one, mixed) == (
            f"B was measured on Some GPU at {said}, and this is Some GPU at commit abcdef0")


def test_a_comparison_is_shown_pair_by_pair_and_the_peers_by_themselves(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios of single samples, so that their ranges are the ratios, and the mean of each side."""
    monkeypatch.setenv("COLUMNS", "200")
    sides = ({"none": 10.0, "best": 10.0, "fuse": 10.0, "rawnn": 10.0, "torch": 10.0, "jax": 4.0},
             {"none": 20.0, "best": 5.0, "fuse": 10.1, "rawnn": 40.0, "torch": 30.0, "jax": 1.0})
    for file, times in zip(("a.json", "b.json"), sides, strict=True):
        results(*(record(name, [ms]) for name, ms in times.items()
                  if name in ("none", "best", "fuse")),
                *(peer(f"{name} f", [us]) for name, us in times.items()
                  if name in ("rawnn", "torch", "jax"))).write(tmp_path / file)
    asked = ("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--no-again")
    for more, hidden in (((), ["fuse"]), (("--all",), [])):
        lines = invoke(*asked, *more).output.splitlines()
        rows = [[cell.strip() for cell in line.split("\N{BOX DRAWINGS LIGHT VERTICAL}")[1:-1]]
                for line in lines if "(range)" in line]
        shown = {row[1].split()[0]: row for row in rows}
        assert list(shown) == [name for name in sides[0] if name not in hidden]
        for name, row in shown.items():
            quotient = f"{sides[1][name] / sides[0][name]:.3f}"
            assert row[2:6] == [quotient, f"{quotient} - {quotient} (range)", "", "1 | 1"]
        assert [shown[name][6] for name in ("none", "best", "rawnn", "torch", "jax")] == [
            "flagged", "faster", "flagged", "flagged", "faster"]
    text = " ".join(" ".join(lines).split())
    ours, peers = (2.0 * 0.5 * 1.01 * 4.0) ** 0.25, (3.0 * 0.25) ** 0.5
    assert f"all variants together: B / A = {ours:.3f} [" in text
    assert f"all of the peers' variants together: B / A = {peers:.3f} [" in text
    assert "2 flagged: slower by at least that, and not measured again" in text
    assert text.count("1 faster: faster by") == 2


@pytest.mark.parametrize(("a", "b", "said"), [
    ({}, {}, []), ({"clocks": LOCKED}, {"clocks": dict(LOCKED)}, []),
    ({}, {"clocks": LOCKED}, ["the clocks differ: A not locked, B sm 1980 MHz, mem 2619 MHz"]),
    ({"clocks": LOCKED}, {}, ["the clocks differ: A sm 1980 MHz, mem 2619 MHz, B not locked"]),
    ({"gpu": None, "device": "host"}, {}, [
        "the machines differ: A host (Linux x86_64), B Some GPU",
        "the drivers differ: A none, B 580.1"]),
    ({"gpu": {"name": "Some GPU", "driver": "590.2"}}, {},
     ["the drivers differ: A 590.2, B 580.1"])])
def test_what_differs_between_files_is_said_with_both_values(a: dict[str, Any], b: dict[str, Any],
                                                             said: list[str]) -> None:
    assert notes_of(*(Results(environments={"x": place(**each)}) for each in (a, b))) == said


SMALL = ("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--repeats", "2")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("kept") / "b.json"
    done = invoke("workloads", "--workload", "linear", "--opt", "none", "--opt", "fuse", *SMALL,
                  "--json", str(file))
    assert done.exit_code == 0, done.output
    return file


def faster(file: Path, target: Path, factor: float, variant: str = "") -> Path:
    """A file whose epochs, of one variant or of all, take so many times less."""
    found = read_results(file)
    found.records = [msgspec.structs.replace(r, samples=times(1 / factor, [min(r.samples)] * 2))
                     if r.metric == "epoch_ms" and variant in ("", r.variant) else r
                     for r in found.records]
    found.write(target)
    return target


def test_what_is_slower_again_is_slower(kept: Path, tmp_path: Path) -> None:
    before, said = faster(kept, tmp_path / "a.json", 100, "none"), tmp_path / "c.json"
    done = invoke("compare", str(before), str(kept), "--device", "host", "--json", str(said))
    assert done.exit_code == 1
    assert "are worse in" in str(done.exception)
    assert "workloads/linear, none" in str(done.exception)
    pairs = {p["variant"]: p for p in msgspec.json.decode(said.read_bytes())["pairs"]}
    assert pairs["none"]["verdict"] == "slower"
    assert pairs["none"]["again"]["samples"] == [8, 2]
    assert pairs["none"]["again"]["value"] > 10


def test_what_does_not_repeat_is_not_called_slower(kept: Path, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """As if something else had run beside B's runs: fresh ones are as fast as A's."""
    class Fast(Session):
        def run(self) -> Result:
            found = super().run()
            object.__setattr__(found, "average_epoch_ms", found.average_epoch_ms / 1000)
            return found

    monkeypatch.setattr(training, "Session", Fast)
    before = faster(kept, tmp_path / "a.json", 100)
    done = invoke("compare", str(before), str(kept), "--device", "host")
    assert done.exit_code == 0, done.output
    assert "2 not repeated: slower by at least that, but not when it was measured again" \
        in done.output


def test_what_cannot_be_measured_again_here_stays_flagged(kept: Path, tmp_path: Path) -> None:
    before = faster(kept, tmp_path / "a.json", 100)
    for options in (("--no-again",), ("--device", "sim")):
        done = invoke("compare", str(before), str(kept), *options)
        assert done.exit_code == 1
        assert "2 flagged: slower by at least that, and not measured again" in done.output
    assert "what is flagged is not measured again: B was measured on host" in done.output


def test_a_planted_slowdown_is_found_and_the_others_are_left_alone(
        kept: Path, tmp_path: Path) -> None:
    same = invoke("compare", str(kept), str(kept))
    assert same.exit_code == 0
    assert "2 same" in same.output
    two = tmp_path / "two"
    two.mkdir()
    faster(kept, two / "workloads.json", 3.0, "fuse")
    done = invoke("compare", str(two), str(kept), "--no-again", "--effect", "0.5")
    assert "1 of 2 variants are worse" in str(done.exception)


def test_a_rung_a_program_of_a_sample_and_an_ensemble_are_measured_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_networks, "ROUNDS", 1)
    monkeypatch.setattr(regressions, "ENOUGH", 2)
    monkeypatch.setattr(worker, "PATIENCE_S", worker.WARM_S)  # here, not in processes of peers
    small = ("--device", "host", "--json")
    ladder, sample, many = (tmp_path / f"{name}.json" for name in ("ladder", "sample", "many"))
    assert invoke("ladder", "--dataset", "synthetic", "--epochs", "1", "--repeats", "1", "--rungs",
                  "fuse", "--oracle", "off", *small, str(ladder)).exit_code == 0
    assert invoke("sample", "--n", "1", "--seed", "8", "--peer", "numpy", *small,
                  str(sample)).exit_code == 0
    assert invoke("many", "B", "--members", "16", "--peer", "numpy", *small, str(many)
                  ).exit_code == 0
    for file, metric in ((ladder, "epoch_ms"), (sample, "step_us"), (many, "step_us")):
        found = read_results(file)
        found.records = [msgspec.structs.replace(r, samples=times(1e-3, r.samples))
                         if r.metric == metric else r for r in found.records]
        found.write(tmp_path / "a.json")
        done = invoke("compare", str(tmp_path / "a.json"), str(file), "--device", "host")
        assert "slower by at least the smallest difference that counts, and again" in done.output
        assert "are worse in" in str(done.exception)


def test_a_program_is_timed_in_microseconds_of_a_step_as_before(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regressions, "dataset_of", lambda problem: None)
    monkeypatch.setattr(regressions, "Training",
                        lambda *given: SimpleNamespace(session=nullcontext()))
    monkeypatch.setattr(regressions, "timed",
                        lambda program: Timed(milliseconds=[6.4, 12.8]))
    problem: Any = SimpleNamespace(config=lambda form, device: None, steps=64)
    with standing() as harness:
        sample = regressions._timed(problem, "best", "host", None, harness, 0)  # type: ignore[arg-type]
    assert sample.metrics == {"step_us": [100.0, 200.0]}


@pytest.mark.parametrize("variant", ["fuse", "best"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_run_is_made_again_of_what_its_entry_says(monkeypatch: pytest.MonkeyPatch, variant: str,
                                                    on_gpu: bool) -> None:
    """A rung of a ladder with all the toggles up to it; sample by sample with the next seed."""
    configs: list[Any] = []
    monkeypatch.setattr(regressions, "load_dataset",
                        lambda name, *, notify, stand_in: name * stand_in)
    monkeypatch.setattr(regressions, "trained", lambda config, data, opened, watch: configs.append(
        (config, data)))
    opened = Opened(SimpleNamespace() if on_gpu else None, Machine("none"), 0.0)  # type: ignore[arg-type]
    shared = {"lr": 0.3, "epochs": 3, "dataset": "synthetic", "seed": 5}
    found = built.results(
        built.rung(variant, 10.0, notes=["said", "toggles: graphs,fuse"], **shared),
        built.entry("workloads/mlp4", variant, {"epoch_ms": [10.0]}, dataset="mnist", epochs=7,
                    seed=9))
    with standing() as harness:
        for suite in ("ladder", "workloads"):
            [entry] = found.entries(suite)
            take = regressions._training(entry, opened, harness)
            for number in range(2):
                take(number)
    for number, (config, data) in enumerate(configs[:2]):
        assert (config.opt, config.seed) == ("best" if variant == "best" else "none,graphs,fuse",
                                             5 + number)
        assert (data, config.dataset, config.epochs, config.lr) == (
            "synthetic", "synthetic", 3, 0.3)
        assert tuple(config.layers) == (784, 10)
    for number, (config, data) in enumerate(configs[2:]):
        assert (config.opt, config.seed) == (variant, workload("mlp4").get("seed", 0) + number)
        assert (data, config.dataset, config.epochs) == ("mnist", "mnist", 7)
        assert tuple(config.layers) == tuple(workload("mlp4")["layers"])
    assert {config.device for config, _ in configs} == {"auto" if on_gpu else "host"}


def test_a_pair_is_named_by_what_it_is() -> None:
    assert Pair("toggles/linear", "best", "bf16", "same").name == "toggles/linear, best (bf16)"


@pytest.mark.parametrize("slower", [1, 2, 3, 4, 6])
def test_three_variants_that_are_worse_are_named_and_the_rest_is_counted(tmp_path: Path,
                                                                        slower: int) -> None:
    names = [f"rung{n}" for n in range(7)]
    for file, factor in (("a.json", 1.0), ("b.json", 2.0)):
        results(*(record(name, [10.0 * (factor if n < slower else 1.0)] * 3)
                  for n, name in enumerate(names))).write(tmp_path / file)
    done = invoke("compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--no-again")
    named = "; ".join(f"toggles/linear, {name} (float32)" for name in names[:min(slower, 3)])
    more = f" and {slower - 3} more" if slower > 3 else ""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    assert str(done.exception) == (f"{slower} of 7 variants are worse in {b} than in {a}: "
                                   f"{named}{more}")
