"""A process that trains members on one core: `python -m rawnn.many.worker FD FILE`.

It reads ((group, member), epochs, epoch, state) from the connection, and answers (figures, state),
or what was raised. A state of None means the one that it last answered for that member.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing.connection import Connection

from rawnn.common.errors import RawnnError
from rawnn.engine.machine import open_device
from rawnn.many.host import read
from rawnn.many.members import Arrays
from rawnn.many.sessions import SESSION_BYTES, Key, MemberSessions, MemberState


def main(number: int, file: int) -> None:
    """Train what the connection asks for. `number` and `file` are descriptors: of the connection,
    and of the file with the groups."""
    # Ctrl-C reaches all processes of a terminal; the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection = Connection(number)
    known: dict[Key, Arrays] = {}
    groups, opened = read(file), open_device("host", lambda message: None)
    sessions = [MemberSessions(group, opened, SESSION_BYTES // len(groups)) for group in groups]
    with contextlib.suppress(EOFError, OSError):
        while True:
            key, epochs, epoch, arrays = connection.recv()
            before = MemberState(epoch, known.pop(key) if arrays is None else arrays)
            try:
                figures, after = sessions[key[0]].train(key[1], before, epochs)
            except (RawnnError, MemoryError) as error:
                connection.send(error)
                continue
            known[key] = after.arrays
            connection.send((figures, after))


if __name__ == "__main__":
    os.dup2(2, 1)
    main(int(sys.argv[1]), int(sys.argv[2]))
