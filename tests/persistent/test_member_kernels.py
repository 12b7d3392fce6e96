"""The kernels of many networks compile for every architecture, without a warning and without
spills at the registers that so many blocks leave them; and how blocks share the members."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from rawnn.cuda.compiling import resources
from rawnn.cuda.compiling.compile import compile_source
from rawnn.model.optimizers import Optimizer
from rawnn.persistent.choose import choose
from rawnn.persistent.choose_members import (
    choose_members,
    exact_members,
    member_candidates,
    step_microseconds,
)
from rawnn.persistent.layout import Layout, layout_of
from rawnn.persistent.member_problem import evaluation_layout, training_problem
from rawnn.persistent.member_source import member_source
from rawnn.persistent.problem import Problem, Unsupported
from rawnn.persistent.sharding import Members
from rawnn.persistent.source import source
from rawnn.persistent.spelling import sharding_of
from rawnn.ptx.persistent.persistent import QUICK
from tests.persistent.problems import AMPERE, HOPPER, VARIETY, problem
from tests.ptx.architectures import installed_nvrtc
from tests.slices import sliced

NETWORKS: dict[str, dict[str, Any]] = {
    "A": {"layers": (20, 64, 64, 3), "batch": 32, "optimizer": Optimizer("adam", 1e-3)},
    "B": {"layers": (8, 32, 32, 1), "batch": 64, "network": {"loss": "mse"}},
    "D": {"layers": (54, 128, 64, 7), "batch": 128, "optimizer": Optimizer("adam", 1e-3)},
}
NUMBERS = ("", "tf32", "bf16")
SHUFFLED = Members(listed=False, shuffled=True)
LISTED = Members(listed=True, shuffled=True)


def of_members(name: str, numbers: str, members: Members = SHUFFLED) -> Problem:
    return training_problem(single_of(name, numbers), members, partial=True)


def single_of(name: str, numbers: str) -> Problem:
    """What the kernel of one network trains."""
    return problem(numbers=numbers, form={"inputs": "float32", "scale": 1.0}, shuffle=True,
                   **NETWORKS[name])


def spilled(layout: Layout, arch: str) -> int:
    """Bytes that a thread spills. Fails where NVRTC warns."""
    found = compile_source(installed_nvrtc(), member_source(layout, "train_members"),
                           name="train_members.cu", arch=arch, expressions=("train_members",),
                           options=(*QUICK, "--ptxas-options=-v"))
    assert "warning" not in found.log, found.log
    return sum(next(iter(resources.spills(found.log).values())))


SPILLED = {("A", ""): 32, ("D", ""): 168}
"""Bytes that a thread of a chosen kernel may spill: with three blocks on a multiprocessor, and sums
of two micro-batches in float32."""


@pytest.mark.parametrize(("name", "numbers"), sliced(
    [(name, numbers) for name in NETWORKS for numbers in NUMBERS], 2))
def test_the_chosen_kernels_spill_next_to_nothing(name: str, numbers: str) -> None:
    own = of_members(name, numbers)
    chosen = {choose_members(own, HOPPER, SHUFFLED, n).layout for n in (1, 132, 1056)}
    for layout in chosen:
        assert spilled(layout, "sm_90") <= SPILLED.get((name, numbers), 0), layout.sharding


@pytest.mark.parametrize("arch", sliced(["sm_80", "sm_90", "sm_100"]))
def test_training_and_evaluation_compile_for_every_architecture(arch: str) -> None:
    own, chip = of_members("A", "", LISTED), AMPERE if arch == "sm_80" else HOPPER
    layout = choose_members(own, chip, LISTED, 1056).layout
    assert spilled(layout, arch) <= (64 if arch == "sm_80" else 0)  # few values that a step keeps
    assert spilled(evaluation_layout(layout.sharding, True, True, chip.shared), arch) == 0


@pytest.mark.parametrize("name", VARIETY)
def test_the_kernel_of_one_network_knows_no_members(name: str) -> None:
    text = source(choose(problem(**VARIETY[name]), HOPPER, 1, 1).layout, "train_steps")
    assert not re.search(r"member|active|evaluated", text)


# -- bits ------------------------------------------------------------------------------------------
ARITHMETIC = re.compile(r"^\s*(?:@!?%p\d+\s+)?((?:mma\.sync|(?:add|sub|mul|fma|div|sqrt|rcp|ex2)\."
                        r"(?:[a-z]+\.)*f32)\S*)", re.MULTILINE)


def arithmetic(text: str, name: str) -> Counter[str]:
    """How often the kernel's PTX has each instruction of float32 arithmetic and tensor cores."""
    found = compile_source(installed_nvrtc(), text, name=f"{name}.cu", arch="compute_90",
                           expressions=(name,), options=QUICK)
    return Counter(ARITHMETIC.findall(found.cubin.decode()))


