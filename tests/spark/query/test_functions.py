"""Functions by name in SQL, as Spark's optimizer leaves them: the answer, and that islands compute them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from gpujoin.report.explanation import Explanation
from gpujoin.spark.catalyst import java
from gpujoin.spark.query.accelerate import rewrite
from tests.spark.query.queries import FORCED, check

pytestmark = pytest.mark.spark
SILENT = FORCED | {"spark.gpujoin.fallback": "silent"}
MODES = [FORCED | {"spark.sql.ansi.enabled": ansi} for ansi in ("true", "false")]
NUMBERS = (
    "exp(weight)", "expm1(weight)", "ln(k)", "log(10, price)", "log2(price)", "log10(weight)", "log1p(weight)",
    "pow(weight, k)", "power(price, 2)", "cbrt(price)", "hypot(price, weight)", "acos(weight)", "asin(weight)",
    "atan(price)", "atan2(price, weight)", "sinh(weight)", "cosh(weight)", "tanh(price)",
    "atanh(weight)", "rint(price)", "factorial(k)", "bit_get(k, 1)", "getbit(id, 0)", "format_number(price, 1)",
    "format_number(k, 2)", "space(k)", "bitmap_bucket_number(id)", "bitmap_bit_position(id)",
)  # fmt: skip
TEXTS = (
    "overlay(s placing 'ab' from 2)", "overlay(s placing s from k for 1)", "find_in_set(s, 'y,x,ü')",
    "mask(cast(price as string))", "luhn_check(cast(id as string))", "quote(s)", "regexp_instr(s, 'z')",
    "base64(cast(s as binary))", "unbase64(base64(s))", "unhex(hex(s))", "encode(s, 'utf-8')",
    "decode(cast(s as binary), 'UTF-8')", "url_encode(s)", "url_decode(url_encode(s))",
    "parse_url(concat('http://h/', url_encode(s)), 'PATH')", "try_parse_url(s, 'HOST')",
    "parse_url('http://h/?k=' || k, 'QUERY', 'k')", "format_string('%s: %05d%%', s, k)", "printf('%.2f', weight)",
    "contains(cast(s as binary), X'78')", "startswith(cast(s as binary), X'78')", "endswith(cast(s as binary), X'7A')",
)  # fmt: skip


def in_islands(found: Explanation) -> bool:
    """Whether islands read files alone: Spark computes nothing for them."""
    return bool(found.islands) and not any(
        "rows from Spark" in line for island in found.islands for line in island.tree
    )


@pytest.mark.few
@pytest.mark.parametrize("spark", MODES, indirect=True, ids=["ansi", "legacy"])
@pytest.mark.parametrize("calls", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_islands_compute_functions(tables: SparkSession, calls: tuple[str, ...]) -> None:
    # Spark 4.0 has no quote.
    calls = tuple(call for call in calls if tables.catalog.functionExists(call.partition("(")[0]))
    columns = ", ".join(f"{call} c{i}" for i, call in enumerate(calls))
    names = ", ".join(f"max(c{i}) c{i}" for i in range(len(calls)))
    values = f"select id, k, {columns} from sales"
    found = check(tables.sql(f"select v.id, i.k, {names} from ({values}) v join items i on v.k = i.k group by 1, 2"))
    assert in_islands(found), str(found)


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["silent"])
def test_functions_that_follow_settings_are_left_to_spark(tables: SparkSession) -> None:
    queries = [
        f"select a.v, i.item from (select {call} v, k from sales) a join items i on a.k = i.k"
        for call in ("base64(s)", "decode(cast(s as binary), 'UTF-8')")
    ]
    assert all(in_islands(rewrite(tables.sql(query)).explanation) for query in queries)
    tables.conf.set("spark.sql.chunkBase64String.enabled", "false")
    tables.conf.set("spark.sql.legacy.codingErrorAction", "true")
    assert not any(in_islands(rewrite(tables.sql(query)).explanation) for query in queries)


@pytest.mark.parametrize("spark", [SILENT], indirect=True, ids=["silent"])
def test_functions_of_another_java_are_left_to_spark(tables: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_FDLIBM_VERSIONS", range(8, 9))
    monkeypatch.setattr(java, "other_than_strict", java.other_than_strict.__wrapped__)  # type: ignore[attr-defined]
    query = "select a.v, i.item from (select {}(weight) v, k from sales) a join items i on a.k = i.k"
    assert in_islands(rewrite(tables.sql(query.format("exp"))).explanation)
    assert not in_islands(rewrite(tables.sql(query.format("tanh"))).explanation)
