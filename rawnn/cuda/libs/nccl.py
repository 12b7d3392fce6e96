"""NCCL as rawnn calls it: an interface to nccl4py's low-level bindings.

As in rawnn/cuda/driver.py, every method has the library's own name and returns its status first.
Buffers and streams are ints, reductions and types the numbers of nccl.h; a communicator is the
bindings' own object. Communicators are blocking.
"""

from __future__ import annotations

import ctypes
from typing import Any

from rawnn.common.errors import MissingLibrary

# ncclDataType_t and ncclRedOp_t (nccl.h).
DATA_TYPE = {"uint8": 1, "int32": 2, "float16": 6, "float32": 7, "bfloat16": 9}
SUM, MAX = 0, 2
UNIQUE_ID_BYTES = 128
# ncclConfig_t's CTAPolicy: NCCL's default; copy engines for what computes nothing (from 2.28 on).
DEFAULT_BLOCKS, NO_BLOCKS = 0, 2
SYMMETRIC = 1
"""The flag of a window whose buffers have the same offset on all ranks."""

RESULTS = ("ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
           "ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress",
           "ncclTimeout")
"""Names of ncclResult_t, by value."""

INSTALL = "pip install 'rawnn[nccl12]' (or 'rawnn[nccl13]' for CUDA 13)"


class Nccl:
    """NCCL behind plain arguments. One instance serves a process.

    Raises MissingLibrary at construction if nccl4py or NCCL itself is not installed.
    """

    def __init__(self) -> None:
        try:
            from nccl.bindings import nccl

            nccl.get_version()
        except (ImportError, RuntimeError, OSError) as error:
            raise MissingLibrary(f"NCCL cannot be loaded ({error}): {INSTALL}") from error
        self._nccl, self._failed = nccl, nccl.NCCLError
        self._all_reduce, self._no_communicator = nccl.all_reduce, nccl.Comm(0)
        self._host_immediate = int(nccl.ScalarResidence.HostImmediate)
        self.path = str(nccl.get_library_path())
        """The file that was loaded."""

    def error_text(self, code: Any) -> tuple[str, str]:
        """(name, NCCL's description and its last error text) of a status."""
        number = int(code)
        name = RESULTS[number] if number < len(RESULTS) else f"ncclResult {number}"
        text = self._nccl.get_error_string(number).partition(" (run with")[0]
        last = self._nccl.get_last_error(self._no_communicator)
        return name, f"{text}; last error: {last}" if last else text

    def ncclGetVersion(self) -> tuple[int, int]:
        """(code, version), as 22703 for 2.27.3."""
        return 0, self._nccl.get_version()

    def ncclGetUniqueId(self) -> tuple[int, bytes]:
        """(code, the UNIQUE_ID_BYTES bytes by which ranks find each other)."""
        try:
            return 0, bytes(self._nccl.get_unique_id())
        except self._failed as error:
            return error.status, b""

    def ncclCommInitRankConfig(self, nranks: int, commId: bytes, rank: int,
                               CTAPolicy: int) -> tuple[int, Any]:
        """(code, communicator) of the current device; returns once all ranks have called it."""
        config = self._nccl.Config()
        if CTAPolicy:
            config.cta_policy = CTAPolicy
        try:
            return 0, self._nccl.comm_init_rank_config(
                nranks, self._nccl.UniqueId.from_buffer(commId), rank, config.ptr)
        except self._failed as error:
            return error.status, None

    def ncclCommDestroy(self, comm: Any) -> tuple[int]:
        return self._done(self._nccl.comm_destroy, comm)

    def ncclCommAbort(self, comm: Any) -> tuple[int]:
        """Abort pending operations, so that streams which wait for them continue; any thread may
        call it. The communicator is destroyed."""
        return self._done(self._nccl.comm_abort, comm)

    def ncclMemAlloc(self, size: int) -> tuple[int, int]:
        """(code, address) of device memory in which windows may be registered."""
        try:
            return 0, int(self._nccl.mem_alloc(size))
        except self._failed as error:
            return error.status, 0

    def ncclMemFree(self, ptr: int) -> tuple[int]:
        return self._done(self._nccl.mem_free, ptr)

    def ncclCommWindowRegister(self, comm: Any, buff: int, size: int,
                               winFlags: int) -> tuple[int, Any]:
        """(code, window); all ranks call it, and map each other's memory."""
        try:
            return 0, self._nccl.comm_window_register(comm, buff, size, winFlags)
        except self._failed as error:
            return error.status, None

    def ncclCommWindowDeregister(self, comm: Any, win: Any) -> tuple[int]:
        return self._done(self._nccl.comm_window_deregister, comm, win)

    def ncclRedOpCreatePreMulSum(self, scalar: float, datatype: int,
                                 comm: Any) -> tuple[int, int]:
        """(code, reduction): a sum to which this rank contributes its values times `scalar`, of
        type `datatype` (float32, float16 or bfloat16)."""
        word = ctypes.create_string_buffer(_as_bytes(scalar, datatype), 4)
        try:
            return 0, int(self._nccl.red_op_create_pre_mul_sum(
                ctypes.addressof(word), datatype, self._host_immediate, comm))
        except self._failed as error:
            return error.status, 0

    def ncclRedOpDestroy(self, op: int, comm: Any) -> tuple[int]:
        return self._done(self._nccl.red_op_destroy, op, comm)

    def ncclGroupStart(self) -> tuple[int]:
        return self._done(self._nccl.group_start)

    def ncclGroupEnd(self) -> tuple[int]:
        return self._done(self._nccl.group_end)

    def ncclAllReduce(self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int,
                      comm: Any, stream: int) -> tuple[int]:
        """`count` elements, in place if both buffers are equal."""
        return self._done(self._all_reduce, sendbuff, recvbuff, count, datatype, op, comm, stream)

    def ncclReduceScatter(self, sendbuff: int, recvbuff: int, recvcount: int, datatype: int,
                          op: int, comm: Any, stream: int) -> tuple[int]:
        """`recvcount` elements a rank; in place if recvbuff is this rank's part of sendbuff."""
        return self._done(self._nccl.reduce_scatter, sendbuff, recvbuff, recvcount, datatype, op,
                          comm, stream)

    def ncclAllGather(self, sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: Any,
                      stream: int) -> tuple[int]:
        """`sendcount` elements a rank; in place if sendbuff is this rank's part of recvbuff."""
        return self._done(self._nccl.all_gather, sendbuff, recvbuff, sendcount, datatype, comm,
                          stream)

    def _done(self, call: Any, *arguments: Any) -> tuple[int]:
        try:
            call(*arguments)
        except self._failed as error:
            return (error.status,)
        return (0,)


def _as_bytes(scalar: float, datatype: int) -> bytes:
    """A number as the library reads it from host memory."""
    import ml_dtypes
    import numpy as np

    types: dict[int, Any] = {DATA_TYPE["float32"]: np.float32, DATA_TYPE["float16"]: np.float16,
                             DATA_TYPE["bfloat16"]: ml_dtypes.bfloat16}
    return bytes(np.array(scalar, types[datatype]).tobytes())
