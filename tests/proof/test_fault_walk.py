"""Every call of a short training run fails, one at a time, with every code there is: always one
clear error, no hang, no leak, nothing written half."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import rawnn.cli
from rawnn.common.errors import CompileError, ConfigError, OutOfMemory
from rawnn.common.listener import Listener
from rawnn.cuda.device import Device
from rawnn.engine.config import Config
from rawnn.engine.machine import Opened, machine_of
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.engine.session import Session
from rawnn.opts.registry import TOGGLES
from rawnn.sim import Fault, Faults, Simulation
from rawnn.sim.codes import CODES
from tests.engine import spelled
from tests.proof.runs import (
    ONE,
    TWO,
    WIDE,
    data,
    first_of_each_site,
    recorded,
    strike,
    train,
    work,
)
from tests.slices import FULL, SLICE, SLICES, sliced

PRESETS = ("none", "seed", "best")
GRAPH_MODES = tuple(f"preload,graphs={mode}" for mode in ("step", "epoch", "while", "2"))
SINGLE = tuple(map(spelled, TOGGLES))
EVERYTHING = "preload,cublas,cudnn,fuse,graphs=while"

pytestmark = pytest.mark.timeout(120)  # a hang fails


def walk(opt: str, layers: tuple[int, ...], indices: Iterable[int]) -> None:
    """Fail each of the calls in turn."""
    clean = len(recorded(opt, layers).calls)
    for index in indices:
        outcome = strike(work(opt, layers), Fault(index=index))
        assert outcome.faulty is None, f"call {index}, {outcome.call}: {outcome.faulty}"
        made = len(outcome.simulation.calls)
        assert made <= clean + 5, f"call {index}, {outcome.call}: {made} calls, {clean} without"


ONE_IN = 10
"""Of so many pairs of toggles one is walked."""


@pytest.mark.parametrize("opt", dict.fromkeys((*PRESETS, *SINGLE, *GRAPH_MODES)))
def test_every_call_of_a_run_fails_in_turn(opt: str) -> None:
    """Of presets and kinds of graphs every call site, of another toggle a third of the sites; and
    of what a site calls again one call in ten."""
    every = range(len(recorded(opt).calls))
    if FULL:
        walk(opt, ONE, every)
        return
    whole = opt in (*PRESETS, *GRAPH_MODES)
    sites = list(first_of_each_site(opt))
    some = every[(zlib.crc32(opt.encode()) + SLICE) % SLICES::SLICES]
    walk(opt, ONE, sorted({*(sites if whole else sliced(sites, len(sites) // 3)), *some}))


def test_memory_is_not_freed_under_a_copy_whose_event_failed() -> None:
    """What one stream frees in its order the other may still be copying into."""
    calls = recorded("async,streams").calls
    events = [i for i, (_, call) in enumerate(calls) if call == "cuEventRecord"]
    assert len(events) > 5
    walk("async,streams", ONE, events[len(events) // 2 :][:6])


@pytest.mark.parametrize("opt", [*PRESETS, "cublas,fuse", EVERYTHING])
def test_call_sites_fail_with_two_layers(opt: str) -> None:
    sites = list(first_of_each_site(opt, TWO))
    walk(opt, TWO, sliced(sites, len(sites) // 3))


def test_every_call_site_fails_where_a_product_is_cut_into_slices() -> None:
    assert ("cublas", "cublasLtMatrixLayoutSetAttribute") in recorded("cublas", WIDE).calls
    walk("cublas", WIDE, first_of_each_site("cublas", WIDE))


def test_the_page_says_how_many_pairs_are_walked() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text()
    fraction = {3: "a third", 4: "a quarter", 6: "a sixth", 10: "a tenth"}[ONE_IN]
    assert f"and {fraction} of the pairs of" in " ".join(page.split())


def test_pairs_of_toggles() -> None:
    """One pair in `ONE_IN`, other ones in each slice, and of each some of its call sites."""
    draw = random.Random(SLICE)
    pairs = [",".join(pair) for pair in combinations([*SINGLE, "graphs=epoch", "graphs=while"], 2)]
    walked = 0
    for opt in sliced(pairs, len(pairs) // ONE_IN):
        try:
            sites = first_of_each_site(opt)
        except ConfigError:
            continue  # two that exclude each other
        walk(opt, ONE, draw.sample(sites, 8))
        walked += 1
    assert walked >= 10


def apis() -> list[tuple[str, str, str, tuple[int, ...]]]:
    """(library, call, opt, layers) of every call that any run makes; the cheapest run of each."""
    found: dict[str, tuple[str, str, str, tuple[int, ...]]] = {}
    for opt, layers in (("best", ONE), (EVERYTHING, ONE), ("none", ONE), ("cublas", WIDE),
                        ("async,pinned,streams,pdl", ONE), ("preload,pdl,graphs", ONE)):
        for library, call in recorded(opt, layers).calls:
            found.setdefault(call, (library, call, opt, layers))
    return list(found.values())


API_NAMES = [
    "cuCtxSetCurrent", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool", "cuDeviceGetName", "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRetain", "cuDeviceTotalMem", "cuDriverGetVersion", "cuEventCreate",
    "cuEventDestroy", "cuEventElapsedTime", "cuEventRecord", "cuFuncGetAttribute",
    "cuGraphAddChildGraphNode", "cuGraphAddConditionalNode", "cuGraphAddDependencies",
    "cuGraphAddKernelNode", "cuGraphAddMemsetNode", "cuGraphConditionalHandleCreate",
    "cuGraphCreate", "cuGraphDestroy", "cuGraphExecDestroy", "cuGraphGetEdges", "cuGraphGetNodes",
    "cuGraphInstantiate", "cuGraphLaunch", "cuGraphUpload", "cuInit", "cuLaunchKernel",
    "cuLaunchKernelEx", "cuLinkAddData", "cuLinkComplete", "cuLinkCreate", "cuLinkDestroy",
    "cuMemAlloc", "cuMemAllocAsync", "cuMemFree", "cuMemFreeAsync", "cuMemFreeHost",
    "cuMemHostAlloc", "cuMemPoolGetAttribute", "cuMemPoolSetAttribute", "cuMemPoolTrimTo",
    "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuModuleGetFunction",
    "cuModuleLoadData", "cuModuleUnload", "cuStreamBeginCaptureToGraph", "cuStreamCreate",
    "cuStreamDestroy", "cuStreamEndCapture", "cuStreamGetCaptureInfo", "cuStreamSynchronize",
    "cuStreamWaitEvent", "cublasLtCreate", "cublasLtDestroy", "cublasLtGetVersion",
    "cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute", "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatrixLayoutSetAttribute",
    "cudnnCreate", "cudnnCreateTensorDescriptor", "cudnnDestroy", "cudnnDestroyTensorDescriptor",
    "cudnnGetVersion", "cudnnSetStream", "cudnnSetTensor4dDescriptorEx", "cudnnSoftmaxForward",
    "nvrtcAddNameExpression", "nvrtcCompileProgram", "nvrtcCreateProgram", "nvrtcDestroyProgram",
    "nvrtcGetCUBIN", "nvrtcGetLoweredName", "nvrtcGetPTX", "nvrtcGetProgramLog",
]


def test_the_runs_make_the_calls_named_here() -> None:
    assert sorted(call for _, call, _, _ in apis()) == API_NAMES


CODES_IN = 1 if FULL else 8
"""Of so many codes that mean the same to rawnn, one is returned by each call: by another call
another one. Those that rawnn tells from others are returned by all."""


def test_rawnn_tells_few_codes_from_others() -> None:
    assert "CUDA_ERROR_OUT_OF_MEMORY" in distinguished_codes()
    assert len(distinguished_codes()) < sum(map(len, CODES.values())) / 4


@functools.cache
def distinguished_codes() -> set[str]:
    """The codes that rawnn's own code names."""
    text = "".join(path.read_text() for path in Path(rawnn.__file__).parent.rglob("*.py")
                   if "sim" not in path.parts)
    words = {*re.findall(r"\w+", text)}
    return {code for codes in CODES.values() for code in codes if code in words}


