"""What is read of tables and arrays, the notes on it, and the sentence for what is not."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rawnn.common.csvformat import CsvFormat
from rawnn.data import from_arrays, idx
from rawnn.data.arrays import split_rows
from rawnn.data.dataset import load_dataset
from rawnn.data.dataset_types import Dataset
from rawnn.data.dlpack import DeviceArray
from rawnn.data.identity import differences, identity_of
from rawnn.data.input_scale import check_scales
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.data.progress import lines
from rawnn.data.tables import load_table, read_table
from rawnn.engine import data_source
from rawnn.engine.config import Config
from rawnn.engine.data_source import check_fit
from tests.data.test_idx import BAD
from tests.records import Lines, outcome, record, short

TABLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a,b,y\n1,2,0\n3,4,1\n5,6,1\n", {}),
    ("a,b,y\n1,2,0\n3,4,1\n5,6,1\n", {"target": "y"}),
    ("a;b;y\n1,5;2;0\n-3,25;1e-1;1\n", {"target": "y", "decimal": ","}),
    ("a;b;y\n1,5;2;0\n-3,25;1e-1;1\n", {"target": "y"}),
    ("1 2 0\n3 4 1\n", {"target": "2"}),
    ("1\t2\t0\n3\t4\t1\n", {"target": "-1"}),
    ("a,b,y\n1,2,no\n3,4,yes\n", {"target": "y"}),
    ("a,b,y\n1,x,0\n3,4,1\n", {"target": "y"}),
    ("a,b,y\n1,,0\n3,4,1\n", {"target": "y"}),
    ("a,b,y\n1,2,\n3,4,1\n", {"target": "y"}),
    ("a,b,y\n1,2,0\n3,4\n", {"target": "y"}),
    ("a,b,y\n1,2,0\n3,4,1,9\n", {"target": "y"}),
    ("a,b,y\n", {"target": "y"}),
    ("", {"target": "0"}),
    ("a,a,y\n1,2,0\n", {"target": "y"}),
    ("a,b,y\n1,2,0\n", {"target": "z"}),
    ("a,b,y\n1,2,0\n", {"target": "y,y"}),
    ("a,b,y\n1,2,0\n", {"target": "a,b,y"}),
    ("a,b,y\n1,2,0\n", {"target": "5"}),
    ("a,b,y\n1,2,0\n", {"target": "y", "skip": "a"}),
    ("a,b,y\n1,2,0\n", {"target": "y", "skip": "a,b"}),
    ("a,b,y\n1,2,0\n", {"target": "y", "skip": "q"}),
    ("a,b,y\n1,2,0\n", {"target": "y", "skip": "y"}),
    ("a,b\nTrue,2\n", {}),
    ("a,b\n1.234,5;2\n", {}),
    ("a,b\nnan,2\ninf,3\n", {}),
    ("a,b,y\n1,2,0.5\n3,4,1.5\n", {"target": "y"}),
    ("a,b,y\n1,2,0.5\n3,4,1.5\n", {"target": "y", "kind": "labels"}),
    ("a,b,y\n1,2,no\n3,4,yes\n", {"target": "y", "kind": "values"}),
    ("a,b,y\n1e39,2,0\n3,4,1\n", {"target": "y"}),
    ("a,b,y\n1,2,-1\n3,4,1\n", {"target": "y"}),
    ("a,b,y\n16777217,2,0\n16777216,4,1\n", {"target": "y"}),
    ("a,b,y\n1,2,3.0\n3,4,4.0\n", {"target": "y"}),
    ('a,"b c",y\n1,"2",0\n3,4,1\n', {"target": "y"}),
    ('a,b,y\n1,"2,0\n3,4,1\n', {"target": "y"}),
    ("a,b,c,y\n0,1,0,1\n1,0,0,0\n", {"target": "a,b,c"}),
    ("\n\na,b\n1,2\n\n3,4\n", {}),
    ("1,2\n3,4\n", {"target": "a"}),
    ("a,b\n1,2\n# x\n3,4\n", {}),
    ("id,a\n1,2\n2,3\n", {"target": "a"}),
    ("a,b,y\n9007199254740993,2,0\n9007199254740992,4,1\n3,4,1\n", {"target": "y"}),
    ("a,b,y\n9007199254740992,2,0\n9007199254740990,4,1\n3,4,1\n", {"target": "y"}),
    ("0,1,2,3\n5,6,7,0\n1,2,3,1\n", {}),
    ("0,1,2,3,4\n5,6,7,0,8\n1,2,3,1,9\n", {}),
    ("a,b,y\n1,2,a\n3,4,5\n5,6,7\n6,7,b\n", {"target": "y"}),
    ("a,b,y\n1,2,a\n3,4,5\n5,6,b\n", {"target": "y"}),
    ("a,b,y\n2020-01-02,2,0\n", {"target": "y"}),
    ("a,b,y\n2020-01-02x,2,0\n", {"target": "y"}),
    ("a,b,y\nTrue,2,0\n", {"target": "y"}),
)


@record
def files_of_data() -> Lines:
    with tempfile.TemporaryDirectory() as name:
        for text, options in TABLES:
            file = Path(name, "t.csv")
            file.write_text(text)
            words = dict(options)
            csv_format = CsvFormat(
                words.pop("encoding", None), words.pop("decimal", "."), words.pop("skip", None)
            )
            found = outcome(lambda: _table(read_table(file, csv_format=csv_format, **words)))
            yield f"{text!r} {options}: {found}".replace(name, "DIR")
        for encoding, asked in (
            ("utf-16", None),
            ("utf-16-le", None),
            ("utf-32", None),
            ("latin-1", None),
            ("utf-8-sig", None),
            ("utf-16", "utf-16"),
        ):
            file = Path(name, "e.csv")
            file.write_bytes("größe,y\n1,2\n".encode(encoding))
            found = outcome(lambda: _table(read_table(file, csv_format=CsvFormat(asked))))
            yield f"{encoding} read as {asked}: {found}".replace(name, "DIR")
        for bad, (content, _) in BAD.items():
            file = Path(name, "images")
            file.write_bytes(content)
            yield f"IDX, {bad}: {outcome(lambda: idx.read_file(file, 3)[1])}".replace(name, "DIR")
        Path(name, "z.gz").write_bytes(gzip.compress(b"abc")[:-4])
        yield f"IDX, cut gzip: {outcome(lambda: idx.read_file(Path(name, 'z.gz'), 1))}".replace(
            name, "DIR"
        )
        for arrays in (
            {"X": np.eye(4), "y": np.arange(4)},
            {"X": np.eye(4)},
            {"a": np.eye(3)},
            {"X": np.eye(4), "y": np.arange(3)},
            {"x": np.eye(4), "y": np.eye(4)},
            {"X": np.array([[None]]), "y": np.arange(1)},
            {"X": np.eye(4), "t": np.eye(4)},
        ):
            np.savez(Path(name, "t.npz"), **arrays)
            for target in (None, "y", "q"):
                found = outcome(lambda: _table(read_table(Path(name, "t.npz"), target)))
                yield f"npz {sorted(arrays)} target {target}: {found}".replace(name, "DIR")
        Path(name, "long.csv").write_text(
            "a,b,y\n" + "".join(f"{i},{i * 7 % 13},{'uvw'[i % 3]}\n" for i in range(90))
        )
        for options in (
            {},
            {"fraction": 0.5},
            {"fraction": 0.001},
            {"normalise": "learned"},
            {"normalise": "pixels"},
            {"seed": 3},
            {"outputs": 2},
            {"outputs": 5},
            {"target": "a"},
            {"target": "a", "normalise_targets": "learned"},
            {"label_names": ("u", "w")},
            {"classes": 2},
        ):
            found = outcome(
                lambda: _dataset(load_table(Path(name, "long.csv"), **{"target": "y", **options}))
            )
            yield f"table {options}: {found}".replace(name, "DIR")
        for args in (
            ("mnistt",),
            ("idx", name),
            ("idx", f"{name}/none"),
            ("table",),
            ("mnist", name),
            ("table", f"{name}/x.xls"),
        ):
            found = outcome(
                lambda: _dataset(load_dataset(*args, notify=lambda m: None, offline=True))
            )
            yield f"data set {args}: {found}".replace(name, "DIR")


def _table(table: Any) -> str:
    return (
        f"{table.inputs.dtype} {table.inputs.tolist()} -> "
        f"{None if table.answers is None else table.answers.tolist()} {table.feature_names}"
        + "".join(f", {name} {list(found)}" for name in ("target_names", "notes", "cautions")
                  if (found := getattr(table, name)))
    )


def _dataset(d: Dataset) -> str:
    kept = [
        f"{part} {a.dtype} {a.shape} of sum {short(float(np.nansum(a, dtype=np.float64)))}"
        for part in (
            "train_images",
            "test_images",
            "train_labels",
            "test_labels",
            "train_targets",
            "test_targets",
        )
        if (a := getattr(d, part)) is not None
    ]
    n = d.normalisation
    return (
        f"{d.name}: {', '.join(kept)}; {d.classes} classes {d.label_names}, {d.outputs} outputs; "
        f"scale {short(float(n.scale))}, mean {_some(n.mean)}, 1/std {_some(n.inverse_std)}; "
        f"{d.source}; notes {list(d.notes)}"
    )


def _some(values: Any) -> str:
    return "none" if values is None else short(np.asarray(values, np.float64).ravel()[:4].tolist())


X = np.arange(60, dtype=np.float32).reshape(20, 3) / 8
Y = np.arange(20) % 3
DRAWS: dict[str, Callable[[], Any]] = {
    "labels": lambda: from_arrays((X, Y)),
    "words": lambda: from_arrays((X, np.array(list("abca" * 5)))),
    "names of classes": lambda: from_arrays((X, Y + 1), outputs=3),
    "signs": lambda: from_arrays((X, np.where(Y, 1, -1))),
    "gap": lambda: from_arrays((X, Y * 7)),
    "values": lambda: from_arrays((X, X[:, 0])),
    "columns": lambda: from_arrays((X, X[:, :2])),
    "one hot": lambda: from_arrays((X, np.eye(3)[Y]), kind="labels"),
    "not one hot": lambda: from_arrays((X, X[:, :2]), kind="labels"),
    "reconstruct": lambda: from_arrays(X),
    "bytes": lambda: from_arrays((X.astype(np.uint8), Y)),
    "binary bytes": lambda: from_arrays(((X > 3).astype(np.uint8), Y)),
    "float64": lambda: from_arrays((X.astype(np.float64) / 3, Y)),
    "int64": lambda: from_arrays((X.astype(np.int64) * 2**40, Y)),
    "bool": lambda: from_arrays((X > 3, Y)),
    "half": lambda: from_arrays((X.astype(np.float16), Y)),
    "complex": lambda: from_arrays((X.astype(np.complex64), Y)),
    "objects": lambda: from_arrays((np.array([[1, None]] * 20), Y)),
    "nan": lambda: from_arrays((np.where(X == 3, np.nan, X), Y)),
    "infinite": lambda: from_arrays((np.where(X == 3, np.inf, X), Y)),
    "nan targets": lambda: from_arrays((X, np.where(X == 3, np.nan, X))),
    "lengths": lambda: from_arrays((X, Y[:-1])),
    "empty": lambda: from_arrays((X[:0], Y[:0])),
    "one row": lambda: from_arrays((X[:1], Y[:1])),
    "scalar": lambda: from_arrays((3, 4)),
    "flat": lambda: from_arrays((X[:, 0], Y)),
    "text": lambda: from_arrays("x"),
    "three": lambda: from_arrays((X, Y, Y)),
    "images": lambda: from_arrays((X.reshape(20, 3, 1), Y)),
    "validation": lambda: from_arrays((X, Y), (X[:4], Y[:4])),
    "validation features": lambda: from_arrays((X, Y), (X[:4, :2], Y[:4])),
    "validation kind": lambda: from_arrays((X, Y), (X[:4], X[:4])),
    "validation classes": lambda: from_arrays((X, Y), (X[:4], Y[:4] + 5)),
    "unseen": lambda: from_arrays((X, Y), (X[:4], Y[:4] + 1), unseen_classes=True),
    "validation bytes": lambda: from_arrays((X, Y), (X[:4].astype(np.uint8), Y[:4])),
    "validation text": lambda: from_arrays((X, Y), "x"),
    "fraction": lambda: from_arrays((X, Y), 1.5),
    "half split": lambda: from_arrays((X, Y), 0.5),
    "seed": lambda: from_arrays((X, Y), seed=-1),
    "classes": lambda: from_arrays((X, Y), classes=2),
    "names": lambda: from_arrays((X, Y), label_names=("a",)),
    "learned": lambda: from_arrays((X, Y), normalise="learned"),
    "learned constant": lambda: from_arrays((np.ones_like(X), Y), normalise="learned"),
    "targets": lambda: from_arrays((X, X[:, :2]), normalise_targets="learned"),
    "targets of labels": lambda: from_arrays((X, Y), normalise_targets="learned"),
    "mapping": lambda: from_arrays((X, Y), normalise={"scale": 0.5, "mean": [1, 2, 3], "std": 2.0}),
    "bad mapping": lambda: from_arrays((X, Y), normalise={"mean": [1, 2]}),
    "dictionary": lambda: from_arrays(({"a": X[:, 0], "b": X[:, 1]}, Y)),
    "dictionary of words": lambda: from_arrays(({"a": list("ab" * 10)}, Y)),
    "lists": lambda: from_arrays((X.tolist(), Y.tolist())),
    "ragged": lambda: from_arrays(([[1], [1, 2]], [0, 1])),
    "large": lambda: from_arrays((X.astype(np.float64) * 1e39, Y)),
    **{f"{value} normalised": lambda value=value: from_arrays(
        (np.where(np.arange(60).reshape(20, 3) == 22, value, np.float64(X)), Y), (X, Y),
        normalise={"std": 0.01}) for value in (3e38, -3e38)},
    "close": lambda: from_arrays((X.astype(np.float64) / 1e9 + 1e9, Y)),
    "mixed": lambda: from_arrays((X, np.array([1, "a"] * 10, object))),
}


FITS = (("float32", 5, 7), ("float64", 5, 7), ("float32", 4, 7), ("float32", 5, 0))


@record
def arrays() -> Lines:
    for name, draw in DRAWS.items():
        yield f"{name}: {outcome(lambda: _dataset(draw()))}"
    for count, fraction in ((10, 0.2), (3, 0.5), (2, 0.01), (1, 0.5), (7, 0.99)):
        parts = outcome(lambda: [part.tolist() for part in split_rows(count, fraction, 5)])
        yield f"split {count} {fraction}: {parts}"
    pixels = X.astype(np.uint8)
    for first, second in ((pixels, X), (X, pixels), (X / 400, X), (X, X * 200), (X, X)):
        yield f"scales {first.dtype} {second.dtype}: {outcome(lambda: check_scales(first, second))}"
    for asked in ("learned", "pixels", "none", None, {"std": 0.0}, {"scale": 2}, 3, "x",
                  {"scale": [1]}, {"scale": None}, {"mean": "x"}, {"std": [1, 2]}):
        yield f"normalisation {asked}: " + outcome(lambda: vars_of(Normalisation.of(asked, X)))
    for asked in ("learned", "none", None, "x"):
        yield f"targets {asked}: " + outcome(lambda: vars_of(TargetNormalisation.of(asked, X)))
    there = DeviceArray(4096, (3, 4), np.dtype("float32"), 5, 7, None)
    yield f"{there}: {[there.fits(*asked) for asked in FITS]}"
    one, other = from_arrays((X, Y)), from_arrays((X + 1, Y[::-1].copy()), seed=4)
    yield f"differences: {differences(identity_of(one), identity_of(other))}"
    yield f"none: {differences(identity_of(one), identity_of(one))}"
    clock = iter([0.0, 1.0, 2.5, 4.0, 5.5, 9.0, 30.0, 31.0, 33.0])
    said: list[str] = []
    show = lines(said.append, lambda: next(clock))
    for done in (0, 1 << 20, 3 << 20, 5 << 20, 9 << 20, 10 << 20):
        show("file", done, 10 << 20)
    yield from said


def vars_of(value: Any) -> str:
    return (
        "None"
        if value is None
        else ", ".join(
            f"{k} {_some(v) if isinstance(v, np.ndarray) else short(v)}"
            for k, v in vars(value).items()
        )
    )


@record
def fits() -> Lines:
    """Whether networks and data fit, and what a small set of data decides."""
    known = {
        "labels": from_arrays((X, Y)),
        "values": from_arrays((X, X[:, :2])),
        "normalised values": from_arrays((X, X[:, :2]), normalise_targets="learned"),
        "no answers": from_arrays(X),
    }
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"layers": (3, 5)},
        {"layers": (4, 3)},
        {"layers": (3, 2)},
        {"layers": (3, 2), "loss": "mse"},
        {"layers": (3, 2), "loss": "bce"},
        {"layers": (3, 3), "loss": "mse"},
        {"batch": 17},
        {"batch": 15, "epochs": 2, "schedule": "warmup:5,cosine"},
    )
    for name, data in known.items():
        for options in asked:
            config = Config(**{"layers": (3, 3), **options})
            yield f"{name} {options}: " + outcome(lambda: check_fit(config, data))
            yield f"  {data_source.doubts(config, data)}"
    for examples in (1, 7, 8, 15, 16, 63, 64, 128, 1000, 1023, 1024, 5000):
        for own in (True, False):
            data = replace(known["labels"], train_images=np.zeros((examples, 3)), own=own)
            config, said = data_source.settled(Config(layers=(3, 3)), data)
            left = data_source.left_out(config.recipe(), examples)
            yield f"{examples}, own {own}: {config.batch}, {config.partial}, {said}; {left}"
    for before in (None, known["normalised values"].target_normalisation):
        for name in ("values", "normalised values"):
            yield f"continued with {name}: " + outcome(
                lambda: data_source.with_targets_of(known[name], before, Path("a.safetensors")).name
            )
