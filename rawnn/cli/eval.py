"""`rawnn eval`: loss and accuracy of a stored model."""

from __future__ import annotations

import math
from typing import Any

import click
from rich.console import Console

from rawnn.cli.examples import Examples, device_for, given_examples, own_examples
from rawnn.cli.figures import MOST_CLASSES, class_figures, class_table, confusion_table
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
from rawnn.cli.run_summary import loss_text
from rawnn.cli.screen import fitted, say, table_console, working
from rawnn.common.errors import ConfigError
from rawnn.common.files import check_output, write_atomically
from rawnn.common.jsontext import indented_json
from rawnn.data.catalog import DATASETS
from rawnn.engine.checkpoint import Checkpoint, find_model
from rawnn.engine.model import Model


@click.command(name="eval", cls=Command)
@click.argument("checkpoint", metavar="CHECKPOINT", type=PATH)
@run_option(DATA, "--dataset", "mnist, fashion-mnist, idx or synthetic.",
            "what the model was trained on", metavar="NAME", values=lambda: DATASETS)
@run_option(DATA, "--data", "A .csv, .tsv or .npz file, or a directory of IDX files.",
            "what the model was trained on", metavar="PATH", type=PATH)
@columns_option("--target", "Column of the right answers; several behind commas, or by one "
                "--target each.", "as in training")
@csv_option("--encoding", "as in training")
@csv_option("--decimal", "as in training")
@csv_option("--skip", "as in training")
@run_option(OUTPUT, "--confusion/--no-confusion", "Whether to print the confusion matrix.", "yes",
            default=True)
@run_option(OUTPUT, "--json json_file", "Write the figures as JSON.", "not written",
            metavar="FILE", type=PATH)
@run_option(DEVICE, "--device", "Where to run.", "host", metavar="host|auto|gpu:N|sim",
            default="host", values=devices)
def eval_(checkpoint: str, dataset: str | None, data: str | None, target: str | None, device: str,
          confusion: bool, json_file: str | None, **csv_options: str | None) -> None:
    """Measure a CHECKPOINT (a file; of a directory the best, else the newest) on its test set, or
    on --data.

    Prints loss and accuracy and, for classes, precision, recall and the confusion matrix.
    """
    check_output("--json", json_file, data, checkpoint)
    check_data({"data": data, "dataset": dataset})
    path, found = find_model(checkpoint, say)
    examples = own_examples(found, str(path)) if data is None and dataset is None else \
        given_examples(found, dataset, data, target, csv_options)
    if examples.answers is None and not _reconstructs(found):
        raise ConfigError(f"{examples.source} brings no answers to compare with: name their column "
                          f"with --target")
    device = device_for(device)
    with working("measuring"):
        figures = show(found, examples, device, confusion, table_console())
    if json_file:
        values = {"checkpoint": str(path), "epoch": found.epoch, **figures}
        write_atomically(json_file, indented_json(values))


def _reconstructs(found: Checkpoint) -> bool:
    layers = found.network.layers
    return not found.network.loss_spec.labelled and layers[0] == layers[-1] \
        and found.target_normalisation is None


def show(found: Checkpoint, examples: Examples, device: str, confusion: bool,
         console: Console) -> dict[str, Any]:
    """Measure and print; returns the figures."""
    model = Model.of(found)
    classes = model.network.loss_spec.labelled
    score = model.score(examples.inputs, examples.answers, device=device)
    figures: dict[str, Any] = {"examples": len(examples.inputs), "loss": score.loss,
                               "accuracy": score.accuracy}
    console.print(f"network   {model.network}, epoch {found.epoch}", markup=False)
    about = f"data      {len(examples.inputs):,} examples, {examples.source}"
    console.print(fitted(console, about, 10), markup=False)
    console.print(f"loss      {loss_text(score.loss, 6)}", markup=False)
    if not math.isnan(score.accuracy):
        console.print(f"accuracy  {score.accuracy:.4f}", markup=False)
    if classes:
        counts = model.confusion(examples.inputs, examples.answers, device=device)
        names = model.names
        figures["classes"] = dict(zip(names, class_figures(counts), strict=True))
        figures["confusion"] = counts.tolist()
        if len(names) <= MOST_CLASSES:
            console.print(class_table(counts, names))
            if confusion:
                console.print(confusion_table(counts, names))
    return figures
