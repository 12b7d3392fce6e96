"""`rawnn cache`."""

from __future__ import annotations

from rawnn.cuda.compiling.cache import CubinCache
from tests.cli.conftest import Rawnn


def test_info_and_clear(rawnn: Rawnn) -> None:
    CubinCache().put("ab" * 32, b"a kernel")
    where = str(CubinCache().info().directory)
    info = rawnn("cache", "info")
    assert info.status == 0
    assert f"{where}: 1 compiled kernel files" in info.out
    assert "1 compiled kernel files deleted" in rawnn("cache", "clear").out
    assert ": 0 compiled kernel files" in rawnn("cache", "info").out
