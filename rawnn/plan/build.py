"""Builds the baseline plans of a network: one op at a time, batches copied from the host, as the
report that this project starts from describes it. Toggles rewrite them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rawnn.plan.op import Op
from rawnn.plan.ops.losses import builders
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import DataSpec, Recipe, Share
from rawnn.plan.tensor import Role, Tensor

if TYPE_CHECKING:
    from rawnn.model.layers import Network, Parameter

CLOCK = Tensor("clock", (2,), "int32", Role.STATE)
"""Epochs and steps done since training began."""

ONE_BLOCK_ELEMENTS = 4096
"""Outputs of a batch up to which one block measures it. One block and several on an H200: 12.8 and
6.3 us for 128 x 128, 15.3 and 5.6 us for 4096 x 10."""
METRIC_WORKSPACE = 1025
"""Words: a count of blocks, and two sums each of up to 512 blocks."""


def training_step(network: Network, recipe: Recipe, data_spec: DataSpec, *, partial: bool
                  = False) -> Plan:
    """The plan of one optimizer step on a batch of the training examples.

    With `partial` it is the step on the partial batch that ends an epoch. Metrics have one element
    per step of the epoch.
    """
    share = recipe.share(recipe.partial_size(data_spec.examples) if partial else recipe.batch)
    builder = Builder(network, share.rows, data_spec, max(recipe.updates(data_spec.examples), 1),
                      recipe.batch, shuffled=recipe.shuffle)
    if recipe.world_size > 1:
        builder.world_size, builder.rank, builder.share = recipe.world_size, recipe.rank, share
    builder.forward()
    builders(network.loss_spec)[0](builder)
    builder.backward()
    builder.update(recipe)
    return builder.plan("partial" if partial else "train")


def evaluation_step(network: Network, batch: int, data_spec: DataSpec) -> Plan:
    """The plan that measures loss and accuracy on `batch` of the examples and updates nothing."""
    builder = Builder(network, batch, data_spec, max(data_spec.examples // batch, 1), batch)
    builder.forward()
    builders(network.loss_spec)[0](builder)
    return builder.plan("evaluate")


class Builder:
    """A plan under construction. Losses add their ops through it."""

    def __init__(self, network: Network, batch: int, data_spec: DataSpec, steps: int, stride: int,
                 *, shuffled: bool = False) -> None:
        self.network, self.batch, self.data_spec = network, batch, data_spec
        self.tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []
        self._stride = stride
        self.world_size, self.rank, self.share = 1, 0, Share(0, batch, 1.0)
        self.logits = f"z{network.depth}"
        self.last_gradient = f"dz{network.depth}"
        self.targets = "x" if data_spec.reconstruct else "t"
        features, examples = network.layers[0], data_spec.examples
        # The data set on host and device: runners place only what ops read (`used_tensors`).
        self.on_host("images", (examples, features), "float32")
        self.add(Role.DATA, data_spec.inputs, images=(examples, features))
        self.add(Role.BATCH, "float32", x=(batch, features))
        if data_spec.normalised:
            self.add(Role.DATA, "float32", mean=(features,), inverse_std=(features,))
        if network.loss_spec.labelled:
            self.on_host("labels", (examples,), "int32")
            self.add(Role.DATA, data_spec.labels, labels=(examples,))
            self.add(Role.BATCH, "int32", y=(batch,))
        elif not data_spec.reconstruct:
            self.on_host("targets", (examples, data_spec.targets), "float32")
            self.add(Role.DATA, "float32", targets=(examples, data_spec.targets))
            self.add(Role.BATCH, "float32", t=(batch, data_spec.targets))
        if shuffled:
            self.add(Role.EPOCH, "int32", order=(examples,))
        self.add(Role.METRIC, "float32", loss=(steps,))
        self.add(Role.METRIC, "int32", correct=(steps,))
        self.add(Role.CURSOR, "int32", cursor=(1,))
        self.tensors.update({p.name: tensor_of(p) for p in network.parameters()})

    # -- for losses -------------------------------------------------------------------------------
    def add(self, role: Role, dtype: str, **shapes: tuple[int, ...]) -> None:
        self.tensors.update({n: Tensor(n, shape, dtype, role) for n, shape in shapes.items()})

    def on_host(self, part: str, shape: tuple[int, ...], dtype: str) -> None:
        """A part of the data set that is copied batch by batch."""
        name = f"host_{part}"
        self.tensors[name] = Tensor(name, shape, dtype, Role.HOST, symbol=part)

    def activation(self, name: str, shape: tuple[int, ...]) -> None:
        self.add(Role.ACTIVATION, "float32", **{name: shape})

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def op(self, kind: str, name: str, operands: dict[str, str], **attributes: object) -> None:
        impl = "memcpy" if kind == "upload" else "naive"
        self._ops.append(Op(kind, name, operands, attributes, impl))

    def measure(self, kind: str, operands: dict[str, str]) -> None:
        """Add an op that writes metrics of the step. Above a certain size several blocks do so, and
        count themselves in a workspace."""
        operands = {**operands, "cursor": "cursor"}
        rows, cols = self.shape(self.logits)
        if rows * cols > ONE_BLOCK_ELEMENTS:
            scratch = f"{kind}.workspace"
            self.add(Role.SCRATCH, "int32", **{scratch: (METRIC_WORKSPACE,)})
            operands["workspace"] = scratch
        self.op(kind, kind, operands, offset=0)

    # -- the step ---------------------------------------------------------------------------------
    def _gemm(self, name: str, layout: str, a: str, b: str, c: str) -> None:
        rows, inner = self.shape(a) if layout[0] == "n" else self.shape(a)[::-1]
        self.op("matmul", name, {"a": a, "b": b, "c": c}, layout=layout, m=rows,
                n=self.shape(c)[1], k=inner, alpha=1.0, beta=0.0, bias=False, activation="",
                slope="", compute="float32")

    def _upload(self) -> None:
        operands = {"images": "host_images", "cursor": "cursor", "x": "x"}
        if "y" in self.tensors:
            operands |= {"labels": "host_labels", "y": "y"}
        if "t" in self.tensors:
            operands |= {"targets": "host_targets", "t": "t"}
        first = {"first": self.share.first} if self.world_size > 1 else {}
        self.op("upload", "upload", operands, offset=0, stride=self._stride, **first)

    def forward(self) -> None:
        self._upload()
        network, source = self.network, "x"
        for layer in range(1, network.depth + 1):
            width = (self.batch, network.layers[layer])
            z = f"z{layer}"
            self.activation(z, width)
            self._gemm(f"fc{layer}.forward", "nt", source, f"fc{layer}.weight", z)
            if network.bias:
                self.op("bias_add", f"fc{layer}.bias_add", {"z": z, "bias": f"fc{layer}.bias"})
            if layer < network.depth:
                source = f"a{layer}"
                self.activation(source, width)
                self.op("activate", f"{network.activation}{layer}", {"z": z, "a": source},
                        activation=network.activation)

    def backward(self) -> None:
        network = self.network
        depth, activation = network.depth, network.activation
        saved = "a" if network.activation_spec.saves == "output" else "z"
        for layer in range(1, depth + 1):
            width = (self.batch, network.layers[layer])
            gradients = {f"dz{layer}": width, f"dw{layer}": network.weight(layer).shape,
                         f"da{layer}": width}  # of the last layer unused, and dropped
            if network.bias:
                gradients[f"db{layer}"] = network.bias_of(layer).shape
            self.add(Role.GRADIENT, "float32", **gradients)
        builders(network.loss_spec)[1](self)
        for layer in range(depth, 0, -1):
            dz, below = f"dz{layer}", "x" if layer == 1 else f"a{layer - 1}"
            self._gemm(f"fc{layer}.weight_grad", "tn", dz, below, f"dw{layer}")
            if network.bias:
                self.op("bias_grad", f"fc{layer}.bias_grad", {"dz": dz, "db": f"db{layer}"})
            if layer > 1:
                da = f"da{layer - 1}"
                self._gemm(f"fc{layer}.input_grad", "nn", dz, f"fc{layer}.weight", da)
                self.op("activate_backward", f"{activation}{layer - 1}.backward",
                        {"da": da, "saved": f"{saved}{layer - 1}", "dz": f"dz{layer - 1}"},
                        activation=activation)

    def update(self, recipe: Recipe) -> None:
        """One op per parameter, with the state of its optimizer."""
        optimizer, scheduled = recipe.optimizer, recipe.schedule != "constant"
        if scheduled:
            self.add(Role.EPOCH, "float32", rates=self.shape("loss"))
        if scheduled or optimizer.counts_steps or recipe.shuffle:
            self.tensors["clock"] = CLOCK
        network = self.network
        pairs = [pair for layer in range(1, network.depth + 1) for pair in (
            (network.weight(layer), f"dw{layer}"),
            *(((network.bias_of(layer), f"db{layer}"),) if network.bias else ()))]
        for stream, (parameter, gradient) in enumerate(pairs):
            operands = {"w": parameter.name, "dw": gradient}
            for name in optimizer.state:
                state = Tensor(f"{parameter.name}.{name}", parameter.shape, "float32", Role.STATE,
                               layer=parameter.layer, symbol=f"{parameter.symbol}_{name}")
                self.tensors[state.name] = state
                operands[name] = state.name
            if scheduled:
                operands |= {"rates": "rates", "cursor": "cursor"}
            if optimizer.counts_steps:
                operands |= {"clock": "clock", "cursor": "cursor"}
            self.op(optimizer.kind, f"{parameter.name}.{optimizer.name}", operands,
                    **optimizer.attributes(), copy_scale=1.0, stochastic=False, seed=recipe.seed,
                    stream=stream, offset=0)

    def plan(self, name: str) -> Plan:
        return Plan(name, self.tensors, tuple(self._ops), self.batch,
                    scale=self.data_spec.scale, world_size=self.world_size, rank=self.rank,
                    weight=self.share.weight).without_unused().check()


def tensor_of(parameter: Parameter) -> Tensor:
    """The tensor of a parameter, in float32."""
    return Tensor(parameter.name, parameter.shape, "float32", Role.PARAMETER,
                  bound=parameter.bound, layer=parameter.layer, symbol=parameter.symbol)


def used_tensors(plans: Iterable[Plan]) -> dict[str, Tensor]:
    """The tensors that ops of the plans use, with the sources of views."""
    return {n: p[n] for p in plans for op in p.ops for name in op.tensors
            for n in dict.fromkeys((p.storage_of(name), name))}
