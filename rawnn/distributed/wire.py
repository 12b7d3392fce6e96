"""Messages between two ranks: MessagePack behind its length, on a TCP connection.

Not `multiprocessing.connection`, which unpickles what comes from the network, waits without an end
for a message that broke off, and does not notice a host that is gone.
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
"""A host that is gone without a word is noticed after 8 s: one that is silent (in seconds), or does
not confirm what was sent (in milliseconds, of which the other three take no notice)."""
MAX_BYTES = 1 << 30
"""The largest message. Ranks on the host send each other whole gradients."""


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
        """Raises OSError where the other end is gone, RanksError for more than MAX_BYTES."""
        data = msgspec.msgpack.encode(message)
        if len(data) > MAX_BYTES:
            raise RanksError(f"ranks would send {len(data):,} bytes at once, and may send "
                             f"{MAX_BYTES:,}: a network of this size needs GPUs")
        with self._lock:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self, seconds: float | None = None, most: int = MAX_BYTES) -> Any:
        """The next message, of at most so many bytes, within so many seconds in all. Raises
        EOFError where the other end has closed, is gone or sends what is no such message,
        TimeoutError."""
        until = None if seconds is None else monotonic() + seconds
        try:
            size, = LENGTH.unpack(self._exactly(LENGTH.size, until))
            if size > most:
                raise EOFError
            return msgspec.msgpack.decode(self._exactly(size, until))
        except (OSError, msgspec.DecodeError) as error:
            # A host that is gone is a TimeoutError, too, and the only one with a number.
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
