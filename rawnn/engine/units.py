"""Losses in the units of the target values, for runs that train on normalised ones.

Kernels measure the mean over all elements of normalised values. If every column has the same
standard deviation (a single column always does), the loss in the values' units is that mean times a
factor. Columns with different deviations need different weights, which no kernel applies: then the
host measures both losses with the current parameters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.engine.model import Model
from rawnn.engine.runners.prepared_run import Evaluation, Runner

if TYPE_CHECKING:
    from rawnn.data import Dataset
    from rawnn.model.layers import Network


class LossUnits:
    """Converts the losses of a run to the units in which they are reported."""

    def __init__(self, network: Network, data: Dataset) -> None:
        self._network, self._data = network, data
        std = np.ones(1) if data.target_normalisation is None else data.target_normalisation.std
        self.by_factor = bool(np.allclose(std, std[0], rtol=1e-9, atol=0))
        """Whether one factor converts them; otherwise the host measures."""
        self._factor = float(std[0]) ** network.loss_spec.unit_power

    def train_loss(self, mean: float, runner: Runner) -> float:
        """The loss of an epoch whose steps had this `mean` loss. If the host measures, it is that
        of the whole training set with the parameters after the epoch."""
        return mean * self._factor if self.by_factor else \
            self._measured(runner, self._data.train_images, self._data.train_targets)

    def evaluation(self, runner: Runner) -> Evaluation:
        """Loss and accuracy on the test set."""
        if not self.by_factor:
            return Evaluation(self._measured(runner, self._data.test_images,
                                             self._data.test_targets), math.nan)
        found = runner.evaluate()
        return Evaluation(found.loss * self._factor, found.accuracy)

    def _measured(self, runner: Runner, inputs: NDArray[Any], targets: NDArray[Any] | None
                  ) -> float:
        normalisation = self._data.target_normalisation
        assert normalisation is not None
        assert targets is not None
        model = Model(self._network, runner.parameters(), self._data.normalisation,
                      target_normalisation=normalisation)
        return model.score(inputs, normalisation.undo(targets)).loss
