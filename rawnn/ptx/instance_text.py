"""What instances of kernels add to the text of their source: the functors that an activation or an
optimizer brings, and the kernels of such an optimizer.

The kernels of an optimizer only pass its state and its settings to updates.cuh and mma_update.cuh.
sgd.cu, momentum.cu, adam.cu and gemm_kernels.cuh have the same kernels written by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rawnn.model.activations import functor_text as activations
from rawnn.model.optimizers import UPDATE_RULES, UpdateRule
from rawnn.model.optimizers import functor_text as optimizers
from rawnn.ptx import SOURCES

GEMMS = "gemm/gemm_kernels.cuh"
UPDATES_SOURCE = "optimizers/sgd.cu"
"""The source that the update kernels of optimizers with a functor of their own are added to."""


def instance_text(expressions: Collection[str]) -> str:
    """CUDA C that instances ("activate<float,float,Silu>", "lion<float,float,float>") need and no
    file has; "" where there is nothing."""
    names = {expression.partition("<")[0] for expression in expressions}
    own = [rule for rule in UPDATE_RULES.values()
           if rule.code and names & {rule.kind, f"gemm_{rule.kind}"}]
    parts = [activations(expressions), optimizers(rule.functor for rule in own)]
    for rule in own:
        parts += [_update(rule)] if rule.kind in names else []
        parts += [_gemm_update(rule)] if f"gemm_{rule.kind}" in names else []
    return "\n".join(filter(None, parts))


def with_instance_text(text: str, expressions: Collection[str]) -> str:
    """The text of a source with what instances of it add. Where that is a kernel, and all others of
    the source are those of GEMMS, they stand in the text, too: the parameters of kernels are read
    from headers only for a text that has none."""
    added = instance_text(expressions)
    if "__global__" in added:
        kernels = (SOURCES / GEMMS).read_text().replace("#pragma once\n", "")
        text = text.replace(f'#include "{GEMMS}"\n', kernels)
    return f"{text}\n{added}\n" if added else text


_CONTEXT = ("const float* __restrict__ rates, const int* __restrict__ cursor, "
            "const int* __restrict__ clock, const float* __restrict__ loss_scale, "
            "const int* __restrict__ overflow")
_ROUNDING = ("float copy_scale, int offset, bool stochastic, unsigned long long seed, "
             "unsigned int stream")


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(filter(None, parts))


def _settings(rule: UpdateRule) -> str:
    return _joined(["float lr, float decay", *(f"{kind} {n}" for n, kind in rule.settings.items())])


def _update(rule: UpdateRule) -> str:
    """The kernel of a rule alone, as adam.cu."""
    keeps = rule.keeps
    each = list(enumerate(keeps))
    aligned = " && ".join(["true", *(f"vector_aligned<N>({n}, ld{n})" for n in keeps)])
    loads = " ".join(f"load_part<N>(kept[{i}], at({n}, ld{n}, row, column), whole, count);"
                     for i, n in each)
    stores = " ".join(f"store_part<N>(at({n}, ld{n}, row, column), kept[{i}], whole, count);"
                      for i, n in each)
    states = "".join(f"float* __restrict__ {n}, int ld{n}, " for n in keeps)
    values = _joined(["rate", "total_step(cursor, offset, clock) + 1", "decay", *rule.settings])
    kept, body = "", "return optimizer(weight, gradient, nullptr);"
    if keeps:
        kept = f"constexpr int N = update_length<TW>(); float kept[{len(keeps)}][N];"
        taken = ", ".join(f"kept[{i}][i]" for i, _ in each)
        given = " ".join(f"kept[{i}][i] = state[{i}];" for i, _ in each)
        body = f"float state[{len(keeps)}] = {{{taken}}}; " \
            f"weight = optimizer(weight, gradient, state); {given} return weight;"
    return f"""\
template <typename TW, typename TG, typename TC>
__global__ void {rule.kind}(
    TW* __restrict__ w, int ldw, const TG* __restrict__ dw, int lddw,
    const TG* __restrict__ other, int ldother, {states}TC* __restrict__ copy, int ldcopy,
    {_CONTEXT}, int rows, int cols,
    float share, float other_share, {_settings(rule)}, {_ROUNDING}) {{
  pdl_wait();
  pdl_trigger();
  if (left_out(overflow)) return;
  const float rate = learning_rate(lr, rates, cursor, offset);
  const Rounding how = rounding(stochastic, seed, stream, cursor, offset, clock);
  const {rule.functor} optimizer({values});
  {kept}
  update_matrix(
      w, ldw, dw, lddw, other, ldother, share, other_share, copy, ldcopy, copy_scale, {aligned},
      loss_scale, rows, cols, how,
      [&](int row, int column, bool whole, int count) {{ {loads} }},
      [&](float weight, float gradient, int i) {{ {body} }},
      [&](int row, int column, bool whole, int count) {{ {stores} }});
}}"""


def _gemm_update(rule: UpdateRule) -> str:
    """The kernel of a rule with the weight gradient's GEMM, as gemm_adam of gemm_kernels.cuh."""
    keeps, functor = rule.keeps, rule.functor
    states = "".join(f"float* {n}, int ld{n}, " for n in keeps)
    of_bias = "".join(f"float* bias_{n}, " for n in keeps)
    kept = f"{{{_joined(keeps)}}}, {{{_joined(f'ld{n}' for n in keeps)}}}, " \
        f"{{{_joined(f'bias_{n}' for n in keeps)}}}" if keeps else ""
    members = " ".join(f"{kind} {n};" for n, kind in rule.settings.items())
    values = _joined(["decay", *rule.settings])
    return f"""\
template <>
struct Settings<{functor}> {{
  float decay; {members}
  __device__ __forceinline__ {functor} optimizer(float rate, int t) const {{
    return {{rate, t, {values}}};
  }}
}};
template <typename LOOP, typename TD, typename TX, typename TW, typename TC, bool BIAS,
          typename SUM, int BM, int BN, int WM, int WN, int WK, int STAGES, int CLUSTER, int BYTES,
          bool ALIGNED, bool EARLY = false>
__global__ void GEMM_BOUNDS gemm_{rule.kind}(
    const TD* __restrict__ dz, int lddz, const TX* __restrict__ x, int ldx, TW* w, int ldw,
    {states}float* bias, {of_bias}TC* copy, int ldcopy, {_CONTEXT}, int batch, int rows, int cols,
    {_settings(rule)}, {_ROUNDING}) {{
  using TILE = Tile<BM, BN, WM, WN, WK, STAGES, CLUSTER, BYTES, ALIGNED, EARLY>;
  const UpdateEpilogue<TW, TC, {functor}> epilogue{{
      w, ldw, copy, ldcopy, bias, {{{kept}}},
      {{rates, cursor, clock, loss_scale, overflow, offset}}, rows, cols, lr, {{{values}}},
      copy_scale, {{stochastic, seed, stream, 0}}}};
  LOOP::template gemm<TILE, SUM, false, false, BIAS>(
      dz, lddz, x, ldx, rows, cols, batch, epilogue);
}}"""
