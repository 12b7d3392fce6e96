"""Registries whose entries are the modules of a folder, one each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_all(package: str, paths: Iterable[str]) -> None:
    """Import every module of a package, each of which registers what it defines, in the order of
    their names. The package calls it last, with its __name__ and __path__."""
    for module in pkgutil.iter_modules(paths):
        importlib.import_module(f"{package}.{module.name}")
