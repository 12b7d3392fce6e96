#!/usr/bin/env python3
"""Check and time every step of the series in examples/lab, in turns with what else there is.

    python tools/lab_series.py --json results/lab-h200.json     # on the GPU, a minute
    python tools/lab_series.py gemm --also gemm/8_clusters:GROUP=16
    python tools/lab_series.py --check      # exits with 1 where a last step is far from its limit
    python tools/pages.py                                       # writes examples/lab/README.md

Every step is checked on small sizes first (`rawnn.check`), and at the size that is timed its result
is compared with the reference: all of it, or of a product 64 of its rows. Then candidates take
turns. A sample is one launch between two events, behind a fill of twice the L2 cache. A turn is
some launches of one candidate, the first two of which do not count. Those that take long get fewer.

Beside the steps stand a copy of as many bytes by the driver, and for `gemm` cuBLASLt, by PyTorch or
nvmath-python, whichever there is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rawnn.bench.conditions import Watch  # noqa: E402
from rawnn.bench.harness import place_of  # noqa: E402
from rawnn.bench.record import Record, Results, records_of  # noqa: E402
from rawnn.common.errors import ConfigError, RawnnError  # noqa: E402
from rawnn.cuda.device import Device  # noqa: E402
from rawnn.cuda.errors import check as check_call  # noqa: E402
from rawnn.cuda.stream import Event  # noqa: E402
from rawnn.engine.machine import Opened, open_device  # noqa: E402
from rawnn.lab.arrays import Array  # noqa: E402
from rawnn.lab.candidate_runner import InProcess  # noqa: E402
from rawnn.lab.checking import check  # noqa: E402
from rawnn.lab.comparison import allowed  # noqa: E402
from rawnn.lab.expressions import evaluate  # noqa: E402
from rawnn.lab.kernel import Kernel  # noqa: E402
from rawnn.lab.kernel_files import kernel_of  # noqa: E402
from rawnn.lab.kernel_problem import Launching, Problem  # noqa: E402
from rawnn.lab.parameter_roles import problem_of  # noqa: E402
from rawnn.lab.red_zones import Image  # noqa: E402
from rawnn.lab.reference_run import ReferenceRun  # noqa: E402
from rawnn.lab.work import Work  # noqa: E402

LAB = ROOT / "examples" / "lab"
LAUNCH = "time between two events around one launch, behind a fill of twice the L2 cache"


def steps_of(topic: str) -> list[Path]:
    """The steps of a series, in order."""
    return sorted((LAB / topic).glob("[1-9]_*.cu"))


SIZES: Mapping[str, Mapping[str, int]] = {
    "reduction": {"n": 1 << 26}, "transpose": {"rows": 4096, "cols": 4096},
    "softmax": {"rows": 4096, "cols": 4096}, "gemm": {"m": 8192, "n": 8192, "k": 8192}}
"""What is timed of each series."""
ROWS_OF = {"gemm": "a"}
"""The operand of which rows are drawn for the comparison, where all of it would take minutes."""
ROUNDS, BURST, SKIPPED, SECONDS = 6, 6, 2, 1.0
"""Turns of a candidate, launches of a turn, how many of them do not count, and the seconds after
which a candidate gets no further turn, once it has had two."""


@dataclass
class Bed:
    """A device with the arrays of a series, which its steps share. On the simulated GPU references
    compute in the kernels' place."""

    device: Device
    arrays: dict[tuple[Any, ...], Array] = field(default_factory=dict)
    contents: dict[tuple[Any, ...], np.ndarray] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        return self.device.backend.name == "sim"

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], read: bool) -> Array:
        """Of normally distributed values, where it is an input."""
        key = (name, shape, dtype)
        if key not in self.arrays:
            made = self.arrays[key] = Array(shape, dtype, self.device)
            if read:
                values = np.random.default_rng(len(name)).standard_normal(shape, np.float32)
                self.contents[key] = values.astype(dtype)
                self.device.to_device(made.address, self.contents[key], f"'{name}'")
        return self.arrays[key]


