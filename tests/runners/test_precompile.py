"""What a measurement compiles ahead of its first run is what its runs need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rawnn.common.listener import Listener
from rawnn.data import load_dataset
from rawnn.engine.config import Config
from rawnn.engine.machine import open_device
from rawnn.engine.run_planner import RunPlanner
from rawnn.engine.runners.precompile import precompile
from rawnn.engine.session import Session

DATA = load_dataset("synthetic")
SETS = ("preload,arena", "preload,arena,nosync,fuse", "preload,arena,nosync,bf16,mma,fuse,pdl",
        "preload,arena,nosync,fuse,graphs=4")


@pytest.mark.parametrize("parallel", [True, False])
def test_runs_compile_nothing_that_was_compiled_ahead(parallel: bool) -> None:
    opened = open_device("sim", lambda message: None)
    device = opened.device
    assert device is not None
    device.backend = replace(device.backend, parallel=parallel)  # as a GPU's, whose threads compile
    configs = [Config(layers=(784, 16, 10), batch=64, epochs=1, opt=opt, device="sim",
                      dataset="synthetic") for opt in SETS]
    precompile(device, [RunPlanner(c, DATA, opened, None, lambda message: None).plan(None)[1]
                        for c in configs])
    ahead = device.compiled + device.cached
    assert (ahead > 10) is parallel  # else there is nothing to gain
    later = []
    for config in configs:
        before = device.compiled + device.cached
        with Session(config, Listener(), data=DATA, opened=opened):
            later.append(device.compiled + device.cached - before)
    assert (later[:3] == [0, 0, 0]) is parallel
    if parallel:
        assert later[3] < 5  # what a graph needs besides
    opened.close()
