"""Products by our own kernels on a GPU, against NumPy: what the table of kernels launches for
ragged and large shapes, for every family and type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rawnn
from rawnn.common.dtypes import numpy_dtype
from rawnn.common.errors import DeviceError
from rawnn.cuda.device import padded
from rawnn.engine.launch_choices import variants
from rawnn.engine.runners.lowering import Lowering
from rawnn.lab.arrays import default_device
from rawnn.model.activations import activation
from rawnn.plan.op import Op
from rawnn.plan.plan import Plan
from rawnn.plan.tensor import Role, Tensor
from rawnn.ptx.kernels import kernel_for
from tests import requires

pytestmark = pytest.mark.gpu

SHAPES = ((64, 784, 784), (1, 1, 1), (33, 65, 17), (128, 10, 100), (130, 129, 131), (520, 392, 300))
STREAMED = (2056, 4104, 24)
"""An update whose weights stream from memory, by `mma` in small tiles."""
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3": 2.0**-4,
        "float8_e5m2": 2.0**-3}
"""Half a unit of the last place."""
NEEDS = {"tiled": (7, 5), "mma": (8, 0), "wgmma": (9, 0), "wgmma_tf32": (9, 0),
         "wgmma_scaled": (9, 0)}


@pytest.fixture(scope="module")
def lowering() -> Iterator[Lowering]:
    try:
        device = default_device()
    except DeviceError as error:
        pytest.skip(str(error))
    with closing(Lowering(device)) as made:
        yield made


def needs(lowering: Lowering, impl: str, *types: str) -> None:
    least = (8, 9) if impl != "tiled" and any(t.startswith("float8") for t in types) \
        else NEEDS[impl]
    have = lowering.device.capability
    if have < least or (impl.startswith("wgmma") and have != (9, 0)):
        pytest.skip(f"{impl} of {', '.join(types)} does not run on compute capability {have}")


def drawn(rng: np.random.Generator, tensor: Tensor) -> NDArray[Any]:
    values = rng.uniform(-1, 1, tensor.shape).astype(np.float32)
    return values.astype(numpy_dtype(tensor.dtype))


def run(lowering: Lowering, op: Op, tensors: dict[str, Tensor],
        values: dict[str, NDArray[Any]], read: tuple[str, ...]) -> list[NDArray[Any]]:
    """Launch the op once on `values`, with NaN in every padding; gives back `read` as float64."""
    plan = Plan("test", tensors, (op,), 1, target=lowering.device.target())
    lowering.compile([plan])
    arrays = {}
    for name, tensor in tensors.items():
        whole = padded(values[name], tensor.padded_shape, tensor.dtype).copy()
        if tensor.floating:
            whole[..., tensor.shape[-1]:] = np.nan
        arrays[name] = rawnn.array(whole)
    addresses = {name: array.address for name, array in arrays.items()}
    for command in lowering.commands(op, plan, addresses, {}):
        command.run(0)
    lowering.device.stream.synchronize(op.name)
    found = []
    for name in read:
        whole = arrays[name].numpy()
        inside = whole[..., : tensors[name].shape[-1]]
        outside = whole[..., tensors[name].shape[-1]:].astype(np.float64)
        assert np.isnan(outside).all(), f"{name}: its padding was written"
        found.append(inside.astype(np.float64))
    return found


@pytest.mark.parametrize(("impl", "types", "compute"), [
    ("tiled", ("float32", "float32", "float32"), "float32"),
    ("tiled", ("float8_e4m3", "bfloat16", "float16"), "float32"),
    ("mma", ("float32", "float32", "float32"), "tf32"),
    ("mma", ("float32", "float32", "float32"), "float32"),
    ("wgmma_tf32", ("float32", "float32", "float32"), "tf32"),
    ("wgmma_tf32", ("float32", "float32", "float32"), "float32"),
    ("wgmma_scaled", ("float32", "float32", "float32"), "float32"),
    ("mma", ("bfloat16", "bfloat16", "bfloat16"), "float32"),
    ("mma", ("float16", "float16", "float32"), "float16"),
    ("mma", ("float8_e5m2", "float8_e4m3", "bfloat16"), "float32"),
    ("wgmma", ("bfloat16", "bfloat16", "bfloat16"), "float32"),
    ("wgmma", ("float16", "float16", "float32"), "float32"),
    ("wgmma", ("float8_e4m3", "float8_e4m3", "float32"), "float32"),
])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_products(lowering: Lowering, impl: str, types: tuple[str, str, str], compute: str,
                  layout: str) -> None:
    needs(lowering, impl, *types)
    if impl == "wgmma" and types[0].startswith("float8") and layout != "nt":
        pytest.skip("wgmma takes 8-bit operands only along the inner dimension")
    rng = np.random.default_rng(5)
    for m, n, k in SHAPES:
        tensors = {
            "a": Tensor("a", (k, m) if layout == "tn" else (m, k), types[0], Role.BATCH),
            "b": Tensor("b", (n, k) if layout == "nt" else (k, n), types[1], Role.BATCH),
            "c": Tensor("c", (m, n), types[2], Role.BATCH, packed=m == 33),
            "bias": Tensor("bias", (n,), "float32", Role.BATCH),
            "saved": Tensor("saved", (m, n), "bfloat16", Role.BATCH),
        }
        forward = layout == "nt"
        attributes = {"layout": layout, "m": m, "n": n, "k": k, "alpha": 0.5, "beta": 0.0,
                      "bias": forward, "activation": "relu" if forward else "",
                      "slope": "tanh" if layout == "nn" else "", "compute": compute}
        operands = {name: name for name in ("a", "b", "c")}
        operands |= {"bias": "bias"} if forward else {}
        operands |= {"saved": "saved"} if layout == "nn" else {}
        tensors = {name: t for name, t in tensors.items() if name in operands}
        values = {name: drawn(rng, t) for name, t in tensors.items()}
        (c,) = run(lowering, Op("matmul", "product", operands, attributes, impl), tensors, values,
                   ("c",))
        left, right = (values[r].astype(np.float64) for r in ("a", "b"))
        left = left.T if layout == "tn" else left
        right = right.T if layout == "nt" else right
        expected = 0.5 * (left @ right)
        size = 0.5 * (np.abs(left) @ np.abs(right)) + 1
        if forward:
            expected = np.maximum(expected + values["bias"], 0)
        if layout == "nn":
            expected *= activation("tanh").slope(values["saved"].astype(np.float64))
        # tf32 rounds both factors to 11 bits; wgmma keeps about 14 bits of sums of 8-bit products.
        rounding = {"tf32": 2.0**-10, "float16": 2.0**-6}.get(
            compute, 2.0**-21 if types[0] == "float32" else 2.0**-18)
        if impl == "wgmma" and types[0].startswith("float8"):
            rounding = 2.0**-12
        bound = rounding * size + UNIT[types[2]] * np.abs(expected) + 1e-6
        assert (np.abs(c - expected) <= bound).all(), (m, n, k, np.abs(c - expected).max())


@pytest.mark.parametrize(("impl", "operand", "weight", "compute"), [
    ("tiled", "float32", "float32", "float32"), ("mma", "float32", "float32", "tf32"),
    ("mma", "float32", "float32", "float32"), ("wgmma_tf32", "float32", "float32", "tf32"),
    ("wgmma_tf32", "float32", "float32", "float32"),
    ("wgmma_scaled", "float32", "float32", "float32"),
    ("mma", "bfloat16", "float32", "float32"), ("mma", "bfloat16", "bfloat16", "float32"),
    ("wgmma", "bfloat16", "float32", "float32"),
])
def test_updates(lowering: Lowering, impl: str, operand: str, weight: str, compute: str) -> None:
    needs(lowering, impl, operand)
    rng, lr, decay = np.random.default_rng(6), 0.125, 0.25
    for rows, cols, batch in (*SHAPES, *([STREAMED] if impl == "mma" else [])):
        tensors = {
            "dz": Tensor("dz", (batch, rows), operand, Role.BATCH),
            "x": Tensor("x", (batch, cols), operand, Role.BATCH),
            "w": Tensor("w", (rows, cols), weight, Role.PARAMETER),
            "copy": Tensor("copy", (rows, cols), "bfloat16", Role.COPY),
            "bias": Tensor("bias", (rows,), "float32", Role.PARAMETER),
        }
        values = {name: drawn(rng, t) for name, t in tensors.items()}
        attributes = {"lr": lr, "decay": decay, "copy_scale": 2.0, "offset": 0, "compute": compute,
                      "stochastic": False, "seed": 0, "stream": 0}
        w, copy, bias = run(lowering, Op("weight_update", "update", {n: n for n in tensors},
                                         attributes, impl), tensors, values, ("w", "copy", "bias"))
        exact = {name: v.astype(np.float64) for name, v in values.items()}
        expected = exact["w"] * (1 - lr * decay) - lr * (exact["dz"].T @ exact["x"])
        size = np.abs(exact["dz"]).T @ np.abs(exact["x"]) + 1
        rounding = lr * (2.0**-10 if compute == "tf32" else 2.0**-18) * size
        assert (np.abs(w - expected) <= rounding + UNIT[weight] * np.abs(expected) + 1e-6).all()
        assert (np.abs(copy - 2 * expected)
                <= 2 * rounding + 2.0**-8 * np.abs(2 * expected) + 1e-6).all()
        change = exact["dz"].sum(axis=0)
        error = np.abs(bias - (exact["bias"] * (1 - lr * decay) - lr * change))
        assert (error <= rounding.max() + 1e-6).all()


@pytest.mark.parametrize("kind", ["weight_momentum", "weight_adam"])
@pytest.mark.parametrize(("impl", "operand"), [("mma", "float32"), ("mma", "bfloat16"),
                                               ("wgmma", "bfloat16"), ("wgmma_tf32", "float32"),
                                               ("wgmma_scaled", "float32")])
def test_updates_of_other_optimizers(lowering: Lowering, impl: str, operand: str,
                                     kind: str) -> None:
    needs(lowering, impl, operand)
    rng, state = np.random.default_rng(8), ("v",) if kind == "weight_momentum" else ("m", "v")
    for rows, cols, batch in (*SHAPES, *([STREAMED] if impl == "mma" else [])):
        matrices = {"w": "float32", "copy": "bfloat16", **dict.fromkeys(state, "float32")}
        tensors = {n: Tensor(n, (rows, cols), t, Role.STATE) for n, t in matrices.items()}
        tensors |= {n: Tensor(n, (rows,), "float32", Role.STATE)
                    for n in ("bias", *(f"bias_{s}" for s in state))}
        tensors |= {"dz": Tensor("dz", (batch, rows), operand, Role.BATCH),
                    "x": Tensor("x", (batch, cols), operand, Role.BATCH),
                    "clock": Tensor("clock", (2,), "int32", Role.STATE),
                    "cursor": Tensor("cursor", (1,), "int32", Role.CURSOR)}
        values = {name: drawn(rng, t) for name, t in tensors.items()}
        values |= {n: np.abs(v) for n, v in values.items() if n in ("v", "bias_v")}
        values |= {"clock": np.array([1, 20], np.int32), "cursor": np.array([3], np.int32)}
        attributes = {"lr": 0.125, "decay": 0.25, "copy_scale": 2.0, "offset": 0,
                      "compute": "float32", "stochastic": False, "seed": 0, "stream": 0}
        attributes |= {"momentum": 0.9, "nesterov": True} if kind == "weight_momentum" else {
            "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decoupled": True}
        op = Op(kind, "update", {n: n for n in tensors}, attributes, impl)
        read = ("w", "copy", *state, "bias", *(f"bias_{s}" for s in state))
        found = run(lowering, op, tensors, values, read)
        exact = {n: v.astype(np.float64) if v.dtype.kind != "i" else v.copy()
                 for n, v in values.items()}
        op.spec.reference(SimpleNamespace(**exact), attributes)
        for name, value in zip(read, found, strict=True):
            size = np.abs(exact[name]) + batch  # v of Adam is a sum squared
            bound = UNIT[tensors[name].dtype] * np.abs(exact[name]) + 2.0**-18 * size
            assert (np.abs(value - exact[name]) <= bound).all(), (name, rows, cols, batch)


@pytest.mark.parametrize("own", ["mma", "wgmma_tf32", "wgmma_scaled"])
@pytest.mark.parametrize("positive", [False, True])
def test_float32_on_tensor_cores_is_float32(lowering: Lowering, own: str, positive: bool) -> None:
    """At most twice as far from float64 as cuBLAS's float32; of K below 16 terms it is more
    (tests/ptx/test_tf32x3.py)."""
    needs(lowering, own, "float32")
    requires.module("nvmath")
    rng, shape = np.random.default_rng(9), {"m": 128, "n": 192}
    for k in (16, 64, 784, 4096):
        tensors = {"a": Tensor("a", (128, k), "float32", Role.BATCH),
                   "b": Tensor("b", (192, k), "float32", Role.BATCH),
                   "c": Tensor("c", (128, 192), "float32", Role.BATCH),
                   "workspace": Tensor("workspace", (4 << 20,), "uint8", Role.BATCH)}
        worst = 0.0
        for _ in range(10):
            values = {name: drawn(rng, t) for name, t in tensors.items()}
            if positive:
                values = {name: np.abs(v) for name, v in values.items()}
            exact = values["a"].astype(np.float64) @ values["b"].astype(np.float64).T
            errors = {}
            for impl in (own, "cublas"):
                used = {n: t for n, t in tensors.items() if impl == "cublas" or n != "workspace"}
                op = Op("matmul", "product", {n: n for n in used},
                        {"layout": "nt", **shape, "k": k, "alpha": 1.0, "beta": 0.0, "bias": False,
                         "activation": "", "slope": "", "compute": "float32"}, impl)
                (c,) = run(lowering, op, used, values, ("c",))
                errors[impl] = np.linalg.norm(c - exact)
            worst = max(worst, float(errors[own] / errors["cublas"]))
        assert worst <= 2, k


@pytest.mark.parametrize(("impl", "dtype", "compute"), [
    ("mma", "bfloat16", "float32"), ("mma", "float32", "float32"), ("mma", "float32", "tf32"),
    ("wgmma", "bfloat16", "float32"), ("wgmma_tf32", "float32", "float32"),
    ("wgmma_tf32", "float32", "tf32"), ("wgmma_scaled", "float32", "float32"),
])
def test_results_repeat_bit_for_bit(lowering: Lowering, impl: str, dtype: str,
                                    compute: str) -> None:
    """In every tile, those whose blocks share the inner dimension included."""
    needs(lowering, impl, dtype)
    rng = np.random.default_rng(7)
    for layout, m, n, k in (("nt", 64, 784, 784), ("tn", 130, 100, 1100)):
        shapes = {"a": (m, k) if layout == "nt" else (k, m),
                  "b": (n, k) if layout == "nt" else (k, n), "c": (m, n)}
        tensors = {name: Tensor(name, s, "float32" if name == "c" else dtype, Role.BATCH)
                   for name, s in shapes.items()}
        values = {name: drawn(rng, t) for name, t in tensors.items()}
        op = Op("matmul", "product", {name: name for name in tensors},
                {"layout": layout, "m": m, "n": n, "k": k, "alpha": 1.0, "beta": 0.0,
                 "bias": False, "activation": "", "slope": "", "compute": compute}, impl)
        plan = Plan("test", tensors, (op,), 1, target=lowering.device.target())
        for changes in [{}, *variants(op, plan)]:
            wanted = replace(op, attributes={**op.attributes, **changes})
            impl_of = kernel_for(wanted)
            if impl_of.cluster(impl_of.scalars(wanted, plan)) > plan.target.largest_cluster:
                continue
            first, *others = (run(lowering, wanted, tensors, values, ("c",))[0]
                              for _ in range(4))
            assert all(np.array_equal(first, other) for other in others), (layout, changes)
