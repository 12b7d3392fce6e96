"""Configurations: values, files, refusals; ten thousand broken files."""

from __future__ import annotations

import math
import random
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.engine.config import CHECKS, Config, changed, parse_layers, read_toml
from tests.properties.mutation import Rewritten, mutants
from tests.slices import FULL, SLICE

EXAMPLE = """\
# a complete configuration
layers = [784, 128, 10]
epochs = 20
batch = 128
lr = 0.1
seed = 3
opt = ["best", "-cudnn", "graphs=while"]
device = "gpu:1"
dataset = "idx"
data = "some/where"
"""


def load(path: Path, content: str | bytes) -> Config:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Config.from_mapping(read_toml(path), str(path))


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfepochs = 3\r\n")
    assert read_toml(tmp_path / "a.toml") == {"epochs": 3}


def test_defaults_are_the_published_task() -> None:
    config = Config()
    assert (config.layers, config.epochs, config.lr) == ((784, 10), 20, 0.1)
    assert config.recipe().batch == 128


def test_a_file_makes_the_same_config_as_the_call(tmp_path: Path) -> None:
    assert load(tmp_path / "a.toml", EXAMPLE) == Config(
        layers=(784, 128, 10), batch=128, seed=3, opt="best,-cudnn,graphs=while", device="gpu:1",
        dataset="idx", data=str(tmp_path / "some/where"))


def test_lists_paths_and_whole_numbers_are_taken_for_what_they_mean() -> None:
    config = Config(layers=[3, 2], lr=1, data=Path("a"))  # type: ignore[arg-type]
    assert (config.layers, config.lr, config.data) == ((3, 2), 1.0, "a")
    assert type(config.lr) is float


@pytest.mark.parametrize("device", ["auto", "gpu", "gpu:0", "gpu:15", "host", "sim"])
def test_devices(device: str) -> None:
    assert Config(device=device).device == device


