"""What the commands print: plans, toggles, doctor, and small runs with measured times masked."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from click.shell_completion import BashComplete
from rich.console import Console
from rich.table import Table

from rawnn import doctor
from rawnn.bench import attempt
from rawnn.cli import cli, run
from rawnn.cli.option_groups import Option
from rawnn.cli.screen import Heartbeat
from rawnn.common.errors import MissingLibrary
from rawnn.common.target import Machine
from rawnn.cuda import backend
from rawnn.data import acquire
from rawnn.engine.machine import Opened, open_device
from rawnn.ptx.user_kernels import USER_KERNELS, unregister
from tests.bench.test_lower_bounds import made
from tests.cli.test_attempt import MINE
from tests.records import Lines, record

ROWS = "a,b,c,y\n" + "".join(
    f"{i % 7},{i % 5 / 2},{-i % 11},{'no' if i % 3 else 'yes'}\n" for i in range(60)
)
TABLE = ("--data", "t.csv", "--target", "y", "--layers", "3-6-2", "--batch", "12", "--epochs", "2")


def said(*arguments: str) -> Lines:
    """The command, its status, and what it prints. No package of CUDA is found, nothing fetched."""
    fetch = AssertionError("a record may not fetch data")
    status: list[int] = []
    with (
        patch.object(backend, "has_package", lambda name: False),
        patch.object(acquire, "acquire", side_effect=fetch),
        patch.object(Heartbeat, "period", 1e6),  # says how long a slow machine has been at it
    ):
        lines = list(printed(lambda: status.append(run(arguments))))
    yield f"$ rawnn {' '.join(arguments)}  -> {status[0]}"
    yield from lines


def printed(call: Callable[[], object]) -> Lines:
    """What a call prints: on standard error behind an exclamation mark. How to call the command is
    click's text."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _plain_tables():
        call()
    for mark, text in (("", out.getvalue()), ("! ", err.getvalue())):
        for line in text.splitlines():
            if line.strip() and not line.startswith(("Usage: ", "Try 'rawnn")):
                yield mark + line.rstrip()


def _plain_tables() -> Any:
    """Tables cell by cell, as rich gets them: how it draws them is its own."""
    usual = Console.print

    def show(self: Console, *objects: Any, **options: Any) -> None:
        for each in objects:
            if isinstance(each, Table):
                each = "\n".join(_rows(each))
            usual(self, str(each), markup=False, highlight=False, soft_wrap=True)

    return patch.object(Console, "print", show)


def _rows(table: Table) -> Iterator[str]:
    if table.title:
        yield str(table.title)
    yield " | ".join(
        f"{column.header} ({column.justify}{', fold' * (not column.no_wrap)})"
        for column in table.columns
    )
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        yield " | ".join(map(str, cells))


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A working folder with a table."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        Path(name, "t.csv").write_text(ROWS)
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


PLANS = (
    "--opt none --examples 400",
    "--opt best --examples 600",
    "--opt best,bf16 --layers 784-2048-2048-10 --batch 32 --examples 70",
    "--opt mma,fuse,pdl,streams --layers 96-40-10 --loss mse --optimizer adam --examples 300",
    "--opt graphs=while,tiled --layers 33-20-5 --activation gelu --examples 256",
    "--opt graphs=3,mma,fuse --layers 33-20-5 --examples 900 --gpu A100",
    "--opt persistent=2x4 --layers 64-96-32 --loss bce --momentum 0.9",
    "--opt best,-persistent --layers 784-10 --examples 40000",
    "--opt graphs=step,fuse --examples 256 --dot",
    "--opt best --gpu RTX",
    "--opt best --batch 70000",
    "--floors x",
    "--cost --dot",
    "--opt best,-fusee",
    "--layers 784",
    "--workload wide",
    "--opt pool,async",
    "--cost --opt none --layers 30-20-5 --gpu L40",
    "--cost --opt best --gpu B200",
)


