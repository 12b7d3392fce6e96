"""Presets: named sets of toggles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rawnn.common.errors import ConfigError
from rawnn.model.layers import Network
from rawnn.opts.best_table import Entry, conditions_of, exact
from rawnn.opts.cublas_payoff import evaluate_cublas
from rawnn.opts.persistent_payoff import Verdict, default_data_spec, evaluate_payoff
from rawnn.opts.precision_gain import compare_more_bits
from rawnn.opts.registry import TOGGLES, Machine
from rawnn.opts.user_kernel_toggles import why_not_persistent
from rawnn.plan.recipe import DataSpec, Recipe
from rawnn.ptx.fused.linear import MAX_FUSED_CLASSES

Values = dict[str, str | int | None]

PRESETS = ("none", "seed", "best")

MAX_UNROLLED_NODES = 20_000
"""Nodes up to which `best` unrolls the whole epoch. Building and instantiating costs about 35 us a
node once, which a longer graph does not save in twenty epochs."""
UNROLLED_STEPS = 200
"""Steps that `best` unrolls of a longer epoch."""
UNROLLED_NODES = 8_000
"""Nodes beyond which `best` unrolls fewer steps: they run for at least 4 ms (0.5 us each on an
H200), of which the 3 us between two launches are negligible."""


@dataclass(frozen=True)
class Setting:
    """What a preset decides by: the network, examples per step, steps per epoch and the machine;
    also the recipe and the data spec, if known."""

    network: Network
    batch: int
    steps: int
    machine: Machine
    recipe: Recipe | None = None
    data_spec: DataSpec | None = None


def none() -> Values:
    """The baseline: one kernel per op, batches from the host, memory allocated at each use."""
    return {}


def start(machine: Machine) -> Values:
    """What a list of toggles starts from that begins with no preset: data and buffers are on the
    device before the clock starts."""
    return {"preload": None, "arena": None} if machine.has_gpu else {"preload": None}


def seed() -> Values:
    """The report's last rung. Data and buffers are on the GPU before training starts."""
    return {"preload": None, "arena": None, "nosync": None, "cublas": None, "report": 10,
            "fuse": None, "cudnn": None, "streams": None, "graphs": "auto"}


def resolve(name: str, setting: Setting, precision: str = "",
            user_kernels: list[str] | None = None) -> tuple[Values, list[str]]:
    """The toggles of a preset, and sentences on its decisions. `precision` is asked for in
    addition; `user_kernels` are the user's kernels."""
    if name == "best":
        return best(setting, precision, user_kernels or [])
    return (seed() if name == "seed" else none()), []


