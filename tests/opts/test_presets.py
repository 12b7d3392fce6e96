"""`best`: from the table of measured toggles where it has an entry near, else by rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rawnn.common.target import gpu_named
from rawnn.model.layers import Network
from rawnn.model.optimizers import Optimizer
from rawnn.opts import TOGGLES, Selection, presets, select
from rawnn.opts import best_table as table
from rawnn.opts.best_table import Entry
from rawnn.opts.cublas import library_gemms
from rawnn.opts.persistent_payoff import Verdict
from rawnn.opts.precision_names import PRECISIONS, precision_of
from rawnn.opts.registry import Machine
from rawnn.plan.build import training_step
from rawnn.plan.recipe import DataSpec, Recipe
from tests.engine import CAPABLE

PACKAGED = table.PACKAGED
DEEP = Network((784, 784, 784, 784, 784, 10), bias=False)
HOPPER = replace(CAPABLE, name="NVIDIA H200")
ENTRY = Entry(gpu="NVIDIA H200", layers=DEEP.layers, batch=64, precision="bf16",
              toggles="mma=sync,fuse,pdl", us=38.1, others={"cublas": 61.2, "cublas,fuse": 70.0},
              driver="580", commit="c", date="d")


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of the user's, and nothing in the package's."""
    monkeypatch.setenv(table.ENVIRONMENT, str(tmp_path / "best.json"))
    monkeypatch.setattr(table, "PACKAGED", tmp_path / "packaged.json")
    return tmp_path / "best.json"


def chosen(text: str, network: Network = DEEP, batch: int = 64, steps: int = 468,
           machine: Machine = HOPPER) -> Selection:
    return select(text, network, steps, machine, batch=batch)


@pytest.mark.parametrize(("words", "precision"), [
    ("", ""), ("fuse,mma", ""), ("bf16", "bf16"), ("bf16,sr", "sr"), ("sr,bf16", "sr"),
    ("fp16=acc16,-fuse", "fp16=acc16"), ("fp16=acc32", "fp16"), ("tf32,-tf32", ""),
    ("bf16,-bf16,tf32", "tf32"), ("fp16=acc16,fp16", "fp16"), ("fp8", "fp8"),
])
def test_numbers_are_read_from_the_words(words: str, precision: str) -> None:
    assert precision_of(words.split(",")) == precision


def test_the_numbers_are_toggles_of_their_group() -> None:
    known = {word.partition("=")[0] for word in PRECISIONS}
    assert {n for n, t in TOGGLES.items() if t.group == "numbers"} <= known | {"batch"}


def test_best_takes_what_was_fastest_and_says_so(user: Path) -> None:
    table.remember(user, ENTRY)
    found = chosen("best,bf16")
    assert found.words() == ["preload", "arena", "nosync", "bf16", "mma=sync", "fuse", "pdl",
                             "graphs=epoch"]
    assert found.notes[0] == (
        "best takes mma=sync, fuse, pdl: measured on NVIDIA H200 for 784-784-784-784-784-10 at "
        "batch 64: 38.1 us a step, cublas 61.2")


def test_an_entry_is_for_its_numbers_and_its_gpu_only(user: Path) -> None:
    table.remember(user, ENTRY)
    for found in (chosen("best"), chosen("best,tf32"),
                  chosen("best,bf16", machine=replace(HOPPER, name="NVIDIA H100"))):
        assert not any("measured" in note for note in found.notes)


def test_an_entry_is_for_its_network_and_its_batch_only(user: Path) -> None:
    table.remember(user, ENTRY)
    near = Network((784, 784, 784, 784, 780, 10), bias=False)
    assert any("measured" in n for n in chosen("best,bf16").notes)
    for network, batch in ((near, 64), (DEEP, 65), (Network((784, 784, 10)), 64)):
        assert not any("measured" in n for n in chosen("best,bf16", network, batch=batch).notes)


FLOATS = DataSpec(64 * 468, inputs="float32", labels="uint8")


@pytest.mark.parametrize(("network", "optimizer", "data_spec", "matches"), [
    (DEEP, "sgd", DataSpec(64 * 468), True), (DEEP, "sgd", FLOATS, False),
    (DEEP, "sgd", DataSpec(64 * 468, normalised=True), False),
    (DEEP, "adam", DataSpec(64 * 468), False),
    (replace(DEEP, loss="mse"), "sgd", DataSpec(64 * 468), False),
])
def test_an_entry_is_for_the_step_that_was_measured(
        user: Path, network: Network, optimizer: str, data_spec: DataSpec, matches: bool) -> None:
    """Fused kernels exist for some losses, optimizers and input dtypes only."""
    recipe = Recipe(64, Optimizer("sgd"))
    stated = msgspec.structs.replace(
        ENTRY, conditions=table.conditions_of(DEEP, recipe, DataSpec(64 * 468)))
    for entry, finds in ((stated, matches), (ENTRY, True)):  # a table of an earlier version
        table.write(user, [entry])
        found = select("best,bf16", network, 468, HOPPER, batch=64,
                       recipe=Recipe(64, Optimizer(optimizer)), data_spec=data_spec)
        assert any("measured" in note for note in found.notes) == finds
    assert any("measured" in note for note in chosen("best,bf16").notes)  # nothing else is known


