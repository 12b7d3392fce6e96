"""Training: from a Config to a Result."""

from __future__ import annotations

import os
import warnings
from typing import Any

from rawnn.common.errors import CheckpointError, ConfigError, unknown
from rawnn.common.files import check_path
from rawnn.common.interrupts import end_by
from rawnn.common.listener import listeners_of
from rawnn.distributed import Team
from rawnn.engine import parallel
from rawnn.engine.checkpoint import continued
from rawnn.engine.config import Config
from rawnn.engine.result import Result
from rawnn.engine.resumption import Resumption, dataset_of
from rawnn.engine.session import Session


def train(config: Config | None = None, *, listener: object = (),
          data: Any = None, validation: Any = None, normalise: Any = None,
          new_data: bool = False, team: Team | None = None, communicator: Any = None,
          **options: Any) -> Result:
    """Train the network of `config` (or of Config(**options)) and return the result.

    `data` is a directory or file as in Config, a Dataset, or arrays (X, y) as for `from_arrays`,
    with `validation` and `normalise`. `listener` is a Listener, an object with some of its methods,
    or a sequence of these.

    With `resume` the options of the run that wrote the checkpoint are the defaults, and its split
    and normalisation (mean and deviation of its training) are used. Labels refer to the network's
    classes by name. Arrays have to be passed again. Data whose shape, dtype or content differs from
    the checkpoint's record are refused unless `new_data` is true. A RuntimeWarning names what an
    older checkpoint does not record of them, and columns whose distinct values become equal.

    A missing data set is an error: generated digits are used only for `dataset="synthetic"`. If
    `device` is "auto" and there is no GPU, a RuntimeWarning says that training runs on the host.
    Other messages go to the listener and to the logger "rawnn".

    Raises ConfigError, DataError, DeviceError and related errors with one clear sentence. An
    exception of a listener ends the run and propagates, with all memory freed. TrainingDiverged
    has the reports so far as `history`. If a checkpoint cannot be written (a full disk), the run
    ends after that epoch, and the CheckpointError has its Result as `result`.

    In a process that torchrun, mpirun, srun or `rawnn launch` started with others, all of them
    train one network together (docs/scaling.md); so do those of a `communicator` of mpi4py, each
    with a call of its own. `team` are ranks that the caller has joined. Then RanksError says which
    rank is lost or differs.

    In the main thread, Ctrl-C ends the run after the current epoch and returns the result so far,
    marked `interrupted`. A second one, or 20 s, ends it at once, with the parameters of the end of
    the last epoch. In the first epoch they are those of its middle, which `broken_epoch` of the
    result says. Nothing more is measured then. SIGTERM and SIGHUP do the same, write a checkpoint
    if `save` is set, and then end the process as they would have. Signals that the process ignores
    or handles itself are not touched, and afterwards all handlers are as before.
    """
    if config is not None and not isinstance(config, Config):
        raise ConfigError(f"config is a rawnn.Config, not a {type(config).__name__}: give its "
                          f"options by name, as in train(layers=(784, 10))")
    for name in options:
        if name not in Config.__dataclass_fields__:
            raise unknown("option", name, (*Config.known(), "listener"))
    arrays = data is not None and not isinstance(data, str | os.PathLike)
    own = {"data": data, "validation": validation, "normalise": normalise}
    of_config = {} if arrays else {k: v for k, v in own.items() if v is not None}
    if config is not None and (options or of_config):
        raise ConfigError("give either a Config or its options, not both")
    resume = options.get("resume") if config is None else config.resume
    if resume is not None:
        check_path("resume", resume)
    before = Resumption.of(os.path.expanduser(resume)) if resume else None
    if config is not None and before is not None:
        _check_network(config, before)
    if config is None:
        config = Config(**continued({**options, **of_config}, arrays,
                                    (before.path, before.checkpoint) if before else None))
    dataset = None
    if arrays:
        dataset, config = dataset_of(data, config, validation, normalise, before)
    listeners = listeners_of(listener)
    team = team or parallel.join(config, communicator=communicator)
    with Session(config, *listeners, data=dataset, team=team, resumption=before,
                 new_data=new_data) as session:
        if session.device is None and config.device == "auto":
            warnings.warn(f"training on the host, not on a GPU: {session.no_gpu}", RuntimeWarning,
                          stacklevel=2)
        for sentence in filter(None, (*session.doubts, session.unknown, *session.data.cautions)):
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        result = session.run()
    if session.unsaved is not None:
        session.unsaved.result = result  # type: ignore[attr-defined]
        raise session.unsaved
    end_by(session.signal)
    return result


def _check_network(config: Config, before: Resumption) -> None:
    """Raise CheckpointError if a Config, which has a value for every option, is of another network
    than the checkpoint that it continues."""
    stored, asked = ("-".join(map(str, layers)) for layers in (
        before.checkpoint.network.layers, config.layers))
    if asked != stored:
        raise CheckpointError(
            f"{before.path} is of another network: its layers are {stored}, but those of the "
            f"Config {asked}; a Config gives every option: to continue with those of the earlier "
            f"run, give the others by name, as in rawnn.train(resume=..., epochs=...)")
