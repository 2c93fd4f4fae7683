"""The benchmark of the kernels, at sizes that the emulator carries, with array operations in place of cuDF."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.kernels import data, joins, launches, report
from benchmarks.kernels.__main__ import Selection, main, measure, supervise, write
from benchmarks.kernels.engines import ArrayEngine, Batches, OwnEngine, answer, engines
from benchmarks.kernels.machine import RUN_BYTES, TABLE_MEGABYTES, Constants
from benchmarks.kernels.measure import DeviceLostError, HostMeter, Result, compare
from benchmarks.kernels.ordered import OrderedWorkload, Shape, ordered_engines, ordered_workloads
from benchmarks.kernels.progress import Progress
from benchmarks.kernels.trials import table, trials
from benchmarks.kernels.workloads import Inputs, Join, Keys, Workload, inputs, named, sweeps
from tests.kernels.emulator import EmulatedDevice

SMALLER = 20


def test_every_workload_on_every_engine(
    emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates, results, skipped = measure(
        emulated, HostMeter(), smaller=SMALLER, log_words=10, repeats=1, seconds=300,
        others=(lambda workload: ArrayEngine(emulated.xp, workload, "cuDF"),), others_ordered=(),
    )  # fmt: skip
    assert not skipped
    assert set(rates.lookups) == set(rates.atomics) == set(TABLE_MEGABYTES)
    assert set(rates.gather_runs) == set(RUN_BYTES)
    ran = {(r.workload, r.engine) for r in results}
    for workload in (*named(), *sweeps()):
        engines = {engine for name, engine in ran if name == workload.name}
        assert {"auto", "cuDF"} <= engines
        assert ("direct" in engines) == (workload.keys is Keys.DENSE)
        assert ("csr" in engines) == (workload.join is Join.INNER)
    for ordered in ordered_workloads():
        assert {engine for name, engine in ran if name == ordered.name} == {"auto", "arrays"}
    assert {"find_stretches", "nearest_rows"} <= set(emulated.launches)
    assert {"count_candidates", "wavelet_count"} & set(emulated.launches)
    assert all(r.seconds is not None and r.seconds > 0 for r in results)
    assert {r.algorithm for r in results if r.engine == "auto"} == {"direct", "unique", "csr", "kernels"}
    written = report.page(results, rates, {"GPU": "none"}, [w.name for w in named()])
    assert "Geometric mean over 8 workloads" in written
    assert written.count("\n| ") == 2 + 2 + 3 + 6 + 1 + len(results)
    if report.plot(results, tmp_path / "plot.svg"):
        assert (tmp_path / "plot.svg").stat().st_size > 1000


def test_answers_of_many_duplicates_have_the_promised_size() -> None:
    workload = next(w for w in named() if w.name.startswith("iv")).smaller(12)
    given = inputs(np, workload)
    assert len(np.unique(given.build_keys)) == workload.distinct == len(given.build_keys) // 16
    length, _ = next(iter(ArrayEngine(np, workload).run(given)))
    assert 0.7 < length / (16 << workload.log_probe) < 1.4


@pytest.mark.parametrize("match", [0.1, 0.5, 1.0])
def test_match_ratios(match: float) -> None:
    workload = Workload("w", 12, 13, match=match)
    given = inputs(np, workload)
    assert len(np.unique(given.build_keys)) == 1 << 12
    assert np.isin(given.probe_keys, given.build_keys).mean() == pytest.approx(match, abs=0.03)


def test_matching_rows_lie_in_no_common_order() -> None:
    """Else build columns are read nearly one after the other, which no join of unordered rows does."""
    for workload in (Workload("all match", 14, 14), Workload("text", 14, 14, keys=Keys.TEXT)):
        given = inputs(np, workload)
        row_of = {key: row for row, key in enumerate(map(str, given.build_keys.tolist()))}
        rows = np.array([row_of[key] for key in map(str, given.probe_keys.tolist())])
        near = np.abs(np.diff(rows)) < 64
        assert near.mean() == pytest.approx(2 * 64 / len(rows), rel=0.5)


def test_zipf() -> None:
    shares = []
    for zipf in (0.0, 0.5, 1.0, 1.5):
        ranks = data.random_ranks(np, 1 << 14, 1 << 10, zipf, 7)
        assert 0 <= ranks.min() <= ranks.max() < 1 << 10
        shares.append((ranks == 0).mean())
    assert shares == sorted(shares)
    assert shares[0] < 0.01
    assert shares[-1] > 0.3


@pytest.mark.parametrize("bits", [2, 7, 12])
def test_shuffling_is_a_bijection(bits: int) -> None:
    shuffled = data.shuffled(np, data.numbers(np, 0, 1 << bits), bits)
    assert sorted(shuffled.tolist()) == list(range(1 << bits))
    if bits > 2:
        assert shuffled.tolist() != list(range(1 << bits))


def test_texts_have_sixteen_bytes_and_are_distinct() -> None:
    keys = inputs(np, Workload("w", 8, 8, keys=Keys.TEXT)).build_keys
    raw = keys.view(np.uint8)
    assert raw.min() > 0
    assert len({bytes(row) for row in raw.reshape(-1, 16)}) == 1 << 8


def test_floors() -> None:
    """Inputs read once, output written once: by hand."""
    assert Workload("w", 3, 4, columns=2).floor_bytes(5) == 8 * 24 + 16 * 24 + 5 * 40
    assert Workload("w", 3, 4, join=Join.SEMI).floor_bytes(5) == 8 * 8 + 16 * 16 + 5 * 16
    assert Workload("w", 3, 4, keys=Keys.TEXT).floor_bytes(5) == 8 * 24 + 16 * 24 + 5 * 32


class Wrong(ArrayEngine):
    """Loses a row."""

    def run(self, prepared: Inputs) -> Batches:
        for length, columns in super().run(prepared):
            yield length - 1, [column[1:] for column in columns]


class Unsteady(ArrayEngine):
    """Gives another answer at each run."""

    def run(self, prepared: Inputs) -> Batches:
        yield next(_count), []


_count: Iterator[int] = iter(range(100))


class Broken(ArrayEngine):
    """Meets an error."""

    def run(self, prepared: Inputs) -> Batches:
        raise RuntimeError("cudaErrorIllegalAddress")


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        (Wrong, "gives 31 rows"),
        (Unsteady, "another answer"),
        (Broken, "RuntimeError: cudaErrorIllegalAddress"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_what_fails_is_told_and_the_others_go_on(engine: type[ArrayEngine], problem: str) -> None:
    workload = Workload("w", 5, 5)
    others = [ArrayEngine(np, workload), engine(np, workload, "other"), ArrayEngine(np, workload, "last")]
    measurements = list(compare(np, workload, others, HostMeter(), copy_rate=1.0, repeats=1, chosen=str))
    assert [(r.engine, r.seconds is None, r.failed) for r in measurements] == [
        ("arrays", False, False), ("other", True, True), ("last", False, False),
    ]  # fmt: skip
    assert problem in measurements[1].problem


class Greedy(ArrayEngine):
    """Runs out of memory."""

    def run(self, prepared: Inputs) -> Batches:
        raise MemoryError("too little")


def test_an_engine_without_memory_is_reported_and_the_others_go_on() -> None:
    workload = Workload("w", 5, 5)
    taking_part = [Greedy(np, workload, "greedy"), ArrayEngine(np, workload)]
    measurements = list(compare(np, workload, taking_part, HostMeter(), copy_rate=1.0, repeats=1, chosen=str))
    assert [(r.engine, r.seconds is None, r.problem, r.failed) for r in measurements] == [
        ("greedy", True, "too little", False), ("arrays", False, "", False),
    ]  # fmt: skip


class Dead(HostMeter):
    """The device is gone after an error."""

    def healthy(self) -> bool:
        return False


def test_what_was_found_before_a_process_is_lost_is_kept(tmp_path: Path) -> None:
    """One engine loses the device, another one's process dies at once; each costs its own result and no other."""
    workload = Workload("w", 5, 5)
    lines = tmp_path / "progress.jsonl"
    rates = Constants(1e12, 1e9, {32: 1e9}, {16: 1e9}, {16: 1e9}, 1e9)

    def attempt(*given: ArrayEngine) -> Progress:
        log = Progress.read(lines)
        log.tell(machine={"GPU": "none"})
        log.tell(constants=dataclasses.asdict(rates))
        with contextlib.suppress(DeviceLostError, KeyboardInterrupt):
            list(compare(np, workload, given, Dead(), copy_rate=1.0, repeats=1, chosen=str, log=log))
        return log

    class Dying(ArrayEngine):
        def run(self, prepared: Inputs) -> Batches:
            raise KeyboardInterrupt

    engines = (
        ArrayEngine(np, workload, "good"), Broken(np, workload, "broken"), Dying(np, workload, "dying"),
        Wrong(np, workload, "wrong"), ArrayEngine(np, workload, "last"),
    )  # fmt: skip
    for _ in range(4):
        attempt(*engines)
    progress = Progress.read(lines)
    assert progress.constants == rates
    assert {r.engine: (r.seconds is not None, r.failed) for r in progress.results} == {
        "good": (True, False), "broken": (False, True), "dying": (False, True), "wrong": (False, True),
        "last": (True, False),
    }  # fmt: skip
    assert "died" in next(r.problem for r in progress.results if r.engine == "dying")
    record = write(progress, tmp_path / "table.json")
    assert len(record["results"]) == len(engines) == len({r.engine for r in progress.results})
    assert "| w | dying | its process died" in (tmp_path / "table.md").read_text()


