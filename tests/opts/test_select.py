"""From text to toggles: parsing, implication, refusals, presets on different machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rawnn.common.errors import ConfigError
from rawnn.model.layers import Network
from rawnn.opts import TOGGLES, Selection, select
from rawnn.opts.registry import Machine
from rawnn.opts.select import check_text
from tests.engine import CAPABLE

LINEAR, DEEP = Network((784, 10)), Network((784, 128, 10))
HOST = Machine("no NVIDIA driver can be loaded")
BARE = Machine(None, (9, 0), 13000, lambda package: False)
OLD = Machine(None, (9, 0), 12020, lambda package: True)


def chosen(text: str, network: Network = DEEP, steps: int = 468, machine: Machine = CAPABLE,
           **more: bool) -> Selection:
    return select(text, network, steps, machine, **more)


@pytest.mark.parametrize(("text", "words"), [
    ("", []), ("none", []), (" , ,", []), ("none,cublas", ["cublas"]),
    ("none,cublas,preload", ["preload", "cublas"]),  # in the order in which they are applied
    ("none, fuse , arena", ["arena", "fuse"]), ("none,report", ["report=10"]),
    ("none,report=3", ["report=3"]), ("none,fuse", ["fuse"]),
    ("none,graphs", ["arena", "nosync", "graphs=auto"]),
    ("none,preload,graphs=7", ["preload", "arena", "nosync", "graphs=7"]),
    ("best,graphs=while", ["preload", "arena", "nosync", "mma=wgmma", "fuse", "streams", "pdl",
                           "graphs=while"]),
    ("seed", ["preload", "arena", "nosync", "report=10", "cublas", "cudnn", "fuse",
              "streams", "graphs=auto"]),
    ("seed,-cudnn,report=5", ["preload", "arena", "nosync", "report=5", "cublas", "fuse",
                              "streams", "graphs=auto"]),
    ("seed,-arena,arena,-nosync,nosync", [
        "preload", "arena", "nosync", "report=10", "cublas", "cudnn", "fuse", "streams",
        "graphs=auto"]),  # which graphs implies
    ("best,-fuse,fuse", ["preload", "arena", "nosync", "mma=wgmma", "fuse", "streams", "pdl",
                         "graphs=epoch"]),
])
def test_text_becomes_toggles_in_their_order(text: str, words: list[str]) -> None:
    assert chosen(text).words() == words


@pytest.mark.parametrize(("text", "words"), [
    ("graphs,cublas,cudnn", ["preload", "arena", "nosync", "cublas", "cudnn", "graphs=auto"]),
    ("fuse", ["preload", "arena", "fuse"]), ("preload", ["preload", "arena"]),
    ("fuse,-preload", ["arena", "fuse"]), ("-arena,fuse", ["preload", "fuse"]),
    ("-preload,-arena", []), ("-preload,preload", ["preload", "arena"]),
    ("pool", ["preload", "pool"]), ("fuse,async", ["preload", "async", "fuse"]),
    ("pinned", ["arena", "pinned"]), ("pinned,pool", ["pool", "pinned"]),
    ("pinned,preload", ["preload", "arena", "pinned"]),
    ("preload,pinned", ["preload", "arena", "pinned"]),
    ("graphs=while,-arena,none", []), ("none,pool", ["pool"]), ("none,pinned", ["pinned"]),
])
def test_a_list_starts_with_data_and_buffers_on_the_device(text: str, words: list[str]) -> None:
    found = chosen(text)
    assert found.words() == words
    assert not [note for note in found.notes if "which" in note]


@pytest.mark.parametrize(("last", "words"), [
    ("preload", ["preload"]), ("fuse", ["preload", "arena", "nosync", "fuse"]),
    ("graphs", ["preload", "arena", "nosync", "fuse", "streams", "graphs=auto"]),
    ("cublas", ["preload", "arena", "nosync", "fuse", "streams", "graphs=auto"])])
def test_a_selection_through_one_of_its_toggles(last: str, words: list[str]) -> None:
    assert chosen("graphs,streams,fuse").through(last).words() == words


def test_on_the_host_a_list_starts_with_preload() -> None:
    assert chosen("fuse", machine=HOST).words() == ["preload", "fuse"]
    assert chosen("none,fuse", machine=HOST).words() == ["fuse"]
    assert chosen("pinned,fuse", machine=HOST, lenient=True).words() == ["fuse"]


@pytest.mark.parametrize("text", ["report=3,report=4", "graphs=epoch,fuse,graphs=while",
                                  "best,fuse,fuse", "cublas,cublas"])
def test_a_toggle_given_twice_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"'\w+' is given twice: leave one of them out"):
        chosen(text)
    assert chosen("fuse,-fuse,fuse").words() == ["preload", "arena", "fuse"]


def test_what_is_implied_is_marked() -> None:
    found = chosen("none,graphs=step,arena")
    assert found.implied == {"nosync"}
    assert str(found) == "arena, nosync (implied), graphs=step"
    assert str(chosen("")) == "none"
    assert chosen("seed").implied == frozenset()


@pytest.mark.parametrize(("text", "sentence"), [
    ("cublass", "unknown toggle 'cublass'; did you mean 'cublas'?"),
    ("Fuse", "unknown toggle 'Fuse'; did you mean 'fuse'?"),
    ("xyzzy", "unknown toggle 'xyzzy'; the toggles are preload, arena"),
    ("best,-xyzzy", "unknown toggle 'xyzzy'"), ("-", "unknown toggle ''"),
    ("=", "unknown toggle ''"),
    ("preload=1", "the toggle 'preload' takes no value, but got '=1'"),
    ("preload=", "takes no value"),
    ("report=0", "report=0: give a whole number of at least 1"),
    ("report=often", "report=often: give a whole number"), ("report=", "report=: give"),
    ("report=1.5", "report=1.5: give"),
    ("graphs=0", "graphs=0: give auto, step, epoch, while or a number of steps"),
    ("graphs=", "graphs=: give auto"), ("graphs=-1", "graphs=-1: give auto"),
    ("graphs=Epoch", "graphs=Epoch: give auto"), ("graphs=²", "graphs=²: give auto"),
    ("graphs=" + "9" * 5000, "give auto, step, epoch, while or a number of steps"),
    ("-cudnn", "'-cudnn' removes a toggle that is not on; write it after a preset, as in "
               "best,-cudnn"),
    ("-cudnn,best", "removes a toggle that is not on"),
    ("best,-arena", "'graphs' implies 'arena', which '-arena' takes away: leave out '-arena', "
                    "or graphs as well"),
    ("best,none", "'best' and 'none' are presets, and there can be only one: leave one out"),
    ("seed,graphs,best", "'seed' and 'best' are"), ("none,best,none", "'best' and 'none' are"),
    ("best,fuse,best", "'best' is given twice: leave one of them out"),
    ("none=3", "'none' is a preset"), ("-best", "'best' is a preset"), ("best=1", "is a preset"),
])
def test_refusals_say_what_is_wrong(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["cublass", "best,none", "best,fuse,fuse", "report=0", "-best",
                                  "best,-xyzzy", "preload=1", "-cudnn"])
def test_a_text_is_refused_without_a_network_as_with_one(text: str,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as wanted:
        chosen(text)
    monkeypatch.setattr("rawnn.opts.presets.resolve", None)  # which takes long
    with pytest.raises(ConfigError) as found:
        check_text(text)
    assert str(found.value) == str(wanted.value)
    for fine in ("", "none", "best,-cudnn", "-arena,fuse", "seed,report=3", "best,bf16,fuse=-head"):
        check_text(fine)


def test_removing_what_a_preset_is_without_is_a_note() -> None:
    found = chosen("best,-cudnn")
    assert "cudnn" not in found.values
    assert "'-cudnn' changes nothing: best is without cudnn here" in found.notes


def test_best_on_a_capable_machine() -> None:
    linear, deep = chosen("best", LINEAR), chosen("best", DEEP)
    assert linear.words() == deep.words() == ["preload", "arena", "nosync", "mma=wgmma", "fuse",
                                              "streams", "pdl", "graphs=epoch"]
    assert any("mma" in note and "three of tf32" in note for note in deep.notes)
    assert linear.implied == frozenset()


def test_best_unrolls_a_long_epoch_by_parts() -> None:
    assert chosen("best", DEEP, steps=100_000).values["graphs"] == 200
    assert chosen("best", LINEAR, steps=10_000).values["graphs"] == "epoch"
    assert chosen("best", LINEAR, steps=10_001).values["graphs"] == 200


def test_best_without_tensor_cores_for_float32_takes_cublas() -> None:
    old = replace(CAPABLE, compute_capability=(7, 5))
    assert "cublas" in chosen("best", Network((784, 33)), machine=old).values
    assert "cublas" not in chosen("best", Network((784, 32)), machine=old).values
    for network in (LINEAR, DEEP):
        assert any("cudnn" in note for note in chosen("best", network, machine=old).notes)


def test_best_without_cublas_or_with_an_old_driver_says_so() -> None:
    bare = chosen("best", machine=replace(BARE, compute_capability=(7, 5)))
    old = chosen("best", machine=OLD)
    assert "cublas" not in bare.values
    assert any("goes without cublas" in n and "pip install" in n for n in bare.notes)
    assert "graphs" not in old.values
    assert any("goes without graphs" in n and "update the NVIDIA driver" in n for n in old.notes)


@pytest.mark.parametrize(("text", "machine", "sentence"), [
    ("cublas", BARE, "'cublas' cannot run here: it needs nvmath-python and the cuBLAS wheel: pip"),
    ("cudnn", BARE, "'cudnn' cannot run here: it needs the cuDNN wheel: pip install"),
    ("seed", BARE, "cannot run here"),
    ("graphs", OLD, "'graphs' cannot run here: it needs a driver for CUDA 12.3 or newer: update"),
])
def test_a_toggle_the_machine_cannot_run_is_refused_with_the_fix(
    text: str, machine: Machine, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        chosen(text, machine=machine)


@pytest.mark.parametrize(("toggle", "enough", "too_old"), [
    ("graphs", {"driver": 12030}, {"driver": 12029}),
    ("mma", {"compute_capability": (8, 0)}, {"compute_capability": (7, 5)}),
    ("pdl", {"compute_capability": (9, 0)}, {"compute_capability": (8, 9)}),
    ("tf32", {"compute_capability": (8, 0)}, {"compute_capability": (7, 5)}),
])
def test_the_oldest_machine_that_a_refusal_names_can_run_it(
        toggle: str, enough: dict[str, Any], too_old: dict[str, Any]) -> None:
    """Driver and compute capability that CUDA documents as the first with the feature."""
    assert toggle in chosen(toggle, machine=replace(CAPABLE, **enough)).values
    (least,) = enough.values()
    said = f"CUDA {least // 1000}.{least % 1000 // 10}" if isinstance(least, int) \
        else "{}.{}".format(*least)
    with pytest.raises(ConfigError, match=rf"'{toggle}' cannot run here: it needs .*{said}"):
        chosen(toggle, machine=replace(CAPABLE, **too_old))


def test_on_the_host_only_what_means_something_there() -> None:
    assert chosen("best", machine=HOST).words() == ["preload", "fuse"]
    assert chosen("preload,report=2,fuse", machine=HOST).words() == ["preload", "report=2", "fuse"]
    with pytest.raises(ConfigError, match=r"arena, cublas: only for a GPU, .*--opt arena,cublas"):
        chosen("arena,cublas,fuse", machine=HOST)


def test_lenient_leaves_out_what_means_nothing_on_the_host() -> None:
    found = chosen("seed", machine=HOST, lenient=True)
    assert found.words() == ["preload", "report=10", "fuse"]
    message, = (note for note in found.notes if "do not apply on the host and are left out" in note)
    assert set(message.partition(" do ")[0].split(", ")) == \
        {"arena", "nosync", "cublas", "cudnn", "streams", "graphs"}


def test_every_toggle_describes_itself() -> None:
    for name, toggle in TOGGLES.items():
        assert toggle.name == name
        assert toggle.claim
        assert toggle.source
        assert toggle.group in ("memory", "scheduling", "kernels", "numbers", "scale")
        assert all(other in TOGGLES for other in (*toggle.implies, *toggle.conflicts))
        # Toggles that another brings in are applied ahead of it, in one order for all.
        assert all(list(TOGGLES).index(o) < list(TOGGLES).index(name) for o in toggle.implies)
