"""Remembers operations that met values only Spark computes, so that a query is given back only once.

Whether ``conv(code, 16, -10)`` can be computed here depends on its values, which planning does not know. A worker that
meets another one raises ``UnsupportedValueError``, and Spark runs the whole query::

    first run      scan, join, conv      given back, from the files on: it takes the time of both
    further runs   scan, join            here
                   conv                  in Spark

An operation is remembered with the tables of the query: another query over them would meet the same values.
"""

from __future__ import annotations

import re

from gpujoin.cache import Cache
from gpujoin.errors import OPERATION_NOTE, STAGE_NOTE

Tables = frozenset[str]
"""Tables of a query, by what tells them from others."""

_MOST_STAGES = 10_000
_MOST_REFUSED = 1_000
_OPERATION = re.compile(rf"^{OPERATION_NOTE}(.+)$", re.MULTILINE)
_STAGE = re.compile(rf"^{STAGE_NOTE}(\w+)$", re.MULTILINE)
_tables: Cache[str, Tables] = Cache(_MOST_STAGES)
"""Tables of the query that an island is of, by the island's id; the oldest are forgotten."""
_refused: Cache[tuple[Tables, str], bool] = Cache(_MOST_REFUSED)
"""Operations that met such values, with the tables of the query."""


def note_island(island_id: str, tables: Tables) -> None:
    """Note of which query an island is."""
    _tables.put(island_id, tables)


def note_refusal(problem: BaseException) -> None:
    """Remember the operation that met such a value, if that was a query's failure."""
    text = str(problem)
    operation, stage = _OPERATION.search(text), _STAGE.search(text)
    if operation is None or stage is None:
        return
    tables = next((tables for name, tables in _tables.items() if stage[1].startswith(name)), None)
    if tables is not None:
        _refused.put((tables, operation[1]), True)


def refused_operations(tables: Tables) -> frozenset[str]:
    """Give the operations that met such values in the tables of a plan, as ``operation_name`` names them."""
    return frozenset(operation for (tables_of_query, operation), _ in _refused.items() if tables_of_query <= tables)
