"""Signatures read from CUDA C text, and the argument layout made from them."""

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.signature import KernelSignature, Parameter, find_kernel, parse_kernels
from rawnn.ptx import SOURCES, source_path


def only(text: str) -> KernelSignature:
    (kernel,) = parse_kernels(text).values()
    return kernel


def types(kernel: KernelSignature) -> list[tuple[str, str, bool, bool]]:
    return [(p.name, p.ctype, p.pointer, p.const) for p in kernel.parameters]


def test_pointers_scalars_and_const_on_either_side():
    kernel = only(
        """__global__ void k(const float* a, float const *b, int* __restrict__ c, float *const d,
            const int n, unsigned m, volatile int* const volatile e, int f[]) {}"""
    )
    assert types(kernel) == [
        ("a", "float", True, True), ("b", "float", True, True), ("c", "int", True, False),
        ("d", "float", True, False), ("n", "int", False, True), ("m", "unsigned int", False, False),
        ("e", "int", True, False), ("f", "int", True, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "canonical", "code"),
    [
        ("int", "int", "i"), ("signed", "int", "i"), ("unsigned", "unsigned int", "I"),
        ("int unsigned", "unsigned int", "I"), ("unsigned char", "unsigned char", "B"),
        ("signed char", "signed char", "b"), ("char", "char", "b"), ("short int", "short", "h"),
        ("unsigned short", "unsigned short", "H"), ("long long int", "long long", "q"),
        ("unsigned long long", "unsigned long long", "Q"),
        ("long unsigned long", "unsigned long long", "Q"), ("bool", "bool", "?"),
        ("float", "float", "f"), ("double", "double", "d"), ("size_t", "size_t", "Q"),
        ("std::uint8_t", "uint8_t", "B"), ("int64_t", "int64_t", "q"), ("__half", "__half", "H"),
        ("__nv_bfloat16", "__nv_bfloat16", "H"),
    ],
)  # fmt: skip
def test_every_scalar_type(written, canonical, code):
    (parameter,) = only(f"__global__ void k({written} value) {{}}").parameters
    assert (parameter.name, parameter.ctype, parameter.format) == ("value", canonical, code)
    assert parameter.size == parameter.align == struct.calcsize("=" + code)


def test_attributes_before_and_after():
    text = """
    extern "C" __global__ void __launch_bounds__(128 * (1 << 1), 2)
        __cluster_dims__(2, 1, 1) a(int n) {}
    static __launch_bounds__(64) __global__ void b() { if (1 < 2) {} }
    void __global__ __maxnreg__(64) c(void);
    extern "C" {
    __global__ __attribute__((used)) void d(const __grid_constant__ int n) { }
    }
    """
    kernels = parse_kernels(text)
    assert list(kernels) == ["a", "b", "c", "d"]
    assert [len(k.parameters) for k in kernels.values()] == [1, 0, 0, 1]


def test_comments_strings_and_directives_are_not_code():
    text = """
    // __global__ void one(int n) {}
    /* __global__ void two(int n) {} */
    #define THREE __global__ void three(int n) \\
        { }
    __device__ const char* s = "__global__ void four(int n) {}";
    __device__ char c = '"';
    __global__ void five(int /* , int m */ n, // the count
                         float x) {}
    """
    kernels = parse_kernels(text)
    assert list(kernels) == ["five"]
    assert [p.name for p in kernels["five"].parameters] == ["n", "x"]


def test_template_parameters_and_defaults():
    kernel = only(
        "template <typename T, class U = float, bool BIAS = (3 > 2), int N = 4, unsigned int M = 1>"
        " __global__ void k(const T* a, U b, T c) { a < b; }"
    )
    assert kernel.template == ("T", "U", "BIAS", "N", "M")
    assert [p.kind for p in kernel.template_parameters] == [
        "typename", "typename", "bool", "int", "unsigned int",
    ]  # fmt: skip
    made = kernel.instantiate("k< int >")
    assert types(made) == [
        ("a", "int", True, True), ("b", "float", False, False), ("c", "int", False, False),
    ]  # fmt: skip
    assert made.arguments == ("int", "float", "(3 > 2)", "4", "1")
    assert made.template == ()
    wide = kernel.instantiate("k<unsigned char, double, true, 8, 2>")
    assert [p.format for p in wide.parameters] == ["P", "d", "B"]
    assert kernel.instantiate("k<const float*>").parameters[2].format == "P"


