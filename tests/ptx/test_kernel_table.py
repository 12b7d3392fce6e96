"""results/kernels.json says what every kernel uses: it has them all, and what it says is so.
Compiling needs NVRTC, no GPU. The tool's check (tools/kernel_table.py), which CI runs, compiles
every instance, those of changed sources for every architecture; here it is a few of each source."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rawnn import ptx
from rawnn.common.errors import MissingLibrary
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.ptx.instance_text import instance_text
from tests.slices import FULL, SLICE

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
RECORD = tool.load()


@pytest.fixture(scope="module")
def archs() -> list[str]:
    try:
        return tool.supported()
    except MissingLibrary as error:
        pytest.skip(str(error))


def test_the_table_has_exactly_what_the_engine_can_ask_for() -> None:
    assert tool.differences(RECORD) == []


def test_every_instance_has_a_row_wherever_it_runs() -> None:
    for major in ("12", "13"):
        for instance in tool.instances():
            assert set(tool.recorded(RECORD, instance, major)) == {
                arch for arch in tool.ARCHITECTURES if tool.runs_on(instance, arch)}


def test_the_summary_is_that_of_the_table() -> None:
    page = tool.kernel_page
    assert page.PAGE.read_text() == page.render(RECORD, tool.launched(), tool.PROBES)
    for link in re.findall(r"\]\(([^)#]+)", page.PAGE.read_text()):
        assert (page.PAGE.parent / link).exists(), link


def test_every_kernel_in_the_sources_is_an_instance() -> None:
    """A kernel that no toggle reaches would be dead code."""
    kernels = set()
    for source in ptx.SOURCES.rglob("*.cu"):
        kernels |= parse_kernels(source.read_text()).keys()
    kernels |= parse_kernels(instance_text([i.expression for i in tool.instances()])).keys()
    assert kernels == {i.expression.partition("<")[0] for i in tool.instances()}


def test_weights_that_are_computed_again_are_const_throughout() -> None:
    """The compiler then refuses a store to them."""
    for file in ("deferred.cu", "deferred.cuh"):
        assert "const_cast" not in (ptx.SOURCES / "gemm" / file).read_text()


def a_few(archs: list[str]) -> dict[str, list[Any]]:
    """By architecture: of a quarter of the sources, others in the next slice, as many instances as
    are compiled at once, for one of the architectures that they run on, another one for the next
    source. A kernel's registers depend on what is compiled beside it, so that is left together."""
    found: dict[str, list[Any]] = {}
    for place, (_, group) in enumerate(itertools.groupby(tool.instances(), key=lambda i: i.source)):
        instances = list(group)
        if (place + SLICE) % 4:
            continue
        drawn = zlib.crc32(instances[0].source.encode()) + SLICE * tool.CHUNK
        start = drawn % len(instances) // tool.CHUNK * tool.CHUNK
        several = instances[start:start + tool.CHUNK]
        possible = [a for a in archs if all(tool.runs_on(i, a) for i in several)]
        if possible:
            arch = possible[(place + SLICE) % len(possible)]
            found.setdefault(arch, []).extend((i, arch) for i in several)
    return found


@pytest.mark.parametrize("arch", tool.ARCHITECTURES)
def test_kernels_use_what_the_table_says(archs: list[str], arch: str) -> None:
    if arch not in archs:
        pytest.skip(f"this NVRTC does not know {arch}")
    wanted = tool.to_check(RECORD, [arch]) if FULL else a_few(archs).get(arch, [])
    found = tool.measure_all(wanted, processes=1)
    assert len(found) == len(wanted) > (20 if FULL else -1)
    assert tool.complaints(found, RECORD, *tool.compiler()) == []


def test_each_instance_is_compiled_for_one_architecture_and_what_changed_for_all(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "compiler", lambda: ("12", RECORD["nvrtc"]["12"]))
    archs = list(tool.ARCHITECTURES)
    monkeypatch.setattr(tool, "digest", lambda s: RECORD["digests"][s]["12"])
    once = tool.to_check(RECORD, archs)
    assert [i for i, _ in once] == tool.instances()
    assert {arch for _, arch in once} == set(archs)
    assert set(once) != set(tool.to_check(RECORD, archs, turn=1))
    monkeypatch.setattr(tool, "digest", lambda s: "" if s == "optimizers/sgd.cu" else
                        RECORD["digests"][s]["12"])
    again = tool.to_check(RECORD, archs)
    assert {(i, arch) for i, arch in again if i.source != "optimizers/sgd.cu"} == {
        (i, arch) for i, arch in once if i.source != "optimizers/sgd.cu"}
    assert {(i, arch) for i, arch in again if i.source == "optimizers/sgd.cu"} == {
        (i, arch) for i in tool.instances() if i.source == "optimizers/sgd.cu" for arch in archs
        if tool.runs_on(i, arch)}
    monkeypatch.setattr(tool, "compiler", lambda: ("12", "12.0"))
    assert len(tool.to_check(RECORD, archs)) > 4 * len(once)


INSTANCE = tool.Instance("elementwise/bias.cu", "a<float>", 128)


def record(row: Any, major: str = "12", before: Any = tool.EMPTY) -> Any:
    made = tool.joined([INSTANCE], {INSTANCE: {"sm_90": row}}, before, major, f"{major}.1")
    return json.loads(tool.text_of(made))


