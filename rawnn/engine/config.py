"""The configuration of a run, made by the command line, a TOML file or `rawnn.Config(...)`."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self, get_type_hints

import msgspec
from msgspec import Meta

from rawnn.common.csvformat import CsvFormat, joined_columns
from rawnn.common.errors import ConfigError, check_type, nearest, unknown
from rawnn.data.normalise import check_name
from rawnn.engine.machine import devices_of
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.model.schedules import parse
from rawnn.model.workloads import workload
from rawnn.plan.recipe import Recipe

MAX_COUNT = 2**31 - 1
DEFAULT_BATCH = 128
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]


@dataclass(frozen=True)
class Config:
    """A validated training run.

    Numbers may be NumPy's, layers "784-128-10", toggles a list: `opt=["best", "-cudnn"]`.

    Raises ConfigError with one clear sentence for a value of the wrong type or out of range.

    Parameters
    ----------
    layers
        sizes from the input features to the outputs
    bias
        whether layers have biases
    activation
        between layers, such as "relu": one of rawnn.model.activations
    loss
        such as "cross_entropy" or "mse": one of rawnn.model.losses
    init
        how parameters start: "uniform" (PyTorch's default), "he", "glorot" or "zeros"
    epochs
        passes over the training set
    batch
        examples per step; None: 128, or fewer for a small set of the user's own
    partial
        keep the last partial batch of an epoch; None: with data of the user's own
    shuffle
        a new order of the examples for each epoch
    optimizer
        such as "sgd" or "adam": one of rawnn.model.optimizers
    lr
        learning rate
    momentum, nesterov, weight_decay, beta1, beta2, eps
        of the optimizer; None: its default
    schedule
        of the learning rate: "constant", "step:30:0.1", "cosine", "warmup:5,cosine"
    seed
        of the initial weights and of the order of examples
    opt
        toggles and presets, as after --opt: "graphs=epoch,cublas" (which starts from preload
        and arena), "best,-cudnn", "none"
    sharding
        of the persistent kernel that trains on a GPU, in full, such as "1x1:128:FFFF", as the
        `sharding` of a Result or of a member says it: the same as the toggle
        persistent=1x1:128:FFFF behind `opt`. "launches" replaces the toggles in `opt`, but for the
        precision, by those of many networks whose kernels are launched for all at once. None leaves
        it to `opt`. It is ignored on the host, whose results do not depend on it
    device
        "auto", "gpu", "gpu:N", "host" or "sim". Many networks train on several GPUs, too:
        "gpu:0,1,2,3" on these, "gpu:all" on all that the process sees; "sim:0,1" are two simulated
        ones
    dataset
        "mnist", "fashion-mnist", "idx", "table" or "synthetic"
    data
        directory of the data set's files, or a .csv, .tsv or .npz file; None looks in
        RAWNN_DATA and the user's cache
    target
        columns of a table to be predicted, by name or index, in a list or behind commas
    encoding
        of a CSV file; None: utf-8
    decimal
        the decimal mark of a CSV file, "." or ","
    skip
        columns of a CSV file that are not read, given as `target` is
    validation
        fraction of a table that is taken out for testing, where it has no test part
    normalise
        "learned", "pixels", "none" or a mapping of scale, mean, std; None: bytes by 1/255
        unless none of an array's exceeds 1
    normalise_targets
        "learned": mean 0 and deviation 1 of every column of target values (loss
        mse), undone in predictions and in the losses shown; None or "none": as they are
    autoencoder
        whether the inputs themselves are the targets
    save
        directory for checkpoints; None keeps none
    save_every
        epochs between checkpoints
    keep
        how many checkpoints are kept; None keeps all
    resume
        checkpoint, or directory of checkpoints, to continue from
    patience
        reports without improvement after which training stops; None never stops
    min_delta
        how much `monitor` must improve to count
    monitor
        what is watched: "test_loss", "test_accuracy" or "train_loss"
    """

    layers: Annotated[tuple[Positive, ...], Meta(min_length=2)] = (784, 10)
    bias: bool = True
    activation: str = "relu"
    loss: str = "cross_entropy"
    init: str = "uniform"
    epochs: Positive = 20
    batch: Positive | None = None
    partial: bool | None = None
    shuffle: bool = False
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    schedule: str = "constant"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    opt: str = "best"
    sharding: str | None = None
    device: str = "auto"
    dataset: str = "mnist"
    data: str | None = None
    target: str | None = None
    encoding: str | None = None
    decimal: str = "."
    skip: str | None = None
    validation: float = 0.2
    normalise: str | dict[str, float | list[float]] | None = None
    normalise_targets: Literal["learned", "none"] | None = None
    autoencoder: bool = False
    save: str | None = None
    save_every: Positive = 1
    keep: Positive | None = None
    resume: str | None = None
    patience: Positive | None = None
    min_delta: float = 0.0
    monitor: Literal["test_loss", "test_accuracy", "train_loss"] = "test_loss"

    def __new__(cls, *values: Any, **named: Any) -> Self:
        for name in named:
            if name not in cls.__dataclass_fields__:
                raise unknown("option", name, cls.known())
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self._check(self.known())

    def _check(self, names: Collection[str]) -> None:
        """Convert the values of these fields, and check them and what they go together with."""
        hints, fields = _hints(), self.__dataclass_fields__
        for name in names:
            value = getattr(self, name)
            if value is fields[name].default:
                continue
            value = _plain(value)
            if name == "layers" and isinstance(value, str):
                value = parse_layers(value)
            if name == "opt" and isinstance(value, list):
                value = _joined(value, "opt")
            if name in ("data", "save", "resume") and isinstance(value, str):
                value = os.path.expanduser(value)
            if name in ("target", "skip") and isinstance(value, list):
                value = joined_columns(value) if value else None
            try:
                object.__setattr__(self, name, msgspec.convert(value, hints[name]))
            except msgspec.ValidationError:
                raise ConfigError(f"{name} = {_shown(value)}: {_meant(name)}") from None
        for check, read in CHECKS.items():
            if not read.isdisjoint(names):
                check(self)

    def _check_numbers(self) -> None:
        """Raise ConfigError for numbers out of range, and for empty names."""
        if not math.isfinite(self.lr) or self.lr < 0:
            raise ConfigError(f"lr = {self.lr}: the learning rate must be a finite number >= 0")
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation = {self.validation}: give a fraction between 0 and 1")
        if not 0 <= self.min_delta < math.inf:
            raise ConfigError(f"min_delta = {self.min_delta}: it must be a finite number >= 0")
        for name, what in (("save", "directory"), ("resume", "checkpoint"), ("target", "column")):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} = '' names no {what}: give one, or leave it out")

    def _check_sharding(self) -> None:
        """Raise ConfigError for a sharding that is not one in full."""
        if self.sharding is None:
            return
        from rawnn.opts.launch_sharding import LAUNCHES
        from rawnn.persistent.spelling import is_full_sharding

        if self.sharding != LAUNCHES and not is_full_sharding(self.sharding):
            raise ConfigError(f"sharding = '{self.sharding}': give it in full, as the result of a "
                              f"run has it, such as 1x1:128:FFFF or 4x8@l2:256:FSGF:2, or launches")
        if any(word.strip().partition("=")[0] == "persistent" for word in self.opt.split(",")):
            raise ConfigError(f"sharding = '{self.sharding}' is the toggle persistent with that "
                              f"value, and opt = '{self.opt}' has that toggle, too: leave one of "
                              f"them out")

    def _check_company(self) -> None:
        """Refuse an option that has no effect without another one. Raises ConfigError."""
        for name, other in (("save_every", "save"), ("keep", "save"), ("min_delta", "patience"),
                            ("monitor", "patience")):
            if getattr(self, name) != getattr(type(self), name) and getattr(self, other) is None:
                raise ConfigError(f"{name} = {getattr(self, name)} has no effect without {other} "
                                  f"(--{other}): give that, too, or leave it out")

    def _check_targets(self) -> None:
        """Refuse to normalise targets that the loss cannot use normalised. Raises ConfigError."""
        if self.normalise_targets != "learned":
            return
        loss = self.network().loss_spec
        if not loss.unit_power:
            what = "class labels, which have no mean and deviation" if loss.labelled else \
                "targets from 0 to 1, which normalised targets are not" \
                if loss.link == "sigmoid" else "targets as they are"
            raise ConfigError(f"normalise_targets = learned is for target values (--loss mse): the "
                              f"loss {self.loss} compares with {what}")
        if self.autoencoder:
            raise ConfigError("normalise_targets = learned has no effect with autoencoder: its "
                              "targets are the normalised inputs, for which --normalise learned is")

    @property
    def toggles(self) -> str:
        """`opt` with the toggle that `sharding` means; of "launches" its own, in the precision of
        `opt`."""
        if self.sharding is None:
            return self.opt
        from rawnn.opts.launch_sharding import LAUNCHES, launch_toggles

        return launch_toggles(self.opt) if self.sharding == LAUNCHES else \
            f"{self.opt},persistent={self.sharding}"

    def network(self) -> Network:
        """The network that is trained. Raises ConfigError for an unknown name."""
        return Network(self.layers, self.bias, self.activation, self.loss, self.init)

    def optimizer_settings(self) -> Optimizer:
        """The optimizer with its settings. Raises ConfigError for one that it lacks."""
        given = {"momentum": self.momentum, "nesterov": self.nesterov,
                 "decay": self.weight_decay, "beta1": self.beta1, "beta2": self.beta2,
                 "eps": self.eps}
        return Optimizer(self.optimizer, self.lr,
                         {k: float(v) for k, v in given.items() if v is not None})

    def recipe(self) -> Recipe:
        """How it is trained. Raises ConfigError for a setting that the optimizer lacks."""
        return Recipe(self.batch or DEFAULT_BATCH, self.optimizer_settings(), self.schedule,
                      self.shuffle, bool(self.partial), self.seed, self.epochs)

    @classmethod
    def known(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(cls.__dataclass_fields__)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "configuration") -> Config:
        """Make a Config from keys and values; unknown keys are refused with the nearest name.

        The key `workload` names a set of values to start from (rawnn.model.workloads).
        """
        values = dict(values)
        base = values.pop("workload", None)
        defaults = {} if base is None else workload(base)
        for key in values:
            if key not in cls.known():
                raise ConfigError(f"{source}: unknown key '{key}'"
                                  + nearest(str(key), (*cls.known(), "workload")))
        return cls(**{**defaults, **values})


CHECKS: dict[Callable[[Config], object], frozenset[str]] = {
    check: frozenset(read) for check, read in (
        (Config._check_numbers, ("lr", "validation", "min_delta", "save", "resume", "target")),
        (lambda config: CsvFormat(config.encoding, config.decimal, config.skip),
         ("encoding", "decimal", "skip")),
        (Config._check_company, ("save_every", "keep", "min_delta", "monitor", "save", "patience")),
        (Config._check_targets, ("normalise_targets", "autoencoder", "layers", "bias", "activation",
                                 "loss", "init")),
        (lambda config: check_name(config.normalise), ("normalise",)),
        (Config.network, ("layers", "bias", "activation", "loss", "init")),
        (Config.optimizer_settings, ("optimizer", "lr", "momentum", "nesterov", "weight_decay",
                                     "beta1", "beta2", "eps")),
        (lambda config: parse(config.schedule), ("schedule",)),
        (lambda config: check_device(config.device), ("device",)),
        (Config._check_sharding, ("sharding", "opt")))}
"""What is checked of a Config, in this order, and the fields that each check reads."""


def changed(config: Config, **values: Any) -> Config:
    """A copy with other values of some fields, as `dataclasses.replace` makes it. Only these, and
    what goes together with them, are checked anew: of many networks there are thousands. Raises
    ConfigError."""
    found = object.__new__(type(config))
    vars(found).update(vars(config), **values)
    found._check(values)
    return found


@cache
def _hints() -> dict[str, Any]:
    """The types of the fields of Config: finding them takes longer than all checks of a Config."""
    return get_type_hints(Config, include_extras=True)


def check_device(device: str) -> None:
    """Raise ConfigError unless `device` names a kind of device, or several GPUs."""
    check_type("device", device, str, "auto, gpu, gpu:N, host or sim")
    if not re.fullmatch(r"auto|host|gpu(:all)?|sim|(gpu|sim)(:[0-9]{1,4}(,[0-9]{1,4})*)", device):
        raise ConfigError(f"device = '{device}': use auto, gpu, gpu:N, host or sim"
                          + nearest(device.partition(":")[0], ("auto", "gpu", "host", "sim")))
    named = devices_of(device)
    if len(set(named)) < len(named):
        raise ConfigError(f"device = '{device}' names a GPU twice")


def _plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as Python's, tuples as lists, paths as text."""
    if value is None or type(value) in (int, float, str, bool):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple | range):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()  # a number, of a scalar
    return value


