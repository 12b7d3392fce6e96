"""The alpha-beta model of a reduction (docs/scaling.md) beside what a results file of several ranks
says: how much of what is sent is seen in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rawnn.bench.columns import markdown_table
from rawnn.bench.scaling import Point, ScalingResult
from rawnn.model.layers import Network
from rawnn.model.workloads import workload
from rawnn.opts.nccl import BUCKET_MB, SMALL_MB

HEADINGS = ("workload", "ranks", "gradients", "reduce: model", "one GPU, its part", "none hidden",
            "measured", "seen of it")


@dataclass(frozen=True)
class Link:
    """Seconds that a reduction takes however small it is, and bytes a second that a GPU sends while
    all do."""

    alpha: float
    beta: float

    def reduce_us(self, sizes: Sequence[int], ranks: int) -> float:
        """Microseconds of a ring's sum of gradients of so many bytes each (Thakur, Rabenseifner and
        Gropp, 2005): one reduction for all of a bucket's size and less, else one for each large
        matrix."""
        whole = sum(sizes)
        buckets = 1 if whole <= BUCKET_MB * 1e6 else sum(n >= SMALL_MB * 1e6 for n in sizes)
        return 1e6 * (buckets * self.alpha + 2 * (ranks - 1) / ranks * whole / self.beta)


def gradients(name: str, toggles: str) -> list[int]:
    """Bytes of each gradient of a workload, as these toggles reduce them."""
    low = {word.partition("=")[0].strip() for word in toggles.split(",")} & {"bf16", "sr"}
    network = Network(tuple(workload(name)["layers"]))
    return [prod(t.shape) * (2 if low and len(t.shape) == 2 else 4)
            for t in network.parameters()]


def table(result: ScalingResult, link: Link) -> str:
    """A row of Markdown for each workload of ours, at the most ranks: between all of a reduction
    hidden behind the products and none the step should lie. Empty where there is none."""
    rows = []
    for point in result.points:
        part = _part(result, point)
        if part is None or part.us is None or point.us is None:
            continue
        sizes = gradients(point.workload, point.toggles)
        reduce, alone, us = link.reduce_us(sizes, point.ranks), part.us.median, point.us.median
        rows.append([point.workload, str(point.ranks), f"{sum(sizes) / 1e6:,.0f} MB",
                     f"{reduce:,.0f} us", f"{alone:,.0f} us", f"{alone + reduce:,.0f} us",
                     f"{us:,.0f} us", f"{(us - alone) / reduce:.0%}"])
    return "\n".join([*markdown_table(HEADINGS, rows, HEADINGS[:1]), ""]) if rows else ""


def _part(result: ScalingResult, point: Point) -> Point | None:
    """The run of one GPU that had what a rank of the point has, of a batch of its own."""
    if point.system != "rawnn" or point.scaling != "strong" or point.ranks == 1:
        return None
    return next((p for p in result.points if p.us and p.ranks == 1 and p.system == point.system
                 and (p.workload, p.batch) == (point.workload, point.batch // point.ranks)), None)
