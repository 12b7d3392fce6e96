"""CUDA C to cubin by NVRTC, through the on-disk cache.

A cache hit never loads NVRTC: the library is passed as an object or as a factory called at the
first compilation, and its identity in the key is read from its files (headers.py).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rawnn.common.errors import CompileError, MissingLibrary
from rawnn.cuda.compiling import headers
from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.fixes import NAMES, misnamed_expressions, overloads, suggest_fixes
from rawnn.cuda.compiling.includes import follow_includes, read_source
from rawnn.cuda.compiling.launch_proof import Proof, prove
from rawnn.cuda.compiling.signature import find_kernel, parse_kernels
from rawnn.cuda.compiling.translation import DYNAMIC, Omission, Translation
from rawnn.cuda.errors import check
from rawnn.ptx import INCLUDE

if TYPE_CHECKING:  # modules for users' kernels are imported when one is compiled
    from rawnn.cuda.compiling.probe import CompiledKernel

_LOCATED = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?:catastrophic )?error", re.MULTILINE)
_ERRORS_SHOWN = 5
_CONTEXT = 3
NOWHERE = "/no-such-folder/"
"""The folder of a source that is no file. NVRTC searches quoted includes first in the source's own
folder, which for a name without one is the working directory. Its option against that,
--no-source-include, also keeps headers from files next to them (cooperative_groups.h)."""
_FORMAT = "5"  # of the key and the entry: increment it when either changes


class NvrtcLibrary(Protocol):
    """The calls of rawnn.cuda.nvrtc.Nvrtc that compilation uses.

    An implementation other than the real NVRTC has `identity`, a str that replaces the library's
    identity in the cache key, so that its output is never used for the real one's.
    """

    def error_text(self, code: Any) -> tuple[str, str]: ...
    def nvrtcVersion(self) -> tuple[Any, int, int]: ...
    def nvrtcGetSupportedArchs(self) -> tuple[Any, list[int]]: ...
    def nvrtcCreateProgram(self, source: str, name: str,
                           headers: Mapping[str, str] | None = None) -> tuple[Any, Any]: ...
    def nvrtcAddNameExpression(self, program: Any, expression: str) -> tuple[Any, ...]: ...
    def nvrtcCompileProgram(self, program: Any, options: Sequence[str]) -> tuple[Any, ...]: ...
    def nvrtcGetProgramLog(self, program: Any) -> tuple[Any, str]: ...
    def nvrtcGetLoweredName(self, program: Any, expression: str) -> tuple[Any, str]: ...
    def nvrtcGetCUBIN(self, program: Any) -> tuple[Any, bytes]: ...
    def nvrtcGetPTX(self, program: Any) -> tuple[Any, bytes]: ...
    def nvrtcDestroyProgram(self, program: Any) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class Compiled:
    """A compiled source.

    lowered: mangled name, as for cuModuleGetFunction, by name expression ("softmax<float>").
    cached: whether it came from the cache.
    seconds: wall-clock time of the call.
    log: NVRTC's output (warnings, and ptxas's report if an option asks for it); empty from the
        cache.
    proofs: what the PTX proves, for each kernel compiled for programmatic launches.
    kernels: the compiled parameters of each kernel that was probed.
    left_out: host code in the source, if only its device part was compiled.
    """

    cubin: bytes
    lowered: dict[str, str]
    cached: bool
    seconds: float
    log: str = ""
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    kernels: Mapping[str, CompiledKernel] = field(default_factory=dict)
    left_out: tuple[Omission, ...] = ()


class _Refusal(CompileError):
    """NVRTC refused a source; carries its log."""

    log = ""


@dataclass(frozen=True)
class _Includes:
    """The includes of a source: `digest` covers the text of every file found in the include paths,
    and the size and time of every CUDA header; `cuda` are the CUDA include directories, empty if
    none is needed."""

    digest: str
    cuda: tuple[Path, ...]


def compile_source(
    nvrtc: NvrtcLibrary | Callable[[], NvrtcLibrary],
    text: str,
    *,
    name: str,
    arch: str,
    expressions: Sequence[str],
    options: Sequence[str] = (),
    relocatable: bool = False,
    programmatic: bool = False,
    cache: CubinCache | None = None,
    include_paths: Sequence[Path] = (),
    preamble: str = "",
    probed: bool = False,
) -> Compiled:
    """Compile CUDA C `text` for `arch` ("sm_90") to a cubin with the kernels' names; for a virtual
    architecture ("compute_75") to PTX.

    nvrtc: the library, or a factory that is called only if nothing is cached.
    name: names the source in messages. If it is a file's path, quoted includes are searched in its
        folder, then in `include_paths`, then in rawnn's kernel folder, but never in the working
        directory.
    expressions: the kernels wanted, templates as instances.
    options: further NVRTC options.
    relocatable: make a cubin that must be linked (cuLink) before it can be loaded.
    programmatic: define RAWNN_PDL, so that kernels wait and trigger (pdl.cuh), and prove from the
        PTX that they do.
    preamble: text before the source, which keeps its line numbers. It defines macros with short
        names such as T, which as options would also change NVRTC's own templates.
    probed: ask the compiler for the parameters of the kernels (probe.py).

    A source that uses RAWNN_CHOSEN gets it defined, and RAWNN_CHOSEN_<kernel> for each kernel
    wanted: otherwise NVRTC compiles every kernel that is no template. If NVRTC refuses the source,
    its device part is compiled instead (whole_file.py) if it has host code, or the source with the
    headers that nvcc includes implicitly.

    Raises CompileError, with numbered source lines, if NVRTC refuses the source or an option, and
    where a probed kernel is declared and not defined;
    CallFailed if another NVRTC call fails; MissingLibrary if NVRTC or an included CUDA header is
    not installed.
    """
    begin = time.perf_counter()
    paths = _search_paths(name, include_paths, options)
    includes = _read_includes(text, name, paths)
    flags = [
        f"--gpu-architecture={arch}",
        "-std=c++17",
        *(["--relocatable-device-code=true"] if relocatable else []),
        *(["-DRAWNN_PDL"] if programmatic else []),
        *_chosen(text, expressions),
        *options,
    ]
    key = None
    if cache is not None:
        identity = _identity(nvrtc)
        if identity is None:
            nvrtc = _library(nvrtc)
            identity = "NVRTC {}.{}".format(*check(
                nvrtc, "nvrtcVersion", nvrtc.nvrtcVersion(), f"the cache key of {name}"))
        parts = [_FORMAT, identity, Path(name).name, preamble, text, includes.digest, *flags,
                 *expressions, *([_probe()] if probed else [])]
        key = _digest(parts)
        stored = cache.get(key)
        entry = _decode(stored) if stored is not None else None
        if entry is not None and set(entry.lowered) == set(expressions):
            return replace(entry, seconds=time.perf_counter() - begin)
    library = _library(nvrtc)

    def compile_as(source: Translation, cuda: Sequence[Path]) -> tuple[bytes, dict[str, str], str,
                                                                       str]:
        given = [*flags, *source.options, *(f"-I{path}" for path in (*paths, *cuda))]
        return _compile(library, replace(source, preamble=preamble + source.preamble), name, arch,
                        expressions, given, paths, programmatic, probed)

    source = Translation(text)
    try:
        cubin, lowered, log, assembly = compile_as(source, includes.cuda)
    except _Refusal as refused:
        from rawnn.cuda.compiling.whole_file import translate

        cuda = includes.cuda or _cuda_folders()
        found = translate(text, paths, cuda, expressions, refused.log)
        if found is None:
            raise
        source = found
        _refuse_launches(name, expressions, source.left_out)
        cubin, lowered, log, assembly = compile_as(source, cuda)
    kernels = {}
    if probed:
        from rawnn.cuda.compiling.probe import compiled_kernels

        kernels = compiled_kernels(name, assembly, lowered, expressions)
    lowered = {expression: lowered[expression] for expression in expressions}
    proofs = _proofs(assembly, lowered, text, paths, kernels) if programmatic else {}
    built = Compiled(cubin, lowered, False, time.perf_counter() - begin, log, proofs, kernels,
                     source.left_out)
    if cache is not None and key is not None:
        cache.put(key, _encode(built))
    return built


def _cuda_folders() -> tuple[Path, ...]:
    """CUDA's include folders, if installed, for what a source does not include itself."""
    try:
        return headers.include_directories()
    except MissingLibrary:
        return (headers.HOST_HEADERS,)


