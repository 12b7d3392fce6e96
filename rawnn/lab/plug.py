"""A user's kernel inside the training step: registered as an implementation of an op, which `--opt
best,bias_relu=mine` selects.

The kernel's pointer parameters have the names of the op's operands (docs/design.md), `ld<operand>`
are leading dimensions, other parameters the op's attributes and sizes; `values` gives the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rawnn.common.errors import ConfigError
from rawnn.lab.expressions import Expression
from rawnn.lab.header import header
from rawnn.lab.implementation import Implementation
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_source import Source
from rawnn.plan.op import Reference
from rawnn.ptx.user_kernels import USER_KERNELS, UserKernel, register, spec_of

Extents = Expression | Sequence[Expression]

_LOADED: dict[tuple[str, str], tuple[str, str]] = {}
"""(file, op) -> its text when it was loaded, and the name under which it was registered."""


def impl(op: str, source: str | os.PathLike[str] | Kernel, expression: str | None = None, *,
         name: str | None = None, grid: Extents | None = None, block: Extents | None = None,
         shared: Expression | None = None, cluster: Expression | None = None,
         cooperative: bool | None = None, values: Mapping[str, Expression] | None = None,
         where: str | None = None, require: str | Sequence[str] | None = None,
         defines: Mapping[str, object] | None = None, options: Sequence[str] | None = None,
         include: Sequence[str | os.PathLike[str]] | None = None,
         arch: str | None = None, reference: Reference | None = None) -> UserKernel:
    """Register a kernel as an implementation of an op, selected by `--opt best,<op>=<name>`.

    `op` is a kind of op, such as "bias_relu" or "sgd"; `source` text, a path or a `rawnn.Kernel`;
    `expression` names the kernel in it, if there are several, with template arguments: operands in
    braces stand for their element types, "bias_relu<{z}, {a}>", attributes of the op for their
    values. `grid`, `block`, `shared` and `cluster` are numbers or expressions of the op's sizes
    ("cdiv(rows * cols, 256)"), `values` those of parameters that the op does not give. `where` is a
    condition for the ops that it runs (the others keep rawnn's kernel), `require` one that these
    must meet. Omitted arguments come from the source's header, if it has one.

    Used as a decorator, it takes a NumPy function as the kernel's reference on the simulated GPU,
    instead of the op's own: `reference(operands, attributes)` works in place.

    Raises ConfigError for an op that there is not, and for a kernel that does not fit it.

    Parameters
    ----------
    op
        a kind of the vocabulary
    source
        text, path or Kernel
    expression
        names the kernel in it
    name
        after which `--opt OP=NAME` takes it; None: the kernel's
    grid, block, shared, cluster
        numbers or expressions of the op's sizes; shared in bytes
    cooperative
        whether the launch is cooperative
    values
        of parameters that the op does not give
    where
        an expression: which ops it is for
    require
        an expression: what has to be true of those
    defines, options, include, arch
        as in Kernel
    reference
        a NumPy function on the simulated GPU
    """
    spec = spec_of(op)
    if isinstance(source, Kernel):
        own, expression = source._source, expression or source._expression
        settings = header(own.text, own.name, expression, op)
    else:
        text = _text(source)
        settings = header(text, "the source" if _is_text(source) else str(source), expression,
                          op)
        base = None if _is_text(source) else Path(source).parent
        own = Source.of(source, defines if defines is not None else settings.get("defines"),
                        options if options is not None else settings.get("options", ()),
                        include if include is not None else _folders(settings.get("include"), base),
                        arch if arch is not None else settings.get("arch"))
    if settings.get("op", op) != op:
        raise ConfigError(f"{own.name} says op = {settings['op']!r} in its header, and is to run "
                          f"the op '{op}'")
    if settings.get("symbols"):
        raise ConfigError(f"{own.name}: a kernel of the training step has no symbols set: write "
                          f"them into the source, __constant__ float taps[] = {{...}}")
    given = {"grid": grid, "block": block, "shared": shared, "cluster": cluster, "values": values,
             "cooperative": cooperative, "where": where, "require": require}
    how = {**settings, **{key: value for key, value in given.items() if value is not None}}
    for needed in ("grid", "block"):
        if needed not in how:
            raise ConfigError(f"{own.name}: say how many {_WHAT[needed]}: {needed} = ... in its "
                              f"header or in rawnn.impl, such as {needed} = {_SUCH[needed]}")
    called = name or settings.get("name") or Path(own.name).stem
    if not re.fullmatch(r"[A-Za-z_][\w.]*", called) or called.endswith(".cu"):
        raise ConfigError(f"name = {called!r}: give letters, digits and _, as it stands behind "
                          f"--opt {op}=")
    return register(
        Implementation(spec, own, expression or settings.get("kernel"), called,
                       how).user_kernel(reference))


_WHAT = {"grid": "blocks", "block": "threads a block has"}
_SUCH = {"grid": "\"cdiv(rows * cols, 256)\"", "block": "256"}


def load(path: str | os.PathLike[str], op: str | None = None) -> UserKernel:
    """Register the kernel of a file, from its header; `op` is used if the header does not name
    one. Raises ConfigError as `impl`."""
    text, file = _text(path), str(path)
    op = op or header(text, file).get("op")
    if op is None:
        raise ConfigError(f"{file} does not say which op it runs: write op = \"bias_relu\" in its "
                          f"header, or choose it as --opt bias_relu={file}")
    known = _LOADED.get((file, op))
    if known is None or known[0] != text or known[1] not in USER_KERNELS:
        _LOADED[file, op] = text, impl(op, path).word
    return USER_KERNELS[_LOADED[file, op][1]]


def _is_text(source: str | os.PathLike[str]) -> bool:
    return isinstance(source, str) and ("__global__" in source or "\n" in source)


def _text(source: str | os.PathLike[str]) -> str:
    return Source.of(source).text


def _folders(given: str | Sequence[str] | None, base: Path | None) -> list[Path]:
    """A header's folders, relative to its file."""
    each = [given] if isinstance(given, str) else list(given or ())
    return [(base or Path()) / folder for folder in each]
