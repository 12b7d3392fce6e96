"""A run that goes on takes what it took before: its toggles, how blocks share the work, its batch
and the launches that were measured, whatever tables, caches and remaining epochs say by then."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rawnn.common.errors import CheckpointError, ConfigError
from rawnn.engine.checkpoint import Checkpoint, find, read, write
from rawnn.engine.launch_choices import applied, choices_of, key_of, variants
from rawnn.engine.machine import Opened
from rawnn.engine.resolved_options import ResolvedOptions, read_resolved_options
from rawnn.engine.run_planner import RunPlanner
from rawnn.engine.runners.prepared_run import PreparedRun
from rawnn.engine.session import Session
from rawnn.model.layers import Network
from rawnn.opts import best_table as table
from rawnn.opts import persistent_payoff, select
from rawnn.persistent.choose import choose
from rawnn.persistent.problem import Unsupported
from rawnn.persistent.sharding import L2
from rawnn.persistent.spelling import exactly
from rawnn.ptx.kernels import kernel_for
from tests.engine import CAPABLE, LADDER, random_dataset, same_parameters
from tests.persistent.problems import HOPPER, VARIETY, problem
from tests.test_callbacks import OPTIONS, Stopper, go
from tests.test_training import Recorder

EARNING_EPOCHS = 5


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of EARNING_EPOCHS earns persistent's compilation, a shorter one does not."""
    judge = persistent_payoff.evaluate_payoff

    def judged(network: Any, recipe: Any, *others: Any) -> persistent_payoff.Verdict:
        if recipe.epochs < EARNING_EPOCHS:
            return persistent_payoff.Verdict(False, "too few steps")
        return judge(network, replace(recipe, epochs=10**8), *others)

    monkeypatch.setattr("rawnn.opts.presets.evaluate_payoff", judged)


def measured(path: Path, monkeypatch: pytest.MonkeyPatch, toggles: str, gpu: str) -> None:
    """The machine's table now says that these toggles are fastest for the tests' network."""
    monkeypatch.setenv(table.ENVIRONMENT, str(path))
    table.write(path, [table.Entry(
        gpu=gpu, layers=OPTIONS["layers"], batch=OPTIONS["batch"], precision="", toggles=toggles,
        us=0.1, others={}, driver="", commit="", date="")])


def received(recorder: Recorder, words: str) -> bool:
    return any(words in message for message in recorder.all("notify"))


def kept(folder: Path) -> Checkpoint:
    return find(folder, lambda message: None)[1]


@pytest.mark.parametrize("device", ["host", "sim"])
def test_a_resumed_run_takes_what_it_took_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_are_enough: None, device: str
) -> None:
    """With another table of measured toggles, and too few epochs to earn persistent."""
    whole = go(Stopper(4), device=device)
    part = go(Stopper(2), device=device, save=str(tmp_path / "a"))
    taken = kept(tmp_path / "a").taken
    measured(tmp_path / "best.json", monkeypatch, "tiled", taken["machine"])
    anew = go(device=device, epochs=4)
    recorder = Recorder()
    rest = go(recorder, device=device, epochs=4, resume=str(tmp_path / "a"))
    same_parameters(rest, whole)
    assert rest.resumed_epochs == 2
    assert received(recorder, "using the toggles of the resumed run, from ")
    assert rest.toggles.keys() == part.toggles.keys()
    assert [n if v is None else f"{n}={v}" for n, v in rest.toggles.items()] \
        == taken["toggles"].split(",")
    if device == "sim":  # what it would take now
        assert "persistent" in part.toggles
        assert anew.toggles.keys() - part.toggles.keys() == {"tiled"}
        assert part.toggles.keys() - anew.toggles.keys() >= {"persistent"}
        assert rest.toggles["persistent"].startswith("1x1:")


def test_what_is_kept_is_kept_on(tmp_path: Path, few_are_enough: None) -> None:
    """A run that was continued twice still takes the same."""
    go(Stopper(2), device="sim", save=str(tmp_path))
    first = kept(tmp_path).taken
    go(device="sim", epochs=3, resume=str(tmp_path), save=str(tmp_path))
    assert kept(tmp_path).epoch == 3
    assert kept(tmp_path).taken == first
    same_parameters(go(device="sim", epochs=4, resume=str(tmp_path)), go(Stopper(4), device="sim"))


def test_other_toggles_win(tmp_path: Path) -> None:
    go(Stopper(2), device="sim", save=str(tmp_path))
    recorder = Recorder()
    rest = go(recorder, device="sim", opt="preload,fuse", resume=str(tmp_path))
    assert set(rest.toggles) == {"preload", "arena", "fuse"}
    assert received(recorder, "--opt preload,fuse replaces the toggles of the resumed run")


