"""A rank of the tests on two GPUs: `python -m tests.gpu.ranks FOLDER FAULT OPT...` trains once with
each set of toggles, by the optimizer that stands behind a slash, and writes what came out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import rawnn
from rawnn.common.errors import RawnnError
from rawnn.engine import parallel
from rawnn.opts import nccl
from tests.distributed.fault import Fault
from tests.engine import random_dataset

LAYERS, BATCH, EPOCHS = (784, 256, 128, 10), 256, 3
RANK = int(os.environ.get("RANK", "0"))
nccl.SMALL_MB, nccl.BUCKET_MB = 0.05, 0.2  # so that these layers take turns as wide ones do
OPTIMIZERS = {"": {"lr": 0.05}, "momentum": {"lr": 0.02, "momentum": 0.9},
              "adam": {"optimizer": "adam", "lr": 1e-3}}
SHORT_US = parallel.SHORT_US


def main() -> int:
    folder, fault, *opts = sys.argv[1:]
    data = random_dataset(LAYERS[0], LAYERS[-1], train=2600, test=64)  # ten batches and a part
    epochs = EPOCHS if fault == "none" else 500
    for number, words in enumerate(opts):
        opt, _, optimizer = words.partition("/")
        # What one GPU takes by itself is asked once: its kernels are others.
        parallel.SHORT_US = SHORT_US if opt == "best" else 0.0
        try:
            result = rawnn.train(
                data=rawnn.Dataset(**vars(data)), layers=LAYERS, batch=BATCH,
                epochs=epochs, shuffle=True, partial=True, device="gpu", opt=opt,
                listener=Fault(fault, RANK), **OPTIMIZERS[optimizer])
        except RawnnError as error:
            if error.speaks:
                print(f"rawnn: error: {error}", file=sys.stderr)
            return error.exit_code
        np.savez(Path(folder) / f"{number}.{RANK}.npz", **result.parameters,
                 losses=[report.train_loss for report in result.history],
                 graph=[result.facts.get("graph_nodes", 0)],
                 reduces=["nccl" in result.toggles], alone=["alone_us" in result.facts])
    return 0


if __name__ == "__main__":
    sys.exit(main())
