"""`python -m rawnn`: the command line."""

from __future__ import annotations

import os
import signal
import sys


def _leave(number: int, frame: object) -> None:
    os.write(2, b"rawnn: interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line and exit with its status."""
    # Where this is the current folder, its modules would be found in place of Python's `random` and
    # of the package `cuda`.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    # An exception in the middle of an import comes out as another one, "numpy failed to import".
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from rawnn.cli import load, run

    load(sys.argv[1:])
    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
