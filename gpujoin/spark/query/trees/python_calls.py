"""Python functions of a query as calls in a tree.

A function runs in gpujoin's worker instead of one of Spark's own if that makes no difference to it: if it was made for
the same Python, with the same environment and files, and if PySpark's own code in the worker converts its arguments and
results as Spark has it do. Any other function Spark runs, and the reason is told.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import types as t
from pyspark.util import PythonEvalType

from gpujoin.model.expressions import Literal
from gpujoin.model.python_calls import (
    PythonAggregate,
    PythonCall,
    PythonCalls,
    PythonCogroups,
    PythonRows,
    PythonSettings,
)
from gpujoin.model.relations import Output, Project, Union
from gpujoin.model.relations import column as column_at
from gpujoin.model.switches import PYTHON
from gpujoin.report.parts import expression_name
from gpujoin.spark.catalyst.nodes import NotTranslatableError
from gpujoin.spark.compat import arrow_type
from gpujoin.spark.jvm.compiled import plan_reader
from gpujoin.spark.jvm.gateway import running_context, shipped_files, unpacked
from gpujoin.spark.jvm.rewrite import MARK
from gpujoin.spark.query.aggregates import FinalReader
from gpujoin.spark.query.trees.builder import Fragment, TreeBuilder, check_column, named_outputs, with_outputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql.types import DataType

    from gpujoin.model.expressions import Expression
    from gpujoin.spark.catalyst.nodes import Node
    from gpujoin.spark.query.aggregates import ReadAggregate
    from gpujoin.spark.query.plans import PlanNode
    from gpujoin.spark.query.trees.builder import ColumnReader

_HASH_SEED = "PYTHONHASHSEED"
"""A variable that PySpark gives the functions of a classic session, and not those of Spark Connect's clients: for these
any seed is right."""
_VERSIONS = ("4.3.",)
"""Releases of PySpark whose worker hands out what converts a function's rows (``pyspark.worker.read_udfs``)."""
_KINDS: set[int | None] = {
    PythonEvalType.SQL_ARROW_BATCHED_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
    getattr(PythonEvalType, "SQL_SCALAR_ARROW_UDF", None),  # since PySpark 4.1
    getattr(PythonEvalType, "SQL_SCALAR_ARROW_ITER_UDF", None),
}
"""Functions of a row, or of a column's values, that are given Arrow data."""
_OF_VALUES = PythonEvalType.SQL_ARROW_BATCHED_UDF
"""Functions that are called for one row at a time."""
_ROWS: dict[str, set[int | None]] = {
    "MapInPandas": {PythonEvalType.SQL_MAP_PANDAS_ITER_UDF},
    "MapInArrow": {PythonEvalType.SQL_MAP_ARROW_ITER_UDF},
    "FlatMapGroupsInPandas": {PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF},
    "FlatMapGroupsInArrow": {PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF},
    "FlatMapCoGroupsInPandas": {PythonEvalType.SQL_COGROUPED_MAP_PANDAS_UDF},
    "FlatMapCoGroupsInArrow": {PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF},
}
"""Functions of all rows of a task, or of those of a group, by the plan's nodes; of groups not those that are given an
iterator, since Spark never holds a group of these whole."""
_AGGREGATES: set[int | None] = {
    PythonEvalType.SQL_GROUPED_AGG_PANDAS_UDF,
    getattr(PythonEvalType, "SQL_GROUPED_AGG_PANDAS_ITER_UDF", None),  # since PySpark 4.2
    getattr(PythonEvalType, "SQL_GROUPED_AGG_ARROW_UDF", None),
    getattr(PythonEvalType, "SQL_GROUPED_AGG_ARROW_ITER_UDF", None),
}
"""Functions that give one value of each group's columns."""
_AGGREGATES_ALONE: set[int | None] = {
    getattr(PythonEvalType, "SQL_GROUPED_AGG_PANDAS_ITER_UDF", None),
    getattr(PythonEvalType, "SQL_GROUPED_AGG_ARROW_ITER_UDF", None),
}
"""Those that are given an iterator, of which a worker of Spark's calls one at a time."""
_KEY_TYPES = (
    t.BooleanType, t.IntegralType, t.DecimalType, t.StringType, t.DateType, t.TimestampType, t.TimestampNTZType,
)  # fmt: skip
"""Types of keys by which rows are grouped here, whose equal values are the same.

Not floating-point numbers: Spark puts 0.0 and -0.0 into one group if they meet in one task."""
ROWS = frozenset(_ROWS)
CALLS = "ArrowEvalPython"
"""The node of functions of columns' values that are given Arrow data."""
_ZONE = "spark.sql.session.timeZone"
_CONVERSION = (
    "spark.sql.execution.pandas.convertToArrowArraySafely",
    "spark.sql.execution.arrow.useLargeVarTypes",
    "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName",
    "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype",
    "spark.sql.execution.pythonUDF.arrow.concurrency.level",
    "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled",
    "spark.sql.execution.pyspark.binaryAsBytes",
)
"""Settings that Spark tells its workers, of those that matter to such functions (``ArrowPythonRunner``)."""
_WATCHED = {
    "spark.python.profile": "profiles of Python workers",
    "spark.sql.pyspark.udf.profiler": "profiles of functions",
    "spark.sql.pyspark.worker.logging.enabled": "logs of functions",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "errors without tracebacks",
    "spark.sql.execution.pyspark.udf.tracebackWithLocals.enabled": "tracebacks with values",
}
"""Settings under which Spark notes which function was running, or shows its errors in another way."""
_PLAIN_TYPES = (
    t.BooleanType, t.IntegralType, t.FloatType, t.DoubleType, t.DecimalType, t.StringType, t.BinaryType, t.DateType,
    t.TimestampType, t.TimestampNTZType, t.DayTimeIntervalType,
)  # fmt: skip


