"""bench.toml and what is made of it: ablations, sweeps, loss curves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from rawnn.bench.ablation import Ablated, ablated, ablated_in, ablation_sets, markdown, rows
from rawnn.bench.curves import read_curves
from rawnn.bench.ladder import BASE, DEFAULT_RUNGS, check_rungs
from rawnn.bench.peers.arrange import swept
from rawnn.bench.peers.records import read_contests
from rawnn.bench.records import GPU_TIMER, read_ladder
from rawnn.bench.sets import Measurement, SetsResult, read_sets
from rawnn.bench.statistics import spread
from rawnn.bench.suites import read_suites, schema
from rawnn.cli.bench import bench
from rawnn.cli.report import SUITES
from rawnn.common.errors import ConfigError
from rawnn.engine.result import Environment
from rawnn.model.workloads import workload
from tests.bench.conftest import GPU
from tests.engine import CAPABLE

PLACE = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda", GPU, {"numpy": "2"}, {}, "")


def test_the_packaged_suites_mean_something() -> None:
    suites = read_suites()
    assert (tuple(suites.ladder.base), tuple(suites.ladder.rungs)) == (BASE, DEFAULT_RUNGS)
    check_rungs(suites.ladder.rungs)
    for name in (*suites.workloads.names, *suites.peers.names, *suites.curves.names):
        workload(name)
    for suite in suites.ablation:
        assert ablated(suite, CAPABLE)
    assert sum(len(swept(s)) for s in suites.sweep) == 12
    assert set(suites.all.suites) == {*SUITES} - {"random"}


def own(tmp_path: Path, text: str) -> str:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return str(file)


def test_what_a_users_file_leaves_out_stays(tmp_path: Path) -> None:
    suites = read_suites(own(tmp_path, "[ladder]\nrepeats = 2\n[random]\nn = 5\n"))
    assert suites.ladder.repeats == 2
    assert suites.ladder.rungs == read_suites().ladder.rungs
    assert (suites.random.n, suites.random.seed) == (5, read_suites().random.seed)


@pytest.mark.parametrize(("text", "words"), [
    ("[ladder]\nrepeat = 2\n", r"unknown key 'repeat' in \[ladder\]; did you mean 'repeats'"),
    ("[laddr]\nrepeats = 2\n", "unknown key 'laddr'; did you mean 'ladder'"),
    ("[[sweep]]\nname='a'\nlayers=[]\nbatches=[1]\nsets=[]\nstep=1\n", "did you mean 'steps'"),
    ("[ladder]\nrepeats = 0\n", "Expected `int` >= 1"),
    ("[ladder\n", "is not valid TOML"),
])
def test_what_means_nothing_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_suites(own(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the suites"):
        read_suites(str(tmp_path / "none.toml"))


def test_every_key_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()
    keys = {key for table in schema()["$defs"].values() for key in table["properties"]}
    assert {"ladder", "rungs", "compare", "beside"} <= keys
    for key in keys:
        assert f"`{key}`" in page, key


def test_an_ablation_measures_each_toggle_alone_and_in_the_set() -> None:
    suite = read_suites().ablation[0]
    toggles = ablated(suite, CAPABLE)
    words = {t.toggle.partition("=")[0] for t in toggles}
    assert "fuse" in words
    assert not words & {"preload", "arena"}
    sets = ablation_sets(toggles)
    assert len(sets) == len(set(sets)) == 2 + 2 * len(toggles)
    assert ("linear", "best,-fuse") in sets
    assert ("linear", "preload,arena,fuse") in sets


def measured(opt: str, *times: float, reason: str = "") -> Measurement:
    return Measurement(workload="linear", opt=opt, epochs=1, reason=reason,
                       epoch_ms=spread(times) if times else None, times_ms=list(times),
                       accuracies=[0.9] * len(times))


def test_the_interaction_is_the_worth_in_the_set_over_that_alone() -> None:
    toggle = Ablated(workload="linear", toggle="fuse", base="preload", full="best")
    other = Ablated(workload="linear", toggle="pdl", base="preload", full="best")
    result = SetsResult(
        kind="ablation", repeats=2, environment=PLACE, dataset="mnist", synthetic=False,
        timer=GPU_TIMER, measurements=[
            measured("preload", 8.0, 8.1), measured("best", 1.0, 1.01),
            measured("preload,fuse", 4.0, 4.1), measured("best,-fuse", 3.0, 3.1),
            measured("preload,pdl", reason="pdl needs graphs"), measured("best,-pdl", 1.0, 1.02)])
    assert ablated_in(result) == [toggle, other]
    fuse, pdl = rows([toggle, other], result)
    assert fuse == ("linear", "fuse", "1.99 x", "3.03 x", "1.53", "")
    assert pdl == ("linear", "pdl", "cannot run: pdl needs graphs", "1.00 x, in the noise", "", "")
    assert "| `linear` | `fuse` | 1.99 x |" in markdown(result)


def test_an_ablation_without_a_gpu_is_refused() -> None:
    done = CliRunner().invoke(bench, ["ablation", "--device", "host"])
    assert isinstance(done.exception, ConfigError)
    assert "on a GPU only" in str(done.exception)


def test_a_sweep_on_the_host(tmp_path: Path) -> None:
    file = own(tmp_path, "[[sweep]]\nname='tiny'\nlayers=['12-8-4', '12-16-4']\nbatches=[4]\n"
                         "sets=['float32:best']\nsteps=4\n")
    kept = tmp_path / "s.json"
    done = CliRunner().invoke(bench, ["sweep", "tiny", "--bench", file, "--device", "host",
                                      "--peer", "numpy", "--json", str(kept), "--markdown",
                                      str(tmp_path / "s.md")])
    assert done.exit_code == 0, done.output
    found = read_contests(kept)
    assert [c.problem.layers for c in found.contests] == [(12, 8, 4), (12, 16, 4)]
    assert all(e.status == "measured" for c in found.contests for e in c.entries)
    wrong = CliRunner().invoke(bench, ["sweep", "tany", "--bench", file])
    assert "did you mean 'tiny'" in str(wrong.exception)


def test_curves_lie_on_top_of_each_other(tmp_path: Path) -> None:
    kept = tmp_path / "c.json"
    done = CliRunner().invoke(bench, ["curves", "--workload", "linear", "--steps", "10", "--peer",
                                      "numpy", "--dataset", "synthetic", "--device", "host",
                                      "--json", str(kept)])
    assert done.exit_code == 0, done.output
    found = read_curves(kept)
    assert {c.system: len(c.losses) for c in found.curves} == {"rawnn": 10, "numpy": 10}
    assert all(c.error is not None and c.error < 0.1 for c in found.curves)
    assert all(len(c.us) == 4 and min(c.us) > 0 for c in found.curves)
    assert [(p.name, p.weights) for p in found.problems] == [("linear", 7840)]


def test_curves_that_are_there_outlive_sigterm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                               ) -> None:
    """It comes while the first network is timed, when the second has all its losses, too."""
    def timed(*arguments: object) -> list[float]:
        signal.raise_signal(signal.SIGTERM)
        return []

    monkeypatch.setattr("rawnn.bench.curves._timed", timed)
    kept = tmp_path / "c.json"
    done = CliRunner().invoke(bench, ["curves", "--workload", "linear", "--workload", "wide128",
                                      "--steps", "4", "--peer", "numpy", "--dataset", "synthetic",
                                      "--device", "host", "--json", str(kept)])
    assert done.exit_code == 128 + signal.SIGTERM, done.output
    found = read_curves(kept)
    assert found.interrupted
    assert {(c.workload, c.system): len(c.losses) for c in found.curves} == {
        (name, system): 4 for name in ("linear", "wide128") for system in ("rawnn", "numpy")}
    assert "first loss" in done.output


@pytest.mark.parametrize(("text", "said"), [
    ("[toggles.compare]\nfuze = []",
     r"\[toggles.compare\]: no toggle is called 'fuze'; did you mean 'fuse'"),
    ('[toggles.compare]\nfuse = [{workloads = ["linear"], besides = "x"}]',
     r"unknown key 'besides' in \[toggles.compare.*\]; did you mean 'beside'"),
    ('[toggles.compare]\nfuse = [{workloads = ["mpl4"], beside = "x"}]', "did you mean 'mlp4'"),
    ('[workloads]\nnames = ["linea"]', r"\[workloads\]: unknown workload 'linea'; did you mean"),
    ('[workloads.sets]\nlinaer = ["best"]', r"\[workloads.sets\]: unknown workload 'linaer'"),
    ("[floors]\nsample = 3", "did you mean 'samples'"), ("[floor]\nsamples = 3", "mean 'floors'")])
def test_names_that_mean_nothing_are_refused_with_the_nearest(tmp_path: Path, text: str,
                                                              said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_suites(own(tmp_path, text))


def test_a_file_of_ones_own_says_what_a_ladder_and_sets_are(tmp_path: Path) -> None:
    """Its base and rungs, its workloads and sets, and how often."""
    file = own(tmp_path, """
