"""The report: one page of results files, without network or script; and `bench all`."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from rawnn.bench.curves import Curve, CurvesResult
from rawnn.bench.peers.problem import Problem
from rawnn.bench.peers.records import Contest, ContestsResult, Entry, Kind
from rawnn.bench.records import LadderResult
from rawnn.bench.suites import read_suites
from rawnn.cli import report as report_module
from rawnn.cli.bench import bench
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.engine.result import Environment
from tests import requires
from tests.bench.conftest import GPU, make_ladder, make_rung
from tests.slices import sliced

requires.module("jinja2")
RESULTS = Path(__file__).parents[2] / "results"
PLACE = Environment("0.1", "abc", "3.11", "Linux x86_64", "cuda", GPU, {"numpy": "2"}, {},
                    "2026-01-01T00:00:00+00:00")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)


def contests(kind: Kind, path: Path) -> str:
    made = []
    for number, width in enumerate((64, 128, 256)):
        problem = Problem(name=f"{'width' if kind == 'sweep' else 'seed'} {number}", seed=number,
                          layers=(16, width, 8), batch=32, loss="mse", optimizer="sgd", lr=0.1)
        made.append(Contest(problem=problem, entries=[
            Entry(system=s, numbers=n, form="<form>", status="measured", us=[u * width, u * width])
            for s, n, u in (("rawnn", "float32", 1.0), ("rawnn", "bf16", 0.5),
                            ("torch", "float32", 3.0), ("jax", "bf16", 0.9))]))
    ContestsResult(kind=kind, draw_version=1, asked=[c.problem for c in made], rounds=2,
                   systems=["rawnn", "torch", "jax"], left_out={}, environment=PLACE, timer={},
                   contests=made).write_json(path)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    ladder: LadderResult = make_ladder(
        make_rung("baseline", 20.0, 22.0), make_rung("fuse", 10.0, 11.0),
        make_rung("cudnn", 12.0, 12.5))
    ladder.write_json(tmp_path / "ladder.json")
    problems = [Problem(name=name, seed=0, layers=layers, batch=32, loss="cross_entropy",
                        optimizer="sgd", lr=0.1) for name, layers in
                (("linear", (784, 10)), ("wide128", (784, 128, 10)))]
    CurvesResult(
        environment=PLACE, systems=["rawnn"], left_out={}, steps={"linear": 4, "wide128": 4},
        problems=problems, curves=[
            Curve(workload="linear", system="rawnn", numbers="float32", form="best",
                  losses=[2.0, 1.0, None, 0.5], us=[5.0]),
            Curve(workload="wide128", system="rawnn", numbers="float32", form="best",
                  losses=[2.0, 1.0, 0.9, 0.5], us=[9.0])]).write_json(tmp_path / "curves.json")
    return [str(tmp_path / "curves.json"), str(tmp_path / "ladder.json"),
            contests("random-peers", tmp_path / "random.json"),
            contests("peers", tmp_path / "peers.json"), contests("sweep", tmp_path / "sweep.json"),
            str(RESULTS / "workloads-h200.json")]


def made(*arguments: str) -> str:
    done = CliRunner().invoke(bench, ["report", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return Path(arguments[arguments.index("--out") + 1]).read_text()


class Page(HTMLParser):
    """What a page asks for, and whether its elements are closed."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.anchors: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        assert tag != "script"
        self.asked += [v for k, v in values.items() if k in ("src", "href") and v]
        if tag == "section":
            self.anchors.append(values["id"] or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_has_a_section_for_each_file_in_a_fixed_order(files: list[str],
                                                             tmp_path: Path) -> None:
    text = made(*files, "--out", str(tmp_path / "r.html"))
    page = Page(text)
    assert page.open == []
    assert page.anchors == ["ladder", "random", "peers", "sweep", "curves", "workloads"]
    assert {a for a in page.asked if a.startswith("#")} >= {f"#{a}" for a in page.anchors}
    assert text.count("<svg") == 7
    assert "examples a second" in text
    assert "loss at the end of the curves" in text
    assert "currentColor" in text
    assert "&lt;form&gt;" in text  # what a file says is never taken for markup


def test_a_page_asks_for_nothing_from_elsewhere(files: list[str], tmp_path: Path) -> None:
    text = made(*files, "--out", str(tmp_path / "r.html"))
    assert all(a.startswith(("#", "data:")) for a in Page(text).asked)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)", text)


