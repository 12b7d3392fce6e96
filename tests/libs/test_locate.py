"""Where the file of a CUDA library is looked for: folder after folder, in each name after name."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from rawnn.cuda import library_folders
from rawnn.cuda.libs import locate

NAMES = ("liba.so.2", "liba.so.1")
WHEELS = ("a/lib", "cu13/lib")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """All that may hold a library here, in the order of the documentation of `candidates`."""
    roots = {name: tmp_path / name for name in ("wheels", "conda", "loader", "toolkit", "system")}
    monkeypatch.setattr(library_folders, "wheels", lambda: [roots["wheels"]])
    monkeypatch.setattr(library_folders, "conda", lambda: [roots["conda"]])
    monkeypatch.setattr(library_folders, "loader", lambda: [roots["loader"]])
    monkeypatch.setattr(library_folders, "toolkits", lambda: [roots["toolkit"]])
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", (str(roots["system"]),))
    return [roots["wheels"] / "a/lib", roots["wheels"] / "cu13/lib", roots["conda"] / "lib",
            roots["loader"], roots["toolkit"] / "lib64", roots["system"]]


def test_the_first_folder_that_has_one_of_the_names(folders: list[Path]) -> None:
    assert list(locate.candidates(WHEELS)) == folders
    assert locate.find(NAMES, WHEELS) is None
    for folder in folders:
        (folder / NAMES[0]).mkdir(parents=True)  # is no file
    assert locate.find(NAMES, WHEELS) is None
    for folder in folders:
        (folder / NAMES[0]).rmdir()
    # From the last place to the first: each is found as soon as it is there.
    for folder, name in product(reversed(folders), reversed(NAMES)):
        (folder / name).write_bytes(b"")
        assert locate.find(NAMES, WHEELS) == folder / name


def test_the_error_names_every_place_and_the_reason(folders: list[Path]) -> None:
    text = str(locate.missing("A", NAMES, WHEELS, "no such file"))
    assert text.startswith("A (liba.so.2 or liba.so.1) cannot be loaded (no such file); looked")
    assert f"in {', '.join(map(str, folders))}; install" in text
    assert "cannot be loaded; looked" in str(locate.missing("A", NAMES, WHEELS))
