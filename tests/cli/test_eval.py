"""`rawnn eval` and `rawnn predict`, and the options of training that they follow."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from rawnn.cli.figures import class_figures
from rawnn.network.layers import Network
from rawnn.run.checkpoint import Checkpoint, listed, write
from tests.cli.conftest import Rawnn

RNG = np.random.default_rng(0)
FAST = ("--device", "host", "--epochs", "30", "--batch", "8")


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """A table of three kinds that are easily told apart."""
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


NAMES = ("lily", "rose", "tulip")


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
    assert "are back" in done.err


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
