"""Options that several commands share, and the Config that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from rawnn.activations import ACTIVATIONS
from rawnn.checkpoint import continued
from rawnn.config import Config, parse_layers, read_toml
from rawnn.losses import LOSSES
from rawnn.network import INITIALISERS
from rawnn.optimizers import RULES as OPTIMIZERS
from rawnn.schedules import RULES as SCHEDULES

F = TypeVar("F", bound=Callable[..., Any])


def named(registry: Iterable[str], default: str) -> str:
    """The names of a registry, the default first: "relu (the default), gelu or tanh"."""
    *first, last = (name for name in registry if name != default)
    return f"{', '.join([f'{default} (the default)', *first])} or {last}"


def setting(name: str) -> str:
    """Which optimizers have a setting, and their defaults: "Of adam and adamw (0.9)."."""
    defaults = {rule.name: f"{rule.settings[name]:g}" for rule in OPTIMIZERS.values()
                if name in rule.settings}
    *first, last = defaults
    values = ", ".join(dict.fromkeys(defaults.values())) if len(set(defaults.values())) < 2 \
        else ", ".join(f"{rule} {value}" for rule, value in defaults.items())
    return f"Of {' and '.join(filter(None, [', '.join(first), last]))} ({values})."


def config_options(command: F) -> F:
    """Every field of Config as an option, and --config for a TOML file. An option given on the
    command line wins over the file."""
    for decorate in reversed([
        click.option("--opt", metavar="TOGGLES",
                     help="Toggles and presets, comma-separated: graphs=epoch,cublas (which starts "
                          "from preload,arena); none,fuse (which does not); best,-cudnn; seed; "
                          "best (the default)."),
        click.option("--workload", metavar="NAME",
                     help="Start from a built-in workload: linear, mlp4, wide128 ... wide8192."),
        click.option("--layers", metavar="784-10", help="Sizes from the inputs to the classes."),
        click.option("--bias/--no-bias", default=None, help="Whether layers have biases (yes)."),
        click.option("--activation", metavar="NAME", help=f"{named(ACTIVATIONS, 'relu')}."),
        click.option("--loss", metavar="NAME",
                     help=f"{named(LOSSES, 'cross_entropy')} (on logits)."),
        click.option("--init", metavar="NAME",
                     help=f"{named(INITIALISERS, 'uniform')}; uniform is PyTorch's."),
        click.option("--epochs", type=int, help="Passes over the training set (20)."),
        click.option("--batch", type=int, help="Examples per step (128)."),
        click.option("--partial/--drop-partial", default=None,
                     help="Keep the last partial batch of an epoch (dropped)."),
        click.option("--shuffle/--no-shuffle", default=None,
                     help="A new order of the examples each epoch (no)."),
        click.option("--optimizer", metavar="NAME",
                     help=f"{named(OPTIMIZERS, 'sgd')}."),
        click.option("--lr", type=float, help="Learning rate (0.1)."),
        click.option("--momentum", type=float, help=setting("momentum")),
        click.option("--nesterov/--no-nesterov", default=None, help="Nesterov's momentum (no)."),
        click.option("--weight-decay", type=float,
                     help=f"Weight decay. {setting('decay')}"),
        click.option("--beta1", type=float, help=setting("beta1")),
        click.option("--beta2", type=float, help=setting("beta2")),
        click.option("--eps", type=float, help=setting("eps")),
        click.option("--schedule", metavar="TEXT",
                     help="Of the learning rate: "
                          + ", ".join(rule.form for rule in SCHEDULES.values())
                          + "; behind a warm-up, warmup:EPOCHS,cosine."),
        click.option("--seed", type=int, help="Seed of the initial weights (0)."),
        click.option("--dataset", metavar="NAME",
                     help="mnist (the default), fashion-mnist, idx or synthetic."),
        click.option("--data", metavar="PATH",
                     help="Where the data set's IDX files are, or a .csv, .tsv or .npz file."),
        click.option("--target", metavar="COLUMN",
                     help="Column (or columns) of a table to be predicted, by name or index."),
        click.option("--validation", type=float,
                     help="Fraction of a table that is taken out for testing (0.2)."),
        click.option("--normalise", metavar="HOW",
                     help="learned (mean 0, deviation 1), pixels (by 1/255) or none; bytes are "
                          "scaled by 1/255 otherwise."),
        click.option("--autoencoder/--no-autoencoder", default=None,
                     help="Reproduce the inputs (no)."),
        click.option("--save", metavar="DIRECTORY", help="Keep checkpoints there."),
        click.option("--save-every", type=int, help="Epochs between checkpoints (1)."),
        click.option("--keep", type=int, help="How many checkpoints are kept (all)."),
        click.option("--resume", metavar="PATH",
                     help="Continue from a checkpoint, or from the newest of a directory, with its "
                          "options unless others are given."),
        click.option("--patience", type=int,
                     help="Stop after so many reports without improvement, and go back to the "
                          "best."),
        click.option("--min-delta", type=float, help="How much is an improvement (0)."),
        click.option("--monitor", metavar="NAME",
                     help="What is to improve: test_loss (the default), test_accuracy, "
                          "train_loss."),
        click.option("--device", metavar="auto|gpu:N|host|sim", help="Where to run (auto)."),
        click.option("--config", "config_file", metavar="FILE.toml",
                     help="Read options from a TOML file."),
    ]):
        command = decorate(command)
    return command


def make_config(config_file: str | None, options: dict[str, Any]) -> Config:
    """The Config of a TOML file and the options given beside it. Raises ConfigError."""
    values = read_toml(config_file) if config_file else {}
    given = {name: value for name, value in options.items() if value is not None}
    if "layers" in given:
        given["layers"] = parse_layers(given["layers"])
    return Config.from_mapping(continued({**values, **given}), config_file or "options")
