"""Run-time compilation: real NVRTC for every architecture, errors, and what the cache answers."""

import os
from pathlib import Path

import pytest

from rawnn.common.errors import CompileError, MissingLibrary
from rawnn.cuda.compiling import headers
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled, _search_paths, compile_source
from rawnn.cuda.errors import CallFailed
from rawnn.ptx import INCLUDE
from tests import requires

SOURCE = """#include "scale.cuh"
template <typename T, bool TWICE> __global__ void scale(T* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= FACTOR * (TWICE ? 2 : 1);
}
extern "C" __global__ void clear(float* x) { x[threadIdx.x] = 0; }
"""
EXPRESSIONS = ("scale<float,true>", "clear")
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")


class FakeNvrtc:
    """NVRTC's bindings without the library. It counts compilations and live programs; the "cubin"
    is the input. `fail` names the call that returns an error code."""

    identity = "fake 1"

    def __init__(self, fail: str = "", log: str = "") -> None:
        self.fail, self.log = fail, log
        self.compiled, self.alive, self.options = 0, 0, ()

    def _code(self, call: str) -> int:
        return 6 if call == self.fail else 0

    def error_text(self, code):
        return {6: "NVRTC_ERROR_FAKE"}[code], "as the test asked"

    def nvrtcVersion(self):
        return 0, 1, 2

    def nvrtcGetSupportedArchs(self):
        return 0, [90]

    def nvrtcCreateProgram(self, source, name):
        self.alive += 1
        return 0, source

    def nvrtcAddNameExpression(self, program, expression):
        return (self._code("nvrtcAddNameExpression"),)

    def nvrtcCompileProgram(self, program, options):
        self.compiled += 1
        self.options = tuple(options)
        return (self._code("nvrtcCompileProgram"),)

    def nvrtcGetProgramLog(self, program):
        return self._code("nvrtcGetProgramLog"), self.log

    def nvrtcGetLoweredName(self, program, expression):
        return self._code("nvrtcGetLoweredName"), f"_Z{expression}"

    def nvrtcGetCUBIN(self, program):
        return self._code("nvrtcGetCUBIN"), b"cubin of " + program.encode()

    def nvrtcGetPTX(self, program):
        return 0, "".join(f".entry _Z{name}() {{ ret; }}\n" for name in EXPRESSIONS).encode()

    def nvrtcDestroyProgram(self, program):
        self.alive -= 1
        return (0,)


@pytest.fixture(scope="module")
def nvrtc():
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    return Nvrtc()


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "scale.cuh").write_text('#pragma once\n#include "factor.cuh"\n')
    (tmp_path / "factor.cuh").write_text("#define FACTOR 3\n")
    (tmp_path / "kernel.cu").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def cache(tmp_path) -> CubinCache:
    return CubinCache(tmp_path / "cubins", notify=pytest.fail)


def build(nvrtc, folder, cache=None, text=SOURCE, **changes) -> Compiled:
    arguments = {
        "name": str(folder / "kernel.cu"), "arch": "sm_90", "expressions": EXPRESSIONS,
        "cache": cache, **changes,
    }  # fmt: skip
    return compile_source(nvrtc, text, **arguments)


# -- the real library ---------------------------------------------------------------------------


