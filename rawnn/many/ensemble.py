"""Several trained networks as one: the mean of what they say."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError, check_type
from rawnn.engine.model import BATCH, OUTPUTS, Model, Score


class Ensemble:
    """Models that answer together: the mean of their probabilities, or of their values. `models`
    have the same classes, or the same targets; layers may differ. Raises ConfigError otherwise."""

    def __init__(self, models: Iterable[Model]) -> None:
        check_type("models", models, (Iterable, NoneType), "a list of rawnn.Model")
        self.models = tuple(models or ())
        if not self.models:
            raise ConfigError("an ensemble needs one model or more")
        for place, each in enumerate(self.models):
            check_type(f"models[{place}]", each, Model,
                       "a rawnn.Model, such as the `model` of a result")
        first = self.models[0]
        for model in self.models[1:]:
            if model.network.loss_spec.link != first.network.loss_spec.link \
                    or model.network.outputs != first.network.outputs \
                    or model.network.layers[0] != first.network.layers[0] \
                    or model.label_names != first.label_names \
                    or model.autoencoder != first.autoencoder:
                raise ConfigError(f"the models of an ensemble answer alike, but {first} and "
                                  f"{model} differ in loss, inputs, outputs or classes")

    def __repr__(self) -> str:
        return f"rawnn.Ensemble({len(self.models)} models, the first {self.models[0]!r})"

    def __len__(self) -> int:
        return len(self.models)

    def predict(self, inputs: Any, output: str | None = None, *, batch: int = BATCH,
                device: str = "host") -> NDArray[Any]:
        """As `Model.predict`, of the mean: "classes", "labels" or "probabilities" after
        cross-entropy, "classes" or "probabilities" after binary cross-entropy, "values" after mean
        squared error. There are no "logits" of a mean. Raises ConfigError, DataError."""
        first = self.models[0]
        known = tuple(name for name in OUTPUTS[first.network.loss_spec.link] if name != "logits")
        if first.autoencoder and "values" not in known:
            known = ("values", *known)
        wanted = output or known[0]
        if wanted not in known:
            raise ConfigError(f"output = '{wanted}': an ensemble of networks trained with "
                              f"{first.network.loss} gives {', '.join(known)}")
        if wanted == "values":
            return self._mean(inputs, "values", batch, device)
        if wanted == "probabilities":
            return self._mean(inputs, "probabilities", batch, device)
        return first.shaped(self._logits(inputs, batch, device), wanted)

    def evaluate(self, inputs: Any, answers: Any = None, *, batch: int = BATCH,
                 device: str = "host") -> Score:
        """Loss and accuracy of the mean, as `Model.score` has them for one network. Raises
        DataError."""
        first = self.models[0]
        if first.network.loss_spec.link != "identity":
            z = self._logits(inputs, batch, device)
        else:
            mean, targets = self._mean(inputs, "values", batch, device), first.target_normalisation
            z = targets.apply(mean) if targets is not None else \
                first.normalisation.apply(mean) if first.autoencoder else mean
        return first.score_outputs([z], inputs, answers)

    def _mean(self, inputs: Any, output: Any, batch: int, device: str) -> NDArray[Any]:
        total: NDArray[np.float64] | None = None
        for model in self.models:
            found = model.predict(inputs, output, batch=batch, device=device)
            dtype = found.dtype
            total = found.astype(np.float64) if total is None else total + found
        assert total is not None
        mean: NDArray[Any] = (total / len(self.models)).astype(dtype)
        return mean

    def _logits(self, inputs: Any, batch: int, device: str) -> NDArray[np.float32]:
        """What has the mean of the probabilities, computed from logarithms: none becomes 0, as in
        the loss of one network."""
        labelled = self.models[0].network.loss_spec.link == "softmax"
        total: NDArray[np.float64] | None = None
        for model in self.models:
            z = model.predict(inputs, "logits", batch=batch, device=device).astype(np.float64)
            logs = z - np.logaddexp.reduce(z, axis=1, keepdims=True) if labelled \
                else -np.logaddexp(0.0, np.stack([-z, z]))  # of p and of 1 - p
            total = logs if total is None else np.logaddexp(total, logs)
        assert total is not None
        mean = total - np.log(len(self.models)) if labelled else total[0] - total[1]
        return np.asarray(mean, np.float32)