def _refuse_launches(name: str, expressions: Sequence[str], left_out: Iterable[Omission]) -> None:
    """Raise CompileError for a wanted kernel that launches others."""
    lines = {each.name: each.first for each in left_out if each.why == DYNAMIC}
    for expression in expressions:
        kernel = re.sub(r"<.*|.*::", "", expression).strip()
        if kernel in lines:
            raise CompileError(f"{name}, line {lines[kernel]}: '{kernel}' cannot be compiled: "
                               f"{DYNAMIC}; launch them from the host, one after the other or in a "
                               f"rawnn.Graph")


def _chosen(text: str, expressions: Sequence[str]) -> list[str]:
    if "RAWNN_CHOSEN" not in text:
        return []
    kernels = dict.fromkeys(expression.partition("<")[0].strip() for expression in expressions)
    return ["-DRAWNN_CHOSEN", *(f"-DRAWNN_CHOSEN_{kernel}" for kernel in kernels)]


def _probe() -> str:
    from rawnn.cuda.compiling.probe import PROBE

    return PROBE


def _proofs(assembly: str, lowered: Mapping[str, str], text: str, paths: Sequence[Path],
            kernels: Mapping[str, CompiledKernel]) -> dict[str, Proof]:
    if kernels:
        from rawnn.cuda.compiling.compiled_signature import Declarations

        declared = Declarations(text, paths)
        return {each: prove(assembly, name, declared.signature(each, kernels.get(each)))
                for each, name in lowered.items()}
    signatures = parse_kernels(text, paths)
    return {each: prove(assembly, name, find_kernel(signatures, each))
            for each, name in lowered.items()}


