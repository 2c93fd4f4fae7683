"""How alike texts are: by their sounds, and by the edits that make one of the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gpujoin.backends.cpu.expressions.implementation import Run, of_python
from gpujoin.backends.cpu.expressions.vector import Vector, bytes_layout, mask_and
from gpujoin.backends.cpu.utf8 import check_utf8
from gpujoin.model.expressions import Call, Function, Literal

_SOUNDS = "01230127022455012623017202"
"""Codes of the letters; 0 is a vowel, and 7 a letter that is passed over."""
_CELLS = 1 << 20
"""Most cells of the tables of edits that are computed at once."""


def _soundex(text: str) -> str:
    """Code of an English word: its first letter, and three digits for the consonants that follow."""
    if not text or not _is_letter(text[0]):
        return text
    first = text[0].upper()
    code, last = first, _sound(first)
    for char in text[1:]:
        if not _is_letter(char):
            last = "0"
            continue
        sound = _sound(char.upper())
        if sound == "7":
            continue
        if sound not in ("0", last):
            code += sound
            if len(code) == 4:
                break
        last = sound
    return code.ljust(4, "0")


def _is_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def _sound(letter: str) -> str:
    return _SOUNDS[ord(letter) - ord("A")]


def _levenshtein(node: Call, operands: list[Vector], length: int) -> Vector:
    """Least number of characters to insert, remove or replace; -1 if it is more than a third operand.

    The tables of many pairs of texts are computed row by row together. In a row each cell is the least of what comes
    from the row above, and of the cell before it plus one; taking off the column's number makes the latter a running
    minimum::

        above    0 1 2 3      from above    1 1 2 3      less columns    1 0 0 0      minima    1 0 0 0
    """
    rows = 1 if all(operand.constant for operand in operands) else length
    expanded = [operand.expand(rows) for operand in operands]
    valid = reduce(mask_and, (operand.mask() for operand in expanded))
    for operand in expanded[:2]:
        check_utf8(operand.values, node)
    left, right = (_Texts.of(operand.values) for operand in expanded[:2])
    distances = np.zeros(rows, np.int32)
    for part in _parts(left.sizes, right.sizes):
        distances[part] = _distances(left, right, part)
    if len(operands) > 2:
        distances = np.where(distances <= expanded[2].values, distances, -1).astype(np.int32)
    return Vector(pa.int32(), distances, valid)


class _Texts:
    """Texts as the numbers of their characters."""

    def __init__(self, characters: npt.NDArray[np.uint32], sizes: npt.NDArray[np.int64]) -> None:
        self._characters = characters
        self._starts = np.cumsum(sizes) - sizes
        self.sizes = sizes

    @classmethod
    def of(cls, texts: pa.Array) -> _Texts:
        texts = pc.fill_null(texts, "")
        starts, data = bytes_layout(texts)
        whole = data[starts[0] : starts[-1]].tobytes().decode().encode("utf-32-le")
        sizes = pc.utf8_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(np.frombuffer(whole, np.uint32), sizes)

    def table(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """The characters of some texts, each in a row, filled up with what is no character."""
        sizes = self.sizes[rows]
        table = np.full((len(rows), int(sizes.max(initial=0))), np.iinfo(np.uint32).max, np.uint32)
        columns = np.arange(table.shape[1])
        present = columns < sizes[:, None]
        table[present] = self._characters[(self._starts[rows][:, None] + columns)[present]]
        return table


def _parts(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Divide the rows, texts of like lengths together, so that the tables of each part are small."""
    longest = np.maximum(left, right)
    order = np.argsort(longest, kind="stable")
    widths = longest[order] + 1
    start = 0
    while start < len(order):
        window = widths[start : start + max(1, _CELLS // int(widths[start]))]
        fitting = int(np.searchsorted(window * np.arange(1, len(window) + 1), _CELLS, side="right"))
        yield order[start : start + max(1, fitting)]
        start += max(1, fitting)


def _distances(left: _Texts, right: _Texts, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    first, second = left.table(rows), right.table(rows)
    lengths, ends = left.sizes[rows], right.sizes[rows]
    columns = np.arange(second.shape[1] + 1, dtype=np.int32)
    above = np.tile(columns, (len(rows), 1))
    every = np.arange(len(rows))
    result = above[every, ends]
    for number in range(first.shape[1]):
        cells = np.empty_like(above)
        cells[:, 0] = number + 1
        replaced = above[:, :-1] + (first[:, number, None] != second)
        np.minimum(above[:, 1:] + 1, replaced, out=cells[:, 1:])
        above = np.minimum.accumulate(cells - columns, axis=1) + columns
        ending = lengths == number + 1
        result[ending] = above[every[ending], ends[ending]]
    return result.astype(np.int32)


def constant_limit(node: Call) -> bool:
    """Whether the third operand of ``levenshtein``, if there is one, is a constant; Spark reads a null one as 0."""
    limit = node.arguments[2] if len(node.arguments) > 2 else Literal(value=0)
    return isinstance(limit, Literal) and limit.value is not None


FUNCTIONS: dict[Function, Run] = {
    Function.SOUNDEX: of_python(_soundex),
    Function.LEVENSHTEIN: _levenshtein,
}
