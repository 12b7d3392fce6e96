"""Resolves the text after --opt to the set of toggles of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile

from rawnn.common.errors import ConfigError, unknown
from rawnn.common.target import HOST, Target
from rawnn.model.layers import Network
from rawnn.opts import presets
from rawnn.opts.precision_names import precision_of
from rawnn.opts.registry import TOGGLES, Machine, Outcome, Rewritten
from rawnn.opts.user_kernel_toggles import BEFORE, is_op, toggle, user_kernel_words
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.ptx.user_kernels import unused

LEFT_OUT = "left out"
"""How a note on toggles ends that do not apply on the host."""


@dataclass(frozen=True)
class Selection:
    """The toggles of a run, in the order in which they are applied.

    values: each toggle with its value (None: it takes none).
    implied: the toggles that another one implied.
    notes: sentences on what a preset or the machine decided.
    target: the GPU that plans are built for.
    """

    values: dict[str, str | int | None]
    implied: frozenset[str] = frozenset()
    notes: tuple[str, ...] = field(default=())
    target: Target = HOST

    def apply(self, plan: Plan, policy: Policy | None = None) -> Rewritten:
        """Rewrite the baseline `plan` and `policy` by every toggle in order. Raises ValueError if
        the resulting plan is unsound (Plan.check)."""
        plan, policy = replace(plan, target=self.target), policy or Policy()
        for name, value in self.values.items():
            plan, policy = toggle(name).apply(plan, policy, value)
        for word in plan.user_kernels:
            if plan.name == "train" and (reason := unused(plan, word)):
                raise ConfigError(f"{word} has nothing to do: {reason}")
        return plan.check(), policy

    def outcomes(self, plan: Plan) -> dict[str, list[Outcome]]:
        """The outcomes of the parts of each toggle that has some, for the baseline `plan`."""
        found = {}
        plan, policy = replace(plan, target=self.target), Policy()
        for name, value in self.values.items():
            if outcomes := toggle(name).outcomes(plan, value):
                found[name] = outcomes
            plan, policy = toggle(name).apply(plan, policy, value)
        return found

    def through(self, last: str) -> Selection:
        """The same without the toggles that are applied behind `last`; all where it is not on."""
        names = list(self.values)
        count = names.index(last) + 1 if last in names else len(names)
        return replace(self, values={name: self.values[name] for name in names[:count]})

    def words(self) -> list[str]:
        """Each toggle as one would type it."""
        return [n if v is None else f"{n}={v}" for n, v in self.values.items()]

    def __str__(self) -> str:
        marked = [w + (" (implied)" if n in self.implied else "")
                  for n, w in zip(self.values, self.words(), strict=True)]
        return ", ".join(marked) or "none"


def select(text: str, network: Network, steps: int, machine: Machine, *,
           batch: int = 1, lenient: bool = False, recipe: Recipe | None = None,
           data_spec: DataSpec | None = None) -> Selection:
    """Resolve "best,-cudnn" or "graphs=epoch,cublas" for a machine.

    A list that begins with no preset starts from `preload` and `arena`: data and buffers are on the
    device before training starts, unless `-preload`, `-arena`, `pinned` or another allocator
    changes that. After `none` there is only what is typed.

    `steps` is the number of steps in an epoch, `batch` the examples in each; `recipe` and
    `data_spec`, if known, inform presets. With `lenient`, toggles without an effect on the host are
    left out there and named in the notes; otherwise they are refused. What is typed after a preset
    has precedence over its choice. Raises ConfigError for an unknown toggle, a bad value, two
    presets, a conflict, or a toggle that the machine cannot run.
    """
    setting = presets.Setting(network, batch, steps, machine, recipe, data_spec)

    def resolve(preset: str, behind: list[str]) -> tuple[presets.Values, list[str]]:
        return presets.resolve(preset, setting, precision_of(behind), user_kernel_words(behind))

    asked, removed, notes = _parse(text, presets.start(machine), resolve)
    if not machine.has_gpu:
        _keep_host_toggles(asked, notes, machine, lenient)
    implied = _add_implied(asked, removed)
    for name in asked:
        each = toggle(name)
        for other in each.conflicts:
            if other in asked and not _combine(name, other, asked):
                why = f" ({each.conflict})" if each.conflict else ""
                raise ConfigError(f"'{name}' and '{other}' exclude each other{why}: leave one out")
        if machine.has_gpu and (reason := each.needs(machine)):
            raise ConfigError(f"the toggle '{name}' cannot run here: it {reason}")
        if machine.has_gpu and (reason := each.beside(asked, machine)):
            raise ConfigError(f"the toggle '{name}' cannot run so: {reason}")
        asked[name] = each.resolve(asked[name], machine)
    ordered = {name: asked[name] for name in _in_order(asked)}
    return Selection(ordered, frozenset(implied), tuple(notes), machine.target)


def check_text(text: str) -> None:
    """Raise ConfigError for a list of toggles that `select` refuses whatever the network and the
    machine: an unknown toggle, a bad value, one that is given twice, two presets. It is fast, as
    presets are not resolved."""
    _parse(text, {"preload": None, "arena": None}, lambda preset, behind: ({}, []))


def _in_order(asked: Iterable[str]) -> list[str]:
    """The order in which toggles are applied: the registry's, with the user's kernels before
    `persistent`."""
    user_kernels = [name for name in asked if name not in TOGGLES]
    wanted = {*asked}
    found: list[str] = []
    for name in TOGGLES:
        if name == BEFORE:
            found += user_kernels
        if name in wanted:
            found.append(name)
    return found


def _parse(text: str, start: presets.Values,
           resolve: Callable[[str, list[str]], tuple[presets.Values, list[str]]]
           ) -> tuple[presets.Values, set[str], list[str]]:
    """The toggles of a list with their values, those that it removes, and notes. `start` is what a
    list without a preset starts from; `resolve` gets a preset and the words behind it, and returns
    its toggles and notes."""
    removed: set[str] = set()
    notes: list[str] = []
    preset, given = "", set[str]()
    words = [w for w in (w.strip() for w in text.split(",")) if w]
    _refuse_two_presets([word for word in words if word in presets.PRESETS])
    bare = not words or words[0] in presets.PRESETS
    asked = presets.none() if bare else dict(start)
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if word in presets.PRESETS:
            if given:
                notes.append(f"the preset {word} replaces what stands before it: "
                             f"{', '.join(n for n in asked if n in given)}")
            asked, why = resolve(word, words[place + 1 :])
            notes += why
            removed.clear()
            given.clear()
            preset = word
        elif word.startswith("-"):
            _known(word[1:])
            if word[1:] not in asked:
                if not preset:
                    raise ConfigError(f"'{word}' removes a toggle that is not on; write it after "
                                      f"a preset, as in best,{word}")
                notes.append(f"'{word}' changes nothing: {preset} is without {word[1:]} here")
            asked.pop(word[1:], None)
            given.discard(word[1:])
            removed.add(word[1:])
        else:
            _known(name)
            if name in given:
                raise ConfigError(f"'{name}' is given twice: leave one of them out")
            asked[name] = toggle(name).parse(value if "=" in word else None)
            parameter = toggle(name).parameter
            notes += parameter.notes(name, value) if parameter else []
            removed.discard(name)
            given.add(name)
            for other in _conflicts(name, asked):
                if other not in given:  # what is typed has precedence over a preset
                    del asked[other]
                    if preset:
                        notes.append(f"{name} replaces {other}, which {preset} takes here")
            for other in toggle(name).instead:
                if not preset and other not in given:
                    asked.pop(other, None)
    return asked, removed, notes


def _refuse_two_presets(given: Sequence[str]) -> None:
    """A preset replaces all that stands before it, so that of two the first has no effect. Without
    an effect, too, is `none` at the beginning, which programs write ahead of any list."""
    some = list(dropwhile(lambda preset: preset == "none", given))
    if len(some) > 1:
        first, second = some[:2]
        raise ConfigError(f"'{first}' is given twice: leave one of them out" if first == second else
                          f"'{first}' and '{second}' are presets, and there can be only one: leave "
                          f"one out, and write toggles behind the other, as in {second},fuse")


def _conflicts(name: str, asked: presets.Values) -> list[str]:
    """The toggles that exclude `name`, whichever of the two declares it."""
    return [other for other in asked
            if (other in toggle(name).conflicts or name in toggle(other).conflicts)
            and not _combine(name, other, asked)]


def _combine(name: str, other: str, asked: presets.Values) -> bool:
    """Whether the value of one of two toggles goes with the other."""
    return other in toggle(name).combines(asked[name]) \
        or name in toggle(other).combines(asked[other])


def _known(name: str) -> None:
    if name in presets.PRESETS:
        raise ConfigError(f"'{name}' is a preset: it takes no value and cannot be taken away; "
                          f"write the toggles to be left out, as in best,-cudnn")
    if name not in TOGGLES and not is_op(name):
        known = (*TOGGLES, *presets.PRESETS)
        raise unknown("toggle", name, known, "the toggles are")


def _keep_host_toggles(asked: presets.Values, notes: list[str], machine: Machine,
                       lenient: bool) -> None:
    gpu_only = [name for name in asked if not toggle(name).host]
    if gpu_only and not lenient:
        raise ConfigError(
            f"{', '.join(gpu_only)}: only for a GPU, and this run is on the host "
            f"({machine.no_gpu}); "
            f"leave out --opt {','.join(gpu_only)}, or run with --device auto on a machine with a "
            f"GPU"
        )
    for name in gpu_only:
        del asked[name]
    if gpu_only:
        be = "does not apply on the host and is" if len(gpu_only) == 1 else \
            "do not apply on the host and are"
        notes.append(f"{', '.join(gpu_only)} {be} {LEFT_OUT}")


def _add_implied(asked: presets.Values, removed: set[str]) -> set[str]:
    implied: set[str] = set()
    for name in list(asked):
        for other in toggle(name).implies:
            if other in removed:
                raise ConfigError(f"'{name}' implies '{other}', which '-{other}' takes away: "
                                  f"leave out '-{other}', or {name} as well")
            if other not in asked:
                asked[other] = TOGGLES[other].parse(None)
                implied.add(other)
    return implied
