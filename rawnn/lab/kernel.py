"""A user's CUDA C kernel, compiled at run time and launched as `kernel[grid, block](...)`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rawnn.common.errors import ConfigError, check_type, nearest
from rawnn.common.words import python_name
from rawnn.cuda.compiling.c_types import FORMATS, code_of
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled
from rawnn.cuda.compiling.compiled_signature import Declarations
from rawnn.cuda.compiling.includes import with_included
from rawnn.cuda.compiling.probe import CompiledKernel
from rawnn.cuda.compiling.signature import KernelSignature
from rawnn.cuda.compiling.structs import layout_of
from rawnn.cuda.compiling.translation import Omission
from rawnn.cuda.device import Device, Function
from rawnn.cuda.errors import check
from rawnn.cuda.launch import Arguments, KernelLaunch, Value
from rawnn.lab.arguments import Convert, Elements, Streams, converter, elements_of
from rawnn.lab.array_exchange import Handle, order, stream_of
from rawnn.lab.arrays import RECORDING, chosen_device, default_device
from rawnn.lab.geometry import Extent, Launch, extents, shared_bytes
from rawnn.lab.kernel_source import Source
from rawnn.lab.symbols import Symbol, symbol
from rawnn.ptx import INCLUDE

if TYPE_CHECKING:
    from rawnn.graphs import Graph


def _recording() -> Any:
    """The graph that this thread records, the innermost of several; None without one."""
    return next((graph for graph in reversed(RECORDING) if graph.here()), None)


_MAX_PREPARED = 64
"""Most prepared launches that a kernel caches."""


@dataclass(frozen=True)
class Recipe:
    """What a kernel was made from, to make it again: with other macros, or in another process."""

    source: str | os.PathLike[str]
    expression: str
    defines: Mapping[str, object]
    options: tuple[str, ...]
    include: tuple[Path, ...]
    arch: str | None
    symbols: dict[str, Any] = field(default_factory=dict)


class Kernel:
    """A kernel from CUDA C source text or a .cu file, which may also have host code.

    `expression` names it, with its namespaces and with template arguments if it is a template:
    "scale<float>". Number and types of the arguments come from the compiler, so a Python number is
    converted to the type that the kernel declares (also 16-bit and 8-bit floats), and an array must
    have the element type of its pointer: a rawnn array, or one of PyTorch, JAX, CuPy, numba or any
    library with DLPack or the CUDA array interface, without a copy. A struct by value is a NumPy
    structured scalar with the members and the layout of C. If the source does not declare these
    plainly (a functor, a class), it is any scalar of its size, or its bytes. Names come from the
    source; names that Python reserves get an underscore: `in_`.

        kernel = rawnn.Kernel(source, "scale<float>", defines={"TILE": 32})
        kernel[(blocks,), 256](x, 2.0, n)
        kernel.synchronize()

    `defines` are macros (True: defined without a value), `options` further ones for NVRTC,
    `include` folders for headers, `arch` an architecture such as "sm_90a" instead of the GPU's;
    `symbols` are values of `__constant__` and `__device__` variables.

    Launches go to rawnn's own stream. A launch with an array of another library follows what that
    library has enqueued, and CUDA's default stream waits for it. With a stream given to `using`,
    the caller orders the work.

    On the simulated GPU (`rawnn.lab.simulated`) NVRTC also compiles it, if it is installed, so that
    errors in its body are found; its results come from a reference.

    Raises CompileError with the numbered source lines, ConfigError for a name, define, option or
    argument that does not fit.

    Parameters
    ----------
    source
        CUDA C as text, or the path of a .cu file
    expression
        the name of the kernel
    defines, options, include, arch, symbols
        see above
    device
        a device, such as `rawnn.lab.simulated()`; None: the first GPU
    """

    def __init__(self, source: str | os.PathLike[str], expression: str, *,
                 defines: Mapping[str, object] | None = None, options: Sequence[str] = (),
                 include: Sequence[str | os.PathLike[str]] = (), arch: str | None = None,
                 symbols: Mapping[str, Any] | None = None,
                 device: Device | None = None) -> None:
        own = Source.of(source, defines, options, include, arch)
        if not isinstance(expression, str):
            raise ConfigError(f"the name of a kernel is text, such as \"scale<float>\", not "
                              f"{expression!r}")
        folders = (Path(own.name).parent, *own.include, *INCLUDE)
        self._declared = Declarations(own.declarations, folders)
        self._declared.check(expression)
        self.device = chosen_device(device, default_device)
        own.check_arch(self.device.capability)
        self._source, self._expression = own, expression
        self._compiled: CompiledKernel | None = None
        self.recipe = Recipe(source, expression, dict(defines or {}), tuple(options),
                             own.include, arch)
        self._function = self._load(programmatic=False)
        self._overlapping: Function | None = None
        if self.signature.note:
            self.device.notify(self.signature.note)
        texts = [code_of(text) for text in with_included(own.declarations, folders)]
        self._converters: list[Convert] = []
        self.elements: dict[str, Elements] = {}
        for parameter in self.signature.parameters:
            known = not parameter.pointer or parameter.ctype in FORMATS
            layout = None if known else layout_of(parameter.ctype, texts)
            self._converters.append(converter(parameter, layout, self.device))
            if parameter.pointer:
                self.elements[parameter.name] = elements_of(parameter, layout)
        self._launchers: dict[Any, Any] = {}
        check_type("symbols", symbols or {}, Mapping, "a mapping of variables to their values")
        for name, values in (symbols or {}).items():
            self.symbol(name)[:] = values

    @property
    def expression(self) -> str:
        """Its name with template arguments, as given."""
        return self._expression

    @property
    def source(self) -> Source:
        """The text from which it was compiled, with the compiler's inputs."""
        return self._source

    def redefined(self, defines: Mapping[str, object]) -> Kernel:
        """The same kernel compiled with further macros, or other values."""
        recipe = replace(self.recipe, defines={**self.defines, **defines})
        return Kernel.from_recipe(recipe, self.device)

    @classmethod
    def from_recipe(cls, recipe: Recipe, device: Device) -> Kernel:
        """A kernel from the recipe of another one."""
        return cls(recipe.source, recipe.expression, defines=recipe.defines,
                   options=recipe.options, include=recipe.include, arch=recipe.arch,
                   symbols=recipe.symbols, device=device)

    @property
    def left_out(self) -> tuple[Omission, ...]:
        """Host code in the source (functions, variables, types, headers) that was left out of the
        compilation; empty if NVRTC accepted the source unchanged."""
        return self._source.compiled(
            (self._expression,), self._source.arch or self.device.arch,
            cache=CubinCache(notify=self.device.notify), probed=True).left_out

    @property
    def defines(self) -> Mapping[str, object]:
        """Its macros."""
        return self.recipe.defines

    def _load(self, programmatic: bool) -> Function:
        own, device, expression = self._source, self.device, self._expression

        def signature(expression: str, built: Compiled) -> KernelSignature:
            self._compiled = built.kernels.get(expression, self._compiled)
            return self._declared.signature(expression, self._compiled)

        if device.backend.name == "sim":
            real = own.compile_for_real(expression, device)
            instances = {expression: self._declared.instance(signature(expression, real))} \
                if real else {}
            own = own.for_simulation(instances)
        device.load(own, own.name, signature, (expression,), programmatic=programmatic)
        return device.function(own.name, expression, programmatic)

    @cached_property
    def waits_for_grid(self) -> bool:
        """Whether blocks wait for each other by grid.sync(), so that all must be resident at the
        same time; false for a kernel that first asks whether they are (is_valid)."""
        if self._compiled is None:
            return self._source.waits_for_grid(self.signature.name)
        return self._compiled.waits_for_grid and "is_valid" not in code_of(self._source.text)

    @property
    def function(self) -> Function:
        """The loaded function, whose `handle` is the argument of the driver's calls."""
        return self._function

    @property
    def signature(self) -> KernelSignature:
        """Its name, parameters and template arguments, as the source declares them."""
        return self._function.signature

    def __getitem__(self, geometry: tuple[Extent, ...]) -> Launcher:
        """`kernel[grid, block]` or `kernel[grid, block, dynamic shared bytes]`."""
        try:
            return self._launchers[geometry]  # type: ignore[no-any-return]
        except (KeyError, TypeError):  # a new geometry, or one of lists
            pass
        if not isinstance(geometry, tuple) or len(geometry) not in (2, 3):
            raise ConfigError("write kernel[grid, block] or kernel[grid, block, shared_bytes]")
        shared = geometry[2] if len(geometry) == 3 else 0
        found = self._launcher(Launch(extents(geometry[0], "grid"), extents(geometry[1], "block"),
                                      shared_bytes(shared)))
        self._launchers[(*map(_key, geometry),)] = found
        return found

    def _launcher(self, launch: Launch) -> Launcher:
        found = self._launchers.get(launch)
        if found is None:
            if len(self._launchers) >= _MAX_PREPARED:
                self._launchers.clear()
            if launch.programmatic and self._overlapping is None:
                self._overlapping = self._load(programmatic=True)
            found = self._launchers[launch] = Launcher(self, launch)
        return found

    def __call__(self, *arguments: Any) -> None:
        """Raises the error that explains how a kernel is launched."""
        raise ConfigError(f"a launch needs its geometry: write kernel[grid, block](...) for "
                          f"{self._expression}")

    def bind(self, grid: Extent, block: Extent, *arguments: Any, **named: Any) -> Bound:
        """A launch with its arguments, checked and packed once; it can be called any number of
        times. It keeps the arrays alive."""
        return self[grid, block].bind(*arguments, **named)

    def symbol(self, name: str) -> Symbol:
        """The variable `name` of the source, `__constant__` or `__device__`: write it with
        `kernel.symbol("taps")[:] = values`. Raises ConfigError if there is none."""
        return symbol(name, self._source.declarations, self._function, self.device,
                      self.recipe.symbols)

    def __repr__(self) -> str:
        parameters = ", ".join(f"{p.ctype}{'*' if p.pointer else ''} {p.name}"
                               for p in self.signature.parameters)
        return f"rawnn.Kernel({self._expression}({parameters}) on {self.device.info.name})"

    def __reduce__(self) -> NoReturn:
        """A loaded kernel cannot be pickled. Raises TypeError with the fix."""
        raise TypeError(f"{self!r} cannot be pickled or copied: make it of its source where it is "
                        f"used")

    def synchronize(self) -> None:
        """Wait for all launches, on any stream; an error inside a kernel is raised here."""
        check(self.device.driver, "cuCtxSynchronize", self.device.driver.cuCtxSynchronize(),
              self._expression)


