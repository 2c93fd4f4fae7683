"""Key normalisation on the device (``normalise.cu``) against Python's idea of equal keys."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest

from gpujoin.errors import KernelArgumentError
from gpujoin.launch import normalise
from gpujoin.launch.keys import BLOCK_THREADS
from gpujoin.launch.normalise import (
    KeyColumn,
    KeyField,
    KeyLayout,
    Kind,
    compare,
    fingerprints,
    layout_of,
    pack,
)
from tests.kernels.cases import SIZES, Side, colliding
from tests.kernels.conftest import MakeDevice
from tests.kernels.devices import RecordingDevice

Values = list[Any]
NAN = float("nan")
OTHER_NAN = struct.unpack("<d", (0xFFF8_0000_0000_00FF).to_bytes(8, "little"))[0]


def column(
    device: RecordingDevice, kind: str, values: Values, *, null_safe: bool = False, wide_offsets: bool = True
) -> KeyColumn:
    """A key column of Python values, ``None`` being null."""
    missing = np.array([v is not None for v in values], bool)
    valid = None if missing.all() else device.upload(missing)
    if kind == "text":
        texts = [v or b"" for v in values]
        ends = np.cumsum([0, *map(len, texts)])
        offsets = device.upload(ends.astype(np.int64 if wide_offsets else np.int32))
        data = device.upload(np.frombuffer(b"".join(texts) or b"\0", np.uint8).copy())
        return KeyColumn(Kind.TEXT, data, valid, offsets, null_safe)
    if kind == "decimal":
        mask = (1 << 64) - 1
        words = np.array([[(v or 0) & mask, (v or 0) >> 64 & mask] for v in values], np.uint64).reshape(-1, 2)
        return KeyColumn(Kind.DECIMAL, device.upload(words), valid, None, null_safe)
    data = device.upload(np.array([0 if v is None else v for v in values], kind))
    return KeyColumn(Kind.FLOAT if kind.startswith("float") else Kind.INTEGER, data, valid, None, null_safe)


def label(value: Any) -> Any:
    """Equal for values that are equal keys."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def labels(columns: list[Values], null_safe: list[bool]) -> list[Any]:
    """A hashable key of each row; ``None`` where it matches nothing."""
    rows = []
    for row in zip(*columns, strict=True):
        lost = any(v is None and not safe for v, safe in zip(row, null_safe, strict=True))
        rows.append(None if lost else tuple(map(label, row)))
    return rows


def random_values(rng: np.random.Generator, kind: str, rows: int) -> Values:
    """Few distinct values, the ends of the type among them, and nulls."""
    pools: dict[str, Values] = {
        "text": [b"", b"a", b"ab", b"\x00", b"a\x00", b"0123456", b"zz"],
        "float64": [0.0, -0.0, NAN, OTHER_NAN, 1.5, -1.5, math.inf, 5e-324, -5e-324],
        "float32": [0.0, -0.0, NAN, 1.5, -1.5, math.inf, 1e-45],
        "decimal": [0, 1, -1, (1 << 127) - 1, -(1 << 127), 1 << 64],
        "int8": [-128, 127, 0, -1], "int16": [-(1 << 15), (1 << 15) - 1, 0, -1],
        "int32": [-(1 << 31), (1 << 31) - 1, 0, -1], "int64": [-(1 << 63), (1 << 63) - 1, 0, -1],
        "small64": [5, 6, 7, 900],
    }  # fmt: skip
    pool = [*pools[kind], None]
    return [pool[i] for i in rng.integers(0, len(pool), rows)]


def agree(codes: Side, expected: list[Any], other: Side, other_expected: list[Any]) -> None:
    """Codes of two sides are equal exactly where the keys are; keys of both sides have some, lost rows have none."""
    labels = codes.labels()
    other_labels = other.labels()
    shared = set(other_expected) - {None}
    both = shared & set(expected)
    for code, key in zip(labels, expected, strict=True):
        if key is None or key not in shared:
            assert code is None or code not in other_labels
    mapping: dict[Any, Any] = {}
    pairs = [*zip(labels, expected, strict=True), *zip(other_labels, other_expected, strict=True)]
    for code, key in pairs:
        assert code is not None or key not in both
        if code is not None:
            assert key is not None
            assert mapping.setdefault(key, code) == code
    assert len(set(mapping.values())) == len(mapping)


def on_host(device: RecordingDevice, codes: Any) -> Side:
    valid = None if codes.valid is None else device.download(codes.valid)
    return Side(device.download(codes.codes), valid)


