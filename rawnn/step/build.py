"""The baseline plan of a network: one op at a time, batches copied from the host, as the report
this project starts from describes it. Toggles rewrite what is built here."""

from __future__ import annotations

from collections.abc import Iterable

from rawnn.network import Network
from rawnn.step.op import Op
from rawnn.step.plan import Plan
from rawnn.step.tensor import Role, Tensor

PIXEL_SCALE = 1.0 / 255.0
"""uint8 pixels are scaled to [0, 1]."""


def training_step(network: Network, batch: int, examples: int, lr: float) -> Plan:
    """The plan of one SGD step on `batch` of `examples` training examples.

    The last partial batch of an epoch is dropped: metrics have examples // batch elements.
    """
    builder = _Builder(network, batch, examples)
    builder.forward()
    builder.metrics()
    builder.backward(lr)
    return builder.plan("train")


def evaluation_step(network: Network, batch: int, examples: int) -> Plan:
    """The plan that measures loss and accuracy on `batch` of `examples` examples, updating none."""
    builder = _Builder(network, batch, examples)
    builder.forward()
    builder.metrics()
    return builder.plan("evaluate")


class _Builder:
    def __init__(self, network: Network, batch: int, examples: int) -> None:
        self.network, self.batch = network, batch
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        features = network.layers[0]
        steps = max(examples // batch, 1)
        # Both homes of the data set: runners place only what some op reads (`used_tensors`).
        self._add(Role.HOST, "float32", host_images=(examples, features))
        self._add(Role.HOST, "int32", host_labels=(examples,))
        self._add(Role.DATA, "uint8", images=(examples, features), labels=(examples,))
        self._add(Role.BATCH, "float32", x=(batch, features))
        self._add(Role.BATCH, "int32", y=(batch,))
        self._add(Role.METRIC, "float32", loss=(steps,))
        self._add(Role.METRIC, "int32", correct=(steps,))
        self._add(Role.CURSOR, "int32", cursor=(1,))
        self.tensors.update({t.name: t for t in network.parameters()})

    def _add(self, role: Role, dtype: str, **shapes: tuple[int, ...]) -> None:
        self.tensors.update({n: Tensor(n, shape, dtype, role) for n, shape in shapes.items()})

    def _op(self, kind: str, name: str, operands: dict[str, str], **attributes: object) -> None:
        impl = "memcpy" if kind == "upload" else "naive"
        self.ops.append(Op(kind, name, operands, attributes, impl))

    def _product(self, name: str, layout: str, a: str, b: str, c: str) -> None:
        rows, inner = self.tensors[a].shape if layout[0] == "n" else self.tensors[a].shape[::-1]
        self._op("matmul", name, {"a": a, "b": b, "c": c}, layout=layout, m=rows,
                 n=self.tensors[c].shape[1], k=inner, alpha=1.0, beta=0.0, bias=False, relu=False)

    def forward(self) -> None:
        self._op("upload", "upload",
                 {"images": "host_images", "labels": "host_labels", "cursor": "cursor",
                  "x": "x", "y": "y"}, offset=0)
        source = "x"
        for layer in range(1, self.network.depth + 1):
            last = layer == self.network.depth
            width = (self.batch, self.network.layers[layer])
            z = f"z{layer}"
            self._add(Role.ACTIVATION, "float32", **{z: width})
            self._product(f"fc{layer}.forward", "nt", source, f"fc{layer}.weight", z)
            self._op("bias_add", f"fc{layer}.bias_add", {"z": z, "bias": f"fc{layer}.bias"})
            if not last:
                self._add(Role.ACTIVATION, "float32", **{f"a{layer}": width})
                self._op("relu", f"relu{layer}", {"z": z, "a": f"a{layer}"})
                source = f"a{layer}"
            else:
                self._add(Role.ACTIVATION, "float32", p=width)
                self._op("softmax", "softmax", {"z": z, "p": "p"})

    def metrics(self) -> None:
        common = {"p": "p", "y": "y", "cursor": "cursor"}
        self._op("cross_entropy", "cross_entropy", {**common, "loss": "loss"}, offset=0)
        self._op("accuracy", "accuracy", {**common, "correct": "correct"}, offset=0)

    def backward(self, lr: float) -> None:
        depth = self.network.depth
        for layer in range(1, depth + 1):
            width = (self.batch, self.network.layers[layer])
            self._add(Role.GRADIENT, "float32", **{f"dz{layer}": width})
            if layer < depth:
                self._add(Role.GRADIENT, "float32", **{f"da{layer}": width})
            self._add(Role.GRADIENT, "float32",
                      **{f"dw{layer}": self.network.weight(layer).shape,
                         f"db{layer}": self.network.bias(layer).shape})
        self._op("softmax_backward", "softmax_backward", {"p": "p", "y": "y", "dz": f"dz{depth}"})
        for layer in range(depth, 0, -1):
            dz, below = f"dz{layer}", "x" if layer == 1 else f"a{layer - 1}"
            self._product(f"fc{layer}.weight_grad", "tn", dz, below, f"dw{layer}")
            self._op("bias_grad", f"fc{layer}.bias_grad", {"dz": dz, "db": f"db{layer}"})
            if layer > 1:
                da = f"da{layer - 1}"
                self._product(f"fc{layer}.input_grad", "nn", dz, f"fc{layer}.weight", da)
                self._op("relu_backward", f"relu{layer - 1}.backward",
                         {"da": da, "a": f"a{layer - 1}", "dz": f"dz{layer - 1}"})
        for layer in range(1, depth + 1):
            for part, gradient in (("weight", f"dw{layer}"), ("bias", f"db{layer}")):
                self._op("sgd", f"fc{layer}.{part}.sgd",
                         {"w": f"fc{layer}.{part}", "dw": gradient}, lr=lr)

    def plan(self, name: str) -> Plan:
        return Plan(name, self.tensors, tuple(self.ops), self.batch).without_unused().check()


def used_tensors(plans: Iterable[Plan]) -> dict[str, Tensor]:
    """The tensors that the ops of any of the plans touch."""
    return {n: p[n] for p in plans for op in p.ops for n in op.tensors}
