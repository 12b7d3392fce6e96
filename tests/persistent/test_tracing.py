"""Kernels that stamp their phases: on the host, in order, each once a step; what is made of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rawnn.bench.cases import phases
from rawnn.bench.cases.phases import of_phases
from rawnn.bench.record import read_results
from rawnn.cli.bench import bench
from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.layout import layout_of
from rawnn.persistent.sharding import DSMEM, L2, Sharding
from rawnn.persistent.source import source
from rawnn.persistent.stamps import stamps
from rawnn.persistent.tracing import read_trace, traced
from tests import requires
from tests.persistent import test_emulator
from tests.persistent.problems import HOPPER, VARIETY, problem
from tests.persistent.test_emulator import STEPS, Launch
from tests.persistent.test_source import built
from tests.ptx.architectures import installed_nvrtc
from tests.slices import sliced

KINDS = [
    ("Adam in an order", 4, 2, "FSFF", 1, DSMEM), ("softmax, SGD", 16, 1, "SFGF", 1, DSMEM),
    ("clusters share sums", 2, 8, "FG", 1, DSMEM), ("float16", 2, 3, "SFGF", 1, DSMEM),
    ("float16", 2, 1, "FSFG", 1, DSMEM), ("an autoencoder", 2, 1, "SFS", 1, DSMEM),
    ("a wide middle", 32, 1, "FGFG", 1, L2), ("a wide middle", 12, 1, "FGFS", 1, L2),
    ("softmax, SGD", 4, 2, "FGFS", 1, DSMEM), ("softmax, SGD", 2, 2, "SFGF", 2, DSMEM),
]
"""Problems, and how they are shared: every kind of phase comes up."""


def choice(name: str, ranks: int, groups: int, types: str, turns: int, exchange: str) -> Choice:
    given = problem(**{"layers": (21, 26, 9, 7), "batch": 11, **VARIETY[name]})
    d = Sharding(given, ranks, groups, 256, types, turns, exchange)
    return Choice(layout_of(d, HOPPER.shared), 0.0)


@requires.GXX
@pytest.mark.parametrize("kind", sliced(KINDS))
def test_each_phase_is_stamped_once_a_step_and_in_order(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: tuple[str, int, int, str, int, str]
) -> None:
    """The CPU emulator's clock counts its readings, so that no two stamps are the same."""
    whole = test_emulator.as_one_op
    monkeypatch.setattr(test_emulator, "as_one_op",
                        lambda plan, chosen: whole(plan, traced(chosen, STEPS)))
    name, ranks, groups, types, turns, exchange = kind
    launch = Launch(name, ranks, groups, types, turns=turns, exchange=exchange)
    layout = launch.op.attributes["choice"].layout
    words = launch.on_emulator(tmp_path, 2)["trace"]
    d = layout.sharding
    of_warps = words[: -4 * d.blocks]
    assert len(np.unique(of_warps)) == len(of_warps)
    assert of_warps.min() > 0  # nothing is left out
    trace = read_trace(layout, words)
    assert trace.cycles.shape == (STEPS, d.blocks, len(trace.stamps))
    assert trace.cycles.min() > 0
    assert trace.own.min() > 0
    assert (trace.load > 0).all()
    assert (trace.store > 0).all()
    found = of_phases(launch.op.attributes["choice"], trace)
    for stamp in trace.stamps:
        part = f"{stamp.phase}/{stamp.part}"
        assert found[part if part in found else stamp.phase]["cycles"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stamped_are_the_phases_that_the_model_expects(
        kind: tuple[str, int, int, str, int, str]) -> None:
    found = choice(*kind)
    names = {stamp.phase for stamp in stamps(found.layout.schedule)}
    wanted = {phase.name for phase in cost.phases(found.sharding)}
    # The one is spread over all others, the other stands behind the steps.
    assert names == wanted - {"exchanges begin", cost.LAUNCH}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_that_is_not_traced_knows_nothing_of_it(
        kind: tuple[str, int, int, str, int, str]) -> None:
    found = choice(*kind)
    plain, stamped = (source(c.layout, "k") for c in (found, traced(found, 3)))
    assert "trace" not in plain
    assert "stamp" not in plain
    kept = [line.strip() for line in stamped.splitlines() if "stamp" not in line.lower()
            and "persistent/trace" not in line]
    text = "\n".join(kept).replace("unsigned int* __restrict__ trace, ", "")
    assert text == "\n".join(line.strip() for line in plain.splitlines())


def test_a_kernel_that_is_traced_compiles() -> None:
    for kind in sliced(KINDS):
        built(installed_nvrtc(), source(traced(choice(*kind), 64).layout, "train_steps"), "sm_90")


def test_a_clock_that_wraps_around_is_followed() -> None:
    layout = traced(choice("softmax, SGD", 1, 1, "FFFF", 1, DSMEM), 2).layout
    warps, many = layout.sharding.warps, layout.stamps
    # Begun, loaded, the stamps of two steps, trained, stored.
    line = 2**32 - 40 + 10 * np.arange(2 + 2 * many + 2)
    each = np.repeat(line[2:-2].reshape(2, 1, many, 1), warps, axis=3) + np.arange(warps)
    ends = np.repeat(line[[0, 1, -2, -1]].reshape(1, 4, 1), warps, axis=2)
    words = np.concatenate([each.ravel() % 2**32, ends.ravel() % 2**32, [7, 0, 7 + 5000, 0]])
    trace = read_trace(layout, words.astype(np.uint32).view(np.int32))
    assert (trace.cycles[1:] == 10).all()
    assert (trace.cycles[0, :, 1:] == 10).all()
    assert trace.load == 10
    assert trace.store == 10
    assert trace.us == 5
    assert trace.clock == pytest.approx((line[-1] - line[0]) / 5)


def test_the_command_shows_and_keeps_the_phases(tmp_path: Path) -> None:
    kept = tmp_path / "phases.json"
    said = CliRunner().invoke(bench, [
        "phases", "--layers", "24-16-4", "--batch", "8", "--optimizer", "adam", "--steps",
        "4", "--device", "sim", "--json", str(kept), "--markdown", str(tmp_path / "t.md")])
    assert said.exit_code == 0, said.output
    assert "gradient 2" in said.output
    step, *rows = read_results(kept).entries("phases")
    assert (step.variant, step.conditions["layers"]) == ("step", [24, 16, 4])
    assert "persistent=1x1" in str(step.conditions["opt"])
    assert "gradient 2" in {row.variant for row in rows}
    assert "forward 1" in (tmp_path / "t.md").read_text()
    again = CliRunner().invoke(bench, ["show", str(kept)])
    assert "gradient 2" in again.output


@pytest.mark.parametrize(("words", "said"), [
    (["--opt", "best,-persistent"], "what is traced is persistent"),
    (["--layers", "24"], "give two sizes or more"), (["--device", "host"], "on a GPU only"),
])
def test_what_cannot_be_traced_is_said(words: list[str], said: str) -> None:
    given = ["phases", "--layers", "24-16-4", "--batch", "8", "--steps", "4"]
    given += words if "--device" in words else [*words, "--device", "sim"]
    found = CliRunner().invoke(bench, given)
    assert found.exit_code != 0
    assert said in str(found.exception) + found.output


def test_a_step_is_the_median_of_the_epochs_behind_those_that_warm_up(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Which take a fiftieth of a second each, and are waited for one by one; the others are not."""
    now, calls = [3.0], []

    def epoch(reported: bool) -> None:
        assert reported
        now[0] += 0.02
        calls.append("epoch")

    monkeypatch.setattr(phases, "perf_counter", lambda: now[0])
    runner: Any = SimpleNamespace(
        epoch=epoch, metrics=lambda: calls.append("metrics"),
        epoch_milliseconds=lambda: [90.0] * 3 + [1.0, 2.0, 4.0, 8.0, 8.0, 9.0, 9.0, 10.0])
    assert phases._microseconds(runner, 4) == pytest.approx(2000.0)
    assert calls == ["epoch", "metrics"] * 3 + ["epoch"] * 8 + ["metrics"]
