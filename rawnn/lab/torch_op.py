"""A PyTorch operator made from a checked kernel: it runs on PyTorch's current stream, and has
gradients if a second kernel computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rawnn.common.errors import ConfigError, MissingLibrary, nearest
from rawnn.lab.checking import check as checked
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Operand
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.sampling import Sizes
from rawnn.lab.work import Work


class TorchOp:
    """A kernel with its work as an operator. `arguments` are its inputs and numbers, in the order
    of the kernel's parameters, `outputs` its results; sizes follow from the inputs' shapes."""

    def __init__(self, kernel: Kernel, work: Work) -> None:
        self.kernel = kernel
        self.problem: KernelProblem = problem_of(kernel, work)
        operands = {o.name: o for o in self.problem.operands}
        self.inputs = tuple(o for o in operands.values() if not o.written)
        self.outputs = tuple(o for o in operands.values() if o.written)
        both = [o.name for o in self.outputs if o.read]
        if both:
            raise ConfigError(f"{kernel.expression} reads and writes '{both[0]}': an operator's "
                              f"outputs are made anew, so let it write into another array")
        self.numbers = tuple(name for name in self.problem.scalars
                             if name not in self.problem.names and name not in work.values)
        given = {o.name for o in self.inputs} | set(self.numbers)
        self.arguments = tuple(p for p in self.problem.parameters if p in given)
        unknown = set(self.problem.names) - {
            extent for o in self.inputs for extent in o.extents if isinstance(extent, str)}
        if unknown:
            raise ConfigError(f"{kernel.expression}: the size '{min(unknown)}' is no extent of an "
                              f"input, so no tensor says it: give it as one in shapes, or in "
                              f"values")

    @property
    def schema(self) -> str:
        """The types of an operator in PyTorch's syntax."""
        tensors = {o.name for o in self.inputs}
        words = [f"Tensor {n}" if n in tensors else f"{self._number(n)} {n}"
                 for n in self.arguments]
        results = ", ".join(["Tensor"] * len(self.outputs))
        return f"({', '.join(words)}) -> {results if len(self.outputs) == 1 else f'({results})'}"

    def _number(self, name: str) -> str:
        parameter = self.problem.scalars[name]
        return "bool" if parameter.ctype == "bool" else \
            "int" if parameter.format in "bBhHiIqQ" else "float"

    def sizes(self, shapes: Mapping[str, Sequence[int]]) -> Sizes:
        """The sizes that follow from the inputs' shapes. Raises ConfigError if they disagree."""
        found: Sizes = {}
        for operand in self.inputs:
            shape, extents = tuple(shapes[operand.name]), operand.extents
            if len(shape) != len(extents):
                raise ConfigError(f"'{operand.name}' has {len(extents)} dimensions "
                                  f"({', '.join(map(str, extents))}), not the {len(shape)} of "
                                  f"{list(shape)}")
            for extent, size in zip(extents, shape, strict=True):
                if isinstance(extent, str) and extent in self.problem.names \
                        and found.setdefault(extent, int(size)) != int(size):
                    raise ConfigError(f"'{operand.name}' is of shape {list(shape)}, but {extent} "
                                      f"is {found[extent]}")
        known = self.problem.known(found)
        for operand in self.inputs:
            wanted = self.problem.shape(operand, known)
            if wanted != tuple(shapes[operand.name]):
                raise ConfigError(f"'{operand.name}' should be of shape {list(wanted)}, not "
                                  f"{list(shapes[operand.name])}")
        return found

    def output_shapes(self, shapes: Mapping[str, Sequence[int]]
                      ) -> list[tuple[Operand, tuple[int, ...]]]:
        """Each output with its shape."""
        known = self.problem.known(self.sizes(shapes))
        return [(o, self.problem.shape(o, known)) for o in self.outputs]

    def launch(self, given: Mapping[str, Any], stream: Any) -> None:
        """Launch on a stream; `given` are arguments and outputs by name."""
        shapes = {o.name: given[o.name].shape for o in self.inputs}
        known = self.problem.known(self.sizes(shapes))
        how = self.problem.launching(known)
        assert how is not None
        launcher = self.kernel[how.grid, how.block].using(
            shared=how.shared, cluster=how.cluster, cooperative=how.cooperative, stream=stream)
        launcher(*(given[n] if n in given else known[n] for n in self.problem.parameters))

    def check_gradients_of(self, forward: TorchOp) -> None:
        """Raise ConfigError unless this one computes gradients of `forward` from its inputs,
        outputs and numbers, and the gradients of its outputs, d<output>."""
        known = {*forward.arguments, *(o.name for o in forward.outputs),
                 *(f"d{o.name}" for o in forward.outputs)}
        for name in self.arguments:
            if name not in known:
                raise ConfigError(f"the backward kernel asks for '{name}'{nearest(name, known)}; "
                                  f"there are {', '.join(sorted(known))}")
        wanted = {f"d{o.name}" for o in forward.inputs}
        for operand in self.outputs:
            if operand.name not in wanted:
                raise ConfigError(f"the backward kernel writes '{operand.name}'"
                                  f"{nearest(operand.name, wanted)}; gradients are called "
                                  f"{', '.join(sorted(wanted))}")


