"""Plant every fault of tests/ptx/emulator/faults.py in the kernels, and keep what became of each in
results/kernel-faults.json.

    python tools/kernel_faults.py [--jobs N] [--sample N] [--again survived|all] [--part K/N]
                                  [--only PATTERN]

Faults whose outcome is kept already, of the code as it is, are left out unless --again asks for
them (outcomes.py says when an outcome counts); --part takes one of N parts of what is asked for, K
from 1 on, so that a long walk can stop in between; --only takes those whose file matches a regular
expression. A fault takes some two seconds of a core where the record says in which source it showed
the last time, ten or more where it does not; exits with 1 where a fault survives that harmless.py
does not explain.
"""

from __future__ import annotations

import argparse
import re
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.ptx.emulator import attempts, faults, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--again", choices=("survived", "all"))
    parser.add_argument("--part", metavar="K/N", default="1/1", type=_part)
    parser.add_argument("--only", metavar="PATTERN", default="")
    asked = parser.parse_args()
    every = {fault.name: fault for fault in faults.every()}
    known = outcomes.read(every)
    left = set(outcomes.left(known, every))
    left |= {name for name in known if asked.again == "all"
             or (asked.again == "survived" and known[name]["what"] == "survived")}
    todo = [fault for fault in faults.sample(len(every), 1)
            if fault.name in left and re.search(asked.only, fault.file)]
    part, parts = asked.part
    todo = todo[part - 1 :: parts][: asked.sample]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(attempts.attempt, fault, _shown_by(known, fault))
                                  for fault in todo]):
            found = done.result()
            if found.what == "unknown":
                continue
            known[found.fault.name] = outcomes.found(found.fault, found.what, found.how)
            print(f"{found.what} ({found.seconds:.0f} s)  {found.fault.name}  ->  "
                  f"{found.fault.new!r}  {found.how[:160]}", flush=True)
            outcomes.write(known, every)
    return 1 if outcomes.write(known, every)["missed"] else 0


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts or 0):
        raise argparse.ArgumentTypeError(f"{text}: not a part K/N with K from 1 to N")
    return int(part), int(parts)


def _shown_by(known: dict[str, outcomes.Found], fault: faults.Fault) -> str:
    """The source that a fault showed in the last time."""
    return known[fault.name]["how"].partition(":")[0] if fault.name in known else ""


if __name__ == "__main__":
    sys.exit(main())
