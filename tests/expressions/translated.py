"""Spark as the judge of translation: SQL, as Spark's optimizer leaves it, translated and evaluated here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpujoin.functions.evaluate import evaluate_column
from gpujoin.functions.support import is_supported
from gpujoin.model.expressions import ColumnRef, Expression
from gpujoin.model.jointype import Side
from gpujoin.model.types import logical
from gpujoin.spark.catalyst.nodes import Node
from gpujoin.spark.catalyst.traits import arrow_of
from gpujoin.spark.catalyst.translate import ExpressionReader
from gpujoin.spark.jvm.gateway import gateway_of, optimized_plan
from gpujoin.spark.query.plans import read_plan
from gpujoin.spark.settings import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN = 5


class _Reader(ExpressionReader):
    """Reads columns of one table by their names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def column(self, node: Node) -> Expression:
        name = str(node.fields["name"])
        return ColumnRef(side=Side.LEFT, name=name, index=self._names.index(name), type=arrow_of(node.data_type))


class SqlJudge:
    """One table in Spark and here."""

    def __init__(self, spark: SparkSession, table: pa.Table, path: Path) -> None:
        pq.write_table(table, path)
        self._spark = spark
        self._frame: DataFrame = spark.read.parquet(str(path))
        self._batch = table.combine_chunks().to_batches()[0]

    def translate(self, sql: str) -> Expression:
        """Translate an expression as Spark optimizes it. Raises ``NotTranslatableError``."""
        plan = read_plan(
            optimized_plan(self._frame.selectExpr(f"{sql} AS c")), gateway_of(self._spark), session_conf(self._spark)
        )
        (column,) = plan.expressions("projectList")
        return _Reader(self._batch.schema.names)(column.children[0])

    def check(self, sqls: Sequence[str]) -> None:
        """Assert that each expression is computed here, with Spark's type and values."""
        trees = [self.translate(sql) for sql in sqls]
        for sql, tree in zip(sqls, trees, strict=True):
            assert is_supported(tree), f"{sql}: cannot evaluate {tree}"
        spark = self._frame.selectExpr(*(f"{sql} AS c{i}" for i, sql in enumerate(sqls))).toArrow()
        problems = []
        for i, (sql, tree) in enumerate(zip(sqls, trees, strict=True)):
            here = evaluate_column(tree, self._batch, self._batch, self._batch.num_rows)
            problems += self._differences(f"{sql} ({tree})", tree, here, spark.column(i).combine_chunks())
        assert not problems, f"{len(problems)} differences from Spark:\n" + "\n".join(problems)

    def _differences(self, shown: str, tree: Expression, here: pa.Array, spark: pa.Array) -> list[str]:
        assert tree.type is not None
        if logical(_unlabelled(spark.type)) != logical(_unlabelled(tree.type)):
            return [f"{shown}: type {tree.type} here, {spark.type} in Spark"]
        ours, judged = _comparable(here), _comparable(spark)
        different = [row for row, pair in enumerate(zip(ours, judged, strict=True)) if pair[0] != pair[1]]
        return [
            f"{shown} at {self._row(tree, row)}: {ours[row]} here, {judged[row]} in Spark" for row in different[:_SHOWN]
        ]

    def _row(self, tree: Expression, row: int) -> dict[str, Any]:
        return {c.name: _comparable(self._batch.column(c.name).slice(row, 1))[0] for c in tree.columns()}


def _unlabelled(dtype: pa.DataType) -> pa.DataType:
    """Timestamps with a zone are one type, whatever zone Spark labels them with."""
    return pa.timestamp(dtype.unit, "UTC") if pa.types.is_timestamp(dtype) and dtype.tz is not None else dtype


def _comparable(values: pa.Array) -> list[Any]:
    if pa.types.is_temporal(values.type):
        return values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32()).to_pylist()
    return [repr(v) if isinstance(v, float) else v for v in values.to_pylist()]
