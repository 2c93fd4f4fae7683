"""Which stages may have several partitions read as one."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from gpujoin.model.relations import ExchangeSource
from gpujoin.model.stages import Branch, Exchange, NullKeys, Stage
from gpujoin.plan.partition_sizes import LEAST_PARTITIONS, may_coalesce

SCHEMA = pa.schema([("k", pa.int64())])
PRODUCER = Stage(ExchangeSource(7, SCHEMA), (Branch(None),))
EXCHANGE = Exchange(0, PRODUCER, (0,), (pa.int64(),), (False,), NullKeys.DROP)
STAGE = Stage(ExchangeSource(0, SCHEMA), (), (EXCHANGE,), partitions=LEAST_PARTITIONS)


def test_a_stage_that_reads_exchanged_rows_may() -> None:
    assert may_coalesce(STAGE)


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": LEAST_PARTITIONS - 1},
        {"branches": (Branch(None),)},
        {"inputs": ()},
        {"inputs": (EXCHANGE, dataclasses.replace(EXCHANGE, nulls=NullKeys.EVERYWHERE))},
        {"inputs": (dataclasses.replace(EXCHANGE, last_complete=True),)},
    ],
    ids=["few partitions", "files", "nothing", "null keys everywhere", "all rows in one partition"],
)
def test_a_stage_may_not_where(changes: dict[str, object]) -> None:
    assert not may_coalesce(dataclasses.replace(STAGE, **changes))  # type: ignore[arg-type]
