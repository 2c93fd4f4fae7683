"""Checks of a join before its rows are looked at."""

from __future__ import annotations

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.config import Options
from gpujoin.engine.join.layout import JoinLayout
from gpujoin.errors import ConditionError, KeyTypeError, ProductSizeError
from gpujoin.model.backend import BackendName
from gpujoin.model.expressions import Expression
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import AnyDevicePipeline
from gpujoin.model.sqltext import show_type, value_name, with_types
from gpujoin.model.types import logical

_INSTEAD = "or join host tables (to_arrow())"


def check_evaluable(condition: Expression | None) -> None:
    """Raise for a condition that the CPU backend, the fallback of every join, does not evaluate as Spark does."""
    if condition is None:
        return
    can_evaluate = create(BackendName.CPU, BackendRequest()).can_evaluate
    for part in condition.walk():
        if not can_evaluate(part) and all(map(can_evaluate, part.children)):
            raise ConditionError(
                f"the condition's part {with_types(part)} cannot be evaluated exactly as Spark"
                " does; compute it as a column before the join"
            )


def check_product(layout: JoinLayout, options: Options, build_rows: int, probe_rows: int) -> None:
    """Raise ``ProductSizeError`` for a join without keys and ranges of more pairs than ``options.max_product_rows``."""
    most, pairs = options.max_product_rows, build_rows * probe_rows
    ranged = options.range_index and (layout.axes or layout.ranged is not None)
    if most is None or pairs <= most or layout.spec.keys or ranged or layout.spec.as_of:
        return
    raise ProductSizeError(
        f"{build_rows} × {probe_rows} rows without keys or ranges are {pairs} pairs, more than"
        f" spark.gpujoin.maxProductRows ({most}); add an equality or a comparison by order, or raise the setting"
    )


def device_obstacle(layout: JoinLayout, device: AnyDevicePipeline, options: Options) -> str | None:
    """Why a device does not compute all of a join of rows in host memory; ``None``: it does.

    Keys are compared in the common type of both sides, whatever its layout. Whether a join with keys needs its ranges
    is known only when it is built.
    """
    types = [*layout.codec.types, *([] if layout.as_of_type is None else [layout.as_of_type])]
    uncompared = next((dtype for dtype in types if not device.takes_keys(logical(dtype), logical(dtype))), None)
    if uncompared is not None:
        return f"keys of type {show_type(uncompared)} are not compared on a GPU"
    condition, can_gather = layout.spec.condition, device.backend.can_gather
    if condition is not None and not device.backend.can_evaluate(condition):
        return f"the condition {condition} is not computed on a GPU exactly as Spark does"
    ranged = layout.ranged if options.range_index and not layout.spec.keys else None
    if ranged is not None and not device.searches(ranged.axes):
        return unsearched(ranged)
    for side in (layout.build, layout.probe):
        for field in (side.schema.field(at) for at in (*side.output, *side.condition)):
            if not can_gather(field.type):
                return f"{value_name(field)} is not held on a GPU"
    return None


def unsearched(layout: JoinLayout) -> str:
    """Reason why a device does not search by the ranges of a layout."""
    return f"rows are not searched by the ranges of {layout.spec.condition} on a GPU"


def check_tables(layout: JoinLayout, device: AnyDevicePipeline) -> None:
    """Raise for a join that a device does not compute without a copy of its tables to the host.

    Raises ``KeyTypeError``, ``ConditionError`` or ``JoinSpecError``; the message says what to do.
    """
    spec, schemas = layout.spec, {side.side: side.schema for side in (layout.build, layout.probe)}
    for key in spec.keys:
        left, right = (schemas[side].field(key.of(side)) for side in Side)
        if not device.takes_keys(left.type, right.type):
            raise KeyTypeError(
                f"keys {left.name!r} of {left.type} and {right.name!r} of {right.type} are not compared on a GPU; cast"
                f" them to one type, {_INSTEAD}"
            )
    terms = spec.as_of
    if terms is not None:
        left, right = schemas[Side.LEFT].field(terms.left), schemas[Side.RIGHT].field(terms.right)
        if not device.takes_keys(left.type, right.type):
            raise KeyTypeError(
                f"order keys of {left.type} and {right.type} are not compared on a GPU; cast them to one type,"
                f" {_INSTEAD}"
            )
    if spec.condition is not None and not device.backend.can_evaluate(spec.condition):
        raise ConditionError(
            f"the condition {spec.condition} is not evaluated on a GPU exactly as Spark does; {_INSTEAD}"
        )
