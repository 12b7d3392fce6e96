"""What to do about errors that NVRTC and ptxas word in their own terms."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rawnn.device.compiling import headers
from rawnn.device.compiling.c_types import FORMATS
from rawnn.device.compiling.resources import SM_LIMITS
from rawnn.errors import nearest

NAMES = "__nv_name_map"
"""The source of its own in which NVRTC looks name expressions up, as it calls it in errors."""
_NAMED = re.compile(rf"^{NAMES}\(\d+\): error: (?P<why>.*)\n *#pragma nv_mangled_name "
                    r"(?P<which>.*)$", re.MULTILINE)
_SHARED = re.compile(r"Entry function '(\w+)' uses too much shared data "
                     r"\(0x(\w+) bytes, 0x(\w+) max\)")
_DECLARED = {
    **dict.fromkeys(("INFINITY", "NAN"), "cmath"),
    **dict.fromkeys(("FLT_MAX", "FLT_MIN", "FLT_EPSILON", "DBL_MAX"), "cfloat"),
    **dict.fromkeys(("INT_MAX", "INT_MIN", "UINT_MAX"), "climits"),
    **dict.fromkeys(("uint8_t", "uint16_t", "uint32_t", "uint64_t", "int8_t", "int16_t", "int32_t",
                     "int64_t"), "cstdint"),
    **dict.fromkeys(("cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion"),
                    "cuda_device_runtime_api.h"),
    **dict.fromkeys(("__half", "half", "__half2", "__float2half"), "cuda_fp16.h"),
    **dict.fromkeys(("__nv_bfloat16", "__nv_bfloat162", "__float2bfloat16"), "cuda_bf16.h"),
}
"""Names -> the header that declares them, and that can be included here."""


def misnamed(log: str) -> str:
    """Which name expressions fit no kernel, and why; "" where the log does not say."""
    from rawnn.device.compiling.probe import probed

    why: dict[str, str] = {}
    for match in _NAMED.finditer(log):
        why.setdefault(probed(match["which"].strip()), match["why"].strip())
    known = {**dict.fromkeys(FORMATS), "true": None, "false": None}
    parts = []
    for which, reason in why.items():
        word = re.fullmatch(r'identifier "(\w+)" is undefined', reason)
        parts.append(f'the name expression "{which}" fits no kernel of the source: {reason}'
                     + (nearest(word[1], known) if word else "")
                     + ("; give overloaded kernels different names" if "overloaded" in reason
                        else ""))
    return "; ".join(parts)


def cures(log: str, arch: str, expressions: Sequence[str]) -> list[str]:
    """What to do about the headers that the log says cannot be opened, about names of CUDA's and
    C's headers that nvcc knows without being told, about functions of the host, and about more
    shared memory than a kernel may declare."""
    found = [headers.cure(name) for name in dict.fromkeys(
        re.findall(r'(?:cannot|could not) open source file "([^"\n]+)"', log))]
    found += [f"{name} is of a header that nvcc includes by itself, and NVRTC does not: "
              f"#include <{_DECLARED[name]}>" for name in dict.fromkeys(
                  re.findall(r'(?:identifier|name) "(\w+)" is undefined', log))
              if name in _DECLARED]
    if "host functions are not allowed in JIT mode" in log:
        found.append("NVRTC compiles for the device alone: declare functions __device__, or, where "
                     "a header has others (cuda.h), pass options=[\"-default-device\"]")
    found += [_too_much_shared(match[1], int(match[2], 16), int(match[3], 16), arch, expressions)
              for match in _SHARED.finditer(log)]
    return ["", *found] if found else []


def _too_much_shared(mangled: str, nbytes: int, most: int, arch: str,
                     expressions: Sequence[str]) -> str:
    """The cure for static shared memory above the limit of the architecture, by the kernel's name
    in the source where that is plain."""
    names = {e: e.partition("<")[0].rpartition("::")[2].strip() for e in expressions}
    named = [e for e, n in names.items() if n == mangled or f"{len(n)}{n}" in mangled]
    limits = SM_LIMITS.get(arch.rstrip("af"))
    room = (f", of which a block can have {limits.shared_block:,} bytes on {arch}" if limits
            else "")
    return (f"{named[0] if len(named) == 1 else mangled} declares {nbytes:,} bytes of __shared__ "
            f"arrays, and a kernel may declare {most:,}: use dynamic shared memory{room}: extern "
            f"__shared__ ..., and shared={nbytes} at the launch")
