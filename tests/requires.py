"""What tests need that a machine may lack: each skip says how to get it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ptx.emulator.emulator import compiler

EXTRAS = {
    "cuda": "nvrtc12", "nvmath": "cu12", "nccl": "nccl12", "onnx": "export", "jinja2": "report",
    "matplotlib": "report", "torch": "peers", "jax": "peers-jax", "optuna": "optuna",
    "pytest": "dev", "mypy": "dev", "onnxruntime": "dev", "pandas": "dev", "polars": "dev",
    "scipy": "dev", "setuptools": "dev", "sklearn": "dev",
}
"""The extra that installs a package; those of CUDA have a counterpart for 13."""
OTHERS: dict[str, str] = {}
"""How to install what no extra has."""


def command(package: str) -> str:
    """What installs a package."""
    extra = EXTRAS.get(package)
    return OTHERS[package] if extra is None else f"pip install -e '.[{extra}]'"


def module(name: str) -> Any:
    """The module, or a skip of the test (of all in the file, where a file calls it)."""
    package = name.partition(".")[0]
    return pytest.importorskip(name, reason=f"needs {name}: {command(package)}",
                               exc_type=ImportError)


def tool(name: str, package: str) -> str:
    """The reason for a program that is not installed; `package` is the distribution's."""
    return f"needs {name}, of the distribution's package {package}"


GXX = pytest.mark.skipif(compiler() is None, reason=tool("g++", "g++"))
"""On tests that run kernels on the CPU emulator."""
