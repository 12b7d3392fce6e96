"""`rawnn kernel try`: a user's kernel inside the training step."""

from __future__ import annotations

from typing import Any

import click

from rawnn.bench.harness import Harness
from rawnn.bench.side_by_side import ROUNDS, SUITE, TIMER, compare_configurations
from rawnn.cli.option_groups import Command
from rawnn.cli.options import PATH, TOGGLES, config_options, make_config, run_option, toggle_names
from rawnn.cli.screen import say, sentences, table_console
from rawnn.cli.tables import show
from rawnn.common.errors import MissingLibrary, RawnnError
from rawnn.engine.data_source import fitted

LAYERS = "784-128-128-10"
"""The default network: it has every op of hidden layers."""


@click.command("try", cls=Command)
@click.argument("file", type=PATH)
@click.option("--as", "op", metavar="OP", help="The op that it computes, such as bias_relu. "
                                               "[default: what its header says]")
@run_option(TOGGLES, "--beside base", "The toggles that it joins, and is compared with.", "best",
            metavar="TOGGLES", default="best", values=toggle_names, many=True)
@config_options("opt", "sharding", "epochs", "partial", "patience", "min_delta", "monitor", "save",
                "save_every", "keep", "resume")
@click.option("--rounds", type=click.IntRange(2), default=ROUNDS, show_default=True,
              help="Turns of each configuration.")
def try_(file: str, op: str | None, base: str, config_file: str | None, rounds: int,
         **options: Any) -> None:
    """Try the kernel of FILE in a training step: compile it, check it against the op's reference,
    time it alone, then train with and without it alternately. Did the step get faster, and did the
    loss curve stay?

    Without a GPU it is compiled, and its arguments and their order are checked on the simulated
    one.
    """
    from rawnn.bench import attempt
    from rawnn.cli.plan import ASSUMED
    from rawnn.lab.plug import load

    own = load(file, op)
    opt = f"{base},{own.op}={file}"
    if not (options.get("layers") or options.get("workload") or config_file):
        options["layers"] = LAYERS
    config, data = fitted(make_config(config_file, options), say)
    console = table_console()
    with Harness(SUITE, notify=say, progress=lambda done, total, rounds, last: say(
            f"turn {done} of {total}: {last.partition(' ')[2]}")) as harness:
        opened = harness.open(config.device, TIMER)
        device = opened.device
        real = device is not None and device.backend.name != "sim"
        machine = opened.machine if device else ASSUMED
        plan = attempt.training_plan(config, opt, data, machine)
        ops = ", ".join(each.name for each in attempt.ops_of(own, plan))
        layers = "-".join(map(str, config.layers))
        sentences(console, [f"{own.word} runs {ops} of {layers} at batch {plan.batch}"])
        arch = device.arch if device and real else "sm_90"
        try:
            for each in attempt.compile_instances(own, plan, arch):
                used, (stores, loads) = each.usage, each.spilled
                console.print(f"compiled  {each.expression} for {arch}: {used.registers} registers,"
                              f" {used.shared:,} B of shared memory, {used.stack} B of stack, "
                              f"{stores + loads} B spilled", markup=False)
        except (MissingLibrary, RuntimeError) as error:
            console.print(f"compiled  not: NVRTC cannot be used here ({error})", markup=False)
        reason = attempt.simulate(config, opt, data)
        console.print("ordering  " + (f"not proved: {reason}" if reason else
                      f"{attempt.STEPS} steps on the simulated GPU: arguments, bounds and order "
                      f"are right"), markup=False)
        if device is None:
            sentences(console, ["there is no GPU here: what it computes was not checked, nothing "
                                "was timed, and the step was not compared"])
            return
        if real:
            _check(attempt.check_ops(device, own, plan), own.word, console)
        else:
            console.print("right     not asked: the simulated GPU computes what the op means, not "
                          "the kernel", markup=False)
        for each_op in attempt.time_ops(device, own, plan):
            ratio = each_op.rawnn_us / each_op.user_us if each_op.user_us else 1.0
            console.print(f"alone     {each_op.op}: {each_op.user_us:.2f} us, "
                          f"{' + '.join(each_op.replaced)} {each_op.rawnn_us:.2f} us "
                          f"({ratio:.2f} x)", markup=False)
        difference = attempt.compare_losses(config, base, opt, data, opened)
        compare_configurations(harness, config, [base, opt], data, opened, rounds)
        show(harness.results, SUITE)
        console.print(str(difference), markup=False)
        if not difference.is_within_tolerance:
            raise RawnnError(f"{own.word} trains another model than rawnn's own kernels")


def _check(examined: list[Any], word: str, console: Any) -> None:
    """Print the outcomes. Raises RawnnError if something is wrong."""
    for each in examined:
        said = [*map(str, each.outcomes), *each.trespasses]
        console.print(f"{'right' if each.right else 'WRONG':<9} {each.op}: {'; '.join(said)}",
                      markup=False)
    if wrong := [each.op for each in examined if not each.right]:
        raise RawnnError(f"{word} does not compute what its op means: {', '.join(wrong)}; nothing "
                         f"was timed")
