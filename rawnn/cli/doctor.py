"""`rawnn doctor`: what of CUDA is found, where, and what each toggle lacks."""

from __future__ import annotations

import click

from rawnn.cli.screen import sentences, table_console


@click.command()
def doctor() -> int:
    """Say what of CUDA is found here: the driver, every library with its place and version, and
    what each toggle lacks, with the line that fixes it. Works without a GPU and without CUDA.

    The exit status is 0 if training on the GPU works, else 1."""
    from rawnn.doctor import diagnose

    console = table_console()
    found = diagnose()
    for each in found.findings:
        if each.missing:
            need = "MISSING" if each.required else "not found"
            sentences(console, [f"{each.name}: {need}; looked at: {', '.join(each.looked)}",
                                f"    fix: {each.fix}"])
        else:
            sentences(console, [f"{each.name}: {each.version or 'found'} ({each.found})"])
    click.echo()
    for lack in found.lacks:
        sentences(console, [f"toggle {lack.toggle} cannot run: {lack.reason}",
                            f"    fix: {lack.fix}"])
    sentences(console, ["Training on the GPU works here." if found.healthy else
                        "Training on the GPU does not work here: see MISSING above."])
    return 0 if found.healthy else 1
