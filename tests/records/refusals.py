"""Every sentence of refusals that a table of bad configurations reaches."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import rawnn
from rawnn.cli.plan import assumed
from rawnn.common.errors import check_whole, unknown
from rawnn.common.suggestions import nearest
from rawnn.common.target import NAMED, Machine, gpu_named, known
from rawnn.engine.config import Config, parse_layers, read_toml
from rawnn.many import search, training, variation
from rawnn.many.folds import folds_of
from rawnn.many.halving import rungs_of
from rawnn.many.spaces import checked, grid_of, int_uniform, log_uniform, sampled, uniform
from rawnn.many.variation import Variation, product_of, variation_of
from rawnn.model.layers import Network
from rawnn.model.schedules import parse
from rawnn.opts import TOGGLES, select
from rawnn.plan.build import training_step
from rawnn.plan.recipe import DataSpec, Recipe
from tests.engine import random_dataset, spelled
from tests.lab.test_mistakes import MISTAKES, Lab
from tests.records import Lines, outcome, record
from tests.test_wrong_types import CALLS

WRONG: tuple[Any, ...] = (-1, 0, 1, 2.5, math.nan, 1 << 70, "", "banana", True, None, [1, "a"])
TEXTS: Mapping[str, tuple[Any, ...]] = {
    "layers": ("784", "8-x", "8-0-3", [8, 8.5], [[3]], "3-" * 9 + "3"),
    "schedule": (
        "step",
        "step:0:1",
        "step:2",
        "step:2:x",
        "cosine:-1",
        "cosine:2",
        "warmup:5",
        "warmup:x,cosine",
        "warmup:-1,constant",
        "cosine,cosine",
        "linear",
    ),
    "normalise": ("pixel", {"scale": 0}, {"scale": "x"}, {"means": 1}, {"std": -1}, "learnt"),
    "opt": (
        "graphs=0",
        "best,best",
        "none,-fuse",
        "best,-fuse,fuse",
        "fuse,fuse",
        "persistent=3",
        "bias_relu=",
        "best=1",
        "nccl=a",
        "batch=0",
        "report=x",
        "fuse=-heads",
        "mma=fast",
    ),
    "sharding": ("4x8", "1x1:128:FF", "4x8@l3:256:FS", "1x1:128:FFFF:0"),
    "device": ("gpu:", "gpu:x", "gpu:-1", "gpu:1,1", "sim:0,1", "cuda", "gpu:all", "host:1"),
    "target": (["a", "b"], [1], ""),
    "skip": (["a"], [3]),
    "encoding": ("klingon", "base64"),
    "decimal": (";", ","),
    "validation": (1.0, 0.999),
    "lr": (math.inf, "0.1"),
    "seed": (2**63, 2**63 - 1),
    "momentum": (1.0, 0.999),
    "eps": (1e-300,),
}
TOGETHER: tuple[dict[str, Any], ...] = (
    {"save_every": 2},
    {"keep": 3},
    {"min_delta": 0.1},
    {"monitor": "train_loss"},
    {"normalise_targets": "learned"},
    {"normalise_targets": "learned", "loss": "bce"},
    {"normalise_targets": "learned", "loss": "mse", "autoencoder": True},
    {"optimizer": "adam", "momentum": 0.9},
    {"optimizer": "sgd", "beta1": 0.9},
    {"optimizer": "sgd", "eps": 0.1},
    {"nesterov": True},
    {"nesterov": True, "momentum": 0.0},
    {"optimizer": "adam", "nesterov": True},
    {"sharding": "1x1:128:FF", "opt": "persistent"},
    {"loss": "bce", "layers": (3, 2), "autoencoder": True},
    {"activation": "sigmoid"},
    {"loss": "cross_entropy", "layers": (3, 1)},
    {"hidden": 3},
    {"learning_rate": 1},
    {"dropout": 0.1},
    {"epoch": 1},
    {"n_jobs": 1},
    {"max_iter": 3},
    {"weight_decay": -1},
)


@record
def bad_options() -> Lines:
    """Each option of a Config with values that it may not have."""
    for name in Config.known():
        values = (*WRONG, *TEXTS.get(name, ()))
        found = {repr(value): outcome(lambda: Config(**{name: value})) for value in values}
        refused: dict[str, list[str]] = {}
        for value, text in found.items():
            sentence = text.replace(value, "VALUE") if "Error" in text else "taken"
            refused.setdefault(sentence, []).append(value)
        yield from (f"{name} {', '.join(each)}: {text}" for text, each in refused.items())
    for options in TOGETHER:
        found = outcome(lambda: Config(**options))
        yield f"{options}: {found if 'Error' in found else 'taken'}"
    for text in (
        "epochs = ",
        "a = 1",
        "opt = [1]",
        "[train]\nepochs = 1",
        "lr = 2020-01-01",
        "epoch = 3",
        "layers = [3]",
        "epochs = 'x'",
        "save = 3",
        "seed = -1",
    ):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "run.toml")
            file.write_text(text)
            found = outcome(lambda: Config.from_mapping(read_toml(str(file)), "run.toml"))
            yield f"{text!r}: {_line(found, folder)}"
    for text in ("", "3", "a", "3-", "-3-4", "3-4", "3--4", "784-128-10", "3x4"):
        yield f"layers {text!r}: {outcome(lambda: parse_layers(text))}"
    for text in (
        "constant",
        "cosine",
        "cosine:0.01",
        "step:3:0.5",
        "warmup:2,cosine:0.1",
        "warmup:3,step:2:0.5",
    ):
        rates = parse(text).resolve(0.5, 4, 6)
        yield f"schedule {text}: " + outcome(
            lambda: [float(rates.rate(s)) for s in range(0, 24, 3)]
        )


def _line(text: str, folder: str) -> str:
    """Without the temporary folder, and without a parser's own words, which differ by version."""
    return text.replace(folder, "DIR").partition("is not valid TOML")[0]


