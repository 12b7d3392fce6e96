"""The result of a run: one schema for the library, the command line and --json.

`schema()` returns it as JSON Schema; docs/results.md explains every key.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import numpy as np

from rawnn.common.files import write_atomically
from rawnn.common.jsontext import indented_json
from rawnn.data.input_scale import InputScale
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.engine.config import Config
from rawnn.version import __version__

if TYPE_CHECKING:
    from rawnn.engine.model import Model

SCHEMA_VERSION = 1
_ARRAYS = ("normalisation", "target_normalisation", "input_scale", "parameters")
"""Fields that JSON leaves out."""


@dataclass(frozen=True)
class Report:
    """A row of the history: what training reached after `epoch` epochs.

    Losses are means over the examples of the epoch (training) or of the test set; accuracies are
    fractions. Of normalised targets losses are in the units of the values (docs/own-data.md).
    `epoch_ms` is the wall-clock time per epoch since the report before, test
    evaluation excluded.
    """

    epoch: int
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    epoch_ms: float


@dataclass(frozen=True)
class Times:
    """Milliseconds.

    imports, process: since rawnn was first imported into the process.
    data, compile: the time spent waiting. Data are read while the driver starts, and libraries load
        while kernels compile.
    training: wall-clock time of all epochs, without test evaluation.
    training_device: the sum of the epochs as timed by events on the device (on the host: the wall
        clock again).
    """

    imports: float = 0.0
    data: float = 0.0
    driver: float = 0.0
    compile: float = 0.0
    setup: float = 0.0
    training: float = 0.0
    training_device: float = 0.0
    evaluation: float = 0.0
    process: float = 0.0


class Environment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where and when a result was measured. Of a benchmark `timer` says in words what a metric's
    time covers, and `ranks` name the host and the GPU of every process, where there were several.
    """

    rawnn: str
    commit: str
    python: str
    platform: str
    device: str
    gpu: dict[str, Any] | None
    libraries: dict[str, str]
    clocks: dict[str, str]
    date: str
    timer: dict[str, str] = {}
    ranks: list[dict[str, str]] = []

    @property
    def key(self) -> str:
        return f"{self.date} {self.commit[:7] or 'unknown'} {self.machine}"

    @property
    def machine(self) -> str:
        """What it was measured on, in words."""
        if self.device == "sim":
            return "SIMULATED GPU"
        return str(self.gpu["name"]) if self.gpu else f"host ({self.platform})"

    @property
    def place(self) -> tuple[object, ...]:
        """What must be the same for two measurements to be compared as if made at once."""
        gpu = self.gpu or {}
        return self.commit, self.device, gpu.get("name"), gpu.get("driver")


