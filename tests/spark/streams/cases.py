"""Cases of Spark's own suites of joins of streams: what is joined, what is added, how many rows each addition gives.

Names follow those of Spark's cases. A case is run twice, by Spark and here, and compared micro-batch by micro-batch.
The numbers of rows are facts of Spark's suites, and tell that the case is the one of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

Row = tuple[int | None, ...]
"""A key, and a time in seconds: that of the key where there is none."""
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"


@dataclass(frozen=True)
class Feed:
    """The inputs of a query: rows of one source, so that a micro-batch has those of all that were added at once.

    Attributes
    ----------
    rows : DataFrame
        Columns ``input`` (the number of one), ``n``, ``second`` and ``text``.
    run : int
        How often the query was started before.
    """

    rows: DataFrame
    run: int = 0

    def __call__(self, number: int, *columns: str, watermark: str = "", delay: str = "10 seconds") -> DataFrame:
        """Give the columns of one input, with a watermark on one of them."""
        return self._of(self.rows.where(f"input = {number}"), columns, watermark, delay)

    def all(self, *columns: str, watermark: str = "", delay: str = "10 seconds", where: str = "true") -> DataFrame:
        """Give the columns of all rows."""
        return self._of(self.rows.where(where), columns, watermark, delay)

    def _of(self, rows: DataFrame, columns: tuple[str, ...], watermark: str, delay: str) -> DataFrame:
        chosen = rows.selectExpr(*columns)
        return chosen.withWatermark(watermark, delay) if watermark else chosen


Query = Callable[[Feed], DataFrame]


@dataclass(frozen=True)
class Add:
    """Rows that are added to the inputs at once, and how many new rows the query gives then."""

    inputs: tuple[tuple[Row, ...], ...]
    gives: int


class Restart(Enum):
    """The query is stopped, and started again from its checkpoint."""

    RESTART = "restart"


RESTART = Restart.RESTART


class Where(Enum):
    """Who joins."""

    HERE = "here"
    SPARK = "Spark"
    REFUSED = "refused by Spark"


@dataclass(frozen=True)
class Case:
    """A case of a suite.

    Attributes
    ----------
    query : callable
        The query of its inputs.
    steps : tuple of Add or RESTART
        What happens.
    where : Where
        Who joins.
    why : str
        Part of the reason for which it is left to Spark, or of Spark's error.
    settings : mapping of str to str
        Settings of the session.
    """

    query: Query
    steps: tuple[Add | Restart, ...]
    where: Where = Where.HERE
    why: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def ns(*numbers: int | None) -> tuple[Row, ...]:
    """Rows of one number, which is the key and the time."""
    return tuple((number, number) for number in numbers)


def add(*inputs: tuple[Row, ...], gives: int = 0) -> Add:
    """Add rows to the inputs in their order."""
    return Add(inputs, gives)


def left(*numbers: int | None, gives: int = 0) -> Add:
    """Add rows of one number to the first input."""
    return add(ns(*numbers), gives=gives)


def right(*numbers: int | None, gives: int = 0) -> Add:
    """Add rows of one number to the second input."""
    return add((), ns(*numbers), gives=gives)


# -- queries -----------------------------------------------------------------------------------------------------

WINDOW = "window(at, '10 seconds') as window"


def by_key(feed: Feed) -> DataFrame:
    sides = feed(0, "n as key", "n * 2 as leftValue"), feed(1, "n as key", "n * 3 as rightValue")
    return sides[0].join(sides[1], "key")


def unequal_keys(feed: Feed) -> DataFrame:
    sides = feed(0, "n as leftKey", "n * 2 as leftValue"), feed(1, "n as rightKey", "n * 3 as rightValue")
    return sides[0].join(sides[1], expr("leftKey < rightKey"))


def null_safe_keys(feed: Feed) -> DataFrame:
    sides = feed(0, "n as leftKey", "n * 2 as leftValue"), feed(1, "n as rightKey", "n * 3 as rightValue")
    return sides[0].join(sides[1], expr("leftKey <=> rightKey"))


def windowed(how: str, condition: str = "", watermarks: tuple[bool, bool] = (True, True)) -> Query:
    """Join by key and window of ten seconds."""

    def query(feed: Feed) -> DataFrame:
        lefts, rights = (
            feed(
                number, "n as key", "timestamp_seconds(second) as at", f"n * {factor} as {value}",
                watermark="at" if watermarks[number] else "",
            ).selectExpr("key", WINDOW, value).alias(name)
            for number, factor, value, name in ((0, 2, "leftValue", "l"), (1, 3, "rightValue", "r"))
        )  # fmt: skip
        text = "l.key = r.key and l.window = r.window" + (f" and {condition}" if condition else "")
        ends = ["l.key as lk", "cast(l.window.end as long) as le", "leftValue"]
        if how != "left_semi":
            ends += ["r.key as rk", "cast(r.window.end as long) as re", "rightValue"]
        return lefts.join(rights, expr(text), how).selectExpr(*ends)

    return query


def ranged(how: str, condition: str, delays: tuple[str, str] = ("10 seconds", "10 seconds")) -> Query:
    """Join by key under a condition of times."""

    def query(feed: Feed) -> DataFrame:
        lefts, rights = (
            feed(
                number, f"n as {name}Key", f"timestamp_seconds(second) as {name}Time", f"n * {factor} as {name}Value",
                watermark=f"{name}Time", delay=delays[number],
            )
            for number, name, factor in ((0, "left", 2), (1, "right", 3))
        )  # fmt: skip
        columns = ["leftKey", "cast(leftTime as int) as lt"]
        if how != "left_semi":
            columns += ["rightKey", "cast(rightTime as int) as rt"]
        return lefts.join(rights, expr(f"leftKey = rightKey and {condition}"), how).selectExpr(*columns)

    return query


def around(how: str, bound: str = "interval 5 seconds", delay: str = "10 seconds") -> Query:
    """Join by key where times are near each other."""
    return ranged(how, f"leftTime between rightTime - {bound} and rightTime + {bound}", (delay, delay))


def with_itself(how: str, *, mirrored: bool = False) -> Query:
    """Join a stream with its even numbers, up to five seconds later."""
    names = ("right", "left") if mirrored else ("left", "right")
    early, late = names

    def query(feed: Feed) -> DataFrame:
        sides = {
            name: feed.all(
                f"n as {name}Id", f"timestamp_seconds(second) as {name}Time", watermark=f"{name}Time",
                delay="5 seconds", where="n % 2 = 0" if name == late else "true",
            )
            for name in names
        }  # fmt: skip
        text = f"leftId = rightId and {late}Time >= {early}Time and {late}Time <= {early}Time + interval 5 seconds"
        columns = ["leftId", "cast(leftTime as int) as lt"]
        if how != "left_semi":
            columns += ["rightId", "cast(rightTime as int) as rt"]
        return sides["left"].join(sides["right"], expr(text), how).selectExpr(*columns)

    return query


def modulo_with_itself(feed: Feed) -> DataFrame:
    sides = [feed.all("n % 5 as key", f"n as v{number}") for number in range(2)]
    return sides[0].join(sides[1], "key")


def three_streams(feed: Feed) -> DataFrame:
    first, second, third = (
        feed(number, f"n as {name}Key", f"n * {factor} as {name}Value")
        for number, (name, factor) in enumerate((("left", 2), ("middle", 3), ("right", 5)))
    )
    return first.join(second, expr("leftKey = middleKey")).join(third, expr("rightKey = middleKey"))


def partitioned_otherwise(feed: Feed) -> DataFrame:
    sides = feed(0, "n as a", "n * 2 as b"), feed(1, "n as a", "n * 2 as b").repartition("b")
    return sides[0].join(sides[1], ["a", "b"]).select("a")


def below_a_union(feed: Feed) -> DataFrame:
    """A join in a union with rows of a number of partitions that changes when the query is started again."""
    plain = feed(2, "n as key", "n as leftValue", "n as rightValue").repartition(2 + feed.run)
    lefts, rights = (
        feed(number, f"n as {name}Key", f"timestamp_seconds(second) as {name}Time", f"n * {factor} as {name}Value",
             watermark=f"{name}Time")
        for number, name, factor in ((0, "left", 2), (1, "right", 3))
    )  # fmt: skip
    joined = lefts.join(rights, expr("leftKey = rightKey and leftTime = rightTime"), "inner")
    return plain.union(joined.selectExpr("leftKey", "leftValue", "rightValue"))


def named(delays: tuple[str, str]) -> Query:
    """Left outer join by one text within 30 seconds."""

    def query(feed: Feed) -> DataFrame:
        lefts, rights = (
            feed(number, "timestamp_seconds(second) as eventTime", "'abc' as id", "text",
                 watermark="eventTime", delay=delays[number]).alias(name)
            for number, name in ((0, "l"), (1, "r"))
        )  # fmt: skip
        bounds = "r.eventTime - interval 30 seconds and r.eventTime + interval 30 seconds"
        joined = lefts.join(rights, expr(f"l.id = r.id and l.eventTime between {bounds}"), "left_outer")
        return joined.selectExpr("l.eventTime as lt", "l.text as lx", "r.eventTime as rt", "r.text as rx")

    return query


def two_keys_and_window(feed: Feed) -> DataFrame:
    """Left outer join by a null-safe key, another key, and the window."""
    lefts, rights = (
        feed(number, f"n as {name}Key1", f"second as {name}Key2", f"timestamp_seconds(second) as {name}Time",
             f"second * {factor} as {name}Value", watermark=f"{name}Time")
        .selectExpr(f"{name}Key1", f"{name}Key2", f"window({name}Time, '10 seconds') as {name}Window", f"{name}Value")
        for number, name, factor in ((0, "left", 2), (1, "right", 3))
    )  # fmt: skip
    text = "leftKey1 <=> rightKey1 and leftKey2 = rightKey2 and leftWindow = rightWindow"
    return lefts.join(rights, expr(text), "left_outer").selectExpr(
        "leftKey1",
        "rightKey1",
        "leftKey2",
        "rightKey2",
        "cast(leftWindow.end as long) as e",
        "leftValue",
        "rightValue",
    )


def key_and_time(feed: Feed) -> DataFrame:
    """Left outer join by key and time, without delay."""
    lefts, rights = (
        feed(
            number,
            f"n as {name}",
            f"timestamp_seconds(second) as {name}t",
            watermark=f"{name}t",
            delay="0 seconds",
        )
        for number, name in ((0, "l"), (1, "r"))
    )
    return lefts.join(rights, expr("l = r and lt = rt"), "left_outer")


def chained_left_outer(feed: Feed) -> DataFrame:
    """Left outer joins of three streams by key and time."""
    first, second, third = (
        feed(
            number,
            f"n as {name}",
            f"timestamp_seconds(second) as {name}t",
            watermark=f"{name}t",
            delay="0 seconds",
        )
        for number, name in enumerate(("a", "b", "c"))
    )
    both = first.join(second, expr("a = b and at = bt"), "left_outer").select("a", "at", "b")
    return both.join(third, expr("a = c and at = ct"), "left_outer")


def other_condition(feed: Feed) -> DataFrame:
    """A join by key and times; by one key more when the query is started again."""
    condition = "rightTime >= leftTime and rightTime <= leftTime + interval 5 seconds"
    more = " and leftValue * 3 = rightValue * 2" if feed.run else ""
    return ranged("inner", condition + more, ("5 seconds", "5 seconds"))(feed)


def other_columns(feed: Feed) -> DataFrame:
    """A join by key and times; with a column more when the query is started again."""
    lefts, rights = (
        feed(number, f"n as {name}Key", f"timestamp_seconds(second) as {name}Time", *more(name, feed.run),
             watermark=f"{name}Time", delay="5 seconds")
        for number, name in ((0, "left"), (1, "right"))
    )  # fmt: skip
    return lefts.join(
        rights,
        expr("leftKey = rightKey and rightTime >= leftTime and rightTime <= leftTime + interval 5 seconds"),
    )


def more(name: str, run: int) -> list[str]:
    """Columns that a side has when the query is started again."""
    return [f"text as {name}Text"] * run


# -- cases -------------------------------------------------------------------------------------------------------

EXCLUSION_LEFT = "leftValue > 4"
EXCLUSION_RIGHT = "rightValue > 7"
ONE_TO_FIVE, THREE_TO_SEVEN = ns(1, 2, 3, 4, 5), ns(3, 4, 5, 6, 7)
MINUTES = {
    "minutes and seconds": "interval 3 minutes 30 seconds",
    "a literal": "interval '3:30' minute to second",
}
DAY = 1_577_923_200
"""2020-01-02."""


def excluded(how: str, side: str, *, first: int, second: int) -> Case:
    """Rows of one side that can never match, by the condition; ``third`` gives one row."""
    condition = EXCLUSION_LEFT if side == "left" else EXCLUSION_RIGHT
    given = (ns(1, 2, 3), ns(3, 4, 5)) if side == "left" else (ns(3, 4, 5), ns(1, 2, 3))
    return Case(
        windowed(how, condition),
        (add(*given, gives=first), add(ns(20), ns(21), gives=second), right(20, gives=1)),
    )


def near(how: str, bound: str = "", *, last: int) -> Case:
    """Times within five seconds, or within minutes."""
    if bound:
        steps = (
            add(((1, 210), (3, 5))), add((), ((1, 300), (2, 5)), gives=1), add((), ((1, 450),)),
            add(((1, 260), (1, 1800)), gives=2), add((), ((0, 1800),), gives=last),
        )  # fmt: skip
        return Case(around(how, bound, "10 minutes"), steps)
    return Case(
        around(how),
        (
            add(((1, 5), (3, 5))), add((), ((1, 10), (2, 5)), gives=1), add((), ((1, 11),)),
            add(((1, 7), (1, 30)), gives=2), add((), ((0, 30),), gives=last),
        ),
    )  # fmt: skip


def itself(how: str, *, mirrored: bool = False, last: int) -> Case:
    return Case(
        with_itself(how, mirrored=mirrored),
        (left(*range(1, 6), gives=2), left(*range(6, 11), gives=3), left(*range(11, 16), gives=last)),
    )


def nullable(lefts: tuple[int | None, ...], rights: tuple[int | None, ...]) -> Case:
    """Null-safe keys at second 1 to 5, and 3 to 6."""
    given = tuple(zip(lefts, range(1, 6), strict=True)), tuple(zip(rights, range(3, 7), strict=True))
    return Case(two_keys_and_window, (add(*given, gives=3), add(((1, 21),), ((1, 22),), gives=2)))


INNER = {
    "on non-time column": Case(
        by_key,
        (
            left(1), right(1, 10, gives=1), left(10, gives=1), right(1, gives=1), RESTART, left(1, gives=2), RESTART,
            add(ns(100), ns(100), gives=1),
        ),
    ),
    "on windows, without watermark": Case(
        windowed("inner", watermarks=(False, False)),
        (
            left(1), right(1, gives=1), RESTART, left(25), RESTART, right(25, gives=1), left(1, gives=1), RESTART,
            left(5), right(5, gives=1),
        ),
    ),
    "on windows, with watermark": Case(
        windowed("inner", watermarks=(True, False)),
        (left(1), right(1, gives=1), RESTART, left(25), right(25, gives=1), RESTART, right(1), left(5)),
    ),
    "time range, one side condition": Case(
        ranged("inner", "leftTime < rightTime - interval 5 seconds"),
        (
            add(((1, 5),)), add((), ((1, 11),), gives=1), add((), ((1, 10),)), add(((1, 3), (1, 30)), gives=2),
            add((), ((0, 30),)), add((), ((1, 20), (1, 21), (1, 28)), gives=4), add(((1, 20), (1, 21)), gives=1),
        ),
    ),
    "time range, two side conditions": Case(
        ranged(
            "inner", "leftTime between rightTime - interval 10 seconds and rightTime + interval 5 seconds",
            ("20 seconds", "30 seconds"),
        ),
        (
            add(((1, 20),)), add((), tuple((1, at) for at in (14, 15, 25, 26, 30, 31)), gives=4), add((), ((1, 60),)),
            add(((1, 49), (1, 50), (1, 65), (1, 66)), gives=2), add(((1, 30), (1, 31)), gives=3), add((), ((1, 80),)),
            add((), ((1, 46), (1, 50)), gives=2),
        ),
    ),
    "without equality predicate": Case(
        unequal_keys, (left(1),), Where.REFUSED, "without equality predicate is not supported"
    ),
    "self join": Case(modulo_with_itself, (left(1, 2, gives=2), RESTART, left(3, 6, gives=4))),
    "three streams": Case(
        three_streams, (add(ns(1, 5), ns(1, 5, 10), ns(5, 10), gives=1),), Where.SPARK, "several joins of streams"
    ),
    "clustered distribution of the inputs": Case(
        partitioned_otherwise, (add(ns(*range(1, 1001)), ns(*range(1, 1001)), gives=1000),)
    ),
    "SPARK-48687, other condition": Case(
        other_condition, (add(((1, 1),), ((1, 2),), gives=1), RESTART, add(((1, 3),), ((1, 3),))), Where.REFUSED,
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE|of another join",
    ),
    "SPARK-48687, other columns": Case(
        other_columns, (add(((1, 1),), ((1, 2),), gives=1), RESTART, add(((1, 3),), ((1, 3),))), Where.REFUSED,
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE|of another join",
    ),
    "SPARK-35896, metrics": Case(
        windowed("inner", watermarks=(True, False)), (left(1), right(1, gives=1), left(25), right(25, gives=1))
    ),
    "nullable right key": Case(null_safe_keys, (add(ns(1, 5), ns(1, 5, 10, None), gives=2),)),
    "nullable left key": Case(null_safe_keys, (add(ns(1, 5, 10, None), ns(1, 5), gives=2),)),
    "nullable keys": Case(null_safe_keys, (add(ns(1, 5, 10, None), ns(1, 5, None), gives=3),)),
}  # fmt: skip

OUTER = {
    "left, early state exclusion on left": excluded("left_outer", "left", first=3, second=0),
    "left, early state exclusion on right": excluded("left_outer", "right", first=1, second=2),
    "right, early state exclusion on left": excluded("right_outer", "left", first=1, second=2),
    "right, early state exclusion on right": excluded("right_outer", "right", first=3, second=0),
    "windowed left": Case(
        windowed("left_outer"),
        (add(ONE_TO_FIVE, THREE_TO_SEVEN, gives=3), add(ns(21), ns(22), gives=2), left(22, gives=1)),
    ),
    "windowed right": Case(
        windowed("right_outer"),
        (add(ONE_TO_FIVE, THREE_TO_SEVEN, gives=3), add(ns(21), ns(22), gives=2), left(22, gives=1)),
    ),
    **{f"{how}, watermark range": near(f"{how}_outer", last=1) for how in ("left", "right")},
    **{
        f"{how}, watermark range of {name}": near(f"{how}_outer", bound, last=1)
        for how in ("left", "right")
        for name, bound in MINUTES.items()
    },
    "left, non-key condition violated": Case(
        windowed("left_outer", "leftValue > 10 and (rightValue < 300 or rightValue > 1000)"),
        (
            add(ns(1, 2, 3), ns(1, 2, 3), gives=3), add(ns(20), ns(21)), right(20, gives=1),
            add(ns(40, 41), ns(40, 41), gives=2), add(ns(70), ns(71)), right(70, gives=1),
            add(ns(101, 102, 103), ns(101, 102, 103)), add(ns(1000), ns(1001), gives=3),
        ),
    ),
    "SPARK-26187, self left": itself("left_outer", last=4),
    "SPARK-26187, self right": itself("right_outer", mirrored=True, last=4),
    "SPARK-29438, union": Case(
        below_a_union,
        (
            add(ns(11, 12, 13, 14, 15), ns(13, 14, 15, 16, 17), ns(11, 12, 13), gives=6), RESTART,
            add(ns(21, 22, 23, 24, 25), ns(23, 24, 25, 26, 27), ns(21, 22, 23), gives=6),
        ),
    ),
    "SPARK-32148": Case(
        named(("2 minutes", "4 minutes")),
        (
            add(
                ((1, DAY - 86400), (2, DAY), (3, DAY + 3600)), ((4, DAY + 10), (5, DAY + 3599), (6, DAY + 7200)),
                gives=3,
            ),
        ),
    ),
    "nullable right key": nullable((1, 1, 1, 1, 1), (1, 1, 1, 1)),
    "nullable left key": nullable((1, None, 1, 1, 1), (1, 1, 1, 1)),
    "nullable keys": nullable((1, None, 1, None, 1), (1, None, 1, 1)),
    "SPARK-38684, rows come and go at once": Case(
        named(("0 seconds", "0 seconds")),
        (
            add(((1, DAY),), ((2, DAY + 60),)), add(((3, DAY + 3600),), ((4, DAY + 3660),)),
            add(((5, DAY + 5400),), gives=1), add((), ((6, DAY + 5410),), gives=2),
        ),
        settings={NO_DATA: "false"},
    ),
    "SPARK-49829, unmatched between the watermarks": Case(
        key_and_time,
        (add(((1, 1), (2, 2)), ((2, 2), (3, 1)), gives=1), add(((4, 1),), gives=2)),
        settings={NO_DATA: "false"},
    ),
    "SPARK-49829, chained": Case(
        chained_left_outer,
        (add(((20, 1), (21, 2)), ((20, 1),), ((21, 2),), gives=1), add(((30, 10),), ((30, 10),), ((30, 10),), gives=2)),
        Where.SPARK, "several joins of streams",
    ),
}  # fmt: skip

FULL = {
    "windowed": Case(
        windowed("full_outer"),
        (
            add(ONE_TO_FIVE, THREE_TO_SEVEN, gives=3), add(ns(21), ns(22), gives=4), left(22, gives=1), RESTART,
            left(1), right(5),
        ),
    ),
    "early state exclusion on left": excluded("full_outer", "left", first=3, second=2),
    "early state exclusion on right": excluded("full_outer", "right", first=3, second=2),
    "watermark range": Case(
        around("full_outer"),
        (
            add(((1, 5), (3, 5))), add((), ((1, 10), (2, 5)), gives=1), add((), ((1, 9),), gives=1),
            add(((1, 7), (1, 30)), gives=2), add((), ((0, 30),), gives=2),
        ),
    ),
    "self join": itself("full_outer", last=4),
}  # fmt: skip

SEMI = {
    "windowed": Case(
        windowed("left_semi"),
        (
            add(ONE_TO_FIVE, THREE_TO_SEVEN, gives=3), add(ns(21), ns(22)), left(22, gives=1), RESTART, left(1),
            right(5),
        ),
    ),
    "early state exclusion on left": excluded("left_semi", "left", first=1, second=0),
    "early state exclusion on right": excluded("left_semi", "right", first=1, second=0),
    "watermark range": Case(
        around("left_semi"),
        (
            add(((1, 5), (3, 5))), add((), ((1, 10), (2, 5)), gives=1), add((), ((1, 9),)),
            add(((1, 7), (1, 30)), gives=1), add((), ((0, 30),)),
        ),
    ),
    "self join": itself("left_semi", last=2),
}  # fmt: skip

SUITES = {
    "StreamingInnerJoinSuite": INNER,
    "StreamingOuterJoinSuite": OUTER,
    "StreamingFullOuterJoinSuite": FULL,
    "StreamingLeftSemiJoinSuite": SEMI,
}
CASES = {f"{suite}: {name}": case for suite, cases in SUITES.items() for name, case in cases.items()}
