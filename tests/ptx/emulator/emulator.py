"""Kernels on the host: builds `.cu` files and all headers that they include with g++, and launches
them on NumPy arrays. Inline PTX is interpreted (ptx.h); everything else runs as it stands.

A launch that does what a GPU leaves undefined, or what another order of threads and copies would
turn into something else, raises EmulatorError, which names the access, the threads and the lines.
What the CPU emulator checks is listed in docs/testing.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from rawnn.cuda.compiling.signature import KernelSignature, find_kernel, parse_kernels
from rawnn.ptx import SOURCES
from rawnn.ptx.instance_text import instance_text, with_instance_text

HERE = Path(__file__).resolve().parent
LIBRARY = ("shadow", "scheduler", "barriers", "memory", "warps", "copies", "warpgroups", "numbers",
           "undefined", "program", "instructions", "tensor_cores")
DTYPES: dict[str, Any] = {
    "float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "int": np.int32, "unsigned int": np.uint32, "unsigned char": np.uint8,
}  # fmt: skip
"""NumPy types by their names in CUDA C."""
_COMMON = ("-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",
           "-Wno-unused-parameter", "-Wno-psabi")
_KERNELS = (
    # -ffp-contract=off: products and sums round one by one, whatever the host's processor.
    # -fno-var-tracking: lines are known without it, and a kernel compiles in a quarter less time.
    "-O1", "-g1", "-gdwarf-4", "-fno-var-tracking", "-ffp-contract=off", "-fno-gnu-unique",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero",
    "-fsanitize=return,unreachable",
    "-fno-sanitize-recover=all", "-DRAWNN_TWIN",
)
_FAULT = re.compile(r"(?<= at )0x[0-9a-f]+")


class EmulatorError(AssertionError):
    """A launch violated a rule of the GPU: a race, a bad address, a missing wait."""


def compiler() -> str | None:
    """The C++ compiler, or None: the tests are then skipped."""
    return shutil.which("g++")


def _folder() -> Path:
    """Of what was built, kept by its content: for one user alone."""
    path = Path(tempfile.gettempdir()) / f"rawnn-emulator-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else")
    return path


@contextlib.contextmanager
def _building(path: Path) -> Iterator[None]:
    """One process at a time builds a file; the others wait, and find it."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:24]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-6000:]}")


def _precompile(header: str, path: Path, flags: Sequence[str]) -> tuple[str, ...]:
    """Compiles one of the emulator's headers ahead, with a stub at `path` that includes it. Gives
    the options that include it; with other flags the compiler reads the header's text."""
    path.write_text(f'#include "{HERE / header}"\n')
    made = path.with_suffix(f".{os.getpid()}.gch")
    _run([compiler() or "g++", *flags, "-x", "c++-header", str(path), "-o", str(made)])
    _keep(made, path.with_suffix(".h.gch"))
    return "-include", str(path)


@functools.cache
def _kernels_header() -> tuple[str, ...]:
    """The options that include the header of all kernels as compiled ahead."""
    flags = (*_COMMON, *_KERNELS)
    texts = [path.read_text() for path in sorted(HERE.glob("*.h"))]
    path = _folder() / f"emulator-{_digest(HERE, *texts, *flags)}.h"
    with _building(path):
        if not path.with_suffix(".h.gch").exists():
            return _precompile("emulator.h", path, flags)
    return "-include", str(path)


@functools.cache
def _library() -> Path:
    """The CPU emulator itself, of which every kernel's library takes its functions."""
    with _building(_folder() / "libemulator"):
        return _built_library()


def _built_library() -> Path:
    headers = [path.read_text() for path in sorted(HERE.glob("*.h"))]
    flags = (*_COMMON, "-O2", "-g1")
    sources = {HERE / f"{name}.cpp": name for name in LIBRARY}
    objects = {source: _folder() / f"{name}-{_digest(source.read_text(), *headers, *flags)}.o"
               for source, name in sources.items()}
    if missing := [source for source, path in objects.items() if not path.exists()]:
        with tempfile.TemporaryDirectory(dir=_folder()) as folder:
            included = _precompile("runtime.h", Path(folder) / "all.h", flags)
            made = {source: Path(folder) / f"{source.stem}.o" for source in missing}
            building = {source: subprocess.Popen(
                [compiler() or "g++", *flags, *included, "-c", str(source), "-o", str(path)],
                stderr=subprocess.PIPE, text=True) for source, path in made.items()}
            for source, process in building.items():
                _, errors = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"{source.name}:\n{errors[-6000:]}")
                _keep(made[source], objects[source])
    path = _folder() / f"libemulator-{_digest(*objects.values())}.so"
    if not path.exists():
        library = path.with_suffix(f".{os.getpid()}.so")
        _run([compiler() or "g++", "-shared", *map(str, objects.values()), "-o", str(library)])
        _keep(library, path)
    return path


