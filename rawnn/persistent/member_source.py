"""Emits the kernels of many networks: that of one network, in which each tensor-parallel group
has a member of its own, and one that runs the forward phases alone and measures the members.

Pointers are those of stacks of all members' tensors until `declare_member` moves them.
"""

from __future__ import annotations

from rawnn.common.dtypes import c_type
from rawnn.persistent.layout import Layout
from rawnn.persistent.parameters import parameters_of_examples
from rawnn.persistent.problem import Problem
from rawnn.persistent.source import KernelEmitter
from rawnn.persistent.writer import literal

COUNTS = ("launched", "networks", "epochs", "examples", "data_rows", "folds")
"""Members of a launch and of the stacks, epochs of the scores, examples of each member and of the
data set, and lists of rows. The kernel needs some; all say how large its operands are. Where lists
of rows differ in length, these are those of the longest, and so are steps and partial batch; a
member has those of its own from `counts`."""


def member_source(layout: Layout, name: str) -> str:
    """The CUDA C of the kernel `name` of many networks."""
    kind = EvaluationEmitter if layout.sharding.evaluates else MemberEmitter
    return kind(layout, name).text()


def data_parameters(p: Problem, layout: Layout) -> list[tuple[str, str]]:
    """(type, name) of what both kernels have: the data set, and which members they are for."""
    found = parameters_of_examples(p)
    if not p.labelled and not p.reconstruct:
        found += [("int", "target_stride"), ("int", "target_rows")]
    found += [("const int*", "rows")] if layout.sharding.members_or_fail.listed else []
    found += [("const int*", "counts")] if layout.sharding.members_or_fail.uneven else []
    for name in ("mean", "inverse_std") if p.normalised else ():
        found += [("const float*", name), ("int", f"ld{name}")]
    return [*found, ("const int*", "active"), ("const int*", "members"), ("int", "ldmembers")]


def parameters_of(p: Problem, layer: int) -> list[tuple[str, str]]:
    """(type, name) of the weights and biases of a layer, numbered from 1."""
    found = [(f"{c_type(p.weights)}*", f"w{layer}"), ("int", f"ldw{layer}")]
    return [*found, ("float*", f"b{layer}")] if p.bias else found


