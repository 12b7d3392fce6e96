"""Sweeps: every variant that is allowed, checked, timed and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.lab import Work, sweeping
from rawnn.lab.sweeping import Variant
from rawnn.sim import register
from tests.lab.cheats import SHAPES

SOURCE = """
__global__ void lab_swept(const float* x, float* y, int n) {
    for (int i = blockIdx.x * TILE + threadIdx.x; i < n; i += gridDim.x * TILE) y[i] = 2 * x[i];
}
"""
GIVEN: dict[str, Any] = {"reference": lambda x: 2 * x, "grid": "cdiv(n, TILE)", "block": "TILE",
                         "sizes": {"n": "1..500"}, "samples": 2}


def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
    np.multiply(t.x, 2, out=t.y)


@pytest.fixture
def kernel(device: Device) -> rawnn.Kernel:
    register("lab_swept", meaning, SHAPES, reads=("x",), writes=("y",))
    return rawnn.Kernel(SOURCE, "lab_swept", defines={"TILE": 32}, device=device)


def test_all_variants(kernel: rawnn.Kernel) -> None:
    received: list[Variant] = []
    found = rawnn.sweep(kernel, {"TILE": [32, 64, 128, 2048], "shared": [0, 1024]},
                        restrict=["TILE * 2 + shared < 4096 + 1024", lambda p: p["TILE"] != 64],
                        tell=received.append, **GIVEN)
    tried = [(v.parameters["TILE"], v.parameters["shared"]) for v in received]
    assert tried == [(32, 0), (32, 1024), (128, 0), (128, 1024), (2048, 0)]
    assert found.allowed == 5
    assert "a block (2048, 1, 1) has 2,048 threads" in found.variants[-1].failure
    assert [v.cold is not None for v in found.variants] == [True] * 4 + [False]
    assert found.best.cold is not None
    made, work = found.made()
    assert made.defines["TILE"] == found.best.parameters["TILE"]
    assert work.shared == found.best.parameters["shared"]
    for part in ("5 of 5 variants tried, 4 right", "TILE=32 shared=", "slowest: "):
        assert part in str(found)


def test_a_budget_draws(kernel: rawnn.Kernel) -> None:
    def drawn(seed: int) -> list[Any]:
        received: list[Variant] = []
        rawnn.sweep(kernel, {"TILE": list(range(32, 320, 32))}, budget=3, seed=seed,
                    tell=received.append, **GIVEN)
        return [v.parameters["TILE"] for v in received]

    first = drawn(1)
    assert len(set(first)) == 3
    assert drawn(1) == first
    assert drawn(2) != first


def test_a_sweep_goes_on_from_its_file(kernel: rawnn.Kernel, tmp_path: Path) -> None:
    file, received = tmp_path / "sweep.jsonl", []
    first = rawnn.sweep(kernel, {"TILE": [32, 64]}, resume=file, **GIVEN)
    assert first.earlier == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["parameters"]["TILE"] for line in lines] == [32, 64]
    count = kernel.device.compiled
    again = rawnn.sweep(kernel, {"TILE": [32, 64]}, resume=file, tell=received.append, **GIVEN)
    assert (again.earlier, kernel.device.compiled) == (2, count)
    assert [v.cold for v in received] == [line["cold"] for line in lines]
    more = rawnn.sweep(kernel, {"TILE": [32, 64, 96]}, resume=file, **GIVEN)
    assert (more.earlier, len(more.variants)) == (2, 3)
    other = rawnn.sweep(kernel, {"TILE": [32]}, resume=file, **{**GIVEN, "sizes": {"n": 7}})
    assert other.earlier == 0
    file.write_text("nonsense\n")
    with pytest.raises(ConfigError, match=r"sweep\.jsonl, line 1, is none of a sweep's"):
        rawnn.sweep(kernel, {"TILE": [32]}, resume=file, **GIVEN)


def test_a_wrong_variant_is_never_the_fastest(device: Device) -> None:
    def where_it_is_timed(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        if a["n"] == 500:
            meaning(t, a)

    kernel = rawnn.Kernel(SOURCE, "lab_swept", defines={"TILE": 32}, device=device)
    register("lab_swept", where_it_is_timed, SHAPES, reads=("x",), writes=("y",))
    found = rawnn.sweep(kernel, {"TILE": [32, 64]}, **GIVEN)
    assert all(v.failure.startswith("CheckFailed: ") for v in found.variants)
    for nothing in (found, replace(found, variants=())):
        with pytest.raises(ConfigError, match="no variant of lab_swept is right"):
            _ = nothing.best


@pytest.mark.parametrize(("parameters", "changes", "sentence"), [
    ({"TILE": []}, {}, "TILE = []: give a list"), ({"TILE": "64"}, {}, "give a list"),
    ({"TILE": [64]}, {"restrict": ["TILE > 64"]}, "no variant meets"),
    ({"TILE": [64, 128]}, {"budget": 0}, "give a number of variants"),
    ({"TILE": [64, 128]}, {"budget": 1.5}, "budget = 1.5: give a number of variants"),
    ({"TILE": [64, 128]}, {"restrict": "TILE > 500"}, "no variant meets restrict"),
    ({"TILE": [64, 128]}, {"samples": 0}, "samples = 0: give a whole number of at least 2"),
    ({"TILE": [64, 128]}, {"seed": "a"}, "seed = 'a': give a whole number"),
    ({"TILE": [64, 128]}, {"resume": "/nowhere/x"}, "resume /nowhere/x: there is no directory"),
    ({"TILE": [64, 128]}, {"resume": "/"}, "resume /: that is a directory"),
    ({"TILE": [64]}, {"restrict": ["WIDTH > 64"]}, "asks for 'WIDTH'"),
])
def test_what_does_not_fit(kernel: rawnn.Kernel, parameters: Any, changes: Any,
                           sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rawnn.sweep(kernel, parameters, **{**GIVEN, **changes})
    assert sentence in str(caught.value)


def test_the_fastest_three_are_timed_again(kernel: rawnn.Kernel, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    """With other inputs; the others keep their times."""
    asked: list[tuple[int, int]] = []

    def tried(kernel: Any, work: Any, parameters: Any, sizes: Any, samples: int, seed: int,
              limit: Any) -> Variant:
        tile = parameters["TILE"]
        asked.append((tile, seed))
        return Variant(parameters, tile + 100.0 * (seed == 8), 0.0, 0.0, 1.0)

    monkeypatch.setattr(sweeping, "_tried", tried)
    found = rawnn.sweep(kernel, {"TILE": [160, 64, 128, 32, 96]}, seed=7, **GIVEN)
    assert asked[5:] == [(32, 8), (64, 8), (96, 8)]
    assert [v.cold for v in found.variants] == [128, 132, 160, 164, 196]
    assert found.best.parameters == {"TILE": 128}


def test_a_variant_has_its_figures_by_name(kernel: rawnn.Kernel, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    times = SimpleNamespace(cold=SimpleNamespace(median=3.0, low=2.0, high=5.0),
                            warm=SimpleNamespace(median=1.0), fraction=0.5)
    monkeypatch.setattr(sweeping, "time", lambda *given, **named: times)
    (found,) = rawnn.sweep(kernel, {"TILE": [64]}, **GIVEN).variants
    assert found == Variant({"TILE": 64}, 3.0, 2.0, 5.0, 1.0, 0.5)
    assert str(found) == "TILE=64: 3.00 us (2.00-5.00), warm 1.00 us, 50% of the limit"


@pytest.mark.parametrize(("budget", "variants"), [(None, 2), (1, 1), (2, 2), (3, 2)])
def test_what_is_asked_of_a_sweep_reaches_its_checks_and_times(
        kernel: rawnn.Kernel, monkeypatch: pytest.MonkeyPatch, budget: int | None, variants: int
        ) -> None:
    times = SimpleNamespace(cold=SimpleNamespace(median=3.0, low=2.0, high=5.0),
                            warm=SimpleNamespace(median=1.0), fraction=0.5)
    asked: list[Any] = []
    monkeypatch.setattr(sweeping, "time", lambda kernel, work, **how: asked.append(how) or times)
    monkeypatch.setattr(sweeping, "check", lambda kernel, work, **how: asked.append(how) or
                        SimpleNamespace(require=lambda: None))
    rounds = [[{"trials": 4, "seed": seed, "limit": 9.0},
               {"at": {"n": 77}, "samples": 3, "seed": seed, "limit": 9.0}] for seed in (5, 6)]
    found = rawnn.sweep(kernel, {"TILE": [64, 128]}, budget=budget, seed=5, limit=9.0,
                        at={"n": 77}, **GIVEN | {"samples": 3})
    assert asked == rounds[0] * variants + rounds[1] * (variants if variants > 1 else 0)
    assert (len(found.variants), found.allowed) == (variants, 2)


def test_a_file_is_of_one_text_gpu_and_set_of_sizes(kernel: rawnn.Kernel) -> None:
    work = Work(reference=GIVEN["reference"], grid=1, block=32)
    first = sweeping._fingerprint(kernel, work, {"n": 100})
    assert sweeping._fingerprint(kernel, work, {"n": 100}) == first

    def altered(**more: Any) -> Any:
        source = {name: getattr(kernel.source, name)
                  for name in ("text", "options", "preamble", "arch")}
        gpu = more.pop("gpu", kernel.device.info.name)
        expression = more.pop("expression", kernel.expression)
        return SimpleNamespace(source=SimpleNamespace(**source | more), expression=expression,
                               device=SimpleNamespace(info=SimpleNamespace(name=gpu)))

    assert sweeping._fingerprint(altered(), work, {"n": 100}) == first
    others = [sweeping._fingerprint(altered(**{name: "other"}), work, {"n": 100}) for name in (
        "text", "options", "preamble", "arch", "gpu", "expression")]
    others += [sweeping._fingerprint(kernel, work, {"n": 101}),
               sweeping._fingerprint(kernel, replace(work, block=64), {"n": 100})]
    assert len({first, *others}) == 9


def test_how_it_is_launched_may_be_said_by_the_parameters_alone(kernel: rawnn.Kernel) -> None:
    given = {name: value for name, value in GIVEN.items() if name != "block"}
    swept = rawnn.sweep(kernel, {"block": [32, 64]}, **given)
    assert {v.parameters["block"] for v in swept.variants} == {32, 64}


def test_a_variant_that_cannot_be_launched_is_none_of_the_others_matter(
        kernel: rawnn.Kernel) -> None:
    found = rawnn.sweep(kernel, {"grid": ["cdiv(n, TILE)", "n - n"]}, **GIVEN)
    right, wrong = found.variants
    assert not right.failure
    assert wrong.failure.startswith("ConfigError: ")
    assert found.best is right
