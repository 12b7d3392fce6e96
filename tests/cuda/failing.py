"""Every call that some use of memory makes fails once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rawnn.common.errors import DeviceError
from rawnn.cuda.errors import CallFailed
from rawnn.sim import Fault, Simulation


def each_call_fails(use: Callable[[Simulation], None]) -> list[str]:
    """Runs `use` once as it is and once for each call that it makes, with that call failing: the
    error names the call, and nothing is left but what a failing release could not give back. The
    calls."""
    clean = Simulation()
    use(clean)
    clean.assert_clean()
    for index, name in enumerate(clean.calls):
        simulation = Simulation()
        simulation.faults.add(Fault(index=index))
        said = name.replace("AddConditionalNode", "AddNode")  # the driver's name of that call
        with pytest.raises(Exception, match=said) as caught:
            use(simulation)
        assert isinstance(caught.value, CallFailed | DeviceError)
        left = {leak.kind for leak in simulation.leaks()}
        assert not left or any(w in name for w in ("Destroy", "Free", "Unload", "Release")), \
            (name, left)
    return clean.calls
