"""The plans of a group of members on a GPU: what is made once, and what every epoch does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.target import Machine, Target
from rawnn.engine.runners.plan_data import data_spec_of
from rawnn.many.members import PER_MEMBER, Group
from rawnn.model.layers import Network
from rawnn.model.schedules import Schedule, parse
from rawnn.opts import TOGGLES, Selection, select
from rawnn.persistent.chip import NEEDED, chip_of
from rawnn.persistent.choose import Choice
from rawnn.persistent.choose_members import choose_members, exact_members
from rawnn.persistent.layout import Layout
from rawnn.persistent.member_problem import evaluation_layout, training_problem
from rawnn.persistent.problem import NOT_SETTINGS, Problem, Unsupported, problem_of
from rawnn.persistent.rounding import with_rounded_inputs
from rawnn.persistent.sharding import Members
from rawnn.persistent.spelling import is_full_sharding, sharding_of
from rawnn.plan.build import CLOCK, evaluation_step, training_step
from rawnn.plan.epoch_plans import rounded
from rawnn.plan.op import Op
from rawnn.plan.ops.members import EVALUATE, FOLD_WORD, TRAIN, member_words, word_count
from rawnn.plan.ops.train_steps import role_of
from rawnn.plan.plan import Plan
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.plan.tensor import Role, Tensor

TEST = "test."
"""What the names of the tensors of the data set's test part begin with."""
OF_DATA = ("images", "labels", "targets")


@dataclass(frozen=True)
class MemberPlans:
    """start: draws the initial weights, and rounds the data set's inputs where steps read them so.
    rates: the learning rates of an epoch's steps.
    train, evaluate: one op each, for an epoch of all members and for their scores behind it.
    choice: how a member is shared by thread blocks.
    settings: names of the optimizer's settings in which members may differ, in the words' order.
    constant: whether the rates are always the same, so that they are computed once and no epoch
        runs `rates`.
    words: of all members, int32 [members, words of one].
    is_named: whether the user named the sharding.
    """

    start: Plan
    rates: Plan
    train: Plan
    evaluate: Plan
    choice: Choice
    settings: tuple[str, ...]
    constant: bool
    words: NDArray[np.int32]
    is_named: bool = False

    @property
    def epoch(self) -> tuple[Plan, ...]:
        """What an epoch runs, in order."""
        return (*(() if self.constant else (self.rates,)), self.train, self.evaluate)


def schedule_of(group: Group, member: int) -> Schedule:
    """The learning rates of a member's run."""
    config = group.members[member]
    return parse(config.schedule).resolve(config.lr, group.steps_of(member), config.epochs)


