"""A step taken apart on a GPU: by events, and by CUPTI where cupti-python is installed."""

from __future__ import annotations

import pytest

from rawnn.bench import cupti
from rawnn.bench.profiling import OUTSIDE, ProfileResult, Way, profile
from rawnn.cuda.device import Device
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.model.layers import Network
from rawnn.plan.merging import DEFERRED
from tests.engine import dataset_for

pytestmark = pytest.mark.gpu

LAYERS, BATCH, EXAMPLES = (64, 256, 10), 32, 1024
LIBRARIES = ("cublas", "cudnn")
DATA = dataset_for(Network(LAYERS), EXAMPLES, 64)


def taken_apart(device: Device, opt: str, way: Way) -> ProfileResult:
    config = Config(layers=LAYERS, batch=BATCH, opt=opt)
    return profile(config, DATA, Opened(device, machine_of(device), 0.0), 20, way)


@pytest.mark.parametrize("opt", ["preload,arena,nosync", "preload,graphs=epoch,fuse",
                                 "best,-persistent"])
def test_ops_take_some_microseconds_each(device: Device, opt: str) -> None:
    result = taken_apart(device, opt, "events")
    assert result.steps == 20
    assert result.empty_us > 0
    for op in result.ops:
        assert op.us.median >= 0, op
    assert sum(op.us.median > 0.5 for op in result.ops) > len(result.ops) / 2


@pytest.mark.parametrize("opt", ["preload,arena,nosync", "preload,graphs=epoch,fuse",
                                 "best,-persistent"])
def test_cupti_sees_every_op_of_every_step(device: Device, opt: str) -> None:
    if reason := cupti.missing():
        pytest.skip(reason)
    result = taken_apart(device, opt, "cupti")
    named = {op.name: op for op in result.ops if op.kind != OUTSIDE}
    assert result.steps == EXAMPLES // BATCH
    # Deferred ops run once a graph; on branches of a graph kernels of a library are guessed.
    guessed = LIBRARIES if "streams" in result.toggles else ()
    seen = {name: op.us.n for name, op in named.items()
            if op.kind.partition("/")[0] not in DEFERRED
            and op.kind.partition("/")[2] not in guessed}
    assert min(seen.values()) >= result.steps - 1, seen
    by_events = {op.name: op for op in taken_apart(device, opt, "events").ops}
    assert named.keys() <= by_events.keys()
    missing = by_events.keys() - named.keys()
    assert all(by_events[name].kind.partition("/")[2] in guessed for name in missing), missing
    assert result.ops_us > 0
