"""tools/lock_clocks.sh: signals, with and without a terminal."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .clock_machine import BASH, DEADLINE_S, LOCK, RESTORE, SCRIPT, Machine

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or not Path("/proc/self/stat").exists(),
    reason="needs bash and /proc",
)


# ---- signals ----------------------------------------------------------------------------------

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
NAP = "for _ in {1..1000}; do sleep 0.01; done"


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_reaches_the_command_then_restores(machine: Machine, number: signal.Signals) -> None:
    # The command traps it, and takes its time: clocks are restored only when it is gone.
    trap = f"trap 'sleep 0.1; echo trapped >>\"$FAKE_DIR/calls\"; exit 3' {number.name[3:]}"
    process = machine.start(*machine.command(f'{trap}; : >"$FAKE_DIR/ready"; {NAP}'))
    machine.wait_for("ready")
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    assert machine.changes() == [*LOCK, "run", "trapped", *RESTORE]


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_ends_a_command_without_traps(machine: Machine, number: signal.Signals) -> None:
    # The sleep is a grandchild: the whole process group is told.
    # (bash alone would start it with SIGINT ignored, and drops a SIGINT while it waits for a
    # command that does not die of it: it runs none but builtins.)
    body = (
        '(trap - INT; echo $BASHPID >"$FAKE_DIR/pid"; : >"$FAKE_DIR/ready"; exec sleep 60) & '
        "sleep 60"
    )
    process = machine.start(*machine.command(body))
    grandchild = int(machine.wait_for("ready").with_name("pid").read_text())
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + number
    assert machine.changes() == [*LOCK, "run", *RESTORE]
    assert gone(grandchild)


def gone(pid: int) -> bool:
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_signal_ignored_by_the_command_waits_for_its_end(machine: Machine) -> None:
    body = 'trap "" TERM; : >"$FAKE_DIR/ready"; sleep 0.4; echo end >>"$FAKE_DIR/calls"'
    process = machine.start(*machine.command(body))
    machine.wait_for("ready")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert machine.changes() == [*LOCK, "run", "end", *RESTORE]


@pytest.mark.parametrize("call", ["-lgc", "-lmc"])
def test_signal_while_locking_restores_and_runs_nothing(machine: Machine, call: str) -> None:
    process = machine.start(*machine.command("true"), FAKE_SLOW=call)
    machine.wait_for("slow")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert "run" not in machine.changes()
    assert machine.changes()[-1] == "-i 0 -rgc"


def test_signal_to_all_while_restoring_changes_nothing(machine: Machine) -> None:
    # As Ctrl-C at a terminal would, it reaches nvidia-smi in the middle of its work as well.
    process = machine.start(*machine.command("exit 7"), FAKE_SLOW="-rmc")
    machine.wait_for("slow")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7
    assert machine.changes() == [*LOCK, "run", *RESTORE]


def test_closed_stderr_keeps_it_from_nothing(machine: Machine) -> None:
    rules = {"FAKE_SLOW": "-lgc", "FAKE_FAIL": "*-rmc=1=Unknown Error"}
    process = machine.start(*machine.command("exit 7"), **rules)
    machine.wait_for("slow")
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 7
    assert machine.changes() == [*LOCK, "run", "-i 0 -rmc", *RESTORE]


# ---- a terminal -------------------------------------------------------------------------------


@dataclass
class Terminal:
    """The script in the foreground of a pseudo-terminal."""

    pid: int
    master: int

    def status(self) -> int:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("the script did not end")


def hung_up(master: int) -> bool:
    try:
        os.fstat(master)
    except OSError:
        return True
    return False


@pytest.fixture
def terminal(machine: Machine) -> Iterator[Terminal]:
    """A command that counts its SIGINTs, reads a line, and ends after that."""
    body = (
        'trap \'echo int >>"$FAKE_DIR/calls"\' INT; : >"$FAKE_DIR/ready"; '
        'until read -r line </dev/tty; do :; done; echo "$line" >>"$FAKE_DIR/calls"; exit 7'
    )
    pid, master = pty.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(BASH, ["bash", str(SCRIPT), *machine.command(body)], machine.env)
        finally:  # only when that failed: this copy of the test run must not go on
            os._exit(127)
    machine.wait_for("ready")
    yield Terminal(pid, master)
    if not hung_up(master):
        os.close(master)


def settle(machine: Machine, count: int) -> None:
    """Waits for `count` SIGINTs, and then long enough for one too many to show."""
    end = time.monotonic() + DEADLINE_S
    while machine.changes().count("int") < count and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.3)


def test_terminal_command_reads_the_terminal(machine: Machine, terminal: Terminal) -> None:
    os.write(terminal.master, b"typed\n")
    assert terminal.status() == 7
    assert machine.changes() == [*LOCK, "run", "typed", *RESTORE]


def test_terminal_ctrl_c_reaches_the_command_once(machine: Machine, terminal: Terminal) -> None:
    for count in (1, 2):
        os.write(terminal.master, b"\x03")
        settle(machine, count)
    os.write(terminal.master, b"typed\n")
    assert terminal.status() == 128 + signal.SIGINT
    assert machine.changes() == [*LOCK, "run", "int", "int", "typed", *RESTORE]


def test_terminal_signal_to_the_script_alone_is_passed_on(
    machine: Machine, terminal: Terminal
) -> None:
    os.kill(terminal.pid, signal.SIGINT)
    settle(machine, 1)
    os.write(terminal.master, b"typed\n")
    assert terminal.status() == 128 + signal.SIGINT
    assert machine.changes() == [*LOCK, "run", "int", "typed", *RESTORE]


def test_terminal_hang_up_restores(machine: Machine, terminal: Terminal) -> None:
    os.close(terminal.master)
    assert terminal.status() == 128 + signal.SIGHUP
    assert machine.changes() == [*LOCK, "run", *RESTORE]
