"""The backend of cuBLASLt over a stand-in for nvmath's bindings, and over the bindings themselves
if installed with the library (no GPU needed: descriptors live on the host)."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import re
import subprocess
import sys
import types
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rawnn.common.errors import DeviceError, MissingLibrary
from rawnn.cuda.errors import CallFailed, check
from rawnn.cuda.libs import cublaslt
from rawnn.cuda.libs.cublaslt import CublasLt, Heuristic
from tests import requires


class Status(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class Attribute(IntEnum):
    TRANSA = 3
    BIAS_POINTER = 8


class Preference(IntEnum):
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3


class Bindings(types.ModuleType):
    """Enough of nvmath.bindings.cublasLt; `failing` makes every call raise."""

    cuBLASLtError, MatmulDescAttribute = Status, Attribute
    MatmulPreferenceAttribute = Preference

    def __init__(self) -> None:
        super().__init__("nvmath.bindings.cublasLt")
        self.seen: list[Any] = []
        self.load_error: Exception | None = None
        self.failing = 0

    def _call(self, *arguments: Any) -> int:
        if self.failing:
            raise Status(self.failing)
        self.seen.append(arguments)
        return 42

    create = destroy = matmul_desc_create = matmul_desc_destroy = matmul = _call
    matrix_layout_create = matrix_layout_destroy = _call
    matmul_preference_create = matmul_preference_destroy = _call

    def get_version(self) -> int:
        if self.load_error:
            raise self.load_error
        return 120903

    def get_status_name(self, status: int) -> str:
        return f"CUBLAS_STATUS_{status}"

    def get_status_string(self, status: int) -> str:
        return "said by the library"

    def _set(self, target: int, attribute: int, address: int, size: int) -> None:
        self._call(target, attribute, ctypes.string_at(address, size))

    matmul_desc_set_attribute = matmul_preference_set_attribute = _set

    def matmul_algo_get_heuristic(self, *arguments: int) -> None:
        self._call(*arguments[:-2])
        requested, results, count = arguments[-3:]
        given = min(requested, 2)
        for number, result in enumerate((cublaslt._HeuristicResult * given).from_address(results)):
            result.algo[:] = [1 + number] * 8
            result.workspace_size, result.state, result.waves = 512, number, 0.25
        ctypes.c_int.from_address(count).value = given


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    made = Bindings()
    for name in ("nvmath", "nvmath.bindings"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", made)
    return made


def test_every_call_passes_plain_values_on(bindings: Bindings) -> None:
    lt = CublasLt()
    assert lt.cublasLtGetVersion() == (0, 120903)
    assert lt.cublasLtCreate() == (0, 42)
    assert lt.cublasLtMatmulDescCreate("32F_FAST_TF32", "R_32F") == (0, 42)
    assert lt.cublasLtMatmulDescSetAttribute(42, "TRANSA", 1) == (0,)
    assert lt.cublasLtMatmulDescSetAttribute(42, "BIAS_POINTER", 1 << 40) == (0,)
    assert lt.cublasLtMatrixLayoutCreate("R_16BF", 10, 20, 12) == (0, 42)
    assert lt.cublasLtMatmulPreferenceCreate() == (0, 42)
    assert lt.cublasLtMatmulPreferenceSetAttribute(42, "MAX_WORKSPACE_BYTES", 1 << 33) == (0,)
    assert lt.cublasLtMatmulPreferenceSetAttribute(42, "REDUCTION_SCHEME_MASK", 7) == (0,)
    assert lt.cublasLtMatmul(*range(16)) == (0,)
    known = [Heuristic((n + 1).to_bytes(8, "little") * 8, 512, n, 0.25) for n in range(2)]
    for requested in (2, 1, 3):
        assert lt.cublasLtMatmulAlgoGetHeuristic(*range(7), requested) == (0, known[:requested])
    del bindings.seen[-2:]
    assert bindings.seen == [
        (), (77, 0), (42, 3, b"\1\0\0\0"), (42, 8, (1 << 40).to_bytes(8, "little")),
        (14, 10, 20, 12), (), (42, 1, (1 << 33).to_bytes(8, "little")), (42, 3, b"\7\0\0\0"),
        tuple(range(16)), (*range(7), 2),
    ]


def test_each_call_reaches_the_binding_of_its_name(bindings: Bindings,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """cublasLtMatmulDescCreate is matmul_desc_create."""
    special = {"cublasLtMatmulDescCreate": ("32F", "R_32F"),
               "cublasLtMatrixLayoutCreate": ("R_32F", 1, 1, 1),
               "cublasLtMatmulDescSetAttribute": (1, "TRANSA", 1),
               "cublasLtMatrixLayoutSetAttribute": (1, "LD", 1),
               "cublasLtMatmulPreferenceSetAttribute": (1, "REDUCTION_SCHEME_MASK", 1)}
    monkeypatch.setattr(Bindings, "MatrixLayoutAttribute", SimpleNamespace(LD=3), raising=False)
    seen: list[tuple[Any, ...]] = []
    methods = [name for name in vars(CublasLt) if name.startswith("cublasLt")]
    names = ["_".join(re.findall("[A-Z][a-z]+", name)[1:]).lower() for name in methods]
    for name in names:
        monkeypatch.setattr(bindings, name, lambda *given, name=name: seen.append((name, *given)),
                            raising=False)
    lt = CublasLt()
    seen.clear()
    for method in methods:
        call = getattr(lt, method)
        count = len(inspect.signature(call).parameters)
        assert call(*special.get(method, range(count)))[0] == 0
    assert [name for name, *_ in seen] == names
    assert next(given for name, *given in seen if name == "matrix_layout_set_attribute")[:2] == [
        1, 3]


def test_exceptions_become_codes(bindings: Bindings) -> None:
    lt = CublasLt()
    bindings.failing = 13
    assert lt.cublasLtCreate() == (13, 0)
    assert lt.cublasLtMatmulAlgoGetHeuristic(*range(7), 1) == (13, [])
    for call in ("Destroy", "MatmulDescDestroy", "MatrixLayoutDestroy", "MatmulPreferenceDestroy"):
        assert getattr(lt, "cublasLt" + call)(42) == (13,)
    with pytest.raises(
        CallFailed, match=r"cublasLtMatmul failed with CUBLAS_STATUS_13 \[13\]: said by the lib"
    ):
        check(lt, "cublasLtMatmul", lt.cublasLtMatmul(*range(16)))


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath.bindings.cublasLt", None)
    with pytest.raises(MissingLibrary, match=r"'nvmath-python' is needed.*rawnn\[cu12\]"):
        CublasLt()


def test_missing_library_says_where_it_looked(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidia").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    bindings.load_error = RuntimeError("No such file: libcublasLt.so.12\n  libcudart.so.12")
    with pytest.raises(MissingLibrary) as raised:
        CublasLt()
    message = str(raised.value)
    assert "cuBLASLt (libcublasLt.so.13 or libcublasLt.so.12)" in message
    assert str(tmp_path / "nvidia/cublas/lib") in message
    assert "rawnn[cu12]" in message
    assert "rawnn[cu13]" in message
    assert "\n" not in message


@pytest.mark.parametrize("reason", ["CUDA driver is not found (libcuda.so.1: no such file)",
                                    "libcuda.so.1: cannot open shared object file",
                                    "the CUDA driver is missing"])
def test_missing_driver_is_not_a_missing_package(bindings: Bindings, reason: str) -> None:
    bindings.load_error = RuntimeError(f"{reason}\nlooked in /lib")
    with pytest.raises(DeviceError, match=re.escape(f"which cannot be loaded: {reason}") + "$"
                       ) as raised:
        CublasLt()
    assert not isinstance(raised.value, MissingLibrary)


def test_the_bindings_agree_with_what_we_pass() -> None:
    lt = requires.module("nvmath.bindings.cublasLt")
    for name in ("TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER"):
        assert hasattr(lt.MatmulDescAttribute, name)
    for name in ("MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK", *(
        f"MIN_ALIGNMENT_{operand}_BYTES" for operand in "ABCD"
    )):
        assert hasattr(lt.MatmulPreferenceAttribute, name)
    epilogue = lt.Epilogue
    assert [epilogue.DEFAULT, epilogue.RELU, epilogue.BIAS, epilogue.RELU_BIAS] == [1, 2, 4, 6]
    assert (lt.ReductionScheme.NONE, lt.ReductionScheme.MASK) == (0, 7)
    assert ctypes.sizeof(cublaslt._HeuristicResult) == lt.matmul_heuristic_result_dtype.itemsize
    cublas = importlib.import_module("nvmath.bindings.cublas")
    for name, value in cublaslt.COMPUTE_TYPE.items():
        assert cublas.ComputeType["COMPUTE_" + name] == value
    nvmath = importlib.import_module("nvmath")
    for name, value in cublaslt.DATA_TYPE.items():
        assert nvmath.CudaDataType["CUDA_" + name] == value


def test_the_bindings_alone_are_imported_and_the_rest_can_be_later() -> None:
    """Their packages' code, which imports all of nvmath-python, is not run by us."""
    requires.module("nvmath")
    code = """
import importlib, sys
from rawnn.cuda.libs import cublaslt
imported = importlib.import_module
def without_a_driver(name):
    module = imported(name)
    if name == cublaslt._MODULE:
        module.get_version = lambda: 120000
    return module
importlib.import_module = without_a_driver
alone = cublaslt._bindings()
importlib.import_module = imported
assert alone.__name__ == cublaslt._MODULE
assert not {"nvmath", "nvmath.bindings", "nvmath.fft", "nvmath.bindings.cufft"} & {*sys.modules}
import nvmath
assert nvmath.bindings.cublasLt is alone and nvmath.linalg.matmul
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
                          check=False)
    assert done.returncode == 0, done.stderr


def test_where_the_bindings_do_not_load_alone_they_are_imported_whole(
        monkeypatch: pytest.MonkeyPatch) -> None:
    whole, asked = Bindings(), []

    def imported(name: str) -> Any:
        asked.append(name)
        if len(asked) == 1:
            raise AttributeError("the package has not been run")
        return whole

    for name in [name for name in sys.modules if name.startswith("nvmath")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib, "import_module", imported)
    assert cublaslt._bindings() is whole
    assert asked == [cublaslt._MODULE] * 2
    assert "nvmath" not in sys.modules
