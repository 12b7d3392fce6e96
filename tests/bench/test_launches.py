"""`bench launches`: the host's time of a launch; ours on the simulated GPU, others by stand-ins."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.bench import launch_systems
from rawnn.bench.cases import launches
from rawnn.bench.cases.launches import OURS, REFERENCE, measure_launches, too_expensive
from rawnn.bench.harness import Harness
from rawnn.bench.launch_systems import (
    KERNEL,
    SOURCE,
    SYSTEMS,
    TYPES,
    Launch,
    N,
    Packed,
    System,
    missing,
)
from rawnn.bench.record import Entry, Record, Results, read_results
from rawnn.common.errors import ConfigError
from rawnn.engine.machine import Opened, open_device
from rawnn.lab.kernel import Kernel
from rawnn.sim import register
from rawnn.sim.kernel_references import forget
from tests.bench.measuring import place, standing
from tests.cli.conftest import Rawnn, rawnn

__all__ = ["rawnn"]  # the fixture
PACKED = "cuda.bindings, packed"


class TorchVersion(str):
    """As PyTorch's version is: no plain text, which a file would not take."""

    __slots__ = ()


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = open_device("sim", lambda message: None)
    yield made
    assert made.device is not None
    made.device.close()
    forget(KERNEL)


def stand_in(times: int = 1, statement: str = "launch(y)") -> Launch:
    y = np.zeros(N, np.float32)

    def launch(y: Any) -> None:
        y += 2 * times

    return Launch(statement, {"launch": launch, "y": y}, lambda: y, "1.2")


def measure(opened: Opened, samples: int, launches: int, **more: Any
            ) -> tuple[dict[str, Entry], Harness]:
    with standing("launches", where=place(device="sim"), **more) as harness:
        measure_launches(harness, opened, samples, launches)
    return {e.variant: e for e in harness.results.entries()}, harness


def test_ours_are_measured_by_the_hosts_clock(opened: Opened) -> None:
    seen: list[tuple[int, ...]] = []
    found, _ = measure(opened, 3, 4, progress=lambda done, total, rounds, last: seen.append(
        (done, total, rounds)))
    assert seen == [(done, 12, 4) for done in range(1, 13)]
    assert list(found) == [*OURS, *SYSTEMS]
    assert [len(found[name].samples("launch_us")) for name in OURS] == [3, 3, 3]
    assert found["rawnn"].notes == ["kernel[1, 32](y, x, 2.0, 32)"]
    assert all(found[name].reason for name in SYSTEMS)
    assert found[PACKED].reason == "launches on a real GPU only"


def pretend(monkeypatch: pytest.MonkeyPatch, opened: Opened, systems: dict[str, System]) -> Opened:
    """That the simulated GPU is a real one, beside these systems."""
    monkeypatch.setattr("rawnn.bench.cases.launches.SYSTEMS", systems)
    monkeypatch.setattr("rawnn.bench.cases.launches._runs_here", lambda kernel: True)
    return opened