@pytest.mark.parametrize(("declared", "argument", "ctype", "const"), [
    ("T a", "float", "float", False), ("T a", "const float", "float", True),
    ("T a", "float*", "float@", False), ("T a", "const float*", "float@", True),
    ("T a", "float* const", "float@", False), ("T a", "float**", "float*@", False),
    ("T a", "const float**", "float*@", False), ("T a", "float* const*", "float*@", True),
    ("const T a", "float", "float", True), ("const T a", "float*", "float@", False),
    ("const T a", "const float*", "float@", True), ("const T a", "float**", "float*@", False),
    ("T* a", "float", "float@", False), ("T* a", "const float", "float@", True),
    ("T* a", "const float*", "float*@", False), ("T* a", "float* const", "float*@", True),
    ("const T* a", "float", "float@", True), ("const T* a", "float*", "float*@", True),
    ("T* const a", "float", "float@", False), ("T const* a", "unsigned", "unsigned int@", True),
    ("T** a", "const float", "float*@", False), ("T* const* a", "float", "float*@", True),
    ("T a[]", "long unsigned", "unsigned long@", False), ("const T a[4]", "int", "int@", True),
])
def test_what_a_parameter_is_with_a_template_argument(declared, argument, ctype, const):
    """`@` stands for the parameter's own pointer, and `const` for what that points to."""
    kernel = only(f"template <typename T> __global__ void k({declared}) {{}}")
    (found,) = kernel.instantiate(f"k<{argument}>").parameters
    assert (found.ctype + "@" * found.pointer, found.const) == (ctype, const)


@pytest.mark.parametrize("expression", ["k", "k<>", "k<float>", "k<float,true,1>"])
def test_wrong_number_of_template_arguments(expression):
    kernel = only("template <typename T, bool B> __global__ void k(T* a) {}")
    with pytest.raises(ConfigError, match=r"template arguments?, .*<T, B>"):
        kernel.instantiate(expression)


def test_plain_kernel_takes_no_template_arguments():
    kernel = only("__global__ void k(int* a) {}")
    assert kernel.instantiate("k").parameters == kernel.parameters
    with pytest.raises(ConfigError, match="no template parameters"):
        kernel.instantiate("k<float>")
    with pytest.raises(ConfigError, match="does not name"):
        kernel.instantiate("q")


def test_specialisations_and_instantiations_are_skipped():
    kernels = parse_kernels(
        """template <typename T> __global__ void k(T* a);
        template <typename T> __global__ void k(T* data, int n) {}
        template <> __global__ void k<double>(double* a, int n) {}
        template __global__ void k<float>(float*, int);"""
    )
    assert [p.name for p in kernels["k"].parameters] == ["data", "n"]


def test_overloads_are_refused_but_alternatives_of_an_if_are_not():
    with pytest.raises(ConfigError, match="'k' is defined twice"):
        parse_kernels("__global__ void k(int a) {} __global__ void k(float a) {}")
    text = "#if X\n__global__ void k(int a) {}\n#else\n__global__ void k(int a) {}\n#endif\n"
    assert list(parse_kernels(text)) == ["k"]


def test_unnamed_parameters_get_a_number():
    assert [p.name for p in only("__global__ void k(int, float*, unsigned, T);").parameters] == [
        "arg0", "arg1", "arg2", "arg3",
    ]  # fmt: skip
    named = only("__global__ void k(int arg2, int arg2_, float*, int);")
    assert [p.name for p in named.parameters] == ["arg2", "arg2_", "arg2__", "arg3"]


