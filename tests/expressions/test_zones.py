"""Functions that read a clock in the session's time zone, against Spark, around the changes of its offset."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from gpujoin.model.zones import GREGORIAN_CYCLE, ZoneRules
from gpujoin.spark.catalyst.zones import rules_of
from gpujoin.spark.jvm.gateway import gateway_of
from tests.brief import brief
from tests.expressions.translated import SqlJudge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ZONES = (
    "Europe/Berlin", "America/New_York", "America/Los_Angeles", "Africa/Casablanca", "Asia/Kolkata",
    "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Tehran", "America/Toronto", "Africa/Monrovia",
    "Asia/Manila", "+05:30", "-18:00", "UTC+3", "America/St_Johns", "Antarctica/Troll", "Europe/Dublin",
)  # fmt: skip
_SECOND = 10**6
_DAY = 86_400 * _SECOND
_FIRST, _LAST = -62_135_596_800 * _SECOND, 253_402_300_799 * _SECOND
"""The years 1 and 9999."""
_GREGORIAN = -12_219_292_800 * _SECOND
"""1582-10-15."""
_DISTANCES = (0, 1, 30 * 60 * _SECOND, 3600 * _SECOND, 3 * 3600 * _SECOND, 24 * 3600 * _SECOND)

READING = (
    *(f"{part}(t)" for part in ("year", "month", "day", "hour", "minute", "second", "quarter", "dayofweek",
                                "weekofyear", "dayofyear", "weekday", "last_day", "dayname", "unix_timestamp")),
    *(f"cast(t as {kind})" for kind in ("date", "string", "timestamp_ntz", "bigint", "double")),
    "date_format(t, 'yyyy-MM-dd HH:mm:ss.SSSSSS')", "from_unixtime(unix_seconds(t))", "t > cast(d as timestamp)",
    "datediff(t, d)", "add_months(t, n)", "date_add(t, 3)", "extract(hour from t)", "trunc(t, 'month')",
)  # fmt: skip
MAKING = (
    "cast(d as timestamp)", "cast(z as timestamp)", "to_timestamp(d)", "unix_timestamp(d)",
    *(f"date_trunc('{unit}', t)" for unit in ("microsecond", "second", "minute", "hour", "day", "week", "month",
                                              "quarter", "year")),
    *(f"t {sign} interval '{days}' day" for sign in "+-" for days in (1, 40, 3000)),
    "t + interval '1 02:03:04.000005' day to second", "t - interval '30 23:59:59' day to second",
    "t + interval '1' hour * n", "t - n * interval '36' hour", "t + interval '1' day * n",
    "z - interval '90' minute * n",
    "t + interval '-1 00:00:00.000001' day to second * n", "t + if(n > 0, interval '40' day, interval '-3' hour)",
    "t + case n when 1 then interval '1' day when 12 then null when 0 then interval '26' hour end",
    "t + make_interval(0, 0, 0, 1, 25)", "t - make_interval(0, 0, 0, 0, 49)",
    "z + make_interval(0, 0, 1, 0, 0, 3, 1.5)",
    "t + interval '23:59' hour to minute", "months_between(t, u)", "months_between(t, u, false)",
    "months_between(d, t)",
    "from_utc_timestamp(t, 'Asia/Tehran')", "to_utc_timestamp(t, 'America/New_York')",
    *(f"timestampadd({unit}, {quantity}, t)" for quantity in ("n", "-3")
      for unit in ("second", "hour", "day", "week", "month", "quarter", "year")),
    *(f"timestampdiff({unit}, t, u)" for unit in ("microsecond", "second", "hour", "day", "week", "month", "quarter",
                                                  "year")),
    "t + interval '1' month", "t - interval '13' month", "t + interval '2' year", "z + interval '1' month",
    "timestampadd(day, n, z)", "timestampadd(month, n, z)", "timestampadd(minute, 5, z)", "dateadd(hour, n, t)",
    "make_timestamp(year(z), month(z), day(z), hour(z), minute(z), extract(second from z))",
    "make_timestamp(year(z), month(z), day(z), hour(z), minute(z), 60)",
    "make_timestamp(year(z), month(z), day(z), hour(z), minute(z), 1.5, 'America/New_York')",
    "make_timestamp_ntz(year(z), month(z), day(z), hour(z), minute(z), extract(second from z))",
    "make_timestamp_ltz(year(z), month(z), day(z), hour(z), minute(z), 0)",
    "extract(second from t)", "convert_timezone('Europe/Paris', 'Asia/Tokyo', z)", "convert_timezone('Asia/Tokyo', z)",
    "cast(cast(z as string) as timestamp)", "to_timestamp(cast(z as string))", "to_timestamp_ntz(cast(z as string))",
    "cast(concat(cast(z as string), 'Z') as timestamp)", "cast(concat(cast(z as string), ' +01:30') as timestamp)",
    *(f"{function}(date_format(t, '{pattern}'), '{pattern}')"
      for function in ("to_timestamp", "to_date", "unix_timestamp", "try_to_timestamp")
      for pattern in ("yyyy-MM-dd HH:mm:ss", "yyyyMMdd", "dd/MM/yyyy HH:mm", "yyyy-MM", "yyyy.MM.dd_HH")),
)  # fmt: skip


def _instants(rules: ZoneRules, rng: random.Random, count: int) -> list[int]:
    """Instants around changes of the offset, and anywhere in the years 1 to 9999."""
    special = [0, -1, _FIRST + 2 * _DAY, _LAST - 2 * _DAY, _GREGORIAN, _GREGORIAN - 1, -2_208_988_800 * _SECOND]
    changes = [t * _SECOND for t in rules.transitions]
    if changes and rules.repeats_from is not None:
        changes += [t + GREGORIAN_CYCLE * _SECOND for t in changes if t >= rules.repeats_from * _SECOND]
    values = list(special)
    while len(values) < count:
        if changes and rng.random() < 0.8:
            near = rng.choice(changes) + rng.choice((1, -1)) * rng.choice(_DISTANCES)
            values.append(near + rng.choice((0, -1, rng.randrange(-3600, 3600) * _SECOND)))
        else:
            values.append(rng.randrange(_FIRST + 2 * _DAY, _LAST - 2 * _DAY))
    return [v for v in values if _FIRST < v < _LAST]


def _table(rules: ZoneRules, seed: int, count: int) -> pa.Table:
    rng = random.Random(seed)
    moments = _instants(rules, rng, count)
    offsets = [o * _SECOND for o in rules.offsets]
    clocks = [m + rng.choice(offsets) for m in _instants(rules, rng, len(moments))][: len(moments)]
    others = [rng.choice(moments) for _ in moments]

    def column(values: Sequence[int], dtype: pa.DataType) -> pa.Array:
        whole = pa.int32() if dtype.bit_width == 32 else pa.int64()
        return pa.array([None if rng.random() < 0.02 else v for v in values], whole).view(dtype)

    return pa.table(
        {
            "t": column(moments, pa.timestamp("us", "UTC")),
            "u": column(others, pa.timestamp("us", "UTC")),
            "z": column(clocks, pa.timestamp("us")),
            "d": column([c // _DAY for c in clocks], pa.date32()),
            "n": column([rng.choice((0, 1, -1, 12, 7, -25)) for _ in moments], pa.int32()),
        }
    )


@pytest.fixture
def session(spark_session: SparkSession) -> Iterator[SparkSession]:
    """A session whose time zone and mode are put back."""
    names = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
    before = {name: str(spark_session.conf.get(name)) for name in names}
    yield spark_session
    for name, value in before.items():
        spark_session.conf.set(name, value)


def _judge(session: SparkSession, zone: str, seed: int, folder: Path, rows: int) -> SqlJudge:
    print(f"seed {seed}")
    rules = rules_of(gateway_of(session), zone)
    assert rules is not None
    session.conf.set("spark.sql.session.timeZone", zone)
    return SqlJudge(session, _table(rules, seed, rows), folder / "rows.parquet")


@pytest.mark.parametrize("zone", brief(ZONES, "Pacific/Apia"))
def test_clocks_are_read_as_spark_does(session: SparkSession, zone: str, seed: int, tmp_path: Path) -> None:
    judge = _judge(session, zone, seed, tmp_path, 3_000)
    judge.check((*READING, *MAKING))


@pytest.mark.slow
@pytest.mark.parametrize("ansi", ["true", "false"], ids=["ansi", "legacy"])
@pytest.mark.parametrize("zone", ZONES)
def test_clocks_in_bulk(session: SparkSession, zone: str, ansi: str, seed: int, tmp_path: Path) -> None:
    session.conf.set("spark.sql.ansi.enabled", ansi)
    judge = _judge(session, zone, seed + 1, tmp_path, 10_000)
    judge.check(READING)
    judge.check(MAKING)


def test_rules_of_all_zones_are_searched_once(spark_session: SparkSession) -> None:
    gateway = gateway_of(spark_session)
    names = [str(name) for name in gateway.java.time.ZoneId.getAvailableZoneIds().toArray()]
    unordered = [name for name in names if rules_of(gateway, name) is None]
    assert len(names) > 500
    assert not unordered
