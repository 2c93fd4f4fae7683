"""Reads the queries of a Spark event log: their physical plans and their seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpujoin.errors import GpuJoinError
from gpujoin.model.trees import preorder

_SQL = "org.apache.spark.sql.execution.ui.SparkListenerSQL"
_EVENTS = re.compile(r"events_(\d+)_")
_CODECS = {".zstd": "zstd", ".zst": "zstd", ".gz": "gzip"}
_UNREAD = frozenset({".lz4", ".snappy", ".lzf"})
"""Suffixes of codecs whose streams have a form of Spark's own."""


@dataclass(frozen=True, slots=True)
class LoggedNode:
    """A node of a physical plan."""

    name: str
    text: str
    """As Spark writes it, shortened by Spark."""
    children: tuple[LoggedNode, ...] = ()

    def walk(self) -> Iterator[LoggedNode]:
        """Yield the node and all below it."""
        return preorder(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedQuery:
    """A query that ran."""

    number: int
    """Its number in Spark's UI."""
    description: str
    seconds: float
    plan: LoggedNode


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedApplication:
    """An application."""

    name: str
    queries: tuple[LoggedQuery, ...]
    failed: int
    """How many queries failed, or had not ended."""


@dataclass
class _Reading:
    """What is known while a log is read."""

    name: str = ""
    started: dict[int, dict[str, Any]] = field(default_factory=dict)
    plans: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def take(self, event: Mapping[str, Any]) -> None:
        kind = event.get("Event", "")
        if kind == "SparkListenerApplicationStart":
            self.name = str(event.get("App Name", ""))
        elif kind == f"{_SQL}ExecutionStart":
            self.started[event["executionId"]] = dict(event)
            self.plans[event["executionId"]] = event["sparkPlanInfo"]
        elif kind == f"{_SQL}AdaptiveExecutionUpdate":
            self.plans[event["executionId"]] = event["sparkPlanInfo"]
        elif kind == f"{_SQL}ExecutionEnd":
            self.ended[event["executionId"]] = int(event["time"]), bool(event.get("errorMessage"))

    def application(self) -> LoggedApplication:
        done = {number: end for number, (end, failed) in self.ended.items() if not failed and number in self.started}
        queries = tuple(
            LoggedQuery(
                number=number,
                description=str(self.started[number].get("description", "")),
                seconds=max(0, end - int(self.started[number]["time"])) / 1000,
                plan=_node(self.plans[number]),
            )
            for number, end in sorted(done.items())
        )
        return LoggedApplication(name=self.name, queries=queries, failed=len(self.started) - len(done))


def _node(info: Mapping[str, Any]) -> LoggedNode:
    return LoggedNode(str(info["nodeName"]).strip(), str(info["simpleString"]), tuple(map(_node, info["children"])))


def is_event_log(path: Path) -> bool:
    """Tell whether a path is an event log: a folder of one, or a file that is no program."""
    return path.is_dir() or (path.is_file() and path.suffix != ".py")


def read_event_log(path: Path) -> LoggedApplication:
    """Read the log of one application: a file, or the folder of a rolling log.

    Raises
    ------
    GpuJoinError
        If it is no event log, or one that is compressed in a form of Spark's own.
    """
    reading = _Reading()
    events = 0
    for line in _lines(path):
        try:
            event = json.loads(line)
        except ValueError:
            if events:
                break  # the end of a log that is still written
            raise GpuJoinError(f"{path} is no event log of Spark") from None
        if not isinstance(event, dict) or "Event" not in event:
            raise GpuJoinError(f"{path} is no event log of Spark")
        events += 1
        try:
            reading.take(event)
        except (KeyError, TypeError) as problem:
            raise GpuJoinError(f"{path}: an event lacks {problem}: {event['Event']}") from problem
    if not events:
        raise GpuJoinError(f"{path} has no events")
    return reading.application()


def _lines(path: Path) -> Iterator[str]:
    for file in _files(path):
        if file.suffix in _UNREAD:
            raise GpuJoinError(
                f"{file} is compressed with {file.suffix[1:]} in a form of Spark's own; write logs with "
                "spark.eventLog.compression.codec=zstd, or with spark.eventLog.compress=false"
            )
        name = file.name.removesuffix(".inprogress")
        codec = next((codec for suffix, codec in _CODECS.items() if name.endswith(suffix)), None)
        try:
            with pa.OSFile(str(file)) as raw, pa.CompressedInputStream(raw, codec) if codec else raw as stream:
                yield from _text_lines(stream)
        except OSError as problem:
            raise GpuJoinError(f"{file} cannot be read: {problem}") from problem


def _text_lines(stream: Any) -> Iterator[str]:
    """Yield the lines of a stream, as far as it can be decompressed: a log may still be written."""
    rest = b""
    while True:
        try:
            block = stream.read(1 << 20)
        except OSError:
            if not rest:
                raise
            block = b""
        *lines, rest = (rest + block).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines if line.strip())
        if not block:
            break
    if rest.strip():
        yield rest.decode("utf-8", "replace")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    numbered = [(match, file) for file in path.iterdir() if (match := _EVENTS.match(file.name)) is not None]
    if not numbered:
        raise GpuJoinError(
            f"{path} has no events_… files; give the log of one application: a file, or a folder eventlog_v2_…"
        )
    return [file for _, file in sorted(numbered, key=lambda each: int(each[0][1]))]
