"""A kernel with its work: the role of each parameter, and a trial of it, with sizes, inputs, a
launch and the expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.common.dtypes import check_unmasked
from rawnn.common.errors import ConfigError, RawnnError, check_type, check_whole, nearest
from rawnn.common.words import named_by
from rawnn.cuda.compiling.signature import Parameter
from rawnn.cuda.launch import Dim
from rawnn.lab.arguments import ELEMENTS
from rawnn.lab.comparison import type_name
from rawnn.lab.expressions import called, evaluate, whole
from rawnn.lab.kernel import Kernel
from rawnn.lab.red_zones import place
from rawnn.lab.sampling import (
    Sizes,
    converted,
    independent,
    largest,
    sample,
    sample_sizes,
    with_specials,
)
from rawnn.lab.time_limit import time_limit
from rawnn.lab.work import Geometry, Reference, Work

Host = NDArray[Any]
_SAMPLES = 12
MULTIPROCESSORS = "sms"
"""The name of the GPU's number of multiprocessors in expressions of a launch."""
_FURTHER = 1 << 16  # least elements by which a pool is longer than the array


@dataclass(frozen=True)
class Operand:
    """An array of a kernel: `read` says that it has input, `written` that the kernel may write
    it."""

    name: str
    dtype: np.dtype[Any]
    extents: tuple[Any, ...]
    read: bool
    written: bool


@dataclass(frozen=True)
class Boxes:
    """The boxes of an operand that a tensor map describes, and their swizzle."""

    operand: str
    box: tuple[int, ...]
    swizzle: str


@dataclass(frozen=True)
class Launching:
    """The launch of a trial, with bytes of dynamic shared memory; `maps` are its tensor maps, by
    parameter."""

    grid: Dim
    block: Dim
    shared: int = 0
    cluster: Dim | None = None
    cooperative: bool = False
    symbols: Mapping[str, Host] = field(default_factory=dict, compare=False)
    maps: Mapping[str, Boxes] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        def text(extent: Dim) -> str:
            return " x ".join(map(str, extent if extent[2] > 1 else extent[:2]
                                  if extent[1] > 1 else extent[:1]))

        return f"grid {text(self.grid)}, block {text(self.block)}" + (
            f", {self.shared:,} bytes of shared memory" if self.shared else "") + (
            f", clusters of {text(self.cluster)}" if self.cluster else "")


@dataclass(frozen=True)
class Trial:
    """One set of sizes with its inputs: `arrays` has one for each operand, in its dtype (zeros
    without input), `numbers` the other parameters by name, in the kernel's order."""

    problem: KernelProblem
    sizes: Sizes
    launching: Launching | None
    arrays: dict[str, Host]
    numbers: dict[str, Any]
    known: dict[str, Any]

    def expected(self, perturb: np.random.Generator | None = None, by: float = 0.0
                 ) -> dict[str, Host | None]:
        """The reference's results for what is written; None for anything. With `perturb` every
        float input changes by the fraction `by` of itself, up or down."""
        problem = self.problem
        given: dict[str, Any] = {**self.known, **self.numbers}
        problem.reference.check({*given, *self.arrays, *problem.work.symbols})
        for operand in problem.operands:
            if operand.read:
                given[operand.name] = _exactly(self.arrays[operand.name], perturb, by)
        if self.launching is not None:
            given |= {n: _exactly(v, None, 0) for n, v in self.launching.symbols.items()}
        try:
            with np.errstate(all="ignore"):
                found = problem.referred(given)
        except RawnnError:
            raise
        except (Exception, SystemExit) as error:
            sizes = ", ".join(f"{n} = {v}" for n, v in self.sizes.items())
            raise ConfigError(f"the reference fails with {sizes or 'its only size'}: "
                              f"{type(error).__name__}: {error}") from error
        return problem.named(found, {n: a.shape for n, a in self.arrays.items()},
                             exact=perturb is None)


def _exactly(values: Host, perturb: np.random.Generator | None, by: float) -> Host:
    """A copy, with floats as float64."""
    kind = values.dtype.kind
    if values.dtype.names or kind in "iub":
        return values.copy()
    exact = values.astype(np.complex128 if kind == "c" else np.float64)
    return exact if perturb is None else exact * (1 + by * perturb.choice([-1.0, 1.0], exact.shape))


