"""One GPU: its properties, its primary context, one stream, its memory and its compiled kernels."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawnn import ptx
from rawnn.common.cuda_text import CudaText
from rawnn.common.dtypes import numpy_dtype
from rawnn.common.errors import ConfigError, DeviceError
from rawnn.common.target import Target
from rawnn.common.words import counted
from rawnn.cuda.backend import Backend
from rawnn.cuda.compiling.batch import Batch, Job, SharedResults
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.cuda.compiling.signature import KernelSignature, find_kernel, parse_kernels
from rawnn.cuda.driver import LINK_CUBIN, LINK_LIBRARY, LINK_PTX, MINIMUM_DRIVER
from rawnn.cuda.errors import CallFailed, check
from rawnn.cuda.memory import Memory
from rawnn.cuda.occupancy import target_of
from rawnn.cuda.stream import Stream


@dataclass(frozen=True)
class DeviceInfo:
    """Facts about the GPU that results record. `memory` is in bytes; `cuda` is the newest CUDA
    version that the driver supports, `driver` the kernel module's version; `memory_pools` says
    whether it supports stream-ordered allocation."""

    name: str
    ordinal: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory: int
    cuda: str
    driver: str
    bindings: str
    memory_pools: bool = False


@dataclass(frozen=True)
class Function:
    """A kernel loaded on the device, with the signature from its source; `proof` says whether it
    may be launched programmatically; `module` holds it and its symbols."""

    handle: Any
    expression: str
    signature: KernelSignature
    proof: Proof = field(default_factory=Proof)
    module: Any = None


Signatures = Mapping[str, KernelSignature] | Callable[[str, Compiled], KernelSignature]
"""Signatures by name, or a function of an expression and the compiled source."""

ASSUMED = "RAWNN_COMPUTE"
"""Environment variable: a compute capability such as 7.5, for which all kernels are compiled to PTX
that the driver translates. It lets a newer GPU run the code of older ones."""


def assumed_capability(real: tuple[int, int]) -> tuple[int, int] | None:
    """The compute capability in RAWNN_COMPUTE, None if it is not set. Raises ConfigError for other
    text, or if it is newer than the GPU's `real` one."""
    text = os.environ.get(ASSUMED, "")
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,2})\.(\d)", text)
    wanted = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (7, 5) <= wanted <= real:
        raise ConfigError(f"{ASSUMED}={text}: give a compute capability from 7.5 to this GPU's "
                          f"{real[0]}.{real[1]}")
    return wanted


def version_text(number: int) -> str:
    """The driver's 12090 as "12.9"."""
    return f"{number // 1000}.{number % 1000 // 10}"


