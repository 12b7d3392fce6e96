"""What tests of several ranks share: threads that stand for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def together(size: int, act: Callable[[int], Any], seconds: float = 60.0) -> list[Any]:
    """What `act(rank)` returned or raised, by rank; each in a thread of its own."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = act(rank)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), f"hangs: {found}"
    return found


def all_fine(found: list[Any]) -> list[Any]:
    """The results, of which none may be an error."""
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


class Waiting:
    """A team of threads: what rank 0 has is handed to the others."""

    def __init__(self, size: int) -> None:
        self.world_size = size
        self._value: Any = None
        self._there = threading.Event()

    def of(self, rank: int) -> Member:
        return Member(self, rank)


class Member:
    """One of them, as rawnn.cuda.libs.collectives wants it."""

    def __init__(self, waiting: Waiting, rank: int) -> None:
        self._waiting, self.rank, self.world_size = waiting, rank, waiting.world_size

    def broadcast(self, value: Any) -> Any:
        if self.rank == 0:
            self._waiting._value = value
            self._waiting._there.set()
        assert self._waiting._there.wait(20)
        return self._waiting._value

    failed = False

    def on_failure(self, act: Callable[[], None]) -> None:
        pass
