"""Steps whose operands stream from L2: right against NumPy, on the CPU emulator and by the
interpreter of the schedule; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rawnn.cuda.compiling.compile import compile_source
from rawnn.model.optimizers import Optimizer
from rawnn.persistent import cost
from rawnn.persistent.choose import choose, streamed_candidates
from rawnn.persistent.layout import layout_of
from rawnn.persistent.phases.streamed import Backward, Forward, ReceiveWeights
from rawnn.persistent.phases.streamed_text import gathered, gathered_of, gathers
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.schedule import build
from rawnn.persistent.sharding import STREAM, Sharding
from rawnn.persistent.spelling import exactly, parse_sharding
from rawnn.persistent.streamed import streamed_sharding, why_not_streamed
from rawnn.persistent.streamed_source import streamed_source
from rawnn.persistent.tracing import traced
from rawnn.ptx.persistent.persistent import QUICK
from tests import requires
from tests.persistent import test_emulator
from tests.persistent.problems import HOPPER, VARIETY, problem
from tests.persistent.test_emulator import Launch, check
from tests.persistent.test_interpreter import interpreted, worst
from tests.ptx import guards
from tests.ptx.architectures import installed_nvrtc
from tests.slices import sliced

CASES: dict[str, dict[str, Any]] = {
    # Half of each quad is padding, and nothing is rounded for the flag bit.
    "three layers, tanh": {
        "layers": (64, 48, 48, 16), "batch": 16, "network": {"activation": "tanh"},
        "shuffle": True, "optimizer": Optimizer("sgd", 0.1, {"decay": 0.01}),
        "schedule": "cosine"},
    "five layers, no bias": {
        "layers": (72, 64, 64, 64, 64, 7), "batch": 64, "shuffle": True,
        "network": {"activation": "tanh", "bias": False}},
    "six layers, three tiles": {
        "layers": (64, 32, 32, 32, 32, 32, 10), "batch": 48, "network": {"activation": "tanh"}},
}
CLUSTERS: dict[str, tuple[int, dict[str, Any]]] = {
    # Clusters of four, whose blocks have one step each of a boundary; the last one has no inputs.
    "three layers in clusters, tanh": (4, {
        "layers": (72, 64, 64, 16), "batch": 32, "network": {"activation": "tanh"},
        "shuffle": True, "optimizer": Optimizer("sgd", 0.1, {"decay": 0.01}),
        "schedule": "cosine"}),
    # Two owners' sums a warp, of which the last has one.
    "five layers in clusters, no bias": (5, {
        "layers": (200, 80, 80, 80, 80, 7), "batch": 64, "shuffle": True,
        "network": {"activation": "tanh", "bias": False}}),
    "six layers in clusters": (2, {
        "layers": (64, 64, 64, 64, 64, 64, 10), "batch": 32, "network": {"activation": "tanh"}}),
}
"""Blocks of a cluster, and a problem."""
ROUNDED = 4 * 2.0**-8
"""What part of a parameter's change may be error where one value of eight is rounded to seven bits:
twice that of other kernels in bfloat16."""


STREAMING: list[tuple[str, int, dict[str, Any]]] = [
    ("three layers, tanh", 2, {"left": 5, "turning": True}),
    ("five layers, no bias", 1, {"turning": True}), ("six layers, three tiles", 0, {"left": 20})]
SHARING: list[tuple[str, int, dict[str, Any]]] = [
    ("three layers in clusters, tanh", 2, {"left": 5, "turning": True}),
    ("five layers in clusters, no bias", 1, {"turning": True}),
    ("six layers in clusters", 1, {"left": 20})]
"""Cases, with room for the inputs of so many steps in shared memory."""


@pytest.fixture(autouse=True)
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    let_launches_stream(monkeypatch)


def let_launches_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Launch` has the threads that streaming takes, and knows the problems."""
    for name, case in {**CASES, **{name: case for name, (_, case) in CLUSTERS.items()}}.items():
        monkeypatch.setitem(VARIETY, name, {"numbers": "bf16", **case})
    monkeypatch.setattr(test_emulator, "allowed", lambda _: ROUNDED)
    monkeypatch.setattr(
        test_emulator, "Sharding",
        lambda p, ranks, groups, _, *more, **keywords: Sharding(p, ranks, groups, 512, *more,
                                                                **keywords))


