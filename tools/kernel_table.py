#!/usr/bin/env python3
"""Keep results/kernels.json, what every kernel uses of a multiprocessor, and its one-page summary.

    python tools/kernel_table.py            compile what changed, write the record and the summary
    python tools/kernel_table.py --all      the same, with every kernel compiled anew
    python tools/kernel_table.py --check    write nothing; exit 1 where the record is not true

The record has the registers, shared memory and spills of every template instance that the engine
can ask for, on every architecture, by NVRTC 12 and 13: write it once with each. It names the text
(includes followed, comments left out) that each source's figures were made of, and the compiler.
The check therefore compiles every instance of a source that differs from it for every architecture,
and of all others each instance for one, taking architectures in turn; a warning ends it. Shared
memory and spills have to be those recorded, and registers, to within SLACK. By another version of
NVRTC than the recorded one everything is compiled, and only spills must not be more.

Needs NVRTC and no GPU. Which template instances there are is asked of the engine:
tests/catalogue.py applies the toggles to networks, and each kernel that an op of the resulting
plans is lowered to is an instance; those that limits are measured with are added. Kernels that
`persistent` writes for a network are not among them.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn import ptx  # noqa: E402
from rawnn.common.target import known  # noqa: E402
from rawnn.cuda.compiling.compile import compile_source  # noqa: E402
from rawnn.cuda.compiling.resources import SM_LIMITS, resource_usage, spills  # noqa: E402
from rawnn.cuda.errors import check  # noqa: E402
from rawnn.cuda.nvrtc import Nvrtc  # noqa: E402
from rawnn.opts.registry import Machine  # noqa: E402
from rawnn.ptx.fused.linear import MAX_FUSED_CLASSES  # noqa: E402
from rawnn.ptx.instance_text import instance_text, with_instance_text  # noqa: E402
from rawnn.ptx.kernel_registry import key_of  # noqa: E402
from rawnn.ptx.kernels import KERNELS, kernel_for  # noqa: E402
from rawnn.ptx.limits.microbenchmarks import PROBES, Probe  # noqa: E402
from tests.catalogue import Case, Variant, cases, legal  # noqa: E402
from tools import kernel_page  # noqa: E402

RECORD = ROOT / "results" / "kernels.json"
ARCHITECTURES = tuple(SM_LIMITS)
BATCH, FEATURES = 128, 784
CHUNK = 8
SLACK = 8
"""Registers by which a kernel may differ from the record: what is compiled with it moved those of
three of 623 kernels, by 3 to 8 (mma.cu for sm_90 by NVRTC 12.9)."""


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
    """What an instance uses on one architecture: registers a thread, static shared memory a block
    in bytes, bytes of spill stores and loads a thread."""

    registers: int
    shared: int
    spilled: tuple[int, int] = (0, 0)


Measured = dict[Instance, dict[str, Row]]
"""Instances in the order of the record, with what each uses by architecture."""
Record = dict[str, Any]
"""The file: `architectures`, the version of each major NVRTC, `digests` by source and major, and
`kernels` by source and expression, with a list of cells for each major, one an architecture."""


# -- what there is ---------------------------------------------------------------------------------


@cache
def launched() -> dict[Instance, tuple[Case, ...]]:
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


@cache
def probed() -> dict[Instance, Probe]:
    """The instances that no op runs: what `rawnn bench floors` measures a GPU's limits with."""
    return {Instance(p.source, p.expression, p.threads, p.shared): p for p in PROBES}


def _instance(source: str, expression: str, group: list[Case]) -> Instance:
    threads = dynamic = 0
    for case in group:
        impl = kernel_for(case.op)
        scalars = impl.scalars(case.op, case.plan)
        _, (x, y, z) = impl.geometry(scalars)
        threads, dynamic = max(threads, x * y * z), max(dynamic, impl.shared(scalars))
    return Instance(source, expression, threads, dynamic)


