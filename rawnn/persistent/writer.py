"""The text of a kernel: its lines, and where in shared memory things lie."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.persistent.layout import TILE, Layout, apart
from rawnn.persistent.sharding import REPLICATED


def literal(value: float | bool | int) -> str:
    """A number as C++ has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int) else f"{value!r}"


@dataclass(frozen=True)
class Stamp:
    """The end of a part of a phase: `phase` is its name in the cost model (cost.py), `part` what
    the block did in it."""

    phase: str
    part: str = "work"


class Writer:
    """Lines of a kernel, indented by their braces."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def __call__(self, text: str) -> None:
        for line in text.strip("\n").split("\n"):
            line = line.strip()
            if line.startswith("}"):
                self._depth -= 1
            self.lines.append("  " * self._depth + line)
            self._depth += line.count("{") - line.count("}") + (line.startswith("}"))

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


class KernelWriter:
    """Writes of a layout's kernel."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.d, self.p = layout, layout.sharding, layout.sharding.problem
        self.w = Writer()
        self.of_turn: list[Stamp] = []
        self.behind_turns: list[Stamp] = []
        self.in_turn = False
        self.fetched = False
        self.scratched = False  # whether the product ahead may still read its parts
        self.exchanges = 0  # of a micro-batch that have been emitted

    @property
    def meets_ahead(self) -> bool:
        """Whether what a step does besides its phases is done while clusters meet: in each step."""
        return bool(self.layout.sync) and self.d.micro_batches == 1

    def stamp(self, phase: str, part: str = "work") -> None:
        """Behind a part of a phase, in a kernel that is traced."""
        if not self.layout.traced:
            return
        found = self.of_turn if self.in_turn else self.behind_turns
        turn = " + part * kStampsOfTurn" if self.d.micro_batches > 1 else ""
        place = f"{len(found)}{turn}" if self.in_turn else \
            f"{self.d.micro_batches} * kStampsOfTurn + {len(found)}"
        found.append(Stamp(phase, part))
        self.w(f"stamps.stamp(u, {place});")

    def stamp_launch(self, number: int) -> None:
        if self.layout.traced:
            self.w(f"stamps.launch({number});")

    # -- where things lie --------------------------------------------------------------------------
    def at(self, name: str) -> str:
        return f"(shared + {self.layout.places[name]})"

    def values(self, name: str, half: bool) -> str:
        """Values of 32 or 16 bits."""
        return f"(halves + {2 * self.layout.places[name]})" if half else self.at(name)

    def a(self, boundary: int) -> str:
        return self.values(f"a{boundary}", self.p.halved) if boundary else "x"

    def z(self, boundary: int) -> str:
        return self.values(f"z{boundary}", self.p.halved)

    @property
    def logits(self) -> str:
        """The last layer's sums, of which a softmax makes their gradients."""
        return self.at("logits") if apart(self.d) else self.z(self.p.depth)

    def type_of(self, boundary: int) -> str:
        """What a product takes the boundary's values or gradients as: inputs that are not rounded
        ahead lie as float32."""
        return "Half" if self.p.halved and (boundary or self.p.rounded) else "float"

    def weights_of(self, layer: int) -> tuple[str, str]:
        """Type and place of a layer's weights as products take them."""
        found, n = self.layout, layer + 1
        if found.copies is None:
            return "float", f"weights{n}"
        return "Half", f"(halves + {2 * found.copies + found.layers[layer].weights})"

    def count(self, boundary: int) -> str:
        """Features of the boundary that this block holds."""
        return str(self.p.layers[boundary]) if self.d.boundaries[boundary] == REPLICATED \
            else f"n{boundary}"

    def states_at(self, layer: int) -> str:
        """Where the layer's state lies, as a float4 pointer; that of all layers where clusters
        share the batch."""
        found, part = self.layout, self.layout.layers[layer]
        many = len(self.p.states) * TILE // 4
        near = found.shared_state if found.sync else part.near
        if near is not None:
            return f"reinterpret_cast<float4*>(shared + {near})"
        if not found.far_tiles:
            return "static_cast<float4*>(nullptr)"
        tile = 0 if found.sync else part.far
        return f"(reinterpret_cast<float4*>(far) + (blockIdx.x * {found.far_tiles}ll + {tile}) * " \
               f"{many})"
