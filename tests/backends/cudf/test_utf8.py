"""Texts on the device that are UTF-8, and bytes that are not, against Python's own decoder."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from gpujoin.backends.cudf.utf8 import is_utf8

EDGES = (0x00, 0x61, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
         0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFF)  # fmt: skip
"""Bytes at the limits of what they may be."""


def checked(texts: list[bytes], before: bytes = b"") -> bool:
    """What is told of texts that lie one after the other, behind other bytes."""
    offsets = np.cumsum([len(before), *map(len, texts)]).astype(np.int32)
    return is_utf8(np, offsets, np.frombuffer(before + b"".join(texts) + b"\xff", np.uint8))


def decodes(texts: list[bytes]) -> bool:
    try:
        for text in texts:
            text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("length", [1, 2, 3])
def test_all_short_texts_of_edges(length: int) -> None:
    for values in itertools.product(EDGES, repeat=length):
        assert checked([bytes(values)], b"\xe2") == decodes([bytes(values)]), bytes(values)


def test_four_bytes_at_the_limits() -> None:
    tails = (0x61, 0x7F, 0x80, 0xBF, 0xC2)
    for first, second, third, fourth in itertools.product((0xEF, 0xF0, 0xF1, 0xF4, 0xF5), EDGES, tails, tails):
        text = bytes((first, second, third, fourth))
        assert checked([text]) == decodes([text]), text


def test_characters_that_two_texts_share() -> None:
    """All bytes together are UTF-8, and no text is."""
    for character in ("ä", "€", "𝄞"):
        whole = character.encode()
        for cut in range(1, len(whole)):
            assert not checked([b"a", whole[:cut], whole[cut:], b"z"])
        assert checked([b"", whole, b"", whole + whole, b""])


def test_drawn_texts(seed: int) -> None:
    dice = random.Random(seed)
    told = []
    for _ in range(3000):
        alphabet = dice.choice(("aä", "a€ä𝄞", "abc"))
        texts = ["".join(dice.choices(alphabet, k=dice.randrange(4))).encode() for _ in range(dice.randrange(5))]
        if texts and dice.random() < 0.5:
            broken = bytearray(dice.choice(texts) or b"a")
            broken[dice.randrange(len(broken))] = dice.choice(EDGES)
            texts[dice.randrange(len(texts))] = bytes(broken)
        told.append(checked(texts, b"\x80"))
        assert told[-1] == decodes(texts), texts
    assert {True, False} == set(told)