COMBINATIONS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "int8": (("int8",), 1),
    "int16 int32": (("int16", "int32"), 1),
    "int32 int32": (("int32", "int32"), 1),
    "int64 int64": (("int64", "int64"), 2),
    "small int64 twice": (("small64", "small64"), 1),
    "float64": (("float64",), 1),
    "float32 int64": (("float32", "int64"), 2),
    "decimal": (("decimal",), 2),
    "text": (("text",), 1),
    "text text": (("text", "text"), 2),
    "int64 text": (("int64", "text"), 2),
    "text int8 float32": (("text", "int8", "float32"), 2),
    "decimal int8": (("decimal", "int8"), None),
}


@pytest.mark.parametrize("safe", [False, True], ids=["null is unequal", "null is null"])
@pytest.mark.parametrize("kinds", COMBINATIONS)
def test_codes_are_equal_exactly_where_keys_are(
    device: RecordingDevice, rng: np.random.Generator, kinds: str, safe: bool
) -> None:
    types, words = COMBINATIONS[kinds]
    null_safe = [safe and i % 2 == 0 for i in range(len(types))]
    build, probe = ([random_values(rng, kind, 60) for kind in types] for _ in range(2))
    for kind, values in zip(types, build, strict=True):
        if kind == "text":
            values[:2] = [b"0123456", b"a\x00"]
        elif kind.startswith("int"):
            info = np.iinfo(kind)
            values[:2] = [int(info.min), int(info.max)]
        elif kind == "small64":
            values[:2] = [5, 900]

    def columns(side: list[Values]) -> list[KeyColumn]:
        return [
            column(device, kind.replace("small64", "int64"), values, null_safe=flag)
            for kind, values, flag in zip(types, side, null_safe, strict=True)
        ]

    layout = layout_of(device, columns(build))
    given = labels(build, null_safe), labels(probe, null_safe)
    if layout is None:
        assert words is None or safe
        codes = [fingerprints(device, columns(side), 3) for side in (build, probe)]
    else:
        assert words is not None
        assert layout.words == words or safe
        codes = [pack(device, layout, columns(side)) for side in (build, probe)]
    agree(on_host(device, codes[0]), given[0], on_host(device, codes[1]), given[1])
    hashed = [fingerprints(device, columns(side), 0) for side in (build, probe)]
    agree(on_host(device, hashed[0]), given[0], on_host(device, hashed[1]), given[1])
    left, right = (rng.integers(0, 60, 200).astype(np.int32) for _ in range(2))
    equal = compare(device, columns(build), device.upload(left), columns(probe), device.upload(right))
    expected = [given[0][i] is not None and given[0][i] == given[1][j] for i, j in zip(left, right, strict=True)]
    assert device.download(equal).tolist() == expected


@pytest.mark.parametrize("wide", [False, True], ids=["32-bit offsets", "64-bit offsets"])
@pytest.mark.parametrize("longest", [0, 1, 7, 8, 9, 15, 16])
def test_texts_of_up_to_sixteen_bytes(
    device: RecordingDevice, rng: np.random.Generator, longest: int, wide: bool
) -> None:
    """Without a build text that ends in a zero byte no length is stored, and 16 bytes fit."""
    pool = [bytes(rng.integers(1, 256, n, np.uint8).tolist()) for n in range(longest + 1)]
    build = [*pool, pool[longest // 2]]
    probe = [*pool, pool[-1] + b"\x00", b"\x00", bytes(longest), b"x" * (longest + 1), bytes(17)]
    made = column(device, "text", build, wide_offsets=wide)
    layout = layout_of(device, [made])
    assert layout is not None
    assert layout.words == (1 if longest <= 8 else 2)
    assert layout.fields[0].length_shift == -1
    sides = [
        on_host(device, pack(device, layout, [column(device, "text", v, wide_offsets=wide)])) for v in (build, probe)
    ]
    agree(sides[0], labels([build], [False]), sides[1], labels([probe], [False]))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 24])
def test_every_byte_of_a_text_is_hashed(device: RecordingDevice, rng: np.random.Generator, length: int) -> None:
    """Texts that differ in one byte alone, or in zero bytes at their end, have hashes of their own."""
    text = bytes(rng.integers(1, 256, length, np.uint8).tolist())
    texts = [text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :] for i in range(length)]
    texts += [text, text + b"\x00", text + bytes(8)]
    given = column(device, "text", texts)
    codes = on_host(device, fingerprints(device, [given, given], 2)).labels()
    assert len(set(codes)) == len(texts)
    again = on_host(device, fingerprints(device, [column(device, "text", texts[::-1])] * 2, 2)).labels()
    assert again == codes[::-1]


@pytest.mark.parametrize(("kind", "value"), [("int32", 7), ("text", b"seven")])
def test_a_null_leaves_a_trace_in_the_hash(device: RecordingDevice, kind: str, value: Any) -> None:
    """Which of two null-safe columns is null makes a difference."""
    made = [column(device, kind, values, null_safe=True) for values in ([value, None, None], [None, value, None])]
    codes = on_host(device, fingerprints(device, made, 0)).labels()
    assert None not in codes
    assert len(set(codes)) == 3


