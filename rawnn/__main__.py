"""`python -m rawnn`: the command line."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence


def _leave(number: int, frame: object) -> None:
    os.write(2, b"rawnn: interrupted\n")
    os._exit(130)


def main(end: Callable[[int], object] = sys.exit) -> None:
    """Run the command line and `end` with its status."""
    # Where this is the current folder, its modules would be found in place of Python's `random` and
    # of the package `cuda`.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    # An exception in the middle of an import comes out as another one, "numpy failed to import".
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, _leave)
    from rawnn.cli import load, run

    if takes_the_first_gpu(sys.argv[1:]):
        from rawnn.cuda.driver_start import start_driver

        start_driver()
    load(sys.argv[1:])
    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    end(run(sys.argv[1:]))


def takes_the_first_gpu(arguments: Sequence[str]) -> bool:
    """Whether this is a run whose device nothing chooses: no option, no file and no launcher."""
    options = list(arguments[1:] if arguments[:1] == ["train"] else arguments)
    choosing = ("--device", "--config", "--resume", "--help", "-h", "--version")
    return not any(word.startswith(choosing) for word in options) \
        and (not options or options[0].startswith("-")) \
        and not any(name.endswith(("RANK", "PROCID")) for name in os.environ)


def at_once(status: int) -> None:
    """End the process. Where much is imported, Python would take it apart module by module, for a
    tenth of a second; what has asked to be called at the end is called, and files are written.
    Profilers, debuggers and python -i have something to do behind the end: then as ever."""
    if "numpy" not in sys.modules or sys.flags.interactive or _watched():
        sys.exit(status)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C changes the status no more
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _watched() -> bool:
    if sys.gettrace() or sys.getprofile():
        return True
    tools = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return tools is not None and any(map(tools.get_tool, range(6)))


def command() -> None:
    """`main` as a process of its own."""
    main(at_once)


if __name__ == "__main__":
    command()
