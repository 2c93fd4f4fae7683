"""Stores that throttle, or drop connections: they are asked again, and then the error names the object, no secret."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.files import StoreKind
from gpujoin.model.relations import Scan
from gpujoin.plan.scanned import plan_splits
from gpujoin.storage import locations
from gpujoin.storage.locations import in_store
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import run, whole
from tests.faultyproxy import Fault, Proxy, proxied
from tests.stores import BUCKET, Server

TABLE = pa.table({"n": range(1000), "s": [f"text {n % 7}" for n in range(1000)]})
SCAN = Scan(TABLE.schema)


@dataclass(frozen=True)
class FaultyStore:
    """A store behind a proxy, with one file."""

    path: str
    kind: StoreKind
    proxy: Proxy
    secrets: tuple[str, ...]


@pytest.fixture
def faulty(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    with server.files.open_output_stream(f"{BUCKET}/x.parquet") as file:
        pq.write_table(TABLE, file, row_group_size=150)
    upstream = server.endpoint.partition("://")[2]
    with proxied(upstream) as proxy:
        told = {name: proxy.address if value == upstream else value for name, value in server.store.arguments}
        store = replace(server.store, arguments=tuple(told.items()))
        # Tries are to end soon where they are in vain.
        monkeypatch.setattr(locations, "_ATTEMPTS", 3)
        monkeypatch.setattr(locations, "_GCS_SECONDS", dt.timedelta(seconds=4))
        path = in_store(store, f"{BUCKET}/x.parquet")
        yield FaultyStore(path, store.kind, proxy, tuple(value for _, value in store.secrets))
        locations._opened.cache_clear()


@pytest.mark.parametrize(
    "fault",
    [
        # That of a store that is busy is made again in test_stores.py, too.
        pytest.param(Fault.BUSY, marks=pytest.mark.extra), Fault.DROPPED,
        pytest.param(Fault.THROTTLED, marks=pytest.mark.extra),
        pytest.param(Fault.CUT, marks=pytest.mark.extra),
    ],
)  # fmt: skip
def test_a_request_that_fails_is_made_again(faulty: FaultyStore, fault: Fault) -> None:
    if faulty.kind is StoreKind.AZURE and fault is Fault.THROTTLED:
        pytest.skip("Azure's store throttles with 503")
    faulty.proxy.fail(fault)
    (footer,) = read_footers(SCAN, [faulty.path])
    assert not faulty.proxy.left
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    faulty.proxy.fail(fault)
    read = pa.Table.from_batches(run(replace(SCAN, slices=split)), TABLE.schema)
    assert_same_rows(read, TABLE)
    assert not faulty.proxy.left


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.DROPPED, Fault.CUT])
def test_any_request_of_a_scan_may_fail(faulty: FaultyStore, fault: Fault) -> None:
    (footer,) = read_footers(SCAN, [faulty.path])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    before = faulty.proxy.requests
    list(run(replace(SCAN, slices=split)))
    count = faulty.proxy.requests - before
    assert count >= 3
    for number in range(count):
        faulty.proxy.fail(*[Fault.NONE] * number, fault)
        assert_same_rows(pa.Table.from_batches(run(replace(SCAN, slices=split)), TABLE.schema), TABLE)
        assert not faulty.proxy.left


@pytest.mark.parametrize("fault", [pytest.param(Fault.BUSY, marks=pytest.mark.extra), Fault.DROPPED])
def test_at_last_the_object_is_named_and_no_secret(
    faulty: FaultyStore, fault: Fault, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (footer,) = read_footers(SCAN, [faulty.path])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    before = faulty.proxy.requests
    faulty.proxy.fail(lasting=fault)
    with caplog.at_level(logging.DEBUG), pytest.raises(ScanError, match=r"/x\.parquet: ") as problem:
        list(run(replace(SCAN, slices=split)))
    assert faulty.proxy.requests >= before + 2, "it was asked again"
    told = [caplog.text, *capfd.readouterr()]
    cause: BaseException | None = problem.value
    while cause is not None:
        told.append(f"{cause} {cause!r}")
        cause = cause.__cause__ or cause.__context__
    assert not any(secret in text for secret in faulty.secrets for text in told)
    faulty.proxy.fail()
    assert_same_rows(pa.Table.from_batches(run(replace(SCAN, slices=split)), TABLE.schema), TABLE)