def test_what_cannot_be_measured_keeps_its_reason(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(kernel: Any) -> Launch:
        raise RuntimeError("no such compiler\nand more")

    systems = {
        PACKED: System("json", lambda kernel: stand_in(), "cuda.bindings"),
        "wrong": System("json", lambda kernel: stand_in(times=2)),
        "idle": System("json", lambda kernel: stand_in(times=0)),
        "broken": System("json", broken),
        "fails": System("json", lambda kernel: stand_in(statement="launch(z)")),
        "lost": System("json", lambda kernel: replace(stand_in(), result=lambda: 1 // 0)),
        "absent": System("no_such_package.inner", lambda kernel: stand_in()),
    }
    found, harness = measure(pretend(monkeypatch, opened, systems), 2, 5)
    reasons = {name: entry.reason for name, entry in found.items()}
    assert {reasons[name] for name in (*OURS, PACKED)} == {""}
    assert reasons["wrong"].startswith("refused: after 15 launches y is [60.], not 30")
    assert reasons["idle"].startswith("refused: after 15 launches y is [0.]")
    assert reasons["broken"] == "failed: RuntimeError: no such compiler"
    assert reasons["fails"] == "failed: NameError: name 'z' is not defined"
    assert reasons["lost"].startswith("failed: ZeroDivisionError")
    assert reasons["absent"] == "no_such_package.inner is not installed"
    assert {name: found[name].status for name in ("wrong", "broken", "fails", "absent")} == {
        "wrong": "wrong", "broken": "failed", "fails": "failed", "absent": "unavailable"}
    assert not any(found[name].samples("launch_us") for name in reasons if reasons[name])
    assert harness.environment
    assert harness.environment.libraries["cuda.bindings"] == "1.2"


def test_the_command_keeps_and_shows_what_was_measured(rawnn: Rawnn, tmp_path: Path) -> None:
    target = tmp_path / "launches.json"
    done = rawnn("bench", "launches", "--device", "sim", "--samples", "2", "--launches", "3",
                 "--json", str(target), "--markdown", str(tmp_path / "launches.md"))
    assert done.status == 0, done.err
    assert read_results(target).entries()[0].conditions == {"launches": 3}
    assert rawnn("bench", "show", str(target)).out == done.out
    assert "kernel[1, 32](y, x, 2.0, 32)" in (tmp_path / "launches.md").read_text()
    forget(KERNEL)


@pytest.mark.parametrize(("name", "us", "said"), [
    ("rawnn", 3.69, ""), ("rawnn", 3.71, "rawnn takes 3.71 us, which is more than 1 us above"),
    ("rawnn, bound", 2.95, "rawnn, bound takes 2.95 us, which is more than 0.2 us above"),
    ("rawnn, others", 9.0, "")])
def test_launches_of_ours_that_cost_more_than_they_may_are_named(
        name: str, us: float, said: str) -> None:
    found = Results()
    found.records += [
        Record(case="launches", variant=variant, precision="", metric="launch_us", samples=[value])
        for variant, value in ((name, us), (REFERENCE, 2.7))]
    assert too_expensive(found).startswith(said) if said else not too_expensive(found)


def test_what_was_measured_outlives_sigterm(rawnn: Rawnn, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a sample of the second launch: the first has one more."""
    def synchronize(kernel: Kernel) -> None:
        turns.append(kernel)
        if len(turns) == 3 * len(OURS) + 2:
            signal.raise_signal(signal.SIGTERM)
        original(kernel)

    turns: list[Kernel] = []
    original = Kernel.synchronize
    monkeypatch.setattr(Kernel, "synchronize", synchronize)
    target = tmp_path / "launches.json"
    done = rawnn("bench", "launches", "--device", "sim", "--samples", "5", "--launches", "4",
                 "--json", str(target))
    forget(KERNEL)
    assert done.status == 128 + signal.SIGTERM, done.err
    assert "ended by SIGTERM" in done.err
    kept = read_results(target)
    assert kept.ended == {"launches": "it was interrupted"}
    assert [len(e.samples("launch_us")) for e in kept.entries()[:3]] == [3, 2, 2]
    assert rawnn("bench", "show", str(target)).out == done.out


def test_ctrl_c_ahead_of_a_first_sample_leaves_a_reason(
        opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(kernel: Kernel) -> None:
        turns.append(kernel)
        if len(turns) == len(OURS) + 2:
            raise KeyboardInterrupt

    turns: list[Kernel] = []
    monkeypatch.setattr(Kernel, "synchronize", first)
    found, _ = measure(opened, 3, 4)
    assert [found[name].reason for name in OURS] == \
        ["", *["broken off ahead of its first sample"] * 2]


def test_sums_of_a_sample_that_is_broken_off_may_be_fewer_and_no_others() -> None:
    def said(value: float) -> str:
        launch = replace(stand_in(), result=lambda: np.full(N, value, np.float32))
        return launches._wrong(launch, 10, 15)

    assert [value for value in range(18, 33) if not said(value)] == [20, 22, 24, 26, 28, 30]
    assert said(30) == ""
    assert said(float("nan")) != ""


def test_without_a_gpu_it_refuses_in_one_sentence(rawnn: Rawnn, opened: Opened) -> None:
    done = rawnn("bench", "launches", "--device", "host")
    assert done.status == 2
    assert done.err.strip().splitlines()[-1] == \
        "rawnn: error: launches can be measured on a GPU only: --device host was asked for"
    with pytest.raises(ConfigError, match="launches = 401: take at most 400"):
        measure(opened, 1, 401)
    with pytest.raises(ConfigError, match="on a GPU only"):
        measure(replace(opened, device=None), 1, 1)


# -- the statements of the others, by stand-ins for their modules ----------------------------------


@pytest.fixture
def kernel(opened: Opened) -> Kernel:
    register(KERNEL, lambda t, a: t.y.__iadd__(a["a"] * t.x), {"y": ("n",), "x": ("n",)},
             reads=("x", "y"), writes=("y",))
    return Kernel(SOURCE, KERNEL, device=opened.device)


def adds(y: Any, x: Any, a: float, n: int) -> None:
    y[:n] += a * x[:n]


class Launchable:
    """A kernel of a stand-in, which computes at once."""

    def __init__(self, *made: Any) -> None:
        assert made in ((), (SOURCE, KERNEL))

    def __getitem__(self, geometry: tuple[int, ...]) -> Any:
        assert geometry in ((1,), (1, N))
        return lambda y, x, a, n, BLOCK=N: adds(y, x, a, n)

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        assert (grid, block) in (((1,), (N,)), ((1, 1, 1), (N, 1, 1)))
        adds(*arguments)


class Tensor(np.ndarray[Any, Any]):
    """Of stand-ins for PyTorch and Numba."""

    def copy_to_host(self) -> Any:
        return np.asarray(self)

    def cpu(self) -> Any:
        return SimpleNamespace(numpy=lambda: np.asarray(self))

    def zero_(self) -> None:
        self[...] = 0

    def add_(self, other: Any, alpha: float) -> None:
        self += alpha * other


def torch_kernels(ctype: str) -> Any:
    """A stand-in for PyTorch's, which passes Python's floats as `ctype` whatever a kernel takes."""

    def made(text: str, name: str) -> Any:
        assert (name, text.replace("double a", "float a")) == (KERNEL, SOURCE)
        read = 1 if f"{ctype} a" in text else 0  # the low half of a double is zeros
        launch = Launchable()
        return lambda grid, block, given: launch(grid, block, (*given[:2], read * given[2], N))

    return made


def modules(kernel: Kernel, own_kernels: str, asked: list[Any]) -> dict[str, Any]:
    """Stand-ins; `asked` gets the devices, architectures and arrays that they are asked for."""
    driver: Any = kernel.device.driver

    def launched(*arguments: Any) -> Any:
        pointers = (packed := Packed(*arguments)).pointers()
        assert packed.n == N
        return driver.cuLaunchKernel(kernel.function.handle, 1, 1, 1, N, 1, 1, 0,
                                     kernel.device.stream.handle, ctypes.addressof(pointers), 0)

    def core_launch(stream: Any, config: Any, function: Any, *arguments: Any) -> None:
        assert (config.grid, config.block, function) == (1, N, KERNEL)
        assert list(map(type, arguments)) == [int, int, np.float32, np.int32]
        launched(*arguments)

    def driver_launch(*given: Any) -> Any:
        if not isinstance(given[9], tuple):
            return driver.cuLaunchKernel(*given)
        values, types = given[9]
        assert types == TYPES
        return launched(*values)

    compiled = SimpleNamespace(get_kernel=lambda name: name)

    class Current:
        def __init__(self, ordinal: int) -> None:
            self.use = self.set_current = lambda: asked.append(ordinal)
            self.create_stream = lambda: None

        def __enter__(self) -> None:
            self.use()

        def __exit__(self, *error: object) -> None: ...

    def filled(n: int, device: str, value: float) -> Any:
        assert device == "cuda"
        return np.full(n, value, np.float32).view(Tensor)

    torch_cuda = SimpleNamespace(set_device=asked.append, synchronize=lambda: None)
    if own_kernels:
        torch_cuda._compile_kernel = torch_kernels(own_kernels)
    jit = SimpleNamespace(
        jit=lambda f: Launchable(), select_device=asked.append,
        to_device=lambda a: a.view(Tensor))
    return {
        "cuda.bindings.driver": SimpleNamespace(cuLaunchKernel=driver_launch),
        "cuda.core": SimpleNamespace(
            launch=core_launch, Device=Current, ProgramOptions=lambda arch: asked.append(arch),
            Program=lambda text, code_type, options: {(SOURCE, "c++"): SimpleNamespace(
                compile={"cubin": compiled}.__getitem__)}[text, code_type],
            LaunchConfig=lambda grid, block: SimpleNamespace(grid=grid, block=block)),
        "cupy": SimpleNamespace(cuda=SimpleNamespace(Device=Current), RawKernel=Launchable,
                                zeros=np.zeros, ones=np.ones, float32=np.float32,
                                asnumpy=np.asarray, __version__="13"),
        "torch": SimpleNamespace(
            cuda=torch_cuda, __version__=TorchVersion("2.8"),
            zeros=lambda n, device: filled(n, device, 0),
            ones=lambda n, device: filled(n, device, 1)),
        "triton": SimpleNamespace(jit=lambda f: Launchable(), __version__="3"),
        "triton.language": SimpleNamespace(),
        "numba": SimpleNamespace(config=SimpleNamespace(), __version__="0.60"),
        "numba.cuda": jit,
    }


ASKED = {"cuda.core": [3, "sm_90"], "CuPy": [3, 3], "PyTorch": [3], "Triton": [3], "Numba": [3]}
VERSIONS = {"cuda.bindings, packed": "of cuda-bindings", "cuda.core": "of cuda-core", "CuPy": "13",
            "PyTorch": "2.8", "Triton": "3", "Numba": "0.60"}


@pytest.mark.parametrize("own_kernels", ["double", "float", ""])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_statement_launches_the_kernel(kernel: Kernel, monkeypatch: pytest.MonkeyPatch,
                                           name: str, own_kernels: str) -> None:
    asked: list[Any] = []
    known = modules(kernel, own_kernels, asked)
    monkeypatch.setattr(launch_systems, "importlib",
                        SimpleNamespace(import_module=known.__getitem__))
    monkeypatch.setattr(launch_systems, "version", lambda distribution: f"of {distribution}")
    monkeypatch.setattr(kernel.device, "info", replace(kernel.device.info, ordinal=3,
                                                       compute_capability=(9, 0)))
    launch = SYSTEMS[name].make(kernel)
    assert (asked, launch.version) == (ASKED.get(name, []), VERSIONS.get(name, ""))
    for _ in range(3):
        exec(launch.statement, dict(launch.names))
    assert (np.asarray(launch.result()) == 6).all()
    assert ("an op of its own" in launch.note) == (name == "PyTorch" and not own_kernels)


def test_an_installed_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing("numpy") == ""
    assert missing("no_such_thing") == "no_such_thing is not installed"
    monkeypatch.setitem(sys.modules, "half", ModuleType("half"))
    assert missing("half.inner") == "half.inner is not installed"
