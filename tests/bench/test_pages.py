"""Pages say what the results say, and no table of them mixes what must not be compared."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import pytest

import tools.pages
from rawnn.bench.record import Results
from rawnn.bench.render.grid import Grid
from rawnn.bench.render.networks import networks
from rawnn.bench.render.random_networks import samples_of
from rawnn.bench.render.suites import SUITES
from rawnn.opts import TOGGLES
from tests import requires
from tests.bench.built import entry, place, results
from tests.bench.test_many_rendering import kept
from tests.bench.typed import PAGES, ROOT, typed
from tests.slices import sliced
from tools import trials
from tools.pages import (
    FRONT_CLASSES,
    MEASURED,
    MOST_SLOWER,
    NOT_MEASURED,
    OTHERS,
    PICTURES,
    SAMPLE,
    Block,
    checked,
    filled,
    losses,
    missing,
    pages,
    results_of,
    speedups,
)


def test_no_page_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not missing(), missing()
    monkeypatch.setitem(TOGGLES, "shrink", TOGGLES["fuse"])
    assert missing() == "there is no docs/toggles/shrink.md: figures go there, and " \
                        "CONTRIBUTING.md says what a toggle's page holds"
    monkeypatch.setitem(TOGGLES, "shrink", replace(TOGGLES["fuse"], name="shrink"))
    monkeypatch.setattr(tools.pages, "MEASURED", MEASURED[:1])  # the other blocks take seconds
    monkeypatch.setattr(tools.pages, "OTHERS", {})
    assert "docs/toggles/shrink.md" not in pages()
    with pytest.raises(SystemExit, match=r"no docs/toggles/shrink\.md"):
        tools.pages.main()
    monkeypatch.undo()
    monkeypatch.setattr(trials, "read_trials", lambda: iter([("docs/nowhere.md", "tried", "")]))
    assert missing().startswith("there is no docs/nowhere.md")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


WRITTEN = sorted({*(block.page for block in MEASURED), *OTHERS,
                  *(page for page, _, _ in trials.read_trials()),
                  *(f"docs/toggles/{name}.md" for name in TOGGLES)})


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_says_what_the_results_say(page: str, made: dict[str, str]) -> None:
    if page not in made:
        pytest.skip("there is no such page, as another test says")
    assert (ROOT / page).read_text(encoding="utf-8") == made[page], "run python tools/pages.py"


def texts(svg: str) -> list[str]:
    """What a picture says: its title, its labels, the figures beside its bars."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def without_ids(svg: str) -> str:
    """A picture without names of clip paths: digests of floats, whose last bits NumPy may
    change."""
    return re.sub(r"\bp[0-9a-f]{10}\b", "", svg)


@pytest.mark.parametrize("picture", sliced(
    PICTURES, 4, kind=lambda name: name.partition("-")[0]))
def test_a_picture_shows_what_the_results_say(picture: str) -> None:
    requires.module("matplotlib")
    kept, drawn = (ROOT / picture).read_text(encoding="utf-8"), PICTURES[picture].svg() + "\n"
    assert texts(drawn)
    assert texts(kept) == texts(drawn), "run python tools/pages.py"
    versions = {re.findall(r'data-matplotlib="([\d.]+)"', svg)[0] for svg in (kept, drawn)}
    if len(versions) == 1:  # another version may place marks otherwise
        assert without_ids(kept) == without_ids(drawn), "run python tools/pages.py"


def test_every_picture_is_shown_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not [p for p in PICTURES if p not in text]
    assert {f"results/{p.name}" for p in (ROOT / "results").glob("*.svg")} == set(PICTURES)


def test_the_pages_say_how_many_networks_there_were_and_what_each_sample_gave(
        made: dict[str, str]) -> None:
    found = results_of(SAMPLE)
    several = len(samples_of(found))
    assert f"{len(networks(found, 'sample'))} random networks" in " ".join(
        made["README.md"].split())
    own = made[tools.pages.RESULTS_PAGE]
    assert ("Geometric means of the random samples (seeds " in own) == (several > 1)


def test_the_first_page_has_four_precisions_as_the_page_of_the_peers_has_them(
        made: dict[str, str]) -> None:
    front, own = ({cells[0]: cells for line in made[page].splitlines() if line.startswith("| ")
                   and len(cells := [c.strip("* ") for c in line.strip("|").split("|")]) > 3
                   and (page == "README.md" or (cells[1] == "the best peer" and "(seed " in line))}
                  for page in ("README.md", tools.pages.RESULTS_PAGE))
    assert list(front)[1:] == list(FRONT_CLASSES)
    for name in FRONT_CLASSES:
        mean, interval, worst, networks = front[name][1:]
        _, _, *there = own[name]
        assert [mean, interval] == there[:2]
        assert there[3].startswith(f"{worst} (seed ")
        assert there[4].endswith(f" of {networks}")


