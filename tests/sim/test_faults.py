"""Faults: every call can fail, with every code, and what fails has no effect."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rawnn.common.errors import RawnnError
from rawnn.cuda.device import Device
from rawnn.cuda.errors import CallFailed
from rawnn.cuda.libs.matmul import LtContext
from rawnn.cuda.libs.softmax import CudnnContext
from rawnn.sim import Fault, Faults, Simulation
from rawnn.sim.codes import CODES, describe
from tests import requires

from .work import read, relu, vector


def use(simulation: Simulation) -> None:
    """A little of everything, with what it holds released whatever happens."""
    device = Device(simulation.backend())
    try:
        z, a = vector(device, 1.0, count=16), vector(device, count=16)
        relu(device, z, a, count=16).run(0)
        lt, cudnn = LtContext(device.backend.cublaslt()), CudnnContext(device.backend.cudnn())
        try:
            lt.plan(layout="nt", m=4, n=4, k=4, lda=4, ldb=4, ldc=4).run(
                device.stream.handle, z, z, a)
            cudnn.plan(4, 4, 4, 4).run(device.stream.handle, a, z)
            assert (read(device, z, count=16) == 0.25).all()
        finally:
            try:
                lt.close()
            finally:
                cudnn.close()
    finally:
        device.close()


def all_calls() -> list[str]:
    simulation = Simulation()
    use(simulation)
    simulation.assert_clean()
    return simulation.calls


def failure(simulation: Simulation) -> str | None:
    """The message that `use` ends with."""
    try:
        use(simulation)
    except RawnnError as error:
        return str(error)
    return None


def test_each_call_can_fail_and_is_reported_or_its_result_unused() -> None:
    names = all_calls()
    assert {name[:4] for name in names} >= {"cuIn", "nvrt", "cubl", "cudn"}
    silent: Counter[str] = Counter()
    for index, name in enumerate(names):
        simulation = Simulation(faults=Faults(Fault(index=index)))
        message = failure(simulation)
        if message is None:
            silent[name] += 1
        else:
            assert name in message
        assert [call for _, call, _ in simulation.faults.failed] == [name]
        left = {leak.kind for leak in simulation.leaks()}
        assert not left or any(word in name for word in ("Destroy", "Free", "Unload", "Release")), \
            (name, left)
    assert set(silent) <= {"nvrtcDestroyProgram"}


@pytest.mark.parametrize("code", [code for code in CODES["cuda"] if code != "CUDA_SUCCESS"])
def test_any_code_with_its_text(code: str) -> None:
    simulation = Simulation(faults=Faults(Fault(code, call="cuStreamCreate")))
    with pytest.raises(CallFailed) as caught:
        Device(simulation.backend())
    value, text = CODES["cuda"][code]
    assert (caught.value.code, caught.value.name, caught.value.text) == (value, code, text)
    simulation.assert_clean()  # the context was released


def test_the_nth_call_of_a_name_and_every_one() -> None:
    faults = Faults(Fault("CUDA_ERROR_OUT_OF_MEMORY", call="cuMemAlloc", nth=2))
    device = Device(Simulation(faults=faults).backend())
    results = [device.driver.cuMemAlloc(4)[0] for _ in range(4)]
    assert results == [0, 0, 2, 0]
    assert len(device.driver.simulation.memory.live) == 3
    faults.add(Fault("CUDA_ERROR_LAUNCH_FAILED", call="cuStreamSynchronize", nth=None))
    for _ in range(3):
        with pytest.raises(CallFailed, match=r"CUDA_ERROR_LAUNCH_FAILED \[719\]"):
            device.stream.synchronize()
    assert faults.count("cuStreamSynchronize") == 3


def test_a_failed_launch_does_nothing(device: Device, sim: Simulation) -> None:
    z, a = vector(device, 1.0), vector(device, 5.0)
    launch = relu(device, z, a)
    sim.faults.add(Fault(call="cuLaunchKernel"))
    with pytest.raises(CallFailed, match="CUDA_ERROR_UNKNOWN"):
        launch.run(0)
    assert (read(device, a) == 5).all()
    launch.run(0)
    assert (read(device, a) == 1).all()


def test_a_failed_end_of_capture_still_ends_it(device: Device, sim: Simulation) -> None:
    graph = device._check("cuGraphCreate", 0)
    stream = device.stream.handle
    device._check("cuStreamBeginCaptureToGraph", stream, graph, [])
    sim.faults.add(Fault(call="cuStreamEndCapture"))
    assert device.driver.cuStreamEndCapture(stream)[0] == 999
    device.to_device(vector(device), np.zeros(8, np.float32), "a vector")


def test_faults_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="either"):
        Fault()
    with pytest.raises(ValueError, match="either"):
        Fault(call="cuInit", index=1)
    simulation = Simulation(faults=Faults(Fault("CUDA_ERROR_UNKNWON", call="cuInit")))
    with pytest.raises(ValueError, match="did you mean 'CUDA_ERROR_UNKNOWN'"):
        simulation.backend().driver().cuInit(0)


def test_codes_agree_with_the_bindings() -> None:
    driver = requires.module("cuda.bindings.driver")
    nvrtc = requires.module("cuda.bindings.nvrtc")
    for library, enum in (("cuda", driver.CUresult), ("nvrtc", nvrtc.nvrtcResult)):
        for name, (value, _) in CODES[library].items():
            assert int(getattr(enum, name)) == value
            assert describe(library, value)[0] == name
    assert describe("cublas", 4711)[0] == "code 4711"
