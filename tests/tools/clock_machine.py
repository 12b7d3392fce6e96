"""A fake nvidia-smi that records its calls and fails on demand, and a way to run lock_clocks.sh."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "lock_clocks.sh"
BASH = shutil.which("bash") or "bash"
DEADLINE_S = 50.0  # a busy machine takes its time; what is waited for sleeps for longer

# Records each call. FAKE_FAIL lists refusals, separated by ';': "option=status=text" refuses the
# first call with that option, "*option=status=text" every one. FAKE_SLOW names a slow option.
FAKE = r"""#!/usr/bin/env bash
printf '%s\n' "$*" >>"$FAKE_DIR/calls"
IFS=';' read -ra rules <<<"${FAKE_FAIL-}"
for index in "${!rules[@]}"; do
  rule=${rules[index]}
  lasting=''
  [[ $rule == \** ]] && lasting=1 rule=${rule#\*}
  IFS='=' read -r option status text <<<"$rule"
  if [[ " $* " == *" $option"* && ( $lasting || ! -e $FAKE_DIR/failed.$index ) ]]; then
    : >"$FAKE_DIR/failed.$index"
    printf '%s\n' "$text"
    exit "$status"
  fi
done
[[ -z ${FAKE_SLOW-} || " $* " != *" $FAKE_SLOW "* ]] || { : >"$FAKE_DIR/slow"; sleep 0.4; }
if [[ $1 == -i && $2 != 0 ]]; then echo 'No devices were found'; exit 6; fi
case "$*" in
  *--query-supported-clocks=*) printf '%b' "$FAKE_SUPPORTED" ;;
  *--query-gpu=name*) echo 'NVIDIA Test GPU' ;;
  *--query-gpu=mig.mode.current*) echo "${FAKE_MIG-Disabled}" ;;
  *--query-gpu=persistence_mode*) echo "${FAKE_PERSISTENCE-Enabled}" ;;
  *--query-gpu=clocks.max.sm*) echo "${FAKE_MAX-2000}" ;;
  *--query-gpu=clocks.default_applications.graphics*) echo "${FAKE_DEFAULT-[N/A]}" ;;
  *--query-gpu=clocks.default_applications.memory*) echo "${FAKE_DEFAULT_MEM-[N/A]}" ;;
  *--query-gpu=clocks.sm,clocks.mem*) echo '345, 405' ;;
  *-lgc* | *-lmc* | *-rgc* | *-rmc*) echo 'All done.' ;;
  *) echo "unexpected: $*"; exit 2 ;;
esac
"""
SUPPORTED = "".join(
    rf"{memory}, {graphics}\n"
    for memory, graphics in [(5000, 2000), (5000, 1605), (5000, 1590), (5000, 1200), (405, 600)]
)
LOCK = ["-i 0 -lgc 1590,1590", "-i 0 -lmc 5000,5000"]
RESTORE = ["-i 0 -rmc", "-i 0 -rgc"]
NO_PERMISSION = (
    "The current user does not have permission to change clocks for GPU 00000000:01:00.0."
)


@dataclass
class Machine:
    """A folder with the fake nvidia-smi, and the environment in which the script runs."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str | Path, **env: str) -> subprocess.Popen[str]:
        # A test run started in the background ignores SIGINT; its children must not.
        return subprocess.Popen(
            [BASH, str(SCRIPT), *map(str, arguments)],
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,  # a signal to its group must not reach the tests
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(
        self, *arguments: str | Path, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **env)
        out, err = process.communicate(stdin, timeout=DEADLINE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def changes(self) -> list[str]:
        """The calls that change clocks, with "run" where the command ran."""
        log = self.folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if "--query" not in line]

    def wait_for(self, name: str) -> Path:
        path = self.folder / name
        end = time.monotonic() + DEADLINE_S
        while not path.exists():
            assert time.monotonic() < end, f"{name} never appeared"
            time.sleep(0.01)
        return path

    def command(self, body: str) -> list[str]:
        """A command that notes that it ran, then does `body` in bash."""
        return [BASH, "-c", f'echo run >>"$FAKE_DIR/calls"; {body}']
