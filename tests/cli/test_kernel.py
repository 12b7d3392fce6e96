"""`rawnn kernel`: compiled without a GPU, for any architecture."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.cli import kernel as kernel_command
from rawnn.cli import run
from rawnn.cli.compiler import macros
from rawnn.common.errors import DeviceError
from rawnn.cuda.compiling.resources import occupancy, resource_usage, spills
from rawnn.engine import machine
from rawnn.lab import inspection
from rawnn.lab.kernel_source import Source
from tests import requires

requires.module("cuda.bindings.nvrtc")

SOURCE = """
__global__ void plain(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[0] = s[63 - threadIdx.x];
}
template <typename T, int N> __global__ void many(T* x) { x[0] = N * FACTOR; }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("kernels.cu").write_text(SOURCE)
    return "kernels.cu"


def test_kernels_are_compiled_for_the_gpu_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def opened(ordinal: int, notify: Any) -> Any:
        if ordinal or not is_there:
            raise DeviceError("no GPU")
        return SimpleNamespace(arch="sm_123", close=lambda: closed.append("sm_123"))

    monkeypatch.setattr(machine, "open_gpu", opened)
    is_there = True
    assert (kernel_command._gpu_architecture(), closed) == ("sm_123", ["sm_123"])
    is_there = False
    assert kernel_command._gpu_architecture() == "sm_90"


def test_compile_says_what_each_instance_uses(file: str, capsys: pytest.CaptureFixture[str]
                                              ) -> None:
    assert run(["kernel", "compile", file, "plain", "many<float,3>", "--arch", "sm_90a", "-D",
                "FACTOR=2", "--block", "256"]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()
            if "│" in line]
    assert [row[0] for row in rows] == ["plain", "many<float,3>"]
    assert rows[0][2:6] == ["256", "0", "0", "0"]
    assert all(int(row[1]) > 0 and row[7].endswith("%") for row in rows)


SPILLING = """
template <int N> __global__ void __maxnreg__(24) spilling(float* p, int n) {
    float a[N];
    for (int i = 0; i < N; i++) a[i] = p[i];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < N; i++) a[i] = a[i] * p[i + j] + a[(i + 1) % N];
    float s = 0;
    for (int i = 0; i < N; i++) s += a[i] * p[i + n];
    p[0] = s;
}
"""


def test_each_instance_has_its_own_registers_spills_and_occupancy() -> None:
    """Two instances that spill differently and one that does not, against ptxas's report."""
    listed = ("spilling<40>", "plain", "spilling<32>")
    source = Source(SPILLING + SOURCE.partition("template")[0], name="spilling.cu")
    found = inspection.resources(source, listed, "sm_90", 128)
    built = inspection.compile_instances(source, listed, "sm_90")
    used, log = resource_usage(built.cubin), spills(built.log)
    assert [each.expression for each in found] == list(listed)
    for each in found:
        name = built.lowered[each.expression]
        assert (each.usage, each.spilled) == (used[name], log[name])
        assert each.occupancy == occupancy("sm_90", threads=128, registers=each.usage.registers,
                                           shared=each.usage.shared)
    assert found[0].spilled > found[2].spilled > found[1].spilled == (0, 0)
    assert found[1].usage.shared == 256
    assert inspection.resources(source, listed, "sm_90")[0].occupancy is None


def test_show_prints_ptx(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "show", file, "plain", "--arch", "sm_80", "-D", "FACTOR=1"]) == 0
    printed = capsys.readouterr().out
    assert ".target sm_80" in printed
    assert "st.shared.f32" in printed


def test_show_without_nvdisasm_says_where_to_get_it(file: str, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(inspection, "tool", lambda name: None)
    assert run(["kernel", "show", file, "plain", "--sass", "--arch", "sm_90"]) == 1
    assert "pip install nvidia-cuda-nvdisasm" in capsys.readouterr().err


def test_a_file_of_templates_and_kernels_compiles_the_kernels_and_lists_the_others(
        file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "compile", file, "--arch", "sm_90", "-D", "FACTOR=2"]) == 0
    printed = capsys.readouterr()
    assert "plain" in printed.out
    assert "'many' is a template: name an instance, such as 'many<T, N>'" in printed.err


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["kernels.cu", "many"], "'many' is a template: name an instance, such as 'many<T, N>'"),
    (["kernels.cu", "plan"], "there is no kernel 'plan'; did you mean 'plain'?"),
    (["none.cu"], "cannot read the kernel none.cu"),
    (["kernels.cu", "plain", "--arch", "hopper"], "arch = 'hopper': give one such as"),
    (["kernels.cu", "plain", "--arch", "sm_20"], "it compiles only for sm_"),
    (["kernels.cu", "plain", "--option", "fast"], "does not begin with a dash"),
    (["kernels.cu", "plain", "-I", "nowhere"], "there is no folder nowhere"),
    (["kernels.cu", "plain", "-D", "1A=3"], "'1A' is no name of a macro"),
])
def test_what_cannot_be_compiled_is_one_sentence(
        file: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "compile", *arguments, "--arch", "sm_90"][
        : None if "--arch" not in arguments else -2]) != 0
    assert sentence in capsys.readouterr().err


def test_one_parameter_that_is_not_known_does_not_stop_the_others(
        file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("whole.cu").write_text("""
        struct Functor { float by; __device__ float of(float x) const { return by * x; } };
        namespace inner { __global__ void first(Functor f, float* x) { x[0] = f.of(x[0]); } }
        __global__ void second(float* x, void (*f)(float)) { x[0] = FAST; }
        """)
    assert run(["kernel", "compile", "whole.cu", "-D", "FAST"]) == 0  # as 1: it is a number
    printed = capsys.readouterr().out
    assert "inner::first" in printed
    assert "second" in printed
    assert run(["kernel", "show", "whole.cu", "inner::first", "-D", "FAST=2"]) == 0
    assert ".entry _ZN5inner5first" in capsys.readouterr().out


def test_macros_are_read_as_compilers_read_them() -> None:
    assert macros(["A", "B=", "C=1=2", " D =x", "E=-1.5f", "F = 3"]) == {
        "A": 1, "B": "", "C": "1=2", "D": "x", "E": "-1.5f", "F": " 3"}


def test_a_template_whose_arguments_have_defaults_is_an_instance_of_its_own(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "usual.cu"
    file.write_text("template <typename T = float, int N = 4> __global__ void usual(T* x) {\n"
                    "  x[threadIdx.x] *= N; }\n")
    for words in ((), ("usual",), ("usual<>",), ("usual<float>",)):
        assert run(["kernel", "compile", str(file), *words, "--arch", "sm_90"]) == 0
        assert "usual<" in capsys.readouterr().out


def test_kernels_are_listed_where_brackets_of_the_host_do_not_match() -> None:
    text = "__global__ void k(int* x) { x[0] = 1; }\nvoid f() { (\n"
    assert inspection.list_instances(Source.of(text)) == (("k",), ())
