"""Messages of Protocol Buffers: what is read of them, and what is refused."""

from __future__ import annotations

import random

import pytest

from gpujoin.backends.orc.protobuf import Message, ProtobufError, Repeated, Scalar, read

INNER = Message({1: Scalar.SIGNED})
MESSAGE = Message({
    1: Scalar.UNSIGNED, 2: Scalar.BYTES, 3: Repeated(Scalar.UNSIGNED), 4: INNER, 5: Repeated(INNER),
    6: Repeated(Scalar.BYTES),
})  # fmt: skip


@pytest.mark.parametrize(
    ("data", "values"),
    [
        ("", {}),
        ("08 07 12 02 68 69", {1: 7, 2: b"hi"}),
        ("08 ff ff ff ff ff ff ff ff ff 01", {1: (1 << 64) - 1}),
        ("1a 03 01 ac 02 18 05", {3: [1, 300, 5]}),
        ("22 02 08 03 2a 02 08 00 2a 02 08 04 2a 00", {4: {1: -2}, 5: [{1: 0}, {1: 2}, {}]}),
        ("32 01 61 32 00", {6: [b"a", b""]}),
        ("70 01 79 01 02 03 04 05 06 07 08 7d 01 02 03 04 08 02 82 01 01 00", {1: 2}),
    ],
    ids=["nothing", "a number and bytes", "64 bits", "packed and single", "messages", "texts", "unknown fields"],
)
def test_fields_by_number(data: str, values: dict[int, object]) -> None:
    assert read(bytes.fromhex(data), MESSAGE) == values


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("08", "ends within a number"),
        ("08 ff", "ends within a number"),
        ("12 05 68", "5 bytes of 1"),
        ("09 01", "8 bytes of 1"),
        ("08 ff ff ff ff ff ff ff ff ff ff 01", "more than 64 bits"),
        ("0b", "unknown wire type 3"),
        ("0a 01 00", "field 1 has wire type 2"),
        ("20 01", "field 4 has wire type 0"),
        ("1d 01 02 03 04", "field 3 has wire type 5"),
    ],
)
def test_what_is_no_such_message_is_refused(data: str, why: str) -> None:
    with pytest.raises(ProtobufError, match=why):
        read(bytes.fromhex(data), MESSAGE)


def test_any_bytes_end_with_values_or_an_error(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(5_000):
        data = bytes(dice.choice((8, 18, 26, 34, 42, 1, 2, 127, 200, 255)) for _ in range(dice.randrange(30)))
        try:
            read(data, MESSAGE)
        except ProtobufError:
            continue