def test_null_and_length_in_the_first_bits(device: RecordingDevice) -> None:
    """A layout may have them anywhere; null in bit 0 is no "nowhere", and neither is a length there."""
    values = [3, None, 0]
    layout = KeyLayout((KeyField(1, 8, null_bit=0),), 1)
    codes = pack(device, layout, [column(device, "int8", values, null_safe=True)])
    assert on_host(device, codes).labels() == [6, 1, 0]
    texts = [b"", b"a", b"a\x00", None]
    layout = KeyLayout((KeyField(2, 16, longest=2, length_shift=0, null_bit=18),), 1)
    codes = pack(device, layout, [column(device, "text", texts, null_safe=True)])
    assert on_host(device, codes).labels() == [0, 0x61 << 2 | 1, 0x61 << 2 | 2, 1 << 18]
    layout = KeyLayout((KeyField(3, 16, longest=2, length_shift=1, null_bit=0),), 1)
    codes = pack(device, layout, [column(device, "text", texts, null_safe=True)])
    assert on_host(device, codes).labels() == [0, 0x61 << 3 | 2, 0x61 << 3 | 4, 1]


@pytest.mark.parametrize("at", range(9))
def test_texts_are_packed_wherever_they_begin(device: RecordingDevice, rng: np.random.Generator, at: int) -> None:
    """Texts of every length at every distance from a multiple of 8, the first and the last at the ends of the array."""
    lengths = [16, *rng.permutation(np.repeat(np.arange(17), 8)).tolist(), 3]
    texts = [rng.integers(1, 256, length, np.uint8).tobytes() for length in lengths]
    offsets = device.upload((at + np.cumsum([0, *lengths])).astype(np.int32))
    before = rng.integers(1, 256, at, np.uint8).tobytes()
    for lead in (0, 1, 7):
        # An array that begins `lead` bytes after a multiple of 8.
        data = device.upload(np.frombuffer(bytes(lead) + before + b"".join(texts), np.uint8))[lead:]
        columns = [KeyColumn(Kind.TEXT, data, None, offsets)]
        layout = layout_of(device, columns)
        assert layout is not None
        assert layout.words == 2
        codes = device.download(pack(device, layout, columns).codes)
        assert [code.tobytes() for code in codes] == [text.ljust(16, b"\0") for text in texts]
        hashes = device.download(fingerprints(device, columns, 1).codes).tolist()
        assert len(set(hashes)) == len(set(texts))
        plain = device.upload(np.frombuffer(b"".join(texts), np.uint8))
        moved = device.upload(np.cumsum([0, *lengths]).astype(np.int64))
        other = fingerprints(device, [KeyColumn(Kind.TEXT, plain, None, moved)], 1)
        assert device.download(other.codes).tolist() == hashes


def test_bytes_of_null_texts_do_not_count(device: RecordingDevice) -> None:
    """They may lie between those of others, as Arrow allows."""
    data = device.upload(np.frombuffer(b"abc" + bytes(30) + b"de", np.uint8).copy())
    offsets = device.upload(np.array([0, 3, 33, 35], np.int32))
    valid = device.upload(np.array([True, False, True]))
    layout = layout_of(device, [KeyColumn(Kind.TEXT, data, valid, offsets)])
    assert layout is not None
    assert (layout.fields[0].longest, layout.fields[0].length_shift) == (3, -1)


def test_every_text_of_many_counts(device: RecordingDevice) -> None:
    """Wherever the one long text is that ends in a zero byte: around the number of threads, and at the ends."""
    threads = min(device.properties.blocks * BLOCK_THREADS, 2048)
    for place in (0, threads - 1, threads, threads + 1, 2 * threads):
        texts = [b"a"] * (2 * threads + 1)
        texts[place] = b"abcd\x00"
        layout = layout_of(device, [column(device, "text", texts)])
        assert layout is not None
        assert layout.fields[0].longest == 5
        assert layout.fields[0].length_shift == 40


@pytest.mark.parametrize("kind", ["int64", "text"])
def test_every_pair_of_many_is_verified(device: RecordingDevice, rng: np.random.Generator, kind: str) -> None:
    """More pairs than the emulated device has threads, first all unequal, then some."""
    values: Values = [7, 8, 9, None] if kind == "int64" else [b"same", b"sane", b"", None]
    made = column(device, kind, values)
    for left, right in (
        (np.zeros(2100, np.int32), np.ones(2100, np.int32)),
        (rng.integers(0, 4, 2100).astype(np.int32), rng.integers(0, 4, 2100).astype(np.int32)),
    ):
        equal = compare(device, [made], device.upload(left), [made], device.upload(right))
        assert (device.download(equal) == ((left == right) & (left != 3))).all()