MACHINES = {
    "host": Machine("no GPU"),
    "T4": Machine(None, (7, 5), 12040, lambda package: False, name="T4"),
    "A100": assumed("A100"),
    "L40": assumed("L40"),
    "H200": assumed("H200"),
    "B200": assumed("B200"),
    "H200 with an old driver, no packages, no pools": Machine(
        None, (9, 0), 12000, lambda package: False, memory_pools=False, name="H200"
    ),
}


@record
def toggles_of_machines() -> Lines:
    """What each toggle says on each machine, and pairs of toggles."""
    for name, machine in MACHINES.items():
        yield f"# {name}: {machine.target}"
        for preset in ("best", "seed"):
            yield f"{preset}: {_selected(preset, machine)}"
        for toggle in TOGGLES.values():
            found = _selected(spelled(toggle.name), machine)
            yield f"{toggle.name}: {toggle.needs(machine)}; {found}"
    machine = assumed("H200")
    for first in TOGGLES:
        found = {
            second: _selected(f"none,{spelled(first)},{spelled(second)}", machine)
            for second in TOGGLES
            if first < second
        }
        for second, text in found.items():
            if "Error" in text:
                yield f"{first} with {second}: {text}"
    for text in (
        "best,-arena",
        "best,pool",
        "best,pinned",
        "best,-cudnn",
        "cublas,best",
        "-fuse",
        "best,-preload,graphs",
        "best,none",
        "graphs=2",
        "graphs=while",
        "fuse=-head",
        "fuse=-head-narrow",
        "mma=-skinny",
        "mma=-skinny-wgmma",
        "report",
        "report=3",
        "best,report=2",
        "batch=32",
        "batch=max",
        "fp16=acc16",
        "fp16=x",
        "tune",
        "persistent=2x4",
        "best,persistent=1x1:128:FFF",
        "streams=2",
        "best,tiled",
        "best,mma=sync",
        "best,cublas",
        "pdl",
        "pdl=3",
        "cudnn,fuse",
        "seed,-report",
        "grphs",
        "best,-cudn",
        "nccl=3:bf16:sharded:backward",
        "nccl=3:4",
        "nccl=0",
    ):
        yield f"{text}: {_selected(text, machine)}"
    for kind in (
        {"loss": "mse"},
        {"loss": "bce", "activation": "gelu"},
        {"bias": False},
        {"activation": "tanh"},
    ):
        for opt in (
            "persistent",
            "fuse=-loss",
            "fp8,mma",
            "cudnn",
            "best,fp16=acc16",
            "persistent=1x1:128:FF",
            "persistent=2x2",
            "persistent=200x1",
        ):
            network = Network((20, 8, 3), **kind)
            spec = DataSpec(
                600, labels="" if "loss" in kind else "uint8", targets=3 if "loss" in kind else 0
            )
            yield f"{kind} {opt}: " + outcome(
                lambda: (
                    select(opt, network, 60, machine, batch=10)
                    .apply(training_step(network, Recipe(10), spec))[0]
                    .ops[-1]
                    .name
                )
            )
    for gpu in (
        "h100",
        "rtx-4090",
        "4090",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        "GTX",
        "",
        "Tesla T4",
        "RTX",
        "5090",
    ):
        yield f"GPU {gpu!r}: {outcome(lambda: gpu_named(gpu).name)}"
    for target in (*NAMED, *(known(c) for c in ((5, 0), (7, 5), (8, 7), (9, 0), (10, 3), (12, 1)))):
        yield f"{target}: " + ", ".join(
            (
                f"{target.capability}",
                f"{target.shared_per_multiprocessor} bytes",
                f"{target.registers} registers",
                f"{target.threads} threads",
                f"{target.clock} MHz",
                f"clusters {dict(target.at_once)}",
                f"features {sorted(target.features)}",
            )
        )


