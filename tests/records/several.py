"""Many networks: the tables of small runs, and reports of kernels and profiles made up."""

from __future__ import annotations

import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np

import rawnn
from rawnn.bench.profiling import OpTime, ProfileResult
from rawnn.bench.statistics import spread
from rawnn.cli import attempt as attempt_command
from rawnn.cli import export as export_command
from rawnn.cli import many as many_command
from rawnn.cli import profile as profile_command
from rawnn.cli import train as train_command
from rawnn.cli import tune as tune_command
from rawnn.cli.compiler import list_left_out
from rawnn.cli.screen import table_console
from rawnn.common.errors import RawnnError
from rawnn.common.listener import Listener
from rawnn.common.target import Machine
from rawnn.cuda.compiling.resources import Occupancy, Usage
from rawnn.engine.config import Config
from rawnn.engine.result import Times
from rawnn.lab import inspection
from rawnn.lab.checking import Checked, Finding, TrialResult
from rawnn.lab.comparison import Comparison
from rawnn.lab.inspection import Resources
from rawnn.lab.kernel_problem import Launching
from rawnn.many.halving import survivors
from rawnn.many.progress import ManyReport, best_of, member_numbers
from rawnn.model.layers import Network
from rawnn.opts.best_table import Entry, remember
from rawnn.plan.recipe import Recipe
from rawnn.tuning.search import Measured
from tests.bench.built import place
from tests.engine import random_dataset
from tests.records import Lines, outcome, record, short
from tests.records.commands import printed, said

X = (np.arange(90 * 4).reshape(90, 4) * 37 % 101 / 50 - 1).astype(np.float32)
Y = (np.arange(90) * 37 % 3).astype(np.int32)
BASE: dict[str, Any] = {"data": (X, Y), "layers": (4, 6, 3), "batch": 10, "device": "host",
                        "opt": "none"}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "learning rates and seeds": {"lr": [0.02, 0.3], "seed": [3, 4], "epochs": 2},
    "folds": {"lr": [0.02, 0.3], "folds": 3, "epochs": 2},
    "halving": {"lr": [0.001, 0.02, 0.1, 0.3], "halving": 2, "epochs": 5},
    "sizes": {"layers": [(4, 3), (4, 5, 3)], "epochs": [1, 2], "monitor": "test_accuracy"},
    "early stopping": {"lr": [0.0, 0.2], "epochs": 4, "patience": 1},
    "late stopping": {"lr": [0.0, 0.2], "epochs": 4, "patience": 2, "min_delta": 0.5},
    "repeated folds": {"lr": [0.02], "folds": 2, "repeats": 3, "epochs": 1},
    "divergence": {
        "lr": [0.1, 1e30],
        "epochs": 2,
        "loss": "mse",
        "layers": (4, 3),
        "data": (X, X[:, :3]),
    },
    "own rows": {"lr": [0.1], "rows": [list(range(40)), list(range(30, 70))], "epochs": 1},
    "own rows, scored on others": {
        "lr": [0.1, 0.2],
        "rows": [list(range(40)), list(range(30, 70))],
        "epochs": 1,
        "validation": (X[70:], Y[70:]),
    },
}


OF_DICTIONARY = ("members", "shardings", "groups", "candidates", "varied", "interrupted", "notes")


class Heard(Listener):
    """Keeps the sentences and the reports, without times."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, message: str) -> None:
        self.said.append(message)

    def reported(self, report: Any) -> None:
        self.said.append(
            f"epoch {report.epoch}: {report.members} of {report.total}, best "
            f"{report.best_member} by {report.monitor} {rough(report.best)}"
        )


def rough(value: Any) -> str:
    """Three digits, which no library's order of summation changes."""
    if isinstance(value, np.ndarray):
        return f"[{', '.join(map(rough, value.tolist()))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {rough(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(rough, value))}]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@record
