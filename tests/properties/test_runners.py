"""All runners agree: graphs with the stream bit for bit, the device with the host within the
rounding of float32; and what does not go together is refused with a reason."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rawnn.graphs.unrolling import epoch_graphs
from rawnn.opts import TOGGLES
from tests.engine import same_run
from tests.plan.oracle import reduced_edges
from tests.properties.profile import examples
from tests.properties.runs import MODES, Case, cases, on_host, simulated, toggles

TOLERANCE = 2e-5
"""Of parameters, absolute (they are of the order of 1), and of losses, relative: 15 steps of
float32 through up to six layers."""
NUMBERS = tuple(name for name, toggle in TOGGLES.items() if toggle.group == "numbers")
ALLOCATORS = ("pool", "async")
"""What graphs exclude, as they imply the arena."""


@examples(25)
@given(case=cases(), toggles=toggles(without=NUMBERS))
def test_the_stream_agrees_with_the_host(case: Case, toggles: str) -> None:
    found, wanted = simulated(case, toggles), on_host(case)
    assert found is not None
    for name, array in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], array, rtol=TOLERANCE, atol=TOLERANCE,
                                   err_msg=name)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(found.evaluation.loss, wanted.evaluation.loss, rtol=TOLERANCE,
                               atol=TOLERANCE)


@examples(25)
@given(case=cases(), toggles=toggles(without=(*ALLOCATORS, "arena", "nosync")),
       mode=st.sampled_from(MODES))
def test_graphs_agree_with_the_stream_bit_for_bit(case: Case, toggles: str, mode: str) -> None:
    graph = simulated(case, f"{toggles},{mode}")
    if graph is None:
        assert "preload" not in toggles
        assert mode in ("graphs=2", "graphs=3", "graphs=while")
        return
    stream = simulated(case, f"{toggles},arena,nosync")
    assert stream is not None
    same_run(graph, stream)


@examples(12)
@given(case=cases(), toggles=toggles(without=(*ALLOCATORS, "cublas", "cudnn", "preload",
                                               "streams")),
       mode=st.sampled_from(MODES))
def test_the_driver_is_given_exactly_the_edges_that_reads_and_writes_require(
    case: Case, toggles: str, mode: str
) -> None:
    opt = f"{toggles},preload,streams,{mode}"
    work = case.work(opt)
    parts = epoch_graphs(work.train, work.policy, work.steps, work.epoch_begin, work.epoch_end,
                         work.partial is not None)
    edges = [reduced_edges(part.plan.ops) for part in parts]
    found = simulated(case, opt)
    assert found is not None
    assert found.facts["graph_nodes"] == sum(len(part.plan.ops) for part in parts)
    assert found.facts["graph_edges"] == sum(len(before) for graph in edges for before in graph)