class SharedPlans:
    """`member_plans` for GPUs of one kind, each in a thread of its own: the first that asks for a
    group plans for all. Where another's facts differ, as the clusters that run at once on it, that
    one plans for itself, with the sharding that the first has chosen."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[tuple[Group, str, int, int | None],
                          list[tuple[Target, MemberPlans]]] = {}

    def __call__(self, group: Group, machine: Machine, sharding: str, epochs: int,
                 at_once: int | None = None) -> MemberPlans:
        with self._lock:
            known = self._found.setdefault((group, sharding, epochs, at_once), [])
            for target, plans in known:
                if target == machine.target:
                    return plans
            chosen = known[0][1].choice.sharding.text if known else sharding
            plans = member_plans(group, machine, chosen, epochs, at_once)
            known.append((machine.target, plans))
            return plans


def member_plans(group: Group, machine: Machine, sharding: str, epochs: int,
                 at_once: int | None = None) -> MemberPlans:
    """The plans of a group; scores have columns for so many epochs. Without a `sharding` one is
    chosen for so many members `at_once` (None: all). Raises Unsupported where no kernel trains such
    members, ConfigError for toggles that cannot run on the machine."""
    return PlanBuilder(group, machine, epochs).build(sharding, at_once or len(group))


class PlanBuilder:
    TOGGLES = "none,preload,arena,nosync"
    """Those of the steps, beside the ones that say in which numbers."""

    def __init__(self, group: Group, machine: Machine, epochs: int) -> None:
        self.group, self.machine, self.epochs = group, machine, epochs
        if reason := machine.target.lacks(*NEEDED):
            raise Unsupported(reason)
        self.network: Network = group.config.network()
        self.listed = bool(group.rows)
        self.folds = max(len(group.rows), len(group.held_out), 1)
        self.dataset = replace(group.dataset, normalisation=group.normalisations[0])
        self.inputs_differ = len(group.normalisations) > 1 and \
            group.normalisations[0].mean is not None
        if self.inputs_differ and self.dataset.normalisation.is_double:
            raise Unsupported("normalises the inputs of several lists of rows in float64",
                              "give the inputs as float32")
        if any(group.loss_factor(i) is None for i in range(len(group.target_normalisations))):
            raise Unsupported("measures target values of different deviations on the host",
                              "leave out normalise_targets")
        self.uneven, self.uneven_scored = (len({*group.counts[:, part].tolist()}) > 1
                                           for part in (0, 1))
        recipe = group.config.recipe()
        if not recipe.steps(group.examples):
            raise Unsupported("has a batch of more examples than there are",
                              "give a smaller batch")
        self.shuffled = recipe.shuffle
        # A batch takes its examples by an order, and its rate from memory, in every such plan.
        self.recipe: Recipe = replace(recipe, shuffle=self.shuffled or self.listed,
                                      schedule="cosine")
        self.selection = self._selection()

    def _selection(self) -> Selection:
        """The toggles that say in which numbers it is computed, on data in device memory."""
        group, recipe = self.group, self.group.config.recipe()
        spec = data_spec_of(self.dataset, "train")
        steps = recipe.steps(group.examples)
        found = select(group.config.opt, self.network, steps, self.machine, batch=recipe.batch,
                       recipe=recipe, data_spec=spec,
                       lenient=group.config.device == "auto").values
        if "batch" in found:
            raise Unsupported("takes the size of its batch from a toggle",
                              "give the option batch in its place")
        words = [name if value is None else f"{name}={value}" for name, value in found.items()
                 if name in TOGGLES and TOGGLES[name].group == "numbers"]
        self.asked = str(found.get("persistent") or "")
        return select(",".join([self.TOGGLES, *words]), self.network,
                      steps, self.machine, batch=recipe.batch, recipe=recipe, data_spec=spec)

    @property
    def _decays(self) -> bool:
        """Whether the weights of any member decay."""
        distinct = {member.weight_decay: member for member in self.group.members}
        return any(member.recipe().optimizer.attributes()["decay"] for member in distinct.values())

    # -- steps -------------------------------------------------------------------------------------
    def _rounded(self, plan: Plan) -> Plan:
        """With inputs that are rounded once, where all members have the same ones."""
        return plan if self.inputs_differ else with_rounded_inputs(plan)

    def _step(self, *, rest: bool = False, examples: int = 0) -> Plan:
        spec = replace(data_spec_of(self.dataset, "train"),
                       examples=examples or self.group.examples)
        plan, _ = self.selection.apply(training_step(self.network, self.recipe, spec, partial=rest))
        return self._rounded(plan)

    @property
    def measured(self) -> str:
        """The part of the data set on which members are scored."""
        return "train" if self.group.held_out else "test"

    def _measuring(self, batch: int, spec: DataSpec) -> Plan:
        plan, _ = self.selection.apply(evaluation_step(self.network, batch, spec))
        return self._rounded(plan)

    # -- the plans ---------------------------------------------------------------------------------
    def build(self, sharding: str, at_once: int) -> MemberPlans:
        group, recipe = self.group, self.recipe
        step = self._step()
        problem = problem_of(step)
        rests = {left: self._step(rest=True, examples=examples)
                 for examples in sorted({*group.counts[:, 0].tolist()})
                 if (left := recipe.partial_size(examples))}
        single = problem_of(with_rounded_inputs(step) if self.inputs_differ else step)
        members = Members(self.listed, self.shuffled, uneven=self.uneven,
                          single=replace(single, ordered=self.shuffled))
        own = training_problem(problem, members, bool(rests), self._decays)
        chip = chip_of(self.machine.target)
        asked = sharding or group.config.sharding or \
            (self.asked if is_full_sharding(self.asked) else "")
        choice = exact_members(own, chip, members, at_once, sharding_of(problem, asked)) \
            if asked else choose_members(own, chip, members, at_once)
        first = next(op for op in step.ops if "dw" in op.operands and "w" in op.operands)
        self.settings = tuple(k for k, v in first.attributes.items()
                              if k not in NOT_SETTINGS and not isinstance(v, bool))
        train = self._train(step, rests, choice.layout)
        evaluate = self._evaluate(choice, chip.shared, train)
        constant = parse(group.config.schedule).resolve(1.0, 1, 1).constant
        return MemberPlans(self._start(train, evaluate, step), self._rates(train), train, evaluate,
                           choice, self.settings, constant, table_of(group, self.settings),
                           bool(asked))

    def _common(self, plan: Plan, prefix: str,
                part: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Tensors of the data set and of the members that an op has, and its operands."""
        gather = plan.find(kind="gather")[0]
        stored = len(getattr(self.dataset, f"{part}_images"))
        tensors: dict[str, Tensor] = {}
        operands: dict[str, str] = {}

        def add(role: str, tensor: Tensor) -> None:
            tensors[tensor.name] = tensor
            operands[role] = tensor.name

        for role in OF_DATA:
            if role not in gather.operands:
                continue
            found = plan[gather.operands[role]]
            rows = stored * (self.folds if role == "targets" and self.targets_differ else 1)
            add(role, replace(found, name=prefix + found.name, shape=(rows, *found.shape[1:]),
                              symbol=found.symbol or role,
                              source=found.source and prefix + found.source))
            if found.source:
                source = plan[found.source]
                tensors[prefix + source.name] = replace(
                    source, name=prefix + source.name, shape=(stored, *source.shape[1:]),
                    symbol=source.symbol or source.name)
        for role in ("mean", "inverse_std"):
            if role in gather.operands:
                add(role, replace(plan[role], shape=(self.folds, *plan[role].shape)))
        for tensor in self._listed().values():
            add(tensor.name, tensor)
        return tensors, operands

    def _listed(self) -> dict[str, Tensor]:
        """Which members a launch is for, and what each differs in."""
        networks = len(self.group)
        return {"active": Tensor("active", (networks,), "int32", Role.DATA),
                "members": Tensor("members", (networks, word_count(len(self.settings))), "int32",
                                  Role.DATA)}

    @property
    def targets_differ(self) -> bool:
        return self.group.exact_targets is not None

    def _numbers(self, part: str, examples: int, batch: int, left: int) -> dict[str, int]:
        stored = len(getattr(self.dataset, f"{part}_images"))
        return {"launched": len(self.group), "networks": len(self.group), "epochs": self.epochs,
                "examples": examples, "data_rows": stored, "folds": self.folds, "offset": 0,
                "whole": examples // batch, "left": left,
                "span": examples // batch + (left > 0),
                "target_stride": stored if self.targets_differ else 0,
                "target_rows": stored * (self.folds if self.targets_differ else 1)}

    def _stack(self, tensor: Tensor) -> Tensor:
        """All members' of a tensor, below each other."""
        networks = len(self.group)
        if tensor.role in (Role.PARAMETER, Role.STATE) and tensor.layer and len(tensor.shape) == 1:
            return replace(tensor, shape=(networks, *tensor.shape), packed=True)
        return replace(tensor, shape=(networks * tensor.shape[0], *tensor.shape[1:]))

    def _rests(self, rests: dict[int, Plan], left: int, uneven: bool) -> dict[str, Any]:
        """The plans of partial batches, as attributes of an op."""
        if uneven:
            return {"rests": rests}
        return {"rest": rests[left]} if left else {}

    def _train(self, step: Plan, rests: dict[int, Plan], layout: Layout) -> Plan:
        group, networks = self.group, len(self.group)
        tensors, operands = self._common(step, "", "train")
        if self.listed:
            tensors["rows"] = Tensor("rows", (self.folds * group.examples,), "int32", Role.DATA)
            operands["rows"] = "rows"
        if self.uneven:
            tensors["counts"] = Tensor("counts", (2 * self.folds,), "int32", Role.DATA)
            operands["counts"] = "counts"
        steps = group.steps
        kept = {t.name: t for op in step.ops for t in map(step.__getitem__, op.tensors)
                if t.role in (Role.PARAMETER, Role.STATE) or role_of(t) == "overflow"}
        kept["clock"] = CLOCK
        for tensor in kept.values():
            tensors[tensor.name] = self._stack(tensor)
            operands[role_of(tensor)] = tensor.name
        made = {"rates": (networks * steps, "float32"), "loss": (networks * steps, "float32"),
                "train_loss": (networks * self.epochs * 2, "int32")}
        per_member = layout.workspaces(steps)
        made |= {name: (networks * words, "float32") for name, words in per_member.items()}
        for name, (size, dtype) in made.items():
            tensors[name] = Tensor(name, (size,), dtype, Role.SCRATCH)
            operands[name] = name
        left = self.recipe.partial_size(group.examples)
        numbers = self._numbers("train", group.examples, step.batch, left)
        op = Op(TRAIN, TRAIN, operands, {
            **numbers, "step": step, **self._rests(rests, left, self.uneven),
            "layout": layout, "settings": self.settings, "ordered": self.recipe.shuffle,
            "shuffled": self.shuffled, "outputs": tuple(n for n in made if n != "rates")},
            "persistent")
        return Plan("train", tensors, (op,), step.batch, target=step.target).check()

    def _evaluate(self, choice: Choice, room: int, train: Plan) -> Plan:
        group, part, networks = self.group, self.measured, len(self.group)
        d = choice.sharding
        examples, counts = group.scored, {*group.counts[:, 1].tolist()}
        batch = min(d.micro_batch, examples)  # what the kernel has memory for
        left = examples % batch
        spec = replace(data_spec_of(self.dataset, part), examples=examples)
        step = self._measuring(batch, spec)
        prefix = "" if part == "train" else TEST
        tensors, operands = self._common(step, prefix, part)
        if group.held_out:
            tensors["held_out"] = Tensor("held_out", (self.folds * examples,), "int32", Role.DATA)
            operands["rows"] = "held_out"
        if self.uneven_scored:
            tensors["counts"] = Tensor("counts", (2 * self.folds,), "int32", Role.DATA)
            operands["counts"] = "counts"
        for name, tensor in train.tensors.items():
            if tensor.role is Role.PARAMETER:
                tensors[name] = tensor
                operands[role_of(tensor)] = name
        rests = {n % batch: self._measuring(n % batch, spec) for n in sorted(counts) if n % batch}
        layout = self._evaluation_layout(d.problem, step, batch, bool(rests), choice, room)
        made = {name: (networks * words, "int32")
                for name, words in layout.workspaces(1).items()}
        made |= dict.fromkeys(("validation_loss", "validation_score"),
                              (networks * self.epochs * 2, "int32"))
        for name, (size, dtype) in made.items():
            tensors[name] = Tensor(name, (size,), dtype, Role.SCRATCH)
            operands[name] = name
        spec_of_loss = self.network.loss_spec
        numbers = self._numbers(part, examples, batch, left)
        op = Op(EVALUATE, EVALUATE, operands, {
            **numbers, "answers": spec_of_loss.counts(self.network.outputs), "step": step,
            **self._rests(rests, left, self.uneven_scored), "layout": layout,
            "outputs": tuple(made)}, "persistent")
        return Plan("evaluate", tensors, (op,), batch, target=step.target).check()

    def _evaluation_layout(self, problem: Problem, step: Plan, batch: int, partial: bool,
                           choice: Choice, room: int) -> Layout:
        gather = step.find(kind="gather")[0]
        changed = replace(
            problem, batch=batch, stride=batch, scale=gather.attributes["scale"],
            inputs=step[gather.operands["images"]].dtype, normalised="mean" in gather.operands,
            labels=step[gather.operands["labels"]].dtype if problem.labelled else "")
        return evaluation_layout(replace(choice.sharding, problem=changed),
                                 bool(self.group.held_out), partial, room, self.uneven_scored)

    def _start(self, train: Plan, evaluate: Plan, step: Plan) -> Plan:
        tensors: dict[str, Tensor] = {**train.tensors, **evaluate.tensors,
                                      "cursor": step["cursor"]}
        ops = self._initial(tensors.values())
        for role in ("mean", "inverse_std"):
            if role in step.tensors:
                tensors[role] = replace(step[role], shape=(self.folds, *step[role].shape))
        for tensor in [t for t in tensors.values() if t.role is Role.ROUNDED]:
            # The batch is all of the data set.
            ops.append(rounded(tensor, Plan("start", tensors, (), train.batch,
                                            scale=step.scale, target=train.target)))
        return Plan("start", tensors, tuple(ops), train.batch, target=train.target,
                    scale=step.scale).check()

    def _initial(self, tensors: Iterable[Tensor]) -> list[Op]:
        """The ops that draw the initial weights among the tensors."""
        streams = {t.name: i for i, t in enumerate(self.network.parameters())}
        return [Op("initialise_members", f"{t.name}.initialise",
                   {"w": t.name, "members": "members"},
                   {"stream": streams[t.name], "bound": t.bound, "networks": len(self.group)})
                for t in tensors if t.role is Role.PARAMETER]

    def _schedule(self) -> Op:
        """The op of the learning rates of an epoch's steps."""
        networks = len(self.group)
        return Op("member_schedule", "schedule",
                  {role: role for role in ("active", "members", "clock", "rates")},
                  {"kind": schedule_of(self.group, 0).kind, "launched": networks,
                   "networks": networks, "steps": self.group.steps})

    def _rates(self, train: Plan) -> Plan:
        return Plan("rates", dict(train.tensors), (self._schedule(),), train.batch,
                    target=train.target).check()


def words_of(group: Group, member: int, settings: tuple[str, ...]) -> dict[str, Any]:
    """What `member_words` takes of a member."""
    found: Mapping[str, float | bool] = group.members[member].optimizer_settings().attributes()
    return {"seed": group.members[member].seed, "fold": int(group.fold[member]),
            "schedule": schedule_of(group, member),
            "settings": [float(found[name]) for name in settings]}


def table_of(group: Group, settings: tuple[str, ...]) -> NDArray[np.int32]:
    """The words of all members, int32 [members, words of one]. Members with the same options but
    for seed and rows, which most are, have the same words but for these."""
    options = [(*_WORDED(config), group.steps_of(member))
               for member, config in enumerate(group.members)]
    first = {each: member for member, each in reversed(list(enumerate(options)))}
    words = {each: member_words(**words_of(group, member, settings))
             for each, member in first.items()}
    table = np.stack([words[each] for each in options])
    table[:, :FOLD_WORD] = np.array([config.seed for config in group.members],
                                    np.uint64)[:, None].view(np.int32)
    table[:, FOLD_WORD] = group.fold
    return table


_WORDED = attrgetter(*(name for name in PER_MEMBER if name != "seed"))
"""The options of a member that its words depend on, besides the seed."""
