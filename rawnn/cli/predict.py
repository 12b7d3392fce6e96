"""`rawnn predict`: predictions of a stored model."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from rawnn.cli.eval import show
from rawnn.cli.examples import device_for, given_examples
from rawnn.cli.option_groups import Command
from rawnn.cli.options import (
    DATA,
    DEVICE,
    OUTPUT,
    PATH,
    check_data,
    columns_option,
    csv_option,
    devices,
    run_option,
)
from rawnn.cli.screen import say, table_console, working
from rawnn.common.errors import ConfigError
from rawnn.common.files import check_output, write_atomically
from rawnn.data.catalog import DATASETS
from rawnn.engine.checkpoint import find_model
from rawnn.engine.model import Model


@click.command(cls=Command)
@click.argument("checkpoint", metavar="CHECKPOINT", type=PATH)
@run_option(DATA, "--data", "A .csv, .tsv or .npz file, or a directory of IDX files.", "",
            metavar="PATH", required=True, type=PATH)
@run_option(DATA, "--dataset", "mnist, fashion-mnist or idx, of a directory.", "idx",
            metavar="NAME", values=lambda: DATASETS)
@columns_option("--target", "Column of the right answers, if the file has them; several behind "
                "commas, or by one --target each.", "as in training")
@csv_option("--encoding", "as in training")
@csv_option("--decimal", "as in training")
@csv_option("--skip", "as in training")
@run_option(OUTPUT, "--out", "Where to write, .csv or .npz.", "CSV to the terminal",
            metavar="FILE", type=PATH)
@run_option(OUTPUT, "--probabilities", "Write the probability of every class, too, under its name.",
            "no", is_flag=True)
@run_option(DEVICE, "--device", "Where to run.", "host", metavar="host|auto|gpu:N|sim",
            default="host", values=devices)
def predict(checkpoint: str, data: str, dataset: str | None, target: str | None, out: str | None,
            probabilities: bool, device: str, **csv_options: str | None) -> None:
    """Predict with a CHECKPOINT (a file; of a directory the best, else the newest) from --data, row
    by row.

    If the right answers are known, the quality of the predictions is printed as well.
    """
    if out is not None and not out.lower().endswith((".csv", ".npz")):
        raise ConfigError(f"--out {out}: predictions are written as .csv or .npz")
    check_data({"data": data, "dataset": dataset})
    check_output("--out", out, data, checkpoint)
    _, found = find_model(checkpoint, say)
    examples = given_examples(found, dataset, data, target, csv_options)
    model, device = Model.of(found), device_for(device)
    with working("predicting"):
        columns = _columns(model, examples.inputs, probabilities, device)
    if out is None:
        _print(_csv(columns, model))
    else:
        write_atomically(out, _npz(columns, model) if out.lower().endswith(".npz")
                         else _csv(columns, model).encode())
        say(f"{len(examples.inputs):,} predictions are in {out}")
    if examples.answers is not None:
        show(found, examples, device, True, table_console(stderr=out is None))


def _print(text: str) -> None:
    """To a terminal in its encoding, to a file or a pipe in UTF-8 like --out. The encoding of
    standard output may lack characters, which would become question marks."""
    if sys.stdout.isatty() or not hasattr(sys.stdout, "buffer"):
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
    sys.stdout.flush()


def _columns(model: Model, inputs: Any, probabilities: bool, device: str
             ) -> dict[str, NDArray[Any]]:
    """The arrays to write, by name: [N], or [N, C] with a name for each column."""
    link = model.network.loss_spec.link
    if link == "identity" or (model.autoencoder and not probabilities):
        if probabilities:
            raise ConfigError(f"a network trained with {model.network.loss} gives values, no "
                              f"probabilities")
        return {"values": model.predict(inputs, "values", device=device)}
    z = model.predict(inputs, "logits", device=device)
    said = model.shaped(z, "labels" if link == "softmax" else "classes")
    if not probabilities:
        return {"prediction": said}
    return {"prediction": said, "probabilities": model.shaped(z, "probabilities")}


def _output_names(model: Model) -> Sequence[str]:
    """A name for each output: of its class, or of its column in the training table."""
    targets = model.target_names
    return targets if not model.network.loss_spec.labelled \
        and len(targets) == model.network.outputs > 1 else model.names


def _csv(columns: dict[str, NDArray[Any]], model: Model) -> str:
    names: list[str] = []
    parts: list[NDArray[Any]] = []
    for name, array in columns.items():
        wide = array.ndim > 1 and (array.shape[1] > 1 or name == "probabilities")
        plain = name == "values" and model.target_names  # the header of the table itself
        places = _output_names(model)
        names += [name] if not wide else places if plain else [f"{name}_{p}" for p in places]
        parts.append(array.reshape(len(array), -1))
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(names)
    rows.writerows([str(cell) for part in parts for cell in part[row].tolist()]
                   for row in range(len(parts[0])))
    return text.getvalue()


def _npz(columns: dict[str, NDArray[Any]], model: Model) -> bytes:
    file = io.BytesIO()
    named = {"classes": np.array(_output_names(model))} if "probabilities" in columns else {}
    if model.target_names and not model.network.loss_spec.labelled:
        named["targets"] = np.array(model.target_names)
    np.savez_compressed(file, allow_pickle=False, **columns, **named)
    return file.getvalue()
