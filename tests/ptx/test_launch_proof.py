"""What the proof for programmatic launches makes of each kind of instruction, as the PTX ISA
defines them, of where an address comes from, and of functions. The PTX is written by hand: NVRTC
makes few of these."""

from __future__ import annotations

from itertools import product

import pytest

from rawnn.cuda.compiling.launch_proof import Proof, prove
from rawnn.cuda.compiling.signature import parse_kernels

SIGNATURE = parse_kernels(
    'extern "C" __global__ void k(const float* x, float* y, int n, long long far) {}')["k"]
REGISTERS = """
ld.param.u64 %rd1, [k_param_0];
ld.param.b64 %rd2, [k_param_1];
ld.param.u32 %r1, [k_param_2];
ld.param.u64 %rd9, [k_param_3];
"""
"""x and y in %rd1 and %rd2, numbers in %r1 and %rd9."""
SHARED = ".shared .align 16 .b8 s[64];\n.local .align 8 .b8 depot[16];\n"


def proof(ahead: str, functions: str = "", behind: str = "") -> Proof:
    return prove(f"{functions}\n.visible .entry k(\n.param .u64 k_param_0\n)\n{{\n{SHARED}"
                 f"{REGISTERS}{ahead}\ngriddepcontrol.wait;\n{behind}\nret;\n}}\n", "k", SIGNATURE)


def early(ahead: str, functions: str = "") -> tuple[str, ...] | None:
    """The pointers that are read ahead of the wait; None where the kernel may not start early."""
    found = proof(ahead, functions)
    assert found.waits == (not found.reason)
    assert found.waits or not found.early
    return found.early if found.waits else None


READS = [
    "ld.global.f32 %f1, [%rd1];", "ld.f32 %f1, [%rd1+8];", "ld.global.nc.v4.f32 {%f1,%f2,%f3,%f4}, "
    "[%rd1];", "ldu.global.f32 %f1, [%rd1];", "ld.volatile.global.u32 %r5, [%rd1];",
    "ld.relaxed.gpu.u32 %r5, [%rd1];", "@%p1 ld.global.u8 %r5, [%rd1];",
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r5,%r6}, [%rd1], %r1;",
    "cp.async.ca.shared.global [%r7], [%rd1], 16;",
    "cp.async.cg.shared::cta.global [%r7], [%rd1], 16;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd1], 16, [%r8];",
    "prefetch.global.L1 [%rd1];", "prefetchu.L1 [%rd1];",
]
HARMLESS = [
    "ld.shared.f32 %f1, [%r7];", "ld.shared::cluster.f32 %f1, [%r7];", "ld.local.f32 %f1, [%rd7];",
    "ld.const.f32 %f1, [%rd7];", "st.shared.f32 [%r7], %f1;", "st.local.f32 [%rd7], %f1;",
    "atom.shared.add.u32 %r5, [%r7], 1;", "red.shared::cta.add.u32 [%r7], 1;",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r7], %r1, [%r8];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r7], 1, "
    "[%r8];",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r7], [%r6], 16, "
    "[%r8];",
    "cp.async.commit_group;", "cp.async.wait_all;",
    "cp.async.mbarrier.arrive.noinc.shared.b64 [%r7];",
    "prefetch.global.L2 [%rd1];", "cp.async.bulk.prefetch.L2.global [%rd1], 64;",
    "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r5}, {%r6}, {%f1};",
    "wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%r5}, [%r7], 16;",
    "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r7], {%f1}, 16;",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5,%r6,%r7,%r8}, [%r9];", "bar.sync 0;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r7], %r1;", "fence.proxy.async;",
    "add.s64 %rd3, %rd1, 4;", "trap;",
]
REFUSED = [
    "st.global.f32 [%rd2], %f1;", "st.f32 [%rd2], %f1;", "st.volatile.global.f32 [%rd2], %f1;",
    "@%p1 st.global.v2.f32 [%rd2+8], {%f1,%f2};", "atom.global.add.u32 %r5, [%rd2], 1;",
    "atom.add.u32 %r5, [%rd2], 1;", "red.global.add.f32 [%rd2], %f1;", "red.add.f32 [%rd2], %f1;",
    "multimem.red.add.f32 [%rd2], %f1;", "discard.global.L2 [%rd2], 128;",
    "applypriority.global.L2::evict_normal [%rd2], 128;",
    "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd2], {%f1}, 16;",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r7], 16;",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd2], [%r7], 16;",
    "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%rd2, {%r1}], [%r7];",
    "tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [t, {%r1}];",
    "tld4.r.2d.v4.f32.f32 {%f1}, [t, {%f1,%f2}];",
    "suld.b.1d.b32.trap {%r5}, [t, {%r1}];", "sust.b.1d.b32.trap [t, {%r1}], {%r5};",
    "sured.b.add.1d.u32.trap [t, {%r1}], %r5;",
    "tensormap.replace.tile.global_address.global.b1024.b64 [%rd2], %rd1;",
    "ld.global.f32 %f1, [%rd9];", "ld.global.f32 %f1, [elsewhere];", "ld.global.f32 %f1, [4096];",
    "ret;", "exit;", "@%p1 ret;", "call.uni (%r5), %rd1, (%r1);",
]


