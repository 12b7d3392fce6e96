"""`bench many`: what it asks for, its forms, and small ensembles on the simulated GPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rawnn.bench.cases import many_networks as many
from rawnn.bench.cases.many_networks import forms_of, named, sampled_named, wanted_of
from rawnn.bench.record import read_results
from rawnn.bench.render.networks import PRECISIONS
from rawnn.bench.suites import read_suites
from rawnn.common.errors import ConfigError
from tests import requires
from tests.bench.measuring import invoke
from tests.slices import sliced

SUITE = read_suites().many


def test_everything_is_asked_for_unless_some_is_named() -> None:
    whole = wanted_of((), SUITE.members, 30, 0, SUITE)
    assert len(whole) == 4 * 4 + 30
    assert [p.name for p in whole[:5]] == ["A/1056", "B/1056", "C/1056", "D/1056", "A/16"]
    some = wanted_of(("sampled", "C"), (16,), 2, 7, SUITE)
    assert [p.name for p in some] == ["C/16", "sampled/7", "sampled/8"]
    with pytest.raises(ConfigError, match="did you mean 'sampled'"):
        wanted_of(("sample",), (16,), 2, 7, SUITE)


def test_named_ensembles_are_those_that_are_published() -> None:
    found = {e.name: named(e.name, 1056, SUITE) for e in SUITE.ensembles}
    assert {name: (p.layers, p.batch, p.loss, p.optimizer) for name, p in found.items()} == {
        "A": ((20, 64, 64, 3), 32, "cross_entropy", "adam"),
        "B": ((8, 32, 32, 1), 64, "mse", "sgd"),
        "C": ((784, 128, 10), 128, "cross_entropy", "sgd"),
        "D": ((54, 128, 64, 7), 128, "cross_entropy", "adam")}
    assert all(p.members == 1056 for p in found.values())


def test_tf32_has_every_form_of_jax_and_others_fewer() -> None:
    some = [named("A", 16, SUITE), named("A", 1056, SUITE), *map(sampled_named, range(30))]
    forms = forms_of(some, PRECISIONS, "gpu")
    few, every = forms(some[0], "jax"), forms(some[1], "jax")
    assert [f for f in few if f.startswith("tf32")] == [f"tf32:{form}" for form in many.JAX]
    assert Counter(f.partition(":")[0] for f in few) == {"tf32": 6, "bf16": 2}
    assert set(every) - set(few) == {"float32:scan"}
    assert len(forms(some[0], "torch")) == 3
    assert len(forms(some[1], "torch")) == 9
    assert sum("float32:scan" in forms(p, "jax") for p in some[2:]) == 5
    alone = forms_of(some, ("float32",), "gpu")
    assert (alone(some[0], "jax"), alone(some[0], "rawnn")) == (["float32:scan"], ["float32:best"])


def test_forms_are_those_that_the_systems_have() -> None:
    requires.module("jax")
    from rawnn.bench.peers import jax_many

    assert set(many.JAX) == set(jax_many.FORMS)


def test_forms_of_torch_are_those_that_it_has() -> None:
    requires.module("torch")
    from rawnn.bench.peers import torch_many

    assert many.TORCH == torch_many.FORMS


@pytest.mark.parametrize("device", sliced(["host", "sim"]))
def test_ensembles_without_a_gpu_are_gone_on_with(device: str, tmp_path: Path) -> None:
    kept = tmp_path / "m.json"
    first = invoke("many", "A", "sampled", "--members", "16", "--count", "1", "--part", "1/2",
                   "--precision", "float32", "--device", device, "--peer", "numpy", "--json",
                   str(kept), "--markdown", str(tmp_path / "m.md"))
    assert first.exit_code == 0, first.output
    found = read_results(kept)
    mine, other, left = found.entries("many")
    assert [(e.case, e.variant, e.status) for e in (mine, other, left)] == [
        ("many/A/16", "rawnn best", "measured"), ("many/A/16", "numpy stacked", "measured"),
        ("many/sampled/0", "rawnn", "not measured")]
    assert mine.conditions["members"] == 5  # of 16, as there is no GPU
    for entry in (mine, other):
        assert len(entry.samples("step_us")) >= 8
        assert (entry.median("loss_error") or 1) < 0.1
    assert (mine.median("call_s") or 0) > 0
    assert "wall clock" in found.place(mine).timer["step_us"]
    assert "Named ensembles" in (tmp_path / "m.md").read_text()
    again = invoke("many", "--device", device, "--peer", "numpy", "--precision", "float32",
                   "--resume", str(kept), "--part", "1/1")
    assert again.exit_code == 0, again.output
    whole = read_results(kept)
    assert whole.is_whole("many")
    assert whole.where("many", case="many/A/16") == found.where("many", case="many/A/16")


def test_an_ensemble_that_ours_gets_wrong_is_a_failure(tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawnn.bench.peers.system_comparison.checker",
                        lambda problem, programs: lambda program: 1.5)
    monkeypatch.setattr(many, "ROUNDS", 1)
    done = invoke("many", "B", "--members", "16", "--precision", "float32", "--device", "host",
                  "--peer", "numpy", "--json", str(tmp_path / "m.json"))
    assert "was wrong in 1 of 1 network (B/16)" in str(done.exception)
    entries = read_results(tmp_path / "m.json").entries("many")
    assert {e.reason for e in entries} == {"its losses are off by 1.5 times the tolerance"}


def test_versions_of_all_systems_are_kept_where_each_problem_has_new_processes(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "is_large", lambda problem: True)
    monkeypatch.setattr(many, "ROUNDS", 1)
    kept = tmp_path / "m.json"
    done = invoke("many", "A", "--members", "16", "--precision", "float32", "--device", "host",
                  "--peer", "numpy", "--json", str(kept))
    assert done.exit_code == 0, done.output
    found = read_results(kept)
    for entry in found.entries("many"):
        assert {"rawnn", "numpy"} <= set(found.place(entry).libraries)
