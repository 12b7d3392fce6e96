"""The parts of `fuse` and `mma`: each can be left out by its name, and says why it found no
place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.target import known
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.opts import TOGGLES, select
from rawnn.opts.fuse import FUSIONS
from rawnn.opts.registry import Parameter, leaving_out, left_out
from rawnn.plan.op import OPS
from rawnn.ptx.family import FAMILIES
from rawnn.ptx.gemm.tiles import MAIN_LOOPS
from rawnn.ptx.kernels import KERNELS
from tests.engine import CAPABLE, make_work, random_dataset, step_plan, trained

DEEP, NARROW, LINEAR = (784, 264, 128, 10), (784, 128, 64, 10), (784, 10)
PLANS = {"linear": ("preload", LINEAR, 32), "narrow": ("preload,bf16,mma", NARROW, 32),
         "head": ("preload,bf16,mma", DEEP, 32),
         "layers": ("preload,sr,mma", (784, 4096, 4096, 10), 32),
         "late_slope": ("preload,bf16,mma", DEEP, 32),
         "deferred": ("preload,mma", (784, 4096, 10), 4),
         "loss_product": ("preload,mma", DEEP, 32), "loss_sums": ("preload", (784, 264), 32)}
"""A plan in which a family's fusion finds a place."""
KEEPING_INPUTS = {"late_slope": "gelu"}
"""The activation of a plan in which a fusion finds a place, where it is not relu."""


def outcomes(opt: str, layers: tuple[int, ...], batch: int = 32, machine: object = CAPABLE,
             activation: str = "relu") -> dict[str, str]:
    network = Network(layers, activation=activation)
    selection = select(f"none,{opt}", network, 4, machine)  # type: ignore[arg-type]
    found = selection.outcomes(step_plan(network, batch, 4 * batch))
    return {outcome.part: outcome.reason for outcome in found["fuse"]}


@pytest.mark.parametrize("name", FUSIONS)
def test_a_fusion_is_left_out_by_its_name(name: str) -> None:
    opt, layers, batch = PLANS.get(name, ("preload", DEEP, 32))
    kept = KEEPING_INPUTS.get(name, "relu")
    network = Network(layers, activation=kept)

    def plan(fuse: str) -> object:
        return select(f"none,{opt},{fuse}", network, 4, CAPABLE).apply(
            step_plan(network, batch, 4 * batch))[0]

    assert outcomes(f"{opt},fuse", layers, batch, activation=kept)[name] == ""
    assert plan("fuse") != plan(f"fuse=-{name}")
    assert outcomes(f"{opt},fuse=-{name}", layers, batch)[name] \
        == f"{name} is left out by fuse=-{name}"
    everything = "".join(f"-{each}" for each in FUSIONS)
    bare = select(f"none,{opt}", network, 4, CAPABLE).apply(step_plan(network, batch, 4 * batch))[0]
    assert plan(f"fuse={everything}") == bare


@pytest.mark.parametrize("name", FUSIONS)
def test_what_is_computed_stays_the_same_without_a_fusion(name: str) -> None:
    data = random_dataset(29, 7, 40, 8)
    works = [make_work(f"preload,bf16,mma,{fuse}", (29, 24, 7), data)
             for fuse in ("fuse", f"fuse=-{name}")]
    with_it, without = (trained(HostRunner(work, "float64")) for work in works)
    np.testing.assert_allclose(with_it.loss, without.loss, rtol=1e-9)
    for key, value in with_it.parameters.items():
        np.testing.assert_allclose(value, without.parameters[key], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("opt", "layers", "batch", "capability", "name", "reason"), [
    ("preload,fuse", DEEP, 32, (9, 0), "linear", "not that of one layer"),
    ("preload,tiled,fuse", LINEAR, 32, (9, 0), "linear", "the products are tiled's"),
    ("preload,fuse", (784, 40), 32, (9, 0), "linear", "40 classes; its kernels hold at most 32"),
    ("preload,bf16,mma,fuse", DEEP, 32, (9, 0), "narrow", "layers of 288, 10 classes"),
    ("preload,fuse", NARROW, 32, (9, 0), "narrow", "16-bit products by mma"),
    ("preload,bf16,mma,fuse", DEEP, 32, (8, 0), "head", "needs clusters, which A100 has not"),
    ("preload,bf16,mma,fuse", DEEP, 129, (9, 0), "head", "a batch of 129 and 10 classes"),
    ("preload,fp16,mma,fuse", DEEP, 32, (9, 0), "head", "with a loss scale the update waits"),
    ("preload,fuse", DEEP, 32, (9, 0), "head", "mma does not compute the last layer's product"),
    ("preload,fuse", DEEP, 32, (9, 0), "layers", "no product streams its weights"),
    ("preload,fuse,cublas", LINEAR, 32, (9, 0), "slope", "no GEMM that could apply the slope"),
])
def test_a_fusion_says_why_it_is_not_taken(opt: str, layers: tuple[int, ...], batch: int,
                                           capability: tuple[int, int], name: str,
                                           reason: str) -> None:
    machine = replace(CAPABLE, compute_capability=capability)
    assert reason in outcomes(opt, layers, batch, machine)[name]


