"""Imports go one way: the folders of the package in order, each of which knows only those before.

What is imported within a function, or for a type checker alone, loads nothing and does not count.
"""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import rawnn
from rawnn.plan.policy import Policy

ROOT = Path(rawnn.__file__).parent
LAYERS = (
    "version", "common", "errors",
    # What is trained and how, as data; kernels and toggles: no driver.
    "model", "plan", "persistent", "ptx", "opts",
    # The device, or a simulated one.
    "cuda", "graphs", "sim",
    # A run.
    "data", "distributed", "engine", "export", "tuning",
    # What people use.
    "many", "doctor", "lab", "bench", "cli",
)  # fmt: skip
"""Folders and modules of rawnn/, in order."""

MODULES = {".".join(path.with_suffix("").relative_to(ROOT.parent).parts).removesuffix(".__init__"):
           path for path in sorted(ROOT.rglob("*.py"))}
OUTSIDE = ("rawnn", "rawnn.__main__")
"""The package itself, which loads the rest when it is asked for."""


def layer_of(module: str) -> str:
    """The folder that a module is in, or the module itself if it is in none."""
    return module.split(".")[1]


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from statements((*node.body, *node.orelse))
        elif isinstance(node, ast.Try):
            yield from statements((*node.body, *(s for h in node.handlers for s in h.body)))


def imported(module: str) -> set[str]:
    """The modules of rawnn that importing a module loads, directly."""
    found = set()
    for node in statements(ast.parse(MODULES[module].read_text()).body):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert not node.level, f"{module} imports relatively"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module or "" for name in inner]
        found |= {name for name in names if name in MODULES}
    return found - {module, *OUTSIDE}


@pytest.mark.parametrize("module", [name for name in MODULES if name not in OUTSIDE])
def test_a_module_imports_only_what_comes_before_it(module: str) -> None:
    assert layer_of(module) in LAYERS, f"{module} is in no layer: give its folder a place"
    place = LAYERS.index(layer_of(module))
    later = {name for name in imported(module) if LAYERS.index(layer_of(name)) > place}
    assert not later, f"{module} imports {sorted(later)}"


def test_the_test_sees_an_import_that_goes_the_other_way() -> None:
    assert "rawnn.cuda.device" in imported("rawnn.engine.runners.lowering")
    assert LAYERS.index("cuda") > LAYERS.index("opts")
    assert "rawnn.cuda.device" not in imported("rawnn.cuda.occupancy")  # types alone


def test_no_two_modules_import_each_other() -> None:
    graph = {module: imported(module) for module in MODULES if module not in OUTSIDE}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize(("module", "unloaded"), [
    ("rawnn.opts", ("cuda", "graphs", "engine", "sim")),
    ("rawnn.ptx.kernels", ("cuda", "graphs", "opts", "engine")),
    ("rawnn.plan", ("opts", "ptx", "cuda")),
    ("rawnn.lab", ("engine.training", "engine.session", "engine.runners", "opts", "plan", "sim")),
    *((f"rawnn.cli.{command}", ("bench", "sim")) for command in (
        "train", "many", "launch", "tune", "eval", "predict", "export")),
])
def test_what_is_not_loaded(module: str, unloaded: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*(m for m in sys.modules if m.startswith('rawnn.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True, cwd=ROOT.parent).stdout.split()
    assert module in loaded
    folders = tuple(f"rawnn.{folder}." for folder in unloaded)
    assert not [m for m in loaded if f"{m}.".startswith(folders)]


TOGGLES_OF_FIELDS = {
    "sync": ["nosync"], "report": ["report"], "allocator": ["arena", "pool", "stream_ordered"],
    "pinned": ["pinned"], "streams": ["streams"], "pdl": ["pdl"], "graph": ["graphs"],
    "graph_steps": ["graphs"], "tune": ["tune"]}
"""Fields of Policy -> the files of rawnn/opts/ that set them."""


def reading(text: str) -> set[str]:
    """The fields that a source reads of a policy."""
    return {node.attr for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("policy")}


def test_the_file_of_a_runtime_toggle_names_every_file_that_reads_its_field() -> None:
    assert set(TOGGLES_OF_FIELDS) == {field.name for field in dataclasses.fields(Policy)}
    readers: dict[str, set[str]] = {field: set() for field in TOGGLES_OF_FIELDS}
    for path in MODULES.values():
        for field in reading(path.read_text()) & readers.keys():
            readers[field].add(str(path.relative_to(ROOT)))
    assert all(readers.values())
    for field, files in TOGGLES_OF_FIELDS.items():
        for file in files:
            text = (ROOT / "opts" / f"{file}.py").read_text()
            assert f"{field}=" in text
            named = set(re.findall(r"[\w/]+/\w+\.\w+", ast.get_docstring(ast.parse(text)) or ""))
            assert readers[field] <= named, f"name the readers of {field} in opts/{file}.py"
            assert all((ROOT / name).exists() for name in named), f"opts/{file}.py"


def test_reads_of_a_policy_are_seen() -> None:
    assert reading("a = self._prepared.policy.pdl and policy.sync == x.report") == {"pdl", "sync"}


def test_pdl_names_the_kernels_that_differ_with_it() -> None:
    text = (ROOT / "opts" / "pdl.py").read_text()
    kernels = [path for path in (ROOT / "ptx").rglob("*.cu*")
               if "kProgrammatic" in path.read_text()]
    assert len(kernels) > 2
    assert all(str(path.relative_to(ROOT)) in text for path in kernels)


def test_kernel_files_tell_one_story_each() -> None:
    sources = [*(ROOT / "ptx").rglob("*.cu"), *(ROOT / "ptx").rglob("*.cuh")]
    assert len(sources) > 50
    assert not [str(file.relative_to(ROOT)) for file in sources
                if len(file.read_text().splitlines()) > 300]


def test_the_design_has_the_layers_in_their_order() -> None:
    text = (ROOT.parent / "docs" / "design.md").read_text()
    table = text[text.index("## Where things are"):text.index("## The way of a step")]
    rows = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    named = [name.strip("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", rows)]
    assert named == list(LAYERS)