[ladder]
base = ["preload"]
rungs = ["fuse"]
repeats = 1
[workloads]
names = ["linear"]
repeats = 1
[workloads.sets]
linear = ["none,fuse"]
[toggles]
repeats = 1
[toggles.compare]
fuse = [{ workloads = ["linear"], beside = "none" }]
""")
    short = ["--bench", file, "--epochs", "1", "--dataset", "synthetic", "--device", "host"]
    ladder = CliRunner().invoke(bench, ["ladder", *short[:-1], "sim", "--batch", "2000", "--json",
                                        str(tmp_path / "l.json")])
    assert ladder.exit_code == 0, ladder.output
    found = read_ladder(tmp_path / "l.json")
    assert [(r.name, r.opt) for r in found.rungs] == [
        ("baseline", "none,preload"), ("fuse", "none,preload,fuse")]
    assert found.repeats == 1
    sets = CliRunner().invoke(bench, ["workloads", *short, "--json", str(tmp_path / "w.json")])
    assert sets.exit_code == 0, sets.output
    assert [(m.workload, m.opt) for m in read_sets(tmp_path / "w.json").measurements] == [
        ("linear", "none,fuse")]
    toggles = CliRunner().invoke(bench, ["toggles", "fuse", *short, "--json",
                                         str(tmp_path / "t.json")])
    assert toggles.exit_code == 0, toggles.output
    assert "with fuse" in toggles.output
    shown = CliRunner().invoke(bench, ["show", str(tmp_path / "t.json"), "--bench", file])
    assert "with fuse" in shown.output


def test_what_is_asked_for_on_the_command_line_counts_first(tmp_path: Path) -> None:
    file = own(tmp_path, '[ladder]\nrungs = ["fuse"]\nrepeats = 2\n')
    CliRunner().invoke(bench, [
        "ladder", "--bench", file, "--rungs", "nosync", "--repeats", "1", "--epochs", "1",
        "--batch", "2000", "--dataset", "synthetic", "--device", "sim", "--json",
        str(tmp_path / "l.json")])
    found = read_ladder(tmp_path / "l.json")
    assert [r.name for r in found.rungs] == ["baseline", "nosync"]
    assert found.repeats == 1
