"""Exchanged rows as packets, and what a task makes of packets that are not what was sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark.sql", reason="no PySpark: pip install gpujoin[spark]")

from gpujoin.config import BackendChoice, Options, Transport
from gpujoin.engine.blob import HEADER_BYTES
from gpujoin.errors import CorruptBlobError
from gpujoin.model.relations import ExchangeSource
from gpujoin.model.stages import NullKeys, Share
from gpujoin.spark.shuffle.blobrows import BlobCounts, BlobFormat
from gpujoin.spark.shuffle.exchanges import Outlet
from gpujoin.spark.shuffle.packets import PacketPacker, share_and_blobs, share_packets
from gpujoin.spark.worker.stage import RunStage
from gpujoin.spark.worker.task import Task
from gpujoin.spark.worker.taskreads import TaskReads

APP = Path(__file__).with_name("transport_app.py")
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("s", pa.string())])


def packets(partition: int, rows: pa.RecordBatch) -> list[bytes]:
    """What a partition of two receives of rows."""
    form = BlobFormat(SCHEMA)
    outlet = Outlet(form, (0,), (pa.int64(),), (False,), NullKeys.DROP, frozenset(), (0, 1), 64)
    counts = BlobCounts()
    sent = [bytes(packet) for packet in outlet.packed([rows], 0, PacketPacker(form, 64, counts), counts)]
    pairs = list(zip(sent[::2], sent[1::2], strict=True))
    assert counts.blobs == len(pairs) > 2
    return [blob for number, blob in pairs if int.from_bytes(number, "big") == partition]


def received(partition: int, given: list[bytes]) -> list[bytes]:
    """What a task of a stage that passes rows on gives for the packets that it takes."""
    tree = ExchangeSource(0, SCHEMA)
    stage = RunStage(
        tree, TaskReads.from_reads([{}]), (0,), (BlobFormat(SCHEMA),), (), None, Options(backend=BackendChoice.CPU),
        "gpujoin_island", transport=Transport.BYTES, arrow=SCHEMA,
    )  # fmt: skip
    return [bytes(message) for message in stage.run(iter(given), Task(stage=7, partition=partition))]


def test_all_that_a_task_sends_to_a_partition_is_in_one_division_of_it() -> None:
    form, rows = BlobFormat(SCHEMA), pa.record_batch([pa.array(range(40)), pa.array(["x"] * 40)], schema=SCHEMA)
    outlet = Outlet(form, (0,), (pa.int64(),), (False,), NullKeys.DROP, frozenset(), (0, 1), 64)
    for task in range(4):
        packer = PacketPacker(form, 64, BlobCounts(), divisions=3, task=task)
        sent = [bytes(packet) for packet in outlet.packed([rows], task, packer, BlobCounts())]
        assert {int.from_bytes(number, "big") for number in sent[::2]} == {task % 3, 3 + task % 3}


def test_a_share_is_told_by_the_first_packet() -> None:
    blobs = packets(0, pa.record_batch([pa.array(range(40)), pa.array(["x"] * 40)], schema=SCHEMA))
    for share, packet in share_packets().items():
        told, rest = share_and_blobs(iter([packet.encode(), *blobs]))
        assert (told, list(rest)) == (share, blobs)
        assert share_and_blobs([packet.encode()])[0] is share
    told, rest = share_and_blobs(blobs)
    assert (told, list(rest)) == (Share.WHOLE, blobs)
    assert share_and_blobs([])[0] is Share.WHOLE
    assert set(share_packets()) == set(Share) - {Share.WHOLE}


def test_packets_arrive_as_they_were_sent() -> None:
    rows = pa.record_batch([pa.array([*range(40), None]), pa.array([str(n) * n for n in range(41)])], schema=SCHEMA)
    back = [
        row
        for partition in (0, 1)
        for message in received(partition, packets(partition, rows))
        for row in pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA).to_pylist()
    ]
    assert sorted(back, key=lambda row: row["k"]) == rows.slice(0, 40).to_pylist()
    assert not received(0, []), "nothing was sent to the partition"


@pytest.mark.parametrize("damage", ["flipped", "short", "long", "elsewhere", "no such source"])
def test_a_damaged_packet_is_told_with_stage_and_partition(damage: str) -> None:
    rows = pa.record_batch([pa.array(range(40)), pa.array(["x"] * 40)], schema=SCHEMA)
    first, *rest = packets(1, rows)
    bad = {
        "flipped": first[:-20] + bytes([first[-20] ^ 1]) + first[-19:],
        "short": first[: HEADER_BYTES - 1],
        "long": first + bytes(8),
        "elsewhere": packets(0, rows)[0],
        "no such source": first[:12] + (3).to_bytes(4, "little") + first[16:],
    }[damage]
    with pytest.raises(CorruptBlobError, match=r"stage gpujoin_island, 7 of Spark's: .*partition 1"):
        received(1, [bad, *rest])


SETTINGS = {
    "encrypted": (
        "spark.io.encryption.enabled=true", "spark.authenticate=true", "spark.authenticate.secret=secret",
        "spark.network.crypto.enabled=true",
    ),
    "kryo": (
        "spark.serializer=org.apache.spark.serializer.KryoSerializer",
    ),
    "domain sockets, uncompressed": ("spark.python.unix.domain.socket.enabled=true", "spark.shuffle.compress=false"),
    "zstd, sorted, new workers": (
        "spark.io.compression.codec=zstd", "spark.shuffle.sort.bypassMergeThreshold=1",
        "spark.python.worker.reuse=false",
    ),
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_under_settings_of_the_application(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(APP), str(tmp_path), *SETTINGS[name]], capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(APP.parents[2]), "PYSPARK_PYTHON": sys.executable}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"bytes": [True, True]}