def python_calls(builder: TreeBuilder, node: PlanNode, required: frozenset[int]) -> Fragment:
    """Call the functions of an ``ArrowEvalPython`` for the rows of its input."""
    kind, functions = int(node.fields["evalType"]), node.expressions("udfs")
    check_kind(kind, node)
    programs = [read_function(function, builder) for function in functions]
    child = node.children[0]
    ids_read = frozenset().union(*(function.attribute_ids for function in functions))
    passed = required.intersection(column.expr_id for column in child.output)
    earlier = [_result_of_equal(function, node) if kind == _OF_VALUES else None for function in programs]
    carried = {expr_id for expr_id in earlier if expr_id is not None}
    builder.carried |= carried
    below = builder.build(child, passed | ids_read | carried)
    inputs = Inputs(builder.reader(below))
    calls: list[PythonCall] = []
    types: list[DataType] = []
    ids: dict[int, int] = {}
    for function, column, equal in zip(programs, node.expressions("resultAttrs"), earlier, strict=True):
        check_column(column)
        check_type(column)
        node.reading.aliases[column.expr_id] = function.node
        if equal is not None and equal in below.positions:
            ids[column.expr_id] = below.positions[equal]
            continue
        ids[column.expr_id] = len(below.relation.schema) + len(calls)
        types.append(column.data_type)
        calls.append(inputs.call(function, f"{column.fields['name']}#{column.expr_id}", column.data_type))
    if not calls:
        return Fragment(below.relation, {**below.positions, **ids})
    settings = settings_of(node, kind, numbered(inputs.types), numbered(types))
    relation = PythonCalls(below.relation, inputs.outputs, tuple(calls), settings)
    return Fragment(relation, {**below.positions, **ids})


