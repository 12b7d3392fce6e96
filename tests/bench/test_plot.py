import sys
from pathlib import Path

import pytest

from rawnn.bench.plot import plot_ladder
from rawnn.bench.records import LadderResult
from rawnn.common.errors import ConfigError, MissingLibrary
from tests import requires
from tests.bench.conftest import make_ladder, make_rung


def test_bars_are_labelled_and_the_file_is_reproducible(ladder: LadderResult,
                                                        tmp_path: Path) -> None:
    requires.module("matplotlib")
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    plot_ladder(ladder, first)
    plot_ladder(ladder, second)
    text = first.read_text()
    assert first.read_bytes() == second.read_bytes()
    for part in ("baseline", "fuse", "10.2 ms  (2.05x)", "Some GPU", "log scale"):
        assert part in text
    assert "cublas" not in text  # it was not measured


def test_nothing_measured_cannot_be_plotted(tmp_path: Path) -> None:
    requires.module("matplotlib")
    with pytest.raises(ConfigError, match="nothing to plot"):
        plot_ladder(make_ladder(make_rung("baseline", status="failed")), tmp_path / "a.svg")


def test_an_unknown_ending_is_refused(ladder: LadderResult, tmp_path: Path) -> None:
    requires.module("matplotlib")
    with pytest.raises(ConfigError, match="cannot plot to"):
        plot_ladder(ladder, tmp_path / "a.docx")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_sentence_names_it(ladder: LadderResult, tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibrary, match="pip install matplotlib"):
        plot_ladder(ladder, tmp_path / "a.svg")
