"""The kernels that a GPU's limits are measured with: what they compute, on the CPU emulator; that
they keep in registers what they multiply; that tensor cores are not made to wait."""

from __future__ import annotations

import re

import pytest

from rawnn import ptx
from rawnn.common.errors import MissingLibrary
from rawnn.common.target import KNOWN
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.compiling.resources import resource_usage, spills
from rawnn.cuda.compiling.signature import find_kernel, parse_kernels
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.ptx.limits.microbenchmarks import MOST_BLOCKS, PROBES, THREADS, Probe
from tests import requires
from tests.ptx.emulator import floors as emulator_floors
from tests.ptx.emulator.emulator import EmulatedLibrary

NEEDS_GXX = requires.GXX


@pytest.fixture(scope="module")
def libraries() -> dict[str, EmulatedLibrary]:
    return {source: emulator_floors.kernels(source).build() for source in emulator_floors.FILES}


@NEEDS_GXX
@pytest.mark.parametrize("run", [0, 1, 3])
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.expression)
def test_a_kernel_computes_what_it_means(
        libraries: dict[str, EmulatedLibrary], probe: object, run: int) -> None:
    assert emulator_floors.check(libraries[probe.source], probe, run) > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", KNOWN.values(), ids=lambda target: target.name)
def test_every_instance_compiles_where_it_can_run(target: object) -> None:
    major, minor = target.capability  # type: ignore[attr-defined]
    for source in emulator_floors.FILES:
        some = [p for p in PROBES if p.source == source
                and not p.lacks(target)]  # type: ignore[arg-type]
        if not some:
            continue
        arch = f"sm_{major}{minor}" + ("a" if some[0].specific else "")
        try:
            built = compile_source(
                Nvrtc, ptx.source_path(source).read_text(), name=source, arch=arch,
                expressions=[p.expression for p in some], options=("--ptxas-options=-v",))
        except MissingLibrary as error:
            pytest.skip(str(error))
        assert "serialized" not in built.log, built.log  # products that wait for each other
        used, spilled = resource_usage(built.cubin), spills(built.log)
        for probe in some:
            name = built.lowered[probe.expression]
            assert spilled[name] == (0, 0), probe
            blocks = 1 if probe.specific else MOST_BLOCKS
            assert used[name].registers * THREADS * blocks <= 65536, probe


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.expression)
def test_a_kernel_writes_what_its_meaning_writes(probe: Probe) -> None:
    kernels = parse_kernels(ptx.source_path(probe.source).read_text())
    pointers = {p.name: p.const for p in find_kernel(kernels, probe.expression).parameters
                if p.pointer}
    meaning = probe.meaning
    assert set(pointers) == {*meaning.reads, *meaning.writes} == set(meaning.shapes)
    assert {name for name, const in pointers.items() if not const} == set(meaning.writes)


def test_every_kernel_of_the_sources_is_a_probe() -> None:
    for source in emulator_floors.FILES:
        text = re.sub(r"__launch_bounds__\(.*\)", "", ptx.source_path(source).read_text())
        assert set(re.findall(r"__global__ void\s+(\w+)\(", text)) == {
            p.name for p in PROBES if p.source == source}
