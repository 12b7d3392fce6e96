"""Comparing a kernel with its reference: what passes, what is caught, and the messages."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.cuda.stream import Stream
from rawnn.lab import CheckFailed, Refused, Work, checking
from rawnn.lab.checking import Checked, Finding, TrialResult, patterns
from rawnn.lab.comparison import Comparison
from rawnn.lab.red_zones import Image
from rawnn.sim import Simulation, register
from tests.lab.cheats import CHEATS, SHAPES, WRITE, Cheat, doubled, plain

SMALL: dict[str, Any] = {"sizes": {"n": "1..3000"}}
ONE: dict[str, Any] = {**SMALL, "grid": 1, "block": 1, "trials": 4}
HONEST = Cheat("lab_honest", WRITE, plain(doubled), ())


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_caught(device: Device, cheat: Cheat) -> None:
    found = rawnn.check(cheat.simulated(device), **cheat.given, limit=cheat.limit,
                        special=cheat.special)
    assert not found
    assert not found.passed
    assert found.findings[0].what in cheat.caught, str(found)
    if cheat.name == "never_ends":
        assert "did not end within 0.5 s" in str(found)
    with pytest.raises(CheckFailed, match="WRONG with"):
        found.require()


@pytest.mark.parametrize("changes", [
    {}, {"limit": 20.0}, {"special": True}, {"sizes": {"n": [1, 7, 256]}},
    {"reference": "2 * x"}, {"reference": lambda **known: {"y": 2 * known["x"]}},
    {"grid": lambda known: -(-known["n"] // 256)}, {"grid": ["cdiv(n, 256)", 1]},
    {"sizes": {}}, {"require": ["n % 8 == 0"]}, {"inputs": {"x": "uniform"}},
    {"inputs": {"x": 3}}, {"inputs": {"x": lambda g, shape: g.normal(size=shape)}},
    {"reference": lambda x: 2 * x.astype(np.float32)},
])
def test_an_honest_kernel_passes(device: Device, changes: dict[str, Any]) -> None:
    found = rawnn.check(HONEST.simulated(device), **{**HONEST.given, **changes})
    found.require()
    assert found
    assert "right with all of" in str(found)
    if "require" in changes:
        assert all(tried.sizes["n"] % 8 == 0 for tried in found.tried)


def test_what_is_found_of_a_cheat_is_said(device: Device) -> None:
    for name, words in (
            ("keeps_results_by_size", "does it keep results, or inputs, from one launch to the"),
            ("works_only_once", "differs from launch to launch on the same input"),
            ("stops_one_above_a_multiple", " elements of 'y' were never written, from y["),
            ("wrong_in_the_second_launch", "error 1.0e-02 of its norm")):
        cheat = next(c for c in CHEATS if c.name == name)
        assert words in str(rawnn.check(cheat.simulated(device), **cheat.given))


def test_whole_numbers_are_exact_whatever_the_tolerance(device: Device) -> None:
    text = "__global__ void lab_places(const float* x, float* y, int* place, int n) {}\n"

    def places(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        t.y[...] = 2.001 * t.x
        t.place[...] = np.arange(t.x.size) + (np.arange(t.x.size) == 2900) * off

    register("lab_places", places, {**SHAPES, "place": ("n",)}, reads=("x",),
             writes=("y", "place"))
    kernel, off = rawnn.Kernel(text, "lab_places", device=device), 0
    given: dict[str, Any] = {
        "reference": lambda x: {"y": 2 * x, "place": np.arange(x.size)}, "grid": 1, "block": 32,
        "sizes": {"n": 3000}, "tolerance": 1e-2}
    rawnn.check(kernel, **given).require()
    off = 1
    found = rawnn.check(kernel, **given)
    assert "place (int32) 1 of 3,000 elements differ; the worst, [2900]: expected 2900, got 2901" \
        in str(found)


def test_a_result_is_nowhere_to_be_found(sim: Simulation, device: Device) -> None:
    """Neither in the GPU's memory nor in a caller's variables, before a kernel has made it."""
    def searching(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        wanted = (2 * t.x).tobytes()
        for allocation in sim.memory.live.values():
            if (place := allocation.data.tobytes().find(wanted)) >= 0:
                t.y[...] = allocation.data[place : place + len(wanted)].view(np.float32)

    register(HONEST.name, searching, SHAPES, reads=("x",), writes=("y",))
    given = {**HONEST.given, "sizes": {"n": [100, 1000]}}
    assert rawnn.check(HONEST.kernel(device), **given).findings[0].what == "not written"

    def peeking(x: Any, y: Any, n: int) -> None:
        for info in inspect.stack():
            for value in info.frame.f_locals.values():
                results = value.values() if isinstance(value, dict) else [value]
                for result in results:
                    if isinstance(result, np.ndarray) and result.shape == (n,) and \
                            np.allclose(result, 2 * x.numpy()):
                        y[:] = result.astype(np.float32)

    found = rawnn.check(peeking, lambda x: {"y": 2 * x}, shapes=SHAPES, sizes={"n": [100, 1000]},
                        device=device)
    assert found.findings[0].what == "not written"


def test_work_is_waited_for_wherever_it_runs(device: Device) -> None:
    kernel, side = HONEST.simulated(device), Stream(device.driver)
    launch = {"shapes": SHAPES, "sizes": {"n": [100, 1000]}, "device": device}

    def elsewhere(x: Any, y: Any, n: int) -> None:
        kernel[-(-n // 256), 256].using(stream=side)(x, y, n)

    rawnn.check(elsewhere, lambda x: {"y": 2 * x}, **launch).require()
    side.close()
    begin, later = threading.Event(), []

    def put_off(x: Any, y: Any, n: int) -> None:
        later.append(threading.Thread(target=begin.wait))
        later[-1].start()  # what it would do comes when nobody waits any more

    found = rawnn.check(put_off, lambda x: {"y": 2 * x}, **launch)
    begin.set()
    assert "'y' was never written" in str(found)


def test_a_function_that_replaces_its_judge_is_refused(device: Device,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    def judging(x: Any, y: Any, n: int) -> None:
        monkeypatch.setattr(checking, "compare", lambda *arguments: Comparison(
            "y", "float32", n, 0.0, 1.0, 0, "[0]", 0.0, 0.0))

    with pytest.raises(Refused, match=r"replaced rawnn\.lab\.checking\.compare: neither"):
        rawnn.check(judging, lambda x: {"y": 2 * x}, shapes=SHAPES, sizes={"n": 100},
                    device=device)


def test_a_launch_of_the_time_before_is_no_launch(device: Device) -> None:
    """Bound to the arrays of the first call, and replayed."""
    kernel, kept = HONEST.simulated(device), []

    def replayed(x: Any, y: Any, n: int) -> None:
        if not kept:
            kept.append(kernel.bind(-(-n // 256), 256, x, y, n))
        kept[0]()

    found = rawnn.check(replayed, lambda x: {"y": 2 * x}, shapes=SHAPES, sizes={"n": [100, 1000]},
                        device=device)
    assert found.findings[0].what == "failed"
    assert "freed" in str(found)


def test_every_type_by_its_own_tolerance(device: Device) -> None:
    text = ("struct half { unsigned short bits; };\n"  # by its name: its header takes a second
            "template <typename T> __global__ void lab_typed(const T* x, T* y, int n) {}\n")

    def rounded(t: Any, a: Any) -> None:
        t.y[...] = (2.02 * t.x.astype(np.float64)).astype(t.y.dtype)

    register("lab_typed", rounded, SHAPES, reads=("x",), writes=("y",))
    allowed = {}
    for name in ("float", "double", "half"):
        kernel = rawnn.Kernel(text, f"lab_typed<{name}>", device=device)
        found = rawnn.check(kernel, lambda x: 2.02 * x, **ONE).require()
        allowed[name] = found.worst()["y"][0].tolerance
        assert not rawnn.check(kernel, lambda x: 2.021 * x, **ONE)
    assert allowed["double"] < 1e-14 < allowed["float"] < 1e-5 < allowed["half"] < 1e-3
    for name, value in (("int", 2), ("unsigned char", 2)):
        kernel = rawnn.Kernel(text, f"lab_typed<{name}>", device=device)
        register("lab_typed", lambda t, a: np.multiply(t.x, t.x.dtype.type(2), out=t.y), SHAPES,
                 reads=("x",), writes=("y",))
        rawnn.check(kernel, lambda x, v=value: x * v, **ONE).require()
        assert not rawnn.check(kernel, lambda x: x * 2 + (x == x.max()), **ONE)


def test_long_sums_need_their_length(device: Device) -> None:
    text = "__global__ void lab_sums(const float* x, float* y, int rows, int cols) {}\n"

    def summed(t: Any, a: Any) -> None:
        total = np.zeros(t.y.size, np.float32)
        for column in t.x.T:
            total += column
        t.y[...] = total + np.float32(1e-4) * t.y.size ** 0  # off as a poor order of sums is

    register("lab_sums", summed, {"x": ("rows", "cols"), "y": ("rows",)}, reads=("x",),
             writes=("y",))
    kernel = rawnn.Kernel(text, "lab_sums", device=device)
    work = Work(reference=lambda x: x.sum(1), grid="rows", block=32, shapes={
        "x": ("rows", "cols"), "y": "rows"}, sizes={"rows": 50, "cols": 4096})
    assert "length=\"k\"" in str(rawnn.check(kernel, work))
    assert rawnn.check(kernel, work, length="cols")
    assert not rawnn.check(kernel, work, tolerance=1e-7)


def test_a_sum_that_cancels_is_judged_by_its_terms(device: Device) -> None:
    text = "__global__ void lab_one(const float* x, float* y, int n) {}\n"
    register("lab_one", lambda t, a: t.y.__setitem__(0, t.x.cumsum()[-1]),
             {"x": ("n",), "y": ("1",)}, reads=("x",), writes=("y",))
    kernel = rawnn.Kernel(text, "lab_one", device=device)
    for seed in range(5):
        rawnn.check(kernel, lambda x: x.sum(), grid=1, block=32, shapes={"y": 1}, length="n",
                    seed=seed, **SMALL).require()


def test_in_and_out_and_arrays_that_may_hold_anything(device: Device) -> None:
    text = "__global__ void lab_both(float* x, float* y, float* scratch, float a, int n) {}\n"

    def both(t: Any, a: Any) -> None:
        t.scratch[...] = np.random.default_rng().random(t.x.size)
        t.x[...] += np.float32(a["a"])
        t.y[...] = t.x

    register("lab_both", both, {**SHAPES, "scratch": ("n",)}, reads=("x",),
             writes=("x", "y", "scratch"))
    kernel = rawnn.Kernel(text, "lab_both", device=device)
    given = {"grid": 1, "block": 32, "trials": 3, **SMALL}
    assert rawnn.check(kernel, lambda x, a: {"x": x + a, "y": x + a, "scratch": None}, **given)
    left = rawnn.check(kernel, lambda x, a: {"x": x + a, "y": x + a}, **given)
    assert "'scratch' was changed, and the reference does not return it" in str(left)
    narrow = rawnn.check(kernel, lambda x, a: x + a, writes=["y"], **given)
    assert "'x' was changed, and it is an input" in str(narrow)


def test_atomics_may_differ_where_that_is_said(device: Device) -> None:
    cheat = next(c for c in CHEATS if c.name == "races")
    assert rawnn.check(cheat.simulated(device), **cheat.given, deterministic=False)


@pytest.mark.parametrize(("units", "ordered", "any_order"), [
    (60, True, True), (110, False, True), (200, False, False)])
def test_sums_by_atomics_may_be_off_twice_as_far(device: Device, units: int, ordered: bool,
                                                 any_order: bool) -> None:
    """Of 4,096 terms: 64 units of rounding, or 128, and 17 for all else."""
    text = "__global__ void lab_atomics(const float* x, float* y, int n) {}\n"
    register("lab_atomics", lambda t, a: np.multiply(t.x, np.float32(2 * (1 + units * 2.0**-24)),
                                                     out=t.y), SHAPES, reads=("x",), writes=("y",))
    kernel = rawnn.Kernel(text, "lab_atomics", device=device)
    for fixed, passes in ((True, ordered), (False, any_order)):
        found = rawnn.check(kernel, lambda x: 2 * x, **ONE, length=4096, deterministic=fixed)
        assert bool(found) is passes, str(found)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("part", "passes"), [(1e-13, True), (1e-10, False)])
def test_what_is_nothing_beside_the_inputs_counts_as_zero(device: Device, part: float, passes: bool,
                                                          size: int) -> None:
    text = "__global__ void lab_nothing(const float* x, float* y, int n) {}\n"
    register("lab_nothing", lambda t, a: t.y.fill(0), SHAPES, reads=("x",), writes=("y",))
    kernel = rawnn.Kernel(text, "lab_nothing", device=device)
    found = rawnn.check(kernel, lambda x: part * x, **ONE, inputs={"x": size})
    assert bool(found) is passes, str(found)


def test_a_reference_that_writes_into_its_inputs_changes_none_of_them(device: Device) -> None:
    def careless(x: Any, n: int) -> Any:
        found = 2 * x
        x[...] = 0
        return found

    text = "__global__ void lab_whole(const int* x, int* y, int n) {}\n"
    register("lab_whole", lambda t, a: np.multiply(t.x, 2, out=t.y), SHAPES, reads=("x",),
             writes=("y",))
    rawnn.check(HONEST.simulated(device), **{**HONEST.given, "reference": careless}).require()
    rawnn.check(rawnn.Kernel(text, "lab_whole", device=device), careless, **ONE).require()


def test_vectors_and_structs(device: Device) -> None:
    text = ("struct Particle { float mass; int kind; };\n"
            "__global__ void lab_particles(const float4* v, Particle* p, int n) {}\n")

    kernel = rawnn.Kernel(text, "lab_particles", device=device)
    assert kernel.elements["v"].width == 4
    assert kernel.elements["p"].dtype.names == ("mass", "kind")
    unknown = rawnn.check(kernel, lambda v, p: p, **ONE)
    assert "the simulated GPU knows numbers and vectors" in str(unknown)


def test_vectors_have_an_axis_more(device: Device) -> None:
    text = "__global__ void lab_forces(const float4* p, float4* a, int n) {}\n"
    kernel = rawnn.Kernel(text, "lab_forces", device=device)
    seen = []

    def forces(p: Any) -> Any:
        seen.append(p.shape)
        return p * [1, 2, 3, 4]

    rawnn.check(kernel, forces, **ONE).require()
    assert {len(shape) for shape in seen} == {2}
    assert {shape[1] for shape in seen} == {4}


def test_sizes_that_seldom_fit_are_found(device: Device) -> None:
    found = rawnn.check(HONEST.simulated(device), lambda x: 2 * x, grid="n", block=32,
                        sizes={"n": "1..3000"}, require=["n % 64 == 0"], trials=8)
    assert len(found.tried) == 8


def test_a_function_of_several_launches(device: Device) -> None:
    kernel = HONEST.simulated(device)

    def four_times(x: Any, y: Any, between: Any, n: int) -> None:
        kernel[(n + 255) // 256, 256](x, between, n)
        kernel[(n + 255) // 256, 256](between, y, n)

    given: dict[str, Any] = {"shapes": {"x": "n", "y": "n", "between": "n"}, "device": device,
                             "trials": 4, **SMALL}
    reference = lambda x: {"y": 4 * x, "between": None}  # noqa: E731
    assert rawnn.check(four_times, reference, **given)
    assert not rawnn.check(four_times, lambda x: {"y": 3 * x, "between": None}, **given)
    with pytest.raises(ConfigError, match="can run in a process of its own"):
        rawnn.check(four_times, reference, **given, limit=1.0)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"reference": None}, "a check needs a reference"), ({"grid": None}, "grid is missing"),
    ({"block": None}, "block is missing"), ({"sizze": {}}, "did you mean 'sizes'?"),
    ({"shapes": {"z": "n"}}, "shapes: lab_honest has no array 'z'"),
    ({"grid": "cdiv(m, 256)"}, "asks for 'm', which is not known"),
    ({"reference": lambda x, q: x}, "the reference asks for 'q'"),
    ({"reference": lambda x: {"x": x}}, "returns 'x', which is no array that lab_honest may write"),
    ({"reference": lambda x: x[1:]}, "returns 'y' of shape"),
    ({"reference": lambda x: None}, "the reference returns None"),
    ({"reference": lambda x: exit(3)}, "the reference fails with n = 1: SystemExit: 3"),
    ({"reference": lambda x: x + 1j}, "of type complex128, and the kernel's is float32"),
    *(({"reference": lambda x, kind=kind: x.astype(kind)}, "let it return an array of numbers")
      for kind in ("O", "S", "U", "M8[s]", "m8[s]")),
    ({"reference": lambda x: {}}, "returns no array to compare with"),
    ({"reference": lambda x: {"y": None}}, "returns no array to compare with"),
    ({"reference": np.add}, "does not say the names"), ({"reference": "2 *"}, "cannot be read"),
    ({"reference": "none.py:f"}, "is not there"), ({"sizes": {"n": 0}}, "of at least 1"),
    ({"sizes": {"n": "5"}}, 'a range as "1..4096"'), ({"sizes": {"n": "9..5"}}, "no range"),
    ({"require": ["n < 0"]}, "no sizes meet require"), ({"limit": -1}, "seconds above 0"),
    ({"limit": 0}, "seconds above 0"),
    ({"inputs": {"x": "gauss"}}, 'give "normal"'), ({"writes": ["q"]}, "has no array 'q'"),
    ({"writes": []}, "writes nothing"),
    ({"inputs": {"x": lambda g, shape: np.zeros(3)}}, "gave an array of shape (3,)"),
    ({"inputs": {"x": lambda g, shape: np.full(shape, 1 + 2j)}}, "which cannot hold (1+2j)"),
    ({"inputs": {"x": lambda g: 1}}, "the function for x fails with (generator, (1,)): TypeError"),
    ({"inputs": 3}, "inputs is a int: give a mapping"),
    ({"sizes": None}, "sizes is None: give a mapping"), ({"shapes": 3}, "shapes is a int: give a"),
    ({"sizes": {"n": 2**31}}, "n = 2,147,483,648 is beyond 2,147,483,647, the largest int"),
    ({"tolerance": -1}, "tolerance = -1: give a number of at least 0"),
    ({"tolerance": "a"}, "tolerance = 'a'"), ({"tolerance": float("nan")}, "tolerance = nan"),
    ({"trials": 0}, "trials = 0: give a whole number"), ({"trials": 1.5}, "trials = 1.5"),
    ({"seed": -1}, "seed = -1: give a whole number"), ({"seed": "a"}, "seed = 'a'"),
    ({"require": 3}, "require is a int: give a list"), ({"require": "n < 0"}, "no sizes meet"),
    ({"length": -1}, "length = -1 is -1: the number of products"),
])
def test_what_does_not_fit_is_said(device: Device, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rawnn.check(HONEST.simulated(device), **{**HONEST.given, **changes})
    assert sentence in str(caught.value)


def test_a_kernel_of_several_sizes_needs_shapes(device: Device) -> None:
    text = "__global__ void lab_two(const float* x, float* y, int rows, int cols) {}\n"
    kernel = rawnn.Kernel(text, "lab_two", device=device)
    with pytest.raises(ConfigError, match=r"how large is 'x'\? Say shapes="):
        rawnn.check(kernel, lambda x: x, grid=1, block=1)


def test_variables_of_the_kernel(device: Device) -> None:
    text = ("__constant__ float taps[3];\n__device__ int bias;\n"
            "__global__ void lab_taps(const float* x, float* y, int n) { y[0] = taps[0] + bias; }")
    kernel = rawnn.Kernel(text, "lab_taps", device=device)
    given = {**ONE, "symbols": {"taps": [1, 2, 3], "bias": "5..9"}}
    found = rawnn.check(kernel, lambda x, taps, bias: taps[1] * x + bias, **given).require()
    assert "the reference in the kernel's place" in str(found)
    assert kernel.symbol("taps").numpy().tolist() == [1, 2, 3]
    assert 5 <= kernel.symbol("bias").numpy() <= 9
    with pytest.raises(ConfigError, match="no __constant__ or __device__ variable 'tabs'"):
        rawnn.check(kernel, lambda x: x, **ONE, symbols={"tabs": 1})
    for values, sentence in (([1, 2, 3j], r"taps is an array of float32, which cannot hold 3j"),
                             ([1, 2], r"taps is of shape \[3\], but its values are of \[2\]"),
                             ([1, 2, "a"], "taps is an array of float32: could not convert")):
        with pytest.raises(ConfigError, match=f"symbols: {sentence}"):
            rawnn.check(kernel, lambda x: x, **ONE, symbols={"taps": values})
    with pytest.raises(ConfigError, match=r"symbols: bias is an array of int32, which cannot hold "
                                          r"1\.5"):
        rawnn.check(kernel, lambda x: x, **ONE, symbols={"bias": [1.5]})


def test_what_sizes_have_in_common_is_said(device: Device) -> None:
    def sizes(*values: int) -> list[dict[str, int]]:
        return [{"n": value} for value in values]

    assert list(patterns(sizes(1, 33, 70), sizes(64, 128))) == [
        "right only where n is a multiple of 64"]
    assert list(patterns(sizes(5000, 9001), sizes(1, 4095, 7))) == [
        "right up to n = 4,095, wrong from n = 5,000 on"]
    assert list(patterns(sizes(1, 2), sizes(33, 31))) == [
        "right from n = 31 on, wrong up to n = 2"]
    # One that is wrong is a multiple, too; one that is right is none.
    assert not list(patterns(sizes(1000, 2048, 9000), sizes(1024, 4096)))
    assert not list(patterns(sizes(1000, 3000, 9000), sizes(1024, 4001)))
    assert list(patterns(sizes(1000, 2049), sizes(1024, 3072))) == [
        "right only where n is a multiple of 1024"]
    both = [{"m": m, "n": 7} for m in (3, 4, 5, 6)]  # n alone says nothing
    assert list(patterns(both[2:], both[:2])) == [
        "right up to m = 4, wrong from m = 5 on"]
    for wrong, right in ((sizes(1, 9), sizes(4)), (sizes(1), []), ([], sizes(1)),
                         (sizes(5), sizes(3, 5)), (sizes(5), sizes(5, 7))):
        assert not list(patterns(wrong, right))


def test_the_worst_of_all_sizes_is_shown() -> None:
    tried = [TrialResult({"n": n}, None, (Comparison("y", "float32", n, error, 1.0, 0, "[0]", 0.0,
                                                     0.0),),
                         ()) for n, error in ((1, 0.1), (2, 0.3), (3, 0.2))]
    (comparison, where), = Checked("it", tuple(tried), 3).worst().values()
    assert (comparison.error, where.sizes) == (0.3, {"n": 2})


def test_a_launch_that_is_refused_does_not_end_the_check(device: Device) -> None:
    found = rawnn.check(HONEST.simulated(device), lambda x: 2 * x, grid=1, block="n",
                        sizes={"n": [32, 2000, 64, 4000]})
    assert [bool(t.findings) for t in found.tried] == [False, False, True, True]
    assert "a block (2000, 1, 1) has 2,000 threads" in str(found)
    assert "right up to n = 64, wrong from n = 2,000 on" in str(found)


def test_a_reference_that_fails_is_named(device: Device) -> None:
    def broken(x: Any) -> Any:
        raise ValueError("shapes (3,) and (4,)")

    with pytest.raises(ConfigError, match=r"the reference fails with n = \d+: ValueError: shapes"):
        rawnn.check(HONEST.simulated(device), broken, **ONE)


def test_defaults_of_a_reference_give_way(device: Device) -> None:
    text = "__global__ void lab_by(float* x, float by, int n) {}\n"
    register("lab_by", lambda t, a: t.x.__iadd__(np.float32(a["by"])), {"x": ("n",)}, reads=("x",),
             writes=("x",))
    kernel = rawnn.Kernel(text, "lab_by", device=device)
    rawnn.check(kernel, lambda x, by=2.0, other=3.0: x + by, **ONE).require()


def test_small_floats_are_inputs(device: Device) -> None:
    from rawnn.lab.sampling import sample

    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.complex64, bool):
        made = sample(None, np.random.default_rng(0), (1000,), np.dtype(dtype), {}, "x")
        assert made.dtype == dtype
        assert len(np.unique(made)) > 1


@pytest.mark.parametrize("wrong", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("right", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("planned", [0, 20])
def test_a_report_names_each_set_of_sizes_once_and_counts_them_all(wrong: int, right: int,
                                                                   planned: int) -> None:
    """The smallest wrong one with its errors, three more of these, and three right ones."""
    def tried(n: int, is_wrong: bool) -> TrialResult:
        compared = Comparison("y", "float32", n, 0.1, 1.0, 0, f"[{n}]", 0.0, 0.0)
        return TrialResult({"n": n}, None, (compared,), (
            Finding(f"kind{n}", "y", f"finding {n}", f"fix {n}"),) if is_wrong else ())

    every = [*(tried(100 + n, True) for n in range(wrong)),
             *(tried(n, False) for n in range(right))]
    if not every:
        return
    found = Checked("it", tuple(every), max(planned, len(every)), ("a note",))
    assert bool(found) == found.passed == (wrong == 0)
    assert len(found.failed) == len(found.findings) == wrong
    lines = str(found).splitlines()
    assert lines.pop() == "  a note"
    left = found.planned - len(every)
    if left:
        assert lines.pop() == (f"  {left} more were not tried: the GPU cannot be used after this "
                               f"error")
    if not wrong:
        sets = "1 set" if right == 1 else f"{right} sets"
        assert lines[0] == f"it: right with all of {sets} of sizes"
        assert lines[1].endswith("; at n = 0")
        assert len(lines) == 3
        return
    sets = "1 set" if len(every) == 1 else f"{len(every)} sets"
    expected = [f"it: WRONG with {wrong} of {sets} of sizes; the smallest: n = 100",
                "  finding 100", "    -> fix 100"]
    if wrong > 1:
        more = "; ".join(f"n = {100 + n}" for n in range(1, min(wrong, 4)))
        expected.append(f"  also with {more}{', ...' if wrong > 4 else ''}")
    if right > 1:
        expected.append(f"  right up to n = {right - 1}, wrong from n = 100 on")
    if right:
        some = "; ".join(f"n = {n}" for n in range(min(right, 3)))
        expected.append(f"  right with {some}{', ...' if right > 3 else ''}")
    assert lines == expected


NAN = {"reason": "3 NaN where there should be a number"}
SUMS = "if each element is a sum of many products"
ALL = range(100)


@pytest.mark.parametrize(("written", "has_input", "changes", "said", "fix"), [
    ([], False, {}, "'y' was never written", "does the kernel return early"),
    (range(40), False, {}, "60 of 100 elements of 'y' were never written, from y[40] on to the end",
     "does the grid cover sizes"),
    ([*range(9), *range(10, 100)], False, {}, "1 of 100 elements of 'y' were never written, from "
     "y[9] on", "which threads should have written them"),
    ([], True, {}, "wrong: ", ""), (ALL, False, {}, "wrong: ", ""),
    (ALL, False, {"error": 9.9}, "wrong: ", SUMS), (ALL, True, {"error": 9.9}, "wrong: ", SUMS),
    (ALL, False, {"error": 10.0}, "wrong: ", ""),
    (ALL, False, {"error": 9.9, "wrong": 10}, "wrong: ", ""),
    (ALL, False, {"error": 9.9, "wrong": 11}, "wrong: ", SUMS),
    (ALL, False, NAN, "wrong: ", "outputs hold NaN before the launch"),
    (ALL, True, NAN, "wrong: ", ""),
    (ALL, False, {"reason": "3 infinite", "error": 0.0}, "wrong: ", "")])
def test_a_wrong_result_has_the_fix_of_its_kind(written: Sequence[int], has_input: bool,
                                                changes: dict[str, Any], said: str, fix: str
                                                ) -> None:
    """What has input holds the same ahead of both launches, and may be left as it is."""
    generator = np.random.default_rng(0)
    first = Image.of(np.zeros(100, np.float32), generator)
    second = first.with_other_zones(generator)
    if not has_input:
        first, second = first.poisoned(None), second.poisoned(generator)
    contents = []
    for image in (first, second):
        content = image.content.copy()
        image.inside(content).view(np.float32)[list(written)] = 7
        contents.append({"y": content})
    each = replace(Comparison("y.x", "float32", 100, 20.0, 0.1, 0, "[3]", 1.0, 7.0), **changes)
    found = checking._wrong(each, {"y": first}, {"y": second}, contents)
    assert (found.what, found.operand) == ("wrong" if "wrong" in said else "not written", "y")
    assert found.sentence == said if "wrong" not in said else found.sentence.startswith(said)
    assert found.fix.startswith(fix)
    assert bool(found.fix) == bool(fix)


def test_every_array_that_is_wrong_is_reported_beside_what_was_written_elsewhere(
        sim: Simulation, device: Device) -> None:
    """Two outputs off by different errors, and a write behind one of them."""
    text = "__global__ void lab_two(const float* x, float* y, float* z, int n) {}\n"

    def wrong(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        t.y[...] = 3 * t.x
        t.z[...] = 5 * t.x

    register("lab_two", wrong, {**SHAPES, "z": ("n",)}, reads=("x",), writes=("y", "z"))
    found = rawnn.check(rawnn.Kernel(text, "lab_two", device=device),
                        lambda x: {"y": 2 * x, "z": 4 * x}, grid=1, block=32, sizes={"n": [40, 70]})
    for tried in found.tried:
        assert [(each.what, each.operand) for each in tried.findings] == [
            ("wrong", "y"), ("wrong", "z")]
        assert [each.operand for each in tried.comparisons] == ["y", "z"]
