"""Result codes of the simulated libraries: name, value and description, as documented."""

from __future__ import annotations

_CUDA = """
0 CUDA_SUCCESS no error
1 CUDA_ERROR_INVALID_VALUE invalid argument
2 CUDA_ERROR_OUT_OF_MEMORY out of memory
3 CUDA_ERROR_NOT_INITIALIZED initialization error
4 CUDA_ERROR_DEINITIALIZED driver shutting down
34 CUDA_ERROR_STUB_LIBRARY CUDA driver is a stub library
46 CUDA_ERROR_DEVICE_UNAVAILABLE CUDA-capable device(s) is/are busy or unavailable
100 CUDA_ERROR_NO_DEVICE no CUDA-capable device is detected
101 CUDA_ERROR_INVALID_DEVICE invalid device ordinal
200 CUDA_ERROR_INVALID_IMAGE device kernel image is invalid
201 CUDA_ERROR_INVALID_CONTEXT invalid device context
209 CUDA_ERROR_NO_BINARY_FOR_GPU no kernel image is available for execution on the device
214 CUDA_ERROR_ECC_UNCORRECTABLE uncorrectable ECC error encountered
218 CUDA_ERROR_INVALID_PTX a PTX JIT compilation failed
220 CUDA_ERROR_NVLINK_UNCORRECTABLE uncorrectable NVLink error detected during the execution
221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND PTX JIT compiler library not found
222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION the provided PTX was compiled with an unsupported toolchain.
300 CUDA_ERROR_INVALID_SOURCE device kernel image is invalid
301 CUDA_ERROR_FILE_NOT_FOUND file not found
302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND shared object symbol not found
303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED shared object initialization failed
304 CUDA_ERROR_OPERATING_SYSTEM OS call failed or operation not supported on this OS
400 CUDA_ERROR_INVALID_HANDLE invalid resource handle
401 CUDA_ERROR_ILLEGAL_STATE the operation cannot be performed in the present state
500 CUDA_ERROR_NOT_FOUND named symbol not found
600 CUDA_ERROR_NOT_READY device not ready
700 CUDA_ERROR_ILLEGAL_ADDRESS an illegal memory access was encountered
701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES too many resources requested for launch
702 CUDA_ERROR_LAUNCH_TIMEOUT the launch timed out and was terminated
708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE cannot set while device is active in this process
709 CUDA_ERROR_CONTEXT_IS_DESTROYED context is destroyed
710 CUDA_ERROR_ASSERT device-side assert triggered
714 CUDA_ERROR_HARDWARE_STACK_ERROR hardware stack error
715 CUDA_ERROR_ILLEGAL_INSTRUCTION an illegal instruction was encountered
716 CUDA_ERROR_MISALIGNED_ADDRESS misaligned address
717 CUDA_ERROR_INVALID_ADDRESS_SPACE operation not supported on global/shared address space
718 CUDA_ERROR_INVALID_PC invalid program counter
719 CUDA_ERROR_LAUNCH_FAILED unspecified launch failure
720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE too many blocks in cooperative launch
800 CUDA_ERROR_NOT_PERMITTED operation not permitted
801 CUDA_ERROR_NOT_SUPPORTED operation not supported
802 CUDA_ERROR_SYSTEM_NOT_READY system not yet initialized
803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH system has unsupported display driver / cuda driver combination
900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED operation not permitted when stream is capturing
901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED operation failed due to a previous error during capture
902 CUDA_ERROR_STREAM_CAPTURE_MERGE operation would result in a merge of separate capture sequences
903 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED capture was not ended in the same stream as it began
904 CUDA_ERROR_STREAM_CAPTURE_UNJOINED capturing stream has unjoined work
905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION dependency created on uncaptured work in another stream
906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT operation would make the legacy stream depend on a capturing blocking stream
907 CUDA_ERROR_CAPTURED_EVENT operation not permitted on an event last recorded in a capturing stream
908 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD attempt to terminate a thread-local capture sequence from another thread
909 CUDA_ERROR_TIMEOUT wait operation timed out
910 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE the graph update was not performed because it included changes which violated constraints specific to instantiated graph update
912 CUDA_ERROR_INVALID_CLUSTER_SIZE a kernel launch error has occurred due to cluster misconfiguration
999 CUDA_ERROR_UNKNOWN unknown error
"""  # noqa: E501