def _library(nvrtc: NvrtcLibrary | Callable[[], NvrtcLibrary]) -> NvrtcLibrary:
    return nvrtc() if callable(nvrtc) else nvrtc


def _identity(nvrtc: NvrtcLibrary | Callable[[], NvrtcLibrary]) -> str | None:
    stated = getattr(nvrtc, "identity", None)
    return stated if isinstance(stated, str) else headers.nvrtc_identity()


def _search_paths(
    name: str, include_paths: Sequence[Path], options: Sequence[str]
) -> list[Path]:
    """The folders of includes in order. Folders given as options are part of it, so that the key
    covers their files."""
    source = Path(name)
    own_folder = [source.resolve().parent] if source.is_file() else []
    given = [
        Path(option.removeprefix(prefix))
        for option in options
        for prefix in ("-I", "--include-path=")
        if option.startswith(prefix)
    ]
    return list(dict.fromkeys([*own_folder, *given, *include_paths, *INCLUDE]))


def _read_includes(text: str, name: str, paths: Sequence[Path]) -> _Includes:
    """Follow the includes of `text` through `paths`. Others are CUDA's, whose directories are
    searched only then: most kernels include none, and start faster."""
    found_here, missing = follow_includes(text, paths)
    parts = [word for pair in found_here for word in pair]
    if not missing:
        return _Includes(_digest(parts), ())
    try:
        cuda = headers.include_directories()
        cuda += headers.find_optional_directories(missing)
        if "cub/cub.cuh" in missing:
            cuda = (headers.OVERRIDES, *cuda)
    except MissingLibrary as error:
        raise MissingLibrary(f"{name} includes '{missing[0]}', but {error}") from None
    for header in sorted(set(missing)):
        found = next((p / header for p in cuda if (p / header).is_file()), None)
        status = found.stat() if found else None
        parts += [header, f"{status.st_size}:{status.st_mtime_ns}" if status else "missing"]
    return _Includes(_digest(parts), cuda)


