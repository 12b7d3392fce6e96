"""The lines above and below the table of `rawnn train`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rawnn.engine.config import Config
from rawnn.model.optimizers import option

if TYPE_CHECKING:
    from rawnn.engine.result import Result, Times
    from rawnn.engine.runners.prepared_run import PreparedRun


def network_text(prepared: PreparedRun, config: Config) -> str:
    """The network and its training; settings are named if they are not the default."""
    network, recipe, plain = prepared.network, prepared.recipe, Config()
    hidden = network.depth > 1
    words = ["-".join(map(str, network.layers))]
    if not network.bias:
        words.append("no biases")
    if hidden and network.activation != plain.activation:
        words.append(network.activation)
    if network.loss != plain.loss:
        words.append(f"loss {network.loss}")
    if network.init != plain.init:
        words.append(f"init {network.init}")
    words.append(f"batch {recipe.batch}" + (", partial batches kept" if recipe.partial else ""))
    optimizer = recipe.optimizer
    words += [optimizer.name] if optimizer.name != plain.optimizer else []
    words += [f"lr {optimizer.lr:g}"]
    words += [f"{option(k)} {v:g}".replace("_", " ") for k, v in optimizer.given.items()
              if v != optimizer.spec.settings[k]]
    if recipe.schedule != plain.schedule:
        words.append(f"schedule {recipe.schedule}")
    if recipe.shuffle:
        words.append("shuffled")
    return ", ".join([*words, f"seed {config.seed}"])


def loss_text(loss: float, digits: int = 4) -> str:
    """A loss with `digits` digits; a large one as 1.2345e+10, so that columns stay aligned."""
    return f"{loss:.{digits}e}" if abs(loss) >= 1e5 else f"{loss:.{digits}f}"


def epoch_text(result: Result) -> str:
    """The time of an epoch by the relevant clock and, if that is the device's, also by the wall
    clock."""
    device = result.environment.device
    if device == "host":
        return f"{result.average_epoch_ms:.3f} ms by the wall clock (later half)"
    if device == "sim":
        return f"{result.average_epoch_ms:.3f} ms, SIMULATED (later half)"
    wall = result.average_epoch_wall_ms
    beside = "" if math.isnan(wall) else f", {wall:.3f} ms by the wall clock"
    return f"{result.average_epoch_ms:.3f} ms device-timed{beside} (later half)"


def training_text(result: Result) -> str:
    """The time of all epochs, likewise."""
    t, device = result.times, result.environment.device
    wall = f"{t.training:.1f} ms by the wall clock"
    timed = {"host": "", "sim": "SIMULATED, "}.get(
        device, f"{t.training_device:.1f} ms device-timed, ")
    return f"{timed}{wall}; test evaluation {t.evaluation:.1f} ms beside it"


def initialisation_text(result: Result) -> str:
    """The time before the first epoch; the driver and kernels only if there are any."""
    t: Times = result.times
    parts = [f"start and imports {t.imports:.0f} ms", f"data {t.data:.0f} ms"]
    if result.environment.gpu:
        compiled = result.facts.get("kernels_compiled", 0)
        cached = result.facts.get("kernels_cached", 0)
        parts += [f"driver {t.driver:.0f} ms", f"kernels {t.compile:.0f} ms ({compiled} compiled, "
                                               f"{cached} from the cache)"]
    return ", ".join([*parts, f"setup {t.setup:.0f} ms"]) + f"; process so far {t.process:.0f} ms"