def python_aggregate(
    builder: TreeBuilder, node: PlanNode, aggregation: ReadAggregate, required: frozenset[int]
) -> Fragment:
    """Call the functions of an ``Aggregate`` for each group of its input."""
    builder.check_switches(node, PYTHON)
    check_unsorted(node.children[0])
    kind, functions = _of_aggregation(aggregation, node)
    programs = [read_function(function, builder) for function in functions]
    if any(len(each.names) > 1 for each in programs):
        raise NotTranslatableError("functions of groups of functions' results are not called here")
    below = builder.input(node.children[0], aggregation.attribute_ids)
    for key in aggregation.keys:
        check_key(key)
    reader = builder.reader(below)
    inputs = Inputs(reader)
    calls: list[PythonCall] = []
    types: list[DataType] = []
    places: dict[Node, int] = {}
    for each, function in zip(aggregation.aggregates, programs, strict=True):
        check_type(function.node)
        call = inputs.call(function, f"a{len(calls)}", function.node.data_type)
        same = next((n for n, other in enumerate(calls) if replace(other, name=call.name) == call), None)
        if same is None:  # Spark calls equal ones once
            same = len(calls)
            calls.append(call)
            types.append(function.node.data_type)
        places[each] = len(aggregation.keys) + same
    if kind in _AGGREGATES_ALONE and len(calls) > 1:
        raise NotTranslatableError("several functions of groups that are given an iterator are not called here")
    keys = tuple(Output(f"k{n}", reader(key)) for n, key in enumerate(aggregation.keys))
    if not keys and not inputs.outputs:
        raise NotTranslatableError("functions of nothing are not called here for all rows as one group")
    settings = settings_of(node, kind, numbered(inputs.types), numbered(types))
    relation = PythonAggregate(
        Project(below.relation, (*keys, *inputs.outputs)),
        tuple(range(len(keys))),
        tuple(range(len(keys), len(keys) + len(inputs.outputs))),
        tuple(calls),
        settings,
    )
    results = [named for named in aggregation.results if named.expr_id in required] or list(aggregation.results[:1])
    return with_outputs(relation, named_outputs(results, _GroupReader(aggregation, relation, places)))


def python_rows(builder: TreeBuilder, node: PlanNode) -> Fragment:
    """Call the function of a node for all rows of its input, or for those of each group."""
    call, child = node.expression("functionExpr"), node.children[0]
    kind = int(call.fields["evalType"])
    if kind not in _ROWS[node.name]:
        raise NotTranslatableError(f"functions of kind {kind} are not called here")
    check_kind(kind, node)
    if "leftGroupingLen" in node.fields:
        return _cogroups(builder, node, call, kind)
    columns: list[Node] = list(child.output)
    keys: tuple[int, ...] | None = None
    arguments: tuple[int, ...] = (0,)
    if "groupingAttributes" in node.fields:
        check_unsorted(child)
        columns, keys, arguments = _of_groups(node.expressions("groupingAttributes"), child)
    elif node.fields["isBarrier"] or node.jvm.profile().isDefined():
        raise NotTranslatableError("Spark runs functions that ask for barriers or resources")
    (function,) = read_function(call, builder).commands
    _check_rows(columns, node.output)
    ids = [column.expr_id for column in columns]
    below = builder.build(child, frozenset(ids)).select(ids)
    settings = settings_of(node, kind, _named(columns), _named(node.output))
    name, schema = str(call.fields["name"]), _schema_of(node.output)
    relation = PythonRows(below.relation, name, function, schema, settings, arguments, keys)
    return Fragment.from_columns(relation, (column.expr_id for column in node.output))


def _cogroups(builder: TreeBuilder, node: PlanNode, call: Node, kind: int) -> Fragment:
    """Call the function of a node for the rows of both inputs with equal keys."""
    (function,) = read_function(call, builder).commands
    counts = (int(node.fields["leftGroupingLen"]), int(node.fields["rightGroupingLen"]))
    for child in node.children:
        check_unsorted(child)
    keys = [child.output[:count] for child, count in zip(node.children, counts, strict=True)]
    layouts = [_of_groups(own, child) for own, child in zip(keys, node.children, strict=True)]
    if [key.data_type for key in keys[0]] != [key.data_type for key in keys[1]]:
        raise NotTranslatableError("Spark cogroups by keys of several types")
    sides = []
    for child, (columns, _, _) in zip(node.children, layouts, strict=True):
        _check_rows(columns, node.output)
        ids = [column.expr_id for column in columns]
        sides.append(builder.input(child, frozenset(ids)).select(ids))
    types = [side.relation.schema.types for side in sides]
    names = [f"{key.fields['name']}#{n}" for n, key in enumerate(keys[0])]
    names += [f"i{n}" for n in range(1 + len(types[0]) + len(types[1]))]
    inputs = []
    for n, (side, (_, places, _)) in enumerate(zip(sides, layouts, strict=True)):
        own = [column_at(side.relation.schema, place) for place in range(len(types[n]))]
        none = [Literal(value=None, type=dtype) for dtype in types[1 - n]]
        is_right = Literal(value=n == 1, type=pa.bool_())
        values = (*(own[place] for place in places), is_right, *((own + none) if n == 0 else (none + own)))
        inputs.append(Project(side.relation, tuple(map(Output, names, values))))
    width = len(keys[0]) + 1
    of_right = width + len(types[0])
    relation = PythonCogroups(
        Union(tuple(inputs)), str(call.fields["name"]), function, _schema_of(node.output),
        settings_of(node, kind, _named(layouts[0][0]), _named(node.output)),
        (*layouts[0][2], *layouts[1][2]),
        keys=tuple(range(len(keys[0]))), side=len(keys[0]),
        left=tuple(range(width, of_right)), right=tuple(range(of_right, of_right + len(types[1]))),
        right_type=json.dumps(_named(layouts[1][0]).jsonValue()),
    )  # fmt: skip
    return Fragment.from_columns(relation, (column.expr_id for column in node.output))


