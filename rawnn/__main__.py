"""`python -m rawnn`: the command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType


def main() -> None:
    """Run the command line and exit with its status."""
    # In this folder, Python would find its modules instead of its own `random` and of the package
    # `cuda`.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupted = False

    def postpone(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends the process

    # An exception in the middle of an import would become another one, "numpy failed to import".
    if usual:
        signal.signal(signal.SIGINT, postpone)
    from rawnn.cli import load, run

    if takes_the_first_gpu(sys.argv[1:]):
        from rawnn.cuda.driver_start import start_driver

        start_driver()
    load(sys.argv[1:])
    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        print("rawnn: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))


def takes_the_first_gpu(arguments: Sequence[str]) -> bool:
    """Whether this run selects no device: no option, no file and no launcher."""
    options = list(arguments[1:] if arguments[:1] == ["train"] else arguments)
    choosing = ("--device", "--config", "--resume", "--help", "-h", "--version")
    return not any(word.startswith(choosing) for word in options) \
        and (not options or options[0].startswith("-")) \
        and not any(name.endswith(("RANK", "PROCID")) for name in os.environ)


def command() -> None:
    """`main` in a process of its own."""
    try:
        main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C during shutdown keeps the status


if __name__ == "__main__":
    command()
