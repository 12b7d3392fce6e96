from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rawnn.data import fetch
from rawnn.data.fetch import FetchError, download

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def server(make_mirror):
    made = make_mirror()
    made.files = {"file": CONTENT}
    return made


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def fetched(server, part: Path, limit: int = 1 << 21, progress=lambda *_: None) -> bool:
    return download(f"{server.address}file", part, limit=limit, progress=progress)


def test_whole_file_with_progress(server, part: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    assert fetched(server, part, progress=lambda *state: seen.append(state)) is False
    assert part.read_bytes() == CONTENT
    assert seen[0] == ("file", 0, len(CONTENT))
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert any(0 < done < len(CONTENT) for _, done, _ in seen)
    assert seen == sorted(seen)


def test_an_earlier_part_is_continued(server, part: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    assert fetched(server, part) is True
    assert part.read_bytes() == CONTENT
    assert server.requests == [("file", "bytes=1000-")]


def test_a_server_that_dies_midway_is_asked_for_the_rest(server, part: Path) -> None:
    server.answers = [server.die_midway, server.die_midway]
    assert fetched(server, part) is True
    assert part.read_bytes() == CONTENT
    half = len(CONTENT) // 2
    ranges = [wanted for _, wanted in server.requests]
    assert ranges == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_a_server_that_keeps_dying_is_given_up_and_the_part_kept(server, part: Path) -> None:
    server.answers = [server.die_midway] * 9
    with pytest.raises(FetchError, match="broke off after"):
        fetched(server, part)
    assert len(server.requests) == 3
    assert CONTENT.startswith(part.read_bytes())
    assert part.stat().st_size > len(CONTENT) // 2


def test_a_server_that_sends_nothing_is_asked_once(server, part: Path) -> None:
    def die_at_once(handler, content: bytes) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 1000-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - 1000))
        handler.end_headers()

    part.write_bytes(CONTENT[:1000])
    server.answers = [die_at_once] * 9
    with pytest.raises(FetchError, match="broke off"):
        fetched(server, part)
    assert len(server.requests) == 1
    assert part.read_bytes() == CONTENT[:1000]


def test_a_server_without_ranges_sends_all_anew(server, part: Path) -> None:
    def whole(handler, content: bytes) -> None:
        del handler.headers["Range"]
        server.send(handler, content)

    part.write_bytes(b"x" * 5000)
    server.answers = [whole]
    fetched(server, part)
    assert part.read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_afresh(server, part: Path) -> None:
    part.write_bytes(CONTENT + b"more")  # the server answers 416
    fetched(server, part)
    assert part.read_bytes() == CONTENT
    part.write_bytes(bytes(1 << 22))  # above the limit: not even asked for
    fetched(server, part)
    assert part.read_bytes() == CONTENT


def test_too_large_an_offer_is_refused(server, part: Path) -> None:
    with pytest.raises(FetchError, match="at most 1,000"):
        fetched(server, part, limit=1000)

    def endless(handler, content: bytes) -> None:
        handler.send_response(200)  # no length: the limit must hold while reading
        handler.end_headers()
        handler.wfile.write(content)

    server.answers = [endless]
    with pytest.raises(FetchError, match="more than the 1,000"):
        fetched(server, part, limit=1000)


@pytest.mark.parametrize("has_length", [False, True])
def test_as_many_bytes_as_expected_are_taken_and_none_more(server, part: Path,
                                                           has_length: bool) -> None:
    def answer(handler, content: bytes) -> None:
        handler.send_response(200)
        if has_length:
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    server.answers = [answer] * 2
    assert fetched(server, part, limit=len(CONTENT)) is False
    assert part.read_bytes() == CONTENT
    part.unlink()
    with pytest.raises(FetchError, match="1,023,999"):
        fetched(server, part, limit=len(CONTENT) - 1)


def test_wrong_ranges_are_refused(server, part: Path) -> None:
    def answer(text: str):
        def wrong(handler, content: bytes) -> None:
            handler.send_response(206)
            handler.send_header("Content-Range", text)
            handler.send_header("Content-Length", "3")
            handler.end_headers()
            handler.wfile.write(b"abc")

        return wrong

    part.write_bytes(CONTENT[:1000])
    server.answers = [answer("bytes 7-9/10"), answer("nonsense")]
    with pytest.raises(FetchError, match="bytes from 7, not from 1000"):
        fetched(server, part)
    with pytest.raises(FetchError, match="unreadable Content-Range"):
        fetched(server, part)
    assert part.read_bytes() == CONTENT[:1000]


def test_errors_say_why(server, part: Path) -> None:
    with pytest.raises(FetchError, match="404"):
        download(f"{server.address}other", part, limit=100, progress=lambda *_: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        with pytest.raises(FetchError, match="refused"):
            download(url, part, limit=100, progress=lambda *_: None)
    with pytest.raises(FetchError, match="unknown url type"):
        download("nonsense", part, limit=100, progress=lambda *_: None)


def test_a_silent_server_is_given_up_soon(part: Path, monkeypatch) -> None:
    monkeypatch.setattr(fetch, "OPEN_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(FetchError, match=r"no answer within 0\.2 s|timed out"):
            download(url, part, limit=100, progress=lambda *_: None)
