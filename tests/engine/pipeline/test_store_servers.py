"""Scans of files in S3, Google's and Azure's stores, of which this process was told, from their emulators."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.engine.pipeline.support import read_footers
from gpujoin.errors import ScanError
from gpujoin.model.files import Store, StoreKind
from gpujoin.model.relations import FileSlice, Scan
from gpujoin.plan.scanned import plan_range_splits, plan_splits
from gpujoin.storage import locations
from gpujoin.storage.locations import in_store, know_stores, name_in, stores_named
from gpujoin.testing import assert_same_rows
from tests.engine.pipeline.places import run, whole
from tests.stores import BUCKET, SECRET_KEY, Server

TABLE = pa.table({"n": range(1000), "s": [f"text {n % 7}" for n in range(1000)]})


def put(server: Server, key: str, table: pa.Table = TABLE) -> str:
    with server.files.open_output_stream(f"{BUCKET}/{key}") as file:
        pq.write_table(table, file, row_group_size=150)
    return in_store(server.store, f"{BUCKET}/{key}")


def test_files_are_read_by_row_groups_and_by_ranges(server: Server) -> None:
    path = put(server, "a b/k=1/x.parquet")
    scan = Scan(TABLE.schema)
    (footer,) = read_footers(scan, [path])
    assert (footer.path, sum(footer.rows)) == (path, 1000)
    file = FileSlice(path, footer.size, footer.modified_ms)
    for splits in (plan_splits([whole(footer)], [footer], 3, 1 << 40), plan_range_splits([file], 1.0, 100, 3, 1 << 40)):
        assert len(splits) == 3
        parts = [batch for split in splits for batch in run(replace(scan, slices=split))]
        assert_same_rows(pa.Table.from_batches(parts, TABLE.schema), TABLE)


def test_objects_that_are_gone_or_changed_are_named(server: Server) -> None:
    path = put(server, "x.parquet")
    scan = Scan(TABLE.schema)
    (footer,) = read_footers(scan, [path])
    (split,) = plan_splits([whole(footer)], [footer], 1, 1 << 40)
    put(server, "x.parquet", TABLE.slice(1))
    with pytest.raises(ScanError, match=r"x.parquet: has changed since the query was planned"):
        list(run(replace(scan, slices=split)))
    server.files.delete_file(f"{BUCKET}/x.parquet")
    with pytest.raises(ScanError, match=r"x.parquet: .*removed"):
        list(run(replace(scan, slices=split)))


def test_another_process_reads_what_it_was_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(server, "x.parquet")
    name = name_in(path)
    assert name is not None
    told = stores_named(frozenset({name}))
    monkeypatch.setattr(locations, "_stores", {})
    with pytest.raises(ScanError, match="was not told"):
        read_footers(Scan(TABLE.schema), [path])
    know_stores(told)
    assert read_footers(Scan(TABLE.schema), [path])


def test_two_who_read_one_bucket_have_paths_of_their_own() -> None:
    mine, theirs = (Store(StoreKind.S3, (), (("access_key", key), ("secret_key", SECRET_KEY))) for key in ("a", "b"))
    assert in_store(mine, "b/x") != in_store(theirs, "b/x")
    assert in_store(mine, "b/x") == in_store(Store(StoreKind.S3, mine.arguments, mine.secrets), "b/x")
    assert SECRET_KEY not in in_store(mine, "b/x") + repr(mine)
    assert in_store(Store(StoreKind.S3), "b/x") == "s3://b/x"
    assert [name_in(path) for path in ("/s3://a@b/x", "s3://b/x@y", "/tmp/a@b")] == [None] * 3


def test_errors_of_a_store_are_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(StoreKind.S3, (("region", "r"),), (("secret_key", SECRET_KEY),))

    def refuse(*_: object) -> None:
        raise OSError(f"denied to {SECRET_KEY}!")

    monkeypatch.setattr(locations, "_opened", refuse)
    with pytest.raises(ScanError, match=r"b/x: denied to \*\*\*!") as problem:
        locations.facts(in_store(store, "b/x"))
    assert problem.value.__cause__ is not None
    assert SECRET_KEY not in f"{problem.value} {problem.value.__cause__} {problem.value.__cause__.__cause__}"
    assert problem.value.__cause__.__suppress_context__
