"""Figures that were measured once have one owner, and no page has a measured figure typed in."""

import re
from pathlib import Path

import pytest

from tests.bench.test_docs import prose
from tools import trials

ROOT = Path(__file__).parents[2]
FILE = """page = "docs/a.md"

[tried]
about = "Microseconds of a form."
gpu = "NVIDIA H200"
columns = ["form", "us", "commit"]
rows = [["first", "1.50", "abc1234"], ["second", "", "unknown"]]
"""


def test_a_table_of_trials_becomes_the_text_of_its_block(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    [(page, block, text)] = trials.read_trials(tmp_path)
    assert (page, block) == ("docs/a.md", "tried")
    assert text.splitlines() == [
        "Microseconds of a form.", "", "| form | us | commit |", "|---|---:|---|",
        "| first | 1.50 | abc1234 |", "| second |  | unknown |", "",
        "NVIDIA H200; kept in `results/trials/a.toml`."]
    assert trials.cell("a.toml", "tried", "first", "us", tmp_path) == "1.50"


@pytest.mark.parametrize(("old", "new", "why"), [
    ('["second", "", "unknown"]', '["second", "unknown"]', "needs 3 cells"),
    ('"abc1234"', '"H200"', "digits of a commit"),
    (', "commit"]\n', ', "since"]\n', "digits of a commit"),
    ('gpu = "NVIDIA H200"\n', "", "gpu"), ('gpu = "NVIDIA H200"\n', "gpus = 2\n", "gpus")])
def test_a_table_without_its_provenance_is_refused(old: str, new: str, why: str,
                                                   tmp_path: Path) -> None:
    assert old in FILE
    (tmp_path / "a.toml").write_text(FILE.replace(old, new))
    with pytest.raises(ValueError, match=why):
        list(trials.read_trials(tmp_path))


# What is measured is written into pages by tools/pages.py, from results/. These find a figure that
# looks measured in what a person wrote: a time, a rate, a share, a factor, or any number with a
# decimal point. CHANGELOG.md is history and keeps its figures.
PAGES = [*(p for p in (ROOT / "docs").rglob("*.md") if p.name != "options.md"),
         *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "rawnn/ptx/README.md",
                                    "examples/lab/README.md"))]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = (r"(?:[num]?s|seconds?|minutes?|hours?|(?:nano|micro|milli)seconds?|[GM]Hz|cycles?|instructions|"
        r"[kMGT]i?B/s|B/ns|bytes a (?:cycle|second)|T?FLOPS|TFLOP/s|J|W|x(?! ?\d)|"
        r"times (?:as|the|that|what|faster|slower|longer|shorter))\b|%|per cent\b")
COUNT = r"(?:two|three|four|five|six|seven|eight|nine|ten|twenty|tens|hundreds)"
FIGURE = re.compile(
    rf"(?<![\w.^/-]){NUMBER}(?:(?:-| to | and |, | or ){NUMBER})* ?(?:{UNIT})"
    rf"|(?<![\w./-])\d+\.\d+(?![\w.]|-\w)"
    rf"|\b(?:twice|{COUNT}(?: of)? times) (?:as (?:fast|long|slow)|faster|slower|longer|shorter)")

# What looks so and is not measured.
VERSIONS = (r"(?:CUDA|NVRTC|NCCL|PyTorch|Open MPI|SLURM|onnxruntime|compute-sanitizer|"
            r"compute capability) \d+(?:\.\d+)*(?:(?:,? and|,) \d+\.\d+)*")
ALLOWED = {VERSIONS: "a version", r"\b95 %": "the level of an interval",
           r"\b3 x tf32\b": "three products for one",
           r"\blearning rate (?:of )?0\.\d+": "a setting of a recipe"}
TABLES_OF_VERSIONS = ("docs/support.md",)
"""Pages whose numbers with a decimal point are versions and compute capabilities."""

