"""The cheats' own CUDA code, run on the host by the CPU emulator of the device primitives, is
caught as their NumPy meanings are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rawnn
from rawnn.cuda.device import Device
from rawnn.sim import register
from tests import requires
from tests.lab.cheats import CHEATS, SHAPES, WRITE, Cheat
from tests.ptx.emulator.emulator import EmulatedLibrary, EmulatorError, Kernels

pytestmark = requires.GXX
HONEST = Cheat("honest", WRITE, lambda: lambda t, a: None, ())
RUN = [cheat for cheat in CHEATS if not cheat.before and cheat.limit is None]
"""Those without variables of their own, which the CPU emulator makes anew for every launch, half
precision, endless loops and null pointers."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> EmulatedLibrary:
    folder: Path = tmp_path_factory.mktemp("cheats")
    (folder / "cheats.cu").write_text("\n".join(c.source for c in (HONEST, *RUN)))
    return Kernels(("cheats.cu",), tuple(c.name for c in (HONEST, *RUN)), sources=folder,
                   flags=("-w",)).build()


def on_the_emulator(library: EmulatedLibrary, cheat: Cheat, device: Device) -> rawnn.Kernel:
    def meaning(t: SimpleNamespace, a: Mapping[str, Any]) -> None:
        n = a["n"]
        try:
            library.call(cheat.name, [-(-n // 256)], [256], x=t.x, y=t.y, n=n)
        except EmulatorError as error:
            raise ValueError(str(error)) from None

    register(cheat.name, meaning, SHAPES, reads=("x",), writes=("y",))
    return cheat.kernel(device)


def test_the_honest_kernel_passes(device: Device, library: EmulatedLibrary) -> None:
    given = {**HONEST.given, "sizes": {"n": "1..600"}, "trials": 6}
    rawnn.check(on_the_emulator(library, HONEST, device), **given).require()


@pytest.mark.parametrize("cheat", RUN, ids=lambda cheat: cheat.name)
def test_a_cheat_is_caught(device: Device, library: EmulatedLibrary, cheat: Cheat) -> None:
    sizes = {"exits_early_by_size": 5000, "one_element_in_many": 30_000}.get(cheat.name, "1..600")
    found = rawnn.check(on_the_emulator(library, cheat, device), special=cheat.special,
                        **{**cheat.given, "sizes": {"n": sizes}, "trials": 4})
    assert not found
    assert found.findings[0].what in (*cheat.caught, "failed"), str(found)
