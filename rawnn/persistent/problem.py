"""What a step of a plan trains, as far as the persistent kernel must know."""

from __future__ import annotations

from dataclasses import dataclass

from rawnn.common.dtypes import c_type, itemsize
from rawnn.common.errors import RawnnError
from rawnn.model.activations import activation
from rawnn.model.losses import LOSSES
from rawnn.model.optimizers import UPDATE_RULES
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan

NOT_SETTINGS = ("lr", "copy_scale", "stochastic", "seed", "stream", "offset")
"""Attributes of an update that are not settings of the optimizer's rule."""

Setting = float | bool


class Unsupported(RawnnError):
    """A step that the kernel cannot do: `reason` says why, as the end of a sentence, `fix` what to
    do about it; the message has both."""

    def __init__(self, reason: str, fix: str = "leave persistent out") -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason, self.fix = reason, fix


@dataclass(frozen=True)
class Problem:
    """One training step of a fully connected network.

    layers: features of each boundary, from the inputs to the outputs.
    batch, stride: examples of a step, and from the begin of one step to that of the next.
    activation: its name; "" for one layer.
    loss: the CUDA functor of a loss over all elements; "" for softmax cross-entropy with labels.
    rule, settings, states: the CUDA functor of the optimizer step, its arguments, and the tensors
        that it keeps for each parameter.
    timed: whether the optimizer step depends on the number of the step.
    numbers: the dtype of GEMMs: "float32", "tf32", "bfloat16" or "float16".
    inputs, labels: storage dtypes.
    scale, normalised: how stored inputs become operands.
    reconstruct: whether the inputs are the targets.
    ordered: whether a batch takes its examples by an order (shuffling).
    scheduled: whether the learning rate changes from step to step.
    measured: whether steps count correct answers.
    copies: the dtype of low-precision copies of the weights; "" without.
    growth: steps without an overflow that double the loss scale; 0 without a loss scale.
    streams: the random streams of stochastic rounding, one for each layer's weights, where these
        are stored in bfloat16; none where they are stored in float32.
    partial: whether an epoch may end with a smaller batch.
    """

    layers: tuple[int, ...]
    batch: int
    stride: int
    bias: bool
    activation: str
    loss: str
    rule: str
    lr: float
    settings: tuple[Setting, ...]
    states: tuple[str, ...]
    timed: bool
    numbers: str
    inputs: str
    scale: float
    normalised: bool
    labels: str
    reconstruct: bool
    ordered: bool
    scheduled: bool
    measured: bool
    copies: str
    growth: int = 0
    streams: tuple[int, ...] = ()
    partial: bool = False

    @property
    def numeric_settings(self) -> tuple[int, ...]:
        """Which of the settings are numbers, in which members may differ; the others are flags."""
        return tuple(i for i, value in enumerate(self.settings) if not isinstance(value, bool))

    @property
    def decays(self) -> bool:
        """Whether weights decay: the first setting is the weight decay. Of members, of any."""
        return self.settings[0] != 0.0

    @property
    def depth(self) -> int:
        return len(self.layers) - 1

    @property
    def outputs(self) -> int:
        return self.layers[-1]

    @property
    def labelled(self) -> bool:
        return not self.loss

    @property
    def scaled(self) -> bool:
        """Whether the loss has a scale, and steps whose gradients overflow are skipped."""
        return self.growth > 0

    @property
    def halved(self) -> bool:
        """Whether GEMMs read 16-bit operands."""
        return self.numbers in ("bfloat16", "float16")

    @property
    def weights(self) -> str:
        """The dtype that weights are stored in."""
        return "bfloat16" if self.streams else "float32"

    @property
    def saves_input(self) -> bool:
        """Whether the slope of the activation is that of its input, not of its output."""
        return bool(self.activation) and activation(self.activation).saves == "input"

    @property
    def rounded(self) -> bool:
        """Whether inputs lie on the device as 16-bit GEMMs read them (rounding.py)."""
        return self.halved and self.inputs == self.numbers and self.scale == 1.0 \
            and not self.normalised and not self.reconstruct

    @property
    def converted(self) -> bool:
        """Whether stored inputs are converted to what GEMMs read."""
        return not self.rounded and (
            self.inputs != "float32" or self.scale != 1.0 or self.normalised)

    @property
    def input_size(self) -> int:
        """Bytes of an input as the data set holds it."""
        return itemsize(self.inputs)

    @property
    def input_type(self) -> str:
        return c_type(self.inputs)


