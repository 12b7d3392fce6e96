"""`bias_relu=mine`: a kernel of the user's in the place of rawnn's, for any op of the vocabulary.

It is no toggle of the table, as the user brings it: NAME is what `rawnn.impl` was given, or the
path of a `.cu` file with a header.
"""

from __future__ import annotations

from dataclasses import replace

from rawnn.common.errors import ConfigError, nearest
from rawnn.opts.registry import TOGGLES, Outcome, Parameter, Rewritten, Toggle
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.ptx.user_kernels import OWN, Own, candidates, claimed, spec_of, vocabulary

BEFORE = "persistent"
"""The toggle ahead of which an op is taken: number formats come before, whatever replaces ops
behind."""


def chosen(op: str, value: str) -> Own:
    """The kernel that `op`=`value` names. Raises ConfigError for a name that nobody registered, and
    for a file that is no such kernel."""
    if value.endswith(".cu"):
        from rawnn.lab.plug import load

        return load(value, op)
    if f"{op}={value}" in OWN:
        return OWN[f"{op}={value}"]
    names = [own.name for own in OWN.values() if own.op == op]
    known = nearest(value, names) or f"; there is {', '.join(names)}" if names else ""
    raise ConfigError(f"{op}={value}: there is no such kernel{known}; name a file with a header "
                      f"({op}=FILE.cu), or register one by rawnn.impl(\"{op}\", source, "
                      f"name=\"{value}\", ...)")


def is_op(name: str) -> bool:
    """Whether a word of --opt names an op, for which a kernel follows."""
    return name not in TOGGLES and name in vocabulary()


def toggle(name: str) -> Toggle:
    """The toggle of a name that is known: of the table, or an op's."""
    return TOGGLES[name] if name in TOGGLES else _own_toggle(name)


def words_of_ops(words: list[str]) -> list[str]:
    """Those of `words` behind --opt that name a kernel of the user's."""
    return [word for word in words if is_op(word.partition("=")[0])]


def reason(words: list[str]) -> str:
    """Why the whole step is not one kernel beside these words."""
    return (f"{', '.join(words)} {'is a kernel' if len(words) == 1 else 'are kernels'} of its own, "
            f"and persistent computes the whole step in one")


def _own_toggle(name: str) -> Toggle:
    spec_of(name)

    def parse(text: str) -> str:
        chosen(name, text)
        return text

    def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
        word = chosen(name, str(value)).word
        return claimed(replace(plan, own=(*plan.own, word))), policy

    def outcomes(plan: Plan, value: str | int | None) -> list[Outcome]:
        own = chosen(name, str(value))
        found = [Outcome(op.name, own.where(op, plan)) for _, op in candidates(plan, name)]
        return found or [Outcome(name, "ops of this kind are made by fuse; the list of ops below "
                                       "says which")]

    return Toggle(
        name, claim=f"a kernel of one's own for {name}: {spec_of(name).summary}",
        source="one's own", group="kernels", apply=apply, parameter=Parameter("NAME", parse, None),
        conflicts=("persistent",), conflict="a kernel of one's own is kept out of the one kernel "
        "that persistent makes of the whole step", outcomes=outcomes)
