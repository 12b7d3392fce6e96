"""Each `python -m rawnn` of a shell block on a page is a command with options that exist, and its
toggles are toggles."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rawnn.bench.training import check_words
from rawnn.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md",
         ROOT / "examples" / "lab" / "README.md"]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of every call of rawnn in the shell blocks of a page."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|;|\|(?!\w)", line.split(" #")[0]):
                words = shlex.split(part, comments=True)
                if "rawnn" in words and words[words.index("rawnn") - 1] == "-m":
                    yield words[words.index("rawnn") + 1:]


def parsed(words: list[str]) -> click.Context:
    """The context of a call, down to its last subcommand. Raises click.UsageError."""
    found: click.Command = cli
    context = found.make_context("rawnn", list(words))
    while isinstance(found, click.Group):
        rest = [*context._protected_args, *context.args]
        name, inner, left = found.resolve_command(context, rest)
        assert inner is not None
        context = inner.make_context(name, left, parent=context)
        found = inner
    return context


FOUND = {(str(page.relative_to(ROOT)), shlex.join(words)): words for page in PAGES
         for words in commands(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(("page", "line"), FOUND)
def test_a_documented_command_has_options_that_exist(page: str, line: str) -> None:
    try:
        context = parsed(FOUND[page, line])
    except click.exceptions.Exit:  # --help and --version
        return
    except click.BadParameter as error:  # files of the reader's
        if "does not exist" not in error.message and "No such file" not in error.message:
            raise
        return
    opt = context.params.get("opt")
    for sets in opt if isinstance(opt, (list, tuple)) else [opt] if opt else []:
        check_words([word for word in str(sets).split(",") if not word.endswith(".cu")], page)


def test_the_pages_have_commands_and_an_unknown_option_is_found() -> None:
    assert len(FOUND) > 60
    with pytest.raises(click.UsageError, match="No such option"):
        parsed(["train", "--lerning-rate", "1"])
    (words,) = commands("```sh\nA=1 python -m rawnn bench ladder --json a.json  # b\n```\n")
    assert words == ["bench", "ladder", "--json", "a.json"]
