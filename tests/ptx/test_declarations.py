"""What CUDA C++ declares, of each kind of declaration that the language has: its kind, its names,
where it begins and ends, and which branch of a conditional directive is read."""

from __future__ import annotations

import pytest

from rawnn.cuda.compiling.declarations import UnbalancedBrackets, Unit

ONE = {
    "struct S { int a; };": ("type", "S"),
    "struct S final { int a; };": ("type", "S"),
    "class alignas(16) S : public B<int> { int a; };": ("type", "S"),
    "struct S final : B, C { int a; };": ("type", "S"),
    "template <> struct S<int> { int a; };": ("type", "S"),
    "struct __align__(8) S { int a; };": ("type", "S"),
    "ALIGN(8) struct S { int a; };": ("type", "S"),
    "template <int N = f(2)> struct S { int a; };": ("type", "S"),
    "struct S* f(int a) { return 0; }": ("function", "f"),
    "union U { int a; float b; } u, *v;": ("type", "U u v"),
    "struct { int a; } pair;": ("type", "pair"),
    "typedef struct { int a; } T;": ("type", "T"),
    "typedef struct S { int a; } T, *P;": ("type", "S T P"),
    "enum class Mode : int { FAST, SLOW = 3 };": ("type", "Mode FAST SLOW"),
    "enum { A, B };": ("type", "A B"),
    "int f(int a) { return a; }": ("function", "f"),
    "int f(int a) { if (a) { return 1; } return a < 3 ? 2 : 1; }": ("function", "f"),
    "float operator+(A a, B b) { return 1; }": ("function", "operator"),
    "float operator()(A a, B b) { return 1; }": ("function", "operator"),
    "bool operator<(A a, B b) { return true; }": ("function", "operator"),
    "S::S(int a) : x(a), y{a} { }": ("function", "S"),
    "template <typename T, int N = (3 > 2)> T f(T a) { return a; }": ("function", "f"),
    "__global__ void __launch_bounds__(256) k(float* x) { }": ("function", "k"),
    "__launch_bounds__(256) __global__ void k(float* x) { }": ("function", "k"),
    "auto f(int a) -> decltype(a + 1) { return a; }": ("function", "f"),
    "void f() noexcept(true) { }": ("function", "f"),
    "void f() try { } catch (int e) { } catch (...) { }": ("function", "f"),
    "int f(int a);": ("prototype", "f"),
    'extern "C" int f(int a);': ("prototype", "f"),
    "template <> int f<3>(int a);": ("prototype", "f"),
    "friend int f(int a);": ("prototype", "f"),
    "int a = 3, b[4], *c;": ("variable", "a b c"),
    "int a = f(1, 2), b{3}, c = {4, 5};": ("variable", "a b c"),
    "int x{3};": ("variable", "x"),
    "std::vector<std::pair<int, int>> list;": ("variable", "list"),
    "int (*table)[4];": ("variable", "table"),
    "float (*fn)(int) = nullptr;": ("variable", "fn"),
    "auto g = [](int a) { return a; };": ("variable", "g"),
    "__constant__ float taps[16];": ("variable", "taps"),
    "using A = int;": ("other", "A"),
    "using namespace std;": ("other", "std"),
    "typedef int (*Fn)(int);": ("other", "Fn"),
    "namespace x = y;": ("other", "x"), "typedef int T;": ("other", "T"),
    "struct S;": ("other", "S"), "friend class X;": ("other", "X"), "enum E : int;": ("other", "E"),
    "template <typename T> using A = B<T>;": ("other", "A"),
    "template <typename T> constexpr T v = 3;": ("variable", "v"),
    "extern int z;": ("variable", "z"), "static const struct S s = {1};": ("variable", "s"),
    'static_assert(sizeof(int) == 4, "");': ("other", "static_assert"),
}


@pytest.mark.parametrize(("text", "found"), ONE.items(), ids=ONE)
def test_a_declaration(text: str, found: tuple[str, str]) -> None:
    kind, names = found
    unit = Unit(f"int before;\n{text}\nint after;\n")
    first, one, last = unit.declarations
    assert (one.kind, one.name, one.names) == (kind, names.split()[0], set(names.split()))
    assert unit.text[one.start : one.end] == text
    assert one.template == text.startswith("template")
    assert (first.name, last.name, unit.line(one.start)) == ("before", "after", 2)


