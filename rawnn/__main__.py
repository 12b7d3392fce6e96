"""`python -m rawnn`: the command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its status."""
    # Where this is the current folder, its modules would be found in place of Python's `random` and
    # of the package `cuda`.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    from rawnn.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
