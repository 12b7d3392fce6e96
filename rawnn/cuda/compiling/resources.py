"""The resources that compiled kernels use of a multiprocessor, and how many of their blocks fit.

Registers, shared memory and stack are read from the cubin itself, which needs no tool and no GPU.
The ELF parser is rawnn's own: it needs only section headers and names, and no library reads the
content of NVIDIA's sections. Spills are not in a cubin: compile with the option
`--ptxas-options=-v` and pass the log to `spills`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rawnn.common.errors import ConfigError, DeviceError, nearest

# Attributes of the `.nv.info` section, as the CUDA binary utilities print them.
_FRAME_SIZE, _MIN_STACK_SIZE, _REGCOUNT = 0x11, 0x12, 0x2F
_SIZED_VALUE = 4  # the attribute format with a payload; the others end after four bytes
_RESERVED_SHARED = 1024  # bytes of each block's shared memory that the driver reserves from sm_80
_WARP = 32
_MAX_THREADS_PER_BLOCK, _MAX_REGISTERS_PER_THREAD = 1024, 255


@dataclass(frozen=True)
class Usage:
    """What one kernel uses: registers per thread, static shared memory per block in bytes
    (without the driver's own 1 KiB), stack per thread in bytes (arrays, spills and calls),
    constant bank 0 in bytes (the parameters and the driver's fields before them)."""

    registers: int
    shared: int
    stack: int
    constant: int


@dataclass(frozen=True)
class SmLimits:
    """Limits of one streaming multiprocessor; shared memory in bytes, `shared_block` with the
    opt-in (dynamic shared memory above 48 KiB), `shared_unit` the allocation granularity."""

    threads: int
    blocks: int
    shared: int
    shared_block: int
    shared_unit: int
    reserved: int
    registers: int = 65536


_KIB = 1024
SM_LIMITS = {
    "sm_75": SmLimits(1024, 16, 64 * _KIB, 64 * _KIB, 256, 0),
    "sm_80": SmLimits(2048, 32, 164 * _KIB, 163 * _KIB, 128, _RESERVED_SHARED),
    "sm_86": SmLimits(1536, 16, 100 * _KIB, 99 * _KIB, 128, _RESERVED_SHARED),
    "sm_89": SmLimits(1536, 24, 100 * _KIB, 99 * _KIB, 128, _RESERVED_SHARED),
    "sm_90": SmLimits(2048, 32, 228 * _KIB, 227 * _KIB, 128, _RESERVED_SHARED),
    "sm_100": SmLimits(2048, 32, 228 * _KIB, 227 * _KIB, 128, _RESERVED_SHARED),
    "sm_120": SmLimits(1536, 24, 100 * _KIB, 99 * _KIB, 128, _RESERVED_SHARED),
}
"""Source: CUDA Programming Guide, appendix "Compute Capabilities", technical specifications;
blocks and allocation granularities as in the toolkit's `cuda_occupancy.h`."""


@dataclass(frozen=True)
class Occupancy:
    """`blocks` resident per multiprocessor, the `fraction` of its warps that they use (0-1), and
    the limiting resource: "threads", "blocks", "registers" or "shared"."""

    blocks: int
    fraction: float
    limit: str


def resource_usage(cubin: bytes) -> dict[str, Usage]:
    """The resources of each kernel of `cubin`, by mangled name. In a relocatable cubin `shared` is
    0, because the linker lays out shared memory.

    Raises DeviceError if the bytes are no cubin.
    """
    try:
        return _usage(cubin)
    except (struct.error, ValueError, IndexError) as error:
        raise DeviceError(f"the compiled kernel is damaged: it cannot be read ({error})") from None


def spills(log: str) -> dict[str, tuple[int, int]]:
    """(spill stores, spill loads) in bytes of each kernel, by mangled name, from the log of a
    compilation with the option `--ptxas-options=-v`."""
    found: dict[str, tuple[int, int]] = {}
    kernel = None
    for line in log.splitlines():
        if match := re.search(r"Function properties for (\S+)", line):
            kernel = match[1]
        elif kernel and (
            match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        ):
            found[kernel] = int(match[1]), int(match[2])
            kernel = None
    return found


def occupancy(arch: str, *, threads: int, registers: int, shared: int = 0) -> Occupancy:
    """How many blocks of `threads` threads, `registers` per thread and `shared` bytes (static
    and dynamic) fit on one multiprocessor of `arch` ("sm_90"; a suffix as in sm_90a is allowed).

    Registers are allocated in units of 256 to a warp, and each of a multiprocessor's four
    partitions has a quarter of them. The rules are those of the toolkit's `cuda_occupancy.h`.
    Raises ConfigError for an architecture that is not in SM_LIMITS.
    """
    limits = SM_LIMITS.get(arch.rstrip("af"))
    if limits is None:
        raise ConfigError(
            f"the multiprocessor limits of '{arch}' are not known{nearest(arch, SM_LIMITS)}"
        )
    warps = -(-threads // _WARP)
    per_warp = -(-max(registers, 1) * _WARP // 256) * 256
    # Warps of a block are spread over the four partitions, so they count in fours there.
    resident_warps = limits.registers // 4 // per_warp * 4
    per_block = -(-(shared + limits.reserved) // limits.shared_unit) * limits.shared_unit
    candidates = {
        "threads": limits.threads // _WARP // warps,
        "blocks": limits.blocks,
        "registers": resident_warps // warps,
        "shared": limits.shared // per_block if per_block else limits.blocks,
    }
    # The block exceeds the limits of any launch.
    if threads > _MAX_THREADS_PER_BLOCK:
        candidates["threads"] = 0
    if registers > _MAX_REGISTERS_PER_THREAD:
        candidates["registers"] = 0
    if shared > limits.shared_block:
        candidates["shared"] = 0
    limit = min(candidates, key=lambda name: candidates[name])
    blocks = candidates[limit]
    return Occupancy(blocks, blocks * warps / (limits.threads // _WARP), limit)


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int
    info: int


def _usage(cubin: bytes) -> dict[str, Usage]:
    if cubin[:4] != b"\x7fELF" or cubin[4] != 2:
        raise ValueError("it is not a 64-bit ELF file")
    sections = list(_sections(cubin))
    by_name = {section.name: section for section in sections}
    registers: dict[str, int] = {}
    stack: dict[str, int] = {}
    frame: dict[str, int] = {}
    for attribute, name, value in _attributes(cubin, sections):
        if attribute == _REGCOUNT:
            registers[name] = value
        elif attribute == _MIN_STACK_SIZE:
            stack[name] = value
        elif attribute == _FRAME_SIZE:
            frame[name] = value
    # From sm_90 on a kernel's shared section starts with what the driver reserves.
    reserved = _RESERVED_SHARED if ".nv.shared.reserved.0" in by_name else 0
    usage = {}
    for section in sections:
        kernel = section.name.removeprefix(".text.")
        bank = by_name.get(f".nv.constant0.{kernel}")
        if kernel == section.name or kernel not in registers or bank is None:
            continue
        shared = by_name.get(f".nv.shared.{kernel}")
        usage[kernel] = Usage(
            registers=registers[kernel],
            shared=max(0, shared.size - reserved) if shared else 0,
            stack=stack.get(kernel, frame.get(kernel, 0)),
            constant=bank.size,
        )
    return usage


def _sections(elf: bytes) -> Iterator[_Section]:
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", elf, start + i * entry) for i in range(count)]
    table = headers[names][4]
    for header in headers:
        begin = table + header[0]
        name = elf[begin : elf.index(b"\0", begin)].decode()
        yield _Section(name, header[4], header[5], header[6], header[7])


def _attributes(elf: bytes, sections: list[_Section]) -> Iterator[tuple[int, str, int]]:
    """(attribute, function, value) of each per-function entry in `.nv.info`."""
    for section in sections:
        if section.name != ".nv.info":
            continue
        symbols = sections[section.link]
        strings = sections[symbols.link].offset
        at, end = section.offset, section.offset + section.size
        while at < end:
            kind, attribute, size = struct.unpack_from("<BBH", elf, at)
            at += 4
            if kind != _SIZED_VALUE:
                continue
            if size == 8:
                index, value = struct.unpack_from("<II", elf, at)
                (name_at,) = struct.unpack_from("<I", elf, symbols.offset + 24 * index)
                begin = strings + name_at
                yield attribute, elf[begin : elf.index(b"\0", begin)].decode(), value
            at += size
