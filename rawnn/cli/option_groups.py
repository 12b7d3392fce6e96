"""Options in groups, as `--help` shows them, with defaults and shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

OTHER = "Other options"
Known = Callable[[], Iterable[str]]
"""The values of an option, found only when a shell asks for them."""


class Option(click.Option):
    """An option of a `group`. `default_text` describes its default; a shell completes `values`,
    one of a comma-separated list if the option takes a list (`many`)."""

    def __init__(self, *arguments: Any, group: str = OTHER, default_text: str = "",
                 values: Known | None = None, many: bool = False, **named: Any) -> None:
        if values is not None:
            named["shell_complete"] = completed(values, many)
        if default_text:
            named["help"] = f"{named['help']} [default: {default_text}]"
        self.group, self.default_text = group, default_text
        super().__init__(*arguments, **named)


class Command(click.Command):
    """A command whose `--help` shows options by their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, options in grouped(self, ctx).items():
            with formatter.section(group):
                formatter.write_dl([record for option in options
                                    if (record := option.get_help_record(ctx))])


def grouped(command: click.Command, ctx: click.Context) -> dict[str, list[click.Parameter]]:
    """The options of a command that help shows, by group; those without a group come last."""
    groups: dict[str, list[click.Parameter]] = {}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and parameter.get_help_record(ctx) is not None:
            groups.setdefault(getattr(parameter, "group", OTHER), []).append(parameter)
    last = groups.pop(OTHER, [])
    return {**groups, OTHER: last}


def completed(values: Known, many: bool = False) -> Callable[..., list[CompletionItem]]:
    """A completion of a value, or of the last of several after commas; a toggle may follow a
    minus there."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str
                 ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if many else ("", "", incomplete)
        minus = "-" if many and last.startswith("-") else ""
        return [CompletionItem(f"{before}{comma}{minus}{value}") for value in values()
                if value.startswith(last.removeprefix(minus))]

    return complete
