"""What the commands ask of the library: the calls of each, of what stands in its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import click
import numpy as np

from rawnn.bench.case import Case
from rawnn.bench.render import variation
from rawnn.cli import bench as bench_command
from rawnn.cli import compare as compare_command
from rawnn.cli import eval as eval_command
from rawnn.cli import examples as examples_command
from rawnn.cli import export as export_command
from rawnn.cli import kernel as kernel_command
from rawnn.cli import launch as launch_command
from rawnn.cli import many as many_command
from rawnn.cli import predict as predict_command
from rawnn.cli import profile as profile_command
from rawnn.cli import train as train_command
from rawnn.cli import trials as trials_command
from rawnn.cli import tune as tune_command
from rawnn.common.csvformat import CsvFormat
from rawnn.common.errors import ConfigError, DataError, RawnnError
from rawnn.engine.config import Config
from rawnn.lab import checking, inspection, kernel_files, kernel_source, sweeping, timing
from rawnn.model.layers import Network
from tests.records import Lines, record
from tests.records.commands import folder, said


class Calls:
    """The calls of functions and objects that stand in the place of others, a line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def of(self, name: str, result: Any = None) -> Callable[..., Any]:
        """A function that returns `result`, raises it, or calls it."""

        def called(*positional: Any, **named: Any) -> Any:
            texts = [*map(shown, positional), *(f"{k}={shown(v)}" for k, v in named.items())]
            self.lines.append(f"  {name}({', '.join(texts)})")
            if isinstance(result, BaseException):
                raise result
            return result(*positional, **named) if callable(result) else result

        return called

    def said(self, *arguments: str) -> Lines:
        """The calls that a command makes, between what it says."""
        self.lines.clear()
        first, *lines = said(*arguments)
        yield from (first, *self.lines, *lines)


class Named:
    """What a function is given, by a name, with attributes; false where `right` is."""

    def __init__(self, name: str, /, right: bool = True, **attributes: Any) -> None:
        self._name, self._right = name, right
        vars(self).update(attributes)

    def __str__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return self._right

    def __enter__(self) -> Named:
        return self

    def __exit__(self, *exception: object) -> None: ...


def shown(value: Any) -> str:
    """An argument: of a Config what differs from the defaults, of an object its type alone."""
    if isinstance(value, Config):
        plain = Config()
        values = {f.name: getattr(value, f.name) for f in fields(value)}
        return f"Config({shown({k: v for k, v in values.items() if v != getattr(plain, k)})})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if value is None or isinstance(value, str | int | float | bytes | Path | Named | Network):
        return str(value)
    if isinstance(value, Case):
        return value.name
    if isinstance(value, CsvFormat):
        return repr(value)
    return "<...>" if callable(value) else f"<{type(value).__name__}>"


@contextmanager
def replaced(*of: tuple[Any, dict[str, Any]]) -> Iterator[None]:
    """Attributes of modules, patched."""
    with ExitStack() as stack:
        for module, attributes in of:
            stack.enter_context(patch.multiple(module, **attributes))
        yield


HEADER = '/* rawnn\nsweep = {TILE = [32, 64]}\nrestrict = "TILE < 64"\n*/\n'
WORK = (
    "k.cu", "k<int>", "--reference", "a + b", "--grid", "cdiv(n, 2),1", "--block", "64", "--size",
    "n=1,2", "--size", "m=1..9", "--shape", "x=n,f(m, 2)", "--value", "a=2.5", "--length", "m",
    "--arch", "sm_80", "-D", "A", "-D", "B=3", "-I", "inc", "--option=-x", "--seed", "3", "--limit",
    "5", "--device", "gpu:2",
)  # fmt: skip


