"""What `tune` would try, how ranks split a step, which batch fits, and what a whole run holds."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from rawnn.cli.plan import assumed
from rawnn.common.errors import ConfigError
from rawnn.common.target import gpu_named
from rawnn.cuda.device import DeviceInfo
from rawnn.engine.launch_choices import (
    applied,
    choices_of,
    chosen,
    file_of,
    key_of,
    variants,
)
from rawnn.engine.parallel import with_nccl
from rawnn.engine.runners.prepared_run import prepare
from rawnn.graphs.unrolling import graph_plans
from rawnn.many.launch_plans import launch_plans, single_microseconds, step_microseconds
from rawnn.model.layers import INITIALISERS, Network
from rawnn.opts import batch as batch_toggle
from rawnn.opts import select
from rawnn.opts.batch import with_batch
from rawnn.plan.build import training_step
from rawnn.plan.dependencies import reason
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.ptx.kernels import KERNELS
from rawnn.tuning import search
from tests.engine import CAPABLE, dataset_for, step_plan
from tests.many.test_gpu_members import folded, group_of
from tests.records import Lines, outcome, record, short
from tests.records.decisions import LIBRARIES, flags, geometry, total_bytes
from tests.records.sampled import Case, Draw, cases, selected

TUNED = (
    "best,-persistent",
    "best,-persistent,bf16",
    "best,-persistent,tf32",
    "tiled,fuse",
    "cublas,fuse",
    "none",
    "mma=sync,fuse,fp16",
    "best,-persistent,fp8",
)


BOUNDS = sorted({2**i + j for i in range(3, 12) for j in (-1, 0, 1)})
GROWN = (
    ("best,-persistent", (784, 256, 128, 10), 64),
    ("preload,bf16,sr,mma,fuse", (64, 96, 96, 10), 32),
    ("preload,cublas,fuse,tf32", (784, 512, 256, 10), 128),
    ("preload,tiled,fuse", (784, 10), 64),
    ("preload,mma,fuse", (2048, 2048, 2048, 40), 32),
)


@record
def plans_at_bounds() -> Lines:
    """The ops of a step as one extent grows: each answer, and the extent up to which it holds."""
    machine = assumed("H200")
    for opt, layers, batch in GROWN:
        for side in ("batch", "inputs", "width", "outputs"):
            found: list[tuple[int, str]] = []
            for extent in BOUNDS:
                inputs, *hidden, outputs = layers
                if side == "width":
                    hidden = [extent] * len(hidden)
                network = Network((extent if side == "inputs" else inputs, *hidden,
                                   extent if side == "outputs" else outputs))
                rows = extent if side == "batch" else batch
                plan = step_plan(network, rows, 4 * rows)
                plan, _ = select(opt, network, 4, machine, batch=rows).apply(plan)
                kinds = Counter(f"{op.kind}/{op.impl}" for op in plan.ops)
                answer = " ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
                if found and found[-1][1] == answer:
                    found.pop()
                found.append((extent, answer))
            yield f"# {opt}, {'-'.join(map(str, layers))}, batch {batch}: {side}"
            yield from (f"to {extent}: {answer}" for extent, answer in found)


@record
def variants_of_launches() -> Lines:
    """All variants of every launch, as `tune` would try them."""
    for case in cases(2, 41, 900, 3, TUNED, ("H200", "H200", "A100", "L40")):
        try:
            _, plan, _ = selected(case)
        except ConfigError as error:
            yield f"# {case}: {error}"
            continue
        yield f"# {case}"
        for op in plan.ops:
            changes = variants(op, plan)
            yield f"{key_of(op, plan)}: {len(changes)} variants"
            if op.impl in LIBRARIES:
                yield f"  {changes}"
                continue
            for change in changes:
                changed = replace(op, attributes={**op.attributes, **change})
                yield f"  {change['choice']} {geometry(changed, plan)}"
    network = Network((20, 300, 10))
    data = dataset_for(network, 500, 130)
    for opt in ("preload,mma,fuse", "cublas,fuse", "preload,mma,fuse,report=3"):
        selection = select(opt, network, 5, assumed("H200"), batch=100)
        run = prepare(network, data, selection, Recipe(100, partial=True), evaluation_batch=100)
        plan = run.train
        first = {key_of(op, plan): variants(op, plan)[-1] for op in plan.ops if variants(op, plan)}
        tuned = applied(run, first)
        yield f"# {opt} with the last variants: {chosen(tuned.train)}"
        yield "unreported: " + " ".join(op.name for op in tuned.unreported.ops)
        yield from (f"{key}: {changes}" for key, changes in choices_of(tuned).items())
        yield f"evaluation {[chosen(part.plan) for part in tuned.evaluate]}"
    info = SimpleNamespace(name="NVIDIA H200 (SXM)", driver="580.1")
    yield file_of(cast(DeviceInfo, info)).name.rpartition("-")[0]
    for gpu in ("H200", "A100", "T4"):
        yield f"tune on {gpu} varies {search.axes(assumed(gpu))}"


class Sizes(dict[str, int]):
    """A number for whatever the launch of a kernel depends on: tiles that exist, and for sizes a
    number that follows from their name."""

    def __init__(self, is_large: bool, **given: int) -> None:
        super().__init__(BM=64, BN=128, WM=2, WN=2, WK=1, STAGES=3, BYTES=128, CLUSTER=1, **given)
        self.is_large = is_large

    def __missing__(self, name: str) -> int:
        number = zlib.crc32(name.encode())
        return 5 + number % 997 if self.is_large else 1 + number % 13


@record
def geometries() -> Lines:
    """How each kernel is launched, by sizes that are made up."""
    for key, kernel in sorted(KERNELS.items()):
        yield f"# {'/'.join(key)}: {kernel.name} of {kernel.source} {short(flags(kernel))}"
        yield f"shapes {short(kernel.shapes)} carveout {kernel.carveout}"
        for is_large in (False, True):
            for choice in (0, 1):
                sizes = Sizes(is_large, choice=choice)
                yield outcome(lambda: (
                    *kernel.geometry(sizes),
                    kernel.shared(sizes),
                    kernel.cluster(sizes),
                    kernel.boxes(sizes),
                ))


@record
def ranks() -> Lines:
    """Plans of several ranks: the order of collectives, their buckets and what each rank holds."""
    opts = (
        "best",
        "best,nccl=fp32",
        "best,bf16",
        "best,bf16,nccl=sharded",
        "best,nccl=1",
        "best,bf16,nccl=2:backward",
        "best,fp16",
        "best,bf16,nccl=fp32:whole",
        "mma,fuse",
        "best,bf16,nccl=sharded:3",
        "preload,nccl=bf16",
    )
    draw = Draw(3)
    for case in cases(14, 19, 7000, 4, opts, ("H200", "H200", "A100")):
        world = draw.one_of((2, 2, 3, 4, 8))
        yield from of_rank(case, world, draw.one_of(range(world)))
    wide = {"layers": (784, 2048, 1024, 2048, 10), "batch": 4096, "optimizer": "adam"}
    for opt, world, more in (
        ("best,bf16", 2, {}),
        ("best,bf16,nccl=sharded", 2, {"batch": 64}),
        ("best,bf16,nccl=sharded:backward", 2, {}),
        ("best,bf16,sr", 2, {"optimizer": "sgd"}),
        ("best,nccl=sharded", 4, {}),
        ("best,bf16,nccl=sharded:1", 4, {"optimizer": "sgd"}),
        ("best,fp16,nccl=sharded", 2, {}),
        ("best,bf16,-arena,pool", 2, {}),
        ("best,bf16", 2, {"layers": (4096, 8192, 8192)}),
        ("best,nccl=1:backward", 2, {"layers": (500,) * 4, "bias": False}),  # a bucket each
    ):
        case = Case(0, {**wide, **more, "opt": opt}, DataSpec(60_000, scale=1 / 255), "H200")
        for rank in (0, 1) if world == 2 and "sharded" in opt else (1,):
            yield from of_rank(case, world, rank)


def of_rank(case: Case, world: int, rank: int) -> Lines:
    config = replace(case.config(), opt="best")
    each = max(case.options["batch"] // world, 1)
    recipe = replace(config.recipe(), batch=each * world, world_size=world, rank=rank)
    network, spec = config.network(), replace(case.data_spec, examples=60_000)
    yield f"# rank {recipe.rank} of {world}, {case}"
    try:
        selection = select(
            with_nccl(case.options["opt"]),
            network,
            recipe.steps(60_000),
            assumed(case.gpu),
            batch=recipe.share(recipe.batch).rows,
            recipe=recipe,
            data_spec=spec,
        )
        plan, _ = selection.apply(training_step(network, recipe, spec))
    except ConfigError as error:
        yield f"refused: {error}"
        return
    yield f"toggles: {selection}"
    yield from collectives(plan)


def collectives(plan: Plan) -> Lines:
    names = [op.name for op in plan.ops]
    yield "order: " + " ".join(names)
    for op in plan.ops:
        if op.impl == "nccl":
            nbytes = total_bytes(plan[n] for n in dict.fromkeys(op.operands.values()))
            yield (
                f"{op.name}: {op.kind} of {nbytes} bytes, {', '.join(op.operands.values())}; "
                + short(
                    {k: v for k, v in op.attributes.items() if isinstance(v, (int, float, str))}
                )
            )
    views = [t for t in plan.tensors.values() if t.role == "view"]
    if views:
        yield "views: " + ", ".join(f"{t.name} {t.shape} at {t.first},{t.column}" for t in views)
        updates = [op for op in plan.ops if "dw" in op.operands and "w" in op.operands]
        yield "updates: " + ", ".join(
            f"{op.name} {op.operands['dw']} {op.operands.get('other', '')}"
            f"{' urgent' * bool(op.attributes.get('urgent'))}"
            for op in updates
        )
    yield "memory: " + ", ".join(
        f"{role} {nbytes}"
        for role, nbytes in sorted(
            sum(
                (Counter({str(t.role): t.nbytes}) for t in plan.tensors.values()), Counter()
            ).items()
        )
    )


@record
def prepared_runs() -> Lines:
    """A whole run: partial batches, evaluation, device memory, and graphs of each kind."""
    for case in cases(
        15,
        53,
        300,
        3,
        (
            "best",
            "none",
            "seed",
            "best,bf16",
            "preload,graphs=while",
            "graphs=3,mma,fuse",
            "report=5,nosync,fuse",
            "streams,pinned",
            "pool,async,nosync",
            "best,-persistent,sr",
        ),
        ("H200", "L40"),
    ):
        config = case.config()
        network, recipe = config.network(), config.recipe()
        yield f"# {case}"
        data = dataset_for(network, min(max(recipe.batch * 3, 100), 4000), 130)
        if not recipe.steps(len(data.train_images)):
            recipe = replace(recipe, batch=len(data.train_images) // 3)
        steps = recipe.steps(len(data.train_images))
        try:
            selection = select(config.opt, network, steps, assumed(case.gpu), batch=recipe.batch)
            run = prepare(network, data, selection, recipe, evaluation_batch=50)
        except ConfigError as error:
            yield f"refused: {error}"
            continue
        yield f"toggles: {selection}; {run.policy}"
        yield (
            f"{run.steps} steps, {run.updates} updates, device {run.device_bytes()} bytes, "
            f"last step {run.examples_of(run.updates - 1)} examples, boundary merged: "
            f"{len(run.merged_boundary)}, step plans {[len(p.ops) for p in run.step_plans]}"
        )
        yield "unreported: " + " ".join(op.name for op in run.unreported.ops)
        yield "state: " + " ".join(run.state)
        yield from numbers(run.start)
        if case.number % 3 == 0:
            yield from numbers(run.train)
        for name in ("start", "refresh", "epoch_begin", "epoch_end", "epoch_boundary", "assemble"):
            plan = getattr(run, name)
            if plan.ops:
                yield f"{name}: " + ", ".join(f"{op.name} {geometry(op, plan)}" for op in plan.ops)
        yield "evaluate: " + ", ".join(
            f"{p.steps} x {p.plan.batch} from {p.first}: " + " ".join(op.name for op in p.plan.ops)
            for p in run.evaluate
        )
        for graph in graph_plans(run.train, run.policy, steps) if run.policy.graph else ():
            ops = graph.plan.ops
            yield f"graph of {graph.plan.steps} steps launched {graph.launches}x: " + "; ".join(
                f"{i} after " + ", ".join(f"{b} ({reason(ops[b], op)})" for b in before)
                for i, (op, before) in enumerate(zip(ops, graph.edges(), strict=True))
                if before and i < 12
            )


@record
def copies_of_weights() -> Lines:
    """Types and scales of what GEMMs read, by precision and by how weights begin."""
    for init in INITIALISERS:
        for opt in ("fp8,mma", "bf16", "bf16,sr", "fp16", "best,fp8"):
            network = Network((300, 24, 3), init=init)
            selection = select(opt, network, 6, assumed("H200"), batch=10)
            plan, _ = selection.apply(training_step(network, Recipe(10), DataSpec(60)))
            copies = [t for t in plan.tensors.values() if t.role in ("copy", "parameter", "state")]
            yield f"{init} {opt}: " + ", ".join(
                f"{t.name} {t.dtype} x {short(t.scale)} bound {short(t.bound)}" for t in copies
            )


def numbers(plan: Plan) -> Lines:
    """The numbers that ops carry, besides sizes that follow from their operands."""
    for op in plan.ops:
        found = {
            name: value
            for name, value in op.attributes.items()
            if isinstance(value, int | float) and name not in ("m", "n", "k", "offset", "stride")
        }
        if found:
            yield f"{op.name} {short(found)}"


@record
def batches() -> Lines:
    """The toggle `batch`."""
    base = next(iter(cases(1, 1))).config().recipe()
    for value, free, fixed, each in (
        ("max", 1 << 30, 1000, 40_000),
        ("max", 1 << 24, 0, 333),
        ("max", 0, 0, 1),
        ("max", 100, 1000, 10),
        (77, 0, 0, 0),
        (70_000, 0, 0, 0),
        (60_000, 0, 0, 0),
        (1, 0, 0, 0),
    ):
        yield f"batch={value}, {free} bytes free: " + outcome(
            lambda: with_batch(value, base, 60_000, free, lambda r: fixed + each * r.batch)[1]
        )
    yield f"share {batch_toggle.SHARE}"


@record
def members_by_launches() -> Lines:
    """How many networks of any size train side by side: launches, and the time that is expected."""
    for folds, options in (
        (0, {"layers": (29, 16, 7)}),
        (2, {"layers": (29, 40, 40, 7), "optimizer": "adam", "opt": "tf32"}),
        (2, {"layers": (29, 700, 7), "batch": 16, "opt": "bf16", "shuffle": False}),
    ):
        group = folded(4, folds, **options) if folds else group_of(4, 300, **options)
        target = gpu_named("H200")
        plans = launch_plans(group, replace(CAPABLE, measure=lambda: target), "", 3)
        yield ""
        yield f"# {options}, {folds} folds"
        parts = {
            **{n: getattr(plans, n) for n in ("start", "refresh", "begin", "end", "scores")},
            "training": plans.training.whole, "partial training": plans.training.partial,
            "evaluation": plans.evaluation.whole, "partial evaluation": plans.evaluation.partial,
        }
        yield (f"steps {plans.training.count}, chunks {plans.evaluation.count}, "
               f"answers {plans.answers}")
        for name, plan in parts.items():
            held = total_bytes(plan.tensors.values())
            yield f"{name}: {len(plan.ops)} ops, {len(plan.tensors)} tensors, {held} B"
            yield from (f"  {op.name}: {op.impl} {geometry(op, plan)}" for op in plan.ops)
        for on in (target, gpu_named("A100")):
            times = [step_microseconds(plans.single, n, on) for n in (1, 7, 500)]
            yield f"a step of 1, 7, 500: {short(times)} us"
            yield f"of one by itself: {short(single_microseconds(plans.single, on))} us"
