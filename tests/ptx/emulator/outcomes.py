"""What became of planted faults, kept in results/kernel-faults.json by their names.

An outcome counts while two things are as they were: the code of the file that the fault was planted
in, of which the record has a digest for each file, and what the fault makes of what. An outcome of
other code than the file's, as it has changed since, keeps the digest of that: it is to be walked
again, and says until then no more than in which source the fault showed. So a walk may stop where
it likes.

Left out is what else decides. Headers that a source includes, and sources that a header's fault
shows in: with them a change of types.cuh would have 947 of the 980 faults of sources and headers
walked again, and one of persistent/loss.cuh all 1,300 of kernels that are written, an hour of a
core. And the CPU emulator and its cases: a case that is gone may leave a fault uncaught. What is
lost by that is found at random, as the tests plant a few faults anew
(tests/ptx/test_kernel_faults.py); `--again all` is for a change of these that is large.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypedDict

from tests.ptx.emulator.faults import GENERATED, Fault, text_of
from tests.ptx.emulator.harmless import OUT_OF_REACH, why_harmless

KEPT = Path(__file__).resolve().parents[3] / "results" / "kernel-faults.json"


class Found(TypedDict):
    """What became of a fault: "caught", "survived", or "invalid" where it does not compile; how;
    and digests of what became of what, and of the code that it was planted in."""

    what: str
    how: str
    change: str
    code: str


Faults = Mapping[str, Fault]
"""By their names."""


@cache
def digest(file: str) -> str:
    """Of the code of a source, or of a kernel that is written: without comments, spacing and the
    names of headers, and without the kernel's name, which has a digest of its text and comments."""
    code = re.sub(rf'//[^\n]*|/\*.*?\*/|(?<={GENERATED}_)[0-9a-f]+|#include "[^"]*"', "",
                  text_of(file), flags=re.DOTALL)
    return _short(*code.split())


def _short(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]


def found(fault: Fault, what: str, how: str) -> Found:
    return Found(what=what, how=how, change=_short(fault.old, fault.new), code=digest(fault.file))


def counts(outcome: Found | None, fault: Fault) -> bool:
    """Whether there is an outcome, and of the code as it is."""
    return outcome is not None and outcome == found(fault, outcome["what"], outcome["how"])


def read(every: Faults, path: Path = KEPT) -> dict[str, Found]:
    """Outcomes of the faults that there are, those of other code among them."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    return {name: {**o, "code": o.get("code", kept["code"].get(every[name].file, ""))}
            for name, o in kept["faults"].items() if name in every}


def left(outcomes: Mapping[str, Found], every: Faults) -> list[str]:
    """The faults without an outcome that counts: those to walk."""
    return [name for name, fault in every.items() if not counts(outcomes.get(name), fault)]


def summary(outcomes: Mapping[str, Found], every: Faults) -> dict[str, int]:
    """How many there are of what; all but the first of those whose outcomes count."""
    walked = {name: o for name, o in outcomes.items() if counts(o, every[name])}
    valid = {name: o for name, o in walked.items() if o["what"] != "invalid"}
    survived = {name for name, o in valid.items() if o["what"] == "survived"}
    beyond = survived & OUT_OF_REACH.keys()
    harmless = {name for name in survived - beyond if why_harmless(every[name])}
    return {"faults of the rules": len(every), "walked": len(walked), "planted": len(valid),
            "caught": len(valid) - len(survived), "harmless": len(harmless),
            "beyond reach": len(beyond), "missed": len(survived - harmless - beyond)}


def write(outcomes: Mapping[str, Found], every: Faults, path: Path = KEPT) -> dict[str, int]:
    """Keeps the outcomes; what there is of what."""
    code = {file: digest(file) for file in sorted({f.file for f in every.values()})}
    faults = {name: {k: v for k, v in outcomes[name].items()
                     if k != "code" or v != code[every[name].file]} for name in sorted(outcomes)}
    totals = summary(outcomes, every)
    path.write_text(json.dumps({
        "about": "faults planted in the kernels one at a time (tools/kernel_faults.py)",
        **totals, "code": code, "faults": faults}, indent=1) + "\n")
    return totals