def _kernels(calls: Calls) -> Lines:
    kernel = Named("kernel", left_out=["main"], source=SimpleNamespace(text=HEADER))
    variant = Named("a variant", cold=1.5)
    best = SimpleNamespace(parameters={"TILE": 64, "grid": "n"})
    swept = Named("swept", variants=[variant], best=best)

    def sweep(*given: Any, tell: Any, **more: Any) -> Any:
        tell(variant)
        return swept

    Path("k.cu").write_text("")
    with replaced(
        (kernel_files, {"kernel_of": calls.of("kernel_of", (kernel, Named("work")))}),
        (checking, {"check": calls.of("check", Named("checked"))}),
        (timing, {"time": calls.of("time", Named("timed"))}),
        (sweeping, {"sweep": calls.of("sweep", sweep)}),
        (trials_command, {"_device": lambda wanted: wanted}),
    ):
        yield from calls.said("kernel", "check", *WORK, "--trials", "4", "--special", "--left-out")
        yield from calls.said("kernel", "check", "k.cu", "--limit", "0")
        with patch.object(checking, "check", calls.of("check", Named("wrong", right=False))):
            yield from calls.said("kernel", "check", "k.cu")
        yield from calls.said("kernel", "time", *WORK, "--at", "n=5", "--at", "m=6", "--samples",
                              "7", "--bytes", "4 * n", "--flops", "2 * n", "--left-out")
        yield from calls.said("kernel", "time", "k.cu", "--limit", "0", "--flops", "n")
        yield from calls.said(
            "kernel", "sweep", *WORK, "--over", "T=32,x", "--over", "grid=n,f(n, 2)", "--restrict",
            "T < 3", "--restrict", "T > 1", "--budget", "3", "--resume", "kept", "--at", "n=5",
            "--samples", "6")
        yield from calls.said("kernel", "sweep", "k.cu", "--limit", "0")
        variant.cold = None
        yield from calls.said("kernel", "sweep", "k.cu")
    source = Named("source", text="__global__ void k() {}", check_macros=calls.of("check_macros"))
    built = SimpleNamespace(left_out=["main", "iostream"])
    with replaced(
        (kernel_source.Source, {"of": calls.of("Source.of", source)}),
        (kernel_command, {"_gpu_architecture": lambda: "that of the GPU"}),
        (inspection, {
            "instances": calls.of("instances", "wanted"),
            "list_instances": calls.of("list_instances", ("listed", ("others",))),
            "compile_listed": calls.of("compile_listed", (built, "wanted", ("absent",))),
            "compile_instances": calls.of("compile_instances", built),
            "read_resources": calls.of("read_resources", []),
            "ptx": calls.of("ptx", ""), "sass": calls.of("sass", "code")}),
    ):
        options = ("-D", "A", "-D", "B=3", "-I", "inc", "-I", "more", "--option=-x", "--arch", "a")
        yield from calls.said("kernel", "compile", "k.cu", *options, "--block", "64", "k<int>", "j")
        yield from calls.said("kernel", "compile", "k.cu", "--left-out")
        yield from calls.said("kernel", "show", "k.cu", "k<int>", *options, "--sass")
        yield from calls.said("kernel", "show", "k.cu")


def _profiles(calls: Calls) -> Lines:
    def profiled(config: Config, *others: Any) -> Any:
        return Named(f"profile of {config.opt}", write_json=calls.of(f"{config.opt}: write_json"))

    with replaced((profile_command, {
        "check_output": calls.of("check_output"),
        "open_device": calls.of("open_device", Named("opened")),
        "check_gpu": calls.of("check_gpu"), "fitted": calls.of("fitted", lambda c, say: (c, "its")),
        "profiled": calls.of("profiled", profiled), "write_trace": calls.of("write_trace"),
        "_show": calls.of("_show"), "print_table": calls.of("print_table"),
        "differences": calls.of("differences", "their differences")})):
        yield from calls.said("profile", "--opt", "fuse", "--diff", "none", "--steps", "7", "--by",
                              "events", "--trace", "t", "--json", "j", "--device", "sim", "--data",
                              "t.csv", "--target", "y", "--layers", "3-2")
        yield from calls.said("profile", "--opt", "fuse")


