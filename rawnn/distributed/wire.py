"""Messages between two ranks: MessagePack after its length, on a TCP connection.

`multiprocessing.connection` would unpickle data from the network, wait for ever for the rest of a
truncated message, and not notice a host that is down.
"""

from __future__ import annotations

import errno
import socket
import struct
import threading
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from rawnn.common.errors import RanksError

LENGTH = struct.Struct("<I")
ALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 8000}
"""A host that is down is noticed after 8 s: it is silent (in seconds), or does not acknowledge what
was sent (in milliseconds; the other three ignore unacknowledged data)."""
MAX_BYTES = 1 << 30
"""The largest message. Ranks on the host send complete gradients."""


class Wire:
    """One connection. `send` may be called from any thread, `receive` from one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Any) -> None:
        """Raises OSError if the other end is gone, RanksError for more than MAX_BYTES."""
        data = msgspec.msgpack.encode(message)
        if len(data) > MAX_BYTES:
            raise RanksError(f"ranks would send {len(data):,} bytes at once, and may send "
                             f"{MAX_BYTES:,}: a network of this size needs GPUs")
        with self._lock:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self, seconds: float | None = None, most: int = MAX_BYTES) -> Any:
        """The next message, of at most `most` bytes, within `seconds` in all. Raises EOFError if
        the other end has closed, is gone or sends something else, and TimeoutError."""
        until = None if seconds is None else monotonic() + seconds
        try:
            size, = LENGTH.unpack(self._exactly(LENGTH.size, until))
            if size > most:
                raise EOFError
            return msgspec.msgpack.decode(self._exactly(size, until))
        except (OSError, msgspec.DecodeError) as error:
            # A host that is down is also a TimeoutError, the only one with an errno.
            if isinstance(error, TimeoutError) and error.errno != errno.ETIMEDOUT:
                raise
            raise EOFError from error

    def _exactly(self, count: int, until: float | None) -> bytes:
        parts = []
        while count:
            self._socket.settimeout(until and max(until - monotonic(), 0.001))
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