def many_networks() -> Lines:
    for name, options in RUNS.items():
        heard = Heard()
        try:
            found = rawnn.train_many(**{**BASE, **options}, listener=heard)
        except RawnnError as error:
            yield f"# {name}: {error}"
            continue
        yield f"# {name}: {len(found)} members"
        yield from heard.said
        yield from (f"note: {note}" for note in found.notes)
        table = found.table()
        yield f"table {[(n, str(table.dtype[n])) for n in table.dtype.names or ()]}"
        yield from (rough(list(row.tolist())) for row in table)
        wide = found.configurations()
        yield f"configurations {list(wide.dtype.names or ())}"
        yield from (rough(list(row.tolist())) for row in wide)
        for by in (None, "train_loss", "test_accuracy", "loss"):
            yield f"best by {by}: {outcome(lambda: [m.index for m in found.best(3, by)])}"
        results = {
            k: v for k, v in found.cv_results(return_train_score=True).items() if "time" not in k
        }
        yield from (f"{k}: {rough(v)}" for k, v in results.items())
        yield f"{found[0]} {found[-1].config.lr} {found[0].fold} {len(found[0].history)} reports"
        yield outcome(lambda: found[99])
        kept = {k: v for k, v in found.stored.settings.items() if k not in ("seconds", "data")}
        yield f"settings {short(kept)}"
        yield from (f"{k} {rough(v)}" for k, v in found.progress.arrays().items() if k != "history")
        as_dict = found.to_dict()
        yield from (f"dictionary, {k}: {rough(as_dict[k])}" for k in OF_DICTIONARY)
        yield f"scores {rough(found.scores('train_loss'))}"
        for asked in (None, 2, np.int64(1), [1, 0], [99], []):
            models = outcome(lambda: [m.network for m in found.ensemble(asked).models])
            yield f"ensemble of {asked}: {models}"
        for asked in ({"epochs": 1}, {"members": [99]}, {"members": []},
                      {"epochs": 1, "members": [0]}):  # fmt: skip
            yield f"again {asked}: {outcome(lambda: len(found.resume(**asked)))}"
        timed = replace(found.stored, settings={**found.stored.settings, "seconds": 0.5})
        still = replace(found, stored=timed)
        yield re.sub(r"\d+\.\d+", "#", f"{still!r} {still}")
        yield f"{short(still.network_steps_per_second)} network steps a second"
    for asked in ([3, 1], 3, "x", [True], [1.5], np.array([2])):
        yield f"members {asked}: {outcome(lambda: member_numbers(asked))}"
    scores = np.array([[3.0, np.nan, 1.0], [1.0, np.nan, np.inf], [np.nan, np.nan, 1.0]])
    yield f"{best_of(scores, 'test_loss').tolist()} {best_of(scores, 'test_accuracy').tolist()}"
    for halving, higher in ((2.0, False), (3.0, True), (9.0, False)):
        yield str(
            survivors(
                np.array([0, 0, 1, 1, 2, 3], np.int32),
                np.array([1.0, 2.0, 0.5, np.nan, 3.0, 1.5]),
                halving,
                higher,
            ).tolist()
        )


def _profiled(scale: float, *, way: Any, least: float | None) -> ProfileResult:
    ops = [
        OpTime(
            name=name,
            kind=kind,
            us=spread([us * scale, us * scale * 1.1, us * scale * 0.9]),
            gap_us=spread([gap]) if gap else None,
            nbytes=nbytes,
            least_us=least,
        )
        for name, kind, us, gap, nbytes in (
            ("gather", "gather/naive", 1.5, 0.25, 100_000),
            ("fc1.forward", "matmul/mma", 12.25, 0.0, 2_500_000),
            ("tick", "tick/tick", 0.5, 1.0, 0),
        )
    ]
    return ProfileResult(
        config=Config(),
        environment=place(device="sim" if scale > 1 else "cuda"),
        dataset="made up",
        toggles=["fuse", "mma"] if scale > 1 else [],
        notes=["a note"],
        way=way,
        steps=3,
        step_us=spread([20.0 * scale, 21.0]),
        empty_us=0.75,
        ops=ops,
        spans=[],
    )


@record
def reports() -> Lines:
    """What `profile` prints, and what a check of a user's kernel says."""
    one, other = _profiled(1.0, way="cupti", least=1.0), _profiled(1.2, way="events", least=None)
    for result in (one, other):
        yield from printed(lambda: profile_command._show(result))
    yield from (" | ".join(row) for row in profile_command.differences(one, other))
    yield from (
        " | ".join(row)
        for row in profile_command.differences(
            other,
            ProfileResult(
                **{**{f: getattr(one, f) for f in one.__struct_fields__}, "ops": one.ops[:1]}
            ),
        )
    )

    def tried(n: int, wrong: bool) -> TrialResult:
        compared = Comparison("y", "float32", n, 0.1 * wrong, 0.01, int(wrong), "[3]", 1.5, 2.5, "")
        return TrialResult(
            {"n": n, "m": 7},
            Launching((n, 1, 1), (64, 1, 1), 0),
            (compared,),
            (Finding("wrong", "y", f"y is wrong at {n}", "look there"),) if wrong else (),
        )

    for sizes in (
        [(64, False)],
        [(64, False), (100, True)],
        [
            (1, True),
            (5, True),
            (7, True),
            (9, True),
            (11, True),
            (64, False),
            (128, False),
            (256, False),
            (512, False),
        ],
    ):
        yield from str(
            Checked("k", tuple(tried(*each) for each in sizes), 10, ("noted",))
        ).splitlines()


