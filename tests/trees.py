"""Relational trees written by column name, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gpujoin.model.aggregates import AggregateCall, AggregateFunction
from gpujoin.model.expressions import EvalMode, Expression, as_expression, left
from gpujoin.model.jointype import JoinType, Side
from gpujoin.model.relations import (
    ExchangeSource,
    FileSlice,
    Filter,
    Join,
    Limit,
    Output,
    PartialAggregate,
    Project,
    Relation,
    Scan,
    SortKey,
    TopN,
    Window,
)
from gpujoin.model.spec import JoinSpec, KeyPair, NullEquality
from gpujoin.model.types import logical
from gpujoin.model.windows import (
    WHOLE_PARTITION,
    AnyWindowCall,
    Frame,
    FramedAggregate,
    RankLimit,
    WindowCall,
    WindowFunction,
)
from gpujoin.plan.resolve import resolve, resolve_value


@dataclass(frozen=True)
class Aggregate:
    """An aggregate function over an expression that is not resolved yet."""

    function: AggregateFunction
    arguments: tuple[object, ...] = ()
    where: Expression | None = None
    ignore_nulls: bool = False
    percentage: float | tuple[float, ...] | None = None
    descending: bool = False
    delimiter: bytes | None = None
    directions: tuple[tuple[bool, bool], ...] = ()
    mode: EvalMode | None = None


@dataclass(frozen=True)
class Over:
    """A window function whose expressions are not resolved yet."""

    function: WindowFunction | AggregateFunction
    value: object | None = None
    frame: Frame = WHOLE_PARTITION
    count: int = 1
    default: object | None = None
    where: Expression | None = None
    ignore_nulls: bool = False


def file_slice(path: str | Path, **parts: object) -> FileSlice:
    """A whole file as it is now, or the part that is named."""
    found = Path(path).stat()
    return FileSlice(str(path), found.st_size, found.st_mtime_ns // 1_000_000, **parts)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Tree:
    """A relation, and how to put nodes on it.

    Expressions are those a user writes, with :func:`gpujoin.left` for columns; they are resolved here.

    Attributes
    ----------
    relation : Relation
        The tree so far.
    mode : EvalMode
        Of the expressions.
    """

    relation: Relation
    mode: EvalMode = EvalMode.ANSI

    @classmethod
    def scan(
        cls,
        path: str | Path | Sequence[str | Path],
        columns: Sequence[str] | None = None,
        where: Expression | None = None,
        *,
        mode: EvalMode = EvalMode.ANSI,
        index: int = 0,
    ) -> Tree:
        """All rows of Parquet files that have the columns of the first."""
        paths = [path] if isinstance(path, (str, Path)) else list(path)
        schema = pq.read_schema(paths[0])
        kept = schema.names if columns is None else columns
        wanted = pa.schema([(name, _sparks(schema.field(name).type)) for name in kept])
        filters = () if where is None else (resolve(where, wanted, wanted, mode=mode),)
        return cls(Scan(wanted, filters=filters, slices=tuple(map(file_slice, paths)), index=index), mode)

    @classmethod
    def source(cls, schema: pa.Schema, index: int = 0, *, mode: EvalMode = EvalMode.ANSI) -> Tree:
        """An input of the pipeline."""
        return cls(ExchangeSource(index, schema), mode)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the output."""
        return self.relation.schema

    def value(self, expression: object) -> Expression:
        """Resolve an expression over the output."""
        return resolve_value(as_expression(expression), self.schema, self.schema, mode=self.mode)

    def where(self, condition: Expression) -> Tree:
        """Filter."""
        return Tree(Filter(self.relation, resolve(condition, self.schema, self.schema, mode=self.mode)), self.mode)

    def select(self, *names: str, **expressions: object) -> Tree:
        """Project to columns and named expressions."""
        outputs = [Output(name, self.value(left(name)), self.schema.field(name).nullable) for name in names]
        outputs += [Output(name, self.value(expression)) for name, expression in expressions.items()]
        return Tree(Project(self.relation, tuple(outputs)), self.mode)

    def join(
        self,
        other: Tree,
        on: Mapping[str, str],
        how: str = "inner",
        *,
        build: Side = Side.RIGHT,
        condition: Expression | None = None,
        keep: Sequence[str] | None = None,
        nulls: NullEquality = NullEquality.UNEQUAL,
    ) -> Tree:
        """Join by equality of columns; ``keep`` names the output columns, in each side's order."""
        mine, theirs = self.schema, other.schema
        kind = JoinType.parse(how)
        keys = tuple(KeyPair(mine.names.index(a), theirs.names.index(b), nulls) for a, b in on.items())
        spec = JoinSpec(
            kind,
            keys,
            condition=None if condition is None else resolve(condition, mine, theirs, mode=self.mode),
            left_output=tuple(i for i, n in enumerate(mine.names) if keep is None or n in keep),
            right_output=()
            if kind.left_rows_only
            else tuple(i for i, n in enumerate(theirs.names) if keep is None or n in keep),
        )
        return Tree(Join(self.relation, other.relation, spec, build), self.mode)

    def group(self, *keys: str, **aggregates: Aggregate) -> Tree:
        """Aggregate partially."""
        calls = tuple(
            AggregateCall(
                function=a.function,
                arguments=tuple(self.value(argument) for argument in a.arguments),
                name=name,
                filter=None if a.where is None else resolve(a.where, self.schema, self.schema, mode=self.mode),
                mode=a.mode or self.mode,
                ignore_nulls=a.ignore_nulls,
                percentage=a.percentage,
                descending=a.descending,
                delimiter=a.delimiter,
                directions=a.directions,
            )
            for name, a in aggregates.items()
        )
        outputs = tuple(Output(key, self.value(left(key)), self.schema.field(key).nullable) for key in keys)
        return Tree(PartialAggregate(self.relation, outputs, calls), self.mode)

    def window(
        self,
        partition: Sequence[str],
        order: Sequence[tuple[str, bool, bool]],
        limit: RankLimit | None = None,
        /,
        **calls: Over,
    ) -> Tree:
        """Compute window functions; order keys are columns, each with whether it descends, and nulls are first."""
        keys = tuple(SortKey(self.value(left(name)), descending, first) for name, descending, first in order)
        places = tuple(self.schema.names.index(name) for name in partition)
        named = tuple(self._call(name, over) for name, over in calls.items())
        return Tree(Window(self.relation, places, keys, named, limit), self.mode)

    def _call(self, name: str, over: Over) -> AnyWindowCall:
        value = None if over.value is None else self.value(over.value)
        if isinstance(over.function, WindowFunction):
            default = None if over.default is None else self.value(over.default)
            return WindowCall(
                function=over.function, name=name, value=value, count=over.count, default=default,
                ignore_nulls=over.ignore_nulls, frame=over.frame,
            )  # fmt: skip
        call = AggregateCall(
            function=over.function,
            arguments=() if value is None else (value,),
            name=name,
            filter=None if over.where is None else resolve(over.where, self.schema, self.schema, mode=self.mode),
            mode=self.mode,
            ignore_nulls=over.ignore_nulls,
        )
        return FramedAggregate(call, over.frame)

    def top(self, count: int, *order: tuple[str, bool]) -> Tree:
        """The first rows by columns, each with whether it descends."""
        keys = tuple(SortKey(self.value(left(name)), descending, not descending) for name, descending in order)
        return Tree(TopN(self.relation, keys, count), self.mode)

    def limit(self, count: int) -> Tree:
        """Any rows."""
        return Tree(Limit(self.relation, count), self.mode)


def _sparks(dtype: pa.DataType) -> pa.DataType:
    dtype = logical(dtype)
    return pa.timestamp("us", dtype.tz) if pa.types.is_timestamp(dtype) else dtype


def total(expression: object, where: Expression | None = None) -> Aggregate:
    """``sum``."""
    return Aggregate(AggregateFunction.SUM, (expression,), where)


def count(*expressions: object, where: Expression | None = None) -> Aggregate:
    """``count``."""
    return Aggregate(AggregateFunction.COUNT, expressions, where)


def average(expression: object, where: Expression | None = None) -> Aggregate:
    """``avg``."""
    return Aggregate(AggregateFunction.AVG, (expression,), where)
