"""`rawnn kernel check`, `time` and `sweep`, by a file's header and by options."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rawnn
from rawnn.cli import run, trials
from rawnn.common.errors import ConfigError, DeviceError
from rawnn.sim import register
from rawnn.sim.kernel_references import forget
from tests import requires

requires.module("cuda.bindings.nvrtc")

SOURCE = """/* rawnn
kernel = "lab_axpy<float>"
grid = "cdiv(n, TILE)"
block = "TILE"
defines = {TILE = 128}
sizes = {n = "1..3000"}
reference = "a * x + y"
flops = "2 * n"
sweep = {TILE = [32, 64, 128]}
restrict = "TILE != 64"
*/
template <typename T> __global__ void lab_axpy(T* y, const T* x, T a, int n) {
    int i = blockIdx.x * TILE + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
PLAIN = """
__global__ void lab_rows(const float* x, float* y, int rows, int cols) {}
__global__ void lab_other(float* x) {}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("axpy.cu").write_text(SOURCE)
    Path("rows.cu").write_text(PLAIN)
    Path("rows.py").write_text("def summed(x):\n    return x.sum(1)\n")


def test_check_by_the_header(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "check", "axpy.cu", "--device", "sim"]) == 0
    printed = capsys.readouterr().out
    assert "lab_axpy<float>: right with all of 12 sets of sizes" in printed
    assert "not what the kernel computes" in printed


def test_check_by_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "check", "rows.cu", "lab_rows", "--device", "sim", "--reference",
                "rows.py:summed", "--grid", "rows,1", "--block", "cdiv(cols, 32) * 32", "--shape",
                "x=rows,cols", "--shape", "y=rows", "--size", "rows=1,7", "--size", "cols=1..600",
                "--length", "cols", "--trials", "4"]) == 0
    assert "right with all of 4 sets" in capsys.readouterr().out


def test_what_is_wrong_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    register("lab_axpy", lambda t, a: t.y.fill(0), {"x": ("n",), "y": ("n",)}, reads=("x",),
             writes=("y",))
    try:
        assert run(["kernel", "check", "axpy.cu", "--device", "sim", "--size", "n=5,100"]) == 1
        assert "lab_axpy<float>: WRONG with 2 of 2 sets of sizes" in capsys.readouterr().out
        assert run(["kernel", "time", "axpy.cu", "--device", "sim"]) == 1
        assert "WRONG" in capsys.readouterr().err
    finally:
        forget("lab_axpy")


def test_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "time", "axpy.cu", "--device", "sim", "--at", "n=1000", "--samples", "4",
                "-D", "TILE=64", "--bytes", "12 * n", "--value", "a=2.5"]) == 0
    printed = capsys.readouterr().out
    assert "n = 1,000 (grid 16, block 64)" in printed
    assert "12,000 bytes" in printed
    assert "2,000 operations" in printed


def test_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["axpy.cu", "--device", "sim", "--samples", "2", "--size", "n=1..50",
             "--resume", "kept"]
    assert run(["kernel", "sweep", *given]) == 0
    printed = capsys.readouterr()
    assert "2 of 2 variants tried, 2 right" in printed.out
    assert "best: TILE=" in printed.out
    assert "TILE=32: " in printed.err
    assert run(["kernel", "sweep", *given, "--over", "TILE=32,96", "--over", "shared=0,64",
                "--restrict", "TILE > 32 or shared < 1", "--budget", "2"]) == 0
    assert "2 of 3 variants tried" in capsys.readouterr().out
    assert len(Path("kept").read_text().splitlines()) == 4
    assert run(["kernel", "sweep", "rows.cu", "lab_other", "--device", "sim"]) == 2
    assert "say what to sweep over: --over TILE=64,128" in capsys.readouterr().err


def test_a_sweep_of_which_one_variant_is_right_names_it(capsys: pytest.CaptureFixture[str]
                                                        ) -> None:
    assert run(["kernel", "sweep", "axpy.cu", "--device", "sim", "--samples", "2", "--size",
                "n=1..50", "--over", "block=4096,64", "--restrict", "block > 0"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 variants tried, 1 right" in printed
    assert printed.splitlines()[-1] == "best: block=64"


def test_a_sweep_of_which_no_variant_is_right_names_no_best(
        capsys: pytest.CaptureFixture[str]) -> None:
    register("lab_axpy", lambda t, a: t.y.fill(0), {"x": ("n",), "y": ("n",)}, reads=("x",),
             writes=("y",))
    try:
        assert run(["kernel", "sweep", "axpy.cu", "--device", "sim", "--samples", "2", "--size",
                    "n=1..50"]) == 1
    finally:
        forget("lab_axpy")
    printed = capsys.readouterr()
    assert "2 of 2 variants tried, 0 right" in printed.out
    assert printed.out.count("WRONG") == printed.err.count("WRONG") == 2
    assert "best:" not in printed.out
    assert "rawnn: error" not in printed.err


@pytest.mark.parametrize("command", ["check", "time"])
def test_watching(command: str, monkeypatch: pytest.MonkeyPatch,
                  capsys: pytest.CaptureFixture[str]) -> None:
    waits = []

    def save(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            Path("axpy.cu").write_text(SOURCE.replace("a * x[i]", "a * z[i]"))
        if len(waits) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(trials, "sleep", save)
    assert run(["kernel", command, "axpy.cu", "--device", "sim", "--size", "n=1,50",
                "--watch"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("right with all of 2 sets") == 1
    assert printed.out.count("cold L2 cache") == (command == "time")
    assert printed.err.count("waiting for the next save beside axpy.cu; Ctrl-C ends") == 2
    assert "identifier \"z\" is undefined" in printed.err
    assert len(waits) == 4


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["rows.cu"], "has 2 kernels (lab_rows, lab_other): name one"),
    (["none.cu"], "cannot read the kernel none.cu"),
    *((["axpy.cu", option, text], f"{option} {text}: write NAME=VALUE")
      for option in ("--size", "--shape", "--value") for text in ("n", "n=", "=3")),
    (["axpy.cu", "--size", "n=many"], "write 1000, 1,31,4096 or 1..4096"),
    (["axpy.cu", "--device", "host"], "a kernel runs on gpu, gpu:N or sim"),
    (["axpy.cu", "--grid", "cdiv(m, 3)"], "asks for 'm'"),
])
def test_what_does_not_fit(arguments: list[str], sentence: str,
                           capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", "check", "--device", "sim", *arguments]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", ["time", "sweep"])
@pytest.mark.parametrize("value", ["10,20", "10..20", "many", "-3"])
def test_one_size_is_timed(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", command, "axpy.cu", "--device", "sim", "--at", f"n={value}"]) == 2
    assert f"--at n={value}: give one size, such as n=4096" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "time"])
def test_the_file_is_looked_for_ahead_of_the_gpu(command: str,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernel", command, "none.cu"]) == 2
    assert "cannot read the kernel none.cu" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "words"), [
    (["-D", "TIL=32"], "the macro TIL: axpy.cu mentions no 'TIL'; did you mean 'TILE'?"),
    (["--size", "m=100"], "sizes: nothing of lab_axpy<float> asks for 'm'; its parameters are "
                          "y, x, a, n"),
    (["--value", "b=2"], "values: nothing of lab_axpy<float> asks for 'b'"),
])
def test_names_that_the_file_does_not_have_are_refused(
        capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    assert run(["kernel", "check", "axpy.cu", "--device", "sim", *options]) == 2
    assert words in capsys.readouterr().err
    assert run(["kernel", "check", "axpy.cu", "--device", "sim", "-D", "TILE=32", "--size",
                "n=100", "--value", "a=2"]) == 0


@pytest.mark.parametrize(("line", "words"), [
    ('kernel = "copi"', "there is no kernel 'copi'; did you mean 'copy'?"),
    ("defines = {TILLE = 32}", "the macro TILLE: own.cu mentions no 'TILLE'; did you mean 'TILE'?"),
    ("sweep = {TILLE = [32, 64]}", "the macro TILLE: own.cu mentions no 'TILLE'")])
def test_what_the_header_alone_mentions_is_not_in_the_code(
        capsys: pytest.CaptureFixture[str], line: str, words: str) -> None:
    head = '/* rawnn\nreference = "x"\ngrid = 1\nblock = "BLOCK"\nsizes = {n = "1..32"}\n'
    code = ("#ifndef TILE\n#define TILE 32 // copi, TILLE\n#endif\n"
            "__global__ void copy(float* y, const float* x, int n) { y[0] = x[0] * TILE; }\n")
    command = "sweep" if line.startswith("sweep") else "check"
    Path("own.cu").write_text(f'{head}{line}\n*/\n{code}'.replace('"BLOCK"', "32"))
    assert run(["kernel", command, "own.cu", "--device", "sim"]) == 2
    assert words in capsys.readouterr().err
    Path("own.cu").write_text(f"{head}defines = {{BLOCK = 32}}\n*/\n{code}")  # for the launch
    assert run(["kernel", "check", "own.cu", "--device", "sim"]) == 0


def test_a_macro_of_a_header_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tile.cuh").write_text("#ifdef WIDE\n#define STEP 2\n#else\n#define STEP 1\n#endif\n")
    Path("own.cu").write_text('#include "tile.cuh"\n#include <cassert>\n'
                              "__global__ void own(float* x) { assert(x); x[0] = STEP; }\n")
    for macro in ("WIDE", "NDEBUG"):  # the second of CUDA's own header
        assert run(["kernel", "compile", "own.cu", "-D", macro]) == 0
    assert run(["kernel", "compile", "own.cu", "-D", "WIDTH=3"]) == 2
    assert "mentions no 'WIDTH'" in capsys.readouterr().err
    Path("own.cu").write_text("#define JOINED(a, b) a##b\n"
                              "__global__ void own(float* x) { x[0] = JOINED(WI, DTH); }\n")
    assert run(["kernel", "compile", "own.cu", "-D", "WIDTH=3"]) == 0


def test_a_missing_reference_says_where_it_belongs(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bare.cu"
    file.write_text("__global__ void bare(float* x, int n) { if (threadIdx.x < n) x[0] = 1; }")
    assert run(["kernel", "check", "--device", "sim", str(file)]) == 2
    assert 'in a .cu file reference = "a * x + y", in a comment that begins with rawnn' in \
        capsys.readouterr().err


def test_a_struct_is_a_list_in_the_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                          ) -> None:
    file = tmp_path / "struct.cu"
    file.write_text("""/* rawnn
grid = 1
block = 64
shapes = {x = ["n"]}
sizes = {n = [64]}
values = {p = [2.0, 64]}
reference = "x * p[0]"
*/
struct Scale { float a; int n; };
__global__ void struct_scale(float* x, Scale p) { if (threadIdx.x < p.n) x[threadIdx.x] *= p.a; }
""")
    assert run(["kernel", "check", "--device", "sim", str(file)]) == 0
    assert "right with all of 1 set" in capsys.readouterr().out


def test_the_header_of_the_named_kernel_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]
                                               ) -> None:
    file = tmp_path / "both.cu"
    file.write_text("".join(f"""/* rawnn
kernel = "header_{name}"
grid = 1
block = 64
shapes = {{x = ["n"]}}
sizes = {{n = [{n}]}}
reference = "x * {factor}"
*/
__global__ void header_{name}(float* x, int n) {{
    if (threadIdx.x < n) x[threadIdx.x] *= {factor};
}}
""" for name, n, factor in (("twice", 7, 2), ("thrice", 9, 3))))
    for name, n in (("header_twice", 7), ("header_thrice", 9)):
        assert run(["kernel", "check", "--device", "sim", str(file), name]) == 0
        assert f"at n = {n} " in capsys.readouterr().out
    assert run(["kernel", "check", "--device", "sim", str(file)]) == 2
    assert "has 2 headers, of header_twice, header_thrice: name one" in capsys.readouterr().err


def test_a_reference_that_never_ends_is_ended_at_the_limit(capsys: pytest.CaptureFixture[str]
                                                           ) -> None:
    Path("endless.py").write_text("def summed(x):\n    while True:\n        pass\n")
    Path("loaded.py").write_text("import time\ntime.sleep(1e6)\n")
    given = ["kernel", "check", "axpy.cu", "--device", "sim", "--limit", "0.3", "--reference"]
    assert run([*given, "endless.py:summed"]) == 2
    assert "the reference did not end within 0.3 s" in capsys.readouterr().err
    assert run([*given, "loaded.py:summed"]) == 2
    assert "the file of the reference did not end within 0.3 s" in capsys.readouterr().err


STUCK = """
import sys
from rawnn.cli import run
from rawnn.lab import time_limit
time_limit._GRACE = 0.2
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["check", "time", "sweep"])
def test_a_reference_that_is_stuck_in_compiled_code_ends_the_command(command: str) -> None:
    Path("stuck.py").write_text("import itertools\n\ndef summed(x):\n"
                                "    return sum(itertools.repeat(0))\n")
    done = subprocess.run(
        [sys.executable, "-c", STUCK, "kernel", command, "axpy.cu", "--device", "sim",
         "--reference", "stuck.py:summed", "--limit", "0.3"], timeout=120, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(Path(rawnn.__file__).parents[1])})
    assert done.returncode == -signal.SIGKILL
    assert [line for line in done.stderr.splitlines() if "error" in line] == [
        "rawnn: error: the reference did not end within 0.3 s, in a call of compiled code that "
        "cannot be interrupted: this process was killed"]
    assert "Traceback" not in done.stderr


