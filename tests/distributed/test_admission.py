"""Who may join a job: strangers at rank 0's port, and impostors that listen there."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Any

import pytest

from rawnn.common.errors import RanksError
from rawnn.distributed import RankContext, Team, admission, rendezvous, wire
from rawnn.distributed.admission import PROTOCOL, introduce
from rawnn.distributed.rank_context import rank_from_environment
from rawnn.distributed.wire import LENGTH, Wire
from rawnn.engine import parallel
from tests.distributed.runs import free_port
from tests.together import all_fine, together

JOB = RankContext(0, 2, 0, 2, "a test", "127.0.0.1", 0, 10.0, secret="known to two")


def connected(port: int) -> socket.socket:
    """A stranger's connection, as soon as rank 0 listens."""
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            sleep(0.01)
    raise AssertionError("rank 0 does not listen")


def nothing(port: int) -> Any:
    return connected(port)


def four_gigabytes(port: int) -> Any:
    stranger = connected(port)
    stranger.sendall(LENGTH.pack(0xFFFFFFFF) + b"x" * 4096)
    return stranger


def a_rank(port: int, secret: str = "guessed") -> Any:
    """Speaks the protocol, and claims to be rank 1."""
    stranger = Wire(connected(port))
    with pytest.raises(RanksError, match="does not know the job's secret"):
        introduce(stranger, replace(JOB, rank=1, secret=secret), "a stranger", 5.0)
    return stranger


def no_secret(port: int) -> Any:
    return a_rank(port, "")


def replayed(port: int) -> Any:
    """A proof that is none, from somebody who has read the challenge."""
    stranger = Wire(connected(port))
    protocol, challenge = stranger.receive(5.0)
    stranger.send([protocol, 1, 2, "a stranger", challenge, challenge])
    return stranger


def another_protocol(port: int) -> Any:
    stranger = connected(port)
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return stranger


@pytest.mark.parametrize("stranger", [nothing, four_gigabytes, a_rank, no_secret, replayed,
                                      another_protocol])
def test_a_stranger_that_comes_first_keeps_nobody_out(stranger: Callable[[int], Any]) -> None:
    port, there = free_port(), threading.Event()
    held = []

    def act(rank: int) -> Any:
        if rank == 2:
            held.append(stranger(port))
            there.set()
            return None
        if rank == 1:
            assert there.wait(10)
        team = Team(replace(JOB, rank=rank, local_rank=rank, port=port), {})
        found = team.gather("rank", team.rank)
        team.close()
        return found

    assert all_fine(together(3, act)) == [[0, 1], [0, 1], None]
    held[0].close()


def test_many_that_say_nothing_do_not_keep_a_rank_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """More connections than are served at a time: a rank that is refused tries again."""
    monkeypatch.setattr(rendezvous, "MAX_PENDING", 3)
    monkeypatch.setattr(admission, "SECONDS", 0.3)
    port, there = free_port(), threading.Event()
    held: list[socket.socket] = []

    def act(rank: int) -> Any:
        if rank == 2:
            held.extend(connected(port) for _ in range(5))
            there.set()
            return None
        if rank == 1:
            assert there.wait(10)
        team = Team(replace(JOB, rank=rank, local_rank=rank, port=port), {})
        team.close()
        return team.world_size

    assert all_fine(together(3, act)) == [2, 2, None]
    for each in held:
        each.close()


