"""The table of measured best toggles: a small one in the package, and the user's own next to the
kernel cache, which has precedence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from rawnn.common.errors import ConfigError
from rawnn.common.files import cache_directory
from rawnn.common.target import is_called
from rawnn.model.layers import Network
from rawnn.plan.recipe import DataSpec, Recipe

PACKAGED = Path(__file__).with_name("best.json")
ENVIRONMENT = "RAWNN_BEST"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What was fastest for one network on one kind of GPU.

    precision: the precision toggles of the measurement ("" for float32).
    toggles: the fastest set in addition to them.
    us: its median time per step in microseconds, by the device's clock.
    others: those times of the sets that it was compared with.
    conditions: what else the time depends on (`conditions_of`); empty where an earlier version
        measured, which did not record it.
    """

    gpu: str
    layers: tuple[int, ...]
    batch: int
    precision: str = msgspec.field(name="numbers")
    toggles: str
    us: float
    others: dict[str, float]
    driver: str
    commit: str
    date: str
    conditions: dict[str, str] = msgspec.field(default_factory=dict)


def conditions_of(network: Network, recipe: Recipe | None, data_spec: DataSpec | None
                  ) -> dict[str, str]:
    """What the time of a step depends on besides sizes and precision, as far as it is known: fused
    kernels exist for some losses, optimizers and input dtypes only."""
    found = {"loss": network.loss}
    if recipe is not None:
        found["optimizer"] = recipe.optimizer.kind
    if data_spec is not None:
        found["inputs"] = data_spec.inputs + (", normalised" if data_spec.normalised else "")
    return found


def user_file() -> Path:
    """Where the user's own entries are kept: RAWNN_BEST, or a file beside the kernel cache."""
    given = os.environ.get(ENVIRONMENT)
    return Path(given).expanduser() if given else cache_directory() / "best.json"


def read(path: Path) -> list[Entry]:
    """The entries of a table; none where there is no file. Raises ConfigError for a broken one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Entry])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"the table of measured toggles {path} cannot be read: {error}; remove "
                          f"it, or measure anew with `rawnn tune`") from None


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write a table whole, atomically, one entry a line."""
    from rawnn.common.files import write_atomically

    lines = ",\n".join(msgspec.json.encode(e).decode() for e in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def remember(path: Path, entry: Entry) -> None:
    """Add an entry; it replaces one of the same GPU, network, batch, precision and conditions."""
    write(path, [*(e for e in read(path) if _key(e) != _key(entry)
                   or not _agree(e, entry.conditions)), entry])


def _key(e: Entry) -> tuple[object, ...]:
    return e.gpu, e.layers, e.batch, e.precision


def _agree(entry: Entry, conditions: Mapping[str, str]) -> bool:
    """Whether no condition that both state differs."""
    return all(entry.conditions.get(name, value) == value for name, value in conditions.items())


def exact(gpu: str, layers: Sequence[int], batch: int, precision: str,
          conditions: Mapping[str, str] | None = None) -> Entry | None:
    """The entry of this network, batch and precision under these conditions on this GPU, by its
    driver's name or one of NAMED; the user's own table comes before the package's. None without a
    measurement: what is fastest for a similar network may be slow for this one. Raises ConfigError
    for a broken table.
    """
    for path in (user_file(), PACKAGED):
        for entry in read(path):
            if _key(entry)[1:] == (tuple(layers), batch, precision) \
                    and is_called(entry.gpu, gpu) and _agree(entry, conditions or {}):
                return entry
    return None
