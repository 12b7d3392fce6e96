"""Checkpoints: one safetensors file holds all that a run needs to continue bit for bit, and all
that a model needs to predict.

Parameters have their own names; optimizer state and clocks have the prefix `state.`, the
normalisation `normalisation.` (of target values `target_normalisation.`). Network, configuration
and labels are JSON in the metadata, with a SHA-256 over everything. A file gets its name only once
all of it is on the disk, and every read verifies it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rawnn.common.errors import CheckpointError, ConfigError, RawnnError
from rawnn.common.files import check_path, write_atomically
from rawnn.data.normalise import Normalisation, TargetNormalisation
from rawnn.model.layers import Network, Parameters
from rawnn.version import __version__

FORMAT = 1
"""The version of the layout that this rawnn writes, the newest that it reads."""

_DTYPES: dict[str, Any] = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64,
    "I32": np.int32, "I64": np.int64, "U8": np.uint8, "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
_STATE, _NORMALISATION, _TARGETS = "state.", "normalisation.", "target_normalisation."
_NAME = re.compile(r"rawnn-([0-9]{6,12})\.safetensors")
BEST = "best.safetensors"
"""File name of the checkpoint that early stopping writes for the best report."""
EARLY_STOPPING = "early_stopping"
"""Key of `facts` under which early stopping stores its state: `epoch` of the best report, `best`
(its value of `monitor`), `waited`, and whether the parameters are `saved` as `BEST`."""
_MAX_HEADER = 100 << 20  # what the safetensors library itself allows

Notify = Callable[[str], None]
Arrays = dict[str, NDArray[Any]]
Lineage = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a checkpoint file.

    epoch: epochs that are done.
    state: what the runner needs besides the parameters (optimizer state, clock, loss scale), by
        tensor name.
    config: the run's Config as plain values.
    facts: values that listeners store, such as the best loss so far.
    taken: the resolved options (rawnn/engine/resolved_options.py); {} in older files.
    data: a record of the training data (rawnn/engine/resumption.py); {} if unknown.
    lineage: a random name and the first epoch of the run and of each run that continued it; () in
        older files.
    label_dtype, autoencoder: those of a Model.
    """

    network: Network
    parameters: Parameters
    epoch: int = 0
    state: Arrays = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    normalisation: Normalisation = field(default_factory=Normalisation)
    label_names: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    taken: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    lineage: Lineage = ()
    target_normalisation: TargetNormalisation | None = None
    label_dtype: str = ""
    autoencoder: bool = False


class SeveralNetworks(CheckpointError):
    """A valid file of many networks, of which none is named."""


# -- content ---------------------------------------------------------------------------------------


def encode(checkpoint: Checkpoint) -> bytes:
    """The content of a checkpoint file."""
    import safetensors.numpy

    network, normalisation = checkpoint.network, checkpoint.normalisation
    metadata = {
        "rawnn_format": str(FORMAT),
        "rawnn": __version__,
        "network": compact_json({
            "layers": network.layers, "bias": network.bias, "init": network.init,
            "activation": network.activation, "loss": network.loss}),
        "epoch": str(checkpoint.epoch),
        "config": compact_json(checkpoint.config),
        "scale": repr(float(normalisation.scale)),
        "label_names": compact_json(checkpoint.label_names),
        "facts": compact_json(checkpoint.facts),
        **({"taken": compact_json(checkpoint.taken)} if checkpoint.taken else {}),
        **({"data": compact_json(checkpoint.data)} if checkpoint.data else {}),
        **({"lineage": compact_json(checkpoint.lineage)} if checkpoint.lineage else {}),
        **({"label_dtype": checkpoint.label_dtype} if checkpoint.label_dtype else {}),
        **({"autoencoder": compact_json(True)} if checkpoint.autoencoder else {}),
    }
    tensors: Arrays = {**checkpoint.parameters}
    tensors |= {_STATE + name: array for name, array in checkpoint.state.items()}
    if normalisation.mean is not None and normalisation.std is not None:
        tensors |= {_NORMALISATION + "mean": normalisation.mean,
                    _NORMALISATION + "std": normalisation.std}
    if (targets := checkpoint.target_normalisation) is not None:
        tensors |= {_TARGETS + "mean": targets.mean, _TARGETS + "std": targets.std}
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    metadata["sha256"] = digest(metadata, tensors)
    return safetensors.numpy.save(tensors, metadata)


