"""What ``spark.gpujoin.disable`` may leave to Spark, by the names that ``explain`` prints.

Spaces and hyphens are written as underscores. A name of two things, such as ``filter``, an operation and a function of
arrays, is that of both::

    window       every window                          round        the function, wherever it is called
    left_join    joins of one type                     iceberg      tables of that format
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from gpujoin.model.aggregates import AggregateFunction
from gpujoin.model.expressions import Call, Case, Cast, Expression, Function
from gpujoin.model.files import FileFormat
from gpujoin.model.jointype import JoinType
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import PartialAggregate, Relation, Window
from gpujoin.model.spec import JoinSpec
from gpujoin.model.windows import FramedAggregate, WindowFunction

SETTING = "spark.gpujoin.disable"
SCAN, STREAMS, AS_OF_JOIN, PYTHON = "scan", "streams", "as_of_join", "python"
_OF_PLAN_NODES = {
    "LogicalRelation": SCAN, "DataSourceV2ScanRelation": SCAN, "Filter": "filter", "Project": "project", "Join": "join",
    "GpuAsOfJoin": AS_OF_JOIN, "Union": "union", "Aggregate": "aggregate", "Expand": "expand", "Window": "window",
    "WindowGroupLimit": "window", "GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "limit",
    "Generate": "explode", "ArrowEvalPython": PYTHON, "MapInPandas": PYTHON, "MapInArrow": PYTHON,
    "FlatMapGroupsInPandas": PYTHON, "FlatMapGroupsInArrow": PYTHON, "FlatMapCoGroupsInPandas": PYTHON,
    "FlatMapCoGroupsInArrow": PYTHON,
}  # fmt: skip
"""Operations, by the classes of Spark's plan nodes that are read as one."""
_TABLE_FORMATS = ("delta", "iceberg")
_SEPARATORS = re.compile(r"(?<=\w)[ -]+(?=\w)")


def _written(name: str) -> str:
    return _SEPARATORS.sub("_", name.strip().lower())


def join_switch(kind: JoinType) -> str:
    """Give the name of the joins of a type."""
    return f"{kind.value}_join"


OPERATIONS = tuple(dict.fromkeys((*_OF_PLAN_NODES.values(), STREAMS)))
JOINS = tuple(map(join_switch, JoinType))
SOURCES = (*(form.value for form in FileFormat), *_TABLE_FORMATS)
FUNCTIONS = tuple(
    dict.fromkeys(
        _written(name)
        for name in (
            "cast", "case",
            *(function.value for kind in (Function, AggregateFunction, WindowFunction) for function in kind),
        )
    )
)  # fmt: skip
SWITCHES = frozenset((*OPERATIONS, *JOINS, *SOURCES, *FUNCTIONS))
"""All names."""


def read_switch(text: str) -> str:
    """Give the name that a text spells, which may be none of :data:`SWITCHES`."""
    return _written(text)


def node_switch(class_name: str) -> str | None:
    """Give the name of the operation that a class of Spark's plan nodes is, without its package."""
    return _OF_PLAN_NODES.get(class_name)


def switched_off(relation: Relation, disabled: Collection[str]) -> Reason | None:
    """Tell which function of a node, its inputs left aside, is switched off."""
    if not disabled:
        return None
    return next((off(name) for name in _functions(relation) if name in disabled), None)


def join_switched_off(spec: JoinSpec, disabled: Collection[str]) -> Reason | None:
    """Tell what of a join is switched off, that is no part of a plan: its type, or a function of its condition."""
    condition = () if spec.condition is None else spec.condition.walk()
    as_of = () if spec.as_of is None else (AS_OF_JOIN,)
    names = (*as_of, "join", join_switch(spec.join_type), *map(_function, condition))
    return next((off(name) for name in names if name in disabled), None)


def off(name: str) -> Reason:
    """Make the reason of what is switched off."""
    return Reason(ReasonKind.CONFIGURED, "settings", f"{name} is switched off", SETTING)


def _functions(relation: Relation) -> Iterator[str]:
    """Yield the names of the functions of a node."""
    match relation:
        case PartialAggregate():
            yield from (call.function.value for call in relation.aggregates)
        case Window():
            for call in relation.calls:
                function = call.call.function if isinstance(call, FramedAggregate) else call.function
                yield function.value
    for expression in relation.expressions():
        yield from filter(None, map(_function, expression.walk()))


def _function(node: Expression) -> str | None:
    match node:
        case Call():
            return _written(node.function.value)
        case Cast():
            return "cast"
        case Case():
            return "case"
    return None
