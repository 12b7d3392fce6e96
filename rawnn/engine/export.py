"""A trained network as an ONNX model, with the normalisation of its inputs, for other runtimes.

The graph takes `inputs` [N, features] as the training data were (bytes stay bytes, as float32,
float64 or uint8) and gives what `Model.predict` gives: `logits` and, after cross-entropy,
`probabilities` and `classes`; after binary cross-entropy the same, element by element; after mean
squared error `values`, float32 in the units of the targets; of an autoencoder `values` in the units
of its inputs. Names of classes stand in the model's metadata under `label_names`, those of target
columns under `target_names`, as JSON. A normalisation in float64 is computed in float64.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rawnn.common.errors import ConfigError, MissingLibrary, check_type
from rawnn.common.files import write_atomically
from rawnn.data.columns import column_text
from rawnn.data.normalise import SHIFT
from rawnn.engine.model import Model
from rawnn.model.losses import Link
from rawnn.version import __version__

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPSET, IR_VERSION = 17, 8
"""Of 2022: what onnxruntime 1.13 and newer read. GELU became an operator later (20), and is written
out."""

InputType = Literal["float32", "float64", "uint8"]
INPUT_TYPES: tuple[InputType, ...] = ("float64", "float32", "uint8")


class _Graph:
    """Nodes and constants as they are added; each method returns the name of its result."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self._helper, self._numpy = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(self._numpy.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, name: str, value: float, dtype: Any = np.float32) -> str:
        return self.constant(name, np.array(value, dtype))

    def add(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:
        self.nodes.append(self._helper.make_node(kind, list(inputs), [name], name=name,
                                                 **attributes))
        return name


def onnx_model(model: Model, input_type: InputType = "float32") -> Any:
    """The `onnx.ModelProto` of a model. `input_type` is what the graph takes; values are the same.

    A RuntimeWarning names an input whose values float32 cannot tell apart, as the normalisation in
    float64 would. Raises MissingLibrary without the package `onnx`, ConfigError for another input
    type.
    """
    check_type("model", model, Model, "a rawnn.Model, such as the `model` of a result")
    if input_type not in INPUT_TYPES:
        raise ConfigError(f"input type '{input_type}': the graph can take "
                          f"{', '.join(INPUT_TYPES[:-1])} or {INPUT_TYPES[-1]}")
    try:
        import onnx
        from onnx import TensorProto, checker, helper, numpy_helper
    except ModuleNotFoundError:
        raise MissingLibrary("exporting needs the package onnx: pip install 'rawnn[export]'"
                             ) from None
    if input_type == "float32" and (lost := lost_in_float32(model)):
        warnings.warn(f"{lost}: export with input_type='float64'", RuntimeWarning, stacklevel=2)
    graph = _Graph(helper, numpy_helper)
    link = model.network.loss_spec.link
    network, features, outputs = model.network, model.network.layers[0], model.network.outputs
    a = _normalised(graph, model, input_type, TensorProto)
    reproduces = model.autoencoder and link == "identity"
    of_last = "logits" if link != "identity" or reproduces else \
        "values" if model.target_normalisation is None else "normalised_values"
    for layer in range(1, network.depth + 1):
        last = layer == network.depth
        operands = [f"fc{layer}.weight"] + ([f"fc{layer}.bias"] if network.bias else [])
        for name in operands:
            graph.constant(name, model.parameters[name])
        z = of_last if last else f"fc{layer}"
        a = graph.add("Gemm", a, *operands, name=z, transB=1)
        if not last:
            if network.activation_spec.onnx is None:
                raise ConfigError(f"the activation '{network.activation}' says no ONNX operators: "
                                  f"give it `onnx` (rawnn/model/activations)")
            a = network.activation_spec.onnx(graph, a, f"fc{layer}")
    if (targets := model.target_normalisation) is not None:
        std = graph.constant("target_std", targets.std.astype(np.float32))
        mean = graph.constant("target_mean", targets.mean.astype(np.float32))
        a = graph.add("Add", graph.add("Mul", a, std, name="spread"), mean, name="values")
    kinds = {} if reproduces else {a: TensorProto.FLOAT, **_answers(graph, link, a, TensorProto)}
    if model.autoencoder:
        kinds |= _in_units(graph, model, a if reproduces else "probabilities", TensorProto)
    one = network.loss_spec.labelled  # one class an example, not one answer an output
    onnx_graph = helper.make_graph(
        graph.nodes, "rawnn",
        [helper.make_tensor_value_info(
            "inputs", helper.np_dtype_to_tensor_dtype(np.dtype(input_type)), ["N", features])],
        [helper.make_tensor_value_info(
            name, kind, ["N"] if name == "classes" and one else ["N", outputs])
         for name, kind in kinds.items()],
        graph.constants)
    found = helper.make_model(
        onnx_graph, producer_name="rawnn", producer_version=__version__, ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)], doc_string=str(network))
    helper.set_model_props(found, {
        "network": str(network), "normalisation": str(model.normalisation),
        **({"label_names": json.dumps(model.names)} if one else {}),
        **({"target_names": json.dumps(model.target_names)} if model.target_names else {})})
    if found.ByteSize() < onnx.checker.MAXIMUM_PROTOBUF:
        checker.check_model(found, full_check=True)
    return found


