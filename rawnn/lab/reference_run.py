"""Runs a kernel without a registered reference on the simulated GPU: the work's reference replaces
it. This checks the description, the compilation, the arguments and the launch, but not the
kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_problem import KernelProblem, Launching
from rawnn.lab.measuring import Sample, Stopwatch
from rawnn.lab.red_zones import Contents, Image, Images

NOTE = ("on the simulated GPU, with the reference in the kernel's place: this tries the "
        "description, the compiler and the launch, not what the kernel computes")


def needed(problem: KernelProblem) -> bool:
    """Whether the candidate is a kernel on the simulated GPU without a reference."""
    kernel = problem.candidate
    if not isinstance(kernel, Kernel) or kernel.device.backend.name != "sim":
        return False
    from rawnn.sim.kernel_references import reference_of

    return reference_of(kernel.source.name, kernel.signature.name) is None


class ReferenceRun(Stopwatch):
    """Launches on the simulated GPU with the work's reference as the kernel's."""

    def __init__(self, problem: KernelProblem) -> None:
        super().__init__(problem.candidate, problem.parameters)
        self._problem = problem

    def run(self, launching: Launching | None, images: Images,
            numbers: Mapping[str, Any]) -> Contents:
        self.register_reference(launching, images, numbers)
        return super().run(launching, images, numbers)

    def measure(self, launching: Launching | None, samples: Any, warm: bool
                ) -> tuple[list[float], list[Contents]]:
        times, contents = [], []
        for sample in samples:  # one by one, as each has its own numbers
            one: Sample = sample
            self.register_reference(launching, one[0], one[1])
            took, found = super().measure(launching, [one], warm)
            times += took
            contents += found
        return times, contents

    def register_reference(self, launching: Launching | None, images: Images,
                           numbers: Mapping[str, Any]) -> None:
        """Register the reference as the kernel's, for arrays of these sizes."""
        from rawnn.sim import register

        problem = self._problem
        reads = tuple(o.name for o in problem.operands if o.read)
        writes = tuple(o.name for o in problem.operands if o.written)

        def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
            given: dict[str, Any] = {**problem.known(self._sizes(images, numbers)), **numbers,
                                     **(launching.symbols if launching else {})}
            for name in reads:
                values = _plain(getattr(t, name), images[name]).reshape(images[name].shape)
                given[name] = values.astype(np.float64) if values.dtype.kind == "f" else values
            found = problem.named(problem.referred(given),
                                  {n: image.shape for n, image in images.items()})
            for name, result in found.items():
                if result is not None:
                    view = _plain(getattr(t, name), images[name])
                    view[...] = result.reshape(view.shape)

        assert isinstance(self.candidate, Kernel)
        mapped = {boxes.operand for boxes in launching.maps.values()} if launching else set()
        register(self.candidate.signature.name, meaning,
                 {n: tuple(map(str, image.shape)) if n in mapped and len(image.shape) == 2 else
                  (str(image.nbytes // image.dtype.itemsize
                       // self.candidate.elements[n].width),) for n, image in images.items()},
                 reads=reads, writes=writes)

    def _sizes(self, images: Images, numbers: Mapping[str, Any]) -> dict[str, int]:
        """Sizes that are kernel parameters; the others are derived from extents."""
        found = {n: int(numbers[n]) for n in self._problem.names if n in numbers}
        for operand in self._problem.operands:
            for extent, size in zip(operand.extents, images[operand.name].shape, strict=True):
                if extent in self._problem.names:
                    found.setdefault(extent, size)
        return found

    def close(self) -> None:
        """Remove the kernel's reference."""
        from rawnn.sim import kernel_references

        assert isinstance(self.candidate, Kernel)
        kernel_references.forget(self.candidate.signature.name)


def _plain(view: NDArray[Any], image: Image) -> NDArray[Any]:
    """The numbers of an operand, with vectors split into their elements."""
    return view.view(image.dtype) if view.dtype.names else view
