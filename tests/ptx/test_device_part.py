"""The device's part of a CUDA file: what goes, what stays, and that nothing else changes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.cuda.compiling.declarations import UnbalancedBrackets, Unit
from rawnn.cuda.compiling.device_part import find_device_part, find_dynamic_kernels, find_launches

KERNEL = "__global__ void k(float* x) { x[0] = 1; }\n"


def part(text: str, *wanted: str) -> tuple[str, list[str]]:
    """The device's part, and what was left out in words."""
    found = find_device_part({"": text}, wanted)
    return found.texts[""], [str(each) for each in found.left_out]


def blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


HOST = {
    "function": "int main(int argc, char** argv) { return 0; }",
    "brackets in strings": 'void f() { const char* s = "}}\\"}{"; char c = \'{\', d = \'\\\'\'; }',
    "raw string": 'void f() { auto s = R"x(}} )" {)x"; }',
    "comments": "void f() { // }\n /* } { */ }",
    "number separators": "long f() { return 1'000'000; }",
    "template": "template <typename T, int N = (3 > 2)> T f(std::array<T, N> a) { return a[0]; }",
    "trailing return": "template <class T> auto f(T x) -> decltype(x + 1) { return x; }",
    "lambda": "void f() { auto g = [&](int n) { if (n) { return 1; } return 2; }; g(1); }",
    "prototype": "extern \"C\" void launch(float* x, int n);",
    "prototype of a host template": "template void launch<float>(float* x);",
    "operator": "std::ostream& operator<<(std::ostream& o, const S& s) { return o; }",
    "handler of exceptions": "int main() try { run(); } catch (const std::exception& e) { } ",
    "member": "Matrix::Matrix(int r, int c) : rows(r), data{new float[r * c]} { fill(0); }",
    "variable": "static std::vector<int> sizes = {1, 2, 3};",
    "variable built by braces": "std::map<int, std::string> names{{1, \"{\"}};",
    "function object": "std::function<void(int)> callback = [](int x) { return; };",
    "type": "struct Options { std::string name; std::vector<int> sizes; };",
    "alias": "using Names = std::vector<std::string>;",
    "typedef": "typedef std::map<int, int> Table;",
    "constant": "const std::string TITLE = \"none\";",
    "old C": "void f(void)\n{\n  cudaMalloc((void**)&d, 4);\n}",
    "__host__": "__host__ float f(float x) { return x; }",
}
DEVICE = {
    "kernel": "__global__ void f(float* x) { x[0] = x[1] < x[2] ? '{' : 2; }",
    "bounds": "template <int N>\n__global__ void __launch_bounds__(256, 2) f(int* x)\n{ *x = N; }",
    "attribute first": "__launch_bounds__(256) __global__ void f(float* x) { x[0] = 1; }",
    "device function": "static __device__ __forceinline__ float f(float x) { return x; }",
    "both sides": "inline __host__ __device__ float f(float x) { return x; }",
    "constant memory": "__constant__ float taps[16];",
    "device variable": "namespace a { __device__ int count = 0; }",
    "C linkage": 'extern "C" { __global__ void f(float* x) { x[0] = 1; } }',
    "specialisation": "template <> __global__ void f<int>(int* x);",
    "instance": "template __global__ void f<float>(float* x);",
    "macro": "#define DEV __device__ __forceinline__\nDEV float f(float x) { return x; }",
    "macro of macros": "#define HD __host__ __device__\n#define FN HD inline\n"
                       "FN int f() { return 1; }",
    "include": "#include <cuda_fp16.h>",
    "namespace alias": "using namespace a;",
    "shared": "extern __shared__ float buffer[];",
    "constexpr function": "constexpr int f(int x) { return x + 1; }\n"
                          "__device__ int g() { return f(1); }",
    "type in use": "struct P { float a; };\n__global__ void f(P p, float* x) { x[0] = p.a; }",
    "type by an alias": "struct Q { int a; };\nusing R = Q;\n__device__ R r;",
    "typedef in use": "typedef float floatX;\n__global__ void f(floatX* x) { x[0] = 1; }",
    "enumerator in use": "enum Mode { FAST, SLOW };\n__device__ int f() { return SLOW; }",
    "constants in use": "const int A = 1, B = 2;\n__device__ int f() { return B; }",
    "constant by a macro": "const int C = 1;\n#define D (C + 1)\n__device__ int f() { return D; }",
}


@pytest.mark.parametrize("text", HOST.values(), ids=HOST)
def test_what_is_the_hosts_is_blank(text: str) -> None:
    found, left = part(f"/* head */ {text}\n{KERNEL}")
    assert found == f"/* head */ {blank(text.rstrip())}{text[len(text.rstrip()):]}\n{KERNEL}"
    assert len(left) == 1


@pytest.mark.parametrize("text", DEVICE.values(), ids=DEVICE)
def test_what_is_the_devices_stays(text: str) -> None:
    assert part(f"{text}\n{KERNEL}") == (f"{text}\n{KERNEL}", [])