class Launcher:
    """A kernel with its geometry; call it with arguments in the kernel's order, or by name."""

    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        self._kernel, self._launch = kernel, launch
        self._converters = kernel._converters
        self._count = len(self._converters)
        self._function = (kernel._overlapping if launch.programmatic else None) or kernel._function
        launch.check(self._function, kernel.device)
        self._free: list[KernelLaunch] = []  # one per simultaneous launch

    def using(self, *, shared: int | None = None, cluster: Extent | None = None,
              cooperative: bool | None = None, stream: Any = None,
              programmatic: bool | None = None) -> Launcher:
        """The same launch with `shared` bytes of dynamic shared memory, in clusters of `cluster`
        blocks, with all blocks resident at the same time (`cooperative`), on a `stream` of PyTorch,
        CuPy, numba or cuda.core, or beginning before its predecessor has ended (`programmatic`).
        Omitted settings do not change."""
        now = self._launch
        return self._kernel._launcher(replace(
            now,
            shared=now.shared if shared is None else shared_bytes(shared),
            cluster=now.cluster if cluster is None else extents(cluster, "cluster"),
            cooperative=now.cooperative if cooperative is None else cooperative,
            programmatic=now.programmatic if programmatic is None else programmatic,
            stream=now.stream if stream is None else stream_of(stream)))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Enqueue it; while a graph (rawnn.Graph) is recorded, add and return a node. Raises
        ConfigError for arguments that do not fit, and like every function TypeError for an unknown
        name."""
        if named:
            arguments = self._placed(arguments, named)
        if RECORDING and (graph := _recording()) is not None:
            return graph.launch_of(self, arguments)
        streams: Streams = []
        values = self._values(arguments, streams)
        try:  # avoid one that another thread, or code that a signal handler interrupted, is packing
            prepared = self._free.pop()
        except IndexError:
            prepared = self._prepare(values)
        else:
            prepared.arguments.fill(values)
        if streams:
            self._ordered(prepared, streams)
        else:
            prepared.launch()
        self._free.append(prepared)
        return None

    def _placed(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments in the kernel's order."""
        expression = self._function.expression
        names = [python_name(p.name) for p in self._function.signature.parameters]
        for name in named:
            if name not in names:
                raise TypeError(f"{expression} has no parameter '{name}'{nearest(name, names)} "
                                f"({', '.join(names)})")
            if name in names[:len(arguments)]:
                raise TypeError(f"{expression} got two values for the argument '{name}'")
        left_out = [name for name in names[len(arguments):] if name not in named]
        if left_out:
            raise self._wrong_count(len(arguments) + len(named), f": without {', '.join(left_out)}")
        return (*arguments, *(named[name] for name in names[len(arguments):]))

    def _wrong_count(self, given: int, more: str = "") -> ConfigError:
        names = ", ".join(p.name for p in self._function.signature.parameters)
        return ConfigError(f"{self._function.expression} takes {self._count} arguments ({names}), "
                           f"not {given}{more}")

    def __repr__(self) -> str:
        return f"{self._kernel!r}[{self._launch}]"

    def bind(self, *arguments: Any, **named: Any) -> Bound:
        """This launch with its arguments, checked and packed once."""
        if named:
            arguments = self._placed(arguments, named)
        streams: Streams = []
        prepared = self._prepare(self._values(arguments, streams))
        return Bound(self, prepared, streams, arguments)

    def _values(self, arguments: Sequence[Any], streams: Streams) -> list[Value]:
        if len(arguments) != self._count:
            raise self._wrong_count(len(arguments))
        return [convert(argument, streams)
                for convert, argument in zip(self._converters, arguments, strict=True)]

    def _prepare(self, values: Sequence[Value]) -> KernelLaunch:
        function, device, how = self._function, self._kernel.device, self._launch
        if self._kernel.waits_for_grid and not how.cooperative:
            raise ConfigError(f"{function.expression} waits for the whole grid (grid.sync()), "
                              f"whose blocks have to be on the GPU at once for that: launch it by "
                              f"kernel[grid, block].using(cooperative=True)")
        names = (p.name for p in function.signature.parameters)
        arguments = Arguments(function.signature, dict(zip(names, values, strict=True)))
        stream: Any = how.stream or device.stream
        return KernelLaunch(device.driver, stream, function.handle, function.expression, how.grid,
                            how.block, arguments, how.shared, how.cluster, how.programmatic,
                            how.cooperative)

    def _ordered(self, prepared: KernelLaunch, streams: Streams) -> None:
        """Launch after what other libraries have enqueued, and before their later work."""
        device = self._kernel.device
        others = [] if self._launch.stream else [Handle(s) for s in dict.fromkeys(streams)]
        for other in others:
            order(device, other, device.stream)
        prepared.launch()
        for other in others:
            order(device, device.stream, other)


