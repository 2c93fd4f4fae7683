"""Checked blobs and spilled parts: nothing misread, nothing left behind, every failure of a disk named."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpujoin.config import Compression, Options
from gpujoin.engine import spill
from gpujoin.engine.blob import HEADER_BYTES, decode, encode, schema_fingerprint, write_options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.spill import SpillPart, SpillStore
from gpujoin.errors import CorruptBlobError, SpillError
from tests.disks import Mount, flip_bit, spill_files

BATCH = pa.record_batch({"a": pa.array([1, None, 3]), "s": ["x", "", None], "l": [[1], None, []]})
DICTIONARY = pa.record_batch({"d": pa.array(["u", "v", "u"]).dictionary_encode()})
PRINT = schema_fingerprint(BATCH.schema)


def blob(batch: pa.RecordBatch = BATCH, compression: Compression = Compression.NONE) -> bytes:
    return encode(batch, schema_fingerprint(batch.schema), write_options(compression)).to_pybytes()


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
        bad = bytearray(good)
        bad[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBlobError):
            decode(bytes(bad), PRINT, "here")


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SpillStore]:
    options = Options(spill_dir=str(tmp_path), spill_encryption=request.param, memory_budget=1)
    with SpillStore(options, JoinMetrics()) as opened:
        yield opened


def test_parts_are_read_in_order_any_number_of_times(store: SpillStore, tmp_path: Path) -> None:
    first, second = store.new_parts(BATCH.schema, 2)
    batches = [BATCH, BATCH.slice(2), BATCH.slice(0, 0), BATCH.slice(0, 1)]
    for batch in batches:
        first.append(batch)
        second.append(batch.slice(0, 1))
    for _ in range(2):
        assert pa.Table.from_batches(first.read()).equals(pa.Table.from_batches(batches))
        assert sum(batch.num_rows for batch in second.read()) == second.rows == 3
    assert first.rows == 5
    (file,) = spill_files(tmp_path)
    assert (store.metrics.spills, store.metrics.spill_bytes) == (2, os.fstat(file).st_size)


def test_small_batches_become_large_blobs(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": range(1000)})
    with SpillStore(Options(spill_dir=str(tmp_path)), JoinMetrics()) as store:
        (part,) = store.new_parts(batch.schema, 1)
        for _ in range(200):
            part.append(batch)
        sizes = [read.num_rows for read in part.read()]
    assert sum(sizes) == 200_000
    assert max(sizes) > 100_000


def test_an_empty_part_reads_as_nothing(store: SpillStore) -> None:
    (part,) = store.new_parts(BATCH.schema, 1)
    assert list(part.read()) == []


def test_rows_without_columns_are_counted(store: SpillStore) -> None:
    (part,) = store.new_parts(pa.schema([]), 1)
    part.append(pa.record_batch({"a": [1, 2, 3]}).select([]))
    assert [batch.num_rows for batch in part.read()] == [3]


@pytest.mark.parametrize(
    "damage",
    [
        lambda file, size: os.ftruncate(file, size - 1),
        lambda file, size: os.ftruncate(file, 0),
        lambda file, size: os.pwrite(file, bytes(size), 0),
        lambda file, size: os.pwrite(file, os.pread(file, size // 2, 0), size // 2),
    ],
    ids=["last byte gone", "all gone", "zeroed", "first half twice"],
)
def test_a_damaged_file_is_named(store: SpillStore, tmp_path: Path, damage: Callable[[int, int], object]) -> None:
    (part,) = store.new_parts(BATCH.schema, 1)
    for number in range(4):
        part.append(pa.record_batch({"a": [number] * 3, "s": ["x"] * 3, "l": [[number]] * 3}).cast(BATCH.schema))
    (file,) = spill_files(tmp_path)
    damage(file, os.fstat(file).st_size)
    with pytest.raises(CorruptBlobError, match=str(tmp_path)):
        list(part.read())


def test_every_bit_of_a_file_matters(store: SpillStore, tmp_path: Path, rng: np.random.Generator) -> None:
    (part,) = store.new_parts(BATCH.schema, 1)
    part.append(BATCH)
    part.append(BATCH)
    (file,) = spill_files(tmp_path)
    for bit in rng.choice(8 * os.fstat(file).st_size, 300, replace=False):
        flip_bit(file, int(bit))
        with pytest.raises(CorruptBlobError):
            list(part.read())
        flip_bit(file, int(bit))
    assert pa.Table.from_batches(part.read()).num_rows == 6


def test_two_blobs_of_one_schema_do_not_stand_for_each_other(store: SpillStore, tmp_path: Path) -> None:
    (part,) = store.new_parts(pa.schema([("a", pa.int64())]), 1)
    for value in (1, 2):
        part.append(pa.record_batch({"a": [value] * 8}))
    (file,) = spill_files(tmp_path)
    half = os.fstat(file).st_size // 2
    first, second = os.pread(file, half, 0), os.pread(file, half, half)
    os.pwrite(file, second + first, 0)
    with pytest.raises(CorruptBlobError):
        list(part.read())


def test_a_file_has_no_name_and_no_other_reader(store: SpillStore, tmp_path: Path) -> None:
    (part,) = store.new_parts(BATCH.schema, 1)
    part.append(BATCH)
    assert list(tmp_path.iterdir()) == []
    (file,) = spill_files(tmp_path)
    facts = os.fstat(file)
    assert (facts.st_nlink, stat.S_IMODE(facts.st_mode)) == (0, 0o600)
    assert not os.get_inheritable(file)


def test_close_frees_everything(store: SpillStore, tmp_path: Path) -> None:
    store.new_parts(BATCH.schema, 1)[0].append(BATCH)
    store.close()
    store.close()
    assert spill_files(tmp_path) == []


def test_only_encrypted_files_hide_what_they_hold(tmp_path: Path) -> None:
    text = "4929 1234 5678 9012"
    for encrypted in (False, True):
        options = Options(spill_dir=str(tmp_path), spill_encryption=encrypted, memory_budget=1)
        with SpillStore(options, JoinMetrics()) as store:
            (part,) = store.new_parts(pa.schema([("s", pa.string())]), 1)
            part.append(pa.record_batch({"s": [text]}))
            (file,) = spill_files(tmp_path)
            written = os.pread(file, os.fstat(file).st_size, 0)
            assert (text.encode() in written) is not encrypted
            assert pa.Table.from_batches(part.read()).to_pydict() == {"s": [text]}


def test_large_blobs_are_encrypted_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_SEALED", 1000)
    batch = pa.record_batch({"a": range(5000)})
    with SpillStore(Options(spill_dir=str(tmp_path), spill_encryption=True), JoinMetrics()) as store:
        parts = store.new_parts(batch.schema, 2)
        for part in parts:
            part.append(batch)
        for part in parts:
            assert next(part.read()).equals(batch)
        (file,) = spill_files(tmp_path)
        flip_bit(file, 8 * 30_000)
        with pytest.raises(CorruptBlobError, match="cannot be decrypted"):
            list(parts[0].read())


def test_without_the_package_nothing_is_spilled_in_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SpillError, match=r"pip install .*in the workers' Python"):
        SpillStore(Options(spill_dir=str(tmp_path), spill_encryption=True), JoinMetrics())
    assert spill_files(tmp_path) == []


CHILD = """
import os, signal, sys, pyarrow as pa
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.spill import SpillStore
store = SpillStore(Options(spill_dir=sys.argv[1], memory_budget=1), JoinMetrics())
(part,) = store.new_parts(pa.schema([("a", pa.int64())]), 1)
part.append(pa.record_batch({"a": range(50_000)}))
if sys.argv[2] == "raise":
    raise SystemExit(3)