def test_a_process_that_dies_or_hangs_is_followed_by_another(tmp_path: Path) -> None:
    """The first one dies, the second one hangs, the third one ends."""
    lines = tmp_path / "progress.jsonl"
    program = (
        "import os, sys, time; p = sys.argv[1]; n = len(open(p).readlines()) if os.path.exists(p) else 0; "
        "open(p, 'a').write('{}\\n'); os.abort() if n == 0 else time.sleep(60) if n == 1 else None"
    )
    command = [sys.executable, "-c", program, str(lines)]
    assert supervise(command, lines, 60, patience=0.7)
    assert len(lines.read_text().splitlines()) == 3
    assert not supervise([sys.executable, "-c", "raise SystemExit(1)"], lines, 60)
    assert not supervise(command, lines, -1)


def test_speedups_and_memory() -> None:
    own = Result("a", "auto", "direct", 1, 0.5, 100, 200, 0.1, 150)
    results = [own, replace(own, engine="cuDF", seconds=2.0), replace(own, workload="b")]
    assert report.speedups(results) == {"a": 4.0}
    assert report.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert report.geometric_mean([]) is None
    rates = Constants(1e12, 1e9, {32: 1e9}, {16: 1e9}, {16: 1e9}, 1e9)
    written = report.page(results, rates, {}, ["a"])
    assert "**4.00×** cuDF" in written
    assert "1.25" in written
    assert "(over)" in report.page([replace(own, peak_bytes=200)], rates, {}, ["a"])
    assert "did not take part" in report.page([own], rates, {}, ["a"])


