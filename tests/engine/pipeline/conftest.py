"""The place of each test; see :mod:`tests.engine.pipeline.places`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.model.backend import BackendName
from tests.engine.pipeline import places


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = getattr(request, "param", "cpu")
    places.enter(name, create(BackendName.GPU, BackendRequest()) if name == "gpu" else None)
    try:
        yield name
    finally:
        places.leave()
