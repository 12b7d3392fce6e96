"""Resource numbers read from cubins against ptxas's own report, and occupancy against numbers
computed with the toolkit's cuda_occupancy.h."""

import re

import pytest

from rawnn.common.errors import ConfigError, DeviceError
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.compiling.resources import SM_LIMITS, Usage, occupancy, resource_usage, spills
from tests import requires

SOURCE = """
template <int N> __global__ void tile(float* p, int n) {
    __shared__ float s[N];
    float l[64];
    for (int i = 0; i < 64; i++) l[i] = p[i] * n;
    s[threadIdx.x] = l[n % 64];
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x ^ 1];
}
extern "C" __global__ void small(float* p) { p[0] = 1; }
extern "C" __global__ void __maxnreg__(24) spilling(float* p, int n) {
    float a[40];
    for (int i = 0; i < 40; i++) a[i] = p[i];
    for (int j = 0; j < n; j++)
        for (int i = 0; i < 40; i++) a[i] = a[i] * p[i + j] + a[(i + 1) % 40];
    float s = 0;
    for (int i = 0; i < 40; i++) s += a[i] * p[i + n];
    p[0] = s;
}
"""
EXPRESSIONS = ("tile<512>", "small", "spilling")


@pytest.fixture(scope="module")
def nvrtc():
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    return Nvrtc()


@pytest.mark.parametrize("relocatable", [False, True])
@pytest.mark.parametrize("arch", list(SM_LIMITS))
def test_usage_agrees_with_ptxas(nvrtc, arch, relocatable):
    made = compile_source(
        nvrtc, SOURCE, name="r.cu", arch=arch,
        expressions=EXPRESSIONS, options=("--ptxas-options=-v",), relocatable=relocatable,
    )  # fmt: skip
    usage, spilled = resource_usage(made.cubin), spills(made.log)
    assert set(usage) == set(spilled) == set(made.lowered.values())
    reports = re.split(r"Compiling entry function '", made.log)[1:]
    assert len(reports) == 3
    for report in reports:
        used = usage[report.partition("'")[0]]
        assert used.registers == int(re.search(r"Used (\d+) registers", report)[1])
        shared = re.search(r"(\d+) bytes smem", report)
        assert used.shared == (int(shared[1]) if shared else 0)
        assert used.stack == int(re.search(r"(\d+) bytes stack frame", report)[1])
        constant = re.search(r"(\d+) bytes cmem\[0\]", report)
        assert used.constant == int(constant[1]) if constant else used.constant > 0
    assert usage["small"].shared == 0
    assert usage[made.lowered["tile<512>"]].shared == (0 if relocatable else 2048)
    assert spilled["spilling"][0] > 0
    assert spilled["small"] == (0, 0)


DAMAGED = [b"", b"\x7fELF", b"no cubin" * 20, b"\x7fELF\x02" + b"\0" * 70]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_bytes_that_are_no_cubin(damaged):
    with pytest.raises(DeviceError, match="cannot be read"):
        resource_usage(damaged)


def test_truncated_cubin(nvrtc):
    made = compile_source(nvrtc, SOURCE, name="r.cu", arch="sm_80", expressions=("small",),
                          options=("--maxrregcount=64",))  # fmt: skip
    assert isinstance(resource_usage(made.cubin)["small"], Usage)
    with pytest.raises(DeviceError, match="cannot be read"):
        resource_usage(made.cubin[: len(made.cubin) // 2])


# (architecture, threads, registers, shared bytes, blocks by cuda_occupancy.h)
REFERENCE = [
    ("sm_75", 160, 100, 232448, 0), ("sm_75", 196, 72, 101377, 0), ("sm_75", 160, 255, 65536, 1),
    ("sm_75", 1, 64, 4, 16), ("sm_75", 320, 72, 16384, 2), ("sm_80", 1000, 255, 101377, 0),
    ("sm_80", 196, 64, 65536, 2), ("sm_80", 160, 255, 1000, 1), ("sm_80", 768, 32, 49152, 2),
    ("sm_80", 1, 40, 2048, 32), ("sm_80", 320, 72, 65536, 2), ("sm_86", 1, 64, 232448, 0),
    ("sm_86", 196, 200, 60000, 1), ("sm_86", 128, 255, 16384, 2), ("sm_86", 96, 96, 49152, 2),
    ("sm_86", 100, 8, 1000, 12), ("sm_86", 320, 72, 2048, 2), ("sm_89", 196, 33, 232448, 0),
    ("sm_89", 196, 100, 4, 2), ("sm_89", 128, 255, 16384, 2), ("sm_89", 196, 128, 49152, 2),
    ("sm_89", 100, 8, 4, 12), ("sm_89", 320, 72, 49152, 2), ("sm_90", 768, 128, 49152, 0),
    ("sm_90", 196, 80, 65536, 3), ("sm_90", 196, 255, 166912, 1), ("sm_90", 96, 56, 101376, 2),
    ("sm_90", 32, 32, 9000, 23), ("sm_90", 320, 72, 101376, 2), ("sm_100", 512, 200, 49152, 0),
    ("sm_100", 196, 168, 166912, 1), ("sm_100", 256, 255, 30000, 1), ("sm_100", 320, 40, 101376, 2),
    ("sm_100", 100, 56, 4, 9), ("sm_100", 320, 72, 0, 2), ("sm_120", 64, 56, 232448, 0),
    ("sm_120", 196, 24, 166912, 0), ("sm_120", 256, 255, 65536, 1), ("sm_120", 256, 96, 49152, 2),
    ("sm_120", 1, 33, 4, 24), ("sm_120", 320, 72, 9000, 2),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "threads", "registers", "shared", "blocks"), REFERENCE)
def test_occupancy_agrees_with_the_toolkit(arch, threads, registers, shared, blocks):
    assert occupancy(arch, threads=threads, registers=registers, shared=shared).blocks == blocks


def test_occupancy_says_what_limits():
    full = occupancy("sm_90a", threads=256, registers=32)
    assert (full.blocks, full.fraction, full.limit) == (8, 1.0, "threads")
    assert occupancy("sm_90", threads=32, registers=16).limit == "blocks"
    assert occupancy("sm_90", threads=256, registers=128).limit == "registers"
    shared = occupancy("sm_90", threads=256, registers=32, shared=100 * 1024)
    assert (shared.blocks, shared.fraction, shared.limit) == (2, 0.25, "shared")
    assert occupancy("sm_90", threads=1025, registers=32).blocks == 0
    assert occupancy("sm_90", threads=32, registers=256).limit == "registers"


def test_unknown_architecture():
    with pytest.raises(ConfigError, match="'sm_99' are not known; did you mean"):
        occupancy("sm_99", threads=32, registers=32)
