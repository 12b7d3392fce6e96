"""Emits a training kernel: constants, and calls of the templates in ptx/persistent/*.cuh.

What stands ahead of the steps (load) and behind them (store, report) follows from the layout, so it
is not in the schedule."""

from __future__ import annotations

from rawnn.model.activations import functor
from rawnn.model.activations import functor_text as activations
from rawnn.model.optimizers import functor_text as optimizers
from rawnn.persistent.layout import RULE_BYTES, Layout
from rawnn.persistent.parameters import parameters
from rawnn.persistent.phases.by_examples import convert_first_inputs, fetch_first_inputs
from rawnn.persistent.phases.exchange import set_up_transport, store_micro_batch
from rawnn.persistent.phases.gradient_all_reduce import ALL, SHARE
from rawnn.persistent.phases.input import (
    declare_threads_of_prefetch,
    fetch,
    order_ahead,
    orders_at_once,
    wait_for_input,
)
from rawnn.persistent.phases.learning_rate import rate_of_thread, rules_at_once
from rawnn.persistent.phases.loss import BY_FIRST, BY_LAST, report, take_ticket
from rawnn.persistent.phases.weight_gradient import store_held
from rawnn.persistent.sharding import COLUMN_PARALLEL, REPLICATED_LAYER, ROW_PARALLEL, TILE
from rawnn.persistent.stamps import stamps
from rawnn.persistent.steps import emit_step, with_first_warps
from rawnn.persistent.writer import Kernel, literal

LONG_FROM = 3
"""Layers from which on a kernel takes a second and more to compile, and is emitted to take less:
one function loads and stores all layers, and NVVM does not see the loop over steps."""
PRECISIONS = {"float32": "kFloat32", "tf32": "kTf32", "bfloat16": "kBfloat16",
              "float16": "kFloat16"}


def source(layout: Layout, name: str) -> str:
    """The CUDA C of the kernel `name` of one network."""
    return KernelEmitter(layout, name).text()


