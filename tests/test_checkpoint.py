"""Checkpoint files: what comes back, what is refused, what is kept."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from rawnn.cli import run
from rawnn.common.errors import CheckpointError, ConfigError, RawnnError
from rawnn.common.files import write_atomically
from rawnn.data.normalise import Normalisation
from rawnn.engine import checkpoint
from rawnn.engine.checkpoint import (
    Checkpoint,
    check_fits,
    decode,
    encode,
    find,
    listed,
    read,
    write,
)
from rawnn.engine.checkpoint_store import Store
from rawnn.engine.training import train
from rawnn.model.layers import Network

NETWORK = Network((6, 4, 3), activation="tanh")
RNG = np.random.default_rng(0)


def make(epoch: int = 3, **changed: Any) -> Checkpoint:
    parameters = NETWORK.initial(epoch)
    state = {"fc1.weight.v": RNG.random((4, 6), np.float32), "clock": np.array([3, 21], np.int32),
             "fc2.weight.m": RNG.random((3, 4)).astype(ml_dtypes.bfloat16),
             "loss_scale": np.array([1024, 5], np.float32)}
    normalisation = Normalisation(1 / 255, RNG.random(6).astype(np.float32),
                                  1 + RNG.random(6).astype(np.float32))
    values: dict[str, Any] = {
        "network": NETWORK, "parameters": parameters, "epoch": epoch, "state": state,
        "config": {"layers": [6, 4, 3], "lr": 0.1}, "normalisation": normalisation,
        "label_names": ("ä", "b", "c"), "facts": {"best": 0.25}}
    return Checkpoint(**{**values, **changed})


def same(a: Checkpoint, b: Checkpoint) -> None:
    assert (a.network, a.epoch, a.config, a.label_names, a.facts) == (
        b.network, b.epoch, b.config, b.label_names, b.facts)
    for ours, theirs in ((a.parameters, b.parameters), (a.state, b.state)):
        assert set(ours) == set(theirs)
        for name, array in ours.items():
            assert array.dtype == theirs[name].dtype
            assert array.tobytes() == theirs[name].tobytes()
            assert array.shape == theirs[name].shape
    assert a.normalisation.scale == b.normalisation.scale
    for part in ("mean", "std", "inverse_std"):
        ours, theirs = (getattr(c.normalisation, part) for c in (a, b))
        np.testing.assert_array_equal(ours, theirs)


def test_everything_comes_back(tmp_path: Path) -> None:
    made = make()
    write(tmp_path / "c.safetensors", made)
    same(read(tmp_path / "c.safetensors"), made)
    plain = make(normalisation=Normalisation(), state={}, facts={}, label_names=(), config={})
    same(decode(encode(plain), "c"), plain)
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_other_programs_can_read_the_parameters(tmp_path: Path) -> None:
    made = make(state={})
    write(tmp_path / "c.safetensors", made)
    found = safetensors.numpy.load_file(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(found["fc1.weight"], made.parameters["fc1.weight"])


# -- refusals ------------------------------------------------------------------------------------


def refused(content: bytes, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence) as caught:
        decode(content, "file")
    assert str(caught.value).startswith("file ")
    assert "\n" not in str(caught.value)


def rebuilt(content: bytes, **metadata: str) -> bytes:
    """The content with other metadata, and a checksum that fits them."""
    found, tensors = checkpoint.unpack(content, "file")
    found.pop("sha256")
    found |= metadata
    found = {name: value for name, value in found.items() if value != "-"}
    found["sha256"] = checkpoint.digest(found, tensors)
    return safetensors.numpy.save(tensors, found)


def test_truncated_files() -> None:
    content = encode(make())
    header = 8 + int.from_bytes(content[:8], "little")
    for size in (0, 3, 7, 8, 9, 100, header - 1):
        refused(content[:size], "is truncated: .* bytes do not hold its header")
    for size in (header, header + 1, len(content) - 1):
        refused(content[:size], "is truncated: its header declares")


def test_corrupt_files() -> None:
    content = encode(make())
    refused(content + b"x", "is corrupt")
    refused(b"PNG" + content, "is not a safetensors file")
    refused(b"\xff" * 100, "is not a safetensors file")
    refused(content.replace(b'"data_offsets"', b'"data_offzets"'), "is corrupt: its header")
    refused(content.replace(b'"rawnn_format"', b'\xff\xff\xff\xff\xff_format"'), "is corrupt")
    for at in (len(content) - 1, len(content) - 200):
        changed = bytearray(content)
        changed[at] ^= 4
        refused(bytes(changed), "is corrupt: the SHA-256")
    refused(content.replace(b'"epoch":"3"', b'"epoch":"4"'), "is corrupt: the SHA-256")
    refused(content.replace(b"0.25", b"0.75"), "is corrupt: the SHA-256")


def test_files_of_others() -> None:
    refused(safetensors.numpy.save({"a": np.zeros(3)}), "no checkpoint of rawnn")
    refused(rebuilt(encode(make()), rawnn_format="7"),
            r"newer rawnn \(format 7; this one reads up to 1\): update rawnn")
    refused(rebuilt(encode(make()), rawnn_format="x"), "format version is no number")


@pytest.mark.parametrize("metadata", [
    {"network": "[]"}, {"network": "{"}, {"network": '{"layers": [6, 4]}'}, {"network": "-"},
    {"network": '{"layers": [6, 4, 3], "activation": "rely"}'},
    {"network": '{"layers": [6, 4, 3], "more": 1}'}, {"epoch": "x"}, {"scale": "0"},
    {"config": "7"}, {"facts": "[1]"}, {"label_names": "3"}, {"epoch": "-"},
    {"network": '{"layers": [60000000, 40000000, 3]}'},
])
def test_metadata_that_make_no_sense(metadata: dict[str, str]) -> None:
    refused(rebuilt(encode(make()), **metadata),
            "is not a valid checkpoint|does not fit this rawnn|is inconsistent")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read(tmp_path / "no.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read: it is not a regular file"):
        read(tmp_path)


def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*: No such file"):
        write(tmp_path / "no" / "c.safetensors", make())
    write(tmp_path / "c.safetensors", make(3))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(tmp_path / "c.safetensors", make(4))
    assert read(tmp_path / "c.safetensors").epoch == 3  # what was there is untouched
    assert len(list(tmp_path.iterdir())) == 1


def full_from(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint of that epoch or a later one has room."""
    original = write_atomically

    def limited(path: Any, content: bytes, **options: Any) -> None:
        if str(path).endswith(".safetensors") and decode(content, "it").epoch >= epoch:
            raise RawnnError(f"cannot write {path}: No space left on device")
        original(path, content, **options)

    monkeypatch.setattr("rawnn.engine.checkpoint.write_atomically", limited)