def _ended(**more: Any) -> Any:
    """A result of `rawnn train`."""
    values: dict[str, Any] = {
        "interrupted": False, "stopped": "", "epoch_ms": [1.0], "synthetic": False,
        "test_loss": 0.25, "test_accuracy": 0.875, "peak_memory_bytes": 5 << 20,
        "resumed_epochs": 0, "broken_epoch": False, "config": Config(), "average_epoch_ms": 1.25,
        "average_epoch_wall_ms": 2.5, "facts": {},
        "environment": SimpleNamespace(device="cuda", gpu={"name": "a GPU"}),
        "times": Times(imports=1.0, data=2.0, driver=3.0, compile=4.0, setup=5.0, training=6.0,
                       training_device=7.0, evaluation=8.0, process=9.0),
    }  # fmt: skip
    return SimpleNamespace(**{**values, **more})


@record
def endings() -> Lines:
    """The end of a run, what `tune` found, resources of kernels, exported models."""
    host = SimpleNamespace(device="host", gpu=None)
    saved = Config(save="/kept/a b", epochs=9, device="host")
    for name, more in {
        "plain": {}, "host": {"environment": host}, "stopped": {"stopped": "after 3 of 9"},
        "no accuracy": {"test_accuracy": math.nan}, "no loss": {"test_loss": math.nan},
        "generated": {"synthetic": True, "environment": host}, "none": {"epoch_ms": []},
        "on purpose": {"synthetic": True, "config": Config(dataset="synthetic", device="host")},
        "interrupted": {"interrupted": True, "resumed_epochs": 4},
        "in an epoch": {"interrupted": True, "broken_epoch": True, "config": saved},
        "at once": {"interrupted": True, "broken_epoch": True, "epoch_ms": []},
    }.items():  # fmt: skip
        yield f"# {name}"
        for kept in (["a checkpoint"], []) if more.get("config") is saved else ([],):
            with patch.object(train_command, "listed", lambda directory: kept):
                yield from printed(lambda: train_command._summary(table_console(), _ended(**more)))
    entry = Entry(
        gpu="a GPU", layers=(784, 10), batch=128, precision="bf16", toggles="fuse", us=4.125,
        others={"": 9.0, "cublas,fuse": 7.5}, driver="580.1", commit="abc", date="2026-01-02T03",
        conditions={"loss": "mse"},
    )  # fmt: skip
    tried = [Measured("fuse", 4.125, 4.0, 4.5), Measured("", 9.0, 8.0, 10.0),
             Measured("cublas", refusal="it needs nvmath\nand more"),
             Measured("fuse,pdl", same_as="fuse")]  # fmt: skip
    search = SimpleNamespace(found={m.toggles: m for m in tried}, others=dict,
                             fastest=lambda: tried[:2])  # fmt: skip
    yield from printed(lambda: tune_command._report(cast(Any, search), entry))
    yield from printed(lambda: [tune_command._tell(m) for m in tried])
    task = SimpleNamespace(
        machine=Machine(None, name="a GPU"), network=Network((3, 2)), recipe=Recipe(7),
        precision="bf16", data=random_dataset(3, 2, 20, 10),
    )  # fmt: skip
    tried[0] = replace(tried[0], us=4.12567)
    made = _values(tune_command._entry(cast(Any, search), cast(Any, task), "580.1"))
    yield short({k: v for k, v in made.items() if k not in ("commit", "date")})
    examined = [
        SimpleNamespace(
            right=right, op=op, outcomes=["equal"], trespasses=["wrote outside"] * right
        )
        for op, right in (("relu1", True), ("relu2", False))
    ]
    yield from printed(lambda: attempt_command._check(examined[:1], "mine", table_console()))
    yield outcome(lambda: attempt_command._check(examined, "mine", Silent()))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "best.json")
        yield from (t.replace(name, "DIR") for t in printed(lambda: tune_command._show(path)))
        remember(path, entry)
        remember(path, Entry(**{**_values(entry), "us": 3.0}))
        remember(path, Entry(**{**_values(entry), "batch": 64, "others": {}, "precision": ""}))
        yield from (t.replace(name, "DIR") for t in printed(lambda: tune_command._show(path)))
        yield from path.read_text().splitlines()
    yield from printed(lambda: list_left_out("k.cu", [], listed=True))
    yield from printed(lambda: list_left_out("k.cu", [], listed=False))
    usage = [Resources("k<float>", Usage(32, 1024, 8, 400), (16, 24), Occupancy(4, 0.5, "shared")),
             Resources("j", Usage(16, 0, 0, 352), (0, 0), None)]  # fmt: skip
    built = SimpleNamespace(left_out=["main, of the host", "iostream"])
    with (
        tempfile.TemporaryDirectory() as name,
        patch.multiple(
            inspection,
            instances=lambda source, names: names,
            list_instances=lambda source: (("j",), ("k is a template",)),
            compile_instances=lambda source, wanted, arch: built,
            read_resources=lambda built, wanted, arch, block: usage,
            ptx=lambda source, wanted, arch: f"ptx of {wanted}",
            sass=lambda source, wanted, arch: "",
        ),
    ):
        file = Path(name, "k.cu")
        file.write_text("__global__ void j(float* x) { x[0] = 1; }")
        for asked in (
            "compile --arch sm_90",
            "compile --arch sm_90 --block 64 --left-out",
            "compile --arch sm_90a -D N=3",
            "show --arch sm_80",
            "show --arch sm_80 --sass",
        ):
            command, *options = asked.split()
            for line in said("kernel", command, str(file), *options):
                yield line.replace(f"{name}/", "")
        model = SimpleNamespace(network="3-2", normalisation=SimpleNamespace(is_double=True))
        lossy = "9 values are lost"
        for double, lost, kind in ((True, "", "float32"), (False, "", "float32"),
                                   (True, lossy, "float32"), (True, "", "float64")):  # fmt: skip
            model.normalisation.is_double = double
            with patch.multiple(
                export_command,
                find_model=lambda checkpoint, say: (None, None),
                Model=SimpleNamespace(of=lambda found: model),
                export_onnx=lambda *arguments: None,
                lost_in_float32=lambda model: lost,
            ):
                yield from (
                    line.replace(f"{name}/", "")
                    for line in said("export", "kept", f"{name}/m.onnx", "--input-type", kind)
                )