@dataclass
class Step:
    """A kernel ready to be launched at the size that is timed."""

    path: Path
    name: str
    problem: Problem
    launching: Launching
    numbers: dict[str, Any]
    arrays: dict[str, Array]
    contents: dict[str, np.ndarray]
    run: Callable[[], None]

    def compare(self, device: Device, rows_of: str | None) -> None:
        """One launch on poisoned outputs. Raises RawnnError where its result is not the
        reference's."""
        (output,) = self.problem.outputs
        array = self.arrays[output.name]
        device.fill(array.address, 0xFF, array.nbytes, "poison")
        self.run()
        got = array.numpy()
        given = {**self.problem.known({}), **self.numbers, **self.contents}
        if rows_of is not None:
            rows = np.random.default_rng(0).choice(len(got), min(64, len(got)), replace=False)
            got, given[rows_of] = got[rows], given[rows_of][rows]
        exact = np.asarray(self.problem.reference({
            n: v.astype(np.float64) if isinstance(v, np.ndarray) else v for n, v in given.items()}))
        error = np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact)
        work = self.problem.work
        least = allowed(array.dtype, self.problem.length(given), work.compute, work.sums)
        if not error <= least:
            raise RawnnError(f"{self.name}: the result at the size that is timed is off by "
                             f"{error:.1e} of its norm, and {least:.1e} is allowed")


def step(path: Path, bed: Bed, sizes: Mapping[str, int], defines: Mapping[str, object],
         trials: int) -> Step:
    """A step, checked on small sizes. Raises RawnnError where it is wrong."""
    kernel, work = kernel_of(path, device=bed.device, defines=defines)
    check(kernel, work, trials=trials).require()
    return _step(path, f"{path.stem}{':' if defines else ''}{_words(defines)}", kernel, work, bed,
                 sizes)


def _step(path: Path, name: str, kernel: Kernel, work: Work, bed: Bed,
          sizes: Mapping[str, int]) -> Step:
    problem = problem_of(kernel, work)
    known = problem.known(dict(sizes))
    launching = problem.launching(known)
    assert launching is not None
    numbers = {n: known[n] for n, p in problem.scalars.items() if not p.tensor_map}
    arrays, contents = {}, {}
    for o in problem.operands:
        shape = problem.shape(o, known)
        arrays[o.name] = bed.array(o.name, shape, o.dtype, o.read)
        if o.read:
            contents[o.name] = bed.contents[o.name, shape, o.dtype]
    bound = InProcess(kernel, problem.parameters).prepared(launching, arrays, numbers)
    run = _rehearsed(problem, launching, arrays, numbers, bound) if bed.simulated else bound
    return Step(path, name, problem, launching, {**known, **numbers}, arrays, contents, run)


def _rehearsed(problem: Problem, launching: Launching, arrays: Mapping[str, Array],
               numbers: Mapping[str, Any], bound: Callable[[], None]) -> Callable[[], None]:
    """A launch on the simulated GPU, which is told for that long what the kernel computes."""
    runner, generator = ReferenceRun(problem), np.random.default_rng(0)
    images = {n: Image.of(np.zeros(a.shape, a.dtype), generator) for n, a in arrays.items()}

    def run() -> None:
        runner.told(launching, images, numbers)
        bound()
        runner.finish()
        runner.close()

    return run


def interleaved(device: Device, runs: Mapping[str, Callable[[], None]], rounds: int = ROUNDS
             ) -> dict[str, list[float]]:
    """Microseconds of launches of each."""
    nbytes = 1 if device.backend.name == "sim" else 2 * device.attribute("L2_CACHE_SIZE")
    flush = device.memory.allocate(nbytes, "what the L2 cache is filled with")
    events = [(Event(device.driver), Event(device.driver)) for _ in range(BURST)]

    def turn(name: str, launches: int) -> list[float]:
        for begin, end in events[:launches]:
            device.fill(flush.address, 1, nbytes, "the L2 cache")
            begin.record(device.stream)
            runs[name]()
            end.record(device.stream)
        device.stream.synchronize(name)
        return [e.milliseconds_since(b) * 1e3 for b, e in events[:launches]]

    found: dict[str, list[float]] = {name: [] for name in runs}
    order = np.random.default_rng(0)
    try:
        spent = {name: turn(name, 1)[0] * 1e-6 for name in runs}
        long = {name for name, seconds in spent.items() if seconds * BURST > SECONDS / 2}
        for number_of_turn in range(rounds):
            for name in order.permutation([*runs]).tolist():
                if number_of_turn > 1 and spent[name] > SECONDS:
                    continue
                times = turn(name, 2 if name in long else BURST)
                spent[name] += sum(times) * 1e-6
                found[name] += times[1 if name in long else SKIPPED:]
    finally:
        for pair in events:
            for event in pair:
                event.close()
        device.memory.free(flush)
    return found


def copy(bed: Bed, nbytes: int) -> Callable[[], None]:
    """A copy within device memory that moves `nbytes`, half of them read."""
    half, driver = nbytes // 2, bed.device.driver
    to, of = (bed.array(name, (half,), np.dtype(np.uint8), False) for name in ("to", "from"))
    bed.device.fill(of.address, 1, half, "what is copied")

    def run() -> None:
        check_call(driver, "cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(
            to.address, of.address, half, bed.device.stream.handle), "a copy")

    return run


