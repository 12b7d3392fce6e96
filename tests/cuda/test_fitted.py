"""Constants kept of a GPU: what is read is what was kept, and a file that is none is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.target import known
from rawnn.cuda.device import Device
from rawnn.cuda.fitted_constants import keep, kept, path_of
from rawnn.cuda.occupancy import blocks_at_once
from rawnn.persistent.chip import chip_of
from rawnn.persistent.choose import choose
from rawnn.persistent.cost import FITTED, FITTED_AT, costs_of
from rawnn.sim import sim_backend
from tests.persistent.problems import HOPPER, problem

GPU = "NVIDIA A100-SXM4-80GB"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    return tmp_path


def test_what_was_kept_is_read_for_that_gpu_alone(cache: Path) -> None:
    assert kept(GPU) == {}
    path = keep(GPU, {"clock": 1234.5, "exchange": 400})
    assert path == cache / "floors" / "costs-nvidia-a100-sxm4-80gb.json"
    assert kept(GPU) == {"clock": 1234.5, "exchange": 400.0}
    assert kept("NVIDIA A100-PCIE-40GB") == {}


@pytest.mark.parametrize(("gpu", "name"), [
    ("NVIDIA GeForce RTX 4090 (Laptop)", "nvidia-geforce-rtx-4090-laptop"), ("(A.1)", "a.1"),
    ("H100 80GB HBM3", "h100-80gb-hbm3"), ("Tesla T4 MIG 1g.5gb", "tesla-t4-mig-1g.5gb")])
def test_a_file_has_the_name_of_its_gpu(cache: Path, gpu: str, name: str) -> None:
    assert path_of(gpu) == cache / "floors" / f"costs-{name}.json"


@pytest.mark.parametrize("spoil", [
    lambda text: text[:-9], lambda text: "[]", lambda text: text.replace('"costs"', '"floors"'),
    lambda text: text.replace("A100", "H100"), lambda text: text.replace("1234.5", "-1"),
    lambda text: text.replace("1234.5", "NaN"), lambda text: text.replace("1234.5", '"fast"'),
    lambda text: text.replace('schema_version": 1', 'schema_version": 2')])
def test_a_file_that_holds_none_is_refused(spoil: Callable[[str], str]) -> None:
    path = keep(GPU, {"clock": 1234.5})
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ConfigError, match=r"costs-nvidia.*write it anew"):
        kept(GPU)


def test_an_open_device_brings_its_clock_and_what_was_fitted_to_it() -> None:
    keep("simulated GPU", {"exchange": 5000.0})
    device = Device(sim_backend())
    target = device.target()
    assert (target.clock, dict(target.costs)) == (1980.0, {"exchange": 5000.0})
    assert path_of(target.name).exists()
    device.close()


def test_costs_are_those_fitted_or_else_scaled_by_the_clock() -> None:
    target = known((9, 0))
    assert target.clock == FITTED_AT
    assert costs_of(target) == FITTED == HOPPER.costs
    assert costs_of(replace(target, clock=990.0)) == replace(FITTED, clock=FITTED.clock / 2)
    assert costs_of(replace(target, clock=0.0)) == FITTED
    fitted = replace(target, clock=990.0, costs={"clock": 1500.0, "exchange": 20.0})
    assert costs_of(fitted) == replace(FITTED, clock=1500.0, exchange=20.0)
    earlier = replace(target, costs={"product": 2.0, "far_meeting": 9.0})  # names of a file of then
    assert costs_of(earlier) == replace(FITTED, gemm=2.0, via_l2_all_reduce=9.0)
    with pytest.raises(ConfigError, match="of H200: none is called nothing"):
        costs_of(replace(target, costs={"nothing": 1.0}))


def test_they_decide_what_is_chosen() -> None:
    asked = problem((64, 96, 64, 10), 64)
    ours, slow = choose(asked, HOPPER), choose(asked, chip_of(replace(known((9, 0)), clock=990.0)))
    assert slow.layout == ours.layout
    assert slow.us == pytest.approx(2 * ours.us)
    assert ours.sharding.tp_size > 1
    dear = chip_of(replace(known((9, 0)), costs={"exchange": 1e6, "far": 1e6, "meeting": 1e6}))
    assert choose(asked, dear).sharding.tp_size == 1


def test_blocks_at_once_are_the_clusters_at_once_by_their_size() -> None:
    """The simulated GPU has 132 multiprocessors, with a block each."""
    device = Device(sim_backend())
    shared = device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    assert blocks_at_once(device, shared) == {
        size: len(range(size, 133, size)) * size for size in (1, 2, 4, 8, 16)}
    device.close()
