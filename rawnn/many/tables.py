"""Many networks as tables: a row a member, and scikit-learn's `cv_results_`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import ConfigError
from rawnn.many.progress import FIGURES, HIGHER_IS_BETTER, Progress, Status

if TYPE_CHECKING:
    from rawnn.many.result import Many


def table_of(many: Many) -> NDArray[Any]:
    """A structured array of a row a member: `member`; the options that vary, by their names, and
    `fold` where there are lists of rows; `rung` after successive halving; `status`, `epochs`,
    `best_epoch` (by `monitor`); the FIGURES of the parameters that the member ended with (the best
    ones after early stopping, otherwise those behind the last epoch); and `best_<monitor>`."""
    columns: dict[str, NDArray[Any]] = {"member": np.arange(len(many), dtype=np.int32)}
    columns |= varied_columns(many)
    if many.lists > 1:
        columns["fold"] = many.stored.fold.astype(np.int32)
    progress = many.progress
    if many.stored.settings["rungs"]:
        columns["rung"] = progress.rung
    columns["status"] = np.array([Status(s).words for s in progress.status.tolist()])
    columns["epochs"] = progress.epoch
    best_epoch, best = best_reports(progress, many.monitor)
    columns["best_epoch"] = best_epoch
    final = final_epochs(many)
    for name in FIGURES:
        columns[name] = progress.figure(name, final)
    columns[f"best_{many.monitor}"] = best
    return _structured(columns)


def configurations_of(many: Many) -> NDArray[Any]:
    """A structured array of a row a configuration: `configuration`, its first `member`, what
    varies, `rung` after successive halving, `members` (its lists of rows), the most `epochs` of
    them, and mean and standard deviation over these of the FIGURES, as the table of members has
    them."""
    table, candidate = table_of(many), many.stored.candidate
    _, first, counts = np.unique(candidate, return_index=True, return_counts=True)
    columns: dict[str, NDArray[Any]] = {
        "configuration": np.arange(len(first), dtype=np.int32), "member": first.astype(np.int32)}
    names = [*many.stored.settings["varied"], *(["rung"] if many.stored.settings["rungs"] else [])]
    columns |= {name: table[name][first] for name in names}
    columns["members"] = counts
    columns["epochs"] = table["epochs"].reshape(len(first), -1).max(axis=1)
    for name in FIGURES:
        values = table[name].reshape(len(first), -1)
        columns[f"mean_{name}"], columns[f"std_{name}"] = values.mean(axis=1), values.std(axis=1)
    return _structured(columns)


def _structured(columns: dict[str, NDArray[Any]]) -> NDArray[Any]:
    found = np.empty(len(next(iter(columns.values()))),
                     [(name, array.dtype) for name, array in columns.items()])
    for name, array in columns.items():
        found[name] = array
    return found


def varied_columns(many: Many) -> dict[str, NDArray[Any]]:
    """[N] of each option that varies: numbers, or text ("20-64-3" of layers)."""
    found = {}
    for name in many.stored.settings["varied"]:
        values = [shown(config[name]) for config in many.stored.configs]
        is_number = all(isinstance(v, bool | int | float) for v in values)
        found[name] = np.array(values if is_number else [str(v) for v in values])
    return found


def shown(value: Any) -> Any:
    """A value of an option as tables have it: layers as they are typed."""
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else value


def cell(value: Any) -> str:
    """A value of a table as text."""
    plain = value.item() if hasattr(value, "item") else value
    return f"{plain:.5g}" if isinstance(plain, float) else str(plain)


def final_epochs(many: Many) -> NDArray[np.int64]:
    """[N], the epoch whose parameters each member ended with; 0 for one that diverged and keeps no
    best ones."""
    progress = many.progress
    last = np.where(progress.status == Status.DIVERGED, 0, progress.epoch)
    return np.where(progress.best_epoch > 0, progress.best_epoch, last)


def best_reports(progress: Progress, monitor: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The epoch and the figure of each member's best report, 0 and NaN without one."""
    values = progress.history[:, :, FIGURES.index(monitor)]
    worst = -np.inf if monitor in HIGHER_IS_BETTER else np.inf
    filled = np.where(np.isnan(values), worst, values)
    place = filled.argmax(axis=1) if monitor in HIGHER_IS_BETTER else filled.argmin(axis=1)
    some = ~np.isnan(values).all(axis=1)
    rows = np.arange(len(values))
    return np.where(some, place + 1, 0), np.where(some, values[rows, place], np.nan)


def order_of(many: Many, by: str | None) -> NDArray[np.int64]:
    """The members from the best to the worst by one of the FIGURES, as the table has it; those
    without one last, and of equal ones the first before. Raises ConfigError."""
    name = by or many.monitor
    if name not in FIGURES:
        raise ConfigError(f"by = '{name}': use one of {', '.join(FIGURES)}")
    values = many.progress.figure(name, final_epochs(many))
    return np.lexsort((np.arange(len(many)), -values if name in HIGHER_IS_BETTER else values))


# -- scikit-learn ----------------------------------------------------------------------------------


def cv_results_of(many: Many, return_train_score: bool) -> dict[str, Any]:
    """As `GridSearchCV.cv_results_`: a row for each configuration, scores of each fold. The score
    is the accuracy on the rows held out, or the loss with a minus where nothing is right or wrong.
    Members train at once: `mean_fit_time` is the training's time divided by the members."""
    stored = many.stored
    candidates = len(np.unique(stored.candidate))
    lists = len(stored.candidate) // candidates
    final, progress = final_epochs(many), many.progress
    accuracy = progress.figure("test_accuracy", final)
    counts = not np.isnan(accuracy).all()
    test = accuracy if counts else -progress.figure("test_loss", final)
    grid = test.reshape(candidates, lists)
    seconds = float(stored.settings["seconds"]) / len(many)
    found: dict[str, Any] = {
        "mean_fit_time": np.full(candidates, seconds), "std_fit_time": np.zeros(candidates),
        "mean_score_time": np.zeros(candidates), "std_score_time": np.zeros(candidates)}
    params = params_of(stored.configs[::lists], stored.settings["varied"])
    for name in stored.settings["varied"]:
        found[f"param_{name}"] = np.ma.array(
            _column([each[name] for each in params]), mask=np.zeros(candidates, bool))
    found["params"] = params
    found |= _scores(grid, "test")
    mean = found["mean_test_score"]
    worst = np.where(np.isnan(mean), -np.inf, mean)
    found["rank_test_score"] = np.array([1 + int((worst > value).sum()) for value in worst],
                                        np.int32)
    if return_train_score:
        # The mean over the steps of the last epoch, not of the parameters behind it.
        found |= _scores(-progress.figure("train_loss", final).reshape(candidates, lists), "train")
    return found


def params_of(configs: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> list[dict[str, Any]]:
    """What varies, of each configuration."""
    return [{name: tuple(config[name]) if name == "layers" else config[name] for name in varied}
            for config in configs]


def _column(values: list[Any]) -> NDArray[Any]:
    """Numbers as an array of numbers, others as one of objects: as scikit-learn has it."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return np.array(values)
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _scores(grid: NDArray[np.float64], part: str) -> dict[str, Any]:
    found: dict[str, Any] = {f"split{i}_{part}_score": grid[:, i].copy()
                             for i in range(grid.shape[1])}
    return {**found, f"mean_{part}_score": grid.mean(axis=1),
            f"std_{part}_score": grid.std(axis=1)}
