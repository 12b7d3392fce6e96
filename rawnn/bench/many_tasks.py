"""Two whole tasks of many small networks, timed from the outside: 200 configurations x 5 folds by
the command line, from shell to table with an empty cache; and 1,000 seeds of MNIST against one
run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

import rawnn
from rawnn.bench.harness import Sample, Variant, precision_name
from rawnn.bench.record import Results
from rawnn.common.errors import RawnnError
from rawnn.data import Dataset, load_dataset
from rawnn.engine.config import Config

FEATURES, CLASSES = 20, 3
STAND_IN = "generated digits stood in for MNIST"
LAST_WORDS = 300
"""Characters of a failed process's error stream that are shown."""


@dataclass(frozen=True)
class Size:
    """Of a task: configurations or seeds, folds, rows and epochs; `hidden` layers."""

    members: int
    folds: int
    rows: int
    epochs: int
    hidden: tuple[int, ...]


@dataclass(frozen=True)
class WholeTask:
    """A task with its size on a GPU and elsewhere, its metric, and what takes a sample of it."""

    size: Size
    small: Size
    metric: str
    take: Callable[[Size, str, int], Sample]


def table_of(rows: int, folder: Path) -> Path:
    """A CSV file of FEATURES columns and the column y with CLASSES labels, from a fixed seed."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, FEATURES))
    y = np.tanh(x @ generator.standard_normal((FEATURES, CLASSES))).argmax(axis=1)
    file = folder / "table.csv"
    heads = ",".join([*(f"x{i}" for i in range(FEATURES)), "y"])
    np.savetxt(file, np.column_stack([x, y]), ["%.5f"] * FEATURES + ["%d"], ",", header=heads,
               comments="")
    return file


def opt_of(device: str) -> str:
    """The toggles: tf32 where there is a GPU."""
    return "best" if device == "host" else "best,tf32"


def arguments_of(size: Size, device: str, table: Path, answer: Path) -> list[str]:
    """The command line of the task `table`."""
    layers = "-".join(map(str, (FEATURES, *size.hidden, CLASSES)))
    return ["many", "--data", str(table), "--target", "y", "--layers", layers, "--vary",
            f"lr=1e-4..1e-1:{size.members}", "--folds", str(size.folds), "--epochs",
            str(size.epochs), "--batch", "32", "--optimizer", "adam", "--opt", opt_of(device),
            "--device", device, "--json", str(answer)]


def from_shell(size: Size, device: str, number: int) -> Sample:
    """Seconds of the process of the task `table`, with an empty cache of its own. Raises RawnnError
    where it fails or its answer has not all members."""
    with tempfile.TemporaryDirectory() as folder:
        table, answer = table_of(size.rows, Path(folder)), Path(folder, "out.json")
        own = {**os.environ, "RAWNN_CACHE": str(Path(folder, "cache"))}
        begun = perf_counter()
        done = subprocess.run([sys.executable, "-m", "rawnn",
                               *arguments_of(size, device, table, answer)],
                              env=own, capture_output=True, text=True)
        seconds = perf_counter() - begun
        if done.returncode:
            raise RawnnError(f"the command ended with {done.returncode}: "
                             f"{done.stderr.strip()[-LAST_WORDS:]}")
        found = json.loads(answer.read_text())["members"]
    wanted = size.members * size.folds
    if found != wanted:
        raise RawnnError(f"the command's answer has {found} members of {wanted}")
    return Sample({"shell_s": seconds})


def seeds_against_one(size: Size, device: str, number: int) -> Sample:
    """Seconds of training so many seeds at once, and of one run; both compiled before."""
    data = images(size)
    config = Config(layers=(784, *size.hidden, 10), epochs=size.epochs, opt=opt_of(device),
                    device=device)
    seeds = [replace(config, seed=seed) for seed in range(size.members)]
    for _ in range(1 if number else 2):  # the first compiles
        begun = perf_counter()
        rawnn.train_many(seeds, data=data)
        many = perf_counter() - begun
        begun = perf_counter()
        rawnn.train(config, data=data)
        one = perf_counter() - begun
    return Sample({"many_s": many, "one_s": one}, notes=[STAND_IN] if data.synthetic else [])


def images(size: Size) -> Dataset:
    """MNIST, or generated images in its place where it is not there, cut to the task's rows."""
    found = load_dataset("mnist", notify=lambda message: None, stand_in=True)
    return replace(found, train_images=found.train_images[:size.rows],
                   train_labels=None if found.train_labels is None
                   else found.train_labels[:size.rows], resident={})


TASKS = {
    "table": WholeTask(Size(200, 5, 10_000, 20, (64, 64)), Size(3, 2, 120, 1, (8,)), "shell_s",
                       from_shell),
    "seeds": WholeTask(Size(1000, 1, 60_000, 20, ()), Size(3, 1, 256, 1, ()), "many_s",
                       seeds_against_one),
}
"""By the name on the command line."""


def task_variants(names: Sequence[str], device: str) -> list[Variant]:
    """What measures some tasks; small ones without a GPU."""
    made = []
    for name in names:
        task = TASKS[name]
        size = task.small if device in ("host", "sim") else task.size
        made.append(Variant(
            f"many/{name}", "rawnn many", precision_name(opt_of(device)), task.metric,
            {"members": size.members * size.folds, "rows": size.rows, "epochs": size.epochs},
            partial(task.take, size, device)))
    return made


def task_failures(results: Results) -> str:
    """Which tasks failed."""
    bad = [e.case.partition("/")[2] for e in results.entries("many")
           if e.case.partition("/")[2] in TASKS and e.status in ("failed", "unavailable")]
    return f"of the whole tasks {', '.join(bad)} failed" if bad else ""