def products(bed: Bed, sizes: Mapping[str, int]) -> tuple[dict[str, Callable[[], None]], list[str]]:
    """cuBLASLt's product of the same bfloat16 matrices by those that are installed; and why others
    are not there."""
    m, n, k = (sizes[name] for name in "mnk")
    kind = np.dtype(ml_dtypes.bfloat16)
    a, b = bed.array("a", (m, k), kind, True), bed.array("b", (k, n), kind, True)
    c = bed.array("c", (m, n), kind, False)
    found: dict[str, Callable[[], None]] = {}
    missing = []
    for name, make in (("cuBLASLt (PyTorch)", _by_torch), ("cuBLASLt (nvmath)", _by_nvmath)):
        try:
            found[name] = make(bed.device, a, b, c)
        except Exception as error:  # whatever it says; the others go on
            said = (str(error).splitlines() or [""])[0]
            missing.append(f"{name}: {type(error).__name__}: {said}")
    return found, missing


def _by_torch(device: Device, a: Array, b: Array, c: Array) -> Callable[[], None]:
    import torch

    torch.backends.cuda.preferred_blas_library("cublaslt")
    left, right, result = (torch.from_dlpack(x) for x in (a, b, c))
    stream = torch.cuda.ExternalStream(int(device.stream.handle))

    def run() -> None:
        with torch.cuda.stream(stream):
            torch.mm(left, right, out=result)

    run()
    device.stream.synchronize("PyTorch's first product")
    return run


def _by_nvmath(device: Device, a: Array, b: Array, c: Array) -> Callable[[], None]:
    from rawnn.cuda.libs.matmul import LtContext

    (m, k), n = a.shape, b.shape[1]
    plan = LtContext(device.backend.cublaslt()).plan(
        layout="nn", m=m, n=n, k=k, lda=k, ldb=n, ldc=n, dtype="bfloat16",
        workspace_limit=64 << 20)
    room = Array((max(plan.workspace_bytes, 1),), np.uint8, device)

    def run() -> None:
        plan.run(int(device.stream.handle), a.address, b.address, c.address,
                 workspace=room.address)

    return run


def measure(opened: Opened, topics: Iterable[str], sizes: Mapping[str, Mapping[str, int]],
            also: Sequence[str] = (), trials: int = 4,
            say: Callable[[str], None] = print) -> tuple[Results, list[str]]:
    """The records of all of it, and what is missing, in sentences. Raises ConfigError without a
    GPU, RawnnError where a step is wrong."""
    device = opened.device
    if device is None:
        raise ConfigError(f"the series are measured on a GPU: {opened.machine.gpu}")
    place, missing = place_of(opened, {"launch_us": LAUNCH}), list[str]()
    records: list[Record] = []
    with Watch.of(opened).during() as seen:
        for topic in topics:
            found, gone = _topic(device, topic, sizes[topic], also, trials, say)
            records += found
            missing += gone
    if seen.conditions is not None and (mhz := seen.conditions.readings.get("sm_mhz")):
        records += records_of("lab", "gpu", {"sm_mhz": mhz})
    return Results(environments={place.key: place}, records=[
        msgspec.structs.replace(record, environment=place.key) for record in records]), missing


def _topic(device: Device, topic: str, sizes: Mapping[str, int], also: Sequence[str], trials: int,
           say: Callable[[str], None]) -> tuple[list[Record], list[str]]:
    bed = Bed(device)
    asked: list[tuple[Path, dict[str, object]]] = [(path, {}) for path in steps_of(topic)]
    for text in also:
        file, _, macros = text.partition(":")
        if file.partition("/")[0] == topic:
            asked.append((LAB / f"{file}.cu", dict(
                m.split("=", 1) for m in macros.split(",") if m)))  # type: ignore[misc]
    ready: list[Step] = []
    missing: list[str] = []
    for path, defines in asked:
        try:
            made = step(path, bed, sizes, defines, trials)
            made.compare(device, ROWS_OF.get(topic))
            ready.append(made)
        except RawnnError as error:  # the others go on
            missing.append(f"{topic}/{path.stem} {_words(defines)}: {error}")
    if not ready:
        raise RawnnError("\n".join(missing))
    last = max((s for s in ready if s.path in steps_of(topic)), key=lambda s: s.name)
    flops = last.problem.work.flops
    work = {"moved_bytes": sum(a.nbytes for a in last.arrays.values()),
            "operations": None if flops is None else
            int(evaluate(flops, last.numbers, "flops"))}
    others: dict[str, Callable[[], None]] = {}
    if topic == "gemm":
        if not bed.simulated:
            others, gone = products(bed, sizes)
            missing += gone
    else:
        others = {"a copy": copy(bed, work["moved_bytes"] or 0)}
    times = interleaved(device, {**{s.name: s.run for s in ready}, **others})
    plain = {path.stem for path in steps_of(topic)}
    shared = {f"size_{name}": value for name, value in sizes.items()}
    records: list[Record] = []
    for made in ready:
        records += records_of(
            f"lab/{topic}", made.name, {"launch_us": times[made.name], **work, **_resources(made)},
            conditions={**shared, "role": "steps" if made.name in plain else "also",
                        "launch": str(made.launching)})
    for name in sorted(others, key=lambda name: median(times[name])):
        records += records_of(f"lab/{topic}", name, {"launch_us": times[name], **work},
                              conditions={**shared, "role": "comparison"})
    best = min((median(times[name]) for name in others), default=None)
    for name, found in times.items():
        share = f", {best / median(found):.1%} of the fastest other" if best else ""
        say(f"{topic} {name}: {median(found):,.1f} us ({min(found):,.1f}-{max(found):,.1f}, n = "
            f"{len(found)}){share}")
    for text in missing:
        say(f"missing: {text}")
    return records, missing


