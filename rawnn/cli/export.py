"""`rawnn export`: a stored model for other runtimes."""

from __future__ import annotations

import warnings

import click

from rawnn.cli.screen import say
from rawnn.common.errors import ConfigError
from rawnn.common.files import check_output
from rawnn.engine.checkpoint import find_model
from rawnn.engine.export import INPUT_TYPES, InputType, export_onnx, lost_in_float32
from rawnn.engine.model import Model


@click.command()
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("file", metavar="FILE.onnx")
@click.option("--input-type", type=click.Choice(INPUT_TYPES), default="float32", show_default=True,
              help="What the model shall take; the values are those of the training data either "
                   "way (bytes 0 to 255 stay so).")
def export(checkpoint: str, file: str, input_type: InputType) -> None:
    """Write a CHECKPOINT (a file; of a directory the best, else the newest) as an ONNX model, with
    the normalisation of its inputs. Needs the package onnx (the extra `export`).

    The model takes `inputs` [N, features] and gives `logits`, `probabilities` and `classes`, or
    `values` of a network trained with mse.
    """
    if not file.lower().endswith(".onnx"):
        raise ConfigError(f"{file}: models are exported as .onnx")
    check_output("export", file)
    _, found = find_model(checkpoint, say)
    model = Model.of(found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # said below in terms of the command
        export_onnx(model, file, input_type)
    lost = lost_in_float32(model) if input_type == "float32" else ""
    if lost:
        say(f"WARNING: {lost}: export with --input-type float64")
    elif model.normalisation.is_double and input_type == "float32":
        say("its inputs are normalised in float64: --input-type float64 takes numbers that float32 "
            "cannot tell apart")
    say(f"{model.network} is in {file}")
