"""`rawnn bench workloads`: every workload with every set of toggles, and what could not be run."""

from __future__ import annotations

import msgspec
import pytest

from rawnn.bench.workloads import WorkloadsResult, default_sets, run_workloads
from rawnn.errors import ConfigError
from tests.engine import random_dataset

DATA = random_dataset(784, 10, 300, 60)


def test_a_workload_is_measured_with_each_set_of_toggles(tmp_path):
    heard = []
    result = run_workloads(["linear"], ["best", "none"], repeats=2, epochs=2, device="host",
                           data=DATA, on_result=lambda r: heard.append(len(r.measurements)))
    assert heard == [1, 2]
    for m, opt in zip(result.measurements, ("best", "none"), strict=True):
        assert (m.workload, m.opt, m.steps, m.reason) == ("linear", opt, 2, "")
        assert len(m.accuracies) == 2
        assert m.us.median == pytest.approx(m.epoch_ms.median * 500)
    file = tmp_path / "workloads.json"
    result.write_json(file)
    assert msgspec.json.decode(file.read_bytes(), type=WorkloadsResult) == result
    assert result.markdown().count("| `linear` |") == 2


def test_what_cannot_run_is_kept_with_the_reason():
    result = run_workloads(["wide7"], ["graphs", "best"], repeats=1, epochs=1, device="host",
                           data=DATA)
    assert "only for a GPU" in result.measurements[0].reason
    assert result.measurements[1].us is not None


def test_sixteen_bit_workloads_are_measured_in_32_bits_too():
    assert default_sets("linear") == ["best"]
    assert default_sets("wide64") == ["best", "best,bf16", "best,sr"]


def test_an_unknown_workload_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="unknown workload 'wide'"):
        run_workloads(["linear", "wide"], device="host", data=DATA)
