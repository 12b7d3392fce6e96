"""What each toggle of the fastest set is worth alone, and within that set."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rawnn.bench.columns import markdown_table
from rawnn.bench.footprint import x_floor
from rawnn.bench.sets import Measurement, SetsResult, WorkloadSet
from rawnn.bench.statistics import Spread
from rawnn.bench.suites import AblationSuite
from rawnn.bench.table import times_text
from rawnn.engine.config import Config
from rawnn.model.workloads import workload
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.plan.recipe import DataSpec

EXAMPLES = 60_000
"""Of the training set of MNIST."""
MEANING = ("Times are divided: above 1 the toggle makes it faster; an interaction above 1 means "
           "that it is worth more beside the others.")
HEADINGS = ("workload", "toggle", "alone", "in the fastest set", "interaction", "x floor")


class Ablated(msgspec.Struct, frozen=True, kw_only=True):
    """A toggle of a fastest set: the sets that show its worth."""

    workload: str
    toggle: str
    base: str
    full: str

    @property
    def plus(self) -> str:
        """The base with it."""
        return f"{self.base},{self.toggle}"

    @property
    def less(self) -> str:
        """The fastest set without it."""
        return f"{self.full},-{self.toggle.partition('=')[0]}"


def ablated(suite: AblationSuite, machine: Machine) -> list[Ablated]:
    """The toggles that a fastest set has beyond its base on a machine. Raises ConfigError."""
    config = Config(**{**workload(suite.workload), "opt": suite.full, "epochs": suite.epochs})
    recipe, data_spec = config.recipe(), DataSpec(EXAMPLES, labels="uint8", scale=1 / 255)
    steps = recipe.steps(EXAMPLES)

    def words(opt: str) -> list[str]:
        return select(opt, config.network(), steps, machine, batch=recipe.batch,
                      recipe=recipe, data_spec=data_spec).words()

    base = words(suite.base)
    return [Ablated(workload=suite.workload, toggle=word, base=suite.base, full=suite.full)
            for word in words(suite.full) if word not in base]


def ablation_sets(toggles: Sequence[Ablated]) -> list[WorkloadSet]:
    """All that must be measured, each once."""
    return list(dict.fromkeys((t.workload, opt) for t in toggles
                              for opt in (t.base, t.full, t.plus, t.less)))


def ablated_in(result: SetsResult) -> list[Ablated]:
    """The toggles of a result: of each workload the first two sets are the base and the fastest,
    and behind them come both of each toggle."""
    opts: dict[str, list[str]] = {}
    for m in result.measurements:
        opts.setdefault(m.workload, []).append(m.opt)
    return [Ablated(workload=name, toggle=opt.removeprefix(f"{base},"), base=base, full=full)
            for name, (base, full, *others) in opts.items()
            for opt in others if opt.startswith(f"{base},")]


def rows(toggles: Sequence[Ablated], result: SetsResult) -> list[tuple[str, ...]]:
    """The texts under HEADINGS. `alone` is the base's time over that with the toggle, `in the
    fastest set` that without it over the fastest; the interaction is the second over the first:
    above 1 the toggle is worth more beside the others. `x floor` is that of the fastest set."""
    found = {(m.workload, m.opt): m for m in result.measurements}
    made: list[tuple[str, ...]] = []
    for t in toggles:
        alone = _factor(found.get((t.workload, t.base)), found.get((t.workload, t.plus)))
        within = _factor(found.get((t.workload, t.less)), found.get((t.workload, t.full)))
        both = alone[0] is not None and within[0] is not None
        full = found.get((t.workload, t.full))
        made.append((t.workload, t.toggle, alone[1], within[1],
                     times_text(within[0] / alone[0]) if both and alone[0] and within[0] else "",
                     x_floor(full.us.median, full.footprint) if full and full.us else ""))
    return made


def _factor(without: Measurement | None, with_: Measurement | None) -> tuple[float | None, str]:
    """How many times faster the second is, and that in words."""
    for measured in (without, with_):
        if measured is None or measured.epoch_ms is None:
            reason = measured.reason.partition(":")[0] if measured else ""
            return None, f"cannot run: {reason}" if reason else "not measured"
    assert without is not None
    assert with_ is not None
    a, b = without.epoch_ms, with_.epoch_ms
    assert isinstance(a, Spread)
    assert isinstance(b, Spread)
    apart = b.max < a.min or b.min > a.max
    return a.median / b.median, f"{times_text(a.median / b.median)} x" + (
        "" if apart else ", in the noise")


def factors(toggle: Ablated, result: SetsResult) -> tuple[float | None, float | None]:
    """How many times faster a toggle makes it alone, and in the fastest set; None where that could
    not be measured."""
    found = {(m.workload, m.opt): m for m in result.measurements}

    def faster(without: str, with_: str) -> float | None:
        return _factor(found.get((toggle.workload, without)),
                       found.get((toggle.workload, with_)))[0]

    return faster(toggle.base, toggle.plus), faster(toggle.less, toggle.full)


def markdown(result: SetsResult) -> str:
    """The table in Markdown, with its provenance below."""
    table = [[f"`{w}`", f"`{t}`", *cells] for w, t, *cells in rows(ablated_in(result), result)]
    lines = markdown_table(HEADINGS, table, ("workload", "toggle"))
    return "\n".join([*lines, "", f"{result.provenance()}.", ""])
