"""`rawnn many`: options that vary, the table, JSON and plot; members as checkpoints."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn as package
from rawnn.cli import many as many_command
from rawnn.cli import varying
from rawnn.cli.many import _some
from rawnn.cli.varying import varied
from rawnn.common.errors import ConfigError
from tests import requires
from tests.cli.conftest import Rawnn

RNG = np.random.default_rng(1)
X = RNG.normal(size=(150, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "t.csv"
    rows = [",".join(f"{v:.4f}" for v in row) + f",{'abc'[k]}"
            for row, k in zip(X, Y, strict=True)]
    file.write_text("\n".join(["p,q,r,s,kind", *rows]) + "\n")
    return file


def arguments(table: Path, *more: str) -> list[str]:
    return ["many", "--data", str(table), "--target", "kind", "--layers", "4-8-3", "--epochs", "3",
            "--optimizer", "adam", "--device", "host", *more]


@pytest.mark.parametrize(("text", "values"), [
    ("lr=1e-3..1e-1:3", (1e-3, 1e-2, 1e-1)), ("lr=linear:0.1..0.5:3", (0.1, 0.3, 0.5)),
    ("lr=0.1,0.2", (0.1, 0.2)), ("seed=0..3", (0, 1, 2, 3)), ("batch=8..64:4", (8, 16, 32, 64)),
    ("weight-decay=0,0.01", (0.0, 0.01)), ("layers=4-3,4-8-3", ((4, 3), (4, 8, 3))),
    ("schedule=constant;warmup:1,cosine", ("constant", "warmup:1,cosine")),
    ("shuffle=yes,no", (True, False)), ("activation=relu,gelu", ("relu", "gelu")),
    ("epochs=1..3:5", (1, 2, 3)),
])
def test_values_that_vary(text: str, values: tuple[Any, ...]) -> None:
    (found,) = varied((text,)).values()
    if isinstance(values[0], float):
        assert found == pytest.approx(values)
    else:
        assert found == values


@pytest.mark.parametrize(("texts", "said"), [
    (("lr",), "write NAME=VALUES"), (("lr=",), "write NAME=VALUES"),
    (("learning=1",), "unknown option 'learning'"), (("opt=best",), "shared by all members"),
    (("lr=1..0:3",), "must be below"), (("lr=0..1:3",), "lr=linear:0..1:3"),
    (("lr=0.1..1",), "say how many"), (("lr=a,b",), "'a' is no number"),
    (("seed=0..1.5",), "no whole number"), (("lr=1..2:1",), "from 2 to"),
    (("seed=0..9999999",), "more than"), (("lr=1,2", "lr=3"), "given twice"),
    (("bias=maybe",), "true or false"), (("layers=4-x",), "layers = '4-x'"),
])
def test_bad_values_say_how_to_write_them(texts: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        varied(texts)
    assert said in str(error.value)


@pytest.mark.parametrize(("text", "count"), [
    ("seed=1..5", 5), ("seed=1..6", 0), ("lr=1..2:5", 5), ("lr=1..2:6", 0), ("lr=1..2:2", 2)])
def test_a_range_has_so_many_values_at_most(monkeypatch: pytest.MonkeyPatch, text: str,
                                            count: int) -> None:
    monkeypatch.setattr(varying, "MOST", 5)
    if count:
        assert [len(values) for values in varied((text,)).values()] == [count]
    else:
        with pytest.raises(ConfigError, match=r"more than 5 values|from 2 to 5 values"):
            varied((text,))


def test_a_table_of_the_best_json_and_a_plot(rawnn: Rawnn, table: Path, tmp_path: Path) -> None:
    done = rawnn(*arguments(table, "--vary", "lr=1e-3..1e-1:4", "--seeds", "2", "--best", "3",
                            "--json", str(tmp_path / "o.json"), "--plot", str(tmp_path / "o.svg")))
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert sum(line.split()[:1] in (["1"], ["2"], ["3"]) for line in lines) == 3
    assert "The best 3 of 8 members by test loss" in done.out
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["members"] == 8
    losses = np.array(found["table"]["test_loss"])
    shown = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    assert [int(number) for number in shown] == np.argsort(losses, kind="stable")[:3].tolist()
    single = package.train(data=str(table), target="kind", layers=(4, 8, 3), epochs=3,
                           optimizer="adam", device="host", lr=1e-3, seed=0)
    assert losses[0] == single.test_loss
    assert "<svg" in (tmp_path / "o.svg").read_text()


def test_a_report_has_the_plot_and_the_table(rawnn: Rawnn, table: Path, tmp_path: Path) -> None:
    requires.module("jinja2")
    file, page = tmp_path / "widths.json", tmp_path / "r.html"
    done = rawnn(*arguments(table, "--vary", "lr=0.1,0.01", "--seeds", "2", "--quiet", "--json",
                            str(file)))
    assert done.status == 0, done.err
    for given in (file, tmp_path):
        done = rawnn("bench", "report", str(given), "--out", str(page))
        assert done.status == 0, done.err
        text = page.read_text()
        assert "Many networks: widths" in text
        assert "<h1>Many networks</h1>" in text
        assert "Times are medians" not in text
        assert "Test loss against learning rate" in text
        assert "The best 4 of 4 by test loss" in text
        loss = min(json.loads(file.read_text())["table"]["test_loss"])
        assert f"{loss:.5g}" in text
    content = json.loads(file.read_text())
    for changed, said in (({"schema_version": 2}, "written by a newer rawnn"),
                          ({"environment": None}, "does not say where its networks trained")):
        file.write_text(json.dumps({**content, **changed}))
        done = rawnn("bench", "report", str(file), "--out", str(page))
        assert done.status == 2
        assert said in done.err
        assert done.err.count("\n") == 1
    file.write_text(json.dumps(content)[:-50])
    done = rawnn("bench", "report", str(file), "--out", str(page))
    assert done.status == 2
    assert "is not valid JSON" in done.err


def test_a_plot_without_matplotlib_is_refused_before_the_work(
        rawnn: Rawnn, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    done = rawnn(*arguments(table, "--vary", "lr=0.1,0.01", "--save", str(runs), "--quiet"))
    assert done.status == 0, done.err
    before = sorted(runs.iterdir())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = rawnn("many", "--resume", str(runs), "--epochs", "5", "--plot", str(tmp_path / "o.svg"))
    assert done.status != 0
    assert "charts need matplotlib" in done.err
    assert sorted(runs.iterdir()) == before


def test_folds_show_configurations(rawnn: Rawnn, table: Path) -> None:
    done = rawnn(*arguments(table, "--vary", "lr=0.1,0.01", "--folds", "3", "--halving", "2"))
    assert done.status == 0, done.err
    assert "The best 2 of 2 configurations by mean test loss over 3 folds" in done.out
    assert "halving   by 2 behind the epochs 1" in done.out


def test_two_options_make_a_map(rawnn: Rawnn, table: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.svg"
    done = rawnn(*arguments(table, "--vary", "lr=1e-3..1e-1:3", "--vary", "layers=4-3,4-8-3",
                            "--plot", str(file), "--quiet")[:3],
                 *arguments(table, "--vary", "lr=1e-3..1e-1:3", "--vary", "weight-decay=0,0.1",
                            "--plot", str(file), "--quiet")[3:])
    assert done.status == 0, done.err
    assert done.out == ""
    assert "weight decay" in file.read_text()


def test_a_member_is_taken_by_eval_predict_export_and_train(rawnn: Rawnn, table: Path,
                                                            tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    done = rawnn(*arguments(table, "--vary", "lr=0.05,0.01", "--seeds", "2", "--save", str(runs),
                            "--json", str(tmp_path / "o.json")))
    assert done.status == 0, done.err
    found = json.loads((tmp_path / "o.json").read_text())
    done = rawnn("eval", f"{runs}#3", "--json", str(tmp_path / "e.json"))
    assert done.status == 0, done.err
    assert json.loads((tmp_path / "e.json").read_text())["loss"] == pytest.approx(
        found["table"]["test_loss"][3], rel=1e-6)
    done = rawnn("predict", f"{runs}#3", "--data", str(table))
    assert done.status == 0, done.err
    assert len(list(csv.DictReader(done.out.splitlines()))) == len(X)
    done = rawnn("train", "--resume", f"{runs}#3", "--epochs", "5", "--json",
                 str(tmp_path / "r.json"))
    assert done.status == 0, done.err
    assert f"continuing from {runs / 'rawnn-000003.safetensors'}#3, epoch 3" in done.err
    done = rawnn("many", "--resume", str(runs), "--epochs", "5", "--json", str(tmp_path / "m.json"))
    assert done.status == 0, done.err
    both = [json.loads((tmp_path / name).read_text()) for name in ("r.json", "m.json")]
    assert both[0]["test_loss"] == both[1]["table"]["test_loss"][3]
    requires.module("onnx")
    done = rawnn("export", f"{runs}#3", str(tmp_path / "m.onnx"))
    assert done.status == 0, done.err
    done = rawnn("eval", f"{runs}#9")
    assert done.status != 0
    assert "has the networks 0 to 3, but no network 9" in done.err
    done = rawnn("eval", str(runs))
    assert done.status != 0
    assert "name one of them by its number" in done.err


def test_a_member_of_a_fold_names_no_test_set(rawnn: Rawnn, table: Path, tmp_path: Path) -> None:
    """That of its data set has rows that it was trained on."""
    done = rawnn(*arguments(table, "--folds", "2", "--save", str(tmp_path / "f"), "--quiet"))
    assert done.status == 0, done.err
    done = rawnn("eval", f"{tmp_path / 'f'}#1")
    assert done.status != 0
    assert "name the examples with --data" in done.err
    assert rawnn("eval", f"{tmp_path / 'f'}#1", "--data", str(table)).status == 0
    done = rawnn("--resume", f"{tmp_path / 'f'}#1", "--epochs", "9")
    assert done.status != 0
    assert "was trained on the rows of a fold or of a list, which its options do not" in done.err


@pytest.mark.parametrize(("more", "said"), [
    (("--vary", "seed=0..3", "--seeds", "2"), "exclude each other"),
    (("--vary", "epochs=1,2"), "given twice"), (("--plot", "x.svg", "--seeds", "3"), "add --vary"),
    (("--folds", "1"), "folds = 1"), (("--folds", "2", "--validation", "0.3"), "leave --val"),
    (("--repeats", "2"), "plays no part"), (("--monitor", "loss"), "monitor = 'loss'"),
    (("--halving", "0.5"), "halving = 0.5"),
    (("--vary", "lr=1e-4..1e-1:2000", "--seeds", "2000"), "are 4,000,000 members"),
])
def test_bad_options_are_one_sentence(rawnn: Rawnn, table: Path, more: tuple[str, ...],
                                      said: str) -> None:
    done = rawnn(*arguments(table, *more))
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_signal_ends_it_with_a_checkpoint_and_says_how_to_go_on(table: Path, tmp_path: Path
                                                                  ) -> None:
    runs = tmp_path / "runs"
    words = arguments(table, "--seeds", "2", "--save", str(runs), "--save-every", "100000")
    words[words.index("3")] = "100000"
    root = Path(package.__file__).parents[1]
    process = subprocess.Popen([sys.executable, "-m", "rawnn", *words], cwd=root, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:1] == ["2"]:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"continue with: python -m rawnn many --resume {runs}" in err
    assert "The best 2 of 2 members" in out
    (file,) = runs.glob("rawnn-*.safetensors")
    many = package.Many.load(file)
    assert {member.status for member in many} == {"active"}
    assert many[1].epochs >= 2


def test_a_run_whose_networks_all_diverge_has_failed(rawnn: Rawnn, table: Path, tmp_path: Path
                                                     ) -> None:
    lost = arguments(table, "--optimizer", "sgd", "--json", str(tmp_path / "m.json"))
    done = rawnn(*lost, "--vary", "lr=1e30,1e31")
    assert done.status == 1
    assert "every network's loss became NaN or infinite" in done.err
    assert json.loads((tmp_path / "m.json").read_text())["table"]["status"] == ["diverged"] * 2
    assert rawnn(*lost, "--vary", "lr=1e30,1e-3").status == 0


@pytest.mark.parametrize("values", [[], [np.nan], [0.5], [np.nan, 0.5], [0.5, np.nan]])
def test_a_column_is_shown_where_some_member_has_a_number(values: list[float]) -> None:
    """A member that has diverged has none."""
    assert _some(np.array(values)) == (0.5 in values)


@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.parametrize("interrupted", [False, True])
def test_one_rank_prints_and_writes_what_all_have_found(
        rawnn: Rawnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int | None,
        interrupted: bool) -> None:
    """A chart is drawn of a run that came to its end alone."""
    done: list[str] = []
    found = SimpleNamespace(
        interrupted=interrupted, signal=None, to_json=lambda path: done.append("json"),
        to_dict=dict)
    monkeypatch.setattr(many_command, "rank_from_environment", lambda *given: None if rank is None
                        else SimpleNamespace(rank=rank))
    monkeypatch.setattr(many_command, "start", lambda *given, **options: found)
    monkeypatch.setattr(many_command, "divergence_of", lambda found: "")
    monkeypatch.setattr(many_command, "_summary", lambda found, best: done.append("summary"))
    monkeypatch.setattr(many_command, "_interruption", lambda found: "ended early")
    monkeypatch.setattr("rawnn.bench.render.variation.chart_of", lambda found: SimpleNamespace(
        write=lambda path: done.append("chart")))
    ended = rawnn("many", "--vary", "lr=0.1,0.2", "--json", str(tmp_path / "m.json"), "--plot",
                  str(tmp_path / "m.svg"))
    assert ended.status == (128 + 2 if interrupted else 0), ended.err
    assert done == ([] if rank else ["json", "summary", *(["chart"] * (not interrupted))])
    assert ("ended early" in ended.err) == (interrupted and not rank)
