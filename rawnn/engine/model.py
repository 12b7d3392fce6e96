"""A trained network without its training state: predict, score, save, load.

Forward passes run with NumPy in float32, a batch at a time to bound memory, without opening a
device. With `device` they run on the engine instead; "auto" takes a GPU if there is one.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import CheckpointError, ConfigError, DataError, check_type
from rawnn.common.files import check_path
from rawnn.data.columns import fix_of, read_answers, read_inputs
from rawnn.data.dlpack import DeviceArray
from rawnn.data.input_scale import InputScale
from rawnn.data.labels import (
    are_whole,
    check_fractions,
    check_labels,
    check_words,
    given_labels,
    label_indices,
)
from rawnn.data.normalise import PIXEL_SCALE, Normalisation, TargetNormalisation
from rawnn.data.precision import check_finite, check_rounded
from rawnn.engine import checkpoint
from rawnn.engine.config import check_device
from rawnn.engine.machine import open_device
from rawnn.engine.state_dict import from_torch, layers_of, to_torch
from rawnn.model.layers import Network, Parameters
from rawnn.model.losses import Link

BATCH = 4096
"""Rows per batch: 13 MB of inputs for MNIST."""

Output = Literal["classes", "labels", "probabilities", "logits", "values"]
OUTPUTS: dict[Link, tuple[str, ...]] = {
    "softmax": ("classes", "labels", "probabilities", "logits"),
    "sigmoid": ("classes", "probabilities", "logits"),
    "identity": ("values",),
}
"""The outputs of `predict`, by the link of the network's loss; the first is the default. An
autoencoder also gives "values", by default, with any loss."""


@dataclass(frozen=True)
class Score:
    """Mean loss over a data set, as in training, and the accuracy (NaN for mse)."""

    loss: float
    accuracy: float


@dataclass(eq=False)
class Model:
    """A network with its parameters (float32, by name), the normalisation of its inputs, and the
    names of its classes (`label_names`) where they have any. Values are undone by the
    `target_normalisation` where they were normalised for training; `target_names` are those of
    their columns in a table.
    `label_dtype` is the NumPy type of labels that were numbers in training; an `autoencoder`
    reproduces its inputs. `feature_names` are those of the columns that it was trained on, where
    they had any: frames, dictionaries of columns and structured arrays are then read by these
    names. Inputs that are plainly on another scale than that of training, its `input_scale`, are
    refused. Raises CheckpointError where shapes do not fit."""

    network: Network
    parameters: Parameters
    normalisation: Normalisation = field(default_factory=Normalisation)
    label_names: tuple[str, ...] = ()
    target_normalisation: TargetNormalisation | None = None
    target_names: tuple[str, ...] = ()
    label_dtype: str = ""
    autoencoder: bool = False
    feature_names: tuple[str, ...] = ()
    input_scale: InputScale | None = None

    def __post_init__(self) -> None:
        check_type("network", self.network, Network, "a rawnn.Network")
        check_type("parameters", self.parameters, Mapping, "a mapping of names to arrays")
        check_type("normalisation", self.normalisation, Normalisation,
                   "a rawnn.data.Normalisation, such as the `normalisation` of a result")
        wanted = {t.name: t.shape for t in self.network.parameters()}
        found = {name: array.shape for name, array in self.parameters.items()}
        if wanted != found:
            raise CheckpointError(f"the parameters do not fit the network {self.network}: their "
                                  f"shapes are {found}")
        targets = self.target_normalisation
        if targets is not None and (not self.network.loss_spec.unit_power
                                    or len(targets.mean) != self.network.outputs):
            raise CheckpointError(f"the normalisation of {len(targets.mean)} targets does not fit "
                                  f"the network {self.network} with the loss {self.network.loss}")
        self.parameters = {name: np.asarray(self.parameters[name], np.float32) for name in wanted}

    def __repr__(self) -> str:
        count = sum(array.size for array in self.parameters.values())
        network = self.network
        words = [f"{network}", network.activation, network.loss, f"{count:,} parameters",
                 *([f"{len(self.label_names)} named classes"] if self.label_names else [])]
        return f"rawnn.Model({', '.join(words)})"

    # -- predictions -------------------------------------------------------------------------------
    def predict(self, inputs: Any, output: Output | None = None, *, batch: int = BATCH,
                device: str = "host") -> NDArray[Any]:
        """The outputs of the network for `inputs` [N, ...], given as the training data were (bytes
        stay bytes: the normalisation is applied here).

        Cross-entropy: "classes" (int32 [N], the default), "labels" (as in training: words, or
        numbers of their dtype), "probabilities" or "logits" (float32 [N, C]). Binary cross-entropy:
        "classes" (uint8 [N, C], 0 or 1), "probabilities" or "logits". Mean squared error: "values",
        float32 [N, C], or float64 in the targets' units if they were normalised. An autoencoder's
        "values" are in the units of its inputs, with either loss (float64 if float32 cannot hold
        the inputs). Without rows the result is an empty array. `device` is "host" (NumPy), "gpu",
        "gpu:N", "sim", or "auto": a GPU if there is one, else the host.

        Raises ConfigError, DataError.
        """
        wanted = self._output(output)
        parts: list[NDArray[Any]] = []
        rows = 0
        for z in self._logits(self._inputs(inputs), batch, device):
            bad = ~np.isfinite(z).all(axis=1)
            if bad.any():
                row = int(bad.argmax())
                word = "NaN" if np.isnan(z[row]).any() else "infinite"
                raise DataError(f"the outputs of the network for row {rows + row} are {word}: its "
                                f"inputs, or the parameters, are too large for float32")
            rows += len(z)
            parts.append(self.shaped(z, wanted))
        return np.concatenate(parts)

    def _output(self, output: str | None) -> str:
        known = OUTPUTS[self.network.loss_spec.link]
        if self.autoencoder and "values" not in known:
            known = ("values", *known)
        wanted = output or known[0]
        if wanted not in known:
            raise ConfigError(f"output = '{wanted}': a network trained with {self.network.loss} "
                              f"gives {', '.join(known)}")
        return wanted

    def _inputs(self, inputs: Any) -> NDArray[Any]:
        columns = read_inputs(inputs, "the inputs", self.feature_names, self.network.layers[0])
        found = columns.array
        host = found.numpy() if isinstance(found, DeviceArray) else found
        if host.ndim < 2 or 0 in host.shape[1:]:
            raise DataError(f"the inputs are of shape {list(host.shape)}, but must be [examples, "
                            f"features], or [examples, ...] to be flattened")
        flat = host.reshape(len(host), math.prod(host.shape[1:]))
        features = self.network.layers[0]
        if flat.shape[1] != features:
            raise DataError(f"the inputs have {flat.shape[1]} features, but the network takes "
                            f"{features}")
        if flat.dtype.kind not in "biuf" and flat.dtype.name != "bfloat16":
            raise DataError(f"the inputs are of type {flat.dtype}: only numbers can be predicted "
                            f"from; {fix_of(flat)}")
        if flat.dtype.kind not in "biu":
            check_finite(flat, "the inputs", names=columns.names)
            if not (self.normalisation.is_double or np.can_cast(flat.dtype, np.float32)):
                with np.errstate(over="ignore", under="ignore"):
                    check_rounded(flat, flat.astype(np.float32), "the inputs", names=columns.names)
        if self.input_scale is not None:
            self.input_scale.check(flat, "the inputs")
        return flat

    def _logits(self, inputs: NDArray[Any], batch: int, device: str
                ) -> Iterator[NDArray[np.float32]]:
        """z of the last layer, float32 [<= batch, C], batch by batch."""
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise ConfigError(f"batch = {batch!r}: it must be a whole number of at least 1")
        check_device(device)
        if not len(inputs):
            yield np.zeros((0, self.network.outputs), np.float32)
            return
        log = logging.getLogger("rawnn").info
        with open_device(device, log) as opened:
            if opened.device is None and device != "host":
                log(f"predicting on the host, not on a GPU: {opened.machine.no_gpu}")
            if opened.device is not None:
                from rawnn.engine.runners.forward import forward

                yield from forward(self.network, self.parameters, self.normalisation, inputs,
                                   opened.device)
                return
        between = self.network.activation_spec.fast or self.network.activation_spec.function
        for start in range(0, len(inputs), batch):
            with np.errstate(over="ignore", invalid="ignore"):  # `predict` refuses the result
                a = self.normalisation.apply(inputs[start : start + batch])
                for layer in range(1, self.network.depth + 1):
                    a = a @ self.parameters[f"fc{layer}.weight"].T
                    if self.network.bias:
                        a += self.parameters[f"fc{layer}.bias"]
                    if layer < self.network.depth:
                        a = between(a)
            yield a

    def shaped(self, z: NDArray[np.float32], output: str) -> NDArray[Any]:
        """Logits [N, C] converted to another output of `predict`."""
        several = self.network.loss_spec.link == "softmax"
        if output == "values" and self.target_normalisation is not None:
            return self.target_normalisation.undo(z)
        if output == "values" and self.autoencoder:
            return self.normalisation.invert(
                sigmoid(z) if self.network.loss_spec.link == "sigmoid" else z)
        if output in ("logits", "values"):
            return z
        if output == "probabilities":
            return softmax(z) if several else sigmoid(z)
        if not several:
            return (z > 0).astype(np.uint8)
        classes: NDArray[Any] = z.argmax(axis=1).astype(np.int32)
        return self.labels[classes] if output == "labels" else classes

    @property
    def labels(self) -> NDArray[Any]:
        """The label of each output [C]: a number of the training's dtype, or a name."""
        if self.label_names and not self._has_number_labels:
            return np.asarray(self.names)
        numbers = np.array([int(name) for name in self.names])
        is_boolean = self.label_dtype == "bool" and set(numbers.tolist()) <= {0, 1}
        return numbers.astype(self.label_dtype if self.label_dtype not in ("", "bool")
                              or is_boolean else np.int64)

    @property
    def _has_number_labels(self) -> bool:
        """Whether the names of classes are labels that were numbers."""
        return bool(self.label_dtype) and are_whole(self.label_names)

    @property
    def names(self) -> list[str]:
        """A name for each output: the class's own, or its index."""
        known = len(self.label_names)
        return [*self.label_names, *map(str, range(known, self.network.outputs))]

    # -- quality -----------------------------------------------------------------------------------
    def score(self, inputs: Any, answers: Any = None, *, batch: int = BATCH,
              device: str = "host") -> Score:
        """Loss and accuracy on `inputs` with `answers` in the formats of training: labels [N],
        one-hot rows [N, C], or values [N, C]; None compares with the normalised inputs, as for an
        autoencoder. Its answers, where they are not the inputs, are in the units of the inputs and
        normalised alike. If classes are named by words, numbers are indices of classes. The loss is
        in the units of the values, also if they were normalised for training.

        Raises DataError.
        """
        flat = self._inputs(inputs)
        return self.score_outputs(self._logits(flat, batch, device), flat, answers)

    def score_outputs(self, outputs: Iterable[NDArray[np.float32]], inputs: Any,
                      answers: Any = None) -> Score:
        """As `score`, of the outputs z of the last layer for these inputs, float32 [<= N, C] batch
        by batch, whatever computed them. Raises DataError."""
        flat = self._inputs(inputs)
        targets = self.target_normalisation
        network = self.network
        reproduces = not network.loss_spec.labelled and network.layers[0] == network.outputs
        if answers is None and (targets is not None or not (self.autoencoder or reproduces)):
            what = "class labels" if network.loss_spec.labelled else "target values"
            raise DataError(f"this network was trained on {what}: give them as the answers, as in "
                            f"model.score(X, y)")
        wanted = None if answers is None else self._answers(answers, len(flat))
        if not len(flat):
            raise DataError("there are no examples to score")
        total = right = 0.0
        done = 0
        for z in outputs:
            part = slice(done, done + len(z))
            done += len(z)
            t = self.normalisation.apply(flat[part]) if wanted is None else wanted[part]
            y = z if targets is None else targets.undo(z)
            total += self.network.loss_spec.sum_of(y, t)
            right += self.network.loss_spec.count_correct(y, t)
        counts = len(flat) * self.network.loss_spec.counts(self.network.outputs)
        per_example = 1 if self.network.loss_spec.labelled else self.network.outputs
        return Score(total / (len(flat) * per_example), right / counts if counts else math.nan)

    def _answers(self, answers: Any, count: int) -> NDArray[Any]:
        names = self.feature_names if self.autoencoder else self.target_names
        outputs = self.network.outputs
        several = not self.network.loss_spec.labelled and outputs > 1
        columns = read_answers(answers, "the answers", names if several else (),
                               outputs if several else 0)
        found = columns.array
        host = found.numpy() if isinstance(found, DeviceArray) else found
        if not host.shape or len(host) != count:
            raise DataError(f"there are {count:,} inputs, but the answers are of shape "
                            f"{list(host.shape)}")
        if not self.network.loss_spec.labelled:
            values = host.reshape(count, -1)
            if values.shape[1] != outputs:
                raise DataError(f"the answers have {values.shape[1]} columns, but the network has "
                                f"{outputs} outputs")
            if values.dtype.kind not in "biuf" and values.dtype.name != "bfloat16":
                raise DataError(f"the answers are of type {values.dtype}, but must be numbers; "
                                f"{fix_of(values)}")
            check_finite(values, "the answers", names=columns.names)
            if self.autoencoder:
                if self.input_scale is not None:
                    self.input_scale.check(values, "the answers")
                values = self.normalisation.apply(values)
            if self.network.loss_spec.link == "sigmoid":
                check_fractions(values, "the answers")
            with np.errstate(over="ignore", under="ignore"):
                stored = values.astype(np.float32 if self.target_normalisation is None
                                       else np.float64)
            check_rounded(values, stored, "the answers", names=columns.names)
            return stored
        names = columns.names or (columns.integers if are_whole(self.label_names) else ())
        given = given_labels(host, "the answers'", columns=names)
        check_words(given, self.label_names, "answers")
        by_number = self._has_number_labels and given.columns is None
        labels = label_indices(given.values, self.names, "answers") \
            if given.are_words or by_number else given.values
        check_labels(labels, outputs, "answers")
        return labels

    def confusion(self, inputs: Any, labels: Any, *, device: str = "host") -> NDArray[np.int64]:
        """How often class i (rows) was predicted as class j (columns): int64 [C, C]."""
        if not self.network.loss_spec.labelled:
            raise ConfigError(f"a network trained with {self.network.loss} has no classes to "
                              f"confuse")
        flat = self._inputs(inputs)
        truth = self._answers(labels, len(flat)).astype(np.int64)
        predicted = self.predict(flat, "classes", device=device)
        count = self.network.outputs
        return np.bincount(truth * count + predicted, minlength=count * count).reshape(count, count)

    # -- storage -----------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint file without training state, atomically. Raises CheckpointError."""
        names = {"features": self.feature_names, "targets": self.target_names}
        checkpoint.write(path, checkpoint.Checkpoint(
            self.network, self.parameters, normalisation=self.normalisation,
            label_names=self.label_names, target_normalisation=self.target_normalisation,
            facts={**{name: found for name, found in names.items() if found},
                   **(self.input_scale.record() if self.input_scale else {})},
            label_dtype=self.label_dtype, autoencoder=self.autoencoder))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Read a checkpoint, or the model of a directory of them: `best.safetensors` if early
        stopping wrote one, else the newest valid one. The logger "rawnn" gets a message if it is
        not the newest. Raises CheckpointError."""
        check_path("path", path)
        return cls.of(checkpoint.find_model(path, logging.getLogger("rawnn").info)[1])

    @classmethod
    def of(cls, found: checkpoint.Checkpoint) -> Model:
        """The model in a checkpoint."""
        scale = InputScale.stored_in(found.data, found.facts)
        if scale is None and found.normalisation.scale == PIXEL_SCALE \
                and found.config.get("normalise") != "pixels":  # bytes, of an older checkpoint
            scale = InputScale("uint8", 0, 255)
        return cls(found.network, found.parameters, found.normalisation, found.label_names,
                   found.target_normalisation, tuple(map(str, found.facts.get("targets", ()))),
                   found.label_dtype, found.autoencoder,
                   tuple(map(str, found.facts.get("features", ()))), scale)

    # -- PyTorch -----------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The parameters under the names of torch.nn.Sequential (rawnn.engine.state_dict)."""
        return to_torch(self.parameters, self.network)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the parameters by a state dict of the same layers. Raises CheckpointError."""
        self.parameters = from_torch(state, self.network)

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], *, activation: str = "relu",
                        loss: str = "cross_entropy",
                        normalisation: Normalisation | None = None) -> Model:
        """A model from a state dict, whose shapes give the layers. Raises CheckpointError."""
        layers, bias = layers_of(state)
        network = Network(layers, bias, activation, loss)
        return cls(network, from_torch(state, network), normalisation or Normalisation())


def softmax(z: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(z - max z) / sum(exp(z - max z)), along each row."""
    e: NDArray[np.float32] = np.exp(z - z.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    return e


def sigmoid(z: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(-z)), without overflow."""
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e)).astype(np.float32)