@pytest.mark.parametrize("relocatable", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture(nvrtc, folder, arch, relocatable):
    made = build(nvrtc, folder, arch=arch, relocatable=relocatable)
    assert made.cubin.startswith(b"\x7fELF")
    assert made.lowered == {"scale<float,true>": "_Z5scaleIfLb1EEvPT_i", "clear": "clear"}
    assert all(name.encode() in made.cubin for name in made.lowered.values())
    kind = int.from_bytes(made.cubin[16:18], "little")
    assert kind == (1 if relocatable else 2)  # ET_REL, ET_EXEC
    assert not made.cached
    assert made.seconds > 0
    assert made.log == ""


def test_half_precision_headers_are_found(nvrtc, folder):
    text = """#include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void half_add(__half* x, __nv_bfloat16* y) { *x = *x + *x; *y = *y; }"""
    assert b"half_add" in build(nvrtc, folder, text=text, expressions=("half_add",)).cubin


def test_working_directory_is_not_searched(nvrtc, folder, tmp_path, monkeypatch):
    hostile = tmp_path / "elsewhere"
    hostile.mkdir()
    (hostile / "scale.cuh").write_text("#error the wrong file\n")
    monkeypatch.chdir(hostile)
    build(nvrtc, folder)
    made = build(nvrtc, folder, name="bare.cu", include_paths=[folder])
    assert made.lowered == build(nvrtc, folder, name="bare.cu", options=[f"-I{folder}"]).lowered


def test_error_shows_numbered_lines_options_library_and_log(nvrtc, folder):
    text = SOURCE.replace("if (i < n)", "if (i < count)")
    with pytest.raises(CompileError) as caught:
        build(nvrtc, folder, text=text, name="kernel.cu", include_paths=[folder], options=["-G"])
    message = str(caught.value)
    _, major, minor = nvrtc.nvrtcVersion()
    first, *rest = message.splitlines()
    assert first == f"NVRTC {major}.{minor} cannot compile kernel.cu for sm_90: 1 error"
    assert 'kernel.cu(4): error: identifier "count" is undefined' in rest
    assert ">" not in message.split("\n  1 | #include")[0]
    assert "\n  1 | #include" in message
    assert "\n> 4 |     if (i < count) x[i] *= FACTOR" in message
    assert "\n  6 | extern" in message
    assert "kernels: scale<float,true>, clear" in rest
    assert "options: --gpu-architecture=sm_90 -std=c++17 -G -I" in message
    assert f"library: {headers.nvrtc_library_path()} (NVRTC {major}.{minor})" in rest
    assert message.rstrip().endswith('1 error detected in the compilation of "kernel.cu".')


def test_error_in_a_header_shows_the_header(nvrtc, folder):
    (folder / "factor.cuh").write_text("\n" * 9 + "#define FACTOR 3\nint wrong = ;\n")
    with pytest.raises(CompileError, match=r"\n> 11 \| int wrong = ;"):
        build(nvrtc, folder)


def test_missing_include_is_a_compile_error(nvrtc, folder):
    with pytest.raises(CompileError, match=r"scael\.cuh") as caught:
        build(nvrtc, folder, text=SOURCE.replace("scale.cuh", "scael.cuh"))
    assert '> 1 | #include "scael.cuh"' in str(caught.value)


@pytest.mark.parametrize(("count", "more"), [(1, 0), (5, 0), (6, 1)])
def test_errors_that_are_not_shown_are_counted(nvrtc, folder, count, more):
    text = "".join(f"__device__ void f{i}() {{ nothing{i}(); }}\n" for i in range(count))
    with pytest.raises(CompileError) as caught:
        build(nvrtc, folder, text=text, expressions=())
    message = str(caught.value)
    assert message.splitlines()[0].endswith(f": {count} error{'s' * (count > 1)}")
    assert (f"(and {more} more: see the log below)" in message) == (more > 0)
    assert message.count("(and ") == (more > 0)


def test_many_errors_are_cut_but_the_log_is_whole(nvrtc, folder):
    text = "".join(f"__device__ void f{i}() {{ nothing{i}(); }}\n" for i in range(9))
    with pytest.raises(CompileError) as caught:
        build(nvrtc, folder, text=text, expressions=())
    message = str(caught.value)
    assert "9 errors\n" in message
    assert "(and 4 more: see the log below)" in message
    assert message.count("nothing8") == 2  # the log's sentence and its source line


def test_unknown_architecture_lists_the_known(nvrtc, folder):
    with pytest.raises(CompileError, match=r"for sm_20: it compiles only for sm_\d+.*sm_90"):
        build(nvrtc, folder, arch="sm_20")


@pytest.mark.parametrize(("arch", "newer"), [("sm_20", False), ("sm_999", True)])
def test_a_gpu_newer_than_nvrtc_has_a_fix(nvrtc, folder, arch, newer):
    with pytest.raises(CompileError) as caught:
        build(nvrtc, folder, arch=arch)
    expected = str(caught.value).splitlines()[0]
    assert ("; a newer NVRTC may know it: pip install -U " in expected) == newer
    assert ("nvidia-cuda-nvrtc" in expected) == newer


def test_unknown_kernel_and_option(nvrtc, folder):
    with pytest.raises(CompileError, match="saxpy"):
        build(nvrtc, folder, expressions=("saxpy<float>",))
    with pytest.raises(CompileError, match="--no-such-option"):
        build(nvrtc, folder, options=["--no-such-option"])


def test_programs_of_the_real_library_are_destroyed(nvrtc, folder, monkeypatch):
    alive = []
    create, destroy = type(nvrtc).nvrtcCreateProgram, type(nvrtc).nvrtcDestroyProgram
    monkeypatch.setattr(
        type(nvrtc), "nvrtcCreateProgram", lambda s, *a: alive.append(1) or create(s, *a)
    )
    monkeypatch.setattr(
        type(nvrtc), "nvrtcDestroyProgram", lambda s, p: alive.pop() and destroy(s, p)
    )
    build(nvrtc, folder)
    with pytest.raises(CompileError):
        build(nvrtc, folder, text="wrong")
    assert alive == []


def test_empty_log_leaves_the_interpreter_alone(nvrtc, folder):
    """NVRTC writes a NUL into the buffer of an empty log, which must not be a shared object."""
    assert build(nvrtc, folder).log == ""
    assert bytes([32])[0] == 32


def test_a_hit_does_not_load_the_library(nvrtc, folder, cache):
    first = build(lambda: nvrtc, folder, cache)
    second = build(lambda: pytest.fail("NVRTC was loaded"), folder, cache)
    assert (first.cached, second.cached) == (False, True)
    assert (first.cubin, first.lowered) == (second.cubin, second.lowered)


# -- the cache ----------------------------------------------------------------------------------


def test_same_input_is_compiled_once(folder, cache):
    fake = FakeNvrtc()
    made = [build(fake, folder, cache) for _ in range(3)]
    assert [one.cached for one in made] == [False, True, True]
    assert fake.compiled == 1
    assert len({one.cubin for one in made}) == 1
    assert made[2].lowered == {"scale<float,true>": "_Zscale<float,true>", "clear": "_Zclear"}
    assert cache.info().entries == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"text": SOURCE + "\n"}, {"arch": "sm_80"}, {"arch": "sm_90a"},
        {"options": ("-use_fast_math",)}, {"relocatable": True}, {"expressions": ("clear",)},
        {"name": "other.cu", "include_paths": ["folder"]},
        {"preamble": "#define T float\n"}, {"programmatic": True}, {"probed": True},
    ],
)  # fmt: skip
def test_every_input_is_in_the_key(folder, cache, changes):
    fake = FakeNvrtc()
    if "include_paths" in changes:
        changes = {**changes, "include_paths": [folder]}
    build(fake, folder, cache)
    assert not build(fake, folder, cache, **changes).cached
    assert build(fake, folder, cache, **changes).cached
    assert build(fake, folder, cache).cached


