"""A kernel from naive to near the limit, step by step: every step checked, then timed.

    python examples/lab/series.py softmax                          # on the GPU
    python examples/lab/series.py softmax --device sim             # compiled, launched, not timed
    python examples/lab/series.py transpose rows=4096 cols=4096    # other sizes

The topics are the folders beside this file. What a step is to compute,
and how it is launched, its `.cu` says in its header; `python -m rawnn kernel check FILE` and
`kernel time FILE` take each by itself.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import rawnn
from rawnn.lab.arrays import default_device, simulated
from rawnn.lab.inspection import resources
from rawnn.lab.kernel_files import kernel_of

HERE = Path(__file__).parent
TOPICS = sorted(path.name for path in HERE.iterdir() if list(path.glob("1_*.cu")))
LARGE = {"reduction": {"n": 1 << 26}, "transpose": {"rows": 4096, "cols": 4096},
         "softmax": {"rows": 4096, "cols": 4096}, "gemm": {"m": 2048, "n": 2048, "k": 2048}}


def learned(text: str) -> str:
    """The header comment's sentences behind "Learned:", in one line."""
    found = re.search(r"// Learned: (.*?)\n(?!//)", text, re.DOTALL)
    return " ".join(found[1].replace("\n//", " ").split()) if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("topic", choices=TOPICS)
    parser.add_argument("sizes", nargs="*", help="sizes to time, such as rows=4096")
    parser.add_argument("--device", choices=("gpu", "sim"), default="gpu")
    asked = parser.parse_args()
    given = {name: int(value) for name, value in (s.split("=") for s in asked.sizes)}
    device = default_device() if asked.device == "gpu" else simulated()
    fastest = None
    for path in sorted((HERE / asked.topic).glob("*.cu")):
        kernel, work = kernel_of(path, device=device)
        uses = resources(kernel.source, [kernel.recipe.expression], device.arch)[0].usage
        rawnn.check(kernel, work, trials=3).require()
        # The simulated GPU computes the reference in the kernel's place.
        right = "right" if asked.device == "gpu" else "its description fits"
        print(f"{path.stem}: {right}; {uses.registers} registers, {uses.shared:,} B of shared "
              f"memory")
        if asked.device == "gpu":
            timed = rawnn.time(kernel, work, at={**LARGE[asked.topic], **given})
            took = timed.cold.us.median
            fastest = fastest or took
            share = f", {timed.least / took:.0%} of the roofline" if timed.least else ""
            print(f"  {took:,.1f} us, {fastest / took:.1f} x the first step{share}")
        print(f"  {learned(path.read_text())}")


if __name__ == "__main__":
    main()
