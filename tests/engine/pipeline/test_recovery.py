"""What a library or memory fails is computed again: every call into Polars is made to fail, one at a time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpujoin.config import FallbackMode, Options
from gpujoin.engine.pipeline import recovery, run
from gpujoin.engine.pipeline.recovery import Fault, ReplayableInput, fault_of
from gpujoin.errors import (
    DecodeError,
    DeviceMemoryError,
    ExpressionEvaluationError,
    RelationError,
    ScanError,
)
from gpujoin.model.expressions import left
from gpujoin.model.pipeline import PipelineMetrics, Rung
from tests.engine.pipeline.libraryfaults import FaultyPolars, panic
from tests.trees import Tree, count, file_slice, total

Rows = list[tuple[Any, ...]]

SALES = pa.table({
    "id": pa.array(range(240), pa.int64()),
    "k": pa.array([None if i % 7 == 0 else f"key {i * 5 % 9}" for i in range(240)]),
    "q": pa.array([None if i % 11 == 0 else i % 40 - 5 for i in range(240)], pa.int32()),
    "price": pa.array([Decimal(i * 37 % 1000) / 100 for i in range(240)], pa.decimal128(9, 2)),
})  # fmt: skip
ITEMS = pa.table({
    "ik": pa.array([None, *(f"key {i}" for i in range(3, 12))]),
    "name": pa.array([None, *(f"the name of item {i}, out of line" for i in range(3, 12))]),
})  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A pipeline, its inputs, made anew for each run, and its rows by loops over Python values."""

    tree: Callable[[Tree, Tree], Tree]
    rows: Callable[[], Rows]
    inputs: Callable[[], Mapping[int, Any]] = lambda: {1: ITEMS}


def sales() -> Rows:
    return list(zip(*SALES.to_pydict().values(), strict=True))


def items() -> Rows:
    return list(zip(*ITEMS.to_pydict().values(), strict=True))


def pairs() -> Rows:
    return [(sale, item) for sale in sales() for item in items() if sale[1] is not None and sale[1] == item[0]]


def grouped(rows: Rows) -> Rows:
    """Key, sum of the numbers and count of the rows of ``(key, number)``."""
    groups: dict[Any, list[Any]] = {}
    for key, number in rows:
        groups.setdefault(key, []).append(number)
    totals = {key: [n for n in numbers if n is not None] for key, numbers in groups.items()}
    return [(key, sum(n) if n else None, len(groups[key])) for key, n in totals.items()]


def full() -> Rows:
    keys = {item[0] for item in items()} - {None}
    known = {sale[1] for sale in sales()} - {None}
    return [
        *((sale[0], item[1]) for sale, item in pairs()),
        *((sale[0], None) for sale in sales() if sale[1] not in keys),
        *((None, item[1]) for item in items() if item[0] not in known),
    ]


