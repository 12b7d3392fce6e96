"""`rawnn eval` and `rawnn predict`, and the options of training that they follow."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rawnn.cli import eval as eval_command
from rawnn.cli import examples
from rawnn.cli import predict as predict_command
from rawnn.cli.eval import _reconstructs
from rawnn.cli.examples import Examples
from rawnn.cli.figures import class_figures
from rawnn.common.errors import DeviceError
from rawnn.data.normalise import TargetNormalisation
from rawnn.engine import machine
from rawnn.engine.checkpoint import Checkpoint, listed, write
from rawnn.engine.model import Model
from rawnn.model.layers import Network
from tests.cli.conftest import Rawnn


@pytest.mark.parametrize(("count", "confusion", "tables"), [
    (30, True, 2), (30, False, 1), (31, True, 0), (31, False, 0)])
def test_tables_of_classes_are_printed_as_far_as_a_terminal_holds_them(
        monkeypatch: pytest.MonkeyPatch, count: int, confusion: bool, tables: int) -> None:
    printed: list[Any] = []
    model = SimpleNamespace(
        network=Network((2, count)), names=[f"c{i}" for i in range(count)],
        score=lambda *given, device: SimpleNamespace(loss=0.5, accuracy=0.75),
        confusion=lambda *given, device: np.eye(count, dtype=np.int64) * 3)
    monkeypatch.setattr(eval_command, "Model", SimpleNamespace(of=lambda found: model))
    console: Any = SimpleNamespace(print=lambda what, **how: printed.append(what),
                                   is_terminal=False, width=100)
    found: Any = SimpleNamespace(epoch=4)
    figures = eval_command.show(found, Examples(np.zeros((9, 2)), np.zeros(9), "a file"), "host",
                                confusion, console)
    assert [type(each).__name__ for each in printed[4:]] == ["Table"] * tables
    assert (figures["examples"], figures["loss"], figures["accuracy"]) == (9, 0.5, 0.75)
    assert figures["classes"]["c3"]["examples"] == figures["confusion"][3][3] == 3


def test_a_table_is_read_by_names_indices_and_with_what_training_skipped(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes are known, and inputs are normalised as exactly as they were in training."""
    calls: list[Any] = []

    def read(path: str, columns: Any, kind: str, features: Any, csv_format: Any,
             classes_known: bool = False, exact: bool = False) -> Any:
        calls.append((columns, csv_format.skip, csv_format.decimal, classes_known, exact))
        return SimpleNamespace(inputs=np.zeros((2, 99)), feature_names=())

    monkeypatch.setattr(examples, "read_table", read)
    found: Any = SimpleNamespace(network=Network((4, 3)), facts={"targets": ["kind"]},
                                 config={"target": "5", "skip": "z", "decimal": ","})
    examples._table(found, "x.csv", None, {})
    assert calls == [(columns, skip, ",", True, True) for columns, skip in (
        ("kind", "z"), ("5", "z"), (None, "z"), ("kind", None), ("5", None), (None, None))]
    calls.clear()
    examples._table(found, "x.npz", "y", {"decimal": "."})
    assert calls == [("y", None, ".", False, False)]


ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
FAST = ("--device", "host", "--epochs", "30", "--batch", "8")


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """A table of three kinds that are easy to distinguish."""
    file = tmp_path / "flowers.csv"
    kinds = ("rose", "tulip", "lily")
    rows = [f"{RNG.normal(7 * k):.3f},{RNG.normal(-7 * k):.3f},{kinds[k]}"
            for k in RNG.integers(0, 3, 100).tolist()]
    file.write_text("\n".join(["length,width,kind", *rows]) + "\n")
    return file


@pytest.fixture
def kept(rawnn: Rawnn, tmp_path: Path, flowers: Path) -> Path:
    """A directory with the checkpoints of a network trained on the flowers."""
    directory = tmp_path / "kept"
    done = rawnn(*FAST, "--data", str(flowers), "--target", "kind", "--normalise", "learned",
                 "--layers", "2-8-3", "--save", str(directory), "--keep", "2")
    assert done.status == 0, done.err
    return directory


