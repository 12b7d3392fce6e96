"""Measure how far steps of training are from float64, as computed on the chip and in NumPy's
float32, and keep the ratio of each draw in results/float32-error.json.

    python tools/float32_error.py

The arithmetic on the chip is a model in NumPy (tests/persistent/arithmetic.py); no GPU is needed.
Takes half a minute.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from tests.persistent import errors  # noqa: E402

RECORD = ROOT / "results" / "float32-error.json"


def main() -> None:
    rows = []
    for seed in range(errors.DRAWS):
        found = errors.measured(errors.draw(seed))
        update, gradient = (round(ratio, 3) for ratio in found.ratios)
        rows.append({"seed": seed, "what": str(found.drawn),
                     "blocks": str(found.chosen.sharding), "update": update,
                     "gradient": gradient})
    record = {
        "about": "error of a step on the chip over that of NumPy's float32, both against float64 "
                 "(tools/float32_error.py)",
        "worst": {what: max(row[what] for row in rows) for what in ("update", "gradient")},
        "median": {what: round(float(np.median([row[what] for row in rows])), 3)
                   for what in ("update", "gradient")},
        "numpy": np.__version__, "draws": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(f"worst {record['worst']}, median {record['median']}")


if __name__ == "__main__":
    main()