@record
def screens_of_many() -> Lines:
    """What `rawnn many` prints at the start of a run, an epoch, and where it was interrupted."""
    gpu = SimpleNamespace(info=SimpleNamespace(name="a GPU"))
    team = SimpleNamespace(world_size=4, place=SimpleNamespace(launcher="torchrun"))
    source = SimpleNamespace(data=random_dataset(3, 2, 2000, 10))
    for sizes, device, gpus, ranks, rungs in (
        ((1,), None, (), None, ()),
        ((1200, 7, 3, 2), gpu, (), team, (1, 3)),
        ((5, 4, 3, 2, 1), gpu, (0, 1), None, (2,)),
        ((1,) * 9, gpu, (), None, ()),
    ):
        groups = [
            Sized(size, Config(layers=(3, 4 + n, 2), batch=8))
            for n, size in enumerate(sizes)
        ]
        session: Any = SimpleNamespace(
            members=Sized(sum(sizes), groups=groups),
            opened=SimpleNamespace(device=device),
            source=SimpleNamespace(data=source.data),
            gpus=gpus,
            team=ranks,
            rules=SimpleNamespace(rungs=rungs, halving=3.0, monitor="test_accuracy"),
        )
        for quiet in (False, True):
            screen = many_command._Screen(quiet, quiet)
            yield from printed(screen._alive)
            yield from printed(lambda: screen.started(session))
            yield from printed(screen._alive)
            for each in (
                ManyReport(1, 1200, 1212, 1199, "test_loss", 0.123456, 1234567.8, 4000.0),
                ManyReport(20, 3, 9, -1, "test_loss", math.nan, 0.4, math.nan),
            ):
                yield from printed(lambda: screen.reported(each))
            yield from printed(lambda: screen.notify("a note"))
    for directory in (None, "/kept", "/kept/a b"):
        found: Any = SimpleNamespace(stored=SimpleNamespace(epoch=4, settings={"save": directory}))
        yield many_command._interruption(found)


class Sized:
    """So many members."""

    def __init__(self, size: int, config: Config | None = None, groups: Any = ()) -> None:
        self.size, self.config, self.groups = size, config, groups

    def __len__(self) -> int:
        return self.size


class Silent:
    """A console that prints nothing."""

    def print(self, *lines: object, **options: object) -> None:
        pass


def _values(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}
