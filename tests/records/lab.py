"""What users' kernels take as arguments, what a check of them tries, and how far ops may be off."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError
from rawnn.common.target import HOST, KNOWN
from rawnn.cuda.compiling.c_types import FORMATS
from rawnn.cuda.compiling.signature import find_kernel, parse_kernels
from rawnn.cuda.compiling.structs import layout_of
from rawnn.cuda.compiling.translation import Omission
from rawnn.cuda.tensormap import MappedMatrix
from rawnn.lab.arguments import ELEMENTS, converter, elements_of
from rawnn.lab.arrays import empty, simulated
from rawnn.lab.checking import Checked, Finding, TrialResult
from rawnn.lab.geometry import Launch
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Launching
from rawnn.lab.ops import length_of, tolerance_of
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.sanitizer import Complaint, Sanitized
from rawnn.lab.sweeping import Swept, Variant
from rawnn.lab.work import Work
from rawnn.sim.memory import BASE
from tests.catalogue import Variant as Network
from tests.records import Lines, outcome, record, short

PAIR = np.dtype([("a", "f4"), ("b", "i4")])
GIVEN: dict[str, Any] = {
    "3": 3, "-1": -1, "2.5": 2.5, "True": True, "1e6": 1e6, "nan": float("nan"), "inf":
    float("inf"), "2j": 2j, "None": None, "text": "3", "int64": np.int64(3), "float32":
    np.float32(2.5), "array of none": np.array(4), "array": np.ones(2, np.float32), "list": [1, 2],
    "pair": (1.5, 2), "record": np.array((1.5, 2), PAIR)[()], "bytes": b"12345678",
}
OF_STRUCTS = ("3", "None", "list", "pair", "record", "bytes")
OF_NUMBERS = tuple(name for name in GIVEN if name not in ("list", "pair", "record", "bytes"))
"""Of others the message has NumPy's own text, which versions write differently."""
TYPES = ("int", "float", "bool", "__half", "__nv_bfloat16", "__nv_fp8_e4m3", "P")
POINTERS = ("float", "const double", "int", "char", "unsigned long long", "bool", "__half",
            "__nv_bfloat162", "cuComplex", "P", "float4", "void", "float*")
SOURCE = "struct P {{ float a; int b; }};\n__global__ void k({} x) {{}}\n"
TOLERATED = ("tiled", "preload,tf32,mma,fuse", "cublas,fp16,fuse", "cublas,tf32", "bf16,sr,fuse",
             "preload,mma,fp8,fuse", "preload,mma,bf16,fuse", "preload,fp16,mma,fuse",
             "preload,fuse", "preload,mma=wgmma,fp16,fuse")
NETWORKS = (Network((48, 64, 32, 10), 16), Network((784, 512, 512, 10), 128), Network((20, 10), 16),
            Network((16, 8, 8, 8, 10), 32), Network((64, 512, 1000), 64),
            Network((16, 9), 8, {"loss": "mse"}))


def _parameter(ctype: str) -> Any:
    text = SOURCE.format(ctype)
    return find_kernel(parse_kernels(text), "k").parameters[0], text


@record
def arguments_of_kernels() -> Lines:
    """What becomes of a value, by the type of the parameter; which arrays a pointer takes."""
    device, other = simulated(), simulated()
    for ctype in TYPES:
        parameter, _ = _parameter(ctype)
        convert = converter(parameter, None, device)
        yield f"# {ctype}"
        yield from (f"{name}: {outcome(lambda: _text(convert(value, [])))}"
                    for name, value in GIVEN.items()
                    if name in (OF_STRUCTS if ctype == "P" else OF_NUMBERS))
    names = sorted({str(np.dtype(kind)) for kind in ELEMENTS.values()})
    arrays = {name: empty(4, np.dtype(name), device=device) for name in names}
    arrays |= {"pairs": empty(4, PAIR, device=device),
               "four floats": empty(4, np.dtype(("V", 16)), device=device)}
    for ctype in POINTERS:
        parameter, text = _parameter(f"{ctype}*")
        layout = None if parameter.ctype in FORMATS else layout_of(parameter.ctype, [text])
        convert = converter(parameter, layout, device)
        fits = [name for name, given in arrays.items()
                if outcome(lambda: convert(given, [])) == str(given.address)]
        yield f"# {ctype}*: {elements_of(parameter, layout)}; takes {', '.join(fits)}"
        for name, given in {**GIVEN, "halves": arrays["float16"], "pairs": arrays["pairs"],
                            "on another": empty(4, device=other)}.items():
            if name in ("None", "array", "halves", "pairs", "on another"):
                yield f"{name}: {outcome(lambda: _text(convert(given, [])))}"
    arrays.clear()
    device.close()
    other.close()


