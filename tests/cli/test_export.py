"""`rawnn export`: a checkpoint as an ONNX model that says the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rawnn.engine.model import Model
from tests import requires
from tests.cli.conftest import Rawnn

requires.module("onnx")
runtime = requires.module("onnxruntime")


def test_from_the_command_line_after_training(rawnn: Rawnn, tmp_path: Path) -> None:
    table, kept, file = tmp_path / "own.csv", tmp_path / "runs", tmp_path / "m.onnx"
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(60, 3))
    table.write_text("a,b,c,kind\n" + "\n".join(
        ",".join(f"{v:.4f}" for v in row) + (",tall" if row.sum() > 0 else ",short")
        for row in rows))
    done = rawnn("--data", str(table), "--target", "kind", "--layers", "3-4-2", "--normalise",
                 "learned", "--epochs", "3", "--batch", "8", "--device", "host", "--save",
                 str(kept))
    assert done.status == 0, done.err
    done = rawnn("export", str(kept), str(file))
    assert done.status == 0, done.err
    assert f"is in {file}" in done.err
    inputs = rows.round(4).astype(np.float32)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    probabilities, = session.run(["probabilities"], {"inputs": inputs})
    np.testing.assert_allclose(
        probabilities, Model.load(kept).predict(inputs, "probabilities"), atol=1e-5)
    for arguments, message in (((str(kept), "m.pt"), ".onnx"), ((str(tmp_path), str(file)), ""),
                               ((str(kept), "/nowhere/m.onnx"), "no directory")):
        done = rawnn("export", *arguments)
        assert done.status != 0
        assert message in done.err
        assert "Traceback" not in done.err


def test_inputs_that_float32_merges_are_warned_of(rawnn: Rawnn, tmp_path: Path) -> None:
    table, saved, file = tmp_path / "own.csv", str(tmp_path / "runs"), str(tmp_path / "m.onnx")
    table.write_text("time,y\n" + "".join(f"{10**9 + i},{i % 2}\n" for i in range(40)))
    done = rawnn("--data", str(table), "--target", "y", "--layers", "1-2", "--normalise", "learned",
                 "--epochs", "1", "--device", "host", "--save", saved)
    assert done.status == 0, done.err
    done = rawnn("export", saved, file)
    assert done.status == 0
    assert "WARNING: the model's inputs of float32 cannot tell apart the values of column 'time'" \
        in done.err
    assert "WARNING" not in rawnn("export", saved, file, "--input-type", "float64").err
