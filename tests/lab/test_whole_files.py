"""CUDA files with code for the host, as a user has them: what NVRTC makes of the device's part."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import rawnn
from rawnn.cli import run
from rawnn.common.errors import CompileError, ConfigError
from rawnn.cuda.compiling import whole_file
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.nvrtc import Nvrtc
from tests import requires

requires.module("cuda.bindings.nvrtc")

WHOLE = """#include <iostream>
#include <vector>
#include <helper_cuda.h>
#include "cuda_runtime.h"
using namespace std;
#define CHECK(x) do { if (x) { std::cerr << "failed }"; exit(1); } } while (0)
typedef float number;
struct Options { std::string name; };
static Options options;
static constexpr int square(int n) { return n * n; }

__global__ void soft(const number* x, number* y, int n) {
    float largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; ++i) largest = fmaxf(largest, x[i]);
    for (int i = 0; i < n; ++i) sum += expf(x[i] - largest);
    if (threadIdx.x < n) y[threadIdx.x] = expf(x[threadIdx.x] - largest) / sum * square(1);
}
template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }
__global__ void parent(float* x) { scale<float, 3><<<1, 32>>>(x); }

int main(int argc, char** argv) {
    vector<float> host(32);
    float* x;
    CHECK(cudaMalloc(&x, sizeof(float) * host.size()));
    scale<float, 4><<<1, 32>>>(x);
    soft<<<1, 32>>>(x, x, 32);
    return 0;
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "app.cu"
    path.write_text(WHOLE)
    return path


def build(text: str, expression: str = "k", *folders: Path, name: str = "k.cu",
          cache: CubinCache | None = None) -> Compiled:
    return compile_source(Nvrtc, text, name=name, arch="sm_90", expressions=(expression,),
                          include_paths=folders, cache=cache)


def test_a_kernel_of_a_whole_file_runs_and_says_what_is_left_out(file: Path) -> None:
    device = rawnn.lab.simulated()
    rawnn.sim.register("scale", lambda t, a: t.x.__imul__(4), {"x": ("32",)}, reads=("x",),
                       writes=("x",))
    kernel = rawnn.Kernel(file, "scale<float, 4>", device=device)
    x = rawnn.array(np.ones(32), np.float32, device=device)
    kernel[1, 32](x)
    assert (x.numpy() == 4).all()
    assert [str(each) for each in kernel.left_out] == [
        "type Options (line 8)", "variable options (line 9)",
        "function parent (line 19): it launches kernels from the device (<<<), which takes the "
        "device runtime's linker",
        "function main (lines 21-28)", "header <helper_cuda.h>", "header <iostream>",
        "header <vector>"]


def test_the_command_compiles_it_and_lists_what_it_did_not(
        file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "compile", "app.cu", "--arch", "sm_90"]) == 0
    printed = capsys.readouterr()
    assert "soft" in printed.out
    assert "the device's part of app.cu was compiled; --left-out lists the 7" in printed.err
    assert ("'scale' is a template: name an instance, such as 'scale<float, 3>' (launched on line "
            "19)") in printed.err
    assert "'parent' (line 19) is left out: it launches kernels from the device" in printed.err
    assert run(["kernel", "compile", "app.cu", "scale<float, 4>", "--arch", "sm_90",
                "--left-out"]) == 0
    assert "function main (lines 21-28)\nheader <helper_cuda.h>\n" in capsys.readouterr().out


def test_the_command_checks_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["kernel", "check", "app.cu", "soft", "--device", "sim", "--grid", "1", "--block",
                  "32", "--size", "n=3,32", "--reference",
                  "np.exp(x - x.max()) / np.exp(x - x.max()).sum()", "--left-out"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert "function main (lines 21-28)" in printed.out


COPY = "__global__ void copy(float* y, const float* x, int n) { if (n) y[0] = x[0]; }\n"


@pytest.mark.parametrize("variable", [
    'const char* note = "}}} __global__ void no() {";', "static float total = 0;",
    'static const char* text = R"(__global__ void no(int a) { } } }))";'])
def test_variables_of_the_host_alone_are_left_out(variable: str) -> None:
    """NVRTC refuses them, also in a file without a function of the host."""
    kernel = rawnn.Kernel(f"{variable}\n{COPY}", "copy", device=rawnn.lab.simulated())
    assert [(each.what, each.first) for each in kernel.left_out] in (
        [("variable", 1)], [("constant", 1)])
    with pytest.raises(CompileError, match=r"2 \| int wrong = ;"):  # an error of its own stays one
        rawnn.Kernel(f"{variable}\nint wrong = ;\n{COPY}", "copy", device=rawnn.lab.simulated())


@pytest.mark.parametrize("condition", ["#if 0", "#ifdef OLD", "#if __CUDA_ARCH__ >= 900"])
@pytest.mark.parametrize("space", ["", "a"])
def test_the_command_leaves_out_what_the_preprocessor_removes(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], condition: str, space: str) -> None:
    path, old = tmp_path / "old.cu", "__global__ void old(float* y) {}"
    within = f"namespace a {{ {old} }}" if space else old
    beside = "namespace a { __global__ void other(float* y) {} }\n" if space else ""
    path.write_text(f"{condition}\n{within}\n#endif\n{beside}{COPY}")
    assert run(["kernel", "compile", str(path), "--arch", "sm_80"]) == 0
    said = capsys.readouterr()
    name = "a::old" if space else "old"
    assert f"rawnn: '{name}' is left out: an #if removes it for sm_80\n" in said.err
    assert "copy" in said.out
    assert run(["kernel", "compile", str(path), name, "--arch", "sm_80"]) != 0
    path.write_text(f"{condition}\n{within}\n#endif\n{COPY.replace('x[0]', 'z[0]')}")
    assert run(["kernel", "compile", str(path), "--arch", "sm_80"]) != 0
    assert 'identifier "z" is undefined' in capsys.readouterr().err


