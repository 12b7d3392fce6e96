"""`bench scaling`: what is measured, and what is made of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.plot import plot_scaling
from rawnn.bench.ranked import Answer, Request
from rawnn.bench.scaling import Point, ScalingResult, measure, once, points, read_scaling, sizes
from rawnn.bench.scaling_model import Link, gradients, table
from rawnn.bench.statistics import spread
from rawnn.common.errors import ConfigError, DeviceError
from rawnn.distributed.launcher import run
from rawnn.engine.result import environment
from tests import requires
from tests.bench.test_docs import explained, keys
from tests.cli.conftest import Rawnn, rawnn

__all__ = ["rawnn"]  # the fixture


def made(times: dict[tuple[str, str, int], float]) -> ScalingResult:
    found = [Point(workload="mlp4", system=system, scaling=scaling, ranks=n,  # type: ignore[arg-type]
                   batch=64 if scaling == "strong" else 32 * n, us=spread([us]), samples=[us])
             for (system, scaling, n), us in times.items()]
    return ScalingResult(environment=environment("gpu", {"name": "a GPU"}, {}), opt="best",
                         epochs=10, repeats=1, points=found,
                         devices=[{"who": "a", "device": "a GPU"}] * 2)


RESULT = made({("rawnn", "strong", 1): 100.0, ("rawnn", "strong", 2): 60.0,
               ("rawnn", "weak", 1): 60.0, ("rawnn", "weak", 2): 80.0,
               ("torch", "strong", 1): 200.0, ("torch", "strong", 2): 160.0})


def test_speed_ups_are_of_examples_a_second() -> None:
    ratios = [RESULT.speed_up(p) for p in RESULT.points]
    assert ratios == pytest.approx([1, 100 / 60, 1, 60 / 80 * 2, 1, 1.25])
    assert RESULT.cells(RESULT.points[3])[-3:-1] == ["1.50", "75%"]
    assert "2 x a GPU" in RESULT.provenance()
    assert "| mlp4 | PyTorch DDP | strong | 2 | 64 | 160.0 | 160.0-160.0 | 1.25 | 62% |" \
        in RESULT.markdown()


def test_the_model_is_set_beside_what_was_measured() -> None:
    """mlp4 in float32: 9.9 MB at once, a rank's part of the batch on one GPU takes 60 us."""
    assert sum(gradients("mlp4", "preload")) == 4 * (4 * 784 * 785 + 785 * 10)
    assert sum(gradients("mlp4", "bf16, nccl")) == 2 * (4 * 784 * 784 + 7840) + 4 * (4 * 784 + 10)
    link = Link(1e-5, 1e12)
    small, large = [4_000_000] * 2, [50_000_000] * 4 + [40]
    assert link.reduce_us(small, 2) == pytest.approx(10 + 8)
    assert link.reduce_us(large, 4) == pytest.approx(40 + 2 * 0.75 * 200.00004)
    assert table(RESULT, link).splitlines()[2:] == [
        "| mlp4 | 2 | 10 MB | 20 us | 60 us | 80 us | 60 us | 0% |"]
    assert table(made({("rawnn", "strong", 1): 1.0}), link) == ""


def test_losses_of_both_systems_are_compared() -> None:
    assert not RESULT.losses_apart()  # none were kept
    assert RESULT.provenance() in RESULT.markdown()
    losses = {"rawnn": [2.0, 1.0], "torch": [2.0, 1.002, 0.5]}
    found = msgspec.structs.replace(RESULT, points=[
        msgspec.structs.replace(p, losses=losses[p.system]) for p in RESULT.points])
    assert found.losses_apart() == ("Training losses of both systems, report by report: 50% within "
                                    "0.01% of each other, the furthest 0.20% apart (mlp4, 2 ranks, "
                                    "batch 64).")
    assert found.losses_apart() in found.markdown()


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    RESULT.write_json(tmp_path / "scaling.json")
    assert read_scaling(tmp_path / "scaling.json") == RESULT
    assert keys(msgspec.json.schema(ScalingResult)) <= \
        explained("scaling.md") | explained("results.md")