def _digest(parts: Iterable[str]) -> str:
    """SHA-256 over `parts`, each with its length, so that different lists give different bytes."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape")
        total.update(f"{len(data)}:".encode() + data)
    return total.hexdigest()


def _encode(built: Compiled) -> bytes:
    stated = {expression: asdict(proof) for expression, proof in built.proofs.items()}
    entry: dict[str, Any] = {"lowered": built.lowered, "proofs": stated,
                             "left_out": [asdict(each) for each in built.left_out]}
    if built.kernels:
        from rawnn.cuda.compiling.probe import packed

        entry["kernels"] = {expression: packed(kernel)
                            for expression, kernel in built.kernels.items()}
    head = json.dumps(entry).encode()
    return len(head).to_bytes(4, "little") + head + built.cubin


def _decode(payload: bytes) -> Compiled | None:
    end = 4 + int.from_bytes(payload[:4], "little")
    try:
        head = json.loads(payload[4:end])
        proofs = {expression: Proof(**{**proof, "early": tuple(proof["early"])})
                  for expression, proof in head["proofs"].items()}
        kernels: dict[str, CompiledKernel] = {}
        if "kernels" in head:
            from rawnn.cuda.compiling.probe import unpacked

            kernels = {each: unpacked(stored) for each, stored in head["kernels"].items()}
        return Compiled(payload[end:], dict(head["lowered"]), True, 0.0, "", proofs, kernels,
                        tuple(Omission(**each) for each in head["left_out"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _compile(
    nvrtc: NvrtcLibrary, source: Translation, name: str, arch: str, expressions: Sequence[str],
    flags: Sequence[str], paths: Sequence[Path], assembly: bool, probed: bool,
) -> tuple[bytes, dict[str, str], str, str]:
    """(cubin, lowered names, with those of probes, log, PTX); the PTX is "" unless `assembly` is
    set or kernels are `probed`."""
    context = f"kernel source {name}, {arch}"
    placed = str(Path(name).resolve()) if Path(name).is_file() else NOWHERE + name.lstrip("/")
    names, preamble = list(expressions), source.preamble
    if probed:
        from rawnn.cuda.compiling.probe import PROBE, probe_of

        names += [probe_of(each) for each in expressions]
        preamble = PROBE + preamble
    whole = f"{preamble}#line 1\n{source.text}" if preamble else source.text
    given = (whole, placed, source.headers) if source.headers else (whole, placed)
    program = check(nvrtc, "nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(*given), context)
    with ExitStack() as closing:
        closing.callback(lambda: check(nvrtc, "nvrtcDestroyProgram",
                                       nvrtc.nvrtcDestroyProgram(program), context))
        for expression in names:
            check(
                nvrtc, "nvrtcAddNameExpression",
                nvrtc.nvrtcAddNameExpression(program, expression), f"{expression} in {context}",
            )
        result = nvrtc.nvrtcCompileProgram(program, flags)
        log = check(nvrtc, "nvrtcGetProgramLog", nvrtc.nvrtcGetProgramLog(program), context)
        log = log.strip().replace(placed, name)
        if result[0]:
            error, _ = nvrtc.error_text(result[0])
            if error in ("NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_OPTION"):
                failure = f"nvrtcCompileProgram failed with {error} [{int(result[0])}]"
                refusal = _Refusal(_explain(nvrtc, failure, log, source, name, arch, expressions,
                                            flags, paths))
                refusal.log = log
                raise refusal
            check(nvrtc, "nvrtcCompileProgram", result, f"{context}; {log}")
        lowered = {
            expression: check(
                nvrtc, "nvrtcGetLoweredName",
                nvrtc.nvrtcGetLoweredName(program, expression), f"{expression} in {context}",
            )
            for expression in names
        }
        if arch.startswith("compute_"):  # a virtual architecture has only PTX
            cubin = check(nvrtc, "nvrtcGetPTX", nvrtc.nvrtcGetPTX(program), context)
        else:
            cubin = check(nvrtc, "nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN(program), context)
        ptx = check(nvrtc, "nvrtcGetPTX", nvrtc.nvrtcGetPTX(program), context) \
            if assembly or probed else b""
        return cubin, lowered, log, ptx.decode(errors="replace")


def _explain(
    nvrtc: NvrtcLibrary, failure: str, log: str, source: Translation, name: str, arch: str,
    expressions: Sequence[str], flags: Sequence[str], paths: Sequence[Path],
) -> str:
    """The message of a CompileError: one sentence, the source lines in error, the library and the
    options, the call that failed, and NVRTC's complete log."""
    code, major, minor = nvrtc.nvrtcVersion()
    version = "NVRTC of unknown version" if code else f"NVRTC {major}.{minor}"
    located = list(_LOCATED.finditer(log))
    is_misnamed = {match["file"] for match in located} == {NAMES}
    misnaming = misnamed_expressions(log) if is_misnamed else ""
    part = "the device's part of " if source.left_out else ""
    lines = [f"{version} cannot compile {part}{name} for {arch}"]
    code, archs = nvrtc.nvrtcGetSupportedArchs()
    number = re.match(r"(?:sm|compute)_(\d+)", arch)
    if not code and number and int(number[1]) not in archs:
        known = ", ".join(f"sm_{entry}" for entry in archs)
        lines[0] += f": it compiles only for {known}"
        if int(number[1]) > max(archs, default=0):
            wheel = "nvidia-cuda-nvrtc-cu12" if major == 12 else "'nvidia-cuda-nvrtc<14'"
            lines[0] += f"; a newer NVRTC may know it: pip install -U {wheel}"
    elif is_misnamed and (sentence := overloads(log, source.text, paths)):
        return f"{lines[0]}: {sentence}"
    elif misnaming:
        lines[0] += f": {misnaming}"
        located = []
    elif located:
        lines[0] += f": {len(located)} error{'s' * (len(located) > 1)}"
    sources = {name: source.text, **source.headers}
    for match in located[:_ERRORS_SHOWN]:
        message = log[match.start() :].partition("\n")[0]
        lines += ["", message, *_numbered(match["file"], int(match["line"]), sources, paths)]
    if len(located) > _ERRORS_SHOWN:
        lines += ["", f"(and {len(located) - _ERRORS_SHOWN} more: see the log below)"]
    lines += [
        *suggest_fixes(log, arch, expressions, source.left_out),
        "",
        f"kernels: {', '.join(expressions) or 'none named'}",
        f"options: {' '.join(flags)}",
        f"library: {headers.nvrtc_library_path() or 'path unknown'} ({version})",
        f"call: {failure}",
        "log:",
        log,
    ]
    return "\n".join(lines)


def _numbered(file: str, line: int, sources: dict[str, str], paths: Sequence[Path]) -> list[str]:
    """The lines around `line` of `file`, numbered, with the one in error marked; none if the file
    cannot be read (NVRTC gives headers by the path it found them at)."""
    text = sources.get(file)
    if text is None:
        found = next((p / file for p in (Path(), *paths) if (p / file).is_file()), None)
        if found is None:
            return []
        text = read_source(found)
    source = text.split("\n")
    first, last = max(1, line - _CONTEXT), min(len(source), line + _CONTEXT)
    return [
        f"{'>' if number == line else ' '} {number:>{len(str(last))}} | {source[number - 1]}"
        for number in range(first, last + 1)
    ]
