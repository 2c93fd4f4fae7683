"""Knows which nodes the pipeline of the CPU computes exactly as Spark does. Loads no library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.types as pat

from gpujoin.functions.lowered import can_carry
from gpujoin.functions.support import obstacle
from gpujoin.model.expressions import Case, Cast, ColumnRef, Expression, Literal
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.model.relations import (
    Expand,
    OneInput,
    PartialAggregate,
    Project,
    PythonCalls,
    Relation,
    Scan,
    TopN,
    Window,
    operation_name,
)
from gpujoin.model.sqltext import show_type, value_name, with_types
from gpujoin.model.types import is_float, is_text


def is_late(dtype: pa.DataType) -> bool:
    """Whether columns of a type are late ones."""
    return not can_carry(dtype)


def passes_on(node: Expression) -> bool:
    """Whether an expression of late values gives some of them, or null, as they are."""
    match node:
        case ColumnRef() | Literal(value=None):
            return node.type is not None and is_late(node.type)
        case Case():
            return all(map(passes_on, (*node.values, node.otherwise)))
    return False


def node_obstacles(node: Relation) -> tuple[Reason, ...]:
    """Reasons why one node, without its inputs, is not computed exactly as Spark would."""
    parts = node.expressions()
    if isinstance(node, Project | Expand | PythonCalls):
        parts = tuple(part for expression in parts for part in _computed_parts(expression))
    uncomputed = (_uncomputed(part) for part in map(obstacle, parts) if part is not None)
    what = operation_name(node)
    return tuple(Reason(ReasonKind.UNSUPPORTED, what, why) for why in (*uncomputed, *_late_obstacles(node)))


def _uncomputed(node: Expression) -> str:
    """Say why an expression is not computed here."""
    if isinstance(node, Cast) and node.child.type is not None and is_float(node.child.type) and is_text(node.to):
        return f"{node} turns {show_type(node.child.type)}s into text, which only Spark does"
    return f"{with_types(node)} is not computed here"


def _computed_parts(node: Expression) -> Iterator[Expression]:
    """The parts of a projected expression that are computed. If it passes late values on, these are its conditions."""
    if not passes_on(node):
        yield node
    elif isinstance(node, Case):
        yield from node.conditions
        for value in (*node.values, node.otherwise):
            yield from _computed_parts(value)


def _late_obstacles(node: Relation) -> Iterator[str]:
    """Say why a node cannot be run because of late columns that it does not merely pass on."""
    match node:
        case Scan():
            for each in node.schema:
                if not (pat.is_null(each.type) or _is_readable(each.type)):
                    yield f"{value_name(each)} is not read from files here"
        case PartialAggregate():
            lists = {each.name for call in node.aggregates if call.gives_list for each in call.buffer}
            yield from _late_uses(node, node.expressions(), "is not aggregated here")
            for each in node.schema:
                if is_late(each.type) and each.name not in lists:
                    yield f"{value_name(each)} is not aggregated here"
        case Window() | TopN():
            why = "is passed on only, not computed with"
            for at in node.partition if isinstance(node, Window) else ():
                if is_late(node.child.schema.field(at).type):
                    yield f"{value_name(node.child.schema.field(at))} {why}"
            yield from _late_uses(node, node.expressions(), why)


def _late_uses(node: OneInput, expressions: Iterable[Expression], why: str) -> Iterator[str]:
    for each in expressions:
        if each.type is None or not is_late(each.type):
            continue
        if isinstance(each, ColumnRef):
            yield f"{value_name(node.child.schema.field(each.index))} {why}"
        else:
            yield f"{each} of type {show_type(each.type)} is not computed here"


def _is_readable(dtype: pa.DataType) -> bool:
    """Whether values of a type, or nested ones of such, are read from files."""
    if pat.is_list(dtype) or pat.is_map(dtype) or pat.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return bool(fields) and all(_is_readable(each.type) for each in fields)
    return can_carry(dtype)
