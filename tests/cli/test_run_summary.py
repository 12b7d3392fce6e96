"""Losses as text; the sentences that a run ends with are in tests/records."""

from __future__ import annotations

import pytest

from rawnn.cli.run_summary import loss_text


@pytest.mark.parametrize("loss", [0.0, 0.5, 1.23456789, 99999.94, 1e5, 123456.0, 3e30, -0.25, -2e7])
@pytest.mark.parametrize("digits", [4, 6])
def test_a_loss_keeps_its_digits_and_its_width(loss: float, digits: int) -> None:
    text = loss_text(loss, digits)
    mantissa, _, exponent = text.partition("e")
    assert len(mantissa.partition(".")[2]) == digits
    assert bool(exponent) == (abs(loss) >= 1e5)
    assert float(text) == pytest.approx(loss, abs=0.51 * 10**-digits, rel=10**-digits)