def mixed(**second: object) -> Results:
    """Two entries, the second of which differs in something."""
    places = [place(), place(**{k: str(v) for k, v in second.items() if k in ("commit", "gpu")},
                             date="2026-01-02")]
    return results(*(entry("workloads/mlp4", f"best,{n}", {"epoch_ms": [1.0]}, where=where,
                           epochs=second.get("epochs", 3) if n else 3)
                     for n, where in enumerate(places)), places=places)


@pytest.mark.parametrize(("second", "why"), [
    ({"epochs": 20}, r"a\.md, x: one table would have rows of unequal epochs: 'mlp4 best,0' has 3, "
                     r"'mlp4 best,1' has 20; split the table"),
    ({"commit": "fff0000"}, "unequal commits: .* has abc1234def, .* has fff0000"),
    ({"gpu": "NVIDIA H100"}, "unequal GPUs: .* has NVIDIA Test GPU, .* has NVIDIA H100")])
def test_a_table_that_mixes_what_must_not_be_compared_is_refused(
        second: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mixed(**second)

    def together(results: Results) -> list[Grid]:
        return [Grid(("a",), [["x"], ["y"]], entries=results.entries("workloads"))]

    monkeypatch.setattr(tools.pages, "results_of", lambda name: found)
    with pytest.raises(ValueError, match=why):
        Block("a.md", "x", "any", together).text()
    # The suite's own tables keep them apart, so that the same results make a page.
    assert Block("a.md", "x", "any", SUITES["workloads"].grids).text().count("|---|") == 2


DOCTORED = {"commit": "0123456789abcdef", "gpu": "NVIDIA Other GPU"}


def doctored(found: Results, what: str, block: Block) -> Results:
    """Results in which one entry of the first table of a block is said to be of another commit or
    GPU."""
    first = block.grids(found)[0].entries[-1]
    real = found.place(first)
    gpu = {**(real.gpu or {}), **({"name": DOCTORED["gpu"]} if what == "gpu" else {})}
    other = msgspec.structs.replace(
        real, gpu=gpu, commit=DOCTORED["commit"] if what == "commit" else real.commit)
    assert other.key != real.key
    records = [msgspec.structs.replace(r, environment=other.key)
               if (r.case, r.variant, r.precision) == (first.case, first.variant, first.precision)
               else r for r in found.records]
    return Results(environments={**found.environments, other.key: other}, ended=found.ended,
                   records=records)


@pytest.mark.parametrize(("block", "what"), sliced(
    [pytest.param(block, what, id=f"{block.page}, {block.name}-{what}")
     for block in MEASURED for what in DOCTORED], 12))
def test_a_doctored_record_gets_a_table_of_its_own_or_is_refused(
        block: Block, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results_before = results_of(block.file)
    found = doctored(results_before, what, block)
    monkeypatch.setattr(tools.pages, "results_of",
                        lambda name: found if name == block.file else results_of(name))
    if any(len({found.place(e).commit if what == "commit" else found.place(e).machine
                for e in grid.entries}) > 1 for grid in block.grids(found)):
        with pytest.raises(ValueError, match=f"(?i)unequal {what}s"):
            block.text()
        return
    text = block.text()
    shown = {e.environment for grid in block.grids(found) for e in grid.entries}
    assert DOCTORED[what][:7] in text or shown <= results_before.environments.keys()


@pytest.mark.parametrize("what", DOCTORED)
def test_the_ladder_is_refused_with_a_doctored_rung(what: str,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    block = next(b for b in MEASURED if b.name == "ladder")
    found = doctored(results_of(block.file), what, block)
    monkeypatch.setattr(tools.pages, "results_of", lambda name: found)
    with pytest.raises(ValueError, match="unequal commits" if what == "commit"
                       else "unequal GPUs"):
        block.text()
    monkeypatch.setattr(tools.tutorial, "results_of", lambda name: found)
    with pytest.raises(ValueError, match=r"number best: .* unequal"):
        tools.tutorial.number("best")


def test_every_network_on_which_rawnn_is_slower_says_where_it_was_measured() -> None:
    assert losses() == sorted(losses())
    assert all(loss.ratio < 1 for loss in losses())
    for loss in losses():
        assert re.fullmatch(r".*NVIDIA H\d+.*((\d{4}-\d\d-\d\d, )?commit [0-9a-f]{7}"
                            r"|commit not recorded)", loss.where), loss
    front, own = tools.pages.slower(), tools.pages.all_slower()
    assert front.count(" x in ") == MOST_SLOWER
    assert own.count("| JAX |") + own.count("| PyTorch |") == len(losses())
    # Computed by itself: the widest network of the sweep, JAX in tf32 over rawnn in float32.
    sweep = results_of("sweep-h200")

    def fastest(system: str, precision: str) -> float:
        case = "sweep/width 784-8192-8192-8192-10 batch 32"
        return min(median(r.samples) for r in sweep.records if r.metric == "step_us"
                   and (r.case, r.precision) == (case, precision)
                   and r.conditions["system"] == system and r.samples)

    ratio = min(fastest("jax", "tf32"), fastest("torch", "tf32")) / fastest("rawnn", "float32")
    assert f"| {ratio:.2f} x |" in own


def test_a_table_of_unknown_origin_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.md: a table does not say what its rows were made of"):
        checked(results(), Grid(("a",), [["1"]]), "a.md")


@pytest.mark.parametrize("block", MEASURED, ids=lambda b: f"{b.page}, {b.name}")
def test_no_declared_table_mixes_epochs_gpus_or_commits(block: Block) -> None:
    found = results_of(block.file)
    assert block.grids(found)
    for grid in block.grids(found):
        assert len({found.place(e).machine for e in grid.entries}) == 1
        assert len({found.place(e).commit for e in grid.entries}) == 1
        assert len({e.conditions.get("epochs") for e in grid.entries}) == 1


def test_a_toggle_that_nobody_has_measured_says_so() -> None:
    assert speedups(TOGGLES["fuse"], []) == NOT_MEASURED


def test_blocks_are_filled_and_what_is_around_them_stays() -> None:
    text = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\n<!-- /y -->\n"
    assert filled(text, {"x": "new\n"}) == text.replace("old", "new")


@pytest.mark.parametrize("text", ["", "<!-- x -->\n", "<!-- /x -->\n<!-- x -->\n",
                                  "<!-- x -->\n<!-- /x -->\n" * 2])
def test_a_page_without_the_comments_of_a_block_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"<!-- /?x -->"):
        filled(text, {"x": "new\n"})


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_measured_figure_typed_in(page: Path) -> None:
    found = typed(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    assert not found, "keep it in results/trials (tools/trials.py), or say it in words"


def test_a_suite_that_was_not_measured_says_so(monkeypatch: pytest.MonkeyPatch,
                                               tmp_path: Path) -> None:
    monkeypatch.setattr(tools.pages, "RESULTS", tmp_path)
    said = tools.pages.where_kept("many", ("many-x", "many-y"), "../../results")
    assert said.startswith("Nothing has been measured yet: `python -m rawnn bench many")
    (tmp_path / "many-y.json").write_text("")
    monkeypatch.setattr(tools.pages, "results_of", lambda name: {"many-y": kept()}[name])
    shown = tools.pages.where_kept("many", ("many-x", "many-y"), "../../results")
    assert shown.startswith("![many throughput](../../results/many-throughput.svg)\n"
                            "![many ratio](../../results/many-ratio.svg)\n\nRandom ensembles")
    assert "| A: 20-64-64-3, batch 32, mse, sgd | 16 | float32 against tf32 |" in shown


def test_the_first_page_has_many_networks_where_they_were_measured(
        monkeypatch: pytest.MonkeyPatch) -> None:
    found = results_of(SAMPLE)
    monkeypatch.setattr(tools.pages, "first_kept", lambda names: "")
    assert not tools.pages.against_the_best(found)[0].notes
    monkeypatch.setattr(tools.pages, "first_kept", lambda names: "many-x")
    monkeypatch.setattr(tools.pages, "results_of", lambda name: kept())
    [note] = tools.pages.against_the_best(found)[0].notes
    assert " ".join(note.split()) == (
        "[Many networks at once](docs/guides/many-networks.md), in tf32 against the faster peer: "
        "**1.58 x** on 2 random ensembles (worst 0.50 x), **5.00 x** on 2 named ensembles (worst "
        "5.00 x) (NVIDIA Test GPU, 2026-01-01, commit abc1234).")


def test_lines_of_the_first_page_that_a_tool_writes_are_at_most_120_characters_long(
        made: dict[str, str]) -> None:
    assert not [line for line in made["README.md"].splitlines() if len(line) > 120]
