"""What a plan's as-of join asks for, and the same in Spark's SQL.

``gpu_asof_join`` puts a node of its own into the plan (`GpuAsOfJoin.java`), with the terms that workers are given and a
query that Spark runs where they are not asked. The query merges both sides in order, and takes for each left row the
last right row before it::

    left (t=3, a) (t=9, b), right (t=1, x) (t=8, y), backward

    t  s  l  r      last(r) over (order by t, s)
    1  0     x      x
    3  1  a         x        returned: (a, x)
    8  0     y      y
    9  1  b         y        returned: (b, y)
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from typing import TYPE_CHECKING, Any

import pyarrow.types as pat
from pyspark.sql.pandas.types import from_arrow_type

from gpujoin.model.spec import Direction
from gpujoin.model.sqltext import show_value
from gpujoin.model.types import is_float
from gpujoin.plan.asof import as_of_type, tolerance_in
from gpujoin.plan.key_types import key_type

if TYPE_CHECKING:
    import pyarrow as pa

    from gpujoin.model.spec import AsOf, JoinSpec

_NUMBER = re.compile(r"#\d+$")
_MICROSECOND = dt.timedelta(microseconds=1)
_PER_SECOND = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_SIGNS = {Direction.BACKWARD: "<", Direction.FORWARD: ">"}


@dataclass(frozen=True, slots=True)
class AsOfTerms:
    """What an as-of join asks for, beside its keys."""

    direction: Direction
    """Whether to look backward, forward or both ways."""
    tolerance: int | float | Decimal | dt.timedelta | None
    """Largest distance; ``None``: any."""
    allow_exact: bool
    """Whether an equal key counts."""

    @classmethod
    def from_as_of(cls, terms: AsOf) -> AsOfTerms:
        """Give the terms of a checked join, with a tolerance of a plain type."""
        return cls(terms.direction, _plain(terms.tolerance), terms.allow_exact)

    def show(self, left: str, right: str) -> str:
        """Write the terms for people, given the names of the order keys; numbers that tell names apart are left out."""
        left, right = (_NUMBER.sub("", name) for name in (left, right))
        within = "" if self.tolerance is None else f", within {show_value(self.tolerance)}"
        if self.direction is Direction.NEAREST:
            equal = "" if self.allow_exact else ", not equal"
            return f"right.{right} nearest to left.{left}{equal}{within}"
        sign = _SIGNS[self.direction] + ("=" if self.allow_exact else "")
        return f"{self.direction.value}, right.{right} {sign} left.{left}{within}"

    def text(self) -> str:
        """Give the terms as JSON."""
        tolerance: list[Any] | None = None
        match self.tolerance:
            case None:
                pass
            case dt.timedelta():
                tolerance = ["microseconds", self.tolerance // _MICROSECOND]
            case Decimal():
                tolerance = ["decimal", str(self.tolerance)]
            case float():
                tolerance = ["float", self.tolerance.hex()]
            case int():
                tolerance = ["integer", self.tolerance]
        return json.dumps([self.direction.value, tolerance, self.allow_exact])

    @classmethod
    def parse(cls, text: str) -> AsOfTerms:
        """Read what :meth:`text` has written."""
        direction, tolerance, allow_exact = json.loads(text)
        value_in_units: int | float | Decimal | dt.timedelta | None = None
        match tolerance:
            case ["microseconds", value]:
                value_in_units = dt.timedelta(microseconds=value)
            case ["decimal", value]:
                value_in_units = Decimal(value)
            case ["float", value]:
                value_in_units = float.fromhex(value)
            case ["integer", value]:
                value_in_units = int(value)
        return cls(Direction(direction), value_in_units, allow_exact)


def _plain(tolerance: Any) -> int | float | Decimal | dt.timedelta | None:
    if tolerance is None or isinstance(tolerance, Decimal):
        return tolerance
    if isinstance(tolerance, dt.timedelta):  # pandas' own counts nanoseconds, and Spark does not
        return dt.timedelta(microseconds=tolerance // _MICROSECOND)
    return int(tolerance) if isinstance(tolerance, Integral) else float(tolerance)


def spark_query(left: pa.Schema, right: pa.Schema, spec: JoinSpec) -> str:
    """Write an as-of join as a query of Spark's.

    It reads ``gpujoin_left`` and ``gpujoin_right``, which have the order key as ``t``, the keys as ``k0``, ``k1``, …
    and the whole row as ``v``. It gives the left row, and the right one or null.

    Parameters
    ----------
    left, right : pyarrow.Schema
        The inputs.
    spec : JoinSpec
        The join.
    """
    terms = spec.as_of
    assert terms is not None
    pairs = [(left.field(key.left).type, right.field(key.right).type) for key in spec.keys]
    orders = (left.field(terms.left).type, right.field(terms.right).type)
    order = as_of_type(*orders, terms)
    keys = [f"k{n}" for n in range(len(pairs))]
    columns = [
        *(_as(key, *types, key_type(*types)) for key, types in zip(keys, pairs, strict=True)),
        _as("t", *orders, order),
    ]
    projection = ", ".join(columns)
    key_tests = [f"{key} is not null" for key in keys]
    nearest = _nearest(terms, order)
    return f"""
        select l, case when {_is_point("t", order)} then {nearest} end r from (
          select l, t, s, {", ".join(_windows(keys, terms.direction))} from (
            select {projection}, 1 s, v l, null r from gpujoin_left
            union all
            select {", ".join([*keys, "t", "s", "l", "struct(t, v) r"])} from (
              select {projection}, {0 if terms.allow_exact else 2} s, null l, v from gpujoin_right)
            where {" and ".join([_is_point("t", order), *key_tests])}
          )
        ) where s = 1"""  # noqa: S608 - no names and no values of users but a number


def _as(name: str, left: pa.DataType, right: pa.DataType, common: pa.DataType) -> str:
    """A column in the type that both sides are compared in."""
    return name if left == right else f"cast({name} as {from_arrow_type(common).simpleString()}) {name}"


def _is_point(column: str, dtype: pa.DataType) -> str:
    """Whether an order key may match at all."""
    return f"{column} is not null" + (f" and not isnan({column})" if is_float(dtype) else "")


def _windows(keys: Sequence[str], direction: Direction) -> list[str]:
    """The last right row before a row, and the first one after it."""
    partition = f"partition by {', '.join(keys)} " if keys else ""
    frame = "rows between unbounded preceding and current row"
    windows = {
        name: f"last(r, true) over ({partition}order by {order}, s {frame}) {name}"
        for name, order in (("b", "t"), ("f", "t desc"))
    }
    return [windows[name] for name in _SEARCHED[direction]]


_SEARCHED = {Direction.BACKWARD: "b", Direction.FORWARD: "f", Direction.NEAREST: "bf"}


def _nearest(terms: AsOf, order: pa.DataType) -> str:
    """Write the choice between the nearest row before and the nearest row after."""
    within = dict.fromkeys("bf", "")
    if terms.tolerance is not None:
        limit = _limit(tolerance_in(order, terms.tolerance), order)
        within = {
            "b": f" and {_distance('t', 'b.t', order)} <= {limit}",
            "f": f" and {_distance('f.t', 't', order)} <= {limit}",
        }
    values = {name: f"case when {name}.t is not null{within[name]} then {name}.v end" for name in "bf"}
    if terms.direction is not Direction.NEAREST:
        return values[_SEARCHED[terms.direction]]
    nearer = f"{_distance('t', 'b.t', order)} <= {_distance('f.t', 't', order)}"
    return f"case when f is null or {nearer} then {values['b']} else {values['f']} end"


def _distance(high: str, low: str, dtype: pa.DataType) -> str:
    """How far two order keys are from each other, exactly but for floats."""
    if is_float(dtype):
        return f"if({high} = {low}, 0D, double({high}) - double({low}))"
    if pat.is_date(dtype):
        high, low = f"unix_date({high})", f"unix_date({low})"
    elif pat.is_timestamp(dtype) and dtype.tz is not None:
        high, low = f"unix_micros({high})", f"unix_micros({low})"
    elif pat.is_temporal(dtype):
        return f"cast(cast({high} - {low} as interval second) as decimal(38, 6))"
    elif pat.is_decimal(dtype):
        return f"({high} - {low})"
    return f"(cast({high} as decimal(20, 0)) - cast({low} as decimal(20, 0)))"


def _limit(units: float, dtype: pa.DataType) -> str:
    """A tolerance, as distances are."""
    if is_float(dtype):
        return f"double('{float(units)!r}')"
    places = 0
    if pat.is_decimal(dtype):
        places = dtype.scale
    elif pat.is_temporal(dtype) and not pat.is_date(dtype) and getattr(dtype, "tz", None) is None:
        places = _PER_SECOND[dtype.unit]
    return f"{Decimal(units).scaleb(-places):f}BD"