def instances() -> list[Instance]:
    """Every template instance that can be asked for, in the order of the record."""
    return sorted([*launched(), *probed()], key=lambda i: (
        i.source, [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", i.expression)]))


def runs_on(instance: Instance, arch: str) -> bool:
    """Whether a GPU of the architecture can be asked for the instance."""
    machine = Machine(None, (int(arch[3:-1]), int(arch[-1])), 13000, lambda package: True)
    if instance in probed():
        return not probed()[instance].lacks(known(machine.compute_capability))
    return any(_legal(case.opt, machine.compute_capability) for case in launched()[instance])


@cache
def _legal(opt: str, capability: tuple[int, int]) -> bool:
    return legal(tuple(opt.split(",")),
                 machine=Machine(None, capability, 13000, lambda package: True))


_INCLUDED = re.compile(r'#include "([^"]+)"')


def digest(source: str) -> str:
    """What a kernel is made of: the text of its source, of what that includes and of what its
    instances add, without comments, spacing and the lines that include it."""
    names = [source]
    made = hashlib.sha256()
    for name in names:
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", (ptx.SOURCES / name).read_text(), flags=re.DOTALL)
        names += [n for n in _INCLUDED.findall(text) if n not in names]
        made.update(" ".join(_INCLUDED.sub("", text).split()).encode() + b"\0")
    made.update(instance_text([i.expression for i in launched() if i.source == source]).encode())
    return made.hexdigest()[:16]


# -- what it uses ----------------------------------------------------------------------------------


def measure(source: str, wanted: list[Instance], arch: str) -> dict[str, Row]:
    """Compile the instances of one source for `arch`; what each uses, by expression."""
    impls = [impl for impl in KERNELS.values() if impl.source == source]
    probes = [probe for probe in PROBES if probe.source == source]
    target = arch + "a" if any(k.specific for k in (*impls, *probes)) else arch
    expressions = [i.expression for i in wanted]
    built = compile_source(
        Nvrtc, with_instance_text(ptx.source_path(source).read_text(), expressions), name=source,
        arch=target, expressions=expressions,
        relocatable=any(impl.relocatable for impl in impls), options=("--ptxas-options=-v",))
    if "warning" in built.log:
        raise RuntimeError(f"{source} for {target} has a warning:\n{built.log}")
    usage, spilled = resource_usage(built.cubin), spills(built.log)
    rows = {}
    for expression, name in built.lowered.items():
        rows[expression] = Row(usage[name].registers, usage[name].shared, spilled[name])
    return rows


def measure_all(wanted: Iterable[tuple[Instance, str]], processes: int | None = None) -> Measured:
    """What each instance uses on an architecture; compiled in as many processes as there are cores,
    unless given, and in this one where that is 1."""
    pairs = sorted(wanted, key=lambda pair: (pair[0].source, ARCHITECTURES.index(pair[1])))
    jobs: list[tuple[str, list[Instance], str]] = []
    for (source, arch), group in itertools.groupby(pairs, key=lambda p: (p[0].source, p[1])):
        several = [instance for instance, _ in group]
        # Sources with many instances are cut up, so that no process is left with all of them.
        jobs += [(source, several[at : at + CHUNK], arch) for at in range(0, len(several), CHUNK)]
    found: Measured = {}
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        compiled = map(_job, jobs) if processes == 1 else pool.map(_job, jobs)
        for (_, part, arch), rows in zip(jobs, compiled, strict=True):
            for instance in part:
                found.setdefault(instance, {})[arch] = rows[instance.expression]
    return found


def _job(job: tuple[str, list[Instance], str]) -> dict[str, Row]:
    return measure(*job)


def compiler() -> tuple[str, str]:
    """Major and whole version of the installed NVRTC: "12" and "12.9"."""
    nvrtc = Nvrtc()
    major, minor = check(nvrtc, "nvrtcVersion", nvrtc.nvrtcVersion())
    return str(major), f"{major}.{minor}"


def supported() -> list[str]:
    """The architectures of the record that this NVRTC can compile for."""
    nvrtc = Nvrtc()
    known = check(nvrtc, "nvrtcGetSupportedArchs", nvrtc.nvrtcGetSupportedArchs())
    return [arch for arch in ARCHITECTURES if int(arch[3:]) in known]


# -- the record ------------------------------------------------------------------------------------


def load() -> Record:
    """The record as it stands."""
    kept: Record = json.loads(RECORD.read_text())
    return kept


def recorded(record: Record, instance: Instance, major: str) -> dict[str, Row]:
    """The rows of an instance by NVRTC `major`, by architecture."""
    kernel = record["kernels"].get(instance.source, {}).get(instance.expression, {})
    return {arch: Row(cell[0], cell[1], (cell[2], cell[3]) if cell[2:] else (0, 0))
            for arch, cell in zip(record["architectures"], kernel.get(major, ()), strict=False)
            if cell}


def expressions(record: Record) -> set[str]:
    """Every instance that a record has."""
    return {expression for kernels in record["kernels"].values() for expression in kernels}


def is_current(record: Record, source: str, major: str, version: str) -> bool:
    """Whether the figures of a source were made of its text as it stands, by that very NVRTC."""
    return record["nvrtc"].get(major) == version \
        and record["digests"].get(source, {}).get(major) == digest(source)


def joined(wanted: list[Instance], found: Measured, before: Record, major: str,
           version: str) -> Record:
    """A record of `wanted`: `found` by this NVRTC, and what `before` has by others."""
    kernels: dict[str, dict[str, Any]] = {}
    for instance in wanted:
        entry: dict[str, Any] = {"threads": instance.threads, "dynamic": instance.dynamic}
        for m in sorted({*before["nvrtc"], major}):
            rows = found[instance] if m == major else recorded(before, instance, m)
            entry[m] = [_cell(rows.get(arch)) for arch in ARCHITECTURES]
        kernels.setdefault(instance.source, {})[instance.expression] = entry
    digests = {source: before["digests"].get(source, {}) | {major: digest(source)}
               for source in kernels}
    return {"architectures": list(ARCHITECTURES), "nvrtc": before["nvrtc"] | {major: version},
            "digests": digests, "kernels": kernels}


def _cell(row: Row | None) -> list[int] | None:
    if row is None:
        return None
    return [row.registers, row.shared, *(row.spilled if any(row.spilled) else ())]


EMPTY: Record = {"nvrtc": {}, "digests": {}, "kernels": {}, "architectures": []}
ABOUT = ("what every kernel instance uses (tools/kernel_table.py): the largest block (threads) and "
         "dynamic shared memory (bytes) of its launches; by major version of NVRTC, for each "
         "architecture, [registers a thread, static shared memory a block in bytes] and, where it "
         "spills, bytes stored and loaded a thread; null where no toggle leads to it. "
         "advance_while is measured before it is linked with the device runtime")


def text_of(record: Record) -> str:
    """The file: one line an instance, so that differences are read line by line."""
    def block(entries: dict[str, Any]) -> str:
        compact = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
        return ",\n".join(f"  {compact(k)}: {compact(v)}" for k, v in entries.items())

    sources = ",\n".join(f" {json.dumps(s)}: {{\n{block(k)}\n }}"
                         for s, k in record["kernels"].items())
    return (f'{{"kind": "kernels",\n"about": {json.dumps(ABOUT)},\n'
            f'"architectures": {json.dumps(record["architectures"])},\n'
            f'"nvrtc": {json.dumps(record["nvrtc"], sort_keys=True)},\n'
            f'"digests": {{\n{block(record["digests"])}\n}},\n'
            f'"kernels": {{\n{sources}\n}}}}\n')


# -- the check -------------------------------------------------------------------------------------


def to_check(record: Record, archs: list[str], turn: int = 0) -> list[tuple[Instance, str]]:
    """What a check compiles: all of a source that is not as recorded, and each other instance for
    one of the architectures that it runs on, for the next one with the next `turn`."""
    major, version = compiler()
    current = {source: is_current(record, source, major, version)
               for source in {i.source for i in instances()}}
    chosen = []
    for at, instance in enumerate(instances()):
        possible = [arch for arch in ARCHITECTURES if runs_on(instance, arch)]
        several = [possible[(at + turn) % len(possible)]] if current[instance.source] else possible
        chosen += [(instance, arch) for arch in several if arch in archs]
    return chosen


def complaints(found: Measured, record: Record, major: str, version: str) -> list[str]:
    """What was found by NVRTC `version` that is not what the record says: instances without a row,
    and other figures; by another version than the recorded one more spills alone."""
    same = record["nvrtc"].get(major) == version
    said = []
    for instance, rows in found.items():
        known = recorded(record, instance, major)
        for arch, row in rows.items():
            what = f"{instance.expression} ({instance.source}) on {arch} with NVRTC {version}"
            if arch not in known:
                said.append(f"{what} is not in the record")
            elif _worse(row, known[arch]) or (same and _other(row, known[arch])):
                said.append(f"{what} has {_words(row)}; the record says {_words(known[arch])}")
    return said


def _worse(row: Row, known: Row) -> bool:
    return any(n > k for n, k in zip(row.spilled, known.spilled, strict=True))


def _other(row: Row, known: Row) -> bool:
    return (row.shared, row.spilled) != (known.shared, known.spilled) \
        or abs(row.registers - known.registers) > SLACK


def _words(row: Row) -> str:
    stored, loaded = row.spilled
    return (f"{row.registers} registers, {row.shared} bytes of shared memory and spills of "
            f"{stored} + {loaded} bytes")


def differences(record: Record) -> list[str]:
    """Instances that are not both in the record and among those that the engine can ask for."""
    asked, known = {i.expression for i in instances()}, expressions(record)
    return [f"{e} is not in the record" for e in sorted(asked - known)] + \
        [f"{e} is in the record, but the engine never asks for it" for e in sorted(known - asked)]


def main() -> int:
    """Write or check the record and its summary; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="compile every kernel anew")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the "
                                                             "record is not true")
    asked = parser.parse_args()
    (major, version), archs = compiler(), supported()
    record = load() if RECORD.exists() else EMPTY
    if asked.check:
        # Other architectures than the tests take (tests/ptx/test_kernel_table.py).
        found = measure_all(to_check(record, archs, turn=1))
        said = differences(record) + complaints(found, record, major, version)
        if kernel_page.PAGE.read_text() != kernel_page.render(record, launched(), PROBES):
            said.append(f"{kernel_page.PAGE.relative_to(ROOT)} is not the summary of the record")
        for sentence in said:
            print(f"{sentence}; look at the kernel, or write the record anew with "
                  f"tools/kernel_table.py", file=sys.stderr)
        print(f"{len(instances())} kernels, {sum(map(len, found.values()))} compiled with NVRTC "
              f"{version}: {len(said)} differences")
        return bool(said)
    if set(archs) != set(ARCHITECTURES):
        print(f"this NVRTC knows only {', '.join(archs)}: the record needs all of "
              f"{', '.join(ARCHITECTURES)}", file=sys.stderr)
        return 1
    changed = {i.source for i in instances()
               if asked.all or not is_current(record, i.source, major, version)}
    found = measure_all((i, arch) for i in instances() for arch in archs if runs_on(i, arch)
                        and (i.source in changed or arch not in recorded(record, i, major)))
    every = {i: {arch: row for arch, row in (recorded(record, i, major) | found.get(i, {})).items()
                 if runs_on(i, arch)} for i in instances()}
    record = joined(instances(), every, record, major, version)
    RECORD.write_text(text_of(record))
    kernel_page.PAGE.write_text(kernel_page.render(record, launched(), PROBES))
    print(f"{RECORD.relative_to(ROOT)}: {len(instances())} kernels, "
          f"{sum(map(len, found.values()))} compiled with NVRTC {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
