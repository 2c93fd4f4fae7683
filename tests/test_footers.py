"""The helper by which tests change footers."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.footers import FileField, claim_arrow_schema, claim_sorting, facts, rewriting, sorted_by, statistics


def write(path: Path) -> pa.Table:
    table = pa.table({
        "n": pa.array([3, None, 1], pa.int64()), "d": pa.array([1.5, None, 2.5]),
        **{f"s{i}": pa.array([["a"], [], None]) for i in range(20)},
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=2)
    return table


def test_an_unchanged_footer_is_written_back_byte_by_byte(tmp_path: Path) -> None:
    write(tmp_path / "f.parquet")
    before = (tmp_path / "f.parquet").read_bytes()
    with rewriting(tmp_path / "f.parquet") as footer:
        assert len(footer[FileField.GROUPS]) == 2
    assert (tmp_path / "f.parquet").read_bytes() == before


def test_claims_are_those_that_pyarrow_reads(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    table = write(path)
    claim_sorting(path, [sorted_by(1, descending=True)])
    claim_arrow_schema(path, table.schema.set(0, pa.field("n", pa.duration("s"))))
    with rewriting(path) as footer:
        statistics(footer, 0)[0].clear()
    group = pq.read_metadata(path).row_group(0)
    assert group.sorting_columns == (pq.SortingColumn(1, descending=True),)
    assert not group.column(0).statistics.has_min_max
    assert pq.read_table(path).column("n").type == pa.duration("s")
    claim_arrow_schema(path, None)
    assert pq.read_table(path).column("n").equals(table.column("n"))
    with rewriting(path) as footer:
        assert b"ARROW:schema" not in facts(footer)
