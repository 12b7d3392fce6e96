"""Ranks: the processes of one run, each of which drives one GPU.

Launchers start them and assign their ranks (rank_context). They connect over TCP, compare what they
run, and detect each other's failure (team). Gradients take this way only in runs on the host.
"""

from rawnn.distributed.rank_context import (
    RankContext,
    rank_from_communicator,
    rank_from_environment,
)
from rawnn.distributed.team import Team

__all__ = ["RankContext", "Team", "rank_from_communicator", "rank_from_environment"]
