"""What `rawnn bench workloads` measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawnn.bench.suites import read_suites
from rawnn.bench.workloads import default_sets, workload_sets
from rawnn.common.errors import ConfigError


def test_sixteen_bit_workloads_are_measured_in_32_bits_too() -> None:
    assert default_sets("linear") == ["best"]
    assert default_sets("wide64") == ["best", "best,bf16", "best,sr"]


def test_sets_that_are_named_replace_a_workloads_own() -> None:
    assert workload_sets(["linear", "wide64"], ["none"]) == [("linear", "none"), ("wide64", "none")]
    assert workload_sets(["linear"]) == [("linear", "best")]
    with pytest.raises(ConfigError, match="unknown workload 'wide'"):
        workload_sets(["wide"])


def test_a_file_of_ones_own_says_with_which_sets(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[workloads.sets]\nwide64 = ["seed"]\n')
    suite = read_suites(str(own)).workloads
    assert workload_sets(["linear", "wide64", "mlp4"], (), suite)[:3] == [
        ("linear", "best"), ("wide64", "seed"), ("mlp4", "best")]
