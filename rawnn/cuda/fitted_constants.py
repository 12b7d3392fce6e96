"""Constants of cost models, fitted to a particular GPU: by name, in a file next to the kernel cache
(`tools/fit_costs.py --keep` writes it)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

from rawnn.common.errors import ConfigError
from rawnn.common.files import cache_directory, write_atomically

KIND, SCHEMA_VERSION = "costs", 1


def path_of(gpu: str) -> Path:
    """The file of a GPU's constants, by the driver's name of the GPU."""
    slug = re.sub(r"[^a-z0-9.]+", "-", gpu.lower()).strip("-")
    return cache_directory() / "floors" / f"{KIND}-{slug}.json"


def keep(gpu: str, constants: Mapping[str, float]) -> Path:
    """Store the constants of a GPU, replacing earlier ones. Raises RawnnError if the file cannot be
    written."""
    path = path_of(gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"kind": KIND, "schema_version": SCHEMA_VERSION, "gpu": gpu,
            "constants": dict(constants)}
    write_atomically(path, (json.dumps(held, indent=2) + "\n").encode())
    return path


def kept(gpu: str) -> dict[str, float]:
    """The stored constants of a GPU; none if nothing was fitted to it. Raises ConfigError for a
    malformed file."""
    path = path_of(gpu)
    try:
        held = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):  # a missing cache is no error
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}; delete it, or write it anew") from None
    if not (isinstance(held, dict) and held.get("gpu") == gpu
            and (held.get("kind"), held.get("schema_version")) == (KIND, SCHEMA_VERSION)
            and isinstance(held.get("constants"), dict)
            and all(_is_constant(value) for value in held["constants"].values())):
        raise ConfigError(f"{path} does not hold constants of {gpu}: delete it, or write it anew")
    return {str(name): float(value) for name, value in held["constants"].items()}


def _is_constant(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0  # type: ignore
