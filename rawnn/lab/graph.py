"""A CUDA graph of a user's kernels: launches in a `with` block become its nodes, and their reads
and writes its edges."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import prod
from threading import get_ident
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, DeviceError, RawnnError
from rawnn.common.words import counted
from rawnn.cuda.compiling.signature import parse_kernels
from rawnn.cuda.device import Device
from rawnn.cuda.launch import Arguments, KernelLaunch
from rawnn.graphs.graph import ExecutableGraph
from rawnn.graphs.graph import Graph as DriverGraph
from rawnn.lab.array_exchange import Handle, order
from rawnn.lab.arrays import RECORDING, Array
from rawnn.lab.kernel import Launcher
from rawnn.lab.maps import TensorMap
from rawnn.lab.nodes import Edges, Node, edges_of, every, span_of

CONDITION = """
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void rawnn_set_condition(const int* flag, unsigned long long handle) {
  cudaGraphSetConditional(handle, *flag != 0);
}
"""
_CONDITION_FILE, _CONDITION_KERNEL = "rawnn_condition.cu", "rawnn_set_condition"


class Graph:
    """A graph of kernels, copies and fills, launched as one.

        with rawnn.Graph() as g:
            g.fill(total, 0)
            partial_sums[grid, 256](x, sums, n)
            total_of[1, 256](sums, total)
        g.launch()

    Within the block, launches of the same thread are recorded instead of run; each returns its
    node. A node waits for earlier nodes that write what it accesses, or read what it writes; a
    pointer that is not const counts as read and written. With `derive=False` the only edges are
    those of `node.after(...)`; `check()` then reports which are missing.

    A launch `using(programmatic=True)` gets programmatic edges to the kernels before it, if its PTX
    proves that it waits before it accesses what they write. `if_(flag)` and `while_(flag)` open a
    block of nodes that run if, or as long as, flag[0] is not 0 (an int32 array that kernels write).

    Recording, `check` and `dot` need no real GPU: a simulated one (`rawnn.lab.simulated()`) is
    enough.
    """

    def __init__(self, *, derive: bool = True) -> None:
        self.derive = derive
        self.nodes: list[Node] = []
        self.device: Device | None = None
        self._lists = [self.nodes]
        self._thread = 0
        self._conditions = 0
        self._executable: ExecutableGraph | None = None
        self._closing = ExitStack()
        self._free = weakref.finalize(self, _close_ignoring_errors, self._closing)
        self._free.atexit = False

    # -- recording --------------------------------------------------------------------------------
    def __enter__(self) -> Graph:
        if self._executable is not None:
            raise ConfigError("the graph is made: record another, or change nodes by update()")
        self._thread = get_ident()
        RECORDING.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        RECORDING.remove(self)
        self._thread = 0

    def here(self) -> bool:
        """Whether launches of this thread become nodes."""
        return self._thread == get_ident()

    def check_read(self, array: Array) -> None:
        """Raise ConfigError if this thread records a node that writes the array: its values would
        be those from before the graph."""
        if not self.here():
            return
        span = span_of("array", array)
        for node in every(self.nodes):
            if any(span.overlaps(written) for written in node.writes):
                raise ConfigError(f"{array!r} is written by {node.label}, which is recorded and "
                                  f"has not run: read it behind the block, after launch(); a "
                                  f"copy(host_array, array) node reads it when the graph runs")

    def check_symbol(self, symbol: object) -> None:
        """Raise ConfigError if this thread has recorded a kernel, which may use the variable."""
        if self.here() and (node := next((n for n in every(self.nodes) if n.launcher), None)):
            raise ConfigError(f"{symbol!r} is read or written at once, while {node.label} is "
                              f"recorded and has not run: do it ahead of the block, or behind "
                              f"launch()")

    def launch_of(self, launcher: Launcher, arguments: Sequence[Any]) -> Node:
        """Record a launch; `kernel[grid, block](...)` within the block does."""
        return self._put(self._kernel(launcher, arguments), launcher._kernel.device)

    def copy(self, destination: Any, source: Any) -> Node:
        """Copy an array: between arrays on the device, or from or to a NumPy array, whose bytes are
        read or written when the graph runs. Raises ConfigError if sizes differ."""
        return self._put(self._copy(destination, source), _device(destination, source))

    def fill(self, array: Array, value: int) -> Node:
        """Set every byte of an array to `value`, 0 to 255; 0 is zero in every type."""
        return self._put(self._fill(array, value), array.device)

    @contextmanager
    def if_(self, flag: Array) -> Iterator[Node]:
        """The nodes of the block run if flag[0] is not 0 when this node runs."""
        with self._conditional("if", flag) as node:
            yield node

    @contextmanager
    def while_(self, flag: Array) -> Iterator[Node]:
        """The nodes of the block repeat as long as flag[0], read before each iteration, is not
        0."""
        with self._conditional("while", flag) as node:
            yield node

    @contextmanager
    def _conditional(self, kind: str, flag: Array) -> Iterator[Node]:
        if not isinstance(flag, Array) or flag.dtype != np.int32 or prod(flag.shape) < 1:
            raise ConfigError(f"the flag of {kind}_ is an int32 array of at least one element, not "
                              f"{flag!r}")
        device = flag.device
        self._conditions += 1
        number, holder = self._conditions, dict[str, DriverGraph]()
        self._put(self._condition(flag, number), device)

        def add(graph: DriverGraph, after: Sequence[Any], early: Sequence[Any],
                handles: dict[int, int]) -> Any:
            make = graph.add_if if kind == "if" else graph.add_while
            new, holder["body"] = make((*after, *early), handles[number], kind)
            _build(holder["body"], node.body, self, handles)
            return new

        # The preceding node sets the value, so this one waits for its end.
        node = Node(kind, kind, (), (), add, flag, condition=number)
        node.after(self._lists[-1][-1])
        self._put(node, device)
        self._lists.append(node.body)
        try:
            yield node
        finally:
            self._lists.pop()
        if not node.body:
            raise ConfigError(f"{kind}_ has no nodes: launch something in its block")
        if kind == "while":
            last = self._condition(flag, number)
            node.body.append(last.after(*(n for n in node.body if not self.derive)))

    def _put(self, node: Node, device: Device) -> Node:
        if not self.here():
            raise ConfigError("nodes are added within `with graph:`")
        if self.device is not None and self.device is not device:
            raise ConfigError("a graph is of one device, and this is a node of another: make "
                              "arrays and kernels with the same device=")
        self.device = device
        self._lists[-1].append(node)
        return node

    # -- nodes ------------------------------------------------------------------------------------
    def _kernel(self, launcher: Launcher, arguments: Sequence[Any]) -> Node:
        streams: list[int] = []
        prepared = launcher._prepare(launcher._values(arguments, streams))
        parameters = launcher._function.signature.parameters
        device, how = launcher._kernel.device, launcher._launch
        reads, writes, early = [], [], []
        proof = launcher._function.proof
        pointers = {p.name for p in parameters if p.pointer}
        for parameter, argument in zip(parameters, arguments, strict=True):
            if argument is None or not (parameter.pointer or parameter.tensor_map):
                continue
            held = argument.array if isinstance(argument, TensorMap) else argument
            span = span_of(parameter.name, held, device)
            reads.append(span)
            if parameter.name in proof.early:
                early.append(span)
            has_pointer = parameter.tensor_map and parameter.mapped in pointers
            if not has_pointer and (parameter.tensor_map or not parameter.const):
                writes.append(span)  # without a pointer next to it, the use of a map is unknown

        def add(graph: DriverGraph, after: Sequence[Any], programmatic: Sequence[Any],
                handles: dict[int, int]) -> Any:
            return prepared.add_to(graph, after, 0, programmatic)[0]

        label = f"{launcher._function.expression} {how.grid} x {how.block}"
        return Node("kernel", label, tuple(reads), tuple(writes), add, (tuple(arguments), prepared),
                    proof=proof, programmatic=how.programmatic, early=tuple(early),
                    launcher=launcher, streams=tuple(streams))

    def _copy(self, destination: Any, source: Any) -> Node:
        sides = (destination, source)
        if not all(isinstance(side, Array | np.ndarray) for side in sides) \
                or not any(isinstance(side, Array) for side in sides):
            raise ConfigError("copy takes two rawnn arrays, or one and a NumPy array")
        if destination.nbytes != source.nbytes or destination.dtype != source.dtype:
            raise ConfigError(f"copy: {_described(source)} does not fit {_described(destination)}")
        if any(isinstance(s, np.ndarray) and not s.flags.c_contiguous for s in sides) \
                or (isinstance(destination, np.ndarray) and not destination.flags.writeable):
            raise ConfigError("copy: the NumPy array has to be C-contiguous and, where it is "
                              "written, writable: np.ascontiguousarray(...)")
        kind = "".join("D" if isinstance(s, Array) else "H" for s in (source, destination))
        to, of = (s.address if isinstance(s, Array) else s.ctypes.data for s in sides)
        label = f"copy {kind[0]}to{kind[1]}, {destination.nbytes:,} bytes"

        def add(graph: DriverGraph, after: Sequence[Any], early: Sequence[Any],
                handles: dict[int, int]) -> Any:
            return graph.add_memcpy((*after, *early), f"{kind[0]}to{kind[1]}", to, of,
                                    destination.nbytes, label, sides)

        # Host memory counts as well: two copies to one array are ordered.
        return Node("copy", label, (span_of("source", source),),
                    (span_of("destination", destination),), add, sides)

    def _fill(self, array: Array, value: int) -> Node:
        if not isinstance(array, Array) or not isinstance(value, int | np.integer) \
                or not 0 <= value <= 255:
            raise ConfigError(f"fill takes a rawnn array and a byte, 0 to 255, not {value!r}")
        label = f"fill with {value}, {array.nbytes:,} bytes"

        def add(graph: DriverGraph, after: Sequence[Any], early: Sequence[Any],
                handles: dict[int, int]) -> Any:
            return graph.add_memset((*after, *early), array.address, int(value), array.nbytes,
                                    label)

        return Node("fill", label, (), (span_of("array", array),), add, array)

    def _condition(self, flag: Array, number: int) -> Node:
        device = flag.device
        try:
            function = device.function(_CONDITION_FILE, _CONDITION_KERNEL)
        except (ConfigError, DeviceError):
            device.load(CONDITION, _CONDITION_FILE, parse_kernels(CONDITION), (_CONDITION_KERNEL,),
                        relocatable=True)
            function = device.function(_CONDITION_FILE, _CONDITION_KERNEL)

        def add(graph: DriverGraph, after: Sequence[Any], early: Sequence[Any],
                handles: dict[int, int]) -> Any:
            if number not in handles:
                handles[number] = graph.conditional(0)
            arguments = Arguments(function.signature,
                                  {"flag": flag.address, "handle": handles[number]})
            launch = KernelLaunch(device.driver, device.stream, function.handle, "the condition",
                                  (1, 1, 1), (1, 1, 1), arguments)
            return launch.add_to(graph, (*after, *early), 0)[0]

        return Node("condition", "flag[0] != 0", (span_of("flag", flag),), (), add, flag,
                    condition=number)

    # -- description ------------------------------------------------------------------------------
    def edges(self, nodes: Sequence[Node] | None = None) -> list[Edges]:
        """For each node, or each of a body's `nodes`, the indices of those that it waits for.
        Raises ConfigError for one that would wait for a later node."""
        return edges_of(self.nodes if nodes is None else nodes, self.derive)

    def check(self) -> Graph:
        """Prove the order correct, by the simulated GPU: of every two nodes that access the same
        bytes, one of them writing, one follows the other. Bodies of `while_` run twice. Returns
        itself; raises rawnn.sim.Race with both nodes and the bytes."""
        from rawnn.lab.ordering import prove

        prove(self)
        return self

    def dot(self) -> str:
        """The graph for Graphviz; programmatic edges are dashed."""
        lines = ["digraph g {", "  node [shape=box, fontname=monospace];"]
        self._dot(self.nodes, "n", lines, "  ")
        return "\n".join([*lines, "}"])

    def _dot(self, nodes: Sequence[Node], name: str, lines: list[str], indent: str) -> None:
        for index, (node, edges) in enumerate(zip(nodes, self.edges(nodes), strict=True)):
            here = f"{name}{index}"
            label = node.label.replace('"', '\\"')
            lines.append(f'{indent}{here} [label="{label}"];')
            for places, style in ((edges.full, ""), (edges.programmatic, ", style=dashed")):
                lines += [f'{indent}{name}{i} -> {here} [tooltip="{node.why(nodes[i])}"{style}];'
                          for i in places]
            if node.body:
                lines.append(f"{indent}subgraph cluster_{here} {{ label=\"{node.label}\";")
                self._dot(node.body, f"{here}_", lines, indent + "  ")
                lines.append(f"{indent}}}")

    def __repr__(self) -> str:
        edges = sum(len(e.full) + len(e.programmatic) for e in self.edges())
        return f"rawnn.Graph({counted(len(self.nodes), 'node')}, {counted(edges, 'edge')})"

    # -- running ----------------------------------------------------------------------------------
    def launch(self) -> None:
        """Enqueue the graph on rawnn's stream; the first call instantiates it. It follows what
        other libraries have enqueued whose arrays it accesses, and CUDA's default stream waits for
        it."""
        device = self._ready()
        if self._executable is None:
            graph = self._driver_graph()
            try:
                self._executable = graph.instantiate("a graph of one's own")
            finally:
                graph.close()
            self._closing.callback(_destroy, self._executable, device)
        others = [Handle(s) for s in dict.fromkeys(s for n in every(self.nodes) for s in n.streams)]
        for other in others:
            order(device, other, device.stream)
        self._executable.launch(device.stream)
        for other in others:
            order(device, device.stream, other)

    def update(self, node: Node, *arguments: Any) -> None:
        """Change a node's arguments from the next launch on: a kernel's own, a copy's destination
        and source, a fill's array and value. Only a graph with conditional nodes is instantiated
        again, because an update cannot keep their handles.

        Raises ConfigError if the edges would change, and for any other node.
        """
        self._ready()
        if not any(node is each for each in every(self.nodes)):
            raise ConfigError(f"{node} is no node of this graph")
        makers: dict[str, Callable[..., Node]] = {"copy": self._copy, "fill": self._fill}
        if node.launcher is not None:
            new = self._kernel(node.launcher, arguments)
        elif node.kind in makers and len(arguments) == 2:
            new = makers[node.kind](*arguments)
        else:
            raise ConfigError(f"{node}: update takes a kernel's arguments, a copy's destination "
                              f"and source, or a fill's array and value")
        lists = [self.nodes, *(n.body for n in every(self.nodes) if n.body)]
        before = [self.edges(nodes) for nodes in lists]
        fields = ("label", "add", "keep", "early", "streams",
                  *(() if node.is_explicit else ("reads", "writes")))
        old = {name: getattr(node, name) for name in fields}
        for name in fields:
            setattr(node, name, getattr(new, name))
        if [self.edges(nodes) for nodes in lists] != before:
            for name, value in old.items():
                setattr(node, name, value)
            raise ConfigError(f"{node}: with these arguments other edges are needed, and an update "
                              f"keeps them: record another graph")
        if self._executable is None:
            return
        if self._conditions:
            self._closing.close()  # pending launches run to their end
            self._executable = None
            return
        graph = self._driver_graph()
        try:
            self._executable.update(graph)
        finally:
            graph.close()

    def _driver_graph(self) -> DriverGraph:
        device = self._ready()
        graph = DriverGraph(device.driver, device.context, "a graph of one's own")
        try:
            _build(graph, self.nodes, self, {})
        except BaseException:
            graph.close()
            raise
        graph.kept += [node.keep for node in every(self.nodes)]
        return graph

    def _ready(self) -> Device:
        if self._thread:
            raise ConfigError("the graph is still being written: launch it behind its block")
        if self.device is None:
            raise ConfigError("the graph has no nodes: launch kernels within `with graph:`")
        return self.device

    def close(self) -> None:
        """Destroy the driver's graph; the garbage collector does it, too."""
        self._closing.close()


def _close_ignoring_errors(closing: ExitStack) -> None:
    """For the garbage collector, which has nobody to report errors to."""
    with suppress(RawnnError):
        closing.close()


def _destroy(executable: ExecutableGraph, device: Device) -> None:
    """Destroy it, unless the device is closed: then it no longer exists, and the driver crashed
    when it was destroyed again."""
    if device.open:
        executable.close()


def _build(graph: DriverGraph, nodes: Sequence[Node], whole: Graph,
           handles: dict[int, int]) -> None:
    new: list[Any] = []
    for node, edges in zip(nodes, whole.edges(nodes), strict=True):
        new.append(node.add(graph, [new[i] for i in edges.full],
                            [new[i] for i in edges.programmatic], handles))


def _described(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _device(*arrays: Any) -> Device:
    for array in arrays:
        if isinstance(array, Array):
            return array.device
    raise ConfigError("copy takes two rawnn arrays, or one and a NumPy array")
