"""The public names of rawnn's errors."""

from rawnn.common.errors import (
    CheckpointError,
    CompileError,
    ConfigError,
    DataError,
    DeviceError,
    MissingLibrary,
    OutOfMemory,
    RanksError,
    RawnnError,
    TrainingDiverged,
)

__all__ = ["CheckpointError", "CompileError", "ConfigError", "DataError", "DeviceError",
           "MissingLibrary", "OutOfMemory", "RanksError", "RawnnError", "TrainingDiverged"]
