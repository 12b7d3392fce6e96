"""What is meant to run side by side does: nothing orders the two, by events, edges or waits of the
host. That they do not race is tested elsewhere; an order too many is only slow."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rawnn.cuda.device import Device
from rawnn.cuda.launch import HostToDevice
from rawnn.graphs.unrolling import graph_plans
from rawnn.sim import Simulation
from rawnn.sim.order import Scheduler, Task
from tests.engine import make_work, random_dataset, run_on

STEPS = 6
DATA = random_dataset(train=8 * STEPS, test=8)
LAYERS = (29, 18, 7)


def unordered(a: Task, b: Task) -> bool:
    return not a.after(b.lane, b.index) and not b.after(a.lane, a.index)


@pytest.mark.parametrize("opt", ["preload,streams,nosync,arena", "preload,streams,arena",
                                 "streams,arena", "streams,nosync,arena,pinned",
                                 "preload,streams,pool", "streams,async"])
def test_a_batch_is_fetched_while_the_step_ahead_of_it_computes(
        opt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch s + 1 waits for step s - 1, which had its buffers, and for nothing of step s:
    also where the host waits for every step. (Not where memory is freed at each use, which waits
    for the device.)"""
    ran: list[Task] = []
    place = Scheduler._place
    monkeypatch.setattr(Scheduler, "_place", lambda self, task: (place(self, task),
                                                                 ran.append(task)))
    device = Device(Simulation(3).backend())
    work = make_work(opt, LAYERS, DATA, batch=8)
    run_on(device, work, epochs=1)
    device.close()
    forward = [task for task in ran if task.label.startswith("softmax<")][:STEPS]
    fetches = [task for task in ran if task.label.startswith(("gather", "copy from the host"))
               and task.where != forward[0].where]
    each = len(fetches) // STEPS
    assert (len(fetches), len(forward)) == ((1 if "preload" in opt else 2) * STEPS, STEPS)
    for step in range(STEPS - 1):
        for fetch in fetches[(step + 1) * each : (step + 2) * each]:
            assert unordered(fetch, forward[step]), f"batch {step + 1} and step {step}"
        if step:
            behind = fetches[(step + 1) * each]
            assert behind.after(forward[step - 1].lane, forward[step - 1].index)


@pytest.mark.parametrize("opt", ["preload,streams,graphs=epoch", "preload,streams,graphs=3",
                                 "preload,streams,graphs=while,fuse"])
def test_a_graph_fetches_beside_the_step_ahead(opt: str) -> None:
    work = make_work(opt, LAYERS, DATA, batch=8)
    whole = graph_plans(work.train, work.policy, STEPS)[0]
    ops, edges = whole.plan.ops, whole.edges()

    def ancestors(index: int) -> set[int]:
        found, left = set[int](), [index]
        while left:
            for before in edges[left.pop()]:
                if before not in found:
                    found.add(before)
                    left.append(before)
        return found

    fetches = [i for i, op in enumerate(ops) if op.kind == "gather"]
    losses = [i for i, op in enumerate(ops) if op.kind in ("softmax", "softmax_loss_gradient")]
    assert len(fetches) == len(losses) > 1
    for step in range(len(fetches) - 1):
        fetch, loss = fetches[step + 1], losses[step]
        assert loss not in ancestors(fetch), f"batch {step + 1} waits for step {step}"
        assert fetch not in ancestors(loss)
    alone = make_work(opt.replace("streams,", ""), LAYERS, DATA, batch=8)
    chained = graph_plans(alone.train, alone.policy, STEPS)[0].edges()
    assert all(before == ((i - 1,) if i else ()) for i, before in enumerate(chained))


@pytest.mark.parametrize("steps", [1, 6, 7, 23, 26, 97, 130])
def test_a_graph_that_repeats_does_every_step_once(steps: int) -> None:
    """Its body is a whole part of the epoch, also of one whose steps no longer body divides."""
    work = make_work("preload,graphs=while", LAYERS, random_dataset(train=4 * steps, test=8), 4)
    whole, = graph_plans(work.train, work.policy, steps)
    last = whole.plan.ops[-1]
    body = sum(op.kind == "gather" for op in whole.plan.ops)
    assert body == last.attributes["steps"]
    assert last.attributes["end"] == steps
    assert steps % body == 0


def test_a_copy_of_a_graph_begins_at_its_own_step() -> None:
    """Of a rank, whose share of a batch lies apart from the next one's."""
    asked: list[int] = []
    graph = SimpleNamespace(add_memcpy=lambda after, kind, to, source, *more: asked.append(source))
    for stride, wanted in ((None, 1000 + 3 * 64), (256, 1000 + 3 * 256)):
        copy = HostToDevice(None, None, "x", "x", 0, 1000, 64, None,  # type: ignore[arg-type]
                            stride)
        copy.add_to(graph, (), 3)
        assert asked.pop() == wanted
