"""What shows the speedup of a toggle: the table [toggles] of bench.toml, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rawnn.bench.suites import OTHERS, Count, Settings, check_workloads, refuse
from rawnn.bench.training import WorkloadOpt
from rawnn.common.errors import nearest
from rawnn.opts import TOGGLES
from rawnn.opts.presets import PRESETS
from rawnn.opts.registry import Toggle


class Comparison(Settings, frozen=True, kw_only=True):
    """What shows the speedup of a toggle: workloads that are trained with the toggles `beside`, and
    with each of `added` in addition (the toggle itself unless some are given). Where `beside` has
    the toggle with another value, `added` replaces it."""

    workloads: list[str]
    beside: str
    added: list[str] = msgspec.field(default_factory=list)


class TogglesSuite(Settings, frozen=True, kw_only=True):
    """`bench toggles`: by toggle, what shows its speedup; `epochs` as in WorkloadsSuite."""

    repeats: Count
    epochs: dict[str, Count] = msgspec.field(default_factory=dict)
    compare: dict[str, list[Comparison]]

    def __post_init__(self) -> None:
        check_workloads(set(self.epochs) - {OTHERS}, "epochs")
        for toggle, several in self.compare.items():
            if toggle not in TOGGLES:
                refuse(f"no toggle is called '{toggle}'{nearest(toggle, TOGGLES)}", "compare")
            check_workloads([name for each in several for name in each.workloads],
                            f"compare.{toggle}")


@dataclass(frozen=True)
class Pairing:
    """One workload that shows the speedup of `toggle`: trained with the toggles `base`, and with
    each of `added` in addition, the toggle itself unless some are given. Where `base` has the
    toggle with a part left out (fuse=-head), `added` replaces it: the pairing then shows the
    speedup of the part."""

    toggle: str
    workload: str
    base: str
    added: tuple[str, ...]

    @property
    def is_of_part(self) -> bool:
        return any(word.startswith(f"{self.toggle}=-") for word in self.base.split(","))

    @property
    def opts(self) -> list[str]:
        """Toggles as after --opt: those without it first, then with each that is added."""
        words = self.base.split(",")
        without = [word for word in words if word.partition("=")[0] != self.toggle]
        return [_in_order(words), *(_in_order([*without, word]) for word in self.added)]

    @property
    def variants(self) -> list[WorkloadOpt]:
        """What must be measured for it."""
        return [(self.workload, opt) for opt in self.opts]


def pairings(toggle: Toggle, suite: TogglesSuite) -> list[Pairing]:
    """What shows the speedup of a toggle, then what shows that of its parts."""
    found = [Pairing(toggle.name, name, c.beside, tuple(c.added) or (toggle.name,))
             for c in suite.compare.get(toggle.name, ()) for name in c.workloads]
    return sorted(found, key=lambda pairing: pairing.is_of_part)


def _in_order(words: Sequence[str]) -> str:
    """Toggles in the order of the registry behind a preset, so that equal lists are one."""
    places = {name: place for place, name in enumerate((*PRESETS, *TOGGLES))}
    return ",".join(sorted(filter(None, words), key=lambda word: places[word.partition("=")[0]]))