def launched(name: str, **options: Any) -> Launch:
    layers = CASES[name]["layers"]
    boundaries = f"F{'G' * (len(layers) - 2)}F"
    return Launch(name, layers[1] // 8, 1, boundaries, exchange=STREAM, **options)


@requires.GXX
@pytest.mark.parametrize(("name", "stages", "options"), sliced(STREAMING))
def test_operands_that_stream_train_as_numpy_does(tmp_path: Path, name: str, stages: int,
                                                  options: dict[str, Any]) -> None:
    check(with_room(launched, name, stages, options), tmp_path, 1)


def with_room(launch: Callable[..., Launch], name: str, stages: int, options: dict[str, Any]
              ) -> Launch:
    """Room for the inputs of so many steps in shared memory."""
    whole = launch(name).op.attributes["choice"].layout
    inputs = 4 * (whole.places["x1"] - whole.places["x0"])
    found = launch(name, room=whole.nbytes - (2 - stages) * inputs, **options)
    assert f"kStages = {stages};" in found.impl.code.text
    return found


def in_clusters(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> Launch:
    peers, case = CLUSTERS[name]
    monkeypatch.setattr(
        test_emulator, "Sharding",
        lambda p, ranks, groups, _, *more, **keywords: Sharding(p, ranks, groups, 512, *more,
                                                                peers=peers, **keywords))
    layers = case["layers"]
    return Launch(name, layers[1] // 8, 1, f"F{'G' * (len(layers) - 2)}F", exchange=STREAM,
                  **options)


@requires.GXX
@pytest.mark.parametrize(("name", "stages", "options"), sliced(SHARING))
def test_clusters_that_share_operands_train_as_numpy_does(
        tmp_path: Path, name: str, stages: int, options: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch) -> None:
    launch = with_room(partial(in_clusters, monkeypatch), name, stages, options)
    assert f"kPeers = {CLUSTERS[name][0]};" in launch.impl.code.text
    check(launch, tmp_path, 1)


@requires.GXX
def test_warps_share_steps_unevenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 warps share 17 steps of 16 inputs: two each, of which the last warp has one of its own.
    34 blocks take long, so that they do one step of training."""
    monkeypatch.setitem(VARIETY, "uneven", {
        "numbers": "bf16", "layers": (24, 272, 272, 5), "batch": 16,
        "network": {"activation": "tanh"}})
    monkeypatch.setattr(test_emulator, "STEPS", 1)
    launch = Launch("uneven", 34, 1, "FGGF", exchange=STREAM)
    check(launch, tmp_path, 1)


@pytest.mark.parametrize("name", [*CASES, *CLUSTERS])
def test_the_schedule_trains_as_the_plan_does(name: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launched(name) if name in CASES else in_clusters(monkeypatch, name)
    for role in launch.arrays:
        if role[0] == "c" and role[1:].isdigit():
            launch.arrays[role] = launch.arrays[f"w{role[1:]}"].copy()
    assert worst(launch, interpreted(launch)) < 1e-9


@pytest.mark.parametrize("kind", [Forward, Backward, ReceiveWeights])
def test_the_interpreter_misses_a_phase(kind: type) -> None:
    launch = launched("five layers, no bias")

    def without(schedule: Any) -> Any:
        (first, *_) = (each for each in schedule.micro_batch if isinstance(each, kind))
        return type(schedule)(schedule.sharding, tuple(
            each for each in schedule.micro_batch if each is not first), ())

    with pytest.raises(KeyError):
        interpreted(launch, without)


def given(layers: tuple[int, ...] = (784, 256, 256, 256, 10), **options: Any) -> Any:
    return problem(layers, numbers=options.pop("numbers", "bf16"), **options)


@pytest.mark.parametrize(("options", "reason"), [
    ({"numbers": ""}, "bfloat16"), ({"optimizer": Optimizer("adam", 1e-3)}, "SGD"),
    ({"layers": (784, 256, 10)}, "two hidden layers"),
    ({"layers": (784, 256, 128, 10)}, "one width"), ({"layers": (784, 40, 40, 10)}, "16"),
    ({"layers": (780, 256, 256, 10)}, "multiple of 8"),
    ({"layers": (784, 256, 256, 17)}, "at most 16"), ({"batch": 24}, "batch"),
    ({"batch": 128}, "batch"), ({"network": {"activation": "gelu"}}, "slope")])
def test_what_cannot_stream_says_why(options: dict[str, Any], reason: str) -> None:
    p = given(**options)
    assert streamed_sharding(p) is None
    d = Sharding(p, p.layers[1] // 8, 1, 512, f"F{'G' * (p.depth - 1)}F", transport=STREAM)
    assert reason in why_not_streamed(d)
    with pytest.raises(Unsupported, match=f"cannot stream its operands.*{reason}"):
        exactly(p, HOPPER, *parse_sharding(d.text) or ())


@pytest.mark.parametrize("text", ["32x1@stream:256:FGGGF", "16x1@stream:512:FGGGF",
                                  "32x1@stream:512:FGSFF"])
def test_another_sharding_does_not_stream(text: str) -> None:
    with pytest.raises(Unsupported, match="cannot stream"):
        exactly(given(), HOPPER, *parse_sharding(text) or ())


def test_wide_layers_fit_where_operands_stream() -> None:
    """Five layers of 784 at batch 64 do not fit otherwise: a block would hold all inputs."""
    p = given((784, 784, 784, 784, 784, 10), batch=64, network={"bias": False})
    d = streamed_sharding(p)
    assert d is not None
    found = layout_of(d, HOPPER.shared)
    assert found.nbytes <= HOPPER.shared
    floats = 784 * 8 * 3 + 2 * 25 * 16 * 8 + 16 * 8  # weights by inputs, the first's, the last's
    words = 784 * 8 * 3 // 2 + 784 * 16 // 2
    assert found.nbytes > 4 * (floats + words)


def test_what_is_gathered_has_two_buffers() -> None:
    d = streamed_sharding(given())
    assert d is not None
    assert gathers(d) == ["a1", "a2", "a3", "z2"]
    words = layout_of(d, HOPPER.shared).workspaces(1)["receive_buffers"]
    quads = 2 * 4 * 32 * 32 + 32 * 32 * 32 + 32 * 32
    assert words == 4 * quads


@pytest.mark.parametrize("depth", [3, 4, 6])
def test_loops_find_each_boundary_where_it_is_gathered(depth: int) -> None:
    d = streamed_sharding(given((784, *[256] * (depth - 1), 10)))
    assert d is not None

    def place(text: str, n: int = 0) -> int:
        index = text.removeprefix("gathered + ").removesuffix(" * (Net::kBlocks * Net::kQuads)")
        return int(eval(index, {"n": n}))

    for index, name in enumerate(gathers(d)):
        assert place(gathered(d, name)) == index
        for further in (-1, 0, 1):
            text = gathered_of(d, name[0], "n", further)
            assert place(text, int(name[1:]) - further) == index


def test_every_phase_has_its_stamps_and_cycles() -> None:
    d = streamed_sharding(given())
    assert d is not None
    schedule = build(d)
    names = {line.name for _, line in cost.table(schedule)}
    assert names >= {phase.name for phase in schedule.phases}
    assert all(phase.stamps(d) for phase in schedule.phases)


def test_the_text_of_a_sharding_names_it() -> None:
    d = streamed_sharding(given())
    assert d is not None
    assert d.text == "32x1@stream:512:FGGGF"
    assert exactly(given(), HOPPER, *parse_sharding(d.text) or ()).sharding == d


def test_operands_stream_where_nothing_else_fits() -> None:
    p = given((784, 784, 784, 784, 784, 10), batch=64, network={"bias": False})
    assert choose(p, replace(HOPPER, clusters=((1, 132),))).sharding == streamed_sharding(p)


def test_clusters_share_operands_where_boundaries_are_wide() -> None:
    """A block of a cluster of seven receives a seventh of the 100 KB of a boundary."""
    p = given((784, 784, 784, 784, 784, 10), batch=64, network={"bias": False})
    assert choose(p, HOPPER).sharding.text == "98x1@stream7:512:FGGGGF"


@pytest.mark.parametrize(("text", "options", "reason"), [
    ("32x1@stream3:512:FGGGF", {}, "parts that are multiples of 16"),
    ("32x1@stream4:512:FGGGF", {"batch": 48}, "batch must be 32 or 64"),
    ("128x1@stream4:512:FGGGF", {"layers": (784, 1024, 1024, 1024, 10)},
     "of 32 of them 31 run at once"),
])
def test_clusters_that_cannot_share_operands_say_why(text: str, options: dict[str, Any],
                                                     reason: str) -> None:
    with pytest.raises(Unsupported, match=f"cannot stream its operands.*{reason}"):
        exactly(given(**options), HOPPER, *parse_sharding(text) or ())


@pytest.mark.parametrize("text", ["32x1@stream9:512:FGGGF", "32x1@stream1:512:FGGGF",
                                  "32x1@l22:512:FGGGF"])
def test_what_is_no_cluster_that_streams_is_no_sharding(text: str) -> None:
    assert parse_sharding(text) is None


@pytest.mark.parametrize(("width", "batch", "text"), [
    (784, 64, "98x1@stream7:512:FGGGGF"), (512, 32, "64x1@stream8:512:FGGGF"),
    (1024, 32, "128x1@stream2:512:FGGGF")])
def test_memory_of_clusters_has_what_their_templates_take(width: int, batch: int,
                                                          text: str) -> None:
    """Counted by hand: fragments of the share, peers' values, and two buffers of partial sums, of
    which one also has the logits of ten outputs."""
    p = given((784, *[width] * (text.count("G")), 10), batch=batch, network={"bias": False})
    d = exactly(p, HOPPER, *parse_sharding(text) or ()).sharding
    assert d.text == text
    peers, splits = d.peers, {7: 1, 8: 1, 2: 4}[d.peers]
    places = layout_of(d, HOPPER.shared).places
    ends = sorted((*places.values(), layout_of(d, HOPPER.shared).dynamic_bytes // 4))

    def floats(name: str) -> int:
        return next(end for end in ends if end > places[name]) - places[name]

    share = width // peers  # features
    assert floats("staged") == share * batch // 2
    assert floats("peers") == peers * 8 * batch // 2
    sums, logits = peers * splits * 8 * batch, peers * (8 + 2) * batch
    with_logits = (p.depth - 1) % 2
    assert floats(f"parts{1 - with_logits}") == sums
    assert floats(f"parts{with_logits}") == max(sums, logits)
    assert floats("words") == (p.depth - 2) * width * 8 // 2
    assert floats("last words") == (share // 16 + 1) * 128
    assert floats("x0") == -(-25 // peers) * 32 * batch // 2


def test_the_faster_of_both_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    p = given((784, 512, 512, 512, 10))
    streamed = streamed_sharding(p)
    assert streamed is not None
    found = choose(p, HOPPER)
    monkeypatch.setattr("rawnn.persistent.choose.streamed_sharding", lambda *_: None)
    choose.cache_clear()
    other = choose(p, HOPPER)
    choose.cache_clear()
    assert not other.sharding.is_streamed
    monkeypatch.undo()
    us = [cost.microseconds(d, HOPPER.costs) for d in streamed_candidates(p, HOPPER, 0, 0)]
    assert found.us == min(*us, other.us)


@pytest.mark.parametrize(("tp_size", "dp_size"), [(64, 1), (64, 0), (0, 1)])
def test_asked_blocks_may_stream(tp_size: int, dp_size: int) -> None:
    p = given((784, 512, 512, 512, 10))
    assert list(streamed_candidates(p, HOPPER, tp_size, dp_size)) == [
        streamed_sharding(p, peers) for peers in (1, 4, 8)]
    assert not list(streamed_candidates(p, HOPPER, 32, dp_size))
    assert not list(streamed_candidates(p, replace(HOPPER, clusters=((1, 63),)), tp_size, dp_size))


@pytest.mark.parametrize(("width", "batch", "stages"), [(784, 64, 0), (512, 32, 1), (256, 32, 2)])
def test_kernels_that_stream_compile(width: int, batch: int, stages: int) -> None:
    """Also traced; and no instruction is guarded by a predicate that is not there yet."""
    p = given((784, width, width, width, 10), batch=batch, network={"bias": width != 784})
    chosen = exactly(p, HOPPER, *parse_sharding((streamed_sharding(p) or fail()).text) or ())
    for each in (chosen, traced(chosen, 8)):
        text = streamed_source(each.layout, "train_steps")
        assert f"kStages = {stages};" in text
        built = compile_source(installed_nvrtc(), text, name="train_steps.cu", arch="sm_90",
                               expressions=("train_steps",), options=QUICK)
        assert "warning" not in built.log or each is not chosen
        assert [guards.too_early(code) for _, code in guards.texts(built.cubin)] == [[]]


@pytest.mark.parametrize("text", ["98x1@stream7:512:FGGF", "64x1@stream8:512:FGGF"])
def test_kernels_of_clusters_that_stream_compile(text: str) -> None:
    width = 784 if "stream7" in text else 512
    p = given((784, width, width, 10), batch=64 if width == 784 else 32)
    chosen = exactly(p, HOPPER, *parse_sharding(text) or ())
    for each in (chosen, traced(chosen, 8)):
        built = compile_source(installed_nvrtc(), streamed_source(each.layout, "train_steps"),
                               name="train_steps.cu", arch="sm_90", expressions=("train_steps",),
                               options=QUICK)
        assert "warning" not in built.log or each is not chosen
        assert [guards.too_early(code) for _, code in guards.texts(built.cubin)] == [[]]


def fail() -> Sharding:
    raise AssertionError("the problem does not stream")