def _check_rows(columns: Sequence[Node], results: Sequence[Node]) -> None:
    """Refuse rows that are not given to functions here, or taken from them."""
    names = [str(column.fields["name"]) for column in columns]
    if not names or len(set(names)) < len(names):
        raise NotTranslatableError("a function is not given rows without columns, or with several of one name, here")
    for column in (*columns, *results):
        check_column(column)
        check_type(column)


def _schema_of(columns: Sequence[Node]) -> pa.Schema:
    return pa.schema([pa.field(f"{c.fields['name']}#{c.expr_id}", arrow_type(c.data_type)) for c in columns])


def _of_groups(keys: Sequence[Node], child: PlanNode) -> tuple[list[Node], tuple[int, ...], tuple[int, ...]]:
    """Give the columns that a function of groups is given, the keys among them, and what PySpark is told of them.

    Spark gives the keys first, but for those that are columns of the rows too (``PandasGroupUtils.resolveArgOffsets``).
    """
    values = child.output[len(keys) :]
    if not keys:
        raise NotTranslatableError("Spark runs a function of all rows as one group")
    for key in keys:
        check_key(key)
    ids = [value.expr_id for value in values]
    own = [key for key in keys if key.expr_id not in ids]
    columns = [*own, *values]
    places = tuple(own.index(key) if key in own else len(own) + ids.index(key.expr_id) for key in keys)
    of_values = range(len(own), len(columns))
    return columns, places, (len(keys) + len(of_values) + 1, len(keys), *places, *of_values)


def _of_aggregation(aggregation: ReadAggregate, node: PlanNode) -> tuple[int, list[Node]]:
    """Give the kind and the functions of an aggregation, all of which are Python's, as Spark has it."""
    functions = [each.children[0] for each in aggregation.aggregates]
    kinds = {int(each.fields["evalType"]) if each.name == "PythonUDAF" else None for each in functions}
    kind = kinds.pop()
    if kinds or kind not in _AGGREGATES:
        raise NotTranslatableError("Spark runs aggregate functions that are not all Python's, and of one kind")
    assert kind is not None
    check_kind(kind, node)
    for each in aggregation.aggregates:
        if each.fields["isDistinct"] or len(each.children) > 1:
            raise NotTranslatableError(f"{each} is not computed here of distinct values, or with a filter")
    return kind, functions


class _GroupReader(FinalReader):
    """Translates an aggregation's results over the results of its functions."""

    def __init__(self, aggregation: ReadAggregate, relation: PythonAggregate, places: Mapping[Node, int]) -> None:
        super().__init__(aggregation, relation, {})
        self._places = places

    def __call__(self, node: Node) -> Expression:
        """Translate an expression over keys and functions' results."""
        if node.name != "AggregateExpression":
            return super().__call__(node)
        return replace(column_at(self._schema, self._places[node]), written=str(node))