class MemberEmitter(KernelEmitter):
    """Emits the training kernel of many networks."""

    headers = ("kernel.cuh", "members.cuh")

    def parameters(self) -> list[tuple[str, str]]:
        p, found = self.p, data_parameters(self.p, self.layout)
        found += [("const float*", "rates"), ("int*", "clock")]
        found += [("float*", "loss_scale"), ("int*", "overflow")] if p.scaled else []
        for layer in range(1, p.depth + 1):
            found += parameters_of(p, layer)
            for state in p.states:
                found += [("float*", f"w{layer}_{state}"), ("int", f"ldw{layer}_{state}")]
                found += [("float*", f"b{layer}_{state}")] if p.bias else []
        found += [("float*", name) for name in self.layout.workspaces(1)]
        found += [("float*", "loss"), ("double*", "train_loss")]
        return [*found, *self.numbers()]

    def numbers(self) -> list[tuple[str, str]]:
        partial = [("int", "whole"), ("int", "left")] if self.p.partial else []
        return [*(("int", name) for name in COUNTS), *partial, ("int", "offset"), ("int", "span")]

    @property
    def first_block(self) -> str:
        return "rank == 0"

    def locate_group(self) -> None:
        self.w("constexpr int group = 0;")

    def declare_cursor(self) -> None:
        self.w("constexpr int cursor_now = 0;")

    def declare_member(self) -> None:
        d, p, w, how = self.d, self.p, self.w, self.d.members_or_fail
        place = f"static_cast<int>(blockIdx.x) / {d.tp_size}" if d.tp_size > 1 else "blockIdx.x"
        w(f"const int member = active[{place}];")
        w("const int* const of_member = members + static_cast<long long>(member) * ldmembers;")
        w("[[maybe_unused]] const unsigned long long seed = seed_of_member(of_member);")
        w("[[maybe_unused]] const int fold = of_member[kFoldWord];")
        if how.listed:
            w("rows += static_cast<long long>(fold) * examples;")
        for name in ("mean", "inverse_std") if p.normalised else ():
            w(f"{name} += static_cast<long long>(fold) * ld{name};")
        if not p.labelled and not p.reconstruct:
            w("targets += static_cast<long long>(fold) * target_stride * ldtargets;")
        for name, size in self.strides().items():
            w(f"{name} += static_cast<long long>(member) * {size};")
        if how.uneven:
            self.count_examples()
        self.load_settings()
        if p.ordered:
            at = f"reinterpret_cast<const Permutation*>{self.k.at('permutation')}"
            w(f"const MemberOrder<{literal(how.shuffled)}, {literal(how.listed)}> order = {{{at}, "
              f"{'rows' if how.listed else 'nullptr'}}};")

    def count_examples(self) -> None:
        """The examples and steps of the member, behind whatever depends on those of the longest
        list: `counts` are training rows and scored rows of each list."""
        w, batch = self.w, self.p.batch
        w(f"examples = counts[2 * fold + {int(self.d.evaluates)}];")
        if self.p.partial:
            w(f"whole = examples / {batch};")
            w(f"left = examples - whole * {batch};")
        w("span = whole + (left > 0 ? 1 : 0);" if self.p.partial else f"span = examples / {batch};")

    def strides(self) -> dict[str, str]:
        """Elements from a member to the next, by the names of pointers."""
        p, found = self.p, self.strides_of_parameters()
        for layer in range(1, p.depth + 1):
            for state in p.states:
                found[f"w{layer}_{state}"] = f"({p.layers[layer]}ll * ldw{layer}_{state})"
                if p.bias:
                    found[f"b{layer}_{state}"] = str(p.layers[layer])
        found |= {"clock": "2", "rates": "span", "loss": "span"}
        found |= {"loss_scale": "2", "overflow": "1"} if p.scaled else {}
        if "tally" in self.layout.workspaces(1):
            found["tally"] = f"({self.layout.workspaces(1)['tally']}ll * span)"
        return found

    def strides_of_parameters(self) -> dict[str, str]:
        p, found = self.p, {}
        for layer in range(1, p.depth + 1):
            found[f"w{layer}"] = f"({p.layers[layer]}ll * ldw{layer})"
            if p.bias:
                found[f"b{layer}"] = str(p.layers[layer])
        return found

    def load_settings(self) -> None:
        """What one thread needs in each step comes to shared memory, and the order's keys."""
        w, count = self.w, len(self.p.numeric_settings)
        w(f"double* const settings = reinterpret_cast<double*>{self.k.at('settings')};")
        w(f"if (thread < {count}) settings[thread] = "
          "reinterpret_cast<const double*>(of_member + kSettingsWord)[thread];")
        if self.d.members_or_fail.shuffled:
            w("static_assert(sizeof(Permutation) <= 48);")
            w(f"if (thread == {self.d.threads - 1}) *reinterpret_cast<Permutation*>"
              f"{self.k.at('permutation')} = permutation(seed, clock[0], examples);")
        w("__syncthreads();")

    def end(self) -> None:
        """Also the mean loss of the epoch, and the member's clock."""
        w, last = self.w, self.d.warps - 1
        super().end()
        whole, left = ("whole", "left") if self.p.partial else ("span", "0")
        w("__syncthreads();")
        w(f"if (rank == 0 && warp_index() == {last}) {{")
        w(f"const double mean_loss = mean_of_steps(loss, span, {self.p.batch}, {whole}, {left});")
        w("if (lane_index() == 0) {")
        w("train_loss[static_cast<long long>(member) * epochs + offset] = mean_loss;")
        w("tick_clock(clock, span);")
        w("}")
        w("}")


class EvaluationEmitter(MemberEmitter):
    """Emits the kernel that measures members: `span` chunks of as many examples as a batch has."""

    def parameters(self) -> list[tuple[str, str]]:
        p, found = self.p, data_parameters(self.p, self.layout)
        for layer in range(1, p.depth + 1):
            found += parameters_of(p, layer)
        found += [("double*", name) for name in self.layout.workspaces(1)]
        return [*found, ("double*", "validation_loss"), ("double*", "validation_score"),
                *self.numbers(), ("int", "answers")]

    def strides(self) -> dict[str, str]:
        return self.strides_of_parameters()

    def load_settings(self) -> None:
        self.w("Evaluated evaluated = {0.0, 0};  // of the last warp's first lane")

    def end(self) -> None:
        d, w, last = self.d, self.w, self.d.warps - 1
        if self.layout.all_report:  # each block has a part of every example's loss
            w(f"if (thread == {32 * last}) {{")
            w("parts[2 * blockIdx.x] = evaluated.loss;")
            w("parts[2 * blockIdx.x + 1] = static_cast<double>(evaluated.right);")
            w("}")
        if self.clustered:
            w("ptx::arrive_at_cluster();")
            w("ptx::wait_for_cluster();  // none has left sooner")
        w(f"if (rank == 0 && thread == {32 * last}) {{")
        w("double total = evaluated.loss, right = static_cast<double>(evaluated.right);")
        if self.layout.all_report:
            w(f"for (int i = 1; i < {d.tp_size}; ++i) {{")
            w("total += __ldcg(parts + 2 * (blockIdx.x + i));")
            w("right += __ldcg(parts + 2 * (blockIdx.x + i) + 1);")
            w("}")
        outputs = 1 if self.p.labelled else self.p.outputs
        w("const long long place = static_cast<long long>(member) * epochs + offset;")
        w(f"validation_loss[place] = total / (static_cast<double>(examples) * {outputs});")
        w("validation_score[place] = right / (static_cast<double>(examples) * "
          "static_cast<double>(answers));  // NaN without answers")
        w("}")