def _words(defines: Mapping[str, object]) -> str:
    return ",".join(f"{n}={v}" for n, v in defines.items())


def _resources(made: Step) -> dict[str, int]:
    """Registers of a thread, bytes of shared memory of a block, and bytes of a thread for which
    registers had no room."""
    kernel = made.problem.candidate
    assert isinstance(kernel, Kernel)
    driver = kernel.device.driver
    registers, shared, local = (int(check_call(
        driver, "cuFuncGetAttribute", driver.cuFuncGetAttribute(what, kernel.function.handle),
        made.name)) for what in ("NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES"))
    return {"registers": registers, "shared_bytes": shared + made.launching.shared,
            "local_bytes": local}


# -- for the page ----------------------------------------------------------------------------------


def learned(path: Path) -> str:
    """A header comment's sentences behind "Learned:", in one line."""
    found = re.search(r"// Learned: (.*?)\n(?!//)", path.read_text(encoding="utf-8"), re.DOTALL)
    return " ".join(found[1].replace("\n//", " ").split()) if found else ""


def lessons(topic: str) -> str:
    """What each step of a series taught, as a list in Markdown."""
    return "\n".join([*(f"- [{p.stem}]({topic}/{p.name}): {learned(p)}" for p in steps_of(topic)),
                      ""])


SHARES = {"reduction": 0.9, "transpose": 0.9, "softmax": 0.9, "gemm": 0.95}
"""What the last step of a series reaches of a copy of as many bytes, `gemm` of cuBLASLt."""


def short_of_limits(found: Results) -> list[str]:
    """Sentences on series whose last step reaches less of its limit than it should."""
    short = []
    for topic, share in SHARES.items():
        times = {role: [(e.variant, us) for e in
                        found.entries("lab", case=f"lab/{topic}", role=role)
                        if (us := e.median("launch_us"))] for role in ("steps", "comparison")}
        if times["steps"] and times["comparison"]:
            (limit, least), (last, taken) = times["comparison"][0], times["steps"][-1]
            if least / taken < share:
                short.append(f"{topic}: {last} reaches {least / taken:.1%} of {limit}, less than "
                             f"{share:.0%}")
    return short


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("topics", nargs="*", help=f"of {', '.join(SIZES)}; all by default")
    parser.add_argument("--json", type=Path, help="keep everything here")
    parser.add_argument("--also", action="append", default=[], metavar="TOPIC/STEP:MACRO=VALUE,...",
                        help="a step with other macros, too")
    parser.add_argument("--trials", type=int, default=4, help="small sizes that are checked")
    parser.add_argument("--check", action="store_true",
                        help="exit with 1 where a last step is far from its limit")
    asked = parser.parse_args()
    unknown = set(asked.topics) - set(SIZES)
    if unknown:
        parser.error(f"there is no series {', '.join(sorted(unknown))}")
    try:
        opened = open_device("gpu", print)
        found, missing = measure(opened, asked.topics or SIZES, SIZES, asked.also, asked.trials)
    except RawnnError as error:
        sys.exit(str(error))
    if asked.json:
        found.write(asked.json)
    if asked.check and (short := short_of_limits(found)):
        sys.exit("; ".join(short))
    sys.exit(any(text.partition(" ")[0] == f"{topic}/{p.stem}" for text in missing
                 for topic in SIZES for p in steps_of(topic)))


if __name__ == "__main__":
    main()
