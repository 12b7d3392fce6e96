"""The commands that compare systems."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rawnn.bench.peers.lanes import Lanes, Prepared
from rawnn.bench.peers.system_comparison import finite_losses
from rawnn.bench.peers.training_problem import Problem
from rawnn.bench.peers.worker import Timed
from rawnn.bench.record import read_results
from tests.bench import built
from tests.bench.measuring import invoke


def test_the_headline_command_and_its_old_spelling(tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine one form may look slower than another, which then lacks further turns.
    monkeypatch.setattr("rawnn.bench.peers.system_comparison.FAR_SLOWER", 1e9)
    kept, table = tmp_path / "r.json", tmp_path / "r.md"
    done = invoke("random", "--peers", "--n", "1", "--seed", "2", "--device", "host", "--peer",
                  "numpy", "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    for words in ("seed 2", "float32 against true float32"):
        assert words in done.output
    found = read_results(kept)
    assert {e.case for e in found.entries()} == {"sample/2"}
    assert "float32 against true float32" in table.read_text()
    before = kept.read_bytes()
    again = invoke("sample", "--device", "host", "--peer", "numpy", "--resume", str(kept))
    assert again.exit_code == 0, again.output
    assert read_results(kept) == found
    assert kept.read_bytes() == before


def test_parts_are_merged_by_a_command(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{n}.json") for n in (1, 2)]
    for number, file in enumerate(files, 1):
        done = invoke("sample", "--n", "2", "--seed", "2", "--device", "host", "--peer", "numpy",
                      "--part", f"{number}/2", "--json", file)
        assert done.exit_code == 0, done.output
    whole = tmp_path / "whole.json"
    done = invoke("merge", *files, "--json", str(whole))
    assert done.exit_code == 0, done.output
    assert read_results(whole).is_whole("sample")
    twice = invoke("merge", files[0], files[0], "--json", str(whole))
    assert "a second time" in str(twice.exception)


@pytest.mark.parametrize(("theirs", "words"), [
    ({"numpy": "2", "torch": "2.9"}, ""), ({"torch": "2.9"}, ""),
    ({"numpy": "3", "torch": "2.9"}, "the libraries of the one are numpy 2, of the other numpy 3")])
def test_files_that_name_other_libraries_are_merged_unless_a_version_differs(
        theirs: dict[str, str], words: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    other = replace(built.place(date="2026-01-02"), libraries=theirs)
    for file, name, where in zip(files, ("1", "2"), (built.place(), other), strict=True):
        times = {("rawnn", "float32"): 1.0}
        built.results(built.programs(f"sample/{name}", times, where=where),
                      places=[where]).write(file)
    for order in (files, files[::-1]):
        done = invoke("merge", *map(str, order), "--json", str(tmp_path / "whole.json"))
        if words:
            assert "do not belong together: the libraries" in str(done.exception)
        else:
            assert done.exit_code == 0, done.output
            assert len(read_results(tmp_path / "whole.json").entries("sample")) == 2
    if words:
        assert words in str(invoke("merge", *map(str, files), "--json",
                                   str(tmp_path / "w.json")).exception)


@pytest.mark.parametrize(("changed", "words"), [
    ({}, ""), ({"commit": "fed4321"}, "the commit of the one is abc1234def, of the other fed4321"),
    ({"commit": ""}, "the commit of the one is abc1234def, of the other unknown"),
    ({"gpu": {**built.GPU, "name": "Other"}},
     "the GPU of the one is NVIDIA Test GPU, of the other Other"),
    ({"gpu": {**built.GPU, "driver": "590"}},
     "the driver of the one is 580.1, of the other 590")])
def test_files_of_other_commits_gpus_and_drivers_do_not_belong_together(
        changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    other = replace(built.place(date="2026-01-02"), **changed)
    for file, name, where in zip(files, "12", (built.place(), other), strict=True):
        built.results(built.programs(f"sample/{name}", {("rawnn", "float32"): 1.0}, where=where),
                      places=[where]).write(file)
    page = tmp_path / "whole.md"
    done = invoke("merge", *map(str, files), "--json", str(tmp_path / "whole.json"), "--markdown",
                  str(page))
    if words:
        assert str(done.exception) == f"{files[0]} and {files[1]} do not belong together: {words}"
        assert not (tmp_path / "whole.json").exists()
    else:
        assert done.exit_code == 0, done.output
        assert all(f"seed {n}" in page.read_text() for n in (1, 2))


def test_workloads_beside_numpy(tmp_path: Path) -> None:
    kept = tmp_path / "p.json"
    done = invoke("peers", "--workload", "linear", "--dataset", "synthetic", "--device", "host",
                  "--peer", "numpy", "--steps", "4", "--json", str(kept), "--markdown",
                  str(tmp_path / "p.md"))
    assert done.exit_code == 0, done.output
    entries = read_results(kept).entries("peers")
    assert [e.conditions["system"] for e in entries] == ["rawnn", "numpy"]
    assert all((e.median("loss_error") or 0) <= 1 for e in entries)
    assert "linear" in (tmp_path / "p.md").read_text()


def test_a_sweep_on_the_host(tmp_path: Path) -> None:
    own, kept = tmp_path / "own.toml", tmp_path / "s.json"
    own.write_text("[[sweep]]\nname='tiny'\nlayers=['12-8-4', '12-16-4']\nbatches=[4]\n"
                   "sets=['float32:best']\nsteps=4\n")
    done = invoke("sweep", "tiny", "--bench", str(own), "--device", "host", "--peer", "numpy",
                  "--json", str(kept))
    assert done.exit_code == 0, done.output
    found = read_results(kept).entries("sweep")
    assert [e.case for e in found[::2]] == ["sweep/tiny 12-8-4 batch 4",
                                            "sweep/tiny 12-16-4 batch 4"]
    assert [e.conditions["layers"] for e in found[::2]] == [[12, 8, 4], [12, 16, 4]]
    wrong = invoke("sweep", "tany", "--bench", str(own))
    assert "did you mean 'tiny'" in str(wrong.exception)


def test_curves_lie_on_top_of_each_other(tmp_path: Path) -> None:
    kept = tmp_path / "c.json"
    done = invoke("curves", "--workload", "linear", "--steps", "10", "--peer", "numpy",
                  "--dataset", "synthetic", "--device", "host", "--json", str(kept))
    assert done.exit_code == 0, done.output
    found = read_results(kept).entries("curves")
    assert {e.conditions["system"]: len(e.samples("loss")) for e in found} == {"rawnn": 10,
                                                                               "numpy": 10}
    assert all((e.median("loss_error") or 0) < 0.1 for e in found)
    assert all(len(e.samples("step_us")) == 4 for e in found)


def test_curves_that_are_there_outlive_sigterm(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the first network is timed, when the second has all its losses, too."""
    def time(*arguments: object) -> object:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError

    monkeypatch.setattr(Prepared, "time", time)
    kept = tmp_path / "c.json"
    done = invoke("curves", "--workload", "linear", "--workload", "wide128", "--steps", "4",
                  "--peer", "numpy", "--dataset", "synthetic", "--device", "host", "--json",
                  str(kept))
    assert done.exit_code == 128 + signal.SIGTERM, done.output
    found = read_results(kept)
    assert found.ended == {"curves": "it was interrupted"}
    assert {(e.case, e.conditions["system"]): len(e.samples("loss")) for e in found.entries()} == {
        (f"curves/{name}", system): 4 for name in ("linear", "wide128")
        for system in ("rawnn", "numpy")}


