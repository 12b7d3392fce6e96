"""The process in which a kernel under check runs: `python -m rawnn.lab.worker FD`.

What a kernel prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

from rawnn.common.errors import RawnnError
from rawnn.engine.machine import open_gpu
from rawnn.lab.kernel import Kernel
from rawnn.lab.measuring import Stopwatch
from rawnn.lab.subprocess_runner import ProcessEnded, serve


def main(number: int) -> None:
    """Serve the other end of the connection with the file descriptor `number`."""
    connection: Connection = Connection(number)
    recipe, ordinal, parameters = connection.recv()
    try:
        device = open_gpu(ordinal, lambda message: print(message, file=sys.stderr))
        kernel = Kernel.from_recipe(recipe, device)
    except RawnnError as error:
        connection.send(("error", ProcessEnded(str(error))))
        return
    connection.send(("ready", None))
    serve(connection, Stopwatch(kernel, parameters))


if __name__ == "__main__":
    os.dup2(2, 1)
    main(int(sys.argv[1]))