class KernelEmitter:
    """Emits a kernel: what stands ahead of the steps, the steps, and what stands behind them."""

    headers: tuple[str, ...] = ("kernel.cuh",)

    def __init__(self, layout: Layout, name: str) -> None:
        self.k = Kernel(layout)
        self.w, self.layout, self.schedule = self.k.w, layout, layout.schedule
        self.d, self.p, self.name = self.k.d, self.k.p, name
        self.is_long = self.p.depth >= LONG_FROM

    # -- the whole ---------------------------------------------------------------------------------
    def text(self) -> str:
        d, p, w = self.d, self.p, self.w
        w(f"// {'-'.join(map(str, p.layers))}, batch {p.batch}, {p.numbers}: {d}")
        own = (phase.header for phase in self.schedule.phases if phase.header)
        for header in (*self.headers, *dict.fromkeys(own)):
            w(f'#include "persistent/{header}"')
        if self.layout.traced:
            w('#include "persistent/trace.cuh"')
        w("struct Shape {")
        for constant, value in (("Threads", d.threads), ("TpSize", d.tp_size),
                                ("DpSize", d.dp_size), ("Columns", d.columns), ("Sent", d.sent),
                                ("Pitch", d.pitch), ("Precision", PRECISIONS[p.numbers]),
                                ("Copies", 2 * (self.layout.copies or 0))):
            w(f"static constexpr int k{constant} = {value};")
        w(f"static constexpr bool kCluster = {literal(d.cluster_size > 1)};")
        w("};")
        head = len(w.lines)
        functors = activations([functor(p.activation)]), optimizers([p.rule])
        for line in "\n".join(functors).strip().splitlines():
            w(line)
        w(f"using Activation = {functor(p.activation)};")
        rule = f"OnChip<{p.rule}>::Rule"
        w(f"using Rule = {f'Unscaled<{rule}>' if p.scaled else rule};")
        w(f"static_assert(sizeof(Rule) <= {RULE_BYTES});")
        self.declare_types()
        arguments = ", ".join(f"{kind} __restrict__ {name}" if kind.endswith("*")
                              else f"{kind} {name}" for kind, name in self.parameters())
        w(f"__global__ void __launch_bounds__({d.threads}, {d.blocks_per_multiprocessor}) "
          f"{self.name}({arguments}) {{")
        self.begin()
        self.k.stamp_launch(1)
        self.begin_steps()
        self.emit_step()
        w("}")
        self.k.stamp_launch(2)
        self.end()
        self.k.stamp_launch(3)
        w("}")
        if self.layout.traced:
            stamps_of_micro_batch, every = len(self.k.of_micro_batch), stamps(self.schedule)
            w.lines[head:head] = [
                f"constexpr int kStampsOfMicroBatch = {stamps_of_micro_batch};",
                f"using Stamps = Trace<Shape, {len(every)}, {self.layout.traced}>;"]
        return w.text()

    def parameters(self) -> list[tuple[str, str]]:
        return parameters(self.p, self.layout)

    def begin_steps(self) -> None:
        """The loop over steps. NVVM sees no loop in one that is entered in two places, which makes
        compiling faster (docs/kernel-compilation.md). ptxas knows the 0, and has a loop."""
        if self.p.depth < LONG_FROM:
            self.w("for (int u = 0; u < span; ++u) {")
            return
        self.w("int u = 0;")
        self.w("if (ptx::unknown_zero() != 0) goto inside;  // never: so that NVVM sees no loop")
        self.w("for (; u < span; ++u) {")
        self.w("inside:;")

    def declare_types(self) -> None:
        """Types that the kernel uses besides; none here."""

    def emit_step(self) -> None:
        emit_step(self.k)

    # -- ahead of the steps ------------------------------------------------------------------------
    def begin(self) -> None:
        d, p, w = self.d, self.p, self.w
        if self.layout.traced:
            w("const Stamps stamps = {trace};")
        w("float* const shared = ptx::dynamic_shared<float>();")
        if p.halved:
            w("[[maybe_unused]] Half* const halves = ptx::dynamic_shared<Half>();")
        if p.numbers == "tf32":
            w("[[maybe_unused]] Tf32* const rounded = ptx::dynamic_shared<Tf32>();")
        w("const int rank = rank_of_block<Shape>();")
        self.locate_group()
        w("const int thread = thread_index();")
        self.ahead_of_wait()
        w("pdl_wait();")
        w("pdl_trigger();")
        self.k.stamp_launch(0)  # no sooner: the launch ahead may still write its own
        self.declare_member()
        if self.layout.sync:
            w("const unsigned int all_reduces_before = all_reduces[blockIdx.x];")
        if p.timed:
            w("const int steps_of_epochs = clock[1];")
        if d.micro_batches > 1:
            w(f"const int micro_batches = span * {d.micro_batches};")
            self.examples_of_micro_batches()
        elif p.partial:
            self.declare_batch()
            w(f"const auto present_in = [=](int step) {{ return max(0, min({d.group_batch}, "
              f"batch_of(step) - group * {d.group_batch})); }};")
        else:
            w(f"const int present = max(0, min({d.group_batch}, {p.batch} - group * "
              f"{d.group_batch}));")
        for boundary, n in enumerate(p.layers):
            size = d.shards[boundary]
            w(f"[[maybe_unused]] const int n{boundary} = max(0, min({size}, {n} - rank * {size}));")
        if d.micro_batches == 1:
            w(f"const auto first_of = [=](int step) {{ return static_cast<long long>(cursor_now + "
              f"step) * {p.stride} + group * {d.group_batch}; }};")
        for layer in range(p.depth):
            self.load_layer(layer)
        self.load_first_input()
        for layer in range(p.depth):
            self.move_states(layer, "load", in_global=True)
        for phase in with_first_warps(self.k, self.schedule.phases):
            phase.begin_launch(self.k)
        if not d.evaluates:
            w(f"Rule* const rules = reinterpret_cast<Rule*>{self.k.at('rules')};")
        w("[[maybe_unused]] Tally* const tallies = "
          f"reinterpret_cast<Tally*>{self.k.at('tallies')};")
        if p.scaled:
            w(f"LossScale* const scaling = reinterpret_cast<LossScale*>({self.k.at('scaling')});")
            w("if (thread == 0) *scaling = {loss_scale[0], loss_scale[1], {overflow[0], 0}};")
        if p.scheduled:
            first_thread = d.threads - rules_at_once(p)
            w(f"float rate = thread >= {first_thread} ? {rate_of_thread(self.k, '0')} : 0.0f;")
        if p.timed:
            w("const int steps_before = steps_of_epochs + cursor_now;")
        if d.splits_examples:
            convert_first_inputs(self.k)
        else:
            wait_for_input(self.k, "0")
            if p.labelled:
                w("labels_ahead.store(y);")
        w("__syncthreads();")
        if self.layout.copies is not None:
            w(f"copy_weights<Shape>({self.layout.copied});")
            w("__syncthreads();")
        set_up_transport(self.k)

    def ahead_of_wait(self) -> None:
        """What can run while the launch ahead is still running: it touches shared memory and reads
        the cursor, which the launch ahead does not move."""
        d, w = self.d, self.w
        w(f"clear_shared<Shape>(shared, {self.layout.dynamic_bytes // 4});")
        w("__syncthreads();")
        w(f"const unsigned int barriers = ptx::shared_address({self.k.at('barriers')});")
        w("if (kBulk && thread == 0) {")
        w("for (int i = 0; i < 4; ++i) ptx::init_barrier(barriers + 8 * i, 1);")
        w("ptx::publish_barriers();")
        w("}")
        w("if constexpr (kBulk) ptx::fence_proxy_async();")
        if d.tp_size > 1 and not d.via_l2:
            w("cluster_arrive<Shape>();")
        self.declare_cursor()

    def locate_group(self) -> None:
        self.w(f"const int group = static_cast<int>(blockIdx.x) / {self.d.tp_size};")

    def declare_cursor(self) -> None:
        offset = "" if self.layout.has_epoch_boundary else " + offset"
        self.w(f"const int cursor_now = *cursor{offset};")

    def declare_member(self) -> None:
        """Declares what a member has for itself; nothing in the kernel of one network."""

    def load_first_input(self) -> None:
        """Starts the copies of the first micro-batch, and reads the order of the second, while
        weights are on their way."""
        d, p, w, first_thread = self.d, self.p, self.w, self.schedule.prefetch.first_thread
        if p.normalised:
            start = self.k.first(0)
            for name in ("mean", "inverse_std"):
                w(f"load_floats<Shape>({self.k.at(name)}, {name} + {start}, {self.k.count(0)});")
        declare_threads_of_prefetch(self.k)
        if p.labelled:
            w(f"int* const y = reinterpret_cast<int*>{self.k.at('y')};")
            w(f"NextLabels<Shape, {first_thread}, kBehindRows> labels_ahead;")
        if p.ordered:
            w(f"int* const fetched = reinterpret_cast<int*>{self.k.at('order')};")
        if orders_at_once(d) > 1:
            order_ahead(self.k, "0", 0)
            if d.members_or_fail.listed:
                w("ptx::commit_copies();")
                w("ptx::wait_for_copies<0>();")
        elif p.ordered:
            w(f"first_orders<Shape>(fetched, order, first_of(0), {self.k.present('0')}, "
              f"first_of(1), {self.k.count_of_launch} > 1 ? {self.k.present('1')} : 0);")
        w("__syncthreads();")
        if d.splits_examples:
            fetch_first_inputs(self.k)
            return
        w(f"if (thread >= {first_thread}) {{" if first_thread else "{")
        fetch(self.k, "0")
        w("}")
        w("ptx::commit_copies();")

    def declare_batch(self) -> None:
        """A C++ function: the examples of a step."""
        self.w("// The step behind the whole ones has the examples that are left.")
        self.w("const auto batch_of = [=](int step) { return cursor_now + step < whole ? "
               f"{self.p.batch} : left; }};")

    def examples_of_micro_batches(self) -> None:
        """C++ functions: the examples of a micro-batch, and the first of them."""
        d, p, w = self.d, self.p, self.w
        batch = str(p.batch)
        if p.partial:
            self.declare_batch()
            batch = f"batch_of(t / {d.micro_batches})"
        w("const auto present_in = [=](int t) {")
        w(f"const int of_group = min({d.group_batch}, {batch} - group * {d.group_batch});")
        w(f"return max(0, min({d.micro_batch}, of_group - t % {d.micro_batches} * "
          f"{d.micro_batch}));")
        w("};")
        w("const auto first_of = [=](int t) {")
        w(f"return static_cast<long long>(cursor_now + t / {d.micro_batches}) * {p.stride} + "
          f"group * {d.group_batch} + t % {d.micro_batches} * {d.micro_batch};")
        w("};")

    def load_layer(self, layer: int) -> None:
        p, w, part = self.p, self.w, self.layout.layers[layer]
        n = layer + 1
        w(f"const Shard shard{n} = {self.shard_of(layer)};")
        w(f"[[maybe_unused]] float* const weights{n} = shared + {part.weights};")
        w(f"[[maybe_unused]] float* const biases{n} = shared + {part.bias};")
        if self.is_long:
            w(f"load_layer<Shape>({part.weights}, {part.pitch}, w{n}, ldw{n}, {part.bias}, "
              f"{f'b{n}' if p.bias else 'nullptr'}, shard{n});")
        else:
            w(f"load_weights<Shape>(weights{n}, {part.pitch}, w{n}, ldw{n}, shard{n});")
            if p.bias:
                w(f"load_biases<Shape>(biases{n}, b{n}, shard{n});")
        self.move_states(layer, "load", in_global=False)

    def shard_of(self, layer: int) -> str:
        kind = self.d.layer_kinds[layer]
        below, above = self.d.shards[layer:layer + 2]
        outs, ins = self.p.layers[layer + 1], self.p.layers[layer]
        if kind == COLUMN_PARALLEL:
            return f"{{rank * {above}, n{layer + 1}, 0, {ins}}}"
        if kind == ROW_PARALLEL:
            return f"{{0, {outs}, rank * {below}, n{layer}}}"
        return f"{{0, {outs}, 0, {ins}}}"

    def move_states(self, layer: int, way: str, in_global: bool | None = None) -> None:
        """Loads or stores the optimizer state of a layer, if it lies in global memory (`in_global`)
        or in shared memory; wherever it lies if `in_global` is None."""
        found, part, n = self.layout, self.layout.layers[layer], layer + 1
        share = found.sync == SHARE
        base = part.base if found.sync else 0
        near = found.shared_state if found.sync else part.state
        if in_global not in (None, near is None) or (part.in_registers and not part.bias_tiles):
            return
        tiles = part.state_tiles
        ahead = base * len(self.p.states) * TILE if found.sync == ALL else 0
        place = f"reinterpret_cast<float*>({self.k.states_at(layer)}) + {ahead}"
        states, bias = self.p.states, "static_cast<float*>(nullptr)"
        where = f"{part.across}, {tiles}, {tiles + part.bias_tiles}, {base if share else 0}, group"
        of_bias = [f"b{n}_{state}" if self.p.bias else bias for state in states]
        last = f"shard{n}"
        if way == "store":
            last += f", {self.store_share(layer, own=share)}"
            if self.p.bias and self.d.layer_kinds[layer] == ROW_PARALLEL:  # all blocks have it
                of_bias = [f"rank == 0 ? {b} : nullptr" for b in of_bias]
        if not states:
            return
        is_state_global, shares = literal(near is None), self.d.dp_size if share else 1
        tensors = ", ".join(f"{{{', '.join(column)}}}" for column in (
            [f"w{n}_{s}" for s in states], [f"ldw{n}_{s}" for s in states], of_bias))
        if self.is_long:
            at = f"{place}, 0" if near is None else f"nullptr, {near + ahead}"
            self.w(f"{way}_state<Shape, {is_state_global}, {shares}, {len(states)}>({at}, {where}, "
                   f"{{{tensors}}}, {last});")
            return
        kinds = f"{is_state_global}, {len(states)}" if way == "load" else str(len(states))
        self.w(f"{way}_states<Shape, {kinds}, {shares}>({place}, {where}, 0, "
               f"StateTensors<{len(states)}>{{{tensors}}}, {last});")

    def store_share(self, layer: int, own: bool = False) -> str:
        """C++: which part of a layer this block stores. Blocks that have the same values share the
        store, unless each group has values of its `own`."""
        everywhere = self.d.layer_kinds[layer] == REPLICATED_LAYER and self.d.tp_size > 1
        if own:
            return f"{{rank, {self.d.tp_size}}}" if everywhere else "kStoresAll"
        return "of_blocks" if everywhere else "of_groups"

    # -- behind the steps --------------------------------------------------------------------------
    def end(self) -> None:
        d, p, w, found = self.d, self.p, self.w, self.layout
        if found.counters:
            w("// Without exchanges nothing else says that all have loaded what one block stores.")
            w(f"ptx::grid_barrier(counters + 1, {d.blocks}u, 4);")
        self.arrive_at_end()
        take_ticket(self.k)
        w(f"[[maybe_unused]] const StoreShare of_groups = {{group, {d.dp_size}}};")
        w(f"[[maybe_unused]] const StoreShare of_blocks = {{group * {d.tp_size} + rank, "
          f"{d.blocks}}};")
        for layer in range(p.depth):
            part, n, share = found.layers[layer], layer + 1, self.store_share(layer)
            row_parallel = d.layer_kinds[layer] == ROW_PARALLEL
            bias_share = "of_blocks" if row_parallel else share  # all blocks have them
            for to in [f"w{n}, ldw{n}"] + [f"c{n}, ldc{n}"] * bool(p.copies):
                if self.is_long:
                    bias = f"b{n}" if p.bias and to[0] == "w" else "nullptr"
                    w(f"store_layer<Shape>({to}, {part.weights}, {part.pitch}, {bias}, "
                      f"{part.bias}, shard{n}, {share}, {bias_share});")
                else:
                    w(f"store_weights_as<Shape>({to}, weights{n}, {part.pitch}, shard{n}, "
                      f"{share});")
            if p.bias and not self.is_long:
                w(f"store_biases<Shape>(b{n}, biases{n}, shard{n}, {bias_share});")
            self.move_states(layer, "store")
            store_held(self.k, layer)
        if p.scaled:
            w(f"if ({self.first_block} && thread == 0) {{")
            w("loss_scale[0] = scaling->scale, loss_scale[1] = scaling->good;")
            w("overflow[0] = 0;")
            w("}")
        store_micro_batch(self.k)
        if found.sync:
            w("if (thread == 0) all_reduces[blockIdx.x] = all_reduces_before + span;")
        if found.has_epoch_boundary:
            w("NextOrder<Shape> next_order(order_seed, offset, count);")
        if self.clustered:
            remark = "" if self.releases_at_end else "  // none has left sooner"
            w(f"cluster_wait<Shape>();{remark}")
        if found.has_epoch_boundary:  # all blocks have read this epoch's order
            w("next_order.store(order);")
        report(self.k)
        if found.has_epoch_boundary and found.reports != BY_LAST:
            w("if (blockIdx.x == 0 && thread == 0) tick_clock(clock, steps);")

    @property
    def first_block(self) -> str:
        """C++: whether this block is the first of a network."""
        return "blockIdx.x == 0"

    @property
    def clustered(self) -> bool:
        """Whether groups are clusters of several blocks."""
        return self.d.tp_size > 1 and not self.d.via_l2

    def arrive_at_end(self) -> None:
        """No block of a cluster ends before the others get here: nothing is sent to a block that
        has ended, and the first block sees the losses of all. Without exchanges, this also says
        that all blocks have loaded what one stores."""
        d, w, found = self.d, self.w, self.layout
        if not self.clustered:
            return
        if not found.receive_floats and REPLICATED_LAYER in d.layer_kinds:
            w("cluster_arrive<Shape>();")
            w("cluster_wait<Shape>();")
        w(f"cluster_arrive{'' if self.releases_at_end else '_relaxed'}<Shape>();")

    @property
    def releases_at_end(self) -> bool:
        """Whether blocks of a cluster must see what the others wrote to memory."""
        found = self.layout
        return (found.reports == BY_FIRST and found.all_report) or (
            found.has_epoch_boundary and not found.receive_floats and not found.counters)
