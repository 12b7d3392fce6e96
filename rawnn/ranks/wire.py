"""Messages between two ranks: MessagePack behind its length, on a TCP connection."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import msgspec

LENGTH = struct.Struct("<I")
ALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 4}
"""A host that is gone without a word is noticed after 8 s."""


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
        """Raises OSError where the other end is gone."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self._socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self, seconds: float | None = None) -> Any:
        """The next message, within so many seconds. Raises EOFError where the other end has closed
        or sends what is no message, TimeoutError."""
        try:
            self._socket.settimeout(seconds)
            size, = LENGTH.unpack(self._exactly(LENGTH.size))
            return msgspec.msgpack.decode(self._exactly(size))
        except TimeoutError:
            raise
        except (OSError, msgspec.DecodeError) as error:
            raise EOFError from error

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
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
