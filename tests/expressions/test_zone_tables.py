"""Clocks of time zones given as tables, without Spark."""

from __future__ import annotations

import datetime as dt
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.errors import UnsupportedValueError
from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import Expression, Function, call, left
from gpujoin.model.zones import GREGORIAN_CYCLE, ZoneRules, zone_literal
from gpujoin.plan.resolve import resolve_value

HOUR = 3600
MARCH, OCTOBER = 1711846800, 1729990800
"""The changes of 2024 in Berlin."""
BERLIN = ZoneRules((MARCH, OCTOBER), offsets=(HOUR, 2 * HOUR, HOUR))


def _seconds(function: Function, moments: list[int], rules: ZoneRules = BERLIN, *others: Expression) -> list[int]:
    batch = pa.record_batch({"t": pa.array(moments, pa.int64()).cast(pa.timestamp("s", "UTC")).cast(_MICROS)})
    tree = resolve_value(call(function, left("t"), zone_literal("here", rules), *others), batch.schema, batch.schema)
    return evaluate_column(tree, batch, batch, len(moments)).cast(pa.timestamp("s", "UTC")).cast(pa.int64()).to_pylist()


_MICROS = pa.timestamp("us", "UTC")


def test_a_clock_skips_an_hour_and_shows_one_twice() -> None:
    around = [MARCH - 1, MARCH, OCTOBER - 1, OCTOBER]
    assert _seconds(Function.FROM_UTC_TIMESTAMP, around) == [
        MARCH - 1 + HOUR, MARCH + 2 * HOUR, OCTOBER - 1 + 2 * HOUR, OCTOBER + HOUR,
    ]  # fmt: skip


def test_skipped_times_move_forward_and_the_earlier_of_two_instants_is_taken() -> None:
    gap, overlap = MARCH + HOUR, OCTOBER + HOUR
    shown = [gap - 1, gap, gap + HOUR - 1, gap + HOUR, overlap - 1, overlap, overlap + HOUR - 1, overlap + HOUR]
    assert _seconds(Function.TO_UTC_TIMESTAMP, shown) == [
        MARCH - 1, MARCH, MARCH + HOUR - 1, MARCH, OCTOBER - HOUR - 1, OCTOBER - HOUR, OCTOBER - 1, OCTOBER + HOUR,
    ]  # fmt: skip


def test_the_offset_of_another_instant_is_kept_where_it_may_be() -> None:
    overlap = OCTOBER + HOUR
    later = call(Function.TIMESTAMP_ADD, left("t"), dt.timedelta(days=1))
    assert _seconds(Function.TO_UTC_TIMESTAMP, [overlap], BERLIN, later) == [OCTOBER]
    assert _seconds(Function.TO_UTC_TIMESTAMP, [overlap - 1], BERLIN, later) == [OCTOBER - HOUR - 1]


def test_a_day_without_midnight_begins_with_the_change() -> None:
    # From 23:30 to 00:30.
    midnight = 30 * 86_400
    rules = ZoneRules((midnight - HOUR // 2,), offsets=(0, HOUR))
    assert _seconds(Function.START_OF_DAY, [midnight], rules) == [midnight - HOUR // 2]
    assert _seconds(Function.TO_UTC_TIMESTAMP, [midnight], rules) == [midnight]


def test_changes_repeat_with_the_calendar() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    start = int(dt.datetime(2100, 1, 1, tzinfo=dt.UTC).timestamp())
    hours = np.arange(start + HOUR, start + 10 * 365 * 86_400, 86_400)
    days = [int(dt.datetime.fromtimestamp(int(h), zone).utcoffset().total_seconds()) for h in hours]  # type: ignore[union-attr]
    changes = [i for i in range(1, len(days)) if days[i] != days[i - 1]]
    offsets = (HOUR, *(days[i] for i in changes))
    rules = ZoneRules(tuple(int(hours[i]) for i in changes), offsets=offsets, repeats_from=start)
    assert rules.ordered
    moments = [int(hours[i]) + delta for i in changes for delta in (-1, 0)]
    shown = _seconds(Function.FROM_UTC_TIMESTAMP, moments, rules)
    for cycles in (1, 20, 700):
        later = [m + cycles * GREGORIAN_CYCLE for m in moments]
        expected = [s + cycles * GREGORIAN_CYCLE for s in shown]
        assert _seconds(Function.FROM_UTC_TIMESTAMP, later, rules) == expected
        back = _seconds(Function.TO_UTC_TIMESTAMP, expected, rules)
        # Of a time that comes twice the earlier instant.
        assert all(instant in (moment, moment - HOUR) for instant, moment in zip(back, later, strict=True))


@pytest.mark.parametrize(
    ("rules", "ordered"),
    [
        (BERLIN, True),
        (ZoneRules((), offsets=(0,)), True),
        (ZoneRules((0, 1000), offsets=(0, HOUR, 0)), False),
        (ZoneRules((86_400,), offsets=(0, HOUR), repeats_from=0), False),
    ],
    ids=["usual", "no change", "changes that meet", "a change where the repetition begins"],
)
def test_rules_that_one_search_answers(rules: ZoneRules, ordered: bool) -> None:
    assert rules.ordered is ordered


def test_a_zone_without_rules_is_left_to_spark() -> None:
    schema = pa.schema([("t", _MICROS)])
    assert not is_supported(
        resolve_value(call(Function.FROM_UTC_TIMESTAMP, left("t"), "Europe/Berlin"), schema, schema)
    )


def test_times_beyond_64_bits_are_left_to_spark() -> None:
    batch = pa.record_batch({"t": pa.array([(1 << 63) - 1, None], pa.int64()).cast(_MICROS)})
    zone = zone_literal("Europe/Berlin", BERLIN)
    shown = resolve_value(call(Function.FROM_UTC_TIMESTAMP, left("t"), zone), batch.schema, batch.schema)
    with pytest.raises(UnsupportedValueError):
        evaluate_column(shown, batch, batch, 2)
    nulls = batch.slice(1, 1)
    assert evaluate_column(shown, nulls, nulls, 1).null_count == 1