def decode(content: bytes, where: str) -> Checkpoint:
    """The checkpoint in a file's content. Raises CheckpointError, starting with `where`."""
    metadata, tensors = unpack(content, where)
    if "rawnn_many" in metadata:
        raise SeveralNetworks(f"{where} holds {metadata.get('members', 'many')} networks: name one "
                              f"of them by its number, as in {where}#0")
    try:
        newest = int(metadata["rawnn_format"])
        recorded = metadata.pop("sha256")
    except KeyError:
        raise CheckpointError(f"{where} is a safetensors file, but no checkpoint of rawnn: its "
                              f"metadata have no format version") from None
    except ValueError:
        raise CheckpointError(f"{where} is corrupt: its format version is no number") from None
    if newest > FORMAT:
        raise CheckpointError(f"{where} was written by a newer rawnn (format {newest}; this one "
                              f"reads up to {FORMAT}): update rawnn")
    if recorded != digest(metadata, tensors):
        raise CheckpointError(f"{where} is corrupt: the SHA-256 of its content is not the one it "
                              f"records")
    try:
        return _from_metadata(metadata, tensors, where)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not a valid checkpoint ({_line(error)})") from None
    except ConfigError as error:
        raise CheckpointError(f"{where} does not fit this rawnn: {error}") from None


def _from_metadata(metadata: Mapping[str, str], tensors: Arrays, where: str) -> Checkpoint:
    described = json.loads(metadata["network"])
    described["layers"] = tuple(int(n) for n in described["layers"])
    network = Network(**described)
    parts: dict[str, Arrays] = {"": {}, _STATE: {}, _NORMALISATION: {}, _TARGETS: {}}
    for name, array in tensors.items():
        prefix = next((p for p in parts if p and name.startswith(p)), "")
        parts[prefix][name.removeprefix(prefix)] = array
    wanted = {t.name: t.shape for t in network.parameters()}
    found = {name: array.shape for name, array in parts[""].items()}
    if wanted != found:
        raise CheckpointError(f"{where} is inconsistent: its network is {network}, but its "
                              f"parameters have other shapes")
    means, targets = parts[_NORMALISATION], parts[_TARGETS]
    normalisation = Normalisation(float(metadata["scale"]), means.get("mean"), means.get("std"))
    return Checkpoint(
        network, {name: parts[""][name] for name in wanted}, int(metadata["epoch"]), parts[_STATE],
        dict(json.loads(metadata["config"])), normalisation,
        tuple(str(name) for name in json.loads(metadata["label_names"])),
        dict(json.loads(metadata["facts"])), dict(json.loads(metadata.get("taken", "{}"))),
        dict(json.loads(metadata.get("data", "{}"))),
        tuple((str(name), int(epoch)) for name, epoch in json.loads(metadata.get("lineage", "[]"))),
        TargetNormalisation(targets["mean"], targets["std"]) if targets else None,
        np.dtype(metadata["label_dtype"]).name if "label_dtype" in metadata else "",
        "autoencoder" in metadata or bool(json.loads(metadata["config"]).get("autoencoder")))


def unpack(content: bytes, where: str) -> tuple[dict[str, str], Arrays]:
    """Metadata and tensors of any safetensors file. Raises CheckpointError, starting with
    `where`."""
    import safetensors

    size = len(content)
    length = int.from_bytes(content[:8], "little")
    if size < 8 or (length <= _MAX_HEADER and 8 + length > size and content[8:9] in (b"", b"{")):
        raise CheckpointError(f"{where} is truncated: {size:,} bytes do not hold its header")
    if content[8:9] != b"{" or length > _MAX_HEADER:
        raise CheckpointError(f"{where} is not a safetensors file")
    try:
        header = json.loads(content[8 : 8 + length])
        metadata = dict(header.pop("__metadata__", {}))
        end = 8 + length + max((int(t["data_offsets"][1]) for t in header.values()), default=0)
        strings = all(isinstance(v, str) for v in metadata.values())
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        strings, end = False, 0
    if not strings:
        raise CheckpointError(f"{where} is corrupt: its header is not that of a safetensors file")
    if end > size:
        raise CheckpointError(f"{where} is truncated: its header declares {end:,} bytes, but it "
                              f"holds {size:,}")
    try:
        found = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
        tensors = {name: _array(t) for name, t in found}
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{where} is corrupt: {_line(error)}") from None
    except (KeyError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where} holds a tensor that rawnn cannot read "
                              f"({_line(error)})") from None
    return metadata, tensors


