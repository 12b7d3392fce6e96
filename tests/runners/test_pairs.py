"""Every two toggles of the registry, and every toggle in every kind of graph, on the simulated GPU:
they compute what the host computes, or are refused in one sentence, whichever is typed first."""

from __future__ import annotations

from functools import cache
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.device import Device
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.opts import TOGGLES, Selection, select
from rawnn.sim import Simulation
from tests.catalogue import forms
from tests.engine import CAPABLE, GRAPHS, make_work, random_dataset, run_on, trained
from tests.slices import sliced
from tests.tolerances import of_run

LAYERS, BATCH = (29, 18, 7), 8
DATA = random_dataset(train=44, test=15)
"""Five whole batches and a partial one."""

WORDS = [word for name in TOGGLES for word in forms(name)]
PAIRS = [pair for pair in combinations(WORDS, 2)
         if pair[0].partition("=")[0] != pair[1].partition("=")[0]]
IN_GRAPHS = [f"preload,graphs={mode}" for mode in GRAPHS]
APART = {frozenset(pair) for group in (
    ("arena", "pool", "async"),  # where temporaries lie
    ("tf32", "fp16", "bf16", "fp8"), ("tf32", "fp16", "sr", "fp8"),  # what numbers are stored in
    ("tiled", "cublas"), ("mma", "cublas"), ("fp8", "cublas"),  # who computes a product
    ("graphs", "pool"), ("graphs", "async"),  # graphs imply arena
    ("persistent", "fp8"),  # what its kernel stores
    ("nccl", "persistent"), ("nccl", "tune"),  # what cannot be the same on all ranks
    ("persistent", "pool"), ("persistent", "async"),  # it implies arena
) for pair in combinations(group, 2)}
"""The toggles that exclude each other, by name: an agreement beside the registry's, so that neither
a conflict that is forgotten there nor a refusal that nobody thought of goes by."""
WITHOUT_UPLOADS = ("graphs=3", "graphs=while")
"""What repeats a graph over an epoch, which takes the data set on the GPU."""

NUMBERS = [name for name, toggle in TOGGLES.items() if toggle.group == "numbers"]


def selected(text: str) -> Selection:
    return select(f"none,{text}", Network(LAYERS), 5, CAPABLE)


@cache
def on_host(number: str) -> tuple[SimpleNamespace, float]:
    """The baseline with one number format on the host, and how far a run may be from it."""
    work = make_work(number, LAYERS, DATA, BATCH, partial=True, shuffle=True)
    runner = HostRunner(work, "float32" if number else "float64")
    found = trained(runner)
    runner.close()
    types = {t.dtype for t in work.train.tensors.values() if t.floating}
    return found, of_run(types) if number else of_run(())


def check(text: str) -> None:
    """Run the toggles and compare; they are known to go together."""
    words = selected(text).words()
    number = ",".join(w for w in words if w.partition("=")[0] in NUMBERS and "batch" not in w)
    wanted, tolerance = on_host(number)
    work = make_work(text, LAYERS, DATA, BATCH, partial=True, shuffle=True)
    simulation = Simulation()
    device = Device(simulation.backend())
    found = run_on(device, work)
    device.close()
    simulation.assert_clean()
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=tolerance, atol=tolerance,
                               err_msg=text)
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=0, atol=tolerance,
                                   err_msg=f"{name} with {text}")


@cache
def refusal(text: str) -> str:
    """Why the toggles do not go together; "" where they do."""
    try:
        make_work(text, LAYERS, DATA, BATCH)
    except ConfigError as error:
        return str(error)
    return ""


def apart(*words: str) -> bool:
    """Whether the toggles are known to be refused together."""
    names = {word.partition("=")[0] for word in words}
    return any(frozenset(pair) in APART for pair in combinations(names, 2)) or (
        not names & {"preload", "persistent"} and bool({*words} & {*WITHOUT_UPLOADS})) or (
        {"persistent", "fp16=acc16"} <= {*words})


RUN = {*sliced(PAIRS)}
"""The pairs that train: all of them are selected or refused."""


@pytest.mark.parametrize("first", WORDS)
def test_every_two_toggles(first: str) -> None:
    for pair in (pair for pair in PAIRS if pair[0] == first):
        here, there = ",".join(pair), ",".join(reversed(pair))
        assert (bool(refusal(here)), bool(refusal(there))) == (apart(*pair),) * 2, here
        if not apart(*pair):
            assert selected(here).values == selected(there).values
            if pair in RUN:
                check(here)


@pytest.mark.parametrize(("word", "graph"), sliced(product(
    [w for w in WORDS if not w.startswith("graphs")], IN_GRAPHS), 40))
def test_every_toggle_in_every_graph(word: str, graph: str) -> None:
    text = graph if word in graph.split(",") else f"{graph},{word}"
    assert bool(refusal(text)) == apart(*text.split(",")), refusal(text)
    if not apart(*text.split(",")):
        check(text)


def test_a_refusal_names_a_toggle_and_is_one_sentence() -> None:
    refused = {pair: why for pair in PAIRS if (why := refusal(",".join(pair)))}
    for (first, second), why in refused.items():
        assert "\n" not in why
        names = {word.partition("=")[0] for word in (first, second)}
        assert names & set(why.replace("'", " ").replace(",", " ").replace("=", " ").split()), why
