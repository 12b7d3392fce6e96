"""Toggles: each optimization is one small rewrite of the plan or the policy, in one file.

Importing this package registers all of them, in the order in which they are applied.
"""

from rawnn.opts import preload as _preload  # isort: skip
from rawnn.opts import arena as _arena  # isort: skip
from rawnn.opts import pool as _pool  # isort: skip
from rawnn.opts import stream_ordered as _stream_ordered  # isort: skip
from rawnn.opts import pinned as _pinned  # isort: skip
from rawnn.opts import nosync as _nosync  # isort: skip
from rawnn.opts import report as _report  # isort: skip
from rawnn.opts import batch as _batch  # isort: skip
from rawnn.opts import tf32 as _tf32  # isort: skip
from rawnn.opts import fp16 as _fp16  # isort: skip
from rawnn.opts import bf16 as _bf16  # isort: skip
from rawnn.opts import sr as _sr  # isort: skip
from rawnn.opts import fp8 as _fp8  # isort: skip
from rawnn.opts import nccl as _nccl  # isort: skip
from rawnn.opts import persistent as _persistent  # isort: skip
from rawnn.opts import tiled as _tiled  # isort: skip
from rawnn.opts import mma as _mma  # isort: skip
from rawnn.opts import cublas as _cublas  # isort: skip
from rawnn.opts import cudnn as _cudnn  # isort: skip
from rawnn.opts import fuse as _fuse  # isort: skip
from rawnn.opts import streams as _streams  # isort: skip
from rawnn.opts import pdl as _pdl  # isort: skip
from rawnn.opts import tune as _tune  # isort: skip
from rawnn.opts import graphs as _graphs  # isort: skip
from rawnn.opts.registry import TOGGLES, Toggle
from rawnn.opts.select import Selection, select

__all__ = ["TOGGLES", "Selection", "Toggle", "select"]
del _arena, _batch, _bf16, _cublas, _cudnn, _fp16, _fp8, _fuse, _graphs, _mma, _nosync, _pdl
del _nccl, _persistent, _pinned, _pool, _preload, _report, _sr, _stream_ordered, _streams, _tf32
del _tiled, _tune