def _tunings(calls: Calls) -> Lines:
    class Search:
        measured = True

        def __init__(self, *given: Any) -> None:
            calls.of("Search")(*given)
            self.found = {"fuse": SimpleNamespace(refusal="it is refused"),
                          "pdl": SimpleNamespace(refusal="and this")}  # fmt: skip

        def run(self) -> None:
            if ended:
                raise KeyboardInterrupt

        def fastest(self) -> list[Any]:
            return ["one"] * self.measured

    device = Named("the device", info=SimpleNamespace(driver="580"), close=calls.of("close"))
    opened = SimpleNamespace(device=device, machine=Named("its machine"))
    with replaced(
        (tune_command.Task, {"of": calls.of("Task.of", Named("a task"))}),
        (tune_command, {
            "open_device": lambda *given: opened, "_data": calls.of("_data", Named("its data")),
            "settled": calls.of("settled", lambda config, data: (config, None)), "Search": Search,
            "_entry": calls.of("_entry", Named("an entry")), "_report": calls.of("_report"),
            "remember": calls.of("remember"), "_show": calls.of("_show"),
            "_show_launches": calls.of("_show_launches"), "user_file": lambda: Path("mine"),
            "PACKAGED": Path("ours")}),
    ):
        for is_measured, ended in ((True, False), (True, True), (False, False), (False, True)):
            Search.measured = is_measured
            yield from calls.said("tune", "--opt", "best, tf32", "--layers", "3-2", "--batch", "5",
                                  "--device", "sim", *("--table", "t") * (not ended))
        yield from calls.said("tune", "--show")
        yield from calls.said("tune", "--show", "--table", "t")
    for outline, is_fit in (("no outline", True), ("outline", False), ("outline", True)):
        for found in (Named("data", reconstructing=lambda: "reconstructing"), DataError("none")):
            for autoencoder in (False, True):
                calls.lines.clear()
                known = None if outline == "no outline" else \
                    Named(outline, reconstructing=lambda: "a reconstructing outline")
                with replaced((tune_command, {
                    "outline_of": lambda config, known=known: known,
                    "named": calls.of("named", found), "fits": calls.of("fits", is_fit),
                    "say": calls.of("say")})):
                    data = tune_command._data(Config(autoencoder=autoencoder, loss="mse"))
                yield f"$ data for tuning: {shown(data)}"
                yield from calls.lines


def _trainings(calls: Calls) -> Lines:
    class Session:
        signal = 15

        def __init__(self, config: Config, screen: Any, **more: Any) -> None:
            assert more.pop("imports_ms") > 0
            calls.of("Session")(config, screen._quiet, screen._mute, screen._writes, **more)
            self.unsaved = ConfigError("it is not stored") if config.save == "full" else None
            self.result = Named("result", interrupted=config.save == "killed",
                                write_json=calls.of("write_json", ConfigError("no JSON")
                                                    if config.epochs == 3 else None))

        def __enter__(self) -> Session:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def run(self) -> Any:
            return self.result

    written = ("--json", "j", "--log-allocations", "a")
    with replaced(
        (train_command, {"Session": Session, "check_output": calls.of("check_output"),
                         "SideOutput": lambda path, notify: Named(f"output {path}"),
                         "_interruption": lambda result: "behind epoch 2"}),
        (train_command._Screen, {"end": calls.of("end")}),
    ):
        for text in ("", "--quiet --new-data", "--log-allocations --save d",
                     "--save killed", "--save killed --quiet", "--save full", "--epochs 3 --json j",
                     "--epochs 3 --json j --save full"):
            yield from calls.said("train", *text.split())
        yield from calls.said("train", *written, "--config", "c.toml", "--data", "t.csv",
                              "--target", "y")
        for rank in (0, 1):
            team = Named(f"rank {rank}", rank=rank)
            with patch.object(train_command, "join", calls.of("join", team)):
                yield from calls.said("train", *written)