@record
def plans() -> Lines:
    for text in PLANS:
        yield ""
        yield from said("plan", *text.split())
    with folder():
        known = set(USER_KERNELS)
        Path("mine.cu").write_text(MINE)
        small = ("--layers", "20-8-3", "--batch", "10", "--examples", "20")
        for opt in ("best,bias_relu=mine.cu,-fuse", "bias_relu=mine.cu,persistent", "sgd=mine.cu"):
            yield from said("plan", "--opt", opt, *small)
        for word in set(USER_KERNELS) - known:
            unregister(word)
        made().results.write("limits.json")
        for opt in ("none", "best,bf16,-persistent"):
            yield from said(
                "plan",
                "--cost",
                "--floors",
                "limits.json",
                "--opt",
                opt,
                "--layers",
                "784-512-10",
                "--batch",
                "256",
            )


@record
def toggles() -> Lines:
    yield from said("toggles", "--device", "sim")
    yield from said("toggles", "--device", "host")
    yield from said("toggles", "--device", "moon")


FINDINGS = [
    doctor.Finding("CCCL", "/include"),
    doctor.Finding("NVRTC", "/lib/libnvrtc.so.13", "13.0", required=True),
    doctor.Finding("cuDNN", looked=("/here", "/there"), fix="pip install it"),
    doctor.Finding("bindings", looked=("Python's path",), fix="a fix", required=True),
]


@record
def doctors() -> Lines:
    machines = {
        "a simulated GPU": lambda: open_device("sim", lambda message: None),
        "an old GPU": lambda: Opened(None, Machine(None, (7, 5), 12000, lambda package: False), 0),
        "a missing package": lambda: Opened(None, Machine("the package cuda is missing"), 0),
        "an old driver": lambda: Opened(None, Machine("the driver supports CUDA 11.4"), 0),
        "no driver": lambda: Opened(None, Machine("no driver; --device host trains on the CPU"), 0),
    }
    for name, make in machines.items():
        for major, driver, findings in (
            (12, 13000, FINDINGS[:3]),
            (13, 12040, FINDINGS),
            (None, 0, []),
        ):
            yield ""
            yield f"# {name}, bindings of CUDA {major}, driver {driver}"
            with (
                patch.object(doctor, "open_device", lambda wanted, say: make()),
                patch.object(doctor, "_libraries", lambda: findings),
                patch.object(doctor, "_tools", list),
                patch.object(doctor, "_python", lambda: doctor.Finding("rawnn", "/r", "1")),
                patch.object(doctor.headers, "cuda_major", lambda: major),
                patch.object(doctor, "_driver_version", lambda: driver),
            ):
                yield from said("doctor")
    with (
        patch.object(doctor, "has_package", lambda name: False),
        patch.object(doctor.headers, "cuda_major", lambda: None),
        patch.object(doctor, "_driver_version", lambda: 0),
        patch.object(doctor.headers, "nvrtc_library_path", lambda: None),
        patch.object(doctor.headers, "include_directories", lambda: ()),
        patch.object(doctor.headers, "cudadevrt_library", lambda: Path("/c/libcudadevrt.a")),
        patch.object(doctor.headers, "tool", lambda name: None),
        patch.object(doctor.headers, "tool_folders", lambda: [Path("/tools")]),
        patch.object(doctor.locate, "find", lambda files, folders: None),
        patch.object(doctor.locate, "candidates", lambda folders: folders),
    ):
        for each in (*doctor._libraries(), *doctor._tools()):
            yield f"{each}"
    with tempfile.TemporaryDirectory() as name:
        wheels = Path(name, "nvidia")
        for file in ("cuda_fp16.h", "cuda/std/cstdint", "crt/mma.h", "libx.so.7.5"):
            Path(wheels, file).parent.mkdir(parents=True, exist_ok=True)
            Path(wheels, file).touch()
        for major, suffix in ((12, "-cu12"), (13, ""), (None, "-cu12"), (13, "of nothing")):
            with (
                patch.object(doctor, "has_package", lambda name: True),
                patch.object(doctor.headers, "cuda_major", lambda major=major: major),
                patch.object(doctor, "_driver_version", lambda: 12040),
                patch.object(doctor.headers, "nvrtc_library_path", lambda: wheels / "libx.so.7.5"),
                patch.object(doctor.headers, "include_directories", lambda: (wheels,)),
                patch.object(doctor.headers, "cudadevrt_library", lambda: wheels / "libd.a"),
                patch.object(doctor.headers, "tool", lambda name: Path("/t", name)),
                patch.object(doctor.headers, "tool_folders", lambda: [Path("/t")]),
                patch.object(doctor.locate, "find", lambda files, folders: Path("/l/a.so.1.2")),
                patch.object(doctor.locate, "candidates", lambda folders: folders),
                patch.object(doctor.metadata, "version", partial(_version, suffix)),
            ):
                for each in (*doctor._libraries(), *doctor._tools()):
                    yield f"{each}".replace(name, "DIR")


