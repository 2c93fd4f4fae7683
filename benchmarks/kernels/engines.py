"""What joins: own kernels by each algorithm and as the engine chooses, cuDF, and plain array operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from benchmarks.kernels import joins
from benchmarks.kernels.workloads import TEXT_BYTES, Inputs, Join, Keys, Workload
from gpujoin.backends.cudf.algorithm import KeyFacts, choose
from gpujoin.launch import facts, normalise
from gpujoin.launch.device import Device
from gpujoin.launch.keys import KeyCodes
from gpujoin.launch.rows import FieldColumn
from gpujoin.model.algorithm import Algorithm

Answer: TypeAlias = tuple[int, ...]
"""Output rows, and the sum of every output column, its words taken as integers modulo 2^64."""

Columns: TypeAlias = list[Any]
Batches: TypeAlias = Iterator[tuple[int, Columns]]


class Engine(Protocol):
    """A way to join."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def prepare(self, inputs: Any) -> Any:
        """The inputs as this engine has them; not measured."""
        ...

    def can(self, workload: Any) -> bool:
        """Whether it takes part."""
        ...

    def run(self, prepared: Any) -> Batches:
        """Join; gives the output's row count and columns, batch by batch."""
        ...


def answer(xp: Any, batches: Batches) -> Answer:
    """What a run gave, in numbers; batches are dropped one by one."""
    rows, sums = 0, None
    for length, columns in batches:
        rows += length
        found = [int(column.reshape(-1).view(xp.uint64).sum(dtype=xp.uint64)) for column in columns]
        sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
    return rows, *(total % (1 << 64) for total in sums or [])


@dataclass(frozen=True)
class OwnEngine:
    """gpujoin's kernels on the device's columns; ``kernel`` ``None``: as the engine chooses, facts taken each time."""

    device: Device
    kernel: joins.Kernel | None
    workload: Workload
    chosen: Callable[[str], None] = lambda _: None

    @property
    def name(self) -> str:
        return "auto" if self.kernel is None else self.kernel.value

    def can(self, workload: Workload) -> bool:
        if self.kernel is joins.Kernel.DIRECT:
            return workload.keys is Keys.DENSE
        if self.kernel is joins.Kernel.CSR:
            return workload.join is Join.INNER
        return self.kernel is None or not workload.log_rows_per_key

    def prepare(self, inputs: Inputs) -> tuple[Inputs, tuple[Any, Any]]:
        """The inputs, and texts as a column has them: bytes and offsets."""
        keys = (inputs.build_keys, inputs.probe_keys)
        if self.workload.keys is not Keys.TEXT:
            return inputs, keys
        return inputs, (self._texts(keys[0]), self._texts(keys[1]))

    def _codes(self, keys: tuple[Any, Any]) -> tuple[KeyCodes, KeyCodes]:
        if self.workload.keys is not Keys.TEXT:
            return KeyCodes(keys[0], None), KeyCodes(keys[1], None)
        sides = [(texts,) for texts in keys]
        layout = normalise.layout_of(self.device, sides[0])
        assert layout is not None
        build, probe = (normalise.pack(self.device, layout, side) for side in sides)
        return build, probe

    def _texts(self, words: Any) -> normalise.KeyColumn:
        xp = self.device.xp
        offsets = xp.arange(int(words.shape[0]) + 1, dtype=xp.int32) * xp.int32(TEXT_BYTES)
        return normalise.KeyColumn(
            normalise.Kind.TEXT, words.reshape(-1).view(xp.uint8), None, offsets.astype(xp.int32)
        )

    def run(self, prepared: tuple[Inputs, tuple[Any, Any]]) -> Batches:
        inputs, keys = prepared
        build, probe = self._codes(keys)
        kernel = self.kernel or self._choose(build)
        given = joins.Side(probe, _fields((inputs.probe_keys, *inputs.probe_payload)))
        if self.workload.join is not Join.INNER:
            output = joins.semi_join(self.device, build, given, kernel, matched=self.workload.join is Join.SEMI)
            yield output.length, [c.values for c in output.probe]
            return
        side = joins.Side(build, _fields(inputs.build_payload))
        for output in joins.inner_join(self.device, side, given, kernel):
            yield output.length, [c.values for c in (*output.probe, *output.build)]

    def _choose(self, build: KeyCodes) -> joins.Kernel:
        column = facts.column_facts(self.device, build)
        sample = facts.sample_facts(self.device, build, facts.sample(self.device, build))
        found = choose(
            KeyFacts(
                column.rows, column.keys, build.key_bytes, column.low, column.high, sample.rows_per_key,
                sample.heaviest, self.device.properties.l2_bytes,
            )
        )  # fmt: skip
        assert found.algorithm is not Algorithm.CUDF
        self.chosen(found.algorithm.value)
        return joins.Kernel(found.algorithm.value)


