"""A rank of the tests on two GPUs: `python -m tests.gpu.ranks FOLDER FAULT OPT...` trains once with
each set of toggles and writes what came out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import rawnn
from rawnn.errors import RawnnError
from rawnn.opts import nccl
from tests.engine import random_dataset
from tests.ranks.fault import Fault

LAYERS, BATCH, EPOCHS = (784, 256, 128, 10), 256, 3
RANK = int(os.environ.get("RANK", "0"))
nccl.SMALL_MB, nccl.BUCKET_MB = 0.05, 0.2  # so that these layers take turns as wide ones do


def main() -> int:
    folder, fault, *opts = sys.argv[1:]
    data = random_dataset(LAYERS[0], LAYERS[-1], train=2600, test=64)  # ten batches and a part
    epochs = EPOCHS if fault == "none" else 500
    for number, opt in enumerate(opts):
        try:
            result = rawnn.train(
                data=rawnn.Dataset(**vars(data)), layers=LAYERS, batch=BATCH, lr=0.05,
                epochs=epochs, shuffle=True, partial=True, device="gpu", opt=opt,
                listener=Fault(fault, RANK))
        except RawnnError as error:
            if error.speaks:
                print(f"rawnn: error: {error}", file=sys.stderr)
            return error.exit_code
        np.savez(Path(folder) / f"{number}.{RANK}.npz", **result.parameters,
                 losses=[report.train_loss for report in result.history],
                 graph=[result.facts.get("graph_nodes", 0)],
                 reduces=["nccl" in result.toggles])
    return 0


if __name__ == "__main__":
    sys.exit(main())
