"""No generated kernel guards an instruction by a predicate that is not there yet, as ptxas did in
one that was traced: it took a jump of __syncwarp() out once it had counted the cycles. Needs NVRTC
but no GPU."""

from __future__ import annotations

import pytest

from rawnn.cuda.compiling.compile import compile_source
from rawnn.persistent.choose import Choice, choose
from rawnn.persistent.layout import layout_of
from rawnn.persistent.sharding import DSMEM, Sharding
from rawnn.persistent.source import source
from rawnn.persistent.tracing import traced
from rawnn.ptx.persistent.persistent import QUICK
from tests.persistent.problems import HOPPER, VARIETY, problem
from tests.persistent.test_source import SHARED
from tests.persistent.test_tracing import KINDS, choice
from tests.ptx import guards
from tests.ptx.architectures import installed_nvrtc
from tests.slices import sliced


def wide() -> Choice:
    """Of 784-10 at batch 128 in float32: the form whose traced kernel stored to no address."""
    given = problem((784, 10), 128)
    d = Sharding(given, 16, 4, 384, "SF", 1, DSMEM)
    return Choice(layout_of(d, HOPPER.shared), 0.0)


def chosen() -> list[Choice]:
    """Plain kernels and traced ones."""
    plain = [choose(problem(**VARIETY[name]), HOPPER, ranks, groups)
             for name, ranks, groups in sliced(SHARED)]
    return [traced(wide(), 8), *plain, *(traced(choice(*kind), 64) for kind in sliced(KINDS))]


@pytest.fixture(scope="module")
def kernels() -> list[bytes]:
    nvrtc = installed_nvrtc()
    return [text for given in chosen() for _, text in guards.texts(compile_source(
        nvrtc, source(given.layout, "train_steps"), name="train_steps.cu", arch="sm_90",
        expressions=("train_steps",), options=QUICK).cubin)]


def test_no_instruction_is_guarded_too_early(kernels: list[bytes]) -> None:
    assert [guards.too_early(text) for text in kernels] == [[]] * len(kernels)


def test_one_that_is_too_early_is_found(kernels: list[bytes]) -> None:
    """Where the instruction behind a comparison no longer waits."""
    text = kernels[0]
    code = [int.from_bytes(text[i:i + 16], "little") for i in range(0, len(text), 16)]
    at = next(i for i in range(len(code) - 1) if guards.waits(code[i]) == guards.CYCLES
              and any(p == code[i + 1] >> 12 & 7 and guards.makes(code[i], p) for p in range(7)))
    hasty = code[at] & ~(15 << 105) | 9 << 105
    planted = text[:at * 16] + hasty.to_bytes(16, "little") + text[at * 16 + 16:]
    assert guards.Early(at * 16 + 16, at * 16, 9) in guards.too_early(planted)