def torch_op(name: str, kernel: Kernel, work: Work | Any = None, *,
             backward: tuple[Kernel, Work] | None = None, check: bool = True,
             **described: Any) -> Any:
    """The PyTorch operator `name` ("mine::bias_relu") of a kernel; needs PyTorch 2.4.

    `work` and `described` are those of `rawnn.check`: the kernel is checked first (unless `check`
    is False), outputs are allocated, and sizes follow from shapes. Parameters that are not const
    are outputs; inputs, and numbers that are no sizes, are the operator's arguments in the kernel's
    order. `backward` is a second kernel with its work: it writes d<input>, from inputs, outputs and
    d<output> by these names.

        relu = torch_op("mine::relu", kernel, work, backward=(kernel2, work2))
        relu(z, bias).sum().backward()

    The operator works with autograd and torch.compile. Raises ConfigError for kernels that do not
    fit, CheckFailed for one that is wrong, MissingLibrary without PyTorch.
    """
    try:
        import torch
    except ImportError:
        raise MissingLibrary("an operator for PyTorch needs PyTorch: pip install torch") from None
    forward = TorchOp(kernel, Work.of(work, described))
    gradients = TorchOp(*backward) if backward else None
    if gradients is not None:
        gradients.check_gradients_of(forward)
    if check:
        for each in filter(None, (forward, gradients)):
            checked(each.kernel, each.problem.work).require()
    operator = _registered(torch, name, forward)
    if gradients is not None:
        second = _registered(torch, f"{name}_backward", gradients)
        _with_gradients(operator, second, forward, gradients)
    return operator


def _dtype(torch: Any, dtype: np.dtype[Any]) -> Any:
    found = getattr(torch, dtype.name, None)
    if found is None:
        raise ConfigError(f"PyTorch has no type for {dtype}")
    return found


def _registered(torch: Any, name: str, op: TorchOp) -> Any:
    tensors = {o.name: o for o in op.inputs}

    def empty(arguments: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        given = dict(zip(op.arguments, arguments, strict=True))
        like = given[op.inputs[0].name]
        outputs = [like.new_empty(shape, dtype=_dtype(torch, operand.dtype)) for operand, shape in
                   op.output_shapes({n: given[n].shape for n in tensors})]
        return given, outputs

    def result(outputs: list[Any]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(*arguments: Any) -> Any:
        given, outputs = empty(arguments)
        for operand in op.inputs:
            given[operand.name] = given[operand.name].detach().contiguous()
        given |= {o.name: tensor for o, tensor in zip(op.outputs, outputs, strict=True)}
        op.launch(given, torch.cuda.current_stream())
        return result(outputs)

    operator = torch.library.custom_op(name, run, mutates_args=(), device_types="cuda",
                                       schema=op.schema)
    operator.register_fake(lambda *arguments: result(empty(arguments)[1]))
    return operator


def _with_gradients(operator: Any, second: Any, forward: TorchOp, gradients: TorchOp) -> None:
    tensors = [o.name for o in (*forward.inputs, *forward.outputs)]
    saved = [name for name in tensors if name in gradients.arguments]

    def setup(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        known = dict(zip(forward.arguments, inputs, strict=True))
        known |= {o.name: tensor for o, tensor in zip(forward.outputs, outputs, strict=True)}
        ctx.save_for_backward(*(known[name] for name in saved))
        ctx.numbers = {name: known[name] for name in forward.numbers}

    def back(ctx: Any, *incoming: Any) -> Any:
        given = {**ctx.numbers, **dict(zip(saved, ctx.saved_tensors, strict=True)),
                 **{f"d{o.name}": g for o, g in zip(forward.outputs, incoming, strict=True)}}
        found = second(*(given[name] for name in gradients.arguments))
        found = found if isinstance(found, tuple) else (found,)
        by_name = {o.name: g for o, g in zip(gradients.outputs, found, strict=True)}
        return tuple(by_name.get(f"d{name}") for name in forward.arguments)

    operator.register_autograd(back, setup_context=setup)
