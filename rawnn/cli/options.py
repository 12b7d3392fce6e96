"""Options that several commands share, and the Config that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from rawnn.cli.option_groups import Known, Option
from rawnn.common.csvformat import columns_of, joined_columns
from rawnn.common.errors import ConfigError
from rawnn.data.catalog import DATASETS, is_table
from rawnn.engine.checkpoint import continued
from rawnn.engine.config import Config, parse_layers, read_toml
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.layers import INITIALISERS
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import OPTIMIZER_SPECS as OPTIMIZERS
from rawnn.model.schedules import SCHEDULE_SPECS as SCHEDULES

F = TypeVar("F", bound=Callable[..., Any])

TOGGLES, NETWORK, TRAINING, DATA, KEEPING, OUTPUT, DEVICE = (
    "Toggles", "Network", "Training", "Data", "Keeping and continuing", "Output", "Device")
"""The groups of a run's options, in the order in which help shows them."""


def toggle_names() -> Iterable[str]:
    """Presets and toggles."""
    from rawnn.opts import TOGGLES as KNOWN
    from rawnn.opts.presets import PRESETS

    return (*PRESETS, *KNOWN)


def workload_names() -> Iterable[str]:
    """The built-in workloads."""
    from rawnn.model.workloads import WORKLOADS

    return WORKLOADS


def devices() -> Iterable[str]:
    """Values of --device, with the first of several GPUs."""
    return ("auto", "gpu", "gpu:0", "host", "sim")


def _named(*names: str) -> Known:
    return lambda: names


def run_option(group: str, name: str, help: str, default_text: str,
               **named: Any) -> Callable[[F], F]:
    """An option of a group; `default_text` describes its default."""
    return click.option(*name.split(" "), cls=Option, group=group, help=help,
                        default_text=default_text, **named)


_option = run_option


def _switch(group: str, name: str, help: str, default_text: str) -> Callable[[F], F]:
    return _option(group, name, help, default_text, default=None)


def listed(names: Iterable[str]) -> str:
    """The names of a registry: "gelu, relu or tanh"."""
    *first, last = names
    return f"{', '.join(first)} or {last}"


def setting(name: str) -> tuple[str, str]:
    """Which optimizers have a setting, and its default: ("Of adam and adamw.", "0.9")."""
    defaults = {rule.name: f"{rule.settings[name]:g}" for rule in OPTIMIZERS.values()
                if name in rule.settings}
    *first, last = defaults
    same = len(set(defaults.values())) == 1
    default_text = defaults[last] if same else "; ".join(f"{r} {v}" for r, v in defaults.items())
    return f"Of {' and '.join(filter(None, [', '.join(first), last]))}.", default_text


def columns_option(name: str, help: str, default_text: str) -> Callable[[F], F]:
    """An option that names columns and may be given several times. Its value is one text, None if
    it was not given."""

    def joined(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
               ) -> str | None:
        return joined_columns([column for text in values for column in columns_of(text)]) \
            if len(values) > 1 else values[0] if values else None

    return _option(DATA, name, help, default_text, metavar="COLUMN", multiple=True, callback=joined)


def csv_option(name: str, default_text: str = "") -> Callable[[F], F]:
    """One of the options for the format of a CSV file; `default_text` describes its default if that
    is not a new run's."""
    if name == "--encoding":
        return _option(DATA, name, "Of a CSV file: utf-8, utf-16, latin-1, cp1252, ...",
                       default_text or "utf-8", metavar="NAME",
                       values=_named("utf-8", "utf-16", "latin-1", "cp1252"))
    if name == "--decimal":
        return _option(DATA, name, "Decimal mark of a CSV file: . or a comma.", default_text or ".",
                       metavar="MARK", values=_named(".", ","))
    return columns_option(name, "Column of a CSV file that is not read, by name or index; several "
                          "behind commas, or by one --skip each.", default_text or "none")


