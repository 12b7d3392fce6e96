"""Which trainer a group of members gets: on a GPU one kernel, launches of all members or ordinary
runs; the host; on several GPUs or ranks, one of these on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rawnn.distributed import Team
from rawnn.engine.machine import Opened
from rawnn.many.gpus import Gpu
from rawnn.many.host import HostMembers, WorkerPool
from rawnn.many.members import Group, MemberTrainer
from rawnn.many.parts import PartedMembers
from rawnn.many.ranks import RankMembers
from rawnn.many.residents import MovableMembers, Resident
from rawnn.many.sessions import SIDE_BY_SIDE, SessionMembers
from rawnn.many.shares import Make
from rawnn.many.spread import SpreadMembers
from rawnn.persistent.problem import Unsupported

if TYPE_CHECKING:
    from rawnn.cuda.device import Device
    from rawnn.many.member_plans import MemberPlans


@dataclass(eq=False)
class OnDevice:
    """What groups share on a device: arrays of the data set, and its memory."""

    arrays: dict[tuple[Any, ...], int] = field(default_factory=dict)
    residents: list[Resident] = field(default_factory=list)


def trainers_of(groups: Sequence[Group], opened: Opened, notify: Callable[[str], None],
                gpus: Sequence[Gpu] = (), team: Team | None = None,
                ends_together: bool = False) -> Iterator[MemberTrainer]:
    """The trainers of all groups, one by one: on what is `opened`, over several `gpus`, or over the
    ranks of a `team`, each on what it has opened. Groups on the host share their worker processes;
    those of few members are on different GPUs or ranks. `ends_together` says that members stop
    behind their epochs alone."""
    pool, plan = None, None
    if opened.device is None:
        pool = WorkerPool(processes=team.place.local_size if team is not None else 1)
    elif gpus:
        from rawnn.many.member_plans import SharedPlans

        plan = SharedPlans()
    make: Make = partial(trainer_of, pool=pool, shared={}, plan=plan)
    dealt = 0
    for group in groups:
        at_once = len(group)
        if team is not None:
            yield RankMembers(group, opened, team, make, notify, at_once, dealt)
        elif gpus:
            yield SpreadMembers(group, gpus, make, notify, at_once, dealt, ends_together)
        else:
            yield make(group, opened, notify, at_once)
        dealt += len(group)


def trainer_of(group: Group, opened: Opened, notify: Callable[[str], None],
               at_once: int | None = None, pool: WorkerPool | None = None,
               shared: dict[Device, OnDevice] | None = None,
               plan: Callable[..., MemberPlans] | None = None) -> MemberTrainer:
    """The trainer of a group on what is `opened`: on a GPU chosen for so many members at once and
    with what the groups of a data set have `shared` on each device, and by the plans that `plan`
    makes, on the host with the workers of `pool`. `notify` gets a sentence where no kernel of a GPU
    trains them at once, and why."""
    if opened.device is None:
        return HostMembers(group, opened, notify, pool)
    # Imported only for a GPU: generating its kernels takes more modules than the host needs.
    from rawnn.many.gpu import GpuMembers
    from rawnn.many.launches import kind_of, parts_of
    from rawnn.many.member_plans import SharedPlans

    found = OnDevice() if shared is None else shared.setdefault(opened.device, OnDevice())
    named = group.config.sharding or ""
    plan = plan or SharedPlans()

    def trainer(own: Group) -> MemberTrainer:
        def make(sharding: str) -> MemberTrainer:
            return kind(own, opened, notify=notify if not sharding else lambda message: None,
                        sharding=sharding or named, at_once=at_once,
                        plan=plan if kind is GpuMembers else None,
                        shared=None if shared is None else found.arrays)

        return make("") if shared is None else \
            MovableMembers(len(own), make, found.residents, notify)

    try:
        kind = kind_of(group, opened, named, at_once, plan)
        return trainer(group) if kind is GpuMembers else \
            PartedMembers(group, parts_of(group, opened), trainer)
    except Unsupported as reason:
        notify(f"{len(group):,} member{'s' * (len(group) > 1)} of {group.config.network()} train "
               f"launch by launch, {SIDE_BY_SIDE} side by side at most, since no kernel trains "
               f"them at once: the step {reason.reason}")
        return SessionMembers(group, opened, notify, found.residents)
