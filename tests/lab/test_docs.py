"""Every block of code in docs/lab.md runs as it stands, on the simulated GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawnn
from rawnn.cli import run
from rawnn.lab import arrays, simulated
from rawnn.ptx.user_kernels import USER_KERNELS, unregister
from rawnn.sim import register
from tests import requires

PAGE = (Path(rawnn.__file__).parents[1] / "docs" / "lab.md").read_text()
SCALE = """
template <typename T> __global__ void scale(T* x) { x[blockIdx.x * TILE + threadIdx.x] *= 2; }
"""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """The page's kernels for the training step are no business of other tests."""
    yield
    for word in list(USER_KERNELS):
        unregister(word)


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found


def test_the_python() -> None:
    register("saxpy", lambda t, a: t.y.__iadd__(a["a"] * t.x), {"x": ("n",), "y": ("n",)},
             reads=("x", "y"), writes=("y",))
    register("advance", lambda t, a: t.x.__iadd__(a["p"]["rate"] * a["p"]["steps"][1]),
             {"x": ("n",)}, reads=("x",), writes=("x",))
    others = len(blocks("sh")) + len(blocks("cuda"))
    assert len(blocks("python")) == len(re.findall("```", PAGE)) / 2 - others
    arrays.default_device.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "open_gpu", lambda ordinal, notify: simulated())
        names: dict[str, object] = {}
        for block in blocks("python"):
            exec(block, names)
    arrays.default_device.cache_clear()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                      capsys: pytest.CaptureFixture[str]) -> None:
    requires.module("cuda.bindings.nvrtc")
    monkeypatch.chdir(tmp_path)
    Path("scale.cu").write_text(SCALE)
    for block in blocks("cuda"):
        Path("mine.cu" if "op =" in block else "axpy.cu").write_text(block)
    arrays.default_device.cache_clear()
    monkeypatch.setattr(arrays, "open_gpu", lambda ordinal, notify: simulated())
    for line in "".join(blocks("sh")).splitlines():
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "rawnn"]
        assert run(words[3:]) == 0, capsys.readouterr().err
    arrays.default_device.cache_clear()
