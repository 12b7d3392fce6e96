"""The simulated libraries have the calls of the real ones, and nothing that they lack."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from rawnn.cuda import driver as driver_module
from rawnn.cuda.driver import Driver
from rawnn.cuda.libs.cublaslt import CublasLt
from rawnn.cuda.libs.cudnn import Cudnn
from rawnn.cuda.libs.nccl import Nccl
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.sim.cublaslt import SimCublasLt
from rawnn.sim.cudnn import SimCudnn
from rawnn.sim.driver import SimDriver
from rawnn.sim.nccl import SimNccl
from rawnn.sim.nvrtc import SimNvrtc
from tests import requires

CALL = re.compile(r"(cu|nvrtc|cublasLt|cudnn|nccl)[A-Z]\w+|error_text")


def passed_through() -> set[str]:
    """The calls that Driver takes from the bindings as they are."""
    text = Path(driver_module.__file__).read_text()
    block = text[text.index("for name in (") : text.index("setattr(self, name")]
    return set(re.findall(r'"(cu\w+)"', block))


def calls(cls: type) -> dict[str, Any]:
    return {name: method for name, method in inspect.getmembers(cls, callable)
            if CALL.fullmatch(name)}


def parameters(call: Any) -> list[tuple[str, Any]]:
    return [(p.name, p.kind) for p in inspect.signature(call).parameters.values()]


@pytest.mark.parametrize(("real", "simulated"), [
    (Driver, SimDriver), (Nvrtc, SimNvrtc), (CublasLt, SimCublasLt), (Cudnn, SimCudnn),
    (Nccl, SimNccl),
])
def test_methods_and_their_parameters_are_the_same(real: type, simulated: type) -> None:
    wanted, found = calls(real), calls(simulated)
    direct = passed_through() if real is Driver else set()
    assert len(wanted) > 5
    assert set(found) == set(wanted) | direct
    for name, method in wanted.items():
        assert parameters(found[name]) == parameters(method), name


def test_direct_calls_have_the_bindings_parameters() -> None:
    bindings = requires.module("cuda.bindings.driver")
    for name in passed_through():
        wanted = list(inspect.signature(getattr(bindings, name)).parameters)
        assert [p for p, _ in parameters(getattr(SimDriver, name))][1:] == wanted, name
