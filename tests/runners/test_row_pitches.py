"""Rows of what plain products read do not begin with cache lines, and everything else of
the plans agrees with that."""

from __future__ import annotations

import numpy as np
import pytest

from rawnn.engine.runners.host import HostRunner
from rawnn.model.optimizers import Optimizer
from rawnn.plan.tensor import Role
from tests.distributed.runs import on_simulated, work_of
from tests.engine import make_work, random_dataset, run_on, trained

DATA = random_dataset(270, 10, 24, 12)
LAYERS = (270, 134, 10)


@pytest.mark.parametrize("optimizer", [Optimizer(lr=0.1), Optimizer("adam", 0.01)],
                         ids=["sgd", "adam"])
@pytest.mark.parametrize("opt", ["none", "preload,arena,nosync,fuse", "preload,graphs=epoch",
                                 "preload,bf16,fuse"])
def test_training_is_the_same(device, opt: str, optimizer: Optimizer) -> None:
    work = make_work(opt, LAYERS, DATA, 8, optimizer=optimizer, partial=True)
    read = "fc1.weight.bfloat16" if "bf16" in opt else "fc1.weight"
    plans = [work.train, *(part.plan for part in work.evaluate)]
    assert {plan[read].ld for plan in plans} == {272}
    wanted = trained(HostRunner(work))
    found = run_on(device, work)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-4)
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=2e-3)


def test_products_of_tiles_have_rows_on_cache_lines() -> None:
    assert make_work("preload,tiled", LAYERS, DATA).train["fc1.weight"].ld == 288


@pytest.mark.parametrize("opt", ["preload,arena", "preload,bf16,fuse"])
def test_ranks_agree_on_them(opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that update rows of the weights have them where those of the whole lie."""
    monkeypatch.setattr("rawnn.opts.nccl.SMALL_MB", 0.0)
    work = work_of(f"{opt},nccl=sharded", (270, 134, 10), DATA, 8, 2, 1)
    views = [t for t in work.train.tensors.values() if t.role is Role.VIEW]
    assert views
    assert all(t.ld == work.train[t.source].ld for t in views)
    wanted = trained(HostRunner(work_of(opt, (270, 134, 10), DATA, 8, 1, 0)))
    for found in on_simulated(f"{opt},nccl=sharded", (270, 134, 10), DATA, 8, 2):
        for name, array in wanted.parameters.items():
            np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=2e-3)
