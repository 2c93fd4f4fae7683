"""The place of each test; see :mod:`tests.engine.pipeline.places`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.pipeline import places


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = getattr(request, "param", "cpu")
    places.enter(name, request.getfixturevalue("gpu_backend") if name == "gpu" else None)
    try:
        yield name
    finally:
        places.leave()
