"""Search spaces, search with successive halving, and Optuna through ask and tell."""

from __future__ import annotations

import math
import signal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rawnn
from rawnn.common.errors import ConfigError, DataError
from rawnn.many.halving import rungs_of, survivors
from rawnn.many.progress import Status
from rawnn.many.spaces import checked, grid_of, sampled
from rawnn.many.variation import MOST, product_of
from tests import requires

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 6)).astype(np.float32)
Y = ((X[:, 0] * X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 1)).astype(np.int64)
OPTIONS: dict[str, Any] = {"data": (X, Y), "layers": (6, 12, 3), "batch": 16, "optimizer": "adam",
                           "device": "host"}


def test_draws_fill_their_distributions_and_depend_on_the_seed_alone() -> None:
    space = checked({"lr": rawnn.log_uniform(1e-4, 1e-1), "momentum": rawnn.uniform(0.5, 0.9),
                     "batch": rawnn.int_uniform(3, 6), "activation": ["relu", "gelu"]})
    found = sampled(space, 4000, 7)
    assert found == sampled(space, 4000, 7)
    assert found[:10] == sampled(space, 10, 7)
    assert found[:10] != sampled(space, 10, 8)
    logs = np.log10([c["lr"] for c in found])
    assert -4 <= logs.min() < -3.95
    assert -1.05 < logs.max() <= -1
    assert np.abs(np.histogram(logs, 4, (-4, -1))[0] / 1000 - 1).max() < 0.12
    momenta = np.array([c["momentum"] for c in found])
    assert abs(momenta.mean() - 0.7) < 0.01
    assert np.abs(np.bincount([c["batch"] for c in found])[3:] / 1000 - 1).max() < 0.12
    assert {c["activation"] for c in found} == {"relu", "gelu"}
    # Options are drawn apart from each other.
    assert abs(np.corrcoef(logs, momenta)[0, 1]) < 0.05


def test_a_grid_has_every_combination_the_last_option_fastest() -> None:
    found = grid_of(checked({"lr": [1.0, 2.0], "layers": [(6, 3), "6-8-3"]}))
    assert found == [{"lr": 1.0, "layers": (6, 3)}, {"lr": 1.0, "layers": "6-8-3"},
                     {"lr": 2.0, "layers": (6, 3)}, {"lr": 2.0, "layers": "6-8-3"}]


