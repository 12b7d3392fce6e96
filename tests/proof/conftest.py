"""The proofs make thousands of simulated devices; what every one of them would do alike is done
once here: reading the kernels' declarations, and a workspace of a size that costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.proof.runs import cheap_devices


@pytest.fixture(scope="package", autouse=True)
def cheap() -> Iterator[None]:
    with cheap_devices():
        yield