@dataclass(frozen=True)
class Result:
    """Everything a run found out. `average_epoch_ms` is the mean of the device-timed epochs of the
    later half of the run, `average_epoch_wall_ms` that of the wall clock over the reports that end
    there. `interrupted` says that a signal (Ctrl-C, SIGTERM, SIGHUP) ended the run early,
    `stopped` why it stopped by itself. `broken_epoch` is the epoch in whose midst the parameters
    are, 0 where they are behind a whole one; where a run was ended at once, `test_loss` and
    `test_accuracy` may be NaN, not measured. `resumed_epochs` were done by the run whose checkpoint
    this one continued.

    Parameters
    ----------
    config
        what was asked for
    toggles, implied
        the toggles that were on, with their values; those that another one brought in
    sharding
        that of the persistent kernel, which `train(sharding=...)` repeats; "" where another trained
    notes
        what a preset or the machine decided, in sentences
    dataset, data_source, synthetic
        name of the data set, where it came from, whether it was generated
    history
        a Report for each report: losses, accuracies (fractions), milliseconds
    epoch_ms, average_epoch_ms, average_epoch_wall_ms
        milliseconds of an epoch
    times
        where the time of the run went, milliseconds
    peak_memory_bytes
        most device memory held at once; 0 on the host
    facts
        what the runner reports about itself; docs/results.md names them
    environment
        where it was measured
    schema_version
        of `to_dict` and `write_json`
    test_accuracy, test_loss
        of the parameters as the run ended
    label_names, target_names, label_dtype, feature_names
        of the data
    autoencoder
        whether the network reproduces its inputs
    normalisation, target_normalisation
        of the inputs and of the target values
    input_scale
        the scale on which the inputs were given
    parameters
        float32 arrays by name: `fc1.weight` [outputs, inputs], `fc1.bias` [outputs]
    """

    config: Config
    toggles: dict[str, str | int | None]
    implied: list[str]
    notes: list[str]
    dataset: str
    data_source: str
    synthetic: bool
    history: list[Report]
    epoch_ms: list[float]
    average_epoch_ms: float
    average_epoch_wall_ms: float
    times: Times
    peak_memory_bytes: int
    facts: dict[str, Any]
    environment: Environment
    interrupted: bool = False
    schema_version: int = SCHEMA_VERSION
    test_accuracy: float = field(default=math.nan)
    test_loss: float = field(default=math.nan)
    stopped: str = ""
    resumed_epochs: int = 0
    broken_epoch: int = 0
    label_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    label_dtype: str = ""
    autoencoder: bool = False
    feature_names: tuple[str, ...] = ()
    sharding: str = ""
    normalisation: Normalisation = field(default_factory=Normalisation, repr=False, compare=False)
    target_normalisation: TargetNormalisation | None = field(default=None, repr=False,
                                                             compare=False)
    input_scale: InputScale | None = field(default=None, repr=False, compare=False)
    parameters: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line: what was trained, for how long and how well; `to_dict` has everything."""
        epochs = self.history[-1].epoch if self.history else 0
        reached = [f"{name} {value:.4f}" for name, value in (
            ("test accuracy", self.test_accuracy), ("test loss", self.test_loss))
            if not math.isnan(value)]
        midst = f" in epoch {self.broken_epoch}" if self.broken_epoch else ""
        ended = [f"interrupted{midst}"] if self.interrupted else \
            [self.stopped] if self.stopped else []
        return (f"rawnn.Result({self.config.network()} on {self.dataset}, "
                f"{self.environment.device}: " + ", ".join([
                    f"{epochs} epoch{'s' * (epochs != 1)}", *reached,
                    f"{self.average_epoch_ms:.3f} ms an epoch", *ended]) + ")")

    @property
    def model(self) -> Model:
        """The trained network, ready to predict."""
        from rawnn.engine.model import Model

        return Model(self.config.network(), self.parameters, self.normalisation, self.label_names,
                     self.target_normalisation, self.target_names, self.label_dtype,
                     self.autoencoder, self.feature_names, self.input_scale)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as written to JSON; the parameters are left out."""
        values: dict[str, Any] = msgspec.to_builtins(
            {f: getattr(self, f) for f in self.__dataclass_fields__ if f not in _ARRAYS}
        )
        return values

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Write the result atomically. Raises RawnnError where the file cannot be written."""
        write_atomically(path, indented_json(self.to_dict()))


def schema() -> dict[str, Any]:
    """The JSON Schema of what `write_json` writes."""
    hints = get_type_hints(Result)
    fields = [(name, hints[name]) for name in Result.__dataclass_fields__ if name not in _ARRAYS]
    described: dict[str, Any] = _with_null(msgspec.json.schema(msgspec.defstruct("Result", fields)))
    return described


def _with_null(rule: Any) -> Any:
    """A schema in which numbers may be null: JSON has no NaN, so non-finite ones become null."""
    if isinstance(rule, list):
        return [_with_null(item) for item in rule]
    if not isinstance(rule, dict):
        return rule
    inner = {key: _with_null(value) for key, value in rule.items()}
    return {**inner, "type": ["number", "null"]} if rule.get("type") == "number" else inner


@cache
def _commit() -> str:
    """The commit of the source tree that rawnn runs from, with "+" appended if files are changed.

    RAWNN_COMMIT names it where a tree was copied without its history.
    """
    if "RAWNN_COMMIT" in os.environ:
        return os.environ["RAWNN_COMMIT"]
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        def git(*words: str) -> str:
            done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True,
                                  timeout=5, check=True)
            return done.stdout.strip()

        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def environment(device: str, gpu: dict[str, Any] | None, libraries: dict[str, str],
                timer: Mapping[str, str] | None = None) -> Environment:
    """What this process runs on; locked clocks come from tools/lock_clocks.sh's variables."""
    clocks = {
        name.removeprefix("RAWNN_").lower(): os.environ[name]
        for name in ("RAWNN_CLOCKS", "RAWNN_LOCKED_GPU", "RAWNN_LOCKED_SM_MHZ",
                     "RAWNN_LOCKED_MEM_MHZ")
        if name in os.environ
    }
    return Environment(
        rawnn=__version__, commit=_commit(), python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}", device=device, gpu=gpu,
        libraries={"numpy": np.__version__, **libraries}, clocks=clocks,
        date=datetime.now(UTC).isoformat(timespec="seconds"), timer=dict(timer or {}),
    )
