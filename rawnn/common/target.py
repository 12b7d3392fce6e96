"""The facts about a GPU that launches depend on.

Plans are built and kernels configured for a target. This module is independent of the driver: a
target describes an open device (rawnn/engine/machine.py), or a GPU known by name, for plans that
are only displayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from rawnn.common.errors import unknown

CONDITIONAL_NODES = 12030
"""The CUDA version, as cuDriverGetVersion has it, whose driver introduced conditional graph nodes
and capture into an existing graph: cudaTypedefs.h has cuGraphConditionalHandleCreate and
cuStreamBeginCaptureToGraph from there on. (12.8 added SWITCH nodes, and ELSE of IF.)"""

FEATURES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "asynchronous copies": {"from": (8, 0)},
    "bfloat16": {"from": (8, 0)},
    "tf32": {"from": (8, 0)},
    "8-bit products": {"from": (8, 9)},
    "clusters": {"from": (9, 0)},
    "bulk copies": {"from": (9, 0)},
    "programmatic launches": {"from": (9, 0)},
    "wgmma": {"from": (9, 0), "to": (9, 0)},
}
"""Features that not every architecture has, with the first compute capability that has each, and
the last one if it was removed. Source: CUDA C++ Programming Guide, appendix "Compute Capabilities",
and the PTX ISA's target notes."""


def features_of(capability: tuple[int, int]) -> frozenset[str]:
    """The features of a compute capability."""
    return frozenset(name for name, span in FEATURES.items()
                     if span["from"] <= capability <= span.get("to", capability))


@dataclass(frozen=True)
class Target:
    """The properties of a GPU that launches depend on; the host has no multiprocessors.

    shared_per_block (with the opt-in), shared_per_multiprocessor: bytes of shared memory.
    registers, threads: 32-bit registers and threads of a multiprocessor.
    at_once: cluster size -> concurrent blocks if each takes a multiprocessor for itself, from the
        driver's occupancy calculator. Some groups of multiprocessors are incomplete, so that larger
        clusters leave some idle. Without clusters there is only the size 1.
    clock: the greatest multiprocessor clock in MHz; 0 if unknown.
    costs: constants of cost models fitted to this particular GPU; empty if there are none.
    """

    name: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 0
    shared_per_block: int = 0
    shared_per_multiprocessor: int = 0
    registers: int = 0
    threads: int = 0
    at_once: Mapping[int, int] = field(default_factory=dict, hash=False)
    features: frozenset[str] = frozenset()
    clock: float = 0.0
    costs: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        if not self.gpu:
            return self.name
        return (f"{self.name}, compute capability {'.'.join(map(str, self.capability))}, "
                f"{self.multiprocessors} multiprocessors with {self.shared_per_block >> 10} KiB of "
                f"shared memory a block")

    @property
    def gpu(self) -> bool:
        return self.multiprocessors > 0

    @property
    def largest_cluster(self) -> int:
        """Blocks of the largest cluster that fits; 1 without clusters."""
        return max((size for size, blocks in self.at_once.items() if blocks), default=1)

    def has(self, *features: str) -> bool:
        """Whether it has all of `features`, which are names in FEATURES."""
        unknown = set(features) - set(FEATURES)
        if unknown:
            raise KeyError(f"no GPU has a feature '{min(unknown)}'")
        return self.features >= set(features)

    def lacks(self, *features: str) -> str:
        """Why code that needs `features` cannot run on it; "" if it can."""
        missing = [name for name in features if not self.has(name)]
        return f"needs {' and '.join(missing)}, which {self.name} has not" if missing else ""

    def without(self, *features: str) -> Target:
        """The same GPU with some of its features unused."""
        self.has(*features)
        at_once = {1: self.multiprocessors} if "clusters" in features and self.gpu \
            else self.at_once
        return replace(self, features=self.features - set(features), at_once=at_once)


HOST = Target("the host")
"""The target of plans that no GPU runs; no kernel is configured for it."""


def _known(name: str, capability: tuple[int, int], multiprocessors: int, block: int, whole: int,
           threads: int, clock: float, at_once: Mapping[int, int] | None = None) -> Target:
    return Target(name, capability, multiprocessors, block << 10, whole << 10, 65536, threads,
                  at_once or {1: multiprocessors}, features_of(capability), clock)


