"""What limits a GPU, measured on one: the kernels compute what they mean there, launched as the
measurement launches them. Whether the constants are such as a GPU can have is asked by
`rawnn bench lower-bounds --check` on a GPU that nothing else uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rawnn.bench.cases.lower_bounds import DTYPES, random_words
from rawnn.bench.probing import ProbeDevice, Repeated
from rawnn.cuda.device import Device
from rawnn.ptx.limits import microbenchmarks as probes
from rawnn.ptx.limits.microbenchmarks import PROBES, Probe

pytestmark = pytest.mark.gpu


@pytest.fixture
def bed(device: Device) -> Iterator[ProbeDevice]:
    with ProbeDevice(device) as made:
        yield made


def computed(bed: ProbeDevice, run: Repeated, rounds: int, written: str = "sums") -> np.ndarray:
    """What a kernel wrote in some rounds: its sums, or its counter."""
    run(rounds)
    found = np.zeros(1, np.uint32) if written == "counter" else \
        np.zeros(int(run.values["threads"]), np.float32)
    bed.device.to_host(found, int(run.values[written]), written)
    return found


def meant(probe: Probe, run: Repeated, rounds: int, **more: Any) -> np.ndarray:
    """What it ought to have written, by NumPy."""
    operands = SimpleNamespace(sums=np.zeros(int(run.values["threads"]), np.float32), **more)
    probe.meaning.reference(operands, {**run.values, "rounds": rounds, **more})
    return operands.sums


@pytest.mark.parametrize("probe", [p for p in PROBES if "sums" in p.meaning.writes
                                   and p not in (probes.READ, probes.EXCHANGES)],
                         ids=lambda probe: probe.expression)
def test_arithmetic_is_what_it_means(bed: ProbeDevice, probe: Probe) -> None:
    if lacking := probe.lacks(bed.target):
        pytest.skip(lacking)
    values: dict[str, Any] = {"scale": 0.5, "shift": 1.0} if probe is probes.FMA else {}
    numbers = next((n for n, several in probes.TENSOR_CORE_PROBES.items() if probe in several), "")
    words = random_words(12288 if probe.specific else 192, DTYPES[numbers]) if numbers else None
    with ExitStack() as stack:
        run = bed.kernel(stack, probe, 5, values, words=words)
        found = computed(bed, run, 3)
    options = {"dtype": DTYPES[numbers]} if numbers in ("bf16", "fp16", "fp8") else {}
    right = meant(probe, run, 3, words=words, **options)
    # Tensor cores keep about 14 bits of sums of 8-bit numbers.
    rough = 2e-2 if numbers == "fp8" else 1e-3
    np.testing.assert_allclose(found, right, rtol=rough, atol=rough * np.abs(right).max())


def test_barriers_count_all_blocks(bed: ProbeDevice) -> None:
    whole = bed.target.multiprocessors
    with ExitStack() as stack:
        run = bed.kernel(stack, probes.GRID_BARRIERS, whole, {"blocks": whole}, counter=True)
        for rounds in (7, 3):
            assert computed(bed, run, rounds, "counter")[0] == rounds * whole
        for size, blocks in bed.target.at_once.items():
            if size > 1 and blocks:
                run = bed.kernel(stack, probes.CLUSTER_BARRIERS, blocks, {"blocks": blocks},
                                 counter=True, cluster=size)
                assert computed(bed, run, 7, "counter")[0] == 7 * blocks, size


def test_an_exchange_brings_the_mean_of_all_ranks(bed: ProbeDevice) -> None:
    sizes = [size for size, blocks in bed.target.at_once.items() if size > 1 and blocks]
    if not sizes:
        pytest.skip(bed.target.lacks("clusters") or "no cluster fits")
    for size in sizes:
        for quads in (32, probes.MOST_QUADS):
            with ExitStack() as stack:
                run = bed.exchange(stack, 2 * size, size, quads)
                found = computed(bed, run, 6)
            np.testing.assert_allclose(found, meant(probes.EXCHANGES, run, 6), rtol=1e-6)


def test_memory_is_read_written_and_copied(bed: ProbeDevice) -> None:
    device, count, blocks = bed.device, 5000, 6
    x = np.random.default_rng(0).integers(-8, 9, 4 * count).astype(np.float32)
    y = np.zeros_like(x)
    with ExitStack() as stack:
        copy = bed.memory(stack, probes.COPY, blocks, x.nbytes)
        device.to_device(int(copy.values["x"]), x, "x")
        copy(2)
        device.to_host(y, int(copy.values["y"]), "y")
        np.testing.assert_array_equal(y, x)
        write = bed.memory(stack, probes.WRITE, blocks, x.nbytes)
        write(2)
        device.to_host(y, int(write.values["y"]), "y")
        np.testing.assert_array_equal(y, write.values["value"])
        read = bed.memory(stack, probes.READ, blocks, x.nbytes)
        device.to_device(int(read.values["x"]), x, "x")
        found = computed(bed, read, 3)
    operands = SimpleNamespace(x=x, sums=np.zeros_like(found))
    probes.READ.meaning.reference(operands, {**read.values, "rounds": 3})
    np.testing.assert_allclose(found, operands.sums, rtol=1e-6)
