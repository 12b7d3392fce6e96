#!/usr/bin/env python3
"""Write docs/kernels.md: what every kernel uses of a multiprocessor, on every GPU architecture.

    python tools/kernel_table.py            compile everything and write the table
    python tools/kernel_table.py --check    compile everything; exit 1 for a spill, or a kernel,
                                            that the table does not have

Spills depend on the compiler, so the table has those of every major version of NVRTC: write it with
NVRTC 13 first and with NVRTC 12 last, whose registers are the ones shown.

Needs NVRTC and no GPU. Which template instances there are is asked of the engine:
tests/catalogue.py applies the toggles to networks, and each kernel that an op of the resulting
plans is lowered to is an instance.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn import ptx  # noqa: E402
from rawnn.compiling.compile import compile_source  # noqa: E402
from rawnn.compiling.resources import SM_LIMITS, occupancy, resource_usage, spills  # noqa: E402
from rawnn.cuda.errors import check  # noqa: E402
from rawnn.cuda.nvrtc import Nvrtc  # noqa: E402
from rawnn.opts.registry import Machine  # noqa: E402
from rawnn.ptx.kernels import KERNELS, kernel_for  # noqa: E402
from rawnn.ptx.linear import MAX_FUSED_CLASSES  # noqa: E402
from rawnn.ptx.table import key_of  # noqa: E402
from tests.catalogue import Case, Variant, cases, legal  # noqa: E402

TABLE = ROOT / "docs" / "kernels.md"
ARCHITECTURES = tuple(SM_LIMITS)
BATCH, FEATURES = 128, 784
CHUNK = 8


@dataclass(frozen=True, order=True)
class Instance:
    """A template instance of a kernel, with the largest block (threads) and dynamic shared memory
    (bytes) that it is launched with."""

    source: str
    expression: str
    threads: int
    dynamic: int = 0


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

The list of template instances comes from the engine: sets of number and kernel toggles on networks
with every activation, loss and optimizer, at shapes that are and are not aligned
(`tests/catalogue.py`), and the fused one-layer step for every number of classes it can have.
*threads* is the largest block it is launched with there, *shared* the static shared memory of a
block, plus the largest dynamic one. A cell of an architecture gives the registers per thread and,
in brackets, the occupancy: the share of a multiprocessor's warps that can be resident with that
block; "-" where no toggle leads to the kernel. *spills* are bytes stored + loaded per thread, by
architecture and compiler (0: none with NVRTC 12 and 13). `advance_while` is measured before it is
linked with the CUDA device runtime."""


@cache
def _launched() -> dict[Instance, tuple[Case, ...]]:
    """Every template instance the engine can ask for, with the ops that it runs."""
    several = [case for group in cases().values() for case in group]
    for count in range(1, MAX_FUSED_CLASSES + 1):  # of a fused one-layer step
        plan = next(Variant((FEATURES, count), BATCH).plans("preload,fuse"))
        several += [Case(op, plan, "preload,fuse") for op in plan.ops]
    found: dict[tuple[str, str], list[Case]] = {}
    for case in several:
        if key_of(case.op) in KERNELS:
            impl = kernel_for(case.op)
            found.setdefault((impl.source, impl.expression(case.op, case.plan)), []).append(case)
    return {_instance(*key, group): tuple(group) for key, group in found.items()}


def _instance(source: str, expression: str, group: list[Case]) -> Instance:
    threads = dynamic = 0
    for case in group:
        impl = kernel_for(case.op)
        scalars = impl.scalars(case.op, case.plan)
        _, (x, y, z) = impl.geometry(scalars)
        threads, dynamic = max(threads, x * y * z), max(dynamic, impl.shared(scalars))
    return Instance(source, expression, threads, dynamic)


def instances() -> list[Instance]:
    """Every template instance the engine can ask for, in the order of the table."""
    return sorted(_launched(), key=lambda i: (
        i.source, [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", i.expression)]))


def runs_on(instance: Instance, arch: str) -> bool:
    """Whether a GPU of the architecture can be asked for the instance."""
    machine = Machine(None, (int(arch[3:-1]), int(arch[-1])), 13000, lambda package: True)
    return any(_legal(case.opt, machine.compute_capability) for case in _launched()[instance])


@cache
def _legal(opt: str, capability: tuple[int, int]) -> bool:
    return legal(tuple(opt.split(",")),
                 machine=Machine(None, capability, 13000, lambda package: True))


def measure(source: str, wanted: list[Instance], arch: str) -> dict[str, Row]:
    """Compile the instances of one source for `arch`; what each uses, by expression."""
    expressions = [i.expression for i in wanted]
    impls = [impl for impl in KERNELS.values() if impl.source == source]
    target = arch + "a" if any(impl.specific for impl in impls) else arch
    built = compile_source(
        Nvrtc, ptx.source_path(source).read_text(), name=source, arch=target,
        expressions=expressions, relocatable=any(impl.relocatable for impl in impls),
        options=("--ptxas-options=-v",))
    usage, spilled = resource_usage(built.cubin), spills(built.log)
    rows = {}
    for instance in wanted:
        name = built.lowered[instance.expression]
        used = usage[name]
        fits = occupancy(arch, threads=instance.threads, registers=used.registers,
                         shared=used.shared + instance.dynamic)
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
        for arch in archs:
            possible = [i for i in several if runs_on(i, arch)]
            # Sources with many instances are cut up, so that no process is left with all of them.
            jobs += [(source, possible[at : at + CHUNK], arch)
                     for at in range(0, len(possible), CHUNK)]
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
    archs = [arch for arch in ARCHITECTURES if any(arch in rows for rows in found.values())]
    lines = [INTRODUCTION.format(version=f"{major}.{minor}", batch=BATCH, features=FEATURES)]
    for source, group in itertools.groupby(found, key=lambda i: i.source):
        lines += [f"\n## {source}\n",
                  f"| kernel | threads | shared (B) | spills | {' | '.join(archs)} |",
                  "|---" + "|---:" * (3 + len(archs)) + "|"]
        for instance in group:
            rows = found[instance]
            spilled = {key: value for key, value in known.get(instance.expression, {}).items()
                       if key[0] != major}
            spilled |= {(major, arch): row.spilled for arch, row in rows.items()}
            shared = "/".join(str(n) for n in sorted({row.shared for row in rows.values()}))
            shared += f" + {instance.dynamic}" if instance.dynamic else ""
            cells = [f"{rows[arch].registers} ({rows[arch].occupancy:.0%})" if arch in rows else "-"
                     for arch in archs]
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