@pytest.mark.parametrize(("text", "left", "gone"), [
    ("REGISTER(f)\nint main() { return 0; }\n", "REGISTER(f)\n", ["function main (line 2)"]),
    ("REGISTER(f)\nint count = 1;\n", "REGISTER(f)\n", ["variable count (line 2)"]),
    ("EXPORT(f) int\nmain() { return 0; }\n", "", ["function main (lines 1-2)"]),
    ("EXPORT(f) int main() { return 0; }\n", "", ["function main (line 1)"]),
])
def test_a_macro_on_a_line_of_its_own_is_a_statement(text: str, left: str,
                                                     gone: list[str]) -> None:
    found, names = part(text + KERNEL)
    assert (found, names) == (left + blank(text[len(left):]) + KERNEL, gone)


def test_members_of_the_host_go_and_the_layout_stays() -> None:
    text = """struct Scale {
    Scale(float s) : factor(s), steps{1} { std::cout << s; }
    ~Scale();
    __device__ float operator()(float x) const { return factor * x; }
    bool operator==(const Scale& o) const { return factor == o.factor; }
    friend std::ostream& operator<<(std::ostream& o, const Scale& s) { return o; }
    Scale(const Scale&) = default;
    static constexpr int N = 3;
    float factor;
    int steps;
};
__global__ void k(float* x, Scale s) { x[0] = s(x[0]); }
"""
    found, left = part(text)
    assert [each.split(" (")[0] for each in left] == [
        "function Scale::Scale", "function Scale::Scale", "function Scale::operator",
        "function Scale::operator"]
    lines = found.split("\n")
    for number in (0, 3, 6, 7, 8, 9, 10, 11):
        assert lines[number] == text.split("\n")[number]
    assert not any(lines[number].strip() for number in (1, 2, 4, 5))


def test_a_class_with_virtual_functions_stays_whole() -> None:
    text = "struct A { virtual int f() { return 1; } int a; };\n__global__ void k(A* x) {}\n"
    assert part(text) == (text, [])


def test_directives_within_a_function_stay() -> None:
    text = """int main() {
#include "parts.inc"
#define LATER 3
#ifdef FAST
    run(1) }}
#else
    run(2);
#endif
}
__global__ void k(int* x) { x[0] = LATER; }
"""
    text = text.replace(" }}", "")
    found, left = part(text)
    lines = found.split("\n")
    assert lines[2] == "#define LATER 3"
    assert [lines[n] for n in (3, 5, 7)] == ["#ifdef FAST", "#else", "#endif"]
    assert not any(lines[n].strip() for n in (0, 1, 4, 6, 8))
    assert lines[9:] == text.split("\n")[9:]
    assert left == ["function main (lines 1-9)"]


@pytest.mark.parametrize("text", [
    "#ifdef A\nvoid f(int a) {\n#else\nvoid f(long a) {\n#endif\n  g(); }\n",
    "#if 0\nit's {{{ never read\n#endif\nvoid f() { }\n",
    "#ifdef __cplusplus\nextern \"C\" {\n#endif\nvoid f();\n#ifdef __cplusplus\n}\n#endif\n",
    "#if A\nvoid f() { }\n#elif B\nvoid f() { g(); }\n#endif\n",
    "#if 1\nvoid f() { if (x) {\n#else\nvoid f() {\n#endif\n } }\n",
    "#ifdef NEVER\nstruct A {\n#endif\nvoid f();\n#ifdef NEVER\n};\n#endif\n",
    "#define YES\n#if !defined(YES)\nvoid g() {\n#endif\nvoid f() { }\n",
])
def test_branches_of_conditions_are_followed(text: str) -> None:
    found, left = part(text + KERNEL)
    assert found.endswith("\n" + KERNEL)
    assert "f(" not in found
    assert {each.split(" (")[0] for each in left} == {"function f"}
    assert [line for line in found.split("\n") if line.startswith("#")] == [
        line for line in text.split("\n") if line.startswith("#")]


def test_types_of_wanted_instances_and_of_launches_stay() -> None:
    text = """struct Add { __device__ int operator()(int a) { return a; } };
struct Sub { __device__ int operator()(int a) { return -a; } };
struct Mul { __device__ int operator()(int a) { return a; } };
template <class F, int N> __global__ void each(int* x, F f) { x[0] = f(x[0]) * N; }
void run() { each<Sub, 4><<<1, 2>>>(x, Sub()); }
"""
    found, left = part(text, "each<Add, 3>")
    assert found.split("\n")[:2] == text.split("\n")[:2]
    assert left == ["type Mul (line 3)", "function run (line 5)"]


def test_kernels_that_launch_kernels_are_named() -> None:
    text = ("__global__ void child(int* x) { x[0] = 1; }\n"
            "__device__ void start(int* x) { child<<<1, 1>>>(x); }\n"
            "__global__ void parent(int* x) {\n  start(x);\n}\n")
    assert find_dynamic_kernels(text) == {"start": 2, "parent": 3}
    found, left = part(text)
    assert found == text.split("\n")[0] + "\n" + blank("\n".join(text.split("\n")[1:]))
    assert all("launches kernels from the device (<<<)" in each for each in left)