def test_a_kernel_without_a_body_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                            ) -> None:
    path = tmp_path / "declared.cu"
    path.write_text("__global__ void later(float* y, int n);\n")
    for command, name in (("compile", []), ("compile", ["later"]), ("show", ["later"])):
        assert run(["kernel", command, str(path), *name, "--arch", "sm_80"]) == 1
        assert "declares the kernel 'later', but does not define it" in capsys.readouterr().err
    with pytest.raises(CompileError, match="does not define it"):
        rawnn.Kernel(path, "later", device=rawnn.lab.simulated())


def test_a_macro_may_put_the_names_of_kernels_together(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pasted.cu"
    path.write_text("#define COPY(T) \\\n"
                    "  __global__ void copy_##T(T* y, const T* x) { *y = *x; }\n"
                    "COPY(float)\nCOPY(double)\n")
    kernel = rawnn.Kernel(path, "copy_double", device=rawnn.lab.simulated())
    assert "copy_double(double* arg0, double* arg1)" in repr(kernel)
    assert run(["kernel", "compile", str(path), "copy_float", "--arch", "sm_80"]) == 0
    assert run(["kernel", "compile", str(path), "--arch", "sm_80"]) == 2
    assert "its kernels are made by a macro" in capsys.readouterr().err
    assert run(["kernel", "compile", str(path), "copy_int", "--arch", "sm_80"]) != 0
    with pytest.raises(ConfigError, match="there is no kernel 'copied'"):
        rawnn.Kernel(COPY, "copied", device=rawnn.lab.simulated())


def test_a_kernel_that_launches_kernels_is_refused_by_name(file: Path) -> None:
    with pytest.raises(CompileError, match=r"app\.cu, line 19: 'parent' cannot be compiled: it "
                                           r"launches kernels from the device \(<<<\)"):
        build(WHOLE, "parent", name=str(file))


def test_what_nvrtc_takes_is_compiled_as_it_is() -> None:
    text = "struct Unused { int a; };\n__global__ void k(float* x) { x[0] = 1; }\n"
    assert build(text).left_out == ()


def test_the_cache_remembers_what_was_left_out(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path, notify=pytest.fail)
    first, second = (build(WHOLE, "soft", cache=cache) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert first.left_out == second.left_out != ()


def test_headers_of_the_project_are_read_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "util.h").write_text(
        '#pragma once\n#include "../deep.h"\n#include <string>\n'
        "inline void report(const std::string& s) { puts(s.c_str()); }\n"
        "inline __device__ float twice(float x) { return 2 * x * DEEP; }\n")
    (tmp_path / "deep.h").write_text("#define DEEP 3\nvoid run();\n")
    text = '#include "util.h"\n#include "inc/util.h"\n' \
           "__global__ void k(float* x) { x[0] = twice(x[0]); }\nint main() { report(\"\"); }\n"
    path = tmp_path / "k.cu"
    path.write_text(text)
    built = build(text, "k", tmp_path / "inc", name=str(path))
    assert {each.name for each in built.left_out} == {"report", "run", "main", "<string>"}


def test_an_error_in_the_devices_part_has_its_own_line(file: Path) -> None:
    with pytest.raises(CompileError) as caught:
        build(WHOLE.replace("sum * square", "sums * square"), "soft", name=str(file))
    message = str(caught.value)
    assert "cannot compile the device's part of" in message.split("\n")[0]
    assert message.split("\n")[0].endswith("1 error")
    assert 'app.cu(16): error: identifier "sums" is undefined' in message


@pytest.mark.parametrize(("text", "sentence"), [
    ("float twice(float x) { return 2 * x; }\n__global__ void k(float* x) { *x = twice(*x); }",
     "function twice (line 1) is the host's, and device code uses it: declare it __device__"),
    ("int steps = 3;\nint main() { }\n__global__ void k(float* x) { *x = steps; }",
     "variable steps (line 1) is the host's, and device code uses it"),
    ("int main() { }\n__global__ void k(float* x) { cudaFree(x); }",
     "cudaFree is of CUDA's runtime, which code compiled by NVRTC cannot call"),
    ("#include <mine/parts.h>\nint main() { }\n__global__ void k(float* x) { *x = part(1); }",
     "part may be declared in a header that is not found (<mine/parts.h>): name its folder"),
    ('#include "parts.h"\nint main() { }\n__global__ void k(float* x) { *x = part(1); }',
     "'parts.h' is looked for beside the source and in the folders of include=[...]"),
    ("#include <GL/glew.h>\nint main() { }\n__global__ void k(int* x) { GLuint n; }",
     "GLuint may be declared in a header of the host, which is left out (<GL/glew.h>)"),
    ("texture<float, 2> t;\nint main() { }\n__global__ void k(float* x) { *x = tex2D(t, 0, 0); }",
     "texture and surface references are gone from CUDA 12 on"),
])
def test_what_cannot_be_compiled_has_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(CompileError) as caught:
        build(text)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1",
                                      "utf-32", "utf-8"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_sources_and_headers_of_any_encoding(tmp_path: Path, encoding: str, newline: str) -> None:
    text = '#include "part.h"\n// größer µ\n__global__ void k(float* x) { x[0] = PART; }\n'
    header = "#pragma once\n// Länge\n#define PART 3\n"
    (tmp_path / "k.cu").write_bytes(text.replace("\n", newline).encode(encoding))
    (tmp_path / "part.h").write_bytes(header.replace("\n", newline).encode(encoding))
    device = rawnn.lab.simulated()
    kernel = rawnn.Kernel(tmp_path / "k.cu", "k", device=device)
    assert kernel.source.text == text
    assert kernel.left_out == ()


def test_names_that_nvcc_knows_without_a_header() -> None:
    text = """__global__ void k(float* x, uint32_t n, uint m) {
    constexpr float least = -INFINITY, nothing = NAN;
    static_assert(M_PI > 3.14159265 && M_PI < 3.14159266 && FLT_MAX > 3e38f && INT_MAX == ~INT_MIN);
    if (threadIdx.x < n + m) x[0] = fmaxf(least, x[0]) + nothing;
}
"""
    assert build(text).cubin.startswith(b"\x7fELF")
    with pytest.raises(CompileError, match='identifier "PI" is undefined'):
        build(text.replace("M_PI", "PI"))


def test_constants_have_the_bits_of_ieee() -> None:
    text = ("__global__ void k(float* x, double* y) "
            "{ x[0] = INFINITY; x[1] = -INFINITY; y[0] = M_PI; y[1] = HUGE_VAL; }")
    ptx = compile_source(Nvrtc, text, name="k.cu", arch="compute_90", expressions=("k",)).cubin
    found = {int(word) & 2**64 - 1 for word in re.findall(r"(?<![\w.])-?\d+", ptx.decode())}
    found |= {int(word, 16) for word in re.findall(r"\b0[fdx]([0-9A-Fa-f]+)", ptx.decode())}
    for bits in (np.float32("inf").view("u4"), np.float64(np.pi).view("u8"),
                 np.float64("inf").view("u8")):
        assert int(bits) in found
    assert {int(np.float32("-inf").view("u4")), int(np.float32("-inf").view("i4")) & 2**64 - 1
            } & found


def test_an_error_survives_the_way_between_processes() -> None:
    with pytest.raises(CompileError) as caught:
        build("__global__ void k(float* x) { x[0] = missing; }")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("words", ["x[0] = 1;", "x[0] = std::min(1.0f, x[1]);",
                                   "using namespace std; x[0] = min(1.0f, x[1]);"])
def test_headers_are_emptied_that_the_devices_part_does_without(
        tmp_path: Path, words: str, is_whole: bool) -> None:
    """C++'s own where nothing is of `std`, the host's always, and in a file with code for the host
    what is not there: in angle brackets, and no header for the device."""
    text = "".join(f"#include {name}\n" for name in (
        "<algorithm>", "<limits>", "<iostream>", "<helper_cuda.h>", "<somewhere/else.h>",
        "<cub/none.cuh>", "<cooperative_groups_none.h>"))
    text += f"__global__ void k(float* x) {{ {words} }}\n"
    text += "int main() { return 0; }\n" if is_whole else ""
    found = whole_file.remove_host_code(text, [tmp_path], [tmp_path], ["k"])
    assert found is not None
    emptied = {each.name for each in found.left_out if each.what == "header"}
    standard = {"<algorithm>", "<limits>"} if is_whole and "std" not in words else set()
    missing = {"<somewhere/else.h>"} if is_whole else set()
    assert emptied == {"<iostream>", "<helper_cuda.h>", *standard, *missing}