class _HomePath(click.Path):
    """A text that shells complete as a path. A leading ~ is expanded: shells leave it as it is in
    --save=~/runs, which would be a folder of that name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(os.path.expanduser(value) if isinstance(value, str) else value,
                               param, ctx)


PATH = _HomePath()

_RUN: dict[str, Callable[[Any], Any]] = {
    "opt": _option(TOGGLES, "--opt", "Toggles and at most one preset, separated by commas: "
                   "graphs=epoch,cublas starts from preload,arena; none,fuse does not; "
                   "best,-cudnn; seed; best,bias_relu=mine.cu with a kernel of your own.", "best",
                   metavar="TOGGLES", values=toggle_names, many=True),
    "sharding": _option(TOGGLES, "--sharding", "Of the persistent kernel, in full, as a result "
                        "names it: the toggle persistent=1x1:128:FFFF; or launches, with which "
                        "many networks of any size train. The host ignores it.",
                        "left to --opt", metavar="1x1:128:FFFF"),
    "workload": _option(TOGGLES, "--workload", "Start from a built-in workload: linear, mlp4, "
                        "wide128 ... wide8192.", "none", metavar="NAME", values=workload_names),
    "layers": _option(NETWORK, "--layers", "Sizes from the inputs to the outputs.", "784-10",
                      metavar="784-10"),
    "bias": _switch(NETWORK, "--bias/--no-bias", "Whether layers have biases.", "yes"),
    "activation": _option(NETWORK, "--activation", f"Between layers: {listed(ACTIVATIONS)}.",
                          "relu", metavar="NAME", values=lambda: ACTIVATIONS),
    "loss": _option(NETWORK, "--loss", f"{listed(LOSSES)}; bce is on logits.", "cross_entropy",
                    metavar="NAME", values=lambda: LOSSES),
    "init": _option(NETWORK, "--init", f"How weights start: {listed(INITIALISERS)}; uniform is "
                    "PyTorch's.", "uniform", metavar="NAME", values=lambda: INITIALISERS),
    "epochs": _option(TRAINING, "--epochs", "Passes over the training set.", "20", type=int),
    "batch": _option(TRAINING, "--batch", "Examples per step.",
                     "128, fewer for a small set of your own", type=int),
    "partial": _switch(TRAINING, "--partial/--drop-partial",
                       "Keep the last partial batch of an epoch.",
                       "kept with data of your own, dropped otherwise"),
    "shuffle": _switch(TRAINING, "--shuffle/--no-shuffle", "A new order of the examples each "
                       "epoch.", "no"),
    "optimizer": _option(TRAINING, "--optimizer", f"{listed(OPTIMIZERS)}.", "sgd", metavar="NAME",
                         values=lambda: OPTIMIZERS),
    "lr": _option(TRAINING, "--lr", "Learning rate.", "0.1", type=float),
    "momentum": _option(TRAINING, "--momentum", *setting("momentum"), type=float),
    "nesterov": _switch(TRAINING, "--nesterov/--no-nesterov", "Nesterov's momentum, of sgd.", "no"),
    "weight_decay": _option(TRAINING, "--weight-decay", *setting("decay"), type=float),
    "beta1": _option(TRAINING, "--beta1", *setting("beta1"), type=float),
    "beta2": _option(TRAINING, "--beta2", *setting("beta2"), type=float),
    "eps": _option(TRAINING, "--eps", *setting("eps"), type=float),
    "schedule": _option(TRAINING, "--schedule", "Of the learning rate: "
                        + ", ".join(rule.syntax for rule in SCHEDULES.values())
                        + "; after a warm-up, warmup:EPOCHS,cosine.", "constant", metavar="TEXT",
                        values=_named("constant", "cosine", "step:30:0.1", "warmup:5,cosine")),
    "seed": _option(TRAINING, "--seed", "Seed of the initial weights, and of every random order.",
                    "0", type=int),
    "patience": _option(TRAINING, "--patience", "Stop after so many reports without improvement, "
                        "and go back to the best.", "never", type=int),
    "min_delta": _option(TRAINING, "--min-delta", "With --patience: how much is an improvement.",
                         "0", type=float),
    "monitor": _option(TRAINING, "--monitor", "With --patience: what is to improve, test_loss, "
                       "test_accuracy or train_loss.", "test_loss", metavar="NAME",
                       values=_named("test_loss", "test_accuracy", "train_loss")),
    "dataset": _option(DATA, "--dataset", "mnist, fashion-mnist, idx or synthetic.", "mnist",
                       metavar="NAME", values=lambda: DATASETS),
    "data": _option(DATA, "--data", "Where the data set's IDX files are, or a table: .csv, .tsv or "
                    ".npz (.csv.gz, too).", "RAWNN_DATA, the cache, or fetched", metavar="PATH",
                    type=PATH),
    "target": columns_option("--target", "Column of a table to be predicted, by name or index; "
                             "several behind commas, or by one --target each.", "none"),
    "encoding": csv_option("--encoding"),
    "decimal": csv_option("--decimal"),
    "skip": csv_option("--skip"),
    "validation": _option(DATA, "--validation", "Fraction of a table that is split off for "
                          "testing.", "0.2", type=float),
    "normalise": _option(DATA, "--normalise", "learned (mean 0, deviation 1), pixels (by 1/255) or "
                         "none.", "bytes by 1/255, unless none of an array exceeds 1; other "
                         "numbers not", metavar="HOW", values=_named("learned", "pixels", "none")),
    "normalise_targets": _option(DATA, "--normalise-targets", "learned (mean 0, deviation 1 of "
                                 "each column, with --loss mse; undone in predictions and losses) "
                                 "or none.", "none", metavar="HOW",
                                 values=_named("learned", "none")),
    "autoencoder": _switch(DATA, "--autoencoder/--no-autoencoder", "Reproduce the inputs.", "no"),
    "save": _option(KEEPING, "--save", "Keep checkpoints there.", "none are kept",
                    metavar="DIRECTORY", type=PATH),
    "save_every": _option(KEEPING, "--save-every", "With --save: epochs between checkpoints.", "1",
                          type=int),
    "keep": _option(KEEPING, "--keep", "With --save: how many checkpoints are kept.", "all",
                    type=int),
    "resume": _option(KEEPING, "--resume", "Continue from a checkpoint, or from the newest of a "
                      "directory, with its options unless others are given.", "a new run",
                      metavar="PATH", type=PATH),
    "device": _option(DEVICE, "--device", "Where to run.", "auto", metavar="auto|gpu:N|host|sim",
                      values=devices),
    "config_file": _option(KEEPING, "--config config_file", "Read options from a TOML file, paths "
                           "relative to it; those given here win over it.", "none",
                           metavar="FILE.toml", type=PATH),
}


def config_options(*left_out: str) -> Callable[[F], F]:
    """Every field of Config as an option, except those left out, and --config for a TOML file.
    Options on the command line override the file."""

    def decorate(command: F) -> F:
        for name in reversed(_RUN):
            if name not in left_out:
                command = _RUN[name](command)
        return command

    return decorate


def make_config(config_file: str | None, options: dict[str, Any]) -> Config:
    """The Config of a TOML file and the other options. Raises ConfigError."""
    values = read_toml(config_file) if config_file is not None else {}
    given = {name: value for name, value in options.items() if value is not None}
    if "layers" in given:
        given["layers"] = parse_layers(given["layers"])
    asked = {**values, **given}
    check_data(asked)
    return Config.from_mapping(continued(asked), config_file or "options")


def check_data(asked: Mapping[str, Any]) -> None:
    """Refuse options without an effect. Raises ConfigError."""
    path, name = asked.get("data"), asked.get("dataset")
    table = isinstance(path, str) and is_table(path)
    if table and name not in (None, "table"):
        raise ConfigError(f"--dataset {name} is a set of its own, but --data {path} is a table: "
                          f"leave one of them out")
    for option in ("encoding", "decimal", "skip"):
        if asked.get(option) and not (asked.get("resume") or table or name == "table"):
            raise ConfigError(f"--{option} is for a CSV file (--data FILE.csv or FILE.tsv)")
    if "validation" in asked and not (asked.get("resume") or table or name == "table"):
        raise ConfigError(f"validation = {asked['validation']} is for a table (--data FILE.csv): "
                          f"{name or 'mnist'} brings its own test set")