def problem_of(plan: Plan) -> Problem:
    """What the one-step plan trains. Raises Unsupported where it is not the baseline's step with
    its data on the device, or stores what the kernel cannot."""
    forward = [op for op in plan.find(kind="matmul") if op.attributes["layout"] == "nt"]
    updates = [op for op in plan.ops if "dw" in op.operands and "w" in op.operands]
    if not forward or not updates:
        raise Unsupported("trains nothing")
    gathers = plan.find(kind="gather")
    if not gathers:
        raise Unsupported("takes its batches from the host", "add preload")
    _check_numbers(plan)
    gather, first = gathers[0], updates[0]
    if first.kind not in UPDATE_RULES:
        raise Unsupported(f"updates by '{first.kind}', of which no CUDA functor is known")
    depth, bias = len(forward), bool(plan.find(kind="bias_add"))
    loss = next((entry for entry in LOSSES.values() if plan.find(kind=entry.parts[-1])), None)
    scales = plan.find(kind="adjust_scale")
    if loss is None or [op.kind for op in plan.ops] != [
            *_kinds(depth, bias, loss.parts, updates), *(op.kind for op in scales)]:
        raise Unsupported("is not the step that rawnn builds, with nothing fused yet")
    if any(op.impl != "naive" for op in plan.ops):
        raise Unsupported("has ops whose kernels are chosen already")
    activations = {op.attributes["activation"] for op in plan.find(kind="activate")}
    settings = {k: v for k, v in first.attributes.items() if k not in NOT_SETTINGS}
    copy = first.operands.get("copy")
    known = {"w", "dw", "copy", "rates", "cursor", "clock", "loss_scale", "overflow"}
    return Problem(
        layers=(forward[0].attributes["k"], *(op.attributes["n"] for op in forward)),
        batch=plan.batch, stride=gather.attributes["stride"], bias=bias,
        activation=activations.pop() if activations else "", loss=loss.functor,
        rule=UPDATE_RULES[first.kind].functor, lr=first.attributes["lr"],
        settings=tuple(settings.values()),
        states=tuple(r for r in first.operands if r not in known), timed="clock" in first.operands,
        numbers=_numbers(plan, forward[0]), inputs=plan[gather.operands["images"]].dtype,
        scale=gather.attributes["scale"], normalised="mean" in gather.operands,
        labels=plan[gather.operands["labels"]].dtype if loss.labelled else "",
        reconstruct=loss.target_kind == "targets" and "targets" not in gather.operands,
        ordered="order" in gather.operands, scheduled="rates" in first.operands,
        measured="correct" in plan.tensors
        and any("correct" in op.operands for op in plan.ops),
        copies=plan[copy].dtype if copy else "",
        growth=scales[0].attributes["growth"] if scales else 0,
        streams=tuple(op.attributes["stream"] for op in updates if op.attributes["stochastic"]))


def _kinds(depth: int, bias: bool, parts: tuple[str, ...], updates: list[Op]) -> list[str]:
    """The kinds of the baseline's ops, in order."""
    found = ["gather"]
    for layer in range(1, depth + 1):
        found += ["matmul", *["bias_add"] * bias, *["activate"] * (layer < depth)]
    found += parts
    for layer in range(depth, 0, -1):
        found += ["matmul", *["bias_grad"] * bias,
                  *["matmul", "activate_backward"] * (layer > 1)]
    return found + [op.kind for op in updates]


def _check_numbers(plan: Plan) -> None:
    types = {t.dtype for t in plan.tensors.values() if t.role.temporary}
    if any(op.attributes["compute"] == "float16" for op in plan.find(kind="matmul")):
        raise Unsupported("sums products in float16", "use fp16 in place of fp16=acc16, or leave "
                                                      "persistent out")
    if not types <= {"float32", "bfloat16", "float16", "int32"}:
        raise Unsupported("stores 8-bit numbers", "use bf16 or fp16 in place of fp8, or leave "
                                                  "persistent out")


def _numbers(plan: Plan, forward: Op) -> str:
    stored = plan[forward.operands["a"]].dtype
    if stored != "float32":
        return stored
    return str(forward.attributes["compute"])
