"""Tables fit the terminal, and nothing of them is cut off."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from rich.text import Text

from rawnn.bench.render.grid import Grid
from rawnn.cli.figures import class_figures, class_table, confusion_table
from rawnn.cli.tables import print_grid, print_table
from tests import requires

HEADINGS = ("suite", "set", "us/step", "95 % interval", "verdict")
ROWS = [("ladder 784-10 batch 128", "preload,arena,nosync,graphs=epoch", "12.50", "0.99-1.01",
         "same"),
        ("", "best", "4.21", "1.02-1.07", "lost: out of memory on this machine")]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_the_terminal_and_says_all(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(HEADINGS, ROWS, "A beside B")
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    letters = Counter("".join(cell for row in (HEADINGS, *ROWS) for cell in row).replace(" ", ""))
    assert letters <= Counter(text)  # cells may be folded, but no letter is missing
    assert "4.21" in text
    assert "1.02-1.07" in text


def test_a_pipe_has_all_the_room(capsys: pytest.CaptureFixture[str],
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(HEADINGS, ROWS)
    assert "preload,arena,nosync,graphs=epoch" in capsys.readouterr().out


@pytest.mark.parametrize(("width", "shown"), [(40, ["rung", "ms"]), (200, ["rung", "ms", "IQR"])])
def test_a_narrow_terminal_does_without_what_is_dispensable_and_says_so(
    width: int, shown: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_grid(Grid(("rung", "ms", "IQR"), [["`a`" * 3, "1" * 20, "2" * 30], ["b", "1", "2"]],
                    notes=["a note"], source="here", dispensable=("IQR",)))
    text = capsys.readouterr().out
    assert [word for word in ("rung", "ms", "IQR") if f" {word} " in text.splitlines()[1]] == shown
    assert ("no room for IQR: a wider terminal" in text) == ("IQR" not in shown)
    assert "- a note" in text
    assert "`" not in text


def test_in_a_very_narrow_terminal_a_row_is_some_lines(monkeypatch: pytest.MonkeyPatch,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """A row whose first cell stands above it has none of its own, and empty cells are left out."""
    monkeypatch.setenv("COLUMNS", "34")
    print_table(HEADINGS, [*ROWS, ("b", "", "", "", "same")], "A beside B")
    assert capsys.readouterr().out.splitlines() == [
        "A beside B",
        "ladder 784-10 batch 128",
        "  set",
        "    preload,arena,nosync,graphs=epoch",
        "    | us/step 12.50 | 95 %",
        "    interval 0.99-1.01 | verdict",
        "    same",
        "  set best | us/step 4.21 | 95 %",
        "    interval 1.02-1.07 | verdict",
        "    lost: out of memory on this",
        "    machine",
        "b",
        "  verdict same"]


CONFUSION = np.array([[1200, 0, 3], [0, 0, 5], [0, 0, 40]])
"""Of the second class none is right; the third is predicted 48 times."""


def test_a_confusion_matrix_has_its_diagonal_and_no_other_zero() -> None:
    table = confusion_table(CONFUSION, ["a", "b", "c"])
    cells = [[each for each in column.cells if isinstance(each, Text)] for column in table.columns]
    assert [[str(each) for each in column] for column in cells] == [
        ["a", "b", "c"], ["1,200", "", ""], ["", "0", ""], ["3", "5", "40"]]
    assert [[str(each) for each in column if each.style == "bold"] for column in cells] == [
        [], ["1,200"], ["0"], ["40"]]
    assert [str(column.header) for column in table.columns] == ["", "a", "b", "c"]


def test_figures_of_each_class_are_those_of_scikit_learn() -> None:
    metrics = requires.module("sklearn.metrics")
    true, predicted = (np.repeat(np.arange(9) // 3, CONFUSION.ravel()),
                       np.repeat(np.arange(9) % 3, CONFUSION.ravel()))
    *wanted, counts = metrics.precision_recall_fscore_support(true, predicted,
                                                              zero_division=np.nan)
    for n, found in enumerate(class_figures(CONFUSION)):
        assert [found[name] for name in ("precision", "recall", "f1")] == pytest.approx(
            [each[n] for each in wanted], nan_ok=True)
        assert found["examples"] == counts[n]
    columns = class_table(CONFUSION, ["a", "b", "c"]).columns
    cells = [[str(cell) for cell in column.cells] for column in columns]
    assert cells == [["a", "b", "c"], ["1,203", "5", "40"], ["1.0000", "-", "0.8333"],
                     ["0.9975", "0.0000", "1.0000"], ["0.9988", "0.0000", "0.9091"]]


MARKED = ("[red]", "[/bold] x", ":smile:", "a[0]", "[link=x]y[/link]", "two | three")


@pytest.mark.parametrize("width", [40, 200])
def test_texts_of_the_user_are_no_markup(width: int, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(["[blue]", "b"], [(text, "1") for text in MARKED], "[title]")
    text = capsys.readouterr().out
    for each in (*MARKED, "[blue]" if width == 200 else "[red]", "[title]"):
        assert each in text


def test_a_bar_in_a_cell_of_markdown_begins_no_other_cell() -> None:
    grid = Grid(["a|b", "n"], [["x | y", "1"], [r"already \| so", "2"]], left=("a|b",))
    assert grid.lines() == [r"| a\|b | n |", "|---|---:|", r"| x \| y | 1 |",
                            r"| already \| so | 2 |"]
