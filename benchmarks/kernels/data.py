"""Keys and payload, made on the device by arithmetic: no random number generator, no copy from the host."""

from __future__ import annotations

import math
import random
from typing import Any

_MASK = (1 << 64) - 1
_RANDOM_BITS = 31


def numbers(xp: Any, start: int, count: int) -> Any:
    """``start, start + 1, …`` as uint64."""
    return xp.arange(start, start + count, dtype=xp.uint64)


def mixed(xp: Any, values: Any) -> Any:
    """The finaliser of SplitMix64: a bijection of 64-bit numbers."""
    values = values + xp.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> xp.uint64(30))) * xp.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> xp.uint64(27))) * xp.uint64(0x94D049BB133111EB)
    return values ^ (values >> xp.uint64(31))


def shuffled(xp: Any, values: Any, bits: int, seed: int = 0) -> Any:
    """A bijection of the numbers below ``2 ** bits``, without visible order; an unlike one for each seed."""
    mask, half = xp.uint64((1 << bits) - 1), xp.uint64(max(1, bits // 2))
    rng = random.Random(seed)
    for _ in range(4):
        values = values ^ (values >> half)
        values = (values * xp.uint64(rng.getrandbits(64) | 1) + xp.uint64(rng.getrandbits(64))) & mask
    return values ^ (values >> half)


def random_ranks(xp: Any, count: int, distinct: int, zipf: float, seed: int) -> Any:
    """Numbers below ``distinct``; rank r with a frequency near ``(r + 1) ** -zipf``, uniform for zero.

    By the inverse of the continuous distribution, which is close enough for a benchmark.
    """
    uniform = (mixed(xp, numbers(xp, seed << 40, count)) >> xp.uint64(64 - _RANDOM_BITS)).astype(xp.float64)
    uniform /= float(1 << _RANDOM_BITS)
    if zipf == 0:
        ranks = uniform * distinct
    elif zipf == 1:
        ranks = xp.exp(uniform * math.log(distinct + 1)) - 1
    else:
        power = 1 - zipf
        ranks = (uniform * ((distinct + 1) ** power - 1) + 1) ** (1 / power) - 1
    return xp.minimum(ranks.astype(xp.uint64), xp.uint64(distinct - 1))


def sparse(xp: Any, dense: Any) -> Any:
    """Dense numbers as int64 keys all over their type, distinct where the numbers are."""
    return mixed(xp, dense).view(xp.int64)


def payload(xp: Any, rows: int, column: int, seed: int) -> Any:
    """int64 values that tell rows and columns apart."""
    start = ((seed * 64 + column) << 40) & _MASK
    return (mixed(xp, numbers(xp, start, rows)) >> xp.uint64(1)).view(xp.int64)
