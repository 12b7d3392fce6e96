"""One measured run, as one rank of as many as a launcher started:
`python -m rawnn.bench.ranked rawnn|torch REQUEST.json`. Rank 0 writes what was measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from rawnn.common.errors import RawnnError
from rawnn.common.files import write_atomically
from rawnn.engine.config import Config

WARM = 0.5
"""The part of the epochs that is left out at the start."""


class Request(msgspec.Struct, frozen=True):
    """What is to be run: options of a Config, and the file for the answer."""

    options: dict[str, Any]
    answer: str
    synthetic: bool = False


class Answer(msgspec.Struct, frozen=True):
    """Microseconds a step of each epoch behind the warm ones; of ours the toggles, the loss of
    every report, and who took part."""

    step_us: list[float]
    losses: list[float] = []
    toggles: str = ""
    ranks: list[dict[str, str]] = []
    libraries: dict[str, str] = {}
    gpu: dict[str, Any] | None = None
    note: str = ""


def ours(request: Request) -> Answer | None:
    """Train as `rawnn train` does; None on other ranks than the first."""
    from rawnn.engine.parallel import join
    from rawnn.engine.session import Session

    config = Config(**request.options)
    team = join(config)
    with Session(config, team=team, stand_in=request.synthetic) as session:
        result = session.run()
    if team is not None and team.rank:
        return None
    steps, later = session.prepared.updates, result.epoch_ms[int(len(result.epoch_ms) * WARM):]
    return Answer([1e3 * ms / steps for ms in later], [r.train_loss for r in result.history],
                  str(session.selection), result.facts.get("ranks", []),
                  result.environment.libraries, result.environment.gpu)


def main() -> int:
    """Run, and write the answer; the exit status."""
    system, path = sys.argv[1:]
    request = msgspec.json.decode(Path(path).read_bytes(), type=Request)

    def store(found: Answer) -> None:
        write_atomically(request.answer, msgspec.json.encode(found))

    try:
        if system == "torch":
            from rawnn.bench.peers.ddp import leave, measure

            measure(request, store)
            if request.options.get("device") != "host":
                leave(0)
        elif found := ours(request):
            store(found)
    except RawnnError as error:
        if error.speaks:
            print(f"rawnn: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