def test_the_table_that_is_read_is_not_replaced(rawnn: Rawnn, kept: Path, flowers: Path) -> None:
    before, newest = flowers.read_text(), str(listed(kept)[-1][1])
    table = ("--data", str(flowers), "--target", "kind", "--layers", "2-8-3")
    for command in (("predict", str(kept), "--data", str(flowers), "--out", str(flowers)),
                    ("eval", str(kept), "--data", str(flowers), "--json", str(flowers)),
                    ("train", *FAST, *table, "--json", str(flowers)),
                    ("many", *FAST, *table, "--json", str(flowers)),
                    ("profile", "--device", "sim", *table, "--trace", str(flowers)),
                    ("eval", newest, "--json", newest),
                    ("train", "--resume", newest, "--epochs", "31", "--json", newest)):
        done = rawnn(*command)
        assert done.status == 2
        assert "which is read: name another file" in done.err
    assert flowers.read_text() == before


def test_training_on_a_table_is_kept(rawnn: Rawnn, kept: Path, tmp_path: Path) -> None:
    assert [epoch for epoch, _ in listed(kept)] == [29, 30]
    file = tmp_path / "r.json"
    done = rawnn("train", "--resume", str(kept), "--epochs", "31", "--json", str(file))
    assert done.status == 0, done.err
    assert "continuing from" in done.err
    result = json.loads(file.read_text())
    assert (result["resumed_epochs"], result["label_names"]) == (30, ["lily", "rose", "tulip"])
    assert [epoch for epoch, _ in listed(kept)] == [30, 31]


