"""The C++ names and places that the phases of streamed operands share
(ptx/persistent/streamed.cuh)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rawnn.persistent.sharding import STREAMED_WIDTH, Sharding, ceil
from rawnn.persistent.streamed import MOST_OUTPUTS

if TYPE_CHECKING:
    from rawnn.persistent.layout import Layout
    from rawnn.persistent.writer import Kernel

NET, WEIGHTS = "Net", "NetWeights"
"""The C++ types of the templates."""
SCRATCH = "scratch"
"""C++ variable: the place of one of two buffers of partial sums, which phases use in turn."""


def gathers(d: Sharding) -> list[str]:
    """The boundaries that blocks publish: all hidden activations, and the gradients that a backward
    GEMM needs of all blocks, or an update those of its cluster."""
    depth = d.problem.depth
    lowest = 0 if d.peers > 1 else 1  # of a gradient that stays in its block
    return [f"a{n}" for n in range(1, depth)] + [f"z{n}" for n in range(depth - 2, lowest, -1)]


def gathered(d: Sharding, name: str) -> str:
    """C++: where the boundary `name` is gathered, such as "a1"."""
    return _gathered(str(gathers(d).index(name)))


def gathered_of(d: Sharding, kind: str, n: str, further: int = 0) -> str:
    """C++: where the boundary of layer `n` + `further` is gathered, `n` being a C++ expression. In
    `gathers` the activations, of the `kind` a, ascend by one, and the gradients z descend."""
    place, layer = next((place, int(name[1:])) for place, name in enumerate(gathers(d))
                        if name[0] == kind)
    return _gathered(f"({n} - {layer - place - further})" if kind == "a" else
                     f"({place + layer - further} - {n})")


def _gathered(place: str) -> str:
    return f"gathered + {place} * ({NET}::kBlocks * {NET}::kQuads)"


def weights_of(layout: Layout, n: str | int) -> str:
    """C++: where in shared memory the weights of layer `n` lie, between the first and the last."""
    return f"{layout.places['weights']} + ({n} - 2) * " \
           f"{layout.sharding.problem.layers[1] * STREAMED_WIDTH}"


def words_of(layout: Layout, n: str | int) -> str:
    """C++: likewise the rows of those weights that the block multiplies forward, two in a word."""
    return f"{layout.places['words']} + ({n} - 2) * " \
           f"{layout.sharding.problem.layers[1] * STREAMED_WIDTH // 2}"


def biases_of(layout: Layout, n: str | int) -> str:
    """C++: likewise the biases of layer `n`, any layer."""
    return f"{layout.places['biases']} + ({n} - 1) * {MOST_OUTPUTS}"


def input_floats(d: Sharding) -> int:
    """Floats of the inputs of a step in shared memory."""
    groups = ceil(d.problem.layers[0], 32)
    if d.peers > 1:
        return ceil(groups, d.peers) * d.columns * 16
    each = ceil(groups, d.warps)
    return ceil(groups, each) * each * d.columns * 16


def stages(k: Kernel) -> int:
    """Buffers of inputs in shared memory."""
    return sum(name in k.layout.places for name in ("x0", "x1"))


def stage(k: Kernel, step: str) -> str:
    """C++: the place of the inputs of a step."""
    found = [k.layout.places[name] for name in ("x0", "x1") if name in k.layout.places]
    return f"{found[0]} + ({step} & 1) * {found[1] - found[0]}" if len(found) > 1 else \
        str(found[0] if found else 0)


def fetch_ahead(k: Kernel, step: str = "(u + 1)") -> None:
    k.w(f"{called(k)}fetch_inputs(images, ldimages, {k.layout.places['rows']} + ({step} & 1) * "
        f"{k.d.columns}, {stage(k, step)});")


def called(k: Kernel) -> str:
    """C++ ahead of the name of a template: of a function, or of an object where clusters share."""
    return "net." if k.d.peers > 1 else f"{NET}::"


def weights_called(k: Kernel) -> str:
    """C++: likewise of what sends and receives weights, out of line."""
    return f"{NET if k.d.peers > 1 else WEIGHTS}::"


def scratch_for(k: Kernel) -> str:
    """C++: the argument of a phase. Clusters alternate between two buffers by themselves."""
    return "" if k.d.peers > 1 else f"{SCRATCH}, "


def net_for(k: Kernel) -> str:
    """C++: the first argument of what sends and receives weights."""
    return "net, " if k.d.peers > 1 else ""


def rank_for(k: Kernel) -> str:
    """C++: a further one, without clusters."""
    return "" if k.d.peers > 1 else "rank, "


def other(k: Kernel) -> str:
    """C++: the place of the other."""
    return f"{k.layout.places['scratch0'] + k.layout.places['scratch1']} - {SCRATCH}"