def test_a_connection_whose_options_cannot_be_set_makes_room(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the other end is gone by then; rank 0 takes it for a stranger."""
    monkeypatch.setattr(rendezvous, "MAX_PENDING", 1)
    port, there = free_port(), threading.Event()
    opened: list[socket.socket] = []

    class Failing(Wire):
        def __init__(self, connection: socket.socket) -> None:
            if connection.getsockname()[1] == port and len(opened) < 3:  # accepted by rank 0
                opened.append(connection)
                raise OSError(22, "Invalid argument")
            super().__init__(connection)

    monkeypatch.setattr(rendezvous, "Wire", Failing)

    def act(rank: int) -> Any:
        if rank == 2:
            strangers = [connected(port)]
            there.set()
            return strangers
        if rank == 1:
            assert there.wait(10)
        team = Team(replace(JOB, rank=rank, local_rank=rank, port=port, seconds=5.0), {})
        team.close()
        return team.world_size

    found = all_fine(together(3, act))
    assert found[:2] == [2, 2]
    assert [connection.fileno() for connection in opened] == [-1] * 3  # closed
    found[2][0].close()


def test_who_did_not_belong_is_counted_where_a_rank_is_missing() -> None:
    port = free_port()
    found = together(2, lambda rank: a_rank(port) if rank else
                     Team(replace(JOB, port=port, seconds=0.5), {}))
    assert "rank 1 of 2 did not come" in str(found[0])
    assert "(1 of those that connected did not belong)" in str(found[0])


@pytest.mark.parametrize("coming", [(), (1,), (None, 1, None), (None, None), (1, None, 2, None)])
def test_only_those_who_did_not_belong_are_counted_where_a_rank_is_missing(
        monkeypatch: pytest.MonkeyPatch, coming: tuple[int | None, ...]) -> None:
    """Of four ranks one is missing at least; those who came are told so."""
    now, left, pending = [0.0], list(coming), list[int]()
    wires = {rank: Recorded() for rank in coming if rank}
    monkeypatch.setattr(rendezvous, "monotonic", lambda: now[0])

    def accepted(server: Any, place: RankContext, until: float, arrivals: Any, unknown: int) -> int:
        pending.append(unknown)
        if not left:
            now[0] = until + 0.1
            return 0
        rank = left.pop(0)
        arrivals.put(None if rank is None else admission.Arrival(
            wires[rank], rank, 4, f"rank {rank}"))  # type: ignore[arg-type]
        return 1

    monkeypatch.setattr(rendezvous, "_accepted", accepted)
    with pytest.raises(RanksError) as caught:
        rendezvous._receive_all(None, replace(JOB, world_size=4))  # type: ignore[arg-type]
    missing = [rank for rank in (1, 2, 3) if rank not in wires]
    strangers = coming.count(None)
    said = f" ({strangers} of those that connected did not belong)" if strangers else ""
    names = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    message = f"{names} of 4 did not come to 127.0.0.1:0 within 10 s{said}"
    assert (str(caught.value), caught.value.speaks) == (message, True)
    assert [(wire.sent, wire.closed) for wire in wires.values()] == [
        ([{"failed": message}], True)] * len(wires)
    assert set(pending) == {0}  # each was seen to before the next one


def test_a_rank_with_another_secret_says_so_itself() -> None:
    port = free_port()
    found = together(2, lambda rank: Team(replace(JOB, rank=rank, local_rank=rank, port=port,
                                                  seconds=0.5, secret=f"secret {rank}"), {}))
    assert "rank 1 (" in str(found[1])
    assert "give all ranks the same RAWNN_JOB_SECRET" in str(found[1])
    assert found[1].speaks


def test_who_listens_in_rank_0s_place_gets_no_rank() -> None:
    """It sends a challenge as rank 0 does, and cannot answer the rank's."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        port = impostor.getsockname()[1]

        def act(rank: int) -> Any:
            if rank == 1:
                return Team(replace(JOB, rank=1, local_rank=1, port=port), {})
            other = Wire(impostor.accept()[0])
            other.send([PROTOCOL, b"0" * 32])
            hello = other.receive(5.0)
            other.send({"proof": hello[5]})  # all that it has seen
            return hello

        found = together(2, act)
    assert "is not rank 0 of this job" in str(found[1])
    assert b"known to two" not in b"".join(x for x in found[0] if isinstance(x, bytes))


class Recorded:
    """A wire of one side of a handshake: what comes are messages that somebody has recorded."""

    def __init__(self, *coming: Any) -> None:
        self.coming, self.sent, self.closed = list(coming), [], False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, seconds: float, most: int) -> Any:
        return self.coming.pop(0)

    def close(self) -> None:
        self.closed = True