if sys.argv[2] != "return":
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(("ending", "code"), [("return", 0), ("raise", 3)])
def test_a_process_that_ends_leaves_nothing(tmp_path: Path, ending: str, code: int) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path), ending]
    assert subprocess.run(command, check=False, timeout=600).returncode == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("killed", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT], ids=lambda s: s.name)
def test_a_killed_process_leaves_neither_names_nor_space(tmpfs: Mount, killed: signal.Signals) -> None:
    """On a file system of its own, where the kernel says what is in use."""
    place = tmpfs("size=4m")
    free = os.statvfs(place).f_bfree
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(place), "wait"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    assert os.statvfs(place).f_bfree < free - 50
    child.send_signal(killed)
    child.wait()
    assert list(place.iterdir()) == []
    assert os.statvfs(place).f_bfree == free


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "/dev/null/below"])
def test_a_place_that_cannot_be_spilled_to_is_named(place: str) -> None:
    with pytest.raises(SpillError, match=f"spillDir.*{place}"):
        SpillStore(Options(spill_dir=place), JoinMetrics())


def test_a_read_only_disk_is_named_and_the_next_one_taken(tmpfs: Mount, tmp_path: Path) -> None:
    place = tmpfs("ro")
    with pytest.raises(SpillError, match=f"{place}: Read-only file system"):
        SpillStore(Options(spill_dir=str(place)), JoinMetrics())
    for _ in range(2):  # whichever is the first
        with SpillStore(Options(spill_dir=f"{place},{tmp_path}"), JoinMetrics()) as store:
            store.new_parts(BATCH.schema, 1)[0].append(BATCH)
            assert len(spill_files(tmp_path)) == 1