def lost_in_float32(model: Model) -> str:
    """A sentence on the first input whose values lie so far from 0 that float32 would round them by
    more than a small part of their spread; "" for none."""
    normalisation = model.normalisation
    if normalisation.mean is None or normalisation.std is None or not normalisation.is_double:
        return ""
    with np.errstate(over="ignore"):
        apart = np.spacing(np.abs(normalisation.mean).astype(np.float32))
    bad = np.flatnonzero(~(apart <= SHIFT * normalisation.std))
    return "" if not bad.size else \
        f"the model's inputs of float32 cannot tell apart the values of " \
        f"{column_text(int(bad[0]), model.feature_names)}, which are around " \
        f"{normalisation.mean[bad[0]]:g} with a standard deviation of {normalisation.std[bad[0]]:g}"


def export_onnx(model: Model, path: str | os.PathLike[str],
                input_type: InputType = "float32") -> None:
    """Write `onnx_model` to a file. Raises as it does; ConfigError for a network of 2 GiB or more,
    which one file of this format cannot hold; RawnnError where the file cannot be written."""
    check_type("model", model, Model, "a rawnn.Model, such as the `model` of a result")
    size = sum(array.nbytes for array in model.parameters.values())
    if size >= 2**31 - 2**20:
        raise ConfigError(f"the parameters take {size / 2**30:.1f} GiB, and a file of ONNX holds "
                          f"less than 2: {model.network}")
    write_atomically(path, onnx_model(model, input_type).SerializeToString())


def _normalised(graph: _Graph, model: Model, input_type: str, types: Any) -> str:
    """As `Normalisation.apply`, in the same order of operations."""
    normalisation, x = model.normalisation, "inputs"
    work, dtype = ("float64", types.DOUBLE) if normalisation.is_double else ("float32", types.FLOAT)
    if input_type != work:
        x = graph.add("Cast", x, name="as_float", to=dtype)
    if normalisation.scale != 1.0:
        x = graph.add("Mul", x, graph.number("scale", normalisation.scale, work), name="scaled")
    if normalisation.mean is not None and normalisation.inverse_std is not None:
        x = graph.add("Sub", x, graph.constant("mean", normalisation.mean), name="centred")
        x = graph.add("Mul", x, graph.constant("inverse_std", normalisation.inverse_std),
                      name="normalised")
    return graph.add("Cast", x, name="rounded", to=types.FLOAT) if work == "float64" else x


def _in_units(graph: _Graph, model: Model, x: str, types: Any) -> dict[str, int]:
    """As `Normalisation.invert`: the `values` of an autoencoder, in the units of its inputs."""
    normalisation = model.normalisation
    x = graph.add("Cast", x, name="values.double", to=types.DOUBLE)
    if normalisation.mean is not None and normalisation.std is not None:
        x = graph.add("Mul", x, graph.constant("values.std", normalisation.std.astype(np.float64)),
                      name="values.spread")
        x = graph.add("Add", x, graph.constant("values.mean",
                                               normalisation.mean.astype(np.float64)),
                      name="values.shifted")
    x = graph.add("Div", x, graph.number("values.scale", normalisation.scale, "float64"),
                  name="values.divided")
    kind: int = types.DOUBLE if normalisation.is_double else types.FLOAT
    graph.add("Cast", x, name="values", to=kind)
    return {"values": kind}


def _answers(graph: _Graph, link: Link, z: str, types: Any) -> dict[str, int]:
    """Add what follows from the logits; the names of those outputs and their types."""
    if link == "softmax":
        graph.add("Softmax", z, name="probabilities", axis=1)
        graph.add("ArgMax", z, name="classes", axis=1, keepdims=0)
        return {"probabilities": types.FLOAT, "classes": types.INT64}
    if link == "sigmoid":
        graph.add("Sigmoid", z, name="probabilities")
        over = graph.add("Greater", z, graph.number("zero", 0.0), name="over")
        graph.add("Cast", over, name="classes", to=types.UINT8)
        return {"probabilities": types.FLOAT, "classes": types.UINT8}
    return {}
