"""What a process may be started with, or meet: full disks, closed streams, little memory, narrow
encodings, readers that leave. Each is one sentence at most."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Rawnn

ROOT = Path(__file__).resolve().parents[2]
FAST = ("--device", "host", "--dataset", "synthetic", "--epochs", "1", "--batch", "500")


def shell(line: str, **changed: Any) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `rawnn` is the command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= changed.pop("env", {})
    return subprocess.run(
        ["bash", "-c", f'rawnn() {{ "{sys.executable}" -m rawnn "$@"; }}; {line}'], text=True,
        capture_output=True, timeout=120, check=False, cwd=ROOT, env=environment, **changed)


@pytest.mark.parametrize("arguments", [("toggles", "--device", "host"), FAST, ("train", "--help")])
def test_a_full_disk(arguments: tuple[str, ...]) -> None:
    done = shell(f"rawnn {' '.join(arguments)} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "rawnn: error: cannot write: No space left on device\n"


def test_paths_that_are_no_text(tmp_path: Path) -> None:
    """Of a file system, names are bytes; JSON holds text alone."""
    folder, file = os.fsencode(tmp_path) + b"/run\xff", os.fsencode(tmp_path) + b"/out\xff.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAWNN_WORKERS": "1"}
    for words in ([], ["eval", folder, "--device", "host"],
                  ["many", "--seeds", "2", "--save", folder + b"s"]):
        options = [] if words[:1] == ["eval"] else list(FAST)
        save = [] if words else ["--save", folder]
        done = subprocess.run([sys.executable, "-m", "rawnn", *words, *options, *save, "--json",
                               file], capture_output=True, timeout=120, check=False, cwd=ROOT,
                              env=environment)
        assert done.returncode == 0, done.stderr
        assert b"run\\\\udcff" in Path(os.fsdecode(file)).read_bytes()
        json.loads(Path(os.fsdecode(file)).read_bytes())


def test_closed_streams() -> None:
    done = shell(f"rawnn {' '.join(FAST)} >&-")
    assert (done.returncode, done.stderr) == (0, "")
    done = shell(f"rawnn {' '.join(FAST)} 2>&-")
    assert done.returncode == 0
    assert "test accuracy" in done.stdout


@pytest.mark.parametrize("arguments", [("toggles", "--device", "host"), (*FAST, "--epochs", "300"),
                                       ("train", "--help")])
def test_a_reader_that_leaves(arguments: tuple[str, ...]) -> None:
    done = shell(f"rawnn {' '.join(arguments)} | head -n 1")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


@pytest.mark.parametrize(("line", "status"), [
    ("rawnn {} | head -n 9 > /dev/null; exit ${{PIPESTATUS[0]}}", 141),
    ("rawnn {} 2>&1 | head -n 12 > /dev/null; exit ${{PIPESTATUS[0]}}", 141)])
def test_what_was_trained_outlives_the_reader(line: str, status: int, tmp_path: Path) -> None:
    """Checkpoint and result are kept, though neither was due."""
    kept = tmp_path / "result.json"
    done = shell(line.format(
        f"{' '.join(FAST)} --epochs 500 --save {tmp_path}/runs --save-every 400 --json {kept}"))
    assert (done.returncode, done.stderr) == (status, "")
    found = json.loads(kept.read_text())
    epochs = len(found["history"])
    assert 1 <= epochs < 400
    assert found["stopped"] == "its output could not be written: Broken pipe"
    assert [file.stem for file in (tmp_path / "runs").iterdir()] == [
        f"rawnn-{epochs:06}"]


@pytest.mark.parametrize("columns", ["0", "1", "60", "80", "120"])
def test_every_width_prints_everything(columns: str) -> None:
    done = shell(f"rawnn {' '.join(FAST)}", env={"COLUMNS": columns})
    assert done.returncode == 0
    assert "train loss" in done.stdout
    assert "test accuracy" in done.stdout


def test_an_encoding_without_our_signs() -> None:
    done = shell(f"rawnn bench ladder --repeats 2 --oracle off {' '.join(FAST)}",
                 env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "baseline" in done.stdout
    assert done.stdout.isascii()


def test_little_memory() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    done = shell(f"rawnn {' '.join(FAST)} --layers 784-60000-60000-10", preexec_fn=limit)
    assert done.returncode == 1
    assert "error: the memory of the host does not suffice (Unable to allocate" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_modules_are_imported() -> None:
    code = ("import sys, rawnn.__main__ as m\nprint('here', flush=True)\n"
            "sys.argv = ['rawnn', 'train', '--help']\nm.main()")
    seen = set()
    for tenths in range(6):
        process = subprocess.Popen([sys.executable, "-c", code], text=True, cwd=ROOT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.005 + tenths * 0.04)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) in ((130, "rawnn: interrupted\n"), (0, "")) or \
            process.returncode == -signal.SIGINT  # behind the end of our code
        seen.add(process.returncode)
    assert 130 in seen


def test_two_ctrl_c_while_modules_are_imported() -> None:
    """The second one ends an import that hangs."""
    code = ("import sys, time, rawnn.cli, rawnn.__main__ as m\n"
            "def hangs(arguments):\n print('here', flush=True)\n time.sleep(30)\n"
            "rawnn.cli.load = hangs\nsys.argv = ['rawnn']\nm.command()")
    process = subprocess.Popen([sys.executable, "-c", code], text=True, cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (-signal.SIGINT, "")


def test_a_cache_that_cannot_be_cleared(rawnn: Rawnn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any) -> int:
        raise PermissionError(13, "Permission denied", "/cache/a.cubin")

    monkeypatch.setattr("rawnn.cuda.compiling.cache.CubinCache.clear", refused)
    done = rawnn("cache", "clear")
    assert done.status == 1
    assert done.err == "rawnn: error: /cache/a.cubin cannot be deleted: Permission denied\n"