def _array(tensor: Mapping[str, Any]) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]])
    return array.reshape(tensor["shape"])


def digest(metadata: Mapping[str, str], tensors: Arrays) -> str:
    """SHA-256 over all content, in an order that does not depend on the file's layout."""
    sha = hashlib.sha256(compact_json(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        array = tensors[name]
        sha.update(compact_json([name, array.dtype.name, array.shape]).encode())
        sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def compact_json(value: Any) -> str:
    """JSON without spaces, ASCII only."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


# -- files -----------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically: the name refers to the old content or to all of the new, even
    after a power failure. Raises CheckpointError."""
    try:
        write_atomically(path, encode(checkpoint), durable=True)
    except RawnnError as error:
        raise CheckpointError(str(error)) from None


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read and verify a checkpoint file, or of a file of many networks the one that stands behind
    "#". Raises CheckpointError with one clear sentence."""
    if named := _member(path, False, lambda message: None):
        return named[1]
    return decode(read_content(path), os.fspath(path))


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file. Raises CheckpointError."""
    try:
        if not os.path.isfile(path) and os.path.exists(path):
            raise OSError(0, "it is not a regular file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise CheckpointError(f"{path} does not fit in memory") from None


def name_of(epoch: int) -> str:
    """The name of the checkpoint after an epoch."""
    return f"rawnn-{epoch:06d}.safetensors"


def listed(directory: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    """Epoch and path of every checkpoint in a directory, oldest first. Raises CheckpointError."""
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be read: {error.strerror or error}") from None
    return sorted((int(match[1]), Path(directory, name)) for name in names
                  if (match := _NAME.fullmatch(name)))


def find(path: str | os.PathLike[str], notify: Notify) -> tuple[Path, Checkpoint]:
    """The checkpoint at `path`: the file itself, or the newest good one of a directory.

    Of many networks a path names one by its number: runs/a#17. In a directory, a file that cannot
    be read is skipped with a message to `notify`. Raises CheckpointError.
    """
    if named := _member(path, False, notify):
        return named
    if not os.path.isdir(path):
        return Path(path), read(path)
    reason = ""
    for _, file in reversed(listed(path)):
        try:
            return file, read(file)
        except SeveralNetworks:
            raise
        except CheckpointError as error:
            notify(f"{error}; looking for an older one")
            reason = f"; the last that was tried: {error}"
    raise CheckpointError(f"{path} holds no checkpoint that can be read{reason}")


def _member(path: str | os.PathLike[str], best: bool,
            notify: Notify) -> tuple[Path, Checkpoint] | None:
    """The member of many networks that a path such as runs/a#17 names, None for another path."""
    from rawnn.engine import many_checkpoint

    named = many_checkpoint.split_member(path)
    return named and many_checkpoint.find_member(*named, best, notify)


def find_model(path: str | os.PathLike[str], notify: Notify) -> tuple[Path, Checkpoint]:
    """The checkpoint of the model at `path`: the file itself, or that of a directory with which
    training ended. This is `best.safetensors` if early stopping of the same run wrote it, else the
    newest valid one. `notify` gets a sentence if it is not the newest.

    Raises CheckpointError.
    """
    if named := _member(path, True, notify):
        return named
    best = Path(path, BEST)
    if not os.path.isdir(path) or not best.exists():
        return find(path, notify)
    try:
        stored = read(best)
    except CheckpointError as error:
        notify(f"{error}; looking for another checkpoint")
        return find(path, notify)
    if not listed(path):
        notify(f"{best} is used, of epoch {stored.epoch}: {path} holds no other checkpoint")
        return best, stored
    newest, found = find(path, notify)
    known = found.facts.get(EARLY_STOPPING, {})
    ahead = bool(stored.lineage) and stored.epoch > found.epoch
    if not (is_of_run(stored, found.lineage) or is_of_run(found, stored.lineage)):
        notify(f"{best} is of another run than {newest.name}: {newest.name} is used")
    elif not ahead and (known.get("epoch") != stored.epoch or not known.get("saved", True)):
        notify(f"{best} is not what training ended with: {newest.name} is used")
    else:
        other = "" if newest.name == name_of(stored.epoch) else \
            f"; the newest, of epoch {found.epoch}, is {newest.name}"
        notify(f"{best} is used, the best parameters, of epoch {stored.epoch}{other}")
        return best, stored
    return newest, found


def is_of_run(stored: Checkpoint, lineage: Lineage) -> bool:
    """Whether the run of `lineage` wrote the checkpoint, or a run that it continues, no later than
    the epoch from which it continued."""
    shared = len(stored.lineage)
    return lineage[:shared] == stored.lineage and \
        all(stored.epoch <= first for _, first in lineage[shared:])


def continued(values: Mapping[str, Any], arrays: bool = False,
              found: tuple[Path, Checkpoint] | None = None) -> dict[str, Any]:
    """The options of a run. If they name a checkpoint to `resume` (which may already be `found`),
    the options of the run that wrote it are the defaults, and saving goes on in its directory.
    `arrays` says that the caller passes the data themselves.

    Raises CheckpointError, also if that run's data were named relative to another folder, and
    ConfigError if they were arrays, which no option names.
    """
    if not values.get("resume"):
        return dict(values)
    check_path("resume", values["resume"])
    path, stored = found or find(values["resume"], lambda message: None)  # said when it is loaded
    network = stored.network  # also of a model that was saved alone, without options
    before = {"layers": network.layers, "bias": network.bias, "activation": network.activation,
              "loss": network.loss, "autoencoder": stored.autoencoder, **stored.config}
    if not arrays and "dataset" not in stored.config and values.get("data") is None \
            and values.get("dataset") is None:
        if not stored.data.get("arrays", True):
            raise ConfigError(f"{path} was trained on the rows of a fold or of a list, which its "
                              f"options do not name: train_many(resume=...) (rawnn many --resume) "
                              f"continues all networks of that run; data= with new_data=True "
                              f"(--data FILE --new-data) continues this one on other rows")
        what = "was trained on arrays of a Python program, which no checkpoint holds" \
            if stored.config else "is a model alone, which names no data"
        raise ConfigError(f"{path} {what}: give them, as in rawnn.train(data=(X, y), "
                          f"resume={os.fspath(values['resume'])!r}), or name a file of the same "
                          f"examples with data= (--data)")
    if before.get("save"):
        before["save"] = os.fspath(path.parent)
    if values.get("data") is None:
        check_data_found(path, before.get("data"), "continue it")
    return {**before, **values}


def check_data_found(path: str | os.PathLike[str], data: str | None, action: str) -> None:
    """Raise CheckpointError, with the fix, if the `data` of the run that wrote a checkpoint are no
    longer where it read them. `action` says what they are needed for."""
    if not data or os.path.exists(os.path.expanduser(data)):
        return
    reason, fix = (
        ("it is no longer there", "") if os.path.isabs(os.path.expanduser(data)) else
        (f"from the folder in which it was started; there is none in {os.getcwd()}",
         f"{action} in that folder, or "))
    raise CheckpointError(f"the run of {path} read --data {data}, {reason}: {fix}give its present "
                          f"place with --data")


def check_fits(checkpoint: Checkpoint, network: Network, where: str) -> None:
    """Raise CheckpointError unless the checkpoint is of this network."""
    stored = checkpoint.network
    for what, ours, theirs in (
        ("layers are", str(network), str(stored)),
        ("activation is", network.activation, stored.activation),
        ("loss is", network.loss, stored.loss),
        ("biases are", *("on" if n.bias else "off" for n in (network, stored))),
    ):
        if ours != theirs:
            raise CheckpointError(f"{where} is of another network: its {what} {theirs}, but {ours} "
                                  f"was asked for")
