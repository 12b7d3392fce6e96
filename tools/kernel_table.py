#!/usr/bin/env python3
"""Write docs/kernels.md: what every kernel uses of a multiprocessor, on every GPU architecture.

    python tools/kernel_table.py            compile everything and write the table
    python tools/kernel_table.py --check    compile everything; exit 1 for a spill, or a kernel,
                                            that the table does not have

Spills depend on the compiler, so the table has those of every major version of NVRTC: write it with
NVRTC 13 first and with NVRTC 12 last, whose registers are the ones shown.

Needs NVRTC and no GPU. Which template instances there are is asked of the engine: every
combination of toggles is applied to networks of one and two layers, and each kernel that an op of
the resulting plans is lowered to is an instance.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn import ptx  # noqa: E402
from rawnn.cuda.errors import check  # noqa: E402
from rawnn.cuda.nvrtc import Nvrtc  # noqa: E402
from rawnn.errors import ConfigError  # noqa: E402
from rawnn.network import Network  # noqa: E402
from rawnn.opts import TOGGLES, select  # noqa: E402
from rawnn.opts.fuse import MAX_FUSED_CLASSES  # noqa: E402
from rawnn.opts.registry import Machine, Toggle  # noqa: E402
from rawnn.ptx.compile import compile_source  # noqa: E402
from rawnn.ptx.resources import SM_LIMITS, occupancy, resource_usage, spills  # noqa: E402
from rawnn.runners.graphplan import graph_plans  # noqa: E402
from rawnn.runners.kernels import kernel_for  # noqa: E402
from rawnn.step.build import evaluation_step, training_step  # noqa: E402

TABLE = ROOT / "docs" / "kernels.md"
ARCHITECTURES = tuple(SM_LIMITS)
BATCH, EXAMPLES, FEATURES = 128, 60_000, 784
LIBRARIES = ("cublas", "cudnn")
RELOCATABLE = ("while.cu",)
CHUNK = 8
CAPABLE = Machine(None, (9, 0), 13000, lambda package: True)


@dataclass(frozen=True, order=True)
class Instance:
    """A template instance of a kernel, with the largest block (threads) it is launched with."""

    source: str
    expression: str
    threads: int


@dataclass(frozen=True)
class Row:
    """What an instance uses on one architecture: registers per thread, static shared memory per
    block and spill stores + loads in bytes, resident share of a multiprocessor's warps."""

    registers: int
    shared: int
    spilled: tuple[int, int]
    occupancy: float


Measured = dict[Instance, dict[str, Row]]
"""Instances in the order of the table, with what each uses by architecture."""
Spills = dict[tuple[int, str], tuple[int, int]]
"""Bytes (stored, loaded) by major version of NVRTC and architecture."""

INTRODUCTION = """\
# What the kernels use

Made by `python tools/kernel_table.py` with NVRTC {version}; not edited by hand. CI compiles every
kernel again and fails when one is missing here or spills more registers than this table says.

The list of template instances comes from the engine: every combination of toggles on networks of
one and two layers, and the fused one-layer step for every number of classes it can have. *threads*
is the block it is launched with at batch {batch} and {features} features. A cell of an architecture
gives the registers per thread and, in brackets, the occupancy: the share of a multiprocessor's
warps that can be resident with that block. *spills* are bytes stored + loaded per thread, by
architecture and compiler (0: none with NVRTC 12 and 13). No kernel uses dynamic shared memory.
`advance_while` is measured before it is linked with the CUDA device runtime."""


def instances() -> list[Instance]:
    """Every template instance the engine can ask for, in the order of the table."""
    threads: dict[tuple[str, str], int] = {}
    for opt in _combinations():
        for layers in ((FEATURES, 10), (FEATURES, 128, 10)):
            _collect(opt, layers, threads)
    for count in range(1, MAX_FUSED_CLASSES + 1):  # of a fused one-layer step
        _collect("preload,fuse", (FEATURES, count), threads)
    return sorted(
        (Instance(source, expression, n) for (source, expression), n in threads.items()),
        key=lambda i: (i.source, [int(p) if p.isdigit() else p
                                  for p in re.split(r"(\d+)", i.expression)]))


