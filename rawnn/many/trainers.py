"""Which trainer a group of members gets: a kernel of the GPU, ordinary runs there, or the host; on
several GPUs, one of these on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rawnn.engine.machine import Opened
from rawnn.many.gpus import Gpu
from rawnn.many.host import HostMembers, WorkerPool
from rawnn.many.members import Group, MemberTrainer
from rawnn.many.sessions import SIDE_BY_SIDE, SessionMembers
from rawnn.many.spread import SpreadMembers
from rawnn.persistent.problem import Unsupported


def trainers_of(groups: Sequence[Group], opened: Opened, gpus: Sequence[Gpu],
                notify: Callable[[str], None]) -> Iterator[MemberTrainer]:
    """The trainers of all groups, one by one: on what is `opened`, or over several `gpus`. Groups
    on the host share their worker processes; those of few members are on different GPUs."""
    pool = WorkerPool() if opened.device is None and not gpus else None
    dealt = 0
    for group in groups:
        yield SpreadMembers(group, gpus, trainer_of, notify, dealt) if gpus else \
            trainer_of(group, opened, notify, pool=pool)
        dealt += len(group)


def trainer_of(group: Group, opened: Opened, notify: Callable[[str], None],
               at_once: int | None = None, pool: WorkerPool | None = None) -> MemberTrainer:
    """The trainer of a group on what is `opened`: on a GPU chosen for so many members at once, on
    the host with the workers of `pool`. `notify` gets a sentence where no kernel of a GPU trains
    them at once, and why."""
    if opened.device is None:
        return HostMembers(group, opened, notify, pool)
    # Imported only for a GPU: generating its kernels takes more modules than the host needs.
    from rawnn.many.gpu import GpuMembers

    try:
        return GpuMembers(group, opened, notify=notify, sharding=group.config.sharding or "",
                          at_once=at_once)
    except Unsupported as reason:
        notify(f"{len(group):,} member{'s' * (len(group) > 1)} of {group.config.network()} train "
               f"launch by launch, {SIDE_BY_SIDE} side by side at most, since no kernel trains "
               f"them at once: the step {reason.reason}")
        return SessionMembers(group, opened, notify)
