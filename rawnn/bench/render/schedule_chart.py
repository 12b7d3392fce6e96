"""The schedule of a persistent kernel as a picture: its phases in program order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rawnn.bench.render.charts import LIGHT, SMALL, Chart
from rawnn.common.target import gpu_named
from rawnn.common.words import counted
from rawnn.engine.config import Config
from rawnn.opts import select
from rawnn.opts.registry import Machine
from rawnn.persistent.choose import Choice
from rawnn.persistent.phases.phase import (
    BARRIER,
    ELEMENTWISE,
    INPUTS,
    OTHER_BLOCKS,
    TENSOR_CORES,
    Phase,
)
from rawnn.plan.build import training_step
from rawnn.plan.recipe import DataSpec

LANES = {INPUTS: "grey", TENSOR_CORES: "blue", ELEMENTWISE: "orange", OTHER_BLOCKS: "purple",
         BARRIER: "bar"}
EXAMPLES = 60_000


def choice_of(layers: Sequence[int], batch: int = 128, opt: str = "persistent",
              gpu: str = "H200") -> Choice:
    """The sharding and the schedule that `opt` chooses for a network on a GPU.

    layers: sizes from the inputs to the classes.
    Raises ConfigError where the network does not fit on the chip.
    """
    config = Config(layers=tuple(layers), batch=batch, opt=opt)
    network, recipe = config.network(), config.recipe()
    target = gpu_named(gpu)
    machine = Machine(None, target.capability, 13000, lambda package: True, measure=lambda: target)
    spec = DataSpec(EXAMPLES, labels="uint8", scale=1 / 255)
    selection = select(opt, network, recipe.steps(EXAMPLES), machine, batch=batch, recipe=recipe,
                       data_spec=spec)
    plan, _ = selection.apply(training_step(network, recipe, spec))
    (op,) = plan.find(kind="train_steps")
    chosen = op.attributes["choice"]
    assert isinstance(chosen, Choice)
    return chosen


def schedule_chart(choice: Choice) -> Chart:
    """The phases of a step in program order, from left to right, in lanes of what they keep busy.
    An arrow leads from the GEMM that sends to the exchange that receives."""
    plan, sharding = choice.layout.schedule, choice.sharding
    listed = plan.phases
    where = "L2" if sharding.via_l2 else "distributed shared memory"
    layers = "-".join(map(str, sharding.problem.layers))
    title = f"The schedule of {layers}: {counted(len(listed), 'phase')}, one kernel"
    subtitle = (f"{counted(sharding.dp_size, 'group')} of {sharding.tp_size} blocks of "
                f"{sharding.threads} threads; exchanges through {where}; from the plan")
    return Chart(title, subtitle, lambda axes: _draw(axes, listed), 4.4)


def _draw(axes: Any, listed: Sequence[Phase]) -> None:
    names = list(LANES)
    sent: dict[Phase, int] = {}
    for place, phase in enumerate(listed):
        row = names.index(phase.lane)
        axes.broken_barh([(place + 0.08, 0.84)], (row - 0.3, 0.6), color=LIGHT[LANES[phase.lane]],
                         linewidth=0)
        end = getattr(phase, "epilogue", None)
        exchange = end.send if end else getattr(phase, "send", None)
        if exchange is not None:
            sent[exchange] = place
        begun = sent.get(phase)
        if begun is not None:
            start = names.index(listed[begun].lane)
            tail, head = ((begun + 0.5, start + 0.3), (place + 0.5, row - 0.3)) if start != row \
                else ((begun + 0.92, row), (place + 0.08, row))
            axes.annotate("", head, tail, arrowprops={"arrowstyle": "->", "color": LIGHT["ink"],
                                                      "linewidth": 1})
    axes.set_xticks([place + 0.5 for place in range(len(listed))],
                    [f"{place}. {phase.label or phase.name}"
                     for place, phase in enumerate(listed, 1)],
                    rotation=60, ha="right", rotation_mode="anchor", fontsize=SMALL)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, len(listed))
    axes.invert_yaxis()
    axes.grid(axis="y")
