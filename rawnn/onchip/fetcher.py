"""The text of a warp that trains nothing, and does for the others what waits for nobody."""

from __future__ import annotations

from rawnn.onchip.decompose import EVERYWHERE
from rawnn.onchip.inputs import InputWriter
from rawnn.onchip.layout import BY_FIRST, keeps_tallies


class FetcherWriter(InputWriter):
    """Writes what the warp does of a layout that has one (`apart`). Both roles meet once ahead of
    the first turn, at the end of each, and behind the last, where a loss is left to be added up:
    all that one hands the other there is in two places, which take turns."""

    @property
    def labels(self) -> str:
        """The labels of the turn at hand."""
        return f"labels_of({self.turn})" if self.layout.apart else "y"

    def fetcher(self) -> None:
        """The warp behind those that train: it asks for what the next turn needs, makes the rule of
        its update and adds up what the turn before left of the loss. The others go on in what it
        does not do, to the end of its braces: barriers of clusters, which a compiler joins with one
        of the whole block, stand ahead of these and behind."""
        d, p, w = self.d, self.p, self.w
        t, turns = self.turn, self.turns
        adds = not keeps_tallies(d)
        w(f"if (thread >= {d.threads}) {{")
        if p.ordered:
            w(f"fetch_order_apart(fetched, order, first_of(0), {self.present('0')});")
            w(f"if ({turns} > 1) fetch_order_apart(fetched + {d.columns}, order, first_of(1), "
              f"{self.present('1')});")
            w("ptx::commit_copies();")
            w("ptx::wait_for_copies<0>();")
        self.fetch("0")
        w("ptx::commit_copies();")
        self.make_rule("0", self.rate("0"))
        self.wait_for_input("0")
        self.sync_roles("0")
        w(f"for (int {t} = 0; {t} < {turns}; ++{t}) {{")
        w(f"if ({t} + 1 < {turns}) {{")
        self.fetch(f"{t} + 1")
        if p.ordered:
            w(f"if ({t} + 2 < {turns}) fetch_order_apart(fetched + ({t} & 1) * {d.columns}, order, "
              f"first_of({t} + 2), {self.present(f'{t} + 2')});")
        w("ptx::commit_copies();")
        self.next_rule()
        w("}")
        if adds:
            w(f"if ({t} > 0) {{")
            self.tally(f"{t} - 1")
            w("}")
        w(f"if ({t} + 1 < {turns}) {{")
        self.wait_for_input(f"{t} + 1")
        w("}")
        self.sync_roles(f"{t} + 1")
        w("}")
        if adds:
            self.tally(f"{turns} - 1")
            self.sync_roles(f"{turns} + 1")
        w("} else {")

    def next_rule(self) -> None:
        """The rule of the next step, where one follows the turn."""
        if self.d.turns == 1:
            self.make_rule("u + 1", self.rate("u + 1"))
            return
        step = f"(t + 1) / {self.d.turns}"
        self.w(f"if ((t + 1) % {self.d.turns} == 0) {{")
        self.make_rule(step, self.rate(step))
        self.w("}")

    @property
    def clustered(self) -> bool:
        """Whether groups are clusters of several blocks."""
        return self.d.ranks > 1 and not self.d.far

    def arrive_at_end(self) -> None:
        """No block of a cluster ends before the others are as far: nothing of theirs comes to one
        that is gone, and the first sees what all left of the losses. Where steps exchange nothing,
        this is how all have loaded what one stores."""
        d, w, found = self.d, self.w, self.layout
        if not self.clustered:
            return
        if not found.exchange and EVERYWHERE in d.kinds:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
        w(f"cluster_arrive{'' if self.tells_at_end else '_relaxed'}<Shape>();")

    @property
    def tells_at_end(self) -> bool:
        """Whether blocks of a cluster need more of each other than that they are as far."""
        found = self.layout
        return (found.reports == BY_FIRST and found.told_by_all) or (
            found.turning and not found.exchange and not found.counters)