def test_other_figures_and_a_missing_kernel_are_found() -> None:
    row, spilling = tool.Row(32, 0), tool.Row(32, 0, (8, 16))
    (missing,) = tool.complaints({INSTANCE: {"sm_90": row}}, tool.EMPTY, "12", "12.1")
    assert missing == "a<float> (elementwise/bias.cu) on sm_90 with NVRTC 12.1 is not in the record"
    (spill,) = tool.complaints({INSTANCE: {"sm_90": spilling}}, record(row), "12", "12.1")
    assert "has 32 registers, 0 bytes of shared memory and spills of 8 + 16 bytes; the record " \
        "says 32 registers, 0 bytes of shared memory and spills of 0 + 0 bytes" in spill
    for other in (row, tool.Row(33 + tool.SLACK, 0, (8, 16)), tool.Row(32, 4, (8, 16))):
        assert len(tool.complaints({INSTANCE: {"sm_90": other}}, record(spilling), "12", "12.1")) \
            == 1
    assert tool.complaints({INSTANCE: {"sm_90": spilling}}, record(spilling), "12", "12.1") == []


def test_by_another_version_of_the_compiler_only_spills_count() -> None:
    row, spilling = tool.Row(40, 4), tool.Row(32, 0, (8, 16))
    assert tool.complaints({INSTANCE: {"sm_90": row}}, record(spilling), "12", "12.2") == []
    assert len(tool.complaints({INSTANCE: {"sm_90": spilling}}, record(row), "12", "12.2")) == 1


def test_figures_are_kept_for_each_compiler() -> None:
    row, spilling = tool.Row(32, 0), tool.Row(32, 0, (8, 16))
    both = record(row, "12", record(spilling, "13"))
    assert tool.recorded(both, INSTANCE, "12") == {"sm_90": row}
    assert tool.recorded(both, INSTANCE, "13") == {"sm_90": spilling}
    assert tool.is_current(both, "elementwise/bias.cu", "12", "12.1")
    assert not tool.is_current(both, "elementwise/bias.cu", "12", "12.2")
    assert not tool.is_current(both, "elementwise/bias.cu", "14", "14.1")


def test_a_digest_follows_includes_and_leaves_comments_out(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tool.ptx, "SOURCES", tmp_path)
    header = tmp_path / "h.cuh"
    (tmp_path / "k.cu").write_text('// what it does\n#include "h.cuh"\nint k;\n')
    header.write_text("int h;\n")
    before = tool.digest("k.cu")
    header.write_text("/* a\n   word */ int   h;  // another\n")
    assert tool.digest("k.cu") == before
    header.write_text("int g;\n")
    assert tool.digest("k.cu") != before


def test_the_command_compiles_what_is_not_known_and_checks_what_is(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
        ) -> None:
    first, *others = tool.ARCHITECTURES
    small, large = (tool.Instance(f"{name}.cu", f"{name}<float>", 128) for name in ("a", "b"))
    digests = {"a.cu": "1", "b.cu": "1"}
    row, compiled = tool.Row(32, 0), list[Any]()
    page, archs = tmp_path / "README.md", [first, *others]

    def measure_all(wanted: Any) -> Any:
        compiled[:] = wanted
        found: Any = {}
        for instance, arch in compiled:
            found.setdefault(instance, {})[arch] = row
        return found

    for name, value in (
            ("ROOT", tmp_path), ("RECORD", tmp_path / "kernels.json"), ("launched", dict),
            ("compiler", lambda: ("12", "12.1")), ("supported", lambda: archs),
            ("instances", lambda: [small, large]), ("digest", digests.__getitem__),
            ("runs_on", lambda i, arch: i is small or arch != first),
            ("measure_all", measure_all)):
        monkeypatch.setattr(tool, name, value)
    monkeypatch.setattr(tool.kernel_page, "PAGE", page)
    monkeypatch.setattr(tool.kernel_page, "render", lambda record, *_: tool.text_of(record))

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["kernel_table.py", *words])
        return int(tool.main()), capsys.readouterr().err

    of_small = [(small, arch) for arch in (first, *others)]
    of_large = [(large, arch) for arch in others]
    assert run() == (0, "")
    assert compiled == of_small + of_large
    kept = tool.RECORD.read_text()
    assert {i: tool.recorded(json.loads(kept), i, "12") for i in (small, large)} == \
        measure_all(of_small + of_large)
    assert page.read_text() == kept
    assert run("--check") == (0, "")
    assert {i for i, _ in compiled} == {small, large}
    assert len(compiled) == 2
    assert run() == (0, "")
    assert compiled == []
    assert run("--all") == (0, "")
    assert compiled == of_small + of_large
    digests["b.cu"] = "2"
    assert run("--check") == (0, "")
    assert [pair for pair in compiled if pair[0] is large] == of_large
    assert run() == (0, "")
    assert compiled == of_large
    row = tool.Row(32, 16)
    status, said = run("--check")
    assert status == 1
    assert said.count("the record says 32 registers, 0 bytes") == 2
    row = tool.Row(32, 0)
    page.write_text("")
    status, said = run("--check")
    assert (status, said.partition(";")[0]) == (1, "README.md is not the summary of the record")
    assert run() == (0, "")
    assert run("--check") == (0, "")
    kept = tool.RECORD.read_text()
    archs.remove(first)
    status, said = run("--all")
    assert (status, tool.RECORD.read_text()) == (1, kept)
    assert f"this NVRTC knows only {', '.join(others)}" in said
