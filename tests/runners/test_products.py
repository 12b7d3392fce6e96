"""The host's matrix products: right, the same bits however many threads compute them, and by as
many as are faster."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import rawnn
from rawnn.engine.runners import threaded_matmul
from rawnn.engine.runners.threaded_matmul import LARGE, TRIAL_STEPS, ThreadedMatmul, slices
from tests.engine import random_dataset, same_parameters
from tests.slices import sliced

SHAPES = [(128, 784, 1024), (1024, 128, 784), (600, 300, 600), (1, 2048, 8200), (128, 784, 10),
          (3, 5, 7), (8200, 2048, 1)]


def several(threads: int, monkeypatch: pytest.MonkeyPatch) -> ThreadedMatmul:
    """Products of a machine with so many threads."""
    monkeypatch.setattr(threaded_matmul, "threadpool_info",
                        lambda: [{"user_api": "blas", "num_threads": threads},
                                 {"user_api": "openmp", "num_threads": 99}])
    return ThreadedMatmul()


@pytest.mark.parametrize("shape", SHAPES)
def test_slices_cover_the_result_once(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    covered = np.zeros((rows, columns), int)
    for part in slices(rows, inner, columns):
        covered[part] += 1
    assert (covered == 1).all()
    assert len(slices(rows, inner, columns)) == 1 or rows * inner * columns >= LARGE


@pytest.mark.parametrize(("shape", "layout", "out"), sliced(
    product(SHAPES, ["nt", "nn", "tn"], [False, True]), 2, kind=lambda case: case[0]))
def test_bits_do_not_depend_on_threads(shape: tuple[int, int, int], layout: str, out: bool,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    rows, inner, columns = shape
    generator = np.random.default_rng(0)
    left = generator.normal(size=(rows, inner)).astype(np.float32)
    right = generator.normal(size=(inner, columns)).astype(np.float32)
    if layout[0] == "t":
        left = np.ascontiguousarray(left.T).T
    if layout[1] == "t":
        right = np.ascontiguousarray(right.T).T
    found = []
    for threads in (1, 2, 5):
        made = several(5, monkeypatch)
        made.open()
        made.threads = threads
        place = np.full((rows, columns), np.nan, np.float32) if out else None
        found.append(made.multiply(left, right, place))
        assert place is None or found[-1] is place
        made.close()
    exact = left.astype(np.float64) @ right
    bound = np.abs(left).astype(np.float64) @ np.abs(right) * inner * 2.0**-24
    assert (np.abs(found[0] - exact) <= bound).all()
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("faster", [1, 4])
def test_the_faster_is_taken(faster: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = several(4, monkeypatch)
    now = 0.0
    monkeypatch.setattr(threaded_matmul, "perf_counter", lambda: now)
    a = np.ones((512, 512), np.float32)
    tried = []
    for _ in range(2 * (TRIAL_STEPS + 1) + 2):
        with made.step():
            tried.append(made.threads)
            made.multiply(a, a)
            now += 1.0 if made.threads == faster else 1.03
    made.close()
    assert tried == [1, 4] * (TRIAL_STEPS + 1) + [faster] * 2


def test_nothing_is_tried_where_no_product_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    made = several(4, monkeypatch)
    a, tried = np.ones((64, 64), np.float32), []
    for _ in range(5):
        with made.step():
            tried.append(made.threads)
            made.multiply(a, a)
    made.close()
    assert tried == [1] * 5


def test_a_step_that_is_broken_off_leaves_nobody_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = several(2, monkeypatch)
    made.threads, done = 2, []

    def slow(left: Any, right: Any, out: Any) -> None:
        if not done:
            done.append("failed")
            raise KeyboardInterrupt
        time.sleep(0.2)
        done.append("late")

    monkeypatch.setattr(threaded_matmul, "_multiply", slow)
    a = np.ones((512, 512), np.float32)
    with pytest.raises(KeyboardInterrupt):
        made.multiply(a, a)
    assert done == ["failed", "late"]
    made.close()


def train(**changed: Any) -> rawnn.Result:
    return rawnn.train(**{
        "data": random_dataset(features=784, classes=10, train=768, test=128),
        "layers": (784, 1024, 10), "batch": 128, "epochs": 4, "device": "host", "lr": 0.01,
        "shuffle": True, "optimizer": "adam", **changed})


def test_a_run_has_the_same_bits_with_any_number_and_resumes_to_them(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever the timing takes, in a run that is whole and in one that is resumed."""
    def with_threads(threads: int, **changed: Any) -> rawnn.Result:
        with monkeypatch.context() as patched:
            patched.setattr(threaded_matmul, "threadpool_info",
                            lambda: [{"user_api": "blas", "num_threads": threads}])
            return train(**changed)

    before = threadpool_info()
    whole = with_threads(1)
    assert whole.facts["threads"] == 1
    parted = with_threads(4)
    assert parted.facts["threads"] in (1, 4)
    same_parameters(parted, whole)
    monkeypatch.setattr(threaded_matmul, "median", lambda seconds: -len(seconds))
    with_threads(4, epochs=2, save=tmp_path)
    same_parameters(with_threads(3, resume=tmp_path, epochs=4, data=random_dataset(
        features=784, classes=10, train=768, test=128)), whole)
    assert [p["num_threads"] for p in threadpool_info()] == [p["num_threads"] for p in before]


def test_blas_has_one_thread_while_a_run_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own threads wait without sleeping: where other processes wanted every core, steps took
    some 10 times as long."""
    while_computing = set()

    def multiply(left: Any, right: Any, out: Any) -> None:
        while_computing.update(p["num_threads"] for p in threadpool_info()
                               if p["user_api"] == "blas")
        np.matmul(left, right, out=out)

    with threadpool_limits(2, "blas"):
        monkeypatch.setattr(threaded_matmul, "_multiply", multiply)
        train(layers=(784, 400, 10), epochs=1)
        after = {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}
    assert while_computing == {1}
    assert after == {2}
