"""What goes wrong on one rank of a run."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import rawnn
from rawnn.common.errors import RawnnError

BAD = 1
"""The rank."""


class Fault(rawnn.Listener):
    """Of that rank, in the second epoch; "none" is none."""

    def __init__(self, fault: str, rank: int) -> None:
        self._fault, self._rank = fault, rank

    def started(self, session: Any) -> None:
        self._session = session

    def epoch_done(self, epoch: int) -> None:
        if self._fault != "none" and epoch < 3:
            time.sleep(0.25)  # so that rank 0 hears of every epoch
        if self._rank != BAD or epoch != 2:
            return
        if self._fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "raises":
            raise RawnnError("the disk is full")
        if self._fault == "bug":
            raise ZeroDivisionError("a mistake")
        if self._fault == "leaves":
            os._exit(0)
        if self._fault == "nan":
            state = self._session.runner.state()
            state["fc1.weight"][...] = np.nan
            self._session.runner.load(state)
        if self._fault == "stops":
            self._session.stop("it is enough")
        if self._fault == "asked":
            os.kill(os.getpid(), signal.SIGTERM)
