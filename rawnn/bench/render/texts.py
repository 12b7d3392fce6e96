"""Figures as texts: the digits that a reader needs, and no more."""

from __future__ import annotations

from collections.abc import Sequence

from rawnn.bench.statistics import mean_std, with_deviation

IN_THE_NOISE = ", in the noise"


def three_digits(value: float) -> str:
    """Three significant digits, or all digits before the point: 2.50, 40.3, 1,234."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def milliseconds(value: float) -> str:
    """Three significant digits, or all digits before the point, without a thousands separator."""
    return three_digits(value).replace(",", "")


def factor(value: float | None) -> str:
    """A quotient: two decimals below 10, else three significant digits; "" for None."""
    return "" if value is None else f"{value:.2f}" if value < 10 else milliseconds(value)


def bound_multiple(us: float | None, bound_us: float | None) -> str:
    """How many times its lower bound a time is; "" where either is unknown."""
    if us is None or not bound_us:
        return ""
    value = us / bound_us
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def mean_and_deviation(samples: Sequence[float]) -> str:
    """Mean and sample standard deviation; "" without samples."""
    return with_deviation(*mean_std(samples), len(samples)) if samples else ""
