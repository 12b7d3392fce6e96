"""The toggle batch: another size is another recipe, and the largest that fits is found."""

from __future__ import annotations

import pytest

from rawnn.common.errors import ConfigError
from rawnn.opts import batch
from rawnn.plan.recipe import Recipe


def test_another_batch_is_another_recipe() -> None:
    recipe, words = batch.with_batch(512, Recipe(128), 60_000, 0, lambda r: 0)
    assert recipe == Recipe(512)
    assert words.startswith("batch 512 makes 117 steps an epoch in place of 468")
    assert batch.with_batch(60_000, Recipe(128), 60_000, 0, lambda r: 0)[0] == Recipe(60_000)
    with pytest.raises(ConfigError, match="larger than the training set"):
        batch.with_batch(60_001, Recipe(128), 60_000, 0, lambda r: 0)


def test_the_largest_batch_is_found_by_bisection() -> None:
    asked = []

    def needed(recipe: Recipe) -> int:
        asked.append(recipe.batch)
        return 1000 + 10 * recipe.batch

    recipe, _ = batch.with_batch("max", Recipe(128), 60_000, 100_000, needed)
    assert recipe.batch == (batch.SHARE * 100_000 - 1000) // 10
    assert len(asked) < 20
    assert batch.with_batch("max", Recipe(8), 50, 100_000, needed)[0].batch == 50
    with pytest.raises(ConfigError, match="not even one example"):
        batch.with_batch("max", Recipe(8), 50, 500, needed)
    with pytest.raises(ConfigError, match="on the host: give batch=N"):
        batch.with_batch("max", Recipe(8), 50, 0, needed)