_NVRTC = """
0 NVRTC_SUCCESS
1 NVRTC_ERROR_OUT_OF_MEMORY
2 NVRTC_ERROR_PROGRAM_CREATION_FAILURE
3 NVRTC_ERROR_INVALID_INPUT
4 NVRTC_ERROR_INVALID_PROGRAM
5 NVRTC_ERROR_INVALID_OPTION
6 NVRTC_ERROR_COMPILATION
7 NVRTC_ERROR_BUILTIN_OPERATION_FAILURE
8 NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION
9 NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION
10 NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID
11 NVRTC_ERROR_INTERNAL_ERROR
"""

_CUBLAS = """
0 CUBLAS_STATUS_SUCCESS success
1 CUBLAS_STATUS_NOT_INITIALIZED the library was not initialized
3 CUBLAS_STATUS_ALLOC_FAILED the resource allocation failed
7 CUBLAS_STATUS_INVALID_VALUE an unsupported value or parameter was passed to the function
8 CUBLAS_STATUS_ARCH_MISMATCH the function requires an architectural feature absent from the architecture of the device
11 CUBLAS_STATUS_MAPPING_ERROR an access to GPU memory space failed
13 CUBLAS_STATUS_EXECUTION_FAILED the GPU program failed to execute
14 CUBLAS_STATUS_INTERNAL_ERROR an internal operation failed
15 CUBLAS_STATUS_NOT_SUPPORTED the requested functionality is not supported
16 CUBLAS_STATUS_LICENSE_ERROR the functionality requires a license
"""  # noqa: E501

_CUDNN = """
0 CUDNN_STATUS_SUCCESS
1001 CUDNN_STATUS_NOT_INITIALIZED
1002 CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH
1003 CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH
1004 CUDNN_STATUS_DEPRECATED
1005 CUDNN_STATUS_LICENSE_ERROR
1006 CUDNN_STATUS_RUNTIME_IN_PROGRESS
1007 CUDNN_STATUS_RUNTIME_FP_OVERFLOW
1008 CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED
2000 CUDNN_STATUS_BAD_PARAM
2002 CUDNN_STATUS_BAD_PARAM_NULL_POINTER
2003 CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER
2004 CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED
2005 CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND
3000 CUDNN_STATUS_NOT_SUPPORTED
4000 CUDNN_STATUS_INTERNAL_ERROR
5000 CUDNN_STATUS_EXECUTION_FAILED
5001 CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER
5003 CUDNN_STATUS_EXECUTION_FAILED_CUDART
"""

_NCCL = """
0 ncclSuccess no error
1 ncclUnhandledCudaError unhandled cuda error
2 ncclSystemError unhandled system error
3 ncclInternalError internal error - please report this issue to the NCCL developers
4 ncclInvalidArgument invalid argument
5 ncclInvalidUsage invalid usage
6 ncclRemoteError remote process exited or there was a network error
7 ncclInProgress NCCL operation in progress
8 ncclTimeout operation timed out
"""


def _table(text: str) -> dict[str, tuple[int, str]]:
    rows = (line.split(" ", 2) for line in text.strip().splitlines())
    return {row[1]: (int(row[0]), row[2] if len(row) > 2 else "") for row in rows}


CODES: dict[str, dict[str, tuple[int, str]]] = {
    "cuda": _table(_CUDA), "nvrtc": _table(_NVRTC),
    "cublas": _table(_CUBLAS), "cudnn": _table(_CUDNN), "nccl": _table(_NCCL),
}
"""library -> name of a code -> (value, description)."""

GENERIC = {
    "cuda": "CUDA_ERROR_UNKNOWN", "nvrtc": "NVRTC_ERROR_INTERNAL_ERROR",
    "cublas": "CUBLAS_STATUS_INTERNAL_ERROR", "cudnn": "CUDNN_STATUS_INTERNAL_ERROR",
    "nccl": "ncclInternalError",
}
"""The default code of a fault."""

_BY_VALUE = {
    library: {value: (name, text) for name, (value, text) in table.items()}
    for library, table in CODES.items()
}


def describe(library: str, value: int) -> tuple[str, str]:
    """(name, description) of a code."""
    return _BY_VALUE[library].get(value, (f"code {value}", "unrecognized error code"))
