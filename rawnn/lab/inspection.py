"""The resources of a compiled kernel, its PTX and machine code: without a GPU, for any
architecture."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rawnn.common.errors import CompileError, ConfigError, MissingLibrary
from rawnn.cuda.compiling.c_types import FORMATS, TYPE_WORDS
from rawnn.cuda.compiling.compile import Compiled
from rawnn.cuda.compiling.compiled_signature import Declarations
from rawnn.cuda.compiling.declarations import UnbalancedBrackets
from rawnn.cuda.compiling.device_part import find_dynamic_kernels, find_launches
from rawnn.cuda.compiling.headers import tool, tool_folders
from rawnn.cuda.compiling.probe import has_body, undefined
from rawnn.cuda.compiling.resources import (
    SM_LIMITS,
    Occupancy,
    Usage,
    occupancy,
    resource_usage,
    spills,
)
from rawnn.cuda.compiling.signature import KernelSignature
from rawnn.cuda.compiling.translation import DYNAMIC
from rawnn.lab.kernel_source import Source
from rawnn.ptx import INCLUDE

_KNOWN = {*FORMATS, *TYPE_WORDS, "true", "false", "float2", "float4", "std"}
"""Words of template arguments that need no declaration."""


@dataclass(frozen=True)
class Resources:
    """The resources of one instance, bytes of spill stores and loads, and its occupancy in blocks
    of the given threads; None without threads, or if the architecture's limits are unknown."""

    expression: str
    usage: Usage
    spilled: tuple[int, int]
    occupancy: Occupancy | None


def instances(source: Source, names: Sequence[str]) -> tuple[str, ...]:
    """The kernels to inspect: those named, else all of the source. Raises ConfigError for a missing
    one, and for a template without its arguments."""
    declared = Declarations(source.declarations, (Path(source.name).parent, *source.include,
                                                  *INCLUDE))
    if not names:
        _refuse_none(source, declared)
    found = []
    for name in tuple(names) or declared.names:
        signature = next(iter(declared.of(name)), None)
        template = signature.template_parameters if signature else ()
        if signature and any(p.default is None for p in template):
            raise ConfigError(_uninstantiated(source, name, signature))
        if not template:
            declared.check(name)
        found.append(f"{name}<>" if template else name)
    return tuple(found)


def list_instances(source: Source) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the kernels of the source that can be compiled as they are, a sentence on each of the
    others): templates without arguments, and those that launch kernels from the device. Raises
    ConfigError if there is no kernel."""
    declared = Declarations(source.declarations, (Path(source.name).parent, *source.include,
                                                  *INCLUDE))
    _refuse_none(source, declared)
    try:
        dynamic = find_dynamic_kernels(source.text)
    except UnbalancedBrackets:
        dynamic = {}
    found, sentences = [], []
    for name in declared.names:
        signature = next(iter(declared.of(name)), None)
        bare = name.rpartition("::")[2]
        if bare in dynamic:
            sentences.append(f"'{name}' (line {dynamic[bare]}) is left out: {DYNAMIC}")
        elif signature and any(p.default is None for p in signature.template_parameters):
            sentences.append(_uninstantiated(source, name, signature))
        else:
            found.append(name)
    return instances(source, found) if found else (), tuple(sentences)


def _refuse_none(source: Source, declared: Declarations) -> None:
    """Raise ConfigError where the source declares no kernel outside of macros."""
    if not declared.names:
        raise ConfigError(f"{source.name} has no __global__ function" + (
            ": its kernels are made by a macro, which puts their names together: name those that "
            "are meant, behind the file" if declared.has_pasted_names else ""))


_ABSENT = re.compile(
    r'__nv_name_map\((\d+)\): error: (?:identifier "\w+" is undefined|[^\n]* has no member "\w+")'
    r'.*?__nv_name_map\(\1\): error: Error in parsing name expression[^"\n]*" ?([^"\n]+)"',
    re.DOTALL)
"""A kernel that NVRTC was asked for and has not seen, behind its place in the list."""


def compile_listed(source: Source, listed: Sequence[str], arch: str
                   ) -> tuple[Compiled, tuple[str, ...], tuple[str, ...]]:
    """The kernels of `list_instances` compiled; those that the preprocessor keeps for `arch`; a
    sentence on each that an #if leaves out. Raises as `compile_instances`."""
    try:
        return compile_instances(source, listed, arch), tuple(listed), ()
    except CompileError as error:
        absent = {name.replace(" ", "") for _, name in _ABSENT.findall(str(error))}
        present = tuple(each for each in listed if each not in absent)
        if not present or len(present) == len(listed):
            raise
    return compile_instances(source, present, arch), present, tuple(
        f"'{each}' is left out: an #if removes it for {arch}"
        for each in listed if each in absent)


