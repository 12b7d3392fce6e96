"""What every kernel must do, as checks against float64 NumPy on an Emulator.

Each check runs at ragged sizes, on outputs filled beforehand with NaN (or -77777) and inputs whose
padding columns hold NaN, and looks that the outputs' padding columns were left alone. The
tolerances are those of emulated_arrays.py.
"""

from __future__ import annotations

from collections.abc import Callable

import cases_layers
import cases_losses
import cases_products
import cases_updates
import numpy as np
from emulated_kernels import Emulator

CHECKS: dict[str, Callable[[Emulator, np.random.Generator], None]] = {
    name.removeprefix("check_"): function
    for module in (cases_products, cases_layers, cases_losses, cases_updates)
    for name, function in sorted(vars(module).items())
    if name.startswith("check_")
}
