"""What a person wrote on the pages, and the figures in it that look measured.

What is measured is written into pages by tools/pages.py, from results/. `typed` finds a time, a
rate, a share, a factor, or any number with a decimal point in the rest. CHANGELOG.md and docs/notes
are history and keep their figures."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(p for p in (ROOT / "docs").rglob("*.md")
                 if p.name != "options.md" and p.parent.name != "notes"),
         *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "rawnn/ptx/README.md",
                                    "examples/lab/README.md"))]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = (r"(?:[num]?s|(?:nano|micro|milli)?seconds?|minutes?|hours?|[GM]Hz|cycles?|instructions|"
        r"[kMGT]i?B/s|B/ns|bytes a (?:cycle|second)|T?FLOPS|TFLOP/s|J|W|x(?! ?\d)|"
        r"times (?:as|the|that|what|faster|slower|longer|shorter))\b|%|per cent\b")
COUNT = r"(?:two|three|four|five|six|seven|eight|nine|ten|twenty|tens|hundreds)"
FIGURE = re.compile(
    rf"(?<![\w.^/-]){NUMBER}(?:(?:-| to | and |, | or ){NUMBER})* ?(?:{UNIT})"
    rf"|(?<![\w./-])\d+\.\d+(?![\w.]|-\w)"
    rf"|\b(?:twice|{COUNT}(?: of)? times) (?:as (?:fast|long|slow)|faster|slower|longer|shorter)")

# What looks so and is not measured.
VERSIONS = (r"(?:Python|CUDA|NVRTC|NCCL|PyTorch|Open MPI|SLURM|onnxruntime|compute-sanitizer|"
            r"compute capability) \d+(?:\.\d+)*(?:(?:,? and| to|,) \d+\.\d+)*")
ALLOWED = {VERSIONS: "a version", r"\b95 %": "the level of an interval",
           r"\b3 x (tf32|fp16)\b": "three products for one",
           r"\blearning rate (?:of )?0\.\d+": "a setting of a recipe"}
TABLES_OF_VERSIONS = ("docs/support.md",)
"""Pages whose numbers with a decimal point are versions and compute capabilities."""

# Numbers that the code sets (limits, samples, shares that decide a verdict) or a document of
# NVIDIA's says: page -> the words around them.
SET = {
    "docs/checkpoints.md": ("A second signal, or 20 s, ends the run",),
    "docs/clocks.md": ("up to 80 % of the maximum", "80 % of the maximum leaves"),
    "docs/data.md": ("5 seconds, is not asked again",),
    "docs/floors.md": ("until they take 2 ms", "within 2 % (at least 0.05 s, at most 0.4 s,"),
    "docs/lab.md": ("ended after 10 s",),
    "docs/measuring.md": ("within 2 % and is then sampled four times", "NVML is read every 50 ms",
                          "that counts (3 %,", "faster by at least 3 %", "less than 3 % apart",
                          "3 % apart or more", "holds 95 % of the quotients"),
    "docs/benchmarks/method.md": ("784-10 | 128 | 0.1 |", "64 | 0.1 | 16 bits",
                                  "32 | 0.003 | 16 bits", "SGD (0.05) or Adam (0.001)",
                                  "once 50 ms have passed",
                      "lie within 2 %, or after 0.4 s", "epochs as take 10 ms",
                      "1.25 times slower than the best",
                      "1.25 times slower than the fastest", "sampled every 50 ms",
                      "1 % (tf32 3 %, bf16 10 %) of how far", "0.01 % (0.1 %, 1 %) of the loss",
                      "8 times the rounding error", "in float32 three times as long"),
    "docs/random.md": ("8 times the host's distance", "2 times the host's distance"),
    "docs/scaling.md": ("10 s for it on one host, 60 s on several", "all ranks end within 10 s",
                        "from the driver within 5 s", "answered after 300 s"),
    "docs/testing.md": ("(at least 90 %)",),
    "docs/toggles/fp16.md": ("twice as fast with it (GeForce)",),
    "docs/toggles/tune.md": ("three samples of 2 ms or more",),
    "docs/tuning.md": ("epochs for 60 ms or more", "three times as long as the fastest"),
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


def prose(text: str, tables: bool = False) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that a person wrote, less code, and less tables unless asked
    for."""
    code, block = False, ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.fullmatch(r"<!-- (/?)([\w -]+?)(: begin|: end)? -->", line)
        if mark:
            ends = mark[1] or mark[3] == ": end"
            block = "" if ends else mark[2]
        code ^= line.lstrip().startswith("```")
        if not (code or block or (line.startswith("|") and not tables)):
            yield number, line
