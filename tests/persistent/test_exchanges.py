"""Expressions that the generated kernels compute for every block, step and exchange, by themselves:
evaluated in Python for all of them, or compiled into a kernel of one thread."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rawnn.persistent.buffers import l2_slots
from rawnn.persistent.layout import BY_FIRST
from rawnn.persistent.phases.exchange import share_of
from rawnn.persistent.schedule import build
from rawnn.persistent.sharding import DSMEM, L2
from tests import requires
from tests.persistent.test_emulator import FAR, FAR_STEPS, TURNS, Launch
from tests.ptx.emulator.emulator import Kernels

needs_emulator = requires.GXX

FLAG_BITS = """
#include "persistent/exchange_l2.cuh"
struct Shape { static constexpr int kThreads = 32, kTpSize = 2, kSent = 4; };
template <long long FLOATS, int USES, int NUMBER>
__global__ void flag_bits(float* buffers, unsigned int* bit, long long* place, int n) {
  using E = Exchange<kAllGather, 4, 2, 1, 0, 0, 8, USES, NUMBER, 1>;
  ViaL2<Shape, FLOATS> transport = {buffers, 0, 0};
  for (int i = 0; i < n; ++i) {
    bit[i] = transport.template flag_bit<E>();
    place[i] = reinterpret_cast<float*>(transport.at(transport.template wait<E>())) - buffers;
    transport.end_micro_batch();
  }
}
"""
KINDS = [(0, many, number) for many in (1, 2, 3, 4) for number in range(many)] + [(64, 1, 0)]
"""Floats of a receive buffer, of which there are two unless that is 0; exchanges of a micro-batch
that share a buffer, and the number of one."""
EXCHANGES = 6


def alternates(marks: list[int]) -> bool:
    """Whether each mark differs from the one before it at the same place, which holds 0 at first.
    """
    return marks == [(i + 1) % 2 for i in range(len(marks))]


@needs_emulator
def test_each_exchange_via_l2_changes_the_flag_bit_of_its_buffer(tmp_path: Path) -> None:
    (tmp_path / "flag_bits.cu").write_text(FLAG_BITS)
    library = Kernels(("flag_bits.cu",), tuple(f"flag_bits<{f}ll,{m},{n}>" for f, m, n in KINDS),
                   folders=(tmp_path,)).build()
    found: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
    for kind in KINDS:
        bit, place = np.zeros(EXCHANGES, np.uint32), np.zeros(EXCHANGES, np.int64)
        library.call("flag_bits<{}ll,{},{}>".format(*kind), (1,), (1,),
                  buffers=np.zeros(256, np.float32), bit=bit, place=place, n=EXCHANGES)
        found[kind] = bit.tolist(), place.tolist()
    for many in (1, 2, 3, 4):
        turns = zip(*(found[0, many, number][0] for number in range(many)), strict=True)
        assert alternates([mark for turn in turns for mark in turn]), many
        assert all(found[0, many, number][1] == [8] * EXCHANGES for number in range(many))
    marks, places = found[64, 1, 0]
    assert places == [8, 72] * (EXCHANGES // 2)
    for box in (0, 1):
        assert alternates(marks[box::2])


def far_launches() -> list[Launch]:
    return [*(Launch(*how, exchange=L2) for how in FAR), *(Launch(*how, L2) for how in FAR_STEPS)]


def calls(text: str) -> list[str]:
    """The calls of a kernel that exchange something, without places in shared memory and without
    what an Exchange says of its receive buffer via L2."""
    text = re.sub(r"\(shared \+ \d+\)", "(shared)", text)
    text = re.sub(r"(using E\d+ = Exchange<(?:[^,>]*, ){5}[^,>]*)[^>]*>", r"\1>", text)
    text = re.sub(r", (?:nullptr|\(shared\)), ", ", scratch, ", text)  # of sums that threads share
    return [line.strip() for line in text.splitlines() if re.search(r"\bE\d+\b", line)]


@pytest.mark.parametrize(("name", "ranks", "groups", "types"), [
    ("softmax, SGD", 4, 1, "FGSF"), ("softmax, SGD", 12, 1, "FGGG"),
    ("softmax, SGD", 12, 2, "FGFS"), ("Adam in an order", 4, 2, "FSFF"),
    ("float16", 2, 3, "SFGF")])
def test_the_code_of_an_exchange_does_not_depend_on_the_transport(
        name: str, ranks: int, groups: int, types: str) -> None:
    found = [calls(Launch(name, ranks, groups, types, exchange=exchange).impl.code.text)
             for exchange in (DSMEM, L2)]
    assert found[0] == found[1]
    assert any(line.startswith("transport.expect<") for line in found[0])


def test_messages_that_share_a_place_are_numbered_in_their_order() -> None:
    sharing = set()
    for launch in far_launches():
        of: dict[int, list[Any]] = {}
        for slot in l2_slots(build(launch.sharding)):
            of.setdefault(slot.offset, []).append(slot)
        for slots in of.values():
            assert [slot.number for slot in slots] == list(range(len(slots)))
            assert {slot.uses for slot in slots} == {len(slots)}
            sharing.add(len(slots))
    assert sharing >= {1, 2}  # also an even number


def test_a_first_block_that_reports_has_heard_of_all_parts_of_the_loss() -> None:
    """Blocks of a cluster meet at its end; through the L2 cache nothing but the tickets of the last
    block says that the parts of the others are in memory."""
    reported = set()
    for launch in far_launches():
        found = launch.op.attributes["choice"].layout
        parts_of_others = found.sharding.blocks > 1 and "S" in launch.sharding.boundaries[-1]
        reported.add((found.sharding.dp_size > 1, parts_of_others, found.reports))
        assert not (parts_of_others and found.reports == BY_FIRST), launch.sharding
    assert {case[:2] for case in reported} == set(itertools.product((False, True), repeat=2))


@pytest.mark.parametrize("features", [1, 7, 9, 12, 21, 40, 300])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16, 32])
def test_shares_cover_all_rows_once_and_none_is_negative(features: int, ranks: int) -> None:
    size, mine = share_of(features, ranks)
    shares = [eval(mine, {"max": max, "min": min, "rank": rank}) for rank in range(ranks)]
    assert all(0 <= share <= size for share in shares)
    rows = [rank * size + row for rank, share in enumerate(shares) for row in range(share)]
    assert rows == list(range(features))


def evaluated(text: str, **names: Any) -> int:
    """An expression of C++ whose divisions are of numbers that are not negative."""
    text = re.sub(r"static_cast<long long>", "", text).replace("/", "//")
    text = re.sub(r"(\d)u\b", r"\1", text)
    return int(eval(text, {"max": max, "min": min, **names}))


def body_of(name: str, text: str) -> str:
    """What a lambda of a kernel with one parameter, an int, consists of."""
    (found,) = re.findall(rf"const auto {name} = \[=\]\(int \w+\) {{\s*(.*?)\s*}};", text, re.S)
    return str(found)


@pytest.mark.parametrize(("name", "ranks", "groups", "types", "turns", "left"), TURNS)
def test_micro_batches_have_each_example_once(name: str, ranks: int, groups: int, types: str,
                                              turns: int, left: int) -> None:
    launch = Launch(name, ranks, groups, types, left=left, turns=turns)
    text, problem = launch.impl.code.text, launch.sharding.problem
    present = re.fullmatch(r"const int of_group = (.*);\s*return (.*);",
                           body_of("present_in", text))
    first = re.fullmatch(r"return (.*);", body_of("first_of", text), re.S)
    assert present
    assert first
    cursor = 3
    for step, size in enumerate([problem.batch, left or problem.batch]):
        examples: list[int] = []
        for group, part in itertools.product(range(groups), range(turns)):
            names: dict[str, Any] = {"group": group, "t": step * turns + part,
                                     "cursor_now": cursor, "batch_of": lambda _, size=size: size}
            count = evaluated(present[2], of_group=evaluated(present[1], **names), **names)
            begin = evaluated(first[1], **names)
            examples += range(begin, begin + count)
        assert sorted(examples) == [(cursor + step) * problem.stride + i for i in range(size)]


@pytest.mark.parametrize("exchange", [DSMEM, L2])
@pytest.mark.parametrize(("ranks", "groups", "types"), [(4, 2, "FGFF"), (2, 3, "SFGF")])
def test_what_clusters_say_of_overflows_changes_the_mark_of_its_place(
        ranks: int, groups: int, types: str, exchange: str) -> None:
    text = Launch("float16", ranks, groups, types, exchange=exchange).impl.code.text
    (mark,) = re.findall(r"overflow_flag_bit = (.*);", text)
    (place,) = re.findall(r"\(overflows\) \+ ([^;]*?) \+ rank;", text)
    marks: dict[int, list[int]] = {}
    for number in range(8):
        at = evaluated(place, all_reduce=number)
        marks.setdefault(at, []).append(evaluated(mark, all_reduce=number))
    assert sorted(marks) == [0, ranks * groups]  # a slot for each block, twice
    assert all(map(alternates, marks.values()))
