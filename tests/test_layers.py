"""Imports go one way: the rooms of the package in order, each of which knows only those before it.

What is imported within a function, or for a type checker alone, loads nothing and does not count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import rawnn

ROOT = Path(rawnn.__file__).parent
ROOMS = (
    # What knows of nothing, or of errors.
    "version", "suggestions", "errors", "common", "device.target", "run.listener",
    "run.interrupts", "run.policy", "ranks",
    # What is trained, as data; "network" itself is but a docstring.
    "network", "network.workloads", "network.activations", "network.optimizers",
    "network.schedules", "step", "network.losses", "network.layers", "run.config",
    # Kernels and toggles: no driver.
    "onchip", "ptx", "tuning.table", "opts",
    # The device.
    "device", "device.cuda.errors", "device.compiling", "device.cuda", "graphs", "device.libs",
    "device.sim",
    # A run.
    "data", "run.machine", "data.source", "runners", "tuning", "run.result", "run.checkpoint",
    "run.resumption", "run.taken", "run.state_dict", "run.model", "run.export", "run.callbacks",
    "run.parallel", "run.decided", "run.units", "run.loop", "run.training", "run",
    # What people use.
    "doctor", "lab", "bench", "cli",
)  # fmt: skip
"""Folders and modules of rawnn/, in order; a module with a place of its own is not its folder's."""

MODULES = {".".join(path.with_suffix("").relative_to(ROOT.parent).parts).removesuffix(".__init__"):
           path for path in sorted(ROOT.rglob("*.py"))}
OUTSIDE = ("rawnn", "rawnn.__main__")
"""The package itself, which loads the rest when it is asked for."""


def room_of(module: str) -> str:
    """The most particular room that a module is in."""
    name = module.removeprefix("rawnn.")
    found = [room for room in ROOMS if name == room or name.startswith(room + ".")]
    return max(found, key=len, default="")


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
    place = ROOMS.index(room_of(module)) if room_of(module) else -1
    assert place >= 0, f"{module} is in no room: give it one"
    later = {name for name in imported(module) if ROOMS.index(room_of(name)) > place}
    assert not later, f"{module} ({room_of(module)}) imports {sorted(later)}"


def test_the_test_sees_an_import_that_goes_the_other_way() -> None:
    assert "rawnn.cuda.device" in imported("rawnn.engine.runners.lowering")
    assert ROOMS.index("device.cuda") > ROOMS.index("opts")
    assert room_of("rawnn.cuda.errors") == "device.cuda.errors"
    assert room_of("rawnn.cuda.device") == "device.cuda"
    assert "rawnn.cuda.device" not in imported("rawnn.cuda.occupancy")  # types alone


def test_no_circle_but_that_of_a_registry_and_what_registers_in_it() -> None:
    graph = {module: imported(module) for module in MODULES if module not in OUTSIDE}

    def reach(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            for name in graph[todo.pop()] - found:
                found.add(name)
                todo.append(name)
        return found

    reached = {module: reach(module) for module in graph}
    circles = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph
               if a in reached[a]}
    registries = {f"rawnn.model.{name}"
                  for name in ("activations", "optimizers", "schedules", "losses")}
    assert {min(circle) for circle in circles} == registries
    for circle in circles:
        assert all(name.rpartition(".")[0] in (min(circle), "rawnn.model") for name in circle)


@pytest.mark.parametrize(("module", "unloaded"), [
    ("rawnn.opts", ("device.compiling", "device.cuda", "graphs", "device.libs", "runners",
                    "device.sim")),
    ("rawnn.ptx.kernels", ("device.compiling", "device.cuda", "graphs", "opts", "runners")),
    ("rawnn.plan", ("network.losses", "network.layers", "opts", "ptx", "device.cuda")),
    ("rawnn.lab", ("run.training", "opts", "step", "runners", "device.sim")),
])
def test_what_is_not_loaded(module: str, unloaded: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*(m for m in sys.modules if m.startswith('rawnn.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            check=True, cwd=ROOT.parent).stdout.split()
    assert module in loaded
    assert not [m for m in loaded if room_of(m).startswith(unloaded)]


def test_kernel_files_tell_one_story_each() -> None:
    sources = [*(ROOT / "ptx").rglob("*.cu"), *(ROOT / "ptx").rglob("*.cuh")]
    assert len(sources) > 50
    assert not [str(file.relative_to(ROOT)) for file in sources
                if len(file.read_text().splitlines()) > 300]


def test_the_design_names_every_room() -> None:
    text = (ROOT.parent / "docs" / "design.md").read_text()
    for room in ROOMS:
        path = room.replace(".", "/")
        assert f"`{path}/`" in text or f"`{path}.py`" in text, room


def test_the_design_has_them_in_an_order_that_is_kept() -> None:
    text = (ROOT.parent / "docs" / "design.md").read_text()
    table = text[text.index("In more detail and in order"):text.index("## The way of a step")]
    rows = [line for line in table.splitlines() if line.startswith("| `")]

    def row_of(room: str) -> int:
        path = room.replace(".", "/")
        words = (f"`{path}/`", f"`{path}.py`")
        return next(i for i, row in enumerate(rows) if any(word in row for word in words))

    for module in MODULES:
        if module not in OUTSIDE:
            for other in imported(module):
                assert row_of(room_of(other)) <= row_of(room_of(module)), (module, other)