@pytest.mark.parametrize(("text", "message"), [
    ("fuse=-heads", "there is no 'heads'; did you mean 'head'"),
    ("fuse=-whole", "there is no 'whole'; the fusions are loss, epilogue"),
    ("fuse=head", "fuse=head: write the fusions to leave out, each after a -, as in fuse=-late"),
    ("fuse=-", "fuse=-: write the fusions to leave out"),
    ("mma=-skiny", "there is no 'skiny'; did you mean 'skinny'"),
    ("mma=skinny", "give auto, sync, wgmma or many, or kinds to leave out, as in mma=-skinny"),
])
def test_names_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        select(f"none,{text}", Network(DEEP), 4, CAPABLE)


def test_names_come_in_the_order_of_the_list_and_once() -> None:
    value = TOGGLES["fuse"].parse("-head-loss-head")
    assert value == "-loss-head"
    assert left_out(value) == {"loss", "head"}
    assert left_out(None) == left_out("sync") == left_out(3) == frozenset()
    selection = select("none,fuse=-head-loss", Network(DEEP), 4, CAPABLE)
    assert selection.words() == ["fuse=-loss-head"]
    assert select("best,-mma,fuse=-loss", Network(DEEP), 4, CAPABLE).values["fuse"] == "-loss"
    assert select("none,fuse", Network(DEEP), 4, CAPABLE).words() == ["fuse"]


def test_names_of_an_earlier_version_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    retired = ("old", "older")
    monkeypatch.setitem(TOGGLES, "fuse", replace(TOGGLES["fuse"], parameter=Parameter(
        "-NAME", leaving_out("fuse", "fusions", FUSIONS, retired), "", retired)))
    network = Network(DEEP)
    for text, words, notes in (
            ("fuse=-old-loss", ["fuse=-loss"], ["fuse=-old changes nothing: this version has no "
                                                "'old'"]),
            ("fuse=-older", ["fuse"], ["fuse=-older changes nothing: this version has no "
                                       "'older'"]),
            ("fuse=-loss", ["fuse=-loss"], [])):
        selection = select(f"none,{text}", network, 4, CAPABLE)
        assert selection.words() == words
        assert list(selection.notes) == notes
    with pytest.raises(ConfigError, match="there is no 'oldest'; the fusions are loss"):
        select("none,fuse=-oldest", network, 4, CAPABLE)


@pytest.mark.parametrize(("value", "impls"), [
    ("auto", {"skinny", "mma", "wgmma"}), ("-skinny", {"mma", "wgmma"}),
    ("-sync", {"skinny", "wgmma", "naive"}),
    ("-wgmma-skinny", {"mma"}), ("-sync-wgmma-skinny", {"naive"})])
def test_kinds_of_product_are_left_out_singly(value: str, impls: set[str]) -> None:
    network = Network((784, 4096, 4096, 10))
    plan, _ = select(f"none,preload,sr,mma={value}", network, 4, CAPABLE).apply(
        step_plan(network, 64, 256))
    assert {op.impl for op in plan.find(kind="matmul")} == impls


def test_every_kernel_is_one_familys_and_every_family_says_what_it_is() -> None:
    found = [key for family in FAMILIES.values() for key in family.kernels]
    assert sorted(found) == sorted(KERNELS)
    for family in FAMILIES.values():
        assert family.summary
        assert all(OPS[spec.kind] is spec for spec in family.ops)
        assert family.sources
        assert family.fits(known((9, 0))) == ""
    assert FAMILIES["wgmma"].fits(known((10, 0))) == "needs wgmma, which B200 has not"


def test_products_that_share_kernels_are_those_that_say_so() -> None:
    """What bias, activation and update are taken into, tolerances and expected times go by the
    families of products as they are registered, whatever they are called."""
    shared = {key.impl for key, kernel in KERNELS.items() if kernel.name == "gemm_nt"}
    assert set(MAIN_LOOPS) == shared
    assert [impl for impl, tensor_cores in MAIN_LOOPS.items() if not tensor_cores] == ["tiled"]
