"""The examples run as they stand, and the TOML files are configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rawnn.engine.config import Config, read_toml
from tests import requires

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True,
        timeout=240, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_regression() -> None:
    done = run("regression.py")
    assert done.returncode == 0, done.stderr
    assert "R2 = " in done.stdout


def test_digits() -> None:
    requires.module("sklearn")
    done = run("digits.py")
    assert done.returncode == 0, done.stderr
    assert "test accuracy 0.9" in done.stdout
    assert "'2.weight': (10, 64)" in done.stdout


def test_digits_without_scikit_learn(tmp_path: Path) -> None:
    (tmp_path / "sklearn.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "digits.py")], capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert done.returncode == 1
    assert done.stderr.strip() == "this example needs scikit-learn: pip install scikit-learn"


NOTEBOOKS = (EXAMPLES / "first_steps.ipynb", EXAMPLES / "lab" / "first_kernel.ipynb")


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return found


def run_notebook(notebook: Path, folder: Path, **environment: str) -> str:
    """What its cells print from top to bottom, on the simulated GPU."""
    code = "\n".join("".join(cell["source"]) for cell in cells(notebook)
                     if cell["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False,
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "NOTEBOOK_DEVICE": "sim",
                         "NOTEBOOK_DATASET": "synthetic", **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_notebook_runs_from_top_to_bottom_as_on_a_t4(tmp_path: Path) -> None:
    output = run_notebook(NOTEBOOKS[0], tmp_path, RAWNN_COMPUTE="7.5", NOTEBOOK_EPOCHS="1")
    assert "simulated GPU, compute capability" in output
    assert output.rstrip().endswith("y = 1 + 2 x, as NumPy says")
    ladder = [line.split()[-1] for line in output.splitlines()
              if line.split()[:1] in (["none"], ["best"]) and ":" not in line]
    assert len(set(ladder)) == 1  # no toggle changes the accuracy


def test_the_notebook_of_the_lab_runs_from_top_to_bottom(tmp_path: Path) -> None:
    requires.module("cuda.bindings.nvrtc")
    output = run_notebook(NOTEBOOKS[1], tmp_path)
    for words in ("points to float, but the array holds int64", "saxpy<float>: right with all of",
                  "whole_blocks: WRONG", "saxpy<float> on simulated GPU", "4 of 4 variants tried",
                  "bias_relu=mine runs relu1 of 784-64-10"):
        assert words in output
    plain, mine = (line.split("accuracy ")[1].split(",")[0] for line in output.splitlines()
                   if line.startswith("best"))
    assert plain == mine


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_a_run_leaves_in_it(notebook: Path) -> None:
    kept = json.loads(notebook.read_text())
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in cells(notebook)}) == len(cells(notebook))
    for cell in cells(notebook):
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            compile("".join(cell["source"]), cell["id"], "exec")
        else:
            assert cell.keys() == {"cell_type", "id", "metadata", "source"}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_configurations(file: Path) -> None:
    config = Config.from_mapping(read_toml(file), file.name)
    assert config.layers[0] == 784
    assert f"--config examples/{file.name}" in file.read_text()


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_every_example_says_what_it_shows(file: Path) -> None:
    code = compile(file.read_text(), str(file), "exec")
    assert isinstance(code.co_consts[0], str)