@pytest.mark.parametrize("call", API_NAMES)
def test_the_documented_codes_of_every_call(call: str) -> None:
    library, call, opt, layers = next(api for api in apis() if api[1] == call)
    turn = API_NAMES.index(call)
    for number, (code, (value, _)) in enumerate(CODES[library].items()):
        if value and ((number + turn + SLICE) % CODES_IN == 0 or code in distinguished_codes()):
            outcome = strike(work(opt, layers), Fault(code, call=call))
            assert outcome.faulty is None, f"{code}: {outcome.faulty}"


# -- errors while an error is worded --------------------------------------------------------------
def test_out_of_memory_is_said_even_where_the_driver_does_not_say_what_is_free() -> None:
    simulation = Simulation(faults=Faults(Fault("CUDA_ERROR_OUT_OF_MEMORY", call="cuMemAlloc"),
                                          Fault(call="cuMemGetInfo")))
    with pytest.raises(OutOfMemory, match="no room for") as caught:
        train(simulation, work("none"))
    assert "are free" not in str(caught.value)
    simulation.assert_clean()


@pytest.mark.parametrize("call", ["nvrtcVersion", "nvrtcGetSupportedArchs"])
def test_a_compile_error_is_said_even_where_nvrtc_does_not_say_its_version(call: str) -> None:
    simulation = Simulation(faults=Faults(
        Fault("NVRTC_ERROR_COMPILATION", call="nvrtcCompileProgram"), Fault(call=call)))
    with pytest.raises(CompileError, match="cannot compile"):
        train(simulation, work("none"))
    simulation.assert_clean()


