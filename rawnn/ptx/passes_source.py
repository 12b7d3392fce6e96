"""The text of a kernel that does all passes of a step (passes.cuh), written for a network."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.common.dtypes import c_type
from rawnn.network.activations import functor
from rawnn.network.losses import LOSSES
from rawnn.ptx.passes_form import Form, Sharing

Parameter = tuple[str, str]


@dataclass(frozen=True)
class Problem:
    """What the kernel is told besides its form. `leading` are the leading dimensions of all operands
    that are matrices, `compute` how products of float32 are computed, `targets` the type of what a
    loss of elements compares with; `pairs` says that the loss counts what is right."""

    form: Form
    dtype: str
    compute: str
    activation: str
    loss: str
    targets: str
    scaled: bool
    leading: tuple[tuple[str, int], ...]

    @property
    def labelled(self) -> bool:
        return LOSSES[self.loss].labelled

    @property
    def counted(self) -> bool:
        return bool(LOSSES[self.loss].counts(1))


def parameters(p: Problem) -> list[Parameter]:
    """(type, name) of every parameter, pointers by the roles of their operands."""
    t, depth = c_type(p.dtype), p.form.network.depth
    found: list[Parameter] = []

    def matrix(kind: str, role: str) -> None:
        found.extend([(f"{kind}*", role), ("int", f"ld{role}")])

    matrix(f"const {t}", "x")
    if p.labelled:
        found.append(("const int*", "y"))
    else:
        matrix(f"const {c_type(p.targets)}", "t")
    for layer in range(1, depth + 1):
        matrix(f"const {t}", f"w{layer}")
        if p.form.network.bias:
            found.append(("const float*", f"b{layer}"))
        if layer < depth:
            matrix(t, f"a{layer}")
        matrix(t, f"dz{layer}")
    if p.scaled:
        found += [("const float*", "loss_scale"), ("int*", "overflow")]
    found += [("const int*", "cursor"), ("float*", "loss_parts")]
    if p.counted:
        found.append(("int*", "correct_parts"))
    return [*found, ("int", "parts"), ("int", "offset")]


def source(p: Problem, name: str) -> str:
    """The CUDA C of the kernel `name`."""
    return _Kernel(p, name).text()


class _Kernel:
    def __init__(self, problem: Problem, name: str) -> None:
        self.p, self.form, self.n, self.name = problem, problem.form, problem.form.network, name
        self.lines: list[str] = []
        self.exchanges = 0
        self.leading = dict(problem.leading)

    def w(self, text: str, depth: int = 1) -> None:
        self.lines.append("  " * depth + text if text else "")

    def text(self) -> str:
        p, form, n, w = self.p, self.form, self.n, self.w
        numbers = p.dtype if n.times == 1 else f"{p.dtype} by three products"
        w(f"// {'-'.join(map(str, n.layers))}, batch {n.batch}, {numbers}: {form}", 0)
        w('#include "passes.cuh"', 0)
        w("struct Shape {", 0)
        w(f"using Element = {c_type(p.dtype)};")
        w(f"using Sum = {'tf32x3' if n.times == 3 else 'float'};")
        for constant, value in (("Ranks", form.ranks), ("Rows", form.rows), ("Warps", form.warps)):
            w(f"static constexpr int k{constant} = {value};")
        w(f"static constexpr bool kScaled = {'true' if p.scaled else 'false'};")
        w("};", 0)
        if n.depth > 1:
            w(f"using Between = {functor(p.activation)};", 0)
        for i in range(1, form.products + 1):
            w(f"using P{i} = passes::Product<Shape, {self.template(i)}>;", 0)
        arguments = ", ".join(f"{kind} {name}" for kind, name in parameters(p))
        w(f"__global__ void __launch_bounds__({32 * form.warps}, 1) {self.name}({arguments}) {{", 0)
        self.begin()
        for i in range(1, form.products + 1):
            self.product(i)
        self.end()
        w("}", 0)
        return "\n".join(self.lines) + "\n"

    def template(self, i: int) -> str:
        form, n, s = self.form, self.n, self.form.sharing(i)
        layer, below = form.layer_of(i), form.layer_of(i - 1)
        forward = i <= n.depth
        weights = f"w{layer if forward else layer + 1}"
        flags = ["true" if flag else "false" for flag in (
            forward, form.ranks > 1 and form.sliced[layer])]
        return ", ".join(map(str, (*flags, n.layers[layer], n.layers[below], self.leading[weights],
                                   s.groups, s.parts, s.rounds, s.depth)))

    def at(self, place: str, kind: str) -> str:
        return f"reinterpret_cast<{kind}*>(shared + {self.form.places[place]})"

    def values(self, i: int) -> str:
        return f"at + {self.form.places['values'] + self.form.values[i]}u"

    # -- ahead of the products ---------------------------------------------------------------------
    def begin(self) -> None:
        p, form, n, w = self.p, self.form, self.n, self.w
        w("unsigned char* const shared = ptx::dynamic_shared();")
        w("const unsigned int at = ptx::shared_address(shared);")
        clustered = form.ranks > 1
        w(f"const passes::Here<Shape> here(at, static_cast<int>(blockIdx.x), {n.batch});")
        if clustered:
            w("if (threadIdx.x == 0) {")
            for barrier in range(3):
                w(f"ptx::init_barrier(at + {8 * barrier}u, {form.warps});", 2)
            w("ptx::publish_barriers();", 2)
            w("}")
            w("__syncwarp();")
            w("ptx::arrive_at_cluster_relaxed();")
        w(f"passes::fetch_rows<Shape, {n.layers[0]}>({self.values(0)}, x, ldx, here);")
        if p.labelled:
            w(f"const int* const labels = {self.at('labels', 'const int')};")
            w(f"passes::fetch_labels<Shape>(at + {form.places['labels']}u, y, here);")
        w("const int step = current_step(cursor, offset);")
        w("pdl_wait();")
        w("pdl_trigger();")
        self.declare(1)
        for layer in range(1, n.depth + 1):
            place = form.places[f"bias{layer}"]
            given = f"b{layer}" if n.bias else "nullptr"
            w(f"const float* const bias{layer} = {self.at(f'bias{layer}', 'const float')};")
            w(f"passes::fetch_biases<Shape>(at + {place}u, {given}, P{layer}(w{layer}, here.rank));")
        scale = " * loss_scale[0]" if p.scaled else ""
        rows = n.batch if p.labelled else n.batch * n.layers[-1]
        w(f"const float share = 1.0f / {rows}.0f{scale};")
        w(f"int* const flag = {'overflow' if p.scaled else 'nullptr'};")
        w("Tally tally = {0.0f, 0};")
        w(f"float4* const scratch = {self.at('scratch', 'float4')};")
        w("ptx::wait_for_all_copies();")
        w("__syncthreads();")
        if clustered:
            w("ptx::wait_for_cluster();  // all have their barriers")

    def declare(self, i: int) -> None:
        """Product number i, whose first loads are asked for."""
        layer = self.form.layer_of(i)
        weights = f"w{layer if i <= self.n.depth else layer + 1}"
        self.w(f"P{i} p{i}({weights}, here.rank);")
        self.w(f"p{i}.begin(0);")

    # -- the products ------------------------------------------------------------------------------
    def product(self, i: int) -> None:
        form, w, s = self.form, self.w, self.form.sharing(i)
        w("")
        rounds = s.rounds > 1
        w(f"// {self.said(i)}")
        if rounds:
            w("#pragma unroll 1", 0)
            w(f"for (int round = 0; round < {s.rounds}; ++round) {{")
            w(f"if (round > 0) p{i}.begin(round);", 2)
        inner, round_ = (2, "round") if rounds else (1, "0")
        w(f"p{i}.run({self.values(i - 1)});", inner)
        if not rounds and i < form.products:
            self.declare(i + 1)
        w(f"p{i}.collect(scratch, {round_});", inner)
        self.finish(i, round_, inner, s)
        if rounds:
            if s.parts > 1:
                w("__syncthreads();", 2)
            w("}")
            if i < form.products:
                self.declare(i + 1)
        if i < form.products:
            self.hand_over(i)

    def said(self, i: int) -> str:
        layer, depth = self.form.layer_of(i), self.n.depth
        return f"layer {layer}" if i < depth else "the last layer, and the loss" if i == depth \
            else f"the gradient of layer {layer}"

    def barrier(self) -> int:
        return 8 * (self.exchanges % 2)

    def hand_over(self, i: int) -> None:
        """What product i left is there for the next."""
        form, n = self.form, self.n
        if not form.exchanged(i):
            self.w("__syncthreads();")
            return
        others = f"(P{i}::kPieces - p{i}.pieces) * {16 * form.rows}"
        self.w(f"passes::meet(at + {self.barrier()}u, {self.exchanges // 2 % 2}, {others});")
        self.exchanges += 1

    def finish(self, i: int, round_: str, depth: int, s: Sharing) -> None:
        p, form, n, w = self.p, self.form, self.n, self.w
        layer = form.layer_of(i)
        last = i == form.products
        barrier = f"at + {self.barrier()}u" if form.exchanged(i) and not last else "0u"
        values = "0u" if last else self.values(i)
        of = f"a{layer}" if i < n.depth else f"dz{layer}"
        to = f"passes::Results<{c_type(p.dtype)}>{{{of}, ld{of}, {values}, {barrier}}}"
        kept = f"shared + {form.places[f'kept{layer}']}" if layer < n.depth else ""
        if i < n.depth:
            w(f"passes::activate<Shape, Between>(p{i}, {round_}, here, bias{layer}, {kept}, {to});",
              depth)
        elif i > n.depth:
            w(f"passes::slope<Shape, Between>(p{i}, {round_}, here, {kept}, flag, {to});", depth)
        elif p.labelled:
            sliced = form.ranks > 1 and form.sliced[layer]
            w(f"float4* const stats = {self.at('stats', 'float4')};")
            w(f"passes::Softmax<Shape, P{i}> softmax;")
            w(f"float4* const totals = {self.at('totals', 'float4')};")
            w(f"softmax.begin(p{i}, here, bias{layer}, stats, at + 16u);")
            if sliced:
                others = 16 * form.rows * s.groups * (form.ranks - 1)
                w(f"passes::meet(at + 16u, 0, {others});")
            else:
                w("__syncthreads();")
            w("softmax.add_up(totals, stats);")
            w("__syncthreads();")
            w(f"softmax.finish(p{i}, here, labels, totals, share, flag, tally, {to});")
        else:
            functor_of = LOSSES[p.loss].functor
            w(f"passes::compare<Shape, {functor_of}>(p{i}, {round_}, here, bias{layer}, t, ldt, "
              f"share, flag, tally, {to});", depth)

    def end(self) -> None:
        correct = "correct_parts" if self.p.counted else "nullptr"
        self.w("")
        self.w(f"leave_parts(tally, {{loss_parts, {correct}, parts}}, step, "
               f"static_cast<int>(blockIdx.x));")
