"""Which trainer a group of members gets: a kernel of the GPU, ordinary runs there, or the host."""

from __future__ import annotations

from collections.abc import Callable

from rawnn.engine.machine import Opened
from rawnn.many.host import HostMembers, WorkerPool
from rawnn.many.members import Group, MemberTrainer
from rawnn.many.sessions import SessionMembers
from rawnn.persistent.problem import Unsupported


def trainer_of(group: Group, opened: Opened, notify: Callable[[str], None],
               pool: WorkerPool | None = None) -> MemberTrainer:
    """The trainer of a group on what is `opened`; on the host with the workers of `pool`. `notify`
    gets a sentence where a GPU trains its members one after the other, and why."""
    if opened.device is None:
        return HostMembers(group, opened, notify, pool)
    # Imported only for a GPU: generating its kernels takes more modules than the host needs.
    from rawnn.many.gpu import GpuMembers

    try:
        return GpuMembers(group, opened, notify=notify, sharding=group.config.sharding or "")
    except Unsupported as reason:
        notify(f"{len(group):,} member{'s' * (len(group) > 1)} of {group.config.network()} train "
               f"launch by launch, one after the other, since no kernel trains them at once: the "
               f"step {reason.reason}")
        return SessionMembers(group, opened, notify)