def _many(calls: Calls) -> Lines:
    def found(**more: Any) -> Any:
        values = {"interrupted": False, "signal": None, "to_json": calls.of("to_json"),
                  "to_dict": lambda: "as a dictionary"}
        return Named("many", **{**values, **more})

    def end(**more: Any) -> dict[str, Any]:
        many = found(**more)
        return {"start": calls.of("start", many), "continue_from": calls.of("continue_from", many)}

    options = ("--layers", "4-3-2", "--batch", "9", "--lr", "0.25", "--device", "host")
    chart = calls.of("chart_of", SimpleNamespace(write=calls.of("write")))
    with replaced((variation, {"chart_of": chart}), (many_command, {
        **end(), "check_output": calls.of("check_output"), "_summary": calls.of("_summary"),
        "divergence_of": lambda many: "", "_interruption": lambda many: "on",
        "rank_from_environment": lambda *given: None})):
        yield from calls.said(
            "many", *options, "--vary", "momentum=0.5,0.75", "--vary", "seed=3,4", "--folds", "3",
            "--repeats", "2", "--halving", "2", "--min-epochs", "3", "--monitor", "train_loss",
            "--best", "6", "--json", "j", "--plot", "p.svg", "--config", "c.toml", "--data",
            "t.csv")
        yield from calls.said("many", "--vary", "layers=4-3;4-5-3", "--seeds", "2", "--seed", "7")
        yield from calls.said("many", "--seeds", "2", "--plot", "p.svg")
        yield from calls.said("many", "--folds", "3", "--validation", "0.2")
        yield from calls.said("many", "--resume", "r", "--epochs", "9", "--data", "d", "--quiet",
                              "--save-every", "0", "--no-shuffle")
        yield from calls.said("many", "--resume", "r")
        for name, value in (("vary", "lr=1,2"), ("seeds", "1"), ("folds", "2"), ("repeats", "2"),
                            ("halving", "2"), ("min-epochs", "1"), ("monitor", "test_loss")):
            yield from calls.said("many", "--resume", "r", f"--{name}", value)
        with patch.object(many_command, "divergence_of", lambda many: "all of them did"):
            yield from calls.said("many")
        for rank in (0, 1):
            place = SimpleNamespace(rank=rank)
            with replaced((many_command, {"rank_from_environment": lambda *given: place,
                                          **end(interrupted=True, signal=15 * rank)})):
                yield from calls.said("many", "--json", "j", "--plot", "p.svg", "--vary", "lr=1,2")


