"""The sharding `launches`: a step is launches of kernels that many networks can share, and that one
network trains with bit for bit."""

from __future__ import annotations

from rawnn.opts.precision_names import precision_of

LAUNCHES = "launches"
MANY_GEMMS = "mma=many"
LAUNCH_TOGGLES = f"none,preload,arena,nosync,{MANY_GEMMS},fuse,graphs"


def launch_toggles(opt: str) -> str:
    """The toggles of this sharding, in the precision of `opt`."""
    return ",".join(filter(None, [LAUNCH_TOGGLES, precision_of(
        word.strip() for word in opt.split(","))]))
