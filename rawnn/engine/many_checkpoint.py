"""Checkpoints of many networks: one safetensors file, each tensor [N, ...] over the members of a
group of networks that are shaped alike.

`group0.fc1.weight` is [N, outputs, inputs], optimizer state and clocks stand under
`group0.state.`, the best parameters of early stopping under `group0.best.` with their members in
`group0.best_members`. A member of the file is an ordinary Checkpoint, which a path names by its
number behind "#": runs/a#17.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from rawnn.common.errors import CheckpointError, ConfigError, RawnnError
from rawnn.common.files import write_atomically
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.engine import checkpoint
from rawnn.engine.checkpoint import Arrays, Checkpoint, Lineage, Notify, compact_json
from rawnn.engine.machine import devices_of
from rawnn.model.layers import Network
from rawnn.opts.launch_sharding import LAUNCHES
from rawnn.version import __version__

FORMAT = 1
"""The newest version of the layout that this rawnn reads; the one it writes."""

_MEMBER = re.compile(r"(.+)#([0-9]{1,9})")
_RUN = ("epoch", "status", "rung", "best", "best_epoch", "waited", "history")


@dataclass(frozen=True, eq=False)
class StoredGroup:
    """Networks that are shaped alike: `states` are what runners keep, by name and [n, ...], in the
    order of the group's members; `best` likewise of the members `best_members`, int32 places in the
    group, whose best report is not their last; `sharding` is that of the kernel."""

    states: Arrays
    best_members: NDArray[np.int32]
    best: Arrays
    sharding: str = ""


@dataclass(frozen=True, eq=False)
class ManyCheckpoint:
    """What a file holds of N members.

    configs: the Config of each as plain values.
    candidate, fold, group, place: int32 [N] (rawnn/many/grouping.py).
    groups: the states of each group.
    rows, held_out: the lists of rows, () where there are none.
    normalisations, target_normalisations: of each list, one where there are none.
    run: what the loop knows of each, arrays [N, ...] by the names of rawnn/many/progress.py.
    settings: of the whole run, as plain values.
    facts, records, label_names, label_dtype, autoencoder, lineage: as in a Checkpoint; `records`
        are its `data` for each list.
    """

    configs: tuple[dict[str, Any], ...]
    candidate: NDArray[np.int32]
    fold: NDArray[np.int32]
    group: NDArray[np.int32]
    place: NDArray[np.int32]
    groups: tuple[StoredGroup, ...]
    rows: tuple[NDArray[np.int32], ...]
    held_out: tuple[NDArray[np.int32], ...]
    normalisations: tuple[Normalisation, ...]
    target_normalisations: tuple[TargetNormalisation | None, ...]
    run: Arrays
    settings: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    records: Sequence[dict[str, Any]] = ()
    label_names: tuple[str, ...] = ()
    label_dtype: str = ""
    autoencoder: bool = False
    lineage: Lineage = ()

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def epoch(self) -> int:
        """The epochs that the member that went furthest has behind it."""
        return int(self.run["epoch"].max())

    def member(self, number: int, best: bool = False) -> Checkpoint:
        """One member as a checkpoint of its own, which `train(resume=...)` continues; with `best`
        the parameters of its best report, where early stopping knows one. Raises IndexError."""
        group = self.groups[int(self.group[number])]
        place = int(self.place[number])
        states, where, epoch = group.states, place, int(self.run["epoch"][number])
        if best and (found := np.flatnonzero(group.best_members == place)).size:
            states, where, epoch = group.best, int(found[0]), int(self.run["best_epoch"][number])
        config = {**self.configs[number]}
        if "device" in config:  # one network trains on one of them
            first = devices_of(config["device"])[0]
            config["device"] = first.removesuffix(":all")
        if group.sharding:
            config |= _with_sharding(config["opt"], group.sharding)
        if self.rows or self.held_out:  # the data set's own test part is not what it was scored on
            config = {k: v for k, v in config.items() if k not in ("dataset", "data")}
        fold = int(self.fold[number])
        data = self.records[0 if len(self.records) == 1 else fold]
        if split := data.get("split"):  # given with arrays, it stands in no member's options
            config["validation"] = float(split[0])
        network = Network(tuple(config["layers"]), config["bias"], config["activation"],
                          config["loss"], config["init"])
        arrays = {name: array[where] for name, array in states.items()}
        names = [tensor.name for tensor in network.parameters()]
        one = len(self.normalisations) == 1
        return Checkpoint(
            network, {name: arrays.pop(name) for name in names}, epoch, arrays, config,
            self.normalisations[0 if one else fold], self.label_names, dict(self.facts), {},
            data, self.lineage,
            self.target_normalisations[0 if one else fold], self.label_dtype, self.autoencoder)


def _with_sharding(opt: str, sharding: str) -> dict[str, str]:
    """The options that train a member alone as its group was trained: `opt` may have the toggle
    persistent, of which `sharding` is a value."""
    words = [word.strip() for word in opt.split(",")]
    others = [word for word in words if word.partition("=")[0] != "persistent"]
    if others == words or sharding == LAUNCHES:
        return {"opt": ",".join(others), "sharding": sharding}
    return {"opt": ",".join(word if word in others else f"persistent={sharding}"
                            for word in words)}


# -- content ---------------------------------------------------------------------------------------


def encode(many: ManyCheckpoint) -> bytes:
    """The content of a file."""
    common = {name: value for name, value in many.configs[0].items()
              if all(config[name] == value for config in many.configs)}
    metadata = {
        "rawnn_many": str(FORMAT), "rawnn": __version__, "members": str(len(many)),
        "config": compact_json(common), "differs": compact_json(
            [{k: v for k, v in config.items() if k not in common} for config in many.configs]),
        "scales": compact_json([n.scale for n in many.normalisations]),
        "shardings": compact_json([group.sharding for group in many.groups]),
        "settings": compact_json(many.settings), "facts": compact_json(many.facts),
        "records": compact_json(list(many.records)), "label_names": compact_json(many.label_names),
        "label_dtype": many.label_dtype, "autoencoder": compact_json(many.autoencoder),
        "lineage": compact_json(many.lineage),
    }
    tensors: Arrays = {name: getattr(many, name) for name in
                       ("candidate", "fold", "group", "place")}
    tensors |= {f"run.{name}": many.run[name] for name in _RUN}
    for number, group in enumerate(many.groups):
        parameters = _parameter_names(many, number)
        for name, array in group.states.items():
            tensors[f"group{number}.{'' if name in parameters else 'state.'}{name}"] = array
        tensors[f"group{number}.best_members"] = group.best_members
        tensors |= {f"group{number}.best.{name}": array for name, array in group.best.items()}
    for kind, lists in (("rows", many.rows), ("held_out", many.held_out)):
        tensors |= {f"{kind}{i}": rows for i, rows in enumerate(lists)}
    for i, found in enumerate(many.normalisations):
        if found.mean is not None and found.std is not None:
            tensors |= {f"normalisation{i}.mean": found.mean, f"normalisation{i}.std": found.std}
    for i, targets in enumerate(many.target_normalisations):
        if targets is not None:
            tensors |= {f"target_normalisation{i}.mean": targets.mean,
                        f"target_normalisation{i}.std": targets.std}
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    metadata["sha256"] = checkpoint.digest(metadata, tensors)
    return safetensors.numpy.save(tensors, metadata)


def _parameter_names(many: ManyCheckpoint, group: int) -> set[str]:
    config = many.configs[int(np.flatnonzero(many.group == group)[0])]
    network = Network(tuple(config["layers"]), config["bias"])
    return {tensor.name for tensor in network.parameters()}


def decode(content: bytes, where: str) -> ManyCheckpoint:
    """The members in a file's content. Raises CheckpointError, starting with `where`."""
    metadata, tensors = checkpoint.unpack(content, where)
    if "rawnn_many" not in metadata:
        raise CheckpointError(f"{where} is no checkpoint of many networks: rawnn.train(resume=...) "
                              f"continues one, and its path has no number behind #")
    recorded = metadata.pop("sha256", "")
    if not metadata["rawnn_many"].isdecimal() or int(metadata["rawnn_many"]) > FORMAT:
        raise CheckpointError(f"{where} was written by a newer rawnn (format "
                              f"{metadata['rawnn_many']} of many networks; this one reads up to "
                              f"{FORMAT}): update rawnn")
    if recorded != checkpoint.digest(metadata, tensors):
        raise CheckpointError(f"{where} is corrupt: the SHA-256 of its content is not the one it "
                              f"records")
    try:
        return _parse(metadata, tensors)
    except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise CheckpointError(f"{where} is not a valid checkpoint ({type(error).__name__}: "
                              f"{error})") from None
    except ConfigError as error:
        raise CheckpointError(f"{where} does not fit this rawnn: {error}") from None