@dataclass(frozen=True)
class KernelProblem:
    """A kernel, or a function that launches several, with its work. `parameters` are its parameter
    names in order; `together` is the largest number of size names of one array. A call of the
    reference may take `limit` seconds (None: any time)."""

    candidate: Kernel | Callable[..., Any]
    label: str
    work: Work
    reference: Reference
    operands: tuple[Operand, ...]
    parameters: tuple[str, ...]
    scalars: Mapping[str, Parameter]
    names: tuple[str, ...]
    together: int
    macros: Mapping[str, Any]
    limit: float | None = None

    def referred(self, known: Mapping[str, Any]) -> Any:
        """What the reference returns. Raises TimeLimitReached."""
        with time_limit(self.limit, "the reference"):
            return self.reference(known)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.written)

    def sizes(self, trials: int, generator: np.random.Generator) -> list[Sizes]:
        """The sizes to try, the smallest first."""
        return sample_sizes(self.names, self.work.sizes, self.work.require, self.together, trials,
                            generator, self._constants())

    def largest(self, at: Mapping[str, int]) -> Sizes:
        """The largest of all sizes, except those given in `at`. If these do not meet the work's
        conditions, the largest of some samples. Raises ConfigError for a name that is no size, and
        if no sizes meet them."""
        check_type("at", at, Mapping, 'a mapping of sizes, such as {"n": 4096}')
        for name in at:
            if name in self.names:
                check_whole(f"at: {name}", at[name], 1)
            else:
                raise ConfigError(f"at: '{name}' is no size of {self.label}"
                                  f"{nearest(name, self.names)} ({', '.join(self.names)})")
        found = {**largest(self.names, self.work.sizes, self.together), **at}
        if not self._fits(found):
            sampled = self.sizes(_SAMPLES, np.random.default_rng(0))[-1]
            found = {**sampled, **at}
        if not self._fits(found):
            raise ConfigError(f"{', '.join(f'{n} = {v}' for n, v in found.items())} does not meet "
                              f"require = {list(self.work.require)}: say at= sizes that do")
        return found

    def _fits(self, sizes: Sizes) -> bool:
        return all(evaluate(each, {**self._constants(), **sizes}, "require")
                   for each in self.work.require)

    def _constants(self) -> dict[str, Any]:
        plain = {n: v for n, v in self.work.values.items() if isinstance(v, int | float)}
        sms = {MULTIPROCESSORS: self.candidate.device.attribute("MULTIPROCESSOR_COUNT")} \
            if isinstance(self.candidate, Kernel) else {}
        return {**sms, **self.macros, **plain}

    def known(self, sizes: Sizes) -> dict[str, Any]:
        """The values of names in expressions: macros, sizes and values."""
        known = {**self._constants(), **sizes}
        for name, value in self.work.values.items():
            if isinstance(value, str):
                known[name] = evaluate(value, known, f"values: {name}")
        return known

    def trial(self, sizes: Sizes, generator: np.random.Generator, special: bool = False,
              pools: dict[str, Host] | None = None) -> Trial:
        """Sizes with inputs sampled for them. With `pools`, valid for one set of sizes, inputs are
        parts of longer samples at varying offsets: as good as new ones, in a fraction of the
        time."""
        known = self.known(sizes)
        self._check_sizes(known)
        arrays = {}
        for operand in self.operands:
            shape = self.shape(operand, known)
            arrays[operand.name] = np.zeros(shape, operand.dtype)
            if operand.read and pools is not None and self.rolls(operand):
                arrays[operand.name] = self._part(operand, shape, known, generator, pools)
            elif operand.read:
                sampled = self._sampled(operand, shape, known, generator)
                arrays[operand.name] = with_specials(sampled, generator) if special else sampled
        numbers = {name: self._number(parameter, known, generator)
                   for name, parameter in self.scalars.items() if not parameter.tensor_map}
        return Trial(self, sizes, self.launching(known), arrays, numbers, known)

    def _sampled(self, operand: Operand, shape: tuple[int, ...], known: Mapping[str, Any],
                 generator: np.random.Generator) -> Host:
        return sample(self.work.inputs.get(operand.name), generator, shape, operand.dtype, known,
                      operand.name)

    def _part(self, operand: Operand, shape: tuple[int, ...], known: Mapping[str, Any],
              generator: np.random.Generator, pools: dict[str, Host]) -> Host:
        count = prod(shape)
        more = max(_FURTHER, count // 8)
        if operand.name not in pools:
            pools[operand.name] = self._sampled(operand, (count + more,), known, generator)
        begin = int(generator.integers(more + 1))
        return pools[operand.name][begin : begin + count].reshape(shape)

    def shape(self, operand: Operand, known: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(whole(extent, known, f"shapes: {operand.name}") for extent in operand.extents)

    def _number(self, parameter: Parameter, known: Mapping[str, Any],
                generator: np.random.Generator) -> Any:
        name, ctype = parameter.name, parameter.ctype
        if name in known:
            return known[name]
        if name in self.work.values:
            return self.work.values[name]
        if ctype == "bool":
            return bool(generator.integers(2))
        dtype = np.dtype(ELEMENTS[ctype])
        return np.asarray(generator.standard_normal()).astype(dtype).astype(np.float64).item()

    def launching(self, known: Mapping[str, Any]) -> Launching | None:
        """The launch for these sizes; None for a function, which launches by itself."""
        work = self.work
        if not isinstance(self.candidate, Kernel):
            return None
        grid, block = (_dim(getattr(work, what), known, what) for what in ("grid", "block"))
        shared = called(work.shared, known, "shared") if callable(work.shared) else work.shared
        return Launching(grid, block, whole(shared, known, "shared", 0),  # type: ignore[arg-type]
                         _dim(work.cluster, known, "cluster") if work.cluster else None,
                         work.cooperative, self._symbols(known), self._maps(known))

    def _maps(self, known: Mapping[str, Any]) -> dict[str, Boxes]:
        found = {}
        for name, parameter in self.scalars.items():
            if parameter.tensor_map:
                boxes = self.work.maps[parameter.mapped]
                swizzle = boxes.get("swizzle", "128B") if isinstance(boxes, Mapping) else "128B"
                box = boxes["box"] if isinstance(boxes, Mapping) else boxes
                found[name] = Boxes(parameter.mapped, tuple(
                    whole(extent, known, f"maps: {parameter.mapped}") for extent in box), swizzle)
        return found

    def _symbols(self, known: Mapping[str, Any]) -> dict[str, Host]:
        """The content of the kernel's variables, the same for every launch."""
        assert isinstance(self.candidate, Kernel)
        found = {}
        for number, (name, kind) in enumerate(self.work.symbols.items()):
            symbol = self.candidate.symbol(name)
            sampled = kind is None or callable(kind) or isinstance(kind, str | int | float)
            if sampled:
                found[name] = sample(kind, np.random.default_rng(number), symbol.shape,
                                     symbol.dtype, known, name)
                continue
            check_unmasked(kind, f"symbols: {name}")
            values = converted(np.asarray(kind), symbol.dtype, f"symbols: {name}")
            try:
                found[name] = np.broadcast_to(values, symbol.shape)
            except ValueError:
                raise ConfigError(f"symbols: {name} is of shape {list(symbol.shape)}, but its "
                                  f"values are of {list(values.shape)}") from None
        return found

    def named(self, found: Any, shapes: Mapping[str, tuple[int, ...]], exact: bool = True
              ) -> dict[str, Host | None]:
        """The reference's results by operand. Raises ConfigError if they do not fit; an `exact`
        result of whole numbers has no fractions."""
        names = [o.name for o in self.outputs]
        dtypes = {o.name: o.dtype for o in self.outputs}
        if found is None:
            raise ConfigError("the reference returns None: let it return what the kernel writes")
        if not isinstance(found, Mapping):
            if len(names) != 1:
                raise ConfigError(f"{self.label} may write {', '.join(names) or 'nothing'}: let "
                                  f"the reference return a dictionary such as "
                                  f"{{{', '.join(f'{n!r}: ...' for n in names)}}}, or name in "
                                  f"writes= what is written")
            found = {names[0]: found}
        results: dict[str, Host | None] = {}
        for name, values in found.items():
            name = named_by(name, names)
            if name not in names:
                raise ConfigError(f"the reference returns '{name}', which is no array that "
                                  f"{self.label} may write{nearest(name, names)} "
                                  f"({', '.join(names) or 'it may write none'})")
            results[name] = None if values is None else self._fitting(name, values, shapes[name],
                                                                      dtypes[name])
            if exact and (result := results[name]) is not None:
                _require_whole(name, result, dtypes[name])
        return results

    @staticmethod
    def _fitting(name: str, values: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Host:
        check_unmasked(values, f"the reference's '{name}'")
        try:
            array = np.asarray(values)
        except Exception as error:
            raise ConfigError(f"the reference returns '{name}' as a {type(values).__name__} of "
                              f"which NumPy makes no array: {error}") from None
        if array.size != prod(shape):
            raise ConfigError(f"the reference returns '{name}' of shape {array.shape}, and the "
                              f"kernel's is {shape}")
        if array.dtype.kind == "c" and dtype.kind != "c":
            raise ConfigError(f"the reference returns '{name}' of type {array.dtype}, and the "
                              f"kernel's is {type_name(dtype)}: return the real part, or what the "
                              f"kernel stores of both")
        if array.dtype.kind in "OSUMm":
            raise ConfigError(f"the reference returns '{name}' of type {array.dtype}: let it "
                              f"return an array of numbers")
        return array.reshape(shape)

    def _check_sizes(self, known: Mapping[str, Any]) -> None:
        """Raise ConfigError for a size that the kernel's parameter cannot hold, before arrays of
        that size are made."""
        for name, parameter in self.scalars.items():
            dtype = np.dtype(ELEMENTS.get(parameter.ctype, "V"))
            if name in known and dtype.kind in "iu" and not isinstance(known[name], str) \
                    and known[name] > np.iinfo(dtype).max:
                raise ConfigError(f"sizes: {name} = {known[name]:,} is beyond "
                                  f"{np.iinfo(dtype).max:,}, the largest {parameter.ctype}")

    def length(self, known: Mapping[str, Any]) -> float:
        found = float(evaluate(self.work.length, known, "length"))
        if not found >= 1:
            raise ConfigError(f"length = {self.work.length!r} is {found:g}: the number of products "
                              f"that are summed is at least 1")
        return found

    def moved(self, trial: Trial) -> int:
        """Bytes that the work has to move: as declared, else every input once and every output
        once."""
        if self.work.bytes is not None:
            moved = int(evaluate(self.work.bytes, trial.known, "bytes"))
            if moved < 0:
                raise ConfigError(f"bytes = {self.work.bytes!r} is {moved}: give 0 or more")
            return moved
        return sum(trial.arrays[o.name].nbytes * (o.read + o.written) for o in self.operands)

    def computed(self, trial: Trial) -> int | None:
        """Floating-point operations, if they are declared."""
        flops = self.work.flops
        return None if flops is None else int(evaluate(flops, trial.known, "flops"))

    def rolls(self, operand: Operand) -> bool:
        """Whether any part of a pool is a valid input."""
        return independent(self.work.inputs.get(operand.name), operand.dtype)


def _require_whole(name: str, values: Host, dtype: np.dtype[Any]) -> None:
    """Raise ConfigError for a fraction, NaN or infinity among whole numbers: which number a kernel
    makes of it is the kernel's choice, so that the reference has to say it."""
    for member in dtype.names or ():
        if member in (values.dtype.names or ()):
            _require_whole(f"{name}.{member}", values[member], dtype[member])
    if values.dtype.kind != "f" or dtype.kind not in "iub":
        return
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~np.isfinite(values) | (values != np.rint(values)))
    if bad.size:
        index = int(bad[0])
        raise ConfigError(f"the reference returns {values.flat[index].item()!r} for "
                          f"{name}{place(index, values.shape)}, and '{name}' holds "
                          f"{type_name(dtype)}: let it return whole numbers, rounded as the kernel "
                          f"rounds, such as np.trunc(...), np.floor(...) or np.rint(...)")


def _dim(given: Geometry | None, known: Mapping[str, Any], what: str) -> Dim:
    value: Any = called(given, known, what) if callable(given) else given
    parts = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if not 1 <= len(parts) <= 3:
        raise ConfigError(f"{what} = {value!r}: give one to three extents")
    x, y, z = (*(whole(part, known, what) for part in parts), 1, 1)[:3]
    return x, y, z
