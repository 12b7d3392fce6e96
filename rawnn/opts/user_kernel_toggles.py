"""`bias_relu=mine`: a user's kernel replaces rawnn's, for any op.

It is not in the registry of toggles, because users define it: the value is the name that
`rawnn.impl` was given, or the path of a `.cu` file with a header.
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
"""User's kernels are assigned before this toggle: after the precision toggles, and before anything
that replaces ops."""


def find_kernel(op: str, value: str) -> UserKernel:
    """The kernel that `op`=`value` names. Raises ConfigError for a name that is not registered, and
    for a file that holds no such kernel."""
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
    """Whether a word of --opt names an op, which a kernel follows."""
    return name not in TOGGLES and name in vocabulary()


def toggle(name: str) -> Toggle:
    """The toggle of a known name: of the registry, or an op's."""
    return TOGGLES[name] if name in TOGGLES else _user_kernel_toggle(name)


def user_kernel_words(words: list[str]) -> list[str]:
    """The words after --opt that name a user's kernel."""
    return [word for word in words if is_op(word.partition("=")[0])]


def why_not_persistent(words: list[str]) -> str:
    """Why the whole step cannot be one kernel with these words."""
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
        name, claim=f"a user's kernel for {name}: {spec_of(name).summary}",
        source="the user", group="kernels", apply=apply, parameter=Parameter("NAME", parse, None),
        conflicts=("persistent",), conflict="a user's kernel cannot be part of the one kernel "
        "that persistent makes of the whole step", outcomes=outcomes)