def _version(suffix: str, name: str) -> str:
    """The version of a wheel whose name ends so."""
    if not name.startswith("nvidia-cu") or name.endswith(suffix):
        return f"that of {name}"
    raise doctor.metadata.PackageNotFoundError(name)


NUMBER = re.compile(r"(?<![\w.=-])\d[\d,]*\.\d+(e[+-]\d+)?|(?<![\w.])nan(?!\w)")
COUNT = re.compile(r"\d[\d,]*(?= (ms|s|a second|seconds)\b)|(?<=#\.# )[\d,]+(?= +\d+ s)")
SMALL = ("--data", "t.csv", "--target", "y", "--layers", "3-6-2", "--batch", "12", "--rounds", "2")
RUNS = (
    ("train", "--device", "host", *TABLE),
    ("train", "--device", "sim", "--opt", "none", *TABLE),
    (
        "train",
        "--device",
        "sim",
        "--opt",
        "best",
        *TABLE,
        "--optimizer",
        "adam",
        "--shuffle",
        "--schedule",
        "cosine",
        "--save",
        "kept",
        "--partial",
        "--init",
        "he",
        "--weight-decay",
        "0.1",
        "--patience",
        "7",
        "--json",
        "run.json",
    ),
    ("train", "--device", "host", *TABLE, "--loss", "bce", "--patience", "1", "--quiet"),
    (
        "train",
        "--device",
        "host",
        "--data",
        "t.csv",
        "--target",
        "a",
        "--skip",
        "y",
        "--layers",
        "2-4-1",
        "--loss",
        "mse",
        "--normalise",
        "learned",
        "--normalise-targets",
        "learned",
        "--no-bias",
        "--activation",
        "tanh",
        "--epochs",
        "1",
        "--nesterov",
        "--momentum",
        "0.5",
    ),
    ("train", "--resume", "kept", "--epochs", "3", "--device", "sim"),
    ("train", "--resume", "kept", "--epochs", "4", "--device", "host", "--opt", "none"),
    ("train", "--resume", "kept", "--epochs", "2"),
    ("eval", "kept"),
    ("eval", "kept", "--data", "t.csv", "--json", "e.json"),
    ("eval", "nowhere"),
    ("predict", "kept", "--data", "t.csv", "--out", "p.csv"),
    ("predict", "kept", "--data", "t.csv", "--out", "p.txt"),
    ("predict", "kept", "--data", "t.csv", "--probabilities", "--out", "p.npz"),
    ("many", "--device", "host", *TABLE, "--vary", "lr=0.01,0.1", "--seeds", "2"),
    (
        "many",
        "--device",
        "host",
        *TABLE,
        "--vary",
        "lr=1e-3..1e-1:3",
        "--folds",
        "3",
        "--best",
        "1",
    ),
    (
        "many",
        "--device",
        "host",
        *TABLE,
        "--vary",
        "lr=1e-3..1e-1:9",
        "--halving",
        "3",
        "--epochs",
        "4",
        "--best",
        "1",
        "--save",
        "several",
    ),
    ("eval", "several"),
    ("many", "--resume", "several", "--epochs", "6", "--device", "host", "--best", "1"),
    ("compare", "--opts", "none", "best"),
    ("tune", "--device", "host"),
    ("cache", "info"),
    ("cache", "clear"),
    ("kernel", "check", "none.cu"),
    ("kernel", "try", "mine.cu", "--device", "host", *SMALL),
    ("bench", "suites"),
    ("export", "kept", "model.txt"),
)


