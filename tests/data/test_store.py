from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from rawnn.data.catalog import NAMED
from rawnn.data.store import RawStore

CONTENT = np.frombuffer(b"some raw content", np.uint8)
SUM = hashlib.sha256(CONTENT.data).hexdigest()


def test_put_then_find(tmp_path: Path) -> None:
    messages: list[str] = []
    store = RawStore(tmp_path / "cache", messages.append)
    assert store.find(SUM) is None
    assert not (tmp_path / "cache").exists()  # looking writes nothing
    path = store.put(CONTENT, SUM)
    assert path == store.find(SUM)
    assert path is not None
    assert path.read_bytes() == CONTENT.tobytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not list(path.parent.glob(".*.partial"))
    assert messages == []


def test_verified_content_is_not_hashed_again(tmp_path: Path, monkeypatch) -> None:
    store = RawStore(tmp_path, pytest.fail)
    store.put(CONTENT, SUM)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert store.find(SUM)


@pytest.mark.parametrize("pinned", [True, False])
def test_the_content_of_an_older_version_goes_unless_a_named_set_has_it(tmp_path: Path,
                                                                        pinned: bool) -> None:
    store = RawStore(tmp_path / "cache", pytest.fail)
    older = NAMED["mnist"].files[0].sha256 if pinned else "0" * 64
    kept = store.put(CONTENT, older)
    assert kept is not None
    file = tmp_path / "images.gz"
    for sha256 in (older, SUM):
        file.write_bytes(sha256.encode())
        store.remember(file, sha256, os.stat(file))
        assert store.known(file) == sha256
    assert kept.exists() == pinned


@pytest.mark.parametrize("change", ["nothing", "size", "time", "inode", "gone", "stamp"])
def test_a_file_is_known_while_its_size_time_and_inode_stay(tmp_path: Path, change: str) -> None:
    store, file = RawStore(tmp_path / "cache", pytest.fail), tmp_path / "images"
    file.write_bytes(b"1234")
    before = os.stat(file)
    store.remember(file, SUM, before)
    if change == "size":
        file.write_bytes(b"12345")
    elif change == "inode":
        (tmp_path / "other").write_bytes(b"5678")
        (tmp_path / "other").replace(file)
    elif change == "gone":
        file.unlink()
    elif change == "stamp":
        store._stamp(file).write_text("4 5")
    if change not in ("time", "gone"):
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "time":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000_000))
    assert store.known(file) == (SUM if change == "nothing" else None)


def test_changed_content_is_found_out(tmp_path: Path) -> None:
    messages: list[str] = []
    store = RawStore(tmp_path, messages.append)
    path = store.put(CONTENT, SUM)
    assert path is not None
    path.write_bytes(b"something else")
    assert store.find(SUM) is None
    assert "corrupt" in messages[0]
    store.put(CONTENT, SUM)
    assert store.find(SUM) == path


def test_content_whose_stamp_is_gone_is_verified_anew(tmp_path: Path) -> None:
    store = RawStore(tmp_path, pytest.fail)
    path = store.put(CONTENT, SUM)
    (stamp,) = (tmp_path / "stamps").iterdir()
    for damage in (b"", b"not a stamp", b"\xff"):
        stamp.write_bytes(damage)
        assert store.find(SUM) == path
        assert store.known(path) == SUM


def test_remembering_a_new_version_drops_what_the_old_one_held(tmp_path: Path) -> None:
    store = RawStore(tmp_path / "cache", pytest.fail)
    file = tmp_path / "file.gz"
    file.write_bytes(b"old")
    raw = store.put(CONTENT, SUM)
    assert raw is not None
    store.remember(file, SUM, os.stat(file))
    assert store.known(file) == SUM
    file.write_bytes(b"newer")
    assert store.known(file) is None
    store.remember(file, "0" * 64, os.stat(file))
    assert not raw.exists()


def test_a_cache_that_cannot_be_written_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    messages: list[str] = []
    store = RawStore(tmp_path / "file" / "cache", messages.append)  # below a file: never writable
    assert store.put(CONTENT, SUM) is None
    store.remember(tmp_path / "file", SUM, os.stat(tmp_path / "file"))
    with store.downloads() as directory:
        assert directory.is_dir()
    assert not directory.exists()
    assert len(messages) == 1
    assert "cannot be written" in messages[0]


@pytest.mark.parametrize("use", ["put", "remember", "downloads"])
def test_whatever_is_written_first_says_that_it_cannot_be(tmp_path: Path, use: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    messages: list[str] = []
    store = RawStore(tmp_path / "file" / "cache", messages.append)
    for _ in range(2):
        if use == "put":
            assert store.put(CONTENT, SUM) is None
        elif use == "remember":
            store.remember(tmp_path / "file", SUM, os.stat(tmp_path / "file"))
        else:
            with store.downloads() as directory:
                assert directory.is_dir()
    assert len(messages) == 1
    assert "cannot be written" in messages[0]


def test_files_of_one_name_in_two_folders_are_two(tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    store = RawStore(tmp_path / "cache", pytest.fail)
    name, sums = Path("images.gz"), ("0" * 64, "1" * 64)
    for folder, sha256 in zip("ab", sums, strict=True):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        name.write_text(folder)
        assert store.put(CONTENT, sha256) is not None
        store.remember(name, sha256, os.stat(name))
    for folder, sha256 in zip("ab", sums, strict=True):
        monkeypatch.chdir(tmp_path / folder)
        assert store.known(name) == store.known(tmp_path / folder / name) == sha256
        assert (tmp_path / "cache" / "raw" / f"{sha256}.idx").exists()


def test_one_process_downloads_at_a_time(tmp_path: Path) -> None:
    messages: list[str] = []
    waiting = threading.Event()
    order: list[str] = []

    def second() -> None:
        store = RawStore(tmp_path, lambda text: (messages.append(text), waiting.set()))
        with store.downloads():
            order.append("second")

    with RawStore(tmp_path, pytest.fail).downloads():
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert messages == ["waiting for another process that is fetching data"]
