"""Downloads over http(s): resumable, bounded in size, and quick to give up on a dead host.

Nothing here is trusted: the caller verifies the content's checksum.

pooch, which also verifies and stores files, is no replacement: it restarts a broken transfer,
accepts any number of bytes, waits for a name lookup as long as the system does, and knows only one
mirror.
"""

from __future__ import annotations

import http.client
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from rawnn.data.progress import Progress

# For name lookup, connection, TLS and the first response together; then for each wait for bytes.
OPEN_SECONDS = 5.0
_ATTEMPTS = 3
_CHUNK = 1 << 18


class FetchError(Exception):
    """A mirror failed; the text says why. Received bytes stay in the `.part` file."""


def download(url: str, part: Path, *, limit: int, progress: Progress) -> bool:
    """Fetch `url` into `part`, continuing its content; at most `limit` bytes.

    An interrupted transfer is continued, up to twice, as long as bytes arrive. Returns whether the
    file has bytes of an earlier transfer (a wrong checksum may then be fixed by a restart). Raises
    FetchError; OSError if `part` cannot be written.
    """
    resumed = part.exists() and part.stat().st_size > 0
    for attempt in range(1, _ATTEMPTS + 1):
        before = part.stat().st_size if part.exists() else 0
        try:
            _transfer(url, part, limit, progress)
            return resumed
        except _Broken as broken:
            after = part.stat().st_size if part.exists() else 0
            if after <= before or attempt == _ATTEMPTS:
                raise FetchError(str(broken)) from broken
            resumed = True
    raise AssertionError("unreachable: the last attempt returns or raises")


class _Broken(Exception):
    """A transfer that ended early."""


def _transfer(url: str, part: Path, limit: int, progress: Progress) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have > limit:
        have = 0
    with _open(url, have) as response:
        start = _range_start(response) if response.status == 206 else 0
        if start not in (0, have):
            raise FetchError(f"it answered with bytes from {start}, not from {have}")
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isascii() and length.isdigit() else None
        if total is not None and total > limit:
            raise FetchError(f"it offers {total:,} bytes where at most {limit:,} are expected")
        name = url.rsplit("/", 1)[-1]
        with open(part, "r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            done = start
            progress(name, done, total)
            while chunk := _read(response):
                done += len(chunk)
                if done > limit:
                    raise FetchError(f"it sends more than the {limit:,} bytes expected")
                file.write(chunk)
                progress(name, done, total)
    if total is not None and done < total:
        raise _Broken(f"the transfer broke off after {done:,} of {total:,} bytes")
    progress(name, done, done)


def _read(response: Any) -> bytes:
    try:
        # read1: the available bytes, so that an interruption loses nothing.
        chunk: bytes = response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(f"the transfer broke off ({_reason(error)})") from error
    return chunk


def _range_start(response: Any) -> int:
    text = response.headers.get("Content-Range", "")
    start = text.removeprefix("bytes ").split("-")[0]
    if not (start.isascii() and start.isdigit()):
        raise FetchError("it answered a resumed request with an unreadable Content-Range")
    return int(start)


def _open(url: str, have: int) -> Any:
    headers = {"User-Agent": "rawnn", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = _urlopen(urllib.request.Request(url, headers=headers))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # our part is not a prefix of theirs: restart
            return _open(url, 0)
        raise FetchError(f"it answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FetchError(_reason(error)) from error
    return response


def _urlopen(request: urllib.request.Request) -> Any:
    """`urlopen` within OPEN_SECONDS in all.

    Its own time limit covers neither the name lookup nor the sum over a host's addresses, so it
    runs in a thread that is abandoned if it does not return.
    """
    outcome: list[Any] = []
    late = threading.Event()

    def work() -> None:
        try:
            response = urllib.request.urlopen(request, timeout=OPEN_SECONDS)
        except Exception as error:  # raised in the caller's thread
            outcome.append(error)
            return
        if late.is_set():
            response.close()
        outcome.append(response)

    thread = threading.Thread(target=work, daemon=True, name="rawnn-fetch")
    thread.start()
    thread.join(OPEN_SECONDS)
    if not outcome:
        late.set()
        raise TimeoutError(f"no answer within {OPEN_SECONDS:g} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _reason(error: BaseException) -> str:
    cause = getattr(error, "reason", error)
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return str(text)
