#!/usr/bin/env python3
"""Sample correct plans and shardings, and run them through every check that could refuse them.

    python tools/false_alarms.py [--count N] [--compiled N] [--seed S] [--only KIND:NUMBER]

Half of the N samples are *plans* (network x toggles x optimizer x schedule x precision x policy),
half *shardings* of the whole-step kernel; both are checked as plans and run on the simulated GPU,
with its checks of memory, launches and order. Graphs must come to the stream's bits, and float32
with SGD to the host's result. --compiled of the shardings are compiled instead, as *kernels*: they
run on the CPU emulator, with its checks of order, against NumPy, and NVRTC's PTX must prove that
they wait for the kernels before them. What the engine refuses by its options is no sample, and is
counted by its reason. Prints what is refused, why, and how to run it again; exits with 1 then. The
outcome of a seed is kept in results/false-alarms.json with its commit, unless --only runs one
sample again; then `python tools/pages.py` writes the table of docs/testing.md.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import msgspec
import numpy as np
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rawnn.common.errors import ConfigError, MissingLibrary
from rawnn.common.files import write_atomically
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.model.activations import ACTIVATIONS
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.sharding import ALL_GATHERED, DSMEM, L2, REPLICATED, SHARDED
from rawnn.persistent.spelling import exactly
from tests.catalogue import legal
from tests.engine import same_run
from tests.persistent.problems import HOPPER, VARIETY
from tests.persistent.test_emulator import Launch, check
from tests.properties.runs import MODES, Case, cases, on_host, on_simulated_gpu, toggles
from tests.properties.test_runners import TOLERANCE
from tools.full_walk import ROOT, commit_of_code

RECORD = ROOT / "results" / "false-alarms.json"
NUMBERS = [name for name, toggle in TOGGLES.items() if toggle.group == "numbers"]
OPTIMIZERS = [Optimizer("sgd", 0.1, given) for given in (
    {}, {"momentum": 0.9}, {"decay": 0.02}, {"momentum": 0.9, "nesterov": 1, "decay": 0.01})]
OPTIMIZERS += [Optimizer("adam", 1e-3), Optimizer("adamw", 1e-3, {"decay": 0.01})]
SCHEDULES = ("constant", "step:1:0.5", "cosine", "warmup:1,cosine")
WAYS = [*((DSMEM, ranks) for ranks in (1, 2, 4, 8, 16)), *((L2, ranks) for ranks in (2, 3, 5, 9))]
"""Where blocks exchange, and how many share the widths."""
MOST_BLOCKS = 24


class NotSampled(Exception):
    """Options that the engine refuses, with the reason."""


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    sample: str
    why: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the samples of a seed, by their kind; seconds of a core, with compilers."""

    seed: int
    commit: str
    samples: dict[str, int]
    refused: list[Alarm]
    seconds: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = "false-alarms"
    runs: list[Run]


@dataclass(frozen=True)
class Sample:
    """A run of training: what properties sample, and what they leave as it is."""

    case: Case
    opt: str
    options: dict[str, Any]

    def check(self) -> None:
        """Raises NotSampled where the engine refuses the options, anything else for an alarm."""
        try:
            work = self.case.work(self.opt, **self.options)
        except ConfigError as error:
            raise NotSampled(str(error)) from None
        for plan in (work.train, work.unreported, *(part.plan for part in work.evaluate)):
            plan.check()
        found = on_simulated_gpu(work, self.case.seed)
        words = self.opt.split(",")
        if any(word.startswith("graphs") for word in words):
            stream = [word for word in words if not word.startswith("graphs")]
            stream += [word for word in ("arena", "nosync") if word not in stream]
            same_run(found, on_simulated_gpu(
                self.case.work(",".join(stream), **self.options), self.case.seed))
        if not any(word.partition("=")[0] in NUMBERS for word in words) \
                and self.options["optimizer"] == OPTIMIZERS[0]:
            _agree(found, on_host(self.case, **self.options))


def _agree(found: SimpleNamespace, wanted: SimpleNamespace) -> None:
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=TOLERANCE, atol=TOLERANCE,
                                   err_msg=name)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=TOLERANCE, atol=TOLERANCE)


