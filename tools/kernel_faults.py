"""Plant every fault of tests/ptx/twin/faults.py in the kernels, and keep what became of each in
results/kernel-faults.json.

    python tools/kernel_faults.py [--jobs N] [--sample N] [--again survived|all] [--only PATTERN]

Faults whose outcome is kept already are left out unless --again asks for them; --only takes those
whose file matches a regular expression. All take hours of a core, those of the whole-step kernels
(--only onchip, --only train_steps) half an hour; exits with 1 where a fault survives that
harmless.py does not explain.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.ptx.twin import faults
from tests.ptx.twin.harmless import why_harmless

KEPT = Path(__file__).resolve().parent.parent / "results" / "kernel-faults.json"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--again", choices=("survived", "all"))
    parser.add_argument("--only", metavar="PATTERN", default="")
    asked = parser.parse_args()
    known = json.loads(KEPT.read_text())["faults"] if KEPT.exists() else {}
    every = {fault.name: fault for fault in faults.every()}
    known = {name: outcome for name, outcome in known.items() if name in every}
    order = faults.sample(len(every), 1)
    todo = [fault for fault in order if re.search(asked.only, fault.file)
            and (fault.name not in known or asked.again == "all"
                 or (asked.again == "survived" and known[fault.name]["what"] == "survived"))]
    todo = todo[: asked.sample]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(faults.attempt, fault) for fault in todo]):
            found = done.result()
            if found.what == "unknown":
                continue
            known[found.fault.name] = {"what": found.what, "how": found.how}
            print(f"{found.what} ({found.seconds:.0f} s)  {found.fault.name}  ->  "
                  f"{found.fault.new!r}  {found.how[:160]}", flush=True)
            _keep(known, every)
    return _keep(known, every)


def _keep(known: dict[str, dict[str, str]], every: dict[str, faults.Fault]) -> int:
    valid = {name: o for name, o in known.items() if o["what"] != "invalid"}
    survived = [name for name, o in valid.items() if o["what"] == "survived"]
    harmless = [name for name in survived if why_harmless(every[name])]
    missed = sorted(set(survived) - set(harmless))
    text = json.dumps({
        "about": "faults planted in the kernels one at a time (tools/kernel_faults.py)",
        "faults of the rules": len(every), "walked": len(known), "planted": len(valid),
        "caught": len(valid) - len(survived), "harmless": len(harmless), "missed": len(missed),
        "faults": dict(sorted(known.items())),
    }, indent=1)
    KEPT.write_text(text + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
