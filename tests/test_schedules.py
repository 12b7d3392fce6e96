"""Learning-rate schedules: their text, their steps, and their values against float64."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawnn.common.errors import ConfigError
from rawnn.model.schedules import SCHEDULE_SPECS, Schedule, functor, parse

EPS = float(np.finfo(np.float32).eps)


def schedule(text: str, lr: float = 0.5, steps: int = 100, epochs: int = 10) -> Schedule:
    return parse(text).resolve(lr, steps, epochs)


def whole_run(text: str, lr: float = 0.5, steps: int = 100, epochs: int = 10) -> np.ndarray:
    return schedule(text, lr, steps, epochs).rates(0, steps * epochs)


def test_constant_is_the_learning_rate():
    rates = whole_run("constant")
    assert rates.dtype == np.float32
    assert (rates == np.float32(0.5)).all()
    assert schedule("constant").constant
    assert not schedule("warmup:1,constant").constant


def test_step_decays_after_each_period():
    rates = whole_run("step:3:0.1")
    for epoch, power in ((0, 0), (2, 0), (3, 1), (5, 1), (6, 2), (9, 3)):
        part = rates[100 * epoch : 100 * epoch + 100]
        assert np.allclose(part, 0.5 * 0.1**power, rtol=4 * EPS, atol=0), epoch
        assert (part == part[0]).all()
    assert rates[299] == np.float32(0.5) > rates[300]


def test_step_takes_parts_of_an_epoch():
    rates = whole_run("step:0.5:0.5")
    assert rates[49] == np.float32(0.5)
    assert rates[50] == np.float32(0.25)
    assert rates[100] == np.float32(0.125)


@given(st.integers(1, 60), st.integers(1, 200))
@settings(max_examples=80, deadline=None)
def test_parts_of_an_epoch_are_the_nearest_whole_steps(steps, hundredths):
    epochs = hundredths / 100
    nearest = max(1, round(epochs * steps))
    rates = whole_run(f"step:{epochs}:0.5", steps=steps, epochs=3)
    assert (rates[:nearest] == np.float32(0.5)).all()
    assert (rates[nearest : 2 * nearest] == np.float32(0.25)).all()
    rates = whole_run(f"warmup:{epochs}", steps=steps, epochs=3)
    assert (rates[: nearest - 1] < np.float32(0.5)).all()
    assert (rates[nearest - 1 :] == np.float32(0.5)).all()


def test_cosine_falls_from_the_rate_to_the_final_one():
    for text, final in (("cosine", 0.0), ("cosine:0.001", 0.001)):
        rates = whole_run(text)
        angle = np.pi * np.arange(1000) / 1000
        expected = final + (0.5 - final) * 0.5 * (1 + np.cos(angle))
        assert np.abs(rates - expected).max() <= 4 * EPS * 0.5
        assert rates[0] == np.float32(0.5)
        assert (np.diff(rates) <= 0).all()
        assert rates[-1] >= final
        beyond = schedule(text).rates(1000, 5)
        assert np.allclose(beyond, final, atol=1e-15)


def test_cosine_keeps_its_precision_near_the_end():
    """1 + cos cancels there; the squared cosine of half the angle does not."""
    last = schedule("cosine").rate(999)
    exact = 0.5 * np.cos(np.pi / 2 * 0.999) ** 2
    assert abs(last / exact - 1) < 1e-4  # what the rounding of 0.999 leaves


def test_warmup_rises_to_the_rate():
    rates = whole_run("warmup:2,constant")
    assert np.array_equal(rates[:200], np.float32(0.5) * (
        np.arange(1, 201, dtype=np.float32) / np.float32(200)))
    assert rates[0] == np.float32(0.5) * (np.float32(1) / np.float32(200))
    assert (rates[199:] == np.float32(0.5)).all()


def test_warmup_goes_before_what_is_left_of_a_cosine_and_within_the_epochs_of_step():
    rates = whole_run("warmup:2,cosine")
    assert rates[199] == rates[200] == np.float32(0.5)
    angle = np.pi * np.arange(800) / 800
    assert np.abs(rates[200:] - 0.25 * (1 + np.cos(angle))).max() <= 4 * EPS * 0.5
    rates = whole_run("warmup:2,step:3:0.1")
    assert rates[299] == np.float32(0.5)
    assert np.isclose(rates[300], 0.05)


def test_warmup_may_be_as_long_as_the_run():
    assert whole_run("warmup:10,cosine")[-1] == np.float32(0.5)
    assert whole_run("warmup:20,cosine")[-1] == np.float32(0.25)
    assert whole_run("warmup:0.001")[0] == np.float32(0.5)


@pytest.mark.parametrize("text", ["step:1e18:0.1", "step:22e6:0.1", "warmup:1e300", "warmup:22e6"])
def test_more_steps_than_the_device_counts_are_refused(text):
    with pytest.raises(ConfigError, match=r"which are .* steps, but there are at most 2,147,483,6"):
        schedule(text, steps=100)
    assert schedule("step:21e6:0.1", steps=100).period == 2_100_000_000


def test_a_warmup_that_does_not_end_is_named():
    assert parse("warmup:8,cosine").unfinished_warmup(2) == (
        "schedule = warmup:8,cosine: the warm-up of 8 epochs is longer than the run of 2, so that "
        "the learning rate reaches 0.25 of lr at most")
    assert whole_run("warmup:8", steps=100, epochs=2).max() == np.float32(0.125)
    assert not parse("warmup:2").unfinished_warmup(2)
    assert not parse("cosine").unfinished_warmup(2)


@pytest.mark.parametrize(
    ("text", "same"),
    [("cosine,warmup:2", "warmup:2,cosine"), (" warmup : 2 , cosine ", "warmup:2,cosine"),
     ("warmup:2", "warmup:2,constant"), ("step:3.0:1e-1", "step:3:0.1"), ("cosine:0", "cosine")],
)  # fmt: skip
def test_ways_of_writing_the_same(text, same):
    assert schedule(text) == schedule(same)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unknown schedule ''"),
        ("cosin", "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ("exponential", "there are constant, cosine, step, warmup"),
        ("step", "write step:EPOCHS:FACTOR, such as step:30:0.1"),
        ("step:30", "write step:EPOCHS:FACTOR"),
        ("step:30:0.1:2", "write step:EPOCHS:FACTOR"),
        ("step:0:0.1", "'0' is no number of epochs; give a number above 0"),
        ("step:thirty:0.1", "'thirty' is no number of epochs"),
        ("step:30:-1", "'-1' is no factor"),
        ("step:30:nan", "'nan' is no factor"),
        ("constant:0.1", "constant takes no value; the rate is lr"),
        ("cosine:0.1:0.2", "write cosine or cosine:FINAL_RATE"),
        ("cosine:-1", "'-1' is no rate; give a number of at least 0"),
        ("cosine:inf", "'inf' is no rate"),
        ("warmup", "write warmup:EPOCHS"),
        ("warmup:", "'' is no number of epochs"),
        ("warmup:0", "'0' is no number of epochs"),
        ("warmup:5,warmup:5", "warmup is given twice"),
        ("cosine,step:3:0.1", "'cosine' and 'step' exclude each other"),
        ("cosine,cosine", "'cosine' and 'cosine' exclude each other"),
        ("cosine,", "unknown schedule ''"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_attributes_make_the_schedule_again():
    made = schedule("warmup:2,cosine:0.001")
    assert made.attributes() == {"kind": "cosine", "lr": 0.5, "value": 0.001, "period": 800,
                                 "warmup": 200, "steps": 100}
    assert Schedule.from_attributes({**made.attributes(), "more": 1}) == made


def test_every_rule_has_a_functor():
    assert {name: functor(name) for name in SCHEDULE_SPECS} == {
        "constant": "Constant", "step": "StepDecay", "cosine": "Cosine"}


@given(st.sampled_from(["constant", "step:2:0.5", "cosine:0.01", "warmup:1.5,cosine",
                        "warmup:3,step:1:0.9"]),
       st.integers(0, 3000), st.integers(1, 50))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_part_of_a_run_has_the_same_rates(text, first, count):
    made = schedule(text)
    part = made.rates(first, count)
    assert part.shape == (count,)
    assert np.array_equal(part, made.rates(0, first + count)[first:])
    assert made.rate(first) == part[0]
    assert (part >= 0).all()
    assert (part <= np.float32(0.5)).all()
