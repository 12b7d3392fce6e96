"""Imports go one way: from the table below, a module imports its own room and rooms of the lines
above. So nothing is half imported, the plan knows nothing of the driver, and trying a kernel loads
no trainer."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("rawnn.version", "rawnn.errors", "rawnn.words", "rawnn.target", "rawnn.listener",
     "rawnn.interrupts"),
    ("rawnn", "rawnn.dtypes", "rawnn.random", "rawnn.files", "rawnn.policy", "rawnn.workloads",
     "rawnn.activations", "rawnn.optimizers", "rawnn.schedules"),
    ("rawnn.data", "rawnn.machine", "rawnn.tuning.table", "rawnn.step.tensor", "rawnn.step.op"),
    ("rawnn.step.ops.common", "rawnn.step.dependencies"),
    ("rawnn.losses",),
    ("rawnn.network", "rawnn.step.ops"),
    ("rawnn.step", "rawnn.checkpoint"),
    ("rawnn.config", "rawnn.state_dict", "rawnn.onchip"),
    ("rawnn.datasource", "rawnn.result", "rawnn.model", "rawnn.ptx"),
    ("rawnn.callbacks", "rawnn.export"),
    ("rawnn.opts", "rawnn.cuda.errors"),
    ("rawnn.compiling",),
    ("rawnn.cuda",),
    ("rawnn.graphs", "rawnn.lab", "rawnn.libs"),
    ("rawnn.runners", "rawnn.sim"),
    ("rawnn.training", "rawnn.tuning"),
    ("rawnn.bench",),
    ("rawnn.cli",),
    ("rawnn.__main__",),
)
"""Rooms, each a module or a folder without what is listed by itself, from what knows nothing of
the others to the command line. Those of one line know nothing of each other."""

LEVELS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in (ROOT / "rawnn").rglob("*.py")}


def room_of(module: str) -> str:
    """The longest entry of the table that it is in; "rawnn" is that one module."""
    rooms = [r for r in LEVELS if module == r or (r != "rawnn" and module.startswith(f"{r}."))]
    assert rooms, f"{module} is in no layer of tests/test_layers.py"
    return max(rooms, key=len)


def imports(module: str) -> Iterator[str]:
    """The modules of rawnn that one imports as it is imported, and the packages around them where
    these import anything; not those inside functions, nor what only type checkers read."""
    todo: list[ast.AST] = [ast.parse(MODULES[module].read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name in MODULES else node.module for name in inner]
        for name in filter(MODULES.__contains__, found):
            parts = name.split(".")
            for length in range(2, len(parts) + 1):
                each = ".".join(parts[:length])
                if each == name or (not module.startswith(each) and any(imports(each))):
                    yield each
        todo += ast.iter_child_nodes(node)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_lies_below(module: str) -> None:
    room = room_of(module)
    for other in imports(module):
        below = room_of(other)
        assert below == room or LEVELS[below] < LEVELS[room], f"{module} imports {other}"


def test_every_room_of_the_table_is_there() -> None:
    assert {room_of(module) for module in MODULES} == set(LEVELS)


def loaded(module: str) -> set[str]:
    """What of rawnn is loaded once a module is imported, in a process of its own."""
    code = f"import sys, {module}; print(*(m for m in sys.modules if m.startswith('rawnn')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          timeout=120, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize(("module", "strangers"), [
    ("rawnn.lab", ("rawnn.step", "rawnn.opts", "rawnn.network", "rawnn.training", "rawnn.runners",
                   "rawnn.data", "rawnn.losses")),
    ("rawnn.step.build", ("rawnn.cuda", "rawnn.compiling", "rawnn.runners", "rawnn.opts")),
    ("rawnn.opts", ("rawnn.cuda", "rawnn.compiling", "rawnn.runners")),
    ("rawnn.config", ("rawnn.cuda", "rawnn.runners", "rawnn.training")),
])
def test_what_an_import_does_not_load(module: str, strangers: tuple[str, ...]) -> None:
    found = loaded(module)
    assert module in found
    assert not [m for m in found for s in strangers if m == s or m.startswith(f"{s}.")]