def _selected(text: str, machine: Machine) -> str:
    def run() -> str:
        found = select(
            text,
            Network((20, 8, 3)),
            60,
            machine,
            batch=10,
            recipe=Recipe(10),
            data_spec=DataSpec(600),
        )
        return f"{found} {list(found.notes)}" if found.notes else str(found)

    return outcome(run)


@record
def bad_searches() -> Lines:
    """Options of many networks: what varies, folds, halving, spaces."""
    data = random_dataset(4, 3, 30, 10)
    attempts: dict[str, Callable[[], Any]] = {}
    for options in (
        {"lr": []},
        {"lr": {1, 2}},
        {"opt": ["best", "-fuse"]},
        {"data": ["a"]},
        {"lr": np.zeros((2, 2))},
        {"layers": [3, 4]},
        {"layers": [[3, 4], [3]]},
        {"lrs": [1]},
        {"device": ["host"]},
        {"seed": range(2000), "lr": [1] * 2000},
        {"lr": np.array(0.1)},
        {"lr": [0.1, 0.2], "seed": [1, 2, 3]},
        {"foldz": 3},
        {"lr": [-1]},
        {"batch": [3, 0]},
    ):
        attempts[f"variation {str(options)[:60]}"] = lambda o=options: {
            k: len(v) for k, v in variation_of(None, o, ("folds", "halving")).varied.items()
        }
    for configs in (
        [],
        "x",
        [3],
        [Config(), Config(device="host")],
        Config(),
        [Config(lr=1), Config(lr=2)],
        {"a": 1},
    ):
        attempts[f"configs {str(configs)[:30]}"] = lambda c=configs: len(
            variation_of(c, {}).configs
        )
    attempts["configs and options"] = lambda: variation_of([Config()], {"lr": 1})
    for folds, repeats, rows in (
        (1, 1, None),
        (31, 1, None),
        (3, 2, None),
        (3, 0, None),
        (None, 2, None),
        (3, 1, [[1]]),
        ("3", 1, None),
        (2.5, 1, None),
        ([], 1, None),
        ([[1]], 1, None),
        ([([1], [40])], 1, None),
        ([([1], [])], 1, None),
        (None, 1, []),
        (None, 1, [[-1]]),
        (None, 1, [[0.5]]),
        (None, 1, [[True] * 30]),
        (None, 1, 3),
        (None, 1, [[1, 2], [3]]),
        (None, 1, np.array([[1, 2], [3, 0]])),
        (None, 1, iter([[1, 2], [3]])),
        (None, 1, iter(())),
        (2, 1, None),
        (30, 1, None),
        (True, 1, None),
        (3, 1.5, None),
    ):
        listed = str(rows)[:24].replace("\n", "")
        given = f"iterator {len(attempts)}" if hasattr(rows, "__next__") else listed
        attempts[f"folds {folds} {repeats} {given}"] = lambda f=folds, r=repeats, w=rows: [
            (len(a), len(b)) for a, b in zip(*_lists(folds_of(f, r, w, data, 3)), strict=True)
        ]
    attempts["k folds"] = lambda: [each[:6].tolist() for each in folds_of(4, 1, None, data, 3).rows]
    attempts["repeated folds"] = lambda: [
        each.tolist() for each in folds_of(4, 2, None, data, 3).held_out
    ]
    for args in (
        (100, 50, 3, None),
        (100, 50, 3, 2),
        (2, 50, 3, None),
        (9, 50, 3, 50),
        (9, 50, 1, None),
        (9, 50, None, 3),
        (9, 50, True, None),
        (9, 50, math.inf, 1),
        (9, 50, "3", None),
        (9, 1, 2, 1),
        (1000, 81, 2.5, None),
        (27, 81, 3, 3),
        (9, 50, 3, 0),
        (9, 50, 3, 2.5),
        (3, 50, 3, None),
        (3, 9, 3, None),
        (9, 3, 3, 1),
        (9, 3, 3, 3),
        (9, 2, 3, 2),
        (1, 10, 2, 1),
    ):
        attempts[f"rungs {args}"] = lambda a=args: rungs_of(*a)
    for name, make in (("uniform", uniform), ("log", log_uniform), ("int", int_uniform)):
        for ends in (
            (1, 0),
            (0, 1),
            ("a", 1),
            (1, math.inf),
            (0.5, 2.5),
            (-1, 1),
            (2, 9),
            (1e-4, 0.1),
        ):
            attempts[f"{name} {ends}"] = lambda m=make, e=ends: m(*e).at(
                np.array([0.0, 0.25, 0.5, 0.999])
            )
    for space in (
        {},
        {"lr": []},
        {"lr": "0.1"},
        {"device": ["host"]},
        {"lrr": [1]},
        3,
        {"layers": [3, 4]},
        {"lr": uniform(0, 1), "batch": [8, 16]},
        {"lr": np.array([0.1, 0.2]), "seed": range(3)},
    ):
        attempts[f"space {str(space)[:60]}"] = lambda s=space: sampled(checked(s), 3, 7)
        attempts[f"grid {str(space)[:60]}"] = lambda s=space: grid_of(checked(s), 5)
    for options in ({"foldz": 3}, {"bach": 8}, {"lr": 0.5}, {"batch": [8, 16]}, {"batch": 8}):
        attempts[f"a search over lr with {options}"] = lambda o=options: (
            training.options_of_search(("lr",), o, "digits", None, None, None)
        )
    most = variation.MOST
    space = {"lr": (0.5, 0.25), "batch": (8, 16)}
    for budget, seed, grid in (
        (1, 0, False), (most, 0, False), (0, 0, False), (most + 1, 0, False), (True, 0, False),
        (2.0, 0, False), (None, 0, False), (9, 2**63 - 1, False), (9, 2**63, False),
        (9, -1, False), (9, True, False), (9, 0.5, False), (None, 0, True), (4, 0, True),
        (3, 0, True), (5, 0, True), (np.int64(9), np.int32(3), False),
    ):  # fmt: skip
        attempts[f"candidates {budget}, seed {seed}, {'grid' if grid else 'drawn'}"] = (
            lambda b=budget, s=seed, g=grid: search._candidates(space, b, s, g)
        )
    attempts["as many as may be"] = lambda: next(product_of({"seed": range(most)}))
    attempts["one more"] = lambda: next(product_of({"seed": range(most + 1)}))
    two = [Config(lr=0.5, save="own"), Config(lr=0.25, patience=3)]
    for configs, options, monitor in (
        (two, {}, None),
        (two[:1], {"save": "other", "save_every": 3, "device": "host"}, None),
        (two[:1], {"patience": 2, "min_delta": 0.5, "keep": 4}, "train_loss"),
        (two[:1], {}, "train_loss"),
        (two[1:], {}, "train_loss"),
        (two[1], {"patience": 2}, None),
        (two, {"lr": 3}, None),
        (variation_of(None, {"lr": [0.5, 0.25]}), {"device": "host", "lr": 2}, None),
        (None, {"lr": [0.5, 0.25], "patience": 2, "device": "host"}, "train_loss"),
        (None, {"lr": 0.5}, "train_loss"),
    ):
        name = f"{configs} and {options} by {monitor}" if configs is None else \
            f"configs {len(attempts)} and {options} by {monitor}"
        attempts[name] = lambda c=configs, o=options, m=monitor: [
            _not_default(each) for each in training._variation(c, o, m).configs
        ]
    for config, asked in (
        (Config(epochs=9, patience=3, min_delta=0.5, save="x", save_every=4), (None, None, None)),
        (Config(epochs=9, patience=1, monitor="train_loss"), (2, None, None)),
        (Config(epochs=9), (2, 3, "test_accuracy")),
        (Config(loss="mse"), (None, None, "test_accuracy")),
        (Config(), (None, None, "loss")),
    ):
        for count in (1, 6):
            found = Variation((replace(config, epochs=2), *[config] * count), {})
            attempts[f"rules of {count} x {_not_default(config)} with {asked}"] = (
                lambda f=found, c=config, a=asked: vars(training._rules(f, c, *a))
            )
    attempts["grid without a budget"] = lambda: len(grid_of(checked({"seed": range(9)})))
    attempts["all bits"] = lambda: [
        repr(each["lr"]) for each in sampled(checked({"lr": uniform(0, 1)}), 4, 11)
    ]
    with patch.object(search, "sampled", lambda choices, *drawn: [*choices, *drawn]):
        for name, call in attempts.items():
            yield f"{name}: {outcome(call)}"


