"""Launch variants: which an op has, the keys under which choices are stored, and their file.

A variant is a set of changes to an op's attributes. `choice` selects a kernel's tile or block, or a
candidate of cuBLASLt. `slices` is the number of parts into which a GEMM's inner dimension is split;
the op that adds up the parts gets the same number. Ops of the same kind, implementation, shapes and
dtypes use the same variant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from rawnn import ptx
from rawnn.common.errors import RawnnError
from rawnn.common.files import cache_directory, write_atomically
from rawnn.cuda.device import DeviceInfo
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.ptx.kernels import kernel_for

Changes = dict[str, int]

LIBRARY_CANDIDATES = 6
"""How many of the algorithms that cuBLASLt's heuristic returns are tried."""
FEWER_SLICES = (1, 2, 4, 7, 8, 14, 16)
"""Numbers of slices that are tried if they are fewer than the default."""

_LIBRARIES = ("cudnn", "memcpy")
_DISTINGUISHING = ("layout", "bias", "activation", "slope", "compute", "beta", "stochastic")
"""Attributes that select the kernel or change what it computes."""


class TunedLaunch(msgspec.Struct, frozen=True):
    """The best changes for an op, and microseconds of a whole step before and after."""

    changes: Changes
    before: float
    after: float


class _File(msgspec.Struct, frozen=True):
    gpu: str
    driver: str
    sources: str
    choices: dict[str, TunedLaunch]


def key_of(op: Op, plan: Plan) -> str:
    """Kind, implementation, operands with shapes and dtypes: equal for ops that launch alike."""
    words = [f"{op.kind}/{op.impl}"]
    words += [str(op.attributes[name]) if isinstance(op.attributes[name], str) else
              f"{name}={op.attributes[name]:g}" for name in _DISTINGUISHING
              if op.attributes.get(name)]
    for role, name in op.operands.items():
        tensor = plan[name]
        if role not in ("cursor", "workspace"):
            words.append(f"{role}:{tensor.dtype}{list(tensor.shape)}")
    return " ".join(words).replace(", ", "x")


def variants(op: Op, plan: Plan) -> list[Changes]:
    """Every other way of launching the op, without duplicates of the same launch."""
    if op.impl == "cublas":
        found = [{"choice": n} for n in range(1, LIBRARY_CANDIDATES)]
        if op.kind == "matmul_slices":
            now, length = int(op.attributes["slices"]), int(op.attributes["k"])
            found += [{"choice": 0, "slices": n} for n in FEWER_SLICES
                      if n < now and length % (4 * n) == 0]
        return found
    if op.impl in _LIBRARIES:
        return []
    impl = kernel_for(op)
    seen = {_launch(op, plan)}
    different = []
    for choice in range(1, impl.variants(impl.scalars(op, plan))):
        launch = _launch(_changed(op, {"choice": choice}), plan)
        if launch not in seen:
            seen.add(launch)
            different.append({"choice": choice})
    return different


def _launch(op: Op, plan: Plan) -> tuple[object, ...]:
    """All that distinguishes one launch from another."""
    impl = kernel_for(op)
    scalars = impl.scalars(op, plan)
    return (impl.expression(op, plan), impl.geometry(scalars), impl.shared(scalars),
            impl.cluster(scalars))


def _changed(op: Op, changes: Mapping[str, int]) -> Op:
    return replace(op, attributes={**op.attributes, **changes})


def with_choices(plan: Plan, choices: Mapping[str, Changes]) -> Plan:
    """The plan with the ops of each key changed; ops that add up their slices follow."""
    keyed = [(op, choices.get(key_of(op, plan), {})) for op in plan.ops]
    slices = {op.operands["partial"]: changes["slices"] for op, changes in keyed
              if "slices" in changes}

    def change(op: Op, changes: Changes) -> Op:
        total_slices = slices.get(op.operands.get("partial", ""))
        return _changed(op, changes if total_slices is None
                        else {**changes, "slices": total_slices})

    return replace(plan, ops=tuple(change(op, c) if c or slices else op for op, c in keyed))


def applied(prepared: PreparedRun, choices: Mapping[str, Changes]) -> PreparedRun:
    """The run with the choices applied to all its plans."""

    def change(plan: Plan) -> Plan:
        return with_choices(plan, choices)

    return replace(
        prepared, train=change(prepared.train),
        unreported=change(prepared.train if prepared.unreported is prepared.train
                          else prepared.unreported),
        partial=prepared.partial and change(prepared.partial),
        evaluate=tuple(replace(part, plan=change(part.plan)) for part in prepared.evaluate))


def chosen(plan: Plan) -> dict[str, Changes]:
    """The choices in a plan, by the op's name; ops without one are left out."""
    return {op.name: {n: op.attributes[n] for n in ("choice", "slices") if n in op.attributes}
            for op in plan.ops if "choice" in op.attributes}


def choices_of(prepared: PreparedRun) -> dict[str, Changes]:
    """The choices in all plans of a run, in the format of `applied`."""
    plans = [prepared.train, prepared.unreported, *([prepared.partial] if prepared.partial else []),
             *(part.plan for part in prepared.evaluate)]
    return {key_of(op, plan): {n: op.attributes[n] for n in ("choice", "slices")
                               if n in op.attributes}
            for plan in plans for op in plan.ops if "choice" in op.attributes}


# -- storage ---------------------------------------------------------------------------------------


def sources() -> str:
    """A digest of the code under which choices stay valid: the kernels and their launch tables."""
    digest = hashlib.sha256()
    files = (p for p in ptx.SOURCES.rglob("*.*") if p.suffix in (".cu", ".cuh", ".py"))
    for path in (*sorted(files), Path(__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def directory() -> Path:
    """The folder of the file, next to the kernel cache."""
    return cache_directory() / "choices"


def file_of(info: DeviceInfo) -> Path:
    """The file for a GPU's name, its driver and the sources."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{info.name}-{info.driver}".lower()).strip("-")
    return directory() / f"{words}-{sources()}.json"


def read(path: Path, notify: Callable[[str], None]) -> dict[str, TunedLaunch]:
    """The choices stored in a file; none if it is missing. A broken file is reported once."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).choices
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        notify(f"the launches stored in {path} cannot be read and are measured again: {error}")
        return {}


def write(path: Path, info: DeviceInfo, choices: Mapping[str, TunedLaunch],
          notify: Callable[[str], None]) -> None:
    """Store the choices atomically; a failure to write goes to `notify`."""
    content = _File(info.name, info.driver, sources(), dict(choices))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=1))
    except (OSError, RawnnError) as error:
        notify(f"the launches that tune found cannot be stored: {error}")


def remembered() -> dict[Path, dict[str, TunedLaunch]]:
    """Everything that is remembered, file by file; broken ones are left out."""
    remembered: dict[Path, dict[str, TunedLaunch]] = {}
    for path in sorted(directory().glob("*.json")):
        problems: list[str] = []
        choices = read(path, problems.append)
        if not problems:
            remembered[path] = choices
    return remembered