def _clusters(multiprocessors: int) -> dict[int, int]:
    """As many clusters of each size as complete groups of multiprocessors would allow: for GPUs
    whose driver was not queried."""
    return {size: multiprocessors // size * size for size in (1, 2, 4, 8)}


KNOWN: Mapping[tuple[int, int], Target] = {target.capability: target for target in (
    _known("T4", (7, 5), 40, 64, 64, 1024, 1590),
    _known("A100", (8, 0), 108, 163, 164, 2048, 1410),
    _known("A40", (8, 6), 84, 99, 100, 1536, 1740),
    _known("L40", (8, 9), 142, 99, 100, 1536, 2490),
    _known("H200", (9, 0), 132, 227, 228, 2048, 1980, {1: 132, 2: 132, 4: 124, 8: 120, 16: 112}),
    _known("B200", (10, 0), 148, 227, 228, 2048, 1965, _clusters(148)),
    _known("RTX PRO 6000", (12, 0), 188, 99, 100, 1536, 2617, _clusters(188)),
)}
"""A GPU of each architecture, by compute capability; Hopper's figures are its driver's."""


NAMED: tuple[Target, ...] = (
    *KNOWN.values(),
    replace(KNOWN[9, 0], name="H100"),
    _known("A10", (8, 6), 72, 99, 100, 1536, 1695),
    _known("L4", (8, 9), 58, 99, 100, 1536, 2040),
    _known("RTX 3090", (8, 6), 82, 99, 100, 1536, 1695),
    _known("RTX 4090", (8, 9), 128, 99, 100, 1536, 2520),
    _known("RTX 5090", (12, 0), 170, 99, 100, 1536, 2407, _clusters(170)),
)
"""GPUs that plans can be displayed for by name; multiprocessors and clocks are from NVIDIA's data
sheets. An H100 (SXM) has the multiprocessors of an H200."""


def gpu_named(name: str) -> Target:
    """The GPU of a name, ignoring case, spaces, signs and words that are not needed to tell GPUs
    apart: "h100", "rtx-4090", "4090", "NVIDIA H100 80GB HBM3". Raises ConfigError."""
    plain = {_plain(target.name): target for target in NAMED}
    wanted = _model(name)
    found = [wanted] if wanted in plain else \
        [each for each in plain if wanted and each.endswith(wanted)]
    if len(found) != 1:
        raise unknown("GPU", name, [target.name for target in NAMED])
    return plain[found[0]]


def is_called(driver_name: str, name: str) -> bool:
    """Whether the GPU that the driver calls `driver_name` is the one called `name`: the same name,
    or, if `name` is in NAMED, what `driver_name` abbreviates to ("H100" for "NVIDIA H100 80GB
    HBM3")."""
    return driver_name == name or (_model(driver_name) == _plain(name) and any(
        target.name == name for target in NAMED))


_SUFFIXES = re.compile(r"[ -](SXM\d?|\d+GB|HBM\w+|Blackwell (Server|Workstation) Edition)\b", re.I)
"""What the driver adds to the names of GPUs that launches do not depend on. "PCIe" and "NVL" are
none: those have fewer multiprocessors or lower clocks."""


def _model(name: str) -> str:
    """The plain name of a GPU without its maker, brand, memory and socket."""
    return _plain(_SUFFIXES.sub("", name)).removeprefix("nvidia").removeprefix("tesla") \
        .removeprefix("geforce")


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def known(capability: tuple[int, int]) -> Target:
    """The target for a compute capability without a device: the one of KNOWN with the nearest
    compute capability that is not above it; HOST if it is below all."""
    below = [key for key in KNOWN if key <= capability]
    if not below:
        return HOST
    return replace(KNOWN[max(below)], capability=capability, features=features_of(capability))


@dataclass(frozen=True)
class Machine:
    """What toggles need to know of the machine: whether there is a GPU, its compute capability,
    the CUDA version its driver supports (12090 for 12.9), which packages can be imported,
    whether the driver can allocate in the order of a stream, and what the GPU is called: by its
    driver, or as in NAMED if a plan is only displayed.
    `no_gpu` says in a sentence why there is no GPU, None where there is one. `measure` asks an open
    device for its target."""

    no_gpu: str | None
    compute_capability: tuple[int, int] = (0, 0)
    driver: int = 0
    has_package: Callable[[str], bool] = lambda package: False
    memory_pools: bool = True
    name: str = ""
    measure: Callable[[], Target] | None = None

    @property
    def has_gpu(self) -> bool:
        return self.no_gpu is None

    @property
    def target(self) -> Target:
        """The facts about the GPU; without an open device those of a GPU of its compute
        capability."""
        if not self.has_gpu:
            return HOST
        return self.measure() if self.measure else known(self.compute_capability)
