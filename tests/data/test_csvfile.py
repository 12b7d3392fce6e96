"""How CSV files are read: encodings, decimal marks, columns that are left out; and for what is no
number the option that helps."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from rawnn.common.csvformat import CsvFormat, columns_of, joined_columns
from rawnn.common.errors import ConfigError, DataError
from rawnn.data import load_dataset
from rawnn.data.tables import load_table, read_table

CITIES = "größe,breite,ort\n1.5,2,Köln\n3.25,4,Ulm\n5,6.5,Köln\n"


def write(path: Path, text: str, encoding: str = "utf-8", name: str = "t.csv") -> Path:
    file = path / name
    file.write_bytes(text.encode(encoding))
    return file


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be",
                                      "utf-32", "latin-1", "cp1252"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_encodings(tmp_path: Path, encoding: str, mark: str) -> None:
    if mark and not encoding.startswith("utf"):
        pytest.skip("it has no such character")
    file = write(tmp_path, mark * (encoding not in ("utf-16", "utf-32", "utf-8-sig")) + CITIES,
                 encoding)
    table = read_table(file, "ort", csv_format=CsvFormat(encoding))
    assert table.feature_names == ("größe", "breite")
    assert table.inputs.tolist() == [[1.5, 2], [3.25, 4], [5, 6.5]]
    assert table.answers is not None
    assert table.answers.tolist() == ["Köln", "Ulm", "Köln"]


def test_a_zipped_file_in_another_encoding(tmp_path: Path) -> None:
    file = tmp_path / "t.csv.gz"
    file.write_bytes(gzip.compress(CITIES.encode("utf-16")))
    assert read_table(file, "ort", csv_format=CsvFormat("utf-16")).inputs.shape == (3, 2)
    with pytest.raises(DataError, match="it is in UTF-16: read it with --encoding utf-16"):
        read_table(file, "ort")


@pytest.mark.parametrize(("encoding", "asked", "sentence"), [
    ("utf-16", None, "it is in UTF-16: read it with --encoding utf-16"),
    ("utf-16-le", None, "it is in UTF-16-LE: read it with --encoding utf-16-le"),
    ("utf-16-be", None, "it is in UTF-16-BE: read it with --encoding utf-16-be"),
    ("utf-32", None, "it is in UTF-32: read it with --encoding utf-32"),
    ("latin-1", None, "name its encoding with --encoding, such as latin-1, or cp1252"),
    ("utf-8", "ascii", "not a text file in ascii: .*; name another --encoding"),
    ("utf-8", "utf-16", "not a text file in utf-16: .*; name another --encoding"),
    ("utf-16-le", "latin-1", "it is in UTF-16-LE: read it with --encoding utf-16-le"),
])
def test_text_in_another_encoding_names_the_option(tmp_path: Path, encoding: str,
                                                   asked: str | None, sentence: str) -> None:
    text = CITIES if encoding == "latin-1" or asked == "ascii" else CITIES.replace("ö", "oe")
    with pytest.raises(DataError, match=sentence):
        read_table(write(tmp_path, text.replace("ß", "ss"), encoding), "ort",
                   csv_format=CsvFormat(asked))


@pytest.mark.parametrize("text", [
    "a;b;y\n1,5;2;0\n-3,25;1e-1;1\n", "1,5;2;0\n-3,25;1e-1;1\n", "1,5\t2\t0\n-3,25\t1e-1\t1\n",
    'a,b,y\n"1,5",2,0\n"-3,25",1e-1,1\n'])
def test_a_decimal_comma(tmp_path: Path, text: str) -> None:
    table = read_table(write(tmp_path, text), "2", csv_format=CsvFormat(decimal=","))
    np.testing.assert_array_equal(table.inputs, np.array([[1.5, 2], [-3.25, 0.1]], np.float32))
    assert table.answers is not None
    assert table.answers.tolist() == [0, 1]


def test_targets_with_a_decimal_comma(tmp_path: Path) -> None:
    file = write(tmp_path, "a;y;z\n1;0,5;7\n2;1,25;8\n")
    one = read_table(file, "y", csv_format=CsvFormat(decimal=",", skip="z"))
    both = read_table(file, ["y", "z"], csv_format=CsvFormat(decimal=","))
    assert one.answers is not None
    assert both.answers is not None
    assert one.answers.tolist() == [0.5, 1.25]
    assert both.answers.tolist() == [[0.5, 7], [1.25, 8]]


@pytest.mark.parametrize(("text", "decimal", "sentence"), [
    ("a;b\n1,5;2\n", ".", r"column 'a' holds '1,5', which is no number: where the comma is the "
                          r"decimal mark, read the file with --decimal ,"),
    ("1,5;2,5\n2,5;3,5\n", ".", "read the file with --decimal ,"),
    ("a;b\n1.234,5;2\n", ".", "read the file with --decimal ,"),
    ("a;b\n1.234,5;2\n", ",", "a point is no part of a number: leave separators of thousands out"),
    ("a;b\n1.5;2\n", ",", "or use --decimal . where the point is the decimal mark"),
    ("a,b\nTrue,2\n", ".", "'True', which is no number: 1 and 0 can stand for true and false; "
                           "--skip a leaves the column out"),
    ("a,b\n1,2021-03-04\n", ".", "such as year, month and day, can stand for a date or time; "
                                 "--skip b leaves"),
    ("a,b\n1,04.03.2021\n", ".", "can stand for a date or time; --skip b"),
    ("a,b\n1,3/4/21 10:30\n", ".", "can stand for a date or time; --skip b"),
    ("a,b\n1,2021-03-04T10:30:00Z\n", ".", "can stand for a date or time; --skip b"),
    ("a,b\n1,10:30\n", ".", "can stand for a date or time; --skip b"),
    *((f"a,b\n1,{word}\n", ".", "columns of 0 and 1, one for each word") for word in (
        "2021-03-04x", "v1.2.3", "1.2.34567", "at 10:30", "20210-03-04", "true story")),
    ("a,the city\n1,Ulm\n", ".", "columns of 0 and 1, one for each word, can stand for it; --skip "
                                 "'the city' leaves"),
    ('a,"city, old"\n1,Ulm\n', ".", "--skip '\"city, old\"' leaves the column out"),
    ("b,b\n1,Ulm\n", ".", "--skip 1 leaves the column out"),
    ("a,b\n1,\n", ".", "or leave the row out, or the column .--skip b."),
])
def test_what_is_no_number_names_the_option_that_helps(tmp_path: Path, text: str, decimal: str,
                                                       sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_table(write(tmp_path, text), csv_format=CsvFormat(decimal=decimal))


def test_columns_are_skipped(tmp_path: Path) -> None:
    file = write(tmp_path, 'id,"city, old",a,b,y\nx1,Ulm,1,2,3\nx2,Bonn,4,5,6\n')
    for skip in ('id,"city, old"', ["id", "city, old"], "0,1", ["city, old", "0"], "-4,-5"):
        table = read_table(file, "y", csv_format=CsvFormat(skip=skip))
        assert table.feature_names == ("a", "b")
        assert table.inputs.tolist() == [[1, 2], [4, 5]]
    bare = write(tmp_path, "x1,1,2\nx2,3,4\n")
    assert read_table(bare, "2", csv_format=CsvFormat(skip="0")).inputs.tolist() == [[1], [3]]
    data = load_dataset("table", bare, target="-1", kind="values", skip=["0"])
    assert (data.features, data.outputs) == (1, 1)


@pytest.mark.parametrize(("skip", "sentence"), [
    ("idd", "has no column 'idd'; did you mean 'id'"), ("id,0", "--skip names column 'id' of .* "
                                                                "twice"),
    ("y", "column 'y' of .* is the target, but --skip leaves it out"),
    ("id,a", "--skip and the target take all 3 columns"), ("7", "has no column 7"),
])
def test_columns_that_cannot_be_skipped(tmp_path: Path, skip: str, sentence: str) -> None:
    file = write(tmp_path, "id,a,y\n1,1,2\n2,3,4\n")
    with pytest.raises(ConfigError, match=sentence):
        read_table(file, "y", csv_format=CsvFormat(skip=skip))


def test_a_column_that_the_network_was_trained_on_is_not_skipped(tmp_path: Path) -> None:
    file = write(tmp_path, "a,b,y\n1,1,2\n2,3,4\n")
    with pytest.raises(ConfigError, match="--skip leaves column 'a' out, which the network was"):
        read_table(file, "y", None, ("a",), CsvFormat(skip="a"))


@pytest.mark.parametrize(("options", "sentence"), [
    ({"encoding": "klingon"}, "encoding = 'klingon': Python knows no text encoding of that name"),
    ({"encoding": "base64"}, "encoding = 'base64'"), ({"decimal": ";"}, "decimal = ';': use"),
])
def test_formats_that_are_none(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        CsvFormat(**options)


@pytest.mark.parametrize("options", [{"encoding": "latin-1"}, {"decimal": ","}, {"skip": "a"}])
def test_options_of_csv_files_are_refused_elsewhere(tmp_path: Path, options: dict[str, str]
                                                    ) -> None:
    np.savez(tmp_path / "t.npz", X=np.eye(4), y=np.arange(4))
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is for a CSV file"):
        load_dataset("table", tmp_path / "t.npz", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is for a CSV file"):
        load_dataset("synthetic", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [["a"], ["a", "b c"], ["a, b", 'say "x"', "-1"]])
def test_a_list_of_columns_and_the_text_for_it_are_the_same(columns: list[str]) -> None:
    assert columns_of(columns) == columns_of(joined_columns(columns)) == columns
    assert columns_of(None) == []
    assert columns_of(" a , b") == ["a", "b"]


PRICES = "a,price\n" + "".join(f"{i},{100000 + 7 * i}.5\n" for i in range(10))


@pytest.mark.parametrize("text", [PRICES, PRICES.replace(".5", ".0"), PRICES.replace(".5", "e0")])
def test_numbers_with_decimals_are_never_classes(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    assert load_table(file, "price").train_targets is not None
    with pytest.raises(DataError, match=r"line 2, column 'price' holds 1000.*: numbers with "
                                        r"decimals are values, for --loss mse"):
        load_table(file, "price", kind="labels")
    comma = write(tmp_path, text.replace(",", ";").replace(".", ","))
    if "e0" not in text:
        for kind in (None, "labels", "values"):
            with pytest.raises(DataError, match="with --decimal ,"):
                load_table(comma, "price", kind=kind)  # type: ignore[arg-type]


def test_names_of_classes_may_have_decimals_where_they_are_known(tmp_path: Path) -> None:
    """As a model that was trained before has them."""
    file = write(tmp_path, "a,y\n1,1.0\n2,2.5\n3,1.0\n")
    data = load_table(file, "y", kind="labels", label_names=("1.0", "2.5"))
    assert data.label_names == ("1.0", "2.5")
    words = load_table(write(tmp_path, "a,y\n1,v1.0\n2,v2.5\n3,v1.0\n"), "y", kind="labels")
    assert words.label_names == ("v1.0", "v2.5")


@pytest.mark.parametrize("rows", [["1_0,1,u", "3,2,v"], ["3,1,u", "3,2_0,v"]])
@pytest.mark.parametrize("decimal", [".", ","])
def test_an_underscore_is_no_part_of_a_number(tmp_path: Path, rows: list[str], decimal: str
                                              ) -> None:
    text = "\n".join(["a_1,b,y_1", *rows, "5,6,w_1", ""]).replace(",", ";")
    file = write(tmp_path, text)
    with pytest.raises(DataError, match="_0', which is no number"):
        read_table(file, "y_1", csv_format=CsvFormat(decimal=decimal))
    plain = write(tmp_path, text.replace("1_0", "10").replace("2_0", "20"))
    found = read_table(plain, "y_1", csv_format=CsvFormat(decimal=decimal))
    assert found.inputs.sum() == sum(float(n) for row in rows for n in row.replace(
        "_", "").split(",")[:2]) + 11


def test_numbers_of_one_class_are_spelt_alike(tmp_path: Path) -> None:
    file = write(tmp_path, "a,code\n1,01\n2,2\n3,1\n4,2\n")
    with pytest.raises(DataError, match="line 4, column 'code' holds '1', and a line before it "
                                        "'01', which is the same whole number"):
        load_table(file, "code")
    assert load_table(write(tmp_path, "a,code\n1,01\n2,02\n3,01\n4,02\n"), "code").classes == 2
    words = load_table(write(tmp_path, "a,y\n1,1_0\n2,5\n3,10\n"), "y", kind="labels")
    assert words.label_names == ("10", "1_0", "5")


def test_a_first_row_that_counts_is_noted(tmp_path: Path) -> None:
    noted = load_table(write(tmp_path, "0,1,2\n.5,.25,1\n.1,.5,0\n.3,.9,2\n"), "2")
    assert "line 1 is read as a row of data (0, 1, 2); if these are names" in noted.notes[0]
    assert len(noted.train_images) + len(noted.test_images) == 4
    for text in ("0,1,3\n.5,.25,1\n.1,.5,0\n", "1,0,2\n.5,.25,1\n.1,.5,0\n"):
        assert load_table(write(tmp_path, text), "2").notes == ()


def test_numbers_beyond_float64_that_become_equal_are_noted(tmp_path: Path) -> None:
    ids = [2**60 + i for i in range(40)]
    big = [10**20 + i * 10**6 for i in range(40)]
    text, small = ("id,b,big,y\n" + "".join(
        f"{n},{n % 7},{m},{n % 2}\n" for n, m in zip(each, big, strict=True))
        for each in (ids, range(40)))
    data = load_table(write(tmp_path, text), "y", normalise="learned")
    assert (len({float(n) for n in ids}), len({float(n) for n in big})) == (1, 40)
    assert data.notes == (f"{tmp_path}/t.csv: distinct values become equal in float64, in column "
                          f"'id' 40 become 1: write them less their lowest value",)
    assert load_table(write(tmp_path, small), "y", normalise="learned").notes == ()
    apart = "id,y\n" + "".join(f"{2**40 + n},{n % 2}\n" for n in range(40))  # not in float32
    data = load_table(write(tmp_path, apart), "y", normalise="learned")
    normalised = data.normalisation.apply(np.concatenate([data.train_images, data.test_images]))
    assert len(np.unique(normalised.round(3))) == 40
    zipped = tmp_path / "t.csv.gz"
    zipped.write_bytes(gzip.compress(text.encode()))
    assert "40 become 1" in load_table(zipped, "y").notes[0]
    least = "id,y\n" + "".join(f"{2**53 - n},{n % 2}\n" for n in range(-1, 9))  # 2**53 + 1 is even
    assert "'id' 10 become 9" in load_table(write(tmp_path, least), "y").notes[0]
    plain = least.removeprefix("id,y\n")
    assert "'0' 10 become 9" in load_table(write(tmp_path, plain), "1").notes[0]


@pytest.mark.parametrize(("length", "shown"), [(40, "{text},"), (41, "{text:.37}...,")])
def test_long_cells_are_said_by_their_begin(tmp_path: Path, length: int, shown: str) -> None:
    text = f"1.{'2' * (length - 7)}e-400"
    said = re.escape(f"holds {shown.format(text=text)} which float64")
    with pytest.raises(DataError, match=said):
        load_table(write(tmp_path, f"a,y\n1,0\n{text},1\n"), "y")


def spelled(generator: np.random.Generator, value: float, decimal: str) -> str:
    """A number in one of the spellings that mean it."""
    text = str(generator.choice([repr(value), f"{value:.17g}", f"{value:+.17e}", f" {value!r} "]))
    return text.replace(".", decimal)


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_are_read_as_they_were_written(tmp_path: Path, seed: int) -> None:
    """Separators, decimal marks, headers, quotes, blank lines, line ends, encodings; the target
    anywhere, and columns left out."""
    generator = np.random.default_rng(seed)

    def is_so(chance: float = 0.5) -> bool:
        return bool(generator.random() < chance)

    decimal = "," if is_so() else "."
    mark = str(generator.choice([";", "\t", "|"] if decimal == "," else [",", ";", "\t", "|"]))
    rows, columns = int(generator.integers(3, 9)), int(generator.integers(3, 7))
    values = generator.normal(size=(rows, columns)) * 10.0 ** generator.integers(-6, 7, columns)
    target = int(generator.integers(columns))
    kind = str(generator.choice(["words", "whole", "decimals"]))
    answers = {"words": generator.choice(["ja", "nein", "viel leicht"], rows).tolist(),
               "whole": generator.integers(-3, 9, rows).tolist(),
               "decimals": values[:, target].tolist()}[kind]
    names = [f"säule {n}" for n in range(columns)]
    has_header = is_so(0.7)
    skipped = [n for n in range(columns) if n != target and is_so(0.2)]
    if len(skipped) == columns - 1:
        skipped = skipped[1:]

    def line(cells: list[str]) -> str:
        return mark.join(f'"{cell}"' if is_so(0.2) else cell for cell in cells)

    lines = [line(names)] if has_header else []
    for row in range(rows):
        cells = [spelled(generator, value, decimal) for value in values[row].tolist()]
        cells[target] = answers[row] if kind == "words" else str(answers[row]).replace(".", decimal)
        lines += [""] * is_so(0.1) + [line(cells)]
    encoding = str(generator.choice(["utf-8", "utf-8-sig", "utf-16", "latin-1"]))
    end = str(generator.choice(["\n", "\r\n"]))
    file = write(tmp_path, end.join(lines) + end * is_so(0.7), encoding)

    def named(column: int) -> str:
        return names[column] if has_header else str(column)

    table = read_table(file, named(target), csv_format=CsvFormat(
        None if encoding.startswith("utf-8") else encoding, decimal,
        joined_columns([named(n) for n in skipped]) if skipped else None))
    features = [n for n in range(columns) if n != target and n not in skipped]
    np.testing.assert_array_equal(table.inputs, values[:, features].astype(table.inputs.dtype))
    assert table.feature_names == (tuple(names[n] for n in features) if has_header else ())
    assert table.answers is not None
    if kind == "decimals":
        np.testing.assert_array_equal(table.answers.astype(np.float32).reshape(-1),
                                      np.array(answers, np.float32))
    else:
        assert table.answers.reshape(-1).tolist() == answers


@pytest.mark.parametrize("blank", ["", "\n", "\r\n\n\n"])
def test_blank_lines_before_the_first_row_say_nothing_of_the_separator(tmp_path: Path, blank: str
                                                                       ) -> None:
    file = write(tmp_path, f"{blank}1,5;2;0\n-3,25;1e-1;1\n")
    table = read_table(file, "2", csv_format=CsvFormat(decimal=","))
    np.testing.assert_array_equal(table.inputs, np.array([[1.5, 2], [-3.25, 0.1]], np.float32))


def test_signs_make_no_decimals_of_whole_numbers_among_words(tmp_path: Path) -> None:
    """Classes some of which are words are words, all of them."""
    text = "a,y\n1,-2\n2,+3\n3,4\n4,low\n5,-2\n"
    data = load_table(write(tmp_path, text), "y", kind="labels")
    assert data.label_names == ("+3", "-2", "4", "low")
    with pytest.raises(DataError, match=r"holds \+3\.5: numbers with decimals are values"):
        load_table(write(tmp_path, text.replace("+3", "+3.5")), "y", kind="labels")


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
@pytest.mark.parametrize("target", [None, "y"])
def test_columns_that_are_asked_for_come_in_the_order_asked_for(tmp_path: Path, order: str,
                                                               target: str | None) -> None:
    """Also where all columns of the file are."""
    last = ",y" if target else ""
    rows = "".join(f"{n},{n + 10},{n + 20}{',0' if target else ''}\n" for n in range(3))
    found = read_table(write(tmp_path, f"a,b,c{last}\n{rows}"), target, features=tuple(order))
    assert found.inputs.tolist() == [[n + 10 * "abc".index(name) for name in order]
                                     for n in range(3)]


@pytest.mark.parametrize("cell", ["1,000", "-12,345,678", "1,234.5"])
def test_separators_of_thousands_have_their_fix(cell: str, tmp_path: Path) -> None:
    """With --decimal , 1,000 would become 1."""
    file = write(tmp_path, f'a,y\n"{cell}",0\n2,1\n')
    with pytest.raises(DataError, match="where the comma separates thousands, leave it out; where"):
        read_table(file, "y")


def test_columns_that_spaces_separate_have_their_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no column 'y': its lines, such as 'a b y', are one "
                                          r"column each; separate columns by commas"):
        read_table(write(tmp_path, "a b y\n1 2 x\n"), "y")
