"""The device primitives: nothing else has inline PTX, and NVRTC makes of each the instruction that
it says, with its operands in their places. Needs no GPU (test_instructions.py has what they do)."""

from __future__ import annotations

import re
from functools import cache

import pytest

from rawnn.cuda.compiling.compile import compile_source
from rawnn.ptx import SOURCES
from tests.ptx.architectures import installed_nvrtc

DEVICE = sorted((SOURCES / "device").glob("*.cuh"))
CODE = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

PROBES: dict[str, tuple[str, str, str]] = {
    # name: parameters, call, PTX with the parameters' names for registers
    "pack_bf16": ("float low, float high", "out[0] = ptx::pack_bf16(low, high);",
                  "cvt.rn.bf16x2.f32 R, high, low;"),
    "pack_f16": ("float low, float high", "out[0] = ptx::pack_f16(low, high);",
                 "cvt.rn.f16x2.f32 R, high, low;"),
    "pack_e4m3": ("float low, float high", "out[0] = ptx::pack_e4m3(low, high);",
                  "cvt.rn.satfinite.e4m3x2.f32 R, high, low;"),
    "pack_e5m2": ("float low, float high", "out[0] = ptx::pack_e5m2(low, high);",
                  "cvt.rn.satfinite.e5m2x2.f32 R, high, low;"),
    "widen_e4m3": ("unsigned short pair", "out[0] = ptx::widen_e4m3(pair);",
                   "cvt.rn.f16x2.e4m3x2 R, pair;"),
    "widen_e5m2": ("unsigned short pair", "out[0] = ptx::widen_e5m2(pair);",
                   "cvt.rn.f16x2.e5m2x2 R, pair;"),
    "to_f16": ("float x", "out[0] = ptx::to_f16(x);", "cvt.rn.f16.f32 R, x;"),
    "to_bf16": ("float x", "out[0] = ptx::to_bf16(x);", "cvt.rn.bf16.f32 R, x;"),
    "from_f16": ("unsigned short x", "out[0] = __float_as_uint(ptx::from_f16(x));",
                 "cvt.f32.f16 R, x;"),
    "fma_f16": ("unsigned short a, unsigned short b, unsigned short c",
                "out[0] = ptx::fma_f16(a, b, c);", "fma.rn.f16 R, a, b, c;"),
    "fma_f16_pair": ("unsigned a, unsigned b, unsigned c", "out[0] = ptx::fma_f16_pair(a, b, c);",
                     "fma.rn.f16x2 R, a, b, c;"),
    "to_tf32": ("float x", "out[0] = ptx::to_tf32(x);", "cvt.rna.tf32.f32 R, x;"),
    "approximate_sqrt": ("float x", "out[0] = __float_as_uint(ptx::approximate_sqrt(x));",
                         "sqrt.approx.ftz.f32 R, x;"),
    "approximate_exp2": ("float x", "out[0] = __float_as_uint(ptx::approximate_exp2(x));",
                         "ex2.approx.ftz.f32 R, x;"),
    "approximate_inverse": ("float x", "out[0] = __float_as_uint(ptx::approximate_inverse(x));",
                            "rcp.approx.ftz.f32 R, x;"),
    "approximate_quotient": ("float a, float b",
                             "out[0] = __float_as_uint(ptx::approximate_quotient(a, b));",
                             "div.approx.ftz.f32 R, a, b;"),
    "greater_bf16": ("unsigned a, unsigned b", "out[0] = ptx::greater_bf16(a, b);",
                     "set.gt.u32.bf16x2 R, a, b;"),
    "greater_f16": ("unsigned a, unsigned b", "out[0] = ptx::greater_f16(a, b);",
                    "set.gt.u32.f16x2 R, a, b;"),
    "wide_product": ("unsigned a, unsigned b", "out[0] = ptx::wide_product(a, b) >> 32;",
                     "mul.wide.u32 R, a, b;"),
    "load_shared": ("unsigned at",
                    "unsigned w[4]; ptx::load_shared(w, at); out[0] = w[0]; out[1] = w[1]; "
                    "out[2] = w[2]; out[3] = w[3];", "ld.shared.v4.b32 {0, 1, 2, 3}, [at];"),
    "store_shared": ("unsigned to, unsigned a, unsigned b, unsigned c, unsigned d",
                     "const unsigned w[4] = {a, b, c, d}; ptx::store_shared(to, w);",
                     "st.shared.v4.b32 [to], {a, b, c, d};"),
    "store_pair": ("unsigned to, unsigned a, unsigned b",
                   "const unsigned w[2] = {a, b}; ptx::store_shared(to, w);",
                   "st.shared.v2.b32 [to], {a, b};"),
    "load_matrices": ("unsigned row",
                      "unsigned w[4]; ptx::load_matrices<false>(w, row); out[0] = w[0]; "
                      "out[1] = w[1]; out[2] = w[2]; out[3] = w[3];",
                      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {0, 1, 2, 3}, [row];"),
    "load_transposed": ("unsigned row",
                        "unsigned w[4]; ptx::load_matrices<true>(w, row); out[0] = w[0]; "
                        "out[1] = w[1]; out[2] = w[2]; out[3] = w[3];",
                        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {0, 1, 2, 3}, [row];"),
    "load_two_matrices": ("unsigned row",
                          "unsigned w[2]; ptx::load_matrices<false>(w, row); out[0] = w[0]; "
                          "out[1] = w[1];",
                          "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {0, 1}, [row];"),
    "load_two_transposed": ("unsigned row",
                            "unsigned w[2]; ptx::load_matrices<true>(w, row); out[0] = w[0]; "
                            "out[1] = w[1];",
                            "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {0, 1}, [row];"),
    "load_one_matrix": ("unsigned row",
                        "unsigned w[1]; ptx::load_matrices<false>(w, row); out[0] = w[0];",
                        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {0}, [row];"),
    "load_one_transposed": ("unsigned row",
                            "unsigned w[1]; ptx::load_matrices<true>(w, row); out[0] = w[0];",
                            "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {0}, [row];"),
    "multiply_half": ("unsigned a, unsigned b, unsigned c",
                      "const unsigned l[2] = {a, b}; float s[4] = {1, 2, 3, 4}; "
                      "ptx::multiply_half<bfloat16>(s, l, c); for (int i = 0; i < 4; ++i) "
                      "out[i] = __float_as_uint(s[i]);",
                      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {0, 1, 2, 3}, {a, b}, "
                      "{c}, {0, 1, 2, 3};"),
    "round_tf32": ("float x", "out[0] = __float_as_uint(ptx::round_tf32(x));",
                   "cvt.rn.tf32.f32 R, x;"),
    "split_tf32": ("float a, float b",
                   "const float v[2] = {a, b}; unsigned h[2], l[2]; ptx::split_tf32(v, h, l); "
                   "out[0] = h[0]; out[1] = h[1]; out[2] = l[0]; out[3] = l[1];",
                   "cvt.rn.tf32.f32 R, a;\nmov.b32 rest, "),
    "split_four_tf32": (
        "float a, float b, float c, float d",
        "const float v[4] = {a, b, c, d}; unsigned h[4], l[4]; ptx::split_tf32(v, h, l); "
        "for (int i = 0; i < 4; ++i) out[i] = h[i], out[4 + i] = l[i];",
        "cvt.rn.tf32.f32 R, d;\nmov.b32 rest, "),
    "add_product": (
        "unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f",
        "const unsigned l[4] = {a, b, c, d}; float s[4] = {1, 2, 3, 4}; "
        "ptx::add_product(s, l, e, f); for (int i = 0; i < 4; ++i) out[i] = __float_as_uint(s[i]);",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {p0, p1, p2, p3}, {a, b, c, d}, "
        "{e, f}, {0, 0, 0, 0};"),
    "add_float_product": (
        "float a, float b, float c, float d, float e, float f",
        "const float l[4] = {a, b, c, d}, r[2] = {e, f}; float x[4] = {1, 2, 3, 4}, y[4] = {}, "
        "z[4] = {}; ptx::add_float_product<false>(x, y, z, l, r); for (int i = 0; i < 4; ++i) "
        "out[i] = __float_as_uint(x[i] + y[i] + z[i]);",
        "{p0, p1, p2, p3}, {h0, h1, h2, h3}, {h4, h5}, {0, 0, 0, 0};\nadd.f32"),
    "transpose_matrix": ("unsigned word", "out[0] = ptx::transpose_matrix(word);",
                         "movmatrix.sync.aligned.m8n8.trans.b16 R, word;"),
    "multiply": ("unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f",
                 "const unsigned l[4] = {a, b, c, d}; float s[4] = {1, 2, 3, 4}; "
                 "ptx::multiply<bfloat16>(s, l, e, f); for (int i = 0; i < 4; ++i) "
                 "out[i] = __float_as_uint(s[i]);",
                 "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {0, 1, 2, 3}, {a, b, c, d}, "
                 "{e, f}, {0, 1, 2, 3};"),
    "copy_async": ("unsigned to, const void* from, int exist", "ptx::copy_async(to, from, exist);",
                   "cp.async.cg.shared.global [to], [from], 16, exist;"),
    "copy_async_8": ("unsigned to, const void* from, int exist",
                     "ptx::copy_async<8>(to, from, exist);",
                     "cp.async.ca.shared.global [to], [from], 8, exist;"),
    "wait_for_copies": ("int nothing", "ptx::wait_for_copies<3>();", "cp.async.wait_group 3;"),
    "wait_for_all_copies": ("int nothing", "ptx::wait_for_all_copies();", "cp.async.wait_all;"),
    "commit_copies": ("int nothing", "ptx::commit_copies();", "cp.async.commit_group;"),
    "init_barrier": ("unsigned barrier, int arrivals", "ptx::init_barrier(barrier, arrivals);",
                     "mbarrier.init.shared::cta.b64 [barrier], arrivals;"),
    "publish_barriers": ("int nothing", "ptx::publish_barriers();",
                         "fence.mbarrier_init.release.cluster;"),
    "arrive": ("unsigned barrier", "ptx::arrive(barrier);",
               "mbarrier.arrive.shared::cta.b64 _, [barrier];"),
    "arrive_remote_having_read": (
        "unsigned barrier", "ptx::arrive_remote_having_read(barrier);",
        "mbarrier.arrive.shared::cluster.b64 _, [barrier];"),
    "arrive_expecting": ("unsigned barrier, int bytes", "ptx::arrive_expecting(barrier, bytes);",
                         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;"),
    "expect": ("unsigned barrier, int bytes", "ptx::expect(barrier, bytes);",
               "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [barrier], bytes;"),
    "has_ended": ("unsigned barrier, int parity", "out[0] = ptx::has_ended(barrier, parity);",
                  "mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity;"),
    "wait_for_remote": ("unsigned barrier, int parity", "ptx::wait_for_remote(barrier, parity);",
                        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [barrier], "
                        "parity;"),
    "wait_for": ("unsigned barrier, int parity", "ptx::wait_for(barrier, parity);",
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity;"),
    "wait_for_count": ("const unsigned* counter, unsigned target",
                       "ptx::wait_for_count(counter, target);",
                       "ld.acquire.gpu.global.u32 R, [counter];"),
    "poll_again": ("int* tries", "ptx::poll_again(*tries, 1);", "give_upEi,"),
    "load_bulk": ("unsigned to, const void* from, int bytes, unsigned barrier",
                  "ptx::load_bulk(to, from, bytes, barrier);",
                  "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [from], "
                  "bytes, [barrier];"),
    "load_tile": ("unsigned to, const TensorMap* map, int row, int column, unsigned barrier",
                  "ptx::load_tile(to, *map, row, column, barrier);",
                  "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::"
                  "bytes [to], [map, {column, row}], [barrier];"),
    "load_tile_to_blocks": (
        "unsigned to, const TensorMap* map, int row, int column, unsigned barrier, unsigned blocks",
        "ptx::load_tile_to_blocks(to, *map, row, column, barrier, blocks);",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
        "multicast::cluster [to], [map, {column, row}], [barrier], blocks;"),
    "store_tile": ("const TensorMap* map, int row, int column, unsigned from",
                   "ptx::store_tile(*map, row, column, from);",
                   "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
                   "[map, {column, row}], [from];"),
    "commit_stores": ("int nothing", "ptx::commit_stores();", "cp.async.bulk.commit_group;"),
    "wait_for_reads": ("int nothing", "ptx::wait_for_reads<2>();",
                       "cp.async.bulk.wait_group.read 2;"),
    "wait_for_stores": ("int nothing", "ptx::wait_for_stores<1>();",
                        "cp.async.bulk.wait_group 1;"),
    "cluster_rank": ("int nothing", "out[0] = ptx::cluster_rank();",
                     "mov.u32 R, %cluster_ctarank;"),
    "arrive_at_cluster": ("int nothing", "ptx::arrive_at_cluster();",
                          "barrier.cluster.arrive.release.aligned;"),
    "arrive_at_cluster_relaxed": ("int nothing", "ptx::arrive_at_cluster_relaxed();",
                                  "barrier.cluster.arrive.relaxed.aligned;"),
    "wait_for_cluster": ("int nothing", "ptx::wait_for_cluster();",
                         "barrier.cluster.wait.acquire.aligned;"),
    "in_block": ("unsigned address, unsigned rank", "out[0] = ptx::in_block(address, rank);",
                 "mapa.shared::cluster.u32 R, address, rank;"),
    "load_remote": ("unsigned from", "out[0] = __float_as_uint(ptx::load_remote(from));",
                    "ld.shared::cluster.f32 R, [from];"),
    "send": ("unsigned to, float x, unsigned barrier", "ptx::send(to, x, barrier);",
             "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [to], x, [barrier];"),
    "send4": ("unsigned to, float a, float b, float c, float d, unsigned barrier",
              "ptx::send4(to, make_float4(a, b, c, d), barrier);",
              "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {a, b, c, d}, "
              "[barrier];"),
    "send4_to_block": (
        "unsigned rank, unsigned to, float a, float b, float c, float d, unsigned barrier",
        "ptx::send4_to_block(rank, to, make_float4(a, b, c, d), barrier);",
        "mapa.shared::cluster.u32 there, to, rank;\n"
        "mapa.shared::cluster.u32 counter, barrier, rank;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {a, b, c, d}, "
        "[counter];"),
    "add_release": ("unsigned* counter, unsigned value", "ptx::add_release(counter, value);",
                    "red.release.gpu.global.add.u32 [counter], value;"),
    "load_acquire": ("const unsigned* counter", "out[0] = ptx::load_acquire(counter);",
                     "ld.acquire.gpu.global.u32 R, [counter];"),
    "store_flagged": ("float4* to, float x, float y, float z, float w, unsigned flag_bit",
                      "ptx::store_flagged(to, make_float4(x, y, z, w), flag_bit);",
                      "mov.b64 low, {x, y};\nmov.b64 high, {z, 0};\nmov.b128 all, {low, high};\n"
                      "st.relaxed.gpu.global.b128 [to], all;"),
    "load_flagged": ("const float4* from",
                     "const float4 v = ptx::load_flagged(from); out[0] = __float_as_uint(v.x); "
                     "out[1] = __float_as_uint(v.y); out[2] = __float_as_uint(v.z); "
                     "out[3] = __float_as_uint(v.w);",
                     "ld.relaxed.gpu.global.b128 all, [from];\nmov.b128 {low, high}, all;\n"
                     "mov.b64 {0, 1}, low;\nmov.b64 {2, 3}, high;"),
    "store_flagged_words": ("uint2* to, unsigned x, unsigned y, unsigned flag_bit",
                            "ptx::store_flagged(to, make_uint2(x, y), flag_bit);",
                            "mov.b64 all, {x, 0};\nst.relaxed.gpu.global.b64 [to], all;"),
    "load_flagged_words": ("const uint2* from",
                           "const uint2 v = ptx::load_flagged(from); out[0] = v.x; out[1] = v.y;",
                           "ld.relaxed.gpu.global.b64 all, [from];\nmov.b64 {0, 1}, all;"),
    "check_flag_bit_words": ("unsigned missing, const uint2* from, uint2 v, unsigned flag_bit",
                             "ptx::check_flag_bit(missing, from, v, flag_bit); out[0] = missing;",
                             "lop3.b32 missing, missing, R, flag_bit, 0xf6;"),
    "check_flag_bit": ("unsigned missing, const float4* from, float4 v, unsigned flag_bit",
                       "ptx::check_flag_bit(missing, from, v, flag_bit); out[0] = missing;",
                       "lop3.b32 missing, missing, R, flag_bit, 0xf6;"),
    "fence_proxy_async": ("int nothing", "ptx::fence_proxy_async();",
                          "fence.proxy.async.shared::cta;"),
    "cycles": ("int nothing", "out[0] = ptx::cycles();", "mov.u64 R, %clock64;"),
    "unknown_zero": ("int nothing", "out[0] = ptx::unknown_zero();", "mov.u32 R, 0;"),
    "nanoseconds": ("int nothing", "out[0] = ptx::nanoseconds();", "mov.u64 R, %globaltimer;"),
    "wait_for_kernels": ("int nothing", "ptx::wait_for_kernels();", "griddepcontrol.wait;"),
    "launch_dependents": ("int nothing", "ptx::launch_dependents();",
                          "griddepcontrol.launch_dependents;"),
    "multiply_async": (
        "unsigned a, unsigned b, unsigned c, unsigned d, unsigned long long right, int add",
        "const unsigned l[4] = {a, b, c, d}; float s[32]; ptx::fence_products(); "
        "ptx::multiply_async<64>(s, l, right, add); ptx::commit_products(); "
        "ptx::wait_for_products<0>(); for (int i = 0; i < 32; ++i) "
        "out[i] = __float_as_uint(s[i]);", "{a, b, c, d}, right, p"),
    "multiply_async_f16": (
        "unsigned a, unsigned b, unsigned c, unsigned d, unsigned long long right, int add",
        "const unsigned l[4] = {a, b, c, d}; float s[32]; ptx::fence_products(); "
        "ptx::multiply_async_f16<64, true>(s, l, right, add); ptx::commit_products(); "
        "ptx::wait_for_products<0>(); for (int i = 0; i < 32; ++i) "
        "out[i] = __float_as_uint(s[i]);", "m64n64k16.f32.f16.f16 {"),
    "give_registers": ("int nothing", "ptx::give_registers<40>();",
                       "setmaxnreg.dec.sync.aligned.u32 40;"),
    "take_registers": ("int nothing", "ptx::take_registers<240>();",
                       "setmaxnreg.inc.sync.aligned.u32 240;"),
    "fence_products": ("int nothing", "ptx::fence_products();", "wgmma.fence.sync.aligned;"),
    "commit_products": ("int nothing", "ptx::commit_products();",
                        "wgmma.commit_group.sync.aligned;"),
    "wait_for_products": ("int nothing", "ptx::wait_for_products<1>();",
                          "wgmma.wait_group.sync.aligned 1;"),
}
BOUNDED = ("wait_for", "wait_for_remote", "wait_for_count", "poll_again")
"""What polls: it gives up."""
PRODUCTS = {
    "float": "m16n8k8.row.col.f32.tf32.tf32.f32",
    "float16": "m16n8k16.row.col.f32.f16.f16.f32",
    "float8_e4m3": "m16n8k32.row.col.f32.e4m3.e4m3.f32",
    "float8_e5m2": "m16n8k32.row.col.f32.e5m2.e5m2.f32",
    "float8_e4m3,float8_e5m2": "m16n8k32.row.col.f32.e4m3.e5m2.f32",
    "float8_e5m2,float8_e4m3": "m16n8k32.row.col.f32.e5m2.e4m3.f32",
}
"""What multiply<...> is of each pair of types."""


@cache
def whole_assembly() -> str:
    """The PTX of a kernel for every probe."""
    text = "".join(f'#include "device/{path.name}"\n' for path in DEVICE)
    for name, (parameters, call, _) in PROBES.items():
        text += f'extern "C" __global__ void {name}({parameters}, unsigned* out) {{ {call} }}\n'
    for i, types in enumerate(PRODUCTS):
        text += (f'extern "C" __global__ void product{i}(const unsigned* w, float* out) {{ '
                 f"const unsigned a[4] = {{w[0], w[1], w[2], w[3]}}; float c[4] = {{}}; "
                 f"ptx::multiply<{types}>(c, a, w[4], w[5]); out[0] = c[0]; }}\n")
    names = [*PROBES, *(f"product{i}" for i in range(len(PRODUCTS)))]
    made = compile_source(installed_nvrtc(), text, name="probes.cu", arch="compute_90a",
                          expressions=names)
    return made.cubin.decode(errors="replace")


@cache
def assembly() -> dict[str, str]:
    """The bodies of these kernels."""
    return dict(re.findall(r"\.entry (\w+)\((.*?)(?=\.entry |\Z)", whole_assembly(), re.DOTALL))


def spoken(name: str, body: str) -> str:
    """A kernel's body with the parameters' names for the registers that hold them."""
    names = [word.split()[-1].lstrip("*") for word in PROBES[name][0].split(",")] + ["out"]
    held: dict[str, str] = {}
    lines = []
    for line in body.splitlines():
        line = line.strip()
        loaded = re.match(rf"ld\.param\.\w+\s+(%\w+), \[{name}_param_(\d+)\]", line)
        if loaded:
            held[loaded[1]] = names[int(loaded[2])]
            continue
        moved = re.match(r"(?:mov|cvta\.to\.global|cvt\.u16\.u32)\.?\w*\s+(%\w+), (%\w+);", line)
        if moved and moved[2] in held:
            held[moved[1]] = held[moved[2]]
            continue
        line = re.sub(r"%\w+(?=[^\w.]|$)", lambda m: held.get(m[0], m[0]), line)
        lines.append(re.sub(r"\s+", " ", line))
    return "\n".join(lines)


def expected(text: str) -> str:
    """A pattern for an instruction: R and digits in braces stand for any register, a digit for the
    same one each time."""
    pattern = re.escape(text)
    pattern = re.sub(r"(?<=\\ )R(?=,)", r"%\\w+", pattern)
    for digit in "0123":
        first = True

        def register(match: re.Match[str], digit: str = digit) -> str:
            nonlocal first
            named = f"(?P<r{digit}>%\\w+)" if first else f"(?P=r{digit})"
            first = False
            return match[1] + named

        pattern = re.sub(rf"(\\\{{|,\\ ){digit}(?=,|\\\}})", register, pattern)
    return pattern


def test_the_zero_of_a_product_is_no_register_of_a_sum() -> None:
    """Sums that begin as 0 are the same value as the zero, and are written before it is read."""
    body = assembly()["add_float_product"]
    sums = set(re.findall(r"%\w+", "".join(re.findall(r"f32 \{(%[^}]*)\}", body))))
    (zero,) = set(re.findall(r"%\w+", re.findall(r"f32 \{p0.*\{([^}]*)\};", body)[0]))
    assert len(sums) == 8  # y and z
    assert zero not in sums


def test_nothing_else_has_inline_ptx() -> None:
    for path in SOURCES.rglob("*.cu*"):
        if path.parent.name != "device" and path.suffix in (".cu", ".cuh"):
            assert not re.search(r"\basm\b", CODE.sub("", path.read_text())), path.name


def test_every_primitive_with_ptx_is_probed() -> None:
    """By name; the products' text is put together by macros, of their types."""
    probed = set().union(*(re.findall(r"ptx::(\w+)", call) for _, call, _ in PROBES.values()))
    for path in DEVICE:
        text = CODE.sub("", path.read_text())
        for match in re.finditer(r"__forceinline__ [\w ]+?\*? ?(\w+)\(", text):
            rest = text[match.end() : text.find("}\n", match.end())]
            if "asm" in rest and match[1] not in ("multiply_async", "dynamic_shared", "settle"):
                assert match[1] in probed or match[1] in (
                    "multiply_f16", "multiply_from_zero"), match[1]


@pytest.mark.parametrize("name", PROBES)
def test_is_its_instruction(name: str) -> None:
    text = spoken(name, assembly()[name])
    assert re.search(expected(PROBES[name][2]), text), text


@pytest.mark.parametrize("name", BOUNDED)
def test_what_polls_ends_in_a_trap(name: str) -> None:
    """A kernel that waits for what never comes fails, and does not occupy the GPU for good. (On the
    CPU emulator no thread can go on then, long before.)"""
    body = assembly()[name].partition(".func")[0]
    gives_up = re.search(r"\.func \w*give_up\w*\([^{}]*\)\s*\{([^}]*\{[^}]*\})*[^}]*trap;",
                         whole_assembly())
    assert "trap;" in body or ("give_up" in body and gives_up)
    assert re.search(r"setp\.\w+\.\w+\s+%\w+, %\w+, \d{6,};", body), body  # the number of tries


@pytest.mark.parametrize("types", PRODUCTS)
def test_products_are_of_their_types(types: str) -> None:
    body = assembly()[f"product{list(PRODUCTS).index(types)}"]
    assert f"mma.sync.aligned.{PRODUCTS[types]} " in body