@pytest.mark.parametrize("header", ["scale.cuh", "factor.cuh"])
def test_a_changed_header_is_compiled_anew(folder, cache, header):
    fake = FakeNvrtc()
    build(fake, folder, cache)
    old = (folder / header).read_text()
    (folder / header).write_text(old + "// changed\n")
    assert not build(fake, folder, cache).cached
    (folder / header).write_text(old)
    assert build(fake, folder, cache).cached


def test_each_preamble_has_its_own_entry(folder, cache):
    """Variants of a sweep differ in nothing but their macros."""
    fake = FakeNvrtc()
    preambles = ["", "#define T float\n", "#define T double\n", "#define T\n"]
    made = [build(fake, folder, cache, preamble=text).cubin for text in preambles]
    assert len(set(made)) == fake.compiled == len(preambles)
    again = [build(fake, folder, cache, preamble=text) for text in preambles]
    assert [each.cubin for each in again] == made
    assert all(each.cached for each in again)


def test_includes_that_include_each_other_end(folder, cache):
    (folder / "factor.cuh").write_text('#pragma once\n#include "scale.cuh"\n')
    assert build(FakeNvrtc(), folder, cache).cubin


def test_another_library_is_compiled_anew(folder, cache, monkeypatch):
    fake, other = FakeNvrtc(), FakeNvrtc()
    other.identity = "fake 2"
    build(fake, folder, cache)
    assert not build(other, folder, cache).cached
    real = FakeNvrtc()
    real.identity = None
    monkeypatch.setattr(headers, "nvrtc_identity", lambda: "bindings 13, libnvrtc.so.13:1:2")
    assert not build(real, folder, cache).cached
    assert build(real, folder, cache).cached
    monkeypatch.setattr(headers, "nvrtc_identity", lambda: None)  # files not found: asks NVRTC
    assert not build(lambda: real, folder, cache).cached
    assert build(lambda: real, folder, cache).cached


