"""The commands that hold contests."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from rawnn.bench.peers.problem import RUN_STEPS
from rawnn.bench.peers.records import read_contests
from rawnn.bench.peers.workload_table import table_rows
from tests.bench.contests import invoke


def test_the_headline_command(tmp_path: Path) -> None:
    kept, table = tmp_path / "r.json", tmp_path / "r.md"
    done = invoke("random", "--peers", "--n", "1", "--seed", "2", "--device", "host", "--peer",
                  "numpy", "--json", str(kept), "--markdown", str(table))
    assert done.exit_code == 0, done.output
    for words in ("seed 2", "float32 against true float32", "above 1 we are faster", "draw 1"):
        assert words in done.output
    assert len(read_contests(kept).contests) == 1
    assert "Nothing failed" in table.read_text()
    again = invoke("random", "--peers", "--device", "host", "--peer", "numpy", "--resume",
                   str(kept))
    assert again.exit_code == 0, again.output
    shorter = msgspec.structs.replace(read_contests(kept), run_steps=128_000)
    assert shorter.run_steps != read_contests(kept).run_steps == RUN_STEPS
    shorter.write_json(kept)
    again = invoke("random", "--peers", "--device", "host", "--peer", "numpy", "--resume",
                   str(kept))
    assert again.exit_code != 0
    assert "of runs of 128,000 steps" in str(again.exception or again.output)


def test_workloads_beside_numpy(tmp_path: Path) -> None:
    kept = tmp_path / "p.json"
    done = invoke("peers", "--workload", "linear", "--dataset", "synthetic", "--device", "host",
                  "--peer", "numpy", "--steps", "4", "--json", str(kept), "--markdown",
                  str(tmp_path / "p.md"))
    assert done.exit_code == 0, done.output
    rows = table_rows(read_contests(kept))
    assert [row[1] for row in rows] == ["rawnn", "numpy"]
    assert all(row[-1] == "agree" for row in rows)
    assert "| linear | rawnn |" in (tmp_path / "p.md").read_text()


@pytest.mark.parametrize(("arguments", "words"), [
    (("random", "--peers", "--peer", "tarch"), "did you mean 'torch'"),
    (("random", "--peers", "--work", "5"), "--peers does not"),
    (("random", "--budget", "5"), "--budget goes with --peers only"),
    (("random", "--seed", "1", "--seed", "2"), "a second --seed goes with --peers only"),
    (("random", "--peers", "--part", "3/2"), "'3/2' is no part: 2/3 is the second of three"),
    (("peers", "--workload", "lineer"), "did you mean 'linear'"),
    (("peers", "--device", "gpu:3"), "CUDA_VISIBLE_DEVICES=3")])
def test_what_means_nothing_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code != 0
    assert words in str(done.exception) + done.output


def test_a_peer_that_is_not_installed_is_left_out_by_name() -> None:
    absent = next((s for s in ("torch", "jax") if find_spec(s) is None), None)
    if absent is None:
        pytest.skip("all peers are installed")
    done = invoke("random", "--peers", "--n", "1", "--device", "host", "--peer", absent)
    assert f"{absent} is not installed" in done.output
    assert "left out" in done.output
