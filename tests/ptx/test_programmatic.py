"""What PTX proves of kernels that wait for their producers, and of those that do it wrong."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from rawnn.common.errors import CompileError
from rawnn.cuda.compiling.launch_proof import Proof, prove
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.ptx import SOURCES
from tests import requires

HEAD = '#include "primitives/pdl.cuh"\n'
DECLARED = "(const float* __restrict__ x, const int* __restrict__ cursor, float* y, int n)"


@cache
def nvrtc() -> Any:
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    bindings = Nvrtc()
    try:
        bindings.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"needs NVRTC: {error}")
    return bindings


def compiled(source: str, expressions: list[str], arch: str = "sm_90") -> tuple[str, list[str]]:
    """PTX with RAWNN_PDL defined, and the mangled names."""
    library = nvrtc()
    _, program = library.nvrtcCreateProgram(source, "kernels.cu")
    for expression in expressions:
        library.nvrtcAddNameExpression(program, expression)
    result = library.nvrtcCompileProgram(program, [
        f"-arch={arch}", "-std=c++17", "-DRAWNN_PDL", f"-I{SOURCES}"])
    assert not result[0], library.nvrtcGetProgramLog(program)[1]
    names = [library.nvrtcGetLoweredName(program, e)[1] for e in expressions]
    text = library.nvrtcGetPTX(program)[1].decode()
    library.nvrtcDestroyProgram(program)
    return text, names


def proof(body: str, ahead: str = "", declared: str = DECLARED) -> Proof:
    source = f"{HEAD}{ahead}\n__global__ void k{declared} {{ {body} }}"
    text, (name,) = compiled(source, ["k"])
    return prove(text, name, parse_kernels(source)["k"])


STORE = "y[threadIdx.x] = x[threadIdx.x] + n;"


@pytest.mark.parametrize(("body", "triggers", "ordered"), [
    (f"pdl_wait(); {STORE}", False, True),
    (f"pdl_wait(); pdl_trigger(); {STORE}", True, True),
    (f"pdl_trigger(); pdl_wait(); {STORE}", True, False),
    (f"pdl_wait(); if (threadIdx.x >= n) return; {STORE} pdl_trigger();", True, True),
    (f"__shared__ float s[32]; s[threadIdx.x] = n; __syncthreads(); pdl_wait();"
     f" {STORE} y[40] = s[5];", False, True),
    (f"if (n > 3) {{ pdl_wait(); y[1] = 0; }} else {{ pdl_wait(); {STORE} }}", False, True),
    (f"float s = n; for (int i = 0; i < n; ++i) s = s * s + 1; pdl_wait(); {STORE} y[7] = s;",
     False, True),
    (f"if (n < 0) __trap(); pdl_wait(); {STORE}", False, True),
    ('pdl_wait(); if (n == 7) printf("%d", n);', False, True),
    (f'if (n == 7) printf("%d", n); pdl_wait(); {STORE}', False, True),
])
def test_kernels_that_may_begin_early(body: str, triggers: bool, ordered: bool) -> None:
    assert proof(body) == Proof(True, triggers, ordered, (), "")


@pytest.mark.parametrize(("body", "reason"), [
    (STORE, "ahead of griddepcontrol.wait"),
    (f"pdl_trigger(); {STORE}", "writes global memory"),
    (f"if (threadIdx.x >= n) return; pdl_wait(); {STORE}", "ends it ahead|ends without"),
    (f"if (n > 3) pdl_wait(); {STORE}", "writes global memory|ends"),
    (f"y[0] = 1; pdl_wait(); {STORE}", "writes global memory ahead of griddepcontrol.wait: st"),
    (f"atomicAdd(y, 1.0f); pdl_wait(); {STORE}", "writes global memory .* (atom|red)"),
    (f"const float* p = *reinterpret_cast<float* const*>(x); const float v = *p; pdl_wait(); "
     f"{STORE} y[9] = v;", "an address that is no parameter's"),
    (f"const float v = table[n]; pdl_wait(); {STORE} y[9] = v;", "no parameter's"),
    (f"other(y, n); pdl_wait(); {STORE}", "calls .*other.* ahead"),
    ("while (n != 5) { if (n == 4) break; } " + STORE, "writes"),
    (f"for (int i = 0; i < n; ++i) {{ pdl_wait(); }} {STORE}", "writes|ends"),
])
def test_kernels_that_may_not(body: str, reason: str) -> None:
    ahead = ("__device__ float table[32];\n"
             "__device__ __noinline__ void other(float* y, int n) { y[n] = 1; }")
    found = proof(body, ahead)
    assert not found.waits
    assert re.search(reason, found.reason), found.reason


def test_calls_that_touch_no_global_memory() -> None:
    ahead = "__device__ __noinline__ float cube(float v) { return v * v * v; }"
    assert proof(f"const float v = cube(n); pdl_wait(); {STORE} y[8] = v;", ahead).waits


@pytest.mark.parametrize(("body", "early"), [
    (f"const int s = cursor[0]; pdl_wait(); {STORE} y[s] = 0;", ("cursor",)),
    (f"const float v = x[cursor[threadIdx.x] * n]; pdl_wait(); {STORE} y[n] = v;",
     ("cursor", "x")),
    (f"const float* p = n > 3 ? x : y; const float v = p[n]; pdl_wait(); {STORE} y[n] = v;",
     ("x", "y")),
    (f"const float v = __ldg(x + n); pdl_wait(); pdl_trigger(); {STORE} y[n] = v;", ("x",)),
    ('asm volatile("prefetch.global.L2 [%0];" :: "l"(x)); pdl_wait(); ' + STORE, ()),
    ('asm volatile("prefetch.global.L1 [%0];" :: "l"(x)); pdl_wait(); ' + STORE, ("x",)),
])
def test_what_is_read_ahead_of_the_wait(body: str, early: tuple[str, ...]) -> None:
    found = proof(body)
    assert (found.waits, found.early) == (True, early)


@pytest.mark.parametrize(("instruction", "early"), [
    ('"cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(at), "l"(x)', ("x",)),
    ('"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%0];"'
     ' :: "r"(at), "l"(x)', ("x",)),
    ('"cp.async.bulk.global.shared::cta.bulk_group [%1], [%0], 16;" :: "r"(at), "l"(y)', None),
    ('"cp.async.commit_group;" ::', ()), ('"cp.async.wait_group 0;" ::', ()),
    ('"cp.async.bulk.commit_group;" ::', ()), ('"fence.proxy.async;" ::', ()),
    ('"mbarrier.init.shared.b64 [%0], 1;" :: "r"(at)', ()),
    ('"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %0, [%0];"'
     ' :: "r"(at)', ()),
    ('"cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], '
     '[%1, {%2}], [%0];" :: "r"(at), "l"(x), "r"(n)', None),
    ('"red.global.add.f32 [%0], 0f3F800000;" :: "l"(y)', None),
    ('"{ .reg .pred p; again: setp.eq.s32 p, %0, 0; @p bra done; bra again; done: }" :: "r"(n)',
     ()),
    ('"{ .reg .pred p; setp.eq.s32 p, %0, 0; @p st.global.b32 [%1], %0; }" :: "r"(n), "l"(y)',
     None),
    ('"prefetch.tensormap [%0];" :: "l"(x)', ()),
])
def test_instructions_ahead_of_the_wait(instruction: str, early: tuple[str, ...] | None) -> None:
    found = proof(f"__shared__ alignas(16) float s[8]; const unsigned at = "
                  f"static_cast<unsigned>(__cvta_generic_to_shared(s)); "
                  f'asm volatile({instruction} : "memory"); pdl_wait(); {STORE}')
    assert found.waits == (early is not None), found.reason
    assert found.early == (early or ())


MAPPED = ("(const float* x, float* y, int n, const __grid_constant__ TensorMap x_map, "
          "const __grid_constant__ TensorMap y_map, const __grid_constant__ TensorMap other_map, "
          "TensorMap copied_map)")
MAPS = """
struct alignas(64) TensorMap { unsigned long long words[16]; };
__device__ TensorMap global_map;
__device__ __forceinline__ void load(unsigned at, const TensorMap& map, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3}], [%4];" :: "r"(at + 1024), "l"(&map), "r"(32), "r"(row),
               "r"(at) : "memory");
}
__device__ __forceinline__ void store(const TensorMap& map, int row, unsigned at) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
               :: "l"(&map), "r"(32), "r"(row), "r"(at) : "memory");
}
__device__ __noinline__ void away(unsigned at, const TensorMap& map) { load(at, map, 0); }
"""
SHARED = ("extern __shared__ float s[]; "
          "const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(s));")


def mapped(body: str) -> Proof:
    return proof(f"{SHARED} {body} y[n] = s[3];", MAPS, MAPPED)


@pytest.mark.parametrize(("ahead", "early"), [
    ("load(at, x_map, 0);", ("x",)),
    ("load(at, x_map, n); load(at, y_map, n * n);", ("x", "y")),
    ("load(at, n > 3 ? x_map : y_map, 0);", ("x", "y")),
    ("const TensorMap* map = &x_map; for (int i = 0; i < n; ++i) { load(at, *map, i); "
     "if (i == 5) map = &y_map; }", ("x", "y")),
    # Coordinates may come from anywhere.
    ("load(at, x_map, static_cast<int>(reinterpret_cast<const long long*>(x)[n]));", ("x",)),
    ('asm volatile("prefetch.tensormap [%0];" :: "l"(&y_map) : "memory");', ()),
    ('asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %1}];" '
     ':: "l"(&y_map), "r"(n) : "memory");', ()),
])
def test_boxes_are_reads_of_the_operand(ahead: str, early: tuple[str, ...]) -> None:
    assert mapped(f"{ahead} pdl_wait();") == Proof(True, False, True, early, "")


def test_behind_the_wait_boxes_may_be_copied_at_will() -> None:
    body = "load(at, copied_map, 0); store(y_map, 3, at); away(at, global_map);"
    assert mapped(f"load(at, x_map, 1); pdl_wait(); {body}").early == ("x",)
    assert mapped(f"pdl_wait(); {body}") == Proof(True, False, True, (), "")


@pytest.mark.parametrize(("ahead", "reason"), [
    ("store(y_map, 0, at);", "writes global memory"),
    ("if (n == 3) store(y_map, 0, at);", "writes global memory"),
    ("store(copied_map, 0, at);", "writes global memory"),
    ('asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, '
     '{%1, %1}], [%1];" :: "l"(&y_map), "r"(at) : "memory");', "writes global memory"),
    ("load(at, other_map, 0);", "no parameter's"),  # the operand `other` is not there
    ("load(at, copied_map, 0);", "no parameter's"),  # a copy in local memory
    ("load(at, global_map, 0);", "no parameter's"),
    ("load(at, n > 3 ? x_map : global_map, 0);", "no parameter's"),
    ("load(at, *reinterpret_cast<const TensorMap*>(x), 0);", "no parameter's"),
    ("load(at, **reinterpret_cast<TensorMap* const*>(x), 0);", "no parameter's"),
    ("load(at, *reinterpret_cast<const TensorMap*>(s), 0);", "no parameter's"),
    ("load(at, *reinterpret_cast<const TensorMap*>(x_map.words[2]), 0);", "no parameter's"),
    ("s[1] = *reinterpret_cast<const float*>(x_map.words[2]);", "no parameter's"),
    ("s[1] = *reinterpret_cast<const float*>(&x_map);", None),
    ("away(at, x_map);", "calls .*away"),
])
def test_boxes_that_cannot_be_followed(ahead: str, reason: str | None) -> None:
    found = mapped(f"{ahead} pdl_wait();")
    if reason is None:  # from the space of parameters: no global memory
        assert found == Proof(True, False, True, (), "")
        return
    assert not found.waits
    assert re.search(reason, found.reason), found.reason


def test_generic_accesses_to_shared_memory_count_as_none() -> None:
    body = ('__shared__ float s[32]; asm volatile("st.f32 [%0], 0f00000000;" :: "l"(s + n)); '
            f"pdl_wait(); {STORE}")
    assert proof(body) == Proof(True, False, True, (), "")


def test_a_switch_is_followed_to_every_case() -> None:
    cases = "".join(f"case {i}: {'pdl_wait();' if i != 5 else ''} y[{i * 3}] = {i * i}; break;"
                    for i in range(12))
    found = proof(f"switch (n) {{ {cases} default: pdl_wait(); }}")
    assert "writes global memory" in found.reason
    assert proof(f"switch (n) {{ {cases.replace('y[15]', 'pdl_wait(); y[15]')}"
                 f" default: pdl_wait(); }}").waits


def test_before_sm_90_nothing_waits() -> None:
    source = f"{HEAD}__global__ void k{DECLARED} {{ pdl_wait(); pdl_trigger(); {STORE} }}"
    text, (name,) = compiled(source, ["k"], "sm_80")
    found = prove(text, name, parse_kernels(source)["k"])
    assert not found.waits
    assert not found.triggers


ENTRY = ".visible .entry k(\n.param .u64 k_param_0\n)\n{{\n{}\n}}\n"
ONE = parse_kernels('extern "C" __global__ void k(float* x) {}')["k"]


@pytest.mark.parametrize(("body", "waits"), [
    ("griddepcontrol.wait; ret;", True),
    ("@%p1 griddepcontrol.wait; ret;", False),
    ("@%p1 ret; griddepcontrol.wait; ret;", False),
    ("griddepcontrol.wait;", True), ("", False),
    ("/* griddepcontrol.wait; */ ret;", False), ("// griddepcontrol.wait;\nret;", False),
    ("/* a;\n griddepcontrol.wait;\n */ ret;", False),
    ("/* a;\n bra L;\n */ griddepcontrol.wait; ret;", True),
    ("/* a */ griddepcontrol.wait; /* b */ ret;", True),
    (".loc 1 2 3\n.file 1 \"a.cu\"\ngriddepcontrol.wait; ret;", True),
    ("@!%p1 bra L; griddepcontrol.wait; L: ret;", False),
    ("bra.uni L; L: griddepcontrol.wait; exit;", True),
    ("{ L: griddepcontrol.wait; } bra M; { L: ret; } M: ret;", True),
    ("call.uni (r), %rd1, (p); griddepcontrol.wait; ret;", False),
    ("call.uni gone, (p); griddepcontrol.wait; ret;", False),
    ("tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}]; griddepcontrol.wait; ret;", False),
])
def test_paths(body: str, waits: bool) -> None:
    assert prove(ENTRY.format(body), "k", ONE).waits == waits


@pytest.mark.parametrize(("text", "name", "sentence"), [
    (ENTRY.format("ret;"), "other", "the PTX has no .entry other"),
    (".entry k( ) { ret;", "k", "do not close"),
    (ENTRY.format("bra L; ret;"), "k", "branches to L, which is not there"),
    (ENTRY.format("ret"), "k", "cannot read the PTX: 'ret"),
])
def test_ptx_that_cannot_be_read(text: str, name: str, sentence: str) -> None:
    with pytest.raises(CompileError, match=re.escape(sentence)):
        prove(text, name, ONE)


def test_what_was_not_looked_at_is_not_trusted() -> None:
    assert not Proof().waits
    assert Proof().reason
