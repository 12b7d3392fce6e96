"""What a kernel was compiled with: mangled names, the PTX's `.param` lines, and both from NVRTC."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.compiling.compiled_signature import Declarations, _agree, annotated, annotation
from rawnn.cuda.compiling.mangled import read_variable
from rawnn.cuda.compiling.probe import (
    CompiledKernel,
    CompiledParameter,
    compiled_kernel,
    packed,
    probe_of,
    probed,
    unpacked,
)
from rawnn.cuda.compiling.signature import parse_kernels
from tests import requires

LONG = ("_ZN11rawnn_probe4seenINS_4ListIJPPfPKfd6ParamshPi4dim37__half2Pv6float2N4cuda3std3__47"
        "complexIdEE4PairIS6_EPSI_P10IncompletebaxmPKS2_PFiiEPViN1a1b1CILi3ELb1EEEEEEEE")


def compiled(text: str, *names: str, cache: CubinCache | None = None) -> Compiled:
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    return compile_source(Nvrtc, text, name="kernel.cu", arch="sm_90", expressions=names,
                          probed=True, cache=cache)


def types(kernel: CompiledKernel) -> list[tuple[str, bool, bool]]:
    return [(p.ctype, p.pointer, p.const) for p in kernel.parameters]


def test_a_mangled_name_says_the_types() -> None:
    found = read_variable(LONG).arguments[0].arguments
    assert [str(each) for each in found] == [
        "float**", "const float*", "double", "Params", "unsigned char", "int*", "dim3", "__half2",
        "void*", "float2", "cuda::std::__4::complex<double>", "Pair<Params>", "Pair<Params>*",
        "Incomplete*", "bool", "signed char", "long long", "unsigned long", "float* const*",
        "function*", "int*", "a::b::C<3, true>"]


@pytest.mark.skipif(not shutil.which("c++filt"), reason=requires.tool("c++filt", "binutils"))
def test_other_demanglers_read_the_same() -> None:
    demangled = subprocess.run(["c++filt", LONG], capture_output=True, text=True, check=True).stdout
    inner = demangled[demangled.index("List<") + 5:].rstrip("> \n")
    for word in ("float**", "Params", "dim3", "Pair<Params>*", "a::b::C<3, true"):
        assert word in inner
    assert inner.count(",") - 1 == len(read_variable(LONG).arguments[0].arguments) - 1


TYPES = """
struct Params {}; template <typename T> struct Pair {}; template <typename...> struct List {};
namespace a { struct D {}; namespace b { template <int N, bool B> struct C {}; } }
template <typename T> char seen = 0;
"""
SCALARS = ("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int",
           "unsigned int", "long", "unsigned long", "long long", "unsigned long long", "float",
           "double")


def random_type(generator: np.random.Generator, depth: int = 4) -> str:
    """A type in C++ as CType writes it."""
    kind = int(generator.integers(0, 8)) if depth else 0
    if kind < 3:
        number, flag = int(generator.integers(-40, 40)), generator.choice(["true", "false"])
        return str(generator.choice([*SCALARS, "Params", "a::D", f"a::b::C<{number}, {flag}>"]))
    inner = random_type(generator, depth - 1)
    if kind == 3:
        return f"Pair<{inner}>"
    if kind == 4:
        more = ", ".join(random_type(generator, 1) for _ in range(2))
        return f"List<{inner}, {more}>"
    if kind < 7:
        return f"{inner}*"
    return f"{inner} const*" if inner.endswith("*") else f"const {inner}*"


@requires.GXX
@pytest.mark.skipif(not shutil.which("nm"), reason=requires.tool("nm", "binutils"))
def test_names_that_a_compiler_mangles_say_its_types(tmp_path: Path) -> None:
    """Lists of so many types that later ones refer to earlier ones by numbers of two digits."""
    generator = np.random.default_rng(8)
    lists = [f"List<{', '.join(random_type(generator) for _ in range(n))}>"
             for n in (1, 3, 10, 20, 40, 40)]
    source, built = tmp_path / "types.cpp", tmp_path / "types.o"
    source.write_text(TYPES + "".join(f"template char seen<{each}>;\n" for each in lists))
    subprocess.run(["g++", "-std=c++17", "-c", source, "-o", built], check=True)
    listed = subprocess.run(["nm", built], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in listed.splitlines() if "_Z4seen" in line]
    assert any(re.search("S[1-9A-Z][0-9A-Z]_", name) for name in names)
    assert {str(read_variable(name).arguments[0]) for name in names} == set(lists)


@pytest.mark.parametrize("name", ["plain", "_ZN1a", "_ZN1a4seenIS9_E", "_Z4seenIUlvE_E", ""])
def test_what_is_no_such_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_variable(name)


PTX = """
.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0
)
;
.func  (.param .b32 func_retval0) meets(
	.param .b64 meets_param_0
)
{
	mov.u32 %r1, %envreg2;
	ret;
}
.visible .entry k(
	.param .u64 .ptr .align 1 k_param_0,
	.param .align 8 .b8 k_param_1[24],
	.param .u8 k_param_2
)
{
	{ // callseq 0, 0
	call.uni (retval0), meets, (param0);
	} // callseq 0
	ret;
}
.entry other()
{
	ret;
}
"""


def test_ptx_says_sizes_and_who_waits_for_the_grid() -> None:
    found = compiled_kernel(PTX, "k", "")
    assert found is not None
    assert [(p.size, p.align) for p in found.parameters] == [(8, 8), (24, 8), (1, 1)]
    assert {p.ctype for p in found.parameters} == {""}  # of a probe that says nothing
    assert found.waits_for_grid
    other = compiled_kernel(PTX, "other", "")
    assert other == CompiledKernel((), False)
    assert compiled_kernel(PTX, "none", "") is None
    assert unpacked(packed(found)) == found


def test_a_probe_is_read_back() -> None:
    assert probed(probe_of("a::k<float, 2>")) == "a::k<float, 2>"
    assert probed("a::k<float>") == "a::k<float>"


SEVERAL = """
enum class Mode : unsigned char { A };
namespace a { struct P { long long x; char c; };
template <class T, int N> __global__ void k(T* const* x, const T y, P p, Mode m, Mode* mm) {} }
__global__ void plain(int n) {}
"""


def test_the_compiler_says_types_and_sizes(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "cache")
    for cached in (False, True):  # in one program, and kept with the cubin
        found = compiled(SEVERAL, "a::k<float, 2>", "plain", cache=cache)
        assert found.cached is cached
        assert set(found.lowered) == {"a::k<float, 2>", "plain"}
        assert found.kernels["plain"].parameters == (
            CompiledParameter("int", False, False, 4, 4),)
        assert found.kernels["a::k<float, 2>"].parameters == (
            CompiledParameter("float*", True, True, 8, 8),
            CompiledParameter("float", False, False, 4, 4),
            CompiledParameter("a::P", False, False, 16, 8),
            CompiledParameter("Mode", False, False, 1, 1, "B"),
            CompiledParameter("unsigned char", True, False, 8, 8))


def signature(text: str, name: str) -> list[tuple[str, str, bool, str]]:
    found = Declarations(text).signature(name, compiled(text, name).kernels[name])
    return [(p.name, p.ctype, p.pointer, p.format) for p in found.parameters]


def test_what_was_compiled_decides_and_the_source_names() -> None:
    text = "__global__ void k(float** x, const float* y, size_t n) { x[0][n] = y[0]; }"
    assert signature(text, "k") == [("x", "float*", True, "P"), ("y", "float", True, "P"),
                                    ("n", "size_t", False, "Q")]
    text = ("#if TWO\n__global__ void k(float* x, int n) {}\n"
            "#else\n__global__ void k(double* x, double d) {}\n#endif\n")
    with pytest.raises(ConfigError, match="twice"):
        parse_kernels(text)
    assert signature(text, "k") == [("x", "double", True, "P"), ("d", "double", False, "d")]
    assert signature("#define TWO 1\n" + text, "k") == [
        ("x", "float", True, "P"), ("n", "int", False, "i")]


def test_names_go_by_their_places_where_the_source_does_not_say_them() -> None:
    text = ("__global__ void k(float* x,\n#ifdef EXTRA\nint extra,\n#endif\nint n) {}\n"
            "#define MAKE(name) __global__ void name(float* x) {}\nMAKE(made)\n")
    kernels = compiled(text, "k", "made").kernels
    declared = Declarations(text)
    found = declared.signature("k", kernels["k"])
    assert [(p.name, p.ctype) for p in found.parameters] == [("arg0", "float"), ("arg1", "int")]
    assert found.note == ("k was compiled with 2 parameters, and the source declares 3 (an #if may "
                          "leave some out): they go by their places (arg0, arg1)")
    declared.check("made")
    assert "does not say" in declared.signature("made", kernels["made"]).note
    with pytest.raises(ConfigError, match="no kernel 'makde'; did you mean"):
        Declarations("__global__ void made() {}").check("makde")
    same = ("#if 1\n__global__ void k(float* x, int n) {}\n#else\n"
            "__global__ void k(float* x, int m) {}\n#endif\n")
    signature = Declarations(same).signature("k", compiled(same, "k").kernels["k"])
    assert [p.name for p in signature.parameters] == ["x", "arg1"]
    assert "more than once" in signature.note


def test_a_struct_has_the_members_of_the_source_where_they_fit() -> None:
    text = """
    typedef struct { int a; double b; } Plain;
    struct Two {
    #ifdef WIDE
      double x;
    #endif
      float y; int z;
    };
    struct Does { float a; __device__ float twice() const { return 2 * a; } };
    using real = double;
    __global__ void k(Plain p, Two t, Does d, real r, void (*f)(int)) {}
    """
    found = Declarations(text).signature("k", compiled(text, "k").kernels["k"])
    plain, two, does, real, function = found.parameters
    assert plain.struct is not None
    assert [(m.name, m.offset) for m in plain.struct.members] == [("a", 0), ("b", 8)]
    assert two.struct is not None
    assert (two.struct.members, two.struct.size, two.struct.align) == ((), 8, 4)
    assert does.struct is not None
    assert (does.struct.size, does.number) == (4, False)  # it may hold an address
    assert (real.name, real.ctype, function.name, function.format) == ("r", "double", "f", "Q")
    assert found.layout() == ((0, 16, 24, 32, 40), 48)
    instance = Declarations(text).instance(found)
    assert annotation(annotated(text, {"k": instance})) == {"k": instance}
    assert annotation(text) == {}


@pytest.mark.parametrize(("declared", "ctype", "pointer", "const", "size", "is_same"), [
    ("const float* x", "float", True, True, 8, True),
    ("float* x", "float", True, True, 8, False),  # a macro may write const
    ("const float* x", "float", True, False, 8, False),
    ("const float x", "float", False, False, 4, True),  # a copy
    ("float x", "float", True, False, 8, False),
    ("float* x", "float", False, False, 4, False),
    ("double* x", "float", True, False, 8, False),
    ("float** x", "float*", True, False, 8, True),
    ("float** x", "float", True, False, 8, False),
    ("float* x", "float*", True, False, 8, False),
    ("half* x", "__half", True, False, 8, True),
    ("half* x", "__nv_bfloat16", True, False, 8, False),
    ("size_t n", "unsigned long", False, False, 8, True),
    ("size_t n", "long", False, False, 8, False),
    ("uint32_t n", "unsigned int", False, False, 4, True),
    ("int n", "unsigned int", False, False, 4, False),
    ("Own x", "Own", False, False, 16, True),
    ("Own x", "Other", False, False, 16, False),
    ("CUtensorMap x", "CUtensorMap_st", False, False, 128, True),
    ("CUtensorMap x", "CUtensorMap_st", False, False, 64, False),
    ("int n", "", False, False, 4, True),  # the compiler says the size alone
    ("int n", "", False, False, 8, False),
    ("Own x", "", False, False, 16, False),
])
def test_what_the_source_declares_holds_where_it_was_compiled(
        declared: str, ctype: str, pointer: bool, const: bool, size: int, is_same: bool) -> None:
    source, = parse_kernels(f"__global__ void k({declared}) {{}}")["k"].parameters
    assert _agree(source, CompiledParameter(ctype, pointer, const, size, min(size, 64))) == is_same


def test_a_reference_is_refused() -> None:
    text = "__global__ void k(int& n) { n = 1; }"
    with pytest.raises(ConfigError, match="'n' is a reference; pass a pointer"):
        Declarations(text).signature("k", compiled(text, "k").kernels["k"])


def test_grid_sync_is_seen_in_the_ptx() -> None:
    text = ("#include <cooperative_groups.h>\n"
            "__global__ void alone(float* x) { cooperative_groups::this_thread_block().sync(); }\n"
            "__device__ __noinline__ void meet() { cooperative_groups::this_grid().sync(); }\n"
            "__global__ void together(float* x) { meet(); x[0] = 1; }\n")
    found = compiled(text, "alone", "together").kernels
    assert not found["alone"].waits_for_grid
    assert found["together"].waits_for_grid


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1), (0,), (1,)], ids=str)
def test_a_definition_counts_and_declarations_only_without_one(order: tuple[int, ...]) -> None:
    texts = ("__global__ void k(const float* declared, int n);\n",
             "__global__ void k(const float* defined, int n) {}\n")
    other = "__global__ void other(int* x) {}\n"
    found = Declarations(other + "".join(texts[i] for i in order)).of("k")
    named = ["defined"] if 1 in order else ["declared"]
    assert [[p.name for p in each.parameters] for each in found] == [[*named, "n"]]


def test_declarations_ahead_of_a_kernel_are_none_of_its_parameters() -> None:
    text = """
.func (.param .b32 func_retval0) helper(
	.param .b64 helper_param_0,
	.param .b32 helper_param_1
)
;
.visible .func declared(
	.param .b64 declared_param_0
);
.visible .entry k(
	.param .u64 k_param_0,
	.param .align 8 .b8 k_param_1[24],
	.param .u32 k_param_2
)
{
	call.uni (retval0), helper, (param0, param1);
	ret;
}
.func (.param .b32 func_retval0) helper(
	.param .b64 helper_param_0,
	.param .b32 helper_param_1
)
{
	mov.u32 %r1, %envreg1;
	ret;
}
"""
    found = compiled_kernel(text, "k", "")
    assert found is not None
    assert [(p.size, p.align) for p in found.parameters] == [(8, 8), (24, 8), (4, 4)]
    assert found.waits_for_grid
    plain = compiled_kernel(text.replace("%envreg1", "%tid.x"), "k", "")
    assert plain is not None
    assert not plain.waits_for_grid
    assert compiled_kernel(text, "declared", "") is None
