"""The text of a kernel that does all passes of a step (passes.cuh), written for a network."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.common.dtypes import c_type
from rawnn.network.activations import functor
from rawnn.network.losses import LOSSES
from rawnn.ptx.passes_form import Form

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
        w(f"using Activation = {functor(p.activation)};")
        for constant, value in (("Ranks", form.ranks), ("Rows", form.rows), ("Warps", form.warps),
                                ("Depth", n.depth), ("Ahead", form.ahead)):
            w(f"static constexpr int k{constant} = {value};")
        w(f"static constexpr bool kScaled = {'true' if p.scaled else 'false'};")
        w("};", 0)
        arguments = ", ".join(f"{kind} {name}" for kind, name in parameters(p))
        w(f"__global__ void __launch_bounds__({32 * form.warps}, 1) {self.name}({arguments}) {{", 0)
        self.begin()
        self.products()
        correct = "correct_parts" if p.counted else "nullptr"
        w(f"leave_parts(tally, {{loss_parts, {correct}, parts}}, step, "
          f"static_cast<int>(blockIdx.x));")
        w("}", 0)
        return "\n".join(self.lines) + "\n"

    def at(self, place: str, kind: str) -> str:
        return f"reinterpret_cast<{kind}*>(shared + {self.form.places[place]})"

    def values(self, i: int) -> int:
        """Where what product number i makes lies, or the inputs."""
        return self.form.places["values"] + self.form.values[i]

    def begin(self) -> None:
        """All that is ahead of the products."""
        p, form, n, w = self.p, self.form, self.n, self.w
        t = c_type(p.dtype)
        clustered = form.ranks > 1
        w("unsigned char* const shared = ptx::dynamic_shared();")
        w(f"const passes::Here<Shape> here(shared, static_cast<int>(blockIdx.x), {n.batch});")
        if clustered:
            w("if (threadIdx.x == 0) {")
            for barrier in range(3):
                w(f"ptx::init_barrier(here.at + {8 * barrier}u, {form.warps});", 2)
            w("ptx::publish_barriers();", 2)
            w("}")
            w("__syncwarp();")
            w("ptx::arrive_at_cluster_relaxed();")
        w(f"passes::fetch_rows<Shape, {n.layers[0]}>(here, {self.values(0)}, "
          f"{n.pitch(n.layers[0])}, x, ldx);")
        if p.labelled:
            w(f"passes::fetch_labels(here, {form.places['labels']}, y);")
        w(f"passes::Task<{t}>* const table = {self.at('table', f'passes::Task<{t}>')};")
        w("switch (threadIdx.x) {")
        for i in range(1, form.products + 1):
            w(f"case {i - 1}: table[{i - 1}] = {{{self.task(i)}}}; break;", 2)
        w("default: break;", 2)
        w("}")
        w("const int step = current_step(cursor, offset);")
        w("__syncthreads();")
        w("pdl_wait();")
        w("pdl_trigger();")
        w("passes::Product<Shape> product;")
        w("product.template begin<true>(table[0], here.rank, 0);")
        for layer in range(1, n.depth + 1):
            given = f"b{layer}" if n.bias else "nullptr"
            w(f"passes::fetch_biases(passes::Part<Shape>(here, table[{layer - 1}], 0u), {given});")
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

    def task(self, i: int) -> str:
        """The entry of product number i, from 1 on."""
        form, n, s = self.form, self.n, self.form.sharing(i)
        layer, below = form.layer_of(i), form.layer_of(i - 1)
        weights = f"w{layer if i <= n.depth else layer + 1}"
        results = f"a{layer}" if i < n.depth else f"dz{layer}"
        last = i == form.products
        chunks = n.chunks(n.layers[below])
        kept = form.places[f"kept{layer}"] if layer < n.depth else 0
        return ", ".join(map(str, (
            weights, results, self.leading[weights], self.leading[results], n.layers[layer],
            n.layers[below], form.pieces(layer), int(form.ranks > 1 and form.sliced[layer]),
            self.values(i - 1), 0 if last else self.values(i), n.pitch(n.layers[below]),
            n.pitch(n.layers[layer]), s.groups, s.parts, -(-256 // s.parts), s.rounds, chunks,
            -(-chunks // s.parts), form.places[f"bias{layer}"], kept)))

    def products(self) -> None:
        p, form, n, w = self.p, self.form, self.n, self.w
        s = form.sharing(n.depth)
        w("passes::all_products(table, product, here, scratch, flag, "
          "[&](const passes::Part<Shape>& part, int round) {")
        if p.labelled:
            sliced = form.ranks > 1 and form.sliced[n.depth]
            shares = form.ranks if sliced else 1
            w(f"float4* const stats = {self.at('stats', 'float4')};", 2)
            w(f"float4* const totals = {self.at('totals', 'float4')};", 2)
            w("passes::softmax_of_tiles(part, scratch, stats, here.at + 16u);", 2)
            others = 16 * form.rows * s.groups * (shares - 1)
            w(f"passes::meet(here.at + 16u, 0, {others});" if sliced else "__syncthreads();", 2)
            w(f"passes::softmax_of_rows<Shape>(totals, stats, {s.groups * shares});", 2)
            w("__syncthreads();", 2)
            labels = self.at("labels", "const int")
            w(f"passes::softmax_gradient(part, scratch, stats, totals, {labels}, share, flag, tally);",
              2)
        else:
            w(f"passes::compare<Shape, {LOSSES[p.loss].functor}>(part, round, scratch, t, ldt, share, "
              f"flag, tally);", 2)
        w("});")
