"""What the members of a launch train, and how their kernels share it, from the problem and the
sharding of one network."""

from __future__ import annotations

from dataclasses import replace

from rawnn.persistent.layout import Layout, layout_of
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.sharding import DSMEM, SHARDED, Members, Sharding

FIX = "let train_many choose the sharding"


def training_problem(problem: Problem, members: Members, partial: bool,
                     decays: bool | None = None) -> Problem:
    """The problem of members: rates come from memory, nothing but losses is measured, and no copy
    of weights is stored for other kernels. What differs from member to member is not in it, but
    whether the weights of any decay (None: if those of `problem` do)."""
    others = tuple(value if isinstance(value, bool) else 0.0 for value in problem.settings[1:])
    settings = (float(problem.decays if decays is None else decays), *others)
    return replace(problem, lr=0.0, settings=settings, scheduled=True, measured=False, copies="",
                   ordered=members.listed or members.shuffled, partial=partial)


def check_members(d: Sharding) -> None:
    """Raises Unsupported for what a kernel of members does not do."""
    if d.dp_size > 1:
        raise Unsupported("has data-parallel groups, but each member has one group", FIX)
    if d.transport != DSMEM and d.tp_size > 1:
        raise Unsupported("exchanges through L2, for which all blocks would have to run at once",
                          FIX)
    if d.problem.labelled and d.tp_size > 1 and d.boundaries[-1] == SHARDED:
        raise Unsupported("shards the outputs of a softmax, whose losses members do not add up",
                          FIX)


def evaluation_layout(d: Sharding, listed: bool, partial: bool, room: int,
                      uneven: bool = False) -> Layout:
    """The layout of the kernel that measures the members of a training kernel `d`."""
    problem = replace(d.problem, states=(), timed=False, scheduled=False, growth=0, ordered=listed,
                      partial=partial)
    members = Members(listed, shuffled=False, evaluates=True, uneven=uneven)
    return layout_of(replace(d, problem=problem, members=members, micro_batches=1, resident=0),
                     room)
