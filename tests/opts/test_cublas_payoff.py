"""`cublas=auto` and `cublas=OP+OP`: which GEMMs cuBLASLt computes beside `mma`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.target import gpu_named
from rawnn.cuda.device import Device
from rawnn.engine.runners.gpu import GpuRunner
from rawnn.engine.runners.host import HostRunner
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, Selection, cublas_payoff, select
from rawnn.opts.cublas_payoff import expected_times
from rawnn.plan.build import evaluation_step, training_step
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.sim import sim_backend
from tests import tolerances
from tests.engine import CAPABLE, dataset_for, make_work, step_plan, trained

WIDE, BATCH = Network((784, 1024, 1024, 1024, 10)), 4096
ADAM = Optimizer("adam", 1e-3)
LAYERS = (29, 18, 11, 7)
GEMMS = ("fc1.forward", "fc2.forward", "fc3.forward", "fc3.weight_grad", "fc3.input_grad",
         "fc2.weight_grad", "fc2.input_grad", "fc1.weight_grad")
"""Of a network of three layers."""


def chosen(text: str, batch: int = BATCH) -> Selection:
    return select(text, WIDE, 14, CAPABLE, batch=batch, recipe=Recipe(batch, ADAM),
                  data_spec=DataSpec(14 * batch))


def by_cublas(selection: Selection) -> set[str]:
    """The ops of a step that cuBLASLt computes."""
    plan = training_step(WIDE, Recipe(BATCH, ADAM), DataSpec(14 * BATCH))
    return {op.name for op in selection.apply(plan)[0].ops if op.impl == "cublas"}


def test_mma_and_cublas_exclude_each_other_unless_each_has_its_gemms() -> None:
    with pytest.raises(ConfigError, match="'mma' and 'cublas' exclude each other"):
        chosen("mma,cublas,tf32").words()
    assert "mma" not in chosen("best,tf32,cublas").values
    assert {"mma", "cublas"} <= {*chosen("mma,cublas=auto,tf32").values}
    assert {"tiled", "cublas"} <= {*chosen("tiled,cublas=fc1.forward").values}
    with pytest.raises(ConfigError, match="add mma, or write cublas alone"):
        chosen("cublas=auto,tf32")
    for value in ("", "fc1.forward+", "a b", "-fc1"):
        with pytest.raises(ConfigError, match="give auto, or GEMMs of the step"):
            chosen(f"mma,cublas={value},tf32")
    with pytest.raises(ConfigError, match=r"unknown GEMM 'fc9\.forward'; did you mean"):
        by_cublas(chosen("mma,cublas=fc9.forward,tf32"))


def test_only_steps_of_training_take_it() -> None:
    selection = chosen("mma,cublas=auto,fuse,tf32")
    plan = evaluation_step(WIDE, BATCH, DataSpec(14 * BATCH))
    assert all(op.impl != "cublas" for op in selection.apply(plan)[0].ops)


@pytest.mark.parametrize("optimizer", [Optimizer(), ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("value", ["auto", "+".join(GEMMS), "fc1.weight_grad", "fc1.forward"])
def test_the_gemms_that_were_taken_can_be_asked_for_by_name(value: str,
                                                            optimizer: Optimizer) -> None:
    network = Network((784, 1024, 1024, 64))
    plan = step_plan(network, BATCH, 4 * BATCH, optimizer=optimizer)

    def rewritten(value: str | int | None) -> Any:
        return select(f"none,preload,tf32,mma,cublas={value},fuse", network, 4,
                      CAPABLE).apply(plan)[0]

    found = rewritten(value)
    again = TOGGLES["cublas"].resolved_value(value, found)
    assert again != "auto"
    assert str(rewritten(again)) == str(found)
    if value != "auto":
        assert {*str(again).split("+")} == {*value.split("+")}


def test_the_times_that_are_expected_grow_with_the_batch() -> None:
    """The own kernels and cuBLASLt's; ten times the rows take four times as long or longer."""

    def times(batch: int) -> dict[str, cublas_payoff.Expected]:
        plan = chosen("mma,tf32", batch=batch).apply(
            training_step(WIDE, Recipe(batch, ADAM), DataSpec(14 * batch)))[0]
        return {each.op.name: each for each in expected_times(plan)}

    few, many = times(1280), times(12800)
    for name in ("fc2.forward", "fc2.input_grad", "fc2.weight_grad"):
        assert many[name].own > 4 * few[name].own
        assert many[name].cublas > 4 * few[name].cublas


