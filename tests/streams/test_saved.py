"""States that earlier releases have saved are read: the rows that they kept still match, and leave when they should.

``saved/FORMAT.json`` holds a manifest, chunks and marks as a release wrote them. A new format gets a file of its own
(``python -m tests.streams.test_saved``); those that are there are never written again.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest

from gpujoin.model.expressions import left, right
from gpujoin.model.jointype import JoinType
from gpujoin.model.spec import JoinSpec, KeyPair
from gpujoin.plan.resolve import resolve
from gpujoin.streams.format import Manifest, MemoryStore
from gpujoin.streams.join import StreamJoin
from gpujoin.streams.state import StateOptions
from gpujoin.streams.symmetric import SymmetricJoin
from tests.oracle.streams import rows_of
from tests.streams.streams import SECOND, TIME, seconds

SAVED = Path(__file__).parent / "saved"
FILES = sorted(SAVED.glob("*.json"))
COLUMNS = pa.schema([("k", pa.string()), ("t", TIME), ("v", pa.list_(pa.int32()))])
SIZES = StateOptions(chunk_bytes=400, fan_in=4)


def join() -> StreamJoin:
    u, t = right("t"), left("t")
    condition = resolve((u >= t) & (u <= t + seconds(5)), COLUMNS, COLUMNS)
    spec = JoinSpec(JoinType.FULL, (KeyPair(0, 0),), condition, (0, 1, 2), (0, 1, 2))
    return StreamJoin(spec, COLUMNS, COLUMNS, (1,), (1,))


def rows(*given: tuple[str | None, int | None]) -> list[pa.RecordBatch]:
    """Rows of keys and seconds."""
    made = [
        {"k": key, "t": None if time is None else time * SECOND, "v": None if time is None else [time, None]}
        for key, time in given
    ]
    return pa.Table.from_pylist(made, COLUMNS).to_batches()


def begun(store: MemoryStore) -> SymmetricJoin:
    """Micro-batches before the state is saved: rows that matched, that did not, without keys, without times."""
    running = SymmetricJoin(join(), store, state_options=SIZES)
    for left_rows, right_rows, watermark in (
        (rows(("a", 10), ("b", 11), (None, 12)), rows(("a", 12)), 0),
        (rows(("c", 14), ("d", None)), rows(("b", 30), ("e", 13)), 5000),
        (rows(("a", 15)), rows(("c", 17)), 12_000),
    ):
        list(running.push(left_rows, right_rows, watermark))
    return running


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_saved_states_go_on(file: Path) -> None:
    saved = json.loads(file.read_text())
    store = MemoryStore()
    store.data = {name: pa.py_buffer(base64.b64decode(data)) for name, data in saved["chunks"].items()}
    store.bits = {name: base64.b64decode(bits) for name, bits in saved["marks"].items()}
    running = SymmetricJoin(join(), store, json.dumps(saved["manifest"]).encode(), state_options=SIZES)
    assert running.manifest.watermark_ms == 12_000
    met = rows_of(list(running.push(rows(("a", 13)), rows(("a", 16), ("a", 11)), 12_000)), running.output_schema)
    assert sorted((row[0], row[1], row[4]) for row in met) == [
        ("a", 13 * SECOND, 16 * SECOND), ("a", 15 * SECOND, 16 * SECOND),
    ]  # fmt: skip
    left_over = rows_of(list(running.push([], [], 10**9)), running.output_schema)
    unmatched = {(row[0] or row[3], row[1] if row[0] or row[1] else row[4]) for row in left_over}
    assert unmatched == {("b", 11 * SECOND), (None, 12 * SECOND), ("b", 30 * SECOND), ("e", 13 * SECOND)}


def test_the_format_of_this_release_is_among_them() -> None:
    assert f"format{Manifest.FORMAT}" in {file.stem for file in FILES}


def main() -> None:
    """Write the file of this release's format."""
    store = MemoryStore()
    running = begun(store)
    content = {
        "manifest": json.loads(running.manifest.to_bytes()),
        "chunks": {name: base64.b64encode(data).decode() for name, data in store.data.items()},
        "marks": {name: base64.b64encode(bits).decode() for name, bits in store.bits.items()},
    }
    target = SAVED / f"format{Manifest.FORMAT}.json"
    SAVED.mkdir(exist_ok=True)
    target.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