def _uninstantiated(source: Source, name: str, signature: KernelSignature) -> str:
    """The sentence on a template, with an instance that the source launches, if there is one."""
    try:
        launched = [each for each in find_launches(source.text)
                    if each.kernel == name and each.expression != name]
    except UnbalancedBrackets:
        launched = []
    known = [each for each in launched if all(
        word in _KNOWN for word in re.findall(r"[A-Za-z_]\w*", each.expression)[1:])]
    if known:
        example = f"'{known[0].expression}' (launched on line {known[0].line})"
    else:
        example = f"'{name}<{', '.join(signature.template)}>' with types or numbers"
    return f"'{name}' is a template: name an instance, such as {example}"


def resources(source: Source, expressions: Sequence[str], arch: str,
              threads: int | None = None) -> list[Resources]:
    """The resources of each instance on `arch` ("sm_90"), and with `threads` per block its
    occupancy. Raises CompileError, MissingLibrary, ConfigError."""
    return read_resources(compile_instances(source, expressions, arch), expressions, arch, threads)


def compile_instances(source: Source, expressions: Sequence[str], arch: str) -> Compiled:
    """The instances compiled with ptxas's report, for `read_resources`. Raises CompileError,
    MissingLibrary, ConfigError for a virtual architecture."""
    if not arch.startswith("sm_"):
        raise ConfigError(f"arch = {arch!r}: registers are known of machine code alone: "
                          f"sm_{arch.rpartition('_')[2]}")
    return source.compiled(expressions, arch, ("--ptxas-options=-v",))


def read_resources(built: Compiled, expressions: Sequence[str], arch: str,
            threads: int | None = None) -> list[Resources]:
    """The resources of each instance of a compiled source, like `resources`."""
    used, spilled = resource_usage(built.cubin), spills(built.log)
    known = threads is not None and arch.rstrip("af") in SM_LIMITS
    found = []
    for expression in expressions:
        name = built.lowered[expression]
        if name not in used:
            raise undefined("the source", expression)
        usage = used[name]
        found.append(Resources(
            expression, usage, spilled.get(name, (0, 0)),
            occupancy(arch, threads=threads, registers=usage.registers, shared=usage.shared)
            if known and threads is not None else None))
    return found


def ptx(source: Source, expressions: Sequence[str], arch: str) -> str:
    """The PTX of instances for an architecture. Raises CompileError, MissingLibrary."""
    virtual = "compute_" + arch.partition("_")[2]
    built = source.compiled(expressions, virtual)
    text = built.cubin.rstrip(b"\0").decode(errors="replace")
    for expression in expressions:
        if not has_body(text, built.lowered[expression]):
            raise undefined(source.name, expression)
    return text


def sass(source: Source, expressions: Sequence[str], arch: str) -> str:
    """The machine code of instances, with source lines. Raises CompileError, MissingLibrary (also
    if nvdisasm is not installed), ConfigError."""
    program = tool("nvdisasm")
    if program is None:
        places = ", ".join(map(str, tool_folders()))
        raise MissingLibrary(f"nvdisasm, which shows machine code, cannot be found on PATH or in "
                             f"{places}; install it with: pip install nvidia-cuda-nvdisasm")
    built = source.compiled(expressions, "sm_" + arch.partition("_")[2], ("-lineinfo",))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(built.cubin)
        done = subprocess.run([program, "--print-line-info", "--print-code", path], text=True,
                              capture_output=True, check=False)
    if done.returncode:
        raise ConfigError(f"{program} failed: {done.stderr.strip()}")
    return done.stdout