def test_offsets_of_two_widths_are_verified(device: RecordingDevice) -> None:
    texts: Values = [b"a" * 20, b"b" * 20, b""]
    wide = column(device, "text", texts)
    narrow = column(device, "text", texts[::-1], wide_offsets=False)
    rows = device.upload(np.arange(3, dtype=np.int32))
    for left, right in ((wide, narrow), (narrow, wide)):
        assert device.download(compare(device, [left], rows, [right], rows)).tolist() == [False, True, False]
        codes = [device.download(fingerprints(device, [side], 0).codes).tolist() for side in (left, right)]
        assert codes[0] == codes[1][::-1]


def test_longer_texts_have_no_layout(device: RecordingDevice) -> None:
    assert layout_of(device, [column(device, "text", [b"x" * 17])]) is None
    sixteen_with_lengths = column(device, "text", [b"x" * 15 + b"\x00"])
    assert layout_of(device, [sixteen_with_lengths]) is None
    assert layout_of(device, [column(device, "text", [b"x" * 14 + b"\x00"])]) is not None


def test_one_integer_column_is_its_own_code(device: RecordingDevice) -> None:
    given = column(device, "int64", [3, None, -4])
    layout = layout_of(device, [given])
    assert layout is not None
    assert pack(device, layout, [given]).codes is given.values
    assert device.launches == []


def test_probe_values_outside_the_build_range_have_no_code(device: RecordingDevice) -> None:
    build = [column(device, "int32", [10, 12]), column(device, "int32", [0, 0])]
    layout = layout_of(device, build)
    assert layout is not None
    probe = [
        column(device, "int32", [9, 10, 13, 12, -(1 << 31)]),
        column(device, "int32", [0, 0, 0, 1, 0]),
    ]
    assert on_host(device, pack(device, layout, probe)).labels() == [None, 0, None, None, None]


@pytest.mark.parametrize("rows", SIZES)
def test_sizes(device: RecordingDevice, rng: np.random.Generator, rows: int) -> None:
    values = [random_values(rng, "small64", rows), random_values(rng, "text", rows)]
    made = [column(device, "int64", values[0]), column(device, "text", values[1])]
    layout = layout_of(device, made)
    assert layout is not None
    given = labels(values, [False, False])
    for codes in (pack(device, layout, made), fingerprints(device, made, 1)):
        host_codes = on_host(device, codes)
        assert host_codes.rows == rows
        agree(host_codes, given, host_codes, given)


def test_forced_collisions_are_verified(make_device: MakeDevice, rng: np.random.Generator) -> None:
    device = make_device(colliding(1, "normalise.cu"))
    values = [str(i).encode() for i in range(50)]
    made = column(device, "text", values)
    codes = on_host(device, fingerprints(device, [made], 0)).labels()
    assert len(set(codes)) <= 2
    rows = np.arange(50, dtype=np.int32)
    shuffled = rng.permutation(rows)
    equal = compare(device, [made], device.upload(rows), [made], device.upload(shuffled))
    assert device.download(equal).tolist() == (rows == shuffled).tolist()


def test_bad_columns_are_refused_before_a_launch(device: RecordingDevice) -> None:
    numbers, words = device.zeros(8, np.int64), device.zeros((8, 2), np.uint64)
    offsets = device.zeros(9, np.int32)
    bad: list[list[KeyColumn]] = [
        [],
        [KeyColumn(Kind.INTEGER, device.zeros(8, np.float64))],
        [KeyColumn(Kind.FLOAT, numbers)],
        [KeyColumn(Kind.INTEGER, numbers[::2])],
        [KeyColumn(Kind.DECIMAL, numbers)],
        [KeyColumn(Kind.DECIMAL, words.reshape(4, 4))],
        [KeyColumn(Kind.TEXT, device.zeros(8, np.uint8))],
        [KeyColumn(Kind.INTEGER, numbers, offsets=offsets)],
        [KeyColumn(Kind.TEXT, device.zeros(8, np.uint8), offsets=device.zeros(9, np.int16))],
        [KeyColumn(Kind.INTEGER, numbers, device.zeros(8, np.int8))],
        [KeyColumn(Kind.INTEGER, numbers), KeyColumn(Kind.INTEGER, device.zeros(9, np.int64))],
    ]
    for columns in bad:
        for attempt in (layout_of, lambda d, c: fingerprints(d, c, 0)):
            with pytest.raises(KernelArgumentError):
                attempt(device, columns)
    narrow = [KeyColumn(Kind.INTEGER, device.zeros(8, np.int32))]
    rows = device.zeros(3, np.int32)
    with pytest.raises(KernelArgumentError, match="one side"):
        compare(device, narrow, rows, [KeyColumn(Kind.INTEGER, numbers)], rows)
    assert device.launches == []
    assert normalise.SPECIALISATIONS