def _combinations() -> Iterator[str]:
    """Every set of toggles, each with every form of its value (a count being 2)."""
    for words in itertools.product(*(_forms(toggle) for toggle in TOGGLES.values())):
        yield ",".join(filter(None, words)) or "none"


def _forms(toggle: Toggle) -> list[str]:
    if toggle.parameter is None:
        return ["", toggle.name]
    return ["", *(f"{toggle.name}={2 if form == 'N' else form}"
                  for form in toggle.parameter.form.split("|"))]


def _collect(opt: str, layers: tuple[int, ...], threads: dict[tuple[str, str], int]) -> None:
    network, steps = Network(layers), 2
    for build in (training_step(network, BATCH, EXAMPLES, 0.1),
                  evaluation_step(network, BATCH, EXAMPLES)):
        try:
            plan, policy = select(opt, network, steps, CAPABLE).apply(build)
        except ConfigError:  # a combination that no run can have
            continue
        plans = [g.plan for g in graph_plans(plan, policy, steps)] if policy.graph else [plan]
        for part in plans:
            for op in part.ops:
                if op.kind == "upload" or op.impl in LIBRARIES:
                    continue
                impl = kernel_for(op)
                _, (x, y, z) = impl.geometry(impl.scalars(op, part))
                key = impl.source, impl.expression(op, part)
                threads[key] = max(threads.get(key, 0), x * y * z)


def measure(source: str, wanted: list[Instance], arch: str) -> dict[str, Row]:
    """Compile the instances of one source for `arch`; what each uses, by expression."""
    expressions = [i.expression for i in wanted]
    built = compile_source(
        Nvrtc, ptx.source_path(source).read_text(), name=source, arch=arch,
        expressions=expressions, relocatable=source in RELOCATABLE,
        options=("--ptxas-options=-v",))
    usage, spilled = resource_usage(built.cubin), spills(built.log)
    rows = {}
    for instance in wanted:
        name = built.lowered[instance.expression]
        used = usage[name]
        fits = occupancy(arch, threads=instance.threads, registers=used.registers,
                         shared=used.shared)
        rows[instance.expression] = Row(used.registers, used.shared, spilled[name],
                                        fits.fraction)
    return rows


def supported() -> list[str]:
    """The architectures of the table that this NVRTC can compile for."""
    nvrtc = Nvrtc()
    known = check(nvrtc, "nvrtcGetSupportedArchs", nvrtc.nvrtcGetSupportedArchs())
    return [arch for arch in ARCHITECTURES if int(arch[3:]) in known]


def measure_all(wanted: list[Instance], archs: list[str]) -> Measured:
    """What each instance uses, by instance and architecture; compiled in several processes."""
    jobs = []
    for source, group in itertools.groupby(wanted, key=lambda i: i.source):
        several = list(group)
        # Sources with many instances are cut up, so that no process is left with all of them.
        jobs += [(source, several[at : at + CHUNK], arch)
                 for arch in archs for at in range(0, len(several), CHUNK)]
    found: Measured = {instance: {} for instance in wanted}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (_, part, arch), rows in zip(jobs, pool.map(measure, *zip(*jobs, strict=True)),
                                         strict=True):
            for instance in part:
                found[instance][arch] = rows[instance.expression]
    return found


def spill_cell(spilled: Spills) -> str:
    """The table's cell: 0, or the bytes stored + loaded on each architecture that spills."""
    return ", ".join(f"{arch} {stored}+{loaded} (NVRTC {major})"
                     for (major, arch), (stored, loaded) in sorted(spilled.items())
                     if stored or loaded) or "0"