def _models(calls: Calls) -> Lines:
    """`eval`, `predict` and `export`, and where examples come from."""

    def stored(**more: Any) -> Any:
        values = {"network": Network((4, 3)), "target_normalisation": None, "config": {},
                  "epoch": 8, "label_names": (), "facts": {}, "normalisation": Named("its own")}
        return Named("stored", **{**values, **more})  # fmt: skip

    def examples(answers: Any) -> Any:
        return SimpleNamespace(inputs=np.zeros((3, 4)), answers=answers, source="a source")

    csv = ("--encoding", "utf-8", "--decimal", ",", "--skip", "a")
    same = {"find_model": calls.of("find_model", (Path("best"), stored())),
            "check_output": calls.of("check_output"), "show": calls.of("show", {"loss": 0.5}),
            "device_for": calls.of("device_for", lambda wanted: f"the {wanted}"),
            "given_examples": calls.of("given_examples", examples("answers")),
            "write_atomically": calls.of("write_atomically")}  # fmt: skip
    with replaced((eval_command, {
        **same, "own_examples": calls.of("own_examples", examples("own answers"))})):
        yield from calls.said("eval", "kept")
        yield from calls.said("eval", "kept", "--data", "t.csv", "--target", "y", *csv, "--json",
                              "j", "--device", "auto", "--no-confusion")
        yield from calls.said("eval", "kept", "--dataset", "idx", "--device", "sim")
        for found in (stored(), stored(network=Network((4, 3, 4), loss="mse")),
                      stored(network=Network((4, 3), loss="mse")),
                      stored(network=Network((4, 4))),
                      stored(network=Network((4, 4), loss="mse"),
                             target_normalisation="learned")):  # fmt: skip
            with replaced((eval_command, {"find_model": lambda *given, found=found: ("p", found),
                                          "given_examples": lambda *given: examples(None)})):
                yield from calls.said("eval", "kept", "--data", "t.csv")
    model = Named("model", network=Network((4, 3)), normalisation=SimpleNamespace(is_double=False))
    with replaced(
        (predict_command, {
            **same, "Model": SimpleNamespace(of=lambda found: model),
            "_columns": calls.of("_columns", {}), "_csv": lambda columns, model: "text",
            "_npz": lambda columns, model: b"bytes"}),
        (export_command, {
            "find_model": same["find_model"], "Model": SimpleNamespace(of=lambda found: model),
            "check_output": calls.of("check_output"), "export_onnx": calls.of("export_onnx"),
            "lost_in_float32": calls.of("lost_in_float32", "")}),
    ):
        yield from calls.said("predict", "kept", "--data", "t.csv", "--target", "y", *csv, "--out",
                              "o.CSV", "--device", "auto", "--probabilities", "--dataset", "table")
        yield from calls.said("predict", "kept", "--data", "d", "--dataset", "idx")
        with patch.object(predict_command, "given_examples", lambda *given: examples(None)):
            yield from calls.said("predict", "kept", "--data", "t.csv", "--out", "o.npz")
        yield from calls.said("export", "kept", "m.ONNX")
        yield from calls.said("export", "kept", "m.onnx", "--input-type", "float64")

    class Resumption:
        def __init__(self, path: Path, found: Any) -> None:
            calls.of("Resumption")(path, found)
            self.relabelled = calls.of("relabelled", lambda data: data)
            self.check_split = calls.of("check_split")
            self.seed = calls.of("seed", lambda seed: seed + 100)

    def outcome(call: Callable[[], Any]) -> Lines:
        calls.lines.clear()
        try:
            made = call()
        except RawnnError as error:
            calls.lines.append(f"  {error}")
        else:
            calls.lines.append(f"  {made.inputs}, answers {made.answers}, {made.source}")
        yield from calls.lines

    data = Named("data", name="table", test_images="inputs", test_labels=np.array([1, 0]),
                 source="there", label_names=("no", "yes"))
    ended = {"result": RawnnError("as far as this")}
    trained = {"dataset": "table", "data": "t.csv", "target": "y", "validation": 0.25, "seed": 7,
               "encoding": "utf-8", "skip": "a", "lr": 0.5}  # fmt: skip
    with replaced((examples_command, {
        "load_dataset": calls.of("load_dataset", **ended),
        "read_table": calls.of("read_table", **ended),
        "check_data_found": calls.of("check_data_found"), "Resumption": Resumption})):
        for config in (trained, {"dataset": "mnist", "data": None}, {"data": "t.csv"}):
            for loss in ("cross_entropy", "mse"):
                found = stored(config=config, network=Network((4, 3), loss=loss),
                               target_normalisation=Named("of targets"))
                yield f"$ own examples, {loss}, of {shown(config)}"
                yield from outcome(partial(examples_command.own_examples, found, "kept"))
        asked = {"encoding": None, "decimal": ",", "skip": None}
        of_columns = {"facts": {"features": (1, "b"), "targets": ("y", "z")}}
        for found in (stored(config=trained), stored(config=trained, **of_columns)):
            for path, target in ((None, None), ("d", "t"), ("x.npz", "t"), ("x.csv", None),
                                 ("x.csv", "t")):
                yield f"$ examples of {path}, target {target}, {shown(found.facts)}"
                yield from outcome(partial(
                    examples_command.given_examples, found, None, path, target, asked))
    scaled = SimpleNamespace(undo=lambda targets: f"{targets} undone")
    with replaced((examples_command, {"load_dataset": lambda *given, **more: data,
                                      "Resumption": Resumption})):
        for loss, targets, by, more in (
            ("cross_entropy", None, None, {}), ("cross_entropy", None, None, {"label_names": "ab"}),
            ("mse", "targets", None, {}), ("mse", "targets", scaled, {}),
            ("mse", "targets", None, {"config": {"dataset": "mnist", "autoencoder": True}}),
        ):  # fmt: skip
            data.test_targets, data.target_normalisation = targets, by
            values = {"config": {"dataset": "mnist"}, **more}
            found = stored(network=Network((4, 3), loss=loss), **values)
            yield f"$ {loss}, {shown(more)}"
            yield from outcome(partial(examples_command.own_examples, found, "kept"))
            yield from outcome(
                partial(examples_command.given_examples, found, "idx", None, None, {}))


