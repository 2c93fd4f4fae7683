"""The tables of benchmarks: written once, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import data
from gpujoin.errors import ConfigurationError, GpuJoinError


def test_data_is_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data.tpch_directory(0.001, tmp_path)
    assert {file.name for file in first.iterdir()} == {f"{name}.parquet" for name in data.TABLES}
    monkeypatch.setattr(data, "_generate", lambda scale, into: pytest.fail("written twice"))
    assert data.tpch_directory(0.001, tmp_path) == first
    assert list(tmp_path.iterdir()) == [first]


def test_a_failed_generation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(scale: float, into: Path) -> None:
        (into / "customer.parquet").write_text("half")
        raise GpuJoinError("no space left")

    monkeypatch.setattr(data, "_generate", half)
    with pytest.raises(GpuJoinError, match="no space left"):
        data.tpch_directory(0.001, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.delenv("GPUJOIN_CACHE", raising=False)
    assert data.cache_directory() == Path("/x/gpujoin")
    monkeypatch.setenv("GPUJOIN_CACHE", "/y")
    assert data.cache_directory() == Path("/y")


def test_the_generator_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigurationError, match=r"tpchgen-cli, .* is not installed: pip install"):
        data.tpch_directory(0.001, tmp_path / "cache")
