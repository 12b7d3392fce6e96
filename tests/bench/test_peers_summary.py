"""What contests come to: the best form of each class, draws, and what failed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rawnn.bench.costing import Bound
from rawnn.bench.footprint import Footprint
from rawnn.bench.peers.arrange import drawn
from rawnn.bench.peers.merging import merged_contests
from rawnn.bench.peers.problem import RUN_STEPS
from rawnn.bench.peers.records import Contest, Entry, read_contests
from rawnn.bench.peers.summary import (
    THREE_FOR_ONE,
    by_draw,
    cells,
    markdown,
    network_line,
    setups,
    summary,
    tensor_bound,
)
from rawnn.common.errors import ConfigError
from tests.bench.contests import PLACE, contest_of, invoke, result_of, tiny


def test_the_summary_takes_the_best_form_of_each_class() -> None:
    a = contest_of(rawnn_float32=[10.0], torch_float32=[20.0], jax_float32=[5.0], jax_tf32=[4.0],
                   rawnn_bf16=[2.0], torch_bf16=[3.0])
    b = contest_of(rawnn_float32=[10.0], torch_float32=[40.0], jax_float32=[20.0], jax_tf32=[30.0])
    lines = {(n.name, n.against): n for n in summary(result_of(a, b))}
    strict = lines["float32 against true float32", "the best peer"]
    assert (strict.networks, strict.worst, strict.faster) == (2, 0.5, 1)
    assert strict.mean == pytest.approx(1.0)
    assert lines["float32 against tf32", "jax"].mean == pytest.approx((0.4 * 3) ** 0.5)
    assert lines["float32 against true float32", "torch"].mean == pytest.approx(8**0.5)
    half = lines["bf16 against bf16", "torch"]
    assert (half.networks, half.failures, half.mean) == (1, 1, pytest.approx(1.5))
    fastest = lines["fastest against fastest", "the best peer"]
    assert fastest.worst == pytest.approx(1.5)
    assert cells(half)[-1] == "1"


def test_a_network_for_which_a_peer_was_not_asked_is_none_of_the_class() -> None:
    a = contest_of(rawnn_float32=[10.0], torch_float32=[20.0], jax_tf32=[30.0], jax_float32=[40.0])
    b = contest_of(rawnn_float32=[10.0], torch_float32=[50.0], jax_tf32=[15.0], jax_bf16=[9.0])
    broken = Entry(system="jax", numbers="", form="", status="failed", reason="no memory")
    c = msgspec.structs.replace(b, entries=[*b.entries[:2], broken])
    assert "float32 10.00 us | -" in network_line(b)
    assert "float32 10.00 us | 50.00 us torch" in network_line(c)
    plain = contest_of(numpy_float32=[99.0], torch_tf32=[5.0], torch_bf16=[4.0], rawnn_tf32=[1.0])
    assert "tf32 1.00 us | 5.00 us torch" in network_line(plain)
    lines = {(n.name, n.against): n for n in summary(result_of(a, b, c))}
    strict = lines["float32 against true float32", "the best peer"]
    assert (strict.networks, strict.mean) == (2, pytest.approx(10**0.5))  # 20 of a, 50 of c
    assert lines["float32 against true float32", "torch"].networks == 3
    assert lines["float32 against true float32", "jax"].missing == 1
    assert lines["fastest against fastest", "the best peer"].networks == 3


def floored(contest: Contest, plain: float, coarse: float, exchanges: int = 4) -> Contest:
    """With floors of so many microseconds of products in ours, beside 1 of waiting."""
    def foot(us: float) -> Footprint:
        parts = {"memory": 0.1, "arithmetic": us, "waiting": 1.0}
        return Footprint(launches=1, bytes=1, least_bytes=1, floor=Bound(
            us=us + 1, by=max(parts, key=lambda n: parts[n]), memory_us=0.1, arithmetic_us=us,
            waiting_us=1.0, exchanges=exchanges))

    each = {"float32": foot(plain), "tf32": foot(coarse)}
    return msgspec.structs.replace(contest, entries=[
        msgspec.structs.replace(e, footprint=each[e.numbers]) if e.system == "rawnn" else e
        for e in contest.entries])


def test_networks_that_tensor_cores_bound_are_shown_apart_and_stay_in_the_mean() -> None:
    def timed(name: str, theirs: float) -> Contest:
        contest = contest_of(rawnn_float32=[10.0], rawnn_tf32=[9.0], jax_tf32=[theirs])
        return msgspec.structs.replace(contest, problem=tiny(name=name))

    slow, fast = timed("seed 1", 5.0), timed("seed 2", 80.0)
    bound, waits = floored(slow, 6.0, 2.0), floored(fast, 1.5, 0.5)
    lines = {n.name: n for n in summary(result_of(bound, waits)) if n.against == "the best peer"}
    assert (lines[THREE_FOR_ONE].networks, lines[THREE_FOR_ONE].mean) == (2, pytest.approx(2.0))
    apart, others = (lines[f"{THREE_FOR_ONE}, {w}"] for w in ("tensor-bound", "others"))
    assert (apart.networks, apart.worst, apart.worst_of) == (1, 0.5, "seed 1")
    assert (others.networks, others.worst) == (1, 8.0)
    text = markdown(result_of(bound, waits))
    assert "Tensor-bound (seed 1): by this GPU's limits" in text
    assert "sgd, tensor-bound" in text
    # one multiprocessor, fused multiply-adds, products that only take long three times, no limits
    for other in (floored(slow, 6.0, 2.0, exchanges=0), floored(slow, 6.0, 4.0),
                  floored(slow, 2.7, 0.9), slow):
        assert not tensor_bound(other)
        assert not any("tensor" in n.name for n in summary(result_of(other, waits)))


def test_what_being_made_ready_took_is_said() -> None:
    def contest(us: float, ready: float) -> Contest:
        slow = Entry(system="jax", numbers="tf32", form="f", status="measured", us=[us],
                     setup_s=ready)
        other = msgspec.structs.replace(slow, numbers="bf16", us=[us + 1], setup_s=10.0)
        ours = msgspec.structs.replace(slow, system="rawnn", us=[1.0], setup_s=0.5)
        return Contest(problem=tiny(), entries=[ours, slow, other])

    said = setups(result_of(contest(5.0, 2.0), contest(6.0, 3.0), contest(7.0, 9.0)))
    assert "in the median: rawnn 0.5, jax 3.0 (all that were tried: rawnn 0.5, jax 13.0)" in said
    assert "torch" not in said


def test_parts_and_draws_become_one_file(tmp_path: Path) -> None:
    asked = drawn((3, 50), 2, "gpu")
    held = [msgspec.structs.replace(contest_of(rawnn_float32=[10.0], torch_float32=[us]), problem=p)
            for p, us in zip(asked, (20.0, 5.0, 40.0, 80.0), strict=True)]
    more: dict[str, Any] = {"asked": asked, "systems": ["rawnn", "torch"]}
    parts = [result_of(*held[k::2], **more, ended="the budget of 9 s was spent") for k in (0, 1)]
    found = merged_contests([("a", parts[1]), ("b", parts[0])])
    assert [c.problem.seed for c in found.contests] == [3, 4, 50, 51]
    assert found.ended == ""
    assert [round(lines[0].mean, 3) for lines in by_draw(found)] == [1.0, 5.657]
    assert "(seeds 3-4, 50-51) by themselves: float32 against true float32 1.00, 5.66" \
        in markdown(found)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, part in zip(files, parts, strict=True):
        part.write_json(file)
    done = invoke("merge", *map(str, files), "--json", str(tmp_path / "all.json"))
    assert done.exit_code == 0, done.output
    both = merged_contests([("a", parts[0]), ("b", parts[1])])
    assert read_contests(tmp_path / "all.json") == both
    with pytest.raises(ConfigError, match="b holds seed 3 a second time"):
        merged_contests([("a", parts[0]), ("b", parts[0])])
    other = msgspec.structs.replace(parts[1], environment=dataclasses.replace(PLACE, commit="abd"))
    with pytest.raises(ConfigError, match="rawnn's commit is abc in the one, abd in the other"):
        merged_contests([("a", parts[0]), ("b", other)])
    longer = msgspec.structs.replace(parts[1], run_steps=RUN_STEPS)
    with pytest.raises(ConfigError, match="a run's steps are 128000 in the one, 1000000 in the"):
        merged_contests([("a", parts[0]), ("b", longer)])


def test_what_is_wrong_or_refused_counts_as_a_failure_and_never_as_a_time() -> None:
    wrong = Entry(system="rawnn", numbers="float32", form="best", status="wrong", us=[1.0],
                  reason="its losses are off by 3 times the tolerance")
    contest = contest_of(torch_float32=[3.0])
    contest = msgspec.structs.replace(contest, entries=[*contest.entries, wrong])
    line = next(n for n in summary(result_of(contest)) if n.against == "torch")
    assert (line.networks, line.failures) == (0, 1)
    assert "off by 3 times" in network_line(contest)
    assert "off by 3 times" in markdown(result_of(contest))


def test_a_difference_within_the_noise_is_said() -> None:
    near = contest_of(rawnn_float32=[10.0, 11.0, 9.0], torch_float32=[10.1, 9.1, 11.0])
    far = contest_of(rawnn_float32=[10.0, 11.0, 9.0], torch_float32=[20.1, 19.1, 21.0])
    assert "in the noise" in network_line(near)
    assert "in the noise" not in network_line(far)
