"""What a run took of what was open: kept in its checkpoints, so that a run that goes on takes the
same, whatever tables, caches and remaining epochs would say by then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rawnn.common.errors import CheckpointError
from rawnn.common.target import Machine
from rawnn.engine.launch_choices import Changes, choices_of
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.opts import Selection
from rawnn.opts.user_kernel_toggles import toggle


@dataclass(frozen=True)
class ResolvedOptions:
    """`asked` is what stood after --opt, `toggles` what became of it, each with the value that it
    came to, as one types them; `machine` is the GPU that they were taken for, or "the host".
    `choices` are the launches that `tune` found, as rawnn.engine.launch_choices.with_choices takes
    them; None where it did not look."""

    asked: str
    toggles: str
    machine: str
    choices: dict[str, Changes] | None = field(default=None)

    @property
    def opt(self) -> str:
        """What selects the very same."""
        return f"none,{self.toggles}" if self.toggles else "none"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def resolve_options(asked: str, selection: Selection, work: PreparedRun,
                    machine: Machine) -> ResolvedOptions:
    """What the run of `work` takes. `work` is as it runs, with the launches that `tune` found."""
    values = {name: toggle(name).resolved_value(value, work.train)
              for name, value in selection.values.items()}
    words = (name if value is None else f"{name}={value}" for name, value in values.items())
    return ResolvedOptions(asked, ",".join(words), machine_name(machine),
                           choices_of(work) if "tune" in values else None)


def machine_name(machine: Machine) -> str:
    """What a machine is called."""
    return "the host" if machine.gpu is not None else machine.name or "a GPU"


def read_resolved_options(content: Mapping[str, Any], where: str) -> ResolvedOptions | None:
    """What a checkpoint keeps of it; None of an older one, which keeps nothing. Raises
    CheckpointError, starting with `where`."""
    if not content:
        return None
    try:
        kept = ResolvedOptions(**content)
        if not all(isinstance(text, str) for text in (kept.asked, kept.toggles, kept.machine)):
            raise TypeError
        if kept.choices is not None:
            for changes in kept.choices.values():
                dict(changes)
        return kept
    except (TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{where} is not a valid checkpoint (what it says of its toggles "
                              f"makes no sense)") from None