@pytest.mark.parametrize("first", [1, 3])
def test_a_full_disk_costs_a_checkpoint_but_not_the_result(
        first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    full_from(first, monkeypatch)
    kept, found = tmp_path / "kept", tmp_path / "r.json"
    assert run(["--device", "host", "--dataset", "synthetic", "--epochs", "9", "--save", str(kept),
                "--json", str(found)]) == 1
    output = capsys.readouterr()
    result = json.loads(found.read_bytes())
    assert (len(result["epoch_ms"]), result["stopped"]) == \
        (first, "a checkpoint could not be written")
    assert "test accuracy" in output.out
    assert "No space left on device; " in output.err
    assert (f"{kept / 'rawnn-000002.safetensors'} is valid: free some space, and continue with "
            f"--resume {kept}" if first > 1 else f"{kept} holds no valid checkpoint") in output.err


def test_the_library_raises_a_full_disk_with_the_result(tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    full_from(2, monkeypatch)
    with pytest.raises(CheckpointError, match="No space left") as caught:
        train(device="host", dataset="synthetic", epochs=5, save=str(tmp_path / "kept"))
    assert len(caught.value.result.epoch_ms) == 2  # type: ignore[attr-defined]


def test_a_checkpoint_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes ahead of the name that they get, and then the folder, which holds the name."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(handle: int) -> None:
        folder = os.path.samestat(os.fstat(handle), tmp_path.stat())
        done.append("folder" if folder else "file")
        sync(handle)

    def renamed(*names: Any) -> None:
        done.append("name")
        rename(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    write(tmp_path / "c.safetensors", make())
    assert done == ["file", "name", "folder"]


@pytest.mark.parametrize(("network", "sentence"), [
    (Network((6, 5, 3), activation="tanh"), "its layers are 6-4-3, but 6-5-3 was asked for"),
    (Network((6, 4, 3)), "its activation is tanh, but relu was asked for"),
    (Network((6, 4, 3), activation="tanh", loss="mse"), "its loss is cross_entropy, but mse"),
    (Network((6, 4, 3), activation="tanh", bias=False), "its biases are on, but off"),
])
def test_another_network(network: Network, sentence: str) -> None:
    check_fits(make(), NETWORK, "file")
    with pytest.raises(CheckpointError, match=f"file is of another network: {sentence}"):
        check_fits(make(), network, "file")


# -- a directory of them -------------------------------------------------------------------------


def epochs(directory: Path) -> list[int]:
    return [epoch for epoch, _ in listed(directory)]


def test_the_newest_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b", keep=2)
    for epoch in (1, 2, 3, 10):
        path = store.save(make(epoch))
        assert path.name == f"rawnn-{epoch:06d}.safetensors"
        assert read(path).epoch == epoch
    assert epochs(store.directory) == [3, 10]
    everything = Store(tmp_path / "all")
    for epoch in range(5):
        everything.save(make(epoch))
    assert epochs(everything.directory) == list(range(5))


def test_the_one_just_written_is_never_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=1)
    store.save(make(9))
    (tmp_path / "rawnn-000010.safetensors").write_bytes(b"torn")
    store.save(make(5))
    assert find(tmp_path, lambda message: None)[1].epoch == 5
    with pytest.raises(ConfigError, match="keep = 0"):
        Store(tmp_path, keep=0)


def test_an_old_one_that_cannot_be_deleted_is_named_with_the_reason(tmp_path: Path) -> None:
    store = Store(tmp_path, keep=1)
    old = tmp_path / "rawnn-000001.safetensors"
    old.mkdir()
    with pytest.raises(CheckpointError, match=f"cannot delete {old}: Is a directory$"):
        store.save(make(2))


def test_the_newest_good_one_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for epoch in (1, 2, 3):
        store.save(make(epoch))
    (tmp_path / "other.safetensors").write_bytes(b"")
    messages: list[str] = []
    path, found = find(tmp_path, messages.append)
    assert (path.name, found.epoch, messages) == ("rawnn-000003.safetensors", 3, [])
    path.write_bytes(path.read_bytes()[:-5])
    assert find(tmp_path, messages.append)[1].epoch == 2
    assert len(messages) == 1
    assert "rawnn-000003.safetensors is truncated" in messages[0]
    assert messages[0].endswith("looking for an older one")
    with pytest.raises(CheckpointError, match="is truncated"):
        find(path, messages.append)
    for _, file in listed(tmp_path):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint that can be read; .*000001"):
        find(tmp_path, messages.append)
    with pytest.raises(CheckpointError, match="cannot be read"):
        find(tmp_path / "no", messages.append)


def test_a_directory_of_a_later_run_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.expect(0)
    store.save(make(4))
    (tmp_path / ".rawnn-000005.safetensors.partial").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"rawnn-000004\.safetensors is of a later epoch than "
                                          "this run begins with: continue from it with --resume"):
        store.expect(0)
    with pytest.raises(ConfigError, match=r"continue from the newest with --resume .*, or save "):
        store.expect(3)
    (tmp_path / "rawnn-000009.safetensors").write_bytes(b"torn")
    store.expect(4)
    (tmp_path / "rawnn-000009.safetensors").unlink()
    assert [p.name for p in tmp_path.iterdir()] == ["rawnn-000004.safetensors"]


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot make the directory"):
        Store(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot make the directory"):
        Store(tmp_path / "file" / "below")


def test_the_metadata_are_json(tmp_path: Path) -> None:
    metadata, _ = checkpoint.unpack(encode(make()), "file")
    assert json.loads(metadata["network"])["layers"] == [6, 4, 3]
    assert json.loads(metadata["config"])["lr"] == 0.1


def test_the_digest_covers_every_part_of_the_content() -> None:
    metadata = {"epoch": "3", "layers": "4-3"}
    arrays = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(2, np.float32)}
    first = checkpoint.digest(metadata, arrays)
    turned = {name: arrays[name] for name in reversed(arrays)}
    assert checkpoint.digest(dict(reversed(metadata.items())), turned) == first
    assert checkpoint.digest(metadata, {**arrays, "w": np.asfortranarray(arrays["w"])}) == first
    others: list[tuple[dict[str, str], dict[str, np.ndarray]]] = [
        ({**metadata, "epoch": "4"}, arrays), ({"layers": "4-3"}, arrays),
        (metadata, {**arrays, "w": arrays["w"].reshape(4, 3)}),
        (metadata, {**arrays, "w": arrays["w"].reshape(12)}),
        (metadata, {**arrays, "w": arrays["w"].view(np.int32)}),
        (metadata, {**arrays, "w": -arrays["w"]}), (metadata, {"w": arrays["w"]}),
        (metadata, {"w2": arrays["w"], "b": arrays["b"]}),
        (metadata, {"w": arrays["w"], "b": arrays["b"], "c": arrays["b"]}),
    ]
    assert len({first, *(checkpoint.digest(*each) for each in others)}) == 1 + len(others)


def test_what_a_run_saves_has_each_array_once(tmp_path: Path) -> None:
    x = RNG.random((40, 4), np.float32)
    train(data=(x, (x[:, 0] > 0.5).astype(int)), layers=(4, 3, 2), epochs=1, device="host",
          optimizer="adam", save=tmp_path)
    stored = checkpoint.read(checkpoint.listed(tmp_path)[-1][1])
    names = {f"fc{n}.{part}" for n in (1, 2) for part in ("weight", "bias")}
    assert set(stored.parameters) == names
    assert set(stored.state) - {"order"} == {
        "clock", *(f"{name}.{moment}" for name in names for moment in "mv")}


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n")
    with pytest.raises(CheckpointError, match=r"t\.csv: it is a file; name another for"):
        Store(tmp_path / "t.csv")
