"""A training run in which something goes wrong on one rank: `python faulty.py FAULT [KEY=VALUE]`.

It is started as a rank, by the launcher's variables.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

import rawnn
from rawnn.errors import RawnnError
from tests.engine import random_dataset

RANK = int(os.environ["RANK"])
BAD = 1


class Fault(rawnn.Listener):
    def __init__(self, fault: str) -> None:
        self._fault = fault

    def started(self, session: Any) -> None:
        self._session = session

    def epoch_done(self, epoch: int) -> None:
        if epoch < 3:
            time.sleep(0.25)  # so that rank 0 hears of every epoch
        if RANK != BAD or epoch != 2:
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
            state["fc1.bias"][...] = np.nan
            self._session.runner.load(state)
        if self._fault == "stops":
            self._session.stop("it is enough")
        if self._fault == "asked":
            os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    fault, options = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
    lr = 0.2 if RANK == BAD and fault == "option" else 0.1
    seed = 1 if RANK == BAD and fault == "data" else 0
    data = random_dataset(train=64, test=8, seed=seed)
    try:
        result = rawnn.train(
            data=rawnn.Dataset(**vars(data)), layers=(29, 7), batch=6, lr=lr, epochs=5,
            device="host", listener=Fault(fault), **options)
    except RawnnError as error:
        if error.speaks:
            print(f"rawnn: error: {error}", file=sys.stderr)
        return error.exit_code
    if RANK == 0:
        print(f"ended after {len(result.epoch_ms)} epochs: {result.stopped}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
