"""Upper, lower and title case: every character that is mapped here is mapped as in Spark, by ICU and by the JVM."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.cases import is_settled
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.model.expressions import Function, call, left
from gpujoin.plan.resolve import resolve_value
from tests.expressions.judge import Judge

CASES = (Function.UPPER, Function.LOWER, Function.INITCAP)
TEXTS = [
    None, "", "a", "ABC def", "straße", "STRASSE", "éÉ", "ﬁn", "a  b ", " a", "日本 語", "😀x y", "ŉ", "привет МИР",
    "ǆ", "ª", "ⅷ", "ﬅ", "e\u0301a", "ıI", "\0a", "x\ny", "ΑΒΓ", "όσο", "kK\u212a", "ა", "𐐨", "Ǆ ǅ", "ſ", "ᾳ", "Ÿ ÿ",
]  # fmt: skip
UNSETTLED = {"upper": ["ɤ", "\u0378"], "lower": ["ΟΔΟΣ", "İ", "Σ"], "initcap": ["ß", "a Σ", "ﬁn", "ǆ", "ა"]}


def mapped(function: Function, texts: list[str | None]) -> pa.Array:
    batch = pa.record_batch({"s": pa.array(texts, pa.string())})
    return evaluate_column(
        resolve_value(call(function, left("s")), batch.schema, batch.schema), batch, batch, len(texts)
    )


def mapped_rows(function: Function, texts: list[str | None], start: int = 0) -> list[int]:
    """Rows of the texts that are not refused."""
    try:
        mapped(function, texts)
    except UnsupportedValueError:
        half = len(texts) // 2
        if not half:
            return []
        return mapped_rows(function, texts[:half], start) + mapped_rows(function, texts[half:], start + half)
    return list(range(start, start + len(texts)))


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in UNSETTLED.items() for text in texts])
def test_unsettled_characters_are_left_to_spark(name: str, text: str) -> None:
    with pytest.raises(UnsupportedValueError, match="Unicode"):
        mapped(Function(name), ["abc", text, None])


def test_ascii_text_is_mapped_beside_other_text() -> None:
    assert mapped(Function.UPPER, ["abc", "straße", None, "x1"]).to_pylist() == ["ABC", "STRASSE", None, "X1"]


def differences(spark: SparkSession, folder: Path, texts: list[str | None]) -> list[str]:
    """Texts of which a function makes here something else than in Spark, with either library."""
    pq.write_table(pa.table({"id": range(len(texts)), "s": pa.array(texts, pa.string())}), folder / "texts.parquet")
    frame = spark.read.parquet(str(folder / "texts.parquet"))
    problems = []
    for icu in ("true", "false"):
        spark.conf.set("spark.sql.icu.caseMappings.enabled", icu)
        expected = frame.selectExpr("id", *(f"{f.value}(s) as {f.value}" for f in CASES)).toArrow().sort_by("id")
        for function in CASES:
            rows = mapped_rows(function, texts)
            assert len(rows) > len(texts) // 2
            own = mapped(function, [texts[i] for i in rows]).to_pylist()
            theirs = expected[function.value].take(rows).to_pylist()
            problems += [
                f"{function.value}({texts[i]!r}) is {a!r}, in Spark {b!r} (ICU: {icu})"
                for i, a, b in zip(rows, own, theirs, strict=True)
                if a != b
            ]
    return problems


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.value)
def test_texts(judge_of: Callable[[pa.Table], Judge], function: Function) -> None:
    texts = [TEXTS[row] for row in mapped_rows(function, TEXTS)]
    assert len(texts) > len(TEXTS) // 2
    rows = pa.array(range(len(texts)), pa.int32())
    judge_of(pa.table({"id": rows, "left_s": pa.array(texts, pa.string())})).check([call(function, left("s"))])


@pytest.mark.extra
@pytest.mark.spark
def test_every_settled_character(spark: SparkSession, tmp_path: Path) -> None:
    surrogates = range(0xD800, 0xE000)
    chars = [chr(c) for c in range(sys.maxunicode + 1) if c not in surrogates and is_settled(chr(c))]
    assert len(chars) > 200_000
    problems = differences(spark, tmp_path, [*chars, *(f"a {c}b" for c in chars if c.upper() != c.lower())])
    assert not problems, "\n".join(problems[:20])