def _fields(columns: tuple[Any, ...]) -> tuple[FieldColumn, ...]:
    return tuple(map(FieldColumn, columns))


@dataclass(frozen=True)
class ArrayEngine:
    """Sorting and binary search by the array module alone: another way to the same answer, for checking others."""

    xp: Any
    workload: Workload
    name: str = "arrays"

    def can(self, workload: Workload) -> bool:
        return workload.keys is not Keys.TEXT or self.xp.__name__ == "numpy"

    def prepare(self, inputs: Inputs) -> Inputs:
        return inputs

    def run(self, prepared: Inputs) -> Batches:
        xp = self.xp
        build, probe = prepared.build_keys, prepared.probe_keys
        if self.workload.keys is Keys.TEXT:
            build, probe = (xp.ascontiguousarray(k).view("S16").reshape(-1) for k in (build, probe))
        order = xp.argsort(build)
        low = xp.searchsorted(build[order], probe, side="left")
        high = xp.searchsorted(build[order], probe, side="right")
        if self.workload.join is not Join.INNER:
            kept = xp.flatnonzero((high > low) == (self.workload.join is Join.SEMI))
            columns = [c[kept] for c in (prepared.probe_keys, *prepared.probe_payload)]
            yield int(kept.shape[0]), columns
            return
        count = high - low
        ends = xp.cumsum(count)
        pairs = int(ends[-1]) if int(ends.shape[0]) else 0
        at = xp.arange(pairs)
        probe_row = xp.searchsorted(ends, at, side="right")
        build_row = order[low[probe_row] + at - (ends - count)[probe_row]]
        columns = [c[probe_row] for c in (prepared.probe_keys, *prepared.probe_payload)]
        yield pairs, columns + [c[build_row] for c in prepared.build_payload]


class CudfEngine:
    """pylibcudf's own join, and a gather for each side.

    An inner join gives all its rows at once: where they are over a device column, cuDF cannot take part.
    """

    name = "cuDF"

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def can(self, workload: Workload) -> bool:
        del workload
        return True

    def prepare(self, inputs: Inputs) -> Any:
        import pylibcudf as plc

        keys = [self._key_column(k) for k in (inputs.build_keys, inputs.probe_keys)]
        columns = [
            [plc.Column.from_cuda_array_interface(c) for c in side]
            for side in (inputs.build_payload, inputs.probe_payload)
        ]
        return (
            [plc.Table([key]) for key in keys],
            [plc.Table(columns[0]), plc.Table([keys[1], *columns[1]])],
            inputs,
        )

    def _key_column(self, keys: Any) -> Any:
        import cupy
        import pylibcudf as plc

        if self.workload.keys is not Keys.TEXT:
            return plc.Column.from_cuda_array_interface(keys)
        rows = int(keys.shape[0])
        offsets = cupy.arange(rows + 1, dtype=cupy.int32) * cupy.int32(TEXT_BYTES)
        return plc.Column(
            plc.DataType(plc.types.TypeId.STRING), rows, plc.gpumemoryview(keys.reshape(-1).view(cupy.uint8)),
            None, 0, 0, [plc.Column.from_cuda_array_interface(offsets)],
        )  # fmt: skip

    def run(self, prepared: Any) -> Batches:
        import pylibcudf as plc

        from gpujoin.backends.cudf.frames import as_array, text_parts

        (build, probe), (of_build, of_probe), _ = prepared
        unequal, unchecked = plc.types.NullEquality.UNEQUAL, plc.copying.OutOfBoundsPolicy.DONT_CHECK
        if self.workload.join is Join.INNER:
            maps: tuple[Any, ...] = plc.join.inner_join(probe, build, unequal)
        else:
            kind = plc.join.left_semi_join if self.workload.join is Join.SEMI else plc.join.left_anti_join
            maps = (kind(probe, build, unequal),)
        gathered = [
            plc.copying.gather(table, rows, unchecked)
            for table, rows in zip((of_probe, of_build), maps, strict=False)
            if table.columns()
        ]
        columns = [column for table in gathered for column in table.columns()]
        arrays = [text_parts(c)[1] if c.type().id() == plc.types.TypeId.STRING else as_array(c) for c in columns]
        yield maps[0].size(), arrays


def engines(device: Device, workload: Workload, chosen: Callable[[str], None]) -> Iterator[Engine]:
    """Own kernels, ``auto`` first."""
    yield OwnEngine(device, None, workload, chosen)
    for kernel in joins.Kernel:
        engine = OwnEngine(device, kernel, workload)
        if engine.can(workload):
            yield engine