class Bound:
    """A launch with its arguments, ready to be enqueued: `run = kernel.bind(...)`, then `run()`."""

    def __init__(self, launcher: Launcher, prepared: KernelLaunch, streams: Streams,
                 keep: tuple[Any, ...]) -> None:
        self._launcher, self._prepared, self._streams = launcher, prepared, streams
        self._call, self._arguments, self._failed = prepared.ready
        self._keep = keep

    def __repr__(self) -> str:
        return f"{self._launcher!r}.bind({', '.join(map(repr, self._keep))})"

    def add_to(self, graph: Graph, after: Sequence[Any]) -> Any:
        """Add the launch to a graph, after the nodes `after`; returns its node."""
        prepared = self._prepared
        return graph.add_kernel(after, *prepared._geometry, prepared.arguments.address,
                                prepared.context, (), prepared._cluster, prepared.cooperative)

    def __call__(self) -> Any:
        if RECORDING or self._streams:
            return self._carefully()
        result = self._call(*self._arguments)  # prepared.launch() without its overhead
        if result[0]:
            self._failed(result)
        return None

    def _carefully(self) -> Any:
        if RECORDING and (graph := _recording()) is not None:
            return graph.launch_of(self._launcher, self._keep)
        if self._streams:
            self._launcher._ordered(self._prepared, self._streams)
        else:
            self._prepared.launch()
        return None


def _key(extent: Extent) -> Any:
    return tuple(extent) if isinstance(extent, list) else extent