class Device:
    """GPU `ordinal` behind a backend. The primary context is shared with other users of CUDA in the
    process, such as PyTorch. Raises DeviceError if there is no such GPU.

    `compile_ms`, `compiled` and `cached` count the time of compilation and the kernels.
    """

    def __init__(self, backend: Backend, ordinal: int = 0,
                 notify: Callable[[str], None] = lambda message: None) -> None:
        self.backend = backend
        self.driver = backend.driver()
        self._ordinal = ordinal
        self._notify = notify
        self._sources: dict[str, tuple[CudaText, Signatures]] = {}
        self._functions: dict[tuple[str, str, bool], Function] = {}
        self._cache = CubinCache(notify=notify) if backend.cache else None
        self.compile_ms, self.compiled, self.cached = 0.0, 0, 0
        self.results: SharedResults | None = None
        """What several devices compile once for all."""
        self._target: Target | None = None
        self._handle = self._open(ordinal)
        with ExitStack() as opening:
            self.context = self._check("cuDevicePrimaryCtxRetain", self._handle)
            opening.callback(self._check, "cuDevicePrimaryCtxRelease", self._handle)
            self._check("cuCtxSetCurrent", self.context)
            self.info = self._describe(ordinal)
            self._assumed = assumed_capability(self.info.compute_capability)
            self.stream = Stream(self.driver)
            opening.callback(self.stream.close)
            self.memory = Memory(self.driver)
            opening.callback(self.memory.free_all)
            self._closing = opening.pop_all()
            self.open = True

    def _check(self, call: str, *arguments: Any, context: str = "") -> Any:
        return check(self.driver, call, getattr(self.driver, call)(*arguments),
                     context or f"GPU {self._ordinal}")

    def _open(self, ordinal: int) -> Any:
        try:
            self._check("cuInit", 0)
            version = self._check("cuDriverGetVersion")
            count = self._check("cuDeviceGetCount")
        except RuntimeError as error:  # the bindings could not load libcuda
            raise DeviceError(
                "no NVIDIA driver can be loaded on this machine (libcuda is missing or broken)"
            ) from error
        except CallFailed as error:
            raise DeviceError(
                f"no usable GPU: {error}; run with --device host to train on the CPU"
            ) from error
        bindings = self.driver.bindings_version
        needed = MINIMUM_DRIVER.get(bindings // 1000, bindings // 1000 * 1000)
        if version < needed:
            raise DeviceError(
                f"the NVIDIA driver supports CUDA {version_text(version)}, but rawnn with "
                f"cuda-bindings {version_text(bindings)} needs {version_text(needed)} or newer: "
                "update the driver" + (", or pip install 'rawnn[cu12]', which it can run"
                                       if bindings >= 13000 and version >= MINIMUM_DRIVER[12]
                                       else "")
            )
        if ordinal >= count:
            raise DeviceError(f"GPU {ordinal} was asked for, but this machine has "
                              f"{counted(count, 'GPU')}; "
                              f"run with --device host to train on the CPU")
        self.count = int(count)
        """How many GPUs the process sees."""
        return self._check("cuDeviceGet", ordinal)

    def __repr__(self) -> str:
        return f"rawnn.Device({self.info.name})"

    def with_own_stream(self) -> Device:
        """The same GPU with another stream, so that work on both runs at the same time. Context and
        memory are shared; kernels that it loads are its own. Close it before this device, in the
        thread that opened this one."""
        found = copy.copy(self)
        found.stream = Stream(self.driver)
        found._functions = dict(self._functions)
        found._closing = ExitStack()
        found._closing.callback(found.stream.close)
        return found

    def attribute(self, name: str) -> int:
        """A device attribute; `name` is the driver's, without `CU_DEVICE_ATTRIBUTE_`."""
        return int(self._check("cuDeviceGetAttribute", name, self._handle, context=name))

    def _describe(self, ordinal: int) -> DeviceInfo:
        attribute = self.attribute
        kernel_module = Path("/proc/driver/nvidia/version")
        found = re.search(r"  (\d+\.\d+[.\d]*)", kernel_module.read_text()) \
            if kernel_module.exists() else None
        return DeviceInfo(
            name=self._check("cuDeviceGetName", self._handle),
            ordinal=ordinal,
            compute_capability=(attribute("COMPUTE_CAPABILITY_MAJOR"),
                                attribute("COMPUTE_CAPABILITY_MINOR")),
            multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
            memory=int(self._check("cuDeviceTotalMem", self._handle)),
            cuda=version_text(self._check("cuDriverGetVersion")),
            driver=found.group(1) if found else "unknown",
            bindings=version_text(self.driver.bindings_version),
            memory_pools=bool(attribute("MEMORY_POOLS_SUPPORTED")),
        )

    def notify(self, message: str) -> None:
        """Send the user a message about this device."""
        self._notify(message)

    @property
    def handle(self) -> Any:
        """The device argument of the driver's calls."""
        return self._handle

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that kernels are compiled for: this GPU's, or the older one in
        RAWNN_COMPUTE."""
        return self._assumed or self.info.compute_capability

    @property
    def arch(self) -> str:
        """NVRTC's name of the architecture that kernels are compiled for, such as "sm_90". An older
        one is virtual ("compute_75"), and the driver compiles its PTX for this GPU."""
        major, minor = self.capability
        return f"{'compute' if self._assumed else 'sm'}_{major}{minor}"

    def target(self) -> Target:
        """The facts that launches may depend on; queried once."""
        if self._target is None:
            self._target = target_of(self)
        return self._target

    # -- kernels --------------------------------------------------------------------------------
    def compile(self, file: str, expressions: tuple[str, ...], relocatable: bool = False,
                programmatic: bool = False, specific: bool = False) -> None:
        """Compile (or read from the cache) and load template instances of one of rawnn's .cu files.
        With `programmatic` they are separate instances that wait and trigger (pdl.cuh). A
        `specific` source has instructions of this architecture only."""
        self.finish(self.begin([Job(file, expressions, relocatable, programmatic, specific)]))

    def begin(self, jobs: Sequence[Job]) -> Batch:
        """Start compiling what is not loaded yet of several files, in the background until
        `finish`."""
        started = perf_counter()
        missing = [replace(job, expressions=wanted) for job in jobs
                   if (wanted := tuple(e for e in job.expressions if
                                       (job.file, e, job.programmatic) not in self._functions))]
        for job in missing:
            if job.code is not None:
                folders = (Path(job.file).parent, *job.code.include, *ptx.INCLUDE)
                self._sources[job.file] = job.code, _signatures(job.code, folders)
        codes = {job.file: self._source(job.file)[0] for job in missing}
        batch = Batch(missing, lambda job: self._built(codes[job.file], job), self.backend.parallel)
        self.compile_ms += (perf_counter() - started) * 1e3
        return batch

    def finish(self, batch: Batch) -> None:
        """Wait for the jobs of `begin`, and load them. `compile_ms` counts only the waiting."""
        started = perf_counter()
        try:
            for job, built in batch:
                self._load_module(job, built, self._source(job.file)[1])
        finally:
            batch.close()
            self.compile_ms += (perf_counter() - started) * 1e3

    def load(self, source: str | CudaText, name: str, signatures: Signatures,
             expressions: tuple[str, ...], relocatable: bool = False,
             programmatic: bool = False) -> None:
        """Compile CUDA C and load it; `function(name, expression)` then returns each kernel."""
        started = perf_counter()
        code = CudaText(source) if isinstance(source, str) else source
        job = Job(name, expressions, relocatable, programmatic, code=code)
        self._load_module(job, self._built(code, job), signatures)
        self.compile_ms += (perf_counter() - started) * 1e3

    def _arch_of(self, job: Job) -> str:
        own = job.code.arch if job.code is not None else ""
        return own or (self.arch + "a" if job.specific else self.arch)

    def _built(self, code: CudaText, job: Job) -> Compiled:
        if self.results is None:
            return self._compiled(code, job)
        return self.results.get((self._arch_of(job), code, job), lambda: self._compiled(code, job))

    def _compiled(self, code: CudaText, job: Job) -> Compiled:
        return compile_source(
            self.backend.nvrtc, code.text, name=job.file, arch=self._arch_of(job),
            expressions=job.expressions, relocatable=job.relocatable,
            options=code.options, programmatic=job.programmatic, cache=self._cache,
            include_paths=code.include, preamble=code.preamble,
            probed=code.probed and self.backend.name != "sim")

    def _load_module(self, job: Job, built: Compiled, signatures: Signatures) -> None:
        """Load compiled code into the context."""
        name, arch = job.file, self._arch_of(job)
        image = self._link(built, name) if job.relocatable else built.cubin
        module = self._check("cuModuleLoadData", image, context=f"{name} for {arch}")
        self._closing.callback(self._check, "cuModuleUnload", module, context=name)
        for expression in job.expressions:
            lowered = built.lowered[expression]
            handle = self._check("cuModuleGetFunction", module, lowered.encode(),
                                 context=f"{expression} in {name}")
            signature = signatures(expression, built) if callable(signatures) else \
                find_kernel(signatures, expression)
            self._functions[name, expression, job.programmatic] = Function(
                handle, expression, signature, built.proofs.get(expression, Proof()), module)
        self.compiled += 0 if built.cached else 1
        self.cached += 1 if built.cached else 0

    def function(self, file: str, expression: str, programmatic: bool = False) -> Function:
        """A kernel, compiled now if it has not been."""
        if (file, expression, programmatic) not in self._functions:
            self.compile(file, (expression,), programmatic=programmatic)
        return self._functions[file, expression, programmatic]

    def _source(self, file: str) -> tuple[CudaText, Signatures]:
        if file not in self._sources:
            text = ptx.source_path(file).read_text()
            self._sources[file] = CudaText(text), parse_kernels(text)
        return self._sources[file]

    def _link(self, built: Compiled, name: str) -> bytes:
        """Link relocatable code with the device runtime (cudaGraphSetConditional lives there)."""
        runtime = self.backend.device_runtime()
        link_kind = LINK_PTX if self._assumed else LINK_CUBIN
        state = self._check("cuLinkCreate", context=name)
        with ExitStack() as linking:
            linking.callback(self._check, "cuLinkDestroy", state, context=name)
            for kind, data, what in ((link_kind, built.cubin, name),
                                     (LINK_LIBRARY, runtime, "libcudadevrt.a")):
                self._check("cuLinkAddData", state, kind, data, what, context=what)
            image: bytes = self._check("cuLinkComplete", state, context=name)
        return image

    # -- synchronous copies ---------------------------------------------------------------------
    def to_device(self, address: int, array: NDArray[Any], purpose: str) -> None:
        """Copy a C-contiguous host array to the device and wait."""
        if array.nbytes:
            self._check("cuMemcpyHtoDAsync", address, array.ctypes.data, array.nbytes,
                        self.stream.handle, context=f"{purpose}, {array.nbytes:,} bytes")
            self.stream.synchronize(purpose)

    def to_host(self, array: NDArray[Any], address: int, purpose: str) -> None:
        """Copy device memory into a C-contiguous host array and wait."""
        if array.nbytes:
            self.to_host_later(array, address, purpose)
            self.stream.synchronize(purpose)

    def to_host_later(self, array: NDArray[Any], address: int, purpose: str) -> None:
        """Like `to_host`, but without the wait: the array is valid after the stream was
        synchronized."""
        self._check("cuMemcpyDtoHAsync", array.ctypes.data, address, array.nbytes,
                    self.stream.handle, context=f"{purpose}, {array.nbytes:,} bytes")

    def require_usable(self) -> None:
        """Wait for all work. Raises CallFailed (on the simulated GPU SimulationError) if a kernel's
        error has made this context unusable."""
        self._check("cuCtxSynchronize")

    def free_memory(self) -> int:
        """Bytes of free device memory."""
        free, _ = self._check("cuMemGetInfo")
        return int(free)

    def fill(self, address: int, value: int, nbytes: int, purpose: str) -> None:
        """Set bytes on the stream, without waiting."""
        self._check("cuMemsetD8Async", address, value, nbytes, self.stream.handle,
                    context=f"{purpose}, {nbytes:,} bytes")

    def close(self) -> None:
        """Free all memory, unload all modules and release the context; a second call has no effect.

        Every release is attempted even if an earlier one fails; the last failure is raised. The
        process then no longer keeps the context, which may be unusable.
        """
        self._functions = {}
        self.open = False
        try:
            self._closing.close()
        except DeviceError:
            self.backend.release_context(self._ordinal)
            raise


def _signatures(code: CudaText, folders: Sequence[Path]) -> Signatures:
    """Signatures of the kernels of a text that is no file of rawnn's; a user's are as compiled."""
    if not code.probed:
        return parse_kernels(code.declarations, folders)
    from rawnn.cuda.compiling.compiled_signature import Declarations  # only for a user's kernel

    declared = Declarations(code.declarations, folders)
    return lambda expression, built: declared.signature(expression, built.kernels.get(expression))


def padded(array: NDArray[Any], shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """`array` as `dtype` in the top left of zeros of `shape`: the memory layout of tensors."""
    wanted = numpy_dtype(dtype)
    if array.shape == shape:
        return np.ascontiguousarray(array, dtype=wanted)
    out = np.zeros(shape, dtype=wanted)
    out[tuple(slice(n) for n in array.shape)] = array
    return out
