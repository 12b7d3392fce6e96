"""The parameters of the kernel of one network."""

from __future__ import annotations

from rawnn.common.dtypes import c_type
from rawnn.persistent.layout import COUNTS, Layout
from rawnn.persistent.problem import Problem


def parameters_of_examples(p: Problem) -> list[tuple[str, str]]:
    """(type, name) of the inputs of a data set, and of its labels or targets."""
    found = [(f"const {p.input_type}*", "images"), ("int", "ldimages")]
    if p.labelled:
        return [*found, (f"const {c_type(p.labels)}*", "labels")]
    return found if p.reconstruct else [*found, ("const float*", "targets"), ("int", "ldtargets")]


def parameters(p: Problem, layout: Layout) -> list[tuple[str, str]]:
    """(type, name) of every parameter, pointers by the roles of their operands."""
    found = parameters_of_examples(p)
    const = "" if layout.has_epoch_boundary else "const "
    found += [(f"{const}int*", "order")] if p.ordered else []
    found += [("const float*", "mean"), ("const float*", "inverse_std")] if p.normalised else []
    found += [("const float*", "rates")] if p.scheduled else []
    found += [(f"{const}int*", "clock")] if p.timed or layout.has_epoch_boundary else []
    found += [("float*", "loss_scale"), ("int*", "overflow")] if p.scaled else []
    found.append(("const int*", "cursor"))
    for layer in range(1, p.depth + 1):
        for role in (f"w{layer}", *(f"w{layer}_{s}" for s in p.states)):
            kind = c_type(p.weights) if role == f"w{layer}" else "float"
            found += [(f"{kind}*", role), ("int", f"ld{role}")]
        if p.copies:
            found += [(f"{c_type(p.copies)}*", f"c{layer}"), ("int", f"ldc{layer}")]
        if p.bias:
            found += [("float*", role) for role in (f"b{layer}",
                                                    *(f"b{layer}_{s}" for s in p.states))]
    found += [("unsigned int*" if name in COUNTS else "float*", name)
              for name in layout.workspaces(1)]
    found.append(("float*", "loss"))
    if p.measured:
        found.append(("int*", "correct"))
    found += [("unsigned long long", "seed")] if p.streams else []
    found += [("unsigned long long", "order_seed"), ("int", "count"), ("int", "steps")] \
        if layout.has_epoch_boundary else []
    found += [("int", "whole"), ("int", "left")] if p.partial else []
    return [*found, ("int", "offset"), ("int", "span")]
