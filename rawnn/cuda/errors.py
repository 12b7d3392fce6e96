"""Turns a library's result code into one sentence with the call, the code, its text and the
context, and a missing package into the extra that installs it."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

from rawnn.common.errors import DeviceError, MissingLibrary, OutOfMemory


class ResultCodes(Protocol):
    """A library interface that can describe its own result codes."""

    def error_text(self, code: Any) -> tuple[str, str]: ...


class CallFailed(DeviceError):
    """A call of the driver, NVRTC, cuBLASLt, cuDNN or NCCL returned an error code."""

    def __init__(self, call: str, code: int, name: str, text: str, context: str) -> None:
        self.call, self.code, self.name, self.text, self.context = call, code, name, text, context
        where = f" ({context})" if context else ""
        described = f": {text}" if text else ""
        super().__init__(f"{call} failed with {name} [{code}]{described}{where}")


def check(library: ResultCodes, call: str, result: tuple[Any, ...], context: str = "") -> Any:
    """Return the values after the result code: None, one value, or a tuple.

    Raises CallFailed if the code is not success. `context` describes the call: kernel, grid, block,
    shared memory, node, bytes.
    """
    if result[0]:
        code = int(result[0])
        name, text = library.error_text(code)
        raise CallFailed(call, code, name, text, context)
    if len(result) == 2:
        return result[1]
    return result[1:] or None


def check_memory(
    library: Any, call: str, result: tuple[Any, ...], nbytes: int, context: str
) -> Any:
    """Like `check`, for an allocation: the error states the bytes requested and free."""
    if result[0]:
        name, _ = library.error_text(int(result[0]))
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            info = library.cuMemGetInfo()
            free = "" if info[0] else f"; {info[1]:,} of {info[2]:,} bytes are free"
            raise OutOfMemory(
                f"{call} failed with {name} [{int(result[0])}]: the GPU has no room for "
                f"{nbytes:,} bytes ({context}){free}; use a smaller batch or network"
            )
    return check(library, call, result, f"{nbytes:,} bytes, {context}")


def require_package(module: str, distribution: str) -> Any:
    """Import `module`, or raise MissingLibrary with the extra that installs `distribution`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibrary(
            f"the Python package '{distribution}' is needed and cannot be imported ({error}); "
            f"install rawnn with its CUDA libraries: pip install 'rawnn[cu12]' "
            f"(or 'rawnn[cu13]' for CUDA 13)"
        ) from error
