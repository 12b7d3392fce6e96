"""NVRTC as rawnn calls it: the interface between kernel compilation and `cuda.bindings.nvrtc`.

As in driver.py, every method has the library's own name and returns its result code first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rawnn.cuda.errors import require_package


class Nvrtc:
    """`cuda.bindings.nvrtc` behind plain arguments; text is passed and returned as `str`.

    Raises MissingLibrary at construction if cuda-python's bindings are not installed.
    """

    def __init__(self) -> None:
        self._rtc = require_package("cuda.bindings.nvrtc", "cuda-bindings")

    def error_text(self, code: Any) -> tuple[str, str]:
        result = self._rtc.nvrtcResult(int(code))
        text = self._rtc.nvrtcGetErrorString(result)[1]
        return result.name, text.decode() if text else ""

    def nvrtcVersion(self) -> tuple[Any, int, int]:
        code, major, minor = self._rtc.nvrtcVersion()
        return code, major, minor

    def nvrtcGetSupportedArchs(self) -> tuple[Any, list[int]]:
        code, archs = self._rtc.nvrtcGetSupportedArchs()
        return code, list(archs or [])

    def nvrtcCreateProgram(self, source: str, name: str,
                           headers: Mapping[str, str] | None = None) -> tuple[Any, Any]:
        named = headers or {}
        code, program = self._rtc.nvrtcCreateProgram(
            source.encode(), name.encode(), len(named), [text.encode() for text in named.values()],
            [header.encode() for header in named])
        return code, program

    def nvrtcAddNameExpression(self, program: Any, expression: str) -> tuple[Any, ...]:
        result: tuple[Any, ...] = self._rtc.nvrtcAddNameExpression(program, expression.encode())
        return result

    def nvrtcCompileProgram(self, program: Any, options: Sequence[str]) -> tuple[Any, ...]:
        encoded = [option.encode() for option in options]
        result: tuple[Any, ...] = self._rtc.nvrtcCompileProgram(program, len(encoded), encoded)
        return result

    def nvrtcGetProgramLog(self, program: Any) -> tuple[Any, str]:
        code, log = self._output(program, "ProgramLog")
        return code, log.rstrip(b"\0").decode(errors="replace")

    def nvrtcGetLoweredName(self, program: Any, expression: str) -> tuple[Any, str]:
        code, name = self._rtc.nvrtcGetLoweredName(program, expression.encode())
        return code, name.decode() if not code else ""

    def nvrtcGetCUBIN(self, program: Any) -> tuple[Any, bytes]:
        return self._output(program, "CUBIN")

    def nvrtcGetPTX(self, program: Any) -> tuple[Any, bytes]:
        return self._output(program, "PTX")

    def _output(self, program: Any, what: str) -> tuple[Any, bytes]:
        """A program's output, from the two calls that return its size and content."""
        code, size = getattr(self._rtc, f"nvrtcGet{what}Size")(program)
        if code:
            return code, b""
        # A bytearray, never `b" " * size`: with size 1 (an empty log) that is the interpreter's
        # own shared b" ", and NVRTC's NUL would be written into it.
        buffer = bytearray(size)
        (code,) = getattr(self._rtc, f"nvrtcGet{what}")(program, buffer)
        return code, bytes(buffer)

    def nvrtcDestroyProgram(self, program: Any) -> tuple[Any, ...]:
        result: tuple[Any, ...] = self._rtc.nvrtcDestroyProgram(program)
        return result
