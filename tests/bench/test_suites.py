"""bench.toml, files of one's own, and the commands that go by them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rawnn.bench.cases.ablation import ablated
from rawnn.bench.cases.ladder import check_rungs
from rawnn.bench.cases.sweep import problems
from rawnn.bench.record import read_results
from rawnn.bench.suites import PACKAGED, read_suites, schema
from rawnn.cli.bench import CASES
from rawnn.common.errors import ConfigError
from rawnn.model.workloads import workload
from tests.bench.measuring import invoke
from tests.engine import CAPABLE

ROOT = Path(__file__).parents[2]


def test_there_is_one_bench_toml() -> None:
    assert PACKAGED.is_symlink()
    assert PACKAGED.resolve() == ROOT / "bench.toml"


def test_the_packaged_suites_mean_something() -> None:
    suites = read_suites()
    check_rungs([*suites.ladder.base, *suites.ladder.rungs])
    for name in (*suites.workloads.names, *suites.peers.names, *suites.curves.names):
        workload(name)
    for suite in suites.ablation:
        assert ablated(suite, CAPABLE)
    assert sum(len(problems(s)) for s in suites.sweep) == 12
    assert {*CASES} >= set(suites.all.suites) >= {
        "ladder", "workloads", "toggles", "ablation", "sweep", "curves", "peers", "lower-bounds",
        "launches"}
    assert set(suites.all.shares) == set(suites.all.suites)


def own(tmp_path: Path, text: str) -> str:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return str(file)


def test_what_a_users_file_leaves_out_stays(tmp_path: Path) -> None:
    suites = read_suites(own(tmp_path, "[ladder]\nrepeats = 2\n[sample]\nn = 5\n"))
    assert suites.ladder.repeats == 2
    assert suites.ladder.rungs == read_suites().ladder.rungs
    assert (suites.sample.n, suites.sample.seed) == (5, read_suites().sample.seed)


def test_names_of_before_still_mean_the_same(tmp_path: Path) -> None:
    suites = read_suites(own(tmp_path, "[random]\nn = 5\n[floors]\nsamples = 3\n[all]\nsuites = "
                                       "['floors', 'random', 'peers']\n[all.shares]\nfloors = 7\n"))
    assert (suites.sample.n, suites.lower_bounds.samples) == (5, 3)
    assert suites.all.suites == ["lower-bounds", "sample", "peers"]
    assert suites.all.shares["lower-bounds"] == 7


@pytest.mark.parametrize(("text", "words"), [
    ("[ladder]\nrepeat = 2\n", r"unknown key 'repeat' in \[ladder\]; did you mean 'repeats'"),
    ("[laddr]\nrepeats = 2\n", "unknown key 'laddr'; did you mean 'ladder'"),
    ("[[sweep]]\nname='a'\nlayers=[]\nbatches=[1]\nsets=[]\nstep=1\n", "did you mean 'steps'"),
    ("[ladder]\nrepeats = 0\n", "Expected `int` >= 1"),
    ("[ladder\n", "own.toml is not valid TOML: .*line 1"),
    ("[toggles.compare]\nfuze = []",
     r"\[toggles.compare\]: no toggle is called 'fuze'; did you mean 'fuse'"),
    ('[toggles.compare]\nfuse = [{workloads = ["linear"], besides = "x"}]',
     r"unknown key 'besides' in \[toggles.compare.*\]; did you mean 'beside'"),
    ('[toggles.compare]\nfuse = [{workloads = ["mpl4"], beside = "x"}]', "did you mean 'mlp4'"),
    ('[workloads]\nnames = ["linea"]', r"\[workloads\]: unknown workload 'linea'; did you mean"),
    ('[workloads.sets]\nlinaer = ["best"]', r"\[workloads.sets\]: unknown workload 'linaer'"),
    ("[lower_bounds]\nsample = 3", "did you mean 'samples'"),
    ("[lower_bound]\nsamples = 3", "mean 'lower_bounds'"),
])
def test_what_means_nothing_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_suites(own(tmp_path, text))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the suites"):
        read_suites(str(tmp_path / "none.toml"))


def test_every_key_is_explained() -> None:
    """On the page, or by the docstring of its table."""
    page, found = (ROOT / "docs" / "suites.md").read_text(), set()
    for table in schema()["$defs"].values():
        found |= {*table["properties"]}
        for key in table["properties"]:
            assert f"`{key}`" in page + table.get("description", ""), key
    assert {"ladder", "rungs", "compare", "beside"} <= found


NEW_CASE = '''
from rawnn.bench.case import Case
from rawnn.bench.harness import Harness, Sample, Variant
from rawnn.bench.suites import Count, Settings, Suites


class SumsSuite(Settings, frozen=True, kw_only=True):
    sizes: list[Count]
    repeats: Count = 2


def measure(harness: Harness, suites: Suites) -> None:
    """Time sums."""
    harness.open("host", {})
    variants = [Variant("my-sums", f"size {size}", "", "step_us", {},
                        lambda turn, size=size: Sample({"step_us": size * (1.0 + turn)}))
                for size in suites.my_sums.sizes]
    harness.ask(variants)
    harness.interleave(variants, suites.my_sums.repeats)
    harness.end()


CASE = Case("my-sums", measure, (), settings=SumsSuite)
'''


def test_a_new_suite_is_its_case_and_its_table(tmp_path: Path) -> None:
    """It has a command, settings that are checked, a table of what it measured, and a block of the
    report."""
    cases = tmp_path / "cases"
    cases.mkdir()
    (cases / "new.py").write_text(NEW_CASE)
    bench = own(tmp_path, "[my_sums]\nsizes = [10, 1000]\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = (f"import sys, rawnn.bench.cases; rawnn.bench.cases.__path__.append({str(cases)!r})"
                f"; sys.argv = {['rawnn', 'bench', *arguments]!r}"
                "; from rawnn.__main__ import main; sys.exit(main())")
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              check=False, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"})

    markdown = tmp_path / "sums.md"
    done = run("my-sums", "--bench", bench, "--json", "sums.json", "--markdown", str(markdown))
    assert done.returncode == 0, done.stderr
    table = markdown.read_text().splitlines()
    assert table[0] == "| variant | step (us) | min-max of step_us |"
    assert table[2:4] == ["| size 10 | 15.0 | 10.0-20.0 |", "| size 1000 | 1,500 | 1,000-2,000 |"]
    assert run("report", "sums.json").returncode == 0
    assert "My sums" in (tmp_path / "report.html").read_text()
    bad = run("my-sums", "--bench", own(tmp_path, "[my_sums]\nsize = [10]\n"))
    assert bad.returncode
    assert "unknown key 'size' in [my_sums]; did you mean 'sizes'" in bad.stderr


def test_a_file_of_ones_own_says_what_is_run(tmp_path: Path) -> None:
    """Its base and rungs, its workloads and their toggles, and how often."""
    file = own(tmp_path, """
