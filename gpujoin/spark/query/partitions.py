"""Partitioned tables: values of columns that are in names of folders, and which files Spark leaves of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from gpujoin.spark.catalyst.translate import NotTranslatableError, python_value
from gpujoin.spark.gateway import class_of
from gpujoin.spark.query.plans import to_seq

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from gpujoin.model.files import Constant
    from gpujoin.spark.catalyst.nodes import Node

_CATALOG_INDEX = "org.apache.spark.sql.execution.datasources.CatalogFileIndex"
_SEPARATOR = "\x1e"
_KEPT = 64
_lock = threading.Lock()
_known: OrderedDict[tuple[str, str], dict[str, tuple[Constant, ...]]] = OrderedDict()

Folders = Mapping[str, tuple["Constant", ...]]
"""Values of the partition columns by folder, in the order of the partition schema."""


def listed(location: Any, gateway: Any) -> tuple[Any, str]:
    """Give the list of files of a relation, and its class; a table of Spark's catalog lists its partitions first."""
    name = class_of(location, gateway)
    if name != _CATALOG_INDEX:
        return location, name
    location = location.filterPartitions(to_seq(gateway, []))
    return location, class_of(location, gateway)


def folders(location: Any, schema: StructType) -> Folders:
    """Read the values that a list of files has for each folder.

    Parameters
    ----------
    location : py4j object
        An ``InMemoryFileIndex``.
    schema : StructType
        Of the partition columns.

    Raises
    ------
    NotTranslatableError
        If a column has a type of which no constants are covered, or a date that Python lacks.
    """
    partitions = location.partitionSpec().partitions()
    key = (str(partitions.mkString(_SEPARATOR)), schema.json())
    with _lock:
        found = _known.get(key)
        if found is not None:
            _known.move_to_end(key)
            return found
    types = location.partitionSchema().fields()
    found = {}
    for number in range(int(partitions.size())):
        one = partitions.apply(number)
        row = one.values()
        found[str(one.path().toString())] = tuple(
            _value(field.dataType, None if row.isNullAt(i) else row.get(i, types[i].dataType()))
            for i, field in enumerate(schema)
        )
    with _lock:
        _known[key] = found
        while len(_known) > _KEPT:
            _known.popitem(last=False)
    return found


def _value(dtype: Any, value: Any) -> Constant:
    try:
        found: Constant = None if value is None else python_value(dtype, value)
    except OverflowError:
        raise NotTranslatableError("it is partitioned by a date that Python does not have") from None
    if isinstance(found, Decimal) and -int(found.as_tuple().exponent) != dtype.scale:
        # Spark takes the digits of such a value for those of its declared type.
        raise NotTranslatableError(
            f"it is partitioned by {dtype.simpleString()}, and a folder is named {found}"
        )
    return found


def folder_of(path: str) -> str:
    """Give the folder of a file."""
    return path.rpartition("/")[0]


def prunes(condition: Node, names: Mapping[int, str]) -> bool:
    """Tell whether a condition is one that Spark itself applies to partitions, and wholly so.

    Parameters
    ----------
    condition : Node
        A conjunct of the filter above the relation.
    names : mapping of int to str
        The partition columns by expression id.
    """
    used = [node for node in condition.walk() if node.name == "AttributeReference"]
    if not used or any(names.get(node.expr_id) != node.fields["name"] for node in used):
        return False
    if any("plan" in node.fields or "Subquery" in node.name for node in condition.walk()):
        return False
    return bool(condition.jvm.deterministic())


def pruned(location: Any, conditions: Sequence[Node], gateway: Any) -> str:
    """Have Spark list the files of the partitions that conditions leave, as text."""
    chosen = to_seq(gateway, [condition.jvm for condition in conditions])
    of_rows = to_seq(gateway, []) if conditions else chosen
    return str(location.listFiles(chosen, of_rows).mkString(_SEPARATOR))
