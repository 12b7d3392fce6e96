"""The text of a warp that trains nothing, and does for the others what waits for nobody."""

from __future__ import annotations

from rawnn.onchip.inputs import InputWriter
from rawnn.onchip.layout import keeps_tallies


class FetcherWriter(InputWriter):
    """Writes what the warp does of a layout that has one (`apart`)."""

    @property
    def labels(self) -> str:
        """The labels of the turn at hand."""
        return f"labels_of({self.turn})" if self.layout.apart else "y"

    def come_to_tally(self) -> None:
        """What is left of the loss is there for that warp."""
        if self.layout.apart and not keeps_tallies(self.d):
            self.w("ptx::come_to<kTallied, Shape::kThreads + 32>();")

    def fetcher(self) -> None:
        """The warp behind those that train: it asks for what the next turn needs, makes the rule of
        its update and adds up what the turn at hand leaves of the loss."""
        d, p, w = self.d, self.p, self.w
        t, turns = self.turn, self.turns
        cluster = d.ranks > 1 and not d.far
        w(f"if (thread >= {d.threads}) {{")
        w("if (kBulk && lane_index() == 0) {")
        w("for (int i = 0; i < 4; ++i) ptx::init_barrier(barriers + 8 * i, 1);")
        w("ptx::publish_barriers();")
        w("}")
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
        w("__syncthreads();")
        if cluster:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
        w(f"for (int {t} = 0; {t} < {turns}; ++{t}) {{")
        w(f"if ({t} + 1 < {turns}) {{")
        self.fetch(f"{t} + 1")
        if p.ordered:
            w(f"if ({t} + 2 < {turns}) fetch_order_apart(fetched + ({t} & 1) * {d.columns}, order, "
              f"first_of({t} + 2), {self.present(f'{t} + 2')});")
        w("ptx::commit_copies();")
        if d.turns == 1:
            self.make_rule("u + 1", self.rate("u + 1"))
        else:
            step = f"(t + 1) / {d.turns}"
            w(f"if ((t + 1) % {d.turns} == 0) {{")
            self.make_rule(step, self.rate(step))
            w("}")
        w("}")
        if not keeps_tallies(d):
            w("ptx::sync_some<kTallied, Shape::kThreads + 32>();")
            self.tally()
        w(f"if ({t} + 1 < {turns}) {{")
        self.wait_for_input(f"{t} + 1")
        w("}")
        w("__syncthreads();")
        w("}")
        if cluster:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
        w("return;")
        w("}")