def _included(text: str, folders: Sequence[Path]) -> dict[str, str]:
    """The texts of all headers that `text` includes, by the names that they are included by."""
    found: dict[str, str] = {}
    pending = [text]
    while pending:
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', pending.pop(), re.MULTILINE):
            path = next((f / name for f in folders if (f / name).is_file()), None)
            if path is not None and name not in found:
                found[name] = path.read_text()
                pending.append(found[name])
    return found


_ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|[():]', re.DOTALL)
_CONSTRAINT = re.compile(r'"([=+]?)([hrlfdn])"(?=\s*\()')
_DYNAMIC = re.compile(r"\bextern\s+__shared__\s+(?:__align__\((\w+)\)\s+)?([\w:]+(?: \w+)*?)\s+"
                      r"(\w+)\[\];")


def for_host(text: str) -> str:
    """CUDA C as the emulator compiles it, on the same lines: each asm statement is a call of
    twin::ptx() with its text and operands, each array of dynamic shared memory a pointer."""
    parts, end = [], 0
    for match in _ASM.finditer(text):
        if match.start() < end or text.rfind("//", text.rfind("\n", 0, match.start()) + 1,
                                             match.start()) >= 0:
            continue
        parts.append(text[end : match.start()])
        sections, end = _sections(text, match.end())
        operands = ", ".join(section for section in sections[1:3] if section.strip())
        parts.append(f"::twin::ptx([] {{ return {sections[0]}; }}"
                     f"{', ' if operands else ''}{operands}"
                     # What was written over several lines stays so.
                     + _newlines(sections[3:]) + ")")
    text = "".join([*parts, text[end:]])
    text = _CONSTRAINT.sub(lambda m: f"::twin::{'output' if m[1] else 'input'}<'{m[2]}'>", text)
    return _DYNAMIC.sub(
        lambda m: f"{m[2]}* const {m[3]} = "
                  f"::twin::dynamic_shared<{m[2]}>({m[1] or f'alignof({m[2]})'});", text)


def _sections(text: str, start: int) -> tuple[list[str], int]:
    """What colons separate in the parentheses that open ahead of `start`, and where they end."""
    depth, begin, sections = 1, start, []
    for token in _TOKEN.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 or (depth == 1 and token[0] == ":"):
            sections.append(text[begin : token.start()])
            begin = token.end()
        if depth == 0:
            return sections, begin
    raise ValueError("an asm statement does not end")


def _newlines(sections: Sequence[str]) -> str:
    lost = "".join(sections)
    return "\\\n" * lost.count("\\\n") or "\n" * lost.count("\n")