@record
def runs() -> Lines:
    """Small runs; numbers with a decimal point are masked, as times and losses are not the same
    everywhere."""
    no_compiler = MissingLibrary("there is no compiler")
    with (
        folder() as place,
        patch.object(attempt, "compile_instances", side_effect=no_compiler),
    ):
        Path("mine.cu").write_text(MINE)
        known = set(USER_KERNELS)
        for arguments in RUNS:
            yield ""
            for line in said(*arguments):
                masked = NUMBER.sub(
                    "#.#",
                    re.sub(
                        r"  +",
                        " ",
                        line.replace(str(place), "DIR").replace(os.environ["RAWNN_CACHE"], "CACHE"),
                    ),
                )
                is_confusion = re.fullmatch(r"\w+( \| \d*)+", masked)
                yield re.sub(r"\d+", "#", masked) if is_confusion else COUNT.sub("#", masked)
        for word in set(USER_KERNELS) - known:
            unregister(word)


HOST = "--dataset synthetic --device host "
REFUSED = (
    *(
        HOST + text
        for text in (
            "--opt grphs",
            "--opt -cudnn",
            "--opt arena=3",
            "--layers 784-ten",
            "--validation 0.3",
            "--save-every 2",
            "--keep 2",
            "--json /nowhere/x.json",
            "--json .",
            "--encoding x",
            "--opt cublas,graphs",
            "--opt batch=max",
            "--layers 20-10",
            "--layers 784-3",
            "--batch 100000",
            "--autoencoder",
            "--loss mse",
            "--opt batch=90000",
            "--csv /nowhere/x.csv",
            "--resume nowhere",
            "--config none.toml",
            "--normalise-targets learned",
        )
    ),
    "--device host --validation 0.3",
    "--dataset idx --validation 0.3",
    "--epoch 3",
    "--learning-rate 3",
    "--dropout 3",
    "--no-bais",
    "trian",
    "--device moon",
    "--dataset minst",
    "--dataset table",
    "--dataset idx",
    "--data none.csv",
    "--data t.csv",
    "--data t.csv --target z",
    "--data t.csv --target y,y",
    "--data t.csv --target 9",
    "--data t.csv --target y --layers 4-2",
    "--data t.csv --target y --layers 3-1",
    "--data t.csv --dataset mnist",
    "--data t.csv --skip a,b,c,y --target y",
    "--data t.csv --target y --decimal ; --layers 3-2",
    "--data t.csv --encoding klingon",
    "--save t.csv --data t.csv --target y --device host --layers 3-2",
    *(
        "many --vary " + text
        for text in (
            "lr",
            "lr=",
            "lr=1..2",
            "lr=0..2:3",
            "lr=2..1:3",
            "seed=0..1000000",
            "lr=1..2:1",
            "device=host",
            "lrr=1",
            "devize=host",
            "lr=a",
            "seed=1.5",
            "bias=maybe",
            "lr=1,2 --lr 3",
            "seed=1,2 --seeds 3",
            "lr=1 --vary lr=2",
            "lr=linear:1..2",
            "layers=20-x",
            "batch=1..9:1",
            "lr=1..2:3 --folds 3 --validation 0.2 --dataset synthetic",
        )
    ),
    "many --resume a --seeds 3",
    "many --resume a --monitor test_loss",
    "plan --save x",
    "bench lader",
    "bench ladder --batch-size 3",
    "bench compare a.json b.json",
    "bench all nothing",
    "bench show none.json",
    "bench merge a.json --json b.json",
    "bench ladder --json x.txt --bench none.toml",
    "tune --opt persistent --device host",
    "profile --by cupti --device host --dataset synthetic",
    "kernel check x.cu --size n",
    "kernel time x.cu --size n=a",
    "kernel check t.csv --device sim",
    "kernel check t.csv --device moon",
    "predict kept --data t.csv",
    "eval kept --device moon",
    "plan --gpu 3",
    "predict t.csv --data t.csv",
    "eval t.csv",
    "export t.csv m.onnx",
    "compare --repeats 2",
)


