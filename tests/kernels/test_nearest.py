"""As-of search in sorted build rows (``nearest.cu``)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from gpujoin.engine.ordering import OrderCodec
from gpujoin.errors import KernelArgumentError
from gpujoin.launch import nearest, ranges
from gpujoin.launch.nearest import Codes, Sought, Terms
from gpujoin.launch.ranges import MOST_SAMPLES
from tests.kernels.cases import SIZES
from tests.kernels.devices import RecordingDevice
from tests.kernels.ordered_cases import ENDS, SHAPES, Build, Points, points

WAYS = ((True, False), (False, True), (True, True))
SAMPLES = (1, 7, MOST_SAMPLES)


def terms(*, codes: Codes = Codes.INTEGERS, tolerances: Sequence[Any] = (None,)) -> list[Terms]:
    """Every direction, exact or not, with every tolerance."""
    return [
        Terms(backward, forward, exact, codes, tolerance)
        for (backward, forward), exact, tolerance in itertools.product(WAYS, (True, False), tolerances)
    ]


def distance(left: Any, right: Any) -> Any:
    return 0 if left == right else abs(left - right)


def expected(
    build: Build, sought: Points, wanted: Terms, valid: npt.NDArray[np.bool_] | None = None,
    groups: Points | None = None, numbers: tuple[Sequence[Any], Sequence[Any]] | None = None,
) -> list[int]:  # fmt: skip
    """The nearest build row of each probe row, by looking at all; distances are those of ``numbers``."""
    codes = build.points[0].tolist()
    build_points, probe_points = (codes, sought.tolist()) if numbers is None else numbers
    order = build.order.tolist()
    matches = []
    for row, point in enumerate(sought.tolist()):
        places = build.places_of(None if groups is None else int(groups[row]), valid is None or bool(valid[row]))
        rows = [order[place] for place in places]
        before = [r for r in rows if codes[r] < point or (wanted.exact and codes[r] == point)]
        after = [r for r in rows if codes[r] > point or (wanted.exact and codes[r] == point)]
        near = []
        if wanted.backward and before:
            near.append(max(before, key=lambda r: (codes[r], r)))
        if wanted.forward and after:
            near.append(min(after, key=lambda r: (codes[r], r)))
        best = min(near, key=lambda r: distance(build_points[r], probe_points[row]), default=-1)
        if (
            best >= 0
            and wanted.tolerance is not None
            and not distance(build_points[best], probe_points[row]) <= wanted.tolerance
        ):
            best = -1
        matches.append(best)
    return matches


def check(
    device: RecordingDevice, build: Build, sought: Points, wanted: Sequence[Terms], samples: int,
    valid: npt.NDArray[np.bool_] | None = None, groups: Points | None = None,
    numbers: tuple[Sequence[Any], Sequence[Any]] | None = None,
) -> None:  # fmt: skip
    searched, beginnings = build.on(device, samples)
    there = Sought(
        device.upload(sought),
        None if valid is None else device.upload(valid),
        None if groups is None else device.upload(groups),
    )
    placed = device.upload(build.order)
    for wanted_terms in wanted:
        matches = nearest.find(device, searched, beginnings, placed, there, wanted_terms)
        answer = expected(build, sought, wanted_terms, valid, groups, numbers)
        assert device.download(matches.row).tolist() == answer, wanted_terms
        assert matches.pairs == sum(row >= 0 for row in answer)


@pytest.mark.parametrize("rows", SIZES)
def test_sizes(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    build = Build(None, (points(rng, "unique", 90),))
    check(device, build, rng.integers(-5, 280, rows), [Terms(True, True, False, tolerance=1)], 7)
    build = Build(None, (points(rng, "some", rows),))
    check(device, build, rng.integers(-5, rows // 3 + 5, 40), [Terms(True, True), Terms(False, True, False)], 7)


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_groups(device: RecordingDevice, rng: np.random.Generator, shape: str, samples: int) -> None:
    rows, probes, number = 150, 80, 8
    groups = np.minimum(rng.zipf(1.4, rows), number - 1)
    build = Build(groups, (points(rng, shape, rows),), number)
    known = build.points[0][rng.integers(0, rows, probes)]
    sought = np.where(rng.random(probes) < 0.5, known, known // 2 + rng.integers(-3, 4, probes))
    probe_groups = rng.integers(-1, number + 1, probes)
    check(device, build, sought, terms(tolerances=(None, 0, 2)), samples, rng.random(probes) < 0.9, probe_groups)


@pytest.mark.parametrize("samples", SAMPLES)
def test_distances_over_63_bits(device: RecordingDevice, samples: int) -> None:
    """From the smallest to the largest integer is 2^64 − 1, which is further than any tolerance that is less."""
    wanted = terms(tolerances=(None, 0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1, 1 << 70))
    for build in (ENDS, ENDS[[0, 6]], ENDS[[0]], ENDS[[6]], ENDS[[0, 3]]):
        check(device, Build(None, (np.repeat(build, 2),)), ENDS, wanted, samples)


FLOATS = (
    0.0, -0.0, 1.0, -1.0, 5e-324, 1e-40, -1e-40, 1e-45, 1.5, 3.4e38, -3.4e38, 1.7e308, -1.7e308, float("inf"),
    -float("inf"), 2.0, 0.1,
)  # fmt: skip


@pytest.mark.parametrize("codes", [Codes.FLOAT32, Codes.FLOAT64], ids=lambda c: c.name)
def test_floats(device: RecordingDevice, rng: np.random.Generator, codes: Codes) -> None:
    """Distances of floats that are tiny, far apart, infinite; through the codes that the engine makes."""
    kind: Any = np.float32 if codes is Codes.FLOAT32 else np.float64
    with np.errstate(over="ignore"):
        numbers = np.array(FLOATS).astype(kind)
    drawn = np.concatenate([numbers, rng.normal(0, 2, 30).astype(kind)])
    codec = OrderCodec.fit(pa.array(drawn))
    build_values, probe_values = rng.permutation(drawn)[:30], drawn
    build = Build(None, (codec.codes(pa.array(build_values))[0],))
    exact = [array.astype(np.float64).tolist() for array in (build_values, probe_values)]
    wanted = terms(codes=codes, tolerances=(None, 0, 0.0, 1e-45, 1e-40, 0.5, 1e300, float("inf")))
    check(device, build, codec.codes(pa.array(probe_values))[0], wanted, 7, numbers=(exact[0], exact[1]))


def test_of_two_as_near_the_one_before(device: RecordingDevice) -> None:
    build = Build(None, (np.array([10, 10, 14, 14, 12]),))
    searched, _ = build.on(device, MOST_SAMPLES)
    for exact, row in ((True, 4), (False, 1)):
        sought, placed = Sought(device.upload(np.array([12]))), device.upload(build.order)
        matches = nearest.find(device, searched, None, placed, sought, Terms(True, True, exact))
        assert device.download(matches.row).tolist() == [row]


def test_nobody_is_near(device: RecordingDevice) -> None:
    none = np.zeros(0, np.int64)
    check(device, Build(None, (none,)), np.arange(40), terms(), 7)
    check(device, Build(none, (none,), 0), np.arange(40), terms(), 7, groups=np.zeros(40, np.int64))
    check(device, Build(None, (np.arange(9),)), np.arange(40), terms(), 7, valid=np.zeros(40, bool))


def test_what_has_no_meaning_is_refused(device: RecordingDevice) -> None:
    for bad in (
        {"backward": False, "forward": False}, {"backward": True, "forward": True, "tolerance": -1},
        {"backward": True, "forward": True, "tolerance": 1.5},
        {"backward": True, "forward": True, "codes": Codes.FLOAT64, "tolerance": float("nan")},
    ):  # fmt: skip
        with pytest.raises(KernelArgumentError):
            Terms(**bad)
    values = device.upload(np.arange(20))
    searched, placed = ranges.ordered(values), device.upload(np.arange(20, dtype=np.int32))
    wrong: list[tuple[Any, Sought, str]] = [
        (placed[:19], Sought(values), "placed rows"), (values, Sought(values), "placed rows"),
        (placed, Sought(values[::2]), "points of probe rows"), (placed, Sought(placed), "points of probe rows"),
        (placed, Sought(values, values), "validity"), (placed, Sought(values, None, values), "both sides"),
    ]  # fmt: skip
    for rows, sought, message in wrong:
        with pytest.raises(KernelArgumentError, match=message):
            nearest.find(device, searched, None, rows, sought, Terms(True, True))
    assert device.launches == []