def test_what_mentions_something_left_out_goes_with_it() -> None:
    text = ("struct Options { std::string a; };\n"
            "static_assert(sizeof(Options) > 8, \"\");\nstatic_assert(sizeof(int) == 4);\n"
            "template <class T> void run(T) { }\n#define RUN(T) template void run<T>(T)\n"
            "RUN(float);\n") + KERNEL
    found, left = part(text)
    assert [each.split(" (")[0] for each in left] == [
        "type Options", "function run", "statement static_assert", "statement RUN"]
    assert "static_assert(sizeof(int) == 4);" in found


def test_headers_are_read_with_the_source() -> None:
    texts = {"": "void run(Grid);\n__global__ void k(Point p) {}\n",
             "/a/types.h": "struct Point { float x; };\nstruct Grid { std::string s; };\n"}
    found = find_device_part(texts)
    assert found.texts["/a/types.h"] == "struct Point { float x; };\n" + " " * 31 + "\n"
    assert [str(each) for each in found.left_out] == [
        "function run (line 1)", "type Grid (/a/types.h, line 2)"]


def test_launches_are_found() -> None:
    text = ("\nvoid run() {\n scale<float, 256><<<grid, block>>>(x);\n"
            " plain<<<1, 2>>>(y);\n scale<float,\n  256><<<2, 1>>>(x);\n"
            ' puts("other<int><<<1, 1>>>(x)");\n wide<Pair<int,\n  8>>\n  <<<1, 1>>>(x); }\n')
    assert [(each.kernel, each.expression, each.line) for each in find_launches(text)] == [
        ("scale", "scale<float, 256>", 3), ("plain", "plain", 4), ("wide", "wide<Pair<int, 8>>", 8)]


@pytest.mark.parametrize(("text", "sentence"), [
    ("void f() { (", "the '(' on line 1 is never closed"),
    ("void f() { }\n}\n", "the '}' on line 2 closes nothing"),
    ("void f(] { }\n", "the ']' on line 1 closes nothing"),
])
def test_brackets_that_do_not_match_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UnbalancedBrackets, match=re.escape(sentence)):
        Unit(text)


WORDS = st.text(alphabet="ab{}()[]<>;'#/*\\\" ", max_size=12)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


STATEMENTS = st.one_of(
    WORDS.map(lambda text: f"puts({quoted(text)});"),
    WORDS.map(lambda text: f'auto s = R"_({text})_";'),
    WORDS.map(lambda text: "/* " + text.replace("*/", "") .rstrip("*") + " */"),
    WORDS.map(lambda text: "// " + text.replace("\\", "") + "\n"),
    st.sampled_from(["if (a < b) { c >>= 1; }", "auto f = [=](int n) { return n; };",
                     "char c = '}';", "k<float><<<grid, (n + 1) / 2>>>(x);", "x = {1, {2, 3}};",
                     "\n", "for (;;) { }", "long n = 1'000;"]))
BODIES = st.lists(STATEMENTS, max_size=4).map(lambda parts: "{ " + " ".join(parts) + " }")
HOSTS = st.builds(lambda head, body: head + body, st.sampled_from([
    "int main(int argc, char** argv) ", "template <typename T, int N> void f(T (&a)[N])\n",
    "S::S(int n) : a(n), b{n} ", "static std::vector<int> g(const std::string& s = \"{\") ",
    "bool operator<(const A& a, const B& b) ", "auto h() -> std::pair<int, int> ",
    "extern \"C\" void c() "]), BODIES)
DEVICES = st.builds(lambda head, body: head + body, st.sampled_from([
    "__global__ void k(float* x) ", "template <class T> __device__ T d(T a)\n",
    "__global__ __launch_bounds__(128) void b(int n) ",
    "__host__ __device__ inline float operator+(A a, B b) "]),
    st.lists(STATEMENTS.filter(lambda text: "<<<" not in text), max_size=4).map(
        lambda parts: "{ " + " ".join(parts) + " }"))
BETWEEN = st.sampled_from(["\n", "\n\n", " ", "\n// a {\n", "\n#define X {\n", "\n/* } */ ",
                           "\n#if A  // it's\n#endif\n", "\n;\n", "\r\n"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(BETWEEN, st.booleans(), HOSTS, DEVICES, st.sampled_from(
    [("", ""), ("namespace n {\n", "\n}"), ("extern \"C\" {", "}"), ("namespace a::b {", "}")])),
    max_size=6))
def test_all_but_the_hosts_stays_byte_for_byte(
        pieces: list[tuple[str, bool, str, str, tuple[str, str]]]) -> None:
    text = expected = ""
    for between, is_host, host, device, (opening, closing) in pieces:
        piece = host if is_host else device
        text += between + opening + piece + closing
        expected += between + opening + (blank(piece) if is_host else piece) + closing
    found = find_device_part({"": text}).texts[""]
    assert found == expected
    assert [i for i, c in enumerate(found) if c == "\n"] == [i for i, c in enumerate(text)
                                                             if c == "\n"]
