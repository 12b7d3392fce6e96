"""The simulated driver's module calls: functions, their attributes, symbols, linking."""

from __future__ import annotations

from typing import Any

from rawnn.cuda.compiling.symbols import find_symbol, static_shared
from rawnn.cuda.driver import LINK_CUBIN, LINK_LIBRARY, LINK_PTX
from rawnn.sim import griddepcontrol
from rawnn.sim.effects import Effects
from rawnn.sim.errors import Refused, SimulationError
from rawnn.sim.faults import simulated_call
from rawnn.sim.image import Image, decode, instance, kernel_of, launch_bounds
from rawnn.sim.kernels import LoadedKernel


class ModuleCalls(Effects):
    """The module calls of `rawnn.cuda.driver.Driver`."""

    @simulated_call(None)
    def cuModuleLoadData(self, image: bytes) -> tuple[Any, Any]:
        found = decode(bytes(image))
        if found is None or not found.loadable:
            raise Refused("CUDA_ERROR_INVALID_IMAGE")
        major, minor = self.simulation.compute_capability
        kind, _, number = found.arch.rstrip("af").partition("_")
        runs = int(number) <= 10 * major + minor if kind == "compute" \
            else number == f"{major}{minor}"
        if not runs:
            raise Refused("CUDA_ERROR_NO_BINARY_FOR_GPU")
        return 0, self.simulation.create("module", lambda handle: (found, [], {}))[0]

    @simulated_call()
    def cuModuleUnload(self, hmod: Any) -> tuple[Any, ...]:
        _, functions, symbols = self.simulation.destroy(hmod, "module")
        for address, _ in symbols.values():
            self.simulation.memory.free(address, self.simulation.site())
        for function in functions:
            self.functions.pop(function, None)
        return (0,)

    @simulated_call(None)
    def cuModuleGetFunction(self, hmod: Any, name: bytes) -> tuple[Any, Any]:
        image: Image
        image, functions, _ = self.simulation.find(hmod, "module")
        expression = {m: e for e, m in image.lowered.items()}.get(name.decode())
        if expression is None:
            raise Refused("CUDA_ERROR_NOT_FOUND")
        base = kernel_of(expression)
        handle = self.simulation.new_handle()
        self.functions[handle] = LoadedKernel(
            self.simulation.memory, self.simulation.launcher, image.name, expression,
            instance(image.name, image.source, expression), launch_bounds(image.source, base),
            waits=griddepcontrol.waits(image.text, base, image.programmatic),
            triggers=griddepcontrol.triggers(image.text, base, image.programmatic),
            static_shared=static_shared(image.source, base),
        )
        functions.append(handle)
        return 0, handle

    @simulated_call(0, 0)
    def cuModuleGetGlobal(self, module: Any, name: bytes) -> tuple[Any, int, int]:
        """Variables are zero at first, whatever the source says."""
        image: Image
        image, _, symbols = self.simulation.find(module, "module")
        if name not in symbols:
            found = find_symbol(image.text, name.decode())
            if found is None or found.nbytes is None:
                raise Refused("CUDA_ERROR_NOT_FOUND")
            memory, nbytes = self.simulation.memory, found.nbytes
            address = memory.allocate(nbytes, self.simulation.site())
            region = memory.region(address, nbytes, nbytes, 1, f"symbol {found.name}")
            region.bytes()[...] = 0
            memory.mark_written(region)
            symbols[name] = address, nbytes
        return 0, *symbols[name]

    @simulated_call(0)
    def cuFuncGetAttribute(self, attribute: str, function: Any) -> tuple[Any, int]:
        kernel = self.function(function)
        values = {"MAX_THREADS_PER_BLOCK": kernel.most_threads,
                  "SHARED_SIZE_BYTES": kernel.static_shared,
                  "CONST_SIZE_BYTES": 0, "LOCAL_SIZE_BYTES": 0, "NUM_REGS": kernel.registers,
                  "PTX_VERSION": 90, "BINARY_VERSION": 90,
                  "MAX_DYNAMIC_SHARED_SIZE_BYTES": kernel.shared_limit,
                  "NON_PORTABLE_CLUSTER_SIZE_ALLOWED": int(kernel.largest_cluster > 8),
                  "PREFERRED_SHARED_MEMORY_CARVEOUT": kernel.carveout}
        if attribute not in values:
            raise SimulationError(f"the simulated GPU has no value for the attribute {attribute}")
        return 0, values[attribute]

    @simulated_call()
    def cuFuncSetAttribute(self, function: Any, attribute: str, value: int) -> tuple[Any, ...]:
        kernel = self.function(function)
        if attribute == "MAX_DYNAMIC_SHARED_SIZE_BYTES":
            most = self.simulation.attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]
            if not 0 <= value <= most - kernel.static_shared:
                raise Refused("CUDA_ERROR_INVALID_VALUE")
            kernel.shared_limit = value
        elif attribute == "NON_PORTABLE_CLUSTER_SIZE_ALLOWED":
            if value not in (0, 1):
                raise Refused("CUDA_ERROR_INVALID_VALUE")
            kernel.largest_cluster = 16 if value else 8
        elif attribute == "PREFERRED_SHARED_MEMORY_CARVEOUT":
            if not -1 <= value <= 100:
                raise Refused("CUDA_ERROR_INVALID_VALUE")
            kernel.carveout = value
        else:
            raise SimulationError(f"the simulated GPU cannot set the attribute {attribute}")
        return (0,)

    # -- linking --------------------------------------------------------------------------------
    @simulated_call(None)
    def cuLinkCreate(self) -> tuple[Any, Any]:
        return 0, self.simulation.create("linker", lambda handle: [])[0]

    @simulated_call()
    def cuLinkAddData(self, state: Any, kind: str, image: bytes, name: str) -> tuple[Any, ...]:
        inputs: list[Any] = self.simulation.find(state, "linker")
        if kind not in (LINK_CUBIN, LINK_PTX, LINK_LIBRARY) or not image:
            raise Refused("CUDA_ERROR_INVALID_VALUE")
        found = decode(bytes(image)) if kind != LINK_LIBRARY else None
        if kind != LINK_LIBRARY and found is None:
            raise Refused("CUDA_ERROR_INVALID_IMAGE")
        inputs.append((kind, found))
        return (0,)

    @simulated_call(b"")
    def cuLinkComplete(self, state: Any) -> tuple[Any, bytes]:
        inputs = self.simulation.find(state, "linker")
        cubins: list[Image] = [image for kind, image in inputs if kind != LINK_LIBRARY]
        library = any(kind == LINK_LIBRARY for kind, _ in inputs)
        if len(cubins) != 1 or (cubins[0].needs_device_runtime and not library):
            raise Refused("CUDA_ERROR_INVALID_IMAGE")
        return 0, cubins[0].link().encode()

    @simulated_call()
    def cuLinkDestroy(self, state: Any) -> tuple[Any, ...]:
        self.simulation.destroy(state, "linker")
        return (0,)
