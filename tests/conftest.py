"""How tests are shared among processes, and the GPUs of tests: a simulated one, which a test must
leave clean unless it provoked an error on it, and the machine's own."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rawnn.common.errors import DeviceError
from rawnn.cuda.device import Device
from rawnn.engine.machine import open_gpu
from rawnn.sim import Simulation, kernel_references
from tests import slices

os.environ.pop("COLUMNS", None)  # with which xdist makes its workers 80 columns wide
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


BYTECODE = tempfile.mkdtemp(prefix="rawnn-bytecode-") \
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") else ""
"""Where Python is not to write bytecode beside the sources: the folder for that of processes which
tests start. Otherwise each compiles the package anew, two fifths of its time."""
if BYTECODE:
    os.environ["PYTHONPYCACHEPREFIX"] = BYTECODE


def pytest_unconfigure() -> None:
    if BYTECODE:
        shutil.rmtree(BYTECODE, ignore_errors=True)


YOUNG = 10_000
"""Objects that are made before the garbage collector looks at them; Python's own default is 700."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The collector does not run while tests are collected, which leave nothing to free, and no
    longer walks through the modules and the tests themselves, most of a million objects. Otherwise
    it takes a tenth of the time of short tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
        gc.enable()


def pytest_report_header() -> str:
    return slices.header()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where `-n` is given and no `--dist`: a worker that has nothing left takes tests from another.
    Long tests stand together in a file, and with the default one of two workers was idle for a
    quarter of the time."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


COVERED = 4
"""Of so many cases of each test, evenly spread, coverage is recorded, where it is asked for.
Further cases run the same lines, and recording makes them half as long again."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("_cov"):
        return
    families: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        families.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for family in families.values():
        recorded = {place * len(family) // COVERED for place in range(COVERED)}
        for place, item in enumerate(family):
            if place not in recorded:
                item.add_marker(pytest.mark.no_cover)


@pytest.fixture(scope="module", autouse=True)
def small_workspaces(request: pytest.FixtureRequest) -> Iterator[None]:
    """Products ask for 64 KiB of scratch memory in place of 4 or 32 MiB: up to half of the time of
    simulated runs of cuBLAS was spent on filling it."""
    with ExitStack() as patches:
        if request.path.parent.name not in ("gpu", "records"):
            for name in ("WORKSPACE_BYTES", "LARGE_WORKSPACE_BYTES"):
                patches.enter_context(mock.patch(f"rawnn.opts.cublas.{name}", 64 << 10))
        yield


@pytest.fixture
def sim() -> Iterator[Simulation]:
    """A fresh simulated GPU. What the test leaves alive fails it; after a SimulationError, or a
    planned fault, nothing is asked."""
    simulation = Simulation()
    yield simulation
    if not simulation.errors and not simulation.faults.failed:
        simulation.assert_clean()


@pytest.fixture
def device(sim: Simulation) -> Iterator[Device]:
    """The simulated GPU, opened, and closed behind the test."""
    opened = Device(sim.backend())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    """The first GPU, opened for a module and closed behind it; without one its tests skip."""
    try:
        opened = open_gpu(0, print)
    except DeviceError as error:
        pytest.skip(str(error))
    yield opened
    opened.close()


@pytest.fixture
def own_meanings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers of its own kernels is forgotten behind it."""
    monkeypatch.setattr(kernel_references, "_registered", {})
