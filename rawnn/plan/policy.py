"""How a plan runs: everything that a toggle may change and that is not an op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rawnn.common.words import counted


@dataclass(frozen=True)
class Policy:
    """How a plan runs. The baseline is the default of each field.

    sync        when the host waits for the loss: after every step, or only for a report
    report      epochs between reports; an epoch that is not reported is not measured
    allocator   memory from the driver at each use, every tensor placed once, or from a pool:
                rawnn's own, or the driver's
    pinned      whether batches are copied from page-locked host memory
    streams     whether independent work runs in parallel: on two streams, or on branches of a
                graph, which otherwise is one chain
    pdl         whether kernels begin before their predecessors have ended
    graph       "" runs launch by launch; "step", "epoch" or "while" as a CUDA graph, "unroll"
                as one of `graph_steps` steps
    tune        whether launches are configured by measurement instead of rules
    """

    sync: Literal["step", "report"] = "step"
    report: int = 1
    allocator: Literal["each-use", "arena", "pool", "async"] = "each-use"
    pinned: bool = False
    streams: bool = False
    pdl: bool = False
    graph: Literal["", "step", "unroll", "epoch", "while"] = ""
    graph_steps: int = 1
    tune: bool = False

    def __str__(self) -> str:
        """A description of what is switched on and what is not."""
        graph = {"": "launch by launch", "step": "a graph of a step",
                 "unroll": f"a graph of {counted(self.graph_steps, 'step')}",
                 "epoch": "a graph of an epoch", "while": "a graph with a loop"}[self.graph]
        memory = {"each-use": "memory from the driver at each use",
                  "arena": "every tensor placed once", "pool": "memory from a pool of our own",
                  "async": "memory from the driver's pool"}[self.allocator]
        waits = "the host waits after every step" if self.sync == "step" else \
            "the host waits for reports only"
        report = "a report every epoch" if self.report == 1 else \
            f"a report every {self.report} epochs"
        more = {"page-locked batches": self.pinned, "what is independent side by side":
                self.streams, "kernels begin early": self.pdl, "launches as measured": self.tune}
        return ", ".join([graph, waits, report, memory, *(w for w, on in more.items() if on)])
