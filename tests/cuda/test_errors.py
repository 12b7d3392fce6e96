from __future__ import annotations

from typing import Any

import pytest

from rawnn.common.errors import DeviceError, MissingLibrary, OutOfMemory
from rawnn.cuda.errors import CallFailed, check, check_memory, require_package


class Library:
    """A library with one way to fail besides running out of memory."""

    free: tuple[Any, ...] = (0, 100, 2_000_000)

    def error_text(self, code: Any) -> tuple[str, str]:
        return {2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
                700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access")}.get(
                    code, (f"code {code}", ""))

    def cuMemGetInfo(self) -> tuple[Any, ...]:
        return self.free


@pytest.mark.parametrize(("result", "value"), [
    ((0,), None), ((0, 5), 5), ((0, None), None), ((0, 1, 2), (1, 2)), ((0, []), []),
])
def test_success_returns_what_follows_the_code(result: tuple[Any, ...], value: object) -> None:
    assert check(Library(), "cuCall", result) == value


def test_a_failure_names_call_code_text_and_context() -> None:
    with pytest.raises(CallFailed) as caught:
        check(Library(), "cuLaunchKernel", (700, None), "relu, grid (1, 1, 1)")
    assert str(caught.value) == ("cuLaunchKernel failed with CUDA_ERROR_ILLEGAL_ADDRESS [700]: an "
                                 "illegal memory access (relu, grid (1, 1, 1))")
    assert isinstance(caught.value, DeviceError)
    assert (caught.value.call, caught.value.code, caught.value.name) == (
        "cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(CallFailed, match=r"^cuX failed with code 9 \[9\]$"):
        check(Library(), "cuX", (9,))


def test_out_of_memory_says_what_was_asked_and_what_was_free() -> None:
    with pytest.raises(OutOfMemory) as caught:
        check_memory(Library(), "cuMemAlloc", (2, 0), 3_000_000, "arena")
    assert str(caught.value) == (
        "cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY [2]: the GPU has no room for 3,000,000 "
        "bytes (arena); 100 of 2,000,000 bytes are free; use a smaller batch or network")
    broken = Library()
    broken.free = (700, 0, 0)
    with pytest.raises(OutOfMemory, match=r"bytes \(arena\); use a smaller batch"):
        check_memory(broken, "cuMemAlloc", (2, 0), 3_000_000, "arena")
    with pytest.raises(CallFailed, match=r"\(5 bytes, arena\)"):
        check_memory(Library(), "cuMemAlloc", (700, 0), 5, "arena")


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    assert require_package("json", "json").__name__ == "json"
    with pytest.raises(MissingLibrary, match=r"'cuda-bindings' is needed .*pip install 'rawnn\["):
        require_package("rawnn_has_no_such_module", "cuda-bindings")
