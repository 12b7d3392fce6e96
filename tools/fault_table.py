"""Plant every fault of tests/proof in every plan, and write the table in docs/testing.md.

Run from anywhere: python tools/fault_table.py. Takes minutes; exits with 1 where a fault
was not caught.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.proof.plants import PLANS, Tally, tally
from tests.proof.runs import cheap_devices
from tests.proof.table import commit, table


def of(plan: str) -> dict[str, Tally]:
    with cheap_devices():
        return tally(plan)


def main() -> int:
    found = {}
    with ProcessPoolExecutor() as pool:
        for plan, found[plan] in zip(PLANS, pool.map(of, PLANS), strict=True):
            print(plan, *(f"{name}: {t.planted}" for name, t in found[plan].items()), sep="  ",
                  flush=True)
    commit(table(found))
    missed = [f"{plan}, {name}: {what}" for plan, tallies in found.items()
              for name, t in tallies.items() for what in t.missed]
    print(*(f"not caught: {what}" for what in missed), sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
