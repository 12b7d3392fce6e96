"""The options of a run as they were resolved: toggles with their values, and launch variants.

Checkpoints store them, so that a resumed run uses the same ones, whatever tables, caches and the
number of remaining epochs would now select.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rawnn.common.errors import CheckpointError
from rawnn.common.target import Machine
from rawnn.engine.launch_choices import Changes, choices_of
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.opts import Selection
from rawnn.opts.launch_sharding import LAUNCHES, MANY_GEMMS
from rawnn.opts.user_kernel_toggles import toggle


@dataclass(frozen=True)
class ResolvedOptions:
    """The resolved options of one run.

    asked: the text after --opt.
    toggles: what it resolved to, each toggle with its value, as one types them.
    machine: the GPU that they were resolved for, or "the host".
    choices: the variants of launches that `tune` found (launch_choices.with_choices); None if it
        did not search.
    """

    asked: str
    toggles: str
    machine: str
    choices: dict[str, Changes] | None = field(default=None)

    @property
    def opt(self) -> str:
        """The value of --opt that selects exactly these toggles."""
        return f"none,{self.toggles}" if self.toggles else "none"

    @property
    def sharding(self) -> str:
        """Of the persistent kernel, in full, such as "1x1:128:FFFF"; LAUNCHES with the kernels that
        many networks share; "" where others train."""
        if MANY_GEMMS in self.toggles.split(","):
            return LAUNCHES
        values = (word.partition("=") for word in self.toggles.split(","))
        return next((value for name, _, value in values if name == "persistent"), "")

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def resolve_options(asked: str, selection: Selection, prepared: PreparedRun,
                    machine: Machine) -> ResolvedOptions:
    """The options of the run `prepared`, which includes the launches that `tune` found."""
    values = {name: toggle(name).resolved_value(value, prepared.train)
              for name, value in selection.values.items()}
    words = (name if value is None else f"{name}={value}" for name, value in values.items())
    return ResolvedOptions(asked, ",".join(words), machine_name(machine),
                           choices_of(prepared) if "tune" in values else None)


def machine_name(machine: Machine) -> str:
    """Name of the GPU, or "the host"."""
    return (machine.name or "a GPU") if machine.has_gpu else "the host"


def read_resolved_options(content: Mapping[str, Any], where: str) -> ResolvedOptions | None:
    """Read from a checkpoint's content; None from an older one without them. Raises
    CheckpointError, starting with `where`."""
    if not content:
        return None
    try:
        options = ResolvedOptions(**content)
        if not all(isinstance(text, str)
                   for text in (options.asked, options.toggles, options.machine)):
            raise TypeError
        if options.choices is not None:
            for changes in options.choices.values():
                dict(changes)
        return options
    except (TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{where} is not a valid checkpoint (its record of toggles is "
                              f"malformed)") from None