def test_time_that_runs_out_is_told(emulated: EmulatedDevice) -> None:
    _, results, skipped = measure(emulated, HostMeter(), smaller=20, log_words=10, repeats=1, seconds=-1, others=())
    assert results == []
    assert len(skipped) == len([*named(), *ordered_workloads(), *sweeps()])


def test_only_what_is_selected_is_measured(emulated: EmulatedDevice) -> None:
    selection = Selection(frozenset({"iii'", "vi"}), frozenset({"auto"}))
    _, results, skipped = measure(
        emulated, HostMeter(), smaller=22, log_words=10, repeats=1, seconds=60, others=(), others_ordered=(),
        selection=selection,
    )  # fmt: skip
    assert skipped == []
    assert {(label_of(r.workload), r.engine) for r in results} == {("iii'", "auto"), ("vi", "auto")}
    assert selection.unknown_workloads() == frozenset()
    assert Selection(frozenset({"x", "i"})).unknown_workloads() == {"x"}


def label_of(name: str) -> str:
    return name.partition(":")[0]


def test_trials_come_to_their_end(emulated: EmulatedDevice) -> None:
    measured = list(trials(emulated, HostMeter(), log_words=10, repeats=1))
    assert len({trial.name for trial in measured}) >= 7
    assert all(trial.seconds > 0 for trial in measured)
    assert table(measured).count("\n") == len(measured) + 1