def render(found: Measured, version: tuple[int, int], before: str = "") -> str:
    """docs/kernels.md; the spills by other major versions of NVRTC are kept from `before`."""
    major, minor = version
    known = read_table(before)
    archs = list(next(iter(found.values())))
    lines = [INTRODUCTION.format(version=f"{major}.{minor}", batch=BATCH, features=FEATURES)]
    for source, group in itertools.groupby(found, key=lambda i: i.source):
        lines += [f"\n## {source}\n",
                  f"| kernel | threads | static shared (B) | spills | {' | '.join(archs)} |",
                  "|---" + "|---:" * (3 + len(archs)) + "|"]
        for instance in group:
            rows = found[instance]
            spilled = {key: value for key, value in known.get(instance.expression, {}).items()
                       if key[0] != major}
            spilled |= {(major, arch): row.spilled for arch, row in rows.items()}
            shared = "/".join(str(n) for n in sorted({row.shared for row in rows.values()}))
            cells = [f"{row.registers} ({row.occupancy:.0%})" for row in rows.values()]
            lines.append(f"| `{instance.expression}` | {instance.threads} | {shared} | "
                         f"{spill_cell(spilled)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def read_table(text: str) -> dict[str, Spills]:
    """The spills that a table has, by expression."""
    table = {}
    for match in re.finditer(r"^\| `([^`]+)` \|[^|]*\|[^|]*\| ([^|]*) \|", text, re.MULTILINE):
        table[match[1]] = {
            (int(major), arch): (int(stored), int(loaded)) for arch, stored, loaded, major in
            re.findall(r"(sm_\w+) (\d+)\+(\d+) \(NVRTC (\d+)\)", match[2])}
    return table


def complaints(found: Measured, text: str, major: int) -> list[str]:
    """What the engine can launch and the table `text` does not say: kernels, and spills by NVRTC
    `major` that are not in it or larger than in it."""
    table = read_table(text)
    said = []
    for instance, rows in found.items():
        if instance.expression not in table:
            said.append(f"{instance.expression} ({instance.source}) is not in the table")
            continue
        for arch, row in rows.items():
            known = table[instance.expression].get((major, arch), (0, 0))
            if any(now > before for now, before in zip(row.spilled, known, strict=True)):
                said.append(f"{instance.expression} ({instance.source}) spills {row.spilled[0]} "
                            f"bytes and loads {row.spilled[1]} on {arch} with NVRTC {major}; the "
                            f"table has {known[0]} and {known[1]}")
    return said


def compiler() -> tuple[int, int]:
    """Major and minor version of the installed NVRTC."""
    nvrtc = Nvrtc()
    major, minor = check(nvrtc, "nvrtcVersion", nvrtc.nvrtcVersion())
    return major, minor


def main() -> int:
    """Write or check the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit 1 for a spill or kernel the table has not")
    check_only = parser.parse_args().check
    archs = supported()
    if not check_only and set(archs) != set(ARCHITECTURES):
        print(f"this NVRTC knows only {', '.join(archs)}: the table needs all of "
              f"{', '.join(ARCHITECTURES)}", file=sys.stderr)
        return 1
    found = measure_all(instances(), archs)
    if check_only:
        said = complaints(found, TABLE.read_text(), compiler()[0])
        said += [f"{expression} is in the table, but the engine never asks for it"
                 for expression in sorted(read_table(TABLE.read_text())
                                          .keys() - {i.expression for i in found})]
        for sentence in said:
            print(f"{sentence}; look at the kernel, or write the table anew with "
                  f"tools/kernel_table.py", file=sys.stderr)
        print(f"{len(found)} kernels on {len(archs)} architectures: {len(said)} differences")
        return bool(said)
    before = TABLE.read_text() if TABLE.exists() else ""
    TABLE.write_text(render(found, compiler(), before))
    print(f"{TABLE.relative_to(ROOT)}: {len(found)} kernels on {len(archs)} architectures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
