"""What files are replaced, what is written into, and what is refused before the work."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rawnn.common.errors import ConfigError, RawnnError
from rawnn.common.files import SideOutput, check_output, write_atomically

needs_rights = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


def test_a_failed_write_leaves_the_old_content(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RawnnError, match=r"cannot write .*r\.json: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_the_process(tmp_path: Path, mask: int) -> None:
    """Which it leaves as they were."""
    before = os.umask(mask)
    try:
        for name in ("first", "second"):
            write_atomically(tmp_path / name, b"new")
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~mask
    finally:
        after = os.umask(before)
    assert after == mask


def test_the_file_behind_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    target, link = tmp_path / "runs" / "a.json", tmp_path / "latest.json"
    link.symlink_to("runs/a.json")
    for content in (b"one", b"two"):  # a link to nothing yet, and one to a file
        check_output("--json", link)
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert os.listdir(target.parent) == ["a.json"]


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_output("--json", fifo)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    write_atomically(fifo, b"a result")
    reader.join(20)
    assert found == [b"a result"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def device(tmp_path: Path, name: str) -> Path:
    """A device as /dev/NAME: that itself only for who cannot replace it. A mistake here must not
    leave the machine without it."""
    there = Path("/dev", name)
    if not os.access("/dev", os.W_OK):
        return there
    own, number = tmp_path / name, os.stat(there).st_rdev
    try:
        os.mknod(own, stat.S_IFCHR | 0o666, number)
        own.open("wb").close()
    except OSError as error:
        pytest.skip(f"a device cannot be made here: {error}")
    return own


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null, full = (device(tmp_path, name) for name in ("null", "full"))
    check_output("--json", null)
    write_atomically(null, b"gone")
    assert stat.S_ISCHR(os.stat(null).st_mode)
    check_output("--json", full)
    with pytest.raises(RawnnError, match=f"cannot write {full}: No space left"):
        write_atomically(full, b"too much")


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_the_standard_output_is_written_into_where_it_stands(
    tmp_path: Path, name: str, kind: str
) -> None:
    out = tmp_path / "out.txt"
    code = ("from rawnn.common.files import check_output, write_atomically\nprint('before')\n"
            f"check_output('--json', '{name}')\nwrite_atomically('{name}', b'written\\n')\n"
            "print('behind')")
    with open(out, "w") as file:
        done = subprocess.run([sys.executable, "-c", code], text=True, timeout=60, check=True,
                              stdout=file if kind == "file" else subprocess.PIPE)
    assert (done.stdout or out.read_text()) == "before\nwritten\nbehind\n"


def test_a_mount_point_is_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def busy(*arguments: Any) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write_atomically(path, b"new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["r.json"]


def test_places_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere/r.json")
    (tmp_path / "file").write_text("")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.fspath(tmp_path / "socket"))
    for name, reason in {
        "": "it is empty", f"{tmp_path}": "that is a directory", "no/": "that is a directory",
        f"{tmp_path}/no/r.json": f"there is no directory {tmp_path}/no",
        f"{tmp_path}/lost": f"there is no directory {tmp_path}/nowhere",
        f"{tmp_path}/loop": "cannot be written", f"{tmp_path}/file/r.json": "cannot be written",
        "x" * 300: "File name too long", "a\0b": "null", "/proc/r.json": "cannot be written",
        f"{tmp_path}/socket": "that is a socket",
    }.items():
        with pytest.raises(ConfigError, match=f"--json.*{reason}"):
            check_output("--json", name)
    listening.close()
    check_output("--json", None)
    check_output("--json", "r.json")
    assert not Path("r.json").exists()


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    data, link = tmp_path / "data.csv", tmp_path / "link.csv"
    data.write_text("a,b\n")
    link.symlink_to("data.csv")
    for name in (data, link, f"{tmp_path}/no/../data.csv"):
        for read in (data, os.fspath(link)):
            with pytest.raises(ConfigError, match=r"would replace .*, which is read"):
                check_output("--out", name, None, "", read)
    check_output("--out", data, tmp_path, tmp_path / "nowhere.csv", "/dev/null")
    check_output("--out", tmp_path / "new.csv", data)


@needs_rights
def test_files_and_directories_without_permission_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "kept").chmod(0o444)
    with pytest.raises(ConfigError, match="the file cannot be written"):
        check_output("--json", tmp_path / "kept")
    tmp_path.chmod(0o555)
    with pytest.raises(ConfigError, match=r"the directory .* cannot be written"):
        check_output("--json", tmp_path / "new")
    tmp_path.chmod(0o755)


def test_what_is_written_beside_a_run_never_ends_it(tmp_path: Path) -> None:
    messages: list[str] = []
    full = device(tmp_path, "full")
    with SideOutput(full, messages.append) as lost:
        for _ in range(3):
            print("a line", file=lost, flush=True)
    assert messages == [f"cannot write {full}: No space left on device; going on without it"]
    kept = tmp_path / "log.txt"
    kept.write_text("old")
    with SideOutput(kept, messages.append) as log:
        assert kept.read_text() == "old"
        print("a line", file=log)
    assert kept.read_text() == "a line\n"


def test_a_dash_is_no_file() -> None:
    with pytest.raises(ConfigError, match=r"--json -: name a file; /dev/stdout is"):
        check_output("--json", "-")
    check_output("--json", "./-")
