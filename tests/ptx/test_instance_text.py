"""Kernels that are made of an optimizer's functor, beside those of the same functor that are
written by hand: the same text, or the same bits."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from rawnn.model.optimizers import UPDATE_RULES, UpdateRule
from rawnn.ptx import SOURCES
from rawnn.ptx.instance_text import instance_text, with_instance_text
from tests import requires
from tests.ptx.emulator.emulator import Kernels

SETTINGS = {"sgd": {}, "momentum": {"momentum": "float", "nesterov": "bool"},
            "adam": {"beta1": "double", "beta2": "double", "eps": "float", "decoupled": "bool"}}
GIVEN = {"momentum": {"momentum": 0.9, "nesterov": True}, "sgd": {},
         "adam": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "decoupled": False}}
FUSED = {"sgd": ("gemm_update", "Sgd"), "momentum": ("gemm_momentum", "Momentum"),
         "adam": ("gemm_adam", "ApproximateAdam")}
"""The kernel with the weight gradient's GEMM that is written by hand, and its functor."""


@pytest.fixture
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> UpdateRule:
    """The step of a kind as one that brings its functor."""
    step = UPDATE_RULES[request.param]
    found = replace(step, kind=f"made_{step.kind}", functor="Made", settings=SETTINGS[step.kind],
                    code=f"struct Made : {step.functor} {{ using {step.functor}::"
                         f"{'AdamBy' if step.functor == 'Adam' else step.functor}; }};")
    monkeypatch.setitem(UPDATE_RULES, found.kind, found)
    return found


def tokens(text: str) -> str:
    return re.sub(r"\s*(\W)\s*", r"\1", " ".join(text.split()))


@pytest.mark.parametrize("made", UPDATE_RULES, indirect=True)
def test_the_kernel_with_the_gemm_is_that_of_gemm_kernels(made: UpdateRule) -> None:
    name, functor = FUSED[made.kind.removeprefix("made_")]
    text = (SOURCES / "gemm" / "gemm_kernels.cuh").read_text()
    by_hand = re.search(rf"template [^;{{}}]*\b{name}\(.*?\n}}\n", text, re.DOTALL)
    assert by_hand
    whole = instance_text([f"gemm_{made.kind}<Mma,float>"])
    found = whole[whole.rindex("template <typename LOOP"):]
    found = found.replace(f"gemm_{made.kind}", name).replace("Made", functor)
    wanted = by_hand[0][by_hand[0].rindex("template <typename LOOP"):]
    assert tokens(found) == tokens(wanted)


@requires.GXX
@pytest.mark.parametrize("made", UPDATE_RULES, indirect=True)
def test_the_kernel_of_a_step_leaves_the_bits_of_that_by_hand(made: UpdateRule) -> None:
    kind = made.kind.removeprefix("made_")
    expressions = tuple(f"{name}<float,float,bfloat16>" for name in (kind, made.kind))
    library = Kernels((f"optimizers/{kind}.cu",), expressions).build()
    rng = np.random.default_rng(0)
    start = {name: rng.uniform(0, 1, (5, 13)).astype(np.float32) for name in ("w", *made.keeps)}
    dw = rng.normal(size=(5, 13)).astype(np.float32)
    numbers = {"share": 1.0, "other_share": 0.0, "lr": 0.1, "decay": 0.3, "copy_scale": 2.0,
               "offset": 2, "stochastic": False, "seed": 0, "stream": 0, "rows": 5, "cols": 13,
               **GIVEN[kind]}
    left = []
    for expression in expressions:
        arrays = {name: value.copy() for name, value in start.items()}
        arrays["copy"] = np.zeros((5, 13), ml_dtypes.bfloat16)
        library.call(expression, (1,), (64,), dw=dw, clock=np.array([0, 7], np.int32), **arrays,
                  **numbers)
        left.append(arrays)
    for name, array in left[0].items():
        assert array.tobytes() == left[1][name].tobytes(), name
    assert not np.array_equal(left[0]["w"], start["w"])


def test_a_source_without_such_instances_stays_as_it_is() -> None:
    text = (SOURCES / "optimizers" / "adam.cu").read_text()
    assert with_instance_text(text, ["adam<float,float,float>"]) == text