[ladder]
base = ["preload"]
rungs = ["fuse"]
repeats = 1
[workloads]
names = ["linear"]
repeats = 1
[workloads.sets]
linear = ["none,fuse"]
[toggles]
repeats = 1
[toggles.compare]
fuse = [{ workloads = ["linear"], beside = "none" }]
""")
    short = ["--bench", file, "--epochs", "1", "--dataset", "synthetic", "--device", "host"]
    ladder = invoke("ladder", *short[:-1], "sim", "--batch", "2000", "--json",
                    str(tmp_path / "l.json"))
    assert ladder.exit_code == 0, ladder.output
    assert [(e.variant, e.notes[0], len(e.samples("epoch_ms")))
            for e in read_results(tmp_path / "l.json").entries()] == [
        ("baseline", "toggles: preload", 1), ("fuse", "toggles: preload,fuse", 1)]
    for name, named, opts in (("workloads", (), ["none,fuse"]),
                              ("toggles", ("fuse",), ["none", "none,fuse"])):
        kept = tmp_path / f"{name}.json"
        done = invoke(name, *named, *short, "--json", str(kept))
        assert done.exit_code == 0, done.output
        assert [(e.case, e.variant) for e in read_results(kept).entries()] == [
            (f"{name}/linear", opt) for opt in opts]


def test_what_is_asked_for_on_the_command_line_counts_first(tmp_path: Path) -> None:
    file = own(tmp_path, '[ladder]\nrungs = ["fuse"]\nrepeats = 2\n')
    invoke("ladder", "--bench", file, "--rungs", "nosync", "--repeats", "1", "--epochs", "1",
           "--batch", "2000", "--dataset", "synthetic", "--device", "sim", "--json",
           str(tmp_path / "l.json"))
    found = read_results(tmp_path / "l.json").entries()
    assert [(e.variant, len(e.samples("epoch_ms"))) for e in found] == [("baseline", 1),
                                                                       ("nosync", 1)]


def test_an_ablation_without_a_gpu_is_refused() -> None:
    done = invoke("ablation", "--device", "host")
    assert isinstance(done.exception, ConfigError)
    assert "on a GPU only" in str(done.exception)


def test_an_ablation_on_the_simulated_gpu(tmp_path: Path) -> None:
    file = own(tmp_path, "[[ablation]]\nworkload='linear'\nfull='preload,fuse'\nbase='preload'\n"
                         "epochs=1\n")
    kept = tmp_path / "a.json"
    done = invoke("ablation", "--bench", file, "--device", "sim", "--dataset", "synthetic",
                  "--repeats", "1", "--json", str(kept))
    assert done.exit_code == 0, done.output
    found = {e.variant: e for e in read_results(kept).entries("ablation")}
    assert {"preload", "preload,fuse"} <= set(found)
    assert found["preload"].conditions["full"] == "preload,fuse"


def test_all_suites_are_measured_each_into_a_file_and_whole_ones_kept(tmp_path: Path) -> None:
    file = own(tmp_path, """
[peers]
names = ["linear"]
steps = 4
systems = ["numpy"]
[workloads]
names = ["linear"]
repeats = 1
epochs = { linear = 1 }
[workloads.sets]
linear = ["none"]
[all]
suites = ["peers", "workloads", "ablation"]
""")
    arguments = ("all", "--bench", file, "--device", "host", "--dataset", "synthetic", "--out",
                 str(tmp_path / "out"))
    done = invoke(*arguments)
    assert "1 of 3 suites failed (ablation)" in str(done.exception)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "peers.json", "peers.md", "workloads.json", "workloads.md"]
    before = (tmp_path / "out" / "peers.json").read_bytes()
    again = invoke(*arguments, "--budget", "60")
    assert again.output.count("is whole; remove it to measure again") == 2
    assert (tmp_path / "out" / "peers.json").read_bytes() == before
    unknown = invoke("all", "laddr")
    assert "did you mean 'ladder'" in str(unknown.exception)
