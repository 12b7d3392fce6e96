"""A training run in which something goes wrong on one rank: `python faulty.py FAULT [KEY=VALUE]`.

It is started as a rank, by the launcher's variables.
"""

from __future__ import annotations

import os
import sys

import rawnn
from rawnn.common.errors import RawnnError
from tests.distributed.fault import BAD, Fault
from tests.engine import random_dataset

RANK = int(os.environ["RANK"])


def main() -> int:
    fault, options = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
    lr = 0.2 if RANK == BAD and fault == "option" else 0.1
    seed = 1 if RANK == BAD and fault == "data" else 0
    data = random_dataset(train=64, test=8, seed=seed)
    try:
        result = rawnn.train(
            data=rawnn.Dataset(**vars(data)), layers=(29, 7), batch=6, lr=lr, epochs=5,
            device="host", listener=Fault(fault, RANK), **options)
    except RawnnError as error:
        if error.speaks:
            print(f"rawnn: error: {error}", file=sys.stderr)
        return error.exit_code
    if RANK == 0:
        print(f"ended after {len(result.epoch_ms)} epochs: {result.stopped}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