# Numbers that the code sets (limits, samples, shares that decide a verdict) or a document of
# NVIDIA's says: page -> the words around them.
SET = {
    "docs/checkpoints.md": ("A second signal, or 20 s, ends it",),
    "docs/clocks.md": ("up to 80 % of the maximum", "80 % of the maximum leaves"),
    "docs/data.md": ("5 seconds, is not asked again",),
    "docs/floors.md": ("until they take 2 ms", "within 2 % (at least 0.05 s, at most 0.4 s,"),
    "docs/lab.md": ("ended after 10 s",),
    "docs/measuring.md": ("within 2 % and then takes four", "p <= 0.05 after Holm's",
                          "at least 3 % apart", "less than 3 % apart", "3 % apart or more",
                          "drawn towards 1.6 % for graphs and 8 % for sets",
                          "not called slower below 3.2 %"),
    "docs/peers.md": ("SGD (0.05) or Adam (0.001)", "once 50 ms have passed",
                      "lie within 2 %, or after 0.4 s", "epochs as take 10 ms",
                      "1.25 times slower than the best", "sampled every 50 ms",
                      "1 % (tf32 3 %, bf16 10 %) of how far", "0.01 % (0.1 %, 1 %) of the loss",
                      "8 times what float32 costs", "in float32 three times as long"),
    "docs/random.md": ("8 times the host's distance", "2 times the host's distance"),
    "docs/scaling.md": ("10 s for it on one host, 60 s on several", "all of them within 10 s",
                        "from the driver within 5 s", "answered after 300 s"),
    "docs/testing.md": ("(at least 90 %)",),
    "docs/toggles/fp16.md": ("twice as fast with it (GeForce)",),
    "docs/toggles/tune.md": ("three samples of 2 ms or more",),
    "docs/tuning.md": ("epochs for 60 ms or more", "three times as long as the fastest"),
    "docs/workloads.md": ("784-10 | 128 | 0.1 |", "64 | 0.1 | 16 bits", "32 | 0.003 | 16 bits"),
}


def typed(page: str, text: str) -> list[str]:
    """Every figure that looks measured in what a person wrote, with what stands around it: tables
    as well, but no code, no block that a tool writes, and nothing that is allowed above."""
    found = []
    lines = [line.strip() for _, line in prose(text, tables=True) if "```" not in line]
    for paragraph in "\n".join(lines).split("\n\n"):
        written = re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "`", paragraph.replace("\n", " "))
        for pattern in ALLOWED:
            written = re.sub(pattern, "", written)
        for words in SET.get(page, ()):
            written = written.replace(words, "")
        if page in TABLES_OF_VERSIONS:
            written = re.sub(rf"\d+\.\d+(?! ?(?:{UNIT}))", "", written)
        found += [written[max(match.start() - 40, 0):match.end() + 20]
                  for match in FIGURE.finditer(written)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_has_a_measured_figure_typed_in(page: Path) -> None:
    found = typed(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    assert not found, "keep it in results/trials (tools/trials.py), or say it in words"


@pytest.mark.parametrize("planted", [
    "a step takes 4.5 us", "from 12\nto 17 us", "1,034 us", "takes 30 % less", "at 6 TB/s",
    "is 1.13 x as fast", "three times faster", "twice as long", "took 3.1 to", "in 700 cycles",
    "| 64 x 784 | 2.9 |", "300 times as long", "half: 0.25 s", "`best` takes 20 s"])
def test_a_planted_figure_is_found(planted: str) -> None:
    text = (ROOT / "docs/tuning.md").read_text(encoding="utf-8")
    head = "## `rawnn tune` measures it"
    assert typed("docs/tuning.md", text.replace(head, f"{planted}\n\n{head}"))


def test_nothing_on_a_page_hides_a_figure_behind_it() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert typed(str(page.relative_to(ROOT)), f"{text}\n\nIt takes 4.5 us.\n"), page


@pytest.mark.parametrize("harmless", [
    "784-128-10 at batch 64", "64 x 784 x 784", "compute capability 8.9", "NVRTC 12.9 and 13.5",
    "`takes 4.5 us`", "the 95 % interval", "16 KB",
    "[a](a.md#took-2.5-us)"])
def test_what_is_not_measured_is_left_alone(harmless: str) -> None:
    assert not typed("docs/tuning.md", harmless)


def test_what_tools_and_code_say_is_not_typed() -> None:
    assert not typed("a.md", "<!-- x -->\n4.5 us\n<!-- /x -->\n```\n4.5 us\n```\n")
    assert typed("a.md", "<!-- x -->\n<!-- /x -->\n4.5 us\n")


@pytest.mark.parametrize(("page", "words"), [(p, w) for p, each in SET.items() for w in each])
def test_what_is_set_still_stands_there(page: str, words: str) -> None:
    assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split())