def _parse(metadata: dict[str, str], tensors: Arrays) -> ManyCheckpoint:
    common = dict(json.loads(metadata["config"]))
    configs = tuple({**common, **more} for more in json.loads(metadata["differs"]))
    shardings = json.loads(metadata["shardings"])
    groups = []
    for number, sharding in enumerate(shardings):
        parts: dict[str, Arrays] = {"": {}, "state.": {}, "best.": {}}
        start = f"group{number}."
        for name, array in tensors.items():
            if name.startswith(start) and name != f"{start}best_members":
                inner = name.removeprefix(start)
                kind = next((p for p in parts if p and inner.startswith(p)), "")
                parts[kind][inner.removeprefix(kind)] = array
        groups.append(StoredGroup({**parts[""], **parts["state."]},
                                  tensors[f"{start}best_members"], parts["best."], str(sharding)))
    scales = json.loads(metadata["scales"])
    inputs = tuple(Normalisation(float(scale), tensors.get(f"normalisation{i}.mean"),
                                 tensors.get(f"normalisation{i}.std"))
                   for i, scale in enumerate(scales))
    targets = tuple(
        TargetNormalisation(tensors[f"target_normalisation{i}.mean"],
                            tensors[f"target_normalisation{i}.std"])
        if f"target_normalisation{i}.mean" in tensors else None for i in range(len(scales)))
    return ManyCheckpoint(
        configs, tensors["candidate"], tensors["fold"], tensors["group"], tensors["place"],
        tuple(groups), _lists(tensors, "rows"), _lists(tensors, "held_out"), inputs, targets,
        {name: tensors[f"run.{name}"] for name in _RUN}, dict(json.loads(metadata["settings"])),
        dict(json.loads(metadata["facts"])), tuple(json.loads(metadata["records"])),
        tuple(json.loads(metadata["label_names"])), metadata["label_dtype"],
        bool(json.loads(metadata["autoencoder"])),
        tuple((str(name), int(epoch)) for name, epoch in json.loads(metadata["lineage"])))


