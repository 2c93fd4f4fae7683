"""Checked blobs and spill files: nothing misread, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from gpujoin.config import Compression, Options
from gpujoin.engine.blob import HEADER_BYTES, decode, encode, schema_fingerprint, write_options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.spill import SpillDirectory
from gpujoin.errors import ConfigurationError, CorruptBlobError

BATCH = pa.record_batch({"a": pa.array([1, None, 3]), "s": ["x", "", None], "l": [[1], None, []]})
DICTIONARY = pa.record_batch({"d": pa.array(["u", "v", "u"]).dictionary_encode()})
PRINT = schema_fingerprint(BATCH.schema)


def blob(batch: pa.RecordBatch = BATCH, compression: Compression = Compression.NONE) -> bytes:
    header, message = encode(batch, schema_fingerprint(batch.schema), write_options(compression))
    return header + message.to_pybytes()


@pytest.mark.parametrize("compression", Compression, ids=lambda c: c.value)
@pytest.mark.parametrize(
    "batch", [BATCH, BATCH.slice(1, 1), BATCH.slice(0, 0), DICTIONARY], ids=["all", "slice", "none", "dict"]
)
def test_round_trip(batch: pa.RecordBatch, compression: Compression) -> None:
    data = blob(batch, compression) + b"more"
    read, length = decode(data, schema_fingerprint(batch.schema), "here")
    assert read.equals(batch)
    assert length == len(data) - 4


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:10], "shorter than a blob's header"),
        (lambda b: b"PK\x03\x04" + b[4:], "not one of ours"),
        (lambda b: b[:-1], "truncated"),
        (lambda b: b[: HEADER_BYTES + 4], "truncated"),
        (lambda b: b[:-9] + bytes([b[-9] ^ 1]) + b[-8:], "checksum"),
        (lambda b: b[:HEADER_BYTES] + bytes([b[HEADER_BYTES] ^ 128]) + b[HEADER_BYTES + 1 :], "checksum"),
        (lambda b: b[:16] + (99).to_bytes(8, "little") + b[24:], "99 were written"),
        (lambda b: b[:24] + (-1).to_bytes(8, "little", signed=True) + b[32:], "truncated"),
        (lambda b: blob(DICTIONARY), "another schema"),
        (lambda b: b"", "shorter than a blob's header"),
    ],
)  # fmt: skip
def test_damage_is_named(damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(CorruptBlobError, match=message) as caught:
        decode(damage(blob()), PRINT, "partition 7")
    assert "partition 7" in str(caught.value)


def test_every_single_bit_matters() -> None:
    """No one-bit fault reads as something else."""
    good = blob()
    for position in range(len(good)):
        if 12 <= position < 16:  # reserved
            continue
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBlobError):
            decode(bytes(bad), PRINT, "here")


@pytest.fixture
def directory(tmp_path: Path) -> SpillDirectory:
    return SpillDirectory(Options(spill_dir=str(tmp_path)), JoinMetrics())


def test_files_are_read_in_order_any_number_of_times(directory: SpillDirectory) -> None:
    file = directory.new_file(BATCH.schema)
    parts = [BATCH, BATCH.slice(2), BATCH.slice(0, 0), BATCH.slice(0, 1)]
    for part in parts:
        file.append(part)
    for _ in range(2):
        assert pa.Table.from_batches(file.read()).equals(pa.Table.from_batches(parts))
    assert file.rows == 5
    assert directory.metrics.spills == 1
    assert directory.metrics.spill_bytes == file.path.stat().st_size


def test_an_empty_file_reads_as_nothing(directory: SpillDirectory) -> None:
    assert list(directory.new_file(BATCH.schema).read()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b"\0" * path.stat().st_size),
        lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\xff" + path.read_bytes()[-8:]),
        lambda path: path.unlink(),
    ],
    ids=["truncated", "longer", "zeroed", "altered", "removed"],
)
def test_a_damaged_file_is_named(directory: SpillDirectory, damage: Callable[[Path], object]) -> None:
    file = directory.new_file(BATCH.schema)
    file.append(BATCH)
    file.append(BATCH)
    damage(file.path)
    with pytest.raises(CorruptBlobError, match=str(file.path)):
        list(file.read())


def test_close_removes_everything(directory: SpillDirectory, tmp_path: Path) -> None:
    directory.new_file(BATCH.schema).append(BATCH)
    directory.close()
    directory.close()
    assert list(tmp_path.iterdir()) == []


CHILD = """
import sys, time, pyarrow as pa
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.spill import SpillDirectory
d = SpillDirectory(Options(spill_dir=sys.argv[1]), JoinMetrics())
d.new_file(pa.schema([("a", pa.int64())])).append(pa.record_batch({"a": [1]}))
print("ready", flush=True)
if sys.argv[2] == "wait":
    time.sleep(600)
if sys.argv[2] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("ending", ["return", "raise"])
def test_interpreter_exit_removes_everything(tmp_path: Path, ending: str) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path), ending]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=600)
    assert (done.stdout, done.returncode) == (b"ready\n", 3 if ending == "raise" else 0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), "wait"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    SpillDirectory(Options(spill_dir=str(tmp_path)), JoinMetrics()).close()
    assert list(tmp_path.iterdir()) == left, "a live owner's directory stays"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 60
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        SpillDirectory(Options(spill_dir=str(tmp_path)), JoinMetrics()).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null"])
def test_a_place_that_cannot_be_spilled_to_is_named(place: str) -> None:
    with pytest.raises(ConfigurationError, match=f"spillDir.*{place}"):
        SpillDirectory(Options(spill_dir=place), JoinMetrics())