def test_an_older_checkpoint_decides_anew(tmp_path: Path) -> None:
    go(Stopper(2), device="sim", save=str(tmp_path))
    path, found = find(tmp_path, lambda message: None)
    write(path, replace(found, taken={}))
    assert read(path).taken == {}
    recorder = Recorder()
    same_parameters(go(recorder, device="sim", resume=str(tmp_path)), go(device="sim"))
    assert not received(recorder, "the resumed run")


@pytest.mark.parametrize(("changed", "device", "words"), [
    ({}, "host", "are not used on the host: its toggles are those of another kind of machine"),
    ({"machine": "the host"}, "sim", "on the host (.*) are not used on "),
    ({"machine": "NVIDIA H200"}, "sim", "that was on NVIDIA H200, this is .*last bits may differ"),
    ({"toggles": "preload,arena,warp"}, "sim", "unknown toggle 'warp'.* selects others"),
    ({"toggles": "preload,arena,nosync,persistent=8x99:256:FFF"}, "sim",
     "16 clusters of 8 run at once here, for a batch of 8.*--opt best selects others"),
])
def test_what_cannot_be_taken_here_is_said(
    tmp_path: Path, changed: dict[str, str], device: str, words: str
) -> None:
    go(Stopper(2), device="sim", save=str(tmp_path))
    path, found = find(tmp_path, lambda message: None)
    write(path, replace(found, taken={**found.taken, **changed}))
    recorder = Recorder()
    rest = go(recorder, device=device, resume=str(tmp_path))
    assert rest.resumed_epochs == 2
    assert any(re.search(words, message) for message in recorder.all("notify"))
    assert all("\n" not in message for message in recorder.all("notify"))


def test_toggles_for_a_gpu_alone_are_left_out_where_the_run_goes_on_without_one(
        tmp_path: Path) -> None:
    """`opt` is that of the run before; where another one asks for them, they are refused."""
    opt = "preload,fuse,graphs"
    go(Stopper(2), device="sim", save=str(tmp_path), opt=opt)
    recorder = Recorder()
    rest = go(recorder, device="host", resume=str(tmp_path), opt=opt)
    assert rest.resumed_epochs == 2
    assert received(recorder, f"--opt {opt} selects others (preload, fuse)"), recorder.all("notify")
    assert "graphs does not apply on the host and is left out" in rest.notes
    with pytest.raises(ConfigError, match="graphs: only for a GPU"):
        go(device="host", resume=str(tmp_path), opt="preload,arena,graphs")


def test_toggles_that_make_no_sense(tmp_path: Path) -> None:
    for content in ({"asked": "best"}, {"asked": 1, "toggles": "", "machine": ""},
                    {"asked": "", "toggles": "", "machine": "", "choices": {"a": 3}}):
        with pytest.raises(CheckpointError, match="file is not a valid checkpoint"):
            read_resolved_options(content, "file")
    assert read_resolved_options({}, "file") is None


def test_the_largest_batch_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """batch=max follows the free memory, which is another each time."""
    from rawnn.opts import batch

    options: dict[str, Any] = {"device": "sim", "opt": "best,batch=max"}
    monkeypatch.setattr(batch, "_largest", lambda fits, examples: 10)
    part = go(Stopper(2), save=str(tmp_path), **options)
    whole = go(**options)
    assert "batch=10" in kept(tmp_path).taken["toggles"]
    monkeypatch.setattr(batch, "_largest", lambda fits, examples: 20)
    same_parameters(go(resume=str(tmp_path), **options), whole)
    assert part.toggles["batch"] == "max"


def tunable(opt: str = "preload,tiled,tune") -> Session:
    from rawnn.engine.config import Config

    options = {**OPTIONS, "layers": (70, 80, 9), "batch": 40, "device": "sim", "opt": opt}
    return Session(Config(**options), data=random_dataset(70, 9, 80, 20))


