"""The bindings of cuDNN: the library itself if installed (descriptors need no GPU), and the message
if it is not."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from rawnn.common.errors import MissingLibrary
from rawnn.cuda.errors import CallFailed, check
from rawnn.cuda.libs import cudnn, locate
from rawnn.cuda.libs.cudnn import Cudnn


@pytest.fixture
def library() -> Cudnn:
    try:
        return Cudnn()
    except MissingLibrary as error:
        pytest.skip(str(error))


def test_descriptors_live_on_the_host(library: Cudnn) -> None:
    assert library.cudnnGetVersion()[1] >= 90000
    descriptor = check(library, "create", library.cudnnCreateTensorDescriptor())
    assert library.cudnnSetTensor4dDescriptorEx(
        descriptor, "float32", (128, 10, 1, 1), (12, 1, 1, 1)
    ) == (0,)
    refused = library.cudnnSetTensor4dDescriptorEx(
        descriptor, "float32", (0, 10, 1, 1), (12, 1, 1, 1)
    )
    with pytest.raises(CallFailed, match=r"CUDNN_STATUS_BAD_PARAM \[2000\].*\(rows=0\)"):
        check(library, "cudnnSetTensor4dDescriptorEx", refused, "rows=0")
    assert library.cudnnDestroyTensorDescriptor(descriptor) == (0,)


def test_bad_handles_are_codes_not_crashes(library: Cudnn) -> None:
    for code, *_ in (
        library.cudnnSoftmaxForward(0, 1, 0, 0, 0, 0, 0, 0, 0), library.cudnnSetStream(0, 0),
    ):
        assert code
        assert library.error_text(code)[0].startswith("CUDNN_STATUS_")


def test_missing_library_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, wheels: Path
) -> None:
    for name in ("CONDA_PREFIX", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda-of-mine")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/libs-of-mine")
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", ("/opt/system",))
    monkeypatch.setattr(cudnn, "FILE_NAMES", ("libcudnn-none.so.9",))
    with pytest.raises(MissingLibrary) as raised:
        Cudnn()
    message = str(raised.value)
    places = ", ".join((
        str(wheels / "cudnn/lib"), "/opt/libs-of-mine", "/opt/cuda-of-mine/lib64",
        "/usr/local/cuda/lib64", "/opt/system",
    ))
    assert message.startswith("cuDNN (libcudnn-none.so.9) cannot be loaded")
    assert f"looked on the loader's path and in {places};" in message
    assert "pip install 'rawnn[cu12]' (or 'rawnn[cu13]' for CUDA 13)" in message


def test_a_library_without_the_calls_is_missing(
    monkeypatch: pytest.MonkeyPatch, wheels: Path
) -> None:
    monkeypatch.setattr(cudnn, "FILE_NAMES", ("libm.so.6",))
    with pytest.raises(MissingLibrary, match=r"libm\.so\.6.*undefined symbol: cudnnGetVersion"):
        Cudnn()
    broken = wheels / "cudnn/lib/libcudnn.so.9"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no library")
    monkeypatch.setattr(cudnn, "FILE_NAMES", ("libcudnn.so.9",))
    assert locate.find(cudnn.FILE_NAMES, cudnn.WHEEL_FOLDERS) == broken
    with pytest.raises(MissingLibrary, match=r"file too short|invalid ELF"):
        Cudnn()


class Recorder:
    """A library whose functions record their arguments, as ctypes has them by their prototypes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            return 7

        return called


@pytest.mark.parametrize(("call", "given", "passed"), [
    ("cudnnDestroy", (11,), (11,)), ("cudnnSetStream", (11, 22), (11, 22)),
    ("cudnnDestroyTensorDescriptor", (11,), (11,)),
    # descriptor, type, n, c, h, w, and their strides, as the documentation of cuDNN has them
    ("cudnnSetTensor4dDescriptorEx", (11, "float32", (2, 3, 4, 5), (6, 7, 8, 9)),
     (11, 0, 2, 3, 4, 5, 6, 7, 8, 9)),
    ("cudnnSetTensor4dDescriptorEx", (11, "float16", (2, 3, 4, 5), (6, 7, 8, 9)),
     (11, 2, 2, 3, 4, 5, 6, 7, 8, 9)),
    # handle, algorithm, mode, alpha, x's descriptor, x, beta, y's descriptor, y
    ("cudnnSoftmaxForward", tuple(range(1, 10)), tuple(range(1, 10)))])
def test_calls_reach_the_library_in_its_order(monkeypatch: pytest.MonkeyPatch, call: str,
                                              given: tuple[Any, ...],
                                              passed: tuple[Any, ...]) -> None:
    recorder = Recorder()
    monkeypatch.setattr(cudnn, "_PROTOTYPES", {})
    monkeypatch.setattr(ctypes, "CDLL", lambda path: recorder)
    assert getattr(Cudnn(), call)(*given) == (7,)
    assert recorder.calls == [(call, *passed)]


def test_the_prototypes_have_as_many_arguments_as_the_calls() -> None:
    """By the documentation of cuDNN 9."""
    counts = {name: len(arguments) for name, (_, arguments) in cudnn._PROTOTYPES.items()}
    assert counts == {
        "cudnnGetVersion": 0, "cudnnGetErrorString": 1, "cudnnGetLastErrorString": 2,
        "cudnnCreate": 1, "cudnnDestroy": 1, "cudnnSetStream": 2,
        "cudnnCreateTensorDescriptor": 1, "cudnnSetTensor4dDescriptorEx": 10,
        "cudnnDestroyTensorDescriptor": 1, "cudnnSoftmaxForward": 9}
