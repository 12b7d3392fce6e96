"""The report: one page of results files, without network or script; and `bench all`."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
from click.testing import CliRunner

from rawnn.bench.case import Case
from rawnn.bench.record import Environment, Record, Results, read_all
from rawnn.bench.render import html_report
from rawnn.bench.render.html_report import parts_of
from rawnn.bench.suites import read_suites
from rawnn.cli import bench as bench_module
from rawnn.cli.bench import bench
from rawnn.common.errors import ConfigError, RawnnError
from tests import requires
from tests.bench.built import entry, place, programs, results, rung
from tests.slices import sliced

requires.module("jinja2")
requires.module("matplotlib")
RESULTS = Path(__file__).parents[2] / "results"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)
TIMES = {("rawnn", "float32"): 10.0, ("rawnn", "bf16"): 5.0, ("torch", "tf32"): 30.0,
         ("torch", "bf16"): 12.0, ("jax", "tf32"): 20.0, ("jax", "bf16"): 4.0}
OLD = Path(__file__).with_name("old_results")


def sample(*seeds: int, where: Environment | None = None, slower: bool = True) -> Results:
    """Networks of which rawnn is slower in bf16, unless it is not."""
    times = {**TIMES, **({} if slower else {("jax", "bf16"): 40.0})}
    return results(*(programs(f"sample/{n}", times, layers=(16, 64 * n, 8), seed=n, where=where)
                     for n in seeds), places=[where or place()])


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    kept = {
        "ladder": results(rung("baseline", 20.0, 22.0), rung("fuse", 10.0, 11.0),
                          rung("cudnn", 12.0, 12.5)),
        "sample": sample(1, 2), "peers": results(programs("peers/mlp4", TIMES)),
        "sweep": results(*(programs(f"sweep/width {n}", TIMES, layers=(16, n, 8))
                           for n in (64, 128))),
        "curves": results(*(entry(
            f"curves/{name}", "rawnn best", {"loss": [2.0, 1.0, 0.5], "step_us": [5.0]},
            system="rawnn", form="best", layers=layers, batch=32) for name, layers in
            (("linear", [784, 10]), ("wide128", [784, 128, 10]))))}
    for name, found in kept.items():
        found.write(tmp_path / f"{name}.json")
    return [*(str(tmp_path / f"{name}.json") for name in kept), str(OLD / "workloads.json")]


def made(*arguments: str) -> str:
    done = CliRunner().invoke(bench, ["report", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return Path(arguments[arguments.index("--out") + 1]).read_text()


class Page(HTMLParser):
    """What a page asks for, its anchors, and whether its elements are closed."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.anchors: list[str] = []
        self.sections: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag != "script"
        self.asked += [v for k, v in values.items() if k in ("src", "href") and v]
        if tag == "section":
            self.sections.append(values["id"] or "")
        if tag in ("section", "h2") and values.get("id"):
            self.anchors.append(values["id"] or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_has_a_block_for_each_suite_in_a_fixed_order(files: list[str], tmp_path: Path
                                                            ) -> None:
    text = made(*files, "--out", str(tmp_path / "r.html"))
    page = Page(text)
    assert page.open == []
    # The newest GPU comes first: the older file was measured in 2026-11 on an H200.
    assert page.sections == ["workloads", *(f"gpu-2-{suite}" for suite in (
        "ladder", "sample", "peers", "sweep", "curves"))]
    linked = {a for a in page.asked if a.startswith("#")}
    assert linked == {f"#{a}" for a in page.anchors}
    assert text.count("<svg") == 7
    assert "examples a second" in text
    assert "&lt;form&gt;" in text  # what a file says is never taken for markup


def test_a_page_asks_for_nothing_from_elsewhere(files: list[str], tmp_path: Path) -> None:
    text = made(*files, "--out", str(tmp_path / "r.html"))
    assert all(a.startswith(("#", "data:")) for a in Page(text).asked)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", text)


def test_losses_stand_beside_wins(tmp_path: Path) -> None:
    sample(1, 2).write(tmp_path / "s.json")
    [part] = parts_of(read_all(tmp_path / "s.json"))
    assert part.wins is not None
    assert part.losses is not None
    assert ["Random networks", "float32 against tf32", "2.00x", "2.00-2.00", "2 of 2", "2.00x"] \
        in [list(row) for row in part.wins.rows]
    # bf16 takes 5 us and JAX 4: 0.8 times; so does the fastest precision of each.
    assert sorted(tuple(row[2:]) for row in part.losses.rows) == sorted(
        [(name, "JAX", "0.80x") for name in ("bf16 against bf16", "fastest against fastest")] * 2)
    assert "Where rawnn is slower" in made(str(tmp_path / "s.json"), "--out",
                                           str(tmp_path / "r.html"))
    sample(1, slower=False).write(tmp_path / "t.json")
    [other] = parts_of(read_all(tmp_path / "t.json"))
    assert other.losses is not None
    assert (other.losses.rows, list(other.losses.notes)) == (
        [], ["No network of these is slower."])


def test_each_number_of_the_first_screen_stands_in_its_block(tmp_path: Path) -> None:
    sample(1, 2).write(tmp_path / "s.json")
    [part] = parts_of(read_all(tmp_path / "s.json"))
    assert [card.number for card in part.cards] == ["2.00x", "0.80x", "2.00x", "1.0 s"]
    block = "\n".join(grid.markdown() for grid in part.blocks[0].grids)
    assert all(card.number.removesuffix("x").removesuffix(" s") in block for card in part.cards)
    assert part.cards[2].small == "slower in 0 of 2"


def test_each_gpu_has_a_part_of_its_own_and_an_older_commit_a_badge(tmp_path: Path) -> None:
    newer, older, other = (place(date="2026-03-01"), place(commit="0123456", date="2026-02-01"),
                           place(gpu="NVIDIA Other GPU", date="2026-01-01"))
    sample(1, where=newer).write(tmp_path / "a.json")
    sample(2, where=older).write(tmp_path / "b.json")
    sample(3, where=other).write(tmp_path / "c.json")
    mine, others = parts_of(read_all(tmp_path))
    assert [part.machine for part in (mine, others)] == ["NVIDIA Test GPU", "NVIDIA Other GPU"]
    assert [(b.title, b.badge) for b in mine.blocks] == [
        ("Random networks: a", ""), ("Random networks: b", "2026-02-01, 0123456")]
    assert "Not all of one commit" in mine.warnings[0]
    assert others.warnings == []
    assert mine.environments is not None
    assert [row[0] for row in mine.environments.rows] == ["a", "b"]
    for part in (mine, others):
        for block in part.blocks:
            for grid in block.grids:
                assert len({e.environment for e in grid.entries}) == 1


def test_what_failed_ended_early_or_was_simulated_is_a_warning(tmp_path: Path) -> None:
    simulated = place(device="sim")
    found = results(rung("baseline", 1.0, where=simulated),
                    rung("fuse", status="failed", reason="x", where=simulated),
                    places=[simulated], ended={"ladder": "Ctrl-C"})
    found.write(tmp_path / "a.json")
    [part] = parts_of(read_all(tmp_path / "a.json"))
    words = " ".join(part.warnings)
    assert "SIMULATED" in words
    assert "ended early: Ctrl-C" in words
    assert "1 entry of rawnn failed" in words
    found.write(tmp_path / "b.json")
    [part] = parts_of(read_all(tmp_path))
    assert sum("1 entry of rawnn failed" in warning for warning in part.warnings) == 1


@pytest.fixture(scope="module")
def kept_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of some files of each kind in results/, others in the next slice."""
    folder = tmp_path_factory.mktemp("kept")
    for path in sliced(sorted(RESULTS.glob("*.json")), kind=lambda p: p.name.partition("-")[0]):
        shutil.copy(path, folder)
    return made(str(folder), "--out", str(folder / "r.html"), "--title", "Ours & others")


def test_the_kept_results_make_a_page(kept_page: str) -> None:
    text = kept_page
    assert "Ours &amp; others" in text
    page = Page(text)
    assert page.open == []
    assert len(page.anchors) == len(set(page.anchors))
    assert {f"#{a}" for a in page.anchors} == {a for a in page.asked if a.startswith("#")}
    assert len(text) < 2_000_000


def test_what_is_no_result_is_refused_by_name_and_skipped_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"kind": "song"}')
    out = ("--out", str(tmp_path / "r.html"))
    done = CliRunner().invoke(bench, ["report", str(tmp_path / "x.json"), *out])
    assert isinstance(done.exception, ConfigError)
    assert "holds 'song', which is no results file" in str(done.exception)
    done = CliRunner().invoke(bench, ["report", str(tmp_path), *out])
    assert "no results to report on" in str(done.exception)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("size", ["390,844", "1280,900"])
def test_a_browser_shows_the_page_without_a_complaint(files: list[str], tmp_path: Path,
                                                      size: str) -> None:
    assert BROWSER is not None
    page, picture = tmp_path / "r.html", tmp_path / "r.png"
    made(*files, "--out", str(page))
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}",
         "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}",
         f"--screenshot={picture}", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False)
    assert picture.exists(), done.stderr[-2000:]
    assert picture.stat().st_size > 10_000
    assert "CONSOLE" not in done.stderr


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_folded_page_of_results_is_short_and_never_scrolls_sideways(
        kept_page: str, tmp_path: Path) -> None:
    """One page for both widths: to render it takes far longer than to show it. Older files of a
    kind are folded into one line, so that a slice is nearly as high as all of them."""
    assert BROWSER is not None
    page = tmp_path / "r.html"
    said = kept_page.replace("</main>", """</main><script>
        const e = document.documentElement;
        document.title = `${e.scrollHeight} ${e.scrollWidth} ${e.clientWidth}`;</script>""")
    page.write_text(said)
    for width, most in ((1400, 2500), (500, 3600)):
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
             f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=120, check=False)
        height, wide, shown = map(int, re.findall(r"<title>(\d+) (\d+) (\d+)</title>",
                                                  done.stdout)[0])
        assert height <= most, width
        assert wide == shown, width


def test_older_runs_of_a_suite_are_folded_and_warned_of_once(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        found = sample(number, where=place(date=f"2026-03-0{number}"))
        found.ended["sample"] = f"the budget of {number} s was spent"
        found.write(tmp_path / f"{number}.json")
    [part] = parts_of(read_all(tmp_path))
    assert [block.title for block in part.newest] == ["Random networks: 3"]
    assert [block.title for block in part.older] == ["Random networks: 2", "Random networks: 1"]
    assert [w for w in part.warnings if "ended early" in w] == [
        "Random networks ended early in 3 files: the lines below their tables say why."]
    text = made(str(tmp_path), "--out", str(tmp_path / "r.html"))
    assert "<b>Older runs</b><span>2 earlier files" in text


@pytest.mark.parametrize(("count", "notes"), [
    (0, ["No network of these is slower."]), (1, []), (5, []),
    (6, ["1 more is in the blocks below"]), (8, ["3 more are in the blocks below"])])
def test_the_slowest_networks_come_first_of_those_that_are_slower(
        monkeypatch: pytest.MonkeyPatch, count: int, notes: list[str]) -> None:
    torch: Any = SimpleNamespace(conditions={"system": "torch"})
    ratios = [0.25, 0.9, 0.75, 0.5, 0.125, 0.99, 0.375, 0.875][:count]
    of = {"sample": ratios[::2], "grid": ratios[1::2]}
    monkeypatch.setattr(html_report, "_newest", lambda found: [(s, s, None) for s in of])
    monkeypatch.setattr(html_report.random_networks, "losses", lambda suite: [
        (ratio, f"net {ratio}", "tf32", None, torch) for ratio in of[suite]])
    grid = html_report._losses([])
    assert grid is not None
    assert [*grid.notes] == notes
    titles = {s: html_report.SUITES[s].title for s in of}
    assert grid.rows == [[titles["sample" if r in of["sample"] else "grid"], f"net {r}", "tf32",
                          "PyTorch", f"{r:.2f}x"] for r in sorted(ratios)[:5]]


# -- bench all -----------------------------------------------------------------------------------


def whole(name: str) -> Results:
    """A results file of a suite in which nothing is left to measure."""
    return results([Record(case=name, variant="best", precision="float32", metric="epoch_ms",
                           samples=[1.0], environment=place().key)])


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Suites that write a file in place of those that measure, with the budgets they were given."""
    ran: list[tuple[str, float]] = []

    def measure(case: Case, file: Path, left: float, *others: Any) -> None:
        ran.append((case.name, left))
        if case.name == "workloads":
            raise RawnnError("nothing runs here")
        whole(case.name).write(file)

    monkeypatch.setattr(bench_module, "_measure", measure)
    return ran


@pytest.mark.parametrize("name", read_suites(None).all.suites)
def test_all_gives_each_suite_the_options_that_it_takes(name: str, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(bench_module, "run_case", create_autospec(
        bench_module.run_case, side_effect=lambda case, options, *rest: given.append(options)))
    bench_module._measure(bench_module.CASES[name], tmp_path / f"{name}.json", 60.0, None, "sim",
                          "mnist")
    given[0].pop("budget", None)  # the harness has it
    signature(bench_module.CASES[name].measure).bind("harness", "suites", **given[0])


def run_all(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(bench, ["all", "ladder", "workloads", "curves", "--out",
                                      str(tmp_path / "out"), *arguments])


def test_all_goes_on_after_a_suite_that_fails_and_keeps_what_is_whole(
        tmp_path: Path, suites: list[tuple[str, float]]) -> None:
    done = run_all(tmp_path)
    assert isinstance(done.exception, RawnnError)
    assert "1 of 3 suites failed (workloads)" in str(done.exception)
    assert [name for name, _ in suites] == ["ladder", "workloads", "curves"]
    again = run_all(tmp_path)
    assert [name for name, _ in suites[3:]] == ["workloads"]
    assert "ladder.json is whole" in again.output


def test_all_goes_on_after_a_fault_of_a_suite(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def measure(case: Case, *others: Any) -> None:
        ran.append(case.name)
        if case.name == "ladder":
            raise KeyError("us")

    monkeypatch.setattr(bench_module, "_measure", measure)
    done = run_all(tmp_path)
    assert "1 of 3 suites failed (ladder)" in str(done.exception)
    assert "ladder: KeyError: 'us'" in done.output
    assert ran == ["ladder", "workloads", "curves"]


def test_what_was_interrupted_is_measured_again(tmp_path: Path,
                                                suites: list[tuple[str, float]]) -> None:
    (tmp_path / "out").mkdir()
    found = whole("ladder")
    found.ended["ladder"] = "it was interrupted"
    found.write(tmp_path / "out" / "ladder.json")
    run_all(tmp_path)
    assert suites[0][0] == "ladder"


def test_no_suite_is_begun_beyond_the_budget(tmp_path: Path, suites: list[tuple[str, float]],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(bench_module, "monotonic", lambda: next(clock))
    done = run_all(tmp_path, "--budget", "15")
    assert "spent before workloads" in str(done.exception)
    assert [name for name, _ in suites] == ["ladder"]


def test_each_suite_has_its_share_of_the_time_and_what_was_left(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [0.0], []
    takings = {"ladder": 30.0, "workloads": 320.0, "curves": 1.0}

    def measure(case: Case, file: Path, left: float, *others: Any) -> None:
        given.append((case.name, left))
        now[0] += takings[case.name]

    monkeypatch.setattr(bench_module, "_measure", measure)
    monkeypatch.setattr(bench_module, "monotonic", lambda: now[0])
    shares = read_suites(None).all.shares
    all_shares = sum(shares[name] for name in takings)
    mine = {name: shares[name] * 500 / all_shares for name in takings}
    run_all(tmp_path, "--budget", "500")
    assert given[0] == ("ladder", pytest.approx(mine["ladder"]))
    assert given[1] == ("workloads", pytest.approx(mine["ladder"] + mine["workloads"] - 30))
    assert given[2] == ("curves", 150)  # the last has all that is left
    now[0], given[:] = 0, []
    for name in ("ladder", "workloads"):
        whole(name).write(tmp_path / "out" / f"{name}.json")
    run_all(tmp_path, "--budget", "500")
    assert given == [("curves", 500)]  # what is whole has no share


def test_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["all", "lader", "--out", str(tmp_path)])
    assert "did you mean 'ladder'" in str(done.exception)