def test_launches_that_were_measured_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And applied again, though another run of `tune` has found others since."""
    with tunable() as session:
        plan = session.prepared.train
        op = next(op for op in plan.ops if op.impl == "tiled" and variants(op, plan))
        found = {key_of(op, plan): variants(op, plan)[0]}

    def tuned(device: Any, work: PreparedRun) -> PreparedRun:
        return applied(work, found)

    monkeypatch.setattr("rawnn.tuning.launch_tuning.tuned", tuned)
    with tunable() as session:
        assert choices_of(session.prepared) == choices_of(session.work) == found
        checkpoint = session.checkpoint(1)
    assert checkpoint.taken["choices"] == found
    monkeypatch.setattr("rawnn.tuning.launch_tuning.tuned", None)  # nobody measures again
    before = read_resolved_options(checkpoint.taken, "file")
    assert before is not None
    with tunable("preload,tiled") as session:
        opened = Opened(session.device, CAPABLE, 0.0)
        planner = RunPlanner(session.config, session.data, opened, None, print)
        _, work = planner.select_and_prepare(before.opt, before)
    assert choices_of(work) == found


@pytest.mark.parametrize("opt", sorted({*LADDER, "best,bf16", "best,-graphs", "none",
                                        "persistent,graphs=epoch", "mma=-skinny,fuse=-head"}))
def test_what_was_taken_can_be_typed(opt: str) -> None:
    """The words of a selection, behind none, select the same."""
    network = Network((29, 18, 7))
    first = select(opt, network, 10, CAPABLE, batch=8)
    again = select(",".join(["none", *first.words()]), network, 10, CAPABLE, batch=8)
    assert list(again.values.items()) == list(first.values.items())


@pytest.mark.parametrize("opt", ["none", "none,fuse", "none,pool", "none,graphs=3", "fuse",
                                 "pinned", "best"])
def test_a_record_names_the_option_that_selects_its_toggles(opt: str) -> None:
    """Without preload and arena where `none` left them out."""
    network = Network((29, 18, 7))
    words = select(opt, network, 10, CAPABLE, batch=8).words()
    again = select(ResolvedOptions(opt, ",".join(words), "typed").opt, network, 10, CAPABLE,
                   batch=8)
    assert again.words() == words


# -- how blocks share a step, in full --------------------------------------------------------------


@pytest.mark.parametrize("name", VARIETY)
def test_a_choice_can_be_asked_for_again(name: str) -> None:
    chosen = choose(problem(**VARIETY[name]), HOPPER)
    d = chosen.sharding
    again = exactly(d.problem, HOPPER, d.tp_size, d.dp_size, d.threads, d.boundaries,
                    transport=d.transport)
    assert again == chosen
    assert again.layout.places == chosen.layout.places


@pytest.mark.parametrize(("asked", "words"), [
    ((2, 99, 256, "FFFF"), "66 clusters of 2 run at once here"),
    ((3, 45, 256, "FFFF"), "44 groups of 3 run at once here"),
    ((133, 1, 256, "FFFF"), "0 groups of 133 run at once here"),
    ((2, 1, 100, "FFFF"), "blocks of 100 threads"), ((2, 1, 1024, "FFFF"), "512 at most"),
    ((2, 1, 256, "FFF"), "there are 4"), ((1, 1, 256, "FSFF"), "one block has all features"),
    ((2, 1, 256, "FSSF"), "a replicated one must follow a sharded one"),
    ((2, 1, 256, "GSFF"), "the first is F or S, the last F or S or G here"),
    ((2, 1, 256, "FSFF", 2, L2), "one group that exchanges through L2 takes none"),
])
def test_a_choice_that_cannot_be(asked: Any, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        exactly(problem(), HOPPER, *asked)
    assert "and a cost model decides" in str(caught.value)


def test_a_choice_that_does_not_fit() -> None:
    with pytest.raises(Unsupported, match="does not fit the chip as 1 x 1 blocks"):
        exactly(problem((400, 400, 400)), HOPPER, 1, 1, 256, "FFF")
    autoencoder = problem(**VARIETY["an autoencoder"])
    with pytest.raises(Unsupported, match="both are sharded"):
        exactly(autoencoder, HOPPER, 2, 1, 256, "SFF")


def test_the_toggle_takes_it_as_typed() -> None:
    network = Network((29, 18, 7))
    found = select("persistent=2x1:256:FSF", network, 10, CAPABLE, batch=8)
    assert found.values["persistent"] == "2x1:256:FSF"
    for wrong in ("2x1:256", "2x1:FSF", "2x1:0:FSF", "2x1:256:FXF"):
        with pytest.raises(ConfigError, match=f"persistent={wrong}: give auto"):
            select(f"persistent={wrong}", network, 10, CAPABLE, batch=8)


def test_the_kernel_is_the_one_that_was_chosen() -> None:
    """Its text, and so every order in which it adds up."""
    from rawnn.opts import TOGGLES
    from rawnn.opts.persistent import resolved_value
    from rawnn.plan.policy import Policy
    from tests.persistent.problems import prepared

    plan = replace(prepared(Network((40, 64, 17, 10))), target=CAPABLE.target)
    toggle = TOGGLES["persistent"]
    first = toggle.apply(plan, Policy(), "auto")[0]
    again = toggle.apply(plan, Policy(), resolved_value("auto", first))[0]
    assert kernel_for(again.ops[0]).code == kernel_for(first.ops[0]).code
    assert resolved_value("auto", plan) == "auto"


@pytest.mark.parametrize("words", ["1x2:256:FFFF:2", "2x2:256:FSFF:3", "2x1:256:FSFF",
                                   "2x1@l2:256:FSFF"])
def test_a_sharding_that_is_asked_for_is_the_one_that_is_reported(words: str) -> None:
    from rawnn.opts import TOGGLES
    from rawnn.opts.persistent import resolved_value
    from rawnn.plan.policy import Policy
    from tests.persistent.problems import prepared

    plan = replace(prepared(Network((40, 64, 17, 10)), 12), target=CAPABLE.target)
    assert resolved_value("auto", TOGGLES["persistent"].apply(plan, Policy(), words)[0]) == words
