"""Emits the kernel of a step whose operands stream from L2 (ptx/persistent/streamed.cuh)."""

from __future__ import annotations

from rawnn.persistent.layout import Layout
from rawnn.persistent.phases.loss import report
from rawnn.persistent.phases.streamed_text import (
    NET,
    WEIGHTS,
    fetch_ahead,
    stages,
    weights_of,
    words_of,
)
from rawnn.persistent.source import KernelEmitter
from rawnn.persistent.steps import emit_phases
from rawnn.persistent.streamed import MOST_OUTPUTS, splits_of
from rawnn.persistent.streamed_layout import streamed_quads
from rawnn.persistent.writer import literal


def streamed_source(layout: Layout, name: str) -> str:
    """The CUDA C of the kernel `name`."""
    return StreamedEmitter(layout, name).text()


class StreamedEmitter(KernelEmitter):
    """What stands ahead of the steps and behind them."""

    def __init__(self, layout: Layout, name: str) -> None:
        super().__init__(layout, name)
        if self.d.peers > 1:
            self.headers = (*self.headers, "streamed_clusters.cuh")

    def declare_types(self) -> None:
        p, w = self.p, self.w
        if self.layout.traced:
            w("struct StampsOfPhase {")
            w("Stamps stamps;")
            w("int step, first;")
            w("__device__ __forceinline__ void operator()(int i) const {")
            w("stamps.stamp(step, first + i);")
            w("}")
            w("};")
        w("struct Config {")
        stamps_of = "StampsOfPhase" if self.layout.traced else "NoStamps"
        for name, kind in (("Shape", "::Shape"), ("Rule", "::Rule"), ("Activation", "::Activation"),
                           ("Stamps", stamps_of)):
            w(f"using {name} = {kind};")
        for name, number in (("Inputs", p.layers[0]), ("Hidden", p.layers[1]),
                             ("Outputs", p.outputs), ("Stages", stages(self.k)),
                             *self.numbers_of_clusters()):
            w(f"static constexpr int k{name} = {number};")
        w(f"static constexpr bool kBias = {literal(p.bias)};")
        w("};")
        w(f"using {NET} = Streamed{'Clusters' if self.d.peers > 1 else ''}<Config>;")
        w(f"using {WEIGHTS} = StreamedWeights<Config>;")

    def numbers_of_clusters(self) -> list[tuple[str, int]]:
        """Constants of streamed_clusters.cuh."""
        places = self.layout.places
        return [] if self.d.peers == 1 else [
            ("Peers", self.d.peers), ("Splits", splits_of(self.d)), ("Staged", places["staged"]),
            ("OfPeers", places["peers"]), ("Parts0", places["parts0"]),
            ("Parts1", places["parts1"]), ("Barriers", places["barriers"])]

    def set_up_clusters(self) -> None:
        """No block sends partial sums before the others have their barriers."""
        w = self.w
        w(f"{NET} net(rank);")
        w("if (thread == 0) {")
        w("for (int i = 0; i < 2; ++i) ptx::init_barrier(ptx::shared_address("
          f"{self.k.at('barriers')}) + 8 * i, 1);")
        w("ptx::publish_barriers();")
        w("}")
        w("cluster_arrive<Shape>();")

    def begin(self) -> None:
        d, p, w, k = self.d, self.p, self.w, self.k
        if self.layout.traced:
            w("const Stamps stamps = {trace};")
        w("float* const shared = ptx::dynamic_shared<float>();")
        w("Half* const halves = ptx::dynamic_shared<Half>();")
        w("const int rank = static_cast<int>(blockIdx.x);")
        w("const int thread = thread_index();")
        w(f"clear_shared<Shape>(shared, {self.layout.dynamic_bytes // 4});")
        w("__syncthreads();")
        if d.peers > 1:
            self.set_up_clusters()
        self.declare_cursor()
        w("pdl_wait();")
        w("pdl_trigger();")
        k.stamp_launch(0)
        if p.partial:
            self.declare_batch()
            w(f"const auto present_in = [=](int step) {{ return max(0, min({p.batch}, "
              f"batch_of(step))); }};")
        else:
            w(f"const int present = {p.batch};")
        w(f"const auto first_of = [=](int step) {{ return static_cast<long long>(cursor_now + "
          f"step) * {p.stride}; }};")
        row = "order[first_of(step) + i]" if p.ordered else "static_cast<int>(first_of(step)) + i"
        w(f"const auto row_of = [=](int step, int i) {{ return step < span && i < "
          f"{k.present('step')} ? {row} : 0; }};")
        gathered, between, _ = streamed_quads(d)
        w("float4* const quads = reinterpret_cast<float4*>(receive_buffers);")
        w(f"float4* const sent_weights = quads + {gathered}, * const sent_last = quads + "
          f"{gathered + between};")
        w(f"[[maybe_unused]] float* const biases = {k.at('biases')};")
        self.move_weights(load=True)
        w("const unsigned int generation = generations[blockIdx.x];")
        for name in ("y", "rows"):
            w(f"int* const {name} = reinterpret_cast<int*>{k.at(name)};")
        w(f"int next_row = thread < {d.columns} ? row_of(1, thread) : 0;")
        w(f"if (thread < {d.columns}) {{")
        w("rows[thread] = row_of(0, thread);")
        w("y[thread] = static_cast<int>(labels[rows[thread]]);")
        w("}")
        w("__syncthreads();")
        if stages(k):
            fetch_ahead(k, "0")
        if d.peers > 1:
            w("cluster_wait<Shape>();")

    def begin_steps(self) -> None:
        d, p, w, k = self.d, self.p, self.w, self.k
        super().begin_steps()
        if p.partial:
            w("const int present = present_in(u);")
        time = f"{k.rate('u')}, 0"
        settings = "".join(f", {k.setting(i)}" for i in range(len(p.settings)))
        w(f"const Rule rule({time}{settings});")
        w("const unsigned int counter = generation + static_cast<unsigned int>(u);")
        w("const unsigned int bit = ~(counter >> 1) & 1u, changed = ~counter & 1u;")
        gathered = streamed_quads(d)[0]
        w(f"float4* const gathered = quads + (counter & 1u) * {gathered // 2};")
        w(f"const int* const y_now = y + (u & 1) * {d.columns};")
        w("int next_label = 0, row_after_next = 0;")
        w(f"if (thread < {d.columns}) {{")
        w(f"rows[((u + 1) & 1) * {d.columns} + thread] = next_row;")
        w("next_label = static_cast<int>(labels[next_row]);")
        w("row_after_next = row_of(u + 2, thread);")
        w("}")

    def emit_step(self) -> None:
        self.k.in_micro_batch = True
        emit_phases(self.k, self.schedule.micro_batch)

    def move_weights(self, load: bool) -> None:
        """Loads or stores what this block owns of the weights and biases."""
        p, w, places = self.p, self.w, self.layout.places
        for layer in range(p.depth):
            n, last = layer + 1, layer == p.depth - 1
            place = places["weights1"] if n == 1 else places["last weights"] if last else \
                weights_of(self.layout, n)
            first, ends = literal(n == 1), f", rank, {p.layers[n]}, {literal(last)}"
            clusters = self.d.peers > 1
            name = WEIGHTS + "::"
            net = ""
            if clusters and not last:
                name, net, ends = NET + "::", "net, ", ""
            if load:
                w(f"{name}load_tiles<{first}>({net}{place}, w{n}, ldw{n}{ends});")
            else:
                w(f"{name}store_tiles<{first}>({net}w{n}, ldw{n}, {place}{ends});")
                if p.copies:
                    w(f"{name}store_tiles<{first}>({net}c{n}, ldc{n}, {place}{ends});")
            if p.bias:
                bias = f"biases[{MOST_OUTPUTS * layer} + thread]"
                mine = "rank * 8 + " * (not last)
                limit = f"thread < {p.outputs if last else 8}" + " && rank == 0" * (
                    last and not load)
                at = f"b{n}[{mine}thread]"
                w(f"if ({limit}) {f'{bias} = {at}' if load else f'{at} = {bias}'};")
            if load and clusters and n > 1:
                to = str(places["last words"]) if last else words_of(self.layout, n)
                w(f"{NET}::load_{'last_' * last}words(net, {to}, w{n}, ldw{n});")
                continue
            if load and 1 < n < p.depth:
                w(f"{WEIGHTS}::load_words<false>({words_of(self.layout, n)}, "
                  f"w{n}, ldw{n}, rank * 8, 0);")
            for second in range(2 if load and last else 0):
                w(f"{WEIGHTS}::load_words<true>({places['last words']}, w{n}, ldw{n}, "
                  f"{8 * second}, {second});")

    def end(self) -> None:
        w, found = self.w, self.layout
        if self.d.peers > 1:
            w("cluster_arrive_relaxed<Shape>();")
        if stages(self.k):
            w("ptx::wait_for_copies<0>();")
        self.move_weights(load=False)
        w("if (thread == 0) {")
        w("generations[blockIdx.x] = generation + static_cast<unsigned int>(span);")
        w("}")
        if self.d.peers > 1:
            w("cluster_wait<Shape>();  // none has left sooner")
        if found.has_epoch_boundary:
            w("NextOrder<Shape> next_order(order_seed, offset, count);")
            w("next_order.store(order);")
        report(self.k)
        if found.has_epoch_boundary:
            w("if (blockIdx.x == 0 && thread == 0) tick_clock(clock, steps);")
