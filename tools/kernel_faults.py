"""Plant every fault of tests/ptx/twin/faults.py in the kernels, and keep what became of each in
results/kernel-faults.json.

    python tools/kernel_faults.py [--jobs N] [--sample N] [--again survived|all] [--part K/N]
                                  [--only PATTERN]

Faults whose outcome is kept already are left out unless --again asks for them; --part takes one of
N parts of what is asked for, K from 1 on, so that a long walk can stop in between; --only takes
those whose file matches a regular expression. A fault takes some two seconds of a core where the
record says in which source it showed the last time, ten or more where it does not; exits with 1
where a fault survives that harmless.py does not explain.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.ptx.twin import attempts, faults
from tests.ptx.twin.harmless import OUT_OF_REACH, why_harmless

KEPT = Path(__file__).resolve().parent.parent / "results" / "kernel-faults.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--again", choices=("survived", "all"))
    parser.add_argument("--part", metavar="K/N", default="1/1", type=_part)
    parser.add_argument("--only", metavar="PATTERN", default="")
    asked = parser.parse_args()
    known = json.loads(KEPT.read_text())["faults"] if KEPT.exists() else {}
    every = {fault.name: fault for fault in faults.every()}
    known = {name: outcome for name, outcome in known.items() if name in every}
    order = faults.sample(len(every), 1)
    todo = [fault for fault in order if re.search(asked.only, fault.file)
            and (fault.name not in known or asked.again == "all"
                 or (asked.again == "survived" and known[fault.name]["what"] == "survived"))]
    part, parts = asked.part
    todo = todo[part - 1 :: parts][: asked.sample]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(attempts.attempt, fault, _shown_by(known, fault))
                                  for fault in todo]):
            found = done.result()
            if found.what == "unknown":
                continue
            known[found.fault.name] = {"what": found.what, "how": found.how}
            print(f"{found.what} ({found.seconds:.0f} s)  {found.fault.name}  ->  "
                  f"{found.fault.new!r}  {found.how[:160]}", flush=True)
            _keep(known, every)
    return _keep(known, every)


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts or 0):
        raise argparse.ArgumentTypeError(f"{text}: not a part K/N with K from 1 to N")
    return int(part), int(parts)


def _shown_by(known: dict[str, dict[str, str]], fault: faults.Fault) -> str:
    """The source that a fault showed in the last time."""
    return known.get(fault.name, {}).get("how", "").partition(":")[0]


def _keep(known: dict[str, dict[str, str]], every: dict[str, faults.Fault]) -> int:
    valid = {name: o for name, o in known.items() if o["what"] != "invalid"}
    survived = [name for name, o in valid.items() if o["what"] == "survived"]
    harmless = [name for name in survived if why_harmless(every[name])]
    beyond = [name for name in survived if name in OUT_OF_REACH]
    missed = set(survived) - set(harmless) - set(beyond)
    text = json.dumps({
        "about": "faults planted in the kernels one at a time (tools/kernel_faults.py)",
        "faults of the rules": len(every), "walked": len(known), "planted": len(valid),
        "caught": len(valid) - len(survived), "harmless": len(harmless),
        "beyond reach": len(beyond), "missed": len(missed),
        "faults": dict(sorted(known.items())),
    }, indent=1)
    KEPT.write_text(text + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
