"""Every table of results, rendered from small records made up: Markdown, terminals, the report."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from rawnn.bench.record import Record, Results, read_all, read_results
from rawnn.bench.render import machine
from rawnn.bench.render.charts import Chart
from rawnn.bench.render.html_report import parts_of, write_report
from rawnn.bench.render.ladder_comparison import ladder_comparison
from rawnn.bench.render.suites import SUITES
from rawnn.bench.render.variation import best_of
from rawnn.bench.render.view import default_view
from tests.bench.built import entry, place, programs, reference, results, rung
from tests.bench.test_many_rendering import cell, ensemble
from tests.records import Lines, record, short
from tests.records.commands import said

OLD = Path(__file__).parents[1] / "bench" / "old_results"
TIMES = {
    ("rawnn", "float32"): 10.0,
    ("rawnn", "tf32"): 8.0,
    ("rawnn", "bf16"): 5.0,
    ("torch", "tf32"): 30.0,
    ("torch", "bf16"): 12.0,
    ("jax", "tf32"): 20.0,
    ("jax", "bf16"): 4.0,
    ("torch", "float32"): 44.0,
}


def _trained(case: str, variant: str, ms: float, spread: float = 0.01, **more: Any) -> list[Record]:
    """A training run with all metrics of one, of `more` conditions."""
    shared = {
        "layers": [784, 10],
        "batch": 128,
        "lr": 0.1,
        "epochs": 20,
        "dataset": "mnist",
        "seed": 0,
        **more,
    }
    samples = [ms * (1 + spread * k) for k in (-1, 0, 1, 2, -2, 0, 1, -1)]
    return entry(
        case,
        variant,
        {
            "epoch_ms": samples,
            "step_us": [s * 2 for s in samples],
            "total_ms": [s * 20 for s in samples],
            "accuracy": [0.91, 0.92, 0.9155],
            "test_accuracy": [0.91],
            "loss": [2.0, 1.0, 0.5],
            "lower_bound_us": [ms],
            "launches": [470.0],
            "evaluation_ms": [0.4],
            "setup_s": [1.25],
            "peak_bytes": [3e6],
        },
        **shared,
    )


def suites() -> dict[str, Results]:
    """Results of every kind, by suite."""
    other, older = place(gpu="NVIDIA Other GPU"), place(commit="0123456", date="2025-11-01")
    found = {
        "ladder": results(
            rung("baseline", 20.0, 22.0, 21.0),
            rung("nosync", 18.0, 18.2, 18.1),
            rung("cublas", status="unavailable", reason="no package"),
            rung("fuse", 10.0, 10.5, 10.25, notes=["cudnn left out"]),
            rung("cudnn", 11.5, 11.4, 12),
            rung("best", *(2 + i / 100 for i in range(8))),
            reference(0.91, 0.93, 0.92),
        ),
        "workloads": results(
            *(
                _trained(f"workloads/{name}", variant, ms, layers=layers)
                for name, layers in (("linear", [784, 10]), ("mlp4", [784, 100, 10]))
                for variant, ms in (("seed", 12.0), ("best", 3.0), ("none", 40.0))
            )
        ),
        "toggles": results(
            *(
                _trained("toggles/linear", opt, ms, opt=opt, base="preload,arena")
                for opt, ms in (
                    ("preload,arena", 30.0),
                    ("preload,arena,fuse", 9.0),
                    ("preload,arena,cublas", 33.0),
                    ("preload", 31.0),
                    ("preload,arena,nosync", 20.0),
                    ("preload,arena,nosync,fuse", 8.0),
                    ("preload,arena,nosync,cublas", 25.0),
                    ("preload,nosync", 20.1),
                    ("best", 5.0),
                    ("best,bf16", 4.0),
                )
            ),
            _trained("toggles/mlp4", "best", 50.0, 0.0),
            _trained("toggles/mlp4", "best,tf32", 20.0, 0.0),
            entry("toggles/mlp4", "best,bf16", {"epoch_ms": []}, status="failed", reason="no room"),
            entry("toggles/linear", "preload,pool", {"epoch_ms": []}, status="not measured"),
            entry("toggles/linear", "best,sr", {"epoch_ms": []}, status="unavailable",
                  reason="needs a GPU: none is here", epochs=20, dataset="mnist", seed=0),
        ),
        "ablation": results(
            *(
                entry(
                    "ablation/linear",
                    opt,
                    {"epoch_ms": [ms, ms * 1.1]},
                    epochs=6,
                    base="a",
                    full="best",
                )
                for opt, ms in (
                    ("a", 30.0),
                    ("best", 5.0),
                    ("a,fuse", 9.0),
                    ("a,graphs", 12.0),
                    ("best,-fuse", 20.0),
                    ("best,-graphs", 4.9),
                )
            )
        ),
        "sample": results(
            *(
                programs(
                    f"sample/{n}",
                    {**TIMES, ("jax", "bf16"): 4.0 * n},
                    seed=n,
                    layers=(16, 64 * n, 8),
                    batch=32 * n,
                    wrong=wrong,
                )
                for n, wrong in (
                    (1, ()),
                    (2, ()),
                    (3, [("torch", "bf16")]),
                    (4, [("rawnn", "tf32")]),
                    (5, ()),
                )
            )
        ),
        "peers": results(
            programs("peers/mlp4", TIMES),
            programs("peers/wide", {k: v * 7 for k, v in TIMES.items()}),
        ),
        "sweep": results(
            *(
                programs(
                    f"sweep/{axis} {n}",
                    {k: v * n / 64 for k, v in TIMES.items()},
                    layers=(16, n if axis == "width" else 64, 8),
                    batch=n if axis == "batch" else 32,
                )
                for axis in ("width", "batch")
                for n in (64, 128, 1024)
            )
        ),
        "curves": results(
            *(
                entry(
                    f"curves/{name}",
                    f"{system} {form}",
                    {
                        "loss": [2.0, 1.0, loss],
                        "step_us": [us, us + 1],
                        "accuracy": [0.5, 0.8, 0.9],
                    },
                    system=system,
                    form=form,
                    layers=layers,
                    batch=32,
                    precision=precision,
                )
                for name, layers in (("linear", [784, 10]), ("wide128", [784, 128, 10]))
                for system, form, precision, us, loss in (
                    ("rawnn", "best", "float32", 5.0, 0.5),
                    ("torch", "graph", "tf32", 9.0, 0.6),
                    ("rawnn", "best", "bf16", 3.0, 0.55),
                )
            )
        ),
        "scaling": results(
            *(
                entry(
                    f"scaling/{name}",
                    system,
                    {"step_us": [us * k, us * 1.02 * k], "loss": [1.0, loss]},
                    ranks=n,
                    scaling=kind,
                    batch=64 * (n if kind == "weak" else 1),
                    opt="best",
                    epochs=10,
                )
                for name, k in (("mlp4", 1), ("wide", 7))
                for kind in ("strong", "weak")
                for system, loss in (("rawnn", 0.5), ("torch", 0.51))
                for n, us in ((1, 100.0), (2, 60.0), (4, 45.0))
            ),
            entry(
                "scaling/mlp4",
                "rawnn",
                {"step_us": []},
                ranks=8,
                scaling="strong",
                batch=64,
                opt="best",
                epochs=10,
                status="failed",
                reason="no such GPU",
            ),
        ),
        "many": results(
            ensemble("A/16", 16),
            ensemble("A/1056", 1056),
            ensemble("sampled/3", 100),
            ensemble(
                "sampled/4",
                400,
                {("rawnn", "tf32"): 100.0, ("jax", "tf32"): 50.0, ("torch", "tf32"): 90.0},
            ),
        ),
        "grid": results(
            *(
                cell(width, depth, batch, rule, us)
                for width, depth, batch, rule, us in (
                    (64, 1, 32, "sgd", 1.0),
                    (64, 3, 32, "adam", 4.0),
                    (8192, 6, 1, "sgd", 0.5),
                    (512, 2, 1024, "sgd", 2.5),
                    (512, 2, 32, "adam", 1.7),
                )
            )
        ),
        "launches": results(
            *(
                entry(
                    "launches",
                    name,
                    {"launch_us": us},
                    precision="",
                    launches=64,
                    notes=[how],
                    status="measured" if us else "unavailable",
                    reason="" if us else "not installed",
                )
                for name, us, how in (
                    (machine.PACKED, [2.0, 2.5, 2.25], "cuLaunchKernel(...)"),
                    ("rawnn", [4.0, 3.5, 3.75], ""),
                    ("faster", [1.0], "x"),
                    ("none", [], ""),
                )
            )
        ),
        "lower-bounds": results(
            *(
                [
                    msgspec.structs.replace(r, unit=unit)
                    for r in entry(
                        "lower-bounds",
                        name,
                        {metric: values},
                        precision="",
                        notes=[f"a {name}", "how"],
                        status="measured" if values else "unavailable",
                        reason="" if values else "no GPU",
                    )
                ]
                for name, metric, unit, values in (
                    ("launch", "latency_us", "us", [3.25, 1.5, 2.0]),
                    ("read", "bandwidth_gbs", "GB/s", [4012.0, 3990.0]),
                    ("write", "bandwidth_gbs", "GB/s", []),
                    ("fma", "throughput_tflops", "TFLOP/s", [60.4]),
                    ("mma bf16", "throughput_tflops", "TFLOP/s", [812.0, 790.0, 801.0]),
                )
            ),
            entry("lower-bounds", "gpu", {"multiprocessors": [132.0]}, precision=""),
        ),
        "phases": results(
            *(
                entry(
                    "phases",
                    name,
                    {
                        "cycles": [cycles],
                        "expected_cycles": [expected],
                        "slowest_cycles": [cycles + 5],
                        "warp_cycles": [cycles - 5],
                    },
                    precision="",
                )
                for name, expected, cycles in (
                    ("forward 1", 4000, 4100),
                    ("forward 1/load", 0, 1000),
                    ("forward 1/work", 0, 3000),
                    ("loss", 500, 600),
                    ("loss/work", 0, 600),
                )
            ),
            entry(
                "phases",
                "step",
                {
                    "cycles": [9000.0],
                    "load_cycles": [1111.0],
                    "store_cycles": [2222.0],
                    "step_us": [5.25],
                    "traced_us": [5.5],
                    "expected_us": [5.0],
                    "kernel_us": [70.0],
                    "epoch_us": [80.0],
                    "clock_mhz": [1980.0],
                },
                precision="",
                layers=[20, 64, 3],
                batch=32,
                loss="mse",
                optimizer="adam",
                opt="1x1:128:FFF",
                steps=64,
            ),
        ),
        "check": results(
            *(
                entry(
                    f"check/{n}",
                    "none,bf16",
                    {"step_us": us, "tolerance_used": [0.1 * n] if us else []},
                    status=status,
                    reason=reason,
                    notes=["3-2, batch 5"],
                )
                for n, (status, reason, us) in enumerate(
                    (
                        ("measured", "", [12.0, 14.0]),
                        ("wrong", "off by 3", [3.0]),
                        ("failed", "no memory", []),
                        ("measured", "", [2.0]),
                    )
                )
            )
        ),
        "compare": results(
            *(
                _trained("compare/network", opt, ms)
                for opt, ms in (("none", 30.0), ("best", 5.0), ("seed", 5.05))
            )
        ),
    }
    found["two machines"] = results(
        rung("baseline", 9.0, where=other),
        rung("fuse", 4.0, where=other),
        rung("baseline", 8.0, where=older),
        places=[other, older],
    )
    return found


MORE = {
    "graph_nodes": [12.0],
    "step_bytes": [2.5e9, 2.4e9, 2.6e9],
    "peak_memory_bytes": [7e8],
    "call_s": [3.5, 3.0],
    "lower_bound_arithmetic_us": [1.5],
    "lower_bound_exchanges": [4.0],
    "energy_j": [12.5, 13.5],
    "sm_mhz": [1200.0, 1500.0, 1980.0],
    "launches": [0.0],
}
"""What few entries have: clocks that fell, no launch (on the host), and the like."""


def uneven(found: Results, turn: int) -> Results:
    """The results as an interrupted run may leave them: of each six entries one has failed, one is
    wrong, of one there is one metric alone, one has a single sample of each, one has more
    metrics, and one is whole. Curves are longer, and compared with a run in float64."""
    statuses: tuple[Any, ...] = ("failed", "unavailable", "not measured")
    changed: list[Record] = []
    for number, each in enumerate(found.entries()):
        first, *others = each.records
        kind = (number + turn) % 6
        replace = msgspec.structs.replace
        if kind == 0:
            status = statuses[(number // 6 + turn) % 3]
            changed.append(replace(first, samples=[], status=status, reason=f"reason {number}"))
        elif kind == 1:
            wrong = replace(first, status="wrong", reason="off by 2", notes=["a note"])
            changed += [wrong, *others]
        elif kind == 2:
            changed.append(first)
        elif kind == 3:
            changed += [replace(r, samples=r.samples[:1]) for r in each.records]
        elif kind == 4:
            changed += [r for r in each.records if r.metric not in MORE]
            changed += [
                replace(first, metric=metric, samples=samples, status="measured", reason="")
                for metric, samples in MORE.items()
            ]
        else:
            changed += each.records
    if "curves" in found.suites:
        losses = [2.0 / (1 + step / 40) for step in range(250)]
        changed = [
            replace(r, samples=[x * (1 + 0.01 * n) for n, x in enumerate(losses, len(r.variant))])
            if r.metric == "loss" and r.samples
            else r
            for r in changed
        ]
        truth = next(r for r in changed if r.metric == "loss")
        changed.append(replace(truth, precision="float64", samples=losses))
    return msgspec.structs.replace(found, records=changed)


MANY: dict[str, Any] = {
    "members": 12,
    "facts": {"dataset": "flowers"},
    "settings": {"monitor": "test_loss", "varied": ["lr", "layers", "seed"]},
    "table": {
        "member": list(range(12)),
        "lr": [1e-3, 1e-2, 0.1] * 4,
        "layers": (["3-8-2"] * 3 + ["3-16-2"] * 3) * 2,
        "seed": [0] * 6 + [1] * 6,
        "status": ["finished"] * 11 + ["diverged"],
        "best_epoch": [3] * 12,
        "train_loss": [0.5 + n / 50 for n in range(12)],
        "test_loss": [0.25 * (1 + n * 7 % 12) for n in range(11)] + [None],
        "test_accuracy": [0.5 + (n * 5 % 12) / 30 for n in range(12)],
    },
}


def on_simulated_gpu(found: Results) -> Results:
    places = {
        key: msgspec.structs.replace(
            environment, device="sim", commit="1234567", clocks={"sm": "1,500 MHz"}
        )
        for key, environment in found.environments.items()
    }
    return msgspec.structs.replace(found, environments=places)


@record
def tables() -> Lines:
    for name, found in suites().items():
        for suite in SUITES if name == "two machines" else (name,):
            view = SUITES[suite]
            grids = view.grids(found)
            if grids:
                yield ""
                yield f"# {name} as {suite}: {view.title}. {view.text}"
            for grid in grids:
                yield from grid.markdown().splitlines()
                if grid.dispensable:
                    yield f"dispensable: {', '.join(grid.dispensable)}"
    for name, found in suites().items():
        simulated = on_simulated_gpu(found)
        for grid in SUITES[name].grids(simulated) if name in SUITES else ():
            yield f"# {name}, simulated: {'; '.join(grid.notes[:3])}; {grid.source}"
    for grid in default_view("own-suite").grids(
        results(_trained("own-suite/a", "x", 3.0), _trained("own-suite/b", "y", 4.0))
    ):
        yield from grid.markdown().splitlines()
    ours, theirs = suites()["ladder"], suites()["two machines"]
    yield from ladder_comparison(ours, theirs).markdown().splitlines()
    for numbers in (MANY, {**MANY, "settings": {**MANY["settings"], "monitor": "test_accuracy"}}):
        yield from best_of(numbers, 3).markdown().splitlines()
    for path in sorted(OLD.glob("*.json")):
        found = read_all(path)[0][1]
        for suite in dict.fromkeys(r.case.partition("/")[0] for r in found.records):
            for grid in SUITES[suite].grids(found):
                yield f"# {path.stem}, {suite}"
                yield from grid.markdown().splitlines()


@record
def uneven_tables() -> Lines:
    for turn in range(3):
        for name, found in suites().items():
            for grid in SUITES[name].grids(uneven(found, turn)) if name in SUITES else ():
                yield f"# {name}, turn {turn}"
                yield from grid.markdown().splitlines()


@record
def results_on_terminals() -> Lines:
    """`bench show`, `compare` and `merge`, 100 columns wide."""
    with tempfile.TemporaryDirectory() as name:
        for suite, found in suites().items():
            found.write(Path(name, f"{suite}.json"))
        slower = results(
            rung("baseline", 20.0, 20.1, 20.2),
            rung("fuse", 20.0, 20.5, 20.2),
            rung("best", *(2.5 + i / 100 for i in range(8))),
            rung("new", 3.0),
            rung("cudnn", status="failed", reason="no memory"),
        )
        slower.write(Path(name, "slower.json"))
        for arguments in (
            ("show", "ladder.json"),
            ("show", "two machines.json"),
            ("compare", "--device", "host", "ladder.json", "slower.json"),
            ("compare", "ladder.json", "ladder.json"),
            ("compare", "--device", "host", "ladder.json", "slower.json", "--effect", "0.3"),
            ("compare", "ladder.json", "sample.json"),
            ("merge", "ladder.json", "slower.json", "--json", "m.json"),
            ("merge", "ladder.json", "sample.json", "--json", "m.json"),
        ):
            for line in said(
                "bench", *(str(Path(name, a)) if a.endswith(".json") else a for a in arguments)
            ):
                yield re.sub(r"this is .* at commit \w+", "this is HERE", line).replace(
                    f"{name}/", ""
                )


@record
def html_report() -> Lines:
    """The page of `bench report`, without its style; a chart is one word."""
    picture = patch.object(Chart, "svg", lambda chart, is_inline=False: f"[chart {chart.title}]")
    with tempfile.TemporaryDirectory() as name, picture:
        for suite, found in suites().items():
            found.write(Path(name, f"{suite}.json"))
        older = place(date="2025-12-01T00:00:00+00:00", commit="")
        results(rung("baseline", 30.0, where=older), rung("best", 3.0, where=older),
                places=[older]).write(Path(name, "older.json"))
        for file, varied, where in (("map", ["lr", "layers"], place()),
                                    ("seeds", ["seed"], place(gpu="Third GPU", commit=""))):
            Path(name, f"{file}.json").write_bytes(msgspec.json.encode({
                "schema_version": 1, **MANY, "environment": where,
                "settings": {"monitor": "test_loss", "varied": varied}}))
        cut = on_simulated_gpu(suites()["toggles"])
        cut = msgspec.structs.replace(cut, ended={"toggles": "Ctrl-C"})
        for part in parts_of([("cut", cut), ("check", suites()["check"])]):
            yield from (f"simulated: {text}" for text in part.warnings)
        for part in parts_of(read_all(Path(name))):
            yield f"{part.machine}: cards " + "; ".join(short(vars(c)) for c in part.cards)
            yield from (f"warning: {text}" for text in part.warnings)
            for grid in filter(None, (part.wins, part.losses, part.environments)):
                yield from grid.markdown().splitlines()
            for block in part.blocks:
                yield f"{block.anchor}: {block.title}; {block.fact}; {block.badge}"
                yield f"{block.is_older} {len(block.grids)} grids; {'; '.join(block.figures)}"
        out = Path(name, "report.html")
        yield f"blocks: {write_report([name], out, 'A title')}"
        page = out.read_text(encoding="utf-8")
        page = re.sub(r"(</(?:td|th|tr|p|h\d|li|div|summary|section|style)>)", r"\1\n", page)
        yield from (
            line.strip()
            for line in page.splitlines()
            if line.strip() not in ("", "</tr>") and "<td" not in line and "{" not in line
        )


@record
def old_results() -> Lines:
    """All that files of older formats hold, as they are read today."""
    for path in sorted((Path(__file__).parents[1] / "bench" / "old_results").glob("*.json")):
        found = read_results(path)
        yield f"# {path.stem}: {short(found.ended)}"
        for key, environment in found.environments.items():
            yield f"{key}: {short(msgspec.to_builtins(environment))}"
        for each in found.records:
            yield (
                f"{each.case}, {each.variant}, {each.precision}: {each.metric} ({each.unit}) "
                f"{short(each.samples)} {each.status} {each.reason} {short(each.conditions)} "
                f"{short(each.notes)}"
            )
