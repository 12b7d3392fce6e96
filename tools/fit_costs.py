#!/usr/bin/env python3
"""Fit the constants of the on-chip cost model to a GPU: rawnn/persistent/cost.py.

    python -m rawnn bench lower-bounds --json floors.json
    python tools/fit_costs.py steps.csv --floors floors.json --gpu H200
    python tools/fit_costs.py results/forms.csv --stay launch --stay launch_bytes --stay clock

The second is what made those of today, from those before.

steps.csv has a line for each measured network, with a heading: `layers` (784-128-10), `batch`,
`opt` (toggles with how `persistent` shared the work, as a result names them:
"persistent=4x8:256:FSGF,bf16"; or `form` and `numbers`: 4x8:256:FSGF and bf16), `us`
(microseconds a step), and optionally `loss`, `optimizer`, `activation`, `inputs` (uint8, the
default, or float32), and the `reason` of what was not measured. Lines that are of no persistent
kernel, or of one that this version does not make, are left out and said.

A constant that `bench lower-bounds` measures by itself is taken from there; the others are fitted:
those that make the sum of the squared log ratios of expected and measured times least, where being
off from today's constant by a factor of e^PRIOR costs as much as a network that is off by e^NOISE.
So a constant that the networks say nothing of stays what it is, and is marked `kept`. Printed is
what each constant was, is, where it comes from and how well it is known, then expected and measured
times of each network. With `--keep` they are kept for the GPU that the floors are of, and count
there from then on; otherwise nothing is written.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rawnn.bench.gpu_limits import GPU, SUITE, Limits, read_limits
from rawnn.cli.plan import TARGETS, assumed
from rawnn.common.errors import ConfigError, RawnnError
from rawnn.cuda.fitted_constants import keep
from rawnn.engine.config import Config
from rawnn.opts import select
from rawnn.persistent import cost
from rawnn.persistent.choose import Choice
from rawnn.persistent.cost import Costs
from rawnn.plan.build import training_step
from rawnn.plan.ops.train_steps import KIND
from rawnn.plan.recipe import DataSpec

NOISE = 0.05
"""Of log times: what the model may be off in a network, whatever its constants."""
PRIOR = 1.0
"""Of log constants: today's are known to within so much, before anything is measured."""
KNOWN = 0.5
"""A constant whose log is not known better than to this share of PRIOR is `kept`."""
STEP = 1e-3  # relative, in the log of a constant, for its slope
EXAMPLES = 60_000


@dataclass(frozen=True)
class Measured:
    """A network, how its kernel shares the work, and microseconds a step."""

    name: str
    choice: Choice
    us: float


@dataclass(frozen=True)
class Constant:
    """One of the model: what it was and is; `source` is floors, stays, fit or kept; `error` is the
    standard error of its log, 0 where it was measured by itself or was not asked for."""

    name: str
    before: float
    value: float
    source: str
    error: float


def expected(choice: Choice, costs: Costs) -> float:
    """Microseconds a step by the model."""
    far = cost.state_microseconds(choice.layout, costs)
    return cost.microseconds(choice.sharding, costs) + far


def of_floors(found: Limits) -> dict[str, float]:
    """The constants that floors are: the clock; what an exchange in a cluster begins with and the
    bytes of it a cycle, by the times of a short one (512 bytes from each block) and a long one (4
    KiB), in the median of the cluster sizes; what telling other clusters takes."""
    seen = found.results.where(SUITE, variant=GPU, metric="sm_mhz")
    if not seen:
        return {}
    _, clock, _ = seen[0].samples  # MHz: cycles a microsecond
    values = {"clock": clock}
    begins, rates = [], []
    for size in (4, 8, 16):
        short, rate = found.value(f"exchange_{size}"), found.value(f"exchange_bytes_{size}")
        if short is None or rate is None:
            continue
        few, many = 512 * size, 4096 * size
        slope = (many / (rate * 1e3) - short) / (many - few)  # microseconds a byte
        if slope > 0 and short > few * slope:
            begins.append((short - few * slope) * clock)
            rates.append(1 / (slope * clock))
    if begins:
        values |= {"exchange": float(np.median(begins)), "exchange_bytes": float(np.median(rates))}
    barrier = found.value("grid_barrier")
    if barrier is not None:
        values["group_overflow_check"] = barrier * clock
    return values


