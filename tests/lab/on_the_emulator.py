"""A user's kernel checked without a GPU: its own code, compiled by g++ and run on the CPU emulator,
with its synchronisation watched. It takes what the CPU emulator takes: no libraries, no wmma."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from rawnn.common.errors import RawnnError
from rawnn.lab.arrays import simulated
from rawnn.lab.checking import Checked, try_sizes
from rawnn.lab.kernel import Kernel
from rawnn.lab.kernel_files import kernel_of
from rawnn.lab.kernel_problem import Boxes, Launching
from rawnn.lab.parameter_roles import problem_of
from rawnn.lab.red_zones import Contents, Image, Images
from rawnn.lab.work import Work
from rawnn.sim.tensormap import SimMap
from tests.ptx.emulator.emulator import EmulatedLibrary, EmulatorError, Kernels


class OnTheEmulator:
    """What launches a kernel of a file on the CPU emulator."""

    def __init__(self, path: Path, expression: str, defines: Mapping[str, object]) -> None:
        macros = tuple(f"{name}={value}" for name, value in defines.items())
        self._expression = expression
        self._library: EmulatedLibrary = Kernels((path.name,), (expression,), defines=macros,
                                   folders=(path.parent,),
                                   # A library of its own, whose device variables nobody else has.
                                   flags=("-Wno-error", f"-I{path.parent}")).build()

    def run(self, launching: Launching | None, images: Images,
            numbers: Mapping[str, Any]) -> Contents:
        assert launching is not None
        arrays = {}
        for name, image in images.items():
            room = np.zeros(image.nbytes + 16, np.uint8)  # vector loads want 16 bytes
            begin = -room.ctypes.data % 16
            arrays[name] = room[begin : begin + image.nbytes].view(image.dtype)
            arrays[name][...] = image.values(image.content).reshape(-1)
        maps = {name: self._map(images[boxes.operand], arrays[boxes.operand], boxes)
                for name, boxes in launching.maps.items()}
        try:
            self._library.call(self._expression, launching.grid, launching.block,
                            shared=launching.shared, cooperative=launching.cooperative,
                            cluster=prod(launching.cluster or (1,)), **numbers, **arrays, **maps)
        except EmulatorError as error:
            raise RawnnError(str(error)) from None
        found = {name: image.content.copy() for name, image in images.items()}
        for name, image in images.items():
            image.inside(found[name])[...] = arrays[name].view(np.uint8)
        return found

    @staticmethod
    def _map(image: Image, array: np.ndarray, boxes: Boxes) -> bytes:
        """As rawnn.tensor_map, for the CPU emulator."""
        rows, columns = image.shape
        return SimMap(image.dtype.name.upper(), array.ctypes.data, (columns, rows),
                      (columns * image.dtype.itemsize,), boxes.box[::-1], boxes.swizzle,
                      "L2_256B").encoded()

    def close(self) -> None:
        pass


class Ghost:
    """A launch that does nothing: what comes back are the bytes that went there."""

    def run(self, launching: Launching | None, images: Images,
            numbers: Mapping[str, Any]) -> Contents:
        return {name: image.content.copy() for name, image in images.items()}

    def close(self) -> None:
        pass


def check_of_nothing(kernel: Kernel, work: Work) -> Checked:
    """As rawnn.check, of a kernel in whose place nothing runs, with its smallest sizes."""
    problem, generator = problem_of(kernel, work), np.random.default_rng(0)
    sizes = problem.sizes(4, generator)[0]
    tried = try_sizes(problem, sizes, Ghost(), generator)[0]
    return Checked(problem.label, (tried,), 1)


def check_on_the_emulator(path: Path, trials: int = 4, **work: Any) -> Checked:
    """As rawnn.check of the kernel that a file's header describes."""
    kernel, declared = kernel_of(path, device=simulated(), **work)
    problem = problem_of(kernel, declared)
    generator = np.random.default_rng(0)
    runner = OnTheEmulator(path, kernel.recipe.expression, kernel.recipe.defines)
    every = problem.sizes(trials, generator)
    every = sorted(every, key=lambda sizes: prod(sizes.values()))[:trials]
    tried = [try_sizes(problem, sizes, runner, generator)[0] for sizes in every]
    return Checked(problem.label, tuple(tried), len(every))
