"""The README: its commands, blocks of code and links work as they stand, each by itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rawnn.cli import run
from rawnn.lab import arrays, simulated
from rawnn.lab import kernel as kernels
from tests import requires

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = README.splitlines()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert found
    return found


def test_it_has_at_most_90_lines() -> None:
    assert len(LINES) <= 90


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.count("\n"))
def test_a_block_of_python_runs_by_itself(code: str, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    if "Kernel" in code:
        requires.module("cuda.bindings.nvrtc")
    device = simulated()
    monkeypatch.setattr(kernels, "default_device", lambda: device)
    monkeypatch.setattr(arrays, "default_device", lambda: device)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_first_command_says_without_a_gpu_what_stands_there(
        capsys: pytest.CaptureFixture[str], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(blocks("sh")[0].rpartition("&&")[2])
    assert words[:3] == [".venv/bin/python", "-m", "rawnn"]
    monkeypatch.chdir(tmp_path)
    assert run([*words[3:], "--dataset", "synthetic", "--epochs", "1"]) == 0
    captured = capsys.readouterr()
    if "running on the host" not in captured.err:
        pytest.skip("shows what happens without a GPU, and this machine has one")
    (shown,) = re.findall(r"`(rawnn: running .*?) \.\.\.`", README)
    assert shown.partition(" can be")[0] in captured.err


def test_the_output_shown_is_that_of_the_first_command(
        capsys: pytest.CaptureFixture[str], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """Line by line, figures aside; the simulated GPU has no time of an epoch to average."""
    words = shlex.split(blocks("sh")[0].rpartition("&&")[2])
    monkeypatch.chdir(tmp_path)
    assert run([*words[3:], "--device", "sim", "--dataset", "synthetic", "--epochs", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    (shown,) = re.findall(r"^```\n(GPU .*?)^```$", README, re.DOTALL | re.MULTILINE)
    number = re.compile(r"[0-9][0-9.,]*")
    kinds = {tuple(number.sub("0", line).split()) for line in printed}
    for line in shown.splitlines()[1:-1]:
        assert tuple(number.sub("0", line).split()) in kinds, line


def test_the_section_on_tests_has_one_command() -> None:
    """`.ci/run` takes it from there."""
    (section,) = re.findall(r"^## Test\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    (command,) = block.splitlines()
    assert command.endswith("python -m pytest -n auto")


def test_every_command_names_the_interpreter_of_an_environment() -> None:
    """`python -m rawnn` is right only once an environment is activated."""
    assert not re.findall(r"(?<!bin/)python -m rawnn", README)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", README))))
def test_a_link_leads_somewhere(link: str) -> None:
    path, _, anchor = link.partition("#")
    assert (ROOT / path).exists()
    if anchor:
        heads = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]