@pytest.mark.parametrize(("numbers", "text", "room"), sliced([
    ("", "1x1:128x2:FFFF", 0), ("tf32", "1x1:128:FFFF", 0), ("", "1x1:256x1:FFFF:2", 0),
    ("", "1x1:128:FFFF", 1), ("bf16", "1x1:64x4:FFFF", 0)], 2))
def test_a_member_computes_with_the_instructions_of_one_network(numbers: str, text: str,
                                                                room: int) -> None:
    """So a GPU contracts products and sums in the same places, and adds as many chains of sums.
    Where room is 1, one network's state just fits and a member's does not. Members also derive
    two numbers of the optimizer's settings, which one network has as literals."""
    single = problem((20, 64, 64, 24), 32, numbers, {"loss": "mse"}, schedule="cosine",
                     form={"inputs": "float32", "scale": 1.0}, shuffle=True,
                     optimizer=Optimizer("adam", 1e-3))
    d = sharding_of(single, text)
    nbytes = layout_of(d, HOPPER.shared).nbytes if room else HOPPER.room(d.resident)
    members = replace(SHUFFLED, single=single)
    own = replace(d, problem=training_problem(single, members, partial=False), members=members)
    wanted = arithmetic(source(layout_of(d, nbytes), "train_steps"), "train_steps")
    found = arithmetic(member_source(layout_of(own, nbytes), "train_members"), "train_members")
    assert sums_of(found) == sums_of(wanted)
    assert any(name.startswith("mma.sync") for name in wanted)
    if not room:
        assert found - wanted == Counter({"fma.rn.f32": 2})
        assert not wanted - found
        return
    assert layout_of(own, nbytes).global_tiles
    other = layout_of(replace(own, members=SHUFFLED), nbytes)
    assert sums_of(arithmetic(member_source(other, "train_members"), "train_members")) \
        != sums_of(wanted)


def sums_of(found: Counter[str]) -> dict[str, int]:
    """The instructions of GEMMs, which updates have none of: the compiler may copy an update."""
    return {name: times for name, times in found.items() if name.startswith(("mma", "add"))}


# -- the choice ------------------------------------------------------------------------------------
def test_few_members_have_more_threads_or_clusters_and_many_have_fewer() -> None:
    own = of_members("A", "")
    few, many = (choose_members(own, HOPPER, SHUFFLED, n).sharding for n in (1, 4096))
    assert few.tp_size * few.threads > many.tp_size * many.threads
    assert many.resident > 1


def test_clusters_are_for_members_that_all_run_at_once() -> None:
    own = of_members("A", "")
    for networks in (16, 132, 1056):
        for choice in member_candidates(own, HOPPER, SHUFFLED, networks):
            tp_size = choice.sharding.tp_size
            assert tp_size == 1 or networks <= HOPPER.most_groups(tp_size)


def test_clusters_are_tried_for_as_many_networks_as_run_at_once() -> None:
    own = of_members("A", "")
    for size in (2, 8):
        most = HOPPER.most_groups(size)
        for networks, is_tried in ((1, True), (most, True), (most + 1, False)):
            tried = {choice.sharding.tp_size
                     for choice in member_candidates(own, HOPPER, SHUFFLED, networks)}
            assert (size in tried) == is_tried, (size, networks)
            assert 1 in tried


def test_a_batch_that_fits_no_block_is_taken_in_micro_batches() -> None:
    found = member_candidates(of_members("D", ""), HOPPER, SHUFFLED, 4096)
    assert {choice.sharding.tp_size for choice in found} == {1}
    assert min(choice.sharding.micro_batches for choice in found) == 2


@pytest.mark.parametrize(("text", "words"), [
    ("1x1:128:FFFF", "a block would need 3[0-9]+ KiB of shared memory, and has 227 KiB"),
    ("1x1:512x2:FFFF:16", "needs about [0-9]+ registers a thread .* and can have 64"),
    ("3x1:128:FFSF", "needs clusters of 3 blocks, which the GPU has not"),
    ("2x1:100:FFSF", "cannot have blocks of 100 threads"),
    ("1x2:128:FFFF", "has data-parallel groups, but each member has one group")])
def test_a_sharding_that_members_cannot_have_is_refused(text: str, words: str) -> None:
    own, single = of_members("D", ""), single_of("D", "")
    with pytest.raises(Unsupported, match=f"{words}.*: let train_many choose the sharding"):
        exact_members(own, HOPPER, replace(SHUFFLED, single=single), 16, sharding_of(single, text))


def test_what_fits_no_block_is_shared_by_clusters() -> None:
    wide = training_problem(problem((784, 128, 10), 128, form={"inputs": "float32", "scale": 1.0},
                                    shuffle=True), SHUFFLED, partial=False)
    found = member_candidates(wide, HOPPER, SHUFFLED, 1056)
    assert {choice.sharding.tp_size for choice in found} <= {2, 4, 8, 16}