@pytest.mark.parametrize(("text", "names"), [
    ("namespace a { int f() { return 1; } namespace b { int c; } } int d;", "f c d"),
    ("namespace a::b { int c; }", "c"), ("inline namespace v1 { int f(); } int g;", "f g"),
    ("namespace { int a; }", "a"), ('extern "C" { int f(); int g(); } int h;', "f g h"),
    ('extern "C++" { int f(); }', "f"), ("MACRO(f)\nint a;", "MACRO a"),
    ("MACRO(f)\n", "MACRO"), ("f(1);\nint a;", "f a"), ("BAR_1(f)\nint a;", "BAR_1 a"),
])
def test_the_declarations_of_a_text(text: str, names: str) -> None:
    assert [each.name for each in Unit(text).declarations] == names.split()


def test_members_are_declarations_too() -> None:
    (found,) = Unit("""class S : B {
public:
  explicit S(int a) : x(a) {}
  ~S();
  S(const S&) = delete;
 private:
  int x = 1, y[3];
  __device__ float get() const { return x; }
  struct Inner { float z; } inner;
  enum { A };
};""").declarations
    assert [(m.kind, m.name) for m in found.members if m.kind != "other"] == [
        ("function", "S"), ("prototype", "S"), ("prototype", "S"), ("variable", "x"),
        ("function", "get"), ("type", "Inner"), ("type", "A")]
    assert [m.name for each in found.members for m in each.members] == ["z"]
    assert "__device__" in found.words
    assert "__device__" not in found.head_words


HALVES = ("void f() {", "void g() {", "void h() {")
"""Branches of which one alone has a closing bracket."""


@pytest.mark.parametrize(("text", "names"), [
    ("#if 0\nint a;\n#else\nint b;\n#endif\nint c;", "b c"), ("#if 0\nint a;\n#endif\nint c;", "c"),
    ("#if 1\nint a;\n#elif X\nint b;\n#else\nint c;\n#endif", "a"),
    ("#if false\nint a;\n#elif true\nint b;\n#else\nint c;\n#endif", "b"),
    ("#if X // why\nint a;\n#elif Y\nint b;\n#else\nint c;\n#endif", "a b c"),
    ("#if 0 // why\nint a;\n#else\nint b;\n#endif", "b"),
    ("#if X\n#if 0\nint a;\n#endif\nint b;\n#else\nint c;\n#endif\nint d;", "b c d"),
    ("#if V > 3\n{}\n#elif V > 2\n{}\n#else\n{}\n#endif\n}}".format(*HALVES), "f"),
    ("#if 0\n{}\n#elif V > 2\n{}\n#else\n{}\n#endif\n}}".format(*HALVES), "g"),
    ("#ifdef __CUDACC__\nvoid f() {\n#endif\nint a;\n#ifdef __CUDACC__\n}\n#endif", "f"),
    ("#ifndef __CUDACC__\nvoid f() {\n#endif\nint a;\n#ifndef __CUDACC__\n}\n#endif", "a"),
    ("#define D\n#ifndef D\nvoid f() {\n#endif\nint a;", "a"),
    ("#define D\n#if !defined(D)\nvoid f() {\n#endif\nint a;", "a"),
    ("#define D\n#if ! defined D\nvoid f() {\n#endif\nint a;", "a"),
    ("#define D\n#if defined(D)\nvoid f() {\n#endif\n}\nint a;", "f a"),
    ("#ifdef UNKNOWN\nvoid f() {\n#endif\nint a;", "a"),
])
def test_branches_of_conditional_directives(text: str, names: str) -> None:
    assert [each.name for each in Unit(text).declarations] == names.split()


@pytest.mark.parametrize(("text", "message"), [
    ("int a;\n}", "the '}' on line 2 closes nothing"), ("int f(\n{ 1)", r"the '\)' on line 2"),
    ("\n\nvoid f() { (1;\n", r"the '\(' on line 3 is never closed"),
    ("void f() {\n if (1) {\n }\n", "the '{' on line 1 is never closed"),
])
def test_brackets_that_do_not_match(text: str, message: str) -> None:
    with pytest.raises(UnbalancedBrackets, match=message):
        Unit(text)


@pytest.mark.parametrize("text", [
    'const char* s = "}{)(";', "char c = '{', d = '\\'';", 'auto s = R"x(}} )" {)x";',
    "/* } { */ int a; // }", "long n = 1'000'000;", "#define OPEN {\nint a;",
    "#define LONG { \\\n  (\nint a;", 'const char* s = u8"(\\"{";', "// continued \\\n }\nint a;",
])
def test_brackets_that_are_none(text: str) -> None:
    assert len(Unit(f"{text}\nint last;").declarations) == 2
