"""The recipes: what they give is compared, their queries run here, and their page says what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.recipes.measure import HERE, OF_DELTA, RECIPES, SPARK, Outcome, Recipe, measured, submitted_outcome
from scripts.gen_recipes import page

pytestmark = pytest.mark.spark


@pytest.mark.extra
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_give_equal_rows_and_run_here(spark: SparkSession, tmp_path: Path, recipe: Recipe) -> None:
    spark.conf.set("spark.gpujoin.backend", "cpu")
    spark.conf.set("spark.gpujoin.fallback", "raise")
    outcome = measured(spark, recipe, tmp_path, 3000, 0)
    assert {way: len(seconds) for way, seconds in outcome.seconds.items()} == {HERE: 1, SPARK: 1}
    assert "island" in outcome.explanation, outcome.explanation


@pytest.mark.slow
def test_a_submitted_program_prints_the_same(tmp_path: Path) -> None:
    outcome = submitted_outcome(tmp_path, 3000, 0, ("spark.gpujoin.backend=cpu", "spark.gpujoin.fallback=raise"))
    assert outcome.median(HERE) > 0


def test_the_page_has_a_part_for_each_program_and_its_times() -> None:
    seconds = {HERE: [1.0, 2.0, 9.0], SPARK: [4.0, 5.0, 6.0]}
    recipes = (*RECIPES, *OF_DELTA)
    outcomes = [Outcome(recipe.name, recipe.title, 1000, seconds, "explained") for recipe in recipes]
    text = page([{"processor": "P", "cores": 2, "versions": {"gpujoin": "1"}}], outcomes)
    assert text.count("| 5.00 s | 2.00 s | 2.5 |") == len(recipes)
    assert "| Exploration in a notebook | not measured" in page([], [])
    for recipe in recipes:
        assert f"\n## {recipe.title.partition(':')[0]}\n" in text
