"""The kernel of whole steps: shardings that nobody would choose, candidates of the search, layouts
of many networks, and what compilation and precisions are expected to take or gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

from rawnn.common.errors import ConfigError
from rawnn.common.target import gpu_named
from rawnn.opts import TOGGLES, persistent_payoff
from rawnn.persistent import cost
from rawnn.persistent.chip import Chip, chip_of
from rawnn.persistent.choose import Choice, _group_counts, _groups, candidates
from rawnn.persistent.choose_members import (
    exact_members,
    instructions,
    member_candidates,
    registers,
    update_cycles,
)
from rawnn.persistent.layout import layout_of, least_bytes
from rawnn.persistent.member_problem import evaluation_layout, training_problem
from rawnn.persistent.problem import Problem, Unsupported, problem_of
from rawnn.persistent.report import describe
from rawnn.persistent.rounding import with_rounded_inputs
from rawnn.persistent.sharding import Members
from rawnn.persistent.spelling import exactly, parse_sharding, sharding_of
from rawnn.plan.build import training_step
from rawnn.plan.op import Op
from rawnn.plan.ops.members import EVALUATE, TRAIN
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec
from rawnn.ptx.kernels import kernel_for
from tests.records import Lines, outcome, record, short
from tests.records.decisions import choice_lines, flags
from tests.records.sampled import Case, Draw, cases

NUMBERS = ("", "tf32", "bf16", "fp16", "bf16,sr")


def problems(count: int, seed: int, widest: int, deepest: int = 4) -> list[tuple[Case, Problem]]:
    """Problems of sampled networks with their data on the device."""
    return [
        (case, problem_of_case(case))
        for case in cases(count, seed, widest, deepest, NUMBERS, ("H200", "H200", "A100", "B200"))
    ]


def problem_of_case(case: Case) -> Problem:
    config = case.config()
    plan = replace(
        training_step(config.network(), config.recipe(), case.data_spec), target=gpu_named(case.gpu)
    )
    for name in filter(None, ("preload", *case.options["opt"].split(","))):
        plan, _ = TOGGLES[name].apply(plan, Policy(), TOGGLES[name].parse(None))
    return problem_of(with_rounded_inputs(plan))


def chip(case: Case) -> Chip:
    return chip_of(gpu_named(case.gpu))


@record
def shardings() -> Lines:
    draw = Draw(31)
    for case, problem in problems(24, 5, 330):
        yield ""
        yield f"# {case}"
        for _ in range(2):
            tp_size = draw.one_of((1, 2, 3, 4, 5, 8, 12, 16, 32))
            dp_size = min(draw.one_of((1, 1, 2, 3, 5, 8)), max(100 // tp_size, 1), problem.batch)
            boundaries = draw.one_of("FS")
            for layer in range(problem.depth):
                last = layer == problem.depth - 1
                boundaries += (
                    "F"
                    if boundaries[-1] == "S"
                    else draw.one_of(
                        "FS" if last and not problem.labelled else "FF" if last else "FSG"
                    )
                )
            text = (
                f"{tp_size}x{dp_size}{draw.one_of(('', '', '@l2'))}:"
                f"{draw.one_of((256, 384, 512))}:"
                f"{boundaries if tp_size > 1 else 'F' * len(boundaries)}"
            )
            if dp_size > 1 and draw.is_hit(0.4):
                text += f":{draw.one_of((2, 3))}"
            try:
                parsed = parse_sharding(text)
                assert parsed is not None
                choice = exactly(problem, chip(case), *parsed)
            except Unsupported as error:
                yield f"{text} refused: {error}"
                continue
            yield from choice_lines(choice)
            d = choice.sharding
            yield (
                "a layer "
                + ", ".join(
                    f"{short(cost.layer_cycles(d, n, choice.costs))} in {cost.layer_bytes(d, n)}"
                    for n in range(problem.depth)
                )
                + f"; launch {short(choice.launched(3).us)} us"
            )


@record
def candidate_shardings() -> Lines:
    """The search itself: how many it tries, which are best, and how long all of them are."""
    for case, problem in problems(22, 11, 500, 3):
        on = chip(case)
        try:
            found = [(cost.microseconds(d, on.costs), d) for d in candidates(problem, on, 0, 0)]
        except ConfigError as error:
            yield f"# {case}: {error}"
            continue
        yield (
            f"# {case}: {len(found)} candidates of {short(mean(us for us, _ in found))} us, "
            f"at least {least_bytes(problem, 1)} bytes a block; "
            f"groups of {_group_counts(problem.batch, on.most_groups(1))}"
        )
        for us, d in sorted(found, key=lambda pair: (pair[0], pair[1].text))[:4]:
            yield (
                f"{d.text} {short(us)} us, about {cost.most_bytes(d)} bytes, really "
                f"{layout_of(d, on.shared).nbytes}"
            )
        later = persistent_payoff.extra_compile_us(problem)
        yield f"{persistent_payoff.count_gemms(problem)} GEMMs compile in {short(later)} us more"
    for gpu in ("H200", "A100", "T4", "B200", "RTX 5090"):
        on = chip_of(gpu_named(gpu))
        yield (
            f"{gpu}: {on.sizes}, groups {_groups(on, 0)}, most "
            + ", ".join(f"{n}: {on.most_groups(n)}" for n in (1, 2, 4, 8, 16))
            + f", clock {short(on.costs.clock)}, room of a block "
            + ", ".join(str(on.room(n)) for n in (0, 1, 2, 3, 8))
        )
        yield f"{gpu}: exact groups of 6 {_groups(on, 6)}; of batches " + "; ".join(
            f"{batch}: {_group_counts(batch, on.blocks)}" for batch in (7, 100, 3000)
        )


@record
def fitted_constants() -> Lines:
    """Constants of a GPU of its own, and shardings that a user names for many networks."""
    target = gpu_named("H200")
    for costs in ({}, {"product": 2.0, "meeting": 5.0}, {"gemm": 1.5, "clock": 9.0}, {"gem": 1}):
        for clock in (0.0, 990.0):
            found = outcome(lambda: cost.costs_of(replace(target, costs=costs, clock=clock)))
            yield f"{costs} at {clock} MHz: {found}"
    case = Case(0, {"layers": (20, 64, 3), "batch": 64, "optimizer": "adam", "opt": ""},
                DataSpec(600, inputs="float32"), "H200")  # fmt: skip
    problem = problem_of_case(case)
    own = training_problem(problem, MEMBERS[0], partial=True)
    own_gpu = chip_of(replace(target, costs={"gemm": 1.5, "exchange": 300.0}))
    for text in ("1x1:128:FFF", "1x1:128x4:FFF", "1x1:1024:FFF", "2x1:64:FSF", "2x2:64:FSF",
                 "2x1@l2:64:FSF", "3x1:64:FSF", "2x1:64:FFS", "1x1:32x8:FFF:4", "1x1:96x8:FFF",
                 "16x1:256:FGF", "1x1:512x4:FFF",
                 "1x1:32x1:FFF:2", "1x1:32x1:FFF:4", "1x1:64x2:FFF:2"):  # fmt: skip
        for on in (chip(case), own_gpu):
            yield f"{text}: " + outcome(
                lambda: exact_members(own, on, MEMBERS[0], 500, sharding_of(problem, text)).us
            )
    small = problem_of_case(
        Case(0, {"layers": (8, 8, 3), "batch": 8, "opt": ""}, DataSpec(99), "H200")
    )
    for text in ("1x1:128x8:FFF", "1x1:128x5:FFF", "1x1:256x3:FFF", "1x1:32x8:FFF"):
        yield f"{text}: " + outcome(
            lambda: (
                exact_members(
                    training_problem(small, MEMBERS[0], partial=True),
                    chip(case),
                    MEMBERS[0],
                    500,
                    sharding_of(small, text),
                ).us
            )
        )


@record
def descriptions() -> Lines:
    """What `rawnn plan` says of a sharding."""
    texts = (
        "1x1:256:FFFFF",
        "4x8:256:FSGSF",
        "8x2@l2:384:SFGSF:2",
        "16x1:512:FGGGF",
        "2x3:256:SFSFF",
    )
    case = Case(
        0,
        {"layers": (78, 96, 64, 48, 10), "batch": 96, "optimizer": "adam", "opt": ""},
        DataSpec(6000, scale=1 / 255),
        "H200",
    )
    problem = problem_of_case(case)
    yield f"# {case}"
    for text in texts:
        yield f"# {text}"
        try:
            parsed = parse_sharding(text)
            assert parsed is not None
            yield describe(exactly(problem, chip(case), *parsed))
        except Unsupported as error:
            yield f"refused: {error}"


MEMBERS = (Members(False, True), Members(True, True), Members(True, False))


@record
def members() -> Lines:
    """Layouts of many networks: all that are tried in short, and the best with its parts."""
    draw = Draw(77)
    wide = Case(0, {"layers": (300, 256, 200, 10), "batch": 96, "partial": False, "opt": ""},
                DataSpec(600, inputs="float32"), "H200")  # fmt: skip
    every = [*problems(18, 23, 110, 3), (wide, problem_of_case(wide))]
    for number, (case, problem) in enumerate(every):
        chosen = replace(MEMBERS[number % 3], single=replace(problem, ordered=True))
        own = training_problem(problem, chosen, case.options["partial"])
        networks = 3000 if case is wide else draw.one_of((1, 16, 133, 300, 1056, 4096))
        yield ""
        yield f"# {networks} of {case}"
        try:
            tried = member_candidates(own, chip(case), chosen, networks)
        except Unsupported as error:
            yield f"refused: {error}"
            continue
        yield f"{len(tried)} candidates of {short(mean(each.us for each in tried))} us"
        yield from best_members(tried, chosen, chip(case))


def best_members(tried: Sequence[Choice], chosen: Members, on: Chip) -> Lines:
    tried = sorted(tried, key=lambda each: (each.us, each.sharding.text))
    for choice in tried[:3]:
        layout = choice.layout
        yield (
            f"{choice.sharding.text} {short(choice.us)} us: {short(instructions(layout))} "
            f"instructions, {short(update_cycles(layout))} cycles of updates, "
            f"{registers(layout)} registers, {layout.nbytes} bytes"
        )
    yield from choice_lines(tried[0])
    d = tried[0].sharding
    measured = evaluation_layout(d, chosen.listed, partial=True, room=on.shared)
    yield f"evaluation {measured.nbytes} bytes: " + ", ".join(
        f"{name} {start}" for name, start in sorted(measured.places.items())
    )
    for kind, layout in ((TRAIN, tried[0].layout), (EVALUATE, measured)):
        impl = kernel_for(Op(kind, kind, {}, {"layout": layout, "left": 0}))
        grid, block = impl.geometry({"launched": 7})
        yield (f"{kind} of 7: {grid} of {block}, shared {impl.shared({})}, "
               f"cluster {impl.cluster({})}, carveout {impl.carveout} {short(flags(impl))}")