CASES = {
    "filter and project": Case(
        lambda sales, _: sales.where(left("q") < 20).select("id", twice=left("q") * 2),
        lambda: [(r[0], r[2] * 2) for r in sales() if r[2] is not None and r[2] < 20],
    ),
    "decimals": Case(
        lambda sales, _: sales.select("id", dear=left("price") * left("price")),
        lambda: [(r[0], r[3] * r[3]) for r in sales()],
    ),
    "inner join": Case(
        lambda sales, items: sales.join(items, {"k": "ik"}, keep=["id", "name"]),
        lambda: [(sale[0], item[1]) for sale, item in pairs()],
    ),
    "full join": Case(
        lambda sales, items: sales.join(items, {"k": "ik"}, "full", keep=["id", "name"]), full
    ),
    "groups": Case(
        lambda sales, _: sales.group("k", q=total(left("q")), n=count()),
        lambda: grouped([(r[1], r[2]) for r in sales()]),
    ),
    "groups over a join": Case(
        lambda sales, items: (
            sales.join(items, {"k": "ik"}).where(left("q") > 0).group("name", q=total(left("q")), n=count())
        ),
        lambda: grouped([(item[1], sale[2]) for sale, item in pairs() if sale[2] is not None and sale[2] > 0]),
    ),
    "an input that is read once": Case(
        lambda _, items: items.where(left("ik").is_not_null()).group("name", n=count(left("ik"))),
        lambda: [(item[1], 1) for item in items() if item[0] is not None],
        lambda: {1: iter(ITEMS.to_batches(max_chunksize=3))},
    ),
    "top": Case(
        lambda sales, _: sales.select("id", less=left("id") - 1).top(5, ("less", True)),
        lambda: [(i, i - 1) for i in range(239, 234, -1)],
    ),
}  # fmt: skip
ERRORS: dict[str, Callable[[str], BaseException]] = {
    "compute error": pl.exceptions.ComputeError,
    "panic": panic,
    "memory": MemoryError,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recovery") / "sales.parquet"
    pq.write_table(SALES, path, row_group_size=60)
    return path


def tree_of(case: Case, file: Path) -> Tree:
    return case.tree(Tree.scan(file), Tree.source(ITEMS.schema, 1))


def rows_of(case: Case, file: Path, metrics: PipelineMetrics | None = None, **options: Any) -> Rows:
    tree = tree_of(case, file).relation
    batches = list(run(tree, case.inputs(), metrics=metrics, piece_bytes=1 << 11, **options))
    return list(zip(*pa.Table.from_batches(batches, tree.schema).to_pydict().values(), strict=True))


def merged(name: str, rows: Rows) -> Counter[tuple[Any, ...]]:
    """Rows in any order; partial sums come with whether they are empty."""
    if "groups" in name:
        rows = [(key, total, n) for key, total, *_, n in rows]
    return Counter(rows)


def inject(
    name: str, file: Path, error: Callable[[str], BaseException], step: int
) -> tuple[int, list[tuple[int, BaseException]]]:
    """Fail every ``step``-th call; give how many runs recovered, and which ended in an error."""
    case = CASES[name]
    expected = merged(name, case.rows())
    with FaultyPolars() as watched:
        assert merged(name, rows_of(case, file)) == expected
    recovered, failed = 0, []
    for at in range(1, watched.counts.total() + 1, step):
        metrics = PipelineMetrics()
        with FaultyPolars(error, at) as faulty:
            try:
                rows = rows_of(case, file, metrics)
            except BaseException as problem:  # noqa: BLE001  # a panic is no Exception
                failed.append((at, problem))
                continue
        assert merged(name, rows) == expected, f"call {at}"
        assert faulty.faults == 1
        # Text that cannot become characters stays as bytes: that failure needs no recovery.
        assert sum(metrics.recovered.values()) <= 1
        recovered += sum(metrics.recovered.values())
    return recovered, failed


@pytest.mark.few
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_fails_once_is_recovered_from(name: str, error: Callable[[str], BaseException], file: Path) -> None:
    recovered, failed = inject(name, file, error, step=9)
    assert recovered > 1
    assert not failed


@pytest.mark.parametrize("name", CASES)
def test_the_careful_rung_relies_on_no_scan_join_or_expression_of_polars(name: str, file: Path) -> None:
    """Where Polars does not open a file, PyArrow reads it on every rung."""
    expected = merged(name, CASES[name].rows())
    for called in ("scan_parquet", "LazyFrame.join"):
        metrics = PipelineMetrics()
        with FaultyPolars(panic, always=True, calls=(called,)) as faulty:
            rows = rows_of(CASES[name], file, metrics)
        assert merged(name, rows) == expected
        assert bool(metrics.recovered) is (faulty.faults > 0 and called != "scan_parquet")
    careful = PipelineMetrics()
    assert merged(name, rows_of(CASES[name], file, careful, rung=Rung.CAREFUL)) == expected
    assert careful.query_joins == 0
    assert not careful.recovered


def test_a_panic_of_polars_itself_is_recovered_from(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def overflowing(_message: str) -> BaseException:
        try:
            pl.zeros(1 << 62, pl.Int64, eager=True)
        except BaseException as problem:  # noqa: BLE001  # the panic itself is wanted
            return problem
        raise AssertionError("Polars has made 4 EB of zeros")

    metrics = PipelineMetrics()
    with caplog.at_level(logging.WARNING, "gpujoin"), FaultyPolars(overflowing, 3):
        rows = rows_of(CASES["groups"], file, metrics)
    assert merged("groups", rows) == merged("groups", CASES["groups"].rows())
    (why,) = metrics.recovered
    assert why == f"computed again {Rung.CAREFUL.value}, after PanicException {Rung.FAST.value}"
    assert "capacity overflow" in caplog.text


@pytest.mark.parametrize(
    ("problem", "fault"),
    [
        (pl.exceptions.ColumnNotFoundError("c"), Fault.LIBRARY),
        (panic("p"), Fault.LIBRARY),
        (pa.ArrowInvalid("a"), Fault.LIBRARY),
        (MemoryError(), Fault.MEMORY),
        (DeviceMemoryError(), Fault.MEMORY),
        (pa.ArrowMemoryError(), Fault.MEMORY),
        (DecodeError("file"), Fault.DECODING),
        (ScanError("file: has changed"), None),
        (ExpressionEvaluationError("overflow"), None),
        (KeyboardInterrupt(), None),
        (SystemExit(), None),
        (GeneratorExit(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_faults_are_told_from_errors_of_the_data_and_from_cancellation(
    problem: BaseException, fault: Fault | None
) -> None:
    assert fault_of(problem, (pl.exceptions.PolarsError, pl.exceptions.PanicException)) is fault


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_cancellation_ends_a_pipeline_at_once(error: type[BaseException], file: Path) -> None:
    metrics = PipelineMetrics()
    with FaultyPolars(error, 5) as faulty, pytest.raises(error):
        rows_of(CASES["groups"], file, metrics)
    assert faulty.counts.total() == 5
    assert not metrics.recovered


def test_rows_that_have_gone_out_are_not_computed_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_HELD_BYTES", 0)
    metrics = PipelineMetrics()
    batches = run(Tree.scan(file).relation, metrics=metrics, piece_bytes=1)
    given = next(batches).num_rows
    with FaultyPolars(panic, 1), pytest.raises(pl.exceptions.PanicException):
        list(batches)
    assert not metrics.recovered
    assert metrics.output_rows == given


def test_with_fallback_raise_a_fault_of_a_library_is_raised_and_short_memory_is_not(file: Path) -> None:
    options = Options(fallback=FallbackMode.RAISE)
    with FaultyPolars(panic, 3), pytest.raises(pl.exceptions.PanicException):
        rows_of(CASES["groups"], file, options=options)
    metrics = PipelineMetrics()
    with FaultyPolars(MemoryError, 3):
        rows = rows_of(CASES["groups"], file, metrics, options=options)
    assert merged("groups", rows) == merged("groups", CASES["groups"].rows())
    assert metrics.recovered


# -- inputs ------------------------------------------------------------------------------------------------------


def test_an_input_that_is_read_once_is_kept_while_it_is_small() -> None:
    batches = ITEMS.to_batches(max_chunksize=3)
    source = ReplayableInput(iter(batches), ITEMS.nbytes + 100)
    assert next(iter(source)) is batches[0]
    assert list(source) == batches
    assert list(source) == batches
    assert source.repeatable
    small = ReplayableInput(iter(batches), batches[0].nbytes)
    assert list(small) == batches
    assert not small.repeatable
    with pytest.raises(RelationError, match="cannot be read again"):
        list(small)


def test_an_input_that_has_failed_does_not_look_like_one_that_has_ended() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from ITEMS.to_batches(max_chunksize=3)[:1]
        raise ConnectionError("the shuffle is gone")

    tree = Tree.source(ITEMS.schema).group("name", n=count()).relation
    metrics = PipelineMetrics()
    with pytest.raises(ConnectionError):
        list(run(tree, {0: broken()}, metrics=metrics, piece_bytes=1))
    assert not metrics.recovered


def test_a_fault_after_an_input_too_large_to_be_kept_is_raised() -> None:
    tree = Tree.source(ITEMS.schema).group("name", n=count()).relation
    batches = iter(ITEMS.to_batches(max_chunksize=3))
    with FaultyPolars(panic, 12), pytest.raises(pl.exceptions.PanicException):
        list(run(tree, {0: batches}, options=Options(memory_budget=1), piece_bytes=1))


# -- files -------------------------------------------------------------------------------------------------------


def test_a_corrupt_file_is_named_by_the_last_that_reads_it(file: Path, tmp_path: Path) -> None:
    data = bytearray(file.read_bytes())
    page = pq.read_metadata(file).row_group(0).column(0).data_page_offset
    data[page + 2 : page + 20] = b"\xff" * 18  # the header of a page, but for its type
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(data)
    metrics = PipelineMetrics()
    with pytest.raises(ScanError, match=r"damaged\.parquet"):
        list(run(Tree.scan(file).relation, slices={0: [file_slice(damaged)]}, metrics=metrics))
    assert list(metrics.recovered) == [f"computed again {Rung.ARROW_SCANS.value}, after DecodeError {Rung.FAST.value}"]


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("name", CASES)
def test_every_call_that_fails_once_is_recovered_from(
    name: str, error: Callable[[str], BaseException], file: Path
) -> None:
    recovered, failed = inject(name, file, error, step=1)
    print(f"{name}: {recovered} faults, all recovered")
    assert recovered > 10
    assert not failed