@record
def refused_commands() -> Lines:
    with folder() as place:
        for text in REFUSED:
            for line in said(*text.split()):
                yield line.replace(str(place), "DIR")


COMPLETED = (
    ("", ""), ("", "--ma"), ("", "pl"), ("plan", "--g"), ("plan --gpu", ""), ("plan --gpu", "RT"),
    ("train --opt", ""), ("train --opt", "best,"), ("train --opt", "best,-"), ("train --opt", "gr"),
    ("train --opt", "none,fuse,p"), ("train --loss", ""), ("train --loss", "m"),
    ("train --activation", "g"), ("train --dataset", ""), ("train --workload", "wide"),
    ("many --monitor", ""), ("many --device", "gpu"), ("eval --dataset", ""), ("bench", "l"),
    ("train --device", ""),
    ("train --optimizer", ""), ("train --normalise", ""), ("train --encoding", "u"),
    ("kernel try --beside", "s"), ("train --schedule", ""), ("train --seed", ""),
)  # fmt: skip


@record
def completions() -> Lines:
    """What a shell is offered behind the words of a command."""
    shell = BashComplete(cli, {}, "rawnn", "_RAWNN_COMPLETE")
    for words, begun in COMPLETED:
        found = shell.get_completions(words.split(), begun)
        yield f"rawnn {words} [{begun}]: {', '.join(item.value for item in found)}"


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from commands(found, f"{name} {below}".strip())


def described_option(given: click.Parameter) -> str:
    """What a command makes of an option, without its help."""
    bounds = [getattr(given.type, f, None) for f in ("min", "max", "min_open", "max_open", "clamp")]
    choices = getattr(given.type, "choices", ())
    plain = isinstance(given.default, int | float | str) and not isinstance(given.default, bool)
    words = [
        f"{' '.join((*given.opts, *given.secondary_opts))}: {given.type.name}",
        *[f"from {bounds}"] * any(b is not None for b in bounds),
        *[f"one of {list(choices)}"] * bool(choices),
        *[f"default {given.default!r}"] * plain,
        *["several times"] * bool(getattr(given, "multiple", False)),
        *["required"] * given.required,
        *["eager"] * given.is_eager,
        *["without a value"] * bool(getattr(given, "is_flag", False)),
        *["hidden"] * bool(getattr(given, "hidden", False)),
        *[f"{given.nargs} values"] * (given.nargs != 1),
    ]
    if isinstance(given, Option):
        context = click.Context(click.Command("x"))
        ends = {b: given.shell_complete(context, b) for b in ("", "none,-", "none,")}
        words += [f"group {given.group}", f"default said {given.default_text!r}"]
        words += [f"{len(found)} values behind {b!r}" for b, found in ends.items() if found]
    return ", ".join(words)


@record
def options() -> Lines:
    """Every option but --help, and the commands that have it."""
    found: dict[str, list[str]] = {}
    for name, command in commands(cli, ""):
        for given in command.params:  # without --help, which click makes at a first use
            found.setdefault(described_option(given), []).append(name or "rawnn")
    for text, names in found.items():
        yield f"{text} <- {'; '.join(names)}"


@record
def notices() -> Lines:
    """What long commands say while they measure."""
    with folder():
        for arguments in (
            ("compare", "--opt", "none", "--opt", "none,fuse", "--rounds", "2", *TABLE[:-2]),
            ("compare", "--opt", "none", *TABLE[:-2]),
            ("compare", "--opt", "none", "--opt", "none", *TABLE[:-2]),
            ("compare", "--opt", "none", "--opt", "none,fuze", *TABLE[:-2]),
        ):
            lines = said(*arguments, "--device", "host")
            yield from (line for line in lines if line.startswith(("!", "$")))
