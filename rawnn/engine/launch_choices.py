"""Variants of launches: which an op has, the names they are remembered by, and the file where.

A variant is a set of changes to an op's attributes: `choice` picks a kernel's tile or block, or
cuBLASLt's answer of that number; `slices` are those of a product cut along its inner dimension, of
which the op that adds them up is told, too. Ops of the same kind, implementation, shapes and types
are launched in the same variant.
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
"""Of cuBLASLt's heuristics that are tried."""
FEWER_SLICES = (1, 2, 4, 7, 8, 14, 16)
"""Numbers of slices that are tried in place of more."""

_LIBRARIES = ("cudnn", "memcpy")
_DISTINGUISHING = ("layout", "bias", "activation", "slope", "compute", "beta", "stochastic")
"""Attributes that say which kernel runs, or what it does."""


class TunedLaunch(msgspec.Struct, frozen=True):
    """What was found of an op: its changes, and microseconds of a whole step before and after."""

    changes: Changes
    before: float
    after: float


class _File(msgspec.Struct, frozen=True):
    gpu: str
    driver: str
    sources: str
    choices: dict[str, TunedLaunch]


def key_of(op: Op, plan: Plan) -> str:
    """Kind, implementation, operands with shapes and types: the same for ops that launch alike."""
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
    """Every other way of launching the op; those that come to the same are left out."""
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
    """All that makes a launch another one."""
    impl = kernel_for(op)
    scalars = impl.scalars(op, plan)
    return (impl.expression(op, plan), impl.geometry(scalars), impl.shared(scalars),
            impl.cluster(scalars))


def _changed(op: Op, changes: Mapping[str, int]) -> Op:
    return replace(op, attributes={**op.attributes, **changes})


def with_choices(plan: Plan, choices: Mapping[str, Changes]) -> Plan:
    """The plan with the ops of each key changed, and whoever adds up their slices told."""
    keyed = [(op, choices.get(key_of(op, plan), {})) for op in plan.ops]
    slices = {op.operands["partial"]: changes["slices"] for op, changes in keyed
              if "slices" in changes}

    def change(op: Op, changes: Changes) -> Op:
        total_slices = slices.get(op.operands.get("partial", ""))
        return _changed(op, changes if total_slices is None
                        else {**changes, "slices": total_slices})

    return replace(plan, ops=tuple(change(op, c) if c or slices else op for op, c in keyed))


def applied(work: PreparedRun, choices: Mapping[str, Changes]) -> PreparedRun:
    """The run with all its plans changed."""

    def change(plan: Plan) -> Plan:
        return with_choices(plan, choices)

    return replace(
        work, train=change(work.train),
        unmeasured=change(work.train if work.unmeasured is work.train else work.unmeasured),
        partial=work.partial and change(work.partial),
        evaluate=tuple(replace(part, plan=change(part.plan)) for part in work.evaluate))


def chosen(plan: Plan) -> dict[str, Changes]:
    """What is chosen for each op of a plan, by the op's name, where something is."""
    return {op.name: {n: op.attributes[n] for n in ("choice", "slices") if n in op.attributes}
            for op in plan.ops if "choice" in op.attributes}


def choices_of(work: PreparedRun) -> dict[str, Changes]:
    """What is chosen for the launches of a run's plans, as `applied` takes it."""
    plans = [work.train, work.unmeasured, *([work.partial] if work.partial else []),
             *(part.plan for part in work.evaluate)]
    return {key_of(op, plan): {n: op.attributes[n] for n in ("choice", "slices")
                               if n in op.attributes}
            for plan in plans for op in plan.ops if "choice" in op.attributes}


# -- where choices are remembered ------------------------------------------------------------------


def sources() -> str:
    """A digest of what choices count through: the kernels and the tables of their launches."""
    digest = hashlib.sha256()
    files = (p for p in ptx.SOURCES.rglob("*.*") if p.suffix in (".cu", ".cuh", ".py"))
    for path in (*sorted(files), Path(__file__)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def directory() -> Path:
    """Beside the kernel cache."""
    return cache_directory() / "choices"


def file_of(info: DeviceInfo) -> Path:
    """The file of a GPU's name, its driver and the sources."""
    words = re.sub(r"[^a-z0-9]+", "-", f"{info.name}-{info.driver}".lower()).strip("-")
    return directory() / f"{words}-{sources()}.json"


def read(path: Path, notify: Callable[[str], None]) -> dict[str, TunedLaunch]:
    """What is remembered in a file: nothing where there is none; a broken one is said once."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File).choices
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        notify(f"the launches remembered in {path} cannot be read and are measured anew: {error}")
        return {}


def write(path: Path, info: DeviceInfo, choices: Mapping[str, TunedLaunch],
          notify: Callable[[str], None]) -> None:
    """Keep what was found, atomically; a place that cannot be written is said."""
    content = _File(info.name, info.driver, sources(), dict(choices))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(content), indent=1))
    except (OSError, RawnnError) as error:
        notify(f"the launches that tune found cannot be kept: {error}")


def remembered() -> dict[Path, dict[str, TunedLaunch]]:
    """Everything that is remembered, file by file; broken ones are left out."""
    remembered: dict[Path, dict[str, TunedLaunch]] = {}
    for path in sorted(directory().glob("*.json")):
        problems: list[str] = []
        choices = read(path, problems.append)
        if not problems:
            remembered[path] = choices
    return remembered
