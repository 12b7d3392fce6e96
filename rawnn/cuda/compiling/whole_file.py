"""Converts a CUDA file for nvcc to one that NVRTC compiles: the device part of the source and of
the project's headers, with empty headers in place of the host's.

It is used only after NVRTC has refused the source unchanged.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rawnn.cuda.compiling.declarations import UnbalancedBrackets
from rawnn.cuda.compiling.device_part import find_device_part
from rawnn.cuda.compiling.fixes import DECLARED
from rawnn.cuda.compiling.headers import HOST_HEADERS, STANDARD
from rawnn.cuda.compiling.host_headers import is_helper, is_of_the_host, replace_header
from rawnn.cuda.compiling.includes import IncludedFiles, find_included_files
from rawnn.cuda.compiling.translation import Omission, Translation
from rawnn.ptx import SOURCES

_UNDEFINED = re.compile(r'(?:identifier|name) "(\w+)" is undefined')
_CUDAS = ("cuda_fp16.h", "nv/target", "curand_kernel.h", "crt/mma.h")
"""One header of each of CUDA's own folders: files there are compiled unchanged."""

_SYSTEM = "#define __linux__ 1\n#define __unix__ 1\n" if sys.platform == "linux" else ""
"""Macros that nvcc's host compiler defines, and NVRTC does not."""
_OPTIONS = ("--device-as-default-execution-space",)
"""For functions without an attribute: constexpr functions, and the declarations of cuda.h."""


def translate(text: str, paths: Sequence[Path], cuda: Sequence[Path], expressions: Sequence[str],
              log: str) -> Translation | None:
    """A rewritten version of a source that NVRTC refused with `log`; None if there is none."""
    return remove_host_code(text, paths, cuda, expressions, _has_host_variables(log)) \
        or add_implied_headers(text, log)


def _has_host_variables(log: str) -> bool:
    """Whether all that NVRTC refuses is that variables are the host's."""
    errors = re.findall(r"\): error: (.*)", log)
    return bool(errors) and all("is considered a host variable" in each for each in errors)


def add_implied_headers(text: str, log: str) -> Translation | None:
    """The source with those headers that nvcc includes implicitly and that declare names which
    NVRTC's log calls undefined; None if there are none."""
    preamble = _implied(set(_UNDEFINED.findall(log)))
    return Translation(text, preamble=preamble) if preamble else None


def remove_host_code(text: str, paths: Sequence[Path], cuda: Sequence[Path],
                     expressions: Sequence[str], with_variables: bool = False
                     ) -> Translation | None:
    """The device part of the source and of the headers in `paths`; `cuda` are the folders of CUDA's
    headers. None if there is no function or header of the host, nor a variable `with_variables`, or
    if brackets do not match."""
    files = find_included_files(text, paths, _is_foreign, is_of_the_host)
    try:
        part = find_device_part(files.texts, expressions)
    except UnbalancedBrackets:
        return None
    is_whole = any(each.what == "function" for each in part.left_out)
    emptied = _emptied(files, cuda, is_whole, part.texts)
    has_variables = with_variables and any(each.what in ("variable", "constant")
                                           for each in part.left_out)
    if not (is_whole or has_variables or emptied or files.encoded):
        return None
    headers = {file: files.rewrite(file, each) for file, each in part.texts.items() if file}
    headers |= {name: replace_header(name) for name in emptied}
    words = {word for each in part.texts.values() for word in re.findall(r"[A-Za-z_]\w*", each)}
    spaces = "".join(map(_declared, dict.fromkeys(("std", *part.namespaces))))
    left = (*part.left_out, *(Omission("header", f"<{name}>") for name in emptied))
    return Translation(files.rewrite("", part.texts[""]), headers,
                      _SYSTEM + spaces + _implied(words), _OPTIONS, left)


def _declared(namespace: str) -> str:
    """Code that declares a namespace, as `using namespace` needs; its header may be empty."""
    names = namespace.removeprefix("::").split("::")
    if not all(name.isidentifier() for name in names):
        return ""
    return "".join(f"namespace {name} {{ " for name in names) + "}" * len(names) + "\n"


def _implied(names: set[str]) -> str:
    """The directives that declare those of the names that nvcc knows implicitly."""
    found = sorted({header for name in names if (header := DECLARED.get(name))
                    and (HOST_HEADERS / header).is_file()})
    return "".join(f"#include <{header}>\n" for header in found)


def _is_foreign(folder: str) -> bool:
    """Whether a folder has CUDA's headers, or rawnn's."""
    return Path(folder).is_relative_to(SOURCES) or any(
        (Path(folder) / name).is_file() for name in _CUDAS)


def _emptied(files: IncludedFiles, cuda: Sequence[Path], is_whole: bool,
             texts: dict[str, str]) -> list[str]:
    """The headers to replace by empty ones: the host's; those in angle brackets that are not found,
    in a file with host code; and C++'s own if the device part does not use `std`."""
    uses_std = any(re.search(r"\bstd\s*::|\busing\s+namespace\s+std\b", each)
                   for each in texts.values())
    found = []
    for name, in_quotes in files.missing.items():
        if name in STANDARD:
            empty = is_whole and not uses_std
        elif (HOST_HEADERS / name).is_file():
            empty = False
        else:
            is_found = any((folder / name).is_file() for folder in cuda)
            empty = is_of_the_host(name) or is_helper(name) or (
                is_whole and not (is_found or in_quotes or _is_device_header(name)))
        if empty:
            found.append(name)
    return sorted(found)


def _is_device_header(name: str) -> bool:
    """Whether device code needs a header that is not installed: installing its wheel is the fix."""
    return name.startswith(("cuda/", "cub/", "nv/", "thrust/", "crt/", "cooperative_groups",
                            "curand_", "mma.h", "cuda_", "math_constants"))