@pytest.mark.parametrize(("values", "sentence"), [
    ({"layers": [784]}, "layers = [784]: give two sizes or more"),
    ({"layers": [784, 0]}, "layers = [784, 0]: give two sizes or more"),
    ({"layers": 3}, "layers = 3"), ({"layers": ["a", 2]}, "layers = ['a', 2]"),
    ({"epochs": 0}, "epochs = 0: it must be a whole number from 1"),
    ({"epochs": 1.5}, "epochs = 1.5"),
    ({"epochs": True}, "epochs = True"), ({"epochs": 10**30}, "epochs = 1000"),
    ({"epochs": 1 << 20000}, "epochs = a number of thousands of digits"),
    ({"batch": -1}, "batch = -1"), ({"batch": "128"}, "batch = '128'"),
    ({"lr": -0.1}, "lr = -0.1: the learning rate must be a finite number >= 0"),
    ({"lr": float("nan")}, "lr = nan"), ({"lr": float("inf")}, "lr = inf"),
    ({"lr": "fast"}, "lr = 'fast': it must be a number"),
    ({"bias": 3}, "bias = 3: it must be true or false"),
    ({"monitor": "foo"}, "monitor = 'foo': use test_loss, test_accuracy or train_loss"),
    ({"lr": 10**400}, "lr = 1000"),
    ({"seed": -1}, "seed = -1"), ({"seed": 2**63}, "seed = 9223372036854775808"),
    ({"opt": 3}, "opt = 3"), ({"data": 3}, "data = 3"),
    ({"device": "gpus"}, "device = 'gpus': use auto, gpu, gpu:N, host or sim; did you mean 'gpu'?"),
    ({"device": "gpu:"}, "device = 'gpu:'"), ({"device": "gpu:-1"}, "device = 'gpu:-1'"),
    ({"device": "gpu:" + "9" * 5000}, "device = 'gpu:9"), ({"device": "gpu:٣"}, "device"),
    ({"device": "gpu\n"}, "device"),
    ({"epoch": 3}, "file: unknown key 'epoch'; did you mean 'epochs'?"),
    ({"zzz": 3}, "file: unknown key 'zzz'"),
])
def test_refusals_name_the_key_and_the_value(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(values, "file")
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(("content", "sentence"), [
    ("epochs = ", "is not valid TOML"), ("a = 1\na = 2", "is not valid TOML"),
    (b"\xff", "is not valid TOML"), ("epochs = " + "9" * 5000, "is not valid TOML"),
    ("x = " + "[" * 100_000, "is not valid TOML"),
    ("epochs = 0x" + "f" * 5000, "a number of thousands of digits"),
    ("opt = [1]", "opt must be a string or a list of strings"),
    ("[train]\nepochs = 1", "unknown key 'train'"),
    ("lr = 2020-01-01", "lr = 2020-01-01: it must be a number"),
])
def test_broken_files(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(tmp_path / "a.toml", content)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*none\.toml: No"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        read_toml(tmp_path)


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = Config(data="~/t.csv", save=Path("~/runs"), resume="~/old")  # type: ignore[arg-type]
    assert (config.data, config.save, config.resume) == (
        "/home/me/t.csv", "/home/me/runs", "/home/me/old")
    assert Config(target="~", data="a~b").data == "a~b"


def test_layers_from_text() -> None:
    assert parse_layers("784-128-10") == parse_layers("784,128,10") == (784, 128, 10)
    with pytest.raises(ConfigError, match="such as 784-128-10"):
        parse_layers("784-128-10,784-10")
    for text in ("", "784-", "784x10", "a-b", "1--2", "9" * 5000 + "-1"):
        with pytest.raises(ConfigError, match="give sizes from inputs to classes"):
            parse_layers(text)


def test_broken_files_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever the bytes: a Config, or a ConfigError in a sentence. Ten slices read 10,000."""
    pieces = [b"[", b"]", b"=", b'"', b"\n", b"9" * 5000, b"0x" + b"f" * 5000, b"1e999", b"-nan",
              b"[[", b"{", b"[" * 1500, b"\\u0000", b"\xff", b"1979-05-27T07:32:00Z", b"true",
              b"-1", b"1e-400", b".", b"'''"]
    read = 0
    with Rewritten(tmp_path / "a.toml") as file:
        count = 10_000 if FULL else 1000
        for content in mutants(EXAMPLE.encode(), pieces, count, random.Random(1 + SLICE)):
            file.write(content)
            try:
                config = Config.from_mapping(read_toml(file.path), "a.toml")
            except ConfigError as error:
                assert str(error)  # noqa: PT017 (either outcome is right)
            else:
                read += 1
                assert config.epochs >= 1
                assert len(repr(config)) < 20_000
    assert 0.05 < read / count < 0.95  # both outcomes occur, so that both are tested


def test_numbers_of_numpy_texts_and_lists_are_taken() -> None:
    found = Config(layers=np.array([784, 32, 10]), epochs=np.int64(3), batch=np.uint8(64),
                   lr=np.float32(0.5), bias=np.bool_(False), opt=["best", "-cudnn"],
                   seed=np.int32(7), normalise={"mean": np.zeros(3), "std": np.float64(2)})
    assert found == Config(layers=(784, 32, 10), epochs=3, batch=64, lr=0.5, bias=False,
                           opt="best,-cudnn", seed=7,
                           normalise={"mean": [0.0, 0.0, 0.0], "std": 2.0})
    for value in (found.epochs, found.batch, found.seed, *found.layers):
        assert type(value) is int
    assert Config(layers="8-3") == Config(layers=[8, 3]) == Config(layers=(np.int64(8), 3))
    assert Config(layers="8,5,3").layers == (8, 5, 3)
    assert Config(opt=("graphs=epoch", "cublas")).opt == "graphs=epoch,cublas"
    assert Config.from_mapping({"layers": "8-3", "opt": ["none"]}).layers == (8, 3)


@pytest.mark.parametrize(("values", "message"), [
    ({"epochs": np.float64(2.5)}, "epochs = 2.5"), ({"layers": np.zeros((2, 2))}, "layers = "),
    ({"save": ""}, "save = '' names no directory"), ({"target": ""}, "target = '' names no column"),
    ({"resume": ""}, "resume = '' names no checkpoint"),
    ({"layers": "8-x"}, "layers = '8-x': give sizes"), ({"opt": ["best", 3]}, "a list of strings"),
    ({"seed": np.int64(-1)}, "seed = -1"), ({"layers": np.array([8.5, 3.0])}, "layers = "),
])
def test_values_of_numpy_are_checked_as_all_are(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**values)


LARGEST, LEAST_FLOAT32, MOST_FLOAT32 = 2**31 - 1, 2.0**-126, float(np.finfo(np.float32).max)
BEYOND_FLOAT32 = MOST_FLOAT32 * (1 + 2**-52)
SAVED = {"save": "/nowhere"}
ENDS: list[tuple[str, Any, Any, Any, Any, dict[str, Any]]] = [
    ("epochs", 0, 1, LARGEST, LARGEST + 1, {}), ("batch", 0, 1, LARGEST, LARGEST + 1, {}),
    ("save_every", 0, 1, LARGEST, LARGEST + 1, SAVED), ("keep", 0, 1, LARGEST, LARGEST + 1, SAVED),
    ("patience", 0, 1, LARGEST, LARGEST + 1, {}), ("seed", -1, 0, 2**63 - 1, 2**63, {}),
    ("lr", -5e-324, 0.0, MOST_FLOAT32, BEYOND_FLOAT32, {}),
    ("validation", 0.0, 5e-324, 1 - 2**-53, 1.0, {}),
    ("min_delta", -5e-324, 0.0, 1e300, math.inf, {"patience": 1}),
    ("weight_decay", -5e-324, 0.0, MOST_FLOAT32, BEYOND_FLOAT32, {}),
    ("momentum", -5e-324, 0.0, 1 - 2**-53, 1.0, {}),
    ("beta1", -5e-324, 0.0, 1 - 2**-53, 1.0, {"optimizer": "adam"}),
    ("beta2", -5e-324, 0.0, 1 - 2**-53, 1.0, {"optimizer": "adam"}),
    ("eps", LEAST_FLOAT32 * (1 - 2**-52), LEAST_FLOAT32, MOST_FLOAT32, BEYOND_FLOAT32,
     {"optimizer": "adam"})]
"""Of each number: what is just too small, the least, the most, and what is just too large."""


@pytest.mark.parametrize(("name", "below", "least", "most", "above", "more"), ENDS,
                         ids=[each[0] for each in ENDS])
def test_the_ends_of_every_range(name: str, below: Any, least: Any, most: Any, above: Any,
                                 more: dict[str, Any]) -> None:
    for value in (least, most):
        assert getattr(Config(**{name: value}, **more), name) == value
    for value in (below, above, math.nan, math.inf):
        with pytest.raises(ConfigError, match=f"^{option_of(name)} = "):
            Config(**{name: value}, **more)


def option_of(name: str) -> str:
    return {"weight_decay": "weight.decay"}.get(name, name)


def test_every_number_has_its_ends() -> None:
    numbers = {name for name, kind in get_type_hints(Config).items()
               if {int, float} & {kind, *get_args(kind)} and bool not in (kind, *get_args(kind))}
    assert numbers - {"layers"} == {each[0] for each in ENDS}


class Reads(Config):
    """A Config that records which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in Config.__dataclass_fields__:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


@pytest.mark.parametrize("values", [
    {}, {"save": "a", "patience": 3}, {"loss": "mse", "normalise_targets": "learned"},
    {"sharding": "1x1:128:FFFF"}], ids=str)
def test_checks_name_the_fields_that_they_read(values: dict[str, Any]) -> None:
    """`changed` leaves out the checks of fields that stay as they are."""
    config = Reads(**values)
    for check, names in CHECKS.items():
        READ.clear()
        check(config)
        assert names >= READ, check


@pytest.mark.parametrize("values", [
    {"seed": np.int64(7)}, {"lr": 0.5, "momentum": 0.9}, {"layers": "784-20-10"},
    {"schedule": "cosine", "epochs": 3}, {"opt": ["none", "preload"]}, {"device": "sim"},
    {"save": "~/a", "save_every": 2}])
def test_a_changed_config_is_one_made_anew(values: dict[str, Any]) -> None:
    before = Config(shuffle=True, seed=3)
    found = changed(before, **values)
    assert found == replace(before, **values) == Config(**{"shuffle": True, "seed": 3, **values})
    assert (before.seed, before.lr) == (3, 0.1)


@pytest.mark.parametrize("values", [
    {"seed": -1}, {"lr": math.nan}, {"momentum": 2.0}, {"beta1": 0.5}, {"schedule": "wave"},
    {"layers": (4,)}, {"loss": "mse", "normalise_targets": "learned", "autoencoder": True},
    {"save_every": 2}, {"activation": "none"}, {"device": "gpu:0,0"}, {"validation": 1.0},
    {"sharding": "1x1"}, {"opt": "persistent", "sharding": "1x1:128:FFFF"},
    {"opt": "preload, persistent=1x1", "sharding": "1x1:128:FFFF"}, {"target": ""}])
def test_a_changed_config_is_refused_as_one_made_anew(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as new:
        Config(**values)
    with pytest.raises(ConfigError) as other:
        changed(Config(), **values)
    assert str(new.value) == str(other.value)


def test_a_number_that_equals_a_default_is_converted_as_any_other() -> None:
    """1.0 for 1, 1 for True, or an array's number: the field has its own type, or they are
    refused."""
    for field in fields(Config):
        default = field.default
        if not isinstance(default, int | float):
            continue
        for value in (int(default), float(default), bool(default), np.float32(default),
                      np.int64(default)):
            if value != default:
                continue
            try:
                found = getattr(Config(**{field.name: value}), field.name)
            except ConfigError:
                continue
            assert type(found) is type(default), (
                field.name, value)


@pytest.mark.parametrize(("name", "value"), [
    ("lr", 1e-50), ("lr", 2.0**-150), ("weight_decay", 1e-60), ("momentum", 1e-46)])
def test_settings_that_float32_rounds_to_zero_are_refused(name: str, value: float) -> None:
    sentence = re.escape(f"{name} = {value:g}: training in float32 rounds it to 0: give 0, or at "
                         f"least 1e-45")
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        Config(**{name: value})
    assert getattr(Config(**{name: 0.0}), name) == 0.0
    assert getattr(Config(**{name: 2.0**-149}), name) == 2.0**-149