def best(setting: Setting, precision: str = "",
         user_kernels: Sequence[str] = ()) -> tuple[Values, list[str]]:
    """What is fastest for this network in this precision on this machine, and sentences that say
    why: as measured on a GPU of the same name, else by rule. It never changes the precision."""
    machine = setting.machine
    if not machine.has_gpu:
        return {"preload": None, "fuse": None}, []
    values: Values = {"preload": None, "arena": None, "nosync": None}
    entry, notes = _lookup(setting, precision)
    taken, why = from_table(entry, machine) if entry else (None, [])
    notes += why
    ruled = taken is None
    if taken is None:
        taken, why = by_rule(setting, precision)
        notes += why
    if user_kernels:
        verdict = Verdict(False, f"best goes without persistent: "
                                 f"{why_not_persistent(list(user_kernels))}")
        notes.append(verdict.why)
    else:
        verdict, why = _payoff(setting, precision)
        notes += why
    if verdict.taken:
        values["persistent"] = TOGGLES["persistent"].parse(None)
    elif ruled and precision and "mma" in taken:
        faster, why_cublas = _cublas(setting, precision, user_kernels)
        taken |= {"cublas": "auto"} if faster else {}
        notes += [why_cublas] if why_cublas else []
    values |= taken
    if TOGGLES["graphs"].needs(machine) is None:
        nodes = _nodes(setting, values, bool(user_kernels))
        whole = verdict.taken or nodes * setting.steps <= MAX_UNROLLED_NODES
        values["graphs"] = "epoch" if whole \
            else max(min(UNROLLED_NODES // nodes, UNROLLED_STEPS), 1)
    else:
        notes.append(f"best goes without graphs: {TOGGLES['graphs'].needs(machine)}")
    return values, notes


def _payoff(setting: Setting, precision: str) -> tuple[Verdict, list[str]]:
    """Whether persistent is taken, and sentences on it and on precisions that are faster."""
    # Without a recipe the number of steps is unknown.
    if setting.recipe is None or setting.recipe.world_size > 1:
        return Verdict(False), []
    network, recipe, machine = setting.network, setting.recipe, setting.machine
    data_spec = setting.data_spec or default_data_spec(network, setting.batch * setting.steps)

    def launch_us(precision: str) -> float | None:
        entry, _ = _lookup(setting, precision)
        return entry.us if entry and from_table(entry, machine)[0] is not None else None

    verdict = evaluate_payoff(network, recipe, data_spec, precision, machine, launch_us(precision))
    verdict, faster = compare_more_bits(verdict, network, recipe, data_spec, precision, machine,
                                        launch_us)
    return verdict, [*([verdict.why] if verdict.why else []), *faster]


def _cublas(setting: Setting, precision: str, user_kernels: Sequence[str]) -> tuple[bool, str]:
    """Whether cuBLASLt computes some of the GEMMs, and a sentence on it."""
    recipe = setting.recipe or Recipe(setting.batch)
    examples = setting.batch * setting.steps
    data_spec = setting.data_spec or default_data_spec(setting.network, examples)
    steps = recipe.updates(data_spec.examples) * recipe.epochs if setting.recipe else None
    return evaluate_cublas(setting.network, recipe, data_spec, precision, setting.machine,
                           user_kernels, steps)


def _lookup(setting: Setting, precision: str) -> tuple[Entry | None, list[str]]:
    """The table's entry of exactly this network and step; None if there is none."""
    conditions = conditions_of(setting.network, setting.recipe, setting.data_spec)
    try:
        return exact(setting.machine.name, setting.network.layers, setting.batch, precision,
                     conditions), []
    except ConfigError as error:
        return None, [f"best goes by rule: {error}"]


def from_table(entry: Entry, machine: Machine) -> tuple[Values | None, list[str]]:
    """The toggles of an entry of the table, None if one of them cannot run here; and why."""
    sizes = f"{'-'.join(map(str, entry.layers))} at batch {entry.batch}"
    taken: Values = {}
    for word in filter(None, entry.toggles.split(",")):
        name, _, value = word.partition("=")
        try:
            toggle = TOGGLES[name]
            taken[name] = toggle.parse(value if "=" in word else None)
            reason = toggle.needs(machine)
        except (KeyError, ConfigError):
            reason = "is unknown to this version"
        if reason:
            return None, [f"best goes by rule: {word}, which was fastest for {sizes}, cannot run "
                          f"here: it {reason}"]
    slower = min(entry.others.items(), key=lambda pair: pair[1], default=None)
    beside = f", {slower[0].replace(',', ' + ') or 'without them'} {slower[1]:.1f}" \
        if slower else ""
    words = entry.toggles.replace(",", ", ") or "no further toggle"
    return taken, [f"best takes {words}: measured on {entry.gpu} for {sizes}: "
                   f"{entry.us:.1f} us a step{beside}"]


def by_rule(setting: Setting, precision: str) -> tuple[Values, list[str]]:
    """The toggles that are fastest in most networks, for networks without a measurement."""
    machine, network = setting.machine, setting.network
    values: Values = {"fuse": None}
    notes = []

    def refused(name: str) -> str | None:
        numeric = precision.partition("=")[0]
        return TOGGLES[name].needs(machine) or (
            TOGGLES[numeric].beside((name,), machine) if numeric else None)

    if refused("mma") is None:
        values["mma"] = TOGGLES["mma"].parse(None)
        notes.append("best takes mma: its GEMMs include bias, activation and update" +
                     ("" if precision else "; in float32 each is three of tf32"))
        if TOGGLES["pdl"].needs(machine) is None:
            values["pdl"] = None
    elif precision == "fp8":
        values["tiled"] = None
        notes.append(f"best takes tiled for this precision: {refused('mma')}")
    elif _is_linear(network):
        notes.append("best leaves cublas and cudnn out: the fused two-kernel step of a one-layer "
                     "network is faster than any library call between kernels")
    else:
        notes.append("best leaves cudnn out: softmax fused with loss and gradient saves a kernel")
        reason = refused("cublas")
        if reason is None:
            values["cublas"] = None
        else:
            notes.append(f"best goes without cublas, which would be faster: {reason}")
    if TOGGLES["graphs"].needs(machine) is None:
        values["streams"] = None
    return values, notes


def _is_linear(network: Network) -> bool:
    """Whether `fuse` turns the whole step into two kernels."""
    return network.depth == 1 and network.layers[-1] <= MAX_FUSED_CLASSES


def _nodes(setting: Setting, values: Values, user_kernels: bool) -> int:
    """An estimate of the nodes of a step."""
    linear = _is_linear(setting.network) and "fuse" in values and "cublas" not in values \
        and not user_kernels
    return 2 if linear else 6 * setting.network.depth + 4