@pytest.mark.parametrize(("precision", "layers", "batch", "optimizer", "taken"), [
    ("tf32", (4096, 4096, 4096, 10), 1024, ADAM, "fc1 fc2 input"),
    ("tf32", (2048, 2048, 2048, 10), 16384, ADAM, "fc1 fc2 input"),
    ("tf32", (2048, 2048, 2048, 10), 256, Optimizer(), "fc1 fc2 input"),
    ("tf32", (784, 512, 512, 10), 16384, ADAM, "fc2"),
    ("bf16", (2048, 2048, 2048, 10), 256, ADAM, ""),
    ("bf16", (8192, 8192, 8192, 10), 1024, Optimizer(), "input"),
    ("bf16", (4096, 4096, 4096, 10), 4096, Optimizer(), "fc1 fc2"),
    ("bf16", (4096, 4096, 4096, 10), 16384, ADAM, "fc1 fc2")], ids=str)
def test_gradients_are_the_librarys_where_steps_were_measured_to_be_shorter(
        precision: str, layers: tuple[int, ...], batch: int, optimizer: Optimizer,
        taken: str) -> None:
    """docs/notes/mma.md has the steps. "fc1" is its weight gradient, "input" fc2's input
    gradient."""
    network, recipe, data_spec = Network(layers), Recipe(batch, optimizer), DataSpec(4 * batch)
    plan = select(f"mma,{precision}", network, 4, CAPABLE, batch=batch, recipe=recipe,
                  data_spec=data_spec).apply(training_step(network, recipe, data_spec))[0]
    found = {"input" if each.op.name == "fc2.input_grad" else each.op.name.partition(".")[0]
             for each in expected_times(plan)
             if each.is_faster and not each.op.name.endswith("forward")}
    assert found == {*taken.split()}


@pytest.mark.parametrize(("precision", "aligned"), [("tf32", 4), ("bf16", 8)])
def test_rows_that_are_not_aligned_are_left_to_mma(precision: str, aligned: int) -> None:
    """Whichever operand has them."""

    def expected(*layers: int) -> set[str]:
        network, recipe, data_spec = Network(layers), Recipe(BATCH, ADAM), DataSpec(14 * BATCH)
        plan = select(f"mma,{precision}", network, 14, CAPABLE, batch=BATCH, recipe=recipe,
                      data_spec=data_spec).apply(training_step(network, recipe, data_spec))[0]
        return {each.op.name for each in expected_times(plan)}

    step = aligned // 2
    first = {"fc1.forward", "fc1.weight_grad"}
    second = {"fc2.forward", "fc2.input_grad", "fc2.weight_grad"}
    third = {"fc3.forward", "fc3.input_grad", "fc3.weight_grad"}
    layers = (1000, 1008, 1016, 1024)
    assert expected(*layers) == first | second | third
    assert expected(1000 + step, *layers[1:]) == second | third
    assert expected(1000, 1008 + step, 1016, 1024) == {"fc1.forward"} | third
    assert expected(1000, 1008, 1016 + step, 1024) == first | {"fc2.forward"}


@pytest.mark.parametrize(("layers", "batch", "compute", "calls"), [
    ((784, 127, 127, 127, 10), 4096, (9, 0), 0), ((784, 1024, 127, 1024, 10), 127, (9, 0), 0),
    ((784, 1024, 1024, 10), 4096, (8, 0), 0), ((784, 128, 10), 128, (9, 0), 1),
    ((784, 10, 1024, 10), 4096, (9, 0), 0), ((100, 784, 1024, 10), 4096, (9, 0), 1),
    ((784, 1024, 1024, 10), 4096, (9, 0), 1)], ids=str)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_step_is_planned_only_if_a_gemm_is_large_enough(
        monkeypatch: pytest.MonkeyPatch, layers: tuple[int, ...], batch: int,
        compute: tuple[int, int], calls: int, precision: str) -> None:
    """Where it is not, none of its GEMMs has expected times."""
    planned: list[Any] = []

    def counted(*arguments: Any) -> Any:
        planned.append(arguments)
        return training_step(*arguments)

    network, recipe, data_spec = Network(layers), Recipe(batch, ADAM), DataSpec(14 * batch)
    machine = replace(CAPABLE, compute_capability=compute, measure=lambda: gpu_named(
        {(9, 0): "H200", (8, 0): "A100"}[compute]))
    plan = select(f"mma,{precision}", network, 14, machine, batch=batch, recipe=recipe,
                  data_spec=data_spec).apply(training_step(network, recipe, data_spec))[0]
    assert bool(expected_times(plan)) == bool(calls)
    monkeypatch.setattr(cublas_payoff, "training_step", counted)
    found = cublas_payoff.evaluate_cublas(network, recipe, data_spec, precision, machine)
    assert len(planned) == calls
    assert calls or found == (False, "")