def test_eval_on_its_own_test_set(rawnn: Rawnn, kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    done = rawnn("eval", str(kept), "--json", str(file))
    assert done.status == 0, done.err
    for word in ("2-8-3, epoch 30", "20 examples", "accuracy", "precision", "recall", "tulip",
                 "predicted class by column"):
        assert word in done.out
    found = json.loads(file.read_text())
    assert found["examples"] == 20
    assert found["accuracy"] > 0.9
    assert list(found["classes"]) == ["lily", "rose", "tulip"]
    assert sum(map(sum, found["confusion"])) == 20
    less = rawnn("eval", str(kept), "--no-confusion", "--device", "sim")
    assert less.status == 0, less.err
    assert "predicted class by column" not in less.out
    shown = next(line for line in less.out.splitlines() if line.startswith("loss"))
    assert float(shown.split()[1]) == pytest.approx(found["loss"], abs=2e-6)


def test_a_table_that_has_changed_has_no_test_part(rawnn: Rawnn, kept: Path, flowers: Path) -> None:
    """Its rows are split anew, so that rows of training would be measured."""
    with flowers.open("a") as file:
        file.write("7.5,-7.5,tulip\n")
    done = rawnn("eval", str(kept))
    assert done.status == 2
    assert "not those that" in done.err
    assert f"with --data {flowers}" in done.err
    assert rawnn("eval", str(kept), "--data", str(flowers)).status == 0


def test_eval_on_other_data(rawnn: Rawnn, kept: Path, flowers: Path) -> None:
    for target in ((), ("--target", "kind"), ("--target", "2")):
        done = rawnn("eval", str(kept), "--data", str(flowers), *target)
        assert done.status == 0, done.err
        assert "100 examples" in done.out


def test_columns_are_found_by_their_names(rawnn: Rawnn, kept: Path, flowers: Path,
                                          tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    rows = list(csv.DictReader(flowers.open()))
    other.write_text("kind,width,note,length\n" + "".join(
        f"{r['kind']},{r['width']},n{i},{r['length']}\n" for i, r in enumerate(rows)))
    found = [rawnn("predict", str(kept), "--data", str(file)) for file in (flowers, other)]
    assert found[0].status == found[1].status == 0, found[1].err
    assert found[0].out == found[1].out
    other.write_text(other.read_text().replace("length", "size"))
    done = rawnn("eval", str(kept), "--data", str(other))
    assert done.status == 2
    assert "has no column 'length', which the network was trained on" in done.err


def test_large_numbers_are_told_apart_after_training_too(rawnn: Rawnn, tmp_path: Path) -> None:
    """Identifiers and times that are one number in float32, and classes that are numbers."""
    file, kept, one = tmp_path / "ids.csv", tmp_path / "kept", tmp_path / "one.csv"
    places = RNG.integers(0, 4, 200).tolist()
    rows = {i: f"{10**8 + i},{1.7e9 + i / 4:.2f}" for i in range(4)}
    file.write_text("id,time,kind\n" + "".join(f"{rows[i]},{i + 1}\n" for i in places))
    one.write_text("time,id\n1700000000.50,100000002\n")
    done = rawnn(*FAST, "--data", str(file), "--target", "kind", "--normalise", "learned",
                 "--lr", "0.5", "--layers", "2-16-4", "--save", str(kept))
    assert done.status == 0, done.err
    assert "become equal" not in done.err
    for more in ((), ("--data", str(file)), ("--data", str(file), "--device", "sim")):
        done = rawnn("eval", str(kept), *more)
        assert "accuracy  1.0000" in done.out, done.err
    assert rawnn("predict", str(kept), "--data", str(one)).out == "prediction\n3\n"
    done = rawnn(*FAST, "--data", str(file), "--target", "kind", "--layers", "2-16-4",
                 "--json", str(tmp_path / "r.json"))
    message = ("distinct values become equal in float32, in column 'id' 4 become 1, "
               "and so in 1 other")
    assert message in done.err
    assert message in " ".join(json.loads((tmp_path / "r.json").read_text())["notes"])


def test_predictions_of_an_autoencoder_are_in_units(rawnn: Rawnn, tmp_path: Path) -> None:
    file, kept = tmp_path / "t.csv", tmp_path / "kept"
    values = 500 + 20 * RNG.normal(size=(100, 2))
    file.write_text("a,b\n" + "".join(f"{a:.3f},{b:.3f}\n" for a, b in values))
    done = rawnn("--device", "host", "--batch", "8", "--epochs", "60", "--data", str(file),
                 "--normalise", "learned", "--layers", "2-2", "--loss", "mse", "--autoencoder",
                 "--lr", "0.2", "--save", str(kept))
    assert done.status == 0, done.err
    done = rawnn("predict", str(kept), "--data", str(file))
    found = [[float(cell) for cell in row] for row in list(csv.reader(io.StringIO(done.out)))[1:]]
    np.testing.assert_allclose(found, values, atol=2)


NAMES = ("lily", "rose", "tulip")


def test_an_autoencoder_takes_no_answers_from_its_table(rawnn: Rawnn, tmp_path: Path) -> None:
    """They are columns that training left out: eval and predict compared them with outputs."""
    rows = RNG.normal(size=(40, 3))
    table, arrays = tmp_path / "t.csv", tmp_path / "t.npz"
    table.write_text("a,b,t\n" + "\n".join(",".join(map(str, row)) for row in rows.tolist()))
    np.savez(arrays, X=rows[:, :2], y=rows[:, 2])
    for data, target in ((table, ("--target", "t")), (arrays, ())):
        kept = tmp_path / data.suffix
        done = rawnn(*FAST, "--data", str(data), *target, "--autoencoder", "--loss", "mse",
                     "--layers", "2-1-2", "--save", str(kept))
        assert done.status == 0, done.err
        predicted = rawnn("predict", str(kept), "--data", str(data))
        assert predicted.status == 0, predicted.err
        done = rawnn("eval", str(kept), "--data", str(data))
        assert done.status == 0, done.err
        values = np.loadtxt(io.StringIO(predicted.out), delimiter=",", skiprows=1)
        loss = float(re.search(r"loss +([\d.]+)", done.out)[1])  # type: ignore[index]
        assert loss == pytest.approx(((values - rows[:, :2]) ** 2).mean(), abs=1e-5)


def test_predictions_as_csv(rawnn: Rawnn, kept: Path, flowers: Path, tmp_path: Path) -> None:
    done = rawnn("predict", str(kept), "--data", str(flowers), "--probabilities")
    assert done.status == 0, done.err
    rows = list(csv.DictReader(io.StringIO(done.out)))
    truth = [row["kind"] for row in csv.DictReader(flowers.open())]
    assert len(rows) == 100
    assert np.mean([row["prediction"] == t for row, t in zip(rows, truth, strict=True)]) > 0.9
    for row in rows:
        assert sum(float(row[f"probabilities_{name}"]) for name in NAMES) == \
            pytest.approx(1, abs=1e-5)
    assert "accuracy" in done.err  # the table had the answers
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(line.rpartition(",")[0] for line in flowers.open()))
    out = tmp_path / "out.csv"
    done = rawnn("predict", str(kept), "--data", str(bare), "--out", str(out))
    assert (done.status, done.out) == (0, "")
    assert "100 predictions are in" in done.err
    assert [r["prediction"] for r in csv.DictReader(out.open())] == [r["prediction"] for r in rows]


def test_auto_takes_the_host_without_a_gpu_and_says_so(
        rawnn: Rawnn, kept: Path, flowers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(ordinal: int, notify: object) -> None:
        raise DeviceError("there is no driver")

    monkeypatch.setattr(machine, "open_gpu", missing)
    for command in (("eval", str(kept)), ("predict", str(kept))):
        done = rawnn(*command, "--data", str(flowers), "--device", "auto")
        assert done.status == 0, done.err
        assert done.err.count("running on the host: there is no driver") == 1
        assert done.out == rawnn(*command, "--data", str(flowers)).out


@pytest.mark.parametrize("named", [str, os.path.relpath])
def test_a_table_that_was_moved_is_asked_for(
        rawnn: Rawnn, tmp_path: Path, flowers: Path, monkeypatch: pytest.MonkeyPatch,
        named: Callable[[Path], str]) -> None:
    """In the words in which --resume asks for it, and what they say helps."""
    monkeypatch.chdir(tmp_path)
    before = named(flowers)
    directory = tmp_path / "runs"
    assert rawnn(*FAST, "--data", before, "--target", "kind", "--layers", "2-3", "--save",
                 str(directory)).status == 0
    moved = flowers.rename(tmp_path / "moved.csv")
    outputs = set()
    for command in (("eval", str(directory)), ("--resume", str(directory), "--epochs", "31")):
        done = rawnn(*command)
        assert done.status == 1
        assert f"read --data {before}" in done.err
        assert "give its present place with --data" in done.err
        outputs.add(done.err.replace("measure", "continue"))
        assert rawnn(*command, "--data", str(moved)).status == 0
    assert len(outputs) == 1


def test_predictions_in_a_file_are_utf_8(rawnn: Rawnn, tmp_path: Path) -> None:
    table, directory = tmp_path / "a.csv", tmp_path / "kept"
    table.write_text("x,y\n" + "0,Äpfel\n9,груша\n" * 20, encoding="utf-8")
    assert rawnn(*FAST, "--data", str(table), "--target", "y", "--layers", "1-2", "--save",
                 str(directory), "--lr", "0.3").status == 0
    out = tmp_path / "said.csv"
    with out.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "rawnn", "predict", str(directory), "--data", str(table)],
            stdout=file, stderr=subprocess.PIPE, check=False, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    rows = out.read_text(encoding="utf-8").splitlines()
    assert rows == ["prediction", *["Äpfel", "груша"] * 20]


def test_predictions_as_npz(rawnn: Rawnn, kept: Path, tmp_path: Path) -> None:
    x = RNG.normal(size=(7, 2))
    np.savez(tmp_path / "x.npz", X=x)
    out = tmp_path / "out.npz"
    done = rawnn("predict", str(kept), "--data", str(tmp_path / "x.npz"), "--out", str(out),
                 "--probabilities")
    assert done.status == 0, done.err
    with np.load(out) as found:
        assert set(found["prediction"].tolist()) <= {"lily", "rose", "tulip"}
        assert found["probabilities"].shape == (7, 3)
        assert found["classes"].tolist() == list(NAMES)


def test_regression(rawnn: Rawnn, tmp_path: Path) -> None:
    file, kept = tmp_path / "t.csv", str(tmp_path / "kept")
    x = RNG.normal(size=(80, 2))
    file.write_text("a,b,y\n" + "".join(f"{a:.4f},{b:.4f},{2 * a - b:.4f}\n" for a, b in x))
    done = rawnn(*FAST, "--data", str(file), "--target", "y", "--loss", "mse", "--layers", "2-1",
                 "--save", kept)
    assert done.status == 0, done.err
    done = rawnn("eval", kept)
    assert done.status == 0, done.err
    assert "accuracy" not in done.out
    assert "loss      0.0000" in done.out
    done = rawnn("predict", kept, "--data", str(file))
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert float(rows[0]["values"]) == pytest.approx(2 * x[0, 0] - x[0, 1], abs=0.01)
    assert rawnn("predict", kept, "--data", str(file), "--probabilities").status == 2


def test_an_autoencoder_on_images(rawnn: Rawnn, tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    done = rawnn("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--batch", "500",
                 "--autoencoder", "--loss", "mse", "--layers", "784-16-784", "--save", kept)
    assert done.status == 0, done.err
    done = rawnn("eval", kept)
    assert done.status == 0, done.err
    assert "loss" in done.out


def test_early_stopping_is_an_option(rawnn: Rawnn, tmp_path: Path, flowers: Path) -> None:
    done = rawnn("--device", "host", "--batch", "8", "--data", str(flowers), "--target", "kind",
                 "--layers", "2-8-3", "--epochs", "500", "--patience", "2", "--min-delta", "0.05",
                 "--lr", "0.01", "--normalise", "learned")
    assert done.status == 0, done.err
    assert "stopped" in done.out
    assert "restored the parameters of epoch" in done.err


@pytest.mark.parametrize(("arguments", "words", "status"), [
    (("eval", "no.safetensors"), ("no.safetensors cannot be read",), 1),
    (("predict", "{kept}", "--data", "{flowers}", "--out", "x.txt"), (".csv or .npz",), 2),
    (("predict", "{kept}", "--data", "{flowers}", "--out", "no/x.csv"), ("there is no directory",),
     2),
    (("predict", "{kept}", "--data", "{flowers}", "--target", "length"),
     ("row 0 has the label", "the classes are lily, rose, tulip"), 1),
    (("predict", "{kept}", "--data", "no.csv"), ("no.csv cannot be read",), 1),
    (("eval", "{kept}", "--data", "{flowers}", "--target", "q"), ("no column 'q'",), 2),
    (("eval", "{kept}", "--device", "gpx"), ("device",), 2),
    (("eval", "{bare}"), ("does not say what it was trained on",), 2),
    (("--resume", "no"), ("no cannot be read",), 1),
    (("--resume", "{kept}", "--epochs", "5"), ("30 epochs behind it",), 2),
    (("--resume", "{kept}", "--epochs", "50", "--layers", "2-9-3"), ("another network",), 1),
    (("--validation", "1.5"), ("validation = 1.5",), 2),
    (("--target", "kind", "--dataset", "synthetic"), ("needs a table",), 2),
    (("--normalise", "x", "--dataset", "synthetic"), ("normalise = 'x'",), 2),
    (("--keep", "0"), ("keep = 0",), 2),
    (("--monitor", "q"), ("monitor = 'q'",), 2),
])
def test_refusals_are_one_sentence(
    rawnn: Rawnn, kept: Path, flowers: Path, tmp_path: Path, arguments: tuple[str, ...],
    words: tuple[str, ...], status: int
) -> None:
    bare = tmp_path / "bare.safetensors"
    write(bare, Checkpoint(Network((2, 3)), Network((2, 3)).initial(0)))
    places = {"kept": kept, "flowers": flowers, "bare": bare}
    done = rawnn(*(a.format(**places) for a in arguments))
    assert done.status == status, done.err
    last = done.err.rstrip().splitlines()[-1]
    assert last.startswith("rawnn: error: ")
    assert "Traceback" not in done.err
    for word in words:
        assert word in last


def test_figures_of_classes() -> None:
    rows = class_figures(np.array([[8, 2, 0], [1, 9, 0], [0, 0, 0]]))
    assert rows[0] == {"examples": 10, "precision": 8 / 9, "recall": 0.8, "f1": 16 / 19}
    assert np.isnan([rows[2][key] for key in ("precision", "recall", "f1")]).all()


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """Prices in hundreds of thousands and rooms: with semicolons, decimal commas, dates, words and
    umlauts, as a spreadsheet of Windows writes them."""
    file = tmp_path / "häuser.csv"
    rows = []
    for i in range(120):
        area, age = RNG.uniform(40, 200), RNG.uniform(0, 80)
        price, rooms = 150000 + 3200 * area - 900 * age, 1 + area / 40
        rows.append(f"h{i};2024-03-{i % 28 + 1:02};Köln;{area:.3f};{age:.3f};{price:.2f};"
                    f"{rooms:.3f}".replace(".", ","))
    file.write_bytes("\r\n".join(["id;tag;Straße, Ort;Fläche;Alter;Preis;Räume", *rows])
                     .encode("cp1252"))
    return file


HOUSES = ("--encoding", "cp1252", "--decimal", ",", "--skip", "id", "--skip", "tag", "--skip",
          '"Straße, Ort"', "--loss", "mse", "--normalise", "learned", "--normalise-targets",
          "learned", "--device", "host", "--epochs", "60", "--lr", "0.05")


def truth_of(houses: Path) -> list[dict[str, str]]:
    text = houses.read_bytes().decode("cp1252").replace(",", ".")
    return list(csv.DictReader(io.StringIO(text), delimiter=";"))


def test_prices_are_learned_and_predicted(rawnn: Rawnn, houses: Path, tmp_path: Path) -> None:
    kept, file = str(tmp_path / "kept"), tmp_path / "r.json"
    done = rawnn(*HOUSES, "--data", str(houses), "--target", "Preis", "--skip", "Räume",
                 "--layers", "2-1", "--save", kept, "--json", str(file))
    assert done.status == 0, done.err
    trained = json.loads(file.read_text())
    assert trained["history"][0]["train_loss"] > 1e8
    assert trained["target_names"] == ["Preis"]
    rows = truth_of(houses)
    spread = np.var([float(row["Preis"]) for row in rows])
    assert trained["test_loss"] < 0.01 * spread
    done = rawnn("eval", kept, "--json", str(file))
    assert done.status == 0, done.err
    assert json.loads(file.read_text())["loss"] == pytest.approx(trained["test_loss"], rel=1e-4)
    done = rawnn("predict", kept, "--data", str(houses))
    assert done.status == 0, done.err
    values = [float(row["values"]) for row in csv.DictReader(io.StringIO(done.out))]
    wanted = [float(row["Preis"]) for row in rows]
    assert np.sqrt(np.mean(np.subtract(values, wanted) ** 2)) < 0.1 * np.sqrt(spread)
    mean = np.mean(np.subtract(values, wanted) ** 2)
    shown = next(line for line in done.err.splitlines() if line.startswith("loss"))
    assert float(shown.split()[1]) == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("targets", [("--target", "Preis", "--target", "Räume"),
                                     ("--target", "Preis,Räume"), ("--target", "5,-1")])
def test_several_targets_keep_their_names(rawnn: Rawnn, houses: Path, tmp_path: Path,
                                          targets: tuple[str, ...]) -> None:
    kept, out = str(tmp_path / "kept"), tmp_path / "out.npz"
    done = rawnn(*HOUSES, "--data", str(houses), *targets, "--layers", "2-2", "--save", kept)
    assert done.status == 0, done.err
    done = rawnn("predict", kept, "--data", str(houses))
    assert done.status == 0, done.err
    found = list(csv.DictReader(io.StringIO(done.out)))
    assert list(found[0]) == ["Preis", "Räume"]
    for name, apart in (("Preis", 60000), ("Räume", 0.3)):
        wrong = [abs(float(a[name]) - float(b[name]))
                 for a, b in zip(found, truth_of(houses), strict=True)]
        assert max(wrong) < apart
    assert rawnn("predict", kept, "--data", str(houses), "--out", str(out)).status == 0
    with np.load(out) as arrays:
        assert arrays["targets"].tolist() == ["Preis", "Räume"]
        assert arrays["values"].dtype == np.float64
    assert Model.load(kept).target_names == ("Preis", "Räume")
    # A file of other conventions, without the columns that training skipped or its targets.
    plain = tmp_path / "plain.csv"
    plain.write_text("Alter,Fläche\n" + "".join(
        f"{row['Alter']},{row['Fläche']}\n" for row in truth_of(houses)))
    again = rawnn("predict", kept, "--data", str(plain), "--encoding", "utf-8", "--decimal", ".")
    assert (again.status, again.out) == (0, done.out), again.err


def test_yes_no_labels_keep_their_names(rawnn: Rawnn, tmp_path: Path) -> None:
    file, kept = tmp_path / "t.csv", str(tmp_path / "kept")
    file.write_text("a,red,big\n" + "".join(f"{i},{i % 2},{int(i > 20)}\n" for i in range(40)))
    done = rawnn(*FAST, "--data", str(file), "--target", "red", "--target", "big", "--loss", "bce",
                 "--layers", "1-2", "--save", kept)
    assert done.status == 0, done.err
    done = rawnn("predict", kept, "--data", str(file), "--probabilities")
    assert done.out.splitlines()[0] == \
        "prediction_red,prediction_big,probabilities_red,probabilities_big"


def test_options_of_csv_files_in_toml(rawnn: Rawnn, houses: Path, tmp_path: Path) -> None:
    file, result = tmp_path / "c.toml", tmp_path / "r.json"
    file.write_text(f'data = "{houses}"\ntarget = ["Preis", "Räume"]\nencoding = "cp1252"\n'
                    'decimal = ","\nskip = ["id", "tag", "Straße, Ort"]\nloss = "mse"\n'
                    'normalise = "learned"\nnormalise_targets = "learned"\nlayers = [2, 2]\n'
                    'device = "host"\nepochs = 2\n', encoding="utf-8")
    done = rawnn("--config", str(file), "--json", str(result))
    assert done.status == 0, done.err
    assert json.loads(result.read_text())["config"]["skip"] == 'id,tag,"Straße, Ort"'


@pytest.mark.parametrize(("arguments", "words"), [
    (("--encoding", "latin-1"), ("--encoding is for a CSV file",)),
    (("--skip", "a", "--dataset", "synthetic"), ("--skip is for a CSV file",)),
    (("--data", "{houses}", "--target", "Preis"), ("not a text file in UTF-8", "--encoding")),
    (("--data", "{houses}", "--encoding", "cp1252", "--target", "Preis", "--loss", "mse"),
     ("'h0'", "--skip id")),
    (("--data", "{houses}", "--encoding", "cp1252", "--target", "Preis", "--skip", "id", "--loss",
      "mse"), ("date", "--skip tag")),
    (("--data", "{houses}", "--encoding", "cp1252", "--target", "Preis", "--skip",
      'id,tag,"Straße, Ort"', "--loss", "mse"), ("--decimal ,",)),
    (("--data", "{houses}", "--encoding", "cp1252", "--target", "Preis", "--skip",
      'id,tag,"Straße, Ort"', "--decimal", ","), ("numbers with decimals are values", "mse")),
    (("--data", "{houses}", "--encoding", "cp1252", "--target", "Preis", "--target", "Preis",
      "--loss", "mse"), ("names column 'Preis'", "twice")),
    (("--data", "{houses}", "--target", "Preis", "--loss", "bce", "--normalise-targets",
      "learned"), ("normalise_targets = learned is for target values", "bce")),
])
def test_what_keeps_a_table_from_being_read_names_the_option(
    rawnn: Rawnn, houses: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = rawnn(*(a.format(houses=houses) for a in arguments), "--device", "host")
    assert done.status in (1, 2), done.out
    last = done.err.rstrip().splitlines()[-1]
    assert last.startswith("rawnn: error: ")
    for word in words:
        assert word in last


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_an_index_of_training_is_not_another_column_of_another_file(
        rawnn: Rawnn, tmp_path: Path, loss: str) -> None:
    rows = RNG.normal(size=(60, 2)).round(3).tolist()
    answers = [("up", "down")[a > b] if loss == "cross_entropy" else round(2 * a - b, 3)
               for a, b in rows]
    files = {name: tmp_path / f"{name}.csv" for name in ("trained", "plain", "moved", "bare")}
    tables = {"trained": ["a,b,y"], "plain": ["a,b"], "moved": ["y,note,b,a"], "bare": []}
    for (a, b), y in zip(rows, answers, strict=True):
        for name, cells in (("trained", (a, b, y)), ("plain", (a, b)), ("moved", (y, 7, b, a)),
                            ("bare", (a, b, y))):
            tables[name].append(",".join(map(str, cells)))
    for name, lines in tables.items():
        files[name].write_text("\n".join(lines) + "\n")
    outputs = "2" if loss == "cross_entropy" else "1"
    done = rawnn(*FAST, "--data", str(files["trained"]), "--target", "-1", "--layers",
                 f"2-{outputs}", "--loss", loss, "--lr", "0.05", "--save", str(tmp_path / "saved"))
    assert done.status == 0, done.err
    shown = {name: rawnn("predict", str(tmp_path / "saved"), "--data", str(file))
             for name, file in files.items()}
    assert {done.status for done in shown.values()} == {0}, shown
    assert len({done.out for done in shown.values()}) == 1
    figures = {name: [line.split()[1] for line in done.err.splitlines()
                      if line.startswith("loss")] for name, done in shown.items()}
    assert figures.pop("plain") == []
    assert len({tuple(each) for each in figures.values()}) == 1


def test_columns_of_one_name_keep_their_places(rawnn: Rawnn, tmp_path: Path) -> None:
    x = RNG.normal(size=(60, 3)).round(3)
    y = np.where(x[:, 1] > 0, "up", "down")
    file, saved = tmp_path / "twice.csv", str(tmp_path / "saved")
    lines = [",".join([*map(str, row), word]) for row, word in zip(x.tolist(), y, strict=True)]
    file.write_text("\n".join(["f,f,g,y", *lines]) + "\n")
    done = rawnn(*FAST, "--data", str(file), "--target", "y", "--layers", "3-2", "--save", saved)
    assert done.status == 0, done.err
    done = rawnn("predict", saved, "--data", str(file))
    assert done.status == 0, done.err
    assert done.out.split()[1:] == Model.load(saved).predict(x, "labels").tolist()
    other = tmp_path / "other.csv"
    other.write_text("g,f,f\n1,2,3\n")
    done = rawnn("predict", saved, "--data", str(other))
    assert done.status == 2
    assert "several columns named 'f' are in" in done.err
    assert "in the order f,f,g" in done.err


def test_targets_in_another_order_are_compared_by_name(rawnn: Rawnn, tmp_path: Path) -> None:
    a = RNG.normal(size=60).round(3)
    file, saved = tmp_path / "two.csv", str(tmp_path / "saved")
    file.write_text("a,u,v\n" + "".join(f"{n},{2 * n},{9 - n}\n" for n in a.tolist()))
    done = rawnn(*FAST, "--data", str(file), "--target", "u,v", "--layers", "1-2", "--loss", "mse",
                 "--save", saved)
    assert done.status == 0, done.err
    shown = [rawnn("predict", saved, "--data", str(file), "--target", target)
             for target in ("u,v", "v,u", "2,1")]
    assert [done.status for done in shown] == [0, 0, 0]
    exact = np.mean((Model.load(saved).predict(a[:, None]) - np.stack([2 * a, 9 - a], 1)) ** 2)
    for done in shown:
        line = next(line for line in done.err.splitlines() if line.startswith("loss"))
        assert float(line.split()[1]) == pytest.approx(exact, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "bce"])
@pytest.mark.parametrize("layers", [(4, 8, 4), (4, 8, 3)])
@pytest.mark.parametrize("is_normalised", [False, True])
def test_without_answers_inputs_are_compared_with_where_they_can_be(
        loss: str, layers: tuple[int, ...], is_normalised: bool) -> None:
    """A network whose outputs are values of its inputs' number and unit."""
    normalisation = TargetNormalisation(np.zeros(layers[-1]), np.ones(layers[-1]))
    found = SimpleNamespace(network=Network(layers, loss=loss),
                            target_normalisation=normalisation if is_normalised else None)
    assert _reconstructs(cast(Any, found)) == (
        loss != "cross_entropy" and layers[0] == layers[-1] and not is_normalised)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-16"])
def test_a_pipe_gets_predictions_in_utf_8_behind_what_was_printed(
        encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(piped, encoding=encoding))
    sys.stdout.write("rows\n")
    predict_command._print("груша,1\n")
    assert piped.getvalue() == "rows\n".encode(encoding) + "груша,1\n".encode()


def test_names_of_classes_are_no_markup(rawnn: Rawnn, tmp_path: Path) -> None:
    names = ("[red]", "[/b]", ":smile:")
    rows = "\n".join(f"{9 * (n % 3)},{n % 3},{names[n % 3]}" for n in range(60))
    file = tmp_path / "t.csv"
    file.write_text(f"[a],b,[kind]\n{rows}\n")
    kept = str(tmp_path / "kept")
    done = rawnn("--data", str(file), "--target", "[kind]", "--layers", "2-3", *FAST, "--save",
                 kept)
    assert done.status == 0, done.err
    for arguments in (("eval", kept, "--confusion"), ("predict", kept, "--data", str(file),
                                                      "--target", "[kind]")):
        done = rawnn(*arguments)
        assert done.status == 0, done.err
        shown = done.out if arguments[0] == "eval" else done.err
        for name in names:
            assert shown.count(name) == 3  # a row of each table, a column of the second