def _lists(tensors: Arrays, kind: str) -> tuple[NDArray[np.int32], ...]:
    count = sum(re.fullmatch(rf"{kind}[0-9]+", name) is not None for name in tensors)
    return tuple(tensors[f"{kind}{i}"] for i in range(count))


# -- files -----------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], many: ManyCheckpoint) -> None:
    """Write a file so that the name holds either what it held before or all of the new, also after
    a power failure. Raises CheckpointError."""
    try:
        write_atomically(path, encode(many), durable=True)
    except RawnnError as error:
        raise CheckpointError(str(error)) from None


def read(path: str | os.PathLike[str]) -> ManyCheckpoint:
    """Read and verify a file. Raises CheckpointError with one clear sentence."""
    return decode(checkpoint.read_content(path), os.fspath(path))


def find(path: str | os.PathLike[str], notify: Notify) -> tuple[Path, ManyCheckpoint]:
    """The checkpoint at `path`: the file itself, or the newest good one of a directory, where one
    that cannot be read is skipped, and `notify` gets a sentence. Raises CheckpointError."""
    if member := split_member(path):
        raise CheckpointError(f"{os.fspath(path)} names one network, which "
                              f"rawnn.train(resume=...) continues; all of them are {member[0]}")
    if not os.path.isdir(path):
        return Path(path), read(path)
    reason = ""
    for _, file in reversed(checkpoint.listed(path)):
        try:
            return file, read(file)
        except CheckpointError as error:
            notify(f"{error}; looking for an older one")
            reason = f"; the last that was tried: {error}"
    raise CheckpointError(f"{path} holds no checkpoint of many networks that can be read{reason}")


def split_member(path: str | os.PathLike[str]) -> tuple[str, int] | None:
    """The file or directory, and the number of the member, that a path such as runs/a#17 names;
    None for another path, and for one that exists under this very name."""
    text = os.fspath(path)
    found = _MEMBER.fullmatch(text) if isinstance(text, str) else None
    return (found[1], int(found[2])) if found and not os.path.exists(text) else None


def find_member(path: str, number: int, best: bool, notify: Notify) -> tuple[Path, Checkpoint]:
    """The member of the file or directory; see `ManyCheckpoint.member`. Raises CheckpointError."""
    file, many = find(path, notify)
    if number >= len(many):
        raise CheckpointError(f"{file} has the networks 0 to {len(many) - 1}, but no network "
                              f"{number}")
    return Path(f"{file}#{number}"), many.member(number, best)
