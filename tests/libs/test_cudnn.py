"""The bindings of cuDNN: the library itself if installed (descriptors need no GPU), and the message
if it is not."""

from __future__ import annotations

from pathlib import Path

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
