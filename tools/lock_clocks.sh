#!/usr/bin/env bash
# Locks a GPU's graphics and memory clocks, runs a command, restores the clocks whatever happens.
# docs/clocks.md explains the choice of clock, the exported variables and the exit statuses.
# By nvidia-smi, not NVML: root runs this around any command, on hosts whose root has no Python
# environment; the driver brings nvidia-smi along.

set -u

readonly PROGRAM=${0##*/}
readonly ORIGINAL_ARGUMENTS=("$@")
# The command did not run, or ran well but the clocks could not be restored (as env and timeout do).
readonly EXIT_TOOL=125
readonly EXIT_USAGE=2
# Where the GPU names no default clock below its maximum: this share of the maximum (see docs).
readonly SUSTAINED_PERCENT=80
readonly RETRY_PAUSE_S=0.5

gpu=0 sm='' mem='' no_lock='' dry_run=''
graphics_touched='' memory_touched=''
starting='' pending='' child='' own_group='' caught='' sentinel='' sentinel_fd=''
smi_output=''

say() { printf '%s: %s\n' "$PROGRAM" "$*" >&2; }

# die STATUS LINE...: one message, its further lines indented.
die() {
  local status=$1 line
  shift
  say "$1"
  shift
  for line in "$@"; do printf '    %s\n' "$line" >&2; done
  exit "$status"
}

usage() {
  cat <<TEXT
usage: $PROGRAM [--gpu N] [--sm MHz] [--mem MHz|none] [--no-lock] [--dry-run] [--] COMMAND...

Locks the clocks of an NVIDIA GPU, runs COMMAND, and restores the clocks when it ends.

  --gpu N      index of the GPU as nvidia-smi counts (default 0)
  --sm MHz     graphics clock to lock (default: one that the GPU holds under sustained load)
  --mem MHz    memory clock to lock (default: the GPU's default, else its highest)
  --mem none   leave the memory clock alone
  --no-lock    lock nothing, only show the clocks before and after COMMAND
  --dry-run    print what would be run, change nothing
  --help       this text

Exit status: COMMAND's; 128+n after signal n; 2 for a wrong option; $EXIT_TOOL when the clocks could
not be locked (COMMAND was not run) or could not be restored after a COMMAND that succeeded.
TEXT
}

usage_error() {
  say "$1"
  usage >&2
  exit "$EXIT_USAGE"
}

is_number() { [[ $1 =~ ^[0-9]{1,6}$ ]]; }

quoted() {
  local text
  printf -v text '%q ' "$@"
  printf '%s' "${text% }"
}

without_locking() { printf 'or go on without locking: %s --no-lock %s' "$0" "$(quoted "${command[@]}")"; }

# ---- options ---------------------------------------------------------------------------------

number_option() {
  is_number "$2" || usage_error "$1 needs a whole number, got '$2'"
  printf -v "$3" '%d' "$((10#$2))"
}

set_option() {
  case $1 in
    --gpu) number_option "$1" "$2" gpu ;;
    --sm) number_option "$1" "$2" sm ;;
    --mem) if [[ $2 == none ]]; then mem=none; else number_option "$1" "$2" mem; fi ;;
  esac
}