def _not_default(config: Config) -> dict[str, Any]:
    plain = vars(Config())
    return {name: value for name, value in vars(config).items() if value != plain[name]}


def _lists(found: Any) -> tuple[Any, Any]:
    return found.rows, found.held_out or found.rows


@record
def bad_calls() -> Lines:
    """Kernels of the user's own, and values of another type where a public function takes one."""
    lab = Lab(rawnn.lab.simulated())
    for name, (attempt, _) in MISTAKES.items():
        yield f"{name}: {outcome(lambda: type(attempt(lab)).__name__)}"
    lab.device.close()
    for number, (call, values, _) in enumerate(CALLS):
        for value in values:
            text = "an iterator" if hasattr(value, "__next__") else repr(value)[:40]
            yield f"call {number} with {text}: {outcome(lambda: call(value))}"
    for word in (
        "learning_rate",
        "hidden_layer_sizes",
        "n_epochs",
        "batchsize",
        "dropout",
        "lr_",
        "gpu",
        "max_iter",
        "momentun",
        "verbose",
        "xyz",
        "alpha",
        "early_stopping",
    ):
        yield f"nearest {word}: {nearest(word, Config.known())!r}"
    yield str(unknown("thing", "abcd", ("one", "two")))
    yield str(unknown("thing", "onne", ("one", "two"), "these are"))
    for value in (True, 1.0, 0, 3, "3"):
        yield f"whole {value!r}: {outcome(lambda: check_whole('n', value, 1))}"
