"""Columns of an island's rows: their types, their form in Arrow, and which attributes of Spark's plan they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from gpujoin.errors import JoinSpecError
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.compat import arrow_schema, type_in_arrow
from gpujoin.spark.query.aggregates import merging
from gpujoin.spark.query.island import Island

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from gpujoin.spark.query.aggregates import ReadAggregate


def arrow_form(schema: StructType) -> pa.Schema | None:
    """Give the form in which the JVM reads rows of a schema, if it is known to be the same there and here."""
    if not all(_is_plain(field.dataType) for field in schema):
        return None
    try:
        return arrow_schema(schema)
    except JoinSpecError:
        return None


def _is_plain(dtype: DataType) -> bool:
    match dtype:
        case ArrayType():
            return _is_plain(dtype.elementType)
        case MapType():
            return _is_plain(dtype.keyType) and _is_plain(dtype.valueType)
        case StructType():
            return all(_is_plain(field.dataType) for field in dtype)
    return isinstance(dtype, _PLAIN)


_PLAIN = (
    BinaryType, BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType,
)  # fmt: skip


def schema_of(island: Island, named: Mapping[int, Node]) -> StructType:
    """Give the types of an island's rows in Spark; ``named`` has the attributes that its columns are."""
    fields = []
    columns = island.columns or (None,)
    for n, (i, column) in enumerate(zip(columns, island.relation.schema, strict=True)):
        if i is None:
            dtype, nullable = from_arrow_type(column.type, prefer_timestamp_ntz=True), column.nullable
        else:
            dtype, nullable = type_in_arrow(named[i].data_type), bool(named[i].fields["nullable"])
        fields.append(StructField(f"c{n}", dtype, nullable))
    return StructType(fields)


def named_attributes(island: Island) -> dict[int, Node]:
    """Give the attributes that the island's columns are."""
    if island.read is None:
        return {column.expr_id: column for column in island.node.output}
    parts = [
        node
        for whole in (*island.read.keys, *island.read.aggregates)
        for node in whole.walk()
        if node.name == "AttributeReference"
    ]
    return {node.expr_id: node for node in parts}


def column_numbers(island: Island, named: Mapping[int, Node]) -> list[int | None]:
    """Tell which attribute each column is; one attribute may have several names, as in ``select a.ID, a.Id``."""
    if island.read is None:
        return [column.number for column in island.node.output]
    return [None if i is None else named[i].number for i in island.columns]


def described_finish(island: Island, read: ReadAggregate) -> dict[str, Any]:
    """Describe Spark's aggregation over the island's rows."""
    positions = {name: n for n, name in enumerate(island.relation.schema.names)}
    aggregates = [
        {
            "aggregate": read.aggregates[number].number,
            "buffers": [positions[buffer.name] for buffer in call.buffer],
            **merging(read.aggregates[number], call),
        }
        for number, call in island.calls.items()
    ]
    keys = [
        (key.number, positions[f"k{n}"])
        for n, key in enumerate((*read.keys, *island.distinct))
        if key.name != "AttributeReference"
    ]
    return {"aggregates": aggregates, "keys": keys}