class Inputs:
    """What calls of functions take, each value once."""

    def __init__(self, reader: ColumnReader) -> None:
        self._reader = reader
        self._values: list[Expression] = []
        self.types: list[DataType] = []

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The values, as columns."""
        return tuple(Output(f"i{n}", value) for n, value in enumerate(self._values))

    def call(self, function: Function, name: str, dtype: DataType) -> PythonCall:
        """Make a call, whose result has a name and a type."""
        return PythonCall(
            function.names,
            function.commands,
            tuple(map(self._place, function.arguments)),
            tuple((keyword, self._place(argument)) for keyword, argument in function.keywords),
            name,
            arrow_type(dtype),
        )

    def _place(self, argument: Node) -> int:
        value = self._reader(argument)
        for n, earlier in enumerate(self._values):
            if earlier.structure == value.structure:
                return n
        check_type(argument)
        self._values.append(value)
        self.types.append(argument.data_type)
        return len(self._values) - 1


@dataclass(frozen=True)
class Function:
    """A function of a query, or one of another one's result."""

    node: Node
    """The outermost call."""
    names: tuple[str, ...]
    commands: tuple[bytes, ...]
    arguments: tuple[Node, ...]
    keywords: tuple[tuple[str, Node], ...]


def _result_of_equal(function: Function, node: PlanNode) -> int | None:
    """Find the column of an equal call's result below a node, if only filters and choices of columns are between.

    Spark makes two nodes of one function in a condition and in a column. A function that is given one row at a time has
    the same result for a row wherever it is called; of one that is given many, it may depend on the others.
    """
    below = node.children[0]
    while below.name == "Filter" or (below.name == "Project" and _only_chooses(below)):
        below = below.children[0]
    if below.name != CALLS or int(below.fields["evalType"]) != _OF_VALUES:
        return None
    for other, column in zip(below.expressions("udfs"), below.expressions("resultAttrs"), strict=True):
        if _is_same(function.node, other):
            return column.expr_id
    return None


def _only_chooses(node: PlanNode) -> bool:
    return all(named.name == "AttributeReference" for named in node.expressions("projectList"))


def _is_same(one: Node, other: Node) -> bool:
    """Whether two calls are of one function of the program, with equal columns."""
    if one.name != other.name or len(one.children) != len(other.children):
        return False
    if one.name == "AttributeReference":
        return one.expr_id == other.expr_id
    if one.name != "PythonUDF" or one.fields["resultId"] != other.fields["resultId"]:
        return False
    return all(map(_is_same, one.children, other.children))


def read_function(call: Node, builder: TreeBuilder) -> Function:
    """Read a call, with those that its only argument is a call of."""
    chain = [call]
    while len(chain[-1].children) == 1 and chain[-1].children[0].name == "PythonUDF":
        chain.append(chain[-1].children[0])
    for part in chain:
        if not part.fields["udfDeterministic"]:
            raise NotTranslatableError(f"{part.fields['name']} is not deterministic")
    try:
        commands = tuple(_command(part, builder) for part in reversed(chain))
    except (Py4JError, TypeError, ValueError) as problem:  # another kind of function than PySpark makes
        raise NotTranslatableError(f"{call.fields['name']} is not a function as PySpark makes them") from problem
    named = [child for child in chain[-1].children if child.name == "NamedArgumentExpression"]
    plain = tuple(child for child in chain[-1].children if child not in named)
    names = tuple(str(part.fields["name"]) for part in reversed(chain))
    return Function(call, names, commands, plain, tuple((str(each.fields["key"]), each.children[0]) for each in named))


def _command(call: Node, builder: TreeBuilder) -> bytes:
    """Give what PySpark has pickled of a function that the island's workers may run."""
    function, context = call.jvm.func(), running_context()
    name = str(call.fields["name"])
    if MARK in name:
        raise NotTranslatableError(f"{name} is a stage of gpujoin's")
    if context is None:
        raise NotTranslatableError(f"{name} belongs to a Spark context that has stopped")
    facts = unpacked(plan_reader(call.reading.gateway).pythonFunction(function))
    if (facts["python"], facts["version"]) != (context.pythonExec, context.pythonVer):
        raise NotTranslatableError(f"{name} was made for another Python: {facts['python']}")
    environment = {_HASH_SEED: context.environment.get(_HASH_SEED), **facts["environment"]}
    if environment != context.environment:
        raise NotTranslatableError(f"{name} was made with other environment variables")
    if not set(facts["files"]) <= set(shipped_files(context)):
        raise NotTranslatableError(f"{name} was made with files that are not shipped any more")
    broadcasts = [function.broadcastVars().get(n) for n in range(facts["broadcasts"])]
    builder.broadcasts += [each for each in broadcasts if each not in builder.broadcasts]
    return base64.b64decode(facts["command"])


