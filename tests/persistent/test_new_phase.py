"""A new kind of phase touches three files: those of docs/persistent-kernel.md are added as they
stand there, and the kind is in everything that walks a schedule."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import rawnn
from rawnn.bench.render.schedule_chart import LANES
from rawnn.persistent import cost, schedule
from rawnn.persistent.report import describe
from rawnn.persistent.source import source
from rawnn.persistent.stamps import Stamp, stamps
from rawnn.persistent.tracing import traced
from tests import requires
from tests.persistent.test_emulator import Launch
from tests.persistent.test_interpreter import interpreted

ROOT = Path(rawnn.__file__).parents[1]
PAGE = (ROOT / "docs" / "persistent-kernel.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## A new kind of phase\n")[2].partition("\n## ")[0]
STEPS = dict(re.findall(r"^\d\. `(\S+)`.*?```\w+\n(.*?)```", SECTION, re.DOTALL | re.MULTILINE))
KIND, TEMPLATE, SCHEDULE = STEPS
FACTOR = 0.5
NAME = "scale gradient"
HOW = ("softmax, SGD", 2, 2, "SFGF")


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the new files, whose kind is in every schedule from now on."""
    for name, text in ((KIND, STEPS[KIND]), (TEMPLATE, STEPS[TEMPLATE])):
        file = tmp_path / name.removeprefix("rawnn/ptx/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    path, name = tmp_path / KIND, KIND.removesuffix(".py").replace("/", ".")
    monkeypatch.setitem(sys.modules, name, ModuleType(name))  # dataclasses look for it
    exec(compile(STEPS[KIND], path, "exec"), vars(sys.modules[name]))
    text = inspect.getsource(schedule)
    for hunk in re.split(r"^@@.*\n", STEPS[SCHEDULE], flags=re.MULTILINE):
        old, new = ("".join(re.findall(rf"^[ {sign}](.*\n)", hunk, re.MULTILINE)) for sign in "-+")
        assert text.count(old) == 1
        text = text.replace(old, new)
    names = {"__name__": schedule.__name__}
    exec(text, names)
    (function,) = re.findall(r"^@@ def (\w+)", STEPS[SCHEDULE], re.MULTILINE)
    monkeypatch.setattr(schedule, function, names[function])
    return tmp_path


def test_there_are_three_files_of_which_one_is_there() -> None:
    assert [(ROOT / name).exists() for name in STEPS] == [False, False, True]
    assert Path(KIND).parent == Path("rawnn/persistent/phases")
    assert Path(TEMPLATE).parent == Path("rawnn/ptx/persistent")
    assert Path(inspect.getfile(schedule)) == ROOT / SCHEDULE


def scaled(launch: Launch) -> dict[str, np.ndarray]:
    """What the plan of a step makes of the parameters with that part of the learning rate: the same
    where the optimizer is plain SGD."""
    step = launch.op.attributes["step"]
    ops = tuple(replace(op, attributes={**op.attributes, "lr": FACTOR * op.attributes["lr"]})
                if "dw" in op.operands else op for op in step.ops)
    attributes = {**launch.op.attributes, "step": replace(step, ops=ops)}
    return launch._by_reference_of(replace(launch.op, attributes=attributes), np.float64)


def test_the_kind_trains_in_the_interpreter(added: Path) -> None:
    launch = Launch(*HOW)
    wanted, found = scaled(launch), interpreted(launch)
    for role in ("w1", "b1", "w2", "w3", "b3"):
        np.testing.assert_allclose(found[role], wanted[role], rtol=1e-9)
        assert np.abs(found[role] - launch.by_reference()[role]).max() > 1e-4, role


@requires.GXX
def test_the_kind_trains_on_the_emulator(added: Path) -> None:
    launch = Launch(*HOW)
    wanted, found = scaled(launch), launch.on_emulator(added, 0)
    for role in ("w1", "b1", "w2", "w3", "b3"):
        np.testing.assert_allclose(found[role], wanted[role], rtol=1e-4, atol=1e-6)


def test_everything_that_walks_a_schedule_has_the_kind(added: Path) -> None:
    choice = Launch(*HOW).op.attributes["choice"]
    found, d = choice.layout.schedule, choice.sharding
    (phase,) = (each for each in found.phases if type(each).__name__ == "ScaleGradient")
    ahead, behind = (found.micro_batch[found.micro_batch.index(phase) + i] for i in (-1, 1))
    assert isinstance(ahead, schedule.Barrier)
    assert behind == schedule.Barrier(NAME, "barrier")
    (line,) = (each for each in cost.phases(d) if each.name == NAME)
    assert line.cycles == 40.0 * -(-d.outs(2) * d.columns // 2 // d.threads)
    assert f"\n  {NAME}   " in describe(choice)
    assert {Stamp(NAME), Stamp(NAME, "barrier")} <= set(stamps(found))
    assert phase.lane in LANES
    text = source(traced(choice, 2).layout, "kernel")
    assert '#include "persistent/scale_gradient.cuh"\n' in text
    assert re.search(r"scale_gradient<Shape>\(.*\n *stamps\.stamp", text)


def test_a_kernel_without_the_kind_does_not_include_it() -> None:
    assert "scale_gradient" not in Launch(*HOW).impl.code.text


# -- no other module has a list of kinds -----------------------------------------------------------
@dataclass(frozen=True)
class Imports:
    """The kinds of phases that a module imports, and whether it imports their modules as such."""

    kinds: frozenset[str]
    modules: bool


def kinds_of(text: str) -> set[str]:
    """The kinds of phases that a module defines."""
    bases = {node.name: {ast.unparse(base) for base in node.bases}
             for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}
    return {name for name, of in bases.items() if of & {"Phase", "Gemm", "Exchange"}}


PHASES = ROOT / "rawnn" / "persistent" / "phases"
KINDS = frozenset().union(*(kinds_of(path.read_text()) for path in PHASES.glob("*.py")))


def imports(text: str) -> Imports:
    found = [(node.module or "", alias.name) for node in ast.walk(ast.parse(text))
             if isinstance(node, ast.ImportFrom) for alias in node.names]
    return Imports(frozenset(name for module, name in found
                             if module.startswith("rawnn.persistent.")) & KINDS,
                   "rawnn.persistent.phases" in {module for module, _ in found}
                   or ("rawnn.persistent", "phases") in found)


def test_only_the_schedule_knows_kinds() -> None:
    assert len(imports((ROOT / SCHEDULE).read_text()).kinds) == len(KINDS) > 15
    for path in (ROOT / "rawnn").rglob("*.py"):
        if path.parent != PHASES and path != ROOT / SCHEDULE:
            assert imports(path.read_text()) == Imports(frozenset(), False), path


def test_imports_of_kinds_are_seen() -> None:
    assert imports("from rawnn.persistent.phases.gemm import Gemm").kinds == {"Gemm"}
    assert imports("if x:\n  from rawnn.persistent.schedule import Softmax").kinds == {"Softmax"}
    assert imports("from rawnn.persistent import phases").modules
    assert kinds_of(STEPS[KIND]) == {"ScaleGradient"}
