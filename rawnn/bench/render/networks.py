"""Networks that several systems train: their programs, and which of those is the fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

from rawnn.bench.record import Entry, Results
from rawnn.bench.render.tables import is_measured, provenance, time_of, workload

OURS = "rawnn"
PRECISIONS = ("float32", "tf32", "bf16")
ORDER = ("rawnn", "numpy", "torch", "jax")
NAMES = {"rawnn": "rawnn", "torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}


@dataclass(frozen=True)
class Network:
    """All programs of one network, of every system and precision."""

    name: str
    entries: Sequence[Entry]

    @property
    def layers(self) -> tuple[int, ...]:
        found = self.entries[0].conditions.get("layers")
        return tuple(found) if isinstance(found, list) else ()

    @property
    def batch(self) -> int:
        found = self.entries[0].conditions.get("batch")
        return found if isinstance(found, int) else 0

    @property
    def multiply_adds(self) -> float:
        """Of a step's GEMMs: forward, weight gradients, input gradients but the first layer's."""
        sizes = [a * b for a, b in pairwise(self.layers)]
        return float(self.batch * (3 * sum(sizes) - sizes[0]))

    @property
    def weights(self) -> int:
        return sum(a * b for a, b in pairwise(self.layers))

    def __str__(self) -> str:
        """784-512-10, batch 64, cross_entropy, adam."""
        conditions = self.entries[0].conditions
        return ", ".join([
            "-".join(map(str, self.layers)), f"batch {self.batch}",
            str(conditions.get("loss", "")), str(conditions.get("optimizer", ""))])

    @cached_property
    def ranked(self) -> list[Entry]:
        """The right programs, the fastest first."""
        return sorted(filter(is_measured, self.entries), key=lambda e: median(time_of(e)))

    def best(self, systems: Sequence[str], precisions: Sequence[str]) -> Entry | None:
        """The fastest right program of some systems in some precisions."""
        return next((e for e in self.ranked
                     if system(e) in systems and e.precision in precisions), None)

    def is_compared(self, systems: Sequence[str], precisions: Sequence[str]) -> bool:
        """Whether every one of some systems was asked for one of some precisions. A system that
        knows one only, or that broke before it could answer, counts as asked."""
        for name in systems:
            has = {e.precision for e in self.entries if system(e) == name}
            if len(has) > 1 and not has.intersection(precisions):
                return False
        return True

    def plan(self, precision: str) -> Entry | None:
        """Ours with a lower bound in a precision: what the same work takes in any system."""
        return next((e for e in self.entries if system(e) == OURS and e.precision == precision
                     and "lower_bound_us" in e), None)

    @property
    def is_tensor_bound(self) -> bool:
        """Whether the GEMMs are what a step waits for, so that three for one take three times as
        long: by this GPU's limits they take longer than memory and exchanges, in tf32 as in
        float32, and in float32 three times as long. False where the limits are not known."""
        plain, coarse = self.plan("float32"), self.plan("tf32")
        if plain is None or coarse is None:
            return False
        arithmetic = [e.median("lower_bound_arithmetic_us") or 0.0 for e in (plain, coarse)]
        return all(_limit(e) == "arithmetic" and (e.median("lower_bound_exchanges") or 0) > 0
                   for e in (plain, coarse)) \
            and math.isclose(arithmetic[0], 3 * arithmetic[1], rel_tol=0.01)


def _limit(entry: Entry) -> str:
    """Which part of the lower bound is the largest."""
    return max(("memory", "arithmetic", "waiting"),
               key=lambda name: entry.median(f"lower_bound_{name}_us") or 0.0)


def system(entry: Entry) -> str:
    return str(entry.conditions.get("system", OURS))


def form(entry: Entry) -> str:
    return str(entry.conditions.get("form", ""))


def networks(results: Results, suite: str) -> list[Network]:
    """The networks of a suite that were measured, in order."""
    found: dict[str, list[Entry]] = {}
    for entry in results.entries(suite):
        if workload(entry) and entry.status != "not measured":
            found.setdefault(workload(entry), []).append(entry)
    return [Network(name, entries) for name, entries in found.items()]


def peers_of(found: Sequence[Network]) -> tuple[str, ...]:
    """The systems besides rawnn, in their order."""
    there = {system(e) for network in found for e in network.entries}
    return tuple(sorted(there - {OURS}, key=lambda s: (*ORDER, s).index(s)))


def comparison_source(results: Results, entries: Sequence[Entry], what: str) -> str:
    """The source of what was timed in turns with peers."""
    return provenance(results, entries, what + ", {runs}", shared=("sample_version", "run_steps"))


def title(name: str) -> str:
    """What a network is called: those of a random sample by their seed."""
    return f"seed {name}" if name.isdigit() else name


def program(entry: Entry) -> str:
    return f"{title(workload(entry))}: {entry.variant} {entry.precision}"
