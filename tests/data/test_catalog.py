from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from rawnn.data import catalog


@pytest.mark.parametrize("entry", catalog.NAMED.values(), ids=lambda entry: entry.name)
def test_entries_are_complete(entry: catalog.NamedDataset) -> None:
    assert entry.name in catalog.DATASETS
    assert [file.stem for file in entry.files] == list(catalog.STEMS)
    assert [file.size for file in entry.files] == [47040016, 60008, 7840016, 10008]
    assert all(len(bytes.fromhex(file.sha256)) == 32 for file in entry.files)
    assert {urlsplit(mirror).scheme for mirror in entry.mirrors} == {"https"}
    assert len({urlsplit(mirror).hostname for mirror in entry.mirrors}) >= 2
    assert all(mirror.endswith("/") for mirror in entry.mirrors)


def test_mnist_sums_are_the_published_ones() -> None:
    prefixes = [file.sha256[:8] for file in catalog.NAMED["mnist"].files]
    assert prefixes == ["ba891046", "65a50cbb", "0fa7898d", "ff7bcfd4"]


def test_spellings() -> None:
    assert catalog.spellings("t10k-labels-idx1-ubyte") == (
        "t10k-labels-idx1-ubyte",
        "t10k-labels.idx1-ubyte",
        "t10k-labels-idx1-ubyte.gz",
        "t10k-labels.idx1-ubyte.gz",
    )
