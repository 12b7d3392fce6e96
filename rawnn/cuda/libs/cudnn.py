"""cuDNN as rawnn calls it: an interface, by ctypes, to the wheel's or the system's library.

As in rawnn/cuda/driver.py, every method has the library's own name and returns its status first;
handles, descriptors and device addresses are ints. cuDNN 9's libcudnn.so.9 is a small file that
loads libcudnn_ops.so.9 from its own folder at the first call that needs it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from rawnn.cuda.libs import locate

FILE_NAMES = ("libcudnn.so.9",)
WHEEL_FOLDERS = ("cudnn/lib",)

# cudnnDataType_t, cudnnSoftmaxAlgorithm_t and cudnnSoftmaxMode_t
# (cudnn_graph.h, cudnn_ops.h).
DATA_TYPE = {"float32": 0, "float16": 2, "bfloat16": 9}
SOFTMAX_ACCURATE = 1
SOFTMAX_MODE_INSTANCE, SOFTMAX_MODE_CHANNEL = 0, 1

_int, _pointer = ctypes.c_int, ctypes.c_void_p
_out = ctypes.POINTER(ctypes.c_void_p)
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cudnnGetVersion": (ctypes.c_size_t, ()),
    "cudnnGetErrorString": (ctypes.c_char_p, (_int,)),
    "cudnnGetLastErrorString": (None, (ctypes.c_char_p, ctypes.c_size_t)),
    "cudnnCreate": (_int, (_out,)),
    "cudnnDestroy": (_int, (_pointer,)),
    "cudnnSetStream": (_int, (_pointer, _pointer)),
    "cudnnCreateTensorDescriptor": (_int, (_out,)),
    "cudnnSetTensor4dDescriptorEx": (_int, (_pointer, *(_int,) * 9)),
    "cudnnDestroyTensorDescriptor": (_int, (_pointer,)),
    "cudnnSoftmaxForward": (
        _int,
        (_pointer, _int, _int, _pointer, _pointer, _pointer, _pointer, _pointer, _pointer),
    ),
}


class Cudnn:
    """cuDNN 9 behind plain arguments. One instance serves a process.

    Raises MissingLibrary at construction if the library is not installed, or lacks a call.
    """

    def __init__(self) -> None:
        found = locate.find(FILE_NAMES, WHEEL_FOLDERS)
        self.path: Path | str = found or FILE_NAMES[0]
        """The file that was loaded; a bare name means the loader's choice."""
        try:
            library = ctypes.CDLL(str(self.path))
            for name, (result, arguments) in _PROTOTYPES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise locate.missing("cuDNN", FILE_NAMES, WHEEL_FOLDERS, error) from error
        self._library = library
        self._softmax_forward = library.cudnnSoftmaxForward

    def error_text(self, code: Any) -> tuple[str, str]:
        """(name, cuDNN's last error text in this thread) of a status."""
        name: bytes = self._library.cudnnGetErrorString(int(code))
        buffer = ctypes.create_string_buffer(1024)
        self._library.cudnnGetLastErrorString(buffer, len(buffer))
        return name.decode(), buffer.value.decode(errors="replace")

    def cudnnGetVersion(self) -> tuple[int, int]:
        """(code, version), as 91002 for 9.10.2."""
        return 0, self._library.cudnnGetVersion()

    def cudnnCreate(self) -> tuple[int, int]:
        """(code, handle), bound to the current context's device."""
        return self._create(self._library.cudnnCreate)

    def cudnnDestroy(self, handle: int) -> tuple[int]:
        return (self._library.cudnnDestroy(handle),)

    def cudnnSetStream(self, handle: int, stream: int) -> tuple[int]:
        return (self._library.cudnnSetStream(handle, stream),)

    def cudnnCreateTensorDescriptor(self) -> tuple[int, int]:
        return self._create(self._library.cudnnCreateTensorDescriptor)

    def cudnnSetTensor4dDescriptorEx(
        self, descriptor: int, data_type: str, shape: tuple[int, int, int, int],
        strides: tuple[int, int, int, int],
    ) -> tuple[int]:
        """Shape and strides are of N, C, H, W in elements; `data_type` is a key of DATA_TYPE."""
        return (
            self._library.cudnnSetTensor4dDescriptorEx(
                descriptor, DATA_TYPE[data_type], *shape, *strides
            ),
        )

    def cudnnDestroyTensorDescriptor(self, descriptor: int) -> tuple[int]:
        return (self._library.cudnnDestroyTensorDescriptor(descriptor),)

    def cudnnSoftmaxForward(
        self, handle: int, algorithm: int, mode: int, alpha: int, x_descriptor: int, x: int,
        beta: int, y_descriptor: int, y: int,
    ) -> tuple[int]:
        """`alpha` and `beta` address host floats that the caller keeps alive."""
        return (
            self._softmax_forward(
                handle, algorithm, mode, alpha, x_descriptor, x, beta, y_descriptor, y
            ),
        )

    def _create(self, call: Any) -> tuple[int, int]:
        handle_value = ctypes.c_void_p()
        code: int = call(ctypes.byref(handle_value))
        return code, handle_value.value or 0
