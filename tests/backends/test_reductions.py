from __future__ import annotations

import numpy as np
import pytest

from gpujoin.backends.ordered.reductions import all_true, any_true, total


@pytest.mark.parametrize("mask", [[], [False], [True], [False, True], [True, True], [False] * 300 + [True] * 300])
def test_masks_are_reduced_as_by_numpy(mask: list[bool]) -> None:
    array = np.array(mask, bool)
    for part in (array, array[::2], np.broadcast_to(array[:1], 3 if mask else 0)):
        assert any_true(part) == part.any()
        assert all_true(part) == part.all()
        assert total(part) == part.sum()


def test_sums_exceed_the_type_of_their_terms() -> None:
    assert total(np.full(5, 2**31 - 1, np.int32)) == 5 * (2**31 - 1)
    assert total(np.array([], np.int32)) == 0