def test_a_time_of_bytes_does_not_stand_for_float32_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200, `wide128` in bf16 takes 6.7 us by two kernels that read bytes. On float32 inputs,
    which they do not read, it takes 16.6."""
    monkeypatch.setattr(table, "PACKAGED", PACKAGED)
    network = Network((784, 128, 128, 128, 10))
    recipe = Recipe(32, Optimizer(), epochs=1000)
    taken = {inputs: "persistent" in select(
        "best,bf16", network, 1875, HOPPER, batch=32, recipe=recipe,
        data_spec=DataSpec(60_000, inputs=inputs)).values for inputs in ("uint8", "float32")}
    assert taken == {"uint8": False, "float32": True}


def test_the_users_table_wins_over_the_packages(user: Path) -> None:
    table.remember(table.PACKAGED, replace_toggles(ENTRY, "cublas"))
    assert "cublas" in chosen("best,bf16").values
    table.remember(user, ENTRY)
    assert "mma" in chosen("best,bf16").values


def replace_toggles(entry: Entry, toggles: str) -> Entry:
    return Entry(**{**{f: getattr(entry, f) for f in entry.__struct_fields__},
                    "toggles": toggles})


@pytest.mark.parametrize(("toggles", "reason"), [
    ("pdl", "needs compute capability 9.0"), ("fuse,nonsense", "is unknown to this version"),
    ("mma=nonsense", "is unknown to this version"),
])
def test_what_cannot_run_here_leaves_the_rule(user: Path, toggles: str, reason: str) -> None:
    table.remember(user, replace_toggles(ENTRY, toggles))
    found = chosen("best,bf16", machine=replace(HOPPER, compute_capability=(8, 0)))
    assert found.words() == ["preload", "arena", "nosync", "bf16", "mma=sync", "fuse", "streams",
                             "graphs=epoch"]
    assert "best goes by rule" in found.notes[0]
    assert reason in found.notes[0]


@pytest.mark.parametrize(("toggles", "known"), [("fuse,mma=sync", 38.1), ("pdl", None)])
def test_persistent_is_compared_with_a_time_of_toggles_that_run_here(
        user: Path, monkeypatch: pytest.MonkeyPatch, toggles: str, known: float | None) -> None:
    table.remember(user, replace_toggles(ENTRY, toggles))
    asked: list[float | None] = []

    def payoff(network: object, recipe: object, data: object, precision: str, machine: object,
               us: float | None) -> Verdict:
        asked.append(us)
        return Verdict(False)

    monkeypatch.setattr(presets, "evaluate_payoff", payoff)
    select("best,bf16", DEEP, 468, replace(HOPPER, compute_capability=(8, 0)), batch=64,
           recipe=Recipe(64, Optimizer()))
    assert asked == [known]


def test_a_broken_table_is_a_note(user: Path) -> None:
    user.write_text("nonsense")
    found = chosen("best,bf16")
    assert "mma" in found.values
    assert "cannot be read" in found.notes[0]


@pytest.mark.parametrize("precision", ["", ",bf16", ",sr", ",fp16", ",fp16=acc16", ",tf32"])
def test_the_rule_for_tensor_cores(precision: str) -> None:
    for network in (DEEP, Network((784, 10))):
        words = chosen(f"best{precision}", network).words()
        behind = words[words.index("mma=wgmma") + 1 :]
        assert behind == ["fuse", "streams", "pdl", "graphs=epoch"]


def test_the_rule_where_tensor_cores_take_nothing() -> None:
    old = replace(HOPPER, compute_capability=(7, 5))
    assert "cublas" in chosen("best", machine=old).values
    assert chosen("best,bf16", machine=old).words() == [
        "preload", "arena", "nosync", "bf16", "cublas", "fuse", "streams", "graphs=epoch"]


def test_best_never_changes_the_numbers(user: Path) -> None:
    precision = {n for n, t in TOGGLES.items() if t.group == "numbers"}
    for asked in ("", ",bf16", ",tf32", ",sr"):
        found = chosen("best" + asked)
        assert set(found.values) & precision <= {asked[1:], "bf16" if asked == ",sr" else ""}


def test_what_is_typed_replaces_what_best_chose(user: Path) -> None:
    found = chosen("best,bf16,cublas")
    assert "mma" not in found.values
    assert "cublas replaces mma, which best takes here" in found.notes


def test_a_long_epoch_is_unrolled_by_parts() -> None:
    assert chosen("best,bf16", steps=100_000).values["graphs"] == presets.UNROLLED_STEPS


def test_a_kernel_of_whole_epochs_is_not_unrolled() -> None:
    """Only launches are nodes: an epoch of the kernel is one, however long."""
    steps = presets.MAX_UNROLLED_NODES
    found = select("best", Network((784, 128, 10)), steps, HOPPER, batch=128,
                   recipe=Recipe(128, epochs=2000), data_spec=DataSpec(128 * steps)).values
    assert "persistent" in found
    assert found["graphs"] == "epoch"


# -- cuBLASLt beside mma ---------------------------------------------------------------------------

WIDE, SMALL = Network((784, 1024, 1024, 1024, 10)), Network((784, 128, 10))


def for_run(text: str, network: Network = WIDE, batch: int = 4096, machine: Machine = HOPPER,
            epochs: int = 2000) -> Selection:
    """As `chosen`, with what is known of a run."""
    return select(text, network, 14, machine, batch=batch, data_spec=DataSpec(14 * batch),
                  recipe=Recipe(batch, Optimizer("adam", 1e-3), epochs=epochs))


def by_cublas(selection: Selection, network: Network = WIDE, batch: int = 4096) -> set[str]:
    """The ops of a step that cuBLASLt computes."""
    plan = training_step(network, Recipe(batch, Optimizer("adam", 1e-3)), DataSpec(14 * batch))
    return {op.name for op in selection.apply(plan)[0].ops if op.impl == "cublas"}


def test_best_takes_cublas_for_large_gemms_and_says_so() -> None:
    found = for_run("best,tf32")
    assert found.words()[4:7] == ["mma=wgmma", "cublas=auto", "fuse"]
    assert by_cublas(found) == {"fc1.forward", "fc2.forward", "fc3.forward", "fc1.weight_grad"}
    note, = (note for note in found.notes if "cublas" in note)
    assert note.startswith("best takes cublas for fc1.forward, fc2.forward")
    assert "us are expected of them" in note


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("width", [1024, 2048, 4096])
def test_the_gemms_that_best_names_are_those_of_the_step(width: int, optimizer: str,
                                                         ranks: int) -> None:
    network = Network((784, width, width, 10))
    recipe = Recipe(4096 * ranks, Optimizer(optimizer, 1e-3), epochs=10_000, world_size=ranks)
    data_spec = DataSpec(14 * 4096 * ranks)
    found = select("best,tf32" + (",nccl" if ranks > 1 else ""), network, 14, HOPPER, batch=4096,
                   recipe=recipe, data_spec=data_spec)
    note, = (note for note in found.notes if "cublas" in note)
    named = note.partition(":")[0].removeprefix("best takes cublas for ").split(", ")
    step = training_step(network, recipe, data_spec)
    assert {*named} == {*library_gemms(found.apply(step)[0])}


@pytest.mark.parametrize(("words", "network", "batch", "gpu"), [
    ("best,tf32", SMALL, 4096, "H200"), ("best,tf32", WIDE, 64, "H200"),
    ("best,bf16", WIDE, 64, "H200"), ("best", WIDE, 4096, "H200"),  # float32
    ("best,fp8", WIDE, 4096, "H200"), ("best,tf32", WIDE, 4096, "A100"),
    ("best,tf32,-cublas", WIDE, 4096, "H200"),
])
def test_best_leaves_cublas_out_where_it_is_not_expected_to_be_faster(
        words: str, network: Network, batch: int, gpu: str) -> None:
    target = gpu_named(gpu)
    machine = Machine(None, target.capability, 13000, lambda name: True, name=gpu,
                      measure=lambda: target)
    found = for_run(words, network, batch, machine)
    assert "cublas" not in found.values
    assert not by_cublas(found, network, batch)


@pytest.mark.parametrize(("missing", "reason"), [
    ("nvmath", "needs nvmath-python and the cuBLAS wheel: pip"), ("cublasLt", "needs the cuBLAS")])
def test_best_goes_without_a_cublas_that_is_missing(missing: str, reason: str) -> None:
    found = for_run("best,tf32", machine=replace(HOPPER, has_package=lambda name: name != missing))
    assert "cublas" not in found.values
    assert not by_cublas(found)
    assert any(f"best goes without cublas, which {reason}" in note for note in found.notes)


def test_a_run_of_few_steps_does_not_load_cublas() -> None:
    found = for_run("best,tf32", epochs=1)
    assert "cublas" not in found.values
    assert any("14 steps are too few to earn its loading" in note for note in found.notes)


@pytest.mark.parametrize(("toggles", "ops"), [
    ("mma,fuse,pdl", set[str]()), ("mma,cublas=fc1.forward,fuse", {"fc1.forward"})])
def test_which_gemms_cublas_computes_is_as_tune_measured(user: Path, toggles: str,
                                                         ops: set[str]) -> None:
    table.remember(user, replace_toggles(msgspec.structs.replace(
        ENTRY, layers=WIDE.layers, batch=4096, precision="tf32"), toggles))
    assert by_cublas(for_run("best,tf32")) == ops
