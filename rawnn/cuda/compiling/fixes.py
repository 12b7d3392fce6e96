"""Suggested fixes for errors that NVRTC and ptxas describe in their own terms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rawnn.common.errors import nearest
from rawnn.cuda.compiling import headers
from rawnn.cuda.compiling.c_text import split_expression
from rawnn.cuda.compiling.c_types import FORMATS
from rawnn.cuda.compiling.host_headers import is_of_the_host
from rawnn.cuda.compiling.includes import with_included
from rawnn.cuda.compiling.resources import SM_LIMITS
from rawnn.cuda.compiling.signature import Parameter, declarations
from rawnn.cuda.compiling.translation import Omission

NAMES = "__nv_name_map"
"""The internal source in which NVRTC looks name expressions up, as errors call it."""
_NAMED = re.compile(rf"^{NAMES}\(\d+\): error: (?P<why>.*)\n *#pragma nv_mangled_name "
                    r"(?P<which>.*)$", re.MULTILINE)
_CONSEQUENCES = ("Error in parsing name expression", 'incomplete type "rawnn_probe::')
"""How errors begin that follow from another one of the same name expression."""
_SHARED = re.compile(r"Entry function '(\w+)' uses too much shared data "
                     r"\(0x(\w+) bytes, 0x(\w+) max\)")
DECLARED = {
    **dict.fromkeys(("INFINITY", "NAN", "HUGE_VAL", "HUGE_VALF", "M_E", "M_LOG2E", "M_LOG10E",
                     "M_LN2", "M_LN10", "M_PI", "M_PI_2", "M_PI_4", "M_1_PI", "M_2_PI",
                     "M_2_SQRTPI", "M_SQRT2", "M_SQRT1_2"), "cmath"),
    **dict.fromkeys(("FLT_MAX", "FLT_MIN", "FLT_EPSILON", "DBL_MAX"), "cfloat"),
    **dict.fromkeys(("INT_MAX", "INT_MIN", "UINT_MAX", "LONG_MAX", "LONG_MIN", "ULONG_MAX",
                     "LLONG_MAX", "LLONG_MIN", "ULLONG_MAX", "SHRT_MAX", "SHRT_MIN", "USHRT_MAX",
                     "CHAR_BIT", "UCHAR_MAX"), "climits"),
    **dict.fromkeys(("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int8_t", "int16_t", "int32_t",
                     "int64_t", "intptr_t", "uintptr_t", "UINT32_MAX", "INT32_MAX", "UINT64_MAX",
                     "INT64_MAX"), "cstdint"),
    **dict.fromkeys(("uint", "ushort", "ulong"), "sys/types.h"),
    "ptrdiff_t": "cstddef",
    **dict.fromkeys(("cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion"),
                    "cuda_device_runtime_api.h"),
    **dict.fromkeys(("__half", "half", "__half2", "__float2half"), "cuda_fp16.h"),
    **dict.fromkeys(("__nv_bfloat16", "__nv_bfloat162", "__float2bfloat16"), "cuda_bf16.h"),
}
"""Names -> the header to include for them. For names of rawnn's own headers these are included
automatically (whole_file.py)."""


def overloads(log: str, text: str, folders: Sequence[Path]) -> str:
    """A sentence on name expressions that fit several kernels, with what the source `text`, and the
    headers that it includes in quotes from `folders`, declare by their names; "" if the log reports
    anything else."""
    from rawnn.cuda.compiling.probe import probed

    names: dict[str, None] = {}
    for match in _NAMED.finditer(log):
        if "overloaded" in match["why"]:
            names[probed(match["which"].strip())] = None
        elif not match["why"].startswith(_CONSEQUENCES):
            return ""
    found = []
    for name in names:
        last = split_expression(name)[0].rpartition("::")[2]
        known = dict.fromkeys(
            f"{each.name}({', '.join(map(_spelled, each.signature.parameters))})"
            for part in with_included(text, folders) for each in declarations(part)
            if each.signature and each.name.rpartition("::")[2] == last)
        found.append(f"'{name}' is an overloaded function" + (
            f": {' and '.join(known)}" if len(known) > 1 else ""))
    return f"{'; '.join(found)}; give overloaded kernels different names" if found else ""


def _spelled(parameter: Parameter) -> str:
    const, pointer = "const " * parameter.const, "*" * parameter.pointer
    return f"{const}{parameter.ctype}{pointer} {parameter.name}"


def misnamed_expressions(log: str) -> str:
    """The name expressions that fit no kernel, and why; "" if the log names none."""
    from rawnn.cuda.compiling.probe import probed

    why: dict[str, str] = {}
    for match in _NAMED.finditer(log):
        why.setdefault(probed(match["which"].strip()), match["why"].strip())
    known = {**dict.fromkeys(FORMATS), "true": None, "false": None}
    parts = []
    for which, reason in why.items():
        word = re.fullmatch(r'identifier "(\w+)" is undefined', reason)
        parts.append(f'the name expression "{which}" fits no kernel of the source: {reason}'
                     + (nearest(word[1], known) if word else ""))
    return "; ".join(parts)


def suggest_fixes(log: str, arch: str, expressions: Sequence[str],
                  left_out: Sequence[Omission] = ()) -> list[str]:
    """How to fix what the log reports: headers that cannot be opened, names of headers that nvcc
    includes implicitly, functions of the host and other parts that were left out, and more shared
    memory than a kernel may declare."""
    found = [headers.install_hint(name) for name in dict.fromkeys(
        re.findall(r'(?:cannot|could not) open source file "([^"\n]+)"', log))]
    found += [f"{name} is of a header that nvcc includes by itself, and NVRTC does not: "
              f"#include <{DECLARED[name]}>" for name in dict.fromkeys(
                  re.findall(r'(?:identifier|name) "(\w+)" is undefined', log))
              if name in DECLARED]
    found += _used_though_left_out(log, left_out)
    if "/thrust/" in log:
        found.append("Thrust is a library of the host: include <cuda/std/...> (complex, tuple, "
                     "functional) or <cub/block/...> for device code")
    if "texture is not a template" in log or "surface is not a template" in log:
        found.append("texture and surface references are gone from CUDA 12 on: take a "
                     "cudaTextureObject_t or cudaSurfaceObject_t as a parameter")
    if "host functions are not allowed in JIT mode" in log:
        found.append("NVRTC compiles for the device alone: declare functions __device__, or, where "
                     "a header has others (cuda.h), pass options=[\"-default-device\"]")
    found += [_too_much_shared(match[1], int(match[2], 16), int(match[3], 16), arch, expressions)
              for match in _SHARED.finditer(log)]
    return ["", *found] if found else []


def _used_though_left_out(log: str, left_out: Sequence[Omission]) -> list[str]:
    """Fixes for undefined names: which were left out, and which headers may declare the others."""
    unknown = dict.fromkeys(re.findall(
        r'(?:identifier|name|function|class|template) "?(?:\w+::)*(\w+)"? (?:is undefined|was not)',
        log))
    found, others = [], []
    for name in unknown:
        each = next((each for each in left_out if each.name == name), None)
        if each is None:
            others.append(name)
        elif each.why:
            found.append(f"{each}")
        else:
            found.append(f"{each} is the host's, and device code uses it: declare it __device__")
    found += [f"{name} is of CUDA's runtime, which code compiled by NVRTC cannot call: call it "
              f"from the host" for name in others
              if re.match("cuda[A-Z]", name) and name not in DECLARED]
    empty = [each.name for each in left_out if each.what == "header"]
    missing = [name for name in empty if not is_of_the_host(name.strip("<>"))]
    others = [name for name in others if not name.startswith("cuda") and name not in DECLARED]
    if missing and others:
        found.append(f"{', '.join(others[:5])} may be declared in a header that is not found "
                     f"({', '.join(missing)}): name its folder by include=[...] (-I on the "
                     f"command line)")
    elif empty and others:
        found.append(f"{', '.join(others[:5])} may be declared in a header of the host, which is "
                     f"left out ({', '.join(empty)}): device code cannot use it")
    return found


def _too_much_shared(mangled: str, nbytes: int, most: int, arch: str,
                     expressions: Sequence[str]) -> str:
    """The fix for static shared memory above the limit of the architecture. It names the kernel as
    in the source if that is unambiguous."""
    names = {e: e.partition("<")[0].rpartition("::")[2].strip() for e in expressions}
    named = [e for e, n in names.items() if n == mangled or f"{len(n)}{n}" in mangled]
    limits = SM_LIMITS.get(arch.rstrip("af"))
    limit = (f", of which a block can have {limits.shared_block:,} bytes on {arch}" if limits
             else "")
    return (f"{named[0] if len(named) == 1 else mangled} declares {nbytes:,} bytes of __shared__ "
            f"arrays, and a kernel may declare {most:,}: use dynamic shared memory{limit}: extern "
            f"__shared__ ..., and shared={nbytes} at the launch")