def test_struct_by_value_is_refused_by_name():
    kernel = only("__global__ void k(int n, struct Shape shape) {}")
    with pytest.raises(ConfigError, match="kernel 'k': parameter 'shape' has type 'Shape'"):
        kernel.layout()
    with pytest.raises(ConfigError, match="'shape'"):
        kernel.instantiate("k")
    assert only("__global__ void k(Shape* shape) {}").layout() == ((0,), 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__global__ void k(int& n) {}", "is a reference"),
        ("__global__ void k(void (*f)(int)) {}", "cannot read its parameter"),
        ("__global__ void k(int n {", "never closed"),
        ("\n\n__global__ ;", "line 3"),
        ("template <typename... T> __global__ void k(int n) {}", "template parameter"),
    ],
)
def test_what_cannot_be_read_says_so(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_kernels(text)


def test_unknown_kernel_names_the_nearest():
    kernels = parse_kernels("template <typename T> __global__ void softmax(T* z) {}")
    assert find_kernel(kernels, "softmax<float>").parameters[0].ctype == "float"
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        find_kernel(kernels, "sofmax<float>")
    with pytest.raises(ConfigError, match="not a kernel name"):
        find_kernel(kernels, "softmax<float")


def test_layout_aligns_as_c_does():
    kernel = only("__global__ void k(bool a, float* p, int n, short s, double d, char c) {}")
    assert kernel.layout() == ((0, 8, 16, 20, 24, 32), 33)


def test_a_tensor_map_has_a_size_and_an_alignment_of_its_own():
    kernel = only(
        """__global__ void k(int n, const __grid_constant__ TensorMap w_map, struct TensorMap tiles,
            char c, TensorMap* maps, short s, const TensorMap x_map) {}"""
    )
    assert kernel.layout() == ((0, 64, 192, 320, 328, 336, 384), 512)
    assert [p.tensor_map for p in kernel.parameters] == [
        False, True, True, False, False, False, True,
    ]  # fmt: skip
    assert [p.mapped for p in kernel.parameters] == ["", "w", "", "", "", "", "x"]
    assert (kernel.parameters[1].size, kernel.parameters[1].align) == (128, 64)


_CODES = {"char": "b", "short": "h", "int": "i", "double": "d", "float": "f", "bool": "?"}


@given(st.lists(st.sampled_from([*_CODES, "int*"]), max_size=12))
def test_layout_agrees_with_native_struct(ctypes):
    text = ", ".join(f"{ctype} a{i}" for i, ctype in enumerate(ctypes))
    offsets, total = only(f"__global__ void k({text}) {{}}").layout()
    code = ""
    for ctype, offset in zip(ctypes, offsets, strict=True):
        code += _CODES.get(ctype, "P")
        assert offset == struct.calcsize(code) - struct.calcsize(code[-1])
    assert total == struct.calcsize(code)


def test_unresolved_template_type_has_no_format():
    parameter = Parameter("x", "T", False, False)
    with pytest.raises(ConfigError, match="'x' has type 'T'"):
        _ = parameter.format


def test_every_shipped_source_is_read():
    paths = sorted(SOURCES.rglob("*.cu"))
    products = (SOURCES / "gemm/gemm_kernels.cuh").read_text().count("__global__ void")
    for path in paths:
        kernels = parse_kernels(path.read_text())
        assert len(kernels) == (path.read_text().count("__global__ void")
                                or products), path.name


def test_a_source_without_kernels_has_those_of_its_headers(tmp_path):
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\n__global__ void one(float* x) {}\n')
    (tmp_path / "b.cuh").write_text("template <int N> __global__ void two(int n) {}\n")
    assert set(parse_kernels('#include "a.cuh"\n// __global__\n', (tmp_path,))) == {"one", "two"}
    own = '#include "a.cuh"\n__global__ void three() {}\n'
    assert set(parse_kernels(own, (tmp_path,))) == {"three"}


def test_source_path_names_the_nearest():
    assert source_path("gemm/matmul.cu").read_text()
    with pytest.raises(ConfigError, match=r"did you mean 'matmul\.cu'"):
        source_path("matmull.cu")
    with pytest.raises(ConfigError, match="no kernel source"):
        source_path("../errors.py")


def test_the_page_on_compilation_names_instances_that_exist():
    text = (Path(__file__).resolve().parents[2] / "docs" / "kernel-compilation.md").read_text()
    known = {name: kernel for file in SOURCES.rglob("*.cu")
             for name, kernel in parse_kernels(file.read_text(), (SOURCES,)).items()}
    named = re.findall(r"\b([a-z]\w+)<([^<>]+)>", text)
    instances = [(name, arguments) for name, arguments in named if name in known]
    assert instances
    for name, arguments in instances:
        known[name].instantiate(f"{name}<{arguments}>")