@pytest.mark.parametrize("name", NETWORKS)
def test_more_members_take_longer_and_waves_count(name: str) -> None:
    own = of_members(name, "bf16")
    choice = choose_members(own, HOPPER, SHUFFLED, 132)
    times = [step_microseconds(choice.layout, HOPPER, n) for n in (1, 132, 133, 264, 265)]
    assert times == sorted(times)
    assert times[2] > times[1]
    assert choose_members(own, HOPPER, SHUFFLED, 132).us <= times[1]


def test_clusters_train_as_many_members_at_once_as_run_at_once() -> None:
    found = [choice for choice in member_candidates(of_members("A", ""), HOPPER, SHUFFLED, 1)
             if choice.sharding.tp_size > 1]
    assert {choice.sharding.tp_size for choice in found} >= {2, 4}
    for choice in found:
        most = HOPPER.most_groups(choice.sharding.tp_size)
        one = step_microseconds(choice.layout, HOPPER, 1)
        for networks, rounds in ((most, 1), (most + 1, 2), (2 * most, 2), (2 * most + 1, 3)):
            assert step_microseconds(choice.layout, HOPPER, networks) == pytest.approx(rounds * one)


def test_the_blocks_of_a_multiprocessor_fit_its_memory_and_registers() -> None:
    for choice in member_candidates(of_members("B", "bf16"), HOPPER, SHUFFLED, 4096):
        d, resident = choice.sharding, choice.sharding.blocks_per_multiprocessor
        assert resident * (choice.layout.nbytes + 1024) <= HOPPER.shared_per_multiprocessor
        assert resident * d.threads <= HOPPER.threads


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_bits_depend_on_nothing_that_a_shardings_text_does_not_say(name: str,
                                                                   numbers: str) -> None:
    """How GEMMs are tiled decides the order of sums. It is the same in the kernel of one network
    with a sharding of the same text, though that has other things in shared memory, so that
    other state may lie there."""
    own = of_members(name, numbers)
    members = replace(SHUFFLED, single=single_of(name, numbers))
    tilings = {}
    for networks in (1, 1056):
        for choice in member_candidates(own, HOPPER, members, networks):
            tilings[choice.sharding.text] = tiled(choice.layout)
    for text, found in tilings.items():
        d = sharding_of(single_of(name, numbers), text)
        assert found == tiled(layout_of(d, HOPPER.room(d.resident))), text
        assert d.text == text


def tiled(layout: Layout) -> list[tuple[Any, ...]]:
    return [(part.forward, part.backward, part.update) for part in layout.layers]


def test_with_blocks_of_a_multiprocessor_tilings_are_the_same_in_any_memory() -> None:
    """So bits are the same on GPUs with more and with less of it."""
    for text in ("1x1:128x2:FFFF", "1x1:256x1:FFFF", "1x1:512x1:FFFF:2"):
        d = sharding_of(single_of("D", ""), text)
        assert len({str(tiled(layout_of(d, room))) for room in (0, 100_000, 10**6)}) == 1
        far = {layout_of(d, room).global_tiles for room in (0, 10**6)}
        assert len(far) == 2
    legacy = sharding_of(single_of("A", ""), "1x1:128:FFFF")
    assert tiled(layout_of(legacy, 0)) != tiled(layout_of(legacy, 10**6))


def test_members_tile_as_one_network_does_though_less_of_their_state_fits() -> None:
    """Where one network's state just fits, the settings of a member need its place."""
    single = problem((20, 64, 64, 24), 32, form={"inputs": "float32", "scale": 1.0}, shuffle=True,
                     optimizer=Optimizer("adam", 1e-3))
    d = sharding_of(single, "1x1:128:FFFF")
    room = layout_of(d, HOPPER.shared).nbytes
    members = replace(SHUFFLED, single=single)
    own = replace(d, problem=training_problem(single, members, partial=True), members=members)
    assert not layout_of(d, room).global_tiles
    assert layout_of(own, room).global_tiles
    assert tiled(layout_of(own, room)) == tiled(layout_of(d, room))
    without, wanted = (layout_of(each, room).layers[2].update
                       for each in (replace(own, members=SHUFFLED), d))
    assert (without.down, without.across) != (wanted.down, wanted.across)


def test_members_differ_in_nothing_that_is_compiled() -> None:
    """One kernel for all settings of a kind of optimizer, and one where no weights decay."""
    first, other, steady = (training_problem(problem(
        form={"inputs": "float32", "scale": 1.0}, shuffle=True,
        **{**NETWORKS["A"], "optimizer": Optimizer("adam", lr, {"decay": decay, "beta1": beta})}),
        SHUFFLED, partial=True)
        for lr, decay, beta in ((1e-3, 0.01, 0.9), (5e-2, 0.1, 0.5), (1e-2, 0.0, 0.5)))
    assert first == other
    assert steady == of_members("A", "")
    assert first != steady
    assert first != replace(first, partial=False)