def _benchmarks(calls: Calls) -> Lines:
    class Harness(Named):
        def __init__(self, suite: str, *given: Any, notify: Any = None, progress: Any = None,
                     **more: Any) -> None:
            super().__init__(f"harness {suite}", interrupted=ended, results=Named(
                "results", where=lambda name: [SimpleNamespace(samples=(1.0,) * sampled)]))
            calls.of("Harness")(suite, *given, **more)
            if progress is not None:
                progress(1, 2, 3, "case last")
            self.end, self.check = calls.of("end"), calls.of("check", failed)
            self.open = calls.of("open", Named("opened"))

    ended, sampled, failed = False, True, None
    with replaced((compare_command, {
        "Harness": Harness, "fitted": calls.of("fitted", lambda c, say: (c, "its data")),
        "compare_configurations": calls.of("compare_configurations"), "show": calls.of("show")})):
        arguments = ("compare", "--opt", "none", "--opt", "fuse", "--device", "sim", "--batch", "3")
        yield from calls.said(*arguments, "--rounds", "4", "--json", "j")
        ended = True
        yield from calls.said(*arguments)

    def case(**more: Any) -> Case:
        def measure(harness: Any, suites: Any, **options: Any) -> None:
            calls.of("measure")(harness, suites, **options)
            if stopped:
                raise KeyboardInterrupt

        values = {"name": "ladder", "measure": measure, "options": (), "has_bar": False}
        return Case(**{**values, **more})

    def outcome(name: str, **more: Any) -> Lines:
        calls.lines.clear()
        try:
            bench_command.run_case(case(**more), dict(options), *files, check)
        except (RawnnError, click.Abort) as error:
            calls.lines.append(f"  {type(error).__name__}: {error}")
        yield f"$ {name}"
        yield from calls.lines

    options: dict[str, Any] = {"seed": 1, "budget": 9.0}
    stopped, check, ended, files = False, False, False, (None,) * 5
    with replaced((bench_command, {
        "Harness": Harness, "check_output": calls.of("check_output"),
        "require_matplotlib": calls.of("require_matplotlib"),
        "read_suites": calls.of("read_suites", Named("suites")),
        "read_results": calls.of("read_results", Named("earlier")),
        "resumed": lambda path: path is not None, "tables": SimpleNamespace(show=calls.of("show")),
        "write_atomically": calls.of("write_atomically"), "markdown": calls.of("markdown", "text"),
        "plot_ladder": calls.of("plot_ladder"), "say": calls.of("say")})):
        yield from outcome("a case, no files")
        files = ("b.toml", "j", "m", "r", "p")
        yield from outcome("with a bar, all files", has_bar=True)
        files, options = (None, None, None, "r", None), {"budget": None}
        yield from outcome("resumed", failures=lambda results: "", doubts=lambda results: "a doubt")
        check = True
        yield from outcome("checked", doubts=lambda results: "a doubt")
        yield from outcome("failed", failures=lambda results: "a failure")
        stopped = True
        for sampled in (True, False):
            yield from outcome(f"stopped, {'some' if sampled else 'no'} samples")
        stopped, failed = False, KeyboardInterrupt()
        yield from outcome("stopped while it measured")
    with patch.object(bench_command, "run_case", calls.of("run_case")):
        for text in ("ladder --bench b --json j --markdown m --plot p --resume r --epochs 3",
                     "--json j", "lower-bounds --json j --check", "random --peers --seed 4"):
            yield from calls.said("bench", *text.split())
    yield from _of_files(calls)


