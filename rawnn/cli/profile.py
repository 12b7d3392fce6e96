"""`rawnn profile`: every op of a step with its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from rawnn.bench.gpu_limits import missing
from rawnn.bench.profiling import WAYS, ProfileResult, check_gpu, write_trace
from rawnn.bench.profiling import profile as profiled
from rawnn.cli.option_groups import Command
from rawnn.cli.options import OUTPUT, PATH, config_options, make_config, run_option
from rawnn.cli.screen import say, sentences, table_console
from rawnn.cli.tables import print_table
from rawnn.common.files import check_output
from rawnn.engine.data_source import fitted
from rawnn.engine.machine import open_device

HEADINGS = ("op", "kind", "us", "min-max", "gap (us)", "bytes", "GB/s", "of the roofline", "share")
DIFFERENCES = ("op", "us", "us of the other", "difference")


@click.command(cls=Command)
@config_options("sharding", "epochs", "partial", "patience", "min_delta", "monitor", "save",
                "save_every", "keep", "resume")
@click.option("--steps", type=click.IntRange(1), default=50, show_default=True,
              help="Steps that are taken apart, by events.")
@click.option("--by", "way", type=click.Choice(WAYS),
              help="Time ops by events, or as CUPTI sees them (CUPTI where cupti-python is "
                   "installed).")
@click.option("--diff", "other", metavar="TOGGLES",
              help="Another set of toggles, whose ops are shown beside those of --opt.")
@run_option(OUTPUT, "--trace trace_file", "Write a trace for Perfetto or chrome://tracing.",
            "not written", metavar="FILE.json", type=PATH)
@run_option(OUTPUT, "--json json_file", "Keep the profile as JSON.", "not written",
            metavar="FILE", type=PATH)
def profile(config_file: str | None, steps: int, way: Any, other: str | None,
            trace_file: str | None, json_file: str | None, **options: Any) -> None:
    """Profile a training step: every op with its time, the gap before it, its bytes, and the
    fraction of this GPU's limits that it reaches.

    With CUPTI the step is profiled as it runs, graphs included, each kernel under the name of its
    op. With events the ops are launched one by one on a stream, so that gaps are those of launches.
    """
    reads = config_file, options.get("data")
    check_output("--trace", trace_file, *reads)
    check_output("--json", json_file, *reads)
    config = make_config(config_file, options)
    with open_device(config.device, say) as opened:  # a missing GPU is reported before a download
        check_gpu(opened)
        config, data = fitted(config, say)
        several = [profiled(config, data, opened, steps, way)]
        if other:
            several.append(profiled(replace(config, opt=other), data, opened, steps, way))
    if trace_file:
        write_trace(several, trace_file)
    if json_file:
        several[0].write_json(json_file)
    for result in several:
        _show(result)
    if other:
        print_table(DIFFERENCES, differences(*several))


def rows(result: ProfileResult) -> list[tuple[str, ...]]:
    """The texts of the columns HEADINGS, one op per row."""
    whole = result.ops_us or 1.0
    made: list[tuple[str, ...]] = []
    for op in result.ops:
        us = op.us.median
        made.append((
            op.name, op.kind, f"{us:.2f}", f"{op.us.min:.2f}-{op.us.max:.2f}",
            f"{op.gap_us.median:.2f}" if op.gap_us else "", f"{op.nbytes:,}" if op.nbytes else "",
            f"{op.nbytes / us / 1e3:,.0f}" if op.nbytes and us else "",
            f"{op.fraction:.0%}" if op.fraction else "", f"{us / whole:.0%}"))
    return made


def differences(first: ProfileResult, second: ProfileResult) -> list[tuple[str, ...]]:
    """Ops of both by name, those of one only, and the step: the texts of DIFFERENCES."""
    sides = [{op.name: op.us.median for op in result.ops} for result in (first, second)]
    names = dict.fromkeys((*sides[0], *sides[1]))
    pairs = [(name, sides[0].get(name), sides[1].get(name)) for name in names]
    pairs += [("all ops", first.ops_us, second.ops_us),
              ("the step as it runs", first.step_us.median, second.step_us.median)]
    return [(name, _us(a), _us(b), f"{round((b or 0.0) - (a or 0.0), 2) + 0.0:+.2f}")
            for name, a, b in pairs]


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _show(result: ProfileResult) -> None:
    console = table_console()
    sentences(console, [f"toggles: {', '.join(result.toggles) or 'none'}"])
    print_table(HEADINGS, rows(result))
    step, ops = result.step_us.median, result.ops_us
    how = "as CUPTI saw the kernels of an epoch" if result.way == "cupti" else \
        f"between events around each op, launched one by one on a stream, less the " \
        f"{result.empty_us:.2f} us of two events with nothing between them"
    said = [f"all ops {ops:.2f} us; a step as these toggles run it {step:.2f} us",
            f"timed {how}; medians of {result.steps} steps"]
    gpu = (result.environment.gpu or {}).get("name", "")
    if not any(op.least_us for op in result.ops):
        said.append(f"the roofline is left out: {missing(str(gpu))}")
    if result.environment.device == "sim":
        said.append("the GPU is SIMULATED: the times say nothing about a real one")
    sentences(console, [*(f"- {text}" for text in said), *(f"- {n}" for n in result.notes)])