# -- through a session, and through the command line ----------------------------------------------
def session_run(simulation: Simulation, made: PreparedRun, opt: str) -> dict[str, Any]:
    with ExitStack() as closing:
        device = Device(simulation.backend())
        closing.callback(device.close)
        opened = Opened(device, machine_of(device), 0.0)
        config = Config(layers=ONE, epochs=2, batch=2, device="sim", opt=opt)
        with Session(config, Listener(), data=data(5), opened=opened) as session:
            return session.run().to_dict()


@pytest.mark.parametrize("opt", PRESETS)
def test_a_session_with_a_call_failing(opt: str) -> None:
    faults = Faults()
    session_run(Simulation(faults=faults), work(opt), opt)
    run = functools.partial(session_run, opt=opt)
    for index in sliced(range(len(faults.calls))):
        outcome = strike(work(opt), Fault(index=index), run)
        assert outcome.faulty is None, f"call {index}, {outcome.call}: {outcome.faulty}"


COMMAND = ["--device", "sim", "--layers", "5-3", "--batch", "2", "--epochs", "2", "--opt", "best"]

NOTICES = {"rawnn: the simulated device computes with NumPy: its times say nothing of a GPU"}


def command_line(arguments: list[str], simulation: Simulation) -> int:
    with mock.patch("rawnn.sim.sim_backend", return_value=simulation.backend()), \
            mock.patch("rawnn.engine.data_source.load_dataset", return_value=data(5)):
        return rawnn.cli.run(arguments)


@pytest.mark.parametrize("call", [
    "cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuModuleLoadData", "cuGraphInstantiate",
    "cuGraphLaunch", "cuMemcpyDtoHAsync", "cuEventElapsedTime", "cuEventDestroy",
    "cuGraphExecDestroy", "cuMemFree", "cuStreamDestroy", "cuDevicePrimaryCtxRelease",
])
def test_the_command_line_says_one_line_and_leaves_the_result_of_before(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "result.json"
    target.write_text("the result of before")
    simulation = Simulation(faults=Faults(Fault(call=call)))
    assert command_line([*COMMAND, "--json", str(target)], simulation) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line not in NOTICES]
    assert len(lines) == 1, lines
    line, = lines
    assert line.startswith("rawnn: error: ")
    assert f"{call} failed with CUDA_ERROR_UNKNOWN [999]" in line
    assert target.read_text() == "the result of before"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_the_command_line_without_a_fault_writes_the_whole_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "result.json"
    target.write_text("the result of before")
    simulation = Simulation()
    assert command_line([*COMMAND, "--json", str(target)], simulation) == 0
    assert len(json.loads(target.read_text())["history"]) > 0
    assert set(capsys.readouterr().err.splitlines()) <= NOTICES
    simulation.assert_clean()


# -- the cache of compiled kernels ----------------------------------------------------------------
def entries(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cached_run(simulation: Simulation, made: PreparedRun) -> dict[str, Any]:
    backend = dataclasses.replace(simulation.backend(), cache=True)
    with mock.patch.object(simulation, "backend", return_value=backend):
        return train(simulation, made)


def test_a_failing_run_leaves_only_whole_entries_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of kernels compiled before the failure stay, as they would be without it."""
    made = work("seed")
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "clean"))
    cached_run(Simulation(), made)
    whole = entries(tmp_path / "clean")
    assert len(whole) >= 4
    calls = recorded("seed").calls
    compiling = [i for i, (library, call) in enumerate(calls)
                 if library == "nvrtc" or call.startswith("cuModule")]
    for index in compiling:
        folder = tmp_path / str(index)
        monkeypatch.setenv("RAWNN_CACHE", str(folder))
        outcome = strike(made, Fault(index=index), cached_run)
        assert outcome.faulty is None
        found = entries(folder)
        assert found.items() <= whole.items()
        again = cached_run(Simulation(), made)
        assert again["facts"]["kernels_cached"] == len(found)
        assert entries(folder) == whole


def test_a_failing_run_leaves_a_full_cache_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = work("best")
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    clean = cached_run(Simulation(), made)
    before = entries(tmp_path)
    simulation = Simulation()
    cached_run(simulation, made)
    for index in range(0, len(simulation.calls), 3):
        assert strike(made, Fault(index=index), cached_run).faulty is None
    assert entries(tmp_path) == before
    after = cached_run(Simulation(), made)
    assert after["facts"]["kernels_compiled"] == 0
    np.testing.assert_array_equal(after["loss"], clean["loss"])
