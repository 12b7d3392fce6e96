"""The kernels of data and of epochs: compiled by NVRTC for every architecture without a warning,
and run on the host as test_kernels_host.py runs the others."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from rawnn.cuda.nvrtc import Nvrtc
from tests import requires
from tests.ptx.architectures import installed_nvrtc, some, supported
from tests.ptx.test_kernels_nvrtc import ARCHITECTURES, SOURCES, compile_source

EMULATION = Path(__file__).resolve().parent / "emulation"
sys.path.insert(0, str(EMULATION))

import emulated_kernels  # noqa: E402
import epoch_cases  # noqa: E402

from tests.ptx.emulator.emulator import EmulatedLibrary, compiler  # noqa: E402
from tests.slices import sliced  # noqa: E402

RELOCATABLE = {"elementwise/while"}
INSTANCES = {
    source: tuple(
        e for e in epoch_cases.EXPRESSIONS
        if re.search(rf"\b{e.partition('<')[0]}\(", (SOURCES / f"{source}.cu").read_text())
    )
    for source in epoch_cases.FILES if source != "epoch_probe"
}  # fmt: skip


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return installed_nvrtc()


@pytest.fixture(scope="module")
def built() -> EmulatedLibrary:
    if compiler() is None:
        pytest.skip(requires.tool("g++", "g++"))
    return emulated_kernels.kernels(epoch_cases.FILES, epoch_cases.EXPRESSIONS).build()


@pytest.mark.parametrize(("source", "arch"), [
    (source, arch) for source in INSTANCES
    for arch in some(source, list(ARCHITECTURES), how_many=1)])
def test_compiles_without_a_warning(nvrtc, source, arch):
    supported(arch)
    further = ("-rdc=true",) if source in RELOCATABLE else ()
    log, cubin, _, names = compile_source(nvrtc, source, arch, INSTANCES[source], *further)
    assert not log.strip(" \0\n"), log
    for name in names:
        assert name.encode() in cubin


def test_every_kernel_is_compiled_and_run():
    for source, expressions in INSTANCES.items():
        text = re.sub(r"__launch_bounds__\(.*\)\n", "", (SOURCES / f"{source}.cu").read_text())
        kernels = set(re.findall(r"__global__ void\s+(\w+)\(", text))
        assert kernels == {e.partition("<")[0] for e in expressions}, source


def bodies(ptx: bytes) -> dict[str, str]:
    return dict(re.findall(r"\.entry (\w+)\((.*?)\n\}", ptx.decode(), re.DOTALL))


def test_linear_forward_loads_are_wide(nvrtc):
    """What makes the fused forward fast: 16 bytes of each weight row and 4 pixels a load."""
    supported("sm_90")
    ptx = compile_source(nvrtc, "fused/linear", "sm_90", INSTANCES["fused/linear"])[2]
    for name, body in bodies(ptx).items():
        assert "__local_depot" not in body, f"{name} keeps an array in local memory"
        if "linear_forwardILi10E" in name:
            assert len(re.findall(r"ld\.global(?:\.nc)?\.v4\.f32", body)) >= 10
            assert re.search(r"ld\.global(?:\.nc)?\.(?:v4\.u8|u32)", body)


@pytest.mark.parametrize(
    ("types", "load", "store"),
    [
        ("unsigned char,float,unsigned char", r"[bu]32", r"v4\.[bfu]32"),
        ("unsigned char,bfloat16,unsigned char", r"v2\.[bu]32", r"v4\.[bu]32"),
        ("unsigned char,float8_e4m3,unsigned char", r"v4\.[bu]32", r"v4\.[bu]32"),
        ("float,bfloat16,unsigned char", r"v4\.[bfu]32", r"v4\.[bu]32"),
        ("float16,float16,unsigned char", r"v4\.[bu]32", r"v4\.[bu]32"),
    ],
)
def test_gather_stores_sixteen_bytes_at_once(nvrtc, types, load, store):
    supported("sm_90")
    ptx = compile_source(nvrtc, "elementwise/gather", "sm_90", (f"gather<{types}>",))[2]
    (body,) = bodies(ptx).values()
    assert re.search(rf"ld\.global(?:\.nc)?\.{load}", body)
    assert re.search(rf"st\.global\.{store}", body)
    assert "__local_depot" not in body


@pytest.mark.parametrize("run", [0, *sliced([1, 3])])  # in order; in reverse, at random
@pytest.mark.parametrize("name", epoch_cases.CHECKS)
def test_against_numpy(built, name, run):
    emulator = emulated_kernels.Emulator(built, seed=run, quick=run > 1)
    epoch_cases.CHECKS[name](emulator, np.random.default_rng(7))