def test_as_many_members_as_are_said_to_be_the_most() -> None:
    side = math.isqrt(MOST)
    assert next(iter(product_of({"lr": range(side), "seed": range(MOST // side)}))) == {
        "lr": 0, "seed": 0}
    with pytest.raises(ConfigError, match="members: give at most"):
        product_of({"lr": range(MOST + 1)})


@pytest.mark.parametrize(("budget", "fits"), [(None, True), (5, False), (6, True), (7, True)])
def test_a_grid_is_tried_whole_or_not_at_all(budget: int | None, fits: bool) -> None:
    space = {"lr": (0.1, 0.2), "batch": (4, 8, 16)}
    if fits:
        assert grid_of(space, budget) == [{"lr": lr, "batch": batch} for lr in (0.1, 0.2)
                                             for batch in (4, 8, 16)]
    else:
        with pytest.raises(ConfigError, match="the grid has 6 combinations, more than budget = 5"):
            grid_of(space, budget)


@pytest.mark.parametrize(("given", "rungs"), [
    ((27, 27, 3, None), (1, 3, 9)), ((81, 27, 3, 1), (1, 3, 9)), ((9, 50, 3, 2), (2, 6)),
    ((4, 8, 2, None), (2, 4)), ((1, 10, 3, None), ()), ((100, 1, 3, None), ()),
    ((10, 10, None, None), ()),
])
def test_rungs(given: tuple[Any, ...], rungs: tuple[int, ...]) -> None:
    assert rungs_of(*given) == rungs


def test_survivors_are_the_best_by_mean_with_nan_last() -> None:
    candidate = np.repeat(np.arange(6, dtype=np.int32), 2)
    values = np.array([3, 1, 9, 9, np.nan, 0, 1, 1, 2, 2, 5, 5.0])
    kept = survivors(candidate, values, 2, higher=False)
    assert sorted(set(candidate[kept])) == [0, 3, 4]
    kept = survivors(candidate, values, 3, higher=True)
    assert sorted(set(candidate[kept])) == [1, 5]
    assert survivors(candidate, np.full(12, np.nan), 100, False).sum() == 2


@pytest.mark.parametrize("halving", range(2, 12))
def test_a_power_of_the_factor_ends_with_one_candidate(halving: int) -> None:
    """Whatever logarithms in floating point say of 243 to the base of 3."""
    for power in range(1, 6):
        count = halving ** power
        assert rungs_of(count, count, halving, None) == tuple(halving ** i for i in range(power))


@pytest.mark.parametrize("halving", [1.5, 2, 2.5, 3, 4])
def test_of_any_number_of_candidates_the_part_is_rounded_down(halving: float) -> None:
    for count in range(1, 40):
        kept = survivors(np.arange(count, dtype=np.int32), np.arange(float(count)), halving, False)
        part = max(1, math.floor(Fraction(count) / Fraction(halving)))
        assert np.flatnonzero(kept).tolist() == list(range(part))


def test_search_is_deterministic_and_counts_rungs() -> None:
    space = {"lr": rawnn.log_uniform(1e-4, 1e-1), "layers": [(6, 8, 3), (6, 16, 3)],
             "weight_decay": [0.0, 1e-3]}
    runs = [rawnn.search(data=(X, Y), space=space, budget=9, epochs=4, seed=3, device="host",
                         optimizer="adam", batch=16) for _ in range(2)]
    first, second = (run.table() for run in runs)
    assert np.array_equal(first["lr"], second["lr"])
    assert np.array_equal(first["test_loss"], second["test_loss"])
    assert set(first["layers"]) == {"6-8-3", "6-16-3"}
    assert first.dtype.names[1:4] == ("lr", "layers", "weight_decay")
    assert runs[0].stored.settings["varied"] == list(space)
    assert np.bincount(first["rung"]).tolist() == [6, 2, 1]
    assert first["epochs"][first["rung"].argmax()] == 4
    winner = runs[0][int(first["rung"].argmax())]
    single = rawnn.train(winner.config, data=winner.dataset)
    assert all(np.array_equal(single.parameters[n], winner.model.parameters[n])
               for n in single.parameters)


@pytest.mark.parametrize(("options", "said"), [
    ({"space": {}}, "name one option or more"), ({"space": {"lr": 0.1}}, "give a list of values"),
    ({"space": {"learning": [1]}}, "unknown option 'learning'"),
    ({"space": {"device": ["host"]}}, "cannot be searched"),
    ({"space": {"lr": [0.1]}, "budget": 0}, "budget = 0"),
    ({"space": {"lr": [0.1]}}, "give budget=200"),
    ({"space": {"lr": rawnn.uniform(0, 1)}, "grid": True}, "there is no end"),
    ({"space": {"lr": [0.1, 0.2]}, "grid": True, "budget": 1}, "2 combinations"),
    ({"space": {"lr": [0.1] * 10**5, "momentum": [0] * 10**5, "beta1": [0] * 10**5}, "grid": True,
      "budget": 10}, "the grid has 1,000,000,000,000,000 combinations"),
    ({"space": {"lr": [0.1] * 10**4, "eps": [1e-8] * 10**4}, "grid": True},
     "10000 lr x 10000 eps are 100,000,000 members"),
    ({"space": {"lr": [0.1]}, "budget": 1, "lr": 0.1}, "given twice"),
    ({"space": {"epochs": [1, 2]}, "budget": 1}, "epochs cannot be searched with halving"),
    ({"space": {"lr": [0.1]}, "budget": 1, "seed": -1}, "seed = -1"),
])
def test_bad_searches_are_one_clear_sentence(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        rawnn.search(data=(X, Y), **options)
    assert said in str(error.value)


@pytest.mark.parametrize(("name", "values"), [
    ("lr", [0.1, 0.0]), ("shuffle", [True, False]), ("bias", [True, False])])
def test_what_is_searched_is_no_option_whatever_its_value(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"{name} is given twice: by space, and as an option"):
            rawnn.search(space={name: values}, budget=1, data=(X, Y), **{name: value})


@pytest.mark.parametrize(("make", "said"), [
    (lambda: rawnn.uniform(1, 1), "below the second"),
    (lambda: rawnn.log_uniform(0, 1), "above 0"),
    (lambda: rawnn.int_uniform(1.5, 3), "whole numbers"),  # type: ignore[arg-type]
    (lambda: rawnn.uniform("a", 3), "two numbers"),  # type: ignore[arg-type]
])
def test_bad_distributions(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_optuna_asks_and_tells_in_batches() -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import optimise

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def run() -> tuple[Any, list[rawnn.Many]]:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
        return study, optimise(
            study, {"lr": rawnn.log_uniform(1e-3, 1e-1), "layers": [(6, 8, 3), (6, 16, 3)]},
            trials=10, batch=4, data=(X, Y), epochs=2, optimizer="adam", device="host", folds=2)

    study, many = run()
    assert [len(each) for each in many] == [8, 8, 4]
    assert len(study.trials) == 10
    for number, trial in enumerate(study.trials):
        batch = many[number // 4]
        member = batch[trial.user_attrs["member"]]
        assert member.config.lr == trial.params["lr"]
        assert trial.value == pytest.approx(
            batch.scores()[member.index : member.index + 2, -1].mean())
        assert len(trial.intermediate_values) == 2
    again, _ = run()
    assert [t.params for t in again.trials] == [t.params for t in study.trials]
    with pytest.raises(ConfigError, match="direction='maximize'"):
        optimise(study, {"lr": [0.1]}, trials=1, data=(X, Y), monitor="test_accuracy")
    with pytest.raises(ConfigError, match="study = None: it must be one that"):
        optimise(None, {"lr": [0.1]}, trials=2, batch=2, save="one", data=(X, Y))


@pytest.mark.filterwarnings("ignore:BruteForceSampler is experimental")
@pytest.mark.parametrize("sampler", ["GridSampler", "BruteForceSampler"])
def test_a_sampler_that_has_tried_everything_ends_the_trials(sampler: str) -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import optimise

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rates = [0.1, 0.2, 0.3]
    given = ({"lr": rates},) if sampler == "GridSampler" else ()
    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(*given))
    many = optimise(study, {"lr": rates}, trials=50, batch=1, data=(X, Y), layers=(6, 3),
                    epochs=1, device="host")
    assert len(many) == 3
    assert sorted(trial.params["lr"] for trial in study.trials) == rates
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)


@pytest.mark.parametrize(("space", "data"), [
    ({"optimizer": ["adam"], "momentum": [0.9]}, (X, Y)), ({"lr": [0.1]}, (X, Y[1:]))])
def test_trials_that_cannot_train_have_failed(space: dict[str, Any], data: Any) -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import optimise

    study = optuna.create_study()
    with pytest.raises((ConfigError, DataError)):
        optimise(study, space, trials=4, batch=2, data=data, layers=(6, 3), device="host")
    assert [trial.state.name for trial in study.trials] == ["FAIL", "FAIL"]


@pytest.mark.parametrize(("options", "said"), [
    ({"halving": 3}, "halving plays no part here"),
    ({"save": "runs"}, "save: 4 trials are more than one batch of 2"),
    ({"seed": [1, 2]}, r"seed = \[1, 2\]: a search gives all candidates one value"),
])
def test_options_that_optuna_cannot_have(options: dict[str, Any], said: str) -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import optimise

    study = optuna.create_study()
    with pytest.raises(ConfigError, match=said):
        optimise(study, {"lr": [0.1]}, trials=4, batch=2, data=(X, Y), **options)
    assert not study.trials


@pytest.mark.parametrize("name", ["trials", "batch"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_trials_and_batches_of_optuna_are_counted_from_one(name: str, value: Any) -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import optimise

    given = {"trials": 1, "batch": 1, name: value}
    with pytest.raises(ConfigError, match=f"{name} = {value!r}: it must be a whole number of at"):
        optimise(optuna.create_study(), {"lr": [0.1]}, data=(X, Y), **given)


def test_spaces_are_distributions_of_optuna() -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import _distribution

    kinds = optuna.distributions
    for given, wanted in (
            (rawnn.uniform(0.5, 0.9), kinds.FloatDistribution(0.5, 0.9)),
            (rawnn.log_uniform(1e-4, 0.1), kinds.FloatDistribution(1e-4, 0.1, log=True)),
            (rawnn.int_uniform(3, 6), kinds.IntDistribution(3, 6)),
            (((6, 8, 3), "6-3"), kinds.CategoricalDistribution(["6-8-3", "6-3"]))):
        assert _distribution(optuna, given) == wanted


def test_a_trial_is_complete_when_all_of_its_folds_are(monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = requires.module("optuna")
    from rawnn.many import optuna as module

    monkeypatch.setattr(module, "configurations_of",
                        lambda many: {"mean_test_loss": np.array([0.5, 0.25, 0.75, np.nan])})
    status = [Status.FINISHED, Status.STOPPED, Status.FINISHED, Status.ACTIVE,
              Status.ACTIVE, Status.ACTIVE, Status.FINISHED, Status.DIVERGED]

    class Eight:
        progress = SimpleNamespace(status=np.array(status))

        def __len__(self) -> int:
            return 8

        def scores(self, monitor: str) -> np.ndarray:
            return np.arange(16.0).reshape(8, 2)

    study = optuna.create_study()
    asked = [study.ask() for _ in range(4)]
    module._tell(optuna, study, asked, Eight(), "test_loss")  # type: ignore[arg-type]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    assert study.trials[0].value == 0.5
    assert [trial.user_attrs["member"] for trial in study.trials] == [0, 2, 4, 6]
    assert study.trials[1].intermediate_values == {1: 5.0, 2: 6.0}  # means over two folds


def test_a_trial_that_is_cut_short_fails() -> None:
    optuna = requires.module("optuna")
    from rawnn.many.optuna import optimise

    class Interrupt(rawnn.Listener):
        def reported(self, report: Any) -> None:
            if report.epoch == 2:
                signal.raise_signal(signal.SIGINT)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    many = optimise(study, {"lr": [0.1, 0.01], "epochs": [1, 400]}, trials=8, batch=8,
                    data=(X, Y), layers=(6, 12, 3), device="host", listener=Interrupt())
    assert many[0].interrupted
    assert {trial.params["epochs"] for trial in study.trials} == {1, 400}
    for trial in study.trials:
        assert trial.state.name == ("COMPLETE" if trial.params["epochs"] == 1 else "FAIL")


def test_cv_results_have_the_keys_and_figures_of_a_grid_search() -> None:
    selection = requires.module("sklearn.model_selection")
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Wrapped(ClassifierMixin, BaseEstimator):  # type: ignore[misc, no-any-unimported]
        """The same networks, trained one by one."""

        def __init__(self, lr: float = 0.1, layers: Any = (6, 8, 3)) -> None:
            self.lr, self.layers = lr, layers

        def fit(self, x: Any, y: Any) -> Wrapped:
            self.classes_ = np.arange(3)
            self.result_ = rawnn.train(**{**OPTIONS, "data": (x, y), "lr": self.lr, "epochs": 2,
                                          "layers": self.layers}, validation=(x, y))
            return self

        def predict(self, x: Any) -> Any:
            return self.result_.model.predict(x)

    splits = selection.StratifiedKFold(3, shuffle=True, random_state=0)
    grid = {"layers": [(6, 8, 3), (6, 3)], "lr": [0.05, 0.005]}
    theirs = selection.GridSearchCV(Wrapped(), grid, cv=splits).fit(X, Y).cv_results_
    ours = rawnn.train_many(**{**OPTIONS, "epochs": 2, **grid}, folds=splits).cv_results()
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert type(ours[key]) is type(value), key
        if "time" in key:
            assert ours[key].shape == value.shape
        elif key == "params":
            assert ours[key] == value
        elif "score" in key:
            assert ours[key].dtype == value.dtype, key
            assert np.allclose(ours[key], value, rtol=0, atol=1e-12), key
        else:
            assert ours[key].tolist() == value.tolist(), key
            assert ours[key].dtype == value.dtype, key


def test_equal_scores_share_the_best_rank() -> None:
    """As in scikit-learn, whose ranks are scipy's of the kind "min"."""
    stats = requires.module("scipy.stats")
    many = rawnn.train_many(**{**OPTIONS, "epochs": 1}, lr=[0.01, 0.05, 0.01, 0.01], folds=2)
    found = many.cv_results()
    mean = found["mean_test_score"]
    assert mean[0] == mean[2] == mean[3] != mean[1]
    assert found["rank_test_score"].tolist() == stats.rankdata(-mean, "min").tolist()


def test_configurations_sum_up_the_table_of_members() -> None:
    many = rawnn.train_many(**{**OPTIONS, "epochs": 30, "lr": [0.3, 0.02]}, folds=3, patience=1)
    table, found = many.table(), many.configurations()
    assert found["configuration"].tolist() == [0, 1]
    assert found["member"].tolist() == [0, 3]
    assert found["members"].tolist() == [3, 3]
    assert found["lr"].tolist() == [0.3, 0.02]
    assert len(set(table["epochs"][:3])) > 1  # folds stop at epochs of their own
    for row, members in zip(found, (table[:3], table[3:]), strict=True):
        assert row["epochs"] == max(members["epochs"])
        for name in ("train_loss", "test_loss", "test_accuracy"):
            assert row[f"mean_{name}"] == pytest.approx(np.mean(members[name]))
            assert row[f"std_{name}"] == pytest.approx(np.std(members[name]))
