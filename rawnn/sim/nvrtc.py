"""The simulated NVRTC: reads kernels' declarations and makes images that the simulated driver
loads. Errors inside a kernel's body are not found; the tests with the real NVRTC find them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rawnn.cuda.compiling.compile import NOWHERE
from rawnn.cuda.compiling.includes import with_included
from rawnn.cuda.compiling.launch_proof import TRIGGER, WAIT
from rawnn.sim import griddepcontrol
from rawnn.sim.codes import describe
from rawnn.sim.errors import Refused
from rawnn.sim.faults import simulated_call
from rawnn.sim.image import Image, build, kernel_of
from rawnn.sim.simulation import Simulation

_ARCHS = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]
_RELOCATABLE = {"--relocatable-device-code=true", "-rdc=true", "--device-c", "-dc"}


@dataclass(eq=False)
class _Program:
    source: str
    name: str
    expressions: list[str] = field(default_factory=list)
    image: Image | None = None
    compiled: bool = False
    log: str = ""


class SimNvrtc:
    """`rawnn.cuda.nvrtc.Nvrtc` for a simulated GPU."""

    library = "nvrtc"
    identity = "simulated NVRTC"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def error_text(self, code: Any) -> tuple[str, str]:
        name, _ = describe("nvrtc", int(code))
        return name, name

    def _program(self, handle: Any) -> _Program:
        found: _Program = self.simulation.find(handle, "NVRTC program",
                                               "NVRTC_ERROR_INVALID_PROGRAM")
        return found

    @simulated_call(0, 0)
    def nvrtcVersion(self) -> tuple[Any, int, int]:
        return 0, 13, 0

    @simulated_call([])
    def nvrtcGetSupportedArchs(self) -> tuple[Any, list[int]]:
        return 0, list(_ARCHS)

    @simulated_call(None)
    def nvrtcCreateProgram(self, source: str, name: str,
                           headers: Mapping[str, str] | None = None) -> tuple[Any, Any]:
        shown = name.removeprefix(NOWHERE)
        return 0, self.simulation.create("NVRTC program", lambda h: _Program(source, shown))[0]

    @simulated_call()
    def nvrtcAddNameExpression(self, program: Any, expression: str) -> tuple[Any, ...]:
        found = self._program(program)
        if found.compiled:
            raise Refused("NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION")
        found.expressions.append(expression)
        return (0,)

    @simulated_call()
    def nvrtcCompileProgram(self, program: Any, options: Sequence[str]) -> tuple[Any, ...]:
        found = self._program(program)
        arch = next((o.partition("=")[2] for o in options
                     if o.startswith(("--gpu-architecture=", "-arch="))), "sm_75")
        number = re.fullmatch(r"(?:sm|compute)_(\d+)[af]?", arch)
        if not number or int(number[1]) not in _ARCHS:
            found.log = f"nvrtc: error: invalid value for --gpu-architecture (-arch): {arch}\n"
            raise Refused("NVRTC_ERROR_INVALID_OPTION")
        relocatable = any(option in _RELOCATABLE for option in options)
        folders = [Path(option[2:]) for option in options if option.startswith("-I")]
        headers = "".join(with_included(found.source, folders)[1:])
        found.image, found.log = build(found.name, found.source, arch, found.expressions,
                                       relocatable, "-DRAWNN_PDL" in options, headers)
        found.compiled = True
        if found.image is None:
            raise Refused("NVRTC_ERROR_COMPILATION")
        return (0,)

    @simulated_call("")
    def nvrtcGetProgramLog(self, program: Any) -> tuple[Any, str]:
        return 0, self._program(program).log

    @simulated_call("")
    def nvrtcGetLoweredName(self, program: Any, expression: str) -> tuple[Any, str]:
        found = self._program(program)
        if not found.compiled:
            raise Refused("NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION")
        if found.image is None or expression not in found.image.lowered:
            raise Refused("NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID")
        return 0, found.image.lowered[expression]

    @simulated_call(b"")
    def nvrtcGetCUBIN(self, program: Any) -> tuple[Any, bytes]:
        image = self._program(program).image
        if image is None or not image.arch.startswith("sm_"):
            raise Refused("NVRTC_ERROR_INVALID_PROGRAM")
        return 0, image.encode()

    @simulated_call(b"")
    def nvrtcGetPTX(self, program: Any) -> tuple[Any, bytes]:
        """No kernel is translated: the text only states what each does about programmatic edges;
        for a virtual architecture it is the loadable image."""
        image = self._program(program).image
        if image is None:
            raise Refused("NVRTC_ERROR_INVALID_PROGRAM")
        if image.arch.startswith("compute_"):
            return 0, image.encode()
        lines = [f"// {image.name}, simulated, {image.arch}"]
        for expression, name in image.lowered.items():
            kernel = kernel_of(expression)
            code = [(griddepcontrol.waits, WAIT), (griddepcontrol.triggers, TRIGGER)]
            body = [f"{word};" for does, word in code
                    if does(image.text, kernel, image.programmatic)]
            lines += [f".entry {name}(", ")", "{", *body, "ret;", "}"]
        return 0, "\n".join(lines).encode()

    @simulated_call()
    def nvrtcDestroyProgram(self, program: Any) -> tuple[Any, ...]:
        self.simulation.destroy(program, "NVRTC program", "NVRTC_ERROR_INVALID_PROGRAM")
        return (0,)
