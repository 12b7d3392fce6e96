"""What a caller may hear of a run while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawnn.run.result import Report
    from rawnn.run.training import Session


class Listener:
    """Hears of a run; every method may be overridden. `reads` says whether it may ask for
    parameters or state before the run has ended: then ranks that keep a part each make them whole
    behind every epoch."""

    reads = True

    def notify(self, message: str) -> None:
        """One sentence that the user should read."""

    def started(self, session: Session) -> None:
        """Everything is ready; the clock starts after this."""

    def reported(self, report: Report) -> None:
        """A report is due."""

    def epoch_done(self, epoch: int) -> None:
        """An epoch was enqueued (on a GPU it may still run)."""

    def settled(self, epoch: int) -> None:
        """The epoch was reported, too, if that was due: the moment to ask `session.checkpoint`,
        within `session.paused()`, or to `session.stop`."""

    def ended(self, epoch: int) -> None:
        """The last epoch was `epoch`; parameters may still be kept, or replaced."""
