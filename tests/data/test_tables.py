"""`.npz` archives and CSV files: what is read, and the sentence for what is not."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from rawnn.common.errors import ConfigError, DataError
from rawnn.data import Dataset, load_dataset
from rawnn.data.tables import load_table, read_table

FLOWERS = """length,width,kind
5.1,3.5,setosa
7.0,3.2,versicolor
6.3,3.3,virginica
4.9,3.0,setosa
6.4,3.2,versicolor
5.8,2.7,virginica
"""


def write(path: Path, text: str, name: str = "t.csv") -> Path:
    file = path / name
    file.write_text(text)
    return file


def joined(data: Dataset) -> dict[float, int]:
    """Label by the first feature, over both parts."""
    assert data.train_labels is not None
    assert data.test_labels is not None
    x = np.concatenate([data.train_images, data.test_images])[:, 0]
    y = np.concatenate([data.train_labels, data.test_labels])
    return dict(zip(x.round(4).tolist(), y.tolist(), strict=True))


@pytest.mark.parametrize("target", ["kind", "2", "-1", " kind "])
def test_words_in_the_target_are_classes(tmp_path: Path, target: str) -> None:
    data = load_table(write(tmp_path, FLOWERS), target, fraction=0.34)
    assert data.label_names == ("setosa", "versicolor", "virginica")
    assert (data.features, data.classes, data.name) == (2, 3, "t")
    assert (len(data.train_images), len(data.test_images)) == (4, 2)
    found = joined(data)
    assert sorted(found.values()) == [0, 0, 1, 1, 2, 2]
    assert found[float(np.float32(7.0))] == 1


@pytest.mark.parametrize("text", [
    FLOWERS, FLOWERS.replace(",", ";"), FLOWERS.replace(",", "\t"), FLOWERS.replace("\n", "\r\n"),
    "\ufeff" + FLOWERS, FLOWERS.replace("\n", "\n\n"), FLOWERS.replace(",", ", "),
    FLOWERS.replace("setosa", '"setosa"'), FLOWERS.rstrip("\n"),
])
def test_dialects(tmp_path: Path, text: str) -> None:
    table = read_table(write(tmp_path, text), "kind")
    np.testing.assert_array_equal(table.inputs[1], np.array([7.0, 3.2], np.float32))
    assert table.answers is not None
    assert table.answers.tolist()[:3] == ["setosa", "versicolor", "virginica"]
    assert (table.feature_names, table.target_names) == (("length", "width"), ("kind",))


def test_a_file_without_a_header(tmp_path: Path) -> None:
    file = write(tmp_path, FLOWERS.split("\n", 1)[1])
    table = read_table(file, "2")
    assert table.inputs.shape == (6, 2)
    assert table.feature_names == ()
    with pytest.raises(ConfigError, match="no column 'kind'; it has no header, so give an index "
                                          "from 0 to 2"):
        read_table(file, "kind")


def test_a_header_of_numbers_is_known_by_the_target(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "label,0,1\n3,5,6\n4,7,8\n"), "label")
    assert table.inputs.tolist() == [[5, 6], [7, 8]]
    assert table.feature_names == ("0", "1")


def test_whole_numbers_are_classes_too(tmp_path: Path) -> None:
    counted = load_table(write(tmp_path, "a,y\n1,0\n2,1\n3,2\n4,0\n"), "y")
    assert (counted.classes, counted.label_names) == (3, ())
    named = load_table(write(tmp_path, "a,y\n1,10\n2,9\n3,10\n4,9\n5,100\n"), "y")
    assert named.label_names == ("9", "10", "100")
    assert joined(named) == {1: 1, 2: 0, 3: 1, 4: 0, 5: 2}
    kept = load_table(write(tmp_path, "a,y\n1,10\n2,9\n3,10\n"), "y", label_names=("10", "9"))
    assert joined(kept) == {1: 0, 2: 1, 3: 0}
    values = load_table(write(tmp_path, "a,y\n1,0\n2,1\n3,2\n4,0\n"), "y", kind="values")
    assert values.outputs == 1
    assert values.classes == 0


def test_numbers_with_a_point_are_values(tmp_path: Path) -> None:
    data = load_table(write(tmp_path, "a,b,y\n1,2,0.5\n3,4,1e3\n5,6,-2\n"), "y")
    assert (data.outputs, data.classes, data.features) == (1, 0, 2)


def test_several_targets(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a,b,c\n1,2,3\n4,5,6\n"), "c, 0")
    assert table.answers is not None
    assert table.answers.tolist() == [[3, 1], [6, 4]]
    assert table.target_names == ("c", "a")
    assert table.inputs.tolist() == [[2], [5]]


def test_no_target_is_an_autoencoder(tmp_path: Path) -> None:
    data = load_table(write(tmp_path, "a,b\n1,2\n3,4\n5,6\n"))
    assert data.autoencoder
    assert data.outputs == 2


def test_features_by_name(tmp_path: Path) -> None:
    file = write(tmp_path, "id,b,a,y\nx1,2,1,0\nx2,4,3,1\n")
    table = read_table(file, "y", None, ("a", "b"))
    assert table.inputs.tolist() == [[1, 2], [3, 4]]
    assert table.feature_names == ("a", "b")
    assert read_table(file, None, None, ("b",)).inputs.tolist() == [[2], [4]]
    with pytest.raises(ConfigError, match="has no column 'c', which the network was trained on"):
        read_table(file, "y", None, ("a", "c"))
    bare = write(tmp_path, "1,2\n3,4\n")
    assert read_table(bare, None, None, ("a", "b")).inputs.tolist() == [[1, 2], [3, 4]]


def test_the_same_seed_gives_the_same_split(tmp_path: Path) -> None:
    text = "x,y\n" + "".join(f"{i}.5,{i % 3}\n" for i in range(60))
    first, again, other = (load_table(write(tmp_path, text), "y", seed=s) for s in (1, 1, 2))
    assert first.test_images.tolist() == again.test_images.tolist()
    assert first.test_images.tolist() != other.test_images.tolist()
    assert len(first.test_images) == 12


@pytest.mark.parametrize(("text", "target", "sentence"), [
    ("a,b\n1,\n2,3\n", None, r"line 2, column 'b' has no value \(''\)"),
    ("a,b\n1,2\nNA,3\n", None, r"line 3, column 'a' has no value \('NA'\)"),
    ("a,b\n1,2\n\nnan,3\n", None, r"line 4, column 'a' has no value \('nan'\)"),
    ("1,2\n3,?\n", None, r"line 2, column '1' has no value \('\?'\)"),
    ("a,y\n1,x\n2,\n", "y", r"line 3, column 'y' has no value"),
    ("a,y\n1,0.5\n2,null\n", "y", r"line 3, column 'y' has no value \('null'\)"),
    ("a,y\n1,0.5\n2,inf\n", "y", r"line 3, column 'y' holds inf, but every value must be a finite"),
    ("a,b\n1,2\n3,red\n", None, r"line 3, column 'b' holds 'red', which is no number: only a "
                                r"target"),
    ("a,y\n1,1.5\n2,2.5\n3,x\n", "y", r"line 4, column 'y' holds 'x', which is no number"),
    ("a,b\n1,inf\n", None, r"line 2, column 'b' holds inf"),
    ("a,b\n1,1e39\n", None, r"line 2, column 'b' holds inf"),
    ("a,b\n1,2\n3\n", None, r"line 3 has 1 columns, but the lines before it have 2"),
    ("a,b\n1,2\n3,4,5\n", None, r"line 3 has 3 columns"),
    ("a,b\n", None, "is empty: it has no row of data"),
    ("", None, "is empty: it has no row of data"),
    ('a,b\n1,"2\n', None, "is not a readable CSV file"),
])
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, target: str | None,
                                               sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_table(write(tmp_path, text), target)


@pytest.mark.parametrize(("target", "sentence"), [
    ("lenght", "did you mean 'length'"),
    ("q", "the columns are length, width, kind"),
    ("3", "has no column 3: it has 3, 0 to 2"),
    ("-4", "has no column -4"),
    ("kind,2", "names column 'kind' of .* twice"),
    ("0,1,2", "takes all 3 columns"),
])
def test_targets_that_are_not_there(tmp_path: Path, target: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_table(write(tmp_path, FLOWERS), target)


def test_a_name_that_two_columns_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="2 columns named 'a'"):
        read_table(write(tmp_path, "a,a\n1,2\n"), "a")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_table(tmp_path / "no.csv")
    (tmp_path / "bytes.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(DataError, match="not a text file in UTF-8"):
        read_table(tmp_path / "bytes.csv")


# -- npz ------------------------------------------------------------------------------------------

X = np.arange(24, dtype=np.uint8).reshape(6, 4)
Y = np.arange(6) % 3


@pytest.mark.parametrize("names", [("X", "y"), ("x", "Y")])
def test_npz_is_split(tmp_path: Path, names: tuple[str, str]) -> None:
    np.savez(tmp_path / "t.npz", **dict(zip(names, (X, Y), strict=True)))
    data = load_table(tmp_path / "t.npz", fraction=0.34)
    assert (len(data.train_images), len(data.test_images), data.classes) == (4, 2, 3)
    assert data.train_images.dtype == np.uint8
    assert data.normalisation.scale == 1 / 255


def test_npz_with_a_test_part(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (9, 3, 5)).astype(np.uint8)
    np.savez_compressed(tmp_path / "t.npz", x_train=images, y_train=np.arange(9) % 4,
                        x_test=images[:4], y_test=np.arange(4))
    data = load_table(tmp_path / "t.npz")
    assert (len(data.train_images), len(data.test_images)) == (9, 4)
    assert (data.image_shape, data.classes) == ((3, 5), 4)
    with pytest.raises(ConfigError, match=r"no array 'y'; did you mean 'y_train'|it holds"):
        load_table(tmp_path / "t.npz", "y")


RNG = np.random.default_rng(0)


def test_another_array_may_be_the_target(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=X, y=Y, weight=RNG.random(6))
    assert load_table(tmp_path / "t.npz", "weight").outputs == 1
    np.savez(tmp_path / "t.npz", X=X)
    assert load_table(tmp_path / "t.npz").autoencoder


def test_npz_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "t.npz"
    np.savez(file, a=X)
    with pytest.raises(DataError, match=r"holds a, but X \(and y\) or x_train"):
        read_table(file)
    np.savez(file, X=np.array([object()]))
    with pytest.raises(DataError, match="pickled Python objects, which are not loaded"):
        read_table(file)
    np.savez(file, x_train=X, y_train=Y, x_test=X)
    with pytest.raises(DataError, match="x_test and y_test belong together"):
        read_table(file)
    file.write_bytes(b"PK\x03\x04 no")
    with pytest.raises(DataError, match=r"damaged or no \.npz file"):
        read_table(file)
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"damaged or no \.npz file$"):
        read_table(file)
    with open(file, "wb") as stream:
        np.save(stream, X)
    with pytest.raises(DataError, match="single array"):
        read_table(file)
    with pytest.raises(DataError, match="No such file"):
        read_table(tmp_path / "no.npz")


# -- through load_dataset -------------------------------------------------------------------------


def test_load_dataset_takes_a_table_by_its_suffix(tmp_path: Path) -> None:
    file = write(tmp_path, FLOWERS)
    for name in ("mnist", "table"):
        data = load_dataset(name, file, target="kind", normalise="learned", fraction=0.5)
        assert data.classes == 3
        assert data.normalisation.mean is not None
        assert data.source == str(file)
    with pytest.raises(ConfigError, match="needs --data FILE"):
        load_dataset("table")
    with pytest.raises(ConfigError, match="a target column needs a table"):
        load_dataset("synthetic", target="kind")
    np.savez(tmp_path / "t.npz", X=X.astype(np.float64), y=Y)
    messages: list[str] = []
    load_dataset("table", tmp_path / "t.npz", notify=messages.append)
    assert "converted from float64" in messages[0]


def test_images_can_be_normalised_otherwise() -> None:
    data = load_dataset("synthetic", normalise="learned")
    out = data.normalisation.apply(data.train_images)
    assert abs(float(out.mean())) < 1e-3
    assert load_dataset("synthetic").normalisation.scale == 1 / 255


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("zipped", [True, False])
def test_delimiters_and_gzip(tmp_path: Path, delimiter: str, zipped: bool) -> None:
    text = FLOWERS.replace(",", delimiter)
    if zipped:
        file = tmp_path / "my.flowers.csv.gz"
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file = write(tmp_path, text, "my.flowers.csv")
    data = load_dataset("mnist", file, target="kind", fraction=0.34)
    assert (data.features, data.classes, data.name) == (2, 3, "my.flowers")
    plain = load_table(write(tmp_path, FLOWERS), "kind", fraction=0.34)
    assert (data.train_images == plain.train_images).all()


def test_a_broken_gzip_file_is_one_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(FLOWERS.encode() * 50)
    for content in (whole[:40], b"length,kind\n1,a\n", whole[:30] + b"x" * 30):
        file = tmp_path / "broken.csv.gz"
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"broken\.csv\.gz"):
            load_table(file, "kind")


@pytest.mark.parametrize("target", [None, "kind"])
def test_other_files_are_told_what_is_read(tmp_path: Path, target: str | None) -> None:
    file = write(tmp_path, "PK", "book.xlsx")
    for name in ("mnist", "idx", "table"):
        with pytest.raises(DataError, match=r"book\.xlsx', .* tables are read from \.csv"):
            load_dataset(name, file, target=target)


@pytest.mark.parametrize(("target", "message"), [
    ("kind", "the loss compares with values; classes need --loss cross_entropy"),
    ("kind,width", "several targets are values to be reached"),
    ("width", "only a target may be a word")])
def test_words_where_values_are_wanted_name_the_fix(tmp_path: Path, target: str,
                                                     message: str) -> None:
    sentence = f"column 'kind' holds 'setosa', which is no number: {message}"
    with pytest.raises(DataError, match=sentence):
        load_table(write(tmp_path, FLOWERS), target, kind="values")


def test_a_fraction_plays_no_part_where_the_file_has_a_test_part(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    note = f"validation = 0.5 has no effect: {path} has a test part of its own"
    assert note in load_table(path, fraction=0.5).notes
    assert load_table(path).notes == ()


@pytest.mark.parametrize(("name", "fix"), [
    ("t.npy", "by numpy.savez('table.npz', X=inputs, y=answers)"),
    ("t.parquet", "by pandas.read_parquet('table.parquet').to_csv('table.csv', index=False)"),
    ("t.XLSX", "by pandas.read_excel('table.xlsx').to_csv('table.csv', index=False)")])
def test_a_file_of_another_kind_has_its_fix(name: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"?")
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", tmp_path / name)
    assert str(caught.value).endswith(f"save it as one of those, for example {fix}")


def test_whole_numbers_with_a_decimal_mark_have_their_fix(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,0.0\n2,2.0\n")
    with pytest.raises(DataError, match=r"holds 0\.0: .* whole numbers or words: write 0 for a cl"):
        load_table(tmp_path / "t.csv", "y", kind="labels")


def test_objects_of_python_have_their_fix(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", X=np.zeros((2, 1)), y=np.array(["a", "b"], object))
    with pytest.raises(DataError, match=r"not loaded: save texts as y\.astype\(str\)"):
        load_table(tmp_path / "t.npz")