@dataclass(frozen=True)
class Kernels:
    """Some kernels of one or more sources, to be built: `expressions` name instances of templates
    ("softmax<float>"); `arch` is the architecture they are compiled for (900 is sm_90a, and so on),
    `sources` the folder that they and their headers come from, `folders` further ones; `flags` are
    more of the compiler's."""

    files: tuple[str, ...]
    expressions: tuple[str, ...]
    arch: int = 900
    defines: tuple[str, ...] = ()
    sources: Path = SOURCES
    folders: tuple[Path, ...] = ()
    extra: str = ""
    flags: tuple[str, ...] = ()

    def build(self) -> EmulatedLibrary:
        """Builds the library, where that has not been done, and loads it.

        Raises RuntimeError with the compiler's words where it does not compile.
        """
        lines = [f'#include "{name}"' for name in self.files]
        lines += filter(None, [instance_text(self.expressions)])
        lines += [f"EMULATOR_EXPORT(kernel_{i}, {e})" for i, e in enumerate(self.expressions)]
        text = "\n".join([*lines, self.extra, ""])
        folders = (self.sources, *self.folders)
        flags = [*_COMMON, *_KERNELS, *(f"-D{name}" for name in self.defines), f"-I{HERE}",
                 f"-D__CUDA_ARCH__={self.arch}", "-D__CUDA_ARCH_FEAT_SM90_ALL", *self.flags]
        headers = {name: for_host(header) for name, header in _included(text, folders).items()}
        for name in headers:
            if name.startswith("device/"):  # so that messages name the line that calls a primitive
                headers[name] = headers[name].replace(
                    "__forceinline__", "inline __attribute__((always_inline))")
        # By content alone: tests with the same program in folders of their own share what is built.
        digest = _digest(text, *sorted(headers.values()), *flags, _library())
        path = _folder() / f"kernels-{digest}.so"
        if not path.exists():
            with _building(path):
                self._compile(path, text, headers, flags)
        return EmulatedLibrary(self, path)

    def _compile(self, path: Path, text: str, headers: Mapping[str, str],
                 flags: Sequence[str]) -> None:
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=_folder()) as folder:
                source, made = Path(folder) / "kernels.cpp", Path(folder) / "kernels.o"
                source.write_text(f'#include "emulator.h"\n{text}')
                for name, header in headers.items():
                    path_of_header = Path(folder) / name
                    path_of_header.parent.mkdir(parents=True, exist_ok=True)
                    path_of_header.write_text(header)
                command = [compiler() or "g++"]
                _run([*command, *_kernels_header(), *flags, f"-I{folder}", "-c", str(source),
                      "-o", str(made)])
                # Without -fsanitize=thread, whose run-time library would be linked.
                _run([*command, "-shared", "-Wl,-Bsymbolic", str(made), str(_library()),
                      "-o", str(made.with_suffix(".so"))])
                _keep(made.with_suffix(".so"), path)


class _Region(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("bytes", ctypes.c_ulonglong),
                ("name", ctypes.c_char_p), ("early", ctypes.c_int)]


class _Launch(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("cluster", ctypes.c_uint), ("shared", ctypes.c_uint),
                ("cooperative", ctypes.c_uint), ("programmatic", ctypes.c_uint),
                ("seed", ctypes.c_uint), ("regions", ctypes.c_uint),
                ("region", ctypes.POINTER(_Region))]