def fitted(measured: Sequence[Measured], before: Costs, fixed: Mapping[str, float],
           stay: Collection[str] = ()) -> list[Constant]:
    """All constants: those of `stay` are what they were, others of `fixed` are that. Raises
    ConfigError for too few networks to say anything."""
    if len(measured) < 3:
        raise ConfigError(f"{len(measured)} networks cannot be fitted to: measure a dozen or more, "
                          f"of different depths, widths and batches")
    fixed = {name: value for name, value in fixed.items() if name not in stay}
    names = [name for name in asdict(before) if name not in fixed and name not in stay]
    start = replace(before, **{k: v for k, v in fixed.items() if k in asdict(before)})
    prior = np.log([getattr(before, name) for name in names])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        costs = replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        times = [math.log(expected(m.choice, costs) / m.us) for m in measured]
        return np.concatenate([np.array(times) / NOISE, (logs - prior) / PRIOR])

    found = least_squares(residuals, prior, diff_step=STEP, x_scale="jac")
    spread = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    constants = {name: Constant(name, getattr(before, name), float(np.exp(log)),
                            "fit" if error < KNOWN * PRIOR else "kept", float(error))
             for name, log, error in zip(names, found.x, spread, strict=True)}
    return [constants[name] if name in constants else
            Constant(name, value, value, "stays", 0.0) if name in stay else
            Constant(name, value, fixed[name], "floors", 0.0)
            for name, value in asdict(before).items()]


class LeftOut(RawnnError):
    """A line that says nothing of the model, and why."""


