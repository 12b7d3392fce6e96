"""The callbacks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rawnn.common.errors import ConfigError

if TYPE_CHECKING:
    from rawnn.engine.result import Report
    from rawnn.engine.session import Session


class Listener:
    """Receives callbacks of a run; every method may be overridden. `reads` says whether it may read
    parameters or state before the run has ended: then sharded ones are gathered after every
    epoch. `instead_for_many` says what takes the place of a listener that is for one network alone
    where many train at once; "" if it is for both."""

    reads = True
    instead_for_many = ""

    def notify(self, message: str) -> None:
        """One sentence for the user."""

    def started(self, session: Session) -> None:
        """Everything is ready; the clock starts after this."""

    def reported(self, report: Report) -> None:
        """A report is due."""

    def epoch_done(self, epoch: int) -> None:
        """An epoch was enqueued (on a GPU it may still run)."""

    def settled(self, epoch: int) -> None:
        """The epoch was also reported, if that was due. Here `session.checkpoint`, within
        `session.paused()`, and `session.stop` may be called."""

    def ended(self, epoch: int) -> None:
        """The last epoch was `epoch`; parameters may still be stored, or replaced."""


METHODS = tuple(name for name, value in vars(Listener).items()
                if callable(value) and not name.startswith("_"))


class _AdaptedListener(Listener):
    """Adapts another object: those of the methods that it has are called."""

    def __init__(self, given: object) -> None:
        self.reads = bool(getattr(given, "reads", True))
        for name in METHODS:
            if hasattr(given, name):
                setattr(self, name, getattr(given, name))


def listeners_of(given: object) -> list[Listener]:
    """One listener or several; None is none. An object of another class counts as one by the
    methods that it has. Raises ConfigError, with the fix, for an object without any."""
    if given is None:
        return []
    several = given if isinstance(given, Sequence) and not _has_methods(given) else [given]
    for each in several:
        if isinstance(each, type) and issubclass(each, Listener):
            raise ConfigError(f"listener = {each.__name__}: that is the class; give an object of "
                              f"it, {each.__name__}()")
        if not _has_methods(each):
            raise ConfigError(f"listener = {given!r}: give a rawnn.Listener or several; your own "
                              f"is a subclass, or has one or more of its methods: "
                              f"{', '.join(METHODS)}")
    return [each if isinstance(each, Listener) else _AdaptedListener(each) for each in several]


def _has_methods(given: object) -> bool:
    return not isinstance(given, type) and \
        any(callable(getattr(given, name, None)) for name in METHODS)