@pytest.mark.parametrize("workload", list(ordered_workloads()), ids=lambda w: w.name)
def test_joins_by_order_are_what_their_names_say(emulated: EmulatedDevice, workload: OrderedWorkload) -> None:
    """Against all pairs; sums of both columns."""
    few = replace(workload, log_rows=7, log_groups=min(workload.log_groups, 3))
    given = few.inputs(np)
    own = next(ordered_engines(emulated, few))
    sums_and_counts = answer(np, own.run(own.prepare(few.inputs(emulated.xp))))
    build, probe = [c[:, None] for c in given.build], given.probe
    if few.shape is Shape.BETWEEN:
        matches = (build[0] >= probe[0]) & (build[0] <= probe[1])
    elif few.shape is Shape.OVERLAP:
        matches = (build[0] <= probe[1]) & (build[1] >= probe[0])
    else:
        assert given.groups is not None
        before = (build[0] <= probe[0]) & (given.groups[0][:, None] == given.groups[1])
        last = np.where(before, build[0], -1).argmax(axis=0)
        matches = before & (np.arange(few.rows)[:, None] == last)
    of_build, of_probe = np.nonzero(matches)
    sums = [int(of[rows].view(np.uint64).sum()) for of, rows in zip(given.payload, (of_build, of_probe), strict=True)]
    assert sums_and_counts == (len(of_build), sums[1], sums[0])
    if few.shape is not Shape.AS_OF:
        assert 2 * few.rows < len(of_build) < 12 * few.rows
    assert given.nbytes == few.floor_bytes(0)


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpujoin.backends import cudf

    if cudf.unavailable() is None:
        pytest.skip("there is a GPU")
    assert main([]) == 2
    assert "nothing to measure here" in capsys.readouterr().err


def test_kernels_take_part_where_they_can(emulated: EmulatedDevice) -> None:
    plain = Workload("w", 5, 5)
    changes: list[dict[str, Any]] = [{"keys": Keys.DENSE}, {"join": Join.SEMI}, {"log_rows_per_key": 2}]
    names: list[list[str]] = []
    for workload in (replace(plain, **change) for change in changes):
        able: list[Any] = [k for k in joins.Kernel if OwnEngine(emulated, k, workload).can(workload)]
        names.append([k.value for k in able])
    assert names == [["direct", "unique", "csr"], ["unique"], ["csr"]]


class _Clock:
    """The host's clock in the place of CUDA's events; what the emulator launches has ended when it returns."""

    class Event:
        def __init__(self) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            return

    @staticmethod
    def get_elapsed_time(start: Any, end: Any) -> float:
        return float(end.at - start.at) * 1e3


def test_time_of_each_kernel(emulated: EmulatedDevice) -> None:
    device = launches.TimedDevice(emulated, _Clock())
    workload = Workload("few", 8, 9, columns=2)
    found = []
    for engine in engines(device, workload, lambda _: None):
        prepared = engine.prepare(workload.inputs(device.xp))
        found.append(launches.Spent("few", engine.name, *device.measured(engine, prepared)))
    kernels = {spent.engine: spent.kernels for spent in found}
    assert {"unique_insert", "unique_probe", launches.FILLING, launches.REST} <= kernels["unique"].keys()
    assert all(spent.total == pytest.approx(sum(spent.kernels.values())) for spent in found)
    page = launches.rendered(found)
    assert all(f"| few | {name} | " in page for name in kernels)
