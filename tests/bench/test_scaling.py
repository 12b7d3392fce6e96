"""`bench scaling`: what is measured, and what is made of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from rawnn.bench.cases.scaling import CASE, failures, once, points, sizes
from rawnn.bench.ranked import Answer, Request
from rawnn.bench.record import Results, read_results
from rawnn.bench.suites import read_suites
from rawnn.common.errors import ConfigError, DeviceError
from rawnn.distributed.launcher import run
from tests import requires
from tests.bench.measuring import standing
from tests.cli.conftest import Rawnn, rawnn

__all__ = ["rawnn"]  # the fixture


def test_powers_of_two_up_to_the_most() -> None:
    assert [sizes(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_weak_scaling_ends_at_the_batch_of_strong() -> None:
    found = points(["mlp4"], ["rawnn", "torch"], 64, 4)
    assert [(p.system, p.ranks, p.batch) for p in found if p.scaling == "weak"][-2:] == [
        ("rawnn", 4, 64), ("torch", 4, 64)]
    assert {p.batch for p in found if p.scaling == "weak" and p.ranks == 1} == {16}
    with pytest.raises(ConfigError, match="a batch of 65 cannot be split evenly among 2 ranks"):
        points(["mlp4"], ["rawnn"], 65, 2)


def measured(**more: Any) -> Results:
    options = {"ranks": 2, "names": ("linear",), "batch": 256, "opt": None, "peers": (),
               "epochs": 4, "repeats": 2, "dataset": "mnist", "device": "host", **more}
    with standing("scaling") as harness:
        CASE.measure(harness, read_suites(), **options)
    return harness.results


def test_what_fails_is_a_row_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def once(system: str, options: dict[str, Any], ranks: int, say: Any) -> Answer | str:
        assert not {"lr": 0.1, "layers": (784, 10)}.items() - options.items()
        asked.append((system, ranks, *(options[name] for name in (
            "batch", "epochs", "device", "dataset", "seed"))))
        return "failed with status 1" if system == "torch" else Answer(
            [10.0 * ranks, 12.0 * ranks], [0.5], "nccl", [{"who": "x", "device": "y"}] * ranks,
            {"nccl": "2.27.3"}, {"name": "a GPU"}, "captured")

    monkeypatch.setattr("rawnn.bench.cases.scaling.once", once)
    monkeypatch.setattr("rawnn.bench.cases.scaling.missing", lambda name: "")
    found = measured(peers=("torch",))
    points = [("strong", 1, 256), ("strong", 2, 256), ("weak", 1, 128), ("weak", 2, 256)]
    assert asked == [(system, n, batch, 4, "host", "mnist", seed) for seed in (0, 1)
                     for _, n, batch in points for system in ("rawnn", "torch")[:2 - seed]]
    entries = found.entries("scaling")
    assert [(e.case, e.variant, e.precision, e.status, e.reason, e.notes) for e in entries] == [
        ("scaling/linear", "rawnn", "float32", "measured", "", ["toggles: nccl", "captured"]),
        ("scaling/linear", "torch", "float32", "failed", "failed with status 1", [])] * 4
    assert [e.conditions for e in entries[::2]] == [
        {"scaling": kind, "ranks": n, "batch": batch, "epochs": 4, "opt": "the workload's own",
         "dataset": "mnist"} for kind, n, batch in points]
    assert entries[2].samples("step_us") == [20.0, 24.0] * 2
    assert entries[2].samples("loss") == [0.5]  # of the first repeat
    where = found.place(entries[0])
    assert where.libraries["nccl"] == "2.27.3"
    assert (len(where.ranks), where.gpu) == (2, {"name": "a GPU"})
    assert failures(found).startswith("4 of 8 measurements failed")


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

    monkeypatch.setattr("rawnn.bench.cases.scaling.PEER_SECONDS", 1.0)
    monkeypatch.setattr("rawnn.bench.cases.scaling.run", ranks)
    found = once("torch", {"dataset": "synthetic"}, 2, print)
    assert (found if isinstance(found, str) else found.step_us) == wanted


def test_the_command_keeps_and_shows_what_was_measured(
    rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rawnn.bench.cases.scaling.once", lambda system, options, ranks, say:
                        Answer([10.0 * ranks], [0.5], ranks=[{"who": "x", "device": "y"}] * ranks))
    target = tmp_path / "scaling.json"
    done = rawnn("bench", "scaling", "--ranks", "2", "--workload", "linear", "--device", "host",
                 "--repeats", "1", "--batch", "256", "--json", str(target))
    assert done.status == 0, done.err
    assert [e.median("step_us") for e in read_results(target).entries()] == [10.0, 20.0] * 2
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

    monkeypatch.setattr("rawnn.bench.cases.scaling.open_gpu", none)
    done = rawnn("bench", "scaling", "--workload", "linear")
    assert (done.status, done.out) == (2, "")
    assert done.err == ("rawnn: error: ranks run on a GPU each: no NVIDIA driver can be loaded on "
                        "this machine; --device host measures them on the host\n")
    monkeypatch.setattr("rawnn.bench.cases.scaling.missing",
                        lambda name: f"{name} is not installed")
    done = rawnn("bench", "scaling", "--device", "host", "--peer", "torch")
    assert (done.status, done.err) == (2, "rawnn: error: --peer: torch is not installed\n")


def test_ctrl_c_ends_it_with_what_was_measured(rawnn: Rawnn, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks get the signal, and what they leave unmeasured has not failed."""
    answers = [Answer([10.0], [0.5], "nccl", [], {}, {})]

    def ranks(command: Any, count: int, say: Any, seconds: float, interrupt: Any) -> int:
        if answers:
            request = msgspec.json.decode(Path(command[-1]).read_bytes(), type=Request)
            Path(request.answer).write_bytes(msgspec.json.encode(answers.pop()))
            return 0
        interrupt(2)
        return 130

    monkeypatch.setattr("rawnn.bench.cases.scaling.run", ranks)
    kept = tmp_path / "s.json"
    done = rawnn("bench", "scaling", "--device", "host", "--workload", "linear", "--json",
                 str(kept))
    assert done.status == 130
    assert "10.0" in done.out
    assert "failed" not in done.out
    found = read_results(kept)
    assert found.ended == {"scaling": "it was interrupted"}
    assert ["step_us" in e for e in found.entries()] == [True, False, False, False]


def test_the_launcher_says_which_signal_it_passed_on() -> None:
    received: list[int] = []
    script = ("import os, signal, time; signal.signal(signal.SIGTERM, lambda *a: exit(7));"
              "os.kill(os.getppid(), signal.SIGTERM); time.sleep(20)")
    assert run([sys.executable, "-c", script], 1, print, 30.0, received.append) == 7
    assert received == [15]
