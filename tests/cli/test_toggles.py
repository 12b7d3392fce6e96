"""`rawnn toggles`."""

from __future__ import annotations

import pytest

from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from tests.cli.conftest import Rawnn


@pytest.mark.parametrize("device", ["host", "sim"])
def test_every_toggle_is_listed_with_a_verdict(rawnn: Rawnn, device: str) -> None:
    done = rawnn("toggles", "--device", device)
    assert done.status == 0, done.err
    for toggle in TOGGLES.values():
        assert toggle.name in done.out
    assert ", ".join(PRESETS) in done.out
    assert ("yes, on the host" in done.out) == (device == "host")
    assert ("no:" in done.out) == (device == "host")


def test_an_unknown_device(rawnn: Rawnn) -> None:
    done = rawnn("toggles", "--device", "gpx")
    assert done.status == 2
    assert "Traceback" not in done.err