@pytest.mark.parametrize("instruction", READS)
def test_reads_through_a_pointer_are_named(instruction: str) -> None:
    assert early(instruction) == ("x",)
    assert early(instruction.replace("%rd1]", "%rd2]").replace("%rd1+8", "%rd2")) == ("y",)


@pytest.mark.parametrize("instruction", HARMLESS)
def test_what_touches_no_global_memory_is_harmless(instruction: str) -> None:
    assert early(instruction) == ()


@pytest.mark.parametrize("instruction", REFUSED)
def test_writes_and_accesses_that_cannot_be_named_are_refused(instruction: str) -> None:
    assert early(instruction) is None
    if "ret" not in instruction and "exit" not in instruction:
        assert proof("", behind=instruction) == Proof(True, False, True, (), "")


MOVES = [
    "mov.u64 %rd3, %rd1;", "cvta.to.global.u64 %rd3, %rd1;", "add.s64 %rd3, %rd1, %rd9;",
    "mad.wide.s32 %rd3, %r1, 4, %rd1;", "selp.b64 %rd3, %rd1, 0, %p1;", "@%p1 mov.u64 %rd3, %rd1;",
    "shfl.sync.idx.b32 %rd3|%p1, %rd1, 0, 31, -1;",
    "mov.b64 {%r5,%r6}, %rd1; mov.b64 %rd3, {%r5,%r6};",
    "and.b64 %rd3, %rd1, -16;", "mov.u64 %rd4, %rd1; mov.u64 %rd5, %rd4; mov.u64 %rd3, %rd5;",
]


@pytest.mark.parametrize("moves", MOVES)
def test_an_address_is_followed_through_every_instruction(moves: str) -> None:
    assert early(f"{moves} ld.global.f32 %f1, [%rd3];") == ("x",)
    assert early(f"{moves} selp.b64 %rd6, %rd3, %rd2, %p2; ld.f32 %f1, [%rd6];") == ("x", "y")
    assert early(f"{moves} st.global.f32 [%rd3], %f1;") is None


def test_an_address_is_followed_round_a_loop() -> None:
    loop = ("mov.u64 %rd3, %rd1; L: ld.global.f32 %f1, [%rd3]; mov.u64 %rd3, %rd4; "
            "mov.u64 %rd4, %rd2; @%p1 bra L;")
    assert early(loop) == ("x", "y")


LOADS = [f"{load} %rd3, [{where}];" for load, where in product(
    ("ld.global.u64", "ld.global.s64", "ld.global.b64", "ldu.global.b64", "ld.global.nc.u64"),
    ("%rd1",))] + [
    "ld.global.v2.b64 {%rd3,%rd4}, [%rd1];", "ld.global.b128 %rd3, [%rd1];",
    "ld.shared.u64 %rd3, [%r7];",
    "atom.shared.exch.b64 %rd3, [%r7], %rd1;", "ld.param.b64 %rd3, [retval0];",
]


@pytest.mark.parametrize("load", LOADS)
def test_a_loaded_address_is_nobodys(load: str) -> None:
    assert early(load) is not None
    assert early(f"{load} ld.global.f32 %f1, [%rd3];") is None
    assert early(f"{load} add.s64 %rd5, %rd3, %rd1; ld.global.f32 %f1, [%rd5];") is None


BY_VALUE = parse_kernels(
    'struct P { int a; int b; };\nstruct Q { float* p; long long n; };\n'
    'extern "C" __global__ void k(const float* x, P p, Q q) {}')["k"]


@pytest.mark.parametrize(("place", "early"), [
    ("k_param_1", ("x",)), ("k_param_1+4", ("x",)), ("k_param_2", None), ("k_param_2+8", None),
    ("elsewhere", None), ("elsewhere+4", None)])
def test_a_member_of_a_parameter_is_an_index_unless_addresses_are_next_to_it(
        place: str, early: tuple[str, ...] | None) -> None:
    found = prove(f""".visible .entry k(.param .u64 k_param_0) {{
        ld.param.u64 %rd1, [k_param_0];
        ld.param.b64 %rd2, [{place}];
        add.s64 %rd3, %rd1, %rd2;
        ld.global.f32 %f1, [%rd3];
        griddepcontrol.wait;
        ret;
        }}""", "k", BY_VALUE)
    assert (found.early if found.waits else None) == early