def _text(found: Any) -> str:
    return found.hex() if isinstance(found, bytes) else \
        "its address" if isinstance(found, int) and found >= BASE else repr(found)


@record
def tolerances_of_ops() -> Lines:
    """The longest sum of each kind of op, and how far off what it writes may be."""
    said = set()
    for opt in TOLERATED:
        for plan in (plan for network in NETWORKS for plan in network.plans(opt)):
            for op in plan.ops:
                written = {name: plan[name] for name, _ in op.writes}
                line = f"{op.kind}/{op.impl} {op.attributes.get('compute', '')}".strip() + \
                    f": {length_of(op, plan)}; " + ", ".join(sorted({
                        f"{t.dtype} {short(tolerance_of(op, plan, t))}" for t in written.values()
                        if t.floating}))
                if line not in said:
                    said.add(line)
                    yield f"{opt}: {line}"


KERNELS = """#include <cuComplex.h>
#include <cuda_fp16.h>
struct P { float a; int b; };
extern "C" __global__ void vectors(const float2* h, const float4* f, uchar3* u, cuComplex* c,
                                   const double* d, int n) {}
extern "C" __global__ void structs(const P* p, void* v, bool* b, long long n) {}
extern "C" __global__ void numbers(float* y, const float* x, float a, __half h, bool b, double d,
                                   int m, int n) {}
extern "C" __global__ void scalar(float* y, const short* x, unsigned char n) {}
"""
MATRICES = {"y": ("m", "n"), "x": ("n", "2 * m", 3)}
WORKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vectors", {"reference": "0"}),
    ("vectors", {"reference": lambda h, u, c=0: 0, "sizes": {"n": [7, 3, 40]}, "writes": ["c"],
                 "block": "warps * 32", "values": {"warps": 3}, "shared": "n * TILE"}),
    ("vectors", {"reference": lambda **known: 0, "inputs": {"d": "2..3"}, "bytes": "n * 5 // 2",
                 "flops": "3 * n", "length": "n / 2 + 1"}),
    ("structs", {"reference": "p", "types": {"v": np.int16}, "shapes": {
        "p": "n", "v": ("n", "TILE"), "b": ()}, "grid": lambda known: known["n"] + 1}),
    ("structs", {"reference": "p"}),
    ("numbers", {"reference": "a * x + y", "shapes": MATRICES, "grid": ["cdiv(n, TILE)", "m"],
                 "block": ("TILE", 2, 1), "cluster": (2, 1), "cooperative": True,
                 "require": ["n % 4 == 0", "m < n"], "shared": lambda known: 4 * known["m"]}),
    ("numbers", {"reference": "x", "shapes": MATRICES, "values": {"m": "n + 1", "d": 2.5, "b": 1},
                 "sizes": {"n": "5..6"}, "inputs": {"y": "uniform"}, "block": [1, 2, 3]}),
    ("numbers", {"reference": "x", "grid": "m"}),
    ("numbers", {"reference": "x", "values": {"m": 3}, "sizes": {"n": 9}, "length": 0}),
    ("numbers", {"reference": "x", "values": {"m": 3}, "sizes": {"n": 9}, "bytes": "-n"}),
    ("scalar", {"reference": "x"}),
    ("scalar", {"reference": "x", "sizes": {"n": "200..255"}}),
    ("scalar", {"reference": "x", "grid": [1, 2, 3, 4]}),
    ("function", {"reference": "x", "shapes": {"x": "n", "y": ("n", 2), "between": "k"},
                  "types": {"y": "int64"}, "sizes": {"k": 5}}),
    ("function", {"reference": lambda x, between=0: x, "writes": ("y",), "values": {"n": 4},
                  "shapes": {"x": "n", "y": "n * 2", "between": "n"}}),
    ("function", {"reference": "x"}),
)


@record
def problems_of_kernels() -> Lines:
    """What is read and written, the sizes that are tried, and the launch of one of them."""
    device = simulated()
    kernels: dict[str, Any] = {name: Kernel(KERNELS, name, defines={"TILE": 16}, device=device)
                               for name in ("vectors", "structs", "numbers", "scalar")}

    def function(x: Any, y: Any, between: Any, n: int) -> None:
        """Launches by itself."""

    for name, given in WORKS:
        said = {key: "a function" if callable(value) else value for key, value in given.items()}
        yield f"# {name} {said}"
        around = {} if name == "function" else {"grid": 1, "block": 32}
        try:
            yield from _described(problem_of(kernels.get(name, function), Work(**around | given)))
        except ConfigError as error:
            yield str(error)
    device.close()