@dataclass(frozen=True)
class Kernel:
    """A whole-step kernel for a problem of tests/persistent, and an order of its threads."""

    how: tuple[Any, ...]
    run: int

    def check(self) -> None:
        launch = Launch(*self.how)
        d = launch.sharding
        try:
            exactly(d.problem, HOPPER, d.tp_size, d.dp_size, d.threads, d.boundaries,
                    d.micro_batches, d.transport)
        except Unsupported as reason:
            raise NotSampled(str(reason)) from None
        with tempfile.TemporaryDirectory() as folder:
            check(launch, Path(folder), self.run)
        try:
            nvrtc = Nvrtc()
        except MissingLibrary:
            return
        made = compile_source(nvrtc, launch.impl.code.text, name=launch.impl.source, arch="sm_90",
                              expressions=(launch.impl.name,), programmatic=True)
        proof = made.proofs[launch.impl.name]
        assert proof.waits, f"the proof from PTX: {proof.reason}"


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
def kernels(draw: st.DrawFn) -> Kernel:
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
    return Kernel((name, ranks, groups, types, (64.0, 0.0), left, turns, exchange),
                  draw(st.integers(0, 9)))


KINDS: dict[str, st.SearchStrategy[Sample] | st.SearchStrategy[Kernel]] = {
    "plan": plans(), "sharding": shardings(), "kernel": kernels()}


def sample(kind: str, seed: int, number: int) -> Any:
    """The same one for the same seed and number, independent of the others: Hypothesis begins with
    the simplest, and makes later ones of those before."""
    found: list[Any] = []

    @hypothesis.seed(random.Random(f"{kind}, {seed}, {number}").getrandbits(32))
    @hypothesis.settings(max_examples=2, deadline=None, database=None,
                         phases=[hypothesis.Phase.generate],
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(KINDS[kind])
    def collect(each: Any) -> None:
        found.append(each)

    collect()
    return found[-1]


def check_some(kind: str, wanted: int, seed: int, left_out: Counter[str]
               ) -> Iterator[Alarm | None]:
    """What is refused of `wanted` samples, None for each that passes."""
    done = 0
    for number in count():
        if done == wanted:
            return
        drawn = sample(kind, seed, number)
        try:
            drawn.check()
        except NotSampled as error:
            left_out[f"{kind}: {re.sub(r'[0-9][0-9.x,]*', 'N', str(error))[:140]}"] += 1
            continue
        except Exception as error:
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            print(f"refused  --seed {seed} --only {kind}:{number}  {drawn}\n  "
                   + "\n  ".join(lines[:12]), flush=True)
            yield Alarm(sample=f"{kind}:{number}", why=lines[0][:200])
        else:
            yield None
        done += 1


def read_record() -> Record:
    return msgspec.json.decode(RECORD.read_bytes(), type=Record) if RECORD.exists() \
        else Record(runs=[])


def table(record: Record) -> str:
    """The table of docs/testing.md."""
    if not record.runs:
        return "Not sampled yet.\n"
    lines = ["| commit | seeds | plans | shardings | kernels compiled and run | refused "
             "| minutes of a core |", "|---|---:|---:|---:|---:|---:|---:|"]
    for commit in dict.fromkeys(run.commit for run in record.runs):
        runs = [run for run in record.runs if run.commit == commit]
        counts = (sum(run.samples.get(kind, 0) for run in runs) for kind in KINDS)
        lines.append(" | ".join((
            f"| {commit[:7]}", str(len(runs)), *(f"{n:,}" for n in counts),
            str(sum(len(run.refused) for run in runs)),
            f"{sum(run.seconds for run in runs) / 60:.1f} |")))
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--compiled", type=int, help="a tenth unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="KIND:NUMBER")
    asked = parser.parse_args(arguments)
    if asked.only:
        kind, _, number = asked.only.partition(":")
        if kind not in KINDS or not number.isdecimal():
            parser.error(f"--only {asked.only}: give one of {', '.join(KINDS)} and a number")
        drawn = sample(kind, asked.seed, int(number))
        print(drawn, flush=True)
        try:
            drawn.check()
        except NotSampled as error:
            print(f"no sample: {error}")
        return 0
    commit = commit_of_code()
    compiled = asked.count // 10 if asked.compiled is None else asked.compiled
    shares = {"plan": asked.count // 2, "kernel": compiled}
    shares["sharding"] = max(asked.count - sum(shares.values()), 0)
    begin, left_out = sum(os.times()[:4]), Counter[str]()
    refused = [alarm for kind, share in shares.items()
               for alarm in check_some(kind, share, asked.seed, left_out) if alarm]
    run = Run(seed=asked.seed, commit=commit, samples=shares, refused=refused,
              seconds=round(sum(os.times()[:4]) - begin, 1))
    others = [each for each in read_record().runs if each.seed != run.seed]
    record = Record(runs=sorted([*others, run], key=lambda each: each.seed))
    write_atomically(RECORD, msgspec.json.format(msgspec.json.encode(record), indent=1))
    for why, times in left_out.most_common():
        print(f"no sample, {times} times  {why}")
    print(f"{len(refused)} of {sum(shares.values())} refused", *(
        f"{alarm.sample}: {alarm.why}" for alarm in refused), sep="\n  ")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
