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
from typing import Any, TypeVar

from gpujoin._version import __version__
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

Message = TypeVar("Message", Explanation, IslandReports)
_VALUES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Amounts, BlobCounts, Explanation, IslandMetrics, IslandOperation, IslandReport, JoinMetrics, JoinOperation, Note,
        Operation, PipelineMetrics, Reason,
    )
}  # fmt: skip
_ENUMS: dict[str, type[Enum]] = {kind.__name__: kind for kind in (NoteKind, OperationKind, ReasonKind, Side, Strategy)}
_DICT = "dict"


def written(message: Explanation | IslandReports) -> str:
    """Give a report as JSON."""
    if isinstance(message, IslandReports):
        content = [[_form(each) for each in message], _form(message.report)]
        return json.dumps({"version": __version__, "reports": content})
    return json.dumps({"version": __version__, "explanation": _form(message)})


def read_explanation(text: str) -> Explanation:
    """Read an explanation.

    Raises
    ------
    GpuJoinError
        If another version of gpujoin has written something that this one does not know.
    """
    return _read(text, lambda form: _value(form["explanation"]))


def read_reports(text: str) -> IslandReports:
    """Read the reports of a query; errors are those of :func:`read_explanation`."""
    return _read(text, lambda form: IslandReports(map(_value, form["reports"][0]), _value(form["reports"][1])))


def _read(text: str, read: Any) -> Any:
    form: dict[str, Any] = {}
    try:
        form = json.loads(text)
        return read(form)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        version = form.get("version", "another version") if isinstance(form, dict) else "another version"
        raise GpuJoinError(
            f"the server's gpujoin is {version}, this one {__version__}, and its report cannot be read here: install "
            "the same version"
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
