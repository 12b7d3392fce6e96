"""The CUDA C that is written for whole steps, for each kind of problem: the statements of each
part, and a checksum. A changed checksum says which parts a change of the emitters reaches."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rawnn.model.optimizers import Optimizer
from rawnn.persistent.choose import choose
from rawnn.persistent.layout import Layout, layout_of
from rawnn.persistent.member_problem import evaluation_layout, training_problem
from rawnn.persistent.member_source import member_source
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.schedule import build
from rawnn.persistent.sharding import DSMEM, L2, STREAM, Members, Sharding
from rawnn.persistent.source import source
from rawnn.persistent.streamed_source import streamed_source
from rawnn.persistent.tracing import traced
from tests.persistent.problems import HOPPER, VARIETY, problem
from tests.records import Lines, record

_PART = re.compile(r"^ +// ((?:forward|backward|gradient)[^\n:]*)[^\n]*$", re.MULTILINE)
SHARED = ((1, 1), (1, 3), (2, 1), (4, 2))
"""Blocks of a group, and groups; each kind of problem has two of these."""
BOUNDARIES = (
    ("softmax, SGD", 2, 1, "FSFG", DSMEM, 1), ("softmax, SGD", 4, 1, "FGSF", L2, 1),
    ("softmax, SGD", 2, 3, "SFGF", DSMEM, 2), ("Adam in an order", 4, 1, "FSFF", L2, 3),
    ("a wide middle", 4, 2, "FSFS", DSMEM, 1), ("a wide middle", 2, 2, "FGFG", L2, 2),
    ("an autoencoder", 2, 1, "SFS", DSMEM, 1), ("stochastic rounding, Adam", 2, 2, "FSFS", L2, 1),
    ("float16, Adam, tanh", 2, 2, "FSFS", DSMEM, 2),
    ("more outputs than a register file", 2, 3, "FS", L2, 1),
)  # fmt: skip
MEMBERS = (Members(), Members(listed=True), Members(shuffled=True),
           Members(listed=True, uneven=True), Members(listed=True, shuffled=True))
WIDE_AROUND = {"layers": (24, 200, 32, 200, 10), "batch": 8}
"""Its gradients lie where activations do without room for more of the state."""
ROOMS = (
    ("wide around a narrow layer", 1, 1, "FFFFF", 2),
    ("Adam in an order", 1, 1, "FFFF", 0), ("Adam in an order", 2, 3, "FSFF", 0),
    ("five layers", 1, 3, "FFFFFF", 0), ("five layers", 1, 1, "FFFFFF", 2),
    ("a wide middle", 1, 1, "FFFF", 3), ("a wide middle", 4, 1, "SFGF", 0),
    ("stochastic rounding, Adam", 1, 1, "FFFF", 0), ("float16, Adam, tanh", 2, 2, "FSFS", 0),
    ("bfloat16", 1, 1, "FFFF", 2), ("more outputs than a register file", 2, 1, "FS", 0),
)  # fmt: skip
"""Problems by Adam, blocks of a group, groups, boundaries, and resident blocks of members."""

BY_EXAMPLES: tuple[tuple[int, dict[str, Any]], ...] = (
    (16, {"layers": (784, 10), "batch": 128}),
    (2, {"layers": (70, 7), "batch": 27, "shuffle": True, "schedule": "cosine",
         "optimizer": Optimizer("sgd", 0.1, {"decay": 0.01, "momentum": 0.9})}),
    (8, {"layers": (49, 16), "batch": 64, "network": {"bias": False}, "numbers": "tf32"}),
    (4, {"layers": (40, 13), "batch": 24, "optimizer": Optimizer("adam", 1e-3)}),
)  # fmt: skip
"""Blocks that split the examples of a layer, and its step."""


def parts(text: str) -> Iterator[str]:
    """The parts of a kernel: a name, statements, a checksum."""
    found = list(_PART.finditer(text))
    begins = [0, *(each.start() for each in found)]
    names = ["head", *(each[1] for each in found)]
    for name, begin, end in zip(names, begins, [*begins[1:], len(text)], strict=True):
        part = text[begin:end]
        yield f"{name} {part.count(';')} {zlib.crc32(part.encode()):08x}"


def written(what: str, text: str) -> str:
    return f"{what}: {', '.join(parts(text))}"


@record
def written_kernels() -> Lines:
    for number, (name, keywords) in enumerate(VARIETY.items()):
        p = problem(**keywords)
        for tp_size, dp_size in (SHARED[number % 4], SHARED[(number + 1 + number // 4) % 4]):
            try:
                chosen = choose(p, HOPPER, tp_size, dp_size)
            except Unsupported as error:
                yield f"{name}, {tp_size} x {dp_size}: {error}"
                continue
            layout: Layout = chosen.layout
            if number % 3 == 0 and not p.reconstruct:
                layout = layout.with_partial_batch()
            if number % 5 == 0:
                layout = traced(replace(chosen, layout=layout), 3).layout
            yield written(f"{name}, {layout.sharding.text}", source(layout, "train_steps"))
            if p.ordered:
                epoch = replace(layout, has_epoch_boundary=True)
                yield written("  a whole epoch", source(epoch, "train_steps"))
    for name, tp_size, dp_size, boundaries, transport, micro_batches in BOUNDARIES:
        d = Sharding(problem(**VARIETY[name]), tp_size, dp_size, 256, boundaries, micro_batches,
                     transport)
        partial = layout_of(d, HOPPER.shared).with_partial_batch()
        yield written(f"{name}, {d.text}, a partial batch", source(partial, "train_steps"))
        yield written(f"{name}, {d.text}, 0 bytes", source(layout_of(d, 0), "train_steps"))
    for blocks, keywords in BY_EXAMPLES:
        d = Sharding(problem(**keywords), blocks, 1, 256, "SE")
        layout = layout_of(d, HOPPER.shared)
        yield written(f"{d.problem.layers}, {d.text}", source(layout, "train_steps"))
        yield written("  a partial batch", source(layout.with_partial_batch(), "train_steps"))


@record
def parts_of_steps() -> Lines:
    """What each phase of a step stamps in a trace, in the order of its code."""
    others: dict[str, dict[str, Any]] = {"examples": BY_EXAMPLES[0][1], **{
        f"{depth} layers": {"layers": (64, *(depth - 1) * (48,), 16), "batch": 64,
                            "numbers": "bf16", "shuffle": True} for depth in (3, 5)}}
    claims: dict[str, str | None] = {}
    for name, tp_size, dp_size, boundaries, transport, micro_batches in (
            *BOUNDARIES, ("examples", 16, 1, "SE", DSMEM, 1),
            ("3 layers", 6, 1, "FGGF", STREAM, 1), ("5 layers", 6, 1, "FGGGGF", STREAM, 1)):
        p = problem(**(others.get(name) or VARIETY[name]))
        d = Sharding(p, tp_size, dp_size, 256, boundaries, micro_batches, transport)
        schedule = build(d)
        claims |= {type(phase).__name__: phase.part_at_barrier
                   for phase in (*schedule.micro_batch, *schedule.step)}
        yield f"# {name}, {d.text}"
        for what, listed in (("each", schedule.micro_batch), ("step", schedule.step)):
            yield what + ": " + ", ".join(
                f"{phase.name} {'+'.join(phase.stamps(d)) or '-'}" for phase in listed)
    yield f"parts that end at barriers: {dict(sorted(claims.items()))}"


@record
def written_kernels_that_stream() -> Lines:
    for layers, batch, bias, peers in (
            ((64, 48, 48, 16), 16, True, 1), ((72, 64, 64, 64, 64, 7), 64, False, 1),
            ((784, 256, 256, 256, 10), 128, True, 1), ((64, 64, 64, 16), 32, True, 2),
            ((72, 96, 96, 7), 64, False, 3)):
        p = problem(layers, batch, "bf16", {"activation": "tanh", "bias": bias}, shuffle=True)
        d = Sharding(p, layers[1] // 8, 1, 512, f"F{'G' * (p.depth - 1)}F", transport=STREAM,
                     peers=peers)
        layout = layout_of(d, HOPPER.shared)
        yield written(d.text, streamed_source(layout, "train_steps"))
        epoch = replace(layout, has_epoch_boundary=True)
        yield written("  a whole epoch", streamed_source(epoch, "train_steps"))


@record
def written_kernels_of_many_networks() -> Lines:
    for number, (name, keywords) in enumerate(VARIETY.items()):
        for tp_size in (1, 2)[: 1 + (number % 3 == 0)]:
            members = MEMBERS[number % 5]
            try:
                p = training_problem(problem(**keywords), members, partial=number % 2 == 0)
                boundaries = "FS" if tp_size > 1 and p.depth > 1 else "FF"
                d = Sharding(p, tp_size, 1, 256, boundaries + "F" * (p.depth - 1), members=members)
                layout = layout_of(d, HOPPER.shared)
            except Unsupported as error:
                yield f"{name}, {tp_size}: {error}"
                continue
            yield written(f"{name}, {d.text}", member_source(layout, "train_members"))
            measured = evaluation_layout(d, members.listed, partial=number % 2 == 0,
                                         room=HOPPER.shared)
            yield written("  evaluation", member_source(measured, "evaluate_members"))
            if tp_size > 1:  # of which each block has a part of every loss
                shared = replace(d, boundaries="F" * p.depth + "S")
                measured = evaluation_layout(shared, members.listed, partial=True,
                                             room=HOPPER.shared)
                yield written("  shared", member_source(measured, "evaluate_members"))


@record
def layouts_by_room() -> Lines:
    """What lies in global memory as a block has more room, and up to which room that holds."""
    for name, tp_size, dp_size, boundaries, resident in ROOMS:
        how = VARIETY.get(name, WIDE_AROUND)
        given = problem(**{**how, "optimizer": Optimizer("adam", 1e-3)})
        members = Members() if resident else None
        p = training_problem(given, members, partial=True) if members else given
        d = Sharding(p, tp_size, dp_size, 256, boundaries, members=members, resident=resident)
        most = layout_of(d, 1 << 24).nbytes
        found: list[tuple[int, str]] = []
        for room in range(most // 3, most + 512, 256):
            layout = layout_of(d, room)
            answer = (f"{layout.global_tiles} tiles{', compact' * layout.schedule.is_compact}"
                      f"{', copies' * ('copies' in layout.places)}")
            if found and found[-1][1] == answer:
                found.pop()
            found.append((room, answer))
        yield f"{name}, {d.text}, {resident} resident, {most} bytes: " + ", ".join(
            f"{answer} to {room}" for room, answer in found)
