"""A small data set with pinned sums that stands for MNIST, and a local mirror to fetch it from."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rawnn.data import catalog, idx

Answer = Callable[[http.server.BaseHTTPRequestHandler, bytes], None]


class Small:
    """Raw content of the four files of a set of 60 + 20 images of 5 x 4."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        arrays = []
        for count in (60, 20):
            arrays.append(rng.integers(0, 256, (count, 5, 4), dtype=np.uint8))
            arrays.append((np.arange(count) % 10).astype(np.uint8))
        self.arrays = arrays
        self.raw = dict(zip(catalog.STEMS, map(idx.encode, arrays), strict=True))

    def write(self, directory: Path, zipped: bool = False) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        for stem, content in self.raw.items():
            if zipped:
                (directory / f"{stem}.gz").write_bytes(gzip.compress(content))
            else:
                (directory / stem).write_bytes(content)
        return directory

    def entry(self, *mirrors: str, system: tuple[Path, ...] = ()) -> catalog.NamedDataset:
        files = tuple(
            catalog.IdxFile(stem, array.shape, hashlib.sha256(self.raw[stem]).hexdigest())
            for stem, array in zip(catalog.STEMS, self.arrays, strict=True)
        )
        return dataclasses.replace(
            catalog.NAMED["mnist"],
            files=files,
            mirrors=mirrors,
            system_directories=system,
            wheel=None,
        )


@pytest.fixture
def small() -> Small:
    return Small()


@pytest.fixture
def pin(monkeypatch: pytest.MonkeyPatch) -> Callable[[catalog.NamedDataset], None]:
    """Put an entry in MNIST's place."""
    return lambda entry: monkeypatch.setitem(catalog.NAMED, "mnist", entry)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No RAWNN_DATA of the developer's, and no proxy between the tests and their server."""
    monkeypatch.delenv("RAWNN_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Mirror:
    """A local http server: `files` by name, `requests` seen (name, Range), `answers` to misbehave
    once each, in order."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/set/"
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.answers: list[Answer] = []

    @staticmethod
    def send(handler: http.server.BaseHTTPRequestHandler, content: bytes) -> None:
        """Answer as a good server does, ranges included."""
        wanted = handler.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start and start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:])

    @staticmethod
    def die_midway(handler: http.server.BaseHTTPRequestHandler, content: bytes) -> None:
        """Promise everything, send half of what was asked for, and close."""
        wanted = handler.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start : start + (len(content) - start) // 2])


@pytest.fixture
def make_mirror() -> Iterator[Callable[[], Mirror]]:
    servers = []

    def make() -> Mirror:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rsplit("/", 1)[-1]
                mirror.requests.append((name, self.headers.get("Range")))
                if name not in mirror.files:
                    self.send_error(404)
                    return
                answer = mirror.answers.pop(0) if mirror.answers else Mirror.send
                answer(self, mirror.files[name])

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        mirror = Mirror(server.server_address[1])
        # A short poll, so that shutting down does not take half a second a test.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        servers.append(server)
        return mirror

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def mirror(make_mirror: Callable[[], Mirror], small: Small) -> Mirror:
    """A mirror that serves the small set."""
    made = make_mirror()
    made.files = {f"{stem}.gz": gzip.compress(content) for stem, content in small.raw.items()}
    return made
