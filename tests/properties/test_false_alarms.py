"""Correct plans and shardings of the whole-step kernel pass every check that could refuse them: a
check that refuses correct input is switched off sooner or later.

Plans and shardings run on the simulated GPU, with its checks of memory, launches and order. Graphs
must come to the stream's bits, and float32 with SGD to the host's result. Kernels run on the CPU
emulator, with its checks of order, against NumPy, and NVRTC's PTX must prove that they wait for the
kernels before them. What the engine refuses by its options is no sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import Optimizer
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.sharding import ALL_GATHERED, DSMEM, L2, REPLICATED, SHARDED
from rawnn.persistent.spelling import exactly
from tests import requires
from tests.catalogue import legal
from tests.engine import same_run
from tests.persistent.problems import HOPPER, VARIETY
from tests.persistent.test_emulator import Launch, check
from tests.properties.profile import examples
from tests.properties.runs import MODES, Case, cases, on_host, on_simulated_gpu, toggles
from tests.properties.test_runners import NUMBERS, TOLERANCE

OPTIMIZERS = [Optimizer("sgd", 0.1, given) for given in (
    {}, {"momentum": 0.9}, {"decay": 0.02}, {"momentum": 0.9, "nesterov": 1, "decay": 0.01})]
OPTIMIZERS += [Optimizer("adam", 1e-3), Optimizer("adamw", 1e-3, {"decay": 0.01})]
SCHEDULES = ("constant", "step:1:0.5", "cosine", "warmup:1,cosine")
WAYS = [*((DSMEM, ranks) for ranks in (1, 2, 4, 8, 16)), *((L2, ranks) for ranks in (2, 3, 5, 9))]
"""Where blocks exchange, and how many share the widths."""
MOST_BLOCKS = 24


@dataclass(frozen=True)
class Sample:
    """A run of training: what properties sample, and what they leave as it is."""

    case: Case
    opt: str
    options: dict[str, Any]


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    return {"optimizer": draw(st.sampled_from(OPTIMIZERS)),
            "schedule": draw(st.sampled_from(SCHEDULES)),
            "loss": draw(st.sampled_from(sorted(LOSSES))), "bias": draw(st.booleans()),
            "activation": draw(st.sampled_from(sorted(ACTIVATIONS)))}


@st.composite
def plans(draw: st.DrawFn) -> Sample:
    words, mode = draw(toggles()), draw(st.sampled_from(("", *MODES)))
    if not legal(tuple(filter(None, (*words.split(","), mode)))):
        mode = ""
    return Sample(draw(cases()), ",".join(filter(None, (words, mode))), draw(options()))


@st.composite
def types_of(draw: st.DrawFn, depth: int, ranks: int, labelled: bool) -> str:
    """Types of the boundaries of so many layers."""
    if ranks == 1:
        return REPLICATED * (depth + 1)
    found = draw(st.sampled_from(REPLICATED + SHARDED))
    for layer in range(depth):
        gathered = ALL_GATHERED if layer < depth - 1 or labelled else ""
        found += REPLICATED if found[-1] == SHARDED else draw(
            st.sampled_from(REPLICATED + SHARDED + gathered))
    return found


@st.composite
def shardings(draw: st.DrawFn) -> Sample:
    case, chosen = draw(cases()), draw(options())
    exchange, ranks = draw(st.sampled_from(WAYS))
    groups = draw(st.integers(1, min(case.batch, 4)))
    numbers = draw(st.sampled_from(("", "tf32", "bf16", "bf16,sr", "fp16")))
    turns = draw(st.integers(1, 3)) if groups > 1 and numbers != "fp16" else 1
    types = draw(types_of(len(case.layers) - 1, ranks, chosen["loss"] == "cross_entropy"))
    far = "@l2" if exchange == L2 else ""
    way = f"persistent={ranks}x{groups}{far}:{draw(st.sampled_from((128, 256, 512)))}:{types}"
    more = [word for word in ("pdl", "report=3") if draw(st.booleans())]
    words = (numbers, f"{way}:{turns}" if turns > 1 else way, *more,
             draw(st.sampled_from(("", *MODES))))
    return Sample(case, ",".join(filter(None, words)), chosen)


@st.composite
def kernels(draw: st.DrawFn) -> tuple[tuple[Any, ...], int]:
    """The arguments of a Launch, for a problem of tests/persistent, and an order of its threads."""
    name = draw(st.sampled_from(sorted(VARIETY)))
    given = VARIETY[name]
    depth, batch = len(given.get("layers", (21, 26, 9, 7))) - 1, given.get("batch", 11)
    exchange, ranks = draw(st.sampled_from(WAYS))
    groups = draw(st.integers(1, max(min(3, batch, MOST_BLOCKS // ranks), 1)))
    labelled = given.get("network", {}).get("loss", "cross_entropy") == "cross_entropy"
    types = draw(types_of(depth, ranks, labelled))
    left = draw(st.sampled_from((0, 0, batch - 1, batch // 2, 1)))
    scaled = "fp16" in given.get("numbers", "")
    turns = draw(st.integers(1, 3)) if groups > 1 and not scaled else 1
    return (name, ranks, groups, types, (64.0, 0.0), left, turns, exchange), draw(st.integers(0, 9))


def check_run(sample: Sample) -> None:
    """Every check of a plan and of its run on the simulated GPU."""
    try:
        work = sample.case.work(sample.opt, **sample.options)
    except ConfigError:
        reject()
    for plan in (work.train, work.unreported, *(part.plan for part in work.evaluate)):
        plan.check()
    found = on_simulated_gpu(work, sample.case.seed)
    words = sample.opt.split(",")
    if any(word.startswith("graphs") for word in words):
        stream = [word for word in words if not word.startswith("graphs")]
        stream += [word for word in ("arena", "nosync") if word not in stream]
        same_run(found, on_simulated_gpu(
            sample.case.work(",".join(stream), **sample.options), sample.case.seed))
    if not any(word.partition("=")[0] in NUMBERS for word in words) \
            and sample.options["optimizer"] == OPTIMIZERS[0]:
        wanted = on_host(sample.case, **sample.options)
        for name, array in wanted.parameters.items():
            np.testing.assert_allclose(found.parameters[name], array, rtol=TOLERANCE,
                                       atol=TOLERANCE, err_msg=name)
        np.testing.assert_allclose(found.loss, wanted.loss, rtol=TOLERANCE, atol=TOLERANCE)


@examples(6)
@given(plans())
def test_correct_plans_are_not_refused(sample: Sample) -> None:
    check_run(sample)


@examples(6)
@given(shardings())
def test_correct_shardings_are_not_refused(sample: Sample) -> None:
    check_run(sample)


@requires.GXX
@examples(1)
@given(sample=kernels())
def test_correct_kernels_are_not_refused(tmp_path_factory: pytest.TempPathFactory,
                                         sample: tuple[tuple[Any, ...], int]) -> None:
    how, run = sample
    launch = Launch(*how)
    d = launch.sharding
    try:
        exactly(d.problem, HOPPER, d.tp_size, d.dp_size, d.threads, d.boundaries,
                d.micro_batches, d.transport)
    except Unsupported:
        reject()
    check(launch, tmp_path_factory.mktemp("kernel"), run)
    try:
        nvrtc = Nvrtc()
    except MissingLibrary:
        return
    made = compile_source(nvrtc, launch.impl.code.text, name=launch.impl.source, arch="sm_90",
                          expressions=(launch.impl.name,), programmatic=True)
    proof = made.proofs[launch.impl.name]
    assert proof.waits, f"the proof from PTX: {proof.reason}"
