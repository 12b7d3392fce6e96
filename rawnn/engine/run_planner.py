"""Resolves the toggles and the batch of a run, and builds its plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rawnn.common.errors import ConfigError
from rawnn.data import Dataset, Normalisation
from rawnn.distributed import Team
from rawnn.engine import parallel
from rawnn.engine.checkpoint import Checkpoint
from rawnn.engine.config import Config
from rawnn.engine.data_source import fitted_to, outline_of
from rawnn.engine.launch_choices import applied
from rawnn.engine.machine import Opened
from rawnn.engine.resolved_options import ResolvedOptions, machine_name, read_resolved_options
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.engine.runners.prepared_run import PreparedRun, prepare
from rawnn.model.layers import Network
from rawnn.opts import Selection, batch, select
from rawnn.opts.select import LEFT_OUT
from rawnn.plan.recipe import Recipe


@dataclass(frozen=True)
class RunPlanner:
    """Plans one run; `notify` receives sentences for the user. On the host `is_lenient` leaves out
    toggles for a GPU alone, which else are refused unless the device was left to this machine."""

    config: Config
    data: Dataset
    opened: Opened
    team: Team | None
    notify: Callable[[str], object]
    is_lenient: bool = False

    def plan(self, before: tuple[Path, Checkpoint] | None) -> tuple[Selection, PreparedRun]:
        """The toggles and plans of the run. A resumed run uses those of the run `before`, unless
        `opt` was changed or this machine cannot run them."""
        asked, here, notify = self.config.opt, machine_name(self.opened.machine), self.notify
        wanted = self._wanted
        stored = read_resolved_options(before[1].taken, str(before[0])) if before else None
        if before is None:
            return self.select_and_prepare(wanted)
        if stored is None:  # a member of many, or an older checkpoint
            planned = self.select_and_prepare(wanted, lenient=before[1].config.get("opt") == asked)
            if not self.opened.device and (sentence := continued_on_host(planned[0])):
                notify(sentence)
            return planned
        if asked != stored.asked:
            notify(f"--opt {asked} replaces the toggles of the resumed run: "
                   f"{stored.toggles or 'none'}")
            return self.select_and_prepare(wanted)
        if wanted != asked and self.config.sharding != stored.sharding:
            notify(f"the sharding {self.config.sharding} replaces the toggles of the resumed run: "
                   f"{stored.toggles or 'none'}")
            return self.select_and_prepare(wanted)
        words = stored.toggles.replace(",", ", ") or "no toggles"
        reason = "its toggles are those of another kind of machine"
        if stored.machine == here or "the host" not in (stored.machine, here):
            try:
                planned = self.select_and_prepare(stored.opt, stored)
            except ConfigError as error:
                reason = str(error)
            else:
                notify(f"using the toggles of the resumed run, from {before[0]}: {words}" + (
                    "" if stored.machine == here else
                    f"; that was on {stored.machine}, this is {here}, on which the last bits may "
                    f"differ"))
                return planned
        planned = self.select_and_prepare(wanted, lenient=True)  # nobody asked for them here
        notify(f"the toggles of the resumed run on {stored.machine} ({words}) are not used on "
               f"{here}: {reason}; --opt {asked} selects others ({planned[0]}), and the run "
               f"continues from the same state, though not bit for bit as it would have there")
        return planned

    @property
    def _wanted(self) -> str:
        """The toggles with what `config.sharding` means. On the host no kernel trains, and results
        do not depend on it."""
        return self.config.toggles if self.opened.device else self.config.opt

    def select_and_prepare(self, opt: str, stored: ResolvedOptions | None = None,
                           lenient: bool = False) -> tuple[Selection, PreparedRun]:
        """Resolve `opt` on this machine and prepare the run, with the launch variants of `stored`
        if given. If `lenient`, toggles for a GPU alone are left out on the host."""
        network, recipe = self.config.network(), self.config.recipe()
        if self.team is not None:
            recipe, opt = parallel.recipe_of_rank(recipe, self.team), parallel.with_nccl(opt)
        lenient = lenient or self.is_lenient or self.config.device == "auto"
        selection = select(
            opt, network, recipe.steps(len(self.data.train_images)), self.opened.machine,
            batch=recipe.share(recipe.batch).rows, lenient=lenient,
            recipe=recipe, data_spec=data_spec_of(self.data, "train"))
        recipe = self._with_batch(network, recipe, selection)
        prepared = prepare(network, self.data, selection, recipe)
        if stored is not None and stored.choices is not None:
            untuned = replace(prepared, policy=replace(prepared.policy, tune=False))
            prepared = applied(untuned, stored.choices)
        return selection, prepared

    def for_one_rank(self, selection: Selection, prepared: PreparedRun) -> PreparedRun:
        """The same run on a single rank: undivided batches, and without the toggle `nccl`."""
        values = {name: v for name, v in selection.values.items() if name != "nccl"}
        return prepare(self.config.network(), self.data, replace(selection, values=values),
                       replace(prepared.recipe, world_size=1, rank=0))

    def _with_batch(self, network: Network, recipe: Recipe, selection: Selection) -> Recipe:
        """The recipe with the batch size of the toggle `batch`."""
        if "batch" not in selection.values:
            return recipe
        if self.team is not None and selection.values["batch"] == "max":
            raise ConfigError("batch=max may differ from GPU to GPU: give several ranks batch=N")
        device = self.opened.device
        free = device.free_memory() if device else 0
        recipe, note = batch.with_batch(
            selection.values["batch"], recipe, len(self.data.train_images), free,
            lambda tried: prepare(network, self.data, selection, tried).device_bytes())
        self.notify(note)
        return recipe if self.team is None else parallel.recipe_of_rank(recipe, self.team)


def continued_on_host(selection: Selection) -> str:
    """A sentence on the toggles that a continued run leaves out on the host; "" for none."""
    note = next((note for note in selection.notes if note.endswith(LEFT_OUT)), "")
    return note and f"{note}: what was trained on a GPU continues from the same state, though " \
                    f"not bit for bit as it would have there"


def check_unread(config: Config, opened: Opened, team: Team | None) -> None:
    """Refuse what cannot run on the data set that the Config names, by its shapes alone, so that
    nothing is fetched in vain. Raises ConfigError."""
    outline = outline_of(config)
    if outline is None:
        return
    check_plan(*fitted_to(config, outline), opened, team)


def check_plan(config: Config, outline: Dataset, opened: Opened, team: Team | None) -> None:
    """The part of `check_unread` on normalisation, toggles and plans, for a Config that fits the
    data."""
    Normalisation.of(config.normalise, outline.train_images[:1])
    if config.normalise is None:  # else the kernels depend on the rows
        RunPlanner(config, outline, opened, team, lambda message: None).plan(None)