def _of_files(calls: Calls) -> Lines:
    suites = SimpleNamespace(all=SimpleNamespace(
        suites=["ladder", "check", "sample"], shares={"ladder": 1.0, "check": 3.0}, budget=100.0))

    def run(case: Any, options: Any, *given: Any) -> None:
        if case.name == "check":
            raise RawnnError("it fails")

    for budget in ((), ("--budget", "40")):
        for times in ((0.0, 10.0, 30.0, 60.0), (0.0, 2.0, 90.0, 100.0)):
            for whole in ((), ("ladder",)):
                clock = iter(times)
                with replaced((bench_command, {
                    "read_suites": calls.of("read_suites", suites), "monotonic": lambda c=clock:
                    next(c), "_is_whole": lambda file, name, whole=whole: name in whole,
                    "_measure": calls.of("_measure", lambda case, *given: run(case, given))})):
                    yield from calls.said("bench", "all", "--out", "o", "--bench", "b", "--device",
                                          "sim", "--dataset", "synthetic", *budget)
    def run_case(case: Any, options: Any, bench_file: str, json_file: str, markdown_file: str,
                 resume: str | None, plot_file: str = "", check: bool = False) -> None:
        calls.of("run_case")(case, options, bench_file, json_file, markdown_file, resume)

    with replaced((bench_command, {"run_case": run_case})):
        Path("there.json").touch()
        for name in ("ladder", "check", "lower-bounds"):
            for file in ("there.json", "new.json"):
                calls.lines.clear()
                case = bench_command.CASES[name]
                bench_command._measure(case, Path(file), 8.0, "b", "sim", "synthetic")
                yield f"$ {name}, resumes {case.resumes}, into {file}"
                yield from calls.lines
    plain = {"commit": "c1", "machine": "a GPU", "gpu": {"driver": "580"},
             "libraries": {"x": "1", "y": "2", "z": "3"}}  # fmt: skip
    for more in ({}, {"commit": None}, {"machine": "another"}, {"gpu": None}, {"libraries": {}},
                 {"libraries": {"y": "2", "z": "4", "w": "5"}},
                 {"libraries": {"z": "4", "x": "0"}}):
        one, other = (SimpleNamespace(environments={"ladder": SimpleNamespace(**values)})
                      for values in (plain, {**plain, **more}))  # fmt: skip
        yield f"$ unlike {shown(more)}: {bench_command._unlike(cast(Any, one), cast(Any, other))}"
    shown_files = {name: Named(name, suites=["ladder", "check"], write=calls.of(f"{name}.write"),
                               merge=calls.of(f"{name}.merge"), environments={})
                   for name in ("a", "b", "c")}  # fmt: skip
    with replaced((bench_command, {
        "check_output": calls.of("check_output"), "read_results": shown_files.__getitem__,
        "write_report": calls.of("write_report", ["ladder", "check"]),
        "_show_all": calls.of("_show_all"), "plot_ladder": calls.of("plot_ladder")})):
        for text in ("report", "report x y --out o.html --title T", "show a", "show b --plot p "
                     "--markdown m", "merge a b c --json j --markdown m"):
            if text.startswith("merge"):
                fail = {name: replace_case(case) for name, case in bench_command.CASES.items()}
                with patch.object(bench_command, "CASES", fail):
                    yield from calls.said("bench", *text.split())
            else:
                yield from calls.said("bench", *text.split())
    same = Named("one", is_ours=True, verdict="same", name="one")
    ours, peers = ([Named(f"{word} {who}", is_ours=who == "of ours", verdict=word,
                          name=f"{word} {who}") for word in ("slower", "flagged", "lost", "faster")]
                   for who in ("of ours", "of a peer"))  # fmt: skip
    for pairs in ([same, *peers], [same, *ours[:3], peers[0]], [*ours, *ours]):
        with replaced(
            (bench_command, {
                "check_output": calls.of("check_output"),
                "read_directory": calls.of("read_directory", lambda name: Named(f"read {name}")),
                "pairs_of": calls.of("pairs_of", pairs), "notes_of": calls.of("notes_of", ["n"]),
                "Harness": lambda *given, **more: Named("harness"),
                "measure_again": calls.of("measure_again", pairs),
                "write_atomically": calls.of("write_atomically"),
                "_plain": lambda pair: {"name": pair.name, "again": None, "reason": "", "ratio": 0},
                "_show": calls.of("_show")}),
        ):
            yield from calls.said("bench", "compare", "a", "b")
            yield from calls.said("bench", "compare", "a", "b", "--effect", "0.25", "--all",
                                  "--no-again", "--device", "sim", "--json", "j")


def replace_case(case: Case) -> Case:
    """The case, whose results fail."""
    return Case(case.name, case.measure, case.options, lambda results: f"{case.name} fails")


@record
def asked() -> Lines:
    calls = Calls()
    with folder():
        Path("c.toml").write_text("lr = 0.125\nepochs = 4\n")
        for of in (_kernels, _profiles, _tunings, _trainings, _many, _models, _benchmarks):
            yield ""
            yield f"# {of.__name__.strip('_')}"
            yield from of(calls)
        for status in (0, 3):
            with patch.object(launch_command, "run", calls.of("run", status)):
                for line in calls.said("launch", "-n", "2", "train", "--epochs", "3", "-n"):
                    yield line.replace(sys.executable, "PYTHON")
        yield from calls.said("launch", "-n", "2", "launch")
