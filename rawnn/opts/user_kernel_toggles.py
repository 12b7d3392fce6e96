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
from rawnn.ptx.user_kernels import (
    USER_KERNELS,
    UserKernel,
    candidates,
    spec_of,
    vocabulary,
    with_user_kernels,
)

BEFORE = "persistent"
"""The toggle ahead of which an op is taken: number formats come before, whatever replaces ops
behind."""


def find_kernel(op: str, value: str) -> UserKernel:
    """The kernel that `op`=`value` names. Raises ConfigError for a name that nobody registered, and
    for a file that is no such kernel."""
    if value.endswith(".cu"):
        from rawnn.lab.plug import load

        return load(value, op)
    if f"{op}={value}" in USER_KERNELS:
        return USER_KERNELS[f"{op}={value}"]
    names = [entry.name for entry in USER_KERNELS.values() if entry.op == op]
    known = nearest(value, names) or f"; there is {', '.join(names)}" if names else ""
    raise ConfigError(f"{op}={value}: there is no such kernel{known}; name a file with a header "
                      f"({op}=FILE.cu), or register one by rawnn.impl(\"{op}\", source, "
                      f"name=\"{value}\", ...)")


def is_op(name: str) -> bool:
    """Whether a word of --opt names an op, for which a kernel follows."""
    return name not in TOGGLES and name in vocabulary()


def toggle(name: str) -> Toggle:
    """The toggle of a name that is known: of the table, or an op's."""
    return TOGGLES[name] if name in TOGGLES else _user_kernel_toggle(name)


def user_kernel_words(words: list[str]) -> list[str]:
    """Those of `words` behind --opt that name a kernel of the user's."""
    return [word for word in words if is_op(word.partition("=")[0])]


def why_not_persistent(words: list[str]) -> str:
    """Why the whole step is not one kernel beside these words."""
    return (f"{', '.join(words)} {'is a kernel' if len(words) == 1 else 'are kernels'} of its own, "
            f"and persistent computes the whole step in one")


def _user_kernel_toggle(name: str) -> Toggle:
    spec_of(name)

    def parse(text: str) -> str:
        find_kernel(name, text)
        return text

    def apply(plan: Plan, policy: Policy, value: str | int | None) -> Rewritten:
        word = find_kernel(name, str(value)).word
        return with_user_kernels(replace(plan, user_kernels=(*plan.user_kernels, word))), policy

    def outcomes(plan: Plan, value: str | int | None) -> list[Outcome]:
        entry = find_kernel(name, str(value))
        found = [Outcome(op.name, entry.where(op, plan)) for _, op in candidates(plan, name)]
        return found or [Outcome(name, "ops of this kind are made by fuse; the list of ops below "
                                       "says which")]

    return Toggle(
        name, claim=f"a kernel of one's own for {name}: {spec_of(name).summary}",
        source="one's own", group="kernels", apply=apply, parameter=Parameter("NAME", parse, None),
        conflicts=("persistent",), conflict="a kernel of one's own is kept out of the one kernel "
        "that persistent makes of the whole step", outcomes=outcomes)