def test_a_run_takes_cublas_once_it_saves_more_than_a_cold_load() -> None:
    """With as many steps as save a second; not with as many as save a warm load."""
    recipe, data_spec = Recipe(BATCH, ADAM), DataSpec(14 * BATCH)

    def taken(steps: int | None) -> tuple[bool, str]:
        return cublas_payoff.evaluate_cublas(WIDE, recipe, data_spec, "tf32", CAPABLE, (), steps)

    plan = chosen("mma,tf32").apply(training_step(WIDE, recipe, data_spec))[0]
    saved = sum(each.own - each.cublas for each in expected_times(plan) if each.is_faster)
    assert taken(None)[0]
    assert taken(int(1e6 / saved) + 1)[0]
    for seconds in (0.2, 0.87):
        is_taken, why = taken(int(seconds * 1e6 / saved))
        assert not is_taken
        assert "steps are too few to earn its loading, about 0.9 s" in why


@pytest.mark.parametrize("optimizer", [Optimizer("sgd", 0.1), Optimizer("adam", 0.01)],
                         ids=["sgd", "adam"])
@pytest.mark.parametrize(("precision", "options"), [
    ("tf32", {}), ("tf32", {"network_options": {"activation": "gelu"}}),
    ("tf32", {"network_options": {"bias": False, "loss": "mse"}}), ("tf32", {"partial": True}),
    ("bf16", {}), ("fp16", {}), ("bf16,sr", {}),
])
def test_a_step_of_both_computes_the_same(precision: str, optimizer: Optimizer,
                                          options: dict[str, Any]) -> None:
    """On the host, on the simulated GPU, and as without any toggle that changes GEMMs."""
    data = dataset_for(Network(LAYERS, **options.get("network_options", {})), 44, 8)
    apart = make_work(f"{precision},preload", LAYERS, data, optimizer=optimizer, **options)
    wanted = trained(HostRunner(apart))
    types = {t.dtype for t in apart.train.tensors.values() if t.floating}
    bound = tolerances.of_run(types) * (4 if "sr" in precision else 1)
    for names in (GEMMS[:2], GEMMS[3:5], GEMMS[5:]):
        both = make_work(f"{precision},preload,mma,cublas={'+'.join(names)},fuse", LAYERS, data,
                         optimizer=optimizer, **options)
        assert {op.impl for op in both.train.ops} >= {"cublas"}
        with closing(Device(sim_backend(), 0, lambda message: None)) as device, \
                closing(GpuRunner(device, both)) as runner:
            simulated = trained(runner)
        for found in (trained(HostRunner(both)), simulated):
            for name, value in wanted.parameters.items():
                np.testing.assert_allclose(found.parameters[name], value, rtol=0, atol=bound,
                                           err_msg=name)


@pytest.mark.parametrize(("margin", "loads"), [(0.0, False), (1e9, True)])
def test_the_library_is_loaded_only_if_a_gemm_needs_it(monkeypatch: pytest.MonkeyPatch,
                                                       margin: float, loads: bool) -> None:
    monkeypatch.setattr(cublas_payoff, "MARGIN", margin)
    monkeypatch.setattr(cublas_payoff, "MIN_EXTENT", 1)
    monkeypatch.setattr(cublas_payoff, "ROW_BYTES", 1)
    backend = sim_backend()
    loaded: list[str] = []

    def library() -> Any:
        loaded.append("cuBLASLt")
        return backend.cublaslt()

    data = dataset_for(Network(LAYERS), 40, 8)
    with closing(Device(replace(backend, cublaslt=library), 0, lambda message: None)) as device, \
            closing(GpuRunner(device, make_work("tf32,preload,arena,mma,cublas=auto,fuse", LAYERS,
                                                data))) as runner:
        trained(runner)
    assert bool(loaded) == loads