def test_curves_of_networks_that_all_systems_have_trained_outlive_ctrl_c(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the second network is trained; the first is the larger one."""
    prepare = Lanes.prepare

    def interrupted(lanes: Lanes, problems: Sequence[Problem], *more: Any) -> Any:
        prepare(lanes, problems[:1], *more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Lanes, "prepare", interrupted)
    kept = tmp_path / "c.json"
    done = invoke("curves", "--workload", "linear", "--workload", "wide128", "--steps", "4",
                  "--peer", "numpy", "--dataset", "synthetic", "--device", "host", "--json",
                  str(kept))
    assert done.exit_code == 1, done.output
    assert "Aborted!" in done.output
    found = read_results(kept)
    assert found.ended == {"curves": "it was interrupted"}
    assert {(e.case, e.status): len(e.samples("loss")) for e in found.entries()} == {
        ("curves/wide128", "measured"): 4, ("curves/linear", "not measured"): 0}


def test_a_loss_that_is_not_finite_ends_its_curve() -> None:
    assert finite_losses([2.0, 1.0, None, 3.0]) == [2.0, 1.0]
    assert finite_losses([2.0, float("nan"), 1.0]) == [2.0]


@pytest.mark.parametrize(("arguments", "words"), [
    (("random", "--peers", "--peer", "tarch"), "did you mean 'torch'"),
    (("random", "--peers", "--work", "5"), "No such option '--work'"),
    (("random", "--budget", "5"), "No such option '--budget'"),
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


def test_versions_of_a_system_that_is_lost_while_it_is_timed_are_kept(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(prepared: Prepared, program: int, patience: float) -> Timed:
        prepared.reason = "lost"
        prepared.lane.renew()
        return Timed(reason="lost")

    monkeypatch.setattr(Prepared, "time", lose)
    kept = tmp_path / "c.json"
    invoke("curves", "--workload", "linear", "--steps", "10", "--peer", "numpy", "--dataset",
           "synthetic", "--device", "host", "--json", str(kept))
    found = read_results(kept)
    assert {"rawnn", "numpy"} <= set(found.place(found.entries("curves")[0]).libraries)