def test_the_plot_has_a_line_for_each_workload_and_system(tmp_path: Path) -> None:
    requires.module("matplotlib")
    plot_scaling(RESULT, tmp_path / "scaling.svg")
    text = (tmp_path / "scaling.svg").read_text()
    assert "mlp4, rawnn" in text
    assert "mlp4, PyTorch DDP" in text
    with pytest.raises(ConfigError, match="nothing was measured on several ranks"):
        plot_scaling(made({("rawnn", "strong", 1): 1.0}), tmp_path / "none.svg")


def test_powers_of_two_up_to_the_most() -> None:
    assert [sizes(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_weak_scaling_ends_at_the_batch_of_strong() -> None:
    found = points(["mlp4"], ["rawnn", "torch"], 64, 4)
    assert [(p.system, p.ranks, p.batch) for p in found if p.scaling == "weak"][-2:] == [
        ("rawnn", 4, 64), ("torch", 4, 64)]
    assert {p.batch for p in found if p.scaling == "weak" and p.ranks == 1} == {16}
    with pytest.raises(ConfigError, match="a batch of 65 cannot be split evenly among 2 ranks"):
        points(["mlp4"], ["rawnn"], 65, 2)


def test_what_fails_is_a_row_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(system: str, options: dict[str, Any], ranks: int, say: Any) -> Answer | str:
        return "failed with status 1" if system == "torch" else Answer(
            [10.0 * ranks, 12.0 * ranks], [0.5], "nccl", [{"who": "x", "device": "y"}] * ranks,
            {"nccl": "2.27.3"})

    monkeypatch.setattr("rawnn.bench.scaling.once", once)
    *_, result = measure(points(["linear"], ["rawnn", "torch"], 8, 2), None, 4, 2, "host", "mnist",
                         print)
    assert [p.reason for p in result.points] == ["", "failed with status 1"] * 4
    assert result.points[2].samples == [20.0, 24.0] * 2
    assert result.environment.libraries["nccl"] == "2.27.3"
    assert len(result.devices) == 2


def test_two_ranks_on_the_host_are_measured(tmp_path: Path) -> None:
    options = {"layers": (784, 10), "batch": 256, "epochs": 2, "device": "host",
               "dataset": "synthetic", "opt": "preload"}
    found = once("rawnn", options, 2, print)
    assert isinstance(found, Answer)
    assert found.toggles == "preload, nccl"
    assert len(found.step_us) == 1
    assert [each["device"] for each in found.ranks] == ["host"] * 2


@pytest.mark.parametrize(("text", "wanted"), [
    ("time.sleep(60)", "not ended after 1 s"), ("sys.exit(3)", "failed with status 3"),
    ("open(request['answer'], 'w').write('{\"step_us\": [7.0]}'); time.sleep(60)", [7.0]),
    ("open(request['answer'], 'w').write('{\"step_us\": [7.0]}'); sys.exit(3)", [7.0]),
])
def test_a_peer_that_does_not_end_is_ended_and_what_it_answered_counts(
        text: str, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(command: list[str], *rest: Any) -> int:
        code = "import json, sys, time\nrequest = json.load(open(sys.argv[1]))\n" + text
        return run([sys.executable, "-c", code, command[-1]], *rest)

    monkeypatch.setattr("rawnn.bench.scaling.PEER_SECONDS", 1.0)
    monkeypatch.setattr("rawnn.bench.scaling.run", ranks)
    found = once("torch", {"dataset": "synthetic"}, 2, print)
    assert (found if isinstance(found, str) else found.step_us) == wanted


def test_the_command_keeps_and_shows_what_was_measured(
    rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawnn.bench.scaling.once", lambda system, options, ranks, say:
                        Answer([10.0 * ranks], [0.5], ranks=[{"who": "x", "device": "y"}] * ranks))
    target = tmp_path / "scaling.json"
    done = rawnn("bench", "scaling", "--ranks", "2", "--workload", "linear", "--device", "host",
                 "--repeats", "1", "--batch", "256", "--json", str(target))
    assert done.status == 0, done.err
    assert [p.us.median for p in read_scaling(target).points if p.us] == [10.0, 20.0] * 2
    assert rawnn("bench", "show", str(target)).out == done.out


def test_a_rank_does_not_start_ranks(rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = rawnn("bench", "scaling")
    assert done.status == 2
    assert "bench scaling starts the ranks itself" in done.err


def test_what_ddp_is_not_measured_with_is_refused(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    from rawnn.bench import ranked

    request = tmp_path / "request.json"
    request.write_bytes(msgspec.json.encode(Request({"optimizer": "adam"}, "nowhere")))
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(sys.modules["torch"], "distributed", None, raising=False)
    monkeypatch.setattr(sys, "argv", ["ranked", "torch", str(request)])
    assert ranked.main() == 2  # DDP is measured with plain SGD only


def test_losses_are_those_of_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of ours and two of PyTorch's, from the same parameters on the same batches."""
    requires.module("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = {"layers": (784, 32, 10), "batch": 512, "epochs": 2, "seed": 3, "shuffle": True,
               "device": "host", "dataset": "synthetic"}
    ours, theirs = (once(system, options, 2, print) for system in ("rawnn", "torch"))
    assert isinstance(ours, Answer)
    assert isinstance(theirs, Answer), theirs
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-4)


def test_what_no_run_could_do_is_said_ahead_of_all(rawnn: Rawnn,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def none(ordinal: int, notify: Any) -> Any:
        raise DeviceError("no NVIDIA driver can be loaded on this machine")

    monkeypatch.setattr("rawnn.cli.scaling.open_gpu", none)
    done = rawnn("bench", "scaling", "--workload", "linear")
    assert (done.status, done.out) == (2, "")
    assert done.err == ("rawnn: error: ranks run on a GPU each: no NVIDIA driver can be loaded on "
                        "this machine; --device host measures them on the host\n")
    monkeypatch.setattr("rawnn.cli.scaling.missing", lambda name: f"{name} is not installed")
    done = rawnn("bench", "scaling", "--device", "host", "--peer", "torch")
    assert (done.status, done.err) == (2, "rawnn: error: --peer: torch is not installed\n")


def test_ctrl_c_ends_it_with_what_was_measured(rawnn: Rawnn, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks are told of it, and what they leave unmeasured has not failed."""
    answers = [Answer([10.0], [0.5], "nccl", [], {}, {})]

    def ranks(command: Any, count: int, say: Any, seconds: float, hear: Any) -> int:
        if answers:
            request = msgspec.json.decode(Path(command[-1]).read_bytes(), type=Request)
            Path(request.answer).write_bytes(msgspec.json.encode(answers.pop()))
            return 0
        hear(2)
        return 130

    monkeypatch.setattr("rawnn.bench.scaling.run", ranks)
    kept = tmp_path / "s.json"
    done = rawnn("bench", "scaling", "--device", "host", "--workload", "linear", "--json",
                 str(kept))
    assert done.status == 130
    assert "10.0" in done.out
    assert "failed" not in done.out
    found = read_scaling(kept)
    assert found.interrupted
    assert [bool(p.samples) for p in found.points] == [True, False, False, False]


def test_the_launcher_says_which_signal_it_passed_on() -> None:
    heard: list[int] = []
    script = ("import os, signal, time; signal.signal(signal.SIGTERM, lambda *a: exit(7));"
              "os.kill(os.getppid(), signal.SIGTERM); time.sleep(20)")
    assert run([sys.executable, "-c", script], 1, print, 30.0, heard.append) == 7
    assert heard == [15]