def test_cuda_headers_are_looked_up_only_where_included(folder, cache, tmp_path, monkeypatch):
    calls = []
    cuda = tmp_path / "cuda"
    cuda.mkdir()
    (cuda / "cuda_fp16.h").write_text("// half")
    monkeypatch.setattr(headers, "include_directories", lambda: calls.append(1) or (cuda,))
    fake = FakeNvrtc()
    build(fake, folder, cache)
    assert calls == []
    assert f"-I{cuda}" not in fake.options
    text = "#include <cuda_fp16.h>\n" + SOURCE
    build(fake, folder, cache, text=text)
    assert f"-I{cuda}" in fake.options
    assert build(fake, folder, cache, text=text).cached
    os.utime(cuda / "cuda_fp16.h", ns=(1, 1))  # another version of the header's wheel
    assert not build(fake, folder, cache, text=text).cached


def test_missing_cuda_headers_name_the_header(folder, monkeypatch):
    def missing():
        raise MissingLibrary("CUDA's headers cannot be found")

    monkeypatch.setattr(headers, "include_directories", missing)
    with pytest.raises(MissingLibrary, match=r"includes 'cuda_fp16\.h', but CUDA's headers"):
        build(FakeNvrtc(), folder, text="#include <cuda_fp16.h>\n")


OTHER_SHAPES = [b"", b"\xff\xff\xff\x7f{}", b"\2\0\0\0[]cubin", b"\2\0\0\0{}x"]


@pytest.mark.parametrize("content", OTHER_SHAPES)
def test_an_entry_of_another_shape_is_replaced(folder, cache, content):
    fake = FakeNvrtc()
    good = build(fake, folder, cache)
    (entry,) = cache.directory.iterdir()
    cache.put(entry.stem, content)
    again = build(fake, folder, cache)
    assert not again.cached
    assert again.cubin == good.cubin
    assert build(fake, folder, cache).cached


def test_a_damaged_entry_is_compiled_anew(folder, cache):
    fake = FakeNvrtc()
    build(fake, folder, cache)
    (entry,) = cache.directory.iterdir()
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    assert not build(fake, folder, cache).cached
    assert build(fake, folder, cache).cached
    assert fake.compiled == 2


def test_an_unwritable_cache_does_not_stop_compilation(folder):
    messages = []
    cache = CubinCache(folder / "kernel.cu" / "cubins", notify=messages.append)
    fake = FakeNvrtc()
    assert [build(fake, folder, cache).cached for _ in range(3)] == [False, False, False]
    assert len(messages) == 1


# -- errors of single calls ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "nvrtcAddNameExpression", "nvrtcCompileProgram", "nvrtcGetProgramLog",
        "nvrtcGetLoweredName", "nvrtcGetCUBIN",
    ],
)  # fmt: skip
def test_a_failed_call_is_named_and_the_program_destroyed(folder, cache, call):
    fake = FakeNvrtc(fail=call)
    with pytest.raises(CallFailed, match=rf"{call} failed with NVRTC_ERROR_FAKE.*kernel\.cu"):
        build(fake, folder, cache)
    assert fake.alive == 0
    assert cache.info().entries == 0


def test_warnings_are_kept_in_the_log(folder):
    assert build(FakeNvrtc(log="kernel.cu(3): warning: x\n"), folder).log.endswith("warning: x")


def test_includes_are_looked_for_in_folders_of_options_too(tmp_path: Path) -> None:
    """Behind the file's own, ahead of those that are named; each once."""
    file = tmp_path / "own.cu"
    file.write_text("")
    options = ("-Ione", "-DX=-Inone", "--include-path=two", "-Ione", "--include")
    assert _search_paths(str(file), [Path("three"), Path("two")], options) == [
        tmp_path, Path("one"), Path("two"), Path("three"), *INCLUDE]
    assert _search_paths("kernel.cu", [], ()) == [*INCLUDE]