def append_often(part: SpillPart, batch: pa.RecordBatch) -> None:
    for _ in range(20):
        part.append(batch)


def test_a_full_disk_is_named_and_its_space_freed(tmpfs: Mount) -> None:
    place = tmpfs("size=1m")
    free = os.statvfs(place).f_bfree
    batch = pa.record_batch({"a": range(20_000)})
    with SpillStore(Options(spill_dir=str(place), memory_budget=1), JoinMetrics()) as store:
        (part,) = store.new_parts(batch.schema, 1)
        with pytest.raises(SpillError, match=rf"160,\d+ bytes \({place}: No space left on device after \d"):
            append_often(part, batch)
        assert sum(read.num_rows for read in part.read()) >= 100_000
    assert os.statvfs(place).f_bfree == free


def test_a_full_disk_is_followed_by_the_next_one(tmpfs: Mount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmpfs("size=1m"), tmp_path / "large"]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, places)))
    batch = pa.record_batch({"a": range(20_000)})
    used = 0
    for _ in range(2):  # whichever is the first
        with SpillStore(Options(memory_budget=1), JoinMetrics()) as store:
            (part,) = store.new_parts(batch.schema, 1)
            append_often(part, batch)
            used += len(spill_files(places[0]))
            assert len(spill_files(places[1])) == 1
            assert sum(read.num_rows for read in part.read()) == 400_000
    assert used == 1, "directories take turns"


LIMITED = """
import resource, sys, pyarrow as pa
from gpujoin.config import Options
from gpujoin.engine.metrics import JoinMetrics
from gpujoin.engine.spill import SpillStore
from gpujoin.errors import SpillError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with SpillStore(Options(spill_dir=sys.argv[1], memory_budget=1), JoinMetrics()) as store:
    (part,) = store.new_parts(pa.schema([("a", pa.int64())]), 1)
    try:
        for _ in range(100):
            part.append(pa.record_batch({"a": range(1000)}))
    except SpillError as problem:
        print(problem, sum(batch.num_rows for batch in part.read()))
"""


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert f"{tmp_path}: File too large after" in done.stdout
    assert done.stdout.endswith("12000\n") or done.stdout.endswith("11000\n")


def test_an_error_of_the_disk_while_reading_is_named(store: SpillStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = store.new_parts(BATCH.schema, 1)
    part.append(BATCH)

    def failing(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(CorruptBlobError, match="Input/output error"):
        list(part.read())


def test_an_error_of_the_disk_while_writing_is_named(
    store: SpillStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (part,) = store.new_parts(BATCH.schema, 1)

    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(SpillError, match=f"{tmp_path}: Input/output error"):
        part.append(BATCH)