def _joined(words: Sequence[Any], where: str) -> str:
    """A list of toggles as one text. Raises ConfigError for items that are not strings."""
    if not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{where} must be a string or a list of strings")
    return ",".join(words)


_MEANT = {
    **dict.fromkeys(("epochs", "batch", "save_every", "keep", "patience"),
                    f"it must be a whole number from 1 to {MAX_COUNT:,}"),
    **dict.fromkeys(("bias", "partial", "shuffle", "nesterov", "autoencoder"),
                    "it must be true or false"),
    **dict.fromkeys(("lr", "momentum", "weight_decay", "beta1", "beta2", "eps", "validation",
                     "min_delta"), "it must be a number"),
    "layers": f"give two sizes or more, from inputs to outputs, each a whole number from 1 to "
              f"{MAX_COUNT:,}",
    "seed": "it must be a whole number from 0 to 2**63 - 1",
    "opt": "it must be a text, or a list of texts",
    "normalise": "use learned, pixels, none or a mapping of scale, mean, std",
    "normalise_targets": "use learned or none",
    "monitor": "use test_loss, test_accuracy or train_loss",
}


def _meant(name: str) -> str:
    """What a value of the field must be."""
    return _MEANT.get(name, "it must be a text")


def _shown(value: object) -> str:
    """The value, short enough for an error message."""
    try:
        plain = isinstance(value, str | int | float | list | dict | None)
        text = repr(value) if plain else str(value)  # a date of TOML
    except ValueError:  # an integer of more digits than Python converts
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys and values of a TOML configuration file. Paths in it are relative to its folder:
    data, save, resume, and kernels in opt.

    `opt` may be a list of strings. Raises ConfigError for a missing or malformed file.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # editors of Windows write a mark first
            values = tomllib.loads(file.read())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # int() refuses thousands of digits, too
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if isinstance(values.get("opt"), list):
        values["opt"] = _joined(values["opt"], f"{path}: opt")
    folder = os.path.dirname(os.fspath(path))

    def from_here(name: str) -> str:
        return os.path.join(folder, os.path.expanduser(name))

    for name in ("data", "save", "resume"):
        if isinstance(values.get(name), str) and values[name]:
            values[name] = from_here(values[name])
    if isinstance(values.get("opt"), str):
        words = [word.strip().partition("=") for word in values["opt"].split(",")]
        values["opt"] = ",".join(
            name + sign + (from_here(value) if value.endswith(".cu") else value)
            for name, sign, value in words)
    return values


def parse_layers(text: str) -> tuple[int, ...]:
    """Layer sizes from "784-128-10" or "784,128,10"."""
    try:
        if "-" in text and "," in text:  # more likely two networks than one
            raise ValueError
        return tuple(int(part) for part in re.split(r"[-,]", text))
    except ValueError:
        raise ConfigError(
            f"layers = '{text}': give sizes from inputs to classes, such as 784-128-10"
        ) from None
