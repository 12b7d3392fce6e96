"""Authentication of ranks: a rank and rank 0 prove to each other that they know the job's secret.

Each answers the other's random challenge with an HMAC-SHA256 (RFC 2104) keyed by the secret, which
itself is never sent. The answers differ by role, so that neither can be reflected. The secret keeps
strangers out; messages between ranks are not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from rawnn.common.errors import RanksError
from rawnn.distributed.rank_context import SECRET, RankContext
from rawnn.distributed.wire import Wire

PROTOCOL = "rawnn ranks 2"
MAX_BYTES = 4096
"""The largest message that is read before a connection is authenticated."""
SECONDS = 5.0
"""Time limit for a connection to authenticate itself."""


@dataclass(frozen=True)
class Arrival:
    """An authenticated process: its rank of `size`, and its host and process in words."""

    wire: Wire
    rank: int
    size: int
    who: str


def _proof(secret: str, role: str, mine: bytes, theirs: bytes, more: Any = None) -> bytes:
    message = msgspec.msgpack.encode([PROTOCOL, role, mine, theirs, more])
    return hmac.new(secret.encode(), message, hashlib.sha256).digest()


def admit(wire: Wire, place: RankContext, seconds: float) -> Arrival | None:
    """Rank 0's side: authenticate a new connection. None for a stranger, whose connection is
    closed."""
    challenge = secrets.token_bytes(32)
    try:
        wire.send([PROTOCOL, challenge])
        protocol, rank, size, who, theirs, proof = wire.receive(min(seconds, SECONDS), MAX_BYTES)
        fits = protocol == PROTOCOL and type(rank) is int and type(size) is int \
            and isinstance(who, str) and isinstance(theirs, bytes) and isinstance(proof, bytes)
        if fits and hmac.compare_digest(proof, _proof(place.secret, "rank", challenge, theirs,
                                                      [rank, size, who])):
            wire.send({"proof": _proof(place.secret, "rank 0", theirs, challenge)})
            return Arrival(wire, rank, size, who)
        if fits:
            wire.send({"failed": f"rank {rank} ({who}) does not know the job's secret as rank 0 "
                                 f"does: give all ranks the same {SECRET}"})
    except (OSError, EOFError, TypeError, ValueError):
        pass
    with suppress(OSError):
        wire.close()
    return None


def introduce(wire: Wire, place: RankContext, who: str, seconds: float) -> None:
    """The other ranks' side: authenticate to rank 0. Raises RanksError if rank 0 refuses, or cannot
    prove that it belongs to this job; OSError and EOFError if the connection ends."""
    theirs, mine = _challenge(wire.receive(seconds, MAX_BYTES)), secrets.token_bytes(32)
    wire.send([PROTOCOL, place.rank, place.world_size, who, mine,
               _proof(place.secret, "rank", theirs, mine, [place.rank, place.world_size, who])])
    answer = wire.receive(seconds, MAX_BYTES)
    if isinstance(answer, dict) and isinstance(answer.get("failed"), str):
        raise RanksError(answer["failed"])
    proof = answer.get("proof") if isinstance(answer, dict) else None
    if not isinstance(proof, bytes) or not hmac.compare_digest(
            proof, _proof(place.secret, "rank 0", mine, theirs)):
        raise RanksError(f"what listens at {place.address}:{place.port} is not rank 0 of this job: "
                         f"it does not know the secret ({SECRET})")


def _challenge(message: Any) -> bytes:
    if not (isinstance(message, list) and len(message) == 2 and message[0] == PROTOCOL
            and isinstance(message[1], bytes)):
        raise EOFError  # another program listens there for now
    found: bytes = message[1]
    return found