parse_arguments() {
  while (($#)); do
    case $1 in
      --help | -h) usage; exit 0 ;;
      --no-lock) no_lock=1 ;;
      --dry-run) dry_run=1 ;;
      --gpu | --sm | --mem)
        (($# > 1)) || usage_error "$1 needs a value"
        set_option "$1" "$2"
        shift
        ;;
      --gpu=* | --sm=* | --mem=*) set_option "${1%%=*}" "${1#*=}" ;;
      --) shift; break ;;
      -*) usage_error "unknown option '$1'" ;;
      *) break ;;
    esac
    shift
  done
  (($#)) || usage_error "no command given"
  command=("$@")
  type -P -- "$1" >/dev/null || die 127 "command not found: $1"
}

# ---- nvidia-smi ------------------------------------------------------------------------------

# Runs nvidia-smi on the GPU; all it printed goes to smi_output. It ends 0 after some refusals
# ("... is not supported ... Treating as warning and moving on."), so the text counts as well.
smi() {
  smi_output=$(nvidia-smi -i "$gpu" "$@" 2>&1 </dev/null) || return 1
  ! grep -qiE 'not supported|permission|treating as warning|unable to|failed|unknown error' \
    <<<"$smi_output"
}

# One property of the GPU on stdout; empty when the GPU or this driver does not tell.
property() {
  local value
  value=$(nvidia-smi -i "$gpu" --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null \
    </dev/null) || return 0
  [[ $value == *'['* || $value == *N/A* ]] || printf '%s' "$value"
}

clock_property() {
  local value
  value=$(property "$1")
  if is_number "$value"; then printf '%d' "$((10#$value))"; fi
}

require_gpu() {
  local mig
  command -v nvidia-smi >/dev/null || die "$EXIT_TOOL" \
    "nvidia-smi is not on PATH, so the clocks cannot be locked" \
    "install the NVIDIA driver's tools or put nvidia-smi's folder on PATH," "$(without_locking)"
  smi --query-gpu=name --format=csv,noheader || die "$EXIT_TOOL" \
    "nvidia-smi finds no usable GPU $gpu: ${smi_output//$'\n'/ }" \
    "choose one that 'nvidia-smi -L' lists, with --gpu N," "$(without_locking)"
  mig=$(property mig.mode.current)
  [[ $mig != Enabled ]] || die "$EXIT_TOOL" \
    "GPU $gpu is in MIG mode, where its clocks cannot be locked" \
    "leave MIG mode (nvidia-smi -i $gpu -mig 0, as root, the GPU idle)," "$(without_locking)"
}

# ---- choice of clocks ------------------------------------------------------------------------

# at_most LIMIT VALUE...: the highest value not above LIMIT, or the lowest of all.
at_most() {
  local limit=$1 best='' lowest=$2 value
  shift
  for value in "$@"; do
    if ((value < lowest)); then lowest=$value; fi
    if ((value <= limit && value > ${best:-0})); then best=$value; fi
  done
  printf '%d' "${best:-$lowest}"
}

# nearest WANTED VALUE...: the value closest to WANTED, the lower one of two equally close.
nearest() {
  local wanted=$1 best=$2 value gap best_gap
  shift
  for value in "$@"; do
    gap=$((value > wanted ? value - wanted : wanted - value))
    best_gap=$((best > wanted ? best - wanted : wanted - best))
    if ((gap < best_gap || (gap == best_gap && value < best))); then best=$value; fi
  done
  printf '%d' "$best"
}

contains() {
  local wanted=$1 value
  shift
  for value in "$@"; do [[ $value == "$wanted" ]] && return 0; done
  return 1
}

# Sets sm and mem to supported clocks: those asked for, or the defaults. mem=none stays.
choose_clocks() {
  local memory_clock graphics_clock maximum default list_memory
  local -a pairs=() memory_clocks=() graphics_clocks=()
  smi --query-supported-clocks=memory,graphics --format=csv,noheader,nounits || smi_output=''
  while IFS=', ' read -r memory_clock graphics_clock _; do
    if ! is_number "$memory_clock" || ! is_number "$graphics_clock"; then continue; fi
    pairs+=("$memory_clock $graphics_clock")
    contains "$memory_clock" "${memory_clocks[@]}" || memory_clocks+=("$memory_clock")
  done <<<"$smi_output"
  ((${#pairs[@]})) || die "$EXIT_TOOL" \
    "GPU $gpu does not list its supported clocks, so none can be chosen to lock" \
    "use a GPU whose clocks 'nvidia-smi -i $gpu -q -d SUPPORTED_CLOCKS' lists," "$(without_locking)"

  default=$(clock_property clocks.default_applications.memory)
  if [[ -n $default ]] && contains "$default" "${memory_clocks[@]}"; then
    list_memory=$default
  else
    list_memory=$(at_most 999999 "${memory_clocks[@]}")
  fi
  if [[ -z $mem ]]; then
    mem=$list_memory
  elif [[ $mem != none ]]; then
    contains "$mem" "${memory_clocks[@]}" || die "$EXIT_TOOL" \
      "GPU $gpu does not support a memory clock of $mem MHz" \
      "the nearest supported one: --mem $(nearest "$mem" "${memory_clocks[@]}")"
    list_memory=$mem
  fi

  # Which graphics clocks there are depends on the memory clock.
  for memory_clock in "${pairs[@]}"; do
    [[ ${memory_clock% *} == "$list_memory" ]] && graphics_clocks+=("${memory_clock#* }")
  done
  if [[ -n $sm ]]; then
    contains "$sm" "${graphics_clocks[@]}" || die "$EXIT_TOOL" \
      "GPU $gpu does not support a graphics clock of $sm MHz (memory at $list_memory MHz)" \
      "the nearest supported one: --sm $(nearest "$sm" "${graphics_clocks[@]}")"
    return
  fi
  maximum=$(clock_property clocks.max.sm)
  [[ -n $maximum ]] || maximum=$(at_most 999999 "${graphics_clocks[@]}")
  default=$(clock_property clocks.default_applications.graphics)
  # Some GPUs name their maximum boost as the default; that one is not sustained.
  if [[ -n $default ]] && ((default < maximum)); then
    sm=$(at_most "$default" "${graphics_clocks[@]}")
  else
    sm=$(at_most $((maximum * SUSTAINED_PERCENT / 100)) "${graphics_clocks[@]}")
  fi
}

# ---- lock and restore ------------------------------------------------------------------------

explain_refusal() {
  local what=$1 flag=$2 cure
  local -a cures=()
  if grep -qiE 'permission|root|administrator' <<<"$smi_output"; then
    # sudo replaces PATH even with -E, and the command may be in a virtual environment.
    die "$EXIT_TOOL" "no permission to lock the $what clock of GPU $gpu (nvidia-smi $flag needs root)" \
      "run it as root: sudo -E env \"PATH=\$PATH\" $(quoted "$0" "${ORIGINAL_ARGUMENTS[@]}")" \
      "$(without_locking)"
  fi
  cure="nvidia-smi said: ${smi_output//$'\n'/ }"
  [[ $flag == -lmc ]] && cures=("lock the graphics clock only: add --mem none,")
  if grep -qi 'not supported' <<<"$smi_output"; then
    die "$EXIT_TOOL" "GPU $gpu does not support locking its $what clock (nvidia-smi $flag)" \
      "$cure" "${cures[@]}" "$(without_locking)"
  fi
  die "$EXIT_TOOL" "nvidia-smi $flag could not lock the $what clock of GPU $gpu" \
    "$cure" "${cures[@]}" "$(without_locking)"
}

lock_clocks() {
  if [[ $(property persistence_mode) == Disabled ]]; then
    say "persistence mode is off: the lock is lost whenever nothing uses GPU $gpu;" \
      "turn it on first: sudo nvidia-smi -i $gpu -pm 1"
  fi
  # Marked before the call: a signal in the middle of it must restore too.
  graphics_touched=1
  if ! smi -lgc "$sm,$sm"; then
    graphics_touched=''
    explain_refusal graphics -lgc
  fi
  [[ $mem != none ]] || return 0
  memory_touched=1
  if ! smi -lmc "$mem,$mem"; then
    memory_touched=''
    explain_refusal memory -lmc # leaves through the EXIT trap, which restores the graphics clock
  fi
}

restore_one() {
  smi "$1" && return 0
  sleep "$RETRY_PAUSE_S"
  smi "$1" && return 0
  say "THE $2 CLOCK OF GPU $gpu IS STILL LOCKED: ${smi_output//$'\n'/ }"
  printf '    restore it by hand: sudo nvidia-smi -i %s %s\n' "$gpu" "$1" >&2
  return 1
}

# Runs on every exit. The exit status stays, unless it was 0 and a clock is still locked.
restore_clocks() {
  local status=$? failed=''
  # Ignored by nvidia-smi as well: a second Ctrl-C must not kill the call that restores.
  trap '' INT TERM HUP QUIT PIPE
  trap - EXIT
  if [[ -n $memory_touched ]]; then restore_one -rmc MEMORY || failed=1; fi
  if [[ -n $graphics_touched ]]; then restore_one -rgc GRAPHICS || failed=1; fi
  if [[ -n $failed ]] && ((status == 0)); then status=$EXIT_TOOL; fi
  exit "$status"
}

# ---- the command and its signals -------------------------------------------------------------

# True when this script is in the foreground of a terminal: the command then stays in its process
# group, so that it can read the terminal, and Ctrl-C and Ctrl-Z reach it from the terminal.
in_foreground() {
  local stat process_group terminal_group
  stat=$(</proc/$$/stat) || return 1
  read -r _ _ process_group _ _ terminal_group _ <<<"${stat##*) }"
  [[ $process_group == "$terminal_group" ]]
}

# A process that dies of any signal sent to our whole process group. It tells a Ctrl-C, which the
# command got from the terminal, from a signal sent to this script alone, to be passed on.
post_sentinel() {
  [[ -z $sentinel_fd ]] || exec {sentinel_fd}>&-
  exec {sentinel_fd}> >(trap - INT QUIT; exec cat >/dev/null)
  sentinel=$!
}

forward() {
  if [[ -n $own_group ]]; then
    # The group exists only once setsid has run.
    kill -s "$1" -- "-$child" 2>/dev/null || kill -s "$1" "$child" 2>/dev/null
    return
  fi
  for _ in {1..10}; do
    if ! kill -0 "$sentinel" 2>/dev/null; then
      post_sentinel
      return
    fi
    sleep 0.01
  done
  kill -s "$1" "$child" 2>/dev/null
}

on_signal() {
  [[ -n $caught ]] || caught=$2
  if [[ -n $child ]]; then
    forward "$1"
  elif [[ -n $starting ]]; then
    pending=$1 # run_command passes it on once it knows the command's process id
  else
    exit $((128 + caught)) # before the command: leave, restoring
  fi
}

run_command() {
  local status
  local -a start=()
  if in_foreground; then
    post_sentinel
  else
    own_group=1
    start=(setsid)
  fi
  starting=1
  # A shell may give a background command /dev/null for stdin and make it ignore Ctrl-C (POSIX);
  # both are ruled out here.
  (
    trap - INT QUIT
    [[ -z $sentinel_fd ]] || exec {sentinel_fd}>&-
    exec "${start[@]}" "${command[@]}"
  ) <&0 &
  child=$!
  if [[ -n $pending ]]; then forward "$pending"; fi
  # A trapped signal ends `wait` early, the command still running.
  while :; do
    wait "$child"
    status=$?
    if [[ -z $caught ]] || ! kill -0 "$child" 2>/dev/null; then break; fi
  done
  if [[ -n $caught ]]; then return $((128 + caught)); fi
  return "$status"
}

observe() {
  local clocks
  if command -v nvidia-smi >/dev/null && clocks=$(property clocks.sm,clocks.mem) \
    && [[ -n $clocks ]]; then
    say "clocks of GPU $gpu $1 the command (graphics, memory, MHz): $clocks"
  fi
}

print_plan() {
  if [[ -n $no_lock ]]; then
    printf 'RAWNN_CLOCKS=observed %s\n' "$(quoted "${command[@]}")"
    return
  fi
  local variables="RAWNN_CLOCKS=locked RAWNN_LOCKED_GPU=$gpu RAWNN_LOCKED_SM_MHZ=$sm"
  printf 'nvidia-smi -i %s -lgc %s,%s\n' "$gpu" "$sm" "$sm"
  if [[ $mem != none ]]; then
    printf 'nvidia-smi -i %s -lmc %s,%s\n' "$gpu" "$mem" "$mem"
    variables+=" RAWNN_LOCKED_MEM_MHZ=$mem"
  fi
  printf '%s %s\n' "$variables" "$(quoted "${command[@]}")"
  if [[ $mem != none ]]; then printf 'nvidia-smi -i %s -rmc\n' "$gpu"; fi
  printf 'nvidia-smi -i %s -rgc\n' "$gpu"
}

main() {
  local status
  parse_arguments "$@"
  # An inner lock would, on leaving, undo the outer one in the middle of its run.
  if [[ -z $no_lock && ${RAWNN_CLOCKS-} == locked && ${RAWNN_LOCKED_GPU-} == "$gpu" ]]; then
    die "$EXIT_TOOL" "GPU $gpu is already locked by the $PROGRAM this runs under (RAWNN_LOCKED_GPU)" \
      "$(without_locking)"
  fi
  unset RAWNN_CLOCKS RAWNN_LOCKED_GPU RAWNN_LOCKED_SM_MHZ RAWNN_LOCKED_MEM_MHZ
  if [[ -z $no_lock ]]; then
    require_gpu
    choose_clocks
  elif [[ -n $sm$mem ]]; then
    say "--sm and --mem have no effect with --no-lock"
  fi
  if [[ -n $dry_run ]]; then
    print_plan
    return
  fi

  trap 'on_signal INT 2' INT
  trap 'on_signal TERM 15' TERM
  trap 'on_signal HUP 1' HUP
  trap 'on_signal QUIT 3' QUIT
  # A message to a closed pipe must not end this script; unlike '', `:` is not inherited.
  trap : PIPE
  trap restore_clocks EXIT
  if [[ -n $no_lock ]]; then
    export RAWNN_CLOCKS=observed
    observe before
    run_command
    status=$?
    observe after
    exit "$status"
  fi
  lock_clocks
  export RAWNN_CLOCKS=locked RAWNN_LOCKED_GPU=$gpu RAWNN_LOCKED_SM_MHZ=$sm
  if [[ $mem != none ]]; then export RAWNN_LOCKED_MEM_MHZ=$mem; fi
  if [[ $mem == none ]]; then
    say "GPU $gpu locked: graphics $sm MHz, memory left alone"
  else
    say "GPU $gpu locked: graphics $sm MHz, memory $mem MHz"
  fi
  run_command
}

main "$@"
