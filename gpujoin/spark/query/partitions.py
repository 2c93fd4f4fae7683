"""Partitioned tables: values of columns that are in names of folders, and which files Spark leaves of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gpujoin.spark.catalyst.nodes import NotTranslatableError, python_value

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from gpujoin.model.files import Constant
    from gpujoin.spark.catalyst.nodes import Node

Folders = Mapping[str, tuple["Constant", ...]]
"""Values of the partition columns by folder, in the order of the partition schema."""


def folders(listing: Mapping[str, Sequence[Any]], schema: StructType) -> Folders:
    """Read the values that a list of files has for each folder, as ``PlanReader.java`` writes them.

    Raises ``NotTranslatableError`` if a column has a type of which no constants are covered, or a date that Python
    lacks.
    """
    return {
        folder: tuple(_value(field.dataType, value) for field, value in zip(schema, values, strict=True))
        for folder, values in listing.items()
    }


def _value(dtype: Any, value: Any) -> Constant:
    try:
        constant: Constant = python_value(dtype, value)
    except OverflowError:
        raise NotTranslatableError("it is partitioned by a date that Python does not have") from None
    if isinstance(constant, Decimal) and -int(constant.as_tuple().exponent) != dtype.scale:
        # Spark takes the digits of such a value for those of its declared type.
        raise NotTranslatableError(f"it is partitioned by {dtype.simpleString()}, and a folder is named {constant}")
    return constant


def folder_of(path: str) -> str:
    """Give the folder of a file."""
    return path.rpartition("/")[0]


def prunes(condition: Node, names: Mapping[int, str]) -> bool:
    """Tell whether a condition is one that Spark itself applies to partitions, and wholly so.

    ``names`` has the partition columns by expression id.
    """
    used = [node for node in condition.walk() if node.name == "AttributeReference"]
    if not used or any(names.get(node.expr_id) != node.fields["name"] for node in used):
        return False
    if any("plan" in node.fields or "Subquery" in node.name for node in condition.walk()):
        return False
    return condition.deterministic