def _described(problem: KernelProblem) -> Lines:
    generator = np.random.default_rng(3)
    sizes = problem.sizes(6, generator)
    yield f"{len(sizes)} of {', '.join(problem.names)}: {sizes[0]} to {sizes[-1]}, largest " \
          f"{problem.largest({})}; at most {problem.together} in one array"
    trial = problem.trial(sizes[0], generator)
    for operand in problem.operands:
        array = trial.arrays[operand.name]
        yield f"{operand.name}: {array.dtype} {array.shape}" + " read" * operand.read \
              + " written" * operand.written
    launching = trial.launching
    yield f"{launching}{', cooperative' * (launching is not None and launching.cooperative)}; " \
          f"{short(trial.numbers)}"
    yield f"{problem.moved(trial)} bytes, {problem.computed(trial)} operations, sums of " \
          f"{short(problem.length(trial.known))}"


@record
def texts_of_the_lab() -> Lines:
    """What launches, sweeps, checks, complaints and tensor maps are as text."""
    driver: Any = None
    right, slower = (Variant({"TILE": tile, "BLOCK": 64}, us, us - 0.5, us + 1, us / 2, share)
                     for tile, us, share in ((8, 4.0, 0.5), (16, 6.0, None)))
    wrong = Variant({"TILE": 32}, failure="it is wrong")
    kernel: Any = SimpleNamespace(expression="k<TILE>")
    launch = Launching((3, 1, 1), (8, 4, 1), 0)
    fine = TrialResult({"n": 1234, "m": 1}, launch, (), ())
    ends = [TrialResult({"n": n}, None, (), (Finding("wrong", "y", f"y is off at {n}", "look"),))
            for n in (7, 8, 9, 10, 11)]
    hazard, warning = (Complaint(message, "k", "k.cu:3", "thread (1, 0, 0)")
                       for message in ("Race", "Warning: race"))
    texts: dict[str, Sequence[Any]] = {
        "launches": (
            Launch((3, 1, 1), (8, 4, 1)), Launch((3, 2, 1), (8, 4, 2), 16, (2, 1, 1), True, True),
            launch, Launching((3, 2, 1), (8, 4, 2), 12_345, (2, 2, 1)),
            Launching((1, 1, 4), (1, 5, 1), cluster=(1, 1, 2))),
        "sweeps": (Swept(kernel, Work(), found, 40, earlier) for found, earlier in (
            ((right, slower, wrong), 2), ((right,), 0), ((), 0), ((wrong,) * 12, 0),
            ((right,) * 15 + (slower,), 1))),
        "checks": (Checked("k", (fine,) * 2, 2), Checked("k", (fine, *ends[:1]), 3, ("a note",)),
                   Checked("k", (*ends, *[fine] * 5), 10)),
        "complaints": (
            Complaint("Race"), hazard, Sanitized("racecheck", ("p",), 0, (warning,), 0, ""),
            Sanitized("racecheck", ("p",), 3, (hazard, warning, hazard), 1, ""),
            Sanitized("memcheck", ("p",), 0, (), 9, ""),
            Sanitized("memcheck", ("p",), 1, (), 0, "")),
        "omissions": (
            Omission("function", "main", "own.cuh", 6, 9), Omission("header", "<vector>"),
            Omission("variable", "v", "", 3, 3, "the host's"), Omission("macro", "", "a.h", 0, 2)),
        "matrices": [MappedMatrix(driver, "w", 30, 20, 24, dtype, rows)
                     for dtype, rows in (("float32", 256), ("bfloat16", 1))],
        "GPUs": (*KNOWN.values(), HOST),
    }
    for name, each in texts.items():
        yield f"# {name}"
        for one in each:
            yield from f"- {one}".splitlines()
    for of in (dict.fromkeys(("float8", "float32", "float16"), (30, 20, 24, 8)), {"float16": (
            30, 20, 20, 8)}, {"float32": (0, 20, 20, 8)}, {"float32": (30, 20, 16, 8)},
            {"float32": (30, 20, 20, 0)}, {"float32": (30, 20, 20, 257)}):
        for dtype, (rows, cols, ld, box) in of.items():
            yield f"{dtype} {rows} {cols} {ld} {box}: " + outcome(
                lambda: MappedMatrix(driver, "w", rows, cols, ld, dtype, box).at(0).count(0))
