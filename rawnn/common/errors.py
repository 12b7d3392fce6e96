"""Errors that a user can act on. Each message is one clear sentence; the command line prints it and
exits with the class's `exit_code`, without a traceback."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral

from rawnn.common.suggestions import nearest as nearest


class RawnnError(Exception):
    """Base class of every error that rawnn raises on purpose."""

    exit_code = 1
    speaks = True
    """Whether the command line prints it: of several ranks only one does."""


class ConfigError(RawnnError):
    """An option, configuration key or combination that cannot be run; names the fix."""

    exit_code = 2


class DataError(RawnnError):
    """A data set that is missing, corrupt, or does not fit the network."""


class CheckpointError(RawnnError):
    """A checkpoint or state dict that cannot be read, written, or does not fit the network."""


class DeviceError(RawnnError):
    """No usable GPU, too old a driver, or a failed call of a CUDA library."""


class MissingLibrary(DeviceError):
    """A CUDA library or Python package is not installed; names the extra that installs it."""


class OutOfMemory(DeviceError):
    """Device memory is exhausted; states the bytes requested and free."""


class CompileError(DeviceError):
    """NVRTC refused a kernel; has the numbered source lines, options and version."""


class RanksError(RawnnError):
    """Another rank of the run is lost, differs, or never connected; names it."""

    def __init__(self, message: str, speaks: bool = True) -> None:
        super().__init__(message)
        self.speaks = speaks


class TrainingDiverged(RawnnError):
    """The loss became NaN or infinite; names the step."""


def check_type(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise ConfigError unless `value` is of one of these types; `wanted` says what to give."""
    if not isinstance(value, kinds):
        found = "None" if value is None else f"a {type(value).__name__}"
        raise ConfigError(f"{name} is {found}: give {wanted}")


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ConfigError unless `value` is a whole number, Python's or NumPy's, of at least
    `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name} = {value!r}: give a whole number of at least {least}")


def unknown(what: str, name: object, known: Iterable[str],
            there_are: str = "there are") -> ConfigError:
    """The error for an unknown name: with the nearest known one, or all if none is near."""
    names = list(known)
    return ConfigError(f"unknown {what} '{name}'"
                       + (nearest(str(name), names) or f"; {there_are} {', '.join(names)}"))
