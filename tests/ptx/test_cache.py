"""The cubin cache: content, damage, permissions, several processes."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rawnn.cuda.compiling.cache import CubinCache, default_directory

KEY = "ab" * 32
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path, messages) -> CubinCache:
    return CubinCache(tmp_path / "rawnn" / "cubins", notify=messages.append)


def test_what_is_put_is_got(cache, messages):
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"\0cubin\xff")
    assert cache.get(KEY) == b"\0cubin\xff"
    assert cache.put(KEY, b"again")
    assert cache.get(KEY) == b"again"
    assert messages == []


def test_info_and_clear(cache):
    assert cache.info() == (cache.directory, 0, 0)
    assert cache.clear() == 0
    cache.put(KEY, b"x" * 100)
    cache.put("cd" * 32, b"y")
    (cache.directory / ".ef-1-00.partial").write_bytes(b"left by an interrupted writer")
    (cache.directory / "notes.txt").write_text("not ours")
    info = cache.info()
    assert info.entries == 2
    assert info.nbytes == sum(p.stat().st_size for p in cache.directory.glob("*.cubin")) > 100
    assert cache.clear() == 2
    assert [p.name for p in cache.directory.iterdir()] == ["notes.txt"]
    assert cache.get(KEY) is None


def test_what_another_process_removed_since_it_was_listed_is_left_out(cache, monkeypatch):
    cache.put(KEY, b"x" * 100)
    before, listed = cache.info(), cache._files
    monkeypatch.setattr(cache, "_files", lambda suffix: [*listed(suffix),
                                                         cache.directory / f"gone{suffix}"])
    assert cache.info() == before
    cache.clear()
    assert list(cache.directory.iterdir()) == []


def test_modes_are_private(cache):
    old = os.umask(0)
    try:
        cache.put(KEY, b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    (entry,) = cache.directory.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [b"", b"rawnn-cubin-1\n", b"x" * 200, None])
def test_damaged_entry_is_discarded(cache, damage):
    cache.put(KEY, b"cubin" * 100)
    (entry,) = cache.directory.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] if damage is None else damage)
    assert cache.get(KEY) is None
    assert not entry.exists()
    assert cache.put(KEY, b"new")
    assert cache.get(KEY) == b"new"


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_directory_that_others_may_write_is_refused_once(cache, messages, mode):
    cache.put(KEY, b"x")
    cache.directory.chmod(mode)
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"y") is False
    assert len(messages) == 1
    assert f"mode {mode:04o}" in messages[0]
    assert "chmod 700" in messages[0]


def test_directory_of_another_user_is_refused(cache, messages, monkeypatch):
    cache.put(KEY, b"x")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"y") is False
    assert len(messages) == 1
    assert f"another user (uid {owner})" in messages[0]


def test_directory_that_cannot_be_made_is_reported_once(tmp_path, messages):
    (tmp_path / "file").write_text("in the way")
    cache = CubinCache(tmp_path / "file" / "cubins", notify=messages.append)
    assert cache.get(KEY) is None
    assert cache.put(KEY, b"x") is False
    assert cache.put(KEY, b"x") is False
    assert cache.info().entries == 0
    assert cache.clear() == 0
    assert len(messages) == 1
    assert "kernels are compiled anew" in messages[0]
    assert "RAWNN_CACHE" in messages[0]


def test_failed_write_leaves_nothing_behind(cache, messages, monkeypatch):
    cache.put(KEY, b"x")

    def no_space(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    assert cache.put("cd" * 32, b"y") is False
    assert [p.suffix for p in cache.directory.iterdir()] == [".cubin"]
    assert "No space left" in messages[0]


def test_notice_is_logged_by_default(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "rawnn"):
        CubinCache(tmp_path / "file").put(KEY, b"x")
    assert "cannot be written" in caplog.text


def test_a_key_is_never_a_path(cache):
    for key in ("../x", "a/b", ""):
        with pytest.raises(ValueError, match="digest"):
            cache.get(key)


def test_environment_chooses_the_root(tmp_path, monkeypatch):
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    assert default_directory() == tmp_path / "cubins" == CubinCache().directory
    monkeypatch.delenv("RAWNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_directory().name == "cubins"
    assert default_directory().parent.name == "rawnn"


WRITER = """
import pathlib, sys
from rawnn.cuda.compiling.cache import CubinCache
messages, wrong = [], 0
cache = CubinCache(pathlib.Path(sys.argv[1]), notify=messages.append)
payloads = [bytes([i]) * 20_000 for i in range(8)]
for turn in range(100):
    cache.put("ab" * 32, payloads[(int(sys.argv[2]) + turn) % 8])
    wrong += cache.get("ab" * 32) not in payloads
sys.exit(wrong + len(messages))
"""


def test_concurrent_processes_see_whole_entries(tmp_path):
    directory = tmp_path / "shared"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(directory), str(seed)], cwd=REPOSITORY)
        for seed in range(4)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0, 0]
    assert [path.suffix for path in directory.iterdir()] == [".cubin"]
