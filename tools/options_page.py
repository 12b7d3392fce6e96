#!/usr/bin/env python3
"""Write docs/options.md: every command and every option, as `--help` has them.

    python tools/options_page.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.cli import cli  # noqa: E402
from rawnn.cli.option_groups import grouped  # noqa: E402

PAGE = ROOT / "docs" / "options.md"
HEAD = """# Every option

`tools/options_page.py` writes this page from the commands themselves; `python -m rawnn COMMAND
--help` says the same. `train` is the command where none is named. `rawnn`, which the installation
brings, is `python -m rawnn`.

## Completion

bash (4.4 or newer), zsh and fish complete commands, options and values of the command `rawnn`:
toggles and presets (also behind a comma), workloads, data sets, losses, devices, files. Put one of
these lines where your shell starts:

```sh
eval "$(_RAWNN_COMPLETE=bash_source rawnn)"       # ~/.bashrc
eval "$(_RAWNN_COMPLETE=zsh_source rawnn)"        # ~/.zshrc
_RAWNN_COMPLETE=fish_source rawnn | source        # ~/.config/fish/config.fish
```
"""


def commands(command: click.Command, context: click.Context, name: str
             ) -> Iterator[tuple[str, click.Command, click.Context]]:
    """The command, and those in it."""
    if name != "rawnn":
        yield name, command, context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from commands(found, click.Context(found, parent=context, info_name=each),
                                f"{name} {each}")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def bracketed(text: str) -> str:
    """Text whose brackets, such as the range [x>=1], are no links of Markdown."""
    return text.replace("[", "\\[")


def described(option: click.Parameter, context: click.Context) -> tuple[str, str, str]:
    """How it is typed, what it says, and its default."""
    record = option.get_help_record(context)
    assert record is not None
    typed, text = record
    text, _, default = text.partition("[default: ")
    return f"`{cell(typed)}`", bracketed(cell(text)), cell(default.rpartition("]")[0])


def section(name: str, command: click.Command, context: click.Context) -> str:
    """A command: what it does, how it is called, and its options by group."""
    pieces = " ".join(command.collect_usage_pieces(context))
    lines = [f"## `{name}`", "", " ".join((command.help or "").split()), "",
             f"```sh\n{name} {pieces}\n```", "", "| option | what | default |", "|---|---|---|"]
    for group, options in grouped(command, context).items():
        rows = [described(o, context) for o in options
                if isinstance(o, click.Option) and "--help" not in o.opts]
        if rows and len(grouped(command, context)) > 1:
            lines.append(f"| **{group}** | | |")
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines if lines[-1] != "|---|---|---|" else lines[:-3])


def page() -> str:
    """What docs/options.md is to say."""
    root = click.Context(cli, info_name="rawnn")
    sections = [section(*each) for each in commands(cli, root, "rawnn")]
    return "\n".join([HEAD, *(f"{text}\n" for text in sections)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