@pytest.mark.parametrize("load", ["ld.global.u32 %r5, [%rd1];", "ld.global.s16 %r5, [%rd1];",
                                  "ld.global.v2.u32 {%r5,%r6}, [%rd1];"])
def test_a_loaded_number_may_be_an_index(load: str) -> None:
    assert early(f"{load} mad.wide.s32 %rd3, %r5, 4, %rd2; ld.f32 %f1, [%rd3];") == ("x", "y")


@pytest.mark.parametrize(("address", "on_chip"), [
    ("mov.u64 %rd3, s;", True), ("cvta.shared.u64 %rd3, s;", True), ("mov.b64 %rd3, depot;", True),
    ("mov.u64 %rd3, s; mad.wide.s32 %rd3, %r1, 4, %rd3;", True),
    ("mov.u64 %rd3, s; selp.b64 %rd3, %rd3, %rd2, %p1;", False), ("mov.u64 %rd3, other;", False),
])
def test_generic_accesses_to_shared_and_local_memory(address: str, on_chip: bool) -> None:
    assert (early(f"{address} st.f32 [%rd3], %f1;") == ()) == on_chip
    read = early(f"{address} ld.f32 %f1, [%rd3];")
    assert read == (() if on_chip else None if "other" in address else ("y",))


def function(body: str, name: str = "f") -> str:
    return (f".func (.param .b32 retval0) {name}(\n.param .b32 {name}_param_0\n)\n"
            f"{{\n{body}\nret;\n}}\n")


CALL = "call.uni (retval0), f, (param0);"


@pytest.mark.parametrize(("functions", "is_harmless"), [
    (function("add.f32 %f1, %f1, %f1; st.shared.f32 [%r7], %f1;"), True),
    (function("ld.global.f32 %f1, [%rd1];"), False), (function("st.f32 [%rd1], %f1;"), False),
    (function("griddepcontrol.wait;"), False),
    (function("griddepcontrol.launch_dependents;"), False),
    (function("call.uni (r), g, (p);") + function("add.f32 %f1, %f1, %f1;", "g"), True),
    (function("call.uni (r), g, (p);") + function("st.global.f32 [%rd1], %f1;", "g"), False),
    (function("call.uni (r), g, (p);"), False), (function("call.uni (r), f, (p);"), False),
    (function("call.uni (r), vprintf, (p);"), True),
    (function("call.uni __assertfail, (p);"), True),
    (function("", "ff"), False), ("", False),
])
def test_a_called_function_counts_with_all_that_it_calls(functions: str, is_harmless: bool) -> None:
    assert early(CALL, functions) == (() if is_harmless else None)
    if not is_harmless:
        assert "calls f ahead of griddepcontrol.wait" in proof(CALL, functions).reason
    assert early("call.uni (retval0), vprintf, (param0);") == ()


TRIGGER = "griddepcontrol.launch_dependents;"


@pytest.mark.parametrize(("ahead", "behind", "triggers", "ordered"), [
    ("", "", False, True), ("", TRIGGER, True, True), (TRIGGER, "", True, False),
    (TRIGGER, TRIGGER, True, False), (f"@%p1 bra L; {TRIGGER} L:", "", True, False),
    ("@%p1 griddepcontrol.wait;", TRIGGER, True, True),
    (f"@%p1 griddepcontrol.wait; {TRIGGER}", "", True, False),
])
def test_when_a_kernel_triggers(ahead: str, behind: str, triggers: bool, ordered: bool) -> None:
    assert proof(ahead, behind=behind) == Proof(True, triggers, ordered, (), "")


@pytest.mark.parametrize(("ordered", "starts_early", "allowed"), [
    (True, True, True), (True, False, True), (False, False, True), (False, True, False)])
def test_who_may_read_what_was_written_before_a_kernel(ordered: bool, starts_early: bool,
                                                       allowed: bool) -> None:
    assert Proof(True, True, ordered).allows_early_reads(starts_early) is allowed


@pytest.mark.parametrize(("first", "second", "found"), [
    ("ld.global.f32 %f1, [%rd1];", "ld.global.f32 %f1, [%rd2];", ("x", "y")),
    ("bar.sync 0;", "ld.global.f32 %f1, [%rd2];", ("y",)), ("trap;", "bar.sync 0;", ()),
    ("st.global.f32 [%rd2], %f1;", "bar.sync 0;", None), ("bar.sync 0;", "ret;", None),
])
def test_a_jump_by_a_table_goes_to_each_of_its_targets_alone(
        first: str, second: str, found: tuple[str, ...] | None) -> None:
    ahead = (f"ts: .branchtargets $A, $B;\nbrx.idx %r1, ts;\nst.global.f32 [%rd2], %f1;\n"
             f"$A: {first}\nbra.uni $END;\n$B: {second}\n$END:")
    assert early(ahead) == found
    assert early(ahead.replace("brx", "@%p1 brx")) is None  # where it goes on, it writes