def test_the_kept_results_make_a_page(tmp_path: Path) -> None:
    """A third of them, others in the next slice."""
    kept, some = sorted(RESULTS.glob("*.json")), tmp_path / "results"
    some.mkdir()
    for path in sliced(kept, len(kept) // 3):
        (some / path.name).symlink_to(path)
    text = made(str(some), "--out", str(tmp_path / "r.html"), "--title", "Ours & others")
    assert "Ours &amp; others" in text
    anchors, titles = Page(text).anchors, re.findall(r"<h2>(.*?)</h2>", text)
    assert len(anchors) == len(set(anchors))
    assert len(titles) == len(set(titles)), titles


def test_the_newest_of_several_files_of_one_kind_comes_first(files: list[str],
                                                             tmp_path: Path) -> None:
    older = next(f for f in files if "random" in Path(f).stem)
    newer = tmp_path / "zz.json"
    newer.write_text(Path(older).read_text().replace("2026-01-01T", "2026-02-01T"))
    text = made(*files, str(newer), "--out", str(tmp_path / "r.html"))
    titles = [t for t in re.findall(r"<h2>(.*?)</h2>", text) if "Random" in t]
    assert [t.split(": ")[1] for t in titles] == ["zz", Path(older).stem]


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"kind": "song"}')
    out = ("--out", str(tmp_path / "r.html"))
    done = CliRunner().invoke(bench, ["report", str(tmp_path / "x.json"), *out])
    assert isinstance(done.exception, ConfigError)
    assert "has no section" in str(done.exception)
    done = CliRunner().invoke(bench, ["report", str(tmp_path), *out])
    assert "no results to report on" in str(done.exception)


@pytest.mark.skipif(BROWSER is None, reason=requires.tool("Chromium", "chromium"))
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


# -- bench all -----------------------------------------------------------------------------------


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands in place of the suites' own, which write a file and say so."""
    ran: list[str] = []

    def command(name: str) -> click.Command:
        @click.command(name)
        @click.option("--json", "json_file")
        @click.option("--budget", type=float)
        def run(json_file: str, budget: float | None = None) -> None:
            ran.append(name)
            if name == "workloads":
                raise RawnnError("nothing runs here")
            Path(json_file).write_bytes(msgspec.json.encode({"kind": name}))

        return run

    for name in ("ladder", "workloads", "curves"):
        monkeypatch.setitem(bench.commands, name, command(name))
    return ran


def run_all(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(bench, ["all", "ladder", "workloads", "curves", "--out",
                                      str(tmp_path / "out"), *arguments])


def test_all_goes_on_after_a_suite_that_fails_and_keeps_what_is_whole(
        tmp_path: Path, suites: list[str]) -> None:
    done = run_all(tmp_path)
    assert isinstance(done.exception, RawnnError)
    assert "1 of 3 suites failed (workloads)" in str(done.exception)
    assert suites == ["ladder", "workloads", "curves"]
    again = run_all(tmp_path)
    assert suites[3:] == ["workloads"]
    assert "ladder.json is whole" in again.output


def test_all_goes_on_after_a_fault_of_a_suite(tmp_path: Path, suites: list[str],
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("ladder")
    @click.option("--json", "json_file")
    def broken(json_file: str) -> None:
        raise KeyError("us")

    monkeypatch.setitem(bench.commands, "ladder", broken)
    done = run_all(tmp_path)
    assert "2 of 3 suites failed (ladder, workloads)" in str(done.exception)
    assert "ladder: KeyError: 'us'" in done.output
    assert suites == ["workloads", "curves"]


def test_what_was_interrupted_is_measured_again(tmp_path: Path, suites: list[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ladder.json").write_text('{"kind": "ladder", "interrupted": true}')
    run_all(tmp_path)
    assert suites[0] == "ladder"


def test_no_suite_is_begun_beyond_the_budget(tmp_path: Path, suites: list[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(report_module, "monotonic", lambda: next(clock))
    done = run_all(tmp_path, "--budget", "15")
    assert "spent before workloads" in str(done.exception)
    assert suites == ["ladder"]


def test_each_suite_has_its_share_of_the_time_and_what_was_left(
        tmp_path: Path, suites: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [0.0], []

    def command(name: str, takes: float) -> click.Command:
        @click.command(name)
        @click.option("--json", "json_file")
        @click.option("--budget", type=float)
        def run(json_file: str, budget: float) -> None:
            given.append((name, budget))
            now[0] += takes

        return run

    monkeypatch.setattr(report_module, "monotonic", lambda: now[0])
    takings = (("ladder", 30.0), ("workloads", 320.0), ("curves", 1.0))
    for name, takes in takings:
        monkeypatch.setitem(bench.commands, name, command(name, takes))
    shares = read_suites(None).all.shares
    all_shares = sum(shares[name] for name, _ in takings)
    mine = {name: shares[name] * 500 / all_shares for name, _ in takings}
    run_all(tmp_path, "--budget", "500")
    assert given[0] == ("ladder", pytest.approx(mine["ladder"]))
    assert given[1] == ("workloads", pytest.approx(mine["ladder"] + mine["workloads"] - 30))
    assert given[2] == ("curves", 150)  # the last has all that is left
    now[0], given[:] = 0, []
    for name in ("ladder", "workloads"):
        (tmp_path / "out" / f"{name}.json").write_bytes(msgspec.json.encode({"kind": name}))
    run_all(tmp_path, "--budget", "500")
    assert given == [("curves", 500)]  # what is whole has no share


def test_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["all", "lader", "--out", str(tmp_path)])
    assert "did you mean 'ladder'" in str(done.exception)
