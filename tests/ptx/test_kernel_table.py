"""docs/kernels.md says what every kernel uses: it has them all, and no kernel spills more than it
says. Compiling needs NVRTC, no GPU; `tools/kernel_table.py --check` compiles every instance for
every architecture, these tests one in six for each, another sixth for the next."""

from __future__ import annotations

import importlib.util
import re
import sys
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest

from rawnn import ptx
from rawnn.compiling.resources import SM_LIMITS
from rawnn.errors import MissingLibrary

ROOT = Path(__file__).resolve().parents[2]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_table", ROOT / "tools/kernel_table.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tool = load_tool()
TEXT = tool.TABLE.read_text()
SHARE = 6


@pytest.fixture(scope="module")
def archs() -> list[str]:
    try:
        return tool.supported()
    except MissingLibrary as error:
        pytest.skip(str(error))


def test_the_table_has_exactly_what_the_engine_can_ask_for() -> None:
    assert set(tool.read_table(TEXT)) == {i.expression for i in tool.instances()}


def test_every_kernel_in_the_sources_is_an_instance() -> None:
    """A kernel that no toggle reaches would be dead code."""
    kernels = set()
    for source in ptx.SOURCES.glob("*.cu"):
        text = re.sub(r"__launch_bounds__\(.*\)\n", "", source.read_text())
        kernels |= set(re.findall(r"__global__ void\s+(\w+)\(", text))
    assert kernels == {i.expression.partition("<")[0] for i in tool.instances()}


@pytest.mark.parametrize("arch", SM_LIMITS)
def test_no_kernel_spills_more_than_the_table_says(archs: list[str], arch: str) -> None:
    if arch not in archs:
        pytest.skip(f"this NVRTC does not know {arch}")
    found = {}
    chosen = tool.instances()[list(SM_LIMITS).index(arch) % SHARE :: SHARE]
    for source, group in groupby(chosen, key=lambda i: i.source):
        wanted = [i for i in group if tool.runs_on(i, arch)]
        if wanted:
            rows = tool.measure(source, wanted, arch)
            found |= {i: {arch: rows[i.expression]} for i in wanted}
    assert len(found) > 20
    assert tool.complaints(found, TEXT, tool.compiler()[0]) == []


def test_a_new_spill_and_a_missing_kernel_are_found() -> None:
    instance = tool.Instance("a.cu", "a<float>", 128)
    found = {instance: {"sm_90": tool.Row(32, 0, (8, 16), 1.0)}}
    (missing,) = tool.complaints(found, "", 12)
    assert "a<float> (a.cu) is not in the table" in missing
    clean = {instance: {"sm_90": tool.Row(32, 0, (0, 0), 1.0)}}
    (spill,) = tool.complaints(found, tool.render(clean, (12, 9)), 12)
    assert "spills 8 bytes and loads 16 on sm_90 with NVRTC 12; the table has 0 and 0" in spill
    assert tool.complaints(found, tool.render(found, (12, 9)), 12) == []
    assert tool.complaints(clean, tool.render(found, (12, 9)), 12) == []


def test_spills_are_kept_for_each_compiler() -> None:
    instance = tool.Instance("a.cu", "a<float>", 128)
    found = {instance: {"sm_90": tool.Row(32, 0, (8, 16), 1.0)}}
    clean = {instance: {"sm_90": tool.Row(32, 0, (0, 0), 1.0)}}
    both = tool.render(clean, (12, 9), tool.render(found, (13, 0)))
    assert tool.complaints(found, both, 13) == []
    assert len(tool.complaints(found, both, 12)) == 1
    assert "sm_90" not in tool.render(clean, (13, 0), both).split("|")[-4]
