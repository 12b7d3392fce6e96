"""The text of a kernel: its lines, its stamps, and C++ names of what lies in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rawnn.persistent.sharding import REPLICATED, TILE
from rawnn.persistent.stamps import Stamp, stamps_of

if TYPE_CHECKING:
    from rawnn.persistent.layout import Layout


def literal(value: float | bool | int) -> str:
    """A number as C++ has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int) else f"{value!r}"


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


class Kernel:
    """What all parts of the emitter use: the text so far, and the names of a layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.d, self.p = layout, layout.sharding, layout.sharding.problem
        self.schedule = layout.schedule
        self.w = Writer()
        self.of_micro_batch = stamps_of(self.d, layout.schedule.micro_batch)
        self.of_step = stamps_of(self.d, layout.schedule.step)
        self.in_micro_batch = False
        self.first_warp = 0
        """The warp that has the first task of the phase that is emitted."""
        self.stamped = [0, 0]  # of a step, of a micro-batch

    def stamp(self, phase: str, part: str = "work") -> None:
        """The end of a part of a phase, in a traced kernel."""
        if not self.layout.traced:
            return
        number = self.stamped[self.in_micro_batch]
        self.stamped[self.in_micro_batch] += 1
        expected = (self.of_micro_batch if self.in_micro_batch else self.of_step)[number]
        assert expected == Stamp(phase, part), f"{expected} is next in the schedule"
        of_micro_batch = " + micro_batch * kStampsOfMicroBatch" if self.d.micro_batches > 1 else ""
        place = f"{number}{of_micro_batch}" if self.in_micro_batch else \
            f"{self.d.micro_batches} * kStampsOfMicroBatch + {number}"
        self.w(f"stamps.stamp(u, {place});")

    def stamp_launch(self, number: int) -> None:
        if self.layout.traced:
            self.w(f"stamps.launch({number});")

    # -- where things lie --------------------------------------------------------------------------
    def at(self, name: str) -> str:
        return f"(shared + {self.layout.places[name]})"

    def of_buffer(self, number: str, size: int) -> str:
        """C++ behind a pointer to inputs or targets: the micro-batch that lies in the buffer of
        this number; each has `size` values. "" where there is one buffer."""
        return f" + {number} * {size}" if self.schedule.input_buffers > 1 else ""

    def values(self, name: str) -> str:
        """Values between layers, in the type in which GEMMs read them."""
        place = self.layout.places[name]
        if self.p.halved:
            return f"(halves + {2 * place})"
        return f"(rounded + {place})" if self.p.numbers == "tf32" else self.at(name)

    def buffer(self, name: str) -> str:
        """C++ expression of a buffer by its name in the schedule."""
        if name == "x":
            return "x"
        return self.logits if name == "logits" else self.values(name)

    def z(self, boundary: int) -> str:
        return self.values(f"z{boundary}")

    @property
    def logits(self) -> str:
        """The last layer's sums."""
        return self.at("logits" if self.d.separates_logits else f"z{self.p.depth}")

    def type_of(self, boundary: int) -> str:
        """C++ type in which a GEMM reads a boundary's values or gradients. Inputs that are not
        rounded ahead lie as float32."""
        if self.p.halved and (boundary or self.p.rounded):
            return "Half"
        return "Tf32" if self.p.numbers == "tf32" and boundary else "float"

    def weights_of(self, layer: int) -> tuple[str, str]:
        """Type and place of a layer's weights as GEMMs read them."""
        found, n = self.layout, layer + 1
        if found.copies is None:
            return "float", f"weights{n}"
        return "Half", f"(halves + {2 * found.copies + found.layers[layer].weights})"

    def count(self, boundary: int) -> str:
        """C++: features of the boundary that this block has."""
        return str(self.p.layers[boundary]) if self.d.boundaries[boundary] == REPLICATED \
            else f"n{boundary}"

    def first(self, boundary: int) -> str:
        """C++: the first of the features of the boundary that this block has."""
        return "0" if self.d.boundaries[boundary] == REPLICATED \
            else f"rank * {self.d.shards[boundary]}"

    def states_at(self, layer: int) -> str:
        """C++ float4 pointer to the layer's optimizer state; to that of all layers with several
        groups."""
        found, part = self.layout, self.layout.layers[layer]
        many = len(self.p.states) * TILE // 4
        state = found.shared_state if found.sync else part.state
        if state is not None:
            return f"reinterpret_cast<float4*>(shared + {state})"
        if not found.global_tiles:
            return "static_cast<float4*>(nullptr)"
        tile = 0 if found.sync else part.global_tile
        return f"(reinterpret_cast<float4*>(optimizer_state) + " \
               f"(blockIdx.x * {found.global_tiles}ll + {tile}) * {many})"

    # -- variables and expressions of the kernel --------------------------------------------------
    @property
    def published_type(self) -> str:
        """C++ type of four published numbers."""
        return "uint2" if self.d.publishes_bf16 else "float4"

    @property
    def counter(self) -> str:
        """C++ variable that counts micro-batches from the launch on; steps where there is one."""
        return "t" if self.d.micro_batches > 1 else "u"

    @property
    def count_of_launch(self) -> str:
        """C++ variable: micro-batches of a launch."""
        return "micro_batches" if self.d.micro_batches > 1 else "span"

    def present(self, step: str) -> str:
        """C++: examples of this group in a micro-batch."""
        return f"present_in({step})" if self.p.partial or self.d.micro_batches > 1 else "present"

    def mean(self, terms: int) -> str:
        """C++ factor of a mean over a batch with so many terms."""
        whole = f"{literal(1.0 / terms)}f"
        if not self.p.partial:
            return whole
        left = f"1.0f / static_cast<float>(left * {terms // self.p.batch})"
        return f"(cursor_now + u < whole ? {whole} : {left})"

    def rate(self, step: str) -> str:
        """C++: the learning rate of a step."""
        return f"rates[cursor_now + {step}]" if self.p.scheduled else f"{literal(self.p.lr)}f"

    def setting(self, number: int) -> str:
        """C++: a setting of the optimizer."""
        if self.d.members and number in self.p.numeric_settings:
            return f"settings[{self.p.numeric_settings.index(number)}]"
        return literal(self.p.settings[number])

    def terms(self, step: str) -> str:
        """C++: the number of terms that the loss of a step is the mean of."""
        each = 1 if self.p.labelled else self.p.outputs
        if self.p.partial:
            return f"static_cast<float>(batch_of({step}) * {each})"
        return f"{literal(float(self.p.batch * each))}f"
