"""tools/lock_clocks.sh: the clocks it picks, what it refuses, and that it restores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import requires

from .clock_machine import BASH, LOCK, NO_PERMISSION, RESTORE, SCRIPT, Machine

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or not Path("/proc/self/stat").exists(),
    reason="needs bash and /proc",
)


# ---- the plain course -------------------------------------------------------------------------


def test_locks_runs_and_restores_in_order(machine: Machine) -> None:
    done = machine.run(*machine.command("true"))
    assert done.returncode == 0, done.stderr
    assert machine.changes() == [*LOCK, "run", *RESTORE]
    assert "graphics 1590 MHz, memory 5000 MHz" in done.stderr


@pytest.mark.parametrize(
    ("body", "status"), [("exit 7", 7), ("kill -KILL $$", 137), ("exec /", 126)]
)
def test_status_is_the_commands_and_clocks_are_restored(
    machine: Machine, body: str, status: int
) -> None:
    done = machine.run(*machine.command(body))
    assert done.returncode == status
    assert machine.changes() == [*LOCK, "run", *RESTORE]


def test_command_keeps_its_arguments_stdin_and_stdout(machine: Machine) -> None:
    done = machine.run("--", BASH, "-c", 'cat; echo "[$1]"', "x", "a  b*", stdin="hello\n")
    assert done.stdout == "hello\n[a  b*]\n"


def test_exports_what_it_locked(machine: Machine) -> None:
    done = machine.run("--sm=1200", "--mem", "5000", *machine.command("env"))
    names = dict(line.split("=", 1) for line in done.stdout.splitlines() if "RAWNN_" in line)
    assert names == {
        "RAWNN_CLOCKS": "locked",
        "RAWNN_LOCKED_GPU": "0",
        "RAWNN_LOCKED_SM_MHZ": "1200",
        "RAWNN_LOCKED_MEM_MHZ": "5000",
    }
    assert "-i 0 -lgc 1200,1200" in machine.changes()


def test_mem_none_leaves_the_memory_clock_alone(machine: Machine) -> None:
    done = machine.run("--mem", "none", *machine.command("env"))
    assert machine.changes() == [LOCK[0], "run", "-i 0 -rgc"]
    assert "RAWNN_LOCKED_MEM_MHZ" not in done.stdout


def test_no_lock_only_observes(machine: Machine) -> None:
    stale = {"RAWNN_LOCKED_SM_MHZ": "1", "RAWNN_LOCKED_GPU": "0"}
    done = machine.run("--no-lock", *machine.command("env; exit 5"), **stale)
    assert done.returncode == 5
    assert machine.changes() == ["run"]
    assert "RAWNN_CLOCKS=observed" in done.stdout
    assert "RAWNN_LOCKED" not in done.stdout
    assert "before the command (graphics, memory, MHz): 345, 405" in done.stderr
    assert "after the command" in done.stderr


def test_no_lock_goes_on_without_nvidia_smi(machine: Machine) -> None:
    done = machine.run("--no-lock", BASH, "-c", "exit 4", PATH=without_nvidia_smi(machine))
    assert done.returncode == 4
    assert done.stderr == ""


def test_dry_run_prints_the_plan_and_touches_nothing(machine: Machine) -> None:
    done = machine.run("--dry-run", *machine.command("true"))
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert machine.changes() == []
    assert [line.removeprefix("nvidia-smi ") for line in lines[:2] + lines[3:]] == [*LOCK, *RESTORE]
    assert lines[2].startswith("RAWNN_CLOCKS=locked RAWNN_LOCKED_GPU=0 RAWNN_LOCKED_SM_MHZ=1590 ")


@pytest.mark.parametrize(
    "options", [["--mem=none"], ["--sm=1200", "--mem", "5000"], ["--no-lock"]]
)
def test_the_plan_is_what_a_run_does(machine: Machine, options: list[str]) -> None:
    plan = machine.run("--dry-run", *options, *machine.command("env")).stdout.splitlines()
    assert machine.changes() == []
    done = machine.run(*options, *machine.command("env")).stdout.splitlines()
    (at,) = (n for n, line in enumerate(plan) if line.startswith("RAWNN_CLOCKS="))
    changes = [line.removeprefix("nvidia-smi ") for line in plan]
    assert [*changes[:at], "run", *changes[at + 1 :]] == machine.changes()
    assert sorted(word for word in plan[at].split() if word.startswith("RAWNN_")) == sorted(
        line for line in done if line.startswith("RAWNN_")
    )


# ---- the choice of clocks ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "clock"),
    [
        ({}, 1590),  # 80 % of 2000 is 1600; 1605 is above
        ({"FAKE_DEFAULT": "1200"}, 1200),
        ({"FAKE_DEFAULT": "1300"}, 1200),  # a default that is not in the list: the next lower one
        ({"FAKE_DEFAULT": "2000"}, 1590),  # a default that is the maximum boost is not sustained
        ({"FAKE_MAX": "[N/A]"}, 1590),  # then the highest supported one is the maximum
        ({"FAKE_MAX": "600"}, 1200),  # nothing low enough: the lowest
        ({"FAKE_DEFAULT_MEM": "405"}, 600),  # graphics clocks depend on the memory clock
    ],
)
def test_default_clock(machine: Machine, env: dict[str, str], clock: int) -> None:
    machine.run("true", **env)
    assert machine.changes()[0] == f"-i 0 -lgc {clock},{clock}"


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["--sm", "1700"], "--sm 1605"),
        (["--sm", "01600"], "--sm 1605"),  # decimal, not octal
        (["--sm", "600"], "--sm 1200"),  # supported, but not at this memory clock
        (["--mem", "6000"], "--mem 5000"),
    ],
)
def test_unsupported_clock_is_refused_naming_the_nearest(
    machine: Machine, arguments: list[str], nearest: str
) -> None:
    done = machine.run(*arguments, *machine.command("true"))
    assert done.returncode == 125
    assert f"nearest supported one: {nearest}\n" in done.stderr
    assert machine.changes() == []


# ---- what is missing --------------------------------------------------------------------------


def without_nvidia_smi(machine: Machine) -> str:
    """A PATH with the programs that the script calls, and no nvidia-smi, real or fake."""
    tools = machine.folder / "few"
    tools.mkdir()
    for name in ("bash", "env", "grep", "sleep", "cat", "setsid"):
        (tools / name).symlink_to(str(shutil.which(name)))
    return str(tools)


def assert_refused(machine: Machine, done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 125
    assert "run" not in machine.changes()
    for text in (*said, "--no-lock"):
        assert text in done.stderr


def test_no_nvidia_smi(machine: Machine) -> None:
    done = machine.run(*machine.command("true"), PATH=without_nvidia_smi(machine))
    assert_refused(machine, done, "nvidia-smi is not on PATH")


def test_no_such_gpu(machine: Machine) -> None:
    done = machine.run("--gpu", "9", *machine.command("true"))
    assert_refused(machine, done, "GPU 9", "No devices were found", "nvidia-smi -L")


def test_no_driver(machine: Machine) -> None:
    rule = "*--query=9=NVIDIA-SMI has failed because it couldn't communicate with the driver."
    done = machine.run(*machine.command("true"), FAKE_FAIL=rule)
    assert_refused(machine, done, "couldn't communicate")


def test_mig_mode(machine: Machine) -> None:
    done = machine.run(*machine.command("true"), FAKE_MIG="Enabled")
    assert_refused(machine, done, "MIG mode", "-mig 0")


def test_no_supported_clocks(machine: Machine) -> None:
    done = machine.run(*machine.command("true"), FAKE_SUPPORTED="[N/A]\\n")
    assert_refused(machine, done, "does not list its supported clocks")


def test_no_permission(machine: Machine) -> None:
    arguments = ["--sm", "1200", *machine.command("true")]
    done = machine.run(*arguments, FAKE_FAIL=f"*-lgc=4={NO_PERMISSION}")
    assert_refused(machine, done, "no permission", 'sudo -E env "PATH=$PATH"', "--sm 1200 ")
    assert machine.changes() == ["-i 0 -lgc 1200,1200"]


@pytest.mark.parametrize("status", [0, 3])  # nvidia-smi ends 0 when it "moves on"
def test_memory_lock_unsupported_restores_graphics(machine: Machine, status: int) -> None:
    text = "Setting locked memory clocks is not supported for GPU 0. Treating as warning."
    done = machine.run(*machine.command("true"), FAKE_FAIL=f"*-lmc={status}={text}")
    assert_refused(machine, done, "does not support locking its memory clock", "--mem none", text)
    assert machine.changes() == [*LOCK, "-i 0 -rgc"]


def test_graphics_lock_failing_for_another_reason_shows_it(machine: Machine) -> None:
    done = machine.run(*machine.command("true"), FAKE_FAIL="*-lgc=1=Some odd thing")
    assert_refused(machine, done, "nvidia-smi said: Some odd thing")


def test_persistence_mode_off_is_reported(machine: Machine) -> None:
    done = machine.run(*machine.command("true"), FAKE_PERSISTENCE="Disabled")
    assert done.returncode == 0
    assert "nvidia-smi -i 0 -pm 1" in done.stderr


def test_lock_within_a_lock_of_the_same_gpu_is_refused(machine: Machine) -> None:
    done = machine.run(BASH, SCRIPT, *machine.command("true"))
    assert done.returncode == 125
    assert "already locked" in done.stderr
    assert machine.changes() == [*LOCK, *RESTORE]


# ---- restoring that fails ---------------------------------------------------------------------


def test_restore_failing_once_is_tried_again(machine: Machine) -> None:
    done = machine.run(*machine.command("true"), FAKE_FAIL="-rgc=1=Unknown Error")
    assert done.returncode == 0
    assert machine.changes() == [*LOCK, "run", *RESTORE, "-i 0 -rgc"]
    assert "STILL LOCKED" not in done.stderr


@pytest.mark.parametrize(("command", "status"), [("true", 125), ("exit 7", 7)])
def test_restore_failing_for_good_is_loud(machine: Machine, command: str, status: int) -> None:
    done = machine.run(*machine.command(command), FAKE_FAIL="*-rmc=1=Unknown Error")
    assert done.returncode == status
    assert "MEMORY CLOCK OF GPU 0 IS STILL LOCKED: Unknown Error" in done.stderr
    assert "sudo nvidia-smi -i 0 -rmc\n" in done.stderr
    assert machine.changes()[-1] == "-i 0 -rgc"  # the other clock is restored all the same


# ---- the command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--dry-run"],
        ["--"],
        ["--gpu"],
        ["--gpu", "a", "true"],
        ["--sm", "-5", "true"],
        ["--sm=", "true"],
        ["--mem", "12.5", "true"],
        ["--unknown", "true"],
    ],
)
def test_wrong_options_are_refused_with_the_usage(machine: Machine, arguments: list[str]) -> None:
    done = machine.run(*arguments)
    assert done.returncode == 2
    assert "usage: lock_clocks.sh" in done.stderr
    assert done.stdout == ""
    assert not (machine.folder / "calls").exists()


def test_help(machine: Machine) -> None:
    done = machine.run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: lock_clocks.sh")


def test_unknown_command_is_refused_before_locking(machine: Machine) -> None:
    done = machine.run("no-such-command-here")
    assert done.returncode == 127
    assert machine.changes() == []


@pytest.mark.skipif(SHELLCHECK is None, reason=requires.tool("shellcheck", "shellcheck"))
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        [str(SHELLCHECK), str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
