"""Writes reports as JSON for another process, which reads equal values from it.

A dataclass and an enum are written under the names of their classes, a tuple as a list::

    Note(kind=NoteKind.WARNING, text="slow")    {"Note": {"kind": {"NoteKind": "warning"}, "text": "slow", …}}
    {"scan": 0.5}                               {"dict": [["scan", 0.5]]}

Only classes of reports are read, so that a message can make nothing else.
"""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Any

from gpujoin.config import Strategy
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.errors import GpuJoinError
from gpujoin.model.jointype import Side
from gpujoin.model.pipeline import PipelineMetrics
from gpujoin.model.reasons import Reason, ReasonKind
from gpujoin.report.explanation import Explanation
from gpujoin.report.metrics import IslandReport, IslandReports
from gpujoin.report.operations import (
    Amounts,
    IslandOperation,
    JoinOperation,
    Note,
    NoteKind,
    Operation,
    OperationKind,
)
from gpujoin.spark.shuffle.blobrows import BlobCounts
from gpujoin.spark.worker.record import IslandMetrics

_VALUES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Amounts, BlobCounts, Explanation, IslandMetrics, IslandOperation, IslandReport, JoinMetrics, JoinOperation,
        Note, Operation, PipelineMetrics, Reason,
    )
}  # fmt: skip
_ENUMS: dict[str, type[Enum]] = {kind.__name__: kind for kind in (NoteKind, OperationKind, ReasonKind, Side, Strategy)}
_DICT = "dict"


def written(message: Explanation | IslandReports) -> str:
    """Give a report as JSON."""
    if isinstance(message, IslandReports):
        return json.dumps([[_form(each) for each in message], _form(message.report)])
    return json.dumps(_form(message))


def parse_explanation(text: str) -> Explanation:
    """Parse an explanation.

    Raises
    ------
    GpuJoinError
        If it was written by another version of gpujoin, with something that this one does not know.
    """
    explanation: Explanation = _parse(text)
    return explanation


def parse_reports(text: str) -> IslandReports:
    """Parse the reports of a query; errors are those of :func:`parse_explanation`."""
    stages, report = _parse(text)
    return IslandReports(stages, report)


def _parse(text: str) -> Any:
    try:
        return _value(json.loads(text))
    except (KeyError, TypeError, ValueError) as problem:
        raise GpuJoinError(
            f"the report of the server cannot be read ({problem!r}): install the same version of gpujoin there and here"
        ) from problem


def _form(value: object) -> Any:
    if isinstance(value, Enum):
        return {type(value).__name__: value.value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: {each.name: _form(getattr(value, each.name)) for each in _fields(value)}}
    if isinstance(value, dict):
        return {_DICT: [[_form(key), _form(each)] for key, each in value.items()]}
    if isinstance(value, (tuple, list)):
        return [_form(each) for each in value]
    return value


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(each for each in dataclasses.fields(value) if each.init)


def _value(form: Any) -> Any:
    if isinstance(form, list):
        return tuple(map(_value, form))
    if not isinstance(form, dict):
        return form
    ((name, content),) = form.items()
    if name == _DICT:
        return {_value(key): _value(each) for key, each in content}
    if name in _ENUMS:
        return _ENUMS[name](content)
    return _VALUES[name](**{field: _value(each) for field, each in content.items()})