def handshake(change: Callable[[list[Any]], list[Any]] = lambda hello: hello
              ) -> tuple[list[Any], list[Any], Any, Any]:
    """Rank 1 and rank 0 of one job: what each sent, and what came of it on either side. `change`
    is made to the rank's answer by somebody between them."""
    to_rank: queue.Queue[Any] = queue.Queue()
    to_zero: queue.Queue[Any] = queue.Queue()

    class Through(Recorded):
        def __init__(self, out: queue.Queue[Any], into: queue.Queue[Any]) -> None:
            super().__init__()
            self.out, self.into = out, into

        def send(self, message: Any) -> None:
            super().send(message)
            self.out.put(message if self.out is to_rank else change(list(message)))

        def receive(self, seconds: float, most: int) -> Any:
            return self.into.get(timeout=5)

    rank, zero = Through(to_zero, to_rank), Through(to_rank, to_zero)
    found = together(2, lambda number: admission.admit(zero, JOB, 5.0) if number == 0  # type: ignore[arg-type]
                     else introduce(rank, replace(JOB, rank=1), "a rank", 5.0))  # type: ignore[arg-type]
    return zero.sent, rank.sent, found[0], found[1]


def test_what_was_recorded_of_a_handshake_admits_nobody() -> None:
    """Neither a rank's answer to another challenge, nor rank 0's; only its own is the proof."""
    of_zero, of_rank, arrival, failure = handshake()
    assert (arrival.rank, arrival.size, arrival.who, failure) == (1, 2, "a rank", None)
    again = Recorded(*of_rank)
    assert admission.admit(again, JOB, 5.0) is None  # type: ignore[arg-type]
    assert again.closed
    assert "does not know the job's secret" in again.sent[1]["failed"]
    with pytest.raises(RanksError, match="is not rank 0 of this job"):
        introduce(Recorded(*of_zero), replace(JOB, rank=1), "a rank", 5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("changed", [
    {1: 0}, {2: 3}, {3: "another"}, {4: b"0" * 32}, {5: b"0" * 32}])
def test_nobody_between_can_change_who_a_rank_is(changed: dict[int, Any]) -> None:
    """Its rank, the number of ranks, its name, its challenge and the proof of them all."""
    _, _, arrival, failure = handshake(
        lambda hello: [changed.get(n, part) for n, part in enumerate(hello)])
    assert arrival is None
    assert "does not know the job's secret" in str(failure)


@pytest.mark.parametrize("coming", [
    [], [["another protocol", 1, 2, "a rank", b"0" * 32, b"0" * 32]],
    [[PROTOCOL, 1, 2, "a rank"]], [[PROTOCOL, "1", 2, "a rank", b"0" * 32, b"0" * 32]],
    [[PROTOCOL, 1, 2.0, "a rank", b"0" * 32, b"0" * 32]],
    [[PROTOCOL, 1, 2, 3, b"0" * 32, b"0" * 32]], [[PROTOCOL, 1, 2, "a rank", "0", b"0" * 32]],
    [[PROTOCOL, 1, 2, "a rank", b"0" * 32, None]], [None]])
def test_what_speaks_otherwise_is_closed_without_an_answer(coming: list[Any]) -> None:
    class Ending(Recorded):
        def receive(self, seconds: float, most: int) -> Any:
            assert most <= 4096
            if not self.coming:
                raise EOFError
            return super().receive(seconds, most)

    stranger = Ending(*coming)
    assert admission.admit(stranger, JOB, 5.0) is None  # type: ignore[arg-type]
    assert stranger.closed
    assert len(stranger.sent) == 1  # the challenge


def test_rank_0_listens_where_the_ranks_meet_and_nowhere_else() -> None:
    with rendezvous._listening(JOB) as door:
        assert door.getsockname()[0] == "127.0.0.1"
    with pytest.raises(RanksError, match=r"rank 0 cannot listen at 203\.0\.113\.7:"):
        rendezvous._listening(replace(JOB, address="203.0.113.7", local_size=1))


def test_a_loopback_that_other_hosts_are_to_reach_is_refused() -> None:
    with pytest.raises(RanksError, match="give MASTER_ADDR as the address of rank 0's host"):
        rendezvous._listening(replace(JOB, address="localhost", local_size=1))


def test_a_message_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with pytest.raises(OSError, match="not supported"):
        Wire(ours)  # TCP alone
    ours.close()
    theirs.close()
    with socket.create_server(("127.0.0.1", 0)) as door:
        sender = Wire(socket.create_connection(door.getsockname()))
        receiver = Wire(door.accept()[0])
        with pytest.raises(RanksError, match="may send 1,000"):
            sender.send(b"x" * 1001)
        sender.send(b"x" * 900)
        with pytest.raises(EOFError):
            receiver.receive(5.0, 500)
        for each in (sender, receiver):
            each.close()


def test_a_wire_that_is_closed_wakes_who_waits_at_either_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        near = Wire(socket.create_connection(door.getsockname()))
        far = Wire(door.accept()[0])
    ended: list[str] = []

    def wait(end: Wire, name: str) -> None:
        with suppress(EOFError):
            end.receive()
        ended.append(name)

    waiting = [threading.Thread(target=wait, args=each, daemon=True)
               for each in ((near, "near"), (far, "far"))]
    for thread in waiting:
        thread.start()
    near.close()
    for thread in waiting:
        thread.join(20)
    assert sorted(ended) == ["far", "near"]
    far.close()


SHOW = "import os; os.write(1, os.environ['RAWNN_JOB_SECRET'].encode() + b'\\n')"
LAUNCH = "import sys; from rawnn.distributed.launcher import run\n" \
         "sys.exit(run(sys.argv[2:], int(sys.argv[1]), print))"


def test_each_launch_has_a_secret_of_its_own_but_for_yours() -> None:
    def secrets(**more: str) -> list[str]:
        environ = {key: value for key, value in os.environ.items() if key != "RAWNN_JOB_SECRET"}
        done = subprocess.run([sys.executable, "-c", LAUNCH, "2", sys.executable, "-c", SHOW],
                              capture_output=True, text=True, timeout=60, check=True,
                              env={**environ, **more})
        return done.stdout.split()

    one, other = secrets(), secrets()
    assert one[0] == one[1] != other[0]
    assert len(one[0]) == 64
    assert secrets(RAWNN_JOB_SECRET="mine") == ["mine", "mine"]


def test_hosts_without_a_secret_are_warned() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "head", "MASTER_PORT": "29500"}
    several, one = rank_from_environment(torchrun), rank_from_environment({**torchrun,
                                                                           "LOCAL_WORLD_SIZE": "4"})
    kept = rank_from_environment({**torchrun, "RAWNN_JOB_SECRET": "known"})
    assert several is not None
    assert one is not None
    assert kept is not None
    assert (several.is_open, one.is_open, kept.is_open) == (True, False, False)
    assert kept.secret == "known"
    assert "known" not in repr(kept)
    assert "RAWNN_JOB_SECRET" in parallel.OPEN_JOB