class EmulatedLibrary:
    """Kernels that are compiled for the CPU emulator; Kernels.build() makes it."""

    def __init__(self, kernels: Kernels, path: Path) -> None:
        ctypes.CDLL(str(_library()), ctypes.RTLD_GLOBAL)
        self.kernels = kernels
        self.path = path
        self.handle = ctypes.CDLL(str(path))
        self.launches = 0

    def launch(
        self, expression: str, grid: Iterable[int], block: Iterable[int],
        arguments: ctypes.Array[ctypes.c_void_p] | ctypes.c_void_p,
        memory: Mapping[str, np.ndarray], *, shared: int = 0, cluster: int = 1,
        cooperative: bool = False, early: Iterable[str] | None = None, run: int = 0,
    ) -> None:
        """`arguments` as cuLaunchKernel takes them; `memory` has every array that the kernel may
        touch, each as far as its buffer goes. `early` names those that it may touch ahead of
        wait_for_kernels(); None where it is not launched programmatically. `run` is the seed of the
        order in which threads run and copies come: 0 in order and as late as may be, 1 in reverse,
        others at random.

        Raises EmulatorError for what the kernel must not do.
        """
        allowed = set(early or ())
        regions = [
            (*_buffer(array), name.encode(), int(early is None or name in allowed))
            for name, array in memory.items()
        ]
        table = (_Region * len(regions))(*regions)
        how = _Launch((ctypes.c_uint * 3)(*[*grid, 1, 1][:3]),
                      (ctypes.c_uint * 3)(*[*block, 1, 1][:3]), cluster, shared, cooperative,
                      early is not None, run, len(regions), table)
        function = self.handle[f"kernel_{self.kernels.expressions.index(expression)}"]
        function.restype = ctypes.c_char_p
        self.launches += 1
        failed = function(ctypes.byref(how), arguments)
        if failed is not None:
            raise EmulatorError(f"{expression}: {self._located(failed.decode())}")

    def call(self, expression: str, grid: Iterable[int], block: Iterable[int], *,
             shared: int = 0, cluster: int = 1, cooperative: bool = False,
             early: Iterable[str] | None = None, run: int = 0, **arguments: object) -> None:
        """As `launch`, with arguments by the names in the kernel's source: pitches are those of the
        arrays, operands left out are null and numbers left out 0."""
        signature = signature_of(self.kernels, expression)
        values: list[Any] = []
        memory = {k: v for k, v in arguments.items() if isinstance(v, np.ndarray)}
        left = set(arguments)
        for parameter in signature.parameters:
            name = parameter.name
            given: Any = arguments.get(name)
            left.discard(name)
            if parameter.pointer:
                if given is not None and parameter.ctype in DTYPES:
                    assert given.dtype == DTYPES[parameter.ctype], (expression, name)
                values.append(ctypes.c_void_p(None if given is None else given.ctypes.data))
            elif name.startswith("ld") and given is None:
                array = arguments.get(name[2:])
                values.append(ctypes.c_int(
                    _pitch(array) if isinstance(array, np.ndarray) else 0))
            elif parameter.tensor_map:
                values.append((ctypes.c_ubyte * 128)(*(given or bytes(128))))
            else:
                values.append(_NUMBERS[parameter.format](given or 0))
        assert not left, f"{expression} has no {left}"
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        self.launch(expression, grid, block, pointers, memory, shared=shared, cluster=cluster,
                    cooperative=cooperative, early=early, run=run)

    def _located(self, message: str) -> str:
        """Addresses in the kernels' code as lines of their sources."""
        base = _base(self.path)
        places = {found: int(found, 16) - base for found in _FAULT.findall(message)}
        inside = {found: place for found, place in places.items() if 0 < place < 1 << 32}
        tool = shutil.which("addr2line")
        if not inside or tool is None:
            return message
        for found, place in inside.items():
            # One back: the call, not what it returns to.
            text = subprocess.run([tool, "-i", "-e", str(self.path), hex(place - 1)],
                                  capture_output=True, text=True, check=False).stdout
            lines = [line.split(" ")[0] for line in text.splitlines()]
            own = [line for line in lines
                   if not line.startswith(f"{HERE}/") and "/device/" not in line] or lines
            where = " in ".join(line.rpartition("/")[2] for line in own[:2])
            message = message.replace(found, where)
        return message


_NUMBERS = {
    "?": ctypes.c_bool, "i": ctypes.c_int, "I": ctypes.c_uint, "f": ctypes.c_float,
    "d": ctypes.c_double, "Q": ctypes.c_ulonglong, "q": ctypes.c_longlong,
}  # fmt: skip


def _buffer(array: np.ndarray) -> tuple[int, int]:
    """Address and bytes of the array that owns this one's memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.ctypes.data, array.nbytes


def _pitch(array: np.ndarray) -> int:
    return array.strides[0] // array.itemsize if array.ndim > 1 else array.shape[-1]


def _keep(made: Path, path: Path) -> None:
    """Give what was made its name, unless another process did so first: a library that is in use
    must not be replaced, or its addresses are no longer found by its name."""
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(made)
    made.unlink()


def _base(path: Path) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            return int(line.partition("-")[0], 16)
    return 0


def with_headers(sources: Path, file: str) -> str:
    """The text of a source, ahead of it those of all headers that it includes."""
    text = (sources / file).read_text()
    headers = _included(text, (sources,))
    return "\n".join([*(headers[name] for name in sorted(headers)), text])


@functools.cache
def signature_of(kernels: Kernels, expression: str) -> KernelSignature:
    """Of the kernel in its source. Raises LookupError where no source has it."""
    name = expression.partition("<")[0]
    for file in kernels.files:
        folders = (kernels.sources, *kernels.folders)
        path = next(f / file for f in folders if (f / file).is_file())
        found = parse_kernels(with_instance_text(path.read_text(), kernels.expressions), folders)
        if name in found:
            return find_kernel(found, expression)
    raise LookupError(f"no source has the kernel {name}")
