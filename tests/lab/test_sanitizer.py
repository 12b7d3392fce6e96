"""compute-sanitizer's reports as data, read from a program that prints what the tool does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import rawnn
from rawnn.common.errors import ConfigError, DeviceError, MissingLibrary
from rawnn.lab import sanitizer

MEMCHECK = """========= COMPUTE-SANITIZER
hello of the program
========= Invalid __global__ write of size 4 bytes
=========     at saxpy(float *, int)+0x70 in /tmp/saxpy.cu:9
=========     by thread (31,0,0) in block (2,0,0)
=========     Address 0x7f0000 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: at cuLaunchKernel in libcuda.so
=========
========= Invalid __global__ write of size 4 bytes
=========     at saxpy(float *, int)+0x70 in /tmp/saxpy.cu:9
=========     by thread (30,0,0) in block (2,0,0)
=========
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 5 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(float *):0x1e0 in reduce.cu:22
=========     and Read access at reduce(float *):0x2a0 in reduce.cu:24 [12 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Write access at k(int *)+0x10 in k.cu:2
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
CLEAN = "========= COMPUTE-SANITIZER\nfine\n========= ERROR SUMMARY: 0 errors\n"


def test_memcheck() -> None:
    found = sanitizer.parsed("memcheck", ["a"], MEMCHECK, 0)
    assert not found
    assert (found.errors, len(found.complaints)) == (5, 3)
    first = found.complaints[0]
    assert first.message == "Invalid __global__ write of size 4 bytes"
    assert (first.kernel, first.line) == ("saxpy(float *, int)", "/tmp/saxpy.cu:9")
    assert first.place == "thread (31,0,0) in block (2,0,0)"
    assert "Host Frame" not in first.text
    assert found.output == "hello of the program"
    assert "5 errors" in str(found)
    assert "saxpy.cu:9 (thread (31,0,0) in block (2,0,0)); 1 more like it" in str(found)


def test_racecheck() -> None:
    found = sanitizer.parsed("racecheck", ["a"], RACECHECK, 0)
    assert not found
    assert found.errors == 1
    assert found.complaints[0].message.startswith("Race reported between Write access")
    assert found.complaints[0].line == "reduce.cu:22"
    warned = sanitizer.parsed("racecheck", ["a"], WARNED, 0)
    assert warned
    assert len(warned.complaints) == 1


def test_errors_of_all_processes_count() -> None:
    text = "".join(f"========= ERROR SUMMARY: {count} errors\n" for count in (2, 0, 3, 0))
    found = sanitizer.parsed("memcheck", ["a"], text, 0)
    assert (found.errors, bool(found)) == (5, False)


def test_a_clean_run_and_one_that_failed() -> None:
    clean = sanitizer.parsed("initcheck", ["a"], CLEAN, 0)
    assert clean
    assert str(clean).startswith("initcheck: nothing found (reads of global memory")
    failed = sanitizer.parsed("initcheck", ["a"], CLEAN, 3)
    assert not failed
    assert "ended with exit status 3" in str(failed)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script, and a compute-sanitizer that says what its tool would, then runs it."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"""#!{sys.executable}
import subprocess, sys, time
tool = sys.argv[sys.argv.index("--tool") + 1]
command = sys.argv[sys.argv.index("all") + 1:]
if "--slow" in command:
    time.sleep(30)
    command.remove("--slow")
while command[0].startswith("-"):
    print("option", command.pop(0))
done = subprocess.run(command, capture_output=True, text=True)
print({{"memcheck": {MEMCHECK!r}, "racecheck": {RACECHECK!r}}}.get(tool, {CLEAN!r}), end="")
print(done.stdout, end="")
print(done.stderr, end="", file=sys.stderr)
sys.exit(done.returncode)
""")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mine.py").write_text("import os, sys\nprint('ran', *sys.argv[1:])\n"
                                      "print('warned', os.environ.get('OWN'), file=sys.stderr)\n")
    return str(tmp_path / "mine.py")


def test_every_tool_runs_the_script(script: str) -> None:
    found = rawnn.sanitize(script, "fast")
    assert [each.tool for each in found] == list(sanitizer.TOOLS)
    assert [bool(each) for each in found] == [False, False, True, True]
    assert all("ran fast" in each.output for each in found)
    only, = rawnn.sanitize([sys.executable, script], "slow", tools=["synccheck"],
                           options=["--lines", "--all"], environment={"OWN": "7"})
    assert only
    assert only.command == (sys.executable, script, "slow")
    for said in ("option --lines", "option --all", "ran slow", "warned 7"):
        assert said in only.output


def test_what_is_refused(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no tool 'memchek'; did you mean 'memcheck'\?"):
        rawnn.sanitize(script, tools=["memchek"])
    with pytest.raises(ConfigError, match="there is no script"):
        rawnn.sanitize("none.py")
    with pytest.raises(DeviceError, match="did not end within"):
        rawnn.sanitize([script, "--slow"], tools=["memcheck"], timeout=0.2)
    monkeypatch.setattr(sanitizer.headers, "tool", lambda name: None)
    with pytest.raises(MissingLibrary, match="it comes with the CUDA toolkit"):
        rawnn.sanitize(script)