@pytest.mark.parametrize("failure", [RanksError("refused"), EOFError(), OSError("gone")])
def test_a_connection_to_rank_0_that_comes_to_nothing_is_closed(
        monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    """A rank that is refused gives up; where the connection ends it tries again until its time is
    over, and closes each."""
    now, wires = [0.0], list[Recorded]()

    def wire(connection: Any) -> Recorded:
        wires.append(Recorded())
        return wires[-1]

    def introduce(wire: Any, place: RankContext, who: str, seconds: float) -> None:
        now[0] += 4.0
        raise failure

    monkeypatch.setattr(rendezvous, "monotonic", lambda: now[0])
    monkeypatch.setattr(rendezvous, "sleep", lambda seconds: None)
    monkeypatch.setattr(rendezvous.socket, "create_connection", lambda *given: None)
    monkeypatch.setattr(rendezvous, "Wire", wire)
    monkeypatch.setattr(rendezvous, "introduce", introduce)
    with pytest.raises(RanksError) as caught:
        rendezvous._reach(replace(JOB, rank=1), "a rank")
    is_refused = isinstance(failure, RanksError)
    assert len(wires) == (1 if is_refused else 3)  # within ten seconds
    assert all(each.closed for each in wires)
    assert str(caught.value).startswith("refused" if is_refused else "rank 0 did not come to")
