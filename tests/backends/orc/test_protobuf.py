"""Messages of Protocol Buffers: what is read of them, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from gpujoin.backends.orc.tail import Message, ProtobufError

READERS: dict[str, Callable[[Message], Any]] = {
    "integer 1": lambda message: message.integer(1),
    "integer 2": lambda message: message.integer(2, 5),
    "signed 1": lambda message: message.signed(1),
    "integers 3": lambda message: message.integers(3),
    "texts 2": lambda message: message.texts(2),
    "message 4": lambda message: message.message(4).signed(1),
    "messages 5": lambda message: [each.signed(1) for each in message.messages(5)],
    "9 is there": lambda message: 9 in message,
}
UNKNOWN = "70 01 79 01 02 03 04 05 06 07 08 7d 01 02 03 04 08 02 82 01 01 00"


@pytest.mark.parametrize(
    ("data", "reader", "value"),
    [
        ("", "integer 1", 0),
        ("", "integer 2", 5),
        ("", "signed 1", None),
        ("", "texts 2", []),
        ("", "message 4", None),
        ("08 07 12 02 68 69", "integer 1", 7),
        ("08 07 08 06", "integer 1", 6),
        ("08 07 12 02 68 69", "texts 2", [b"hi"]),
        ("08 07 12 02 68 69 12 00", "texts 2", [b"hi", b""]),
        ("08 ff ff ff ff ff ff ff ff ff 01", "integer 1", (1 << 64) - 1),
        ("08 03", "signed 1", -2),
        ("1a 03 01 ac 02 18 05", "integers 3", [1, 300, 5]),
        ("22 02 08 03 2a 02 08 00", "message 4", -2),
        ("22 02 08 03 22 00", "message 4", None),
        ("2a 02 08 00 2a 02 08 04 2a 00", "messages 5", [0, 2, None]),
        (UNKNOWN, "integer 1", 2),
        (UNKNOWN, "9 is there", False),
        ("48 00", "9 is there", True),
    ],
)
def test_fields_by_number(data: str, reader: str, value: object) -> None:
    assert READERS[reader](Message(bytes.fromhex(data))) == value


@pytest.mark.parametrize(
    ("data", "reader", "why"),
    [
        ("08", "integer 1", "ends within a number"),
        ("08 ff", "integer 1", "ends within a number"),
        ("12 05 68", "integer 1", "5 bytes of 1"),
        ("09 01", "integer 1", "8 bytes of 1"),
        ("08 ff ff ff ff ff ff ff ff ff ff 01", "integer 1", "more than 64 bits"),
        ("0b", "integer 1", "unknown wire type 3"),
        ("0a 01 80", "integer 1", "field 1 is no integer"),
        ("1a 01 80", "integers 3", "ends within a number"),
        ("20 01", "message 4", "field 4 has no bytes"),
        ("1d 01 02 03 04", "integers 3", "field 3 is no integer"),
        ("10 01", "texts 2", "field 2 has no bytes"),
    ],
)
def test_what_is_no_such_message_is_refused(data: str, reader: str, why: str) -> None:
    with pytest.raises(ProtobufError, match=why):
        READERS[reader](Message(bytes.fromhex(data)))


def test_any_bytes_end_with_values_or_an_error(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(5_000):
        data = bytes(dice.choice((8, 18, 26, 34, 42, 1, 2, 127, 200, 255)) for _ in range(dice.randrange(30)))
        for read in READERS.values():
            try:
                read(Message(data))
            except ProtobufError:
                continue