def check_kind(kind: int, node: PlanNode) -> None:
    """Refuse functions that are left to Spark, all of a kind or all of a session."""
    why = _why_not(kind, node.reading.conf)
    if why is not None:
        raise NotTranslatableError(f"Spark runs Python functions, since {why}")


def _is_true(conf: Mapping[str, str], name: str, default: str) -> bool:
    return conf.get(name, default).lower() == "true"


def _why_not(kind: int, conf: Mapping[str, str]) -> str | None:
    if not pyspark.__version__.startswith(_VERSIONS):
        return f"PySpark {pyspark.__version__} has another interface for them"
    if kind not in _KINDS.union(_AGGREGATES, *_ROWS.values()):
        return "their arguments are pickled, and not given as Arrow data (spark.sql.execution.pythonUDF.arrow.enabled)"
    for name, what in _WATCHED.items():
        if conf.get(name, "false").lower() not in ("false", ""):
            return f"{what} are asked for by {name}"
    if conf.get("spark.sql.execution.pyspark.python"):
        return "spark.sql.execution.pyspark.python names another Python for them"
    if int(conf["spark.sql.execution.arrow.maxRecordsPerBatch"]) <= 0:
        return "batches are of any size by spark.sql.execution.arrow.maxRecordsPerBatch"
    return None


def check_unsorted(plan: PlanNode) -> None:
    """Refuse rows of groups that are sorted somewhere below: Spark keeps their order where it does not exchange them.

    So are rows that are cached in an order.
    """
    for node in plan.walk():
        if node.name == "Sort" or (node.name == "InMemoryRelation" and node.jvm.outputOrdering().nonEmpty()):
            raise NotTranslatableError("rows of groups are sorted below it, an order that Spark may keep")


def check_key(key: Node) -> None:
    """Refuse keys whose equal values may be different ones."""
    name = expression_name(key)
    if not isinstance(key.data_type, _KEY_TYPES):
        raise NotTranslatableError(f"{name} has type {key.data_type.simpleString()}, by which Spark groups here")
    if "collate" in key.type_name.lower():
        raise NotTranslatableError(f"{name} has a collation, by which Spark groups here")


def check_type(value: Node) -> None:
    """Refuse types whose values PySpark converts by more than Arrow tells."""
    for dtype in _types_in(value.data_type):
        if not isinstance(dtype, (*_PLAIN_TYPES, t.ArrayType, t.MapType, t.StructType)):
            raise NotTranslatableError(f"{value} has type {dtype.simpleString()}, which functions are not given here")
    if "collate" in value.type_name.lower():
        raise NotTranslatableError(f"{value} has a collation, with which functions are not given texts here")


def _types_in(dtype: DataType) -> Iterator[DataType]:
    yield dtype
    match dtype:
        case t.ArrayType():
            yield from _types_in(dtype.elementType)
        case t.MapType():
            yield from _types_in(dtype.keyType)
            yield from _types_in(dtype.valueType)
        case t.StructType():
            for field in dtype:
                yield from _types_in(field.dataType)


def settings_of(node: PlanNode, kind: int, inputs: t.StructType, results: t.StructType) -> PythonSettings:
    """Give what a node's calls depend on besides their functions."""
    conf = node.reading.conf
    zone = conf.get(_ZONE) or str(node.jvm.conf().sessionLocalTimeZone())
    return PythonSettings(
        kind,
        json.dumps(inputs.jsonValue()),
        json.dumps(results.jsonValue()),
        ((_ZONE, zone), *((name, conf[name]) for name in _CONVERSION if name in conf)),
        int(conf["spark.sql.execution.arrow.maxRecordsPerBatch"]),
        _bytes_of(conf["spark.sql.execution.arrow.maxBytesPerBatch"]),
        _is_true(conf, "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "true"),
    )


def _named(columns: Sequence[Node]) -> t.StructType:
    """Give the type of whole rows."""
    return t.StructType([t.StructField(str(each.fields["name"]), each.data_type, each.nullable) for each in columns])


def numbered(types: Iterable[DataType]) -> t.StructType:
    """Name columns as Spark does where it gives them to functions."""
    return t.StructType([t.StructField(f"_{n}", dtype) for n, dtype in enumerate(types)])


def _bytes_of(text: str) -> int:
    from gpujoin.config import parse_bytes

    return int(parse_bytes(text))
