"""Opening a device: what it says of itself, how it refuses, that failure leaves nothing behind."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DeviceError
from rawnn.cuda.backend import Backend
from rawnn.cuda.device import Device, assumed_capability, padded, version_text
from rawnn.engine.machine import machine_of
from rawnn.sim import Fault, Faults, Simulation
from tests.engine import make_work, random_dataset, run_on
from tests.sim.work import relu, vector


def opened(*faults: Fault) -> tuple[Simulation, Backend]:
    simulation = Simulation(faults=Faults(*faults))
    return simulation, simulation.backend()


def with_driver(backend: Backend, **replaced: Any) -> Backend:
    """The backend with some attributes of its driver replaced."""
    driver = backend.driver()
    for name, value in replaced.items():
        setattr(driver, name, value)
    return backend


def test_a_device_describes_itself(device: Device) -> None:
    info = device.info
    assert (info.name, info.ordinal, info.compute_capability) == ("simulated GPU", 0, (9, 0))
    assert (info.cuda, info.bindings) == ("13.0", "13.0")
    assert info.memory == 16 << 30
    assert device.arch == "sm_90"
    machine = machine_of(device)
    assert (machine.no_gpu, machine.compute_capability, machine.driver) == (None, (9, 0), 13000)
    assert machine.has_package("nvidia.cudnn")  # the simulation brings every library
    assert not device.backend.cache


@pytest.mark.parametrize(("text", "driver"), [
    (None, "unknown"), ("NVRM version: none", "unknown"),
    ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug\n", "535.104"),
    ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
     "GCC version:  gcc version 11.4.0\n", "580.159.04")])
def test_the_kernel_module_says_its_version(monkeypatch: pytest.MonkeyPatch, text: str | None,
                                            driver: str) -> None:
    monkeypatch.setattr("rawnn.cuda.device.Path", lambda name: SimpleNamespace(
        exists=lambda: text is not None, read_text=lambda: text))
    simulation, backend = opened()
    device = Device(backend)
    assert device.info.driver == driver
    device.close()
    simulation.assert_clean()


@pytest.mark.parametrize(("number", "text"), [(12090, "12.9"), (13000, "13.0"), (11080, "11.8")])
def test_versions(number: int, text: str) -> None:
    assert version_text(number) == text


@pytest.mark.parametrize(("version", "bindings", "needed"), [
    (12090, 13000, "13.0"), (12020, 12080, "12.3"), (11080, 12090, "12.3"),
    (13000, 14000, "14.0"), (12030, 13000, "13.0"), (12020, 13000, "13.0"),
])
def test_a_driver_too_old_is_told_what_is_needed(version: int, bindings: int,
                                                 needed: str) -> None:
    simulation, backend = opened()
    with_driver(backend, cuDriverGetVersion=lambda: (0, version), bindings_version=bindings)
    with pytest.raises(DeviceError) as caught:
        Device(backend)
    assert str(caught.value) == (
        f"the NVIDIA driver supports CUDA {version_text(version)}, but rawnn with cuda-bindings "
        f"{version_text(bindings)} needs {needed} or newer: update the driver"
        + (", or pip install 'rawnn[cu12]', which it can run"
           if bindings >= 13000 and version >= 12030 else ""))
    simulation.assert_clean()


@pytest.mark.parametrize(("version", "bindings"), [(12030, 12080), (13000, 13000), (13020, 13000)])
def test_a_driver_that_is_just_new_enough(version: int, bindings: int) -> None:
    simulation, backend = opened()
    Device(with_driver(backend, cuDriverGetVersion=lambda: (0, version),
                       bindings_version=bindings)).close()
    simulation.assert_clean()


@pytest.mark.parametrize(("code", "call"), [
    ("CUDA_ERROR_NO_DEVICE", "cuInit"), ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cuInit"),
    ("CUDA_ERROR_UNKNOWN", "cuDeviceGetCount"),
])
def test_no_usable_gpu(code: str, call: str) -> None:
    simulation, backend = opened(Fault(code, call=call))
    with pytest.raises(DeviceError, match=rf"no usable GPU: {call} failed with {code} .*run with "
                                          r"--device host to train on the CPU"):
        Device(backend)
    simulation.assert_clean()


def test_no_driver_library() -> None:
    def missing(flags: int) -> tuple[int]:
        raise RuntimeError("libcuda.so.1 not found")

    _, backend = opened()
    with pytest.raises(DeviceError, match=r"no NVIDIA driver can be loaded .*libcuda is missing"):
        Device(with_driver(backend, cuInit=missing))


@pytest.mark.parametrize("ordinal", [1, 3])
def test_an_ordinal_too_high(ordinal: int) -> None:
    simulation, backend = opened()
    with pytest.raises(DeviceError, match=f"GPU {ordinal} was asked for, but this machine has 1 "
                                          f"GPU;"):
        Device(backend, ordinal)
    simulation.assert_clean()


def test_a_failure_while_opening_leaves_nothing_behind() -> None:
    simulation, backend = opened()
    device = Device(backend)
    calls = len(simulation.calls)
    device.close()
    assert calls > 8
    for index in range(calls):
        failing, backend = opened(Fault(index=index))
        with pytest.raises(DeviceError):
            Device(backend)
        assert failing.leaks() == [], failing.calls[index]


def test_every_release_is_tried_even_if_one_fails() -> None:
    for call in ("cuMemFree", "cuStreamDestroy", "cuModuleUnload"):
        simulation, backend = opened(Fault(call=call))
        device = Device(backend)
        relu(device, vector(device, 1.0), vector(device)).run(0)
        with pytest.raises(DeviceError, match=f"{call} failed"):
            device.close()
        assert simulation.calls[-1] == "cuDevicePrimaryCtxRelease"
        assert simulation.retained == 0


def test_a_context_is_kept_for_the_next_run_unless_closing_fails() -> None:
    """An error of a kernel fails every later call, also in another device of the same context."""
    released: list[int] = []
    for fault, wanted in ((None, []), (Fault(call="cuMemFree"), [0])):
        simulation, backend = opened(*([fault] if fault else []))
        device = Device(replace(backend, release_context=released.append))
        vector(device, 1.0)
        with suppress(DeviceError):
            device.close()
        assert released == wanted
        assert simulation.retained == 0


def test_close_twice_is_harmless_and_the_context_is_shared() -> None:
    simulation, backend = opened()
    first, second = Device(backend), Device(backend)
    first.close()
    first.close()
    assert simulation.retained == 1
    vector(second, 1.0)
    second.close()
    simulation.assert_clean()


def test_a_kernel_is_compiled_once(device: Device) -> None:
    device.compile("losses/softmax.cu", ("softmax<float>",))
    found = device.function("losses/softmax.cu", "softmax<float>")
    assert device.compiled == 1
    assert device.function("losses/softmax.cu", "softmax<float>") is found
    device.compile("losses/softmax.cu", ("softmax<float>", "softmax_backward<float>"))
    assert device.compiled == 2  # only what was not there
    assert device.compile_ms > 0
    assert found.signature.arguments == ("float",)


def test_a_kernel_for_programmatic_launches_is_one_of_its_own(device: Device) -> None:
    plain = device.function("losses/softmax.cu", "softmax<float>")
    early = device.function("losses/softmax.cu", "softmax<float>", programmatic=True)
    assert device.compiled == 2
    assert device.function("losses/softmax.cu", "softmax<float>", programmatic=True) is early
    assert plain.handle != early.handle
    assert not plain.proof.waits
    assert early.proof.waits


def test_copies_there_and_back(device: Device) -> None:
    values = np.arange(10, dtype=np.int32)
    address = device.memory.allocate(40, "ints").address
    device.to_device(address, values, "ints")
    back = np.zeros(10, np.int32)
    device.to_host(back, address, "ints")
    assert (back == values).all()
    device.fill(address, 255, 40, "ints")
    device.to_host_later(back, address, "ints")
    device.stream.synchronize()
    assert (back == -1).all()
    device.to_device(0, np.zeros(0, np.int32), "nothing")  # no call at all
    device.to_host(np.zeros(0, np.int32), 0, "nothing")


def test_a_failed_copy_says_what_it_was_for() -> None:
    _, backend = opened(Fault(call="cuMemcpyHtoDAsync"))
    device = Device(backend)
    address = device.memory.allocate(40, "x").address
    with pytest.raises(DeviceError, match=r"cuMemcpyHtoDAsync failed .*\(weights, 40 bytes\)"):
        device.to_device(address, np.zeros(10, np.float32), "weights")
    device.close()


def test_padded_puts_an_array_into_the_top_left_of_zeros() -> None:
    found = padded(np.ones((2, 3)), (2, 4), "float32")
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 1, 1, 0], [1, 1, 1, 0]]
    assert padded(np.ones((4, 2)).T, (2, 4), "float32").flags.c_contiguous


@pytest.mark.parametrize("mode", ["epoch", "while"])
def test_kernels_of_an_older_architecture_are_compiled_to_ptx(sim, monkeypatch, mode):
    monkeypatch.setenv("RAWNN_COMPUTE", "7.5")
    opened = Device(sim.backend())
    try:
        assert (opened.capability, opened.arch) == ((7, 5), "compute_75")
        assert machine_of(opened).compute_capability == (7, 5)
        work = make_work(f"preload,fuse,graphs={mode}", (29, 7), random_dataset())
        assert np.isfinite(run_on(opened, work, epochs=1).loss).all()
    finally:
        opened.close()


@pytest.mark.parametrize(("text", "real", "found"), [
    ("", (9, 0), None), ("7.5", (9, 0), (7, 5)), ("9.0", (9, 0), (9, 0)), ("8.9", (9, 0), (8, 9)),
    ("9.0", (10, 3), (9, 0)), ("10.3", (10, 3), (10, 3)), ("7.5", (7, 5), (7, 5))])
def test_any_architecture_up_to_the_gpus_own_can_be_assumed(
        monkeypatch: pytest.MonkeyPatch, text: str, real: tuple[int, int],
        found: tuple[int, int] | None) -> None:
    monkeypatch.setenv("RAWNN_COMPUTE", text)
    assert assumed_capability(real) == found


@pytest.mark.parametrize("text", ["7", "7.0", "7.4", "9.1", "10.0", "9.00", "hopper"])
def test_an_architecture_that_cannot_be_assumed_is_refused(sim, monkeypatch, text):
    monkeypatch.setenv("RAWNN_COMPUTE", text)
    with pytest.raises(ConfigError, match=f"RAWNN_COMPUTE={text}: give a compute capability"):
        Device(sim.backend())


def test_another_stream_of_a_device_has_kernels_of_its_own() -> None:
    simulation, backend = opened()
    device = Device(backend)
    found = device.function("losses/softmax.cu", "softmax<float>")
    other = device.with_own_stream()
    assert other.stream.handle != device.stream.handle
    assert other.memory is device.memory
    assert other.function("losses/softmax.cu", "softmax<float>") is found
    own = other.function("losses/softmax.cu", "softmax_backward<float>")
    other.close()
    assert simulation.calls.count("cuModuleUnload") == 1
    assert device.open
    assert not other.open
    assert device.function("losses/softmax.cu", "softmax_backward<float>") is not own
    array = np.arange(4, dtype=np.float32)
    block = device.memory.allocate(array.nbytes, "an array")
    device.to_device(block.address, array, "an array")
    device.close()
    simulation.assert_clean()