def test_no_process_is_killed_behind_a_reference_that_ended() -> None:
    code = """
import time
from rawnn.lab import time_limit
time_limit._GRACE = 0.1
with time_limit.killed_if_stuck():
    for _ in range(3):
        with time_limit.time_limit(0.1, "it"):
            pass
    time.sleep(1)
    try:
        with time_limit.time_limit(0.1, "it"):
            while True: pass
    except time_limit.TimeLimitReached as error:
        print(error)
    time.sleep(1)
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=120, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(rawnn.__file__).parents[1])})
    assert done.stdout == "it did not end within 0.1 s, and was ended\nalive\n"
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize(("wanted", "opened"), [
    ("sim", "simulated"), ("gpu", "the default"), ("gpu:0", "0"), ("gpu:3", "3")])
def test_a_kernel_runs_on_the_device_that_is_asked_for(monkeypatch: pytest.MonkeyPatch,
                                                       wanted: str, opened: str) -> None:
    monkeypatch.setattr("rawnn.engine.machine.open_gpu", lambda number, notify: str(number))
    monkeypatch.setattr("rawnn.lab.arrays.default_device", lambda: "the default")
    monkeypatch.setattr("rawnn.lab.arrays.simulated", lambda: "simulated")
    assert trials._device(wanted) == opened


@pytest.mark.parametrize("wanted", ["host", "gpu:x", "gpu:-1", "cuda", ""])
def test_what_no_kernel_runs_on_is_refused(wanted: str) -> None:
    with pytest.raises(ConfigError, match="a kernel runs on gpu, gpu:N or sim"):
        trials._device(wanted)


def test_without_a_gpu_the_simulated_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, notify: Any) -> None:
        raise DeviceError("there is no GPU 3; without a GPU take another device")

    monkeypatch.setattr("rawnn.engine.machine.open_gpu", refuse)
    with pytest.raises(DeviceError) as caught:
        trials._device("gpu:3")
    assert str(caught.value) == ("there is no GPU 3; --device sim compiles the kernel and checks "
                                 "its launches without a GPU")


def test_a_program_that_waits_for_a_stuck_reference_says_so() -> None:
    """It is not killed: a notebook would lose what it holds. Later limits are watched, too."""
    code = """
import time
from rawnn.lab import time_limit
time_limit._GRACE = 0.2
for what in ("first", "second"):
    try:
        with time_limit.time_limit(0.1, what):
            sum(range(10**8))  # one call, which holds the interpreter
    except time_limit.TimeLimitReached as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=120, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(rawnn.__file__).parents[1])})
    assert done.returncode == 0
    assert done.stdout == "".join(f"{what} did not end within 0.1 s, and was ended\n"
                                  for what in ("first", "second"))
    assert [re.sub(r"\d+ ends", "N ends", line) for line in done.stderr.splitlines()] == [
        f"rawnn: {what} did not end within 0.1 s, in a call of compiled code that cannot be "
        f"interrupted: the program waits for it; kill N ends both" for what in ("first", "second")]
