import io

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from rawnn.bench.columns import OPTIONAL
from rawnn.bench.records import LadderResult
from rawnn.bench.table import (
    HEADINGS,
    markdown,
    milliseconds,
    provenance,
    remarks,
    rows,
    terminal_table,
)
from tests.bench.conftest import make_ladder, make_rung


def test_factors_skip_rungs_that_were_not_measured(ladder: LadderResult) -> None:
    baseline, cublas, fuse, cudnn = rows(ladder)
    assert (baseline.factor, baseline.overall) == (None, None)
    assert (cublas.factor, cublas.overall) == (None, None)
    assert (fuse.factor, fuse.overall) == (21 / 10.25, 21 / 10.25)
    assert (cudnn.factor, cudnn.overall) == (10.25 / 11.5, 21 / 11.5)
    assert cublas.cells()[:2] == ("cublas", "unavailable")


def test_rungs_whose_repetitions_do_not_overlap(ladder: LadderResult) -> None:
    assert [row.distinct for row in rows(ladder)] == [False, False, True, True]
    close = make_ladder(make_rung("baseline", 10.0, 12.0), make_rung("nosync", 8.0, 10.0),
                        make_rung("fuse", 5.0))
    assert [row.distinct for row in rows(close)] == [False, False, False]


def test_without_a_baseline_there_is_no_overall_factor() -> None:
    made = rows(make_ladder(make_rung("baseline", status="failed", reason="x"),
                            make_rung("nosync", 5.0)))
    assert made[1].overall is None
    assert made[1].factor is None


def test_a_slower_rung_is_told_and_whether_it_may_be_noise(ladder: LadderResult) -> None:
    assert "cudnn is slower than fuse (0.89x), and no repetitions overlap" in remarks(ladder)
    close = make_ladder(make_rung("baseline", 10.0, 12.0), make_rung("nosync", 11.0, 12.5))
    assert any("may be noise" in text for text in remarks(close))
    once = make_ladder(make_rung("baseline", 10.0), make_rung("nosync", 20.0))
    assert any("may be noise" in text for text in remarks(once))


def test_remarks_tell_reasons_notes_and_the_reference(ladder: LadderResult) -> None:
    text = "\n".join(remarks(ladder))
    assert "cublas unavailable: cublas cannot run here: no package" in text
    assert "fuse: cudnn left out" in text
    assert "0.9100 ± 0.0100 over 2 seeds" in text
    alone = make_ladder(make_rung("baseline", 1.0), synthetic=True, interrupted=True)
    text = "\n".join(remarks(alone))
    assert "SYNTHETIC" in text
    assert "interrupted" in text
    assert "--oracle compute" in text


def test_a_wrong_accuracy_stands_out(ladder: LadderResult) -> None:
    assert ladder.oracle is not None
    wrong = make_rung("fuse", 1.0, oracle=ladder.oracle, accuracy=0.5)
    table = markdown(make_ladder(wrong, oracle=ladder.oracle))
    assert "DIFFERS (0.4000)" in table
    assert "the accuracy of fuse, 0.5000, is NOT within" in table


def test_a_simulated_gpu_is_told(ladder: LadderResult) -> None:
    place = msgspec.structs.replace(
        ladder, environment=type(ladder.environment)(
            "0", "", "3", "p", "sim", ladder.environment.gpu, {}, {}, "d"))
    assert any("SIMULATED" in text for text in remarks(place))


def test_markdown_says_where_it_was_measured(ladder: LadderResult) -> None:
    text = markdown(ladder)
    assert text.splitlines()[0].startswith("| rung | epoch (ms)")
    assert ("| `fuse` | 10.2 | 10.0-10.5 | 0.25 | 20.5 | 2.05 | 1.90-2.20 | 2.05 | "
            "0.9000 ± 0.0000 | agrees") in text
    for part in ("Some GPU, driver 580.1, CUDA 13.0", "SM 1900-1901 MHz", "commit abc",
                 "2026-01-01", "medians of 2 interleaved runs"):
        assert part in text


def test_unobserved_clocks_are_said() -> None:
    bare = make_rung("baseline", 1.0, clocks={})
    assert "clocks: not observed" in provenance(make_ladder(bare))


def test_the_terminal_table_has_every_rung(ladder: LadderResult) -> None:
    table, left_out = terminal_table(ladder, 200)
    text = drawn(table, 200)
    for rung in ladder.rungs:
        assert rung.name in text
    assert left_out == ()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_loses_columns_and_no_letter(ladder: LadderResult, width: int) -> None:
    table, left_out = terminal_table(ladder, width)
    text = drawn(table, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert set(left_out).isdisjoint(HEADINGS[:2])
    for heading in set(HEADINGS) - {*left_out, *OPTIONAL}:  # of which nothing is known here
        assert heading in text


def drawn(table: Table, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_one_run_has_no_deviation() -> None:
    once = make_ladder(make_rung("baseline", 10.0))
    assert "±" not in markdown(once).split("reference")[1].split("- no")[0]
    assert any("one run each" in text for text in provenance(once))


@pytest.mark.parametrize(("value", "text"), [
    (0.4, "0.400"), (9.999, "10.0"), (99.96, "100"), (1234.5, "1234"), (0.012345, "0.0123"),
])
def test_three_significant_digits(value: float, text: str) -> None:
    assert milliseconds(value) == text


def test_a_factor_has_its_interval_and_what_is_noise_is_called_so() -> None:
    found = make_ladder(make_rung("baseline", 10.0, 10.1, 10.2), make_rung("nosync", 5.0, 5.1, 5.2),
                        make_rung("fuse", 4.9, 5.0, 5.3), make_rung("best", 1.0))
    first, clear, noise, once = rows(found)
    assert first.interval is None
    assert once.interval is None  # one run has none
    assert clear.interval is not None
    assert 1.9 < clear.interval[0] < 2.0 < clear.interval[1] < 2.1
    assert noise.in_the_noise
    assert not clear.in_the_noise
    assert clear.cells()[HEADINGS.index("95 %")] == "1.92-2.04"
    said = [text for text in remarks(found) if "noise" in text]
    assert said == ["fuse and nosync differ by no more than the noise"]