def read_steps(path: str, gpu: str, say: Callable[[str], None] = print) -> list[Measured]:
    """The networks of a CSV file; what is left out is said. Raises ConfigError for what is none,
    with its line."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    found = []
    for number, row in enumerate(rows, 2):
        try:
            found.append(_measured(row, f"{path}, line {number}", gpu))
        except LeftOut as reason:
            say(f"left out: {reason}")
    return found


def _measured(row: Mapping[str, str | None], where: str, gpu: str) -> Measured:
    given = {k: v for k, v in row.items() if k and v}
    if given.get("reason"):
        raise LeftOut(f"{where}: {given['reason']}")
    if "form" in given:
        numbers = given.get("numbers", "float32")
        given["opt"] = f"persistent={given['form']}" + (
            "" if numbers == "float32" else f",{numbers}")
    missing = [k for k in ("layers", "batch", "opt", "us") if k not in given]
    if missing:
        raise ConfigError(f"{where}: there is no {', '.join(missing)}")
    try:
        us, batch = float(given["us"]), int(given["batch"])
        if not us > 0:
            raise ValueError("us must be above 0")
        options: dict[str, Any] = {k: given[k] for k in ("loss", "optimizer", "activation")
                                   if k in given}
        return Measured(f"{given['layers']} batch {batch} {given['opt']}",
                        _choice(given["layers"], batch, given["opt"], gpu, options,
                                given.get("inputs", "uint8")), us)
    except LeftOut as error:
        raise LeftOut(f"{where}: {error}") from None
    except (ValueError, RawnnError) as error:
        raise ConfigError(f"{where}: {error}") from None


def _choice(layers: str, batch: int, opt: str, gpu: str, options: Mapping[str, Any],
            inputs: str) -> Choice:
    config = Config(layers=layers, batch=batch, opt=opt, **options)
    network, recipe = config.network(), config.recipe()
    steps = max(recipe.steps(EXAMPLES), 1)
    labelled = network.loss_spec.target_kind == "labels"
    data_spec = DataSpec(EXAMPLES, inputs=inputs, labels="uint8" if labelled else "",
                         scale=1 / 255 if inputs == "uint8" else 1.0,
                         targets=0 if labelled else network.outputs)
    selection = select(opt, network, steps, assumed(gpu), batch=batch, recipe=recipe,
                       data_spec=data_spec)
    try:
        plan, _ = selection.apply(training_step(network, recipe, data_spec))
    except ConfigError as error:  # a form that this version does not make
        raise LeftOut(str(error)) from None
    ops = plan.find(kind=KIND)
    if not ops:
        raise LeftOut(f"no persistent kernel comes of {opt} ({selection})")
    found: Choice = ops[0].attributes["choice"]
    return found


def report(measured: Sequence[Measured], constants: Sequence[Constant]) -> str:
    """Both tables, and how far the model is off before and after."""
    before = Costs(**{c.name: c.before for c in constants})
    after = Costs(**{c.name: c.value for c in constants})
    lines = [f"{'constant':<18} {'before':>10} {'now':>10}  {'from':<7} known to within"]
    lines += [f"{c.name:<18} {c.before:>10.4g} {c.value:>10.4g}  {c.source:<7} " + (
        "" if c.source in ("floors", "stays") else f"{math.expm1(c.error):.0%}" if c.error < 1 else
        "a factor of e or more") for c in constants]
    lines += ["", f"{'measured':>9} {'before':>9} {'now':>9}  network"]
    lines += [f"{m.us:>9.2f} {expected(m.choice, before):>9.2f} {expected(m.choice, after):>9.2f}  "
              f"{m.name}" for m in measured]
    logs = [np.array([math.log(m.us / expected(m.choice, costs)) for m in measured])
            for costs in (before, after)]
    off = [float(np.sqrt(np.mean(log**2))) for log in logs]
    lines += ["", f"off by {off[0]:.1%} before and {off[1]:.1%} now, in the root mean square of "
                  f"{len(measured)} log ratios; they took {math.exp(logs[1].min()):.2f} to "
                  f"{math.exp(logs[1].max()):.2f} of what is expected now, "
                  f"{math.exp(logs[1].mean()):.2f} in the mean"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("steps", metavar="STEPS.csv", nargs="+")
    parser.add_argument("--floors", metavar="FILE.json",
                        help="what bench lower-bounds --json wrote")
    parser.add_argument("--gpu", choices=list(TARGETS), default="H200")
    parser.add_argument("--fit", action="append", default=[], metavar="NAME",
                        help="fit this constant though floors have it")
    parser.add_argument("--stay", action="append", default=[], metavar="NAME",
                        help="leave this constant as it is")
    parser.add_argument("--keep", action="store_true",
                        help="keep them for the GPU of the floors: its plans are made by them")
    given = parser.parse_args(arguments)
    try:
        if given.keep and not given.floors:
            raise ConfigError("--keep needs --floors, which says which GPU it is")
        floors = read_limits(given.floors) if given.floors else None
        fixed = of_floors(floors) if floors else {}
        names = asdict(cost.FITTED)
        given.fit, given.stay = ([cost.RENAMED.get(name, name) for name in each]
                                 for each in (given.fit, given.stay))
        if unknown := [name for name in (*given.fit, *given.stay) if name not in names]:
            raise ConfigError(f"no constant is called {', '.join(unknown)}: {', '.join(names)}")
        measured = [m for path in given.steps for m in read_steps(path, given.gpu)]
        constants = fitted(measured, cost.FITTED, {
            k: v for k, v in fixed.items() if k in names and k not in given.fit}, given.stay)
    except RawnnError as error:
        print(f"fit_costs: {error}", file=sys.stderr)
        return 1
    print(report(measured, constants))
    if given.keep and floors:
        try:
            print(f"kept in {keep(floors.gpu, {c.name: c.value for c in constants})}")
        except RawnnError as error:
            print(f"fit_costs: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
