"""Ranks: the processes of one run, each of which drives one GPU.

Launchers start them and say which is which (place); they meet over TCP, compare what they run, and
learn of each other's end (team). Gradients do not go that way, but for runs on the host.
"""

from rawnn.distributed.rank_context import (
    RankContext,
    rank_from_communicator,
    rank_from_environment,
)
from rawnn.distributed.team import Team

__all__ = ["RankContext", "Team", "rank_from_communicator", "rank_from_environment"]
