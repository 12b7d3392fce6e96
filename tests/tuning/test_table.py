"""The table of measured toggles: kept whole, looked up exactly."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rawnn.common.errors import ConfigError
from rawnn.common.target import NAMED
from rawnn.opts import best_table as table
from rawnn.opts.best_table import Entry


def entry(layers: tuple[int, ...] = (784, 128, 10), batch: int = 64, precision: str = "",
          toggles: str = "fuse", gpu: str = "G") -> Entry:
    return Entry(gpu=gpu, layers=layers, batch=batch, precision=precision, toggles=toggles, us=1.0,
                 others={"": 2.0}, driver="d", commit="c", date="t")


def test_an_entry_replaces_the_one_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "new" / "best.json"
    for toggles in ("fuse", "mma"):
        for precision in ("", "bf16"):
            table.remember(path, entry(precision=precision, toggles=toggles))
    assert [(e.precision, e.toggles) for e in table.read(path)] == [("", "mma"), ("bf16", "mma")]


def test_an_entry_replaces_the_one_of_its_conditions(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    sgd, adam = ({"loss": "mse", "optimizer": name} for name in ("sgd", "adam"))
    for conditions, kept in (({}, [{}]), (sgd, [sgd]), (adam, [sgd, adam]), (sgd, [adam, sgd])):
        table.remember(path, msgspec.structs.replace(entry(), conditions=conditions))
        assert [e.conditions for e in table.read(path)] == kept


def test_a_missing_table_is_empty_and_a_broken_one_an_error(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    assert table.read(path) == []
    for content in ("{", "[{}]", "\xff"):
        path.write_text(content, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"cannot be read: .*rawnn tune"):
            table.read(path)


def test_the_packaged_table_can_be_read() -> None:
    for found in table.read(table.PACKAGED):
        assert found.gpu
        assert found.us > 0


def test_only_the_very_network_and_batch_are_found(tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(table.ENVIRONMENT, str(tmp_path / "mine.json"))
    monkeypatch.setattr(table, "PACKAGED", tmp_path / "packaged.json")
    assert table.exact("G", (784, 128, 10), 64, "") is None
    table.remember(table.PACKAGED, entry(toggles="packaged"))
    table.remember(table.user_file(), entry((784, 256, 10), toggles="mine"))
    found = {n: table.exact("G", (784, n, 10), 64, "") for n in (128, 129, 256)}
    assert {n: e.toggles if e else None for n, e in found.items()} == {
        128: "packaged", 129: None, 256: "mine"}
    table.remember(table.user_file(), entry(toggles="mine, too"))
    both = table.exact("G", (784, 128, 10), 64, "")
    assert both is not None
    assert both.toggles == "mine, too"
    for gpu, batch, precision in (("H", 64, ""), ("G", 65, ""), ("G", 64, "bf16")):
        assert table.exact(gpu, (784, 128, 10), batch, precision) is None


def test_a_table_that_was_written_with_the_key_numbers_is_read(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text('[{"gpu": "G", "layers": [20, 10, 5], "batch": 8, "numbers": "bf16", '
                    '"toggles": "mma", "us": 2.5, "others": {"": 3.0}, "driver": "570", '
                    '"commit": "abc", "date": "2026-01-01"}]')
    found, = table.read(path)
    assert (found.precision, found.toggles, found.us) == ("bf16", "mma", 2.5)
    table.write(path, [found])
    assert '"numbers":"bf16"' in path.read_text().replace(" ", "")


def test_a_displayed_gpu_finds_the_entries_of_the_gpus_it_names(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(table.ENVIRONMENT, str(tmp_path / "best.json"))
    monkeypatch.setattr(table, "PACKAGED", tmp_path / "packaged.json")

    def finds(gpu: str) -> bool:
        return table.exact(gpu, (784, 128, 10), 64, "") is not None

    for driver_name, names in (("NVIDIA H100 80GB HBM3", {"H100"}), ("NVIDIA H100 PCIe", set()),
                               ("NVIDIA A100-SXM4-40GB", {"A100"}), ("NVIDIA A10G", set()),
                               ("Tesla T4", {"T4"}), ("NVIDIA GeForce RTX 4090 Laptop GPU", set())):
        table.write(tmp_path / "best.json", [entry(gpu=driver_name)])
        assert {target.name for target in NAMED if finds(target.name)} == names
        assert finds(driver_name)
        assert not finds("NVIDIA H100")  # a driver's name is matched as a whole


def test_the_users_own_table_lies_where_the_environment_says(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path))
    for given, wanted in (("~/own.json", tmp_path / "home" / "own.json"),
                          ("", tmp_path / "best.json"), ("/a/b.json", Path("/a/b.json"))):
        monkeypatch.setenv("RAWNN_BEST", given)
        assert table.user_file() == wanted
