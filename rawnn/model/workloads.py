"""The built-in workloads: what the measurements are about, by name."""

from __future__ import annotations

import re
from typing import Any

from rawnn.common.errors import unknown

WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192)

WORKLOADS: dict[str, dict[str, Any]] = {
    "linear": {"layers": (784, 10), "batch": 128, "lr": 0.1, "epochs": 20},
    "mlp4": {"layers": (784, 784, 784, 784, 784, 10), "bias": False, "batch": 64, "lr": 0.1,
             "epochs": 5, "shuffle": True, "opt": "best,bf16"},
    **{f"wide{h}": {"layers": (784, h, h, h, 10), "batch": 32, "lr": 0.003, "epochs": 5,
                    "shuffle": True, "opt": "best,bf16"} for h in WIDTHS},
}
"""Name -> values of a Config. `linear` is the report's softmax regression, which keeps the order of
the examples; `mlp4` is validated each epoch; the wide ones are in 16 bits."""


def workload(name: object) -> dict[str, Any]:
    """The values of a workload; any width stands behind "wide". Raises ConfigError."""
    found = re.fullmatch(r"wide([1-9][0-9]{0,5})", name) if isinstance(name, str) else None
    if found and name not in WORKLOADS:
        width = int(found[1])
        return {**WORKLOADS["wide128"], "layers": (784, width, width, width, 10)}
    if not isinstance(name, str) or name not in WORKLOADS:
        raise unknown("workload", name, WORKLOADS)
    return dict(WORKLOADS[name])
