"""Tests. NumPy's products have one thread in each of their processes: threads that wait for work
spin, and workers of pytest-xdist take all cores already."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
